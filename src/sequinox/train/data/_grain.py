"""The same layouts of ragged data in pipelines of grain."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from .._arguments import check_integer
from ._buckets import check_lengths, padded_batch, rows_within
from ._order import check_shard, shard_rows
from ._sequence_batch import SequenceBatch
from ._sequences import Ragged

_PER = (None, "sequence", "sample")


class OneSequence(NamedTuple):
    """An element of a dataset of grain that is more than an array, or than an array and a target.

    The functions `grain_pad`, `grain_buckets`, `grain_pack` and `grain_windows` take it. All elements of a dataset give
    the same of it. Make it by `dataset.map(...)`.

    Attributes:
        inputs: `(time, *features)`, or a dictionary of such arrays, several inputs by name.
        targets: None; `(*features)` with `targets_per="sequence"`, `(time, *features)` with `"sample"`.
        mask: `(time,)` bool, False in gaps; None where all samples are real.
        static: what is known of the sequence as a whole, an array `(*features)` or a dictionary of them; or None. A
            batch has it one a row from `grain_pad` and `grain_buckets`, else repeated along the sequence.

    Examples:
        >>> import grain, numpy as np
        >>> from sequinox.train import OneSequence, grain_pack
        >>> gap = OneSequence({"x": np.array([9.0, 4.0])}, mask=np.array([False, True]))
        >>> whole = OneSequence({"x": np.array([1.0, 2.0])}, mask=np.array([True, True]))
        >>> ds = grain.MapDataset.source([whole, gap])
        >>> batch = next(iter(grain_pack(ds, length=4, batch_size=1, seed=0)))
        >>> batch.inputs["x"].tolist(), batch.resets.astype(int).tolist()
        ([[1.0, 2.0, 0.0, 4.0]], [[1, 0, 0, 1]])
    """

    inputs: Any
    targets: Any = None
    mask: Any = None
    static: Any = None


def grain_pad(*, batch_size: Any, length: Any, targets_per: Any = None) -> Callable[[Sequence[Any]], SequenceBatch]:
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

    Examples:
        >>> import grain, numpy as np
        >>> from sequinox.train import grain_pad
        >>> rows = [(np.ones((n, 3), np.float32), n) for n in (2, 4, 1)]
        >>> ds = grain.MapDataset.source(rows).shuffle(seed=0).to_iter_dataset()
        >>> padding = grain_pad(batch_size=2, length=4, targets_per="sequence")
        >>> [batch.real.tolist() for batch in ds.batch(2, batch_fn=padding)]
        [[True, True], [True, False]]
    """
    size = check_integer("grain_pad", "batch_size", batch_size, 1)
    _check_per("grain_pad", targets_per)
    length = check_integer("grain_pad", "length", length, 1)
    return functools.partial(pad_elements, batch_size=size, length=length, per=targets_per)


def grain_buckets(
    dataset: Any,
    *,
    lengths: Any,
    batch_size: Any = None,
    batch_samples: Any = None,
    multiple_of: Any = 1,
    targets_per: Any = None,
    shard: Any = (0, 1),
) -> Any:
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

    Examples:
        >>> import grain, numpy as np
        >>> from sequinox.train import grain_buckets
        >>> rows = [np.ones((n, 3), np.float32) for n in (2, 9, 3, 8, 2, 9)]
        >>> ds = grain_buckets(grain.MapDataset.source(rows), lengths=(3, 9), batch_size=3)
        >>> [batch.inputs.shape for batch in ds]
        [(3, 3, 3), (3, 9, 3)]
    """
    datasets = _datasets()
    name = "grain_buckets"
    chosen = check_lengths(name, lengths)
    _check_per(name, targets_per)
    if (batch_size is None) == (batch_samples is None):
        raise ValueError(f"{name}: exactly one of batch_size and batch_samples must be given.")
    if batch_size is not None:
        rows = [check_integer(name, "batch_size", batch_size, 1)] * len(chosen)
    else:
        samples = check_integer(name, "batch_samples", batch_samples, 1)
        multiple = check_integer(name, "multiple_of", multiple_of, 1)
        rows = rows_within(samples, chosen, multiple)
        if not rows[-1]:
            least = chosen[-1] * multiple
            raise ValueError(f"{name}: batch_samples must be at least {least}, got {samples}.")
    index = check_shard(name, shard)
    parts = [shard_rows(name, n, index) for n in rows]
    return datasets.BucketsDataset(_iter_dataset(name, dataset), chosen, rows, parts, targets_per)


def grain_pack(
    dataset: Any, *, length: Any, batch_size: Any, seed: Any, n_open: Any = None, targets_per: Any = None
) -> Any:
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

    Examples:
        >>> import grain, numpy as np
        >>> from sequinox.train import grain_pack
        >>> rows = [(np.ones((n, 3), np.float32), n) for n in (2, 9, 3, 7, 2, 9)]
        >>> ds = grain_pack(grain.MapDataset.source(rows), length=12, batch_size=2, seed=0, targets_per="sequence")
        >>> batches = list(ds)
        >>> len(batches), batches[0].inputs.shape, sum(int(batch.resets.sum()) for batch in batches)
        (2, (2, 12, 3), 6)
    """
    datasets = _datasets()
    _check_per("grain_pack", targets_per)
    length = check_integer("grain_pack", "length", length, 1)
    size = check_integer("grain_pack", "batch_size", batch_size, 1)
    n_open = 4 * size if n_open is None else check_integer("grain_pack", "n_open", n_open, 1)
    seed = check_integer("grain_pack", "seed", seed, 0)
    return datasets.packed(_iter_dataset("grain_pack", dataset), length, size, seed, n_open, targets_per)


def grain_windows(dataset: Any, *, batch_size: Any, length: Any, targets_per: Any = None) -> Any:
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

    Examples:
        >>> import grain, numpy as np
        >>> from sequinox.train import grain_windows
        >>> rows = [np.array([1, 2, 3, 4, 5]), np.array([6, 7]), np.array([8, 9])]
        >>> [batch.inputs.tolist() for batch in grain_windows(grain.MapDataset.source(rows), batch_size=2, length=3)]
        [[[1, 2, 3], [6, 7, 8]], [[4, 5, 0], [9, 0, 0]]]
    """
    datasets = _datasets()
    _check_per("grain_windows", targets_per)
    size = check_integer("grain_windows", "batch_size", batch_size, 1)
    length = check_integer("grain_windows", "length", length, 1)
    return datasets.WindowsDataset(_iter_dataset("grain_windows", dataset), size, length, targets_per)


def pad_elements(elements: Sequence[Any], batch_size: int, length: int, per: str | None) -> SequenceBatch:
    """A batch of whole rows; `batch_size` of them."""
    data = ragged("grain_pad", elements, per)
    data.check_longest("grain_pad", length, "length")
    if len(elements) > batch_size:
        raise ValueError(f"grain_pad: batch_size must be that of ds.batch, got {batch_size} for {len(elements)} rows.")
    return padded_batch(data, np.arange(len(elements)), batch_size, length)


def ragged(name: str, elements: Sequence[Any], per: str | None) -> Ragged:
    """Elements of a dataset as checked sequences."""
    parts = [_one(name, element, per) for element in elements]
    forms = [jax.tree.structure(part) for part in parts]
    if len(set(forms)) > 1:
        other = next(form for form in forms if form != forms[0])
        raise ValueError(f"{name}: all elements must give the same, got {other} beside {forms[0]}.")
    given = lambda field: [getattr(part, field) for part in parts]
    inputs, targets, mask = given("inputs"), given("targets"), given("mask")
    if isinstance(inputs[0], dict):
        inputs = {key: [one[key] for one in inputs] for key in inputs[0]}
    stacked = lambda field: jax.tree.map(lambda *leaves: np.stack(leaves), *given(field))
    return Ragged(
        name,
        inputs,
        stacked("targets") if per == "sequence" else targets if per == "sample" else None,
        None if mask[0] is None else mask,
        stacked("static"),
    )


def _one(name: str, element: Any, per: str | None) -> OneSequence:
    whole = isinstance(element, OneSequence)
    pair = isinstance(element, tuple) and not whole
    has_target = element.targets is not None if whole else pair
    if has_target != (per is not None) or (pair and len(element) != 2):
        form = "pairs (inputs, target)" if per is not None else "arrays"
        came = "OneSequence" + (" with" if has_target else " without") + " targets" if whole else type(element).__name__
        raise TypeError(f"{name}: elements must be {form} with targets_per={per!r}, got {came}.")
    if whole:
        return element
    return OneSequence(*element) if pair else OneSequence(element)


def _check_per(name: str, per: Any) -> None:
    if per not in _PER:
        raise ValueError(f"{name}: targets_per must be one of {_PER}, got {per!r}.")


def _datasets() -> Any:
    try:
        from . import _grain_datasets
    except ImportError as error:
        if error.name is None or error.name.split(".")[0] != "grain":
            raise
        raise ImportError('grain is not installed: pip install "sequinox[grain]".') from error
    return _grain_datasets


def _iter_dataset(name: str, dataset: Any) -> Any:
    import grain

    if isinstance(dataset, grain.MapDataset):
        return dataset.to_iter_dataset()
    if not isinstance(dataset, grain.IterDataset):
        raise TypeError(f"{name}: dataset must be grain's IterDataset or MapDataset, got {type(dataset).__name__}.")
    return dataset
