"""Windows that go on where the last one stopped."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ragged_rows import LENGTHS, all_samples, epoch, per_sample, per_sequence, rows, samples

import sequinox as sqx
from sequinox.train import SequenceBatch, Windows, at_end, pad, windows

pytestmark = pytest.mark.usefixtures("quick_compilation")

FULL = [n for n in LENGTHS if n]


def lanes(batches):
    """What each lane reads over an epoch, and its resets there."""
    values = np.concatenate([b.inputs[..., 0] for b in batches], axis=1)
    mask, resets = (np.concatenate([getattr(b, name) for b in batches], axis=1) for name in ("mask", "resets"))
    return [(v[m].astype(int).tolist(), r[m].tolist()) for v, m, r in zip(values, mask, resets, strict=True)], mask


@pytest.mark.parametrize("batch_size", [1, 3, 20])
@pytest.mark.parametrize("length", [1, 4, 50])
def test_lanes_read_whole_sequences_one_after_another(batch_size, length):
    source = Windows(rows(), per_sample(), batch_size=batch_size, length=length, seed=0)
    orders = []
    for _ in range(3):
        steps, efficiency = source.steps_per_epoch, source.efficiency
        batches = epoch(source)
        read, mask = lanes(batches)
        assert sorted(sample for lane, _ in read for sample in lane) == all_samples()
        for lane, resets in read:
            starts = [i for i, fresh in enumerate(resets) if fresh]
            for start, stop in zip(starts, [*starts[1:], len(lane)], strict=bool(lane)):
                i = lane[start] // 100
                assert lane[start:stop] == [100 * i + t for t in range(1, LENGTHS[i] + 1)]
            assert not lane or resets[0]
        # Filler only behind a lane's end, and no window of filler alone.
        np.testing.assert_array_equal(mask, np.sort(mask, axis=1)[:, ::-1])
        assert all(b.mask.any() for b in batches)
        for b in batches:
            samples(b)
            np.testing.assert_array_equal(b.targets, b.inputs[..., 0].astype(np.int32))
            np.testing.assert_array_equal(b.real, b.mask.any(axis=1))
            assert not b.resets[~b.mask].any()
        assert efficiency == pytest.approx(len(all_samples()) / (steps * batch_size * length))
        orders.append([lane for lane, _ in read])
    assert orders[0] != orders[1] != orders[2]


def test_lanes_are_balanced():
    lengths = np.random.default_rng(0).integers(1, 40, 300).tolist()
    _, mask = lanes(epoch(Windows(rows(lengths), batch_size=8, length=16, seed=0)))
    assert np.ptp(mask.sum(axis=1)) <= 40 and mask.mean() > 0.97


def test_without_shuffling_each_sequence_goes_to_the_lane_that_is_free_first():
    read, _ = lanes(epoch(Windows(rows(), batch_size=2, length=4, seed=0, shuffle=False)))
    filled, expected = [0, 0], [[], []]
    for i, n in enumerate(LENGTHS):
        lane = filled.index(min(filled))
        expected[lane] += [100 * i + t for t in range(1, n + 1)]
        filled[lane] += n
    assert [lane for lane, _ in read] == expected


@eqx.filter_jit
def unroll(layer, batch, state):
    return layer.unroll(batch.inputs, state, mask=batch.mask, resets=batch.resets)


def test_a_carried_state_gives_the_outputs_of_whole_sequences():
    layer = sqx.GRU(2, 4, jax.random.key(0))
    made = [row / 1000 for row in rows()]
    source = Windows(made, per_sample(), batch_size=3, length=4, seed=0)
    state = layer.init_state(3)
    for _ in range(2):  # the second epoch starts afresh although the state is carried
        outputs = {}
        for batch in epoch(source):
            ys, state = unroll(layer, batch, state)
            for y, target in zip(ys[batch.mask], batch.targets[batch.mask], strict=True):
                outputs[int(target)] = y
        for sequence, targets in zip(made, per_sample(), strict=True):
            if len(sequence):
                got = jnp.stack([outputs[int(t)] for t in targets])
                np.testing.assert_allclose(got, layer(sequence), atol=1e-6)


def test_look_back_shows_the_lanes_past_before_each_window():
    plain = Windows(rows(), per_sample(), batch_size=3, length=4, seed=1)
    looking = Windows(rows(), per_sample(), batch_size=3, length=4, seed=1, look_back=6)
    assert plain.steps_per_epoch == looking.steps_per_epoch
    along = lambda batch: (batch.inputs, batch.targets, batch.mask, batch.resets)
    whole = [np.concatenate(arrays, axis=1) for arrays in zip(*map(along, epoch(plain)), strict=True)]
    for t, batch in enumerate(epoch(looking)):
        assert batch.inputs.shape == (3, 10, 2)
        for got, everything in zip(along(batch), whole, strict=True):
            before = np.zeros((3, 6, *everything.shape[2:]), everything.dtype)
            expected = np.concatenate([before, everything], axis=1)[:, 4 * t : 4 * t + 10]
            np.testing.assert_array_equal(got, expected)
        np.testing.assert_array_equal(batch.real, batch.mask[:, 6:].any(axis=1))


@pytest.mark.parametrize("look_back", [0, 5])
def test_one_target_a_sequence_comes_once_where_it_ends(look_back):
    source = Windows(rows(FULL), per_sequence(FULL), batch_size=2, length=3, seed=0, look_back=look_back)
    found = []
    for batch in epoch(source):
        values, ends = batch.targets
        assert not values[~ends].any() and not ends[:, :look_back].any()
        for row, time in np.argwhere(ends):
            i = int(batch.inputs[row, time, 0]) // 100
            assert batch.inputs[row, time, 0] == 100 * i + FULL[i]
            np.testing.assert_array_equal(values[row, time], per_sequence(FULL)[i])
            found.append(i)
    assert sorted(found) == list(range(len(FULL)))


def test_cut_makes_lanes_of_equal_length_that_begin_with_a_reset():
    source = Windows([np.arange(1.0, 101.0)], [np.arange(1, 101)], batch_size=7, length=4, seed=0, cut=True)
    batches = epoch(source)
    inputs, mask, resets = (
        np.concatenate([getattr(b, name) for b in batches], axis=1) for name in ("inputs", "mask", "resets")
    )
    assert mask.sum(axis=1).tolist() == [15] * 6 + [10]
    for lane, real in enumerate(mask):
        assert inputs[lane, real].tolist() == list(range(15 * lane + 1, min(15 * lane + 16, 101)))
    assert np.argwhere(resets).tolist() == [[lane, 0] for lane in range(7)]
    many = Windows(rows(FULL), per_sequence(FULL), batch_size=4, length=3, seed=0, cut=True)
    batches = epoch(many)
    read, mask = lanes(batches)
    assert sorted(sample for lane, _ in read for sample in lane) == all_samples(FULL)
    assert np.ptp(mask.sum(axis=1)) <= 3 and all(resets[0] for _, resets in read)
    assert sum(int(b.targets.mask.sum()) for b in batches) == len(FULL)
    few = Windows([np.arange(2.0)], batch_size=4, length=3, seed=0, cut=True)
    assert next(few).mask.sum(axis=1).tolist() == [1, 1, 0, 0]


def test_a_memory_mapped_file_is_read_window_by_window(tmp_path):
    np.arange(1, 1_000_001, dtype=np.int32).tofile(tmp_path / "stream")
    reads = []

    class Watched(np.memmap):
        def __getitem__(self, index):
            got = super().__getitem__(index)
            reads.append(got.size)
            return got

    stream = Watched(tmp_path / "stream", np.int32, "r")
    source = Windows([stream], batch_size=4, length=10, seed=0, cut=True)
    assert source.steps_per_epoch == 25_000 and sum(reads) == 0
    source.set_state({**source.get_state(), "position": 20_000})
    expected = 250_000 * np.arange(4)[:, None] + np.arange(200_001, 200_011)
    np.testing.assert_array_equal(next(source).inputs, expected)
    # Its own copy of the file's content is a view: no sample of it lies in memory.
    held = source._data.inputs[0]
    assert np.shares_memory(held, stream) and held.flags.owndata is False


def test_windows_of_a_batch_carried_through_equal_the_whole():
    layer = sqx.GRU(2, 4, jax.random.key(0))
    inputs, mask = pad([row / 1000 for row in rows()], 10)
    resets = np.zeros_like(mask)
    resets[2, 3] = True
    labels = at_end(np.arange(11), mask)
    batch = SequenceBatch(
        {"x": inputs}, (labels, jnp.asarray(inputs)), mask, resets, mask.any(axis=1), targets_per="sample"
    )
    expected = layer(inputs, mask=mask, resets=resets)
    state, parts, ends = layer.init_state(11), [], 0
    for window in windows(batch, 4):
        assert window.mask.shape == (11, 4) and window.real.tolist() == batch.real.tolist()
        ys, state = unroll(layer, dataclasses.replace(window, inputs=window.inputs["x"]), state)
        np.testing.assert_array_equal(window.targets[1], window.inputs["x"])
        parts.append(ys)
        ends += int(window.targets[0].mask.sum())
    assert len(parts) == 3 and ends == len(FULL)
    whole = jnp.concatenate(parts, axis=1)
    np.testing.assert_allclose(whole[:, :10], expected, atol=1e-6)
    assert not whole[:, 10:].any()
    assert next(windows(dataclasses.replace(batch, resets=None), 4)).resets is None
    assert list(windows(SequenceBatch(inputs[:, :0], None, mask[:, :0], None, mask.any(axis=1)), 4)) == []


@pytest.mark.usefixtures("unchecked_types")
def test_windows_reports_at_the_call():
    inputs, mask = pad(rows())
    batch = SequenceBatch(inputs, np.arange(11), mask, None, mask.any(axis=1))
    with pytest.raises(
        ValueError, match="targets must have one entry a sample; give one target a row its place by at_end"
    ):
        windows(batch, 4)
    with pytest.raises(TypeError, match="batch must be a SequenceBatch, got tuple"):
        windows((inputs, mask), 4)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="length must be at least 1, got 0"):
        windows(batch, 0)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"inputs": [np.zeros((0, 2))]}, ValueError, "inputs has no sample"),
        ({"targets": per_sequence()}, ValueError, r"is placed at its last real sample, and inputs\[1\] has none"),
        ({"look_back": -1}, ValueError, "look_back must be at least 0, got -1"),
        ({"length": 0}, ValueError, "length must be at least 1, got 0"),
        ({"batch_size": None}, TypeError, "batch_size must be an integer, got None"),
        ({"shard": (0, 3)}, ValueError, "divisible by the 3 processes of shard, got 2"),
    ],
)
@pytest.mark.usefixtures("unchecked_types")
def test_bad_arguments_are_named(change, error, message):
    arguments = {"inputs": rows(), "batch_size": 2, "length": 3, "seed": 0, **change}
    with pytest.raises(error, match=message):
        Windows(arguments.pop("inputs"), arguments.pop("targets", None), **arguments)
