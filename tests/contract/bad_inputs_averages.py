"""Wrong arguments of recurrent weighted averages: a part of the table of `bad_inputs.py`."""

# pyright: reportArgumentType=false, reportCallIssue=false
# Wrong arguments are this file's business.

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import sequinox as sqx

Case = tuple[str, Callable[[], Any], type[Exception], tuple[str, ...]]

KEY = jax.random.key(0)
XS, H = jnp.ones((4, 5, 3)), jnp.zeros((4, 6))


class Unhashable:
    """A function that no static field can hold."""

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def __call__(self, v: Any) -> Any:
        return v


def of_every_cell(name: str, cell: Any) -> list[Case]:
    return [
        (f"{name}: no inputs", lambda: cell(0, 6, KEY), ValueError, (name, "n_in", "0")),
        (f"{name}: width a float", lambda: cell(3, 6.0, KEY), TypeError, (name, "n_hidden", "6.0")),
        (f"{name}: no key", lambda: cell(3, 6, 7), TypeError, (name, "key", "7")),
        (f"{name}: engine", lambda: cell(3, 6, KEY, implementation="loop"), ValueError, (name, "fused", "loop")),
        (f"{name}: integers", lambda: cell(3, 6, KEY, dtype=jnp.int32), TypeError, (name, "dtype", "int32")),
        (
            f"{name}: samples",
            lambda: cell(3, 6, KEY)(XS[..., :2]),
            ValueError,
            (name, "(*batch, time, 3)", "(4, 5, 2)"),
        ),
    ]


def cases() -> list[Case]:
    cells = {"RWA": sqx.RWA, "RDA": sqx.RDA, "MGU": sqx.MGU, "IndRNN": sqx.IndRNN}
    shared = [case for name, cell in cells.items() for case in of_every_cell(name, cell)]
    rda = lambda **options: lambda: sqx.RDA(3, 6, KEY, **options)
    return [
        *shared,
        ("RWA: f_h", lambda: sqx.RWA(3, 6, KEY, f_h="relu"), ValueError, ("RWA", "f_h", '"tanh"', "relu")),
        ("RWA: f_h a function", lambda: sqx.RWA(3, 6, KEY, f_h=jnp.sum), ValueError, ("RWA", "f_h", "shape")),
        ("RWA: start", lambda: sqx.RWA(3, 6, KEY, trained_start=1), TypeError, ("RWA", "trained_start", "True")),
        (
            "RWA: the state of an LSTM",
            lambda: sqx.RWA(3, 6, KEY).unroll(XS, sqx.LSTMState(H, H)),
            TypeError,
            ("RWA.unroll", "RWAState(h, n, d, m)", "LSTMState(y, c)"),
        ),
        (
            "RWA: half a state",
            lambda: sqx.RWA(3, 6, KEY).unroll(XS, (H, H)),
            ValueError,
            ("RWA.unroll", "RWAState(h, n, d, m)", "2 entries"),
        ),
        ("RDA: start", rda(trained_start="yes"), TypeError, ("RDA", "trained_start", "'yes'")),
        ("RDA: bias", rda(discount_bias=float("nan")), ValueError, ("RDA", "discount_bias", "finite", "nan")),
        ("RDA: f_a unknown", rda(f_a="relu"), ValueError, ("RDA", "f_a", '"softplus"', "relu")),
        ("RDA: f_a no function", rda(f_a=1.0), TypeError, ("RDA", "f_a", "function", "1.0")),
        ("RDA: f_a negative", rda(f_a=jnp.tanh), ValueError, ("RDA", "f_a", "nowhere negative", "-1 at -500")),
        ("RDA: f_a infinite", rda(f_a=jnp.cosh), ValueError, ("RDA", "f_a", "finite", "inf at -500")),
        ("RDA: f_a square", rda(f_a=jnp.square), ValueError, ("RDA", "f_a", "nowhere decreasing")),
        ("RDA: f_a overflows", rda(f_a=jnp.exp), ValueError, ("RDA", "f_a", "finite", "inf at")),
        ("RDA: f_a zero", rda(f_a=jnp.zeros_like), ValueError, ("RDA", "f_a", "zero everywhere")),
        ("RDA: f_a of another shape", rda(f_a=jnp.max), ValueError, ("RDA", "f_a", "shape", "(3,)")),
        ("RDA: f_h unknown", rda(f_h="relu"), ValueError, ("RDA", "f_h", '"identity"', "relu")),
        ("RDA: f_h None", rda(f_h=None), TypeError, ("RDA", "f_h", "function", "None")),
        ("RDA: f_h not hashable", rda(f_h=Unhashable()), TypeError, ("RDA", "f_h", "hashable", "Unhashable")),
        ("RDA: f_o of another dtype", rda(f_o=jnp.isfinite), ValueError, ("RDA", "f_o", "dtype", "bool")),
        ("RDA: f_o unknown", rda(f_o="softmax"), ValueError, ("RDA", "f_o", '"tanh"', "softmax")),
        ("MGU: bias", lambda: sqx.MGU(3, 6, KEY, forget_bias=[1.0]), TypeError, ("MGU", "forget_bias", "[1.0]")),
        (
            "IndRNN: activation",
            lambda: sqx.IndRNN(3, 6, KEY, activation="gelu"),
            ValueError,
            ("IndRNN", "activation", '"relu"', "gelu"),
        ),
        ("IndRNN: bound of zero", lambda: sqx.IndRNN(3, 6, KEY, u_max=0), ValueError, ("IndRNN", "u_max", "positive")),
        ("IndRNN: bound", lambda: sqx.IndRNN(3, 6, KEY, u_max="1"), TypeError, ("IndRNN", "u_max", "number", "'1'")),
    ]
