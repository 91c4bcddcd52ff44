"""A table of wrong arguments, each with the error that a user must get; run as a script, it tries them all.

Users have no type checker on, so this runs in a process of its own, without the import hook of the test suite:
`test_bad_inputs.py` starts it. Each case is a name, a function that must raise, the type of the error, and
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

import bad_inputs_attention
import bad_inputs_averages
import bad_inputs_composition
import bad_inputs_convolution
import bad_inputs_diagonal
import bad_inputs_filters
import bad_inputs_gated
import bad_inputs_interop
import bad_inputs_regularisers
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
        ("states", lambda: GRU.unroll(XS, states="all"), ValueError, ("GRU.unroll", "states", '"every"', "'all'")),
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
        ("Sequential: one layer", lambda: sqx.Sequential(GRU), TypeError, ("Sequential", "list")),
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
        ("fit: key", lambda: fit(key=0), TypeError, ("key", "0")),
        ("fit: objective", lambda: fit(objective=lambda m, b, k: m.W), TypeError, ("loss", "shape", "Total")),
        ("fit: clip_norm", lambda: fit(clip_norm=-1.0), ValueError, ("max_norm", "-1")),
        ("fit: resume without out_dir", lambda: fit(resume=True), ValueError, ("resume", "out_dir")),
        ("fit: nothing to train", lambda: fit(model=jnp.tanh), ValueError, ("model",)),
        ("fit: no data", lambda: fit(batches=iter(())), ValueError, ("batches", "0")),
        ("fit: every", lambda: fit(log_every=0), ValueError, ("log_every", "0")),
        ("checkpoints: step", wrong_step, TypeError, ("step", "integer", "'x'")),
        ("checkpoints: none there", no_checkpoint, FileNotFoundError, ("checkpoint",)),
        ("checkpoints: another model", other_model, ValueError, ("W", "(2, 3)", "(2, 4)", "b")),
        ("standardise: no split", lambda: tasks.standardise((1, 2)), TypeError, ("standardise", "inputs")),
    ]


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


GROUPS: dict[str, Callable[[], list[Case]]] = {
    "contract": contract,
    "constructors": constructors,
    "training": training,
    "attention": bad_inputs_attention.cases,
    "averages": bad_inputs_averages.cases,
    "gated": bad_inputs_gated.cases,
    "diagonal": bad_inputs_diagonal.cases,
    "filters": bad_inputs_filters.cases,
    "convolution": bad_inputs_convolution.cases,
    "composition": bad_inputs_composition.cases,
    "regularisers": bad_inputs_regularisers.cases,
    "interop": bad_inputs_interop.cases,
}


def complaint(call: Callable[[], Any], kind: type[Exception], words: tuple[str, ...]) -> str | None:
    """What is wrong with what a case does; None if it raises the error that it must."""
    try:
        value = call()
    except Exception as error:
        if not isinstance(error, kind):
            return f"expected a {kind.__name__}, got a {type(error).__name__}: {error}"
        missing = [word for word in words if word not in str(error)]
        return f"{missing} not in: {error}" if missing else None
    return f"expected a {kind.__name__}, got {value!r:.200}"


def main() -> None:
    """Tries every case, and prints what is wrong with it as JSON, a line a case."""
    for group, cases in GROUPS.items():
        for name, call, kind, words in cases():
            line = {"group": group, "name": name, "complaint": complaint(call, kind, words)}
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
