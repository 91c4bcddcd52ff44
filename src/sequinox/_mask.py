"""Masks of ragged rows."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Bool

from ._checks import raise_if, size
from ._types import ArrayLike


def mask_from_lengths(
    lengths: ArrayLike | np.integer | Sequence[int] | int, time: int | None = None
) -> Bool[Array, "*batch time"]:
    """The mask of rows that begin with their real samples: True on the first `lengths[i]` samples of row `i`.

    Arguments:
        lengths: how many samples of each row are real, integers `"*batch"`: an array of NumPy or JAX, or a list.
        time: length of the padded rows. Default: the largest of `lengths`; under `jax.jit`, where that is not known, it
            must be given.

    Returns:
        The mask, bool `"*batch time"`, as layers and losses take it.

    Raises:
        TypeError: if `lengths` holds no integers, or `time` is none.
        ValueError: if a length is negative or greater than `time` (also under `jit`, as the program runs), or if `time`
            is needed.

    ??? example

        ```python
        >>> import sequinox as sqx
        >>> sqx.mask_from_lengths([2, 0, 3]).astype(int).tolist()
        [[1, 1, 0], [0, 0, 0], [1, 1, 1]]
        >>> sqx.mask_from_lengths([2, 0, 3], 4).shape
        (3, 4)

        ```
    """
    who = "mask_from_lengths"
    given: Any = lengths
    if isinstance(lengths, list | tuple | int):
        given = np.asarray(lengths, None if np.size(lengths) else np.int32)
    if not isinstance(given, jax.Array | np.ndarray | np.integer):
        raise TypeError(f"{who}: lengths must be an array or a list of integers, got {type(lengths).__name__}")
    if not jnp.issubdtype(given.dtype, jnp.integer):
        raise TypeError(f"{who}: lengths must be integers, got dtype {given.dtype}")
    known = not isinstance(given, Tracer)
    if time is None:
        if not known:
            raise ValueError(f"{who}: under jax.jit the lengths are not known yet: give time, the length of the rows")
        time = int(np.max(given, initial=0))
    time = size(time, who, "time", least=0)
    came = f", got {np.min(given, initial=0)} to {np.max(given, initial=0)}" if known else ""
    given = given.astype(np.int32) if given.dtype.itemsize < 4 else given  # which may not hold `time`
    wrong = (given < 0) | (given > time)
    given = raise_if(given, jnp.asarray(wrong), f"{who}: lengths must be between 0 and time, {time}{came}")
    shape = (*given.shape, time)
    ends = jnp.broadcast_to(jnp.expand_dims(jnp.asarray(given).astype(jnp.int32), -1), shape)
    return jax.lax.broadcasted_iota(jnp.int32, shape, len(shape) - 1) < ends
