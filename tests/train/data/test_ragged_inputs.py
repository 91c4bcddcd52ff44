"""What a source takes beside one list of sequences: masks, several inputs by name, features that are one a sequence."""

import itertools

import grain
import numpy as np
import pytest
from ragged_rows import epoch

from sequinox.train import (
    Buckets,
    OneSequence,
    Packs,
    Windows,
    grain_buckets,
    grain_pack,
    grain_pad,
    grain_windows,
    pack,
    pad,
)

MASKS = [np.array(flags, bool) for flags in ([0, 0, 1, 1, 1], [1, 0, 0, 1], [0, 0], [0, 1, 0, 1, 1, 0], [1, 1, 1])]
N = len(MASKS)


def sequences():
    rng = np.random.default_rng(0)
    made = [rng.normal(size=(len(mask), 2)).astype(np.float32) for mask in MASKS]
    for row, mask in zip(made, MASKS, strict=True):
        row[~mask] = np.nan
    return made


def names():
    """Sample t of sequence i is 100 i + t."""
    return [(100 * i + np.arange(len(mask))).astype(np.int32) for i, mask in enumerate(MASKS)]


def test_several_inputs_stand_side_by_side_and_static_features_along_their_sequence():
    rng = np.random.default_rng(0)
    rows = {"x": [rng.normal(size=(len(m), 2)) for m in MASKS], "token": [rng.integers(1, 9, len(m)) for m in MASKS]}
    static = {"site": np.arange(1, N + 1), "size": rng.normal(size=(N, 4)).astype(np.float32)}
    packed = pack(rows, names(), length=9, static=static)
    for i, (row, start, stop) in enumerate(zip(*packed[1:], strict=True)):
        for name in rows:
            np.testing.assert_array_equal(packed.batch.inputs[name][row, start:stop], rows[name][i])
        for name, values in static.items():
            along = packed.batch.static[name][row, start:stop]
            np.testing.assert_array_equal(along, np.broadcast_to(values[i], along.shape))
    assert not packed.batch.static["site"][~packed.batch.mask].any()
    elements = [
        OneSequence({n: one[i] for n, one in rows.items()}, names()[i], None, {n: one[i] for n, one in static.items()})
        for i in range(N)
    ]
    stream = grain.MapDataset.source(elements)
    options = {"static": static, "batch_size": 2, "seed": 0}
    for batches in (
        epoch(Packs(rows, names(), length=8, **options)),
        epoch(Windows(rows, names(), length=3, **options)),
        epoch(Buckets(rows, names(), n_buckets=2, **options)),
        list(grain_pack(stream, length=8, batch_size=2, seed=0, targets_per="sample")),
        list(grain_windows(stream, batch_size=2, length=3, targets_per="sample")),
        list(grain_buckets(stream, lengths=(3, 6), batch_size=2, targets_per="sample")),
    ):
        seen = []
        for batch in batches:
            of, at = np.divmod(batch.targets, 100)
            site = batch.static["site"] if batch.resets is not None else batch.static["site"][:, None]
            sites = np.broadcast_to(site, of.shape)[batch.mask]
            np.testing.assert_array_equal(sites, of[batch.mask] + 1)
            size = batch.static["size"] if batch.resets is not None else batch.static["size"][:, None]
            size = np.broadcast_to(size, (*of.shape, 4))[batch.mask]
            np.testing.assert_array_equal(size, static["size"][of[batch.mask]])
            for i, t, x, token in zip(
                of[batch.mask],
                at[batch.mask],
                batch.inputs["x"][batch.mask],
                batch.inputs["token"][batch.mask],
                strict=True,
            ):
                np.testing.assert_array_equal(x, rows["x"][i][t])
                assert token == rows["token"][i][t]
                seen.append((int(i), int(t)))
        assert sorted(seen) == list(itertools.chain(*([(i, t) for t in range(len(m))] for i, m in enumerate(MASKS))))


def test_pad_takes_gaps_and_several_inputs():
    both, mask = pad({"x": sequences(), "name": names()}, 7, mask=MASKS, side="left")
    for i, real in enumerate(MASKS):
        assert mask[i].tolist() == [False] * (7 - len(real)) + real.tolist()
        np.testing.assert_array_equal(both["x"][i][mask[i]], sequences()[i][real])
        np.testing.assert_array_equal(both["name"][i][mask[i]], names()[i][real])
    assert not both["x"][~mask].any() and not both["name"][~mask].any()


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"mask": MASKS[:-1]}, ValueError, "mask must have one array a sequence, 5, got 4"),
        (
            {"mask": [m[:2] for m in MASKS]},
            ValueError,
            r"mask\[0\] must have one entry for each of the 5 samples of inputs\[0\]",
        ),
        (
            {"mask": [m.astype(int) for m in MASKS]},
            TypeError,
            r"list of bool arrays \(time_i,\), got int64 of shape \(5,\)",
        ),
        ({"mask": np.ones((N, 6), bool)}, TypeError, "mask must be a list of bool arrays .* got one array"),
        ({"inputs": {}}, TypeError, "inputs must have names that are strings, at least one"),
        (
            {"inputs": {"x": [np.ones(2)], "y": [np.ones(3)]}},
            ValueError,
            r"inputs\['y'\]\[0\] must have one .* inputs\['x'\]\[0\]",
        ),
        (
            {"inputs": {"x": [np.ones(2)] * 2, "y": [np.ones(2)]}},
            ValueError,
            r"inputs\['y'\] must have one array a sequence, 2",
        ),
        (
            {"static": np.ones(3)},
            ValueError,
            r"static must have one row a sequence, 5 rows, got an array of shape \(3,\)",
        ),
        (
            {"static": {"a": [1] * N}},
            TypeError,
            r"static\['a'\] must be a JAX or NumPy array, got list: .*numpy.asarray",
        ),
    ],
)
@pytest.mark.usefixtures("unchecked_types")
def test_bad_arguments_are_named(change, error, message):
    arguments = {"inputs": sequences(), **change}
    for make in (
        lambda inputs, **o: pack(inputs, length=9, **o),
        lambda inputs, **o: Buckets(inputs, batch_size=2, seed=0, **o),
        lambda inputs, **o: Windows(inputs, batch_size=2, length=2, seed=0, **o),
    ):
        with pytest.raises(error, match=message):
            make(**arguments)


class Tensor:
    """As of another framework."""

    def numpy(self):
        return np.ones(3)


def test_tensors_and_lists_are_told_what_to_become():
    for make in (lambda a: pad([a]), lambda a: pack([a], length=3), lambda a: Buckets([a], batch_size=1, seed=0)):
        with pytest.raises(TypeError, match=r"\[0\] must be a JAX or NumPy array, got Tensor: give .*\[0\]\.numpy\(\)"):
            make(Tensor())
        with pytest.raises(
            TypeError,
            match=r"\[0\] must be .*, got list: give numpy\.asarray\(.*, numpy\.float32\)",
        ):
            make([1, 2])
    with pytest.raises(TypeError, match=r"got Tensor; give targets\.numpy\(\)"):
        pack([np.ones(3)], Tensor(), length=3)  # pyright: ignore[reportArgumentType]


def test_elements_that_differ_in_what_they_give_are_refused():
    elements = [OneSequence(np.ones(2)), OneSequence(np.ones(2), mask=np.ones(2, bool))]
    with pytest.raises(ValueError, match="grain_pad: all elements must have the same parts"):
        grain_pad(batch_size=2, length=2)(elements)
    with pytest.raises(TypeError, match="targets_per='sample', got OneSequence without targets"):
        grain_pad(batch_size=2, length=2, targets_per="sample")(elements)
