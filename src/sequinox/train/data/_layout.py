"""Pieces of sequences laid into a rectangle."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ._at_end import AtEnd
from ._ragged import Ragged
from ._sequence_batch import SequenceBatch


class Pieces(NamedTuple):
    """Pieces of sequences and where they stand, one column each: `sequence[start:stop]` at `(row, at)`.

    `begins`: a sequence starts with the piece; `ends`: one ends with it, and its target is due.
    """

    row: np.ndarray
    at: np.ndarray
    sequence: np.ndarray
    start: np.ndarray
    stop: np.ndarray
    begins: np.ndarray
    ends: np.ndarray


def pieces_of(pieces: Sequence[tuple[int, int, int, int, int, bool, bool]]) -> Pieces:
    """The columns of a list of pieces."""
    table = np.array(pieces, np.int64).reshape(-1, len(Pieces._fields)).T
    return Pieces(*table[:5], *table[5:].astype(bool))


def whole_pieces(row: np.ndarray, at: np.ndarray, sequence: np.ndarray, lengths: np.ndarray) -> Pieces:
    """Whole sequences, of these lengths."""
    every = np.ones(len(row), bool)
    return Pieces(row, at, sequence, np.zeros(len(row), np.int64), lengths, every, every)


class Layout:
    """Where the samples of some pieces stand in a rectangle of `n_rows` times `n_time` places."""

    def __init__(self, pieces: Pieces, n_rows: int, n_time: int):
        if not np.all(pieces.stop > pieces.start):
            pieces = Pieces(*(column[pieces.stop > pieces.start] for column in pieces))
        lengths = pieces.stop - pieces.start
        self._pieces, self._shape = pieces, (n_rows, n_time)
        self._first = pieces.row * n_time + pieces.at  # places are numbered row by row
        self._last = self._first + lengths - 1
        self._places = np.repeat(self._first - np.cumsum(lengths) + lengths, lengths) + np.arange(lengths.sum())

    def lay(self, arrays: Sequence[np.ndarray]) -> np.ndarray:
        """Zeros with the pieces in them, `(n_rows, n_time, *features)`. Of each array only its piece is read."""
        out = self._zeros(arrays[0])
        cuts = zip(self._pieces.sequence.tolist(), self._pieces.start.tolist(), self._pieces.stop.tolist(), strict=True)
        if len(self._first):
            self._flat(out)[self._places] = np.concatenate([arrays[i][start:stop] for i, start, stop in cuts])
        return out

    def lay_at_ends(self, targets: np.ndarray) -> AtEnd:
        """The target of each sequence that ends in the rectangle, at its last sample."""
        ends = self._pieces.ends
        values, last = self._zeros(targets), self._last[ends]
        self._flat(values)[last] = targets[self._pieces.sequence[ends]]
        return AtEnd(values, self._flags(last))

    @property
    def mask(self) -> np.ndarray:
        """True where a sample stands."""
        return self._flags(self._places)

    @property
    def resets(self) -> np.ndarray:
        """True where a sequence begins."""
        return self._flags(self._first[self._pieces.begins])

    def _zeros(self, like: np.ndarray) -> np.ndarray:
        return np.zeros((*self._shape, *like.shape[1:]), like.dtype)

    def _flat(self, out: np.ndarray) -> np.ndarray:
        return out.reshape(self._shape[0] * self._shape[1], *out.shape[2:])

    def _flags(self, places: np.ndarray) -> np.ndarray:
        flags = np.zeros(self._shape, bool)
        self._flat(flags)[places] = True
        return flags


def lay_out(data: Ragged, pieces: Pieces, n_rows: int, n_time: int) -> SequenceBatch:
    """A batch of the pieces, with resets; `real` is where a row holds any sample."""
    layout = Layout(pieces, n_rows, n_time)
    targets = None
    if data.per_sample is not None:
        targets = layout.lay(data.per_sample)
    elif data.per_sequence is not None:
        targets = layout.lay_at_ends(data.per_sequence)
    mask = layout.mask
    return SequenceBatch(layout.lay(data.inputs), targets, mask, layout.resets, mask.any(axis=1))
