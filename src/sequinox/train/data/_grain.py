"""The same layouts of ragged data in pipelines of grain."""

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ..._checks import size
from ._buckets import check_lengths, rows_within
from ._elements import pad_elements
from ._order import shard_rows
from ._sequence_batch import PER, Per, SequenceBatch

if TYPE_CHECKING:  # grain is optional
    from grain import IterDataset, MapDataset

    Dataset = IterDataset | MapDataset
else:
    IterDataset = Dataset = Any


def grain_pad(*, batch_size: int, length: int, targets_per: Per = None) -> Callable[[Sequence[Any]], SequenceBatch]:
    """Padding as grain's `batch_fn`: `ds.batch(n, batch_fn=grain_pad(batch_size=n, length=...))`.

    A short last batch is filled up with masked rows, so that all have one shape.

    Arguments:
        batch_size: rows in every batch, the size given to `ds.batch`.
        length: the time axis of every batch, at least the longest sequence.
        targets_per: None where elements are arrays `(time, *features)`, or dictionaries of them, several inputs by
            name. Where they are pairs of that and a target: `"sequence"` for a target `(*features)` of the whole,
            `"sample"` for one a sample, `(time, *features)`. Default: None. Elements with masks or static features are
            [`OneSequence`][sequinox.train.OneSequence], with or without a target likewise.

    Returns:
        A function from a list of elements to a `SequenceBatch`; it can be pickled for grain's worker processes.

    Raises:
        TypeError: a number is not an integer.
        ValueError: a number below 1, or another `targets_per`. The function raises as `Buckets` does.

    ??? example

        ```python
        >>> import grain, numpy as np, sequinox as sqx
        >>> rows = [(np.ones((n, 3), np.float32), n) for n in (2, 4, 1)]
        >>> ds = grain.MapDataset.source(rows).shuffle(seed=0).to_iter_dataset()
        >>> padding = sqx.train.grain_pad(batch_size=2, length=4, targets_per="sequence")
        >>> [batch.real.tolist() for batch in ds.batch(2, batch_fn=padding)]
        [[True, True], [True, False]]

        ```
    """
    n_rows = size(batch_size, "grain_pad", "batch_size")
    _check_per(targets_per, "grain_pad")
    length = size(length, "grain_pad", "length")
    return functools.partial(pad_elements, batch_size=n_rows, length=length, per=targets_per)


def grain_buckets(
    dataset: Dataset,
    *,
    lengths: Sequence[int],
    batch_size: int | None = None,
    batch_samples: int | None = None,
    multiple_of: int = 1,
    targets_per: Per = None,
    shard: tuple[int, int] = (0, 1),
) -> IterDataset:
    """Batches of few shapes from a stream of sequences: [`Buckets`][sequinox.train.Buckets] for grain.

    A batch goes out as soon as a bucket has its rows. At the end of the stream what is left goes out with filler, each
    bucket's in the next larger one where that costs fewer samples. The state is grain's own with the places of the
    sequences that wait, so a restored iterator yields the same batches.

    Arguments:
        dataset: grain's `IterDataset` or `MapDataset` of arrays `(time, *features)`, or of pairs of that and a target.
            Shuffle and repeat it before.
        lengths: the buckets' lengths, increasing; `Buckets` may choose them from a sample.
        batch_size: rows in every batch.
        batch_samples: instead of it: samples in every batch, padding included, as in `Buckets`.
        multiple_of: with `batch_samples`, rows are rounded down to a multiple of this. Default: 1.
        targets_per: None, `"sequence"` or `"sample"`, as in `grain_pad`.
        shard: `(index, count)`: every process reads the whole stream, and process `index` yields its part of the rows.
            Do not slice the dataset for each process: their batches would then have different shapes.

    Returns:
        A `grain.IterDataset` of `SequenceBatch`.

    Raises:
        ImportError: grain is not installed.
        TypeError: a number is not an integer.
        ValueError: as `Buckets`. Its iterator raises at a sequence longer than the largest bucket.

    ??? example

        ```python
        >>> import grain, numpy as np, sequinox as sqx
        >>> rows = [np.ones((n, 3), np.float32) for n in (2, 9, 3, 8, 2, 9)]
        >>> ds = sqx.train.grain_buckets(grain.MapDataset.source(rows), lengths=(3, 9), batch_size=3)
        >>> [batch.inputs.shape for batch in ds]
        [(3, 3, 3), (3, 9, 3)]

        ```
    """
    datasets, who = _datasets(), "grain_buckets"
    chosen = check_lengths(lengths, who)
    _check_per(targets_per, who)
    if (batch_size is None) == (batch_samples is None):
        raise ValueError(f"{who}: exactly one of batch_size and batch_samples must be given")
    if batch_size is not None:
        rows = [size(batch_size, who, "batch_size")] * len(chosen)
    else:
        samples, multiple = size(batch_samples, who, "batch_samples"), size(multiple_of, who, "multiple_of")
        rows = rows_within(samples, chosen, multiple)
        if not rows[-1]:
            least = chosen[-1] * multiple
            raise ValueError(f"{who}: batch_samples must be at least {least}, got {samples}")
    parts = [shard_rows(n, shard, who) for n in rows]
    return datasets.BucketsDataset(_iter_dataset(dataset, who), chosen, rows, parts, targets_per)


def grain_pack(
    dataset: Dataset, *, length: int, batch_size: int, seed: int, n_open: int | None = None, targets_per: Per = None
) -> IterDataset:
    """Batches of packed rows from a stream of sequences: [`Packs`][sequinox.train.Packs] for grain.

    Sequences are packed by grain's `FirstFitPackIterDataset` into rows held open together, which are then shuffled; its
    state restores exactly. A short last batch is filled up with masked rows.

    Arguments:
        dataset: grain's `IterDataset` or `MapDataset`, as for `grain_buckets`. For several processes slice it first,
            `ds[index::count]`: all batches have one shape.
        length: the length of the rows, at least the longest sequence.
        batch_size: rows in every batch.
        seed: of the shuffling of rows.
        n_open: rows held open at a time. More leave fewer places empty. Default: `4 * batch_size`.
        targets_per: None, `"sequence"` or `"sample"`, as in `grain_pad`. A target of a sequence comes as
            [`AtEnd`][sequinox.train.AtEnd].

    Returns:
        A `grain.IterDataset` of `SequenceBatch` with `resets`.

    Raises:
        ImportError: grain is not installed.
        TypeError: a number is not an integer.
        ValueError: a number too small. Its iterator raises at a sequence longer than `length`, and at one without a
            real sample that has a target of its own.

    ??? example

        ```python
        >>> import grain, numpy as np
        >>> from sequinox.train import grain_pack
        >>> rows = [(np.ones((n, 3), np.float32), n) for n in (2, 9, 3, 7, 2, 9)]
        >>> ds = grain_pack(grain.MapDataset.source(rows), length=12, batch_size=2, seed=0, targets_per="sequence")
        >>> batches = list(ds)
        >>> len(batches), batches[0].inputs.shape, sum(int(batch.resets.sum()) for batch in batches)
        (2, (2, 12, 3), 6)

        ```
    """
    datasets, who = _datasets(), "grain_pack"
    _check_per(targets_per, who)
    length, n_rows = size(length, who, "length"), size(batch_size, who, "batch_size")
    n_open = 4 * n_rows if n_open is None else size(n_open, who, "n_open")
    seed = size(seed, who, "seed", 0)
    return datasets.packed(_iter_dataset(dataset, who), length, n_rows, seed, n_open, targets_per)


def grain_windows(dataset: Dataset, *, batch_size: int, length: int, targets_per: Per = None) -> IterDataset:
    """Windows over sequences laid end to end in lanes: [`Windows`][sequinox.train.Windows] for grain.

    A lane whose sequence is through takes the next of the stream. The state is grain's own with each lane's place, so
    a restored iterator yields the same windows.

    Arguments:
        dataset: grain's `IterDataset` or `MapDataset`, as for `grain_buckets`. For several processes slice it first,
            `ds[index::count]`.
        batch_size: the number of lanes.
        length: samples by which a window advances.
        targets_per: None, `"sequence"` or `"sample"`, as in `grain_pad`. A target of a sequence comes as
            [`AtEnd`][sequinox.train.AtEnd].

    Returns:
        A `grain.IterDataset` of `SequenceBatch` with `resets`.

    Raises:
        ImportError: grain is not installed.
        TypeError: a number is not an integer.
        ValueError: a number below 1. Its iterator raises at a sequence without a real sample that has a target of its
            own.

    ??? example

        ```python
        >>> import grain, numpy as np
        >>> from sequinox.train import grain_windows
        >>> rows = [np.array([1, 2, 3, 4, 5]), np.array([6, 7]), np.array([8, 9])]
        >>> [batch.inputs.tolist() for batch in grain_windows(grain.MapDataset.source(rows), batch_size=2, length=3)]
        [[[1, 2, 3], [6, 7, 8]], [[4, 5, 0], [9, 0, 0]]]

        ```
    """
    datasets, who = _datasets(), "grain_windows"
    _check_per(targets_per, who)
    n_rows, length = size(batch_size, who, "batch_size"), size(length, who, "length")
    return datasets.WindowsDataset(_iter_dataset(dataset, who), n_rows, length, targets_per)


def _check_per(per: Any, who: str) -> None:
    if per not in PER:
        raise ValueError(f"{who}: targets_per must be one of {PER}, got {per!r}")


def _datasets() -> Any:
    try:
        from . import _grain_datasets
    except ImportError as error:
        if error.name is None or error.name.split(".")[0] != "grain":
            raise
        raise ImportError('grain is not installed: pip install "sequinox[grain]"') from error
    return _grain_datasets


def _iter_dataset(dataset: Dataset, who: str) -> IterDataset:
    import grain

    if isinstance(dataset, grain.MapDataset):
        return dataset.to_iter_dataset()
    if not isinstance(dataset, grain.IterDataset):
        raise TypeError(f"{who}: dataset must be grain's IterDataset or MapDataset, got {type(dataset).__name__}")
    return dataset
