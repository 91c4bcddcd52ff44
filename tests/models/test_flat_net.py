"""The networks without memory against the layers they are made of, and what follows from their form."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sequinox as sqx

pytestmark = pytest.mark.usefixtures("quick_compilation")

KEY = jax.random.key(0)
XS = np.random.default_rng(0).normal(size=(4, 6, 3)).astype(np.float32)
MASK = np.arange(6) < np.array([6, 0, 2, 4])[:, None]


def names(net: Any) -> list[str]:
    return [type(la).__name__ for la in net]


def by_hand(net: Any, x: np.ndarray) -> np.ndarray:
    first, last = net[1], net[-1]
    hidden = np.maximum(x @ np.asarray(first.W).T + np.asarray(first.b), 0)
    return hidden @ np.asarray(last.W).T + np.asarray(last.b)


def test_flat_net():
    net = sqx.flat_net(3, 4, 5, 2, KEY)
    assert names(net) == ["Flatten", "Dense", "PerSample", "Dense"]
    assert names(sqx.flat_net(3, 4, 5, 2, KEY, dropout=0.1)) == ["Flatten", "Dense", "PerSample", "Dropout", "Dense"]
    filled = np.where(MASK[..., None], XS, 0)[:, :4].reshape(4, 12)  # cut, and followed by zeros
    np.testing.assert_allclose(net(XS, mask=MASK), by_hand(net, filled), atol=1e-5)


def test_a_place_has_weights_of_its_own():
    """Column block t of the first weight meets sample t and nothing else."""
    net = sqx.flat_net(3, 6, 5, 2, KEY)
    gradient = jax.grad(lambda W: jnp.sum(W @ sqx.Flatten(6, 3)(np.where(np.arange(6)[:, None] == 4, XS[0], 0))))
    touched = np.asarray(gradient(net[1].W) != 0).any(0)
    assert touched.tolist() == [i // 3 == 4 for i in range(18)]


@pytest.mark.parametrize("pool", ["mean", "max"])
def test_pooling_net(pool: Any):
    net = sqx.pooling_net(3, 5, 2, KEY, pool=pool)
    assert names(net) == [{"mean": "MeanOverTime", "max": "MaxOverTime"}[pool], "Dense", "PerSample", "Dense"]
    of = np.mean if pool == "mean" else np.max
    pooled = np.stack([of(x[m], 0) if m.any() else np.zeros(3) for x, m in zip(XS, MASK, strict=True)])
    np.testing.assert_allclose(net(XS, mask=MASK), by_hand(net, pooled), atol=1e-5)


@pytest.mark.parametrize("pool", ["mean", "max"])
def test_order_does_not_matter_to_a_pooling_net(pool: Any):
    """Nor does it to its gradient; a flat network sees it."""
    order = np.array([4, 0, 5, 2, 1, 3])
    net: Any = sqx.pooling_net(3, 5, 2, KEY, pool=pool)
    run = jax.jit(jax.value_and_grad(lambda x: jnp.sum(net(x)[:, 0])))
    (total, gradient), (moved_total, moved) = run(XS), run(XS[:, order])
    np.testing.assert_allclose(total, moved_total, atol=1e-5)
    np.testing.assert_allclose(gradient[:, order], moved, atol=1e-6)
    flat = sqx.flat_net(3, 6, 5, 2, KEY)
    assert np.abs(flat(XS) - flat(XS[:, order])).min() > 1e-3


def test_how_many_weights_a_flat_layer_has():
    """100 samples of 300 numbers and 512 hidden units: 15.4 million, where one block that all places share has 154
    thousand. Counted without making them."""
    flat = jax.eval_shape(lambda: sqx.parameters(sqx.flat_net(300, 100, 512, 10, KEY)))
    pooling = jax.eval_shape(lambda: sqx.parameters(sqx.pooling_net(300, 512, 10, KEY)))
    assert flat["layers[1].W"].size == 15_360_000
    assert pooling["layers[1].W"].size == 153_600
    assert [len(p) for p in (flat, pooling)] == [4, 4]


def test_in_a_stream():
    for net in (sqx.flat_net(3, 4, 5, 2, KEY), sqx.pooling_net(3, 5, 2, KEY, pool="max")):
        state, step = net.init_state(4), jax.jit(lambda x, s, m, net=net: net.step(x, s, mask=m))
        y: Any = None
        for t in range(6):
            y, state = step(XS[:, t], state, MASK[:, t])
        np.testing.assert_allclose(y, net(XS, mask=MASK), atol=1e-5)
