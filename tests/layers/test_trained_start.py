"""TrainedStart against a loop in NumPy, whose derivative is taken by differences."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import sequinox as sqx

pytestmark = pytest.mark.usefixtures("quick_compilation", "unchecked_types")

K1, K2 = jax.random.split(jax.random.key(0))
random = np.random.default_rng(0)
XS = random.normal(size=(4, 5, 3)).astype(np.float32)
MASK = np.arange(5) < np.array([5, 0, 3, 4])[:, None]
MASK[0, 1] = False
RESETS = np.zeros((4, 5), bool)
RESETS[0, 3] = RESETS[2, 0] = RESETS[3, 1] = RESETS[1, 2] = True  # the last on a masked sample
START = random.normal(size=4)
RNN = sqx.RNN(3, 4, K1)
D_YS, D_H = random.normal(size=(4, 5, 4)), random.normal(size=(4, 4))


def by_hand(start: np.ndarray, residual: bool) -> tuple[np.ndarray, np.ndarray]:
    W, U, b = (np.asarray(a, np.float64) for a in (RNN.W, RNN.U, RNN.b))
    P = np.asarray(PROJECTION.W, np.float64)
    ys, last = np.zeros((4, 5, 4)), np.zeros((4, 4))
    for row in range(4):
        h = start
        for t in range(5):
            if not MASK[row, t]:
                continue
            h = np.tanh(W @ XS[row, t] + U @ (start if RESETS[row, t] else h) + b)
            ys[row, t] = h + P @ XS[row, t] if residual else h
        last[row] = h
    return ys, last


class Stepping(sqx.SequenceLayer):
    """As the RNN, by `step` alone."""

    n_in: int = eqx.field(static=True, default=3)
    n_out: int = eqx.field(static=True, default=4)

    def init_state(self, batch: Any = (), dtype: Any = None) -> Any:
        return RNN.init_state(batch, dtype)

    def _step(self, x: Any, state: Any, key: Any) -> Any:
        return RNN.step(x, state)


PROJECTION = sqx.Dense(3, 4, K2)
LAYERS: dict[str, Any] = {
    "cell": lambda: sqx.TrainedStart(RNN),
    "sequential": lambda: sqx.TrainedStart(sqx.Sequential([jnp.negative, jnp.negative, RNN])),
    "residual": lambda: sqx.TrainedStart(sqx.Residual(RNN, projection=PROJECTION)),
    "remat": lambda: sqx.TrainedStart(sqx.Remat(RNN, checkpoint_every=2)),
    "dropped": lambda: sqx.TrainedStart(sqx.WeightDrop(RNN, 0.0)),
    "step-by-step": lambda: sqx.TrainedStart(Stepping()),
}


@eqx.filter_jit
def run(layer: Any) -> Any:
    def total(layer: Any) -> Any:
        ys, state = layer.unroll(jnp.asarray(XS), mask=MASK, resets=RESETS)
        h = jax.tree.leaves(state)[0]
        return jnp.sum(ys * D_YS.astype(np.float32)) + jnp.sum(h * D_H.astype(np.float32)), (ys, h)

    return eqx.filter_value_and_grad(total, has_aux=True)(layer)


@pytest.mark.parametrize("kind", LAYERS)
def test_values_states_and_the_gradient_of_the_start(kind: str):
    layer = LAYERS[kind]()
    where = (lambda la: la.start[2]) if kind == "sequential" else (lambda la: la.start)
    layer = eqx.tree_at(where, layer, jnp.asarray(START, jnp.float32))
    (_, (ys, h)), gradient = run(layer)
    residual = kind == "residual"
    expected, last = by_hand(START, residual)
    np.testing.assert_allclose(ys, expected, atol=1e-5)
    np.testing.assert_allclose(h, last, atol=1e-5)
    loss = lambda start: sum(np.sum(a * b) for a, b in zip(by_hand(start, residual), (D_YS, D_H), strict=True))
    differences = [(loss(START + e) - loss(START - e)) / 2e-6 for e in 1e-6 * np.eye(4)]
    np.testing.assert_allclose(where(gradient), differences, atol=1e-4)
    assert layer.receptive_field is None and layer.n_out == 4


def test_a_stack_goes_back_to_its_trained_starts():
    """Against steps, each row of which starts afresh where it says so."""
    layer = sqx.TrainedStart(sqx.Stack([sqx.GRU(3, 3, K1), sqx.GRU(3, 3, K2)]))
    layer = eqx.tree_at(lambda la: la.start, layer, (jnp.array([0.3, -0.5, 0.9]), jnp.array([-0.2, 0.7, 0.1])))
    ys, state = layer.unroll(XS, mask=MASK, resets=RESETS)
    before = layer.init_state(4)
    for t in range(5):
        fresh = (RESETS & MASK)[:, t, None]
        before = tuple(jnp.where(fresh, a, b) for a, b in zip(layer.init_state(4), before, strict=True))
        y, before = layer.step(jnp.asarray(XS[:, t]), before, mask=MASK[:, t])
        np.testing.assert_allclose(ys[:, t], y, atol=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), state, before)


def test_it_begins_as_the_layer_alone_and_counts_are_not_trained():
    several = sqx.Sequential([sqx.AddPositions(), sqx.LSTM(3, 5, K1)])
    layer = sqx.TrainedStart(several)
    np.testing.assert_array_equal(layer(XS), several(jnp.asarray(XS)))
    trained = jax.tree.leaves(eqx.filter(layer.start, eqx.is_inexact_array))
    assert [a.shape for a in trained] == [(5,), (5,)] and len(jax.tree.leaves(layer.start)) == 3


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_pooling_keeps_its_dtypes_and_goes_back_to_the_trained_start(dtype: Any):
    layer = sqx.TrainedStart(sqx.Sequential([sqx.RNN(3, 2, K1, dtype=dtype), sqx.MeanOverTime()]))
    start = (jnp.ones(2, dtype), layer.start[1]._replace(mean=jnp.array([3.0, 5.0]), n=jnp.array(2)))
    layer = eqx.tree_at(lambda la: la.start, layer, start)
    xs = jnp.asarray(XS, dtype)
    ys, state = layer.unroll(xs, mask=MASK, resets=RESETS)
    assert ys.dtype == dtype and state[1].mean.dtype == jnp.float32
    counts = [2 + 2, 2, 2 + 3, 2 + 3]  # two from the start; in row 0 since its reset
    np.testing.assert_array_equal(state[1].n, counts)
    np.testing.assert_allclose(ys[1].astype(jnp.float32), [3.0, 5.0])  # no real sample
    tolerance = 1e-5 if dtype == jnp.float32 else 5e-2
    packed = layer.unroll(xs[:1, 3:])[0]
    np.testing.assert_allclose(ys[:1].astype(jnp.float32), packed.astype(jnp.float32), atol=tolerance)


def test_an_optimiser_moves_it():
    """What a row without samples gives is the start alone."""
    layer: Any = sqx.TrainedStart(sqx.Sequential([sqx.RNN(3, 2, K1), sqx.LastStep()]))
    target = jnp.array([0.5, -2.0])
    loss = lambda layer: jnp.sum((layer(jnp.zeros((0, 3))) - target) ** 2)
    optimiser = optax.sgd(0.25)
    for _ in range(8):
        updates, _ = optimiser.update(eqx.filter_grad(loss)(layer), optimiser.init(eqx.filter(layer, eqx.is_array)))
        layer = eqx.apply_updates(layer, updates)
    np.testing.assert_allclose(layer(jnp.zeros((0, 3))), target, atol=0.02)
    np.testing.assert_array_equal(layer.layer[0].U, sqx.RNN(3, 2, K1).U)
