"""RWA, RDA, MGU and IndRNN as plain NumPy loops in float64, with gradients derived by hand.

The averages are the papers' own equations, without a running maximum. Nothing here uses sequinox or JAX.
"""

from typing import Any

import numpy as np

Arrays = dict[str, np.ndarray]
State = tuple[np.ndarray, ...]


def sigma(a: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(-a))


def squared_ramp(a: np.ndarray) -> np.ndarray:
    return np.maximum(a + 0.25, 0) ** 2


# Functions with their derivatives.
ATTENTION: dict[str, Any] = {
    "exp": (np.exp, np.exp),
    "sigmoid": (sigma, lambda a: sigma(a) * sigma(-a)),
    "softplus": (
        lambda a: np.where(a > 0, a + np.log1p(np.exp(-np.abs(a))), np.log1p(np.exp(np.minimum(a, 0)))),
        sigma,
    ),
    "squared ramp": (squared_ramp, lambda a: 2 * np.maximum(a + 0.25, 0)),
}
SQUASH: dict[str, Any] = {
    "tanh": (np.tanh, lambda v: 1 - np.tanh(v) ** 2),
    "identity": (lambda v: v, np.ones_like),
    "softsign": (lambda v: v / (1 + np.abs(v)), lambda v: 1 / (1 + np.abs(v)) ** 2),
}


class Average:
    """RDA; an RWA where there is no `W_gamma`. The state is (h, n, d)."""

    def __init__(self, f_a: str = "exp", f_h: str = "tanh", f_o: str = "identity"):
        self.f_a, self.f_h, self.f_o = ATTENTION[f_a], SQUASH[f_h], SQUASH[f_o]

    def start(self, w: Arrays, n_hidden: int) -> State:
        zeros = np.zeros(n_hidden)
        return self.f_h[0](w.get("s", zeros)), zeros, zeros

    def start_back(self, w: Arrays, d_state: State) -> Arrays:
        return {"s": d_state[0] * self.f_h[1](w["s"])} if "s" in w else {}

    def step(self, w: Arrays, x: np.ndarray, state: State) -> tuple[np.ndarray, State, Any]:
        h, n, d = state
        u, g = w["W_u"] @ x + w["b_u"], w["W_g"] @ x + w["U_g"] @ h + w["b_g"]
        a_in = w["W_a"] @ x + w["U_a"] @ h + w.get("b_a", 0)
        z, a = u * np.tanh(g), self.f_a[0](a_in)
        gamma = sigma(w["W_gamma"] @ x + w["U_gamma"] @ h + w["b_gamma"]) if "W_gamma" in w else np.ones_like(h)
        n_new, d_new = gamma * n + a * z, gamma * d + a
        some = d_new != 0  # where no attention has been paid to anything, h stays
        average = n_new / np.where(some, d_new, 1)
        h_new = np.where(some, self.f_h[0](average), h)
        kept = (x, h, n, d, u, g, a_in, z, a, gamma, d_new, some, average, h_new)
        return self.f_o[0](h_new), (h_new, n_new, d_new), kept

    def back(self, w: Arrays, kept: Any, dy: np.ndarray, d_state: State) -> tuple[Arrays, np.ndarray, State]:
        x, h, n, d, u, g, a_in, z, a, gamma, d_new, some, average, h_new = kept
        dh_new = d_state[0] + dy * self.f_o[1](h_new)
        d_average = np.where(some, dh_new * self.f_h[1](average), 0)
        dn = d_state[1] + d_average / np.where(some, d_new, 1)
        dd = d_state[2] - d_average * average / np.where(some, d_new, 1)
        pre = {"g": dn * a * u * (1 - np.tanh(g) ** 2), "a": (dn * z + dd) * self.f_a[1](a_in)}
        if "W_gamma" in w:
            pre["gamma"] = (dn * n + dd * d) * gamma * (1 - gamma)
        du = dn * a * np.tanh(g)
        dw = {"W_u": np.outer(du, x), "b_u": du}
        dx, dh = w["W_u"].T @ du, np.where(some, 0, dh_new)
        for name, v in pre.items():
            dw |= {f"W_{name}": np.outer(v, x), f"U_{name}": np.outer(v, h), f"b_{name}": v}
            dx, dh = dx + w[f"W_{name}"].T @ v, dh + w[f"U_{name}"].T @ v
        return {k: v for k, v in dw.items() if k in w}, dx, (dh, dn * gamma, dd * gamma)


class Minimal:
    """The MGU."""

    def start(self, w: Arrays, n_hidden: int) -> State:
        return (np.zeros(n_hidden),)

    def start_back(self, w: Arrays, d_state: State) -> Arrays:
        return {}

    def step(self, w: Arrays, x: np.ndarray, state: State) -> tuple[np.ndarray, State, Any]:
        (h,) = state
        f = sigma(w["W_f"] @ x + w["U_f"] @ h + w["b_f"])
        k = np.tanh(w["W"] @ x + w["U"] @ (f * h) + w["b"])
        new = (1 - f) * h + f * k
        return new, (new,), (x, h, f, k)

    def back(self, w: Arrays, kept: Any, dy: np.ndarray, d_state: State) -> tuple[Arrays, np.ndarray, State]:
        x, h, f, k = kept
        new = dy + d_state[0]
        dk = new * f * (1 - k**2)
        dfh = w["U"].T @ dk
        df = (new * (k - h) + dfh * h) * f * (1 - f)
        dw = {"W": np.outer(dk, x), "U": np.outer(dk, f * h), "b": dk}
        dw |= {"W_f": np.outer(df, x), "U_f": np.outer(df, h), "b_f": df}
        return dw, w["W"].T @ dk + w["W_f"].T @ df, (new * (1 - f) + dfh * f + w["U_f"].T @ df,)


class Independent:
    """The IndRNN."""

    def __init__(self, activation: str):
        self.relu = activation == "relu"

    def start(self, w: Arrays, n_hidden: int) -> State:
        return (np.zeros(n_hidden),)

    def start_back(self, w: Arrays, d_state: State) -> Arrays:
        return {}

    def step(self, w: Arrays, x: np.ndarray, state: State) -> tuple[np.ndarray, State, Any]:
        (h,) = state
        a = w["W"] @ x + w["u"] * h + w["b"]
        new = np.maximum(a, 0) if self.relu else np.tanh(a)
        return new, (new,), (x, h, a)

    def back(self, w: Arrays, kept: Any, dy: np.ndarray, d_state: State) -> tuple[Arrays, np.ndarray, State]:
        x, h, a = kept
        da = (dy + d_state[0]) * (a > 0 if self.relu else 1 - np.tanh(a) ** 2)
        return {"W": np.outer(da, x), "u": da * h, "b": da}, w["W"].T @ da, (da * w["u"],)


def unroll(
    cell: Any, w: Arrays, xs: np.ndarray, state: State, mask: np.ndarray, resets: np.ndarray,
    d_ys: np.ndarray, d_final: State,
) -> dict[str, Any]:  # fmt: skip
    """Rows one by one, sample by sample, and back again. `state` and `d_final` have a row each."""
    n_hidden = d_ys.shape[-1]
    ys, final = np.zeros_like(d_ys), tuple(a.copy() for a in state)
    d_w = {name: np.zeros_like(a) for name, a in w.items()}
    d_xs, d_state = np.zeros_like(xs), tuple(a.copy() for a in d_final)

    def add(dw: Arrays) -> None:
        for name, value in dw.items():
            d_w[name] += value

    for row in range(len(xs)):
        real = np.flatnonzero(mask[row])
        kept, now = {}, tuple(a[row] for a in state)
        for t in real:
            now = cell.start(w, n_hidden) if resets[row, t] else now
            ys[row, t], now, kept[t] = cell.step(w, xs[row, t], now)
        back = tuple(a[row] for a in d_final)
        for t in reversed(real):
            dw, d_xs[row, t], back = cell.back(w, kept[t], d_ys[row, t], back)
            add(dw)
            if resets[row, t]:
                add(cell.start_back(w, back))
                back = tuple(np.zeros_like(a) for a in back)
        for leaf, d_leaf, a, d in zip(final, d_state, now, back, strict=True):
            leaf[row], d_leaf[row] = a, d
    return {"ys": ys, "final": final, "d_w": d_w, "d_xs": d_xs, "d_state": d_state}
