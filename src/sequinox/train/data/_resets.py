"""Resets where layers heed them: on real samples."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..._types import ArrayLike


def move_resets(resets: ArrayLike, mask: ArrayLike) -> ArrayLike:
    """Each reset goes to the first real sample at or after it.

    A layer ignores a reset on a masked step, as it ignores all of the step. Where a sequence begins with a gap its
    reset would be lost, and the sequence before it would continue. The sources of this package put resets on real
    samples; this does it for your own flags. Where no real sample comes before the next reset, the two become one.

    Call it on whole rows, before they are cut into windows: the first real sample may be in the next one.

    Arguments:
        resets: `(*batch, time)` bool, NumPy or JAX, also traced: True where a sequence begins.
        mask: `(*batch, time)` bool, True on real samples.

    Returns:
        `(*batch, time)` bool, True on real samples only; NumPy if both are.

    Raises:
        TypeError: one is not a bool array.
        ValueError: their shapes differ, or there is no time axis.

    ??? example

        ```python
        >>> import numpy as np, sequinox as sqx
        >>> resets, mask = np.array([[1, 0, 0, 1, 0]], bool), np.array([[1, 1, 0, 0, 1]], bool)
        >>> sqx.train.move_resets(resets, mask).astype(int).tolist()
        [[1, 0, 0, 0, 1]]

        ```
    """
    for name, value in {"resets": resets, "mask": mask}.items():
        if not isinstance(value, (np.ndarray, jax.Array)) or value.dtype != bool:
            came = getattr(value, "dtype", type(value).__name__)
            raise TypeError(f"move_resets: {name} must be a bool array (*batch, time), got {came}")
    if resets.shape != mask.shape or not mask.ndim:
        raise ValueError(
            f"move_resets: resets and mask must have one shape (*batch, time), got {resets.shape} and {mask.shape}"
        )
    on_host = isinstance(resets, np.ndarray) and isinstance(mask, np.ndarray)
    n = np if on_host else jnp
    so_far = n.cumsum(resets, axis=-1, dtype=np.int32)
    # How many had come at the last real sample before each: if there are more by now, one is due.
    at_real = n.where(mask, so_far, 0)
    largest: Any = np.maximum.accumulate if on_host else jax.lax.cummax
    known = largest(at_real, axis=mask.ndim - 1)
    before = n.concatenate([n.zeros_like(known[..., :1]), known[..., :-1]], axis=-1)
    return mask & (so_far > before)
