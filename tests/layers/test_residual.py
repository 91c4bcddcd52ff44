"""Residual against the layer alone, and what it refuses."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sequinox as sqx

pytestmark = pytest.mark.usefixtures("quick_compilation", "unchecked_types")

K1, K2, K3 = jax.random.split(jax.random.key(0), 3)
XS = jnp.asarray(np.random.default_rng(0).normal(size=(4, 6, 3)), jnp.float32)
MASK = np.arange(6) < np.array([6, 0, 2, 4])[:, None]


@eqx.filter_jit
def unroll_with_gradient(net: Any, xs: Any) -> Any:
    def total(xs: Any) -> Any:
        ys, state = net.unroll(xs, mask=MASK)
        return jnp.sum(jnp.sin(ys)), (ys, state)

    (_, (ys, state)), d_xs = jax.value_and_grad(total, has_aux=True)(xs)
    return ys, state, d_xs


def test_the_samples_are_added():
    gru = sqx.GRU(3, 3, K1)
    hs, last = gru.unroll(XS, mask=MASK)
    ys, state, d_xs = unroll_with_gradient(sqx.Residual(gru), XS)
    expected = np.where(MASK[..., None], np.asarray(XS) + np.asarray(hs), 0)
    np.testing.assert_allclose(ys, expected, atol=1e-6)
    np.testing.assert_allclose(state, last, atol=1e-6)
    # Of the samples' two ways, the one past the layer has the derivative 1.
    _, pull = jax.vjp(lambda xs: gru(xs, mask=MASK), XS)
    direct = np.where(MASK[..., None], np.cos(expected), 0)
    np.testing.assert_allclose(d_xs, direct + np.asarray(pull(jnp.asarray(direct, jnp.float32))[0]), atol=1e-5)


def test_a_projection_makes_them_fit():
    lstm, dense = sqx.LSTM(3, 5, K1), sqx.Dense(3, 5, K2)
    dense = eqx.tree_at(lambda d: d.b, dense, jnp.arange(5.0))
    net = sqx.Residual(lstm, projection=dense)
    assert (net.n_in, net.n_out, net.streams, net.pools) == (3, 5, True, False)
    expected = np.asarray(lstm(XS)) + np.asarray(XS) @ np.asarray(dense.W).T + np.arange(5.0)
    np.testing.assert_allclose(net(XS), expected, atol=1e-5)
    state = None
    for t in range(3):
        y, state = net.step(XS[:, t], state)
        np.testing.assert_allclose(y, expected[:, t], atol=1e-5)
    assert isinstance(state, sqx.LSTMState)


def test_modules_and_functions():
    linear = eqx.nn.Linear(3, 3, key=K1)
    expected = np.asarray(XS) + np.asarray(jax.vmap(jax.vmap(linear))(XS))
    np.testing.assert_allclose(sqx.Residual(linear)(XS), expected, atol=1e-6)
    np.testing.assert_allclose(sqx.Residual(jnp.tanh)(XS), np.asarray(XS) + np.tanh(XS), atol=1e-6)
    net = sqx.Sequential([sqx.Dense(3, 5, K1), sqx.Residual(jnp.tanh), sqx.LastStep(), sqx.Residual(jnp.tanh)])
    assert net.n_out == 5 and net[1].n_in == 5 and net(XS).shape == (4, 5)  # width told; behind pooling, no memory
    tokens = sqx.Residual(
        sqx.Sequential([eqx.nn.Embedding(7, 3, key=K1), sqx.GRU(3, 5, K2)]), projection=eqx.nn.Embedding(7, 5, key=K3)
    )
    assert tokens(jnp.array([[1, 6, 0]])).shape == (1, 3, 5)


def test_a_key_reaches_both_ways_and_they_differ():
    key = jax.random.key(3)
    drop, xs = sqx.Dropout(0.5), jnp.ones((50, 20))
    np.testing.assert_array_equal(sqx.Residual(drop)(xs, key=key), xs + drop(xs, key=key))
    both = np.asarray(sqx.Residual(drop, projection=sqx.Dropout(0.5))(xs, key=key))
    assert set(np.unique(both)) == {0.0, 2.0, 4.0}
    assert np.mean(both == 2) == pytest.approx(0.5, abs=0.05)


def test_the_receptive_field_is_that_of_the_layer():
    window = sqx.MultiHeadSelfAttention(6, 2, K1, causal=True, window=3)
    assert sqx.Residual(window).receptive_field == 3
    assert sqx.Residual(sqx.GRU(3, 3, K1)).receptive_field is None


def test_a_function_that_changes_the_width_is_noticed_when_it_runs():
    twice = lambda x: jnp.concatenate([x, x])
    with pytest.raises(ValueError, match=r"Residual: the layer gives outputs of shape \(4, 6, 6\), to which"):
        sqx.Residual(twice)(XS)
    assert sqx.Residual(twice, projection=sqx.Dense(3, 6, K1))(XS).shape == (4, 6, 6)
