"""Ragged rows whose every sample tells where it comes from, and what the tests of the sources ask of them."""

import jax
import numpy as np

LENGTHS = [3, 0, 7, 5, 1, 5, 2, 9, 4, 1, 6]


def rows(lengths=LENGTHS, dtype=np.float32):
    """Sample t of sequence i is (100 i + t + 1, its negative)."""
    made = [(100 * i + np.arange(1, n + 1)).astype(dtype) for i, n in enumerate(lengths)]
    return [np.stack([row, -row], axis=1) for row in made]


def per_sample(lengths=LENGTHS):
    return [(100 * i + np.arange(1, n + 1)).astype(np.int32) for i, n in enumerate(lengths)]


def per_sequence(lengths=LENGTHS):
    return np.stack([np.array([i, 2 * i, 3 * i], np.int32) for i in range(1, len(lengths) + 1)])


def samples(batch):
    """The real samples of a batch, `100 i + t + 1` each, row by row."""
    assert not batch.inputs[~batch.mask].any()
    np.testing.assert_array_equal(batch.inputs[..., 1], -batch.inputs[..., 0])
    return [[int(x) for x in row[real, 0]] for row, real in zip(batch.inputs, batch.mask, strict=True)]


def all_samples(lengths=LENGTHS):
    return sorted(100 * i + t for i, n in enumerate(lengths) for t in range(1, n + 1))


def take(source, n):
    return [next(source) for _ in range(n)]


def epoch(source):
    return take(source, source.steps_per_epoch)


def assert_equal(got, expected):
    """Of batches: structure, dtypes and every number."""
    assert jax.tree.structure(got) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)
