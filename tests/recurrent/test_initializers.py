"""Initialisers of recurrent weights against NumPy's decompositions, and which weights they draw."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sequinox as sqx

pytestmark = pytest.mark.usefixtures("quick_compilation")

KEY = jax.random.key(0)
GAUSSIAN = jax.nn.initializers.variance_scaling(1.0, "fan_in", "normal")
ORTHOGONAL = jax.nn.initializers.orthogonal


def singular_values(W: Any) -> np.ndarray:
    return np.linalg.svd(np.asarray(W, np.float64), compute_uv=False)


def recurrent_weight(initializer: Any, n_hidden: int = 200, dtype: Any = None) -> Any:
    return sqx.RNN(3, n_hidden, KEY, recurrent_initializer=initializer, dtype=dtype).U


def test_the_gaussian_has_spectral_radius_one_and_norm_two():
    U = np.asarray(recurrent_weight(GAUSSIAN))
    np.testing.assert_allclose(np.var(U), 1 / 200, rtol=0.03)
    assert 0.9 < np.abs(np.linalg.eigvals(U)).max() < 1.1
    assert 1.9 < singular_values(U)[0] < 2.1


@pytest.mark.parametrize("scale", [1.0, 0.7])
def test_orthogonal_weights_have_one_singular_value(scale: float):
    np.testing.assert_allclose(singular_values(recurrent_weight(ORTHOGONAL(scale), 30)), scale, rtol=1e-5)


@pytest.mark.parametrize("sigma_max", [1.0, 0.3, 4])
@pytest.mark.parametrize("shape", [(8, 8), (7, 4), (4, 7)])
def test_scaled_to_norm(shape: tuple[int, int], sigma_max: float):
    drawn = GAUSSIAN(KEY, shape, jnp.float32)
    W = sqx.scaled_to_norm(GAUSSIAN, sigma_max)(KEY, shape, jnp.float32)
    np.testing.assert_allclose(singular_values(W)[0], sigma_max, rtol=1e-5)
    ratio = np.asarray(W) / np.asarray(drawn)
    np.testing.assert_allclose(ratio, ratio[0, 0], rtol=1e-5)  # the same matrix but for its size


def test_a_scaled_gaussian_is_not_a_gaussian():
    """At norm 1 its spectral radius is about one half."""
    U = recurrent_weight(sqx.scaled_to_norm(GAUSSIAN))
    np.testing.assert_allclose(singular_values(U)[0], 1, rtol=1e-5)
    assert 0.4 < np.abs(np.linalg.eigvals(np.asarray(U))).max() < 0.6


def test_zeros_stay_zeros():
    W = sqx.scaled_to_norm(jax.nn.initializers.zeros)(KEY, (4, 4), jnp.float32)
    assert not np.any(W)


@pytest.mark.parametrize("scale", [0.95, 1, -2.0])
def test_scaled_identity(scale: float):
    W = sqx.scaled_identity(scale)(KEY, (4, 4), jnp.float32)
    np.testing.assert_array_equal(W, np.float32(scale) * np.eye(4, dtype=np.float32))
    np.testing.assert_allclose(0.95**14, 0.5, atol=0.02)  # the default's half-life, as the docstring says it
    np.testing.assert_array_equal(sqx.scaled_identity()(KEY, (2, 2)), np.float32(0.95) * np.eye(2, dtype=np.float32))


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_half_precision_is_decomposed_in_float32(dtype: Any):
    """JAX has no decompositions in half precision."""
    rounding = float(jnp.finfo(dtype).eps)
    for initializer in (ORTHOGONAL(), sqx.scaled_to_norm(GAUSSIAN), sqx.scaled_identity(1.0)):
        U = recurrent_weight(initializer, 20, dtype)
        assert U.dtype == dtype
        np.testing.assert_allclose(singular_values(U.astype(jnp.float32))[0], 1, atol=2 * rounding)
    alone = sqx.scaled_to_norm(GAUSSIAN, 3.0)(KEY, (20, 9), dtype)
    assert alone.dtype == dtype
    np.testing.assert_allclose(singular_values(alone.astype(jnp.float32))[0], 3, atol=6 * rounding)


def test_float64():
    with jax.enable_x64(True):
        W = sqx.scaled_to_norm(GAUSSIAN, 0.5)(KEY, (6, 6), jnp.float64)
        assert W.dtype == jnp.float64
        np.testing.assert_allclose(singular_values(W)[0], 0.5, rtol=1e-14)


@pytest.mark.parametrize(
    ("make", "letter"),
    [
        (lambda **k: sqx.RNN(3, 5, KEY, **k), "U"),
        (lambda **k: sqx.GRU(3, 5, KEY, **k), "U"),
        (lambda **k: sqx.LSTM(3, 5, KEY, **k), "R"),
        (lambda **k: sqx.LSTM(3, 5, KEY, variant="FGR", n_proj=2, **k), "R"),
    ],
    ids=["RNN", "GRU", "LSTM", "FGR"],
)
def test_the_recurrent_initializer_draws_the_recurrent_weights_alone(make: Any, letter: str):
    fill = lambda key, shape, dtype: jnp.full(shape, 0.125, dtype)
    one, other = sqx.parameters(make()), sqx.parameters(make(recurrent_initializer=fill))
    matrices = [name for name, a in one.items() if a.ndim == 2]
    recurrent = [name for name in matrices if name[0] == letter]
    assert recurrent and len(recurrent) < len(matrices)
    for name, array in other.items():
        assert np.all(np.asarray(array) == (0.125 if name in recurrent else one[name])), name


def test_the_recurrent_initializer_is_told_which_axis_is_which():
    """lecun_normal scales by the number of inputs: of a projected LSTM's recurrent weights, `n_proj`."""
    lstm = sqx.LSTM(3, 400, KEY, n_proj=50, recurrent_initializer=jax.nn.initializers.lecun_normal())
    for R in (lstm.R_z, lstm.R_o):
        np.testing.assert_allclose(np.var(np.asarray(R)), 1 / 50, rtol=0.05)


@pytest.mark.parametrize("kind", [sqx.RNN, sqx.GRU, sqx.LSTM])
def test_weights_of_a_key_are_those_of_one_split(kind: Any):
    """A key a matrix, in the order of the names: what a seed gives does not change with the options there are."""
    arrays = {name: a for name, a in sqx.parameters(kind(3, 5, KEY)).items() if a.ndim == 2}
    draw = jax.nn.initializers.xavier_normal()
    for (name, array), key in zip(arrays.items(), jax.random.split(KEY, len(arrays)), strict=True):
        np.testing.assert_array_equal(array, draw(key, array.shape[::-1], jnp.float32).T, err_msg=name)
