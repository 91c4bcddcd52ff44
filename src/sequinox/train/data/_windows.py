"""Windows over long streams, each continuing where the last one stopped: the data of truncated BPTT."""

import dataclasses
import heapq
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

from ..._checks import size
from ._axes import kinds_of, map_along, size_along
from ._layout import Piece, lay_out, pieces_of
from ._order import EpochSource, epoch_order, rough_order, shard_rows
from ._sequence_batch import SequenceBatch
from ._sequences import Masks, Ragged, Sequences, Static, Targets


class Windows(EpochSource):
    """Endless windows `(batch_size, length)` over sequences laid end to end in `batch_size` lanes.

    Each row of the batch is a lane. Window `t + 1` continues window `t` lane by lane, so a layer's state is carried
    from one to the next; `resets` is True at the first real sample of every sequence, also inside a window. Sequences
    begin and end anywhere. At the end of an epoch lanes that are through are filled up with masked steps; then every
    lane starts with a sequence again.

    Only the window is read: sequences may be memory-mapped files far larger than the memory. It yields
    [`SequenceBatch`][sequinox.train.SequenceBatch]; one target a sequence comes as
    [`AtEnd`][sequinox.train.AtEnd]. All is a pure function of `(seed, epoch)`, so a position is two numbers and
    restoring it is exact anywhere (a carried state is restored with the train state).

    ??? example

        ```python
        >>> import numpy as np, sequinox as sqx
        >>> rows = [np.array([1, 2, 3, 4, 5]), np.array([6, 7]), np.array([8, 9])]
        >>> windows = sqx.train.Windows(rows, batch_size=2, length=3, seed=0, shuffle=False)
        >>> for _ in range(windows.steps_per_epoch):
        ...     batch = next(windows)
        ...     print(batch.inputs.tolist(), batch.resets.astype(int).tolist())
        [[1, 2, 3], [6, 7, 8]] [[1, 0, 0], [1, 0, 1]]
        [[4, 5, 0], [9, 0, 0]] [[0, 0, 0], [0, 0, 0]]

        ```
    """

    def __init__(
        self,
        inputs: Sequences,
        targets: Targets = None,
        *,
        batch_size: int,
        length: int,
        seed: int,
        mask: Masks = None,
        static: Static = None,
        look_back: int = 0,
        cut: bool = False,
        shuffle: bool = True,
        shard: tuple[int, int] = (0, 1),
    ):
        """Takes the sequences as they are, without a copy.

        Arguments:
            inputs: a list of arrays `(time_i, *features)` of one dtype and feature shape; `np.memmap` and its slices
                are read window by window. Empty ones take no room. Or a dictionary of such lists, several inputs by
                name.
            targets: None; a list of arrays `(time_i, *features)`, one target a sample; or an array `(n, *features)`,
                one target a sequence.
            batch_size: the number of lanes, those of all processes together.
            length: samples by which a window advances.
            seed: of the distribution over lanes and the order in them, a non-negative integer.
            mask: a list of bool arrays `(time_i,)` beside the inputs, False in gaps; memory-mapped ones are read as the
                inputs are. What is in a gap (NaN) becomes zeros. Default: all samples are real.
            static: what is known of a sequence as a whole, an array `(n, *features)` or a dictionary of them. As a lane
                holds several sequences, it is repeated along each, `(batch, time, *features)`.
            look_back: samples of the past in front of every window, masked before a lane's start; time is then
                `look_back + length`. Read them with [`look_back`][sequinox.train.look_back], which carries the state
                rightly and counts each loss once; or, with layers that need a context instead of a state, count the
                losses after them alone (`outputs[:, look_back:]`). `AtEnd` targets are only there.
            cut: lay all sequences end to end and cut that into `batch_size` lanes of equal length, instead of keeping
                sequences whole. A piece starts with a reset, as if it were a sequence. For one long stream, or few.
            shuffle: another distribution and order each epoch. Default: True. Without it, sequences go to the lanes in
                their order, each to the lane that is free first.
            shard: `(index, count)`: process `index` of `count` yields its contiguous part of the lanes.
                Default: `(0, 1)`, all.

        Raises:
            TypeError: an entry is not an array; a number is not an integer.
            ValueError: no sample at all; feature shapes, dtypes or targets that do not fit; `batch_size` not divisible
                by the number of processes; a sequence without a real sample that has a target of its own.
        """
        self._data = Ragged(inputs, targets, mask, static, "Windows")
        self._data.check_ends()
        if not self._data.lengths.any():
            raise ValueError("Windows: inputs has no sample")
        self._batch_size = size(batch_size, "Windows", "batch_size")
        self._length = size(length, "Windows", "length")
        self._look_back = size(look_back, "Windows", "look_back", 0)
        super().__init__(seed, shuffle)
        self._cut = bool(cut)
        self._part = shard_rows(self._batch_size, shard, "Windows")

    @property
    def efficiency(self) -> float:
        """The share of samples, gaps included, in the windows of the next batch's epoch, but for the look back."""
        return float(self._data.lengths.sum() / (self.steps_per_epoch * self._batch_size * self._length))

    def _plan(self, epoch: int) -> list["_Lane"]:
        lengths = self._data.lengths
        if self._cut:
            order = epoch_order(len(lengths), self._seed, epoch, self._shuffle)
            return _cut_lanes(lengths, order, self._batch_size)
        lanes: list[list[int]] = [[] for _ in range(self._batch_size)]
        free = [(0, lane) for lane in range(self._batch_size)]
        # The long ones first leave the lanes most even; the order within a lane is by chance again.
        order = rough_order(lengths, self._seed, epoch, True) if self._shuffle else np.arange(len(lengths))
        for sequence in order[lengths[order] > 0].tolist():
            filled, lane = heapq.heappop(free)
            lanes[lane].append(sequence)
            heapq.heappush(free, (filled + int(lengths[sequence]), lane))
        if self._shuffle:
            rank = np.argsort(epoch_order(len(lengths), self._seed, epoch, True, 2))
            lanes = [sorted(lane, key=lambda sequence: int(rank[sequence])) for lane in lanes]
        whole = lambda lane: np.array(lane, np.int64)
        return [_lane(whole(lane), np.zeros(len(lane), np.int64), lengths[whole(lane)]) for lane in lanes]

    def _n_steps(self, plan: Any) -> int:
        return -(-max(lane.length for lane in plan) // self._length)

    def _make(self, plan: Any, position: int) -> SequenceBatch:
        start = position * self._length
        pieces = [
            piece
            for row, lane in enumerate(plan[self._part])
            for piece in self._pieces(row, lane, start - self._look_back, start)
        ]
        n_rows, time = self._part.stop - self._part.start, self._look_back + self._length
        batch = lay_out(self._data, pieces_of(pieces), n_rows, time)
        # Rows whose only samples are of the past are filler.
        return dataclasses.replace(batch, real=batch.mask[:, self._look_back :].any(axis=1))

    def _pieces(self, row: int, lane: "_Lane", first: int, start: int) -> Iterator[Piece]:
        stop = min(start + self._length, lane.length)
        at = max(first, 0)
        i = int(np.searchsorted(lane.offsets, at, side="right")) - 1
        while at < stop:
            offset, end = int(lane.offsets[i]), int(lane.offsets[i + 1])
            sequence, shift = int(lane.sequences[i]), int(lane.starts[i]) - offset
            until = min(end, stop)
            begins = self._data.first_real(sequence, offset + shift, until + shift)
            ends = -1 if self._data.per_sequence is None else self._data.last_real(sequence)
            inside = lambda sample, since, shift=shift, until=until: since <= sample - shift < until
            begins = begins if begins >= 0 and inside(begins, at) else -1
            ends = ends if ends >= 0 and inside(ends, max(at, start)) else -1  # a target of the past has had its turn
            yield row, at - first, sequence, at + shift, until + shift, begins, ends
            at, i = until, i + 1

    def _content(self) -> dict[str, list[np.ndarray]]:
        return self._data.content()

    def _identity(self) -> dict[str, Any]:
        return {
            **self._data.identity(),
            "batch_size": self._batch_size,
            "length": self._length,
            "look_back": self._look_back,
            "cut": self._cut,
        }


class _Lane(NamedTuple):
    """Pieces end to end: `sequences[i]` from its sample `starts[i]` on is at `offsets[i]` to `offsets[i + 1]`."""

    sequences: np.ndarray
    starts: np.ndarray
    offsets: np.ndarray

    @property
    def length(self) -> int:
        return int(self.offsets[-1])


def _lane(sequences: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> _Lane:
    return _Lane(sequences, starts, np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)]))


def _cut_lanes(lengths: np.ndarray, order: np.ndarray, n_lanes: int) -> list[_Lane]:
    order = order[lengths[order] > 0]
    offsets = np.concatenate([[0], np.cumsum(lengths[order])])
    each = -(-int(offsets[-1]) // n_lanes)
    lanes = []
    for lane in range(n_lanes):
        begin, end = min(lane * each, int(offsets[-1])), min((lane + 1) * each, int(offsets[-1]))
        inside = np.flatnonzero((offsets[:-1] < end) & (offsets[1:] > begin))
        starts = np.maximum(begin - offsets[inside], 0)
        stops = np.minimum(end - offsets[inside], lengths[order[inside]])
        lanes.append(_lane(order[inside], starts, stops - starts))
    return lanes


def windows(batch: SequenceBatch, length: int) -> Iterator[SequenceBatch]:
    """Cuts a batch along time into windows of one shape.

    The last window is filled up with masked steps, so that all have one shape. A state carried from window to window
    makes them equal to the whole batch.

    Arguments:
        batch: a `SequenceBatch` of arrays, NumPy or JAX, whose targets have one entry a sample, and which says so
            (`targets_per="sample"`). One target a row must be given a place first: [`at_end`][sequinox.train.at_end].
            Resets must be on real samples: [`move_resets`][sequinox.train.move_resets].
        length: samples of a window.

    Returns:
        An iterator of `SequenceBatch`; what is one a row, such as `real`, is that of the batch in each. Wrong
        arguments are reported at the call.

    Raises:
        TypeError: `batch` is not a `SequenceBatch`, or `length` is not an integer.
        ValueError: `length < 1`; a target is one a row, or it is not said; arrays differ in their first two axes.

    ??? example

        ```python
        >>> import numpy as np
        >>> from sequinox.train import SequenceBatch, pad, windows
        >>> inputs, mask = pad([np.array([1, 2, 3, 4, 5]), np.array([6, 7])])
        >>> [w.inputs.tolist() for w in windows(SequenceBatch(inputs, None, mask, None, mask.any(axis=1)), 3)]
        [[[1, 2, 3], [6, 7, 0]], [[4, 5, 0], [0, 0, 0]]]

        ```
    """
    if not isinstance(batch, SequenceBatch):
        raise TypeError(f"windows: batch must be a SequenceBatch, got {type(batch).__name__}")
    length = size(length, "windows", "length")
    kinds = kinds_of("windows", batch, None, time=True)
    if "batch" in jax.tree.leaves(kinds.targets):
        raise ValueError("windows: targets must have one entry a sample; give one target a row its place by at_end")
    time = size_along("time", batch, kinds)
    if time is None:
        raise ValueError("windows: no array of the batch has time, which could be cut")

    def cut(leaf: Any, start: int) -> Any:
        part = leaf[:, start : start + length]
        short = length - part.shape[1]
        if not short:
            return part
        filler = np.zeros((part.shape[0], short, *part.shape[2:]), part.dtype)
        return (np if isinstance(part, np.ndarray) else jax.numpy).concatenate([part, filler], axis=1)

    return (
        map_along("time", lambda leaf, _, start=start: cut(leaf, start), batch, kinds)
        for start in range(0, time, length)
    )
