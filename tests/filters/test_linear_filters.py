"""One-pole filters and state spaces against SciPy's filters, and the exact numbers of their modes."""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import signal

import sequinox as sqx

pytestmark = pytest.mark.usefixtures("quick_compilation", "unchecked_types")

XS = np.random.default_rng(0).normal(size=(2, 400, 3)).astype(np.float32)


@pytest.mark.parametrize("method", ["sequential", "chunked", "associative"])
def test_one_pole_against_scipy(method: Any):
    alpha, beta = [0.9, -0.5, 0.999], [0.2, 1.5, -0.3]
    layer = sqx.OnePole(3, alpha, beta, method=method)
    ys, last = layer.unroll(XS, jnp.ones((2, 3)))
    for i in range(3):
        a, b = float(layer.alpha[i]), float(layer.beta[i])
        expected, _ = signal.lfilter([b], [1, -a], XS[..., i].astype(np.float64), zi=np.full((2, 1), a))
        limit = (1e-6 if method == "sequential" else 5e-6) * np.abs(expected).max()
        np.testing.assert_allclose(ys[..., i], expected, rtol=0, atol=limit)
        np.testing.assert_allclose(last[:, i], expected[:, -1], rtol=0, atol=limit)


def test_one_pole_gradients():
    """The derivative of y with respect to alpha is the recursion dy' = y + alpha dy."""
    layer, xs = sqx.OnePole(1, 0.7, 0.4, dtype=jnp.float32), XS[:1, :50, :1]
    gradient = eqx.filter_grad(lambda c: c(xs)[0, -1, 0])(layer)
    y = dy = 0.0
    for x in xs[0, :, 0].astype(np.float64):
        dy, y = y + 0.7 * dy, 0.7 * y + 0.4 * x
    np.testing.assert_allclose(gradient.alpha, [dy], rtol=1e-5)
    np.testing.assert_allclose(gradient.beta, [y / 0.4], rtol=1e-5)


def test_one_pole_numbers():
    layer = sqx.OnePole(4, [0.9, 0.99, 0.999, -0.9], 2.0)
    np.testing.assert_allclose(layer.horizon, -1 / np.log([0.9, 0.99, 0.999, 0.9]), rtol=1e-4)
    assert [f"{float(tau):.4g}" for tau in layer.horizon[:3]] == ["9.491", "99.5", "999.5"]
    np.testing.assert_allclose(layer.dc_gain, [20, 200, 2000, 2 / 1.9], rtol=1e-4)
    responses = layer.impulse_response(6)
    np.testing.assert_allclose(responses, 2 * np.array([0.9, 0.99, 0.999, -0.9]) ** np.arange(6)[:, None], rtol=1e-5)
    impulse = jnp.zeros((6, 4)).at[0].set(1)
    np.testing.assert_allclose(layer(impulse), responses, rtol=1e-5)
    step = sqx.OnePole(1, 0.9, 2.0)(jnp.ones((300, 1)))
    np.testing.assert_allclose(step[-1, 0], 20, rtol=1e-5)
    np.testing.assert_allclose(sqx.OnePole(2, [0.0, 0.25]).dc_gain, 1)
    assert sqx.OnePole(1, 0.0).horizon.tolist() == [0.0]


def test_one_pole_beyond_the_circle():
    moved = lambda guard: eqx.tree_at(lambda c: c.alpha, sqx.OnePole(2, 0.5, 1.0, guard=guard), jnp.array([1.5, -1.0]))
    kept, free = moved(True), moved(False)
    assert (jnp.abs(kept.pole) < 1).all() and (jnp.abs(kept.pole) > 1 - 1e-6).all()
    assert kept.pole[1] < 0 and kept.horizon.min() > 1e6 and np.isfinite(kept.horizon).all()
    np.testing.assert_allclose(free(jnp.ones((5, 2)))[:, 0], np.cumsum(1.5 ** np.arange(5)))
    assert np.isinf(free.horizon).all()
    gradient = eqx.filter_grad(lambda c: jnp.sum(c(jnp.ones((5, 2)))))(kept)  # at alpha = 1: 0 + 1 + 3 + 6 + 10
    np.testing.assert_allclose(gradient.alpha[0], 20, rtol=1e-5)
    assert sqx.OnePole(1, [-3.0], guard=False).alpha == -3


def companion(a: Any, b: Any) -> sqx.StateSpace:
    """A transfer function with `len(a) = len(b)`, `a[0] = 1`, as matrices that read the new state off."""
    n = len(a) - 1
    A = np.eye(n, k=-1)
    A[0] = -np.asarray(a[1:])
    B = np.eye(n)[:, :1]
    C_old = np.asarray(b[1:]) - b[0] * np.asarray(a[1:])  # y = C_old h + b0 x with the old state
    C = C_old @ np.linalg.inv(A)
    return sqx.StateSpace(A, B, C[None], [[b[0] - float(C @ B[:, 0])]])


@pytest.mark.parametrize("implementation", ["scan", "fused"])
def test_state_space_against_scipy(implementation: Any):
    b, a = np.array(signal.butter(3, 0.2)[:2])  # pyright: ignore[reportOptionalSubscript]
    layer = companion(a, b)
    layer = sqx.StateSpace(layer.A, layer.B, layer.C, layer.D, implementation=implementation)
    expected = signal.lfilter(b, a, XS[..., 0].astype(np.float64))
    np.testing.assert_allclose(layer(jnp.asarray(XS[..., :1]))[..., 0], expected, atol=1e-6)
    poles = np.sort_complex(layer.modes().pole)
    np.testing.assert_allclose(poles, np.sort_complex(np.roots(a)), atol=1e-6)


def test_state_space_without_readout():
    A, B = [[0.8, 0.1], [0.1, 0.7]], [[1.0, 0.5, 0.0], [0.2, 0.0, -1.0]]
    layer, h = sqx.StateSpace(A, B), np.zeros((2, 2))
    ys, last = layer.unroll(XS)
    for t in range(400):
        h = h @ np.transpose(A) + XS[:, t] @ np.transpose(B)
        np.testing.assert_allclose(ys[:, t], h, atol=2e-6)
    np.testing.assert_array_equal(last, ys[:, -1])


def test_modes_of_three_matrices():
    """Two real poles inside; a spiral; one pole outside."""
    B = np.eye(2)
    modes = sqx.StateSpace([[0.8, 0.1], [0.1, 0.7]], B).modes()
    np.testing.assert_allclose(modes.pole, [0.75 + math.sqrt(0.0125), 0.75 - math.sqrt(0.0125)], rtol=1e-6)
    assert np.isinf(modes.period).all() and (modes.radius < 1).all()

    spiral = sqx.StateSpace([[0.9, 0.3], [-0.3, 0.9]], B)
    modes = spiral.modes()
    np.testing.assert_allclose(modes.pole, [0.9 + 0.3j, 0.9 - 0.3j], rtol=1e-6)
    np.testing.assert_allclose(modes.radius, math.sqrt(0.9), rtol=1e-6)
    np.testing.assert_allclose(modes.horizon, -2 / math.log(0.9), rtol=1e-5)
    degrees = np.degrees(np.angle(modes.pole[0]))
    assert (round(modes.radius[0], 2), round(degrees, 1), round(modes.period[0], 1)) == (0.95, 18.4, 19.5)
    assert spiral.spectral_radius == modes.radius[0]

    outside = sqx.StateSpace([[1.1, 0.2], [0.2, 0.7]], B)
    modes = outside.modes()
    np.testing.assert_allclose(modes.pole, [0.9 + math.sqrt(0.08), 0.9 - math.sqrt(0.08)], rtol=1e-6)
    assert outside.spectral_radius > 1 and modes.horizon[0] == np.inf and np.isfinite(modes.horizon[1])
    negative = sqx.StateSpace([[-0.5, 0.0], [0.0, 0.0]], B).modes()
    np.testing.assert_array_equal(negative.period, [2, np.inf])
    assert negative.horizon[1] == 0


def test_the_spiral_turns_and_decays_as_its_modes_say():
    spiral = sqx.StateSpace([[0.9, 0.3], [-0.3, 0.9]], np.eye(2))
    modes, n = spiral.modes(), 39  # two turns
    ys = np.asarray(spiral(jnp.zeros((n + 1, 2)).at[0, 0].set(1)), np.float64)
    np.testing.assert_allclose(np.hypot(*ys.T), modes.radius[0] ** np.arange(n + 1), rtol=1e-4)
    turned = -np.unwrap(np.arctan2(ys[:, 1], ys[:, 0]))
    np.testing.assert_allclose(turned, 2 * math.pi * np.arange(n + 1) / modes.period[0], atol=1e-5)


def test_random_state_space_starts_stable():
    layer = sqx.StateSpace.random(3, 6, jax.random.key(0), n_out=2, radius=0.8)
    np.testing.assert_allclose(layer.modes().radius, 0.8, rtol=1e-5)
    assert (layer.B.shape, layer.C.shape, layer.D.shape) == ((6, 3), (2, 6), (2, 3))  # pyright: ignore[reportOptionalMemberAccess]
    assert layer(XS).shape == (2, 400, 2)
    many = eqx.filter_vmap(lambda k: sqx.StateSpace.random(3, 6, k))(jax.random.split(jax.random.key(1), 4))
    assert many.A.shape == (4, 6, 6) and many.C is None


def test_sizes_or_a_key_in_place_of_numbers_say_what_is_taken():
    key = jax.random.key(0)
    with pytest.raises(TypeError, match=r"A must be a matrix, got 3: .*StateSpace\.random\(n_in, n_hidden, key"):
        sqx.StateSpace(3, 4, 2, key)  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="D must be an array of numbers, got a PRNG key"):
        sqx.StateSpace(np.eye(2), np.eye(2), np.eye(2), key)
    with pytest.raises(TypeError, match="alpha must be an array of numbers, got a PRNG key"):
        sqx.OnePole(3, key)
