"""LMS and NLMS against a NumPy loop, and against what the theory says of their convergence."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import linalg, optimize, signal

import sequinox as sqx

pytestmark = pytest.mark.usefixtures("quick_compilation")

TAPS, SIGNALS = 3, 2


@eqx.filter_jit
def unroll(layer: Any, xs: Any, state: Any = None, mask: Any = None, resets: Any = None) -> Any:
    return layer.unroll(xs, state, mask=mask, resets=resets)


def loop(w: Any, mu: float, xs: Any, mask: Any, resets: Any, eps: float | None = None) -> Any:
    """One row in float64."""
    start = w
    window, ys = np.zeros_like(w), []
    for x, real, fresh in zip(xs, mask, resets, strict=True):
        if not real:
            ys.append([0.0, 0.0])
            continue
        if fresh:
            w, window = start, np.zeros_like(start)
        window = np.concatenate([x[None, :-1], window[:-1]])
        y = np.sum(w * window)
        e = x[-1] - y
        w = w + mu * e * window / (1 if eps is None else eps + np.sum(window**2))
        ys.append([y, e])
    return np.array(ys), w, window[:-1][::-1]


def make(kind: str, w: Any = None) -> tuple[Any, float, float | None]:
    if kind == "LMS":
        return sqx.LMS(TAPS, 0.1, n_signals=SIGNALS, w=w), 0.1, None
    return sqx.NLMS(TAPS, 0.4, 0.05, n_signals=SIGNALS, w=w), 0.4, 0.05


@pytest.mark.parametrize("start", ["zeros", "given"])
@pytest.mark.parametrize("kind", ["LMS", "NLMS"])
def test_a_loop_in_float64(kind: str, start: str):
    """Rows with gaps and resets: outputs and states; to what follows from given taps also their gradient."""
    random = np.random.default_rng(0)
    rows, time = 3, 12
    xs = random.normal(size=(rows, time, SIGNALS + 1)).astype(np.float32)
    mask, resets = random.random((rows, time)) < 0.8, random.random((rows, time)) < 0.2
    d_ys = random.normal(size=(rows, time, 2)).astype(np.float32)
    w = random.normal(size=(TAPS, SIGNALS)).astype(np.float32) if start == "given" else None
    layer, mu, eps = make(kind, w)
    taps = np.zeros((TAPS, SIGNALS)) if w is None else w.astype(np.float64)

    def run(taps: Any, mu: float) -> Any:
        return [loop(taps, mu, *row, eps) for row in zip(xs.astype(np.float64), mask, resets, strict=True)]

    expected = run(taps, mu)
    dirty = np.where(mask[..., None], xs, np.float32(np.nan))
    ys, state = unroll(layer, dirty, None, mask, resets)
    for got, want in zip((ys, state.w, state.past), zip(*expected, strict=True), strict=True):
        np.testing.assert_allclose(got, np.stack(want), atol=1e-5)

    total = lambda taps, mu: sum(np.sum(r[0] * d) for r, d in zip(run(taps, mu), d_ys, strict=True))
    weighted = lambda la: jnp.sum(la(dirty, mask=mask, resets=resets) * d_ys)
    gradient = eqx.filter_jit(eqx.filter_grad(weighted))(layer)
    h = 1e-5
    np.testing.assert_allclose(gradient.mu, (total(taps, mu + h) - total(taps, mu - h)) / (2 * h), rtol=1e-4)
    if w is not None:
        for at in np.ndindex(w.shape):
            more, less = taps.copy(), taps.copy()
            more[at] += h
            less[at] -= h
            np.testing.assert_allclose(gradient.w[at], (total(more, mu) - total(less, mu)) / (2 * h), rtol=1e-3)


def pair(x: Any, taps: Any) -> np.ndarray:
    """A signal beside the response of a filter to it."""
    return np.stack([x, signal.lfilter(taps, 1, x)], -1).astype(np.float32)


def test_a_filter_is_identified():
    random = np.random.default_rng(0)
    taps = [0.5, -0.25, 0.125, 1.0]
    xs = pair(random.normal(size=3000), taps)
    for layer in (sqx.LMS(4, 0.05), sqx.NLMS(4, 0.5)):
        ys, state = unroll(layer, xs)
        np.testing.assert_allclose(state.w[:, 0], taps, atol=1e-5)
        np.testing.assert_allclose(ys[-10:, 1], 0, atol=1e-4)
        np.testing.assert_allclose(ys.sum(-1), xs[:, 1], atol=1e-5)  # the output and its error are the response


# ---- how large a step may be -----------------------------------------------------------------------------------------

WHITE, COLOURED = np.eye(3), linalg.toeplitz(0.8 ** np.arange(3))  # of three numbers in a window


def bound_of_the_squares(R: np.ndarray) -> float:
    """As the documentation has it: the step size at which the sum over the eigenvalues is 1."""
    values = np.linalg.eigvalsh(R)
    total = lambda mu: np.sum(mu * values / (2 - 2 * mu * values)) - 1
    bound: Any = optimize.brentq(total, 1e-9, (1 - 1e-9) / values.max())
    return bound


def second_moments(R: np.ndarray, mu: float) -> np.ndarray:
    """What a sample makes of E[v v^T], as a matrix: Isserlis' theorem for E[(I - mu u u^T) V (I - mu u u^T)]."""
    eye, k = np.eye(len(R)), len(R)
    first = np.kron(eye, eye) - mu * (np.kron(R, eye) + np.kron(eye, R))
    fourth = 2 * np.kron(R, R) + np.outer(R.reshape(k * k), R.reshape(k * k))  # 2 R V R + R tr(R V), V symmetric
    return first + mu**2 * fourth


@pytest.mark.parametrize("R", [WHITE, COLOURED], ids=["white", "coloured"])
def test_the_bound_of_the_mean_square_is_exact(R: np.ndarray):
    """The second moments grow above it and shrink below it; 2 / (3 tr R) lies below, 2 / lambda_max above."""
    growth = lambda mu: np.abs(np.linalg.eigvals(second_moments(R, mu))).max()
    bound = bound_of_the_squares(R)
    assert growth(0.99 * bound) < 1 < growth(1.01 * bound)
    assert 2 / (3 * np.trace(R)) < bound < 1 / np.linalg.eigvalsh(R).max()
    if R is WHITE:
        assert bound == pytest.approx(2 / (3 + 2)) and 2 / (3 * np.trace(R)) == pytest.approx(0.22, abs=0.003)


def test_between_the_bounds_the_mean_shrinks_and_the_mean_square_grows():
    """Of the layer, in many rows; both at the rates of the theory."""
    random, rows, time, mu = np.random.default_rng(0), 300_000, 2, 0.7
    R = np.array([[1.0, 0.3], [0.3, 0.8]])
    assert bound_of_the_squares(R) < mu < 2 / np.linalg.eigvalsh(R).max()
    x = random.normal(size=(rows, time, 2)) @ np.linalg.cholesky(R).T
    taps = np.array([1.0, -2.0])
    xs = np.concatenate([x, (x @ taps)[..., None]], -1).astype(np.float32)
    far = np.asarray(unroll(sqx.LMS(1, mu, n_signals=2), xs)[1].w[:, 0], np.float64) - taps
    expected = -np.linalg.matrix_power(np.eye(2) - mu * R, time) @ taps
    np.testing.assert_allclose(far.mean(0), expected, atol=0.05)
    squares = np.linalg.matrix_power(second_moments(R, mu), time) @ np.outer(taps, taps).reshape(4)
    np.testing.assert_allclose(np.mean(np.sum(far**2, 1)), squares[[0, 3]].sum(), rtol=0.05)
    assert np.abs(expected).max() < 0.7 and squares[[0, 3]].sum() > 1.2 * np.sum(taps**2)


def deviation(mu: float, u: np.ndarray) -> float:
    """In float64: the mean over rows of the squared distance to taps that give the response, at first 1."""
    far = np.zeros(u.shape[1:])
    far[:, 0] = 1.0
    for now in u:
        far = far - mu * np.sum(far * now, 1)[:, None] * now
    with np.errstate(over="ignore"):
        return float(np.mean(np.sum(far**2, 1)))


def signals(R: np.ndarray, overlap: bool) -> np.ndarray:
    """Windows, `(time, rows, 3)`: of a delay line, or independent of each other."""
    random, rows, time = np.random.default_rng(0), 1000, 500
    if not overlap:
        return random.normal(size=(time, rows, 3)) @ np.linalg.cholesky(R).T
    pole = R[0, 1]
    x: Any = signal.lfilter([np.sqrt(1 - pole**2)], [1, -pole], random.normal(size=(time + 102, rows)), axis=0)[100:]
    return np.stack([x[2:], x[1:-1], x[:-2]], -1)


@pytest.mark.parametrize("R", [WHITE, COLOURED], ids=["white", "coloured"])
def test_long_runs_on_both_sides_of_the_bound_of_the_mean_square(R: np.ndarray):
    bound, mean, independent = bound_of_the_squares(R), 2 / np.linalg.eigvalsh(R).max(), signals(R, overlap=False)
    assert deviation(2 / (3 * np.trace(R)), independent) < 1e-6
    assert deviation(0.8 * bound, independent) < 1e-6
    assert 1.9 * bound < mean and deviation(1.9 * bound, independent) > 1e6
    assert deviation(0.99 * mean, independent) > 1e6


def test_windows_of_a_delay_line_leave_less():
    """As the guide says: with white input nearly the bound of the theory, with coloured input far less of it."""
    assert deviation(0.7 * bound_of_the_squares(WHITE), signals(WHITE, overlap=True)) < 1e-6
    assert deviation(1.9 * bound_of_the_squares(WHITE), signals(WHITE, overlap=True)) > 1e6
    coloured = signals(COLOURED, overlap=True)
    assert deviation(2 / (3 * np.trace(COLOURED)), coloured) > 1e6
    assert deviation(0.2 * bound_of_the_squares(COLOURED), coloured) < 1e-2


@pytest.mark.parametrize("kind", ["LMS", "NLMS"])
def test_below_the_bound_of_every_window_no_step_leads_away(kind: str):
    """Whatever the input, here strongly coloured: in every row, at every sample."""
    random = np.random.default_rng(0)
    x: Any = signal.lfilter([1.0], [1, -0.95], random.uniform(-1, 1, 200))
    taps = np.array([0.5, -0.25, 0.125])
    xs = np.stack([x, signal.lfilter(taps, 1, x)], -1).astype(np.float32)
    energy = np.convolve(x**2, np.ones(3))[: len(x)].max()
    layer: Any = sqx.LMS(3, 1.95 / energy) if kind == "LMS" else sqx.NLMS(3, 1.95)
    body = lambda state, x: (layer.step(x, state)[1],) * 2
    w = np.asarray(jax.jit(lambda xs: jax.lax.scan(body, layer.init_state(), xs)[1].w)(xs))[..., 0]
    far = np.sum((w.astype(np.float64) - taps) ** 2, 1)
    assert (np.diff(far) <= 1e-6).all() and far[-1] < far[0]


@pytest.mark.parametrize("factor", [0.98, 1.02])
def test_the_bound_is_sharp_for_a_constant_input(factor: float):
    """Then R has the one eigenvalue k c^2, and an error shrinks, or grows, by 1 - mu k c^2 at every sample."""
    k, c, n = 3, 0.7, 200
    mu = factor * 2 / (k * c**2)
    state = sqx.LMSState(jnp.zeros((k, 1)), jnp.full((k - 1, 1), c))
    ys, _ = unroll(sqx.LMS(k, mu), np.full((n, 2), [c, 1.0], np.float32), state)
    np.testing.assert_allclose(ys[:, 1], (1 - mu * k * c**2) ** np.arange(n), rtol=2e-3)
    assert (abs(ys[-1, 1]) < 1) == (factor < 1)


def test_the_mean_learning_curve():
    """With independent windows the mean error of the taps is (I - mu R)^t times the first, exactly."""
    random = np.random.default_rng(0)
    rows, time, mu = 20_000, 12, 0.1
    R = np.array([[1.0, 0.6], [0.6, 0.8]])
    x = random.normal(size=(rows, time, 2)) @ np.linalg.cholesky(R).T
    taps = np.array([1.0, -2.0])
    xs = np.concatenate([x, (x @ taps)[..., None]], -1).astype(np.float32)
    _, state = unroll(sqx.LMS(1, mu, n_signals=2), xs)
    error = np.asarray(state.w[:, 0], np.float64).mean(0) - taps
    expected = -np.linalg.matrix_power(np.eye(2) - mu * R, time) @ taps
    np.testing.assert_allclose(error, expected, atol=0.02)
    assert np.abs(expected).max() > 0.5 and np.abs(expected + taps).max() > 0.5  # neither arrived nor where it was


def test_a_loud_input():
    """NLMS converges where LMS with the same step size diverges."""
    random = np.random.default_rng(0)
    taps = [0.5, -0.25]
    xs = pair(30 * random.normal(size=1000), taps)
    _, state = unroll(sqx.LMS(2, 0.5), xs)
    assert not (np.abs(state.w) < 1e6).all()
    _, state = unroll(sqx.NLMS(2, 0.5), xs)
    np.testing.assert_allclose(state.w[:, 0], taps, atol=1e-5)


def test_one_normalised_step_brings_the_error_to_nothing():
    layer = sqx.NLMS(2, 1.0, 1e-12)
    x = jnp.array([3.0, 5.0])
    _, state = layer.step(x)
    y, _ = layer.step(x, state._replace(past=jnp.zeros((1, 1))))
    np.testing.assert_allclose(y, [5.0, 0.0], atol=1e-5)


def test_a_silent_window():
    """No division by nothing, in values and in gradients."""
    xs = jnp.zeros((5, 2)).at[2, 1].set(1.0)
    layer = sqx.NLMS(2, 0.5, w=[0.1, 0.2])
    (total, gradient) = eqx.filter_jit(eqx.filter_value_and_grad(lambda la: jnp.sum(la(xs))))(layer)
    assert jnp.isfinite(total) and all(jnp.all(jnp.isfinite(g)) for g in jax.tree.leaves(gradient))


def test_many_step_sizes_at_once():
    random = np.random.default_rng(0)
    xs = pair(random.normal(size=300), [0.5, -0.25])
    layer = sqx.LMS(2, 0.05)
    with_mu: Any = lambda mu: eqx.tree_at(lambda la: la.mu, layer, mu).unroll(xs)[1].w
    together = jax.jit(jax.vmap(with_mu))(jnp.array([0.01, 0.05, 0.2]))
    np.testing.assert_allclose(together[1], unroll(layer, xs)[1].w, atol=1e-6)
    assert len(np.unique(np.round(np.abs(np.asarray(together[:, 0, 0]) - 0.5), 7))) > 1


def test_the_taps_stay_in_single_precision():
    """Steps of 1e-4 on a tap of 1: in bfloat16 it would not move."""
    state = sqx.LMSState(jnp.ones((1, 1)), jnp.zeros((0, 1), jnp.bfloat16))
    layer = sqx.LMS(1, 1e-4, dtype=jnp.bfloat16)
    _, after = layer.unroll(jnp.asarray([[1.0, 2.0]] * 10, jnp.bfloat16), state)
    assert after.w.dtype == jnp.float32
    np.testing.assert_allclose(after.w, 2 - (1 - 1e-4) ** 10, atol=1e-5)
