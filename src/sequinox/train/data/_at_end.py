"""One target a sequence, where rows hold more than one sequence or a part of one."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .._arguments import check_integer
from ._ragged import check_mask


class AtEnd(NamedTuple):
    """Targets of whole sequences, each standing at its sequence's last sample.

    Where a row holds several sequences, or a part of one, there is no "one target a row". A model that gives an output
    a sample is then compared with its target where the sequence ends: `loss(outputs, targets.values, targets.mask)`.

    Attributes:
        values: `(batch, time, *features)`, the target of a sequence at its last sample, zeros elsewhere.
        mask: `(batch, time)` bool, True where a target stands. It is the mask of the loss.
    """

    values: Any
    mask: Any

    def gather(self, outputs: Any, size: Any) -> tuple[Any, Any, Any]:
        """Only what stands at the ends, under `jit` as well: a readout behind it has little to do.

        Arguments:
            outputs: `(batch, time, *features)`, floating, one output a sample: of the layers before the readout.
            size: how many ends there may be. Where there are more, all outputs are NaN: none is lost in silence.

        Returns:
            `(outputs, targets, real)`: `(size, *features)` each, and `(size,)` bool, False on what only fills up.

        Raises:
            TypeError: `outputs` is not floating, or `size` is not an integer.
            ValueError: `outputs` does not begin with the axes of `mask`, or `size < 1`.

        Examples:
            >>> import numpy as np
            >>> from sequinox.train import at_end
            >>> targets = at_end(np.array([5, 7]), np.array([[True, True], [True, False]]))
            >>> outputs, labels, real = targets.gather(np.array([[1.0, 2.0], [3.0, 4.0]], np.float32), 3)
            >>> outputs[real].tolist(), labels[real].tolist()
            ([2.0, 3.0], [5, 7])
        """
        size = check_integer("AtEnd.gather", "size", size, 1)
        outputs, values, mask = jnp.asarray(outputs), jnp.asarray(self.values), jnp.asarray(self.mask)
        if not jnp.issubdtype(outputs.dtype, jnp.inexact):
            raise TypeError(f"AtEnd.gather: outputs must be floating point, got {outputs.dtype}.")
        if outputs.shape[:2] != mask.shape:
            raise ValueError(
                f"AtEnd.gather: outputs must begin with {mask.shape}, the axes of mask, got {outputs.shape}."
            )
        count = jnp.sum(mask, dtype=jnp.int32)
        if mask.size == 0:  # nothing to take from
            empty = lambda array: jnp.zeros((size, *array.shape[2:]), array.dtype)
            return empty(outputs), empty(values), jnp.zeros(size, bool)
        place = jnp.nonzero(mask, size=size, fill_value=0)
        picked = jnp.where(count > size, jnp.nan, outputs[place])
        return picked, values[place], jnp.arange(size) < count


def at_end(targets: Any, mask: Any) -> AtEnd:
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

    Examples:
        >>> import numpy as np
        >>> from sequinox.train import at_end
        >>> at_end(np.array([5, 7]), np.array([[True, True, False], [True, False, False]])).values.tolist()
        [[0, 5, 0], [7, 0, 0]]
    """
    mask = check_mask("at_end", mask)
    if not isinstance(targets, (np.ndarray, jax.Array)):
        raise TypeError(f"at_end: targets must be a NumPy or JAX array, got {type(targets).__name__}.")
    if targets.ndim == 0 or len(targets) != len(mask):
        raise ValueError(f"at_end: targets must have one row for each of mask's {len(mask)}, got {targets.shape}.")
    targets = np.asarray(targets)
    last = np.max(np.where(mask, np.arange(mask.shape[1]), -1), axis=1, initial=-1)
    rows = np.flatnonzero(last >= 0)
    last = last[rows]
    values, places = np.zeros((*mask.shape, *targets.shape[1:]), targets.dtype), np.zeros(mask.shape, bool)
    values[rows, last], places[rows, last] = targets[rows], True
    return AtEnd(values, places)
