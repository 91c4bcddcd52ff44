"""RNN, GRU and LSTM against PyTorch's own; the GRU as Cho et al. print it against its equations written in PyTorch."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sequinox as sqx

torch = pytest.importorskip("torch", reason="PyTorch is in the extra `parity`")

pytestmark = pytest.mark.usefixtures("quick_compilation")

B, T, N_IN, N_HIDDEN, N_PROJ = 4, 6, 3, 5, 2
KEY = jax.random.key(0)
LENGTHS = [6, 2, 5, 1]
MASK = np.arange(T) < np.array(LENGTHS)[:, None]


def draw(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def leaf(a: Any) -> Any:
    return torch.tensor(np.asarray(a), requires_grad=True)


def close(got: Any, expected: Any, tolerance: float) -> None:
    expected = expected.detach().numpy()
    np.testing.assert_allclose(np.asarray(got), expected, rtol=0, atol=tolerance * max(1, np.abs(expected).max()))


def filled(cell: Any, seed: int) -> Any:
    leaves, tree = jax.tree.flatten(cell)
    return jax.tree.unflatten(tree, [jnp.asarray(0.5 * draw(*a.shape, seed=seed + i)) for i, a in enumerate(leaves)])


def cells(kind: str) -> tuple[Any, Any]:
    """Ours, and PyTorch's with the same weights; PyTorch's second bias is zero, but for that inside the GRU's reset."""
    if kind in ("LSTM", "projected"):
        n_proj = N_PROJ if kind == "projected" else None
        ours = filled(sqx.LSTM(N_IN, N_HIDDEN, KEY, peepholes=False, n_proj=n_proj), 10)
        theirs = torch.nn.LSTM(N_IN, N_HIDDEN, batch_first=True, proj_size=n_proj or 0)
    elif kind == "GRU":
        ours = filled(sqx.GRU(N_IN, N_HIDDEN, KEY, reset_after=True), 15)
        theirs = torch.nn.GRU(N_IN, N_HIDDEN, batch_first=True)
    else:
        ours = filled(sqx.RNN(N_IN, N_HIDDEN, KEY, activation="relu" if kind == "relu" else "tanh"), 20)
        theirs = torch.nn.RNN(N_IN, N_HIDDEN, nonlinearity=kind, batch_first=True)
    with torch.no_grad():
        theirs.bias_hh_l0.zero_()
        for name, array in named(ours, ours).items():
            part = getattr(theirs, name)
            part[-len(array) :].copy_(torch.tensor(np.asarray(array)))
    return ours, theirs


def named(cell: Any, gradient: Any) -> dict[str, Any]:
    """Our weights, or their gradients, stacked as PyTorch stacks them; of its second bias of the GRU the last third."""
    if isinstance(cell, sqx.LSTM):  # i, f, g, o
        pick = lambda letter: jnp.concatenate([getattr(gradient, f"{letter}_{g}") for g in "ifzo"])
        projection = {} if gradient.W_p is None else {"weight_hr_l0": gradient.W_p}
        return {"weight_ih_l0": pick("W"), "weight_hh_l0": pick("R"), "bias_ih_l0": pick("b")} | projection
    if isinstance(cell, sqx.GRU):  # r, z, n
        pick = lambda letter: jnp.concatenate([getattr(gradient, letter + end) for end in ("_r", "_z", "")])
        stacked = {"weight_ih_l0": pick("W"), "weight_hh_l0": pick("U"), "bias_ih_l0": pick("b")}
        return stacked | {"bias_hh_l0": gradient.b_U}
    return {"weight_ih_l0": gradient.W, "weight_hh_l0": gradient.U, "bias_ih_l0": gradient.b}


@pytest.mark.filterwarnings("ignore:LSTM with projections:UserWarning")
@pytest.mark.parametrize("ragged", [False, True], ids=["whole", "packed"])
@pytest.mark.parametrize("kind", ["tanh", "relu", "GRU", "LSTM", "projected"])
def test_against_pytorch(kind: str, ragged: bool):
    ours, theirs = cells(kind)
    pair = isinstance(ours, sqx.LSTM)
    xs, d_ys = draw(B, T, N_IN, seed=1), draw(B, T, ours.n_out, seed=2)
    starts = [draw(*a.shape, seed=3 + i) for i, a in enumerate(jax.tree.leaves(ours.init_state(B)))]
    d_finals = [draw(*a.shape, seed=5 + i) for i, a in enumerate(starts)]

    x, states = leaf(xs), [leaf(s[None]) for s in starts]
    given = tuple(states) if pair else states[0]
    if ragged:
        pack = torch.nn.utils.rnn.pack_padded_sequence(x, LENGTHS, batch_first=True, enforce_sorted=False)
        out, final = theirs(pack, given)
        out, _ = torch.nn.utils.rnn.pad_packed_sequence(out, batch_first=True, total_length=T)
    else:
        out, final = theirs(x, given)
    finals = list(final) if pair else [final]
    total = (out * torch.tensor(d_ys)).sum() + sum(
        (f[0] * torch.tensor(d)).sum() for f, d in zip(finals, d_finals, strict=True)
    )
    total.backward()

    def loss(args: Any) -> Any:
        cell, xs, state = args
        ys, final = cell.unroll(xs, state, mask=jnp.asarray(MASK) if ragged else None)
        leaves = jax.tree.leaves(final)
        ends = sum(jnp.sum(f * d) for f, d in zip(leaves, d_finals, strict=True))
        return jnp.sum(ys * d_ys) + ends, (ys, leaves)

    state = tuple(map(jnp.asarray, starts)) if pair else jnp.asarray(starts[0])
    (_, (ys, leaves)), grads = eqx.filter_value_and_grad(loss, has_aux=True)((ours, jnp.asarray(xs), state))
    close(ys, out, 1e-6)
    for a, b in zip(leaves, finals, strict=True):
        close(a, b[0], 1e-6)
    close(grads[1], x.grad, 1e-6)
    for a, b in zip(jax.tree.leaves(grads[2]), states, strict=True):
        close(a, b.grad[0], 1e-6)
    for name, gradient in named(ours, grads[0]).items():
        close(gradient, getattr(theirs, name).grad[-len(gradient) :], 1e-6)


def test_the_gru_against_its_equations_in_pytorch():
    ours = filled(sqx.GRU(N_IN, N_HIDDEN, KEY), 30)
    w = {name: leaf(a) for name, a in sqx.parameters(ours).items()}
    x, h = leaf(draw(B, T, N_IN, seed=1)), leaf(draw(B, N_HIDDEN, seed=2))
    start, outs = h, []
    for t in range(T):
        r = torch.sigmoid(x[:, t] @ w["W_r"].T + h @ w["U_r"].T + w["b_r"])
        z = torch.sigmoid(x[:, t] @ w["W_z"].T + h @ w["U_z"].T + w["b_z"])
        candidate = torch.tanh(x[:, t] @ w["W"].T + (r * h) @ w["U"].T + w["b"])
        h = z * h + (1 - z) * candidate
        outs.append(h)
    d_ys = draw(B, T, N_HIDDEN, seed=3)
    out = torch.stack(outs, 1)
    (out * torch.tensor(d_ys)).sum().backward()

    def loss(args: Any) -> Any:
        ys, _ = args[0].unroll(args[1], args[2])
        return jnp.sum(ys * d_ys), ys

    (_, ys), grads = eqx.filter_value_and_grad(loss, has_aux=True)(
        (ours, jnp.asarray(x.detach().numpy()), jnp.asarray(start.detach().numpy()))
    )
    close(ys, out, 1e-6)
    close(grads[1], x.grad, 1e-5)
    close(grads[2], start.grad, 1e-5)
    for name, gradient in sqx.parameters(grads[0]).items():
        close(gradient, w[name].grad, 1e-5)


def test_bidirectional_over_ragged_rows():
    """Outputs, and each direction's final state: the backward one has read every row from its own end."""
    forward, one_way = cells("LSTM")
    backward = filled(sqx.LSTM(N_IN, N_HIDDEN, KEY, peepholes=False), 50)
    theirs = torch.nn.LSTM(N_IN, N_HIDDEN, batch_first=True, bidirectional=True)
    with torch.no_grad():
        for name, value in one_way.named_parameters():
            getattr(theirs, name).copy_(value)
        for letter, name in (("W", "weight_ih"), ("R", "weight_hh"), ("b", "bias_ih")):
            rows = np.concatenate([getattr(backward, f"{letter}_{g}") for g in "ifzo"])
            getattr(theirs, f"{name}_l0_reverse").copy_(torch.tensor(rows))
        theirs.bias_hh_l0_reverse.zero_()
    xs = draw(B, T, N_IN, seed=1)
    pack = torch.nn.utils.rnn.pack_padded_sequence(torch.tensor(xs), LENGTHS, batch_first=True, enforce_sorted=False)
    out, (h, c) = theirs(pack)
    out, _ = torch.nn.utils.rnn.pad_packed_sequence(out, batch_first=True, total_length=T)
    ys, state = sqx.Bidirectional(forward, backward).unroll(jnp.asarray(xs), mask=jnp.asarray(MASK))
    close(ys, out, 1e-6)
    for got, expected in (
        (state.forward.y, h[0]),
        (state.forward.c, c[0]),
        (state.backward.y, h[1]),
        (state.backward.c, c[1]),
    ):
        close(got, expected, 1e-6)
    last = sqx.Bidirectional(*(sqx.Sequential([la, sqx.LastStep()]) for la in (forward, backward)))
    close(last(jnp.asarray(xs), mask=jnp.asarray(MASK)), torch.cat([h[0], h[1]], -1), 1e-6)
