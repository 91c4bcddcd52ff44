"""Masks from lengths, against a loop."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sequinox as sqx


def by_hand(lengths: Any, time: int) -> np.ndarray:
    lengths = np.asarray(lengths)
    mask = np.zeros((*lengths.shape, time), bool)
    for i in np.ndindex(lengths.shape):
        for t in range(time):
            mask[i][t] = t < lengths[i]
    return mask


@pytest.mark.parametrize(
    "lengths",
    [
        [3, 0, 5, 4],
        np.array([3, 0, 5, 4]),
        np.array([3, 0, 5, 4], np.uint8),
        jnp.array([3, 0, 5, 4]),
        np.array([[3, 0, 5], [4, 1, 2]]),
        np.int64(5),
        5,
    ],
    ids=lambda lengths: type(lengths).__name__,
)
@pytest.mark.parametrize("time", [None, 5, 7])
def test_the_first_samples_are_real(lengths: Any, time: int | None):
    mask = sqx.mask_from_lengths(lengths, time)
    assert isinstance(mask, jax.Array) and mask.dtype == bool
    np.testing.assert_array_equal(mask, by_hand(lengths, time or 5))


def test_no_rows_and_no_samples():
    assert sqx.mask_from_lengths([]).shape == (0, 0)
    assert sqx.mask_from_lengths([], 3).shape == (0, 3)
    assert sqx.mask_from_lengths(np.zeros(2, int)).shape == (2, 0)


def test_under_jit_with_a_given_time():
    lengths = jnp.array([3, 0, 5])
    masked = jax.jit(lambda n: sqx.mask_from_lengths(n, 6))
    np.testing.assert_array_equal(masked(lengths), by_hand(lengths, 6))
    np.testing.assert_array_equal(jax.vmap(lambda n: sqx.mask_from_lengths(n, 6))(lengths), by_hand(lengths, 6))
    with pytest.raises(ValueError, match=r"under jax.jit the lengths are not known yet: give time"):
        jax.jit(sqx.mask_from_lengths)(lengths)
    with pytest.raises(Exception, match="lengths must be between 0 and time, 6"):
        jax.block_until_ready(masked(jnp.array([3, 7, 5])))


@pytest.mark.parametrize(
    ("lengths", "time", "kind", "words"),
    [
        ([3, 5], 4, ValueError, "lengths must be between 0 and time, 4, got 0 to 5"),
        ([3, -1], None, ValueError, "lengths must be between 0 and time, 3, got -1 to 3"),
        ([3.0], None, TypeError, "lengths must be integers, got dtype float64"),
        (np.array([True]), None, TypeError, "lengths must be integers, got dtype bool"),
        ("3", None, TypeError, "lengths must be an array or a list of integers, got str"),
        ([3], 4.0, TypeError, "time must be an integer, got 4.0"),
        ([3], -1, ValueError, "time must be at least 0, got -1"),
    ],
)
@pytest.mark.usefixtures("unchecked_types")
def test_what_it_refuses(lengths: Any, time: Any, kind: type[Exception], words: str):
    with pytest.raises(kind, match=words):
        sqx.mask_from_lengths(lengths, time)


def test_lengths_of_few_bits():
    mask = sqx.mask_from_lengths(jnp.array([200, 3], jnp.uint8), 300)
    assert mask.shape == (2, 300) and mask.sum(-1).tolist() == [200, 3]
