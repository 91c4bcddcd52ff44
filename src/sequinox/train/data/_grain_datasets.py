"""The datasets of grain that the functions in `_grain` make. Only there is this imported: grain is optional."""

import copy
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import grain
import numpy as np

from ._buckets import padded_batch, pass_leftovers
from ._elements import ragged
from ._layout import lay_out, pieces_of, whole_pieces
from ._sequence_batch import Per, SequenceBatch
from ._sequences import Ragged

# Restoring, elements this near are read on to, others sought: a prefetching parent reads about as many ahead each time.
_NEAR = 500


class _Held(NamedTuple):
    """An element that is not through yet: its number in the stream, and the parent's state before it."""

    number: int
    state: Any
    element: Any

    def place(self) -> dict[str, Any]:
        return {"number": self.number, "parent": copy.deepcopy(self.state)}


class _HoldingIterator(grain.DatasetIterator):
    """An iterator that holds elements of its parent, and reads them again when it is restored."""

    _n_read = 0

    def _read(self) -> _Held:
        state = copy.deepcopy(self._parent.get_state())
        held = _Held(self._n_read, state, next(self._parent))
        self._n_read += 1
        return held

    def _reading_state(self) -> dict[str, Any]:
        return {"parent": self._parent.get_state(), "n_read": self._n_read}

    def _reread(self, state: Any, places: Sequence[Any]) -> dict[int, _Held]:
        """The elements held at `places`, by number; the parent is then where `state` says."""
        found: dict[int, _Held] = {}
        here = -_NEAR - 1
        for place in sorted(places, key=lambda place: place["number"]):
            number, before = place["number"], place["parent"]
            if number - here > _NEAR:
                self._parent.set_state(copy.deepcopy(before))
                here = number
            for _ in range(here, number):
                next(self._parent)
            found[number] = _Held(number, copy.deepcopy(before), next(self._parent))
            here = number + 1
        self._parent.set_state(copy.deepcopy(state["parent"]))
        self._n_read = state["n_read"]
        return found


class BucketsDataset(grain.IterDataset):
    """See `grain_buckets`."""

    def __init__(self, parent: Any, lengths: list[int], rows: list[int], parts: list[slice], per: Per):
        super().__init__(parent)
        self._arguments = lengths, rows, parts, per

    def __iter__(self) -> grain.DatasetIterator:
        return _BucketsIterator(self._parent.__iter__(), *self._arguments)

    def __str__(self) -> str:
        return f"BucketsDataset(lengths={self._arguments[0]}, rows={self._arguments[1]})"


class _BucketsIterator(_HoldingIterator):
    def __init__(
        self, parent: grain.DatasetIterator, lengths: list[int], rows: list[int], parts: list[slice], per: Per
    ):
        super().__init__(parent)
        self._lengths, self._rows, self._parts = lengths, rows, parts
        self._per: Per = per
        self._waiting: list[list[_Held]] = [[] for _ in lengths]
        self._n_last = 0  # batches yielded since the stream ended

    def __next__(self) -> SequenceBatch:
        while True:
            try:
                held = self._read()
            except StopIteration:
                break
            bucket = self._bucket(held.element)
            self._waiting[bucket].append(held)
            if len(self._waiting[bucket]) == self._rows[bucket]:
                full, self._waiting[bucket] = self._waiting[bucket], []
                return self._batch(bucket, full)
        last = self._last_batches()
        if self._n_last == len(last):
            raise StopIteration
        self._n_last += 1
        return self._batch(*last[self._n_last - 1])

    def _bucket(self, element: Any) -> int:
        data = ragged([element], self._per, "grain_buckets")
        data.check_longest(self._lengths[-1], "the largest bucket")
        return int(np.searchsorted(self._lengths, data.lengths[0]))

    def _last_batches(self) -> list[tuple[int, list[_Held]]]:
        plan = pass_leftovers(self._lengths, self._rows, np.array([len(waiting) for waiting in self._waiting]))
        batches, rest = [], []
        for bucket, (rows, n) in enumerate(zip(self._rows, plan.batches, strict=True)):
            rest = rest + self._waiting[bucket]
            batches += [(bucket, rest[i * rows : (i + 1) * rows]) for i in range(n)]
            rest = rest[n * rows :]
        return batches

    def _batch(self, bucket: int, held: list[_Held]) -> SequenceBatch:
        data, part = ragged([each.element for each in held], self._per, "grain_buckets"), self._parts[bucket]
        return padded_batch(data, np.arange(len(held))[part], part.stop - part.start, self._lengths[bucket])

    def get_state(self) -> dict[str, Any]:
        waiting = [[held.place() for held in bucket] for bucket in self._waiting]
        return {**self._reading_state(), "waiting": waiting, "n_last": self._n_last}

    def set_state(self, state: dict[str, Any]) -> None:
        found = self._reread(state, [place for bucket in state["waiting"] for place in bucket])
        self._waiting = [[found[place["number"]] for place in bucket] for bucket in state["waiting"]]
        self._n_last = state["n_last"]

    def __str__(self) -> str:
        return f"BucketsIterator(lengths={self._lengths}, rows={self._rows})"


class WindowsDataset(grain.IterDataset):
    """See `grain_windows`."""

    def __init__(self, parent: Any, batch_size: int, length: int, per: Per):
        super().__init__(parent)
        self._arguments = batch_size, length, per

    def __iter__(self) -> grain.DatasetIterator:
        return _WindowsIterator(self._parent.__iter__(), *self._arguments)

    def __str__(self) -> str:
        return f"WindowsDataset(batch_size={self._arguments[0]}, length={self._arguments[1]})"


class _WindowsIterator(_HoldingIterator):
    def __init__(self, parent: grain.DatasetIterator, batch_size: int, length: int, per: Per):
        super().__init__(parent)
        self._batch_size, self._length = batch_size, length
        self._per: Per = per
        # Each lane's unfinished sequence, and how many of its samples are through.
        self._lanes: list[tuple[_Held, int] | None] = [None] * batch_size

    def __next__(self) -> SequenceBatch:
        lanes, elements, pieces = list(self._lanes), [], []
        for row in range(self._batch_size):
            at = 0
            while at < self._length:
                try:
                    held, start = lanes[row] or (self._read(), 0)
                except StopIteration:
                    break
                total = self._total(held.element)
                stop = min(total, start + self._length - at)
                if stop > start:
                    pieces.append((row, at, len(elements), start, stop))
                    elements.append(held.element)
                lanes[row] = (held, stop) if stop < total else None
                at += stop - start
        if not pieces:
            raise StopIteration
        self._lanes = lanes
        data = ragged(elements, self._per, "grain_windows")
        marked = [(*piece, *_marks(data, *piece[2:])) for piece in pieces]
        return lay_out(data, pieces_of(marked), self._batch_size, self._length)

    def _total(self, element: Any) -> int:
        data = ragged([element], self._per, "grain_windows")
        data.check_ends()
        return int(data.lengths[0])

    def get_state(self) -> dict[str, Any]:
        lanes = [None if lane is None else {**lane[0].place(), "n_through": lane[1]} for lane in self._lanes]
        return {**self._reading_state(), "lanes": lanes}

    def set_state(self, state: dict[str, Any]) -> None:
        found = self._reread(state, [lane for lane in state["lanes"] if lane is not None])
        held = lambda lane: None if lane is None else (found[lane["number"]], lane["n_through"])
        self._lanes = [held(lane) for lane in state["lanes"]]

    def __str__(self) -> str:
        return f"WindowsIterator(batch_size={self._batch_size}, length={self._length})"


def _marks(data: Ragged, sequence: int, start: int, stop: int) -> tuple[int, int]:
    """The first and the last real sample of a sequence, -1 where the piece does not hold it."""
    ends = data.first_real(sequence, 0, int(data.lengths[sequence])), data.last_real(sequence)
    first, last = (sample if start <= sample < stop else -1 for sample in ends)
    return first, last


def packed(parent: Any, length: int, batch_size: int, seed: int, n_open: int, per: Per) -> grain.IterDataset:
    """See `grain_pack`."""
    # grain says which sequences share a row; what they hold is passed along as it is, and is laid out at the end.
    rows = grain.experimental.FirstFitPackIterDataset(
        parent.map(functools.partial(_packable, length=length, per=per)),
        length_struct={"samples": length},
        num_packing_bins=n_open,
        seed=seed,
        shuffle_bins=True,
        meta_features=("element",),
    )
    return rows.batch(
        batch_size, batch_fn=functools.partial(_packed_batch, batch_size=batch_size, length=length, per=per)
    )


def _packable(element: Any, length: int, per: Per) -> dict[str, Any]:
    data = ragged([element], per, "grain_pack")
    data.check_longest(length, "length")
    data.check_ends()
    return {"samples": np.zeros(int(data.lengths[0]), bool), "element": element}


def _packed_batch(rows: Sequence[dict[str, Any]], batch_size: int, length: int, per: Per) -> SequenceBatch:
    data = ragged([element for row in rows for element in row["element"]], per, "grain_pack")
    row_of = np.repeat(np.arange(len(rows)), [len(row["element"]) for row in rows])
    ends = np.cumsum(data.lengths)
    before = np.concatenate([[0], ends])[np.searchsorted(row_of, row_of)]  # samples in the rows before
    pieces = whole_pieces(data, row_of, ends - data.lengths - before, np.arange(len(row_of)))
    return lay_out(data, pieces, batch_size, length)
