import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from sequinox.train import clip_by_norm


def tree(scale=1.0, dtype=np.float32):
    rng = np.random.default_rng(0)
    return {
        "W": jnp.asarray(rng.normal(size=(3, 4)) * scale, dtype),
        "b": (jnp.asarray(rng.normal(size=5) * scale, dtype),),
    }


def norm64(grads):
    return np.sqrt(sum((np.abs(np.asarray(g).astype(complex)) ** 2).sum() for g in jax.tree.leaves(grads)))


@pytest.mark.parametrize("max_norm", [0.5, 1, 2.0, 100.0])
def test_agrees_with_optax_and_reports_the_norm_before(max_norm):
    grads = tree()
    clipped, norm = clip_by_norm(grads, max_norm)
    with jax.numpy_dtype_promotion("standard"):
        theirs, _ = optax.clip_by_global_norm(max_norm).update(grads, optax.EmptyState())
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), clipped, theirs)
    np.testing.assert_allclose(norm, norm64(grads), rtol=1e-6)
    np.testing.assert_allclose(norm64(clipped), min(norm64(grads), max_norm), rtol=1e-6)


def test_below_the_limit_nothing_is_touched():
    grads = tree()
    clipped, _ = clip_by_norm(grads, float(norm64(grads)) * 1.001)
    jax.tree.map(np.testing.assert_array_equal, clipped, grads)


@pytest.mark.parametrize(
    ("dtype", "scale"),
    [(np.float32, 1e30), (np.float32, 1e-30), (np.float16, 1e4), (jnp.bfloat16, 1e30), (np.float32, 3e37)],
)
def test_extreme_and_half_precision_gradients_have_a_norm(dtype, scale):
    grads = tree(scale, dtype)
    clipped, norm = clip_by_norm(grads, scale / 2)
    assert norm.dtype == jnp.float32
    np.testing.assert_allclose(norm, norm64(grads), rtol=1e-5)
    np.testing.assert_allclose(norm64(clipped), scale / 2, rtol=5e-3 if dtype != np.float32 else 1e-5)
    assert all(leaf.dtype == dtype for leaf in jax.tree.leaves(clipped))


def test_a_limit_far_below_the_norm_does_not_underflow():
    clipped, norm = clip_by_norm(jnp.full(4, 1e30), 1e-10)
    np.testing.assert_allclose(clipped, 0.5e-10, rtol=1e-5)
    np.testing.assert_allclose(norm, 2e30, rtol=1e-5)


def test_zero_gradient_stays_zero():
    clipped, norm = clip_by_norm({"W": jnp.zeros((2, 3)), "e": jnp.zeros((0, 3))}, 1.0)
    assert float(norm) == 0 and not np.asarray(clipped["W"]).any() and clipped["e"].shape == (0, 3)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_norm_that_is_not_finite_zeroes_everything_and_shows(bad):
    grads = tree()
    grads["W"] = grads["W"].at[1, 2].set(bad)
    clipped, norm = clip_by_norm(grads, 1.0)
    assert not np.isfinite(float(norm))
    assert all(not np.asarray(leaf).any() for leaf in jax.tree.leaves(clipped))


def test_a_norm_past_the_range_is_not_finite_either():
    clipped, norm = clip_by_norm(jnp.full(4, 3e38), 1.0)
    assert np.isinf(float(norm)) and not np.asarray(clipped).any()


def test_other_leaves_and_the_structure_are_left_alone():
    float0 = np.zeros((2,), jax.dtypes.float0)
    grads = {
        "a": None,
        "i": jnp.arange(3),
        "z": float0,
        "f": jnp.array([3.0]),
        "s": "text",
        "n": np.full(1, np.float32(4)),
    }
    clipped, norm = clip_by_norm(grads, 1.0)
    assert float(norm) == 5
    assert clipped["a"] is None and clipped["z"] is float0 and clipped["s"] == "text"
    assert clipped["i"].tolist() == [0, 1, 2]
    np.testing.assert_allclose([clipped["f"][0], clipped["n"][0]], [0.6, 0.8], rtol=1e-6)
    assert jax.tree.structure(clipped) == jax.tree.structure(grads)
    assert float(clip_by_norm({"a": None}, 1.0)[1]) == 0


def test_mixed_and_complex_dtypes():
    grads = (jnp.array([3 + 4j]), jnp.array([12.0], jnp.bfloat16))
    clipped, norm = clip_by_norm(grads, 1.3)
    np.testing.assert_allclose(norm, 13, rtol=1e-6)
    np.testing.assert_allclose(clipped[0], [0.3 + 0.4j], rtol=1e-5)
    assert clipped[0].dtype == jnp.complex64 and clipped[1].dtype == jnp.bfloat16
    with jax.enable_x64(True):
        assert clip_by_norm(jnp.ones(3, jnp.float64), 1.0)[1].dtype == jnp.float64


def test_infinity_only_measures_and_jit_is_eager():
    grads = tree()
    clipped, norm = jax.jit(lambda g: clip_by_norm(g, np.inf))(grads)
    jax.tree.map(np.testing.assert_array_equal, clipped, grads)
    np.testing.assert_allclose(norm, norm64(grads), rtol=1e-6)
    traced, _ = jax.jit(clip_by_norm)(grads, jnp.array(0.5))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), traced, clip_by_norm(grads, 0.5)[0])


@pytest.mark.parametrize("max_norm", [0, 0.0, -1, np.nan, -np.inf])
def test_a_limit_of_zero_negative_or_nan_raises(max_norm):
    with pytest.raises(ValueError, match="max_norm must be above 0, got"):
        clip_by_norm(tree(), max_norm)


@pytest.mark.usefixtures("unchecked_types")
@pytest.mark.parametrize("max_norm", ["1", None, np.ones(2)])
def test_a_limit_that_is_no_number_raises(max_norm):
    with pytest.raises(ValueError, match="max_norm must be a number above 0"):
        clip_by_norm(tree(), max_norm)


def test_the_derivative_at_zero_is_zero():
    grad = jax.grad(lambda g: jnp.sum(clip_by_norm(g, 1.0)[1]))(jnp.zeros(3))
    assert grad.tolist() == [0, 0, 0]


@pytest.mark.parametrize("limit", [0.0, -1.0, float("nan")])
def test_a_wrong_limit_that_is_known_only_under_jit_gives_zeros(limit):
    clipped, norm = jax.jit(clip_by_norm)(jnp.array([3.0, 4.0]), limit)
    assert clipped.tolist() == [0, 0] and float(norm) == 5


def test_python_numbers_are_refused():
    with pytest.raises(TypeError, match=r"arrays, got the Python number 3\.0"):
        clip_by_norm({"a": 3.0, "b": jnp.ones(2)}, 1.0)
