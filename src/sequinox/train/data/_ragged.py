"""Ragged sequences to one rectangle and a mask, and back."""

import zlib
from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import numpy as np


class Padded(NamedTuple):
    """Sequences of different lengths as one array, with a mask of what is real.

    Attributes:
        inputs: `(batch, time, *features)`, zeros where the mask is False.
        mask: `(batch, time)` bool, True on real samples.
    """

    inputs: np.ndarray
    mask: np.ndarray


def pad(sequences: Iterable[Any], length: int | None = None, *, side: Any = "right") -> Padded:
    """Pads sequences with zeros to one length.

    It works on the host and keeps the dtype: what reaches a device is decided by whoever feeds it. `unpad` is its
    inverse.

    Arguments:
        sequences: arrays `(time_i, *features)`, NumPy or JAX, of one dtype and one feature shape. A length of 0 is
            ordinary: its row of the mask is all False.
        length: the length of the time axis. Default: the longest sequence. Fix it when several calls must give one
            shape, so that a jitted function is compiled once.
        side: where the zeros stand, `"right"` or `"left"`. Default: `"right"`. With `"left"` all rows end together, as
            prompts do that are to be continued.

    Returns:
        `Padded(inputs, mask)`, NumPy arrays `(batch, time, *features)` and `(batch, time)`.

    Raises:
        TypeError: an entry is not an array, or `length` is not an integer.
        ValueError: no sequences, a 0-d entry, different feature shapes or dtypes, `length` below the longest, or
            another `side`.

    Examples:
        >>> import numpy as np
        >>> from sequinox.train import pad
        >>> inputs, mask = pad([np.array([1.0, 2.0]), np.array([3.0])])
        >>> inputs.tolist(), mask.tolist()
        ([[1.0, 2.0], [3.0, 0.0]], [[True, True], [True, False]])
    """
    arrays = check_sequences("pad", "sequences", sequences)
    if side not in ("right", "left"):
        raise ValueError(f"pad: side must be 'right' or 'left', got {side!r}.")
    lengths = np.array([len(array) for array in arrays])
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
    starts = np.zeros_like(lengths) if side == "right" else int(length) - lengths
    stops, times = starts + lengths, np.arange(int(length))
    inputs = np.zeros((len(arrays), int(length), *arrays[0].shape[1:]), arrays[0].dtype)
    for row, array, start, stop in zip(inputs, arrays, starts, stops, strict=True):
        row[start:stop] = array
    return Padded(inputs, (times >= starts[:, None]) & (times < stops[:, None]))


def unpad(arrays: Any, mask: Any) -> list[Any]:
    """The rows of a rectangle as separate arrays again, without what is masked: the inverse of `pad`.

    Gaps inside a row are closed. Rows without a real sample give arrays of length 0.

    Arguments:
        arrays: an array `(batch, time, *features)`, NumPy or JAX, or a PyTree of them: inputs, targets, outputs.
        mask: `(batch, time)` bool, True on real samples.

    Returns:
        A list, one entry a row: a NumPy array `(time_i, *features)` of the same dtype, or the PyTree of them.

    Raises:
        TypeError: a leaf is not an array, or `mask` is not bool.
        ValueError: a leaf does not begin with the mask's axes.

    Examples:
        >>> import numpy as np
        >>> from sequinox.train import pad, unpad
        >>> [row.tolist() for row in unpad(*pad([np.array([1, 2]), np.array([3])]))]
        [[1, 2], [3]]
    """
    mask = check_mask("unpad", mask)
    leaves, tree = jax.tree.flatten(arrays)
    if not leaves:
        raise ValueError("unpad: arrays holds no array.")
    for leaf in leaves:
        if not isinstance(leaf, (np.ndarray, jax.Array)):
            raise TypeError(f"unpad: arrays must hold NumPy or JAX arrays, got {type(leaf).__name__}.")
        if leaf.shape[:2] != mask.shape:
            raise ValueError(f"unpad: arrays must begin with the axes of mask, {mask.shape}, got {leaf.shape}.")
    hosts = [np.asarray(leaf) for leaf in leaves]
    return [tree.unflatten([host[i, real] for host in hosts]) for i, real in enumerate(mask)]


def check_mask(name: str, mask: Any) -> np.ndarray:
    """`mask` on the host: bool, `(batch, time)`."""
    if not isinstance(mask, (np.ndarray, jax.Array)) or mask.dtype != bool:
        came = getattr(mask, "dtype", type(mask).__name__)
        raise TypeError(f"{name}: mask must be a bool array (batch, time), got {came}.")
    if mask.ndim != 2:
        raise ValueError(f"{name}: mask must be (batch, time), got shape {mask.shape}.")
    return np.asarray(mask)


def check_sequences(name: str, argument: str, sequences: Any) -> list[np.ndarray]:
    """Sequences as host arrays of one dtype and feature shape. A memory-mapped array is not read."""
    arrays: list[np.ndarray] = []
    for i, sequence in enumerate(sequences):
        if not isinstance(sequence, (np.ndarray, jax.Array)):
            raise TypeError(
                f"{name}: {argument}[{i}] must be a NumPy or JAX array, got {type(sequence).__name__}; "
                "its dtype would be a guess."
            )
        if sequence.ndim == 0:
            raise ValueError(f"{name}: {argument}[{i}] must have a time axis, got a 0-d array.")
        arrays.append(np.asarray(sequence))
    if not arrays:
        raise ValueError(f"{name}: {argument} is empty; at least one is needed to know the feature shape and dtype.")
    features, dtype = arrays[0].shape[1:], arrays[0].dtype
    for i, array in enumerate(arrays):
        if array.shape[1:] != features:
            raise ValueError(
                f"{name}: all {argument} must have one feature shape, got {array.shape[1:]} in {argument}[{i}] "
                f"and {features} in {argument}[0]."
            )
        if array.dtype != dtype:
            raise ValueError(
                f"{name}: all {argument} must have one dtype, got {array.dtype} in {argument}[{i}] "
                f"and {dtype} in {argument}[0]."
            )
    return arrays


class Ragged:
    """Checked sequences with their targets, as the sources of ragged batches hold them; not public.

    Attributes:
        inputs: arrays `(time_i, *features)`.
        per_sample: arrays `(time_i, *features)`, the targets where there is one a sample; or None.
        per_sequence: `(n, *features)`, the targets where there is one a sequence; or None.
        lengths: `(n,)` int64.
    """

    def __init__(self, name: str, inputs: Any, targets: Any):
        if isinstance(inputs, (np.ndarray, jax.Array)):
            raise TypeError(f"{name}: inputs must be a list of arrays, one a sequence, got one array.")
        self.inputs = check_sequences(name, "inputs", inputs)
        self.lengths = np.array([len(array) for array in self.inputs], np.int64)
        self.per_sample: list[np.ndarray] | None = None
        self.per_sequence: np.ndarray | None = None
        n = len(self.inputs)
        if targets is None:
            return
        if isinstance(targets, (np.ndarray, jax.Array)):
            if targets.ndim == 0 or len(targets) != n:
                raise ValueError(
                    f"{name}: targets must have one row a sequence, {n} rows, got an array of shape {targets.shape}."
                )
            self.per_sequence = np.asarray(targets)
            return
        if not isinstance(targets, (list, tuple)):
            raise TypeError(
                f"{name}: targets must be None, an array with one row a sequence, or a list of arrays with one row a "
                f"sample, got {type(targets).__name__}."
            )
        self.per_sample = check_sequences(name, "targets", targets)
        if len(self.per_sample) != n:
            raise ValueError(f"{name}: targets must have one array a sequence, {n}, got {len(self.per_sample)}.")
        for i, (target, length) in enumerate(zip(self.per_sample, self.lengths, strict=True)):
            if len(target) != length:
                raise ValueError(
                    f"{name}: targets[{i}] must have one row for each of the {length} samples of inputs[{i}], got "
                    f"{len(target)}. (One target a sequence is given as one array.)"
                )

    def identity(self) -> dict[str, Any]:
        """By which a saved position is known to be of these data."""
        digest = zlib.crc32(self.lengths.astype("<i8").tobytes())
        return {"n_rows": len(self.inputs), "n_samples": int(self.lengths.sum()), "lengths_crc32": digest}

    def check_longest(self, name: str, length: int, limit: str) -> None:
        """No sequence may exceed `length`: a cut would be silent."""
        too_long = np.flatnonzero(self.lengths > length)
        if len(too_long):
            i = int(too_long[0])
            raise ValueError(
                f"{name}: no sequence may be longer than {limit}, {length}, got {self.lengths[i]} samples in "
                f"inputs[{i}]" + (f" (and {len(too_long) - 1} more)." if len(too_long) > 1 else ".")
            )

    def check_ends(self, name: str) -> None:
        """A target that stands at its sequence's last sample needs one."""
        empty = np.flatnonzero(self.lengths == 0)
        if self.per_sequence is not None and len(empty):
            raise ValueError(
                f"{name}: one target a sequence stands at its last sample, and inputs[{empty[0]}] has none; leave out "
                "the empty sequences, or use Buckets."
            )
