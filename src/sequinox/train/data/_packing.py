"""Several sequences in a row, one after another."""

import bisect
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import PyTree

from ..._checks import size
from ._layout import lay_out, whole_pieces
from ._order import EpochSource, epoch_order, rough_order, shard_rows
from ._sequence_batch import SequenceBatch
from ._sequences import Masks, Ragged, Sequences, Static, Targets


class Packed(NamedTuple):
    """Packed rows, and where each sequence went: sequence `i` is `batch.inputs[rows[i], starts[i]:stops[i]]`.

    Attributes:
        batch: a `SequenceBatch` with `resets`. One target a sequence has become an `AtEnd`.
        rows: `(n,)` int64.
        starts: `(n,)` int64.
        stops: `(n,)` int64.
    """

    batch: SequenceBatch
    rows: np.ndarray
    starts: np.ndarray
    stops: np.ndarray

    def unpack(self, outputs: PyTree) -> list[Any]:
        """What a model made of each sequence, on the host. (`last` serves under `jit` as well.)

        Arguments:
            outputs: an array `(batch, time, *features)`, one output a sample, or a PyTree of them.

        Returns:
            A list in the order of the sequences packed: NumPy arrays `(time_i, *features)`, gaps included, or
            PyTrees of them.

        Raises:
            ValueError: `outputs` does not begin with the axes of the packed rows.
        """
        self._check(outputs, "unpack")
        leaves, tree = jax.tree.flatten(outputs)
        hosts = [np.asarray(leaf) for leaf in leaves]  # on the device each length would be compiled
        places = zip(self.rows.tolist(), self.starts.tolist(), self.stops.tolist(), strict=True)
        return [tree.unflatten([host[row, start:stop] for host in hosts]) for row, start, stop in places]

    def last(self, outputs: PyTree) -> Any:
        """The output at each sequence's last real sample.

        Arguments:
            outputs: an array `(batch, time, *features)`, one output a sample, or a PyTree of them.

        Returns:
            `(n, *features)`, in the order of the sequences packed; zeros for a sequence without a real sample, as
            `LastStep`.

        Raises:
            ValueError: `outputs` does not begin with the axes of the packed rows.
        """
        self._check(outputs, "last")
        mask = np.asarray(self.batch.mask)
        real = np.where(mask, np.arange(mask.shape[1]), -1)
        before = np.maximum.accumulate(real, axis=1) if mask.shape[1] else real
        last = before[self.rows, self.stops - 1] if mask.shape[1] else self.starts - 1
        empty = (self.stops == self.starts) | (last < self.starts)

        def pick(leaf: Any) -> Any:
            if leaf.shape[1] == 0:
                leaf = np.zeros((leaf.shape[0], 1, *leaf.shape[2:]), leaf.dtype)
            picked = leaf[self.rows, np.where(empty, 0, last)]
            if not empty.any():
                return picked
            shown = (~empty).reshape(-1, *[1] * (picked.ndim - 1))
            where = np.where if isinstance(picked, np.ndarray) else jax.numpy.where
            return where(shown, picked, np.zeros((), picked.dtype))

        return jax.tree.map(pick, outputs)

    def _check(self, outputs: PyTree, name: str) -> None:
        for leaf in jax.tree.leaves(outputs):
            if leaf.shape[:2] != self.batch.mask.shape:
                raise ValueError(
                    f"Packed.{name}: outputs must begin with the axes of the packed rows, {self.batch.mask.shape}, got "
                    f"{leaf.shape}"
                )


def pack(
    inputs: Sequences, targets: Targets = None, *, length: int, mask: Masks = None, static: Static = None
) -> Packed:
    """Packs sequences one after another into rows, with a reset at each one's first real sample.

    The longest comes first, each into the fullest row in which it still has room (best fit decreasing), so the result
    depends on the lengths alone. A layer of this package treats what is between two resets as a row of its own:
    outputs, gradients and pooled attention are those of separate rows.

    Arguments:
        inputs: a list of arrays `(time_i, *features)` of one dtype and feature shape; or a dictionary of such lists,
            several inputs by name.
        targets: None; a list of arrays `(time_i, *features)`, one target a sample; or an array `(n, *features)`, one
            target a sequence. The latter come back as [`AtEnd`][sequinox.train.AtEnd], each at its sequence's last
            real sample, with the mask of the loss.
        length: the length of the rows. At about four times the mean length few places stay empty.
        mask: a list of bool arrays `(time_i,)`, False in gaps, which take their places in a row. What is there
            (NaN) becomes zeros. Default: all samples are real.
        static: what is known of a sequence as a whole, an array `(n, *features)` or a dictionary of them. As a row
            holds several sequences, it is repeated along each, `(batch, time, *features)`.

    Returns:
        `Packed(batch, rows, starts, stops)`, NumPy arrays.

    Raises:
        TypeError: an entry is not an array, or `length` is not an integer.
        ValueError: no sequences; feature shapes, dtypes or targets that do not fit; a sequence longer than `length`; a
            sequence without a real sample that has a target of its own.

    ??? example

        ```python
        >>> import numpy as np
        >>> from sequinox.train import pack
        >>> packed = pack([np.array([1, 2]), np.array([3, 4, 5]), np.array([6])], np.array([10, 20, 30]), length=4)
        >>> packed.batch.inputs.tolist(), packed.batch.resets.astype(int).tolist()
        ([[3, 4, 5, 6], [1, 2, 0, 0]], [[1, 0, 0, 1], [1, 0, 0, 0]])
        >>> packed.batch.targets.values.tolist()
        [[0, 0, 20, 30], [0, 10, 0, 0]]
        >>> packed.last(packed.batch.inputs).tolist()
        [2, 5, 6]

        ```
    """
    data, length = _check(inputs, targets, length, mask, static, "pack")
    rows, starts = best_fit(data.lengths, np.argsort(-data.lengths, kind="stable"), length)
    stops = starts + data.lengths
    pieces = whole_pieces(data, rows, starts, np.arange(len(rows)))
    batch = lay_out(data, pieces, int(rows.max()) + 1, length)
    return Packed(batch, rows, starts, stops)


class Packs(EpochSource):
    """Endless shuffled batches of packed rows, packed again each epoch.

    All batches have one shape, so a step is compiled once, and nearly all samples are real. Every sequence comes once
    an epoch; the last batch of an epoch is filled up with masked rows. Sequences are packed roughly from long to
    short, with some chance in it, so that each epoch brings other neighbours; the rows are then shuffled.

    It yields [`SequenceBatch`][sequinox.train.SequenceBatch] with `resets`; one target a sequence comes as
    [`AtEnd`][sequinox.train.AtEnd]. All is a pure function of `(seed, epoch)`, so a position is two numbers and
    restoring it is exact anywhere.

    ??? example

        ```python
        >>> import numpy as np, sequinox as sqx
        >>> rows = [np.ones((n, 3), np.float32) for n in (2, 9, 3, 7, 2, 9)]
        >>> packs = sqx.train.Packs(rows, np.arange(6), batch_size=2, length=12, seed=0)
        >>> batch = next(packs)
        >>> batch.inputs.shape, batch.targets.values.shape, packs.steps_per_epoch
        ((2, 12, 3), (2, 12), 2)

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
        shuffle: bool = True,
        shard: tuple[int, int] = (0, 1),
    ):
        """Takes the sequences as they are, without a copy; only what a batch needs is read.

        Arguments:
            inputs: a list of arrays `(time_i, *features)`, as for `pack`. Empty ones take no room.
            targets: None, one a sequence or one a sample, as for `pack`.
            batch_size: rows in every batch, those of all processes together.
            length: the length of the rows, at least the longest sequence.
            seed: of packing and shuffling, a non-negative integer.
            mask: None, or a list of bool arrays `(time_i,)`, False in gaps, as for `pack`.
            static: None, or one a sequence, as for `pack`.
            shuffle: another packing and order each epoch. Default: True. Without it, those of `pack`.
            shard: `(index, count)`: process `index` of `count` yields its contiguous part of the rows of every batch.
                Default: `(0, 1)`, whole batches.

        Raises:
            TypeError: as `pack`; a number is not an integer.
            ValueError: as `pack`; `batch_size` not divisible by the number of processes; no sample at all.
        """
        self._data, self._length = _check(inputs, targets, length, mask, static, "Packs")
        if not self._data.lengths.any():
            raise ValueError("Packs: inputs has no sample")
        self._batch_size = size(batch_size, "Packs", "batch_size")
        super().__init__(seed, shuffle)
        self._part = shard_rows(self._batch_size, shard, "Packs")

    @property
    def efficiency(self) -> float:
        """The share of samples (gaps included) in the batches of the epoch of the next batch."""
        return float(self._data.lengths.sum() / (self.steps_per_epoch * self._batch_size * self._length))

    def _plan(self, epoch: int) -> tuple[np.ndarray, list[np.ndarray], np.ndarray]:
        """The order of the rows, the sequences in each, and where each sequence starts."""
        order = rough_order(self._data.lengths, self._seed, epoch, self._shuffle)
        order = order[self._data.lengths[order] > 0]
        rows, starts = best_fit(self._data.lengths, order, self._length)
        by_row = order[np.argsort(rows[order], kind="stable")]
        contents = np.split(by_row, np.cumsum(np.bincount(rows[order]))[:-1])
        return epoch_order(len(contents), self._seed, epoch, self._shuffle, 2), contents, starts

    def _n_steps(self, plan: Any) -> int:
        return -(-len(plan[0]) // self._batch_size)

    def _make(self, plan: Any, position: int) -> SequenceBatch:
        order, contents, starts = plan
        first = position * self._batch_size
        packed = [contents[row] for row in order[first : first + self._batch_size][self._part]]
        sequences = np.concatenate([np.zeros(0, np.int64), *packed])
        rows = np.repeat(np.arange(len(packed)), np.array([len(row) for row in packed], np.int64))
        pieces = whole_pieces(self._data, rows, starts[sequences], sequences)
        return lay_out(self._data, pieces, self._part.stop - self._part.start, self._length)

    def _content(self) -> dict[str, list[np.ndarray]]:
        return self._data.content()

    def _identity(self) -> dict[str, Any]:
        return {**self._data.identity(), "batch_size": self._batch_size, "length": self._length}


def best_fit(lengths: np.ndarray, order: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Row and start of each sequence, -1 for those not in `order`. Each goes into the fullest row with room for it."""
    rows, starts = np.full(len(lengths), -1, np.int64), np.full(len(lengths), -1, np.int64)
    by_room: dict[int, list[int]] = {}  # room left -> rows with just that, the latest opened last
    rooms: list[int] = []  # the keys of by_room, sorted
    n_rows = 0
    for sequence, needed in zip(order.tolist(), lengths[order].tolist(), strict=True):
        i = bisect.bisect_left(rooms, needed)
        if i < len(rooms):
            room = rooms[i]
            row = by_room[room].pop()
            if not by_room[room]:
                del by_room[room], rooms[i]
        else:
            room, row, n_rows = length, n_rows, n_rows + 1
        rows[sequence], starts[sequence] = row, length - room
        left = room - needed
        if left not in by_room:
            by_room[left] = []
            bisect.insort(rooms, left)
        by_room[left].append(row)
    return rows, starts


def _check(
    inputs: Sequences, targets: Targets, length: int, mask: Masks, static: Static, who: str
) -> tuple[Ragged, int]:
    data = Ragged(inputs, targets, mask, static, who)
    length = size(length, who, "length")
    data.check_longest(length, "length")
    data.check_ends()
    return data, length
