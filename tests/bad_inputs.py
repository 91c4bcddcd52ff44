"""A table of wrong arguments, each with the error that a user must get; run as a script, it tries them all.

Users have no type checker on, so this runs in a process of its own, without the import hook of the test suite:
`test_bad_inputs.py` starts it and compares. Each case is a name, a function that must raise, the type of the error, and
words that its message must hold: the argument, what was expected, what came.
"""

# pyright: reportArgumentType=false, reportCallIssue=false
# Wrong arguments are this file's business.
# One line a case.

import collections
import json
import math
import tempfile
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

import sequinox as sqx
from sequinox import tasks, train

Case = tuple[str, Callable[[], Any], type[Exception], tuple[str, ...]]

KEY = jax.random.key(0)
XS, X = jnp.ones((4, 5, 3)), jnp.ones((4, 3))
GRU, LSTM, RNN = sqx.GRU(3, 6, KEY), sqx.LSTM(3, 6, KEY), sqx.RNN(3, 6, KEY)
NET = sqx.recurrent_net(3, 6, 2, KEY)
BOTH = sqx.Bidirectional(sqx.GRU(3, 6, KEY), sqx.GRU(3, 4, KEY))
TOKENS = sqx.Sequential([eqx.nn.Embedding(9, 3, key=KEY), sqx.GRU(3, 6, KEY)])
MASK = jnp.ones((4, 5), bool)
Swapped = collections.namedtuple("Swapped", "c y")
GRADS = {"W": jnp.ones((2, 3))}


def contract() -> list[Case]:
    """Samples, masks, resets, states, batch axes and keys."""
    cases: list[Case] = []
    for layer in (GRU, LSTM, RNN, NET, BOTH):
        who = f"{type(layer).__name__}.forward"
        cases += [
            (f"{who}: rank", lambda la=layer: la(jnp.ones(3)), ValueError, (who, "xs", "(*batch, time, 3)", "(3,)")),
            (f"{who}: width", lambda la=layer: la(jnp.ones((4, 5, 2))), ValueError, (who, "xs", "3", "(4, 5, 2)")),
            (f"{who}: integers", lambda la=layer: la(jnp.ones((4, 5, 3), int)), TypeError, (who, "floating", "int32")),
            (f"{who}: half", lambda la=layer: la(XS.astype(jnp.bfloat16)), TypeError, ("bfloat16", "float32", "cast")),
            (f"{who}: list", lambda la=layer: la([[1.0, 2.0, 3.0]]), TypeError, (who, "xs", "array", "list")),
            (f"{who}: mask shape", lambda la=layer: la(XS, mask=MASK[:, :4]), ValueError, ("mask", "(4, 5)", "(4, 4)")),
            (f"{who}: mask dtype", lambda la=layer: la(XS, mask=MASK * 1.0), TypeError, ("mask", "bool", "float32")),
            (f"{who}: resets shape", lambda la=layer: la(XS, resets=MASK[0]), ValueError, ("resets", "(4, 5)", "(5,)")),
        ]
    cases += [
        ("scalar", lambda: GRU(jnp.array(1.0)), ValueError, ("xs", "(*batch, time, 3)", "()")),
        ("None", lambda: GRU(None), TypeError, ("xs", "array", "NoneType")),
        ("boolean samples", lambda: GRU(jnp.ones((5, 3), bool)), TypeError, ("xs", "floating", "bool")),
        ("complex samples", lambda: GRU(jnp.ones((5, 3), jnp.complex64)), TypeError, ("xs", "complex64", "float32")),
        ("float16 samples", lambda: GRU(jnp.ones((5, 3), jnp.float16)), TypeError, ("float16", "float32")),
        ("time last", lambda: GRU(jnp.ones((4, 3, 5))), ValueError, ("xs", "3", "(4, 3, 5)")),
        ("mask a list", lambda: GRU(XS, mask=[True]), TypeError, ("mask", "array", "list")),
        ("mask with features", lambda: GRU(XS, mask=MASK[..., None]), ValueError, ("mask", "(4, 5)", "(4, 5, 1)")),
        ("mask for one row", lambda: GRU(XS, mask=MASK[0]), ValueError, ("mask", "(4, 5)", "(5,)")),
        ("mask of lengths", lambda: GRU(XS, mask=jnp.array([5, 3, 2, 1])), TypeError, ("mask", "bool", "int32")),
        ("resets of integers", lambda: GRU(XS, resets=MASK.astype(int)), TypeError, ("resets", "bool", "int32")),
        ("resets a number", lambda: GRU(XS, resets=True), TypeError, ("resets", "array", "bool")),
        ("step: rank", lambda: GRU.step(jnp.array(1.0)), ValueError, ("GRU.step", "x", "(*batch, 3)", "()")),
        ("step: width", lambda: GRU.step(jnp.ones((4, 2))), ValueError, ("GRU.step", "x", "(*batch, 3)", "(4, 2)")),
        ("step: integers", lambda: GRU.step(jnp.ones(3, int)), TypeError, ("GRU.step", "x", "floating", "int32")),
        ("step: mask", lambda: GRU.step(X, mask=jnp.ones(3, bool)), ValueError, ("GRU.step", "mask", "(4,)", "(3,)")),
        ("step: mask dtype", lambda: GRU.step(X, mask=jnp.ones(4)), TypeError, ("GRU.step", "mask", "bool")),
        ("step: resets", lambda: GRU.step(X, resets=jnp.ones((), bool)), ValueError, ("resets", "(4,)", "()")),
        ("state of no batch", lambda: GRU.unroll(XS, GRU.init_state()), ValueError, ("state", "(4, 6)", "(6,)")),
        ("state too wide", lambda: GRU.step(X, jnp.ones((4, 7))), ValueError, ("state", "(4, 6)", "(4, 7)")),
        ("state dtype", lambda: GRU.step(X, jnp.ones((4, 6), jnp.float16)), TypeError, ("state", "float32", "float16")),
        ("state of integers", lambda: GRU.step(X, jnp.ones((4, 6), int)), TypeError, ("state", "float32", "int32")),
        ("state a number", lambda: GRU.step(X, 0.0), TypeError, ("state", "array", "float")),
        ("state a pair for one", lambda: GRU.step(X, (X, X)), TypeError, ("state", "array", "tuple")),
        ("LSTM state an array", lambda: LSTM.step(X, jnp.ones((4, 6))), TypeError, ("LSTMState(y, c)",)),
        ("LSTM state of one", lambda: LSTM.step(X, (jnp.ones((4, 6)),)), ValueError, ("LSTMState(y, c)", "1")),
        (
            "LSTM cell too wide",
            lambda: LSTM.step(X, (jnp.ones((4, 6)), jnp.ones((4, 5)))),
            ValueError,
            ("LSTM.step", "state.c", "(4, 6)", "(4, 5)"),
        ),
        (
            "state with other names",
            lambda: LSTM.step(X, Swapped(jnp.ones((4, 6)), jnp.ones((4, 6)))),
            TypeError,
            ("state", "LSTMState(y, c)", "Swapped(c, y)"),
        ),
        ("LSTM cell missing", lambda: LSTM.step(X, (jnp.ones((4, 6)), None)), TypeError, ("state.c", "NoneType")),
        ("network state", lambda: NET.step(X, NET.init_state(4)[:2]), ValueError, ("state", "tuple of 3", "2")),
        (
            "network state of another batch",
            lambda: NET.step(X, NET.init_state(5)),
            ValueError,
            ("state[0].y", "(4, 6)"),
        ),
        (
            "both: state",
            lambda: BOTH.unroll(XS, jnp.ones((4, 6))),
            TypeError,
            ("BidirectionalState(forward, backward)",),
        ),
        ("batch negative", lambda: GRU.init_state(-1), ValueError, ("GRU.init_state", "batch", "negative", "-1")),
        ("batch a float", lambda: GRU.init_state(2.0), TypeError, ("GRU.init_state", "batch", "integer", "2.0")),
        ("batch True", lambda: GRU.init_state(True), TypeError, ("batch", "integer", "True")),
        ("batch a string", lambda: NET.init_state("4"), TypeError, ("batch", "integer", "'4'")),
        (
            "init_state: integer dtype",
            lambda: GRU.init_state(2, int),
            TypeError,
            ("GRU.init_state", "dtype", "floating"),
        ),
        ("Dense init_state", lambda: sqx.Dense(3, 2, KEY).init_state(-2), ValueError, ("Dense.init_state", "batch")),
        ("does not stream", lambda: BOTH.step(X), TypeError, ("Bidirectional.step", "does not stream", "end")),
        ("network does not stream", lambda: sqx.Sequential([BOTH]).step(X), TypeError, ("Sequential.step", "stream")),
        (
            "Stream: does not stream",
            lambda: sqx.Stream(BOTH),
            TypeError,
            ("Stream", "does not stream", "Bidirectional"),
        ),
        ("Stream: no layer", lambda: sqx.Stream(jnp.tanh), TypeError, ("Stream", "layer")),
        ("Stream: width", lambda: sqx.Stream(GRU)(jnp.ones(2)), ValueError, ("x", "3", "(2,)")),
        (
            "Stream: state",
            lambda: sqx.Stream(GRU, state=jnp.ones(5))(jnp.ones(3)),
            ValueError,
            ("state", "(6,)", "(5,)"),
        ),
        ("tokens of floats", lambda: TOKENS(jnp.ones((4, 5))), TypeError, ("xs", "integer", "float32")),
        (
            "tokens: mask",
            lambda: TOKENS(jnp.ones((4, 5), int), mask=MASK[:3]),
            ValueError,
            ("mask", "(4, 5)", "(3, 5)"),
        ),
    ]
    return cases


def constructors() -> list[Case]:
    """Sizes, options, keys and dtypes of layers and models."""
    cases: list[Case] = []
    for make in (sqx.RNN, sqx.GRU, sqx.LSTM, sqx.Dense):
        n = make.__name__
        second = "n_out" if make is sqx.Dense else "n_hidden"
        cases += [
            (f"{n}: n_in 0", lambda m=make: m(0, 4, KEY), ValueError, (n, "n_in", "at least 1", "0")),
            (f"{n}: n_in negative", lambda m=make: m(-3, 4, KEY), ValueError, (n, "n_in", "-3")),
            (f"{n}: {second} 0", lambda m=make: m(3, 0, KEY), ValueError, (n, second, "at least 1")),
            (f"{n}: {second} float", lambda m=make: m(3, 4.0, KEY), TypeError, (n, second, "integer", "4.0")),
            (f"{n}: {second} True", lambda m=make: m(3, True, KEY), TypeError, (n, second, "integer", "True")),
            (f"{n}: key an integer", lambda m=make: m(3, 4, 0), TypeError, (n, "key", "PRNG key", "0")),
            (f"{n}: keys", lambda m=make: m(3, 4, jax.random.split(KEY)), TypeError, (n, "key", "(2,)")),
            (f"{n}: integer dtype", lambda m=make: m(3, 4, KEY, dtype=int), TypeError, (n, "dtype", "floating", "int")),
        ]
    for make in (sqx.RNN, sqx.GRU, sqx.LSTM):
        n = make.__name__
        cases += [
            (f"{n}: implementation", lambda m=make: m(3, 4, KEY, implementation="cudnn"), ValueError, (n, "'cudnn'")),
            (f"{n}: initializer", lambda m=make: m(3, 4, KEY, initializer="orthogonal"), TypeError, (n, "initializer")),
        ]
    odd = lambda key, shape, dtype: jnp.zeros((2, 2), dtype)
    gru = lambda a, b: sqx.GRU(a, b, KEY)
    cases += [
        (
            "initializer of another shape",
            lambda: sqx.GRU(3, 4, KEY, initializer=odd),
            ValueError,
            ("initializer", "(2, 2)"),
        ),
        ("float8", lambda: sqx.GRU(3, 4, KEY, dtype=jnp.float8_e4m3fn), TypeError, ("dtype", "16 bits", "float8")),
        ("recurrent_net: a cell", lambda: sqx.recurrent_net(3, 4, 2, KEY, cell=GRU), ValueError, ("cell", "class")),
        (
            "RNN: activation",
            lambda: sqx.RNN(3, 4, KEY, activation="gelu"),
            ValueError,
            ("activation", "tanh", "'gelu'"),
        ),
        ("LSTM: forget_bias", lambda: sqx.LSTM(3, 4, KEY, forget_bias=math.nan), ValueError, ("forget_bias", "finite")),
        ("LSTM: forget_bias text", lambda: sqx.LSTM(3, 4, KEY, forget_bias="1"), TypeError, ("forget_bias", "number")),
        ("LSTM: peepholes", lambda: sqx.LSTM(3, 4, KEY, peepholes=3), TypeError, ("peepholes", "True or False", "3")),
        ("Dense: use_bias", lambda: sqx.Dense(3, 4, KEY, use_bias=None), TypeError, ("use_bias", "True or False")),
        ("Dropout: negative", lambda: sqx.Dropout(-0.1), ValueError, ("Dropout", "p", "-0.1")),
        ("Dropout: one", lambda: sqx.Dropout(1.0), ValueError, ("Dropout", "p", "less than 1", "1.0")),
        ("Dropout: NaN", lambda: sqx.Dropout(math.nan), ValueError, ("Dropout", "p", "nan")),
        ("Dropout: text", lambda: sqx.Dropout("half"), TypeError, ("Dropout", "p", "number", "'half'")),
        ("Dropout: inference", lambda: sqx.Dropout(0.5, "yes"), TypeError, ("Dropout", "inference", "True or False")),
        ("Dropout: no key", lambda: sqx.Dropout(0.5)(XS), ValueError, ("Dropout", "key", "inference_mode")),
        ("Dropout: no key in eqx's", lambda: sqx.Sequential([eqx.nn.Dropout(0.5)])(XS), ValueError, ("Dropout", "key")),
        ("Dropout: wrong key", lambda: sqx.Dropout(0.5)(XS, key=3), TypeError, ("key", "PRNG key", "3")),
        ("LastStep: width", lambda: sqx.LastStep(0), ValueError, ("LastStep", "n_in", "at least 1")),
        ("LastStep: unknown width", lambda: sqx.LastStep().init_state(4), ValueError, ("LastStep", "width")),
        ("MeanOverTime: width", lambda: sqx.MeanOverTime("3"), TypeError, ("MeanOverTime", "n_in", "integer")),
        ("MeanOverTime: integers", lambda: sqx.MeanOverTime(3)(XS.astype(int)), TypeError, ("floating", "int32")),
        ("Sequential: empty", lambda: sqx.Sequential([]), ValueError, ("Sequential", "layers", "at least one")),
        ("Sequential: one layer", lambda: sqx.Sequential(GRU), TypeError, ("Sequential", "list", "GRU")),
        ("Sequential: a number", lambda: sqx.Sequential([GRU, 3]), TypeError, ("layers[1]", "3")),
        ("Sequential: widths", lambda: sqx.Sequential([gru(3, 5), gru(4, 2)]), ValueError, ("layers[1]", "4", "5")),
        (
            "Sequential: width of a Linear",
            lambda: sqx.Sequential([gru(3, 5), eqx.nn.Linear(4, 2, key=KEY)]),
            ValueError,
            ("layers[1]", "width 4", "5"),
        ),
        (
            "Sequential: memory behind pooling",
            lambda: sqx.Sequential([gru(3, 5), sqx.LastStep(), gru(5, 2)]),
            ValueError,
            ("layers[2]", "GRU", "memory", "layers[1]"),
        ),
        (
            "Sequential: pooling behind pooling",
            lambda: sqx.Sequential([gru(3, 5), sqx.LastStep(), sqx.MeanOverTime()]),
            ValueError,
            ("layers[2]", "MeanOverTime", "layers[1]"),
        ),
        ("PerSample: no function", lambda: sqx.PerSample(3), TypeError, ("PerSample", "function", "3")),
        ("PerSample: a cell of Equinox", lambda: sqx.PerSample(eqx.nn.GRUCell(3, 4, key=KEY)), TypeError, ("GRUCell",)),
        (
            "PerSample: attention",
            lambda: sqx.PerSample(eqx.nn.MultiheadAttention(2, 4, key=KEY)),
            TypeError,
            ("Multi",),
        ),
        (
            "PerSample: dropout",
            lambda: sqx.PerSample(eqx.nn.Dropout(0.5)),
            TypeError,
            ("PerSample", "sequinox.Dropout"),
        ),
        ("PerSample: convolution", lambda: sqx.PerSample(eqx.nn.Conv1d(3, 3, 1, key=KEY)), TypeError, ("Conv1d",)),
        ("PerSample: a state", lambda: sqx.PerSample(eqx.nn.BatchNorm(3, "b", mode="ema")), TypeError, ("BatchNorm",)),
        ("PerSample: a layer", lambda: sqx.PerSample(GRU), TypeError, ("PerSample", "GRU")),
        ("PerSample: a matrix", lambda: sqx.PerSample(jnp.diag, 3), ValueError, ("PerSample", "vector", "(3, 3)")),
        ("PerSample: a scalar", lambda: sqx.PerSample(jnp.sum, 3), ValueError, ("PerSample", "vector")),
        ("PerSample: width", lambda: sqx.PerSample(eqx.nn.LayerNorm(3), 4), ValueError, ("LayerNorm", "3", "4")),
        ("PerSample: a class", lambda: sqx.PerSample(eqx.nn.LayerNorm), TypeError, ("PerSample", "LayerNorm")),
        ("PerSample: a scalar at the call", lambda: sqx.PerSample(jnp.sum)(XS), ValueError, ("vector", "()")),
        ("PerSample: a matrix at the call", lambda: sqx.PerSample(jnp.diag)(XS), ValueError, ("vector", "(3, 3)")),
        ("Sequential: a class", lambda: sqx.Sequential([GRU, sqx.Dense]), TypeError, ("layers[1]", "Dense")),
        ("Sequential: None", lambda: sqx.Sequential([GRU, None]), TypeError, ("layers[1]", "None")),
        ("Sequential: a name", lambda: sqx.Sequential([GRU, "tanh"]), TypeError, ("layers[1]", "'tanh'")),
        ("Sequential: wrong key", lambda: NET(XS, key=3), TypeError, ("Sequential.forward", "key", "PRNG key", "3")),
        ("GRU: wrong key", lambda: GRU.step(X, key=jnp.ones(2)), TypeError, ("GRU.step", "key", "float32")),
        ("float64 by default", lambda: sqx.GRU(3, 4, KEY, dtype="float64"), ValueError, ("dtype", "jax_enable_x64")),
        ("dtype of no kind", lambda: sqx.GRU(3, 4, KEY, dtype="float33"), TypeError, ("GRU", "dtype", "'float33'")),
        ("Bidirectional: no layer", lambda: sqx.Bidirectional(GRU, jnp.tanh), TypeError, ("backward_layer",)),
        ("Bidirectional: widths", lambda: sqx.Bidirectional(GRU, gru(4, 6)), ValueError, ("Bidirectional", "3", "4")),
        (
            "Bidirectional: one pools",
            lambda: sqx.Bidirectional(GRU, sqx.Sequential([gru(3, 6), sqx.LastStep()])),
            ValueError,
            ("Bidirectional", "pool"),
        ),
        ("recurrent_net: cell", lambda: sqx.recurrent_net(3, 4, 2, KEY, cell="qrnn"), ValueError, ("cell", "'qrnn'")),
        ("recurrent_net: cell number", lambda: sqx.recurrent_net(3, 4, 2, KEY, cell=3), ValueError, ("cell", "3")),
        ("recurrent_net: layers", lambda: sqx.recurrent_net(3, 4, 2, KEY, n_layers=0), ValueError, ("n_layers", "0")),
        ("recurrent_net: n_out", lambda: sqx.recurrent_net(3, 4, -2, KEY), ValueError, ("n_out", "-2")),
        ("recurrent_net: pool", lambda: sqx.recurrent_net(3, 4, 2, KEY, pool="max"), ValueError, ("pool", "'max'")),
        (
            "recurrent_net: dropout",
            lambda: sqx.recurrent_net(3, 4, 2, KEY, dropout=1.5),
            ValueError,
            ("dropout", "1.5"),
        ),
        (
            "recurrent_net: both",
            lambda: sqx.recurrent_net(3, 4, 2, KEY, bidirectional=1),
            TypeError,
            ("bidirectional",),
        ),
        ("recurrent_net: key", lambda: sqx.recurrent_net(3, 4, 2, 0), TypeError, ("key", "PRNG key")),
        ("recurrent_net: no key", lambda: sqx.recurrent_net(3, 4, 2, KEY, dropout=0.5)(XS), ValueError, ("key",)),
        ("recurrent_net: option", lambda: sqx.recurrent_net(3, 4, 2, KEY, peephole=True), TypeError, ("peephole",)),
        ("summary: no module", lambda: sqx.summary(3), TypeError, ("summary", "module", "int")),
    ]
    return cases


def attention() -> list[Case]:
    """The function, the layers, their caches and memories, positions."""
    sdpa = "scaled_dot_product_attention"
    attend = sqx.scaled_dot_product_attention
    q, k, v = jnp.ones((2, 3, 4, 6)), jnp.ones((2, 3, 5, 6)), jnp.ones((2, 3, 5, 7))
    same = (q, q, q)
    cases: list[Case] = [
        (f"{sdpa}: list", lambda: attend([[1.0]], k, v), TypeError, (sdpa, "q", "array", "list")),
        (f"{sdpa}: integers", lambda: attend(q, k.astype(int), v), TypeError, (sdpa, "k", "floating", "int32")),
        (f"{sdpa}: complex", lambda: attend(q, k, v.astype(jnp.complex64)), TypeError, (sdpa, "v", "complex64")),
        (f"{sdpa}: rank", lambda: attend(q[0, 0, 0], k, v), ValueError, (sdpa, "q", "(*batch, time, width)", "(6,)")),
        (f"{sdpa}: dtypes", lambda: attend(q, k.astype(jnp.float16), v), TypeError, (sdpa, "float32", "float16")),
        (f"{sdpa}: no width", lambda: attend(q[..., :0], k[..., :0], v), ValueError, (sdpa, "width", "(2, 3, 4, 0)")),
        (
            f"{sdpa}: widths",
            lambda: attend(q, k[..., :5], v),
            ValueError,
            (sdpa, "k must", "(2, 3, 4, 6)", "(2, 3, 5, 5)"),
        ),
        (f"{sdpa}: batch", lambda: attend(q, k[:1], v), ValueError, (sdpa, "k must", "(2, 3, 4, 6)", "(1, 3, 5, 6)")),
        (f"{sdpa}: batch rank", lambda: attend(q, k[0], v), ValueError, (sdpa, "k must", "(3, 5, 6)")),
        (
            f"{sdpa}: values",
            lambda: attend(q, k, v[:, :, :4]),
            ValueError,
            (sdpa, "v must", "(2, 3, 5, 6)", "(2, 3, 4, 7)"),
        ),
        (f"{sdpa}: mask of numbers", lambda: attend(q, k, v, jnp.ones((4, 5))), TypeError, (sdpa, "mask", "boolean")),
        (f"{sdpa}: mask a list", lambda: attend(q, k, v, [[True]]), TypeError, (sdpa, "mask", "array", "list")),
        (
            f"{sdpa}: mask without heads",
            lambda: attend(q, k, v, jnp.ones((2, 4, 5), bool)),
            ValueError,
            (sdpa, "mask", "(4, 5)", "(2, 3, 4, 5)", "(2, 4, 5)"),
        ),
        (f"{sdpa}: mask of keys", lambda: attend(q, k, v, jnp.ones(5, bool)), ValueError, (sdpa, "mask", "(5,)")),
        (f"{sdpa}: mask turned", lambda: attend(q, k, v, jnp.ones((5, 4), bool)), ValueError, (sdpa, "mask", "(5, 4)")),
        (
            f"{sdpa}: key_mask",
            lambda: attend(q, k, v, key_mask=jnp.ones((2, 5), bool)),
            ValueError,
            (sdpa, "key_mask", "(2, 3, 5)", "(2, 5)"),
        ),
        (
            f"{sdpa}: key_mask floats",
            lambda: attend(q, k, v, key_mask=v[..., 0]),
            TypeError,
            (sdpa, "key_mask", "bool"),
        ),
        (
            f"{sdpa}: resets",
            lambda: attend(q, k, v, resets=jnp.ones((2, 3, 5), bool)),
            ValueError,
            (sdpa, "resets", "as many queries as keys", "4", "5"),
        ),
        (
            f"{sdpa}: resets' shape",
            lambda: attend(*same, resets=jnp.ones((3, 4), bool)),
            ValueError,
            (sdpa, "resets", "(2, 3, 4)", "(3, 4)"),
        ),
        (f"{sdpa}: causal", lambda: attend(q, k, v, causal=1), TypeError, (sdpa, "causal", "True or False", "1")),
        (f"{sdpa}: window 0", lambda: attend(q, k, v, window=0), ValueError, (sdpa, "window", "at least 1", "0")),
        (f"{sdpa}: window float", lambda: attend(q, k, v, window=2.0), TypeError, (sdpa, "window", "integer", "2.0")),
        (f"{sdpa}: scale", lambda: attend(q, k, v, scale=math.inf), ValueError, (sdpa, "scale", "finite")),
        (f"{sdpa}: dropout 1", lambda: attend(q, k, v, dropout=1.0, key=KEY), ValueError, (sdpa, "dropout", "1.0")),
        (f"{sdpa}: dropout -1", lambda: attend(q, k, v, dropout=-1.0, key=KEY), ValueError, (sdpa, "dropout", "-1.0")),
        (
            f"{sdpa}: dropout NaN",
            lambda: attend(q, k, v, dropout=math.nan, key=KEY),
            ValueError,
            (sdpa, "dropout", "nan"),
        ),
        (f"{sdpa}: no key", lambda: attend(q, k, v, dropout=0.1), ValueError, (sdpa, "dropout", "key")),
        (f"{sdpa}: wrong key", lambda: attend(q, k, v, dropout=0.1, key=3), TypeError, (sdpa, "key", "PRNG key", "3")),
        (f"{sdpa}: chunk_size", lambda: attend(q, k, v, chunk_size=0), ValueError, (sdpa, "chunk_size", "at least 1")),
    ]
    for make in (sqx.MultiHeadSelfAttention, sqx.MultiHeadCrossAttention):
        n = make.__name__
        cases += [
            (f"{n}: d_model", lambda m=make: m(0, 1, KEY), ValueError, (n, "d_model", "at least 1", "0")),
            (f"{n}: d_model float", lambda m=make: m(6.0, 2, KEY), TypeError, (n, "d_model", "integer", "6.0")),
            (f"{n}: n_heads", lambda m=make: m(6, -2, KEY), ValueError, (n, "n_heads", "-2")),
            (
                f"{n}: indivisible",
                lambda m=make: m(6, 4, KEY),
                ValueError,
                (n, "d_model", "multiple", "n_heads", "6 and 4"),
            ),
            (f"{n}: kv heads", lambda m=make: m(6, 3, KEY, n_kv_heads=2), ValueError, (n, "n_kv_heads", "3 and 2")),
            (
                f"{n}: no kv heads",
                lambda m=make: m(6, 3, KEY, n_kv_heads=0),
                ValueError,
                (n, "n_kv_heads", "at least 1"),
            ),
            (f"{n}: d_head", lambda m=make: m(6, 3, KEY, d_head=True), TypeError, (n, "d_head", "integer", "True")),
            (f"{n}: key", lambda m=make: m(6, 3, 0), TypeError, (n, "key", "PRNG key", "0")),
            (
                f"{n}: dropout",
                lambda m=make: m(6, 3, KEY, dropout=1.0),
                ValueError,
                (n, "dropout", "less than 1", "1.0"),
            ),
            (f"{n}: dropout NaN", lambda m=make: m(6, 3, KEY, dropout=math.nan), ValueError, (n, "dropout", "nan")),
            (
                f"{n}: dropout text",
                lambda m=make: m(6, 3, KEY, dropout="0.1"),
                TypeError,
                (n, "dropout", "number", "0.1"),
            ),
            (f"{n}: use_bias", lambda m=make: m(6, 3, KEY, use_bias=1), TypeError, (n, "use_bias", "True or False")),
            (
                f"{n}: chunk_size",
                lambda m=make: m(6, 3, KEY, chunk_size=0),
                ValueError,
                (n, "chunk_size", "at least 1"),
            ),
            (f"{n}: initializer", lambda m=make: m(6, 3, KEY, initializer="he"), TypeError, (n, "initializer", "'he'")),
            (f"{n}: dtype", lambda m=make: m(6, 3, KEY, dtype=int), TypeError, (n, "dtype", "floating", "int")),
        ]
    mhsa = sqx.MultiHeadSelfAttention
    causal, ring = mhsa(3, 1, KEY, causal=True), mhsa(3, 1, KEY, causal=True, window=3)
    whole, n = mhsa(3, 1, KEY), "MultiHeadSelfAttention"
    cache = causal.init_cache(4, capacity=2)
    full = causal.unroll(XS[:, :2], cache)[1]
    cases += [
        (f"{n}: causal", lambda: mhsa(6, 2, KEY, "yes"), TypeError, (n, "causal", "True or False", "'yes'")),
        (f"{n}: window", lambda: mhsa(6, 2, KEY, window=0), ValueError, (n, "window", "at least 1", "0")),
        (f"{n}: rotary", lambda: mhsa(6, 3, KEY, rotary=True), TypeError, (n, "rotary", "Rotary()", "True")),
        (
            f"{n}: rotary odd",
            lambda: mhsa(6, 2, KEY, rotary=sqx.Rotary()),
            ValueError,
            (n, "rotary", "even", "d_head 3"),
        ),
        (f"{n}: step", lambda: whole.step(X), TypeError, (f"{n}.step", "does not stream", "causal=True")),
        (
            f"{n}: width",
            lambda: causal(jnp.ones((4, 5, 2))),
            ValueError,
            (f"{n}.forward", "(*batch, time, 3)", "(4, 5, 2)"),
        ),
        (f"{n}: mask", lambda: causal(XS, mask=MASK[:, :4]), ValueError, ("mask", "(4, 5)", "(4, 4)")),
        (f"{n}: no key", lambda: mhsa(3, 1, KEY, dropout=0.5)(XS), ValueError, ("key", "inference_mode")),
        (
            f"{n}: no cache",
            lambda: whole.init_cache(),
            TypeError,
            (f"{n}.init_cache", "does not stream", "causal=True"),
        ),
        (f"{n}: capacity", lambda: causal.init_cache(capacity=0), ValueError, ("capacity", "at least 1", "0")),
        (f"{n}: capacity float", lambda: causal.init_cache(capacity=8.0), TypeError, ("capacity", "integer", "8.0")),
        (f"{n}: batch", lambda: causal.init_cache(-1, capacity=3), ValueError, ("batch", "negative", "-1")),
        (f"{n}: ring's capacity", lambda: ring.init_cache(capacity=8), ValueError, ("capacity", "window=3", "ring")),
        (
            f"{n}: state a tuple",
            lambda: causal.step(X, tuple(cache)),
            TypeError,
            ("state", "KVCache", "init_cache", "tuple"),
        ),
        (f"{n}: state of a ring", lambda: causal.step(X, ring.init_cache(4)), TypeError, ("state", "got RingKVCache")),
        (f"{n}: no ring", lambda: ring.step(X, cache), TypeError, ("state", "must be a RingKVCache", "got KVCache")),
        (f"{n}: state's batch", lambda: causal.step(X[:3], cache), ValueError, ("state.k", "(3, 2, 3)", "(4, 2, 3)")),
        (f"{n}: state of none", lambda: whole.unroll(XS, cache), ValueError, ("state", "tuple of 0", "3 entries")),
        (
            f"{n}: None in it",
            lambda: causal.step(X, cache._replace(k=None)),
            TypeError,
            ("state.k", "array", "NoneType"),
        ),
        (f"{n}: full", lambda: causal.step(X, full), ValueError, ("full", "2 slots", "capacity")),
        (f"{n}: full at once", lambda: causal.unroll(XS, cache), ValueError, ("full", "2 slots", "5 samples")),
        (
            f"{n}: weights",
            lambda: whole.attention_weights(XS[..., :2]),
            ValueError,
            (f"{n}.attention_weights", "(4, 5, 2)"),
        ),
        (
            "with_capacity: smaller",
            lambda: sqx.with_capacity(cache, 1),
            ValueError,
            ("with_capacity", "2 slots", "got 1"),
        ),
        ("with_capacity: float", lambda: sqx.with_capacity(cache, 4.0), TypeError, ("capacity", "integer", "4.0")),
        ("with_capacity: zero", lambda: sqx.with_capacity(cache, 0), ValueError, ("capacity", "at least 1", "0")),
    ]
    n = "MultiHeadCrossAttention"
    cross = sqx.MultiHeadCrossAttention(3, 1, KEY, d_memory=2)
    places = jnp.ones((4, 6, 2))
    memory = cross.read(places)
    cases += [
        (
            f"{n}: d_memory",
            lambda: sqx.MultiHeadCrossAttention(6, 2, KEY, d_memory=0),
            ValueError,
            (n, "d_memory", "0"),
        ),
        (f"{n}: no memory", lambda: cross(XS), ValueError, (n, "no memory", "layer.read(memory)")),
        (f"{n}: no memory in a step", lambda: cross.step(X), ValueError, (n, "no memory", "layer.read(memory)")),
        (f"{n}: memory a list", lambda: cross.read([[1.0, 2.0]]), TypeError, (f"{n}.read", "memory", "array", "list")),
        (f"{n}: memory's width", lambda: cross.read(XS), ValueError, (f"{n}.read", "(*batch, places, 2)", "(4, 5, 3)")),
        (
            f"{n}: memory's rank",
            lambda: cross.read(places[0, 0]),
            ValueError,
            (f"{n}.read", "(*batch, places, 2)", "(2,)"),
        ),
        (f"{n}: memory's dtype", lambda: cross.read(places.astype(int)), TypeError, (f"{n}.read", "int32", "float32")),
        (
            f"{n}: memory's mask",
            lambda: cross.read(places, mask=jnp.ones((4, 5), bool)),
            ValueError,
            (f"{n}.read", "mask", "(4, 6)", "(4, 5)"),
        ),
        (f"{n}: raw memory", lambda: cross.unroll(XS, places), TypeError, ("state", "Memory", "read")),
        (f"{n}: a cache", lambda: cross.unroll(XS, cache), TypeError, ("state", "Memory(k, v, real)", "KVCache")),
        (
            f"{n}: memory's batch",
            lambda: cross.unroll(XS[:3], memory),
            ValueError,
            ("state.k", "(3, 6, 3)", "(4, 6, 3)"),
        ),
        (f"{n}: None in it", lambda: cross.step(X, (None, None, None)), TypeError, ("state.k", "array", "NoneType")),
        (f"{n}: batch", lambda: cross.init_state(-1), ValueError, (f"{n}.init_state", "batch", "-1")),
        (f"{n}: weights", lambda: cross.attention_weights(XS, ()), ValueError, (n, "no memory")),
        ("GatedFusion: width", lambda: sqx.GatedFusion(3, 0, 4, KEY), ValueError, ("GatedFusion", "n_b", "at least 1")),
        ("GatedFusion: key", lambda: sqx.GatedFusion(3, 2, 4, 1), TypeError, ("GatedFusion", "key", "PRNG key")),
        (
            "GatedFusion: one signal",
            lambda: sqx.GatedFusion(3, 2, 4, KEY)(XS),
            ValueError,
            ("GatedFusion.forward", "5", "(4, 5, 3)"),
        ),
        ("Rotary: base", lambda: sqx.Rotary(1.0), ValueError, ("Rotary", "base", "greater than 1", "1.0")),
        ("Rotary: base NaN", lambda: sqx.Rotary(math.nan), ValueError, ("Rotary", "base", "finite")),
        ("Rotary: base text", lambda: sqx.Rotary("10000"), TypeError, ("Rotary", "base", "number")),
        (
            "Rotary: interleaved",
            lambda: sqx.Rotary(interleaved=0),
            TypeError,
            ("Rotary", "interleaved", "True or False"),
        ),
        ("Rotary: odd", lambda: sqx.Rotary()(jnp.ones((4, 1, 3)), jnp.arange(4)), ValueError, ("Rotary", "even", "3")),
        (
            "Rotary: positions",
            lambda: sqx.Rotary()(jnp.ones((4, 1, 2)), jnp.ones(4)),
            TypeError,
            ("Rotary", "positions", "integers", "float32"),
        ),
        ("AddPositions: n_in", lambda: sqx.AddPositions(0), ValueError, ("AddPositions", "n_in", "at least 1")),
        ("AddPositions: max_len", lambda: sqx.AddPositions(max_len=2.5), TypeError, ("AddPositions", "max_len", "2.5")),
        ("AddPositions: too long", lambda: sqx.AddPositions(3, 4)(XS), ValueError, ("AddPositions", "max_len=4")),
        (
            "AddPositions: state",
            lambda: sqx.AddPositions(3).step(X, jnp.zeros(4)),
            TypeError,
            ("AddPositions.step", "state", "int32", "float32"),
        ),
        (
            "AddLearnedPositions: max_len",
            lambda: sqx.AddLearnedPositions(3, 0, KEY),
            ValueError,
            ("max_len", "at least 1"),
        ),
        (
            "AddLearnedPositions: key",
            lambda: sqx.AddLearnedPositions(3, 4, None),
            TypeError,
            ("key", "PRNG key", "None"),
        ),
        (
            "AddLearnedPositions: too long",
            lambda: sqx.AddLearnedPositions(3, 4, KEY)(XS),
            ValueError,
            ("AddLearnedPositions", "max_len=4"),
        ),
    ]
    return cases


def training() -> list[Case]:
    """Ragged batches, losses, clipping, data, checkpoints, the loop."""
    logits, labels = jnp.zeros((4, 3)), jnp.zeros(4, int)
    rows = [np.ones((2, 3)), np.ones((4, 3))]
    objective = lambda model, batch, key: (train.Total(jnp.sum(model.W), 1), {})
    fit = lambda **kw: train.fit(
        kw.pop("model", GRU),
        optax.sgd(0.1),
        kw.pop("objective", objective),
        kw.pop("batches", [1.0]),
        steps=kw.pop("steps", 1),
        key=kw.pop("key", KEY),
        progress=False,
        **kw,
    )
    return [
        ("pad: empty list", lambda: train.pad([]), ValueError, ("pad", "sequences")),
        ("pad: one sequence", lambda: train.pad(np.ones(3)), TypeError, ("pad", "sequences[0]")),
        ("pad: features", lambda: train.pad([np.ones((2, 3)), np.ones((2, 4))]), ValueError, ("pad", "(3,)", "(4,)")),
        ("pad: dtypes", lambda: train.pad([np.ones(2), np.ones(2, int)]), ValueError, ("pad", "float64", "int64")),
        ("pad: scalar", lambda: train.pad([np.array(1.0)]), ValueError, ("pad", "sequences[0]")),
        ("pad: too short", lambda: train.pad(rows, length=3), ValueError, ("pad", "length", "4", "3")),
        ("pad: negative length", lambda: train.pad(rows, length=-1), ValueError, ("pad", "length", "-1")),
        ("loss: float labels", lambda: train.cross_entropy(logits, labels * 1.0), TypeError, ("labels", "float32")),
        ("loss: label shape", lambda: train.cross_entropy(logits, labels[:3]), ValueError, ("labels", "(4,)", "(3,)")),
        ("loss: integer logits", lambda: train.cross_entropy(labels[:, None], labels), TypeError, ("logits", "int32")),
        (
            "loss: mask shape",
            lambda: train.cross_entropy(logits, labels, jnp.ones((4, 1), bool)),
            ValueError,
            ("mask", "(4,)", "(4, 1)"),
        ),
        ("loss: weights", lambda: train.cross_entropy(logits, labels, jnp.ones(4)), TypeError, ("mask", "bool")),
        ("error: shapes", lambda: train.squared_error(logits, logits[:, 0]), ValueError, ("targets", "(4, 3)", "(4,)")),
        ("error: mask", lambda: train.squared_error(logits, logits, jnp.ones((4, 3), bool)), ValueError, ("mask",)),
        ("accuracy: labels", lambda: train.accuracy(logits, labels[None]), ValueError, ("labels", "(1, 4)")),
        ("clip: zero", lambda: train.clip_by_norm(GRADS, 0.0), ValueError, ("clip_by_norm", "max_norm", "0")),
        ("clip: negative", lambda: train.clip_by_norm(GRADS, -1.0), ValueError, ("max_norm", "-1")),
        ("clip: NaN", lambda: train.clip_by_norm(GRADS, math.nan), ValueError, ("max_norm", "nan")),
        ("clip: text", lambda: train.clip_by_norm(GRADS, "1"), ValueError, ("max_norm", "'1'")),
        ("Batches: nothing", lambda: train.Batches({}, 2, seed=0), ValueError, ("Batches", "arrays")),
        ("Batches: rows", lambda: train.Batches((np.ones(3), np.ones(4)), 2, seed=0), ValueError, ("rows", "3", "4")),
        ("Batches: size", lambda: train.Batches(np.ones(3), 0, seed=0), ValueError, ("batch_size", "0")),
        ("Batches: seed", lambda: train.Batches(np.ones(3), 2, seed=-1), ValueError, ("seed", "-1")),
        ("Batches: state", lambda: train.Batches(np.ones(3), 2, seed=0).set_state({}), ValueError, ("state",)),
        ("fit: steps", lambda: fit(steps=0), ValueError, ("fit", "steps", "0")),
        ("fit: key", lambda: fit(key=0), ValueError, ("key", "0")),
        ("fit: objective", lambda: fit(objective=lambda m, b, k: jnp.sum(m.W)), TypeError, ("objective", "Total")),
        ("fit: clip_norm", lambda: fit(clip_norm=-1.0), ValueError, ("max_norm", "-1")),
        ("fit: resume without out_dir", lambda: fit(resume=True), ValueError, ("resume", "out_dir")),
        ("fit: nothing to train", lambda: fit(model=jnp.tanh), ValueError, ("model",)),
        ("fit: no data", lambda: fit(batches=iter(())), ValueError, ("batches", "0")),
        ("fit: every", lambda: fit(log_every=0), ValueError, ("log_every", "0")),
        ("checkpoints: step", wrong_step, ValueError, ("step", "integer", "'x'")),
        ("checkpoints: none there", no_checkpoint, FileNotFoundError, ("checkpoint",)),
        ("checkpoints: another model", other_model, ValueError, ("W", "(2, 3)", "(2, 4)", "b")),
        ("standardise: no split", lambda: tasks.standardise((1, 2)), TypeError, ("standardise", "inputs")),
    ]


def generation() -> list[Case]:
    """Continuing tokens."""
    k1, k2 = jax.random.split(KEY)
    model = sqx.Sequential([eqx.nn.Embedding(9, 3, key=k1), sqx.Dense(3, 9, k2)])
    both = sqx.Bidirectional(sqx.GRU(3, 4, k1), sqx.GRU(3, 4, k2))
    later = sqx.Sequential([eqx.nn.Embedding(9, 3, key=k1), both])
    pooled = sqx.Sequential([eqx.nn.Embedding(9, 3, key=k1), sqx.LastStep()])
    attention = sqx.Sequential([eqx.nn.Embedding(9, 4, key=k1), sqx.MultiHeadSelfAttention(4, 2, k2, causal=True)])
    prompt, mask = jnp.ones((4, 5), int), jnp.ones((4, 5), bool)
    go = lambda prompt=prompt, n_new=2, model=model, **kw: sqx.generate(model, prompt, n_new, **kw)
    return [
        ("generate: no layer", lambda: go(model=jnp.tanh), TypeError, ("generate", "model", "sequence layer")),
        ("generate: does not stream", lambda: go(model=later), TypeError, ("generate", "does not stream")),
        ("generate: vectors", lambda: go(model=GRU), TypeError, ("generate", "model", "integer tokens")),
        ("generate: pools", lambda: go(model=pooled), TypeError, ("generate", "model", "pools")),
        ("generate: prompt of floats", lambda: go(prompt * 1.0), TypeError, ("generate", "prompt", "float32")),
        ("generate: prompt a list", lambda: go([1, 2]), TypeError, ("generate", "prompt", "array", "list")),
        ("generate: prompt a token", lambda: go(jnp.array(1)), ValueError, ("prompt", "(*batch, time)", "()")),
        ("generate: empty prompt", lambda: go(prompt[:, :0]), ValueError, ("prompt", "at least one", "(4, 0)")),
        ("generate: token too large", lambda: go(prompt * 9), ValueError, ("prompt", "less than 9")),
        ("generate: token negative", lambda: go(-prompt), ValueError, ("prompt", "at least 0")),
        ("generate: mask shape", lambda: go(mask=mask[:3]), ValueError, ("generate", "mask", "(4, 5)", "(3, 5)")),
        ("generate: mask dtype", lambda: go(mask=prompt), TypeError, ("generate", "mask", "bool", "int32")),
        ("generate: row without tokens", lambda: go(mask=mask.at[2].set(False)), ValueError, ("mask", "every row")),
        ("generate: n_new 0", lambda: go(n_new=0), ValueError, ("generate", "n_new", "at least 1", "0")),
        ("generate: n_new float", lambda: go(n_new=2.0), TypeError, ("generate", "n_new", "integer", "2.0")),
        ("generate: no key", lambda: go(temperature=1.0), ValueError, ("generate", "temperature", "key")),
        ("generate: top_p of nothing", lambda: go(top_p=0.9, key=KEY), ValueError, ("top_k", "top_p", "temperature")),
        ("generate: key", lambda: go(temperature=1.0, key=3), TypeError, ("generate", "key", "PRNG key", "3")),
        ("generate: cold", lambda: go(temperature=-1, key=KEY), ValueError, ("temperature", "at least 0", "-1")),
        ("generate: NaN", lambda: go(temperature=math.nan, key=KEY), ValueError, ("temperature", "finite", "nan")),
        ("generate: text", lambda: go(temperature="hot", key=KEY), TypeError, ("temperature", "number", "'hot'")),
        ("generate: temperatures", lambda: go(temperature=jnp.ones(4), key=KEY), TypeError, ("temperature", "(4,)")),
        ("generate: top_k", lambda: go(top_k=0), ValueError, ("generate", "top_k", "at least 1", "0")),
        ("generate: top_p 0", lambda: go(top_p=0.0), ValueError, ("generate", "top_p", "greater than 0", "0.0")),
        ("generate: top_p 2", lambda: go(top_p=jnp.array(2.0)), ValueError, ("generate", "top_p", "at most 1", "2.0")),
        ("generate: stop", lambda: go(stop=9), ValueError, ("generate", "stop", "less than 9", "9")),
        ("generate: stop float", lambda: go(stop=1.0), TypeError, ("generate", "stop", "integer", "1.0")),
        ("generate: pad", lambda: go(pad=-1), ValueError, ("generate", "pad", "at least 0", "-1")),
        ("generate: n_beams", lambda: go(n_beams=0), ValueError, ("generate", "n_beams", "at least 1", "0")),
        ("generate: warm beams", lambda: go(n_beams=2, temperature=1.0), ValueError, ("n_beams", "temperature")),
        ("generate: beams, top_k", lambda: go(n_beams=2, top_k=3), ValueError, ("n_beams", "top_k")),
        ("generate: penalty", lambda: go(length_penalty=1.0), ValueError, ("length_penalty", "n_beams")),
        ("generate: penalty text", lambda: go(n_beams=2, length_penalty="1"), TypeError, ("length_penalty", "'1'")),
        ("generate: state", lambda: go(model=attention, state=((), ())), TypeError, ("generate", "state", "KVCache")),
        (
            "generate: state of another batch",
            lambda: go(model=attention, state=attention.init_state(3)),
            ValueError,
            ("generate", "state", "(4, 0, 4)", "(3, 0, 4)"),
        ),
        ("Stream: capacity", lambda: sqx.Stream(attention, capacity=0), ValueError, ("Stream", "capacity", "0")),
    ]


def transformers_() -> list[Case]:
    """Blocks, feed-forward networks, depth, readouts, encoder and decoder."""
    sizes = (3, 6, 2, 5, 1, 4, KEY)
    encoder, decoder, both = sqx.transformer_encoder, sqx.transformer_decoder, sqx.encoder_decoder
    block = lambda **options: sqx.TransformerBlock(6, 2, 5, KEY, **options)
    forward = lambda **options: sqx.FeedForward(3, 5, KEY, **options)
    gru = lambda n_in, n_out: sqx.GRU(n_in, n_out, KEY)
    last = lambda: sqx.Sequential([gru(3, 3), sqx.LastStep()])
    rows, seen, tokens = jnp.ones((4, 5, 6)), block(causal=True, cross=True), jnp.ones((4, 5), int)
    model = both(*sizes)
    wide = lambda n, dtype: eqx.nn.Linear(n, n + 1, key=KEY)
    stack = sqx.Stack([block(causal=True)] * 2)
    cases: list[Case] = []
    for make in (encoder, decoder, both):
        n = make.__name__
        at = lambda i, value, m=make: m(*sizes[:i], value, *sizes[i + 1 :])
        cases += [
            (f"{n}: n_in", lambda f=at: f(0, 0), ValueError, (n, "n_in", "at least 1", "0")),
            (f"{n}: d_model text", lambda f=at: f(1, "6"), TypeError, (n, "d_model", "integer", "'6'")),
            (f"{n}: d_model", lambda f=at: f(1, 7), ValueError, ("d_model", "multiple of n_heads", "7 and 2")),
            (f"{n}: n_heads", lambda f=at: f(2, 0), ValueError, ("n_heads", "at least 1", "0")),
            (f"{n}: d_ff", lambda f=at: f(3, -5), ValueError, ("FeedForward", "d_ff", "-5")),
            (f"{n}: depth", lambda f=at: f(4, 0), ValueError, (n, "depth", "at least 1", "0")),
            (f"{n}: depth a float", lambda f=at: f(4, 1.0), TypeError, (n, "depth", "integer", "1.0")),
            (f"{n}: n_out", lambda f=at: f(5, 0), ValueError, (n, "n_out", "at least 1", "0")),
            (f"{n}: key", lambda f=at: f(6, 0), TypeError, (n, "key", "PRNG key", "0")),
            (f"{n}: max_len", lambda m=make: m(*sizes, 0), ValueError, (n, "max_len", "at least 1", "0")),
            (f"{n}: max_len a float", lambda m=make: m(*sizes, 5.0), TypeError, (n, "max_len", "integer", "5.0")),
            (f"{n}: positions", lambda m=make: m(*sizes, positions="sine"), ValueError, (n, "sinusoidal", "'sine'")),
            (f"{n}: a class", lambda m=make: m(*sizes, positions=sqx.Rotary), ValueError, (n, "positions", "Rotary")),
            (f"{n}: learned", lambda m=make: m(*sizes, positions="learned"), ValueError, (n, "learned", "max_len")),
            (f"{n}: odd heads", lambda m=make: m(*sizes, positions="rotary"), ValueError, ("rotary", "even", "3")),
            (f"{n}: rotary", lambda m=make: m(*sizes, rotary=sqx.Rotary()), ValueError, (n, "rotary", "positions")),
            (f"{n}: norm", lambda m=make: m(*sizes, norm="both"), ValueError, ("norm", "post", "pre", "'both'")),
            (f"{n}: dropout", lambda m=make: m(*sizes, dropout=1.0), ValueError, (n, "dropout", "less than 1", "1.0")),
            (f"{n}: tokens", lambda m=make: m(*sizes, tokens=1), TypeError, (n, "tokens", "True or False", "1")),
            (f"{n}: scan_layers", lambda m=make: m(*sizes, scan_layers=1), TypeError, (n, "scan_layers", "1")),
            (f"{n}: remat", lambda m=make: m(*sizes, remat=None), TypeError, (n, "remat", "True or False", "None")),
            (f"{n}: dtype", lambda m=make: m(*sizes, dtype=int), TypeError, (n, "dtype", "floating", "int")),
            (f"{n}: unknown", lambda m=make: m(*sizes, heads=3), TypeError, ("heads",)),
            (f"{n}: activation", lambda m=make: m(*sizes, activation="gelu"), TypeError, ("activation", "'gelu'")),
            (f"{n}: window", lambda m=make: m(*sizes, window=0), ValueError, ("window", "at least 1", "0")),
        ]
    cases += [
        ("transformer_encoder: pool", lambda: encoder(*sizes, pool="max"), ValueError, ("pool", "mean", "'max'")),
        ("transformer_encoder: no key", lambda: encoder(*sizes, dropout=0.1)(XS), ValueError, ("key", "inference")),
        ("transformer_encoder: causal", lambda: encoder(*sizes, causal=1), TypeError, ("causal", "True or False")),
        ("transformer_encoder: step", lambda: encoder(*sizes).step(X), TypeError, ("does not stream", "causal=True")),
        ("transformer_encoder: too long", lambda: encoder(*sizes, 4)(XS), ValueError, ("AddPositions", "max_len=4")),
        ("transformer_decoder: not causal", lambda: decoder(*sizes, causal=False), ValueError, ("decoder is causal",)),
        ("transformer_decoder: tied", lambda: decoder(*sizes, tied=1), TypeError, ("tied", "True or False", "1")),
        ("transformer_decoder: tied vectors", lambda: decoder(*sizes, tied=True), ValueError, ("tied", "tokens=True")),
        (
            "transformer_decoder: tied sizes",
            lambda: decoder(*sizes, tokens=True, tied=True),
            ValueError,
            ("tied", "n_in 3", "n_out 4"),
        ),
        (
            "transformer_decoder: readout_bias",
            lambda: decoder(*sizes, readout_bias=0),
            TypeError,
            ("transformer_decoder", "readout_bias", "True or False", "0"),
        ),
        ("encoder_decoder: causal", lambda: both(*sizes, causal=True), ValueError, ("encoder_decoder", "causal")),
        ("encoder_decoder: cross", lambda: both(*sizes, cross=True), ValueError, ("encoder_decoder", "cross")),
        ("encoder_decoder: d_memory", lambda: both(*sizes, d_memory=5), ValueError, ("encoder_decoder", "d_memory")),
        ("encoder_decoder: pool", lambda: both(*sizes, pool="mean"), TypeError, ("pool",)),
        ("encoder_decoder: no source", lambda: jax.eval_shape(model, tokens), ValueError, ("no memory", "read")),
        ("start: None", lambda: model.start(None), TypeError, ("xs", "array", "NoneType")),
        ("start: width", lambda: model.start(rows), ValueError, ("(*batch, time, 3)", "(4, 5, 6)")),
        ("start: mask", lambda: model.start(XS, mask=MASK[:, :4]), ValueError, ("mask", "(4, 5)", "(4, 4)")),
        ("start: mask a list", lambda: model.start(XS, mask=[True]), TypeError, ("mask", "array", "list")),
        (
            "start: another batch",
            lambda: jax.eval_shape(lambda: model.unroll(tokens, model.start(XS[:3]))),
            ValueError,
            ("EncoderDecoder.unroll", "state[1]", "(4,)", "(3,)"),
        ),
        ("EncoderDecoder: no layer", lambda: sqx.EncoderDecoder(GRU, jnp.tanh), TypeError, ("decoder", "layer")),
        ("EncoderDecoder: a class", lambda: sqx.EncoderDecoder(sqx.GRU, GRU), TypeError, ("encoder", "GRU")),
        ("EncoderDecoder: pools", lambda: sqx.EncoderDecoder(last(), seen), ValueError, ("encoder", "pools")),
        (
            "EncoderDecoder: nobody looks",
            lambda: sqx.EncoderDecoder(gru(3, 6), sqx.Sequential([stack, block(causal=True)])),
            ValueError,
            ("EncoderDecoder", "decoder", "cross-attention", "cross=True"),
        ),
        (
            "EncoderDecoder: widths",
            lambda: jax.eval_shape(sqx.EncoderDecoder(gru(3, 5), seen).start, XS),
            ValueError,
            ("memory", "(*batch, places, 6)", "(4, 5, 5)"),
        ),
        ("TransformerBlock: norm", lambda: block(norm=None), ValueError, ("TransformerBlock", "norm", "post", "None")),
        ("TransformerBlock: cross", lambda: block(cross=1), TypeError, ("TransformerBlock", "cross", "1")),
        ("TransformerBlock: d_memory", lambda: block(d_memory=3), ValueError, ("d_memory", "cross=True")),
        ("TransformerBlock: dropout", lambda: block(dropout="a"), TypeError, ("dropout", "number", "'a'")),
        ("TransformerBlock: attention's", lambda: block(attention_dropout=2), ValueError, ("dropout", "less than 1")),
        ("TransformerBlock: norm_layer", lambda: block(norm_layer="LayerNorm"), TypeError, ("norm_layer", "class")),
        ("TransformerBlock: wide norm", lambda: block(norm_layer=wide), ValueError, ("norm_layer", "width 6", "7")),
        ("TransformerBlock: heads", lambda: block(n_kv_heads=4), ValueError, ("n_heads", "n_kv_heads", "2 and 4")),
        ("TransformerBlock: rotary", lambda: block(rotary=True), TypeError, ("rotary", "Rotary()", "True")),
        ("TransformerBlock: no memory", lambda: seen(rows), ValueError, ("no memory", "read")),
        ("TransformerBlock: step", lambda: block().step(rows[0]), TypeError, ("TransformerBlock.step", "causal=True")),
        ("TransformerBlock: width", lambda: block()(XS), ValueError, ("(*batch, time, 6)", "(4, 5, 3)")),
        (
            "TransformerBlock: state",
            lambda: block(causal=True).unroll(rows, ()),
            ValueError,
            ("state", "BlockState(self_attention, cross_attention)", "0"),
        ),
        (
            "TransformerBlock: state of the attention",
            lambda: block(causal=True).unroll(rows, ((), ())),
            TypeError,
            ("state.self_attention", "KVCache", "tuple"),
        ),
        ("FeedForward: n_in", lambda: sqx.FeedForward(0, 5, KEY), ValueError, ("FeedForward", "n_in", "0")),
        ("FeedForward: d_ff", lambda: sqx.FeedForward(3, 5.0, KEY), TypeError, ("FeedForward", "d_ff", "5.0")),
        ("FeedForward: key", lambda: sqx.FeedForward(3, 5, 0), TypeError, ("FeedForward", "key", "PRNG key")),
        ("FeedForward: activation", lambda: forward(activation="relu"), TypeError, ("activation", "'relu'")),
        ("FeedForward: a sum", lambda: forward(activation=jnp.sum)(XS), ValueError, ("activation", "shape", "()")),
        ("FeedForward: gated", lambda: forward(gated=3), TypeError, ("gated", "True or False", "3")),
        ("FeedForward: use_bias", lambda: forward(use_bias=None), TypeError, ("use_bias", "True or False", "None")),
        ("FeedForward: initializer", lambda: forward(initializer="glorot"), TypeError, ("initializer", "'glorot'")),
        ("Stack: empty", lambda: sqx.Stack([]), ValueError, ("Stack", "layers", "at least one")),
        ("Stack: one layer", lambda: sqx.Stack(GRU), TypeError, ("Stack", "list", "GRU")),
        ("Stack: a function", lambda: sqx.Stack([gru(3, 3), jnp.tanh]), TypeError, ("Stack", "layers[1]", "tanh")),
        ("Stack: width", lambda: sqx.Stack([gru(3, 5)]), ValueError, ("Stack", "GRU", "n_in 3", "n_out 5")),
        ("Stack: pools", lambda: sqx.Stack([last()]), ValueError, ("Stack", "pools")),
        ("Stack: sizes", lambda: sqx.Stack([gru(3, 3), gru(4, 4)]), ValueError, ("Stack", "layers[1]", "layers[0]")),
        ("Stack: options", lambda: sqx.Stack([block(), block(norm="pre")]), ValueError, ("Stack", "configuration")),
        (
            "Stack: state a text",
            lambda: stack.unroll(rows, "x"),
            TypeError,
            ("Stack.unroll", "state", "tuple of 2", "str"),
        ),
        ("Stack: state empty", lambda: stack.unroll(rows, ()), ValueError, ("Stack.unroll", "state", "2", "0 entries")),
        (
            "Stack: state of one layer",
            lambda: stack.unroll(rows, block(causal=True).init_state(4)),
            TypeError,
            ("Stack.unroll", "state[0]", "BlockState", "GrowingKVCache"),
        ),
        ("Stack: batch", lambda: stack.init_state(-1), ValueError, ("Stack.init_state", "batch", "-1")),
        ("Remat: no layer", lambda: sqx.Remat(jnp.tanh), TypeError, ("Remat", "layer", "tanh")),
        ("Remat: width", lambda: sqx.Remat(GRU)(rows), ValueError, ("Remat.forward", "3", "(4, 5, 6)")),
        ("TiedReadout: tokens", lambda: sqx.TiedReadout(0, gru(3, 3), KEY), ValueError, ("TiedReadout", "n_tokens")),
        ("TiedReadout: no layer", lambda: sqx.TiedReadout(9, jnp.tanh, KEY), TypeError, ("TiedReadout", "body")),
        ("TiedReadout: widths", lambda: sqx.TiedReadout(9, gru(3, 4), KEY), ValueError, ("body", "n_in 3", "n_out 4")),
        ("TiedReadout: body of tokens", lambda: sqx.TiedReadout(9, TOKENS, KEY), ValueError, ("body", "n_in None")),
        ("TiedReadout: key", lambda: sqx.TiedReadout(9, gru(3, 3), 3), TypeError, ("TiedReadout", "key", "3")),
        ("TiedReadout: dtype", lambda: sqx.TiedReadout(9, gru(3, 3), KEY, dtype=int), TypeError, ("dtype", "int")),
        ("TiedReadout: vectors", lambda: sqx.TiedReadout(9, gru(3, 3), KEY)(XS), TypeError, ("integer", "float32")),
    ]
    return cases


def no_checkpoint() -> None:
    with tempfile.TemporaryDirectory() as directory, train.Checkpoints(directory) as checkpoints:
        checkpoints.restore(GRADS)


def wrong_step() -> None:
    with tempfile.TemporaryDirectory() as directory, train.Checkpoints(directory) as checkpoints:
        checkpoints.save(GRADS, "x")


def other_model() -> None:
    with tempfile.TemporaryDirectory() as directory, train.Checkpoints(directory) as checkpoints:
        checkpoints.save(GRADS, 1)
        checkpoints.restore({"W": jnp.ones((2, 4)), "b": jnp.ones(2)})


def cases() -> list[Case]:
    return contract() + constructors() + attention() + training() + generation() + transformers_()


def main() -> None:
    """Tries every case, and prints what came as JSON, a line a case."""
    for name, call, _, _ in cases():
        try:
            value = call()
        except Exception as error:
            kinds = [kind.__name__ for kind in type(error).__mro__]
            print(json.dumps({"name": name, "kinds": kinds, "message": str(error)}), flush=True)
        else:
            print(json.dumps({"name": name, "kinds": [], "message": repr(value)[:200]}), flush=True)


if __name__ == "__main__":
    main()
