"""Options of the gated and the plain unit: two conventions of the GRU, normalisation in the loop, the fused engine."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sequinox as sqx
from sequinox.recurrent._norm import normalise

pytestmark = pytest.mark.usefixtures("quick_compilation", "unchecked_types")

KEY = jax.random.key(0)
N_IN, N_HIDDEN = 3, 5
OPEN, CLOSED = 40.0, -40.0


def drawn(*shape: int, seed: int = 0) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def filled(cell: Any) -> Any:
    """The cell with random weights."""
    leaves, tree = jax.tree.flatten(cell)
    return jax.tree.unflatten(tree, [0.5 * drawn(*a.shape, seed=i) for i, a in enumerate(leaves)])


def with_arrays(cell: Any, **arrays: Any) -> Any:
    """The cell with some arrays replaced; a number fills one."""
    for name, value in arrays.items():
        old = getattr(cell, name)
        new = jnp.broadcast_to(jnp.asarray(value, old.dtype), old.shape)
        cell = eqx.tree_at(lambda c, n=name: getattr(c, n), cell, new)
    return cell


def close(a: Any, b: Any, atol: float = 1e-6) -> None:
    np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=0, atol=atol)


def sigma(a: Any) -> np.ndarray:
    return 1 / (1 + np.exp(-np.asarray(a)))


def run(cell: Any, state: Any = None) -> tuple[np.ndarray, Any]:
    """Outputs and final state, step by step: quicker than compiling a loop."""
    ys = []
    for x in XS:
        y, state = cell.step(x, state)
        ys.append(y)
    return np.stack(ys), state


XS, H, C = drawn(6, N_IN, seed=40), drawn(N_HIDDEN, seed=41), drawn(N_HIDDEN, seed=42)


# ---- the GRU's conventions -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reset_after", [False, True])
def test_negating_the_update_gate_gives_the_convention_that_writes(reset_after: bool):
    """h' = (1 - z) h + z h~, as Chung et al. print it, in NumPy."""
    gru = filled(sqx.GRU(N_IN, N_HIDDEN, KEY, reset_after=reset_after))
    w = {name: np.asarray(a) for name, a in sqx.parameters(gru).items()}
    h, ys = np.asarray(H), []
    for x in np.asarray(XS):
        r = sigma(w["W_r"] @ x + w["U_r"] @ h + w["b_r"])
        z = sigma(w["W_z"] @ x + w["U_z"] @ h + w["b_z"])
        inner = r * (w["U"] @ h + w["b_U"]) if reset_after else w["U"] @ (r * h)
        h = (1 - z) * h + z * np.tanh(w["W"] @ x + inner + w["b"])
        ys.append(h)
    writes = with_arrays(gru, W_z=-gru.W_z, U_z=-gru.U_z, b_z=-gru.b_z)
    close(run(writes, H)[0], np.stack(ys))
    assert np.abs(run(gru, H)[0] - np.stack(ys)).max() > 0.1


def test_the_reset_gate_behind_the_product():
    """Closed, it leaves of the past only what z keeps, the inner bias included; open, the unit is a plain one."""
    gru = with_arrays(filled(sqx.GRU(N_IN, N_HIDDEN, KEY, reset_after=True)), b_z=CLOSED, b_r=CLOSED)
    alone = np.tanh(np.asarray(XS) @ np.asarray(gru.W).T + np.asarray(gru.b))
    close(run(gru, H)[0], alone)
    plain = with_arrays(sqx.RNN(N_IN, N_HIDDEN, KEY), W=gru.W, U=gru.U, b=gru.b + gru.b_U)
    close(run(with_arrays(gru, b_r=OPEN), H)[0], run(plain, H)[0])
    close(run(with_arrays(gru, b_z=OPEN), H)[1], H)


def test_the_two_places_of_the_reset_gate_differ():
    before = filled(sqx.GRU(N_IN, N_HIDDEN, KEY))
    after = sqx.GRU(N_IN, N_HIDDEN, KEY, reset_after=True)
    after = with_arrays(after, **sqx.parameters(before))
    assert np.abs(run(before, H)[0] - run(after, H)[0]).max() > 0.01


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda **k: sqx.GRU(N_IN, N_HIDDEN, KEY, reset_after=True, **k), "b_U"),
        (lambda **k: sqx.GRU(N_IN, N_HIDDEN, KEY, layer_norm=True, **k), "gamma_r gamma_z gamma"),
        (lambda **k: sqx.RNN(N_IN, N_HIDDEN, KEY, layer_norm=True, **k), "gamma"),
    ],
    ids=["reset-after", "GRU-norm", "RNN-norm"],
)
def test_arrays_that_are_there_only_then(make: Any, expected: str):
    cell = make()
    arrays, plain = sqx.parameters(cell), sqx.parameters(type(cell)(N_IN, N_HIDDEN, KEY))
    assert list(arrays) == [*plain, *expected.split()]
    for name in expected.split():
        assert arrays[name].tolist() == [float(name.startswith("gamma"))] * N_HIDDEN
    assert all(jnp.array_equal(arrays[name], plain[name]) for name in plain)


# ---- normalisation ---------------------------------------------------------------------------------------------------


def test_a_normalised_vector():
    a = drawn(50, seed=3) * 7 + 2
    n = np.asarray(normalise(a), np.float64)
    close([n.mean(), n.var()], [0, 1], 1e-5)
    wide = np.asarray(a, np.float64)
    close(n, (wide - wide.mean()) / np.sqrt(wide.var() + 1e-6), 1e-5)


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16, jnp.float32])
def test_a_constant_vector_has_a_slope_of_a_thousand(dtype: Any):
    value, pull = jax.vjp(normalise, jnp.full(4, 3.0, dtype))
    slope = pull(jnp.array([1, 0, 0, 0], dtype))[0]
    assert not np.any(value) and value.dtype == slope.dtype == dtype
    np.testing.assert_allclose(np.asarray(slope, np.float32), [750, -250, -250, -250], rtol=4e-3)


@pytest.mark.parametrize("value", [300.0, 60000.0])
def test_float16_does_not_overflow(value: float):
    """Neither the squares nor the sum: 64 numbers of 60000 add up to 60 times what float16 holds."""
    a = jnp.where(jnp.arange(64) % 4 == 0, -value, value).astype(jnp.float16)
    np.testing.assert_allclose(np.asarray(normalise(a), np.float32)[:2], [-np.sqrt(3), 1 / np.sqrt(3)], rtol=2e-3)
    gradient = jax.grad(lambda a: jnp.sum(normalise(a) * jnp.arange(64, dtype=jnp.float16) / 64))(a)
    assert np.all(np.isfinite(np.asarray(gradient, np.float32)))


NORMED = {
    "RNN": lambda **k: sqx.RNN(N_IN, N_HIDDEN, KEY, layer_norm=True, **k),
    "GRU": lambda **k: sqx.GRU(N_IN, N_HIDDEN, KEY, layer_norm=True, **k),
    "LSTM": lambda **k: sqx.LSTM(N_IN, N_HIDDEN, KEY, layer_norm=True, peepholes=False, **k),
}


@pytest.mark.parametrize("name", NORMED)
def test_the_size_of_the_weights_does_not_matter(name: str):
    """All of a pre-activation's matrices 7 times as large: only epsilon can tell."""
    cell = filled(NORMED[name]())
    larger = with_arrays(cell, **{n: 7 * a for n, a in sqx.parameters(cell).items() if a.ndim == 2})
    close(run(cell)[0], run(larger)[0], 1e-4)
    assert np.abs(run(cell)[0]).max() > 0.1


def test_gates_behind_a_norm_are_forced_by_their_bias():
    lstm = with_arrays(filled(sqx.LSTM(N_IN, N_HIDDEN, KEY, layer_norm=True)), b_i=CLOSED, b_f=OPEN, b_o=OPEN)
    ys, state = run(lstm, (H, C))
    close(state.c, C)  # what is carried on is not normalised
    c = np.asarray(C, np.float64)
    seen = np.asarray(lstm.gamma_c) * (c - c.mean()) / np.sqrt(c.var() + 1e-6) + np.asarray(lstm.b_c)
    close(ys[-1], np.tanh(seen))
    gru = with_arrays(filled(sqx.GRU(N_IN, N_HIDDEN, KEY, layer_norm=True)), b_z=OPEN)
    close(run(gru, H)[1], H)


# ---- the fused engine ------------------------------------------------------------------------------------------------


def options() -> dict[str, Any]:
    lstm: Any = lambda **o: lambda how: sqx.LSTM(N_IN, N_HIDDEN, KEY, implementation=how, **o)
    gru: Any = lambda **o: lambda how: sqx.GRU(N_IN, N_HIDDEN, KEY, implementation=how, **o)
    made = {v: lstm(variant=v) for v in ("NIG", "NFG", "NOG", "NIAF", "NOAF", "NP", "CIFG", "FGR")}
    made |= {"projected": lstm(n_proj=2), "normed": lstm(layer_norm=True)}
    made |= {f"{v}-both": lstm(variant=v, n_proj=2, layer_norm=True) for v in ("CIFG", "FGR")}
    made |= {"after": gru(reset_after=True), "after-normed": gru(reset_after=True, layer_norm=True)}
    made |= {"GRU-normed": gru(layer_norm=True)}
    return made | {"RNN-normed": lambda how: sqx.RNN(N_IN, N_HIDDEN, KEY, layer_norm=True, implementation=how)}


@pytest.mark.parametrize("name", options())
def test_every_option_is_served_by_the_engine(name: str):
    """`"fused"` raises where it is not."""
    eqx.filter_eval_shape(lambda: options()[name]("fused")(XS))


def test_both_ways_agree():
    fused, scan = (filled(options()["after-normed"](how)) for how in ("fused", "scan"))
    close(fused.unroll(XS)[0], scan.unroll(XS)[0])


def test_products_of_the_same_vectors_are_done_as_one():
    """Of the LSTM's four, and of the three gates with full recurrence, whose input sees less."""
    from sequinox.recurrent._plan import make_plan

    def groups(cell: Any) -> list[int]:
        one = lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype)
        plan = make_plan(type(cell).transition, cell, one(XS[0]), jax.tree.map(one, cell.init_state()))
        return [len(group) for group in plan.groups]

    assert groups(sqx.LSTM(N_IN, N_HIDDEN, KEY)) == [2]
    assert groups(sqx.LSTM(N_IN, N_HIDDEN, KEY, n_proj=2, layer_norm=True)) == [2, 1]
    assert groups(sqx.LSTM(N_IN, N_HIDDEN, KEY, variant="FGR")) == [2, 5]
    assert groups(sqx.GRU(N_IN, N_HIDDEN, KEY)) == [2, 2]
    assert groups(sqx.GRU(N_IN, N_HIDDEN, KEY, reset_after=True)) == [2, 1, 1]
