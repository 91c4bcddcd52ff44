"""Wrong arguments of composition: a part of the table of `bad_inputs.py`."""

# pyright: reportArgumentType=false, reportCallIssue=false
# Wrong arguments are this file's business.

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

import sequinox as sqx

Case = tuple[str, Callable[[], Any], type[Exception], tuple[str, ...]]

KEY = jax.random.key(0)
XS = jnp.ones((4, 5, 3))
TOKENS, MASK = jnp.zeros((4, 5), int), jnp.ones((4, 5), bool)


def gru(n_in: int, n_hidden: int) -> sqx.GRU:
    return sqx.GRU(n_in, n_hidden, KEY)


def cases() -> list[Case]:
    return [*_composed(), *_wrapped(), *_models(), *_forcing()]


def _composed() -> list[Case]:
    both = sqx.Bidirectional(gru(3, 3), gru(3, 3))
    last = sqx.Sequential([gru(3, 3), sqx.LastStep()])
    embed = eqx.nn.Embedding(7, 3, key=KEY)
    dense = lambda n_in, n_out: sqx.Dense(n_in, n_out, KEY)
    named = sqx.Sequential({"rnn": gru(3, 5), "head": dense(5, 2)})
    residual, parallel, sequential = sqx.Residual, sqx.Parallel, sqx.Sequential
    return [
        ("Residual: no layer", lambda: residual(3), TypeError, ("Residual: layer", "function", "3")),
        ("Residual: width", lambda: residual(gru(3, 5)), ValueError, ("Residual", "5", "3", "projection=Dense(3, 5")),
        ("Residual: pools", lambda: residual(last), ValueError, ("Residual", "pools over time", "Sequential")),
        ("Residual: tokens", lambda: residual(embed), ValueError, ("Residual", "tokens", "projection")),
        (
            "Residual: projection gives",
            lambda: residual(gru(3, 5), projection=dense(3, 4)),
            ValueError,
            ("Residual", "width 5", "projection gives 4"),
        ),
        (
            "Residual: projection reads",
            lambda: residual(gru(3, 5), projection=dense(4, 5)),
            ValueError,
            ("Residual", "projection", "width 3", "4"),
        ),
        (
            "Residual: projection remembers",
            lambda: residual(gru(3, 5), projection=gru(3, 5)),
            ValueError,
            ("Residual", "projection", "without memory", "GRU"),
        ),
        (
            "Residual: projection of tokens",
            lambda: residual(gru(3, 3), projection=embed),
            ValueError,
            ("Residual", "projection", "vectors, or tokens"),
        ),
        ("Residual: offline", lambda: residual(both), ValueError, ("Residual", "6", "3")),
        ("Parallel: empty", lambda: parallel([]), ValueError, ("Parallel", "at least one")),
        ("Parallel: one layer", lambda: parallel(gru(3, 5)), TypeError, ("Parallel", "list")),
        ("Parallel: join", lambda: parallel([gru(3, 5)], "mean"), ValueError, ("join", "concatenate", "sum", "'mean'")),
        (
            "Parallel: widths",
            lambda: parallel([gru(3, 5), gru(4, 5)]),
            ValueError,
            ("Parallel: layers[1] (GRU)", "width 4", "width 3"),
        ),
        (
            "Parallel: tokens",
            lambda: parallel({"a": embed, "b": gru(4, 5)}),
            ValueError,
            ("Parallel: layers['b']", "tokens", "width 4"),
        ),
        ("Parallel: pools", lambda: parallel([gru(3, 3), last]), ValueError, ("Parallel: layers[1]", "pool")),
        ("Parallel: sum", lambda: parallel([gru(3, 5), dense(3, 2)], "sum"), ValueError, ("Parallel", "[5, 2]", "sum")),
        ("Sequential: no name", lambda: sequential({"": gru(3, 5)}), TypeError, ("Sequential", "name", "string", "''")),
        ("Sequential: a number's name", lambda: sequential([(1, gru(3, 5))]), TypeError, ("name", "string", "1")),
        (
            "Sequential: a name twice",
            lambda: sequential([("a", gru(3, 5)), ("a", gru(5, 5))]),
            ValueError,
            ("Sequential", "two layers", "'a'"),
        ),
        (
            "Sequential: a pair among layers",
            lambda: sequential([gru(3, 5), ("a", jnp.tanh)]),
            TypeError,
            ("layers[1]",),
        ),
        (
            "Sequential: named widths",
            lambda: sequential({"rnn": gru(3, 5), "head": dense(4, 2)}),
            ValueError,
            ("Sequential: layers['head'] (Dense)", "width 4", "5"),
        ),
        (
            "Sequential: named memory behind pooling",
            lambda: sequential({"last": last, "rnn": gru(3, 5)}),
            ValueError,
            ("layers['rnn'] (GRU)", "memory", "layers['last']"),
        ),
        (
            "Sequential: a tuple for named states",
            lambda: named.unroll(XS, named[0].init_state(4)),
            TypeError,
            ("Sequential.unroll: state", "dictionary", "['head', 'rnn']", "Array"),
        ),
        (
            "Sequential: other names in a state",
            lambda: named.unroll(XS, {"rnn": jnp.ones((4, 5)), "tail": ()}),
            TypeError,
            ("state", "['head', 'rnn']", "['rnn', 'tail']"),
        ),
        ("Sequential: an unknown name", lambda: named["gru"], KeyError, ("'gru'", "['rnn', 'head']")),
    ]


def _wrapped() -> list[Case]:
    both = sqx.Bidirectional(gru(3, 3), gru(3, 3))
    attention = sqx.MultiHeadSelfAttention(6, 2, KEY, causal=True)
    return [
        ("Remat: checkpoint_every", lambda: sqx.Remat(gru(3, 5), 0), ValueError, ("Remat", "checkpoint_every", "0")),
        ("Remat: half a stretch", lambda: sqx.Remat(gru(3, 5), 2.5), TypeError, ("checkpoint_every", "integer", "2.5")),
        ("Remat: offline", lambda: sqx.Remat(both, 4), TypeError, ("Remat", "checkpoint_every", "stream", "Bidirec")),
        (
            "Remat: grows",
            lambda: sqx.Remat(attention, 2)(jnp.ones((5, 6))),
            ValueError,
            ("Remat", "checkpoint_every", "grows", "with_capacity"),
        ),
        ("TrainedStart: no layer", lambda: sqx.TrainedStart(jnp.tanh), TypeError, ("TrainedStart", "layer", "tanh")),
        (
            "TrainedStart: offline",
            lambda: sqx.TrainedStart(both),
            TypeError,
            ("TrainedStart", "stream", "Bidirectional"),
        ),
        ("TrainedStart: grows", lambda: sqx.TrainedStart(attention), ValueError, ("TrainedStart", "cache", "grows")),
        (
            "TrainedStart: nothing to train",
            lambda: sqx.TrainedStart(sqx.AddPositions(3)),
            ValueError,
            ("TrainedStart", "nothing in its state", "AddPositions"),
        ),
        (
            "TrainedStart: state",
            lambda: sqx.TrainedStart(gru(3, 5)).unroll(XS, jnp.ones((4, 6))),
            ValueError,
            ("TrainedStart.unroll: state", "(4, 5)", "(4, 6)"),
        ),
    ]


def _models() -> list[Case]:
    net, make, model = sqx.recurrent_net, sqx.recurrent_encoder_decoder, sqx.RecurrentEncoderDecoder
    good, dense = make(3, 6, 7, KEY), sqx.Dense(6, 7, KEY)
    last = sqx.Sequential([gru(3, 6), sqx.LastStep()])
    both = sqx.Bidirectional(gru(3, 3), gru(3, 3))
    name = "recurrent_encoder_decoder"
    return [
        (
            "recurrent_net: residual",
            lambda: net(3, 4, 2, KEY, residual=1),
            TypeError,
            ("recurrent_net", "residual", "1"),
        ),
        ("recurrent_net: norm", lambda: net(3, 4, 2, KEY, layer_norm="post"), TypeError, ("layer_norm", "'post'")),
        (f"{name}: size", lambda: make(3, 0, 7, KEY), ValueError, (name, "n_hidden", "0")),
        (f"{name}: cell", lambda: make(3, 6, 7, KEY, cell="gruu"), ValueError, (name, "cell", "'gruu'")),
        (f"{name}: odd", lambda: make(3, 5, 7, KEY, bidirectional=True), ValueError, (name, "n_hidden", "even", "5")),
        (f"{name}: dropout", lambda: make(3, 6, 7, KEY, dropout=1.0), ValueError, (name, "dropout", "less than 1")),
        (
            f"{name}: attention",
            lambda: make(3, 6, 7, KEY, attention="luong"),
            TypeError,
            (name, "attention", "'luong'"),
        ),
        (f"{name}: tokens", lambda: make(3, 6, 7, KEY, tokens=None), TypeError, (name, "tokens", "None")),
        (f"{name}: key", lambda: make(3, 6, 7, 0), TypeError, (name, "key", "0")),
        (f"{name}: no source", lambda: good(TOKENS), ValueError, ("no source", "model.encode(source)")),
        (f"{name}: no source to step", lambda: good.step(TOKENS[:, 0]), ValueError, ("model.encode(source)",)),
        (f"{name}: width of a source", lambda: good.encode(jnp.ones((4, 5, 4))), ValueError, ("(*batch, time, 3)",)),
        (
            f"{name}: another batch",
            lambda: good.unroll(TOKENS, good.encode(XS[:3])),
            ValueError,
            ("RecurrentEncoderDecoder.unroll: state.encoded[1]", "(4, 6)", "(3, 6)"),
        ),
        (f"{name}: a state of something else", lambda: good.unroll(TOKENS, XS), TypeError, ("SourceState", "Array")),
        (
            "RecurrentEncoderDecoder: no layer",
            lambda: model(gru(3, 6), gru(3, 6), 3),
            TypeError,
            ("head", "layer", "3"),
        ),
        ("RecurrentEncoderDecoder: pools", lambda: model(last, gru(3, 6), dense), ValueError, ("encoder", "pools")),
        (
            "RecurrentEncoderDecoder: states",
            lambda: model(sqx.LSTM(3, 6, KEY), gru(3, 6), dense),
            ValueError,
            ("RecurrentEncoderDecoder", "decoder", "encoder", "LSTMState", "[6]"),
        ),
        (
            "RecurrentEncoderDecoder: no memory",
            lambda: model(sqx.Dense(3, 6, KEY), sqx.Dense(3, 6, KEY), dense),
            ValueError,
            ("RecurrentEncoderDecoder", "state of decoder", "at least one"),
        ),
        ("RecurrentEncoderDecoder: offline", lambda: model(both, both, dense), TypeError, ("decoder", "stream")),
        ("RecurrentEncoderDecoder: head", lambda: model(gru(3, 5), gru(3, 5), dense), ValueError, ("head", "6", "5")),
    ]


def _forcing() -> list[Case]:
    model = sqx.Sequential([eqx.nn.Embedding(9, 3, key=KEY), sqx.Dense(3, 9, KEY)])
    both = sqx.Bidirectional(gru(3, 3), gru(3, 3))
    later = sqx.Sequential([eqx.nn.Embedding(9, 3, key=KEY), both])
    run, name = sqx.unroll_forced, "unroll_forced"
    return [
        (f"{name}: model", lambda: run(jnp.tanh, TOKENS, MASK), TypeError, (name, "model", "sequence layer")),
        (f"{name}: vectors", lambda: run(gru(3, 5), XS, MASK), TypeError, (name, "tokens", "vectors")),
        (f"{name}: offline", lambda: run(later, TOKENS, MASK), TypeError, (name, "stream")),
        (f"{name}: floats", lambda: run(model, XS[..., 0], MASK), TypeError, (name, "integer", "float32")),
        (f"{name}: no flags", lambda: run(model, TOKENS, None), TypeError, (name, "forced", "None")),
        (f"{name}: flags", lambda: run(model, TOKENS, TOKENS), TypeError, (name, "forced", "boolean", "int32")),
        (f"{name}: shape", lambda: run(model, TOKENS, MASK[:, :4]), ValueError, (name, "forced", "(4, 5)", "(4, 4)")),
        (f"{name}: mask", lambda: run(model, TOKENS, MASK, mask=MASK[0]), ValueError, (name, "mask", "(4, 5)", "(5,)")),
        (f"{name}: no key", lambda: run(model, TOKENS, MASK, temperature=1.0), ValueError, (name, "key")),
        (f"{name}: cold", lambda: run(model, TOKENS, MASK, temperature=-1.0), ValueError, (name, "temperature", "-1")),
        (f"{name}: state", lambda: run(model, TOKENS, MASK, XS), TypeError, (name, "state", "tuple of 2")),
    ]
