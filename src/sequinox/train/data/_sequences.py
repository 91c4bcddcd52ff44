"""Sequences of different lengths as they were given, checked: what the sources of ragged batches hold."""

import zlib
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

# A mask may be a memory-mapped file: its first and last True are looked for in blocks of this many.
_BLOCK = 4096


def each(function: Callable[[Any], Any], named: Any) -> Any:
    """Of one input, or of each of several by name."""
    return {name: function(one) for name, one in named.items()} if isinstance(named, dict) else function(named)


def check_array(name: str, where: str, value: Any) -> np.ndarray:
    """A NumPy or JAX array on the host, not read if it is memory-mapped; of others the error says what to give."""
    if isinstance(value, (np.ndarray, jax.Array)):
        return np.asarray(value)
    if callable(getattr(value, "numpy", None)):  # a tensor of PyTorch or TensorFlow
        advice = f"give {where}.numpy()"
    else:
        advice = "its dtype would be a guess: give numpy.asarray(..., dtype)"
    raise TypeError(f"{name}: {where} must be a NumPy or JAX array, got {type(value).__name__}; {advice}.")


def check_sequences(name: str, argument: str, sequences: Any) -> list[np.ndarray]:
    """Sequences as host arrays of one dtype and feature shape. A memory-mapped array is not read."""
    arrays: list[np.ndarray] = []
    for i, sequence in enumerate(sequences):
        array = check_array(name, f"{argument}[{i}]", sequence)
        if array.ndim == 0:
            raise ValueError(f"{name}: {argument}[{i}] must have a time axis, got a 0-d array.")
        arrays.append(array)
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


def check_inputs(name: str, argument: str, inputs: Any, mask: Any) -> tuple[Any, np.ndarray, list[np.ndarray] | None]:
    """A list of sequences, or several by name; their lengths; and their masks, where there are any."""
    if isinstance(inputs, dict):
        if not inputs or not all(isinstance(key, str) for key in inputs):
            raise TypeError(f"{name}: {argument} must have names that are strings, at least one, got {list(inputs)}.")
        checked: Any = {key: check_sequences(name, f"{argument}[{key!r}]", one) for key, one in inputs.items()}
        first, *others = checked
        counted = f"{argument}[{first!r}]"
    else:
        checked, first, others, counted = check_sequences(name, argument, inputs), None, [], argument
    one = checked if first is None else checked[first]
    lengths = np.array([len(array) for array in one], np.int64)
    for key in others:
        _check_lengths(name, f"{argument}[{key!r}]", checked[key], lengths, counted)
    if mask is None:
        return checked, lengths, None
    if isinstance(mask, (np.ndarray, jax.Array)):
        raise TypeError(f"{name}: mask must be a list of bool arrays (time_i,), one a sequence, got one array.")
    masks = check_sequences(name, "mask", mask)
    if masks[0].dtype != bool or masks[0].ndim != 1:
        raise TypeError(
            f"{name}: mask must be a list of bool arrays (time_i,), got {masks[0].dtype} of shape {masks[0].shape} in "
            "mask[0]."
        )
    _check_lengths(name, "mask", masks, lengths, counted)
    return checked, lengths, masks


def _check_lengths(name: str, argument: str, arrays: list[np.ndarray], lengths: np.ndarray, like: str) -> None:
    if len(arrays) != len(lengths):
        raise ValueError(f"{name}: {argument} must have one array a sequence, {len(lengths)}, got {len(arrays)}.")
    for i, (array, length) in enumerate(zip(arrays, lengths, strict=True)):
        if len(array) != length:
            raise ValueError(
                f"{name}: {argument}[{i}] must have one entry for each of the {length} samples of {like}[{i}], got "
                f"{len(array)}."
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

    def __init__(self, name: str, inputs: Any, targets: Any, mask: Any = None, static: Any = None):
        if isinstance(inputs, (np.ndarray, jax.Array)):
            raise TypeError(f"{name}: inputs must be a list of arrays, one a sequence, got one array.")
        self.inputs, self.lengths, self.masks = check_inputs(name, "inputs", inputs, mask)
        self.static = self._check_static(name, static)
        self.per_sample: list[np.ndarray] | None = None
        self.per_sequence: np.ndarray | None = None
        self._first: dict[tuple[int, int], int] = {}
        self._last: dict[int, int] = {}
        if isinstance(targets, (list, tuple)):
            self.per_sample = check_sequences(name, "targets", targets)
            if len(self.per_sample) != len(self.lengths):
                raise ValueError(
                    f"{name}: targets must have one array a sequence, {len(self.lengths)}, got {len(self.per_sample)}."
                )
            for i, (target, length) in enumerate(zip(self.per_sample, self.lengths, strict=True)):
                if len(target) != length:
                    raise ValueError(
                        f"{name}: targets[{i}] must have one row for each of the {length} samples of inputs[{i}], got "
                        f"{len(target)}. (One target a sequence is given as one array.)"
                    )
        elif isinstance(targets, (np.ndarray, jax.Array)):
            self.per_sequence = self._one_each(name, "targets", targets)
        elif targets is not None:
            hint = "; give targets.numpy()" if callable(getattr(targets, "numpy", None)) else ""
            raise TypeError(
                f"{name}: targets must be None, an array with one row a sequence, or a list of arrays with one row a "
                f"sample, got {type(targets).__name__}{hint}."
            )

    @property
    def targets_per(self) -> str | None:
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
        """A target that stands at its sequence's last real sample needs one."""
        if self.per_sequence is None:
            return
        for i, length in enumerate(self.lengths.tolist()):
            if self.first_real(i, 0, length) < 0:
                raise ValueError(
                    f"{name}: one target a sequence stands at its last real sample, and inputs[{i}] has none; leave "
                    "out such sequences, or use Buckets."
                )

    def _check_static(self, name: str, static: Any) -> Any:
        if isinstance(static, dict):
            if not all(isinstance(key, str) for key in static):
                raise TypeError(f"{name}: static must have names that are strings, got {list(static)}.")
            return {key: self._one_each(name, f"static[{key!r}]", one) for key, one in static.items()}
        return None if static is None else self._one_each(name, "static", static)

    def _one_each(self, name: str, argument: str, value: Any) -> np.ndarray:
        array, n = check_array(name, argument, value), len(self.lengths)
        if array.ndim == 0 or len(array) != n:
            raise ValueError(
                f"{name}: {argument} must have one row a sequence, {n} rows, got an array of shape {array.shape}."
            )
        return array
