"""Wrong arguments of diagonal recurrences and linear filters: a part of the table of `bad_inputs.py`."""

# pyright: reportArgumentType=false, reportCallIssue=false
# Wrong arguments are this file's business.

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import sequinox as sqx

Case = tuple[str, Callable[[], Any], type[Exception], tuple[str, ...]]

KEY = jax.random.key(0)
A, H0 = jnp.ones((4, 5, 3)), jnp.ones((4, 3))
PAIR = sqx.ComplexPair(A, A)


def scan() -> list[Case]:
    """The function, its numbers and its options."""
    name, run = "diagonal_scan", sqx.diagonal_scan
    return [
        (f"{name}: b a list", lambda: run(A, [[1.0]]), TypeError, (name, "b", "array", "list")),
        (f"{name}: b a vector", lambda: run(A[0, 0], A[0, 0]), ValueError, (name, "b", "time", "(3,)")),
        (f"{name}: integers", lambda: run(A, A.astype(int)), TypeError, (name, "b", "floating", "int32")),
        (f"{name}: a shape", lambda: run(A[:, :4], A), ValueError, (name, "a", "(4, 5, 3)", "(3,)", "(4, 4, 3)")),
        (f"{name}: a dtype", lambda: run(A.astype("float16"), A), TypeError, (name, "a", "float32", "float16")),
        (f"{name}: h0 shape", lambda: run(A, A, H0[:3]), ValueError, (name, "h0", "(4, 3)", "(3, 3)")),
        (f"{name}: h0 real", lambda: run(PAIR, PAIR, H0), TypeError, (name, "h0", "pair", "Array")),
        (f"{name}: a complex", lambda: run(PAIR, A), TypeError, (name, "a", "array", "tuple of 2")),
        (f"{name}: three parts", lambda: run((A, A, A), (A, A, A)), TypeError, (name, "pair", "tuple of 3")),
        (f"{name}: complex dtype", lambda: run(A, A.astype("complex64")), TypeError, (name, "b", "real", "complex64")),
        (f"{name}: mask", lambda: run(A, A, mask=A[..., 0]), TypeError, (name, "mask", "boolean", "float32")),
        (f"{name}: resets", lambda: run(A, A, resets=A[:, 0] > 0), ValueError, (name, "resets", "(4, 5)", "(4, 3)")),
        (f"{name}: method", lambda: run(A, A, method="tree"), ValueError, (name, "method", "chunked", "'tree'")),
        (f"{name}: chunk", lambda: run(A, A, chunk=0), ValueError, (name, "chunk", "0")),
    ]


def layers() -> list[Case]:
    """Constructors of the recurrences."""
    lru = lambda **options: lambda: sqx.LRU(3, 5, KEY, **options)
    cases: list[Case] = []
    for unit in (sqx.MinGRU, sqx.MinLSTM, sqx.LRU):
        name = unit.__name__
        make: Any = unit
        cases += [
            (f"{name}: n_in", lambda m=make: m(0, 5, KEY), ValueError, (name, "n_in", "0")),
            (f"{name}: n_hidden", lambda m=make: m(3, 2.0, KEY), TypeError, (name, "n_hidden", "2.0")),
            (f"{name}: key", lambda m=make: m(3, 5, 0), TypeError, (name, "key", "0")),
            (f"{name}: method", lambda m=make: m(3, 5, KEY, method=1), ValueError, (name, "method", "1")),
            (f"{name}: dtype", lambda m=make: m(3, 5, KEY, dtype=int), TypeError, (name, "dtype", "int")),
        ]
    return [
        *cases,
        (
            "MinLSTM: forget_bias",
            lambda: sqx.MinLSTM(3, 5, KEY, forget_bias=float("inf")),
            ValueError,
            ("MinLSTM", "forget_bias", "inf"),
        ),
        ("LRU: radii", lru(r_min=0.9, r_max=0.5), ValueError, ("LRU", "r_min", "0.9", "0.5")),
        ("LRU: r_max", lru(r_max=1.1), ValueError, ("LRU", "r_max", "1.1")),
        ("LRU: max_phase", lru(max_phase=7), ValueError, ("LRU", "max_phase", "7")),
        ("LRU: n_out", lru(n_out=0), ValueError, ("LRU", "n_out", "0")),
        ("LRU: state", lambda: lru()().unroll(A, H0), TypeError, ("LRU.unroll", "state", "ComplexPair(re, im)")),
    ]


def filters() -> list[Case]:
    """Coefficients and matrices."""
    one, space = sqx.OnePole, sqx.StateSpace
    eye, column = [[0.5, 0.0], [0.0, 0.5]], [[1.0], [0.0]]
    return [
        ("OnePole: n_in", lambda: one(-1), ValueError, ("OnePole", "n_in", "-1")),
        ("OnePole: outside", lambda: one(2, [0.5, -1.0]), ValueError, ("OnePole", "alpha", "guard", "-1.0")),
        (
            "OnePole: rounds to 1",
            lambda: one(1, 1 - 1e-9, dtype=jnp.bfloat16),
            ValueError,
            ("OnePole", "alpha", "1.0", "float32"),
        ),
        ("OnePole: shape", lambda: one(2, [0.1, 0.2, 0.3]), ValueError, ("OnePole", "alpha", "(2,)", "(3,)")),
        ("OnePole: beta", lambda: one(2, 0.5, "x"), TypeError, ("OnePole", "beta", "'x'")),
        ("OnePole: NaN", lambda: one(2, 0.5, float("nan")), ValueError, ("OnePole", "beta", "nan")),
        ("OnePole: ragged", lambda: one(2, [[0.5], [1, 2]]), TypeError, ("OnePole", "alpha")),
        ("OnePole: guard", lambda: one(2, guard=1), TypeError, ("OnePole", "guard", "1")),
        ("OnePole: method", lambda: one(2, method="scan"), ValueError, ("OnePole", "method", "'scan'")),
        ("OnePole: response", lambda: one(2).impulse_response(0), ValueError, ("impulse_response", "n_time", "0")),
        ("StateSpace: A", lambda: space([0.5], column), ValueError, ("StateSpace", "A", "(1,)")),
        ("StateSpace: B None", lambda: space(eye, None), TypeError, ("StateSpace", "B", "None")),
        ("StateSpace: square", lambda: space(column, column), ValueError, ("StateSpace", "A", "(2, 2)", "(2, 1)")),
        ("StateSpace: B", lambda: space(eye, [[1.0]]), ValueError, ("StateSpace", "B", "(2, 1)", "(1, 1)")),
        ("StateSpace: C", lambda: space(eye, column, [[1.0]]), ValueError, ("StateSpace", "C", "(1, 2)", "(1, 1)")),
        ("StateSpace: D", lambda: space(eye, column, eye, eye), ValueError, ("StateSpace", "D", "(2, 1)", "(2, 2)")),
        ("StateSpace: D alone", lambda: space(eye, column, D=column), ValueError, ("StateSpace", "D", "C")),
        (
            "StateSpace: implementation",
            lambda: space(eye, column, implementation="fast"),
            ValueError,
            ("StateSpace", "implementation", "'fast'"),
        ),
        ("StateSpace: radius", lambda: space.random(3, 5, KEY, radius=0), ValueError, ("random", "radius", "0")),
        ("StateSpace: sizes", lambda: space.random(3, 0, KEY), ValueError, ("random", "n_hidden", "0")),
    ]


def cases() -> list[Case]:
    return scan() + layers() + filters()
