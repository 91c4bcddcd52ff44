"""Wrong arguments of gated and plain units in all their options: a part of the table of `bad_inputs.py`."""

# pyright: reportArgumentType=false, reportCallIssue=false
# Wrong arguments are this file's business.

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import sequinox as sqx

Case = tuple[str, Callable[[], Any], type[Exception], tuple[str, ...]]

KEY = jax.random.key(0)
GAUSSIAN = jax.nn.initializers.normal()


def cases() -> list[Case]:
    lstm = lambda **options: sqx.LSTM(3, 5, KEY, **options)
    full = sqx.LSTM(3, 5, KEY, variant="FGR")
    x, five = jnp.ones(3), jnp.ones(5)
    found: list[Case] = []
    for make in (sqx.RNN, sqx.GRU, sqx.LSTM):
        n = make.__name__
        given = lambda m=make, **options: m(3, 5, KEY, **options)
        found += [
            (f"{n}: layer_norm", lambda g=given: g(layer_norm=1), TypeError, (n, "layer_norm", "True or False", "1")),
            (
                f"{n}: one normalised unit",
                lambda m=make: m(3, 1, KEY, layer_norm=True),
                ValueError,
                (n, "layer_norm", "n_hidden", "at least 2", "1"),
            ),
            (
                f"{n}: recurrent_initializer a name",
                lambda g=given: g(recurrent_initializer="orthogonal"),
                TypeError,
                (n, "recurrent_initializer", "function", "'orthogonal'"),
            ),
            (
                f"{n}: recurrent_initializer of another shape",
                lambda g=given: g(recurrent_initializer=lambda key, shape, dtype: jnp.zeros((2, 2), dtype)),
                ValueError,
                (n, "recurrent_initializer", "(5, 5)", "(2, 2)"),
            ),
        ]
    return [
        *found,
        ("LSTM: variant", lambda: lstm(variant="GRU"), ValueError, ("LSTM", "variant", "V, NIG", "FGR", "'GRU'")),
        ("LSTM: variant None", lambda: lstm(variant=None), ValueError, ("LSTM", "variant", "None")),
        ("LSTM: n_proj 0", lambda: lstm(n_proj=0), ValueError, ("LSTM", "n_proj", "at least 1", "0")),
        ("LSTM: n_proj True", lambda: lstm(n_proj=True), TypeError, ("LSTM", "n_proj", "integer", "True")),
        (
            "LSTM: forget_bias of no gate",
            lambda: lstm(variant="NFG", forget_bias=1.0),
            ValueError,
            ("LSTM", "forget_bias", "no forget gate", '"NFG"', "1.0"),
        ),
        (
            "LSTM: state of a gate recurrence",
            lambda: full.step(x, (five, five)),
            ValueError,
            ("LSTM.step", "FGRState(y, c, i, f, o)", "2"),
        ),
        (
            "LSTM: projected state",
            lambda: lstm(n_proj=2).step(x, (five, five)),
            ValueError,
            ("LSTM.step", "state.y", "(2,)", "(5,)"),
        ),
        ("GRU: reset_after", lambda: sqx.GRU(3, 5, KEY, reset_after="no"), TypeError, ("GRU", "reset_after", "'no'")),
        ("scaled_identity: text", lambda: sqx.scaled_identity("1"), TypeError, ("scaled_identity", "scale", "number")),
        ("scaled_identity: NaN", lambda: sqx.scaled_identity(math.nan), ValueError, ("scale", "finite", "nan")),
        (
            "scaled_identity: not square",
            lambda: sqx.RNN(3, 5, KEY, initializer=sqx.scaled_identity()),
            ValueError,
            ("scaled_identity", "square", "(3, 5)", "recurrent_initializer"),
        ),
        (
            "scaled_to_norm: a number",
            lambda: sqx.scaled_to_norm(1.0),
            TypeError,
            ("scaled_to_norm", "initializer", "function", "1.0"),
        ),
        (
            "scaled_to_norm: zero",
            lambda: sqx.scaled_to_norm(GAUSSIAN, 0),
            ValueError,
            ("scaled_to_norm", "sigma_max", "positive", "0"),
        ),
        (
            "scaled_to_norm: infinite",
            lambda: sqx.scaled_to_norm(GAUSSIAN, math.inf),
            ValueError,
            ("scaled_to_norm", "sigma_max", "finite", "inf"),
        ),
        (
            "scaled_to_norm: a vector",
            lambda: sqx.scaled_to_norm(GAUSSIAN)(KEY, (3,), jnp.float32),
            ValueError,
            ("scaled_to_norm", "matrix", "(3,)"),
        ),
    ]
