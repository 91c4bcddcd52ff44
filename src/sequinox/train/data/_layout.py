"""Pieces of sequences laid into a rectangle."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ._at_end import AtEnd
from ._ragged import Ragged
from ._sequence_batch import SequenceBatch


class Piece(NamedTuple):
    """`sequence[start:stop]` at `(row, at)`; `begins`: a sequence starts with it; `ends`: its target is due."""

    row: int
    at: int
    sequence: int
    start: int
    stop: int
    begins: bool
    ends: bool


class Layout:
    """Where the samples of some pieces stand in a rectangle of `n_rows` times `n_time` places."""

    def __init__(self, pieces: Sequence[Piece], n_rows: int, n_time: int):
        self._cuts = [piece[2:5] for piece in pieces if piece.stop > piece.start]
        self._shape = n_rows, n_time
        table = np.array([piece for piece in pieces if piece.stop > piece.start], np.int64).reshape(
            -1, len(Piece._fields)
        )
        lengths = table[:, 4] - table[:, 3]
        self._first = table[:, 0] * n_time + table[:, 1]  # places are numbered row by row
        self._last = self._first + lengths - 1
        self._sequences, self._begins, self._ends = table[:, 2], table[:, 5] > 0, table[:, 6] > 0
        shifts = self._first - np.cumsum(lengths) + lengths
        self._places = np.repeat(shifts, lengths) + np.arange(lengths.sum())

    def lay(self, arrays: Sequence[np.ndarray]) -> np.ndarray:
        """Zeros with the pieces in them, `(n_rows, n_time, *features)`. Of each array only its piece is read."""
        out = self._zeros(arrays[0])
        if self._cuts:
            flat = self._flat(out)
            flat[self._places] = np.concatenate([arrays[i][start:stop] for i, start, stop in self._cuts])
        return out

    def lay_at_ends(self, targets: np.ndarray) -> AtEnd:
        """The target of each sequence that ends in the rectangle, at its last sample."""
        values, last = self._zeros(targets), self._last[self._ends]
        self._flat(values)[last] = targets[self._sequences[self._ends]]
        return AtEnd(values, self._flags(last))

    @property
    def mask(self) -> np.ndarray:
        """True where a sample stands."""
        return self._flags(self._places)

    @property
    def resets(self) -> np.ndarray:
        """True where a sequence begins."""
        return self._flags(self._first[self._begins])

    def _zeros(self, like: np.ndarray) -> np.ndarray:
        return np.zeros((*self._shape, *like.shape[1:]), like.dtype)

    def _flat(self, out: np.ndarray) -> np.ndarray:
        return out.reshape(self._shape[0] * self._shape[1], *out.shape[2:])

    def _flags(self, places: np.ndarray) -> np.ndarray:
        flags = np.zeros(self._shape, bool)
        self._flat(flags)[places] = True
        return flags


def lay_out(data: Ragged, pieces: Sequence[Piece], n_rows: int, n_time: int) -> SequenceBatch:
    """A batch of the pieces, with resets; `real` is where a row holds any sample."""
    layout = Layout(pieces, n_rows, n_time)
    targets = None
    if data.per_sample is not None:
        targets = layout.lay(data.per_sample)
    elif data.per_sequence is not None:
        targets = layout.lay_at_ends(data.per_sequence)
    mask = layout.mask
    return SequenceBatch(layout.lay(data.inputs), targets, mask, layout.resets, mask.any(axis=1))
