"""Checksums: of arrays, each process adding up its own parts, and of the descriptions beside them.

The sum of an array is linear in its numbers, taken as unsigned integers, modulo 2^64: each is multiplied by one odd
pseudo-random weight for its place along every axis. So the parts of an array may lie anywhere, and be cut otherwise
when they are read again; a single changed number always changes the sum. It finds accidents, and stops no attacker.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator
from typing import Any

import jax
import numpy as np

_MASK = 2**64 - 1
_CHUNK = 1 << 15  # numbers at once: what is made of them stays in the cache


def describe_sum(value: Any) -> str:
    """The checksum of what is JSON-able."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:32]


def own_sums(arrays: dict[str, Any]) -> dict[str, int]:
    """What this process holds of the sum of each array; each part of a global array counts on one process alone."""
    return {
        path: sum(array_sum(part, start) for part, start in _own_parts(leaf)) & _MASK for path, leaf in arrays.items()
    }


def add_up(sums: Iterable[dict[str, int]]) -> dict[str, str]:
    """The sums of whole arrays, from those of all processes."""
    total: dict[str, int] = {}
    for own in sums:
        for path, value in own.items():
            total[path] = (total.get(path, 0) + value) & _MASK
    return {path: f"{value:016x}" for path, value in total.items()}


def array_sum(part: np.ndarray, start: tuple[int, ...] = ()) -> int:
    """The sum of a part of an array that starts at `start`; by default of all of it."""
    words = _as_words(part)
    for axis in reversed(range(words.ndim)):
        words = _contract(words, axis, start[axis] if axis < len(start) else 0)
    return int(words)


def _own_parts(leaf: Any) -> Iterator[tuple[np.ndarray, tuple[int, ...]]]:
    if isinstance(leaf, jax.Array):
        for shard in leaf.addressable_shards:
            if shard.replica_id == 0:
                # Of the shard's own array: the whole one would keep its copy, and its buffer could not be donated.
                yield np.asarray(shard.data), tuple(part.start or 0 for part in shard.index)
    elif jax.process_index() == 0:
        yield np.asarray(leaf), ()


def _as_words(part: np.ndarray) -> np.ndarray:
    """The numbers as unsigned integers of at most 32 bits, wider ones as several.

    A sum of differences in the highest bits of 64 would be left with those few bits.
    """
    part = np.ascontiguousarray(part, part.dtype.newbyteorder("<")).reshape(part.shape)
    size = part.dtype.itemsize
    if size > 4:
        return part.reshape(*part.shape, 1).view("<u4")
    return part.reshape(part.shape or (1,)).view(f"<u{size}")


def _contract(words: np.ndarray, axis: int, start: int) -> np.ndarray:
    """The sums along the last axis, weighted."""
    *outer, last = words.shape
    rows = words.reshape(-1, last)
    sums = np.zeros(len(rows), np.uint64)
    n_columns = min(last, _CHUNK)
    n_rows = max(1, _CHUNK // n_columns)
    for left in range(0, last, n_columns):
        weights = _weights(axis, start + left, start + min(left + n_columns, last))
        for top in range(0, len(rows), n_rows):
            block = rows[top : top + n_rows, left : left + n_columns]
            sums[top : top + n_rows] += block.astype(np.uint64) @ weights
    return sums.reshape(outer)


def _weights(axis: int, start: int, stop: int) -> np.ndarray:
    """An odd pseudo-random number for each place along an axis (splitmix64)."""
    z = np.arange(start, stop, dtype=np.uint64) + np.uint64((axis + 1) << 48)
    z *= np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (z ^ (z >> np.uint64(31))) | np.uint64(1)
