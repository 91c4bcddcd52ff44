"""Ragged sequences to one rectangle and a mask, and back."""

from typing import Any, Literal, NamedTuple

import jax
import numpy as np
from jaxtyping import PyTree

from ..._checks import check_array, size
from ..._types import ArrayLike
from ._sequences import Masks, Sequences, check_inputs, each


class Padded(NamedTuple):
    """Sequences of different lengths as one array, with a mask of what is real.

    Attributes:
        inputs: `(batch, time, *features)`, zeros where the mask is False; or a dictionary of them, as was given.
        mask: `(batch, time)` bool, True on real samples.
    """

    inputs: PyTree
    mask: np.ndarray


def pad(
    sequences: Sequences, length: int | None = None, *, side: Literal["right", "left"] = "right", mask: Masks = None
) -> Padded:
    """Pads sequences with zeros to one length.

    It works on the host and keeps the dtype: what reaches a device is decided by whoever feeds it. `unpad` is its
    inverse.

    Arguments:
        sequences: arrays `(time_i, *features)`, NumPy or JAX, of one dtype and one feature shape. A length of 0 is
            ordinary: its row of the mask is all False. Or a dictionary of such lists, several inputs by name, of which
            entry `i` has `time_i` samples in all.
        length: the length of the time axis. Default: the longest sequence. Fix it when several calls must return one
            shape, so that a jitted function is compiled once.
        side: where the zeros are, `"right"` or `"left"`. Default: `"right"`. With `"left"` all rows end together, as
            prompts do that are to be continued.
        mask: a list of bool arrays `(time_i,)`, False where a sample is missing: gaps, wherever they are. What is
            there (NaN) becomes zeros. Default: all samples are real.

    Returns:
        `Padded(inputs, mask)`, NumPy arrays `(batch, time, *features)` and `(batch, time)`. What is known of a
        sequence as a whole is one a row already.

    Raises:
        TypeError: an entry is not an array, `length` is not an integer, or `mask` is not bool.
        ValueError: no sequences, a 0-d entry, different feature shapes or dtypes, inputs or masks of different
            lengths, `length` below the longest, or another `side`.

    ??? example

        ```python
        >>> import numpy as np, sequinox as sqx
        >>> inputs, mask = sqx.train.pad([np.array([1.0, 2.0]), np.array([3.0])])
        >>> inputs.tolist(), mask.tolist()
        ([[1.0, 2.0], [3.0, 0.0]], [[True, True], [True, False]])

        ```
    """
    inputs, lengths, masks = check_inputs(sequences, mask, "pad", "sequences")
    if side not in ("right", "left"):
        raise ValueError(f"pad: side must be 'right' or 'left', got {side!r}")
    longest = int(lengths.max())
    length = longest if length is None else size(length, "pad", "length", 0)
    if length < longest:
        raise ValueError(
            f"pad: length must be at least the longest sequence's, {longest} (sequences[{int(lengths.argmax())}]), "
            f"got {length}"
        )
    starts = np.zeros_like(lengths) if side == "right" else length - lengths
    stops, times = starts + lengths, np.arange(length)

    def lay(arrays: list[np.ndarray]) -> np.ndarray:
        out = np.zeros((len(arrays), length, *arrays[0].shape[1:]), arrays[0].dtype)
        for row, array, start, stop in zip(out, arrays, starts, stops, strict=True):
            row[start:stop] = array
        return out

    rectangles = each(lay, inputs)
    if masks is None:
        return Padded(rectangles, (times >= starts[:, None]) & (times < stops[:, None]))
    real = lay(masks)
    for rectangle in jax.tree.leaves(rectangles):
        rectangle[~real] = 0
    return Padded(rectangles, real)


def unpad(arrays: PyTree, mask: ArrayLike) -> list[Any]:
    """The rows of a rectangle as separate arrays again, without what is masked: the inverse of `pad`.

    Gaps inside a row are closed. Rows without a real sample become arrays of length 0.

    Arguments:
        arrays: an array `(batch, time, *features)`, NumPy or JAX, or a PyTree of them: inputs, targets, outputs.
        mask: `(batch, time)` bool, True on real samples.

    Returns:
        A list, one entry a row: a NumPy array `(time_i, *features)` of the same dtype, or the PyTree of them.

    Raises:
        TypeError: a leaf is not an array, or `mask` is not bool.
        ValueError: a leaf does not begin with the mask's axes.

    ??? example

        ```python
        >>> import numpy as np, sequinox as sqx
        >>> [row.tolist() for row in sqx.train.unpad(*sqx.train.pad([np.array([1, 2]), np.array([3])]))]
        [[1, 2], [3]]

        ```
    """
    mask = check_mask(mask, "unpad")
    leaves, tree = jax.tree.flatten(arrays)
    if not leaves:
        raise ValueError("unpad: arrays holds no array")
    for leaf in leaves:
        check_array(leaf, "unpad", "arrays")
        if leaf.shape[:2] != mask.shape:
            raise ValueError(f"unpad: arrays must begin with the axes of mask, {mask.shape}, got {leaf.shape}")
    hosts = [np.asarray(leaf) for leaf in leaves]
    return [tree.unflatten([host[i, real] for host in hosts]) for i, real in enumerate(mask)]


def check_mask(mask: Any, who: str) -> np.ndarray:
    """`mask` on the host: bool, `(batch, time)`."""
    if not isinstance(mask, (np.ndarray, jax.Array)) or mask.dtype != bool:
        came = getattr(mask, "dtype", type(mask).__name__)
        raise TypeError(f"{who}: mask must be a bool array (batch, time), got {came}")
    if mask.ndim != 2:
        raise ValueError(f"{who}: mask must be (batch, time), got shape {mask.shape}")
    return np.asarray(mask)
