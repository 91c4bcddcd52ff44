"""Batches of few shapes: which rows, which shapes, how much filler."""

import itertools

import numpy as np
import pytest
from ragged_rows import LENGTHS, epoch, per_sample, per_sequence, rows, samples

from sequinox.train import Buckets
from sequinox.train.data._buckets import best_lengths, pass_leftovers


def make(**options):
    return Buckets(rows(), per_sequence(), **{"batch_size": 3, "lengths": (2, 5, 9), "seed": 0, **options})


def rows_of(batches):
    """The sequences in them, told by their targets."""
    found = []
    for batch in batches:
        for row, target, real in zip(samples(batch), batch.targets, batch.real, strict=True):
            if not real:
                assert row == [] and not target.any()
                continue
            i = int(target[0]) - 1
            np.testing.assert_array_equal(target, per_sequence()[i])
            assert row == [100 * i + t for t in range(1, LENGTHS[i] + 1)]
            found.append(i)
    return found


@pytest.mark.parametrize(
    "options", [{}, {"lengths": None, "n_buckets": 3}, {"batch_size": None, "batch_samples": 18}, {"shuffle": False}]
)
def test_every_row_comes_once_an_epoch_in_the_promised_shapes(options):
    buckets = make(**options)
    shapes, orders = set(), []
    for _ in range(3):
        batches = epoch(buckets)
        shapes |= {batch.inputs.shape[:2] for batch in batches}
        assert all(b.resets is None and b.mask.shape == b.inputs.shape[:2] for b in batches)
        assert all(b.inputs.dtype == np.float32 and b.targets.dtype == np.int32 for b in batches)
        orders.append(rows_of(batches))
        assert sorted(orders[-1]) == list(range(len(LENGTHS)))
        real = sum(int(b.mask.sum()) for b in batches)
        assert buckets.efficiency == pytest.approx(real / sum(b.mask.size for b in batches))
    assert shapes == set(buckets.shapes)
    assert (orders[0] == orders[1]) == (options.get("shuffle") is False)


def test_a_row_stands_in_the_smallest_bucket_that_holds_it_or_in_one_above():
    for batch in epoch(make(shuffle=False)):
        assert batch.mask.sum(axis=1).max() <= batch.inputs.shape[1]
    # Three batches of three and one with filler, instead of four with it: 4 rows to 2, 4 to 5, 3 to 9.
    assert make().steps_per_epoch == 4 and make().shapes == ((3, 2), (3, 5), (3, 9))


def test_one_target_a_sample():
    for batch in epoch(Buckets(rows(), per_sample(), batch_size=2, lengths=[9], seed=0)):
        np.testing.assert_array_equal(batch.targets, batch.inputs[..., 0].astype(np.int32))
        assert batch.targets.dtype == np.int32


def test_a_budget_of_samples_gives_steps_of_one_cost():
    lengths = [n for n in (1, 2, 4, 8) for _ in range(40)]
    buckets = Buckets(rows(lengths), batch_samples=33, lengths=(1, 2, 4, 8), seed=0)
    assert buckets.shapes == ((33, 1), (16, 2), (8, 4), (4, 8))
    even = Buckets(rows(lengths), batch_samples=33, multiple_of=4, lengths=(1, 2, 4, 8), seed=0)
    assert even.shapes == ((32, 1), (16, 2), (8, 4), (4, 8))
    few = Buckets(rows([1, 1, 1, 8]), batch_samples=40, multiple_of=2, lengths=(1, 8), seed=0)
    assert all(n <= 4 for n, _ in few.shapes)  # never more rows than there are


def test_chosen_lengths_have_the_least_padding():
    rng = np.random.default_rng(0)
    for _ in range(20):
        lengths = rng.integers(1, 12, rng.integers(1, 14))
        distinct = sorted(set(lengths.tolist()))
        for k, chosen in enumerate(best_lengths(lengths, 4), 1):
            total = lambda bounds, lengths=lengths: sum(min(b for b in bounds if b >= n) for n in lengths)
            every = itertools.combinations(distinct[:-1], k - 1)
            assert total(chosen) == min(total([*bounds, distinct[-1]]) for bounds in every)
            assert len(chosen) == k


def test_many_distinct_lengths_are_thinned_and_all_fit():
    lengths = np.arange(1, 5001)
    chosen = best_lengths(lengths, 4)[-1]
    assert chosen[-1] == 5000
    # Evenly spread lengths want even buckets: 1250, 2500, ...
    np.testing.assert_allclose(chosen, [1250, 2500, 3750, 5000], rtol=0.01)


def test_leftovers_go_up_where_that_costs_fewer_samples():
    rng = np.random.default_rng(1)
    for _ in range(50):
        n = int(rng.integers(1, 5))
        lengths = sorted(rng.choice(np.arange(1, 20), n, replace=False).tolist())
        sizes, counts = rng.integers(1, 6, n).tolist(), rng.integers(0, 9, n)
        costs = []
        for up in itertools.product([False, True], repeat=n - 1):
            carried, cost = 0, 0
            for length, size, count, passes in zip(lengths, sizes, counts, [*up, False], strict=True):
                full, rest = divmod(carried + int(count), size)
                carried = rest if passes else 0
                cost += (full + (rest > 0 and not passes)) * size * length
            costs.append(cost)
        plan = pass_leftovers(lengths, sizes, counts)
        assert plan.cost[0] == min(costs)
        made = sum(b * s * length for b, s, length in zip(plan.batches, sizes, lengths, strict=True))
        assert made == plan.cost[0] and sum(plan.batches) == plan.cost[1]


def test_no_batch_of_mostly_filler_for_a_few_left_over():
    lengths = [4] * 33 + [5] * 31
    buckets = Buckets(rows(lengths), batch_size=32, lengths=(4, 5), seed=0)
    assert buckets.steps_per_epoch == 2
    assert buckets.efficiency == pytest.approx(sum(lengths) / (32 * 4 + 32 * 5))


def test_order_is_a_promise():
    batches = epoch(make())
    assert [b.inputs.shape[1] for b in batches] == FIRST_SHAPES
    assert rows_of(batches) == FIRST_ROWS
    assert rows_of(epoch(make(seed=1))) != FIRST_ROWS


FIRST_SHAPES = [5, 2, 5, 9]
FIRST_ROWS = [9, 3, 8, 1, 6, 4, 0, 5, 2, 7, 10]


def test_only_empty_rows():
    buckets = Buckets([np.zeros((0, 2))] * 3, batch_size=2, seed=0)
    assert buckets.efficiency == 1.0
    assert [(b.inputs.shape, b.real.tolist()) for b in epoch(buckets)] in (
        [((2, 0, 2), [True, True]), ((2, 0, 2), [True, False])],
        [((2, 0, 2), [True, False]), ((2, 0, 2), [True, True])],
    )


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (
            {"lengths": (2, 5)},
            ValueError,
            r"longer than the largest bucket, 5, got 7 samples in inputs\[2\] \(and 2 more",
        ),
        ({"lengths": (5, 2)}, ValueError, r"lengths must be increasing, at least one, got \[5, 2\]"),
        ({"lengths": ()}, ValueError, "lengths must be increasing, at least one"),
        ({"n_buckets": 3}, ValueError, "give lengths or n_buckets, not both"),
        ({"lengths": None, "n_buckets": 0}, ValueError, "n_buckets must be at least 1, got 0"),
        ({"batch_size": None}, ValueError, "exactly one of batch_size and batch_samples"),
        ({"batch_samples": 9}, ValueError, "exactly one of batch_size and batch_samples"),
        ({"batch_size": None, "batch_samples": 8}, ValueError, "hold 1 rows of the largest bucket, 9 samples, got 8"),
        ({"multiple_of": 2}, ValueError, "multiple_of goes with batch_samples"),
        ({"batch_size": 2.0}, TypeError, "batch_size must be an integer, got 2.0"),
        ({"shard": (0, 2)}, ValueError, "divisible by the 2 processes of shard, got 3"),
        ({"shard": (2, 2)}, ValueError, r"index < count, got \(2, 2\)"),
        ({"shard": 1}, TypeError, r"shard must be a pair \(index, count\), got 1"),
        ({"seed": None}, TypeError, "seed must be an integer, got None"),
    ],
)
@pytest.mark.usefixtures("unchecked_types")
def test_errors_come_at_the_call(change, error, message):
    with pytest.raises(error, match=message):
        make(**change)


@pytest.mark.parametrize(
    ("inputs", "targets", "error", "message"),
    [
        (np.ones((2, 3)), None, TypeError, "inputs must be a list of arrays, one a sequence, got one array"),
        ([], None, ValueError, "inputs is empty"),
        ([np.ones((2, 3)), np.ones((2, 4))], None, ValueError, r"Buckets: all inputs must have one feature shape"),
        ([np.ones(2)], np.ones(3), ValueError, r"one row a sequence, 1 rows, got an array of shape \(3,\)"),
        ([np.ones(2)], "ab", TypeError, "targets must be None, an array .* got str"),
        ([np.ones(2)], [np.ones(2), np.ones(2)], ValueError, "one array a sequence, 1, got 2"),
        (
            [np.ones(2)],
            [np.ones(3)],
            ValueError,
            r"targets\[0\] must have one entry .*; one target a sequence is given as one",
        ),
        ([np.ones(2)], [3], TypeError, r"targets\[0\] must be a JAX or NumPy array, got int"),
    ],
)
@pytest.mark.usefixtures("unchecked_types")
def test_data_that_do_not_fit_are_named(inputs, targets, error, message):
    with pytest.raises(error, match=message):
        Buckets(inputs, targets, batch_size=2, seed=0)
