"""Wrong arguments of what is random in training: a part of the table of `bad_inputs.py`."""

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
GRU, LSTM, DENSE = sqx.GRU(3, 6, KEY), sqx.LSTM(3, 6, KEY), sqx.Dense(3, 2, KEY)


class Own(sqx.RecurrentCell):
    """A cell whose output is no part of its state; it can use `affine` in a scan, or with the sample alone."""

    W: Any
    U: Any
    n_in: int = eqx.field(static=True)
    n_hidden: int = eqx.field(static=True)
    implementation: Any = eqx.field(static=True)
    how: str = eqx.field(static=True)

    def __init__(self, how: str):
        self.W, self.U, self.how = jnp.ones((6, 3)), jnp.ones((6, 6)), how
        self.n_in, self.n_hidden, self.implementation = 3, 6, "scan"

    def start(self, dtype: Any) -> Any:
        return (jnp.zeros(6, dtype), jnp.zeros((), jnp.int32))

    def transition(self, affine: Any, x: Any, state: Any) -> Any:
        h, n = state
        if self.how == "scan":
            body = lambda h, _: (jnp.tanh(affine((self.W, x), (self.U, h))), None)
            h = jax.lax.scan(body, h, length=2)[0]
        elif self.how == "sample alone":
            h = h + affine((self.W, x))
        return 2 * h, (h, n + 1)


class Counted(Own):
    def transition(self, affine: Any, x: Any, state: Any) -> Any:
        _, after = super().transition(affine, x, state)
        return after[0], after


def cases() -> list[Case]:
    zone, recurrent, variational, drop = sqx.Zoneout, sqx.RecurrentDropout, sqx.VariationalDropout, sqx.WeightDrop
    rate = "at least 0 and less than 1"
    makers: list[tuple[str, str, Any]] = [
        ("Zoneout", "rates", lambda p: zone(GRU, p)),
        ("RecurrentDropout", "p", lambda p: recurrent(GRU, p)),
        ("VariationalDropout", "p", lambda p: variational(p, 3)),
        ("WeightDrop", "p", lambda p: drop(GRU, p)),
    ]
    found: list[Case] = []
    for name, argument, make in makers:
        wrong = ((1, ValueError, rate), (-0.1, ValueError, rate), (float("nan"), ValueError, "finite"))
        for value, kind, words in (*wrong, ("0.5", TypeError, "number"), (True, TypeError, "number")):
            found.append((f"{name}: {argument} {value!r}", lambda m=make, v=value: m(v), kind, (name, argument, words)))
        run: Any = make(0.5)
        needed = (name, "a key is needed in training", "inference_mode")
        for how in ("forward", "unroll"):
            found.append((f"{name}: no key in {how}", lambda r=run, h=how: getattr(r, h)(XS), ValueError, needed))
        found.append((f"{name}: no key in step", lambda r=run: r.step(XS[:, 0]), ValueError, needed))
    for name, make in (("Zoneout", lambda c: zone(c, 0.5)), ("RecurrentDropout", recurrent)):
        words = (name, "recurrent cell")
        found.append((f"{name}: a dense layer", lambda m=make: m(DENSE), TypeError, (*words, "Dense")))
        found.append((f"{name}: a class", lambda m=make: m(sqx.GRU), TypeError, words))
    flags: list[tuple[str, Any]] = [
        ("Zoneout", lambda: zone(GRU, 0.5, inference=1)),
        ("RecurrentDropout", lambda: recurrent(GRU, 0.5, inference=None)),
        ("VariationalDropout", lambda: variational(0.5, 3, inference="no")),
        ("WeightDrop", lambda: drop(GRU, 0.5, inference=0)),
    ]
    found += [(f"{n}: inference", make, TypeError, (n, "inference", "True or False")) for n, make in flags]
    return [
        *found,
        ("Zoneout: output not in state", lambda: zone(Own(""), 0.1), ValueError, ("Zoneout", "output", "state")),
        ("Zoneout: three rates", lambda: zone(LSTM, (0.1, 0.2, 0.3)), ValueError, ("Zoneout: rates", "LSTMState", "3")),
        ("Zoneout: a rate of the pair", lambda: zone(LSTM, (0.1, 1.5)), ValueError, ("Zoneout: rates.c", rate, "1.5")),
        ("Zoneout: a pair for an array", lambda: zone(GRU, (0.1, 0.2)), ValueError, ("Zoneout: rates", "number")),
        ("Zoneout: a dictionary", lambda: zone(LSTM, {"y": 0.1}), TypeError, ("Zoneout: rates", "LSTMState", "dict")),
        (
            "Zoneout: the sums of an average",
            lambda: zone(sqx.RDA(3, 6, KEY), 0.1),
            ValueError,
            ("Zoneout: rates", "RWAState(0.1, 0, 0, 0)"),
        ),
        ("Zoneout: None", lambda: zone(LSTM, None), TypeError, ("Zoneout: rates", "number", "None")),
        (
            "Zoneout: a count",
            lambda: zone(Counted(""), (0.1, 0.2)),
            ValueError,
            ("Zoneout: rates[1]", "integers", "0.2"),
        ),
        (
            "RecurrentDropout: nothing recurrent",
            lambda: recurrent(Own("sample alone")),
            ValueError,
            ("RecurrentDropout", "Own", "nothing to drop"),
        ),
        (
            "RecurrentDropout: affine in a scan",
            lambda: recurrent(Own("scan")),
            ValueError,
            ("RecurrentDropout", "Own", "inside another transformation"),
        ),
        ("VariationalDropout: width", lambda: variational(0.5, 0), ValueError, ("VariationalDropout", "n_in", "0")),
        (
            "VariationalDropout: no width",
            lambda: variational().init_state(2),
            ValueError,
            ("width is not known", "n_in"),
        ),
        (
            "VariationalDropout: behind a pooling layer",
            lambda: sqx.Sequential([GRU, sqx.LastStep(), variational(0.5)]),
            ValueError,
            ("VariationalDropout", "memory"),
        ),
        ("WeightDrop: no layer", lambda: drop(jnp.tanh), TypeError, ("WeightDrop", "sequence layer")),
        ("WeightDrop: no recurrent weights", lambda: drop(DENSE), ValueError, ("WeightDrop", "no recurrent weights")),
        ("WeightDrop: where is a name", lambda: drop(GRU, 0.5, "U"), TypeError, ("WeightDrop", "where", "'U'")),
        ("WeightDrop: where gives none", lambda: drop(GRU, 0.5, lambda c: ()), ValueError, ("where", "none")),
        (
            "WeightDrop: where gives a new array",
            lambda: drop(GRU, 0.5, lambda c: (c.U, 2 * c.W)),
            ValueError,
            ("WeightDrop", "where", "(6, 3)"),
        ),
        ("WeightDrop: where gives a number", lambda: drop(GRU, 0.5, lambda c: 3), ValueError, ("where", "got 3")),
    ]
