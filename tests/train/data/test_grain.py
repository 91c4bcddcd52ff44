"""Pipelines of grain: the same layouts, and states that restore exactly."""

import itertools
import json
import sys

import jax
import numpy as np
import pytest
from ragged_rows import LENGTHS, all_samples, assert_equal, per_sample, per_sequence, rows, samples

from sequinox.train import AtEnd, Buckets, grain_buckets, grain_pack, grain_pad, grain_windows

grain = pytest.importorskip("grain")

FULL = [n for n in LENGTHS if n]


def source(per=None, lengths=LENGTHS, epochs=1, seed: int | None = 0):
    targets = {None: None, "sample": per_sample, "sequence": per_sequence}[per]
    elements = rows(lengths) if targets is None else list(zip(rows(lengths), targets(lengths), strict=True))
    dataset = grain.MapDataset.source(elements)
    return (dataset if seed is None else dataset.shuffle(seed=seed)).repeat(epochs)


def padded(dataset, **options):
    return dataset.to_iter_dataset().batch(3, batch_fn=grain_pad(batch_size=3, length=9, **options))


MAKERS = {
    "pad": padded,
    "buckets": lambda dataset, **o: grain_buckets(dataset, lengths=(2, 5, 9), batch_size=3, **o),
    "a budget": lambda dataset, **o: grain_buckets(dataset, lengths=(2, 5, 9), batch_samples=20, multiple_of=2, **o),
    "pack": lambda dataset, **o: grain_pack(dataset, length=10, batch_size=2, seed=1, n_open=3, **o),
    "windows": lambda dataset, **o: grain_windows(dataset, batch_size=3, length=2, **o),
}
every_maker = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)


@every_maker
@pytest.mark.parametrize("per", [None, "sample", "sequence"])
def test_nothing_is_dropped_or_doubled_up_to_the_streams_end(make, per):
    lengths = FULL if per == "sequence" else LENGTHS
    batches = list(make(source(per, lengths), targets_per=per))
    read = [row for batch in batches for row in samples(batch)]
    assert sorted(itertools.chain(*read)) == all_samples(lengths)
    assert batches[0].inputs.dtype == np.float32
    seen = []
    for batch in batches:
        if per is None:
            assert batch.targets is None
        elif per == "sample":
            np.testing.assert_array_equal(batch.targets, batch.inputs[..., 0].astype(np.int32))
        elif isinstance(batch.targets, AtEnd):
            assert not batch.targets.values[~batch.targets.mask].any()
            for row, time in np.argwhere(batch.targets.mask):
                i = int(batch.inputs[row, time, 0]) // 100
                assert batch.inputs[row, time, 0] == 100 * i + lengths[i]
                np.testing.assert_array_equal(batch.targets.values[row, time], per_sequence(lengths)[i])
                seen.append(i)
        else:
            for row, target in zip(
                np.array(samples(batch), object)[batch.real], batch.targets[batch.real], strict=True
            ):
                np.testing.assert_array_equal(target, per_sequence(lengths)[row[0] // 100])
                seen.append(row[0] // 100)
        if batch.resets is None:
            assert all(len({sample // 100 for sample in row}) <= 1 for row in samples(batch))
        else:
            np.testing.assert_array_equal(batch.resets, batch.mask & (batch.inputs[..., 0] % 100 == 1))
    assert per != "sequence" or sorted(seen) == list(range(len(lengths)))


@every_maker
def test_a_restored_iterator_yields_the_same_batches_from_every_position(make):
    dataset = lambda: make(source("sample", epochs=2), targets_per="sample")
    straight = list(dataset())
    iterator = iter(dataset())
    for position in range(len(straight) + 1):
        state = json.loads(json.dumps(iterator.get_state()))
        other = iter(dataset())
        next(other)  # a position to be forgotten
        other.set_state(state)
        assert json.loads(json.dumps(other.get_state())) == state
        assert_equal(list(itertools.islice(other, 3)), straight[position : position + 3])
        if position < len(straight):
            assert_equal(next(iterator), straight[position])
    assert next(iterator, None) is None


def test_elements_far_apart_are_sought_instead_of_read_on_to(monkeypatch):
    monkeypatch.setattr("sequinox.train.data._grain_datasets._NEAR", 1)  # far apart: by more than one
    for name in ("buckets", "windows"):
        straight = list(MAKERS[name](source()))
        iterator = iter(MAKERS[name](source()))
        for position in range(len(straight)):
            other = iter(MAKERS[name](source()))
            other.set_state(iterator.get_state())
            assert_equal(next(other), straight[position])
            next(iterator)


def test_shapes_are_few_and_the_last_batches_go_up_as_in_buckets():
    batches = list(MAKERS["buckets"](source(seed=None)))
    assert {b.inputs.shape[:2] for b in batches} == {(3, 2), (3, 5), (3, 9)}
    ours = Buckets(rows(), batch_size=3, lengths=(2, 5, 9), seed=0)
    assert len(batches) == ours.steps_per_epoch
    assert {b.inputs.shape for b in MAKERS["a budget"](source(epochs=4))} == {(10, 2, 2), (4, 5, 2), (2, 9, 2)}


def test_lanes_go_on_from_window_to_window():
    batches = list(MAKERS["windows"](source()))
    for lane in range(3):
        read = list(itertools.chain(*(samples(batch)[lane] for batch in batches)))
        starts = [i for i, sample in enumerate(read) if sample % 100 == 1]
        for start, stop in zip(starts, [*starts[1:], len(read)], strict=True):
            i = read[start] // 100
            assert read[start:stop] == [100 * i + t for t in range(1, LENGTHS[i] + 1)]
        assert starts[0] == 0


def test_shards_of_the_dataset_cover_it_and_shards_of_buckets_are_parts_of_one_batch():
    covered = []
    for index in range(2):
        shard = grain.sharding.ShardOptions(index, 2)
        sliced = source()[shard.shard_index :: shard.shard_count]
        covered += [s for batch in MAKERS["pack"](sliced) for row in samples(batch) for s in row]
    assert sorted(covered) == all_samples()
    make = lambda shard: list(grain_buckets(source(), lengths=(2, 5, 9), batch_size=4, shard=shard))
    for whole, *parts in zip(make((0, 1)), make((0, 2)), make((1, 2)), strict=True):
        assert_equal(jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts), whole)


@pytest.mark.usefixtures("unchecked_types")
def test_a_bad_element_is_named():
    for make in MAKERS.values():
        with pytest.raises(TypeError, match="elements must be arrays with targets_per=None, got tuple"):
            list(make(source("sample")))
        with pytest.raises(TypeError, match=r"pairs \(inputs, target\) with targets_per='sample', got ndarray"):
            list(make(source(), targets_per="sample"))
        with pytest.raises(ValueError, match=r"targets_per must be one of .* got 'row'"):
            make(source(), targets_per="row")
    for name in ("pack", "windows"):
        with pytest.raises(ValueError, match=r"is placed at its last real sample, and inputs\[0\] has none"):
            list(MAKERS[name](source("sequence"), targets_per="sequence"))
    with pytest.raises(ValueError, match="longer than the largest bucket, 5, got"):
        list(grain_buckets(source(), lengths=(2, 5), batch_size=3))
    with pytest.raises(ValueError, match="longer than length, 8, got 9"):
        list(grain_pack(source(), length=8, batch_size=3, seed=0))
    with pytest.raises(ValueError, match=r"batch_size must be that of ds.batch, got 2 for 3 rows"):
        list(source().to_iter_dataset().batch(3, batch_fn=grain_pad(batch_size=2, length=9)))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"lengths": (5, 2)}, ValueError, "lengths must be increasing"),
        ({"batch_size": None}, ValueError, "exactly one of batch_size and batch_samples"),
        ({"batch_size": None, "batch_samples": 4}, ValueError, "batch_samples must be at least 9, got 4"),
        ({"shard": (0, 2)}, ValueError, "divisible by the 2 processes of shard, got 3"),
        ({"dataset": [1, 2]}, TypeError, "dataset must be grain's IterDataset or MapDataset, got list"),
    ],
)
def test_bad_arguments_are_named(change, error, message):
    arguments = {"dataset": source(), "lengths": (2, 9), "batch_size": 3, **change}
    with pytest.raises(error, match=message):
        grain_buckets(arguments.pop("dataset"), **arguments)


def test_without_grain_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "grain", None)
    monkeypatch.delitem(sys.modules, "sequinox.train.data._grain_datasets")
    monkeypatch.delattr("sequinox.train.data._grain_datasets")
    with pytest.raises(ImportError, match=r'grain is not installed: pip install "sequinox\[grain\]"'):
        grain_buckets([], lengths=(2,), batch_size=3)  # pyright: ignore[reportArgumentType]
