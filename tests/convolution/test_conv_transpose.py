"""ConvTranspose1d against a loop that spreads sample by sample."""

import itertools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sequinox as sqx

pytestmark = pytest.mark.usefixtures("quick_compilation", "unchecked_types")

KEY = jax.random.key(0)
MASK = np.array([[1, 0, 1, 1, 0, 1], [0, 0, 1, 1, 1, 1], [0] * 6, [1, 1, 1, 1, 1, 1]], bool)
RESETS = np.array([[0, 0, 1, 0, 0, 1], [1, 1, 0, 0, 1, 0], [0, 1, 0, 0, 1, 0], [0, 0, 0, 1, 0, 0]], bool)


def spread_row(W: Any, b: Any, stride: int, xs: Any, before: Any) -> np.ndarray:
    """The complete fast samples of a row, that of `xs`, behind some samples before it."""
    k, n, _ = W.shape
    read = [*before, *xs]
    fast = np.zeros((stride * len(read) + k, n))
    for t, x in enumerate(read):
        for j in range(k):
            fast[stride * t + j] += W[j] @ x
    return fast[stride * len(before) : stride * len(read)] + b


@eqx.filter_jit
def run(up: Any, xs: Any, state: Any, mask: Any, resets: Any) -> Any:
    return up.unroll(xs, state, mask=mask, resets=resets)


@pytest.mark.parametrize(("k", "stride", "flagged"), [(7, 3, False), (7, 3, True), (2, 3, True), (3, 1, True)], ids=str)
def test_against_a_loop(k: int, stride: int, flagged: bool):
    random = np.random.default_rng(k)
    draw = lambda *shape: random.normal(size=shape).astype(np.float32)
    up = sqx.ConvTranspose1d(3, 2, k, stride, KEY)
    up = eqx.tree_at(lambda u: (u.W, u.b), up, (jnp.asarray(draw(k, 2, 3)), jnp.asarray(draw(2))))
    depth = -(-k // stride) - 1
    xs, state = draw(4, 6, 3), draw(4, depth, 3)
    flags = (MASK, RESETS) if flagged else (None, None)
    ys, final = run(up, jnp.asarray(xs), jnp.asarray(state), *flags)
    got = np.asarray(up.spread(ys))
    assert got.shape == (4, 6 * stride, 2) and up.n_out == 2 * stride and up.receptive_field == depth + 1
    mask, resets = (MASK, RESETS & MASK) if flagged else (np.ones((4, 6), bool), np.zeros((4, 6), bool))
    fast_mask = np.asarray(up.spread_mask(jnp.asarray(mask)))
    assert np.array_equal(fast_mask, np.kron(mask, np.ones((1, stride), bool)))
    assert not got[~fast_mask].any()
    W, b = np.asarray(up.W, np.float64), np.asarray(up.b, np.float64)
    for row in range(4):
        real = np.flatnonzero(mask[row])
        starts = [0, *(i for i, t in enumerate(real) if i and resets[row, t]), len(real)]
        before, pieces = list(state[row]), []
        for i, j in itertools.pairwise(starts):
            if i < len(real) and resets[row, real[i]]:
                before = []
            pieces.append(spread_row(W, b, stride, xs[row, real[i:j]], before))
            before = [*before, *xs[row, real[i:j]]]
        np.testing.assert_allclose(got[row][fast_mask[row]], np.concatenate(pieces), atol=2e-6)
        kept = np.concatenate([np.zeros((depth, 3)), np.reshape(before, (-1, 3))])
        np.testing.assert_array_equal(final[row], kept[len(kept) - depth :])


@eqx.filter_jit
def read_on(up: Any, gru: Any, xs: Any, mask: Any, resets: Any) -> Any:
    """A recurrent layer on the fast sequence."""
    fast = up.spread(up(xs, mask=mask, resets=resets))
    if mask is None:
        return gru(fast)
    return gru(fast, mask=up.spread_mask(mask), resets=up.spread_resets(resets))


def test_flags_of_the_fast_sequence():
    """A layer behind it sees packed rows as rows of their own."""
    k1, k2 = jax.random.split(KEY)
    up, gru = sqx.ConvTranspose1d(3, 2, 5, 2, k1), sqx.GRU(2, 4, k2)
    xs = jnp.asarray(np.random.default_rng(0).normal(size=(6, 3)), jnp.float32)
    mask, resets = jnp.asarray(MASK[0]), jnp.asarray(RESETS[0])
    hs = read_on(up, gru, xs, mask, resets)
    assert up.spread_resets(resets).tolist() == [False] * 4 + [True] + [False] * 5 + [True, False]
    for start, real in ((0, [0]), (4, [2, 3]), (10, [5])):  # where each packed row begins, and its samples
        alone = read_on(up, gru, xs[jnp.array(real)], None, None)
        np.testing.assert_allclose(hs[start : start + len(alone)], alone, atol=1e-6)
