"""Gated convolutions and the stack of them against their equations in NumPy; what an output sees."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sequinox as sqx

pytestmark = pytest.mark.usefixtures("quick_compilation", "unchecked_types")

KEY = jax.random.key(0)
MASK = np.array([[1, 0, 1, 1, 0, 1, 1, 1], [0, 0, 1, 1, 1, 1, 1, 0], [0] * 8], bool)
RESETS = np.array([[0, 0, 1, 0, 0, 0, 1, 0], [1, 1, 0, 0, 0, 1, 0, 0], [0, 1, 0, 0, 1, 0, 0, 0]], bool)


def filled(layer: Any) -> Any:
    random = np.random.default_rng(1)
    return jax.tree.map(lambda a: jnp.asarray(0.6 * random.normal(size=a.shape), a.dtype), layer)


def gated(gate: Any, xs: np.ndarray) -> np.ndarray:
    """A row of samples, with nothing before it."""
    array = lambda a: np.asarray(a, np.float64)
    zs = []
    for t in range(len(xs)):
        f, g = array(gate.b_f), array(gate.b_g)
        for j in range(gate.kernel_size):
            if t >= j * gate.dilation:
                f = f + array(gate.W_f)[j] @ xs[t - j * gate.dilation]
                g = g + array(gate.W_g)[j] @ xs[t - j * gate.dilation]
        zs.append(np.tanh(f) / (1 + np.exp(-g)))
    return np.reshape(zs, (len(xs), gate.n_out))


def stacked(net: Any, xs: np.ndarray) -> np.ndarray:
    dense = lambda la, z: z @ np.asarray(la.W, np.float64).T + np.asarray(la.b, np.float64)
    total = np.zeros((len(xs), net.n_out))
    for i, gate in enumerate(net.gates):
        z = gated(gate, xs)
        total = total + dense(net.skips[i], z)
        if i < len(net.gates) - 1:
            xs = xs + dense(net.residuals[i], z)
    return total


@pytest.mark.parametrize("kind", ["gated", "stack"])
def test_against_the_equations(kind: str):
    """Rows with gaps, packed by resets: each as a row of its own."""
    make = {
        "gated": lambda: sqx.GatedConv1d(3, 5, 3, KEY, dilation=2),
        "stack": lambda: sqx.WaveNet(3, 2, (1, 2, 1), KEY, n_hidden=4, kernel_size=3),
    }[kind]
    layer, oracle = filled(make()), gated if kind == "gated" else stacked
    xs = np.random.default_rng(2).normal(size=(3, 8, 3)).astype(np.float32)
    got = np.asarray(eqx.filter_jit(layer)(jnp.asarray(xs), mask=MASK, resets=RESETS))
    for row in range(3):
        real = np.flatnonzero(MASK[row])
        number = np.cumsum(RESETS[row][real])
        for n in np.unique(number):
            places = real[number == n]
            np.testing.assert_allclose(got[row, places], oracle(layer, xs[row, places]), atol=2e-6)
        assert not got[row, ~MASK[row]].any()


@pytest.mark.parametrize("depth", [1, 5])
def test_doubling_dilations_see_twice_as_far(depth: int):
    """2^L samples with two taps, and that is as far as the gradient reaches."""
    net = filled(sqx.WaveNet(2, 3, [2**i for i in range(depth)], KEY))
    field, time = 2**depth, 40
    assert net.receptive_field == field
    xs = jnp.asarray(np.random.default_rng(2).normal(size=(time, 2)), jnp.float32)
    gradient = np.asarray(jax.jit(jax.jacobian(lambda xs: net(xs)[-1]))(xs))
    assert gradient.any((0, 2)).tolist() == [False] * (time - field) + [True] * field


def test_every_array_of_the_stack_is_trained():
    """The last layer has no residual, which nothing would read."""
    net = sqx.WaveNet(3, 2, (1, 2, 4), KEY)
    assert (len(net.gates), len(net.residuals), len(net.skips)) == (3, 2, 3)
