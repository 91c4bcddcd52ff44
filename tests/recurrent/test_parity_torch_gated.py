"""Normalisation in the loop: RNN, GRU and LSTM against their equations written in PyTorch, with its layer norm."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sequinox as sqx

torch = pytest.importorskip("torch", reason="PyTorch is in the extra `parity`")

pytestmark = pytest.mark.usefixtures("quick_compilation", "unchecked_types")

B, T, N_IN, N_HIDDEN, N_PROJ = 4, 6, 3, 5, 2
KEY = jax.random.key(0)


def draw(*shape: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


def leaf(a: Any) -> Any:
    return torch.tensor(np.asarray(a), requires_grad=True)


def norm(a: Any, gain: Any, shift: Any) -> Any:
    return torch.nn.functional.layer_norm(a, a.shape[-1:], gain, shift, eps=1e-6)


def rnn(w: Any, x: Any, state: Any) -> Any:
    (h,) = state
    h = torch.tanh(norm(x @ w["W"].T + h @ w["U"].T, w["gamma"], w["b"]))
    return h, [h]


def gru(w: Any, x: Any, state: Any) -> Any:
    (h,) = state
    r = torch.sigmoid(norm(x @ w["W_r"].T + h @ w["U_r"].T, w["gamma_r"], w["b_r"]))
    z = torch.sigmoid(norm(x @ w["W_z"].T + h @ w["U_z"].T, w["gamma_z"], w["b_z"]))
    past = r * (h @ w["U"].T + w["b_U"]) if "b_U" in w else (r * h) @ w["U"].T
    h = z * h + (1 - z) * torch.tanh(norm(x @ w["W"].T + past, w["gamma"], w["b"]))
    return h, [h]


def lstm(w: Any, x: Any, state: Any) -> Any:
    """With peepholes; with projection or full gate recurrence if there are weights for it."""
    y, c, *gates = state
    pre = {g: x @ w[f"W_{g}"].T + y @ w[f"R_{g}"].T for g in "zifo"}
    for to in "ifo":
        for origin, value in zip("ifo", gates, strict=False):
            pre[to] = pre[to] + value @ w[f"R_{origin}{to}"].T
    seen = norm(c, w["gamma_c"], w["b_c"])
    z = torch.tanh(norm(pre["z"], w["gamma_z"], w["b_z"]))
    i, f = (torch.sigmoid(norm(pre[g] + w[f"p_{g}"] * seen, w[f"gamma_{g}"], w[f"b_{g}"])) for g in "if")
    c = z * i + c * f
    seen = norm(c, w["gamma_c"], w["b_c"])
    o = torch.sigmoid(norm(pre["o"] + w["p_o"] * seen, w["gamma_o"], w["b_o"]))
    y = torch.tanh(seen) * o
    y = y @ w["W_p"].T if "W_p" in w else y
    return y, [y, c, i, f, o][: len(state)]


@eqx.filter_jit
def run(cell: Any, xs: Any, state: Any, d_ys: Any, d_final: Any) -> Any:
    out, pull = eqx.filter_vjp(lambda c, x, s: c.unroll(x, s), cell, xs, state)
    return out, pull((d_ys, d_final))


CASES: dict[str, tuple[Any, Any, dict]] = {
    "RNN": (sqx.RNN, rnn, {}),
    "GRU": (sqx.GRU, gru, {}),
    "GRU-reset-after": (sqx.GRU, gru, {"reset_after": True}),
    "LSTM": (sqx.LSTM, lstm, {}),
    "LSTM-FGR-projected": (sqx.LSTM, lstm, {"variant": "FGR", "n_proj": N_PROJ}),
}


@pytest.mark.parametrize("name", CASES)
def test_normalised_cells(name: str):
    kind, step, options = CASES[name]
    with jax.enable_x64(True):
        cell = kind(N_IN, N_HIDDEN, KEY, layer_norm=True, dtype="float64", **options)
        leaves, tree = jax.tree.flatten(cell)
        cell = jax.tree.unflatten(tree, [jnp.asarray(0.5 * draw(*a.shape, seed=i)) for i, a in enumerate(leaves)])
        start, structure = jax.tree.flatten(cell.init_state(B))
        start, d_final = ([draw(*a.shape, seed=s + i) for i, a in enumerate(start)] for s in (100, 200))
        xs, d_ys = draw(B, T, N_IN, seed=300), draw(B, T, cell.n_out, seed=301)
        put = lambda arrays: jax.tree.unflatten(structure, [jnp.asarray(a) for a in arrays])
        (ys, final), gradients = run(cell, jnp.asarray(xs), put(start), jnp.asarray(d_ys), put(d_final))

        w = {n: leaf(a) for n, a in sqx.parameters(cell).items()}
        x, first = leaf(xs), [leaf(s) for s in start]
        state, outs = first, []
        for t in range(T):
            y, state = step(w, x[:, t], state)
            outs.append(y)
        out = torch.stack(outs, 1)
        total = (out * torch.tensor(d_ys)).sum()
        for s, d in zip(state, d_final, strict=True):
            total = total + (s * torch.tensor(d)).sum()
        total.backward()

        def close(got: Any, expected: Any) -> None:
            expected = expected.detach().numpy()
            np.testing.assert_allclose(got, expected, rtol=0, atol=1e-12 * max(1, np.abs(expected).max()))

        close(ys, out)
        for a, b in zip(jax.tree.leaves(final), state, strict=True):
            close(a, b)
        d_cell, d_xs, d_state = gradients
        close(d_xs, x.grad)
        for a, b in zip(jax.tree.leaves(d_state), first, strict=True):
            close(a, b.grad)
        for n, gradient in sqx.parameters(d_cell).items():
            assert np.abs(w[n].grad.numpy()).max() > 1e-3
            close(gradient, w[n].grad)
