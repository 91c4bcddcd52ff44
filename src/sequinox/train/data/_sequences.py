"""Sequences of different lengths as they were given, checked: what the sources of ragged batches hold."""

import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import jax
import numpy as np

from ..._checks import check_array
from ..._types import ArrayLike
from ._sequence_batch import Per

Sequences: TypeAlias = Sequence[ArrayLike] | Mapping[str, Sequence[ArrayLike]]
"""Arrays `(time_i, *features)`, one a sequence; or several inputs by name."""

Targets: TypeAlias = Sequence[ArrayLike] | ArrayLike | None
"""One target a sample, an array a sequence; or one target a sequence, all in one array."""

Masks: TypeAlias = Sequence[ArrayLike] | None
"""Bool arrays `(time_i,)`, one a sequence."""

Static: TypeAlias = ArrayLike | Mapping[str, ArrayLike] | None
"""What is known of a sequence as a whole: an array with one row a sequence, or several by name."""

# A mask may be a memory-mapped file: its first and last True are looked for in blocks of this many.
_BLOCK = 4096


def each(function: Callable[[Any], Any], named: Any) -> Any:
    """Of one input, or of each of several by name."""
    return {name: function(one) for name, one in named.items()} if isinstance(named, dict) else function(named)


def on_host(value: Any, who: str, name: str) -> np.ndarray:
    """An array on the host, checked; not read if it is memory-mapped."""
    check_array(value, who, name)
    return np.asarray(value)


def check_sequences(sequences: Any, who: str, name: str) -> list[np.ndarray]:
    """Sequences as host arrays of one dtype and feature shape. A memory-mapped array is not read."""
    arrays: list[np.ndarray] = []
    for i, sequence in enumerate(sequences):
        array = on_host(sequence, who, f"{name}[{i}]")
        if array.ndim == 0:
            raise ValueError(f"{who}: {name}[{i}] must have a time axis, got a 0-d array")
        arrays.append(array)
    if not arrays:
        raise ValueError(f"{who}: {name} is empty; at least one is needed to know the feature shape and dtype")
    features, dtype = arrays[0].shape[1:], arrays[0].dtype
    for i, array in enumerate(arrays):
        if array.shape[1:] != features:
            raise ValueError(
                f"{who}: all {name} must have one feature shape, got {array.shape[1:]} in {name}[{i}] "
                f"and {features} in {name}[0]"
            )
        if array.dtype != dtype:
            raise ValueError(
                f"{who}: all {name} must have one dtype, got {array.dtype} in {name}[{i}] and {dtype} in {name}[0]"
            )
    return arrays


def check_inputs(inputs: Any, mask: Any, who: str, name: str) -> tuple[Any, np.ndarray, list[np.ndarray] | None]:
    """A list of sequences, or several by name; their lengths; and their masks, where there are any."""
    if isinstance(inputs, Mapping):
        if not inputs or not all(isinstance(key, str) for key in inputs):
            raise TypeError(f"{who}: {name} must have names that are strings, at least one, got {list(inputs)}")
        named = {f"{name}[{key!r}]": one for key, one in inputs.items()}
    else:
        named = {name: inputs}
    lists = {where: check_sequences(one, who, where) for where, one in named.items()}
    (first, arrays), *others = lists.items()
    lengths = np.array([len(array) for array in arrays], np.int64)
    for where, one in others:
        _check_lengths(one, lengths, first, who, where)
    checked = dict(zip(inputs, lists.values(), strict=True)) if isinstance(inputs, Mapping) else arrays
    if mask is None:
        return checked, lengths, None
    if isinstance(mask, (np.ndarray, jax.Array)):
        raise TypeError(f"{who}: mask must be a list of bool arrays (time_i,), one a sequence, got one array")
    masks = check_sequences(mask, who, "mask")
    if masks[0].dtype != bool or masks[0].ndim != 1:
        raise TypeError(
            f"{who}: mask must be a list of bool arrays (time_i,), got {masks[0].dtype} of shape {masks[0].shape} in "
            "mask[0]"
        )
    _check_lengths(masks, lengths, first, who, "mask")
    return checked, lengths, masks


def _check_lengths(
    arrays: list[np.ndarray], lengths: np.ndarray, like: str, who: str, name: str, hint: str = ""
) -> None:
    if len(arrays) != len(lengths):
        raise ValueError(f"{who}: {name} must have one array a sequence, {len(lengths)}, got {len(arrays)}")
    for i, (array, length) in enumerate(zip(arrays, lengths, strict=True)):
        if len(array) != length:
            raise ValueError(
                f"{who}: {name}[{i}] must have one entry for each of the {length} samples of {like}[{i}], got "
                f"{len(array)}{hint}"
            )


class Ragged:
    """Checked sequences with their targets, as the sources of ragged batches hold them; not public.

    Attributes:
        inputs: arrays `(time_i, *features)`, or a dictionary of lists of them.
        masks: arrays `(time_i,)` bool; or None.
        static: `(n, *features)`, or a dictionary of them; or None.
        per_sample: arrays `(time_i, *features)`, the targets where there is one a sample; or None.
        per_sequence: `(n, *features)`, the targets where there is one a sequence; or None.
        lengths: `(n,)` int64, gaps included.
    """

    def __init__(self, inputs: Sequences, targets: Targets, mask: Masks, static: Static, who: str):
        if isinstance(inputs, (np.ndarray, jax.Array)):
            raise TypeError(f"{who}: inputs must be a list of arrays, one a sequence, got one array")
        self._who = who
        self.inputs, self.lengths, self.masks = check_inputs(inputs, mask, who, "inputs")
        self.static = self._check_static(static)
        self.per_sample: list[np.ndarray] | None = None
        self.per_sequence: np.ndarray | None = None
        self._first: dict[tuple[int, int], int] = {}
        self._last: dict[int, int] = {}
        if isinstance(targets, (list, tuple)):
            self.per_sample = check_sequences(targets, who, "targets")
            hint = "; one target a sequence is given as one array"
            _check_lengths(self.per_sample, self.lengths, "inputs", who, "targets", hint)
        elif isinstance(targets, (np.ndarray, jax.Array)):
            self.per_sequence = self._one_each(targets, "targets")
        elif targets is not None:
            hint = "; give targets.numpy()" if callable(getattr(targets, "numpy", None)) else ""
            raise TypeError(
                f"{who}: targets must be None, an array with one row a sequence, or a list of arrays with one row a "
                f"sample, got {type(targets).__name__}{hint}"
            )

    @property
    def targets_per(self) -> Per:
        """What plain targets are one for."""
        if self.per_sample is not None:
            return "sample"
        return None if self.per_sequence is None else "sequence"

    def first_real(self, sequence: int, start: int, stop: int) -> int:
        """The first real sample from `start` on; -1 if there is none before `stop`. A mask is read up to there."""
        if self.masks is None:
            return start if start < stop else -1
        if (sequence, start) not in self._first:
            mask, found = self.masks[sequence], -1
            for begin in range(start, len(mask), _BLOCK):
                block = np.asarray(mask[begin : begin + _BLOCK])
                if block.any():
                    found = begin + int(block.argmax())
                    break
            self._first[sequence, start] = found
        found = self._first[sequence, start]
        return found if found < stop else -1

    def last_real(self, sequence: int) -> int:
        """The last real sample of a sequence; -1 if it has none. A mask is read back to there."""
        if self.masks is None:
            return int(self.lengths[sequence]) - 1
        if sequence not in self._last:
            mask, found = self.masks[sequence], -1
            for end in range(len(mask), 0, -_BLOCK):
                begin = max(end - _BLOCK, 0)
                real = np.flatnonzero(mask[begin:end])
                if len(real):
                    found = begin + int(real[-1])
                    break
            self._last[sequence] = found
        return self._last[sequence]

    def identity(self) -> dict[str, Any]:
        """By which a saved position is known to be of these data."""
        lengths = zlib.crc32(self.lengths.astype("<i8").tobytes())
        return {"n_rows": len(self.lengths), "n_samples": int(self.lengths.sum()), "lengths_crc32": lengths}

    def content(self) -> dict[str, list[np.ndarray]]:
        """All arrays, by what they are for."""
        targets = [] if self.per_sequence is None else [self.per_sequence]
        return {
            "inputs": jax.tree.leaves(self.inputs),
            "targets": self.per_sample or targets,
            "mask": self.masks or [],
            "static": jax.tree.leaves(self.static),
        }

    def check_longest(self, length: int, limit: str) -> None:
        """No sequence may exceed `length`: a cut would be silent."""
        too_long = np.flatnonzero(self.lengths > length)
        if len(too_long):
            i = int(too_long[0])
            raise ValueError(
                f"{self._who}: no sequence may be longer than {limit}, {length}, got {self.lengths[i]} samples in "
                f"inputs[{i}]" + (f" (and {len(too_long) - 1} more)" if len(too_long) > 1 else "")
            )

    def check_ends(self) -> None:
        """A target that is placed at its sequence's last real sample needs one."""
        if self.per_sequence is None:
            return
        for i, length in enumerate(self.lengths.tolist()):
            if self.first_real(i, 0, length) < 0:
                raise ValueError(
                    f"{self._who}: one target a sequence is placed at its last real sample, and inputs[{i}] has none; "
                    "leave out such sequences, or use Buckets"
                )

    def _check_static(self, static: Static) -> Any:
        if isinstance(static, Mapping):
            if not all(isinstance(key, str) for key in static):
                raise TypeError(f"{self._who}: static must have names that are strings, got {list(static)}")
            return {key: self._one_each(one, f"static[{key!r}]") for key, one in static.items()}
        return None if static is None else self._one_each(static, "static")

    def _one_each(self, value: Any, name: str) -> np.ndarray:
        array, n = on_host(value, self._who, name), len(self.lengths)
        if array.ndim == 0 or len(array) != n:
            raise ValueError(
                f"{self._who}: {name} must have one row a sequence, {n} rows, got an array of shape {array.shape}"
            )
        return array
