"""The linear recurrent unit against NumPy's complex numbers."""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from diagonal_oracles import FLAGS, ROWS, TIME, check_gradients, unroll

import sequinox as sqx

pytestmark = pytest.mark.usefixtures("quick_compilation", "unchecked_types")

N_IN, N_HIDDEN, N_OUT = 3, 5, 2


@eqx.filter_jit
def run(layer: Any, xs: Any, state: Any, mask: Any, resets: Any, d_ys: Any, d_last: Any) -> Any:
    out, pull = eqx.filter_vjp(lambda c, x, s: c.unroll(x, s, mask=mask, resets=resets), layer, xs, state)
    return out, pull((d_ys, d_last))


def loop(w: Any, mask: Any = None, resets: Any = None) -> Any:
    """As the equations print it, in complex numbers."""
    modes = np.exp(-np.exp(w["nu_log"]) + 1j * np.exp(w["theta_log"]))
    B, C = w["B_re"] + 1j * w["B_im"], w["C_re"] + 1j * w["C_im"]

    def step(x: Any, h: Any) -> Any:
        h = modes * h + np.exp(w["gamma_log"]) * (B @ x)
        return (C @ h).real + w["D"] @ x, h

    return unroll(step, w["xs"], w["re"] + 1j * w["im"], mask, resets)


@pytest.mark.parametrize("method", ["sequential", "associative"])
def test_against_a_loop(method: Any):
    mask, resets = FLAGS["packed-with-gaps"]
    random = np.random.default_rng(6)
    with jax.enable_x64(True):
        layer = sqx.LRU(N_IN, N_HIDDEN, jax.random.key(0), n_out=N_OUT, method=method, dtype=jnp.float64)
        xs, re, im = random.normal(size=(ROWS, TIME, N_IN)), *random.normal(size=(2, ROWS, N_HIDDEN))
        d_ys, d_re, d_im = random.normal(size=(ROWS, TIME, N_OUT)), *random.normal(size=(2, ROWS, N_HIDDEN))
        arrays = {"xs": xs, "re": re, "im": im, **{k: np.asarray(v) for k, v in sqx.parameters(layer).items()}}

        def value(arrays: Any) -> float:
            ys, last = loop(arrays, mask, resets)
            return float(np.sum(ys * d_ys) + np.sum(last.real * d_re) + np.sum(last.imag * d_im))

        put = jnp.asarray
        state, d_last = sqx.ComplexPair(put(re), put(im)), sqx.ComplexPair(put(d_re), put(d_im))
        flags = put(mask), put(resets)
        (ys, last), (d_layer, d_xs, d_state) = run(layer, put(xs), state, *flags, put(d_ys), d_last)
        expected = loop(arrays, mask, resets)
        np.testing.assert_allclose(ys, expected[0], atol=1e-13)
        np.testing.assert_allclose(last.re, expected[1].real, atol=1e-13)
        np.testing.assert_allclose(last.im, expected[1].imag, atol=1e-13)
        gradients = {"xs": d_xs, "re": d_state.re, "im": d_state.im, **sqx.parameters(d_layer)}
        check_gradients(value, arrays, gradients, 1e-7)


def test_single_precision_and_a_plain_pair():
    layer = sqx.LRU(N_IN, N_HIDDEN, jax.random.key(1), r_min=0.9, r_max=0.99)
    assert layer.n_out == N_HIDDEN
    xs = np.random.default_rng(7).normal(size=(2, 60, N_IN)).astype(np.float32)
    w = {k: np.asarray(v, np.float64) for k, v in sqx.parameters(layer).items()}
    w |= {"xs": xs.astype(np.float64), "re": np.ones((2, N_HIDDEN)), "im": np.zeros((2, N_HIDDEN))}
    pair: Any = (jnp.ones((2, N_HIDDEN)), jnp.zeros((2, N_HIDDEN)))
    ys, last = layer.unroll(xs, pair)
    expected = loop(w)
    np.testing.assert_allclose(ys, expected[0], atol=1e-5)
    assert isinstance(last, sqx.ComplexPair)
    np.testing.assert_allclose(last.im, expected[1].imag, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_stable_whatever_the_weights(dtype: str):
    """The modulus, computed in double precision from the pair that multiplies the state, is less than 1."""
    largest = float(jnp.finfo(dtype).max)
    values = jnp.asarray([-largest, -1e4, -30, -10, -8, -5, -1, 0, 1, 4, 5, 6, 7, 100, largest], dtype)
    layer = sqx.LRU(1, values.size**2, jax.random.key(0), n_out=1, dtype=jnp.dtype(dtype))
    nu, theta = jnp.repeat(values, values.size), jnp.tile(values, values.size)
    layer = eqx.tree_at(lambda c: (c.nu_log, c.theta_log), layer, (nu, theta))
    a, _ = layer.coefficients(jnp.zeros(1, dtype))
    modulus = np.hypot(np.asarray(a.re, np.float64), np.asarray(a.im, np.float64))
    assert a.re.dtype == jnp.float32 and (modulus < 1).all() and (modulus >= 0).all()
    assert (modulus[:15] > 1 - 1e-6).all()  # a mode that is to hold does hold
    assert (layer.radius < 1).all()
    xs = jnp.ones((50, 1), dtype)
    gradient = eqx.filter_jit(eqx.filter_grad(lambda c: jnp.sum(c(xs).astype(jnp.float32))))(layer)
    assert np.isfinite(np.asarray(gradient.nu_log, np.float64)).all()
    assert np.isfinite(np.asarray(gradient.theta_log, np.float64)).all()


def test_stable_through_random_weights():
    random = np.random.default_rng(1)
    layer = sqx.LRU(1, 4000, jax.random.key(0), n_out=1)
    for scale in (1, 10, 1000):
        new = [jnp.asarray(scale * random.normal(size=4000), jnp.float32) for _ in range(2)]
        a, _ = eqx.tree_at(lambda c: (c.nu_log, c.theta_log), layer, new).coefficients(jnp.zeros(1))
        assert (np.hypot(np.asarray(a.re, np.float64), np.asarray(a.im, np.float64)) < 1).all()


def test_modes_start_on_the_ring():
    """Evenly over its area: the squared radius is uniform, and so is the angle."""
    layer = sqx.LRU(1, 4000, jax.random.key(3), n_out=1, r_min=0.6, r_max=0.9, max_phase=math.pi / 4)
    r, theta = np.asarray(layer.radius), np.asarray(layer.phase)
    for u in ((r**2 - 0.6**2) / (0.9**2 - 0.6**2), theta / (math.pi / 4)):
        assert -1e-5 < u.min() < 0.01 and 0.99 < u.max() < 1 + 1e-5
        assert np.abs(np.sort(u) - np.linspace(0, 1, 4000)).max() < 0.03  # Kolmogorov's distance; 0.026 has p = 0.01


def test_white_noise_comes_in_at_the_variance_it_has():
    """gamma is sqrt(1 - |lambda|^2): the state of each mode has the variance of B x, in the long run."""
    layer = sqx.LRU(1, 6, jax.random.key(3), r_min=0.3, r_max=0.95)
    np.testing.assert_allclose(np.exp(layer.gamma_log) ** 2, 1 - np.asarray(layer.radius) ** 2, rtol=1e-4)
    xs = jax.random.normal(jax.random.key(1), (200_000, 1))
    hs, _ = eqx.filter_jit(lambda c, x: sqx.diagonal_scan(*c.coefficients(x)))(layer, xs)
    power = np.mean(np.asarray(hs.re) ** 2 + np.asarray(hs.im) ** 2, 0)
    np.testing.assert_allclose(power, np.asarray(layer.B_re**2 + layer.B_im**2)[:, 0], rtol=0.1)


def test_shapes_and_names():
    layer = sqx.LRU(N_IN, N_HIDDEN, jax.random.key(0), n_out=N_OUT)
    shapes = {k: v.shape for k, v in sqx.parameters(layer).items()}
    assert shapes == {
        **dict.fromkeys(("nu_log", "theta_log", "gamma_log"), (5,)),
        **dict.fromkeys(("B_re", "B_im"), (5, 3)),
        **dict.fromkeys(("C_re", "C_im"), (2, 5)),
        "D": (2, 3),
    }
