"""Bidirectional: what the backward layer reads."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sequinox as sqx

pytestmark = pytest.mark.usefixtures("quick_compilation")

K1, K2 = jax.random.split(jax.random.key(0))
B, T = 4, 6
XS = jnp.asarray(np.random.default_rng(0).normal(size=(B, T, 3)), jnp.float32)
MASK = jnp.array([[1, 1, 1, 1, 1, 1], [0, 0, 0, 0, 0, 0], [1, 0, 1, 1, 0, 0], [0, 1, 0, 0, 0, 1]], bool)
RESETS = jnp.array([[0, 0, 1, 0, 0, 0], [1, 0, 0, 0, 0, 0], [0, 0, 0, 1, 0, 0], [0, 0, 0, 0, 0, 0]], bool)


def make() -> tuple[Any, Any, sqx.Bidirectional]:
    forward, backward = sqx.GRU(3, 5, K1), sqx.LSTM(3, 4, K2)
    return forward, backward, sqx.Bidirectional(forward, backward)


def real(row: int) -> np.ndarray:
    return np.flatnonzero(MASK[row])


@pytest.mark.parametrize("row", range(B))
def test_each_row_is_read_backwards_within_its_own_mask(row: int):
    forward, backward, both = make()
    ys, state = both.unroll(XS, mask=MASK)
    samples = XS[row, real(row)]
    hs, h = forward.unroll(samples)
    ks, k = backward.unroll(samples[::-1])
    expected = np.zeros((T, 9), np.float32)
    expected[real(row)] = np.concatenate([hs, ks[::-1]], -1)
    np.testing.assert_allclose(ys[row], expected, atol=1e-6)
    np.testing.assert_allclose(state.forward[row], h, atol=1e-6)
    np.testing.assert_allclose(state.backward.c[row], k.c, atol=1e-6)
    if len(real(row)):
        np.testing.assert_allclose(state.backward.y[row], ys[row, real(row)[0], 5:], atol=1e-6)


def test_packed_rows_are_read_backwards_each_on_its_own():
    _, _, both = make()
    ys = both(XS, mask=MASK, resets=RESETS)
    for row, cuts in ((0, [(0, 2), (2, 6)]), (2, [(0, 3), (3, 6)])):
        for start, stop in cuts:
            alone = both(XS[row, start:stop], mask=MASK[row, start:stop])
            np.testing.assert_allclose(ys[row, start:stop], alone, atol=1e-6)


def test_a_palindrome_mirrors():
    """With tied weights; the row is padded on both sides, and the pads are NaN."""
    cell = sqx.GRU(3, 5, K1)
    half = np.asarray(XS[0, :2])
    row = np.concatenate([np.full((2, 3), np.nan), half, half[::-1], np.full((1, 3), np.nan)]).astype(np.float32)
    mask = np.array([0, 0, 1, 1, 1, 1, 0], bool)
    ys, state = sqx.Bidirectional(cell, cell).unroll(jnp.asarray(row), mask=jnp.asarray(mask))
    inside = np.asarray(ys)[2:6]
    np.testing.assert_allclose(inside[:, :5], inside[::-1, 5:], atol=1e-6)
    np.testing.assert_allclose(state.forward, state.backward, atol=1e-6)
    assert np.abs(inside[0, :5] - inside[0, 5:]).max() > 0.01


def test_pooled_directions_give_each_its_own_last():
    forward, backward, _ = make()
    last = lambda la: sqx.Sequential([la, sqx.LastStep()])
    y = sqx.Bidirectional(last(forward), last(backward))(XS, mask=MASK)
    _, (h, k) = make()[2].unroll(XS, mask=MASK)
    np.testing.assert_allclose(y, np.concatenate([h, k.y], -1), atol=1e-6)
    assert not np.any(y[1])


def test_pooled_directions_of_packed_rows_are_of_the_last_one():
    """Both of them: a row's pooled output mixes no other packed row in."""
    forward, backward, _ = make()
    last = lambda la: sqx.Sequential([la, sqx.LastStep()])
    both = sqx.Bidirectional(last(forward), last(backward))
    y = both(XS, mask=MASK, resets=RESETS)
    np.testing.assert_allclose(y[0], both(XS[0, 2:]), atol=1e-6)
    np.testing.assert_allclose(y[2], both(XS[2, 3:], mask=MASK[2, 3:]), atol=1e-6)


def test_the_given_states_start_each_direction():
    forward, backward, both = make()
    h = jnp.asarray(np.random.default_rng(1).normal(size=(B, 5)), jnp.float32)
    pair = tuple(jnp.asarray(np.random.default_rng(i).normal(size=(B, 4)), jnp.float32) for i in (2, 3))
    ys, _ = both.unroll(XS, (h, pair))
    np.testing.assert_allclose(ys[..., :5], forward.unroll(XS, h)[0], atol=1e-6)
    np.testing.assert_allclose(ys[..., 5:], backward.unroll(XS[:, ::-1], pair)[0][:, ::-1], atol=1e-6)


def test_gradients_with_nan_in_pads():
    _, _, both = make()
    dirty = jnp.where(MASK[..., None], XS, jnp.nan)
    value = lambda args, xs: jnp.sum(jnp.sin(args(xs, mask=MASK)))
    clean_grads = eqx.filter_grad(value)(both, jnp.where(MASK[..., None], XS, 0))
    dirty_grads = eqx.filter_grad(value)(both, dirty)
    assert eqx.tree_equal(clean_grads, dirty_grads)
    d_xs = jax.grad(lambda x: value(both, x))(dirty)
    assert np.isfinite(d_xs).all() and not np.any(d_xs[~np.asarray(MASK)])


def test_it_names_its_reason():
    _, _, both = make()
    assert not both.streams
    with pytest.raises(TypeError, match=r"Bidirectional\.step: this layer does not stream: .*end"):
        both.step(XS[:, 0])
