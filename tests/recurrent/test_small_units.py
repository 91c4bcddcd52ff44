"""The minimal gated unit and the independently recurrent unit: gates, independence, names, starts."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sequinox as sqx

pytestmark = pytest.mark.usefixtures("quick_compilation", "unchecked_types")

KEY = jax.random.key(0)
N_IN, N_HIDDEN = 3, 5
XS = jnp.asarray(np.random.default_rng(0).normal(size=(6, N_IN)), jnp.float32)
H = jnp.asarray(np.random.default_rng(1).uniform(-1, 1, N_HIDDEN), jnp.float32)


def with_array(cell: Any, name: str, value: Any) -> Any:
    old = getattr(cell, name)
    return eqx.tree_at(lambda c: getattr(c, name), cell, jnp.broadcast_to(jnp.asarray(value, old.dtype), old.shape))


@eqx.filter_jit
def unroll(cell: Any, xs: Any, state: Any) -> Any:
    return cell.unroll(xs, state)


def test_an_mgu_holds_with_its_gate_shut_and_is_a_plain_unit_with_it_open():
    mgu = sqx.MGU(N_IN, N_HIDDEN, KEY)
    ys, final = unroll(with_array(mgu, "b_f", -200), XS, H)
    np.testing.assert_array_equal(ys, np.broadcast_to(H, ys.shape))
    np.testing.assert_array_equal(final, H)
    ys, _ = unroll(with_array(mgu, "b_f", 200), XS, H)
    h = np.asarray(H)
    for x, y in zip(np.asarray(XS), np.asarray(ys), strict=True):
        h = np.tanh(np.asarray(mgu.W) @ x + np.asarray(mgu.U) @ h + np.asarray(mgu.b))
        np.testing.assert_allclose(y, h, rtol=0, atol=1e-6)


def test_what_an_mgu_starts_with():
    arrays = sqx.parameters(sqx.MGU(N_IN, N_HIDDEN, KEY, forget_bias=-1.5))
    assert list(arrays) == ["W_f", "U_f", "b_f", "W", "U", "b"]
    assert arrays["U"].shape == arrays["U_f"].shape == (N_HIDDEN, N_HIDDEN)
    np.testing.assert_array_equal(arrays["b_f"], -1.5)
    np.testing.assert_array_equal(arrays["b"], 0)


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_units_of_an_ind_rnn_see_themselves_alone(activation: Any):
    cell = sqx.IndRNN(N_IN, N_HIDDEN, KEY, activation=activation)
    cell = with_array(with_array(cell, "u", jnp.abs(cell.u)), "b", 9.0 if activation == "relu" else 0.0)  # units are on
    jacobian = np.asarray(jax.jacobian(lambda h: unroll(cell, XS, h)[1])(H))
    np.testing.assert_array_equal(jacobian[~np.eye(N_HIDDEN, dtype=bool)], 0)
    if activation == "relu":
        np.testing.assert_allclose(np.diag(jacobian), np.asarray(cell.u) ** len(XS), rtol=1e-5)


def test_an_ind_rnn_of_weight_one_adds_up():
    cell = sqx.IndRNN(N_IN, N_IN, KEY)
    cell = with_array(with_array(cell, "W", np.eye(N_IN)), "u", 1)
    ys, _ = unroll(cell, jnp.abs(XS), jnp.zeros(N_IN))
    np.testing.assert_allclose(ys, np.cumsum(np.abs(XS), 0), rtol=1e-6)


def test_recurrent_weights_start_within_their_bound_and_are_put_back():
    bound = 2 ** (1 / 100)
    cell = sqx.IndRNN(N_IN, 2000, KEY, u_max=bound)
    u = np.asarray(cell.u)
    assert list(sqx.parameters(cell)) == ["W", "u", "b"]
    assert np.abs(u).max() <= bound and np.quantile(u, 0.99) > 0.95 * bound and np.quantile(u, 0.01) < -0.95 * bound
    np.testing.assert_allclose(u.std(), bound / np.sqrt(3), rtol=0.05)
    spread = with_array(cell, "u", 1.5 * u)
    np.testing.assert_allclose(spread.clamped().u, np.clip(1.5 * u, -bound, bound), rtol=1e-6)
    assert eqx.tree_equal(with_array(spread.clamped(), "u", 0), with_array(cell, "u", 0))  # nothing else is touched


@pytest.mark.parametrize("kind", [sqx.MGU, sqx.IndRNN])
def test_in_a_network(kind: Any):
    net = sqx.recurrent_net(3, 4, 2, KEY, cell=kind)
    assert jax.eval_shape(net, jnp.ones((5, 7, 3))).shape == (5, 2)
