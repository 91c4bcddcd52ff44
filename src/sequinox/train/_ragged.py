"""Ragged sequences to one rectangle and a mask."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import numpy as np


class Padded(NamedTuple):
    """Sequences of different lengths as one array, with a mask of what is real.

    Attributes:
        inputs: `(batch, time, *features)`, zeros after each row's end.
        mask: `(batch, time)` bool, True on real samples.
    """

    inputs: np.ndarray
    mask: np.ndarray


def pad(sequences: Iterable[Any], length: int | None = None) -> Padded:
    """Pads sequences on the right with zeros to one length.

    It works on the host and keeps the dtype: what reaches a device is decided by whoever feeds it.

    Arguments:
        sequences: arrays `(time_i, *features)`, NumPy or JAX, of one dtype and one feature shape. A length of 0 is
            ordinary: its row of the mask is all False.
        length: the length of the time axis. Default: the longest sequence. Fix it when several calls must give one
            shape, so that a jitted function is compiled once.

    Returns:
        `Padded(inputs, mask)`, NumPy arrays `(batch, time, *features)` and `(batch, time)`.

    Raises:
        TypeError: an entry is not an array, or `length` is not an integer.
        ValueError: no sequences, a 0-d entry, different feature shapes or dtypes, or `length` below the longest.

    Examples:
        >>> import numpy as np
        >>> from sequinox.train import pad
        >>> inputs, mask = pad([np.array([1.0, 2.0]), np.array([3.0])])
        >>> inputs.tolist(), mask.tolist()
        ([[1.0, 2.0], [3.0, 0.0]], [[True, True], [True, False]])
    """
    arrays: list[np.ndarray] = []
    for i, sequence in enumerate(sequences):
        if not isinstance(sequence, (np.ndarray, jax.Array)):
            raise TypeError(
                f"pad: sequences[{i}] must be a NumPy or JAX array, got {type(sequence).__name__}; "
                "its dtype would be a guess."
            )
        if sequence.ndim == 0:
            raise ValueError(f"pad: sequences[{i}] must have a time axis, got a 0-d array.")
        arrays.append(np.asarray(sequence))
    if not arrays:
        raise ValueError("pad: sequences is empty; at least one is needed to know the feature shape and dtype.")
    features, dtype = arrays[0].shape[1:], arrays[0].dtype
    for i, array in enumerate(arrays):
        if array.shape[1:] != features:
            raise ValueError(
                f"pad: all sequences must have one feature shape, got {array.shape[1:]} in sequences[{i}] "
                f"and {features} in sequences[0]."
            )
        if array.dtype != dtype:
            raise ValueError(
                f"pad: all sequences must have one dtype, got {array.dtype} in sequences[{i}] "
                f"and {dtype} in sequences[0]."
            )
    lengths = np.array([array.shape[0] for array in arrays])
    longest = int(lengths.max())
    if length is None:
        length = longest
    elif isinstance(length, bool) or not isinstance(length, (int, np.integer)):
        raise TypeError(f"pad: length must be an integer or None, got {length!r}.")
    elif length < longest:
        raise ValueError(
            f"pad: length must be at least the longest sequence's, {longest} (sequences[{int(lengths.argmax())}]), "
            f"got {length}."
        )
    inputs = np.zeros((len(arrays), int(length), *features), dtype)
    for row, array in zip(inputs, arrays, strict=True):
        row[: len(array)] = array
    return Padded(inputs, np.arange(int(length))[None, :] < lengths[:, None])
