"""Wrong arguments of convolutions and the networks made of them: a part of the table of `bad_inputs.py`."""

# pyright: reportArgumentType=false, reportCallIssue=false
# Wrong arguments are this file's business.

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import sequinox as sqx

Case = tuple[str, Callable[[], Any], type[Exception], tuple[str, ...]]

KEY = jax.random.key(0)
XS = jnp.ones((4, 5, 3))


def cases() -> list[Case]:
    conv, up = sqx.Conv1d(3, 5, 3, KEY, dilation=2), sqx.ConvTranspose1d(3, 2, 5, 2, KEY)
    block, net = sqx.TemporalBlock(3, 5, 2, KEY), sqx.WaveNet(3, 5, (1, 2), KEY)
    tcn, wavenet = "temporal_conv_net", "wavenet"
    flat = lambda key, shape, dtype: jnp.ones(shape[1:], dtype)
    made: list[Case] = [
        ("Conv1d: n_in", lambda: sqx.Conv1d(0, 5, 3, KEY), ValueError, ("Conv1d", "n_in", "at least 1", "0")),
        ("Conv1d: n_out", lambda: sqx.Conv1d(3, "5", 3, KEY), TypeError, ("Conv1d", "n_out", "integer", "'5'")),
        ("Conv1d: kernel_size", lambda: sqx.Conv1d(3, 5, 0, KEY), ValueError, ("Conv1d", "kernel_size", "0")),
        ("Conv1d: key", lambda: sqx.Conv1d(3, 5, 3, 0), TypeError, ("Conv1d", "key", "PRNG")),
        ("Conv1d: dilation", lambda: sqx.Conv1d(3, 5, 3, KEY, dilation=0), ValueError, ("Conv1d", "dilation", "0")),
        ("Conv1d: groups", lambda: sqx.Conv1d(6, 4, 3, KEY, groups=3), ValueError, ("groups", "6", "4", "3")),
        ("Conv1d: groups of inputs", lambda: sqx.Conv1d(3, 4, 3, KEY, groups=2), ValueError, ("groups", "3", "2")),
        ("Conv1d: use_bias", lambda: sqx.Conv1d(3, 5, 3, KEY, use_bias=1), TypeError, ("Conv1d", "use_bias", "True")),
        ("Conv1d: weight_norm", lambda: sqx.Conv1d(3, 5, 3, KEY, weight_norm="yes"), TypeError, ("weight_norm", "yes")),
        ("Conv1d: dtype", lambda: sqx.Conv1d(3, 5, 3, KEY, dtype=int), TypeError, ("Conv1d", "floating")),
        ("Conv1d: initializer", lambda: sqx.Conv1d(3, 5, 3, KEY, initializer=0.1), TypeError, ("Conv1d", "function")),
        (
            "Conv1d: initializer's shape",
            lambda: sqx.Conv1d(3, 5, 2, KEY, initializer=flat),
            ValueError,
            ("Conv1d", "initializer", "(2, 3, 5)", "(3, 5)"),
        ),
        (
            "Conv1d: samples",
            lambda: conv(XS[..., :2]),
            ValueError,
            ("Conv1d.forward", "(*batch, time, 3)", "(4, 5, 2)"),
        ),
        (
            "Conv1d: state",
            lambda: conv.unroll(XS, jnp.zeros((4, 3, 3))),
            ValueError,
            ("Conv1d.unroll: state", "(4, 4, 3)", "(4, 3, 3)"),
        ),
        ("ConvTranspose1d: stride", lambda: sqx.ConvTranspose1d(3, 2, 5, 0, KEY), ValueError, ("stride", "0")),
        ("ConvTranspose1d: n_channels", lambda: sqx.ConvTranspose1d(3, 0, 5, 2, KEY), ValueError, ("n_channels", "0")),
        (
            "ConvTranspose1d: kernel_size",
            lambda: sqx.ConvTranspose1d(3, 2, 1.5, 2, KEY),
            TypeError,
            ("ConvTranspose1d", "kernel_size", "integer", "1.5"),
        ),
        (
            "ConvTranspose1d: spread",
            lambda: up.spread(jnp.ones((4, 5, 3))),
            ValueError,
            ("ConvTranspose1d.spread", "(*batch, time, 4)", "(4, 5, 3)"),
        ),
        (
            "ConvTranspose1d: spread a mask of numbers",
            lambda: up.spread_mask(jnp.ones((4, 5))),
            TypeError,
            ("ConvTranspose1d.spread_mask", "mask", "boolean", "float32"),
        ),
        (
            "ConvTranspose1d: spread resets without time",
            lambda: up.spread_resets(jnp.array(True)),
            ValueError,
            ("ConvTranspose1d.spread_resets", "(*batch, time)", "()"),
        ),
        (
            "GatedConv1d: dilation",
            lambda: sqx.GatedConv1d(3, 5, 2, KEY, dilation=True),
            TypeError,
            ("dilation", "True"),
        ),
        ("GatedConv1d: n_out", lambda: sqx.GatedConv1d(3, -5, 2, KEY), ValueError, ("GatedConv1d", "n_out", "-5")),
        ("TemporalBlock: dropout", lambda: sqx.TemporalBlock(3, 5, 2, KEY, dropout=1), ValueError, ("dropout", "1")),
        ("TemporalBlock: n_out", lambda: sqx.TemporalBlock(3, 0, 2, KEY), ValueError, ("TemporalBlock", "n_out", "0")),
        (
            "TemporalBlock: state",
            lambda: block.unroll(XS, (jnp.zeros((4, 1, 3)), jnp.zeros((4, 1, 3)))),
            ValueError,
            ("TemporalBlock.unroll: state.second", "(4, 1, 5)", "(4, 1, 3)"),
        ),
        ("TemporalBlock: one state", lambda: block.unroll(XS, jnp.zeros((4, 1, 3))), TypeError, ("first, second",)),
        ("WaveNet: no dilations", lambda: sqx.WaveNet(3, 5, (), KEY), ValueError, ("WaveNet", "dilations")),
        ("WaveNet: dilations", lambda: sqx.WaveNet(3, 5, (1, 0), KEY), ValueError, ("WaveNet", "dilations[1]", "0")),
        ("WaveNet: a number", lambda: sqx.WaveNet(3, 5, 4, KEY), TypeError, ("WaveNet", "dilations", "list", "int")),
        (
            "WaveNet: state",
            lambda: net.unroll(XS, (jnp.zeros((4, 1, 3)),)),
            ValueError,
            ("WaveNet.unroll: state", "a tuple of 2", "1"),
        ),
        (f"{tcn}: channels", lambda: sqx.temporal_conv_net(3, 5, 2, KEY), TypeError, (tcn, "channels", "list", "int")),
        (f"{tcn}: none", lambda: sqx.temporal_conv_net(3, [], 2, KEY), ValueError, (tcn, "channels", "at least one")),
        (f"{tcn}: width", lambda: sqx.temporal_conv_net(3, [5, 0], 2, KEY), ValueError, (tcn, "channels[1]", "0")),
        (f"{tcn}: pool", lambda: sqx.temporal_conv_net(3, [5], 2, KEY, pool="max"), ValueError, (tcn, "pool", "max")),
        (f"{tcn}: dropout", lambda: sqx.temporal_conv_net(3, [5], 2, KEY, dropout=-1), ValueError, (tcn, "dropout")),
        (f"{wavenet}: layers", lambda: sqx.wavenet(3, 5, 2, KEY, n_layers=0), ValueError, (wavenet, "n_layers", "0")),
        (f"{wavenet}: tokens", lambda: sqx.wavenet(3, 5, 2, KEY, tokens=1), TypeError, (wavenet, "tokens", "True")),
        (f"{wavenet}: n_skip", lambda: sqx.wavenet(3, 5, 2, KEY, n_skip=0), ValueError, (wavenet, "n_skip", "0")),
    ]
    return made
