"""One target a sequence, where rows hold more than one sequence or a part of one."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from ..._checks import check_array, size as check_size
from ..._types import ArrayLike
from ._ragged import check_mask


class AtEnd(NamedTuple):
    """Targets of whole sequences, each placed at its sequence's last sample.

    Where a row holds several sequences, or a part of one, there is no "one target a row". A model with an output
    a sample is then compared with its target where the sequence ends: `loss(outputs, targets.values, targets.mask)`.

    Attributes:
        values: `(batch, time, *features)`, the target of a sequence at its last sample, zeros elsewhere.
        mask: `(batch, time)` bool, True where there is a target. It is the mask of the loss.
    """

    values: PyTree
    mask: PyTree

    def gather(self, outputs: ArrayLike, size: int) -> tuple[Array, Array, Array]:
        """Only what is at the ends, under `jit` as well: a readout after it has little to do.

        Arguments:
            outputs: `(batch, time, *features)`, floating, one output a sample: of the layers before the readout.
            size: how many ends there may be. Where there are more, all outputs are NaN: none is lost in silence.

        Returns:
            `(outputs, targets, real)`: `(size, *features)` each, and `(size,)` bool, False on what only fills up.

        Raises:
            TypeError: `outputs` is not floating, or `size` is not an integer.
            ValueError: `outputs` does not begin with the axes of `mask`, or `size < 1`.

        ??? example

            ```python
            >>> import numpy as np, sequinox as sqx
            >>> targets = sqx.train.at_end(np.array([5, 7]), np.array([[True, True], [True, False]]))
            >>> outputs, labels, real = targets.gather(np.array([[1.0, 2.0], [3.0, 4.0]], np.float32), 3)
            >>> outputs[real].tolist(), labels[real].tolist()
            ([2.0, 3.0], [5, 7])

            ```
        """
        size = check_size(size, "AtEnd.gather", "size")
        outputs, values, mask = jnp.asarray(outputs), jnp.asarray(self.values), jnp.asarray(self.mask)
        if not jnp.issubdtype(outputs.dtype, jnp.inexact):
            raise TypeError(f"AtEnd.gather: outputs must be floating point, got {outputs.dtype}")
        if outputs.shape[:2] != mask.shape:
            raise ValueError(
                f"AtEnd.gather: outputs must begin with {mask.shape}, the axes of mask, got {outputs.shape}"
            )
        count = jnp.sum(mask, dtype=jnp.int32)
        if mask.size == 0:  # nothing to take from
            empty = lambda array: jnp.zeros((size, *array.shape[2:]), array.dtype)
            return empty(outputs), empty(values), jnp.zeros(size, bool)
        place = jnp.nonzero(mask, size=size, fill_value=0)
        picked = jnp.where(count > size, jnp.nan, outputs[place])
        return picked, values[place], jnp.arange(size) < count


def at_end(targets: ArrayLike, mask: ArrayLike) -> AtEnd:
    """Places one target a row at the row's last real sample.

    Use it before a batch of whole rows is cut into [`windows`][sequinox.train.windows]: each target then counts once,
    in the window in which its row ends.

    Arguments:
        targets: `(batch, *features)`, NumPy or JAX, one a row.
        mask: `(batch, time)` bool, True on real samples. A row without any has no place for its target, which is
            then in no loss.

    Returns:
        `AtEnd(values, mask)`, NumPy arrays `(batch, time, *features)` and `(batch, time)`.

    Raises:
        TypeError: `targets` is not an array, or `mask` is not bool.
        ValueError: `targets` and `mask` have different numbers of rows.

    ??? example

        ```python
        >>> import numpy as np, sequinox as sqx
        >>> sqx.train.at_end(np.array([5, 7]), np.array([[True, True, False], [True, False, False]])).values.tolist()
        [[0, 5, 0], [7, 0, 0]]

        ```
    """
    mask = check_mask(mask, "at_end")
    check_array(targets, "at_end", "targets")
    if targets.ndim == 0 or len(targets) != len(mask):
        raise ValueError(f"at_end: targets must have one row for each of mask's {len(mask)}, got {targets.shape}")
    targets = np.asarray(targets)
    last = np.max(np.where(mask, np.arange(mask.shape[1]), -1), axis=1, initial=-1)
    rows = np.flatnonzero(last >= 0)
    last = last[rows]
    values, places = np.zeros((*mask.shape, *targets.shape[1:]), targets.dtype), np.zeros(mask.shape, bool)
    values[rows, last], places[rows, last] = targets[rows], True
    return AtEnd(values, places)
