"""Recurrent layers made from PyTorch's: outputs, every state by its name, gradients; and the way back."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from torch_modules import (
    KINDS,
    LENGTHS,
    MASK,
    N_HIDDEN,
    N_IN,
    N_PROJ,
    B,
    T,
    close,
    draw,
    filled,
    recurrent,
    same,
    tensors,
    torch,
)

import sequinox as sqx

pytestmark = [
    pytest.mark.usefixtures("quick_compilation", "unchecked_types"),
    pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN"),
]


def flat_states(state: Any, layers: int, directions: int) -> list[tuple[Any, ...]]:
    """Our states by their names, in PyTorch's order: a layer's forward one, its backward one, the next layer's."""
    by_layer = [state] if layers == 1 else [state[i] for i in range(layers)]
    cells = [d for s in by_layer for d in ((s.forward, s.backward) if directions == 2 else (s,))]
    return [(s.y, s.c) if isinstance(s, sqx.LSTMState) else (s,) for s in cells]


@eqx.filter_jit
def gradients(net: Any, xs: Any, state: Any, mask: Any, d_ys: Any, d_finals: Any) -> Any:
    def loss(args: Any) -> Any:
        ys, final = args[0].unroll(args[1], args[2], mask=mask)
        ends = sum(jnp.sum(f * d) for f, d in zip(jax.tree.leaves(final), d_finals, strict=True))
        return jnp.sum(ys * d_ys) + ends, (ys, final)

    return eqx.filter_value_and_grad(loss, has_aux=True)((net, xs, state))


def check_recurrent(kind: str, layers: int, directions: int, bias: bool, tolerance: float, dtype: Any) -> None:
    theirs = recurrent(kind, layers, directions, bias, getattr(torch, np.dtype(dtype).name))
    ours = sqx.from_torch(theirs)
    number, lstm = layers * directions, kind in ("LSTM", "projected")
    width = N_PROJ if kind == "projected" else N_HIDDEN
    widths = (width, N_HIDDEN) if lstm else (width,)
    x = torch.tensor(draw(B, T, N_IN, seed=1, dtype=dtype), requires_grad=True)
    starts = [
        torch.tensor(draw(number, B, w, seed=3 + i, dtype=dtype), requires_grad=True) for i, w in enumerate(widths)
    ]
    d_ys = draw(B, T, directions * width, seed=2, dtype=dtype)
    d_finals = [draw(number, B, w, seed=5 + i, dtype=dtype) for i, w in enumerate(widths)]

    pack = torch.nn.utils.rnn.pack_padded_sequence(x, LENGTHS, batch_first=True, enforce_sorted=False)
    out, final = theirs(pack, tuple(starts) if lstm else starts[0])
    out, _ = torch.nn.utils.rnn.pad_packed_sequence(out, batch_first=True, total_length=T)
    finals = list(final) if lstm else [final]
    total = (out * torch.tensor(d_ys)).sum()
    for f, d in zip(finals, d_finals, strict=True):
        total = total + (f * torch.tensor(d)).sum()
    total.backward()

    in_order = lambda parts: [jnp.asarray(np.asarray(p)[k]) for k in range(number) for p in parts]
    state = jax.tree.unflatten(jax.tree.structure(ours.init_state(B)), in_order([s.detach() for s in starts]))
    run = (ours, jnp.asarray(x.detach().numpy()), state, jnp.asarray(MASK), jnp.asarray(d_ys), in_order(d_finals))
    (_, (ys, got)), (d_net, d_xs, d_state) = gradients(*run)
    close(ys, out, tolerance)
    sums = 3 * tolerance  # gradients are sums over time and rows, in another order than PyTorch's
    close(d_xs, x.grad, sums)
    for k, (one, d_one) in enumerate(
        zip(flat_states(got, layers, directions), flat_states(d_state, layers, directions), strict=True)
    ):
        for i, (a, d) in enumerate(zip(one, d_one, strict=True)):
            close(a, finals[i][k], tolerance, f"final {k}")
            close(d, starts[i].grad[k], sums, f"start {k}")
    named = sqx.to_torch(d_net)
    for name, parameter in theirs.named_parameters():
        if "bias_hh" not in name:
            close(named[name], parameter.grad, sums, name)
        elif kind == "GRU":  # the inner bias; the others are our one bias, compared above
            close(named[name][2 * N_HIDDEN :], parameter.grad[2 * N_HIDDEN :], sums, name)


@pytest.mark.parametrize(
    ("kind", "layers", "directions", "bias"),
    [
        ("tanh", 2, 1, True),
        ("tanh", 1, 1, False),
        ("relu", 1, 2, True),
        ("GRU", 2, 2, True),
        ("GRU", 2, 1, False),
        ("LSTM", 1, 2, False),
        ("LSTM", 2, 1, True),
        ("projected", 2, 2, False),
        ("projected", 1, 1, True),
    ],
)
def test_recurrent(kind: str, layers: int, directions: int, bias: bool):
    """Ragged rows, started somewhere: outputs, `h_n` and `c_n`, and the gradients of everything."""
    check_recurrent(kind, layers, directions, bias, 1e-6, np.float32)


def test_recurrent_in_double_precision():
    with jax.enable_x64(True):
        check_recurrent("GRU", 1, 1, True, 1e-12, np.float64)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_there_and_back(kind: str, layers: int, directions: int, bias: bool):
    """PyTorch to ours to PyTorch adds its two biases and changes nothing else; ours to PyTorch to ours, not a bit."""
    theirs = recurrent(kind, layers, directions, bias, dropout=0.5 if layers == 2 else 0.0)
    ours = sqx.from_torch(theirs)
    assert isinstance(ours, sqx.Sequential) == (layers == 2)
    assert [la.p for la in ours if isinstance(la, sqx.Dropout)] == [0.5] if layers == 2 else True
    weights = sqx.to_torch(ours, bias=bias)
    before = theirs.state_dict()
    for name, a in weights.items():
        expected = before[name].numpy()
        if "bias" in name:
            other = before[name.replace("_hh_", "_??_").replace("_ih_", "_hh_").replace("_??_", "_ih_")].numpy()
            expected = expected + other if "_ih_" in name else np.zeros_like(expected)
            if kind == "GRU":  # of the third gate both are kept
                expected[2 * N_HIDDEN :] = before[name].numpy()[2 * N_HIDDEN :]
        np.testing.assert_array_equal(a, expected, err_msg=name)
    theirs.load_state_dict(tensors(weights))  # all names, or an error
    same(sqx.from_torch(theirs), ours)
    same(sqx.load_torch(jax.tree.map(lambda a: 0 * a, ours), theirs.state_dict(), bias=bias), ours)


@pytest.mark.parametrize("kind", ["RNNCell", "GRUCell", "LSTMCell"])
@pytest.mark.parametrize("bias", [False, True])
def test_cells(kind: str, bias: bool):
    theirs = filled(getattr(torch.nn, kind)(N_IN, N_HIDDEN, bias=bias))
    ours = sqx.from_torch(theirs)
    x, states = draw(B, N_IN), [draw(B, N_HIDDEN, seed=i) for i in (1, 2)]
    if kind == "LSTMCell":
        expected = theirs(torch.tensor(x), tuple(map(torch.tensor, states)))
        _, (y, c) = ours.step(x, tuple(states))
        close(y, expected[0])
        close(c, expected[1])
    else:
        close(ours.step(x, states[0])[0], theirs(torch.tensor(x), torch.tensor(states[0])))
    theirs.load_state_dict(tensors(sqx.to_torch(ours, cell=True, bias=bias)))
    same(sqx.from_torch(theirs), ours)
