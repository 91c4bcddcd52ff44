"""Wrong arguments of the conversions from and to PyTorch: a part of the table of `bad_inputs.py`."""

# pyright: reportArgumentType=false
# Wrong arguments are this file's business.

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import numpy as np

import sequinox as sqx

Case = tuple[str, Callable[[], Any], type[Exception], tuple[str, ...]]

KEY = jax.random.key(0)
DENSE = sqx.Dense(3, 2, KEY)
WEIGHTS = {"weight": np.ones((2, 3), np.float32), "bias": np.ones(2, np.float32)}


def loading() -> list[Case]:
    load = sqx.load_torch
    return [
        ("load_torch: list", lambda: load(DENSE, [1.0]), TypeError, ("load_torch", "weights", "state_dict", "list")),
        ("load_torch: pickle", lambda: load(DENSE, "m.pth"), ValueError, ("m.pth", "pickles", "save_file")),
        ("load_torch: no file", lambda: load(DENSE, "none.safetensors"), FileNotFoundError, ("none.safetensors",)),
        (
            "load_torch: lists in it",
            lambda: load(DENSE, {**WEIGHTS, "bias": [1.0, 1.0]}),
            TypeError,
            ("bias", "array", "list"),
        ),
        ("load_torch: prefix", lambda: load(DENSE, WEIGHTS, "a"), ValueError, ("'a.'", "weight, bias")),
        ("load_torch: prefix a number", lambda: load(DENSE, WEIGHTS, 1), TypeError, ("load_torch", "prefix", "1")),
        ("load_torch: nothing", lambda: load(DENSE, {}), ValueError, ("Dense", "missing: weight, bias")),
        ("load_torch: bias", lambda: load(DENSE, WEIGHTS, bias=0), TypeError, ("load_torch", "bias", "0")),
        ("load_torch: cast", lambda: load(DENSE, WEIGHTS, cast="no"), TypeError, ("load_torch", "cast", "'no'")),
        ("load_torch: class", lambda: load(sqx.Dense, WEIGHTS), TypeError, ("load_torch", "layer", "Dense")),
        ("load_torch: arrays", lambda: load(WEIGHTS, WEIGHTS), TypeError, ("load_torch", "layer", "module")),
        ("from_torch: dictionary", lambda: sqx.from_torch(WEIGHTS), TypeError, ("from_torch", "dict", "load_torch")),
        ("from_torch: causal", lambda: sqx.from_torch(None, causal=1), TypeError, ("from_torch", "causal", "1")),
    ]


def no_equivalent() -> list[Case]:
    """Layers that PyTorch has not."""
    gru = lambda n, **options: sqx.GRU(3, n, KEY, reset_after=True, **options)
    wide = lambda n_in, n: sqx.RNN(n_in, n, KEY)
    attention = lambda **options: sqx.MultiHeadSelfAttention(8, 4, KEY, **options)
    block = lambda **options: sqx.TransformerBlock(8, 2, 5, KEY, **options)
    both = sqx.Bidirectional(wide(3, 4), wide(3, 4))
    layers: list[tuple[str, Any, tuple[str, ...]]] = [
        ("peepholes", sqx.LSTM(3, 5, KEY), ("peepholes=False", "'V'")),
        ("variant", sqx.LSTM(3, 5, KEY, variant="CIFG", peepholes=False), ("'CIFG'",)),
        ("reset before", sqx.GRU(3, 5, KEY), ("reset_after=True",)),
        ("norm in the loop", gru(5, layer_norm=True), ("gamma",)),
        ("another cell", sqx.MGU(3, 5, KEY), ("MGU", "convertible", "GRU")),
        ("widths", sqx.Sequential([wide(3, 5), wide(5, 4)]), ("RNN", "n_hidden")),
        ("directions", sqx.Sequential([both, wide(8, 4)]), ("RNN", "directions")),
        ("activations", sqx.Sequential([wide(3, 4), sqx.RNN(4, 4, KEY, activation="relu")]), ("RNN", "options")),
        ("a cell inside", sqx.Sequential({"a": DENSE, "b": sqx.Stack([wide(2, 2)])}), ("layers['b']", "Stack")),
        ("heads", attention(n_kv_heads=2), ("heads", "2")),
        ("width of heads", attention(d_head=3), ("d_model / n_heads", "3")),
        ("rotary", attention(rotary=sqx.Rotary()), ("rotary",)),
        ("gate", block(gated=True), ("feed-forward", "gate")),
        ("root mean square", block(norm_layer=eqx.nn.RMSNorm), ("LayerNorm",)),
        ("some biases", block(attention_bias=False), ("all biases or none", "attention_bias")),
        ("memory", block(attention_bias=True, cross=True, d_memory=3), ("memory", "width")),
        ("lengths apart", sqx.Conv1d(3, 2, 2, KEY, weight_norm=True), ("g of Conv1d",)),
    ]
    return [
        *(
            (f"to_torch: {name}", lambda la=la: sqx.to_torch(la), ValueError, ("to_torch", *w))
            for name, la, w in layers
        ),
        (
            "load_torch: peepholes",
            lambda: sqx.load_torch(sqx.LSTM(3, 5, KEY), {}),
            ValueError,
            ("load_torch", "peepholes"),
        ),
        ("to_torch: cell", lambda: sqx.to_torch(DENSE, cell=True), ValueError, ("to_torch", "cell=True", "Dense")),
        (
            "to_torch: projected cell",
            lambda: sqx.to_torch(sqx.LSTM(3, 5, KEY, peepholes=False, n_proj=2), cell=True),
            ValueError,
            ("LSTMCell", "n_proj=2"),
        ),
        ("to_torch: bias", lambda: sqx.to_torch(DENSE, bias=None), TypeError, ("to_torch", "bias", "None")),
        ("to_torch: prefix", lambda: sqx.to_torch(DENSE, None), TypeError, ("to_torch", "prefix", "None")),
        (
            "save_safetensors: ending",
            lambda: sqx.save_safetensors(DENSE, "m.pt"),
            ValueError,
            ("save_safetensors", ".safetensors", "m.pt"),
        ),
        (
            "save_safetensors: list",
            lambda: sqx.save_safetensors({"a": [1.0]}, "m.safetensors"),
            TypeError,
            ("save_safetensors", "a", "array", "list"),
        ),
    ]


def cases() -> list[Case]:
    return loading() + no_equivalent()
