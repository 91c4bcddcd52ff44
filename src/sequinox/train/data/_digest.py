"""A short sign of what arrays hold, by which a saved position is known to be of these data."""

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

WHOLE = 2**26
"""Bytes up to which everything is read, 64 MiB."""
_BLOCKS, _BLOCK = 256, 4096


def digest(arrays: Sequence[np.ndarray]) -> str:
    """Of shapes, dtypes and content. Of more than `WHOLE` bytes an evenly spread sample is read, ends included."""
    found = hashlib.blake2b(digest_size=8)
    dtypes: dict[Any, int] = {}  # numbered as they come: their names take longer to make than a short row to read
    for array in arrays:
        found.update(repr((dtypes.setdefault(array.dtype, len(dtypes)), array.shape)).encode())
    found.update(repr([(dtype.name, dtype.str) for dtype in dtypes]).encode())
    if sum(array.nbytes for array in arrays) <= WHOLE:
        for array in arrays:
            found.update(_bytes(array))
        return found.hexdigest()
    filled = [array for array in arrays if array.size]
    starts = np.cumsum([0, *(array.size for array in filled)])
    longest = max(_BLOCK // max(array.itemsize for array in filled), 1)
    # Blocks of elements, wherever they are: a memory-mapped file is read at as many places and no more.
    for place in np.linspace(0, int(starts[-1]) - 1, _BLOCKS).astype(np.int64):
        i = int(np.searchsorted(starts, place, side="right")) - 1
        first = max(min(int(place - starts[i]), filled[i].size - longest), 0)
        found.update(_bytes(filled[i].flat[first : first + longest]))
    return found.hexdigest()


def _bytes(array: np.ndarray) -> Any:
    if array.dtype.hasobject:  # its bytes are addresses
        return repr(array.tolist()).encode()
    return array.tobytes()
