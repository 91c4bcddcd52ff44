"""LastStep, MeanOverTime and MaxOverTime against NumPy, whole, ragged, packed and in a stream."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sequinox as sqx

pytestmark = pytest.mark.usefixtures("quick_compilation")

XS = np.random.default_rng(0).normal(size=(4, 6, 3)).astype(np.float32)
MASK = np.array([[1, 1, 1, 1, 1, 1], [0, 0, 0, 0, 0, 0], [1, 0, 1, 1, 0, 0], [0, 1, 0, 0, 0, 1]], bool)
RESETS = np.array([[0, 0, 1, 0, 0, 0], [1, 0, 0, 0, 0, 0], [0, 1, 0, 1, 0, 0], [1, 0, 0, 0, 0, 0]], bool)


def of_rows(pool: Any, mask: np.ndarray, resets: np.ndarray, zeros: Any) -> np.ndarray:
    """What `pool` gives of every row's real samples since its last reset."""
    out = []
    for x, m, r in zip(XS, mask, resets, strict=True):
        since = max(np.flatnonzero(r & m), default=0)
        real = x[since:][m[since:]]
        out.append(pool(real) if len(real) else zeros)
    return np.stack(out)


POOLS = [
    (sqx.LastStep(3), lambda x: x[-1]),
    (sqx.MeanOverTime(3), lambda x: x.mean(0, dtype=np.float64)),
    (sqx.MaxOverTime(3), lambda x: x.max(0)),
]
NAMES = ["LastStep", "MeanOverTime", "MaxOverTime"]


@pytest.mark.parametrize(("layer", "pool"), POOLS, ids=NAMES)
@pytest.mark.parametrize("flags", ["whole", "ragged", "packed", "packed-ragged"])
def test_values(layer: Any, pool: Any, flags: str):
    mask = MASK if "ragged" in flags else np.ones_like(MASK)
    resets = RESETS if "packed" in flags else np.zeros_like(RESETS)
    given = {"mask": mask if "ragged" in flags else None, "resets": resets if "packed" in flags else None}
    expected = of_rows(pool, mask, resets, np.zeros(3))
    np.testing.assert_allclose(layer(XS, **given), expected, atol=1e-6)


@pytest.mark.parametrize(("layer", "pool"), POOLS, ids=NAMES)
def test_a_stream_gives_the_output_so_far(layer: Any, pool: Any):
    state = None
    for t in range(XS.shape[1]):
        y, state = layer.step(XS[:, t], state, mask=MASK[:, t])
        real = [x[: t + 1][m[: t + 1]] for x, m in zip(XS, MASK, strict=True)]
        expected = np.stack([pool(x) if len(x) else np.zeros(3) for x in real])
        np.testing.assert_allclose(y, expected, atol=1e-6)


@pytest.mark.parametrize(("layer", "pool"), POOLS, ids=NAMES)
def test_a_stretch_without_samples_gives_the_output_so_far(layer: Any, pool: Any):
    before, state = layer.unroll(XS[:, :4])
    for xs, mask in ((XS[:, :0], None), (XS[:, 4:], np.zeros((4, 2), bool))):
        y, after = layer.unroll(xs, state, mask=mask)
        np.testing.assert_allclose(y, before, atol=1e-7)
        assert jax.tree.all(jax.tree.map(lambda a, b: bool(jnp.array_equal(a, b)), after, state))


def test_the_gradient_of_the_last_sample_is_one():
    gradient = jax.grad(lambda x: jnp.sum(sqx.LastStep(3)(x, mask=MASK)))(jnp.asarray(XS))
    expected = np.zeros((4, 6))
    expected[[0, 2, 3], [5, 3, 5]] = 1
    np.testing.assert_array_equal(gradient, np.repeat(expected[..., None], 3, -1))


def test_the_gradient_of_the_mean_is_one_over_the_number():
    gradient = jax.grad(lambda x: jnp.sum(sqx.MeanOverTime(3)(x, mask=MASK)))(jnp.asarray(XS))
    number = np.maximum(MASK.sum(1, keepdims=True), 1)
    np.testing.assert_allclose(gradient, np.repeat((MASK / number)[..., None], 3, -1), atol=1e-7)


def test_the_gradient_of_the_largest_goes_to_the_first_of_equal_ones():
    xs = jnp.array([[1.0, -9.0], [3.0, -2.0], [3.0, -9.0], [9.0, 9.0]])
    mask = jnp.array([True, True, True, False])
    gradient = jax.grad(lambda x: jnp.sum(sqx.MaxOverTime(2)(x, mask=mask)))(xs)
    assert gradient.tolist() == [[0, 0], [1, 1], [0, 0], [0, 0]]

    def in_pieces(xs: Any) -> Any:
        _, state = sqx.MaxOverTime(2).unroll(xs[:2])
        return jnp.sum(sqx.MaxOverTime(2).unroll(xs[2:3], state)[0])

    assert jax.grad(in_pieces)(xs).tolist() == gradient.tolist()


def test_the_largest_of_infinities_and_nan():
    minus = np.full((3, 1), -np.inf, np.float32)
    mask = np.array([False, True, True])
    assert sqx.MaxOverTime(1)(minus, mask=mask).tolist() == [-np.inf]
    xs = np.array([[1.0], [np.nan], [5.0]], np.float32)
    y, state = sqx.MaxOverTime(1).unroll(xs)
    assert np.isnan(y).all() and np.isnan(sqx.MaxOverTime(1).step(np.ones(1, np.float32), state)[0]).all()
    assert sqx.MaxOverTime(1)(xs, resets=np.array([False, False, True])).tolist() == [5.0]


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_a_long_mean_in_half_precision(dtype: Any):
    """3000 samples around 1: a running sum in half precision would stand still at 256 or 2048."""
    xs = jnp.asarray(1 + 0.5 * np.random.default_rng(0).normal(size=(3000, 2)), dtype)
    expected = np.asarray(xs, np.float64).mean(0)
    y, state = sqx.MeanOverTime(2).unroll(xs)
    assert y.dtype == dtype and jax.tree.leaves(state)[0].dtype == jnp.float32
    np.testing.assert_allclose(jax.tree.leaves(state)[0], expected, atol=1e-5)
    layer: Any = sqx.MeanOverTime(2)
    by_steps = jax.jit(lambda xs: jax.lax.scan(lambda s, x: layer.step(x, s)[::-1], layer.init_state((), dtype), xs)[0])
    np.testing.assert_allclose(jax.tree.leaves(by_steps(xs))[0], expected, atol=1e-4)


@pytest.mark.parametrize("layer", [sqx.LastStep(), sqx.MeanOverTime(), sqx.MaxOverTime()], ids=NAMES)
def test_without_a_width(layer: Any):
    assert sqx.Sequential([sqx.Dense(3, 2, jax.random.key(0)), layer])[1].n_in == 2
    with pytest.raises(ValueError, match="the width is not known"):
        layer.init_state(2)


def test_a_mean_of_numbers_whose_sum_would_overflow():
    xs = np.full((5, 1), 2e38, np.float32)
    np.testing.assert_allclose(sqx.MeanOverTime(1)(xs), [2e38], rtol=1e-6)


@pytest.mark.parametrize("xs", [[np.inf, 1.0], [3e38, 3e38], [-3e38, 3e38], [1.0, -np.inf]])
def test_extreme_samples_in_a_stream_and_at_once(xs: Any):
    layer, xs = sqx.MeanOverTime(1), np.array(xs, np.float32)[:, None]
    state = layer.init_state()
    for x in xs[:-1]:
        _, state = layer.step(x, state)
    y, _ = layer.step(xs[-1], state)
    np.testing.assert_allclose(y, layer(xs), rtol=1e-6)
    np.testing.assert_allclose(y, xs.astype(np.float64).mean(0), rtol=1e-6)


# ---- layers of any width ---------------------------------------------------------------------------------------------

ROWS = np.random.default_rng(0).normal(size=(2, 4, 3)).astype(np.float32)
KEY = jax.random.key(3)
OF_ANY_WIDTH = {
    "LastStep": (lambda *n: sqx.LastStep(*n), None),
    "MeanOverTime": (lambda *n: sqx.MeanOverTime(*n), None),
    "MaxOverTime": (lambda *n: sqx.MaxOverTime(*n), None),
    "Flatten": (lambda *n: sqx.Flatten(5, *n), None),
    "RunningMean": (lambda *n: sqx.RunningMean(*n), None),
    "RunningMax": (lambda *n: sqx.RunningMax(*n), None),
    "VariationalDropout": (lambda *n: sqx.VariationalDropout(0.5, *n), KEY),
    "Sequential": (lambda *n: sqx.Sequential([sqx.Dropout(0.0), sqx.RunningMax(*n), jnp.tanh, sqx.LastStep(*n)]), None),
    "Parallel": (lambda *n: sqx.Parallel({"a": sqx.RunningMax(*n), "b": sqx.RunningMean(*n)}), None),
    "Residual": (lambda *n: sqx.Residual(sqx.RunningMax(*n)), None),
    "Remat": (lambda *n: sqx.Remat(sqx.RunningMean(*n)), None),
    "Stack": (lambda *n: sqx.Stack([sqx.RunningMax(*n), sqx.RunningMax(*n)]), None),
    "Bidirectional": (lambda *n: sqx.Bidirectional(sqx.MaxOverTime(*n), sqx.LastStep(*n)), None),
}


@pytest.mark.parametrize("name", OF_ANY_WIDTH)
def test_a_width_that_is_plain_to_see_need_not_be_told(name: str):
    make, key = OF_ANY_WIDTH[name]
    layer, told = make(), make(3)
    mask, resets = np.array([[True, True, False, True], [False] * 4]), np.array([[False, False, False, True]] * 2)
    expected, state = told.unroll(ROWS, mask=mask, resets=resets, key=key)
    np.testing.assert_array_equal(layer.unroll(ROWS, mask=mask, resets=resets, key=key)[0], expected)
    np.testing.assert_array_equal(layer(ROWS, mask=mask, resets=resets, key=key), expected)
    again = layer.unroll(ROWS, state, resets=resets, key=key)[0]
    np.testing.assert_array_equal(again, told.unroll(ROWS, state, resets=resets, key=key)[0])
    if told.streams:
        np.testing.assert_array_equal(layer.step(ROWS[:, 0], key=key)[0], told.step(ROWS[:, 0], key=key)[0])
    with pytest.raises(ValueError, match="the width is not known; give n_in"):
        layer.init_state(2)
