"""Marks on samples that are missing: a reset where a sequence begins with a gap, a target where one ends with it."""

import dataclasses

import equinox as eqx
import grain
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ragged_rows import epoch

import sequinox as sqx
from sequinox.train import (
    Buckets,
    OneSequence,
    Packs,
    SequenceBatch,
    Windows,
    at_end,
    grain_buckets,
    grain_pack,
    grain_pad,
    grain_windows,
    move_resets,
    pack,
    pad,
    windows,
)
from sequinox.train.data._sequences import Ragged

pytestmark = pytest.mark.usefixtures("quick_compilation")

# Gaps at the beginning, in the middle, at the end, in all of a sequence, in none.
MASKS = [
    np.array(flags, bool)
    for flags in ([0, 0, 1, 1, 1], [1, 0, 0, 1], [1, 1, 0], [0, 0], [0, 1, 0, 1, 1, 0], [1, 1, 1], [0, 0, 0, 1])
]
N_IN, N_HIDDEN = 2, 3


def sequences():
    """Something everywhere, NaN in gaps."""
    rng = np.random.default_rng(0)
    made = [rng.normal(size=(len(mask), N_IN)).astype(np.float32) for mask in MASKS]
    for row, mask in zip(made, MASKS, strict=True):
        row[~mask] = np.nan
    return made


def names():
    """Sample t of sequence i is 100 i + t, as a target: it says of an output where it belongs."""
    return [(100 * i + np.arange(len(mask))).astype(np.int32) for i, mask in enumerate(MASKS)]


@eqx.filter_jit
def gru():
    return sqx.GRU(N_IN, N_HIDDEN, jax.random.key(0))


def alone(layer=None):
    """The outputs of each sequence by itself, without its gaps, by the name of their sample."""
    layer = layer or gru()
    found = {}
    for row, mask, name in zip(sequences(), MASKS, names(), strict=True):
        if mask.any():
            found.update(zip(name[mask].tolist(), np.asarray(layer(row[mask])), strict=True))
    return found


@eqx.filter_jit
def unroll(layer, batch, state):
    return layer.unroll(batch.inputs, state, mask=batch.mask, resets=batch.resets)


GRAIN = grain.MapDataset.source(
    [OneSequence(row, name, mask) for row, name, mask in zip(sequences(), names(), MASKS, strict=True)]
)
SOURCES = {
    "pack": lambda: [pack(sequences(), names(), mask=MASKS, length=9).batch],
    "Packs": lambda: epoch(Packs(sequences(), names(), mask=MASKS, batch_size=2, length=8, seed=0)),
    "Buckets": lambda: epoch(Buckets(sequences(), names(), mask=MASKS, batch_size=3, lengths=(4, 6), seed=0)),
    "Windows": lambda: epoch(Windows(sequences(), names(), mask=MASKS, batch_size=2, length=2, seed=0)),
    "one lane": lambda: epoch(Windows(sequences(), names(), mask=MASKS, batch_size=1, length=1, seed=1)),
    "grain_pad": lambda: list(
        GRAIN.to_iter_dataset().batch(3, batch_fn=grain_pad(batch_size=3, length=6, targets_per="sample"))
    ),
    "grain_buckets": lambda: list(grain_buckets(GRAIN, lengths=(4, 6), batch_size=3, targets_per="sample")),
    "grain_pack": lambda: list(grain_pack(GRAIN, length=9, batch_size=2, seed=0, targets_per="sample")),
    "grain_windows": lambda: list(grain_windows(GRAIN, batch_size=2, length=2, targets_per="sample")),
}
CARRIED = ("Windows", "one lane", "grain_windows")


@pytest.mark.parametrize("name", SOURCES)
def test_a_row_with_gaps_leaks_into_none_beside_it(name):
    """Outputs are those of each sequence by itself, without its gaps, wherever the gaps are; nothing is NaN."""
    found, state = {}, None
    for batch in SOURCES[name]():
        assert np.isfinite(batch.inputs).all() and not batch.inputs[~batch.mask].any()
        assert batch.resets is None or not batch.resets[~batch.mask].any()
        ys, after = unroll(gru(), batch, gru().init_state(len(batch.real)) if state is None else state)
        state = after if name in CARRIED else None
        pairs = zip(batch.targets[batch.mask].tolist(), np.asarray(ys)[batch.mask], strict=True)
        for sample, y in pairs:
            assert sample not in found
            found[sample] = y
    expected = alone()
    assert found.keys() == expected.keys()
    for sample, y in expected.items():
        np.testing.assert_allclose(found[sample], y, atol=1e-6, err_msg=str(sample))


LAYERS = {
    "attention": lambda: sqx.MultiHeadSelfAttention(N_IN, 1, jax.random.key(1), causal=True),
    "convolution": lambda: sqx.Conv1d(N_IN, N_HIDDEN, 2, jax.random.key(2)),
    "both ways": lambda: sqx.Bidirectional(gru(), sqx.RNN(N_IN, 2, jax.random.key(3))),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers_of_every_kind_begin_afresh_after_a_gap(name):
    layer = LAYERS[name]()
    batch = pack(sequences(), names(), mask=MASKS, length=9).batch
    ys = np.asarray(layer(batch.inputs, mask=batch.mask, resets=batch.resets))
    expected = alone(layer)
    for sample, y in zip(batch.targets[batch.mask].tolist(), ys[batch.mask], strict=True):
        np.testing.assert_allclose(y, expected[sample], atol=1e-6, err_msg=str(sample))


def test_final_states_and_gradients_are_those_of_the_sequences_alone():
    packed = pack(sequences(), mask=MASKS, length=9)
    batch = packed.batch
    _, state = unroll(gru(), batch, None)
    for row in range(len(batch.real)):
        last = max(
            (i for i in range(len(MASKS)) if packed.rows[i] == row and MASKS[i].any()), key=packed.starts.__getitem__
        )
        np.testing.assert_allclose(state[row], gru().unroll(sequences()[last][MASKS[last]])[1], atol=1e-6)

    rng = np.random.default_rng(1)
    weights = [rng.normal(size=(len(mask), N_HIDDEN)).astype(np.float32) for mask in MASKS]

    @eqx.filter_jit
    @eqx.filter_grad
    def gradient(args, weights, mask, resets):
        layer, xs = args
        return jnp.sum(weights * layer(xs, mask=mask, resets=resets))

    together = jnp.asarray(pack(weights, mask=MASKS, length=9).batch.inputs)
    got = gradient((gru(), jnp.asarray(batch.inputs)), together, batch.mask, batch.resets)
    short, mask = pad([row[real] for row, real in zip(sequences(), MASKS, strict=True)])
    apart = pad([row[real] for row, real in zip(weights, MASKS, strict=True)]).inputs
    expected = gradient((gru(), jnp.asarray(short)), jnp.asarray(apart), mask, None)
    for a, b in zip(jax.tree.leaves(got[0]), jax.tree.leaves(expected[0]), strict=True):
        np.testing.assert_allclose(a, b, atol=2e-6)
    assert not np.asarray(got[1])[~batch.mask].any()
    for i, (row, start, stop, real) in enumerate(zip(packed.rows, packed.starts, packed.stops, MASKS, strict=True)):
        np.testing.assert_allclose(got[1][row, start:stop][real], expected[1][i, : real.sum()], atol=2e-6)


def test_lanes_that_are_cut_begin_on_a_real_sample():
    """One sequence in lanes of 4: the lanes' first samples are missing, and each begins where it can."""
    values = np.arange(1.0, 13.0, dtype=np.float32)[:, None]
    mask = np.array([0, 1, 1, 1, 0, 0, 1, 1, 0, 0, 0, 0], bool)
    batch = epoch(Windows([values], mask=[mask], batch_size=3, length=4, seed=0, cut=True))[0]
    assert batch.resets.astype(int).tolist() == [[0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0]]
    assert batch.inputs[..., 0].tolist() == [[0, 2, 3, 4], [0, 0, 7, 8], [0, 0, 0, 0]]
    assert batch.real.tolist() == [True, True, False]


@pytest.mark.parametrize("look_back", [1, 3])
def test_a_look_back_shows_the_marks_of_the_past_once_more_and_its_targets_not(look_back):
    full = [i for i, mask in enumerate(MASKS) if mask.any()]
    chosen = lambda given: [given[i] for i in full]
    make = lambda **o: epoch(
        Windows(chosen(sequences()), np.array(full), mask=chosen(MASKS), batch_size=2, length=2, seed=0, **o)
    )
    plain, looking = make(), make(look_back=look_back)
    along = lambda batch: (batch.inputs, batch.mask, batch.resets)
    whole = [np.concatenate(arrays, axis=1) for arrays in zip(*map(along, plain), strict=True)]
    for t, (batch, without) in enumerate(zip(looking, plain, strict=True)):
        for got, everything in zip(along(batch), whole, strict=True):
            early = np.zeros((2, look_back, *everything.shape[2:]), everything.dtype)
            expected = np.concatenate([early, everything], axis=1)[:, 2 * t : 2 * t + 2 + look_back]
            np.testing.assert_array_equal(got, expected)
        assert not batch.targets.mask[:, :look_back].any()
        np.testing.assert_array_equal(batch.targets.mask[:, look_back:], without.targets.mask)


# ---- targets of whole sequences ----------------------------------------------------------------------------------


def test_a_target_stands_on_the_last_real_sample():
    full = [i for i, mask in enumerate(MASKS) if mask.any()]
    rows, labels, masks = [sequences()[i] for i in full], np.array(full, np.int32) + 1, [MASKS[i] for i in full]
    # Each sample carries its place, so that a batch says where a target stands.
    named = {
        "x": rows,
        "at": [np.arange(1, len(row) + 1) for row in rows],
        "of": [np.full(len(r), i + 1) for i, r in zip(full, rows, strict=True)],
    }
    last = {i + 1: int(np.flatnonzero(MASKS[i])[-1]) + 1 for i in full}
    elements = [
        OneSequence({name: one[k] for name, one in named.items()}, labels[k], masks[k]) for k in range(len(full))
    ]
    stream = grain.MapDataset.source(elements)
    sources = {
        "pack": [pack(named, labels, mask=masks, length=9).batch],
        "Packs": epoch(Packs(named, labels, mask=masks, batch_size=2, length=8, seed=0)),
        "Windows": epoch(Windows(named, labels, mask=masks, batch_size=2, length=2, seed=0)),
        "one lane": epoch(Windows(named, labels, mask=masks, batch_size=1, length=1, seed=0)),
        "grain_pack": list(grain_pack(stream, length=9, batch_size=2, seed=0, targets_per="sequence")),
        "grain_windows": list(grain_windows(stream, batch_size=2, length=2, targets_per="sequence")),
    }
    for source, batches in sources.items():
        found = {}
        for batch in batches:
            values, ends = batch.targets
            assert not values[~ends].any() and not (ends & ~batch.mask).any()
            of, at = batch.inputs["of"][ends], batch.inputs["at"][ends]
            np.testing.assert_array_equal(values[ends], of)
            found.update(zip(of.tolist(), at.tolist(), strict=True))
        assert found == last, source


def test_outputs_at_the_last_sample_are_those_at_the_last_real_one():
    packed = pack(sequences(), mask=MASKS, length=9)
    got = packed.last(unroll(gru(), packed.batch, None)[0])
    for y, row, mask in zip(got, sequences(), MASKS, strict=True):
        np.testing.assert_allclose(y, gru()(row[mask])[-1] if mask.any() else np.zeros(N_HIDDEN), atol=1e-6)


def test_a_sequence_that_is_all_gap_has_no_place_for_a_target():
    labels = np.arange(len(MASKS))
    makers = {
        "pack": lambda: pack(sequences(), labels, mask=MASKS, length=9),
        "Packs": lambda: Packs(sequences(), labels, mask=MASKS, batch_size=2, length=8, seed=0),
        "Windows": lambda: Windows(sequences(), labels, mask=MASKS, batch_size=2, length=2, seed=0),
    }
    for name, make in makers.items():
        with pytest.raises(ValueError, match=rf"{name}: one target .* last real sample, and inputs\[3\] has none"):
            make()
    batch = epoch(Buckets(sequences(), labels, mask=MASKS, batch_size=7, lengths=(6,), seed=0, shuffle=False))[0]
    assert batch.real.all() and batch.targets.tolist() == labels.tolist() and not batch.mask[3].any()


# ---- flags of one's own --------------------------------------------------------------------------------------------


def moved_by_a_loop(resets, mask):
    out = np.zeros_like(resets)
    for row, (flags, real) in enumerate(zip(resets, mask, strict=True)):
        due = False
        for t, flag in enumerate(flags):
            due = due or flag
            if real[t]:
                out[row, t], due = due, False
    return out


def test_resets_move_to_the_first_real_sample_and_no_further():
    rng = np.random.default_rng(0)
    resets, mask = rng.random((40, 17)) < 0.3, rng.random((40, 17)) < 0.5
    expected = moved_by_a_loop(resets, mask)
    assert 0 < expected.sum() < resets.sum()
    got = move_resets(resets, mask)
    assert isinstance(got, np.ndarray)
    np.testing.assert_array_equal(got, expected)
    np.testing.assert_array_equal(jax.jit(move_resets)(resets, mask), expected)
    np.testing.assert_array_equal(move_resets(jnp.asarray(resets[3]), mask[3]), expected[3])
    np.testing.assert_array_equal(jax.vmap(move_resets)(resets, jnp.asarray(mask)), expected)
    np.testing.assert_array_equal(move_resets(got, mask), got)
    assert move_resets(resets[:, :0], mask[:, :0]).shape == (40, 0)


def test_flags_of_ones_own_separate_rows_behind_gaps():
    """The mask comes after packing, as with gaps that are seen in the samples alone."""
    packed = pack(sequences(), names(), length=9)
    batch = packed.batch
    real = np.zeros_like(batch.mask)
    for row, start, stop, mask in zip(*packed[1:], MASKS, strict=True):
        real[row, start:stop] = mask
    batch = dataclasses.replace(batch, mask=real, resets=move_resets(batch.resets, real))
    ys, _ = unroll(gru(), batch, None)
    expected = alone()
    for sample, y in zip(batch.targets[real].tolist(), np.asarray(ys)[real], strict=True):
        np.testing.assert_allclose(y, expected[sample], atol=1e-6)
    inputs, mask = pad(sequences(), mask=MASKS)
    whole = SequenceBatch(
        inputs, at_end(np.arange(7), mask), mask, move_resets(np.arange(6)[None] == [[0]] * 7, mask), None
    )
    resets = np.concatenate([part.resets for part in windows(whole, 4)], axis=1)[:, :6]
    assert [int(row.argmax()) if row.any() else -1 for row in resets] == [2, 0, 0, -1, 1, 0, 3]


@pytest.mark.parametrize(
    ("resets", "mask", "error", "message"),
    [
        (
            np.ones((2, 3), int),
            np.ones((2, 3), bool),
            TypeError,
            r"resets must be a bool array \(\*batch, time\), got int64",
        ),
        (np.ones((2, 3), bool), [True], TypeError, "mask must be a bool array .*, got list"),
        (
            np.ones((2, 3), bool),
            np.ones((2, 4), bool),
            ValueError,
            r"one shape \(\*batch, time\), got \(2, 3\) and \(2, 4\)",
        ),
        (np.array(True), np.array(True), ValueError, "one shape"),
    ],
)
@pytest.mark.usefixtures("unchecked_types")
def test_flags_that_do_not_fit_are_named(resets, mask, error, message):
    with pytest.raises(error, match=message):
        move_resets(resets, mask)


def test_the_first_and_last_real_samples_of_a_long_mask_are_found(tmp_path):
    """Over the blocks in which a memory-mapped mask is read."""
    rng = np.random.default_rng(0)
    n = 20_000
    mask = np.memmap(tmp_path / "mask", bool, "w+", shape=(n,))
    chosen = np.sort(rng.choice(n, 12, replace=False))
    mask[chosen] = True
    data = Ragged([np.zeros(n), np.zeros(9000)], None, [mask, np.zeros(9000, bool)], None, "test")
    for start in [0, *rng.integers(0, n, 30).tolist(), *chosen.tolist()]:
        after = chosen[chosen >= start]
        first = int(after[0]) if len(after) else -1
        assert data.first_real(0, start, n) == first
        assert data.first_real(0, start, start + 500) == (first if first < start + 500 else -1)
    assert data.last_real(0) == chosen[-1]
    assert data.first_real(1, 0, 9000) == data.last_real(1) == -1
