"""AdaptiveOnePole against a NumPy loop, a frozen filter's derivatives, and filters that it is to find."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import signal

import sequinox as sqx

pytestmark = pytest.mark.usefixtures("quick_compilation")


@eqx.filter_jit
def unroll(layer: Any, xs: Any, state: Any = None, mask: Any = None, resets: Any = None) -> Any:
    return layer.unroll(xs, state, mask=mask, resets=resets)


def loop(coefficients: Any, limit: float, xs: Any, mask: Any, resets: Any) -> Any:
    """One row in float64."""
    alpha, beta, mu = coefficients
    start = (float(np.clip(alpha, -limit, limit)), beta, 0.0, 0.0, 0.0)
    state, ys, poles = start, [], []
    for (x, d), real, fresh in zip(xs, mask, resets, strict=True):
        if not real:
            ys.append([0.0, 0.0])
            continue
        a, b, y, ya, yb = start if fresh else state
        ya, yb = y + a * ya, x + a * yb
        y = a * y + b * x
        e = d - y
        state = (float(np.clip(a + mu * e * ya, -limit, limit)), b + mu * e * yb, y, ya, yb)
        ys.append([y, e])
        poles.append(abs(state[0]))
    return np.array(ys), np.array(state), max(poles)


@pytest.mark.parametrize("limit", [0.999, 0.55])
def test_a_loop_in_float64(limit: float):
    """Rows with gaps and resets: outputs, states, gradients of the first coefficients and the step size; a limit that
    matters and one that does not."""
    random = np.random.default_rng(0)
    rows, time = 4, 12
    xs = random.normal(size=(rows, time, 2)).astype(np.float32)
    mask, resets = random.random((rows, time)) < 0.8, random.random((rows, time)) < 0.2
    d_ys = random.normal(size=(rows, time, 2)).astype(np.float32)
    alpha, beta, mu = 0.5, 0.75, 0.15
    layer = sqx.AdaptiveOnePole(mu, alpha=alpha, beta=beta, limit=limit)

    def run(*coefficients: Any) -> Any:
        return [loop(coefficients, limit, *row) for row in zip(xs.astype(np.float64), mask, resets, strict=True)]

    dirty = np.where(mask[..., None], xs, np.float32(np.nan))
    ys, state = unroll(layer, dirty, None, mask, resets)
    expected_ys, expected_state, poles = (np.stack(a) for a in zip(*run(alpha, beta, mu), strict=True))
    np.testing.assert_allclose(ys, expected_ys, atol=1e-5)
    np.testing.assert_allclose(jnp.stack(list(state), -1), expected_state, atol=1e-5)
    assert (poles == limit).any() == (limit == 0.55)

    total = lambda *c: sum(np.sum(r[0] * d) for r, d in zip(run(*c), d_ys, strict=True))
    weighted = lambda la: jnp.sum(la(dirty, mask=mask, resets=resets) * d_ys)
    gradient = eqx.filter_jit(eqx.filter_grad(weighted))(layer)
    h = 1e-6
    for i, got in enumerate((gradient.alpha, gradient.beta, gradient.mu)):
        c = np.array([alpha, beta, mu])
        step = h * np.eye(3)[i]
        np.testing.assert_allclose(got, (total(*(c + step)) - total(*(c - step))) / (2 * h), rtol=1e-3)


def test_the_derivatives_are_those_of_the_frozen_filter():
    """What the recursion carries is what backpropagation through time finds, as long as the coefficients stay."""
    random = np.random.default_rng(0)
    xs = random.normal(size=(25, 2)).astype(np.float32)
    alpha, beta = 0.9, 0.5

    def last(alpha: Any, beta: Any) -> Any:
        return jax.lax.scan(lambda y, x: (alpha * y + beta * x, None), jnp.zeros(()), xs[:, 0])[0]

    expected = jax.grad(last, (0, 1))(alpha, beta)
    frozen = sqx.AdaptiveOnePole(1e-30, alpha=alpha, beta=beta)
    _, state = unroll(frozen, xs)
    assert state.alpha == jnp.float32(alpha) and state.beta == jnp.float32(beta)
    np.testing.assert_allclose((state.dy_dalpha, state.dy_dbeta), expected, rtol=1e-5)
    np.testing.assert_allclose(state.y, signal.lfilter([beta], [1, -alpha], xs[:, 0])[-1], rtol=1e-5)


@pytest.mark.parametrize(("alpha", "beta"), [(0.8, 0.3), (-0.6, 1.5), (0.9, 0.4)])
def test_a_filter_is_identified(alpha: float, beta: float):
    random = np.random.default_rng(0)
    x = random.normal(size=6000)
    xs = np.stack([x, signal.lfilter([beta], [1, -alpha], x)], -1).astype(np.float32)
    ys, state = unroll(sqx.AdaptiveOnePole(0.01, beta=0.1), xs)
    np.testing.assert_allclose((state.alpha, state.beta), (alpha, beta), atol=2e-3)
    np.testing.assert_allclose(ys[-10:, 1], 0, atol=1e-2)


def test_the_guard_holds_a_pole_that_a_large_step_would_throw_out():
    random = np.random.default_rng(0)
    x = random.normal(size=400)
    xs = np.stack([x, signal.lfilter([2.0], [1, -0.9], x)], -1).astype(np.float32)
    step = 0.1

    def poles(limit: Any) -> Any:
        layer: Any = sqx.AdaptiveOnePole(step, limit=limit)
        body = lambda state, x: (layer.step(x, state)[1],) * 2
        return np.asarray(jax.jit(lambda xs: jax.lax.scan(body, layer.init_state(), xs)[1].alpha)(xs))

    held, free = poles(0.95), poles(None)
    assert (np.abs(held) <= np.float32(0.95)).all() and (np.abs(held) == np.float32(0.95)).any()
    assert not (np.abs(free) < 1).all()


def test_a_trained_pole_starts_within_the_guard():
    """An optimiser may move it beyond."""
    layer = eqx.tree_at(lambda la: la.alpha, sqx.AdaptiveOnePole(0.1, alpha=0.9), jnp.array(1.7))
    assert layer.init_state(2).alpha.tolist() == pytest.approx([0.999, 0.999])
