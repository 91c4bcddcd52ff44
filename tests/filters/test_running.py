"""Running mean, maximum and count against NumPy loops in float64."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sequinox as sqx

pytestmark = pytest.mark.usefixtures("quick_compilation")

RANDOM = np.random.default_rng(0)
ROWS, TIME, N_IN = 4, 13, 3
XS = RANDOM.normal(size=(ROWS, TIME, N_IN)).astype(np.float32)
MASK = RANDOM.random((ROWS, TIME)) < 0.7
RESETS = RANDOM.random((ROWS, TIME)) < 0.25
MASK[1] = False

STATISTICS = {
    "mean": (sqx.RunningMean(N_IN), lambda seen: np.mean(seen, 0)),
    "max": (sqx.RunningMax(N_IN), lambda seen: np.max(seen, 0)),
    "count": (sqx.RunningCount(N_IN), lambda seen: np.array([len(seen)])),
}


@eqx.filter_jit
def unroll(layer: Any, xs: Any, state: Any = None, mask: Any = None, resets: Any = None) -> Any:
    return layer.unroll(xs, state, mask=mask, resets=resets)


def of_all_so_far(statistic: Any, xs: Any, mask: Any, resets: Any, n_out: int) -> np.ndarray:
    out = np.zeros((*xs.shape[:2], n_out))
    for row in range(xs.shape[0]):
        seen: list[Any] = []
        for t in range(xs.shape[1]):
            if mask[row, t]:
                seen = [*([] if resets[row, t] else seen), xs[row, t].astype(np.float64)]
                out[row, t] = statistic(seen)
    return out


@pytest.mark.parametrize("flags", ["whole", "packed-with-gaps"])
@pytest.mark.parametrize("name", STATISTICS)
def test_values(name: str, flags: str):
    layer, statistic = STATISTICS[name]
    mask, resets = MASK if "gaps" in flags else None, RESETS if "packed" in flags else None
    m, r = np.ones_like(MASK) if mask is None else mask, np.zeros_like(RESETS) if resets is None else resets
    expected = of_all_so_far(statistic, XS, m, r, layer.n_out)
    ys, _ = unroll(layer, XS, None, mask, resets)
    np.testing.assert_allclose(ys, expected, atol=1e-6)


def test_the_gradient_of_the_running_mean():
    """Each sample has a share of one over the number in every mean that follows, up to a reset."""
    d_ys = RANDOM.normal(size=XS.shape).astype(np.float32)
    run = lambda x: jnp.sum(sqx.RunningMean(N_IN)(x, mask=MASK, resets=RESETS) * d_ys)
    gradient = jax.jit(jax.grad(run))(jnp.asarray(XS))
    expected = np.zeros(XS.shape)
    for row in range(ROWS):
        seen: list[Any] = []
        for t in np.flatnonzero(MASK[row]):
            seen = [*([] if RESETS[row, t] else seen), t]
            for s in seen:
                expected[row, s] += d_ys[row, t] / len(seen)
    np.testing.assert_allclose(gradient, expected, atol=1e-6)


def test_of_equal_samples_the_first_has_the_gradient():
    """However the stretch is cut."""
    xs = jnp.array([[1.0], [2.0], [2.0], [0.0], [2.0]])
    layer = sqx.RunningMax(1)
    for cut in (2, 5):

        def run(xs: Any, cut: int = cut) -> Any:
            first, state = layer.unroll(xs[:cut])
            return jnp.sum(first) + jnp.sum(layer.unroll(xs[cut:], state)[0])

        assert jax.grad(run)(xs)[:, 0].tolist() == [1.0, 4.0, 0.0, 0.0, 0.0]


def test_the_largest_of_negative_numbers_and_nan():
    xs = np.array([[-5.0], [-7.0], [np.nan], [3.0], [-1.0]], np.float32)
    ys = sqx.RunningMax(1)(xs, resets=np.array([0, 0, 0, 0, 1], bool))
    np.testing.assert_array_equal(ys[:, 0], [-5, -5, np.nan, np.nan, -1])
    layer, state = sqx.RunningMax(1), None
    for x, expected in zip(xs[:4], [-5, -5, np.nan, np.nan], strict=True):
        y, state = layer.step(x, state)
        np.testing.assert_array_equal(y, [expected])


def test_a_long_mean_does_not_drift():
    """Behind 2^25 samples of mean 1 a float32 has no room for the number's last digit; a share of (n - 1) / n would be
    rounded to 1 at every step, and the mean would grow by 1 / n."""
    state = sqx.MeanState(jnp.ones(1), jnp.array(2**25, jnp.int32))
    for layer in (sqx.RunningMean(1), sqx.MeanOverTime(1)):
        step: Any = lambda s, _, la=layer: (la.step(jnp.ones(1), s)[1], None)
        after: Any = jax.jit(lambda s, step=step: jax.lax.scan(step, s, None, length=5000)[0])(state)
        np.testing.assert_array_equal(after.mean, [1.0])
        assert after.n == 2**25 + 5000
        at_once = layer.unroll(jnp.ones((5000, 1)), state)[1]
        np.testing.assert_array_equal(at_once.mean, [1.0])


@pytest.mark.parametrize("xs", [[np.inf, 1.0], [3e38, 3e38], [-3e38, 3e38], [1.0, -np.inf]])
def test_extreme_samples(xs: Any):
    xs = np.array(xs, np.float32)[:, None]
    expected = np.cumsum(xs.astype(np.float64), 0) / np.array([[1], [2]])
    np.testing.assert_allclose(sqx.RunningMean(1)(xs), expected, rtol=1e-6)
    first, state = sqx.RunningMean(1).step(xs[0])
    np.testing.assert_allclose([first, sqx.RunningMean(1).step(xs[1], state)[0]], expected, rtol=1e-6)


def test_a_mean_in_half_precision():
    xs = jnp.asarray(1 + 0.5 * RANDOM.normal(size=(3000, 2)), jnp.bfloat16)
    ys, state = sqx.RunningMean(2).unroll(xs)
    assert ys.dtype == jnp.bfloat16 and state.mean.dtype == jnp.float32
    np.testing.assert_allclose(state.mean, np.asarray(xs, np.float64).mean(0), atol=1e-5)


def test_counts_beyond_half_precision_and_32_bits():
    layer = sqx.RunningCount()
    for n, dtype, expected in (
        (4095, jnp.float16, 4096.0),
        (70_000, jnp.float16, 65504.0),
        (2**30 - 3, jnp.float32, 2.0**30),
        (2**30 - 1, jnp.float32, 2.0**30),
    ):
        y, after = layer.unroll(jnp.ones((9, 1), dtype), jnp.array(n, jnp.int32))
        assert y.dtype == dtype and float(y[-1, 0]) in (expected, expected + 8)
        assert int(after) == min(n + 9, 2**30 - 1)


def test_widths():
    assert [sqx.RunningMean(3).n_out, sqx.RunningMax(3).n_out, sqx.RunningCount(3).n_out] == [3, 3, 1]
    for layer in (sqx.RunningMean(), sqx.RunningMax()):
        assert sqx.Sequential([sqx.Dense(3, 2, jax.random.key(0)), layer])[1].n_in == 2
        with pytest.raises(ValueError, match="the width is not known"):
            layer.init_state(2)
    assert sqx.Sequential([sqx.Dense(3, 2, jax.random.key(0)), sqx.RunningCount()]).n_out == 1
