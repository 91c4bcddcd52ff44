"""Faults: data restarts, repeats or skips at mid-epoch, at an epoch's end, with a short last batch."""

import json

import jax.numpy as jnp
import numpy as np
import pytest

from sequinox.train import Batches, Total, cross_entropy, epoch_batches

ROWS = 7


def arrays():
    return {"x": np.arange(1, ROWS + 1), "mask": np.ones((ROWS, 2), bool), "none": None}


def take(batches, n):
    return [next(batches) for _ in range(n)]


def real_rows(batches):
    return [int(x) for batch in batches for x, real in zip(batch.data["x"], batch.real, strict=True) if real]


@pytest.mark.parametrize("batch_size", [1, 3, 7, 10])
def test_every_epoch_has_every_row_once_in_batches_of_one_shape(batch_size):
    batches = Batches(arrays(), batch_size, seed=0)
    assert batches.steps_per_epoch == -(-ROWS // batch_size)
    orders = []
    for _ in range(3):
        epoch = take(batches, batches.steps_per_epoch)
        assert all(b.data["x"].shape == b.real.shape == (batch_size,) for b in epoch)
        assert all(b.data["mask"].shape == (batch_size, 2) for b in epoch)
        assert sorted(real_rows(epoch)) == list(range(1, ROWS + 1))
        orders.append(tuple(real_rows(epoch)))
    assert len(set(orders)) == 3


def test_filler_is_zeros_with_a_false_mask_at_the_end():
    batch = take(Batches(arrays(), 5, seed=0, shuffle=False), 2)[1]
    assert batch.data["x"].tolist() == [6, 7, 0, 0, 0]
    assert batch.real.tolist() == [True, True, False, False, False]
    assert batch.data["mask"].any(axis=1).tolist() == batch.real.tolist()
    assert batch.data["none"] is None


def test_a_loss_ignores_the_filler_exactly():
    logits, labels = np.random.default_rng(0).normal(size=(ROWS, 3)), np.arange(ROWS) % 3
    parts = [cross_entropy(b.data[0], b.data[1], b.real) for b in epoch_batches((logits, labels), 3)]
    merged = sum(parts, Total(0, 0))
    whole = cross_entropy(logits, labels)
    np.testing.assert_allclose(merged.mean, whole.mean, rtol=1e-6)
    assert int(merged.count) == ROWS


@pytest.mark.parametrize("shuffle", [True, False])
def test_restoring_is_exact_at_every_position(shuffle):
    straight = take(Batches(arrays(), 3, seed=4, shuffle=shuffle), 11)
    batches = Batches(arrays(), 3, seed=4, shuffle=shuffle)
    for n in range(8):  # over two epoch ends
        state = json.loads(json.dumps(batches.get_state()))
        other = Batches(arrays(), 3, seed=4, shuffle=shuffle)
        next(other)  # a position to be forgotten
        other.set_state(state)
        assert other.get_state() == state
        for got, expected in zip(take(other, 3), straight[n : n + 3], strict=True):
            np.testing.assert_array_equal(got.data["x"], expected.data["x"])
            np.testing.assert_array_equal(got.real, expected.real)
        next(batches)


def test_an_epochs_end_is_the_next_ones_start():
    batches = Batches(arrays(), 3, seed=0)
    take(batches, 3)
    assert (batches.get_state()["epoch"], batches.get_state()["position"]) == (1, 0)


def test_order_depends_on_seed_and_epoch_alone():
    one, same, other = (Batches(arrays(), 7, seed=s) for s in (1, 1, 2))
    first = real_rows([next(one)])
    assert first == real_rows([next(same)]) and first != real_rows([next(other)])
    # The order itself is a promise: a checkpoint of today must continue the same after an upgrade.
    assert first == FIRST_ORDER


FIRST_ORDER = [3, 5, 6, 1, 7, 4, 2]


def test_jax_arrays_and_a_bare_array_serve_too():
    batch = next(Batches(jnp.arange(4), 2, seed=0, shuffle=False))
    assert isinstance(batch.data, np.ndarray) and batch.data.tolist() == [0, 1]
    assert iter(Batches(np.arange(2), 1, seed=0)) is not None


def test_epoch_batches_is_one_pass_in_order():
    batches = list(epoch_batches(np.arange(5), 2))
    assert [b.data.tolist() for b in batches] == [[0, 1], [2, 3], [4, 0]]
    assert [b.real.sum() for b in batches] == [2, 2, 1]


@pytest.mark.parametrize("make", [lambda a, n: Batches(a, n, seed=0), epoch_batches])
@pytest.mark.parametrize(
    ("data", "batch_size", "error", "message"),
    [
        ({}, 2, ValueError, "arrays holds no array"),
        ({"a": np.ones(3), "b": np.ones(4)}, 2, ValueError, r"same number of rows, got .*\['a'\].*3.*\['b'\].*4"),
        (
            {"a": np.ones(3), "b": [1, 2, 3]},
            2,
            TypeError,
            r"\['b'\]\[0\] must be a JAX or NumPy array, got int: give numpy.asarray",
        ),
        ({"a": np.ones(())}, 2, ValueError, r"arrays\['a'\] must have a leading axis of rows, got a 0-d array"),
        (np.ones((0, 2)), 2, ValueError, "arrays has no rows"),
        (np.ones(3), 0, ValueError, "batch_size must be at least 1, got 0"),
        (np.ones(3), True, TypeError, "batch_size must be an integer, got True"),
    ],
)
def test_errors_come_at_the_call(make, data, batch_size, error, message):
    with pytest.raises(error, match=message):
        make(data, batch_size)


def test_seed_is_checked():
    with pytest.raises(ValueError, match="seed must be at least 0, got -1"):
        Batches(np.ones(3), 2, seed=-1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 9}, r"of another order of data \(seed: 9 in the state, 0 here\)"),
        ({"n_rows": 9, "batch_size": 5}, "n_rows: 9 in the state, 7 here, batch_size: 5 in the state, 3 here"),
        ({"position": 3}, r"position must be in \[0, 3\), got 3"),
        ({"epoch": -1}, "epoch and position must be integers from 0"),
        ({"extra": 1}, "state must be a dict with keys"),
    ],
)
@pytest.mark.usefixtures("unchecked_types")
def test_a_state_of_other_data_is_refused_and_changes_nothing(change, message):
    batches = Batches(arrays(), 3, seed=0)
    next(batches)
    before = batches.get_state()
    with pytest.raises(ValueError, match=message):
        batches.set_state({**before, **change})
    assert batches.get_state() == before
    with pytest.raises(ValueError, match="state must be a dict with keys"):
        batches.set_state(None)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("shard", "error", "message"),
    [
        ((0, 2), ValueError, "divisible by the 2 processes of shard, got 3"),
        ((3, 3), ValueError, r"shard must be \(index, count\) with index < count, got \(3, 3\)"),
        ((0, 0), ValueError, r"shard\[1\] must be at least 1, got 0"),
        ((-1, 3), ValueError, r"shard\[0\] must be at least 0, got -1"),
        ((0, 1, 2), TypeError, r"shard must be a pair \(index, count\)"),
    ],
)
@pytest.mark.usefixtures("unchecked_types")
def test_shard_is_checked(shard, error, message):
    with pytest.raises(error, match=message):
        Batches(np.ones(5), 3, seed=0, shard=shard)


def test_a_process_whose_part_is_filler_alone_has_a_batch_all_the_same():
    parts = [Batches(np.arange(1, 6), 4, seed=0, shuffle=False, shard=(i, 2)) for i in range(2)]
    got = [[(b.data.tolist(), b.real.tolist()) for b in take(part, 2)] for part in parts]
    assert got[0] == [([1, 2], [True, True]), ([5, 0], [True, False])]
    assert got[1] == [([3, 4], [True, True]), ([0, 0], [False, False])]
