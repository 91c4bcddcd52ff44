"""Several sequences in a row: where they stand, and that nothing crosses."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ragged_rows import LENGTHS, all_samples, epoch, per_sample, per_sequence, rows, samples

import sequinox as sqx
from sequinox.train import Packs, cross_entropy, pack, pad, unpad
from sequinox.train.data._packing import best_fit

pytestmark = pytest.mark.usefixtures("quick_compilation")

FULL = [n for n in LENGTHS if n]  # a target of its own needs a sample to stand at


def test_each_sequence_stands_whole_where_it_is_said_to():
    packed = pack(rows(), per_sample(), length=10)
    batch = packed.batch
    assert batch.inputs.shape == (5, 10, 2) and sum(LENGTHS) == 43  # no better than 5 rows
    covered = np.zeros((5, 10), int)
    for row, start, stop, sequence, target in zip(*packed[1:], rows(), per_sample(), strict=True):
        np.testing.assert_array_equal(batch.inputs[row, start:stop], sequence)
        np.testing.assert_array_equal(batch.targets[row, start:stop], target)
        covered[row, start:stop] += 1
    np.testing.assert_array_equal(covered, batch.mask.astype(int))
    samples(batch)  # zeros elsewhere
    first = {(int(r), int(a)) for r, a, b in zip(*packed[1:], strict=True) if b > a}
    assert {tuple(place) for place in np.argwhere(batch.resets).tolist()} == first
    assert batch.targets.dtype == np.int32 and batch.inputs.dtype == np.float32 and batch.real.all()


def test_best_fit_decreasing_is_as_a_plain_search_finds_it():
    rng = np.random.default_rng(0)
    for _ in range(20):
        lengths = rng.integers(0, 11, 30)
        order = np.argsort(-lengths, kind="stable")
        got_rows, got_starts = best_fit(lengths, order, 10)
        room: list[int] = []
        for i in order:
            fitting = [left for left in room if left >= lengths[i]]
            chosen = min(fitting) if fitting else 10
            if not fitting:
                room.append(10)
            # Among equally full rows any will do: it must have been one of them.
            assert 10 - got_starts[i] == chosen
            room.remove(chosen)
            room.append(chosen - int(lengths[i]))
        assert got_rows.max() + 1 == len(room)


def test_unpack_and_last_give_back_what_belongs_to_each():
    packed = pack(rows(), length=12)
    outputs = {"a": packed.batch.inputs, "b": jnp.asarray(packed.batch.inputs[..., 0])}
    for got, expected in zip(packed.unpack(outputs), rows(), strict=True):
        np.testing.assert_array_equal(got["a"], expected)
        np.testing.assert_array_equal(got["b"], expected[:, 0])
    expected = np.array([row[-1] if len(row) else np.zeros(2) for row in rows()])
    last = packed.last(outputs)
    np.testing.assert_array_equal(last["a"], expected)
    np.testing.assert_array_equal(last["b"], expected[:, 0])
    with pytest.raises(ValueError, match=r"Packed.last: outputs must begin with .* \(4, 12\), got \(3, 12\)"):
        packed.last(np.ones((3, 12)))
    with pytest.raises(ValueError, match=r"Packed.unpack: outputs must begin with"):
        packed.unpack(np.ones((4, 11)))


def test_one_target_a_sequence_stands_at_its_last_sample():
    packed = pack(rows(FULL), per_sequence(FULL), length=9)
    values, ends = packed.batch.targets
    assert ends.sum() == len(FULL) and values.dtype == np.int32
    for row, stop, target in zip(packed.rows, packed.stops, per_sequence(FULL), strict=True):
        assert ends[row, stop - 1]
        np.testing.assert_array_equal(values[row, stop - 1], target)
    assert not values[~ends].any()


@eqx.filter_jit
def run(model, inputs, mask, resets):
    return model(inputs, mask=mask, resets=resets)


def layers():
    k1, k2, k3 = jax.random.split(jax.random.key(0), 3)
    return {
        "GRU": sqx.GRU(2, 4, k1),
        "attention": sqx.MultiHeadSelfAttention(2, 1, k2, causal=True),
        "both ways": sqx.Bidirectional(sqx.RNN(2, 3, k3), sqx.RNN(2, 3, k1)),
    }


@pytest.mark.parametrize("name", ["GRU", "attention", "both ways"])
def test_outputs_and_gradients_are_those_of_separate_rows(name):
    layer = layers()[name]
    rng = np.random.default_rng(0)
    sequences = [rng.normal(size=(n, 2)).astype(np.float32) for n in (3, 6, 1, 4, 2)]
    sizes = {"GRU": 4, "attention": 2, "both ways": 6}
    packed = pack(sequences, length=7)
    weights = [rng.normal(size=(len(s), sizes[name])).astype(np.float32) for s in sequences]

    @eqx.filter_jit
    @eqx.filter_value_and_grad(has_aux=True)
    def weighted(args, weights, mask, resets):
        ys = args[0](args[1], mask=mask, resets=resets)
        return jnp.sum(weights * ys), ys

    batch = packed.batch
    packed_weights = jnp.asarray(pack(weights, length=7).batch.inputs)
    (_, ys), grads = weighted((layer, jnp.asarray(batch.inputs)), packed_weights, batch.mask, batch.resets)
    apart, mask = pad(sequences)
    (_, expected_ys), expected_grads = weighted((layer, jnp.asarray(apart)), pad(weights).inputs, mask, None)
    for got, expected in zip(packed.unpack(ys), unpad(expected_ys, mask), strict=True):
        np.testing.assert_allclose(got, expected, atol=1e-6)
    for got, expected in zip(packed.unpack(grads[1]), unpad(expected_grads[1], mask), strict=True):
        np.testing.assert_allclose(got, expected, atol=1e-6)
    for got, expected in zip(jax.tree.leaves(grads[0]), jax.tree.leaves(expected_grads[0]), strict=True):
        np.testing.assert_allclose(got, expected, atol=2e-6)
    assert not np.asarray(grads[1])[~batch.mask].any()


@pytest.mark.parametrize("name", ["GRU", "attention", "both ways"])
def test_a_nan_stays_in_its_sequence(name):
    layer = layers()[name]
    sequences = rows([2, 3, 2, 4])
    clean = pack(sequences, length=11)
    bad = [s if i != 1 else np.full_like(s, np.nan) for i, s in enumerate(sequences)]
    batch = pack(bad, length=11).batch
    outputs = clean.unpack(run(layer, batch.inputs, batch.mask, batch.resets))
    expected = clean.unpack(run(layer, clean.batch.inputs, batch.mask, batch.resets))
    assert np.isnan(outputs[1]).all() and len(set(clean.rows.tolist())) == 1
    for i in (0, 2, 3):
        np.testing.assert_array_equal(outputs[i], expected[i])


def test_the_loss_at_the_ends_is_that_of_the_last_outputs():
    sequences, labels = rows(FULL), np.arange(len(FULL), dtype=np.int32) % 4
    packed = pack(sequences, labels, length=12)
    batch = packed.batch
    logits = run(layers()["GRU"], batch.inputs, batch.mask, batch.resets)
    loss = cross_entropy(logits, batch.targets.values, batch.targets.mask)
    apart, mask = pad(sequences)
    ys = run(layers()["GRU"], apart, mask, None)
    expected = cross_entropy(jnp.stack([y[len(s) - 1] for y, s in zip(ys, sequences, strict=True)]), labels)
    assert int(loss.count) == len(FULL)
    np.testing.assert_allclose(loss.total, expected.total, rtol=1e-6)


def test_gathering_the_ends_gives_the_same_loss_and_gradient():
    sequences, labels = rows(FULL), np.arange(len(FULL), dtype=np.int32) % 4
    batch = pack(sequences, labels, length=12).batch
    outputs = jnp.asarray(np.random.default_rng(0).normal(size=(*batch.mask.shape, 4)), jnp.float32)
    where = batch.targets

    @jax.jit
    def gathered(outputs, targets):
        picked, labels, real = targets.gather(outputs, 13)
        return cross_entropy(picked, labels, real)

    whole = lambda outputs: cross_entropy(outputs, where.values, where.mask)
    assert int(gathered(outputs, where).count) == len(FULL)
    np.testing.assert_allclose(gathered(outputs, where).total, whole(outputs).total, rtol=1e-6)
    got, expected = jax.grad(lambda o: gathered(o, where).total)(outputs), jax.grad(lambda o: whole(o).total)(outputs)
    np.testing.assert_allclose(got, expected, atol=1e-6)
    # Too small a size is seen at once, and filler with a NaN in its place is not.
    assert np.isnan(where.gather(outputs, len(FULL) - 1)[0]).all()
    assert np.isfinite(gathered(outputs.at[0, 0].set(jnp.nan), where).total) == (not where.mask[0, 0])
    with pytest.raises(ValueError, match=r"AtEnd.gather: outputs must begin with \(\d+, 12\)"):
        where.gather(outputs[:, 1:], 13)
    with pytest.raises(TypeError, match="outputs must be floating point, got int32"):
        where.gather(jnp.zeros(batch.mask.shape, jnp.int32), 13)


def test_a_source_brings_every_sequence_whole_and_once_an_epoch_with_other_neighbours():
    packs = Packs(rows(), per_sample(), batch_size=2, length=12, seed=0)
    neighbours = []
    for _ in range(3):
        steps, efficiency = packs.steps_per_epoch, packs.efficiency
        batches = epoch(packs)
        assert all(b.inputs.shape == (2, 12, 2) for b in batches)
        every = [row for batch in batches for row in samples(batch)]
        assert sorted(itertools.chain(*every)) == all_samples()
        assert efficiency == pytest.approx(len(all_samples()) / (steps * 24))
        for batch in batches:
            np.testing.assert_array_equal(batch.targets, batch.inputs[..., 0].astype(np.int32))
            np.testing.assert_array_equal(batch.resets, batch.mask & (batch.inputs[..., 0] % 100 == 1))
            assert batch.real.tolist() == batch.mask.any(axis=1).tolist()
        neighbours.append({frozenset(sample // 100 for sample in row) for row in every})
    assert neighbours[0] != neighbours[1] != neighbours[2]
    assert all(len(row) == len(set(row)) for row in every)  # pyright: ignore[reportPossiblyUnboundVariable]


def test_without_shuffling_a_source_gives_the_rows_of_pack():
    batches = epoch(Packs(rows(FULL), per_sequence(FULL), batch_size=3, length=12, seed=0, shuffle=False))
    expected = pack(rows(FULL), per_sequence(FULL), length=12).batch
    n = len(expected.inputs)
    for got, whole in zip(zip(*map(jax.tree.leaves, batches), strict=True), jax.tree.leaves(expected), strict=True):
        together = np.concatenate(got)
        np.testing.assert_array_equal(together[:n], whole)
        assert not together[n:].any()


def test_few_places_stay_empty():
    lengths = np.random.default_rng(0).integers(7, 30, 270).tolist()
    sequences = [np.zeros((n, 1), np.int8) for n in lengths]
    for _ in range(2):
        assert Packs(sequences, batch_size=1, length=4 * 18, seed=0).efficiency > 0.97
    assert pack(sequences, length=4 * 18).batch.mask.mean() > 0.97


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"length": 8}, ValueError, r"no sequence may be longer than length, 8, got 9 samples in inputs\[7\]$"),
        ({"length": None}, TypeError, "length must be an integer, got None"),
        ({"length": 0}, ValueError, "length must be at least 1, got 0"),
        ({"targets": per_sequence()}, ValueError, r"is placed at its last real sample, and inputs\[1\] has none"),
        ({"inputs": np.ones((2, 3))}, TypeError, "inputs must be a list of arrays"),
        ({"targets": per_sample()[:-1]}, ValueError, "one array a sequence, 11, got 10"),
    ],
)
@pytest.mark.parametrize("make", [pack, lambda *a, **k: Packs(*a, **k, batch_size=2, seed=0)])
@pytest.mark.usefixtures("unchecked_types")
def test_bad_arguments_are_named(make, change, error, message):
    arguments = {"inputs": rows(), "targets": None, "length": 12, **change}
    with pytest.raises(error, match=message):
        make(arguments.pop("inputs"), arguments.pop("targets"), **arguments)


def test_a_source_needs_samples_and_rows_for_each_process():
    with pytest.raises(ValueError, match="Packs: inputs has no sample"):
        Packs([np.zeros((0, 2))], batch_size=1, length=3, seed=0)
    with pytest.raises(ValueError, match="divisible by the 2 processes of shard, got 3"):
        Packs(rows(), batch_size=3, length=12, seed=0, shard=(0, 2))


def test_only_empty_sequences_pack_into_an_empty_row():
    packed = pack([np.zeros((0, 2))] * 2, length=3)
    assert packed.batch.inputs.shape == (1, 3, 2) and not packed.batch.mask.any() and not packed.batch.resets.any()
    assert [len(row) for row in packed.unpack(packed.batch.inputs)] == [0, 0]


def test_rows_without_features_and_scalars_pack_too():
    packed = pack([np.zeros((3, 0)), np.zeros((2, 0))], length=5)  # no features
    assert packed.batch.inputs.shape == (1, 5, 0) and packed.batch.mask.all()
    tokens = pack([np.array([4, 5]), np.array([6])], length=3).batch
    assert tokens.inputs.tolist() == [[4, 5, 6]] and tokens.resets.tolist() == [[True, False, True]]
