"""Variational dropout between layers: one mask a sequence."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sequinox as sqx

pytestmark = pytest.mark.usefixtures("quick_compilation", "unchecked_types")

KEY, P, ROWS, TIME, WIDTH = jax.random.key(0), 0.3, 5, 6, 40
LAYER = sqx.VariationalDropout(P, WIDTH)
ONES = jnp.ones((ROWS, TIME, WIDTH))
MASK = jnp.array(
    [[1, 1, 1, 1, 1, 1], [0, 0, 0, 0, 0, 0], [1, 0, 1, 1, 0, 1], [0, 0, 1, 1, 1, 0], [0, 1, 1, 1, 1, 1]], bool
)
RESETS = jnp.array(
    [[0, 0, 1, 0, 1, 0], [1, 0, 0, 0, 0, 0], [0, 1, 0, 1, 0, 0], [0, 1, 0, 1, 0, 1], [1, 0, 0, 1, 0, 0]], bool
)


@eqx.filter_jit
def unroll(layer: Any, xs: Any, state: Any = None, mask: Any = None, resets: Any = None, key: Any = KEY) -> Any:
    return layer.unroll(xs, state, mask=mask, resets=resets, key=key)


def draws(function: Any, *args: Any) -> bool:
    return "random_" in str(jax.make_jaxpr(function)(*args)) or "threefry" in str(jax.make_jaxpr(function)(*args))


def test_rate_and_scale():
    """Of 20,000 masks, within four deviations; drawn anew for every row and unit."""
    ys = np.asarray(sqx.VariationalDropout(P, 40)(jnp.ones((500, 2, 40)), key=KEY))
    np.testing.assert_allclose(np.unique(ys), [0, 1 / (1 - P)], rtol=1e-6)
    np.testing.assert_array_equal(ys[:, 0], ys[:, 1])
    zero = ys[:, 0] == 0
    assert abs(zero.mean() - P) < 4 * np.sqrt(P * (1 - P) / zero.size)
    chance = P**2 + (1 - P) ** 2
    for a in (zero, zero.T):
        assert abs((a[1:] == a[:-1]).mean() - chance) < 4 * np.sqrt(chance * (1 - chance) / a[1:].size)


def test_the_mean_of_many_draws_is_the_input():
    """Monte Carlo over 4,000 keys: each number within five deviations."""
    xs = jnp.asarray(np.random.default_rng(0).normal(size=(3, 7)), jnp.float32)
    layer = sqx.VariationalDropout(P, 7)
    ys = jax.vmap(lambda k: layer(xs, key=k))(jax.random.split(KEY, 4000))
    ys = np.asarray(ys, np.float64)
    deviation = np.abs(np.asarray(xs)) * np.sqrt(P / (1 - P)) / np.sqrt(len(ys))
    assert np.all(np.abs(ys.mean(0) - np.asarray(xs)) < 5 * deviation)


def expected_masks(state: Any, mask: Any, resets: Any, ys: np.ndarray) -> None:
    """Within a packed row all outputs are alike; behind a reset they are others."""
    for i in range(ROWS):
        current, seen = (np.asarray(state.kept[i]) if state.drawn[i] else None), []
        for t in range(TIME):
            if not mask[i, t]:
                assert not ys[i, t].any()
                continue
            if resets[i, t]:
                current = None
            if current is None:
                current = ys[i, t] != 0
                assert all((current == other).mean() < 0.9 for other in seen)
                seen.append(current)
            np.testing.assert_array_equal(ys[i, t], np.where(current, np.float32(1) / np.float32(1 - P), 0))


@pytest.mark.parametrize("brought", [False, True], ids=["from the start", "with masks brought along"])
def test_one_mask_a_packed_row(brought: bool):
    drawn = np.array([True, True, False, True, False]) & brought
    kept = np.where(drawn[:, None], np.random.default_rng(1).random((ROWS, WIDTH)) < 0.5, True)
    state = sqx.VariationalDropoutState(jnp.asarray(kept), jnp.asarray(drawn))
    for mask in (np.ones((ROWS, TIME), bool), np.asarray(MASK)):
        for resets in (np.zeros((ROWS, TIME), bool), np.asarray(RESETS)):
            ys, after = unroll(LAYER, ONES, state, jnp.asarray(mask), jnp.asarray(resets))
            ys = np.asarray(ys)
            expected_masks(state, mask, resets, ys)
            for i in range(ROWS):
                if mask[i].any():
                    last = ys[i, np.flatnonzero(mask[i])[-1]]
                    np.testing.assert_array_equal(after.kept[i], last != 0)
                    assert after.drawn[i]
                else:
                    np.testing.assert_array_equal(after.kept[i], kept[i])
                    assert after.drawn[i] == drawn[i]


def test_masked_samples_and_resets_on_them_change_no_mask():
    """The same key gives the same masks, wherever the real samples stand and whether flags are given or not."""
    bare = unroll(LAYER, ONES)[0]
    np.testing.assert_array_equal(unroll(LAYER, ONES, None, None, jnp.zeros((ROWS, TIME), bool))[0], bare)
    late = jnp.zeros((ROWS, TIME), bool).at[:, 4].set(True)
    np.testing.assert_array_equal(unroll(LAYER, ONES, None, late, ~late)[0][:, 4], bare[:, 0])


def test_stretches_and_steps_share_one_whatever_their_keys():
    whole, last = unroll(LAYER, ONES)
    ys, state = unroll(LAYER, ONES[:, :2])
    np.testing.assert_array_equal(ys, whole[:, :2])
    ys, state = unroll(LAYER, ONES[:, 2:4], state, key=jax.random.key(5))
    np.testing.assert_array_equal(ys, whole[:, 2:4])
    y, state = LAYER.step(ONES[:, 4], state, key=jax.random.key(6))
    np.testing.assert_array_equal(y, whole[:, 4])
    np.testing.assert_array_equal(state.kept, last.kept)
    y, state = LAYER.step(ONES[:, 5], state, resets=jnp.ones(ROWS, bool), key=jax.random.key(7))
    assert np.all(np.mean(np.asarray(y == whole[:, 5]), 1) < 0.9)


def test_gradient():
    """Of sum(c * y): c where kept, over 1 - p; exactly zero where dropped."""
    c = jnp.asarray(np.random.default_rng(1).normal(size=ONES.shape), jnp.float32)
    gradient = jax.grad(lambda x: jnp.sum(c * LAYER(x, key=KEY)))(ONES)
    kept = np.asarray(unroll(LAYER, ONES)[1].kept)[:, None]
    np.testing.assert_allclose(gradient, np.where(kept, np.asarray(c) / (1 - P), 0), rtol=1e-6)


def test_nan_where_dropped_is_zero():
    kept = unroll(LAYER, ONES)[1].kept[:, None]
    ys = LAYER(jnp.where(kept, ONES, jnp.nan), key=KEY)
    np.testing.assert_array_equal(ys, LAYER(ONES, key=KEY))


class TestOff:
    @pytest.mark.parametrize("layer", [sqx.VariationalDropout(0, WIDTH), eqx.nn.inference_mode(LAYER)])
    def test_it_is_the_identity_and_draws_nothing(self, layer: Any):
        state = LAYER.unroll(ONES, key=KEY)[1]
        for key in (None, KEY):
            ys, after = layer.unroll(2 * ONES, state, key=key)
            np.testing.assert_array_equal(ys, 2 * ONES)
            assert eqx.tree_equal(after, state)
        assert not draws(lambda x: layer.unroll(x, mask=MASK, resets=RESETS, key=KEY), ONES)
        assert draws(lambda x: LAYER.unroll(x, key=KEY), ONES)


class TestWidth:
    def test_a_sequential_tells_it(self):
        net = sqx.Sequential([sqx.GRU(3, 5, KEY), sqx.VariationalDropout(P, inference=True), sqx.Dense(5, 2, KEY)])
        layer: Any = net.layers[1]
        assert (layer.n_in, layer.n_out, layer.p, layer.inference) == (5, 5, P, True)
        training = eqx.nn.inference_mode(net, value=False)
        assert training.init_state(4)[1].kept.shape == (4, 5)
        xs = jnp.ones((4, 6, 3))
        assert np.abs(np.asarray(unroll(training, xs)[0] - unroll(net, xs)[0])).max() > 1e-2

    def test_half_precision(self):
        ys = LAYER(ONES.astype(jnp.bfloat16), key=KEY)
        assert ys.dtype == jnp.bfloat16
        np.testing.assert_array_equal(ys != 0, LAYER(ONES, key=KEY) != 0)
