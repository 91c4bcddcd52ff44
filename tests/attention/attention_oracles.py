"""Attention as plain NumPy in float64, row by row and sample by sample. Nothing here uses sequinox or JAX."""

from typing import Any

import numpy as np

Arrays = dict[str, Any]


# ---- one head --------------------------------------------------------------------------------------------------------


def visible(
    batch: tuple[int, ...],
    T: int,
    S: int,
    *,
    mask: Any = None,
    causal: bool = False,
    window: int | None = None,
    key_mask: Any = None,
    resets: Any = None,
) -> np.ndarray:
    """Who sees whom, `(*batch, T, S)`, pair by pair; the last query stands at the last key."""
    sees = np.ones((*batch, T, S), bool)
    for place in np.ndindex(*sees.shape):
        *b, t, s = place
        at = S - T + t
        if mask is not None:
            m = np.asarray(mask)
            index = place if m.ndim > 2 else (t, s)
            sees[place] &= m[tuple(0 if n == 1 else i for n, i in zip(m.shape, index, strict=True))]
        if causal:
            sees[place] &= s <= at
        if window is not None:
            sees[place] &= abs(s - at) < window
        real = np.ones(S, bool) if key_mask is None else _row(key_mask, b)
        sees[place] &= real[s]
        if resets is not None:
            between = slice(min(s, at) + 1, max(s, at) + 1)
            sees[place] &= not (_row(resets, b) & real)[between].any()
    return sees


def _row(flags: Any, b: list[int]) -> np.ndarray:
    flags = np.asarray(flags)
    return flags[tuple(0 if n == 1 else i for n, i in zip(flags.shape[:-1], b, strict=True))]


def weights(q: Any, k: Any, sees: Any, scale: float | None = None) -> np.ndarray:
    """The softmax over what is seen, query by query; zeros where nothing is."""
    q, k = np.asarray(q, np.float64), np.asarray(k, np.float64)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    sees = np.broadcast_to(sees, (*q.shape[:-1], k.shape[-2]))
    out = np.zeros(sees.shape)
    for place in np.ndindex(*q.shape[:-1]):
        seen = np.flatnonzero(sees[place])
        if len(seen):
            scores = scale * k[place[:-1]][seen] @ q[place]
            share = np.exp(scores - scores.max())
            out[place][seen] = share / share.sum()
    return out


def attend(q: Any, k: Any, v: Any, sees: Any, scale: float | None = None) -> np.ndarray:
    return weights(q, k, sees, scale) @ np.asarray(v, np.float64)


def gradients(q: Any, k: Any, v: Any, sees: Any, d_out: Any, scale: float | None = None) -> list[np.ndarray]:
    """Of `sum(out * d_out)` with respect to q, k and v."""
    q, k, v, d_out = (np.asarray(a, np.float64) for a in (q, k, v, d_out))
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    w = weights(q, k, sees, scale)
    d_w = d_out @ v.swapaxes(-1, -2)
    d_scores = scale * w * (d_w - (w * d_w).sum(-1, keepdims=True))
    return [d_scores @ k, d_scores.swapaxes(-1, -2) @ q, w.swapaxes(-1, -2) @ d_out]


# ---- positions -------------------------------------------------------------------------------------------------------


def turned(x: Any, position: int, base: float, interleaved: bool) -> np.ndarray:
    """Rotary positions as a product of complex numbers: pair `i` of a vector, turned by `position * base^(-2i/d)`."""
    x = np.asarray(x, np.float64)
    d = x.shape[-1]
    first, second = (
        (np.arange(0, d, 2), np.arange(1, d, 2)) if interleaved else (np.arange(d // 2), np.arange(d // 2, d))
    )
    z = (x[..., first] + 1j * x[..., second]) * np.exp(1j * position * base ** (-2 * np.arange(d // 2) / d))
    out = np.empty_like(x)
    out[..., first], out[..., second] = z.real, z.imag
    return out


# ---- a layer ---------------------------------------------------------------------------------------------------------


class Row:
    """One row of causal self-attention: a list of the keys and values of its real samples since the last reset."""

    def __init__(self, w: Arrays, n_heads: int, n_kv_heads: int, window: int | None = None, rotary: Any = None):
        self.w, self.heads, self.kv_heads, self.window = (
            {n: np.asarray(a, np.float64) for n, a in w.items()},
            n_heads,
            n_kv_heads,
            window,
        )
        self.turn = (lambda x, n: x) if rotary is None else lambda x, n: turned(x, n, rotary.base, rotary.interleaved)
        self.kept: list[tuple[np.ndarray, np.ndarray]] = []

    def project(self, name: str, x: np.ndarray, heads: int) -> np.ndarray:
        return (self.w[f"W_{name}"] @ x + self.w.get(f"b_{name}", 0)).reshape(heads, -1)

    def query(self, x: np.ndarray, keys: list, values: list, place: int) -> np.ndarray:
        """What a sample at a place finds in the keys, back in the width of the model."""
        q = self.turn(self.project("Q", x, self.heads), place)
        out = []
        for h in range(self.heads):
            g = h // (self.heads // self.kv_heads)
            head_keys = np.array([k[g] for k in keys]).reshape(1, len(keys), q.shape[-1])
            head_values = np.array([v[g] for v in values]).reshape(1, len(keys), q.shape[-1])
            out.append(attend(q[h][None, None], head_keys, head_values, True)[0, 0])
        return self.w["W_O"] @ np.concatenate(out) + self.w.get("b_O", 0)

    def read(self, x: Any, mask: bool = True, reset: bool = False) -> np.ndarray:
        x = np.asarray(x, np.float64)
        if not mask:
            return np.zeros_like(x)
        self.kept = [] if reset else self.kept
        n = len(self.kept)
        self.kept.append((self.turn(self.project("K", x, self.kv_heads), n), self.project("V", x, self.kv_heads)))
        seen = self.kept[0 if self.window is None else -self.window :]
        return self.query(x, [k for k, _ in seen], [v for _, v in seen], n)


def self_attention(
    layer: Any, xs: Any, mask: Any = None, resets: Any = None, weights: Arrays | None = None
) -> np.ndarray:
    """A whole batch `(rows, time, d_model)` by a layer's weights and sizes (causal or not), a sample at a time."""
    xs = np.asarray(xs)
    mask = np.ones(xs.shape[:2], bool) if mask is None else np.asarray(mask)
    resets = np.zeros(xs.shape[:2], bool) if resets is None else np.asarray(resets)
    w = arrays(layer) if weights is None else weights
    out = np.zeros(xs.shape)
    for r in range(xs.shape[0]):
        new = lambda: Row(w, layer.n_heads, layer.n_kv_heads, layer.window, layer.rotary)
        if layer.causal:
            row = new()
            out[r] = [row.read(*sample) for sample in zip(xs[r], mask[r], resets[r], strict=True)]
            continue
        begun = np.cumsum(resets[r] & mask[r])
        for part in np.unique(begun):
            places = np.flatnonzero((begun == part) & mask[r])
            reader = new()
            for t in places:  # only to fill it
                reader.read(xs[r, t])
            for n, t in enumerate(places):
                near = [i for i in range(len(places)) if layer.window is None or abs(i - n) < layer.window]
                keys, values = ([reader.kept[i][j] for i in near] for j in (0, 1))
                out[r, t] = reader.query(np.asarray(xs[r, t], np.float64), keys, values, n)
    return out


def cross_attention(layer: Any, xs: Any, memory: Any, real: Any) -> np.ndarray:
    """`(rows, time, d_model)` looking at `(rows, places, d_memory)`."""
    xs, memory = np.asarray(xs, np.float64), np.asarray(memory, np.float64)
    reader = Row(arrays(layer), layer.n_heads, layer.n_kv_heads)
    out = np.zeros(xs.shape)
    for r in range(xs.shape[0]):
        places = memory[r][np.asarray(real)[r]]
        keys, values = ([reader.project(name, m, layer.n_kv_heads) for m in places] for name in "KV")
        out[r] = [reader.query(x, keys, values, 0) for x in xs[r]]
    return out


def arrays(layer: Any) -> Arrays:
    """The weights of a layer by name."""
    named = {f"{kind}_{name}": getattr(layer, f"{kind}_{name}") for kind in "Wb" for name in "QKVO"}
    return {name: np.asarray(a, np.float64) for name, a in named.items() if a is not None}
