"""Flatten against NumPy: whole, ragged, packed, too long, in a stream and in stretches."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sequinox as sqx

pytestmark = pytest.mark.usefixtures("quick_compilation")

XS = np.random.default_rng(0).normal(size=(5, 6, 3)).astype(np.float32)
MASK = np.array(
    [[1, 1, 1, 1, 1, 1], [0, 0, 0, 0, 0, 0], [1, 0, 1, 1, 0, 0], [0, 1, 0, 0, 0, 1], [0, 1, 1, 0, 1, 1]], bool
)
RESETS = np.array(
    [[0, 0, 1, 0, 0, 0], [1, 0, 0, 0, 0, 0], [0, 1, 0, 1, 0, 0], [1, 0, 0, 0, 0, 0], [1, 0, 1, 1, 0, 0]], bool
)


@eqx.filter_jit
def unroll(layer: Any, xs: Any, state: Any = None, mask: Any = None, resets: Any = None) -> Any:
    return layer.unroll(xs, state, mask=mask, resets=resets)


def of_rows(max_len: int, mask: Any, resets: Any) -> tuple[np.ndarray, list]:
    """The vectors, and which sample stands in which slot of which row."""
    out, places = np.zeros((5, max_len, 3), np.float32), []
    for row in range(5):
        since = max(np.flatnonzero(resets[row] & mask[row]), default=0)
        for slot, t in enumerate([t for t in range(since, 6) if mask[row, t]][:max_len]):
            out[row, slot] = XS[row, t]
            places.append((row, t, slot))
    return out.reshape(5, -1), places


@pytest.mark.parametrize("max_len", [1, 3, 8])
@pytest.mark.parametrize("flags", ["whole", "packed-ragged"])
def test_values_and_gradients(max_len: int, flags: str):
    mask, resets = MASK if "ragged" in flags else None, RESETS if "packed" in flags else None
    m, r = np.ones_like(MASK) if mask is None else mask, np.zeros_like(RESETS) if resets is None else resets
    layer = sqx.Flatten(max_len, 3)
    assert layer.n_out == 3 * max_len
    expected, places = of_rows(max_len, m, r)
    dirty = np.where(m[..., None], XS, np.float32(np.nan))
    np.testing.assert_array_equal(unroll(layer, dirty, None, mask, resets)[0], expected)
    state = None
    for start, stop in ((0, 2), (2, 2), (2, 6)):
        y, state = unroll(layer, dirty[:, start:stop], state, m[:, start:stop], r[:, start:stop])
    np.testing.assert_array_equal(y, expected)

    d_y = np.random.default_rng(1).normal(size=expected.shape).astype(np.float32)
    gradient = jax.jit(jax.grad(lambda x: jnp.sum(layer(x, mask=mask, resets=resets) * d_y)))(dirty)
    d_xs = np.zeros_like(XS)
    for row, t, slot in places:
        d_xs[row, t] = d_y.reshape(5, max_len, 3)[row, slot]
    np.testing.assert_array_equal(gradient, d_xs)


def test_a_stream_gives_the_vector_so_far():
    layer: Any = sqx.Flatten(3, 3)
    state = layer.init_state(5)
    step = eqx.filter_jit(lambda x, s, m: layer.step(x, s, mask=m))
    for t in range(6):
        y, state = step(XS[:, t], state, MASK[:, t])
        np.testing.assert_array_equal(y, of_rows(3, MASK & (np.arange(6) <= t), np.zeros_like(RESETS))[0])
    assert state.n.tolist() == [3, 0, 3, 2, 3]


def test_widths():
    layer: Any = sqx.Sequential([sqx.Dense(3, 2, jax.random.key(0)), sqx.Flatten(4)])
    assert layer[1].n_in == 2 and layer.n_out == 8
    first: Any = sqx.Sequential([sqx.Flatten(4), sqx.Dense(8, 2, jax.random.key(0))])
    assert first.n_in is None and first.n_out == 2
    with pytest.raises(ValueError, match="the width is not known"):
        first.init_state(2)
    assert sqx.Sequential([sqx.Flatten(4, 2), sqx.Dense(8, 2, jax.random.key(0))]).n_in == 2
    assert sqx.Flatten(4, 3)(jnp.ones((0, 5, 3))).shape == (0, 12)
