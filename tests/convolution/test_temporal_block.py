"""TemporalBlock: its dropout, and how far it sees. Its numbers are compared with PyTorch's elsewhere."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sequinox as sqx

pytestmark = pytest.mark.usefixtures("quick_compilation", "unchecked_types")

KEY = jax.random.key(0)
XS = jnp.asarray(np.random.default_rng(0).normal(size=(50, 40, 3)), jnp.float32)


@eqx.filter_jit
def run(block: Any, xs: Any, key: Any) -> Any:
    return block(xs, key=key)


def test_dropout_stands_behind_both_convolutions():
    """In each half of a residual of zero, the share of zeros; the two are drawn apart."""
    block = sqx.TemporalBlock(3, 5, 2, KEY, dropout=0.4, weight_norm=False)
    block = eqx.tree_at(lambda b: (b.residual.W, b.first.b, b.second.b), block, (jnp.zeros((5, 3)), *[jnp.ones(5)] * 2))
    block = eqx.tree_at(lambda b: (b.first.W, b.second.W), block, (jnp.zeros((2, 5, 3)), jnp.zeros((2, 5, 5))))
    ys = np.asarray(run(block, XS, jax.random.key(1)))  # the bias of the second, dropped or scaled
    assert set(np.unique(ys.round(5))) == {0.0, np.float32(1 / 0.6).round(5)}
    np.testing.assert_allclose((ys == 0).mean(), 0.4, atol=0.02)
    # The second passes on what the first gives: zero if dropped at either.
    through = eqx.tree_at(
        lambda b: (b.second.W, b.second.b), block, (jnp.stack([jnp.eye(5), jnp.zeros((5, 5))]), jnp.zeros(5))
    )
    ys = np.asarray(run(through, XS, jax.random.key(1)))
    np.testing.assert_allclose((ys != 0).mean(), 0.6 * 0.6, atol=0.02)
    assert set(np.unique(ys.round(4))) == {0.0, np.float32(1 / 0.36).round(4)}
    still = eqx.nn.inference_mode(through)
    np.testing.assert_allclose(run(still, XS, None), 1, atol=1e-6)
    with pytest.raises(ValueError, match="key"):
        run(block, XS, None)


def test_how_far_it_sees():
    k, dilation, field = 3, 4, 17
    block = sqx.TemporalBlock(3, 3, k, KEY, dilation=dilation)
    assert block.receptive_field == field
    gradient = np.asarray(jax.jit(jax.jacobian(lambda xs: block(xs)[-1]))(XS[0]))
    lags = 39 - np.flatnonzero(gradient.any((0, 2)))
    assert lags.max() == field - 1 and set(lags) <= {dilation * j for j in range(2 * k - 1)}
