"""Wrong arguments of filters and running statistics: a part of the table of `bad_inputs.py`."""

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
XS = jnp.ones((4, 5, 3))


def filters() -> list[Case]:
    """FIR and the adaptive filters."""
    fir, lms, nlms, pole = sqx.FIR, sqx.LMS, sqx.NLMS, sqx.AdaptiveOnePole
    cases: list[Case] = [
        ("FIR: n_in", lambda: fir(0, 3, KEY), ValueError, ("FIR", "n_in", "at least 1", "0")),
        ("FIR: taps 0", lambda: fir(3, 0, KEY), ValueError, ("FIR", "taps", "at least 1", "0")),
        ("FIR: taps a float", lambda: fir(3, 2.0, KEY), TypeError, ("FIR", "taps", "integer", "2.0")),
        ("FIR: no taps", lambda: fir(3, []), ValueError, ("FIR", "taps", "(n_taps, 3)", "(0,)")),
        ("FIR: ragged taps", lambda: fir(3, [[1.0], [1.0, 2.0]]), TypeError, ("FIR", "taps", "array of numbers")),
        ("FIR: words", lambda: fir(3, ["a"]), TypeError, ("FIR", "taps", "array of numbers", "'a'")),
        ("FIR: complex taps", lambda: fir(3, jnp.ones(2, jnp.complex64)), TypeError, ("FIR", "taps", "complex64")),
        ("FIR: flags", lambda: fir(3, jnp.ones(2, bool)), TypeError, ("FIR", "taps", "real numbers", "bool")),
        ("FIR: channels", lambda: fir(3, jnp.ones((5, 2))), ValueError, ("FIR", "(n_taps, 3)", "(5, 2)")),
        ("FIR: matrices", lambda: fir(3, jnp.ones((5, 3, 3))), ValueError, ("FIR", "taps", "(5, 3, 3)")),
        ("FIR: no key", lambda: fir(3, 4), ValueError, ("FIR", "key", "4 taps")),
        ("FIR: key beside taps", lambda: fir(3, [1.0], KEY), ValueError, ("FIR", "key", "given")),
        ("FIR: a number for a key", lambda: fir(3, 4, 0), TypeError, ("FIR", "key", "PRNG key", "0")),
        ("FIR: initializer", lambda: fir(3, 4, KEY, initializer="he"), TypeError, ("FIR", "initializer", "'he'")),
        ("FIR: dtype", lambda: fir(3, 4, KEY, dtype=int), TypeError, ("FIR", "dtype", "floating", "int")),
        ("FIR: dtype of taps", lambda: fir(3, [1.0], dtype=int), TypeError, ("FIR", "dtype", "floating", "int")),
        ("FIR: width", lambda: fir(3, [1.0])(jnp.ones((5, 2))), ValueError, ("FIR", "xs", "3", "(5, 2)")),
        (
            "FIR: state",
            lambda: fir(3, 4, KEY).unroll(XS, jnp.ones((4, 4, 3))),
            ValueError,
            ("FIR.unroll", "state", "(4, 3, 3)", "(4, 4, 3)"),
        ),
        ("FIR: batch", lambda: fir(3, 4, KEY).init_state(-1), ValueError, ("FIR.init_state", "batch", "-1")),
    ]
    for make in (lms, nlms):
        n = make.__name__
        cases += [
            (f"{n}: n_taps", lambda m=make: m(0, 0.1), ValueError, (n, "n_taps", "at least 1", "0")),
            (f"{n}: n_taps a list", lambda m=make: m([1.0], 0.1), TypeError, (n, "n_taps", "integer", "[1.0]")),
            (f"{n}: n_signals", lambda m=make: m(2, 0.1, n_signals=0), ValueError, (n, "n_signals", "0")),
            (f"{n}: mu 0", lambda m=make: m(2, 0), ValueError, (n, "mu", "positive", "0")),
            (f"{n}: mu NaN", lambda m=make: m(2, math.nan), ValueError, (n, "mu", "finite", "nan")),
            (f"{n}: mu an array", lambda m=make: m(2, jnp.ones(())), TypeError, (n, "mu", "number")),
            (f"{n}: w", lambda m=make: m(2, 0.1, w=jnp.ones(3)), ValueError, (n, "w", "2 taps", "3")),
            (f"{n}: w of signals", lambda m=make: m(2, 0.1, w=jnp.ones((2, 3))), ValueError, (n, "(n_taps, 1)")),
            (f"{n}: dtype", lambda m=make: m(2, 0.1, dtype=int), TypeError, (n, "dtype", "floating", "int")),
            (f"{n}: no response", lambda m=make: m(2, 0.1)(jnp.ones((5, 1))), ValueError, (n, "xs", "2", "(5, 1)")),
        ]
    cases += [
        ("NLMS: eps", lambda: nlms(2, 0.1, 0.0), ValueError, ("NLMS", "eps", "positive", "0.0")),
        ("LMS: state", lambda: lms(2, 0.1).step(jnp.ones(2), jnp.ones(2)), TypeError, ("state", "LMSState(w, past)")),
        (
            "LMS: mu of nothing",
            lambda: lms(2, 1e-9, dtype=jnp.float16),
            ValueError,
            ("LMS", "mu", "float16 rounds to 0"),
        ),
        ("AdaptiveOnePole: mu", lambda: pole(-0.1), ValueError, ("AdaptiveOnePole", "mu", "positive", "-0.1")),
        ("AdaptiveOnePole: limit 1", lambda: pole(0.1, limit=1.0), ValueError, ("limit", "between 0 and 1", "1.0")),
        ("AdaptiveOnePole: limit text", lambda: pole(0.1, limit="1"), TypeError, ("limit", "number", "'1'")),
        ("AdaptiveOnePole: alpha", lambda: pole(0.1, alpha=1.2), ValueError, ("alpha", "limit=0.999", "1.2")),
        ("AdaptiveOnePole: beta", lambda: pole(0.1, beta=math.inf), ValueError, ("beta", "finite", "inf")),
        ("AdaptiveOnePole: dtype", lambda: pole(0.1, dtype=bool), TypeError, ("AdaptiveOnePole", "dtype", "bool")),
        ("AdaptiveOnePole: width", lambda: pole(0.1)(XS), ValueError, ("AdaptiveOnePole", "xs", "2", "(4, 5, 3)")),
    ]
    return cases


def statistics() -> list[Case]:
    """Running statistics and pooling."""
    cases: list[Case] = []
    for make in (sqx.RunningMean, sqx.RunningMax, sqx.RunningCount, sqx.MaxOverTime):
        n = make.__name__
        cases += [
            (f"{n}: width", lambda m=make: m(0), ValueError, (n, "n_in", "at least 1", "0")),
            (f"{n}: width text", lambda m=make: m("3"), TypeError, (n, "n_in", "integer", "'3'")),
            (f"{n}: integers", lambda m=make: m(3)(XS.astype(int)), TypeError, (n, "floating", "int32")),
            (f"{n}: batch", lambda m=make: m(3).init_state(-1), ValueError, (f"{n}.init_state", "batch", "-1")),
        ]
        if make is not sqx.RunningCount:
            cases.append((f"{n}: unknown width", lambda m=make: m().init_state(4), ValueError, (n, "width")))
    flat, pooling = sqx.flat_net, sqx.pooling_net
    cases += [
        (
            "RunningMax: state",
            lambda: sqx.RunningMax(3).step(XS[0], XS[0]),
            TypeError,
            ("MaxState(max, seen)",),
        ),
        ("Flatten: max_len", lambda: sqx.Flatten(0), ValueError, ("Flatten", "max_len", "at least 1", "0")),
        ("Flatten: width", lambda: sqx.Flatten(3, 1.5), TypeError, ("Flatten", "n_in", "integer", "1.5")),
        ("Flatten: unknown width", lambda: sqx.Flatten(3).init_state(), ValueError, ("Flatten", "width")),
        (
            "Flatten: a width that does not fit",
            lambda: sqx.Sequential([sqx.Flatten(3, 2), sqx.Dense(5, 2, KEY)]),
            ValueError,
            ("layers[1]", "Dense", "5", "6"),
        ),
        ("flat_net: max_len", lambda: flat(3, 0, 5, 2, KEY), ValueError, ("flat_net", "max_len", "0")),
        ("flat_net: n_in", lambda: flat(None, 4, 5, 2, KEY), TypeError, ("flat_net", "n_in", "integer", "None")),
        ("flat_net: d_hidden", lambda: flat(3, 4, -5, 2, KEY), ValueError, ("flat_net", "d_hidden", "-5")),
        ("flat_net: key", lambda: flat(3, 4, 5, 2, 0), TypeError, ("flat_net", "key", "PRNG key", "0")),
        ("flat_net: activation", lambda: flat(3, 4, 5, 2, KEY, activation="relu"), TypeError, ("activation", "'relu'")),
        (
            "flat_net: dropout",
            lambda: flat(3, 4, 5, 2, KEY, dropout=1.0),
            ValueError,
            ("dropout", "less than 1"),
        ),
        ("pooling_net: pool", lambda: pooling(3, 5, 2, KEY, pool="sum"), ValueError, ("pool", "mean", "max", "'sum'")),
        ("pooling_net: n_out", lambda: pooling(3, 5, 0, KEY), ValueError, ("pooling_net", "n_out", "0")),
        ("pooling_net: n_in", lambda: pooling(0, 5, 2, KEY), ValueError, ("pooling_net", "n_in", "0")),
        ("pooling_net: dropout", lambda: pooling(3, 5, 2, KEY, dropout="a"), TypeError, ("dropout", "number", "'a'")),
        ("pooling_net: dtype", lambda: pooling(3, 5, 2, KEY, dtype=int), TypeError, ("dtype", "floating", "int")),
    ]
    return cases


def cases() -> list[Case]:
    return filters() + statistics()
