"""Pieces of sequences laid into a rectangle."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from ._at_end import AtEnd
from ._sequence_batch import SequenceBatch
from ._sequences import Ragged, each

Piece = tuple[int, int, int, int, int, int, int]
"""One of them, as `Pieces` has it in columns."""


class Pieces(NamedTuple):
    """Pieces of sequences and where they are put, one column each: `sequence[start:stop]` at `(row, at)`.

    `begins`: the first real sample of a sequence that starts with this piece or before it, if the piece holds it, else
    -1; there is the reset. `ends`: its last real sample, in the same way; there its target is due. Both on real
    samples: a masked step is ignored with all that is on it.
    """

    row: np.ndarray
    at: np.ndarray
    sequence: np.ndarray
    start: np.ndarray
    stop: np.ndarray
    begins: np.ndarray
    ends: np.ndarray


def pieces_of(pieces: Sequence[Piece]) -> Pieces:
    """The columns of a list of pieces."""
    return Pieces(*np.array(pieces, np.int64).reshape(-1, len(Pieces._fields)).T)


def whole_pieces(data: Ragged, row: np.ndarray, at: np.ndarray, sequence: np.ndarray) -> Pieces:
    """Whole sequences."""
    lengths = data.lengths[sequence]
    if data.masks is None:
        begins, ends = np.where(lengths > 0, 0, -1), lengths - 1
    else:
        pairs = zip(sequence.tolist(), lengths.tolist(), strict=True)
        begins = np.array([data.first_real(i, 0, length) for i, length in pairs], np.int64)
        ends = np.array([data.last_real(i) for i in sequence.tolist()], np.int64)
    return Pieces(row, at, sequence, np.zeros(len(row), np.int64), lengths, begins, ends)


class Layout:
    """Where the samples of some pieces are in a rectangle of `n_rows` times `n_time` places."""

    def __init__(self, pieces: Pieces, n_rows: int, n_time: int):
        if not np.all(pieces.stop > pieces.start):
            pieces = Pieces(*(column[pieces.stop > pieces.start] for column in pieces))
        lengths = pieces.stop - pieces.start
        self._pieces, self._shape, self._lengths = pieces, (n_rows, n_time), lengths
        self._first = pieces.row * n_time + pieces.at  # places are numbered row by row
        self._places = np.repeat(self._first - np.cumsum(lengths) + lengths, lengths) + np.arange(lengths.sum())

    def lay(self, arrays: Sequence[np.ndarray]) -> np.ndarray:
        """Zeros with the pieces in them, `(n_rows, n_time, *features)`. Of each array only its piece is read."""
        out = self._zeros(arrays[0])
        cuts = zip(self._pieces.sequence.tolist(), self._pieces.start.tolist(), self._pieces.stop.tolist(), strict=True)
        if len(self._first):
            self._flat(out)[self._places] = np.concatenate([arrays[i][start:stop] for i, start, stop in cuts])
        return out

    def lay_real(self, data: Ragged) -> tuple[Any, np.ndarray]:
        """Inputs and mask: zeros where there is no sample, and in gaps whatever is there (NaN)."""
        inputs = each(self.lay, data.inputs)
        if data.masks is None:
            return inputs, self._flags(self._places)
        mask = self.lay(data.masks)
        for array in jax.tree.leaves(inputs):
            array[~mask] = 0
        return inputs, mask

    def repeat(self, values: np.ndarray) -> np.ndarray:
        """What is one a sequence, at every place of its pieces."""
        out = self._zeros(values)
        self._flat(out)[self._places] = np.repeat(values[self._pieces.sequence], self._lengths, axis=0)
        return out

    def lay_at_ends(self, targets: np.ndarray) -> AtEnd:
        """The target of each sequence that ends in the rectangle, at its last real sample."""
        there, last = self._marked(self._pieces.ends)
        values = self._zeros(targets)
        self._flat(values)[last] = targets[self._pieces.sequence[there]]
        return AtEnd(values, self._flags(last))

    @property
    def resets(self) -> np.ndarray:
        """True on the first real sample of each sequence."""
        return self._flags(self._marked(self._pieces.begins)[1])

    def _marked(self, samples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Which pieces hold such a sample, and its places."""
        there = samples >= 0
        return there, (self._first + samples - self._pieces.start)[there]

    def _zeros(self, like: np.ndarray) -> np.ndarray:
        return np.zeros((*self._shape, *like.shape[1:]), like.dtype)

    def _flat(self, out: np.ndarray) -> np.ndarray:
        return out.reshape(self._shape[0] * self._shape[1], *out.shape[2:])

    def _flags(self, places: np.ndarray) -> np.ndarray:
        flags = np.zeros(self._shape, bool)
        self._flat(flags)[places] = True
        return flags


def lay_out(data: Ragged, pieces: Pieces, n_rows: int, n_time: int) -> SequenceBatch:
    """A batch of the pieces, with resets; `real` is where a row holds any real sample."""
    layout = Layout(pieces, n_rows, n_time)
    inputs, mask = layout.lay_real(data)
    targets, per = None, data.targets_per
    if data.per_sample is not None:
        targets = layout.lay(data.per_sample)
    elif data.per_sequence is not None:
        targets, per = layout.lay_at_ends(data.per_sequence), None
    static = None if data.static is None else each(layout.repeat, data.static)
    return SequenceBatch(inputs, targets, mask, layout.resets, mask.any(axis=1), static, per)
