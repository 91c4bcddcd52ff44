"""Cells as plain NumPy loops in float64, with gradients derived by hand. Nothing here uses sequinox or JAX."""

from typing import Any

import numpy as np

Arrays = dict[str, np.ndarray]


def sigma(a: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-a))


class Elman:
    """h' = phi(W x + U h + b)."""

    def __init__(self, activation: str):
        self.activation = activation

    def start(self, n_hidden: int) -> Any:
        return np.zeros(n_hidden)

    def step(self, w: Arrays, x: np.ndarray, h: np.ndarray) -> tuple[np.ndarray, Any, Any]:
        a = w["W"] @ x + w["U"] @ h + w["b"]
        new = np.tanh(a) if self.activation == "tanh" else np.maximum(a, 0)
        return new, new, (x, h, a, new)

    def back(self, w: Arrays, kept: Any, dy: np.ndarray, dstate: Any) -> tuple[Arrays, np.ndarray, Any]:
        x, h, a, new = kept
        da = (dy + dstate) * (1 - new**2 if self.activation == "tanh" else a > 0)
        return {"W": np.outer(da, x), "U": np.outer(da, h), "b": da}, w["W"].T @ da, w["U"].T @ da


class GatedUnit:
    """The GRU with the reset gate before the product, and an update gate that keeps."""

    def start(self, n_hidden: int) -> Any:
        return np.zeros(n_hidden)

    def step(self, w: Arrays, x: np.ndarray, h: np.ndarray) -> tuple[np.ndarray, Any, Any]:
        r = sigma(w["W_r"] @ x + w["U_r"] @ h + w["b_r"])
        z = sigma(w["W_z"] @ x + w["U_z"] @ h + w["b_z"])
        k = np.tanh(w["W"] @ x + w["U"] @ (r * h) + w["b"])
        new = z * h + (1 - z) * k
        return new, new, (x, h, r, z, k)

    def back(self, w: Arrays, kept: Any, dy: np.ndarray, dstate: Any) -> tuple[Arrays, np.ndarray, Any]:
        x, h, r, z, k = kept
        dnew = dy + dstate
        dk = dnew * (1 - z) * (1 - k**2)
        drh = w["U"].T @ dk
        dr = drh * h * r * (1 - r)
        dz = dnew * (h - k) * z * (1 - z)
        dh = dnew * z + drh * r + w["U_r"].T @ dr + w["U_z"].T @ dz
        dx = w["W"].T @ dk + w["W_r"].T @ dr + w["W_z"].T @ dz
        dw = {"W": np.outer(dk, x), "U": np.outer(dk, r * h), "b": dk}
        dw |= {"W_r": np.outer(dr, x), "U_r": np.outer(dr, h), "b_r": dr}
        return dw | {"W_z": np.outer(dz, x), "U_z": np.outer(dz, h), "b_z": dz}, dx, dh


class Memory:
    """The LSTM with peepholes: the output gate looks at the new cell. Without them, their weights are zero."""

    def start(self, n_hidden: int) -> Any:
        return np.zeros((2, n_hidden))

    def step(self, w: Arrays, x: np.ndarray, state: Any) -> tuple[np.ndarray, Any, Any]:
        y, c = state
        p = {g: w.get(f"p_{g}", np.zeros_like(c)) for g in "ifo"}
        a = {g: w[f"W_{g}"] @ x + w[f"R_{g}"] @ y + w[f"b_{g}"] for g in "zifo"}
        z, i, f = np.tanh(a["z"]), sigma(a["i"] + p["i"] * c), sigma(a["f"] + p["f"] * c)
        new = z * i + c * f
        o = sigma(a["o"] + p["o"] * new)
        out = np.tanh(new) * o
        return out, np.stack([out, new]), (x, y, c, p, z, i, f, o, new)

    def back(self, w: Arrays, kept: Any, dy: np.ndarray, dstate: Any) -> tuple[Arrays, np.ndarray, Any]:
        x, y, c, p, z, i, f, o, new = kept
        dout = dy + dstate[0]
        da = {"o": dout * np.tanh(new) * o * (1 - o)}
        dnew = dstate[1] + dout * o * (1 - np.tanh(new) ** 2) + da["o"] * p["o"]
        da |= {"z": dnew * i * (1 - z**2), "i": dnew * z * i * (1 - i), "f": dnew * c * f * (1 - f)}
        dc = dnew * f + da["i"] * p["i"] + da["f"] * p["f"]
        dx = sum(w[f"W_{g}"].T @ da[g] for g in "zifo")
        dprev = sum(w[f"R_{g}"].T @ da[g] for g in "zifo")
        dw = {f"W_{g}": np.outer(da[g], x) for g in "zifo"} | {f"R_{g}": np.outer(da[g], y) for g in "zifo"}
        dw |= {f"b_{g}": da[g] for g in "zifo"}
        dw |= {"p_i": da["i"] * c, "p_f": da["f"] * c, "p_o": da["o"] * new}
        return {k: v for k, v in dw.items() if k in w}, np.asarray(dx), np.stack([np.asarray(dprev), dc])


class Block:
    """The nine models of Greff et al., with or without projection. The state is a row: y, c, and with FGR i, f, o."""

    def __init__(self, variant: str, n_hidden: int, n_out: int):
        self.variant, self.cuts = variant, np.cumsum([n_out, *[n_hidden] * (4 if variant == "FGR" else 1)])
        self.learned = {"NIG": "fo", "NFG": "io", "NOG": "if", "CIFG": "io"}.get(variant, "ifo")

    def start(self, n_hidden: int) -> Any:
        del n_hidden
        return np.zeros(self.cuts[-1])

    def split(self, state: np.ndarray) -> list[np.ndarray]:
        return np.split(state, self.cuts[:-1])

    def step(self, w: Arrays, x: np.ndarray, state: Any) -> tuple[np.ndarray, Any, Any]:
        y, c, *old = self.split(state)
        v, one, gate = self.variant, np.ones_like(c), {}
        a = {g: w[f"W_{g}"] @ x + w[f"R_{g}"] @ y + w[f"b_{g}"] for g in "z" + self.learned}
        for g in self.learned:
            for h, value in zip("ifo", old, strict=False):
                a[g] = a[g] + w[f"R_{h}{g}"] @ value
        for g in [g for g in self.learned if g != "o"]:
            gate[g] = sigma(a[g] + w.get(f"p_{g}", 0 * c) * c)
        z = a["z"] if v == "NIAF" else np.tanh(a["z"])
        i = gate.get("i", one)
        f = 1 - i if v == "CIFG" else gate.get("f", one)
        new = z * i + c * f
        o = one if v == "NOG" else sigma(a["o"] + w.get("p_o", 0 * c) * new)
        shown = new if v == "NOAF" else np.tanh(new)
        out = w["W_p"] @ (shown * o) if "W_p" in w else shown * o
        after = [out, new, i, f, o] if v == "FGR" else [out, new]
        return out, np.concatenate(after), (x, y, c, old, z, i, f, o, new, shown)

    def back(self, w: Arrays, kept: Any, dy: np.ndarray, dstate: Any) -> tuple[Arrays, np.ndarray, Any]:
        x, y, c, old, z, i, f, o, new, shown = kept
        v, p = self.variant, {g: w.get(f"p_{g}", 0 * c) for g in "ifo"}
        dout, dnew, *dgates = self.split(dstate)
        di, df, do = dgates or (0, 0, 0)
        dout, dw = dout + dy, {}
        if "W_p" in w:
            dw["W_p"] = np.outer(dout, shown * o)
            dout = w["W_p"].T @ dout
        da = {"o": (do + dout * shown) * o * (1 - o)}
        dnew = dnew + dout * o * (1 if v == "NOAF" else 1 - shown**2) + da["o"] * p["o"]
        di, df = di + dnew * z, df + dnew * c
        da["i"] = (di - df if v == "CIFG" else di) * i * (1 - i)
        da["f"] = df * f * (1 - f)
        da["z"] = dnew * i * (1 if v == "NIAF" else 1 - z**2)
        da = {g: da[g] for g in "z" + self.learned}
        dc = dnew * f + sum(da[g] * p[g] for g in "if" if g in da)
        dx, dprev = (sum(w[f"{m}_{g}"].T @ d for g, d in da.items()) for m in "WR")
        dold = [sum(w[f"R_{h}{g}"].T @ da[g] for g in "ifo") for h, _ in zip("ifo", old, strict=False)]
        for g, d in da.items():
            dw |= {f"W_{g}": np.outer(d, x), f"R_{g}": np.outer(d, y), f"b_{g}": d}
            dw |= {f"p_{g}": d * (new if g == "o" else c)}
            dw |= {f"R_{h}{g}": np.outer(d, value) for h, value in zip("ifo", old, strict=False)}
        return {k: d for k, d in dw.items() if k in w}, np.asarray(dx), np.concatenate([dprev, dc, *dold])


def unroll(
    cell: Any, w: Arrays, xs: np.ndarray, state: np.ndarray, mask: np.ndarray, resets: np.ndarray,
    d_ys: np.ndarray, d_final: np.ndarray,
) -> dict[str, Any]:  # fmt: skip
    """Rows one by one, sample by sample, and back again. `state`, `d_final`: a row each."""
    n_hidden = d_ys.shape[-1]
    ys, final = np.zeros_like(d_ys), state.copy()
    d_w = {name: np.zeros_like(a) for name, a in w.items()}
    d_xs, d_state = np.zeros_like(xs), d_final.copy()
    for row in range(len(xs)):
        kept: list[Any] = []
        for t in range(xs.shape[1]):
            if not mask[row, t]:
                kept.append(None)
                continue
            before = cell.start(n_hidden) if resets[row, t] else final[row].copy()
            ys[row, t], final[row], k = cell.step(w, xs[row, t], before)
            kept.append(k)
        for t in reversed(range(xs.shape[1])):
            if kept[t] is None:
                continue
            dw, d_xs[row, t], d = cell.back(w, kept[t], d_ys[row, t], d_state[row])
            d_state[row] = 0 if resets[row, t] else d
            for name, value in dw.items():
                d_w[name] += value
    return {"ys": ys, "final": final, "d_w": d_w, "d_xs": d_xs, "d_state": d_state}
