"""Ragged rows in batches of few shapes, each nearly full."""

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ..._checks import size
from ._layout import Layout, whole_pieces
from ._order import EpochSource, epoch_order, shard_rows
from ._sequence_batch import SequenceBatch
from ._sequences import Masks, Ragged, Sequences, Static, Targets, each

# Lengths among which the boundaries are chosen; of more, this many quantiles. The table has its square of entries.
_MOST_CANDIDATES = 1024


class Buckets(EpochSource):
    """Endless shuffled batches of ragged rows, sorted into buckets by length.

    A batch holds rows of about one length, padded to that of their bucket, so that there are as many shapes to compile
    as buckets, and little padding. Every sequence comes once an epoch. What a bucket has left over when its full
    batches are drawn goes into the next larger bucket where that costs fewer samples than a batch of mostly filler.

    It yields [`SequenceBatch`][sequinox.train.SequenceBatch], with `resets=None`. The order of rows and of batches is a
    pure function of `(seed, epoch)`, so a position is two numbers and restoring it is exact anywhere.

    ??? example

        ```python
        >>> import numpy as np, sequinox as sqx
        >>> rows = [np.ones((n, 3), np.float32) for n in (2, 9, 3, 8, 2, 9)]
        >>> buckets = sqx.train.Buckets(rows, batch_size=3, lengths=(3, 9), seed=0)
        >>> buckets.shapes, buckets.steps_per_epoch, f"{buckets.efficiency:.2f}"
        (((3, 3), (3, 9)), 2, '0.92')

        ```
    """

    def __init__(
        self,
        inputs: Sequences,
        targets: Targets = None,
        *,
        mask: Masks = None,
        static: Static = None,
        seed: int,
        batch_size: int | None = None,
        batch_samples: int | None = None,
        multiple_of: int = 1,
        lengths: Sequence[int] | None = None,
        n_buckets: int | None = None,
        shuffle: bool = True,
        shard: tuple[int, int] = (0, 1),
    ):
        """Takes the sequences as they are, without a copy; only what a batch needs is read.

        Arguments:
            inputs: a list of arrays `(time_i, *features)` of one dtype and feature shape, slices of a memory-mapped
                file included. A length of 0 is ordinary. Or a dictionary of such lists, several inputs by name.
            targets: None; an array `(n, *features)`, one target a sequence; or a list of arrays
                `(time_i, *features)`, one target a sample.
            mask: a list of bool arrays `(time_i,)` beside the inputs, False in gaps; memory-mapped ones are read as the
                inputs are. What is in a gap (NaN) becomes zeros. Default: all samples are real.
            static: what is known of a sequence as a whole, an array `(n, *features)` or a dictionary of them. A batch
                has it one a row.
            seed: of the shuffling, a non-negative integer.
            batch_size: rows in every batch, those of all processes together.
            batch_samples: instead of `batch_size`: samples in every batch, padding included. A bucket of length `n`
                then has `batch_samples // n` rows, and all steps cost about the same. (Fewer where it holds fewer.)
            multiple_of: with `batch_samples`, rows are rounded down to a multiple of this: the number of processes or
                devices that share a batch. Default: 1.
            lengths: the buckets' lengths, increasing. Default: chosen so that an epoch has as few samples as possible,
                padding and filler included.
            n_buckets: how many buckets may be chosen at most. Default: 8. Each is compiled once.
            shuffle: a new order each epoch. Default: True. Without it batches come from short to long.
            shard: `(index, count)`: process `index` of `count` yields its contiguous part of the rows of every batch.
                Default: `(0, 1)`, whole batches.

        Raises:
            TypeError: an entry is not an array; a number is not an integer.
            ValueError: no sequences; feature shapes, dtypes or targets that do not fit; both or neither of `batch_size`
                and `batch_samples`; both `lengths` and `n_buckets`; a sequence longer than the largest bucket; rows not
                divisible by the number of processes.
        """
        self._data = Ragged(inputs, targets, mask, static, "Buckets")
        super().__init__(seed, shuffle)
        if (batch_size is None) == (batch_samples is None):
            raise ValueError("Buckets: exactly one of batch_size and batch_samples must be given")
        self._multiple = size(multiple_of, "Buckets", "multiple_of")
        if batch_size is not None:
            self._size = {"batch_size": size(batch_size, "Buckets", "batch_size")}
            if self._multiple > 1:
                raise ValueError("Buckets: multiple_of goes with batch_samples; choose batch_size itself")
        else:
            samples = size(batch_samples, "Buckets", "batch_samples")
            self._size = {"batch_samples": samples, "multiple_of": self._multiple}
        self._buckets = self._choose(lengths, n_buckets)
        self._parts = [shard_rows(rows, shard, "Buckets") for rows in self._buckets.rows]
        self._bucket_of = np.searchsorted(self._buckets.lengths, self._data.lengths)

    def _choose(self, lengths: Sequence[int] | None, n_buckets: int | None) -> "BucketPlan":
        if lengths is not None:
            if n_buckets is not None:
                raise ValueError("Buckets: give lengths or n_buckets, not both")
            chosen = check_lengths(lengths, "Buckets")
            self._data.check_longest(chosen[-1], "the largest bucket")
            return self._lay(chosen)
        most = 8 if n_buckets is None else size(n_buckets, "Buckets", "n_buckets")
        # More buckets pad less, but leave more batches unfilled: the count is chosen by what an epoch comes to.
        return min((self._lay(each) for each in best_lengths(self._data.lengths, most)), key=lambda plan: plan.cost)

    def _lay(self, lengths: Sequence[int]) -> "BucketPlan":
        counts = np.bincount(np.searchsorted(lengths, self._data.lengths), minlength=len(lengths))
        fitting = np.cumsum(counts)  # what a bucket may hold, those passed up from below included
        if "batch_size" in self._size:
            rows = [self._size["batch_size"]] * len(lengths)
        else:
            if lengths[-1] * self._multiple > self._size["batch_samples"]:
                raise ValueError(
                    f"Buckets: batch_samples must hold {self._multiple} rows of the largest bucket, "
                    f"{lengths[-1] * self._multiple} samples, got {self._size['batch_samples']}"
                )
            budgets = rows_within(self._size["batch_samples"], lengths, self._multiple)
            rows = [
                min(budget, -(-max(int(n), 1) // self._multiple) * self._multiple)
                for budget, n in zip(budgets, fitting, strict=True)
            ]
        return pass_leftovers(lengths, rows, counts)

    @property
    def shapes(self) -> tuple[tuple[int, int], ...]:
        """`(rows, time)` of the batches, each compiled once; with `shard`, those of all processes together."""
        plan = self._buckets
        used = zip(plan.rows, plan.lengths, plan.batches, strict=True)
        return tuple((rows, length) for rows, length, n in used if n)

    @property
    def efficiency(self) -> float:
        """The share of samples (gaps included) in an epoch's batches; the rest is padding and filler."""
        return float(self._data.lengths.sum() / self._buckets.cost[0]) if self._buckets.cost[0] else 1.0

    def _plan(self, epoch: int) -> list[tuple[int, np.ndarray]]:
        order = epoch_order(len(self._data.lengths), self._seed, epoch, self._shuffle)
        bucket_of = self._bucket_of[order]
        batches: list[tuple[int, np.ndarray]] = []
        rest = order[:0]
        for bucket, (rows, n) in enumerate(zip(self._buckets.rows, self._buckets.batches, strict=True)):
            waiting = np.concatenate([rest, order[bucket_of == bucket]])
            batches += [(bucket, waiting[i * rows : (i + 1) * rows]) for i in range(n)]
            rest = waiting[n * rows :]
        return [batches[i] for i in epoch_order(len(batches), self._seed, epoch, self._shuffle, 2)]

    def _n_steps(self, plan: Any) -> int:
        return len(plan)

    def _make(self, plan: list[tuple[int, np.ndarray]], position: int) -> SequenceBatch:
        bucket, sequences = plan[position]
        part = self._parts[bucket]
        return padded_batch(self._data, sequences[part], part.stop - part.start, self._buckets.lengths[bucket])

    def _content(self) -> dict[str, list[np.ndarray]]:
        return self._data.content()

    def _identity(self) -> dict[str, Any]:
        return {**self._data.identity(), **self._size, "lengths": list(self._buckets.lengths)}


def check_lengths(lengths: Sequence[int], who: str) -> list[int]:
    """The lengths of buckets, increasing."""
    chosen = [size(length, who, f"lengths[{i}]", 0) for i, length in enumerate(lengths)]
    if not chosen or any(b <= a for a, b in itertools.pairwise(chosen)):
        raise ValueError(f"{who}: lengths must be increasing, at least one, got {chosen}")
    return chosen


def rows_within(samples: int, lengths: Sequence[int], multiple: int) -> list[int]:
    """Per bucket the most rows, a multiple of `multiple`, that hold no more than `samples`."""
    return [samples // max(length, 1) // multiple * multiple for length in lengths]


def padded_batch(data: Ragged, sequences: np.ndarray, n_rows: int, length: int) -> SequenceBatch:
    """One sequence a row, zeros after each and below them."""
    rows = np.arange(len(sequences))
    layout = Layout(whole_pieces(data, rows, np.zeros_like(rows), sequences), n_rows, length)

    def one_a_row(values: np.ndarray) -> np.ndarray:
        out = np.zeros((n_rows, *values.shape[1:]), values.dtype)
        out[: len(sequences)] = values[sequences]
        return out

    inputs, mask = layout.lay_real(data)
    targets = None
    if data.per_sample is not None:
        targets = layout.lay(data.per_sample)
    elif data.per_sequence is not None:
        targets = one_a_row(data.per_sequence)
    static = None if data.static is None else each(one_a_row, data.static)
    real = np.arange(n_rows) < len(sequences)
    return SequenceBatch(inputs, targets, mask, None, real, static, data.targets_per)


class BucketPlan(NamedTuple):
    """Per bucket its length, rows of a batch and batches of an epoch; `cost` is (samples, steps) of an epoch."""

    lengths: tuple[int, ...]
    rows: tuple[int, ...]
    batches: tuple[int, ...]
    cost: tuple[int, int]


def pass_leftovers(lengths: Sequence[int], rows: Sequence[int], counts: np.ndarray) -> BucketPlan:
    """What each bucket does with its leftover: a batch with filler, or up into the next. The cheapest, exactly.

    Going up the buckets, all that is left of the past is a number of rows: the best way to each is kept.
    """
    ways: dict[int, tuple[tuple[int, int], tuple[int, ...]]] = {0: ((0, 0), ())}
    for bucket, (length, n_rows, count) in enumerate(zip(lengths, rows, counts, strict=True)):
        ahead: dict[int, tuple[tuple[int, int], tuple[int, ...]]] = {}
        for carried, ((samples, steps), batches) in ways.items():
            full, rest = divmod(carried + int(count), n_rows)
            choices = [(full + (rest > 0), 0)]
            if rest and bucket + 1 < len(lengths):
                choices.append((full, rest))
            for n, left in choices:
                way = (samples + n * n_rows * length, steps + n), (*batches, n)
                if left not in ahead or way < ahead[left]:
                    ahead[left] = way
        ways = ahead
    cost, batches = ways[0]
    return BucketPlan(tuple(int(n) for n in lengths), tuple(rows), batches, cost)


def best_lengths(lengths: np.ndarray, most: int) -> list[list[int]]:
    """For each number of buckets up to `most`, the bucket lengths with the least padding.

    With the distinct lengths $l_1 < \\dots < l_m$ and $c_j$ sequences up to $l_j$, the samples of the best $k$ buckets
    up to $l_j$ are $f_k(j) = \\min_{i<j} f_{k-1}(i) + (c_j - c_i)\\, l_j$.
    """
    # Empty rows go with the shortest: a bucket of their own would cost a step, and gain nothing.
    shortest = int(np.min(lengths[lengths > 0], initial=np.iinfo(np.int64).max)) if np.any(lengths) else 0
    values, counts = np.unique(np.maximum(lengths, shortest), return_counts=True)
    if len(values) > _MOST_CANDIDATES:
        ranks = (np.arange(1, _MOST_CANDIDATES + 1) * len(lengths) - 1) // _MOST_CANDIDATES
        values = np.unique(np.sort(np.maximum(lengths, shortest))[ranks])
        counts = np.bincount(np.searchsorted(values, np.maximum(lengths, shortest)), minlength=len(values))
    below = np.concatenate([[0], np.cumsum(counts)])
    m = len(values)
    cost = values[None, :] * (below[None, 1:] - below[:-1, None])  # from i (exclusive) to j
    cost = np.where(np.arange(m)[:, None] <= np.arange(m)[None, :], cost, np.iinfo(np.int64).max // 4)
    best, found, choices = cost[0], [[int(values[-1])]], []
    for _ in range(2, min(most, m) + 1):
        table = np.concatenate([[np.iinfo(np.int64).max // 4], best[:-1]])[:, None] + cost
        before = np.argmin(table, axis=0)
        best = table[before, np.arange(m)]
        choices.append(before)
        ends, j = [], m
        for chosen in [*choices[::-1], np.zeros(m, np.int64)]:
            ends.append(int(values[j - 1]))
            j = int(chosen[j - 1])
        found.append(ends[::-1])
    return found
