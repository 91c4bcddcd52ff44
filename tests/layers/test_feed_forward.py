"""The feed-forward network of a transformer block, against NumPy."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sequinox as sqx

pytestmark = pytest.mark.usefixtures("quick_compilation")

KEY = jax.random.key(0)
N_IN, D_FF = 3, 5
XS = np.random.default_rng(0).normal(size=(4, 6, N_IN)).astype(np.float32)

erf = np.vectorize(math.erf)
ACTIVATIONS: dict[str, tuple[Any, Any]] = {
    "relu": (jax.nn.relu, lambda a: np.maximum(a, 0)),
    "silu": (jax.nn.silu, lambda a: a / (1 + np.exp(-a))),
    "gelu": (jax.nn.gelu, lambda a: a / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (a + 0.044715 * a**3)))),
    "exact-gelu": (lambda a: jax.nn.gelu(a, approximate=False), lambda a: a / 2 * (1 + erf(a / math.sqrt(2)))),
    "tanh": (jnp.tanh, np.tanh),
}


def filled(layer: Any) -> Any:
    random = np.random.default_rng(1)
    return jax.tree.map(lambda a: jnp.asarray(random.normal(size=a.shape), a.dtype), layer)


@pytest.mark.parametrize("use_bias", [True, False], ids=["biases", "no-biases"])
@pytest.mark.parametrize("gated", [False, True], ids=["plain", "gated"])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_against_numpy(activation: str, gated: bool, use_bias: bool):
    ours, theirs = ACTIVATIONS[activation]
    layer = filled(sqx.FeedForward(N_IN, D_FF, KEY, activation=ours, gated=gated, use_bias=use_bias))
    w = {name: np.asarray(a, np.float64) for name, a in sqx.parameters(layer).items()}
    expected_names = {"W_1", "W_2"} | ({"W_g"} if gated else set())
    assert set(w) == expected_names | ({n.replace("W", "b") for n in expected_names} if use_bias else set())
    affine = lambda name, x: x @ w[f"W_{name}"].T + w.get(f"b_{name}", 0)
    inner = theirs(affine("g", XS)) * affine("1", XS) if gated else theirs(affine("1", XS))
    np.testing.assert_allclose(layer(jnp.asarray(XS)), affine("2", inner), rtol=1e-5, atol=1e-5)


def test_its_arrays():
    layer = sqx.FeedForward(N_IN, D_FF, KEY, gated=True)
    shapes = {name: a.shape for name, a in sqx.parameters(layer).items()}
    assert shapes == {"W_1": (5, 3), "b_1": (5,), "W_g": (5, 3), "b_g": (5,), "W_2": (3, 5), "b_2": (3,)}
    assert not any(np.any(b) for b in (layer.b_1, layer.b_g, layer.b_2))
    matrices = [layer.W_1, layer.W_2.T, layer.W_g]
    assert all(not np.array_equal(a, b) for i, a in enumerate(matrices) for b in matrices[:i])
    assert all(a is None for a in (sqx.FeedForward(N_IN, D_FF, KEY).W_g, sqx.FeedForward(N_IN, D_FF, KEY).b_g))


def test_the_spread_of_its_weights():
    """Glorot's, with the fans of each matrix; and an initialiser of one's own."""
    layer: Any = sqx.FeedForward(40, 120, KEY, gated=True)
    for W in (layer.W_1, layer.W_2, layer.W_g):
        assert np.std(W) == pytest.approx(math.sqrt(2 / 160), rel=0.05)
    same = sqx.FeedForward(N_IN, D_FF, KEY, initializer=jax.nn.initializers.constant(0.5))
    assert np.all(np.asarray(same.W_1) == 0.5) and np.all(np.asarray(same.W_2) == 0.5)


def test_any_batch_axes_also_none_and_empty_ones():
    layer = filled(sqx.FeedForward(N_IN, D_FF, KEY, gated=True))
    whole = np.asarray(layer(jnp.asarray(XS)))
    np.testing.assert_allclose(layer(jnp.asarray(XS[0])), whole[0], atol=1e-6)
    np.testing.assert_allclose(layer(jnp.asarray(XS.reshape(2, 2, 6, N_IN))), whole.reshape(2, 2, 6, N_IN), atol=1e-6)
    assert layer(jnp.zeros((0, 6, N_IN))).shape == (0, 6, N_IN) and layer(jnp.zeros((4, 0, N_IN))).shape == (4, 0, N_IN)
    y, state = layer.step(jnp.asarray(XS[:, 2]))
    np.testing.assert_allclose(y, whole[:, 2], atol=1e-6)
    assert state == ()


def test_half_precision():
    layer = sqx.FeedForward(N_IN, D_FF, KEY, dtype=jnp.bfloat16)
    assert layer(jnp.asarray(XS, jnp.bfloat16)).dtype == jnp.bfloat16


@pytest.mark.parametrize(
    ("make", "kind", "words"),
    [
        (lambda: sqx.FeedForward(0, 5, KEY), ValueError, "n_in must be at least 1"),
        (lambda: sqx.FeedForward(3, 0, KEY), ValueError, "d_ff must be at least 1"),
        (lambda: sqx.FeedForward(3, 5, KEY, dtype=jnp.int32), TypeError, "floating dtype"),
        (lambda: sqx.FeedForward(3, 5, KEY, initializer=lambda *_: jnp.zeros((2, 2))), ValueError, "initializer"),
        (lambda: sqx.FeedForward(3, 5, KEY)(jnp.ones((4, 2))), ValueError, r"\(\*batch, time, 3\)"),
        (lambda: sqx.FeedForward(3, 5, KEY, activation=jnp.sum)(jnp.ones((4, 3))), ValueError, "activation must keep"),
        (lambda: sqx.FeedForward(3, 6, KEY, activation=jax.nn.glu)(jnp.ones((4, 3))), ValueError, r"6\), got .* 3\)"),
        (lambda: sqx.FeedForward(3, 5, KEY, activation=jnp.isnan)(jnp.ones((4, 3))), ValueError, "got bool"),
    ],
    ids=["n_in", "d_ff", "dtype", "initializer", "width", "a-sum", "a-half", "a-question"],
)
def test_errors(make: Any, kind: Any, words: str):
    with pytest.raises(kind, match=words):
        make()
