"""Faults of ragged rows, and of data that restart, repeat or skip: for all sources of batches alike."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ragged_rows import LENGTHS, assert_equal, per_sample, rows, take

import sequinox as sqx
from sequinox.train import Batches, Buckets, Packs, Total, Windows, pad, squared_error

pytestmark = pytest.mark.usefixtures("quick_compilation")


def padded():
    inputs, mask = pad(rows(), 10)
    return {"x": inputs, "mask": mask}


SOURCES = {
    "Batches": lambda **o: Batches(padded(), **{"batch_size": 4, "seed": 3, **o}),
    "Buckets": lambda **o: Buckets(rows(), per_sample(), **{"batch_size": 4, "n_buckets": 3, "seed": 3, **o}),
    "Buckets of a budget": lambda **o: Buckets(
        rows(), np.arange(11), **{"batch_samples": 40, "multiple_of": 4, "lengths": (2, 5, 9), "seed": 3, **o}
    ),
    "Packs": lambda **o: Packs(rows(), per_sample(), **{"batch_size": 2, "length": 10, "seed": 3, **o}),
    "Windows": lambda **o: Windows(rows(), per_sample(), **{"batch_size": 4, "length": 2, "seed": 3, **o}),
    "Windows with a look back": lambda **o: Windows(
        rows(), None, **{"batch_size": 2, "length": 3, "look_back": 4, "seed": 3, **o}
    ),
    "Windows, cut": lambda **o: Windows(rows(), None, **{"batch_size": 4, "length": 2, "cut": True, "seed": 3, **o}),
}
every_source = pytest.mark.parametrize("make", SOURCES.values(), ids=SOURCES)


@every_source
@pytest.mark.parametrize("shuffle", [True, False])
def test_data_neither_restart_nor_repeat_nor_skip_wherever_they_are_resumed(make, shuffle):
    source = make(shuffle=shuffle)
    n = source.steps_per_epoch + 3  # over an epoch's end, with its short last batch
    straight = take(make(shuffle=shuffle), n + 4)
    epochs = set()
    for position in range(n):
        state = json.loads(json.dumps(source.get_state()))
        epochs.add(state["epoch"])
        other = make(shuffle=shuffle)
        next(other)  # a position to be forgotten
        other.set_state(state)
        assert other.get_state() == state
        assert_equal(take(other, 4), straight[position : position + 4])
        assert_equal(next(source), straight[position])
    assert epochs == {0, 1}


@every_source
@pytest.mark.parametrize("count", [1, 2])
def test_processes_yield_the_parts_of_one_global_batch_and_one_state(make, count):
    whole, parts = make(), [make(shard=(i, count)) for i in range(count)]
    for _ in range(whole.steps_per_epoch + 1):
        assert [part.get_state() for part in parts] == [whole.get_state()] * count
        expected, got = next(whole), [next(part) for part in parts]
        assert_equal(jax.tree.map(lambda *leaves: np.concatenate(leaves), *got), expected)
    # A run on several processes goes on with one.
    alone = make()
    alone.set_state(parts[-1].get_state())
    assert_equal(next(alone), next(whole))


@every_source
def test_a_state_of_other_data_or_order_is_refused_and_changes_nothing(make):
    source = make()
    next(source)
    before = source.get_state()
    for change, message in (
        ({"seed": 9}, r"of another order of data \(seed: 9 in the state, 3 here\)"),
        ({"n_rows": 12}, "n_rows: 12 in the state, 11 here"),
        ({"shuffle": False}, "shuffle: False in the state, True here"),
        ({"position": 99}, r"position must be in \[0, \d+\), got 99"),
        ({"epoch": -1}, "epoch and position must be integers from 0, got -1, 1"),
        ({"shard": 1}, "state must be a dict with keys"),
    ):
        with pytest.raises(ValueError, match=message):
            source.set_state({**before, **change})
        assert source.get_state() == before
    if "lengths_crc32" in before:
        with pytest.raises(ValueError, match="lengths_crc32"):
            source.set_state({**before, "lengths_crc32": before["lengths_crc32"] + 1})


@every_source
def test_the_caller_may_write_into_a_batch(make):
    source = make()
    n = source.steps_per_epoch
    for batch in take(source, n):
        for leaf in jax.tree.leaves(batch):
            leaf[...] = 0
    fresh = make(shuffle=False)
    assert sum(float(np.abs(leaf).sum()) for b in take(fresh, n) for leaf in jax.tree.leaves(b)) > 0


def test_orders_are_promises():
    """A checkpoint of today must continue the same after an upgrade."""
    first = lambda batch: [
        [int(x) for x in row[real]] for row, real in zip(batch.inputs[..., 0], batch.mask, strict=True)
    ]
    assert first(next(SOURCES["Packs"]())) == FIRST_PACKS
    assert first(next(SOURCES["Windows"]())) == FIRST_WINDOWS


FIRST_PACKS = [[1001, 1002, 1003, 1004, 1005, 1006, 801, 802, 803, 804], [201, 202, 203, 204, 205, 206, 207, 1, 2, 3]]
FIRST_WINDOWS = [[701, 702], [201, 202], [1001, 1002], [501, 502]]


@pytest.fixture(scope="module")
def gru():
    return sqx.GRU(2, 3, jax.random.key(0))


@pytest.mark.parametrize("lengths", [[3, 0, 2], [0, 0], [1]])
def test_zero_lengths_give_the_initial_state_and_finite_gradients(gru, lengths):
    sequences = [row / 1000 for row in rows(lengths)]
    inputs, mask = pad(sequences, max(*lengths, 2))
    expected = np.stack([gru.unroll(jnp.asarray(s))[1] for s in sequences])
    np.testing.assert_allclose(gru.unroll(inputs, mask=mask)[1], expected, atol=1e-6)
    loss = lambda xs: jnp.sum(gru.unroll(xs, mask=mask)[1] ** 2)
    assert jnp.all(jnp.isfinite(jax.grad(loss)(jnp.asarray(inputs))))
    batch = next(Buckets(sequences, batch_size=len(lengths), seed=0, shuffle=False))
    np.testing.assert_allclose(
        gru.unroll(batch.inputs, mask=batch.mask)[1], expected[np.argsort(np.array(lengths) > 99)], atol=1e-6
    )


def test_time_of_zero_and_batches_of_empty_rows(gru):
    for batch in (
        next(Buckets([np.zeros((0, 2), np.float32)] * 3, batch_size=4, seed=0)),
        next(Buckets(rows([0, 0, 4]), batch_size=2, lengths=(0, 4), seed=0, shuffle=False)),
    ):
        assert batch.inputs.shape[1] == 0 and batch.mask.shape[1] == 0
        ys, state = gru.unroll(batch.inputs, mask=batch.mask)
        assert ys.shape == (*batch.mask.shape, 3) and not np.any(state)
        assert float(squared_error(ys, jnp.ones_like(ys), batch.mask).mean) == 0.0


def test_the_time_axis_is_not_cut_to_the_longest_row():
    assert pad(rows([2, 3]), 7).inputs.shape == (2, 7, 2)
    assert next(Buckets(rows([2, 3]), batch_size=2, lengths=[7], seed=0)).inputs.shape == (2, 7, 2)
    assert next(Packs(rows([2, 3]), batch_size=1, length=7, seed=0)).inputs.shape == (1, 7, 2)
    assert next(Windows(rows([2, 3]), batch_size=2, length=7, seed=0)).inputs.shape == (2, 7, 2)


def test_two_sources_of_lengths_raise():
    with pytest.raises(ValueError, match="give lengths or n_buckets, not both"):
        Buckets(rows(), batch_size=2, lengths=(9,), n_buckets=2, seed=0)
    with pytest.raises(ValueError, match="exactly one of batch_size and batch_samples"):
        Buckets(rows(), batch_size=2, batch_samples=20, seed=0)


@pytest.mark.parametrize("name", ["Buckets", "Packs", "Windows", "Windows, cut"])
def test_sums_and_counts_of_an_epoch_are_those_of_the_rows(name):
    source = SOURCES[name]()
    parts = [squared_error(b.inputs, np.zeros_like(b.inputs), b.mask) for b in take(source, source.steps_per_epoch)]
    merged = sum(parts, Total(0, 0))
    assert int(merged.count) == 2 * sum(LENGTHS)
    exact = sum(float(np.sum(row.astype(np.float64) ** 2)) for row in rows())
    np.testing.assert_allclose(float(merged.total), exact, rtol=1e-6)
