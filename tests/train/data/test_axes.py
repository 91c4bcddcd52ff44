"""Which arrays of a batch have rows, and which have time: said, or an error; never guessed."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from sequinox.train import (
    AtEnd,
    Batch,
    DataParallel,
    GradientFunction,
    SequenceBatch,
    Total,
    accumulate,
    look_back,
    squared_error,
    truncated_bptt,
    windows,
)

pytestmark = pytest.mark.usefixtures("quick_compilation")

ROWS, TIME, N_IN = 4, 6, 3


class Line(eqx.Module):
    """y = w · x_t + v · static: no memory, so windows give the gradient of the whole."""

    w: jax.Array
    v: jax.Array


def line():
    return Line(jnp.array([0.5, -1.0, 2.0]), jnp.linspace(-1.0, 1.0, TIME))


def data():
    """Static features of as many numbers as a row has samples, and a scale of as many as there are inputs."""
    rng = np.random.default_rng(0)
    draw = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)
    return {
        "x": draw(ROWS, TIME, N_IN),
        "y": draw(ROWS, TIME),
        "static": draw(ROWS, TIME),
        "scale": jnp.array([1.0, 10.0, 100.0]),
        "none": None,
    }


AXES: dict[str, Any] = {"x": "batch time", "y": "batch time", "static": "batch", "scale": "", "none": None}


def objective(model, batch, key, carry=None):
    ys = (batch["x"] * batch["scale"][None, None]) @ model.w + (batch["static"] @ model.v)[:, None]
    width = Total(jnp.float32(batch["static"].shape[1]), 1)
    return squared_error(ys, batch["y"]), {"width": width}, jnp.zeros(len(ys))


def without_carry(model, batch, key):
    return objective(model, batch, key)[:2]


def gradient_by_numpy(batch):
    x, y, static, scale = (np.asarray(batch[name], float) for name in ("x", "y", "static", "scale"))
    model = line()
    x = x * scale
    error = x @ np.asarray(model.w, float) + (static @ np.asarray(model.v, float))[:, None] - y
    w, v = np.einsum("bt,btn->n", error, x), np.einsum("bt,bn->n", error, static)
    return (error**2).mean(), {"w": 2 * w / error.size, "v": 2 * v / error.size}


def assert_whole(got, batch):
    loss, grads = gradient_by_numpy(batch)
    np.testing.assert_allclose(got.loss.mean, loss, rtol=1e-5)
    assert int(got.loss.count) == ROWS * TIME
    for name, expected in grads.items():
        np.testing.assert_allclose(getattr(got.grads, name), expected, rtol=2e-5, atol=1e-5, err_msg=name)


def test_an_array_that_is_not_one_a_row_is_cut_with_the_rows():
    """A scale of 4 beside 8 rows, in 4 parts: it is no array of rows, and says so or is refused."""
    rows = {"x": jnp.arange(32.0).reshape(8, 4) / 10, "scale": jnp.array([1.0, 10.0, 100.0, 1000.0])}
    scaled = lambda model, batch, key: (
        squared_error((batch["x"] * batch["scale"][None]) @ model, jnp.ones(len(batch["x"]))),
        {},
    )
    w = jnp.array([0.1, 0.2, -0.1, 0.3])
    error = (np.asarray(rows["x"], float) * np.asarray(rows["scale"], float)) @ np.asarray(w, float) - 1
    for axes in ({"x": "batch", "scale": ""}, {"x": None, "scale": ""}):
        got = jax.jit(accumulate(scaled, 4, axes=axes))(w, rows, None)
        np.testing.assert_allclose(got.loss.mean, (error**2).mean(), rtol=1e-5)
    with pytest.raises(
        ValueError, match=r"number of rows, .*\['scale'\] \(4,\), batch\['x'\] \(8, 4\).* say so by axes"
    ):
        accumulate(scaled, 4)(w, rows, None)


@pytest.mark.parametrize("n", [2, 4])
def test_parts_of_a_batch_that_says_its_axes_are_the_whole(n):
    assert_whole(jax.jit(accumulate(without_carry, n, axes=AXES))(line(), data(), None), data())


@pytest.mark.parametrize("length", [2, 4])
def test_static_features_as_wide_as_a_row_is_long_are_cut_into_windows(length):
    got = jax.jit(truncated_bptt(objective, length, axes=AXES))(line(), data(), None)
    assert_whole(got, data())
    assert float(got.metrics["width"].mean) == TIME
    with pytest.raises(
        ValueError, match=r"cannot be told which .* have time: batch\['static'\] \(4, 6\), batch\['x'\]"
    ):
        truncated_bptt(objective, length)(line(), data(), None)


def test_a_look_back_leaves_what_has_no_time_whole():
    further = GradientFunction(look_back(objective, 2, axes=AXES))
    batch = data()
    behind = {**batch, "x": batch["x"][:, 2:], "y": batch["y"][:, 2:]}
    got = jax.jit(further)(line(), batch, None, jnp.zeros(ROWS))
    np.testing.assert_allclose(got.loss.mean, gradient_by_numpy(behind)[0], rtol=1e-5)
    for name, expected in gradient_by_numpy(behind)[1].items():
        np.testing.assert_allclose(getattr(got.grads, name), expected, rtol=2e-5, atol=1e-5)
    with pytest.raises(ValueError, match="look_back: it cannot be told which"):
        GradientFunction(look_back(objective, 2))(line(), batch, None, jnp.zeros(ROWS))


def test_parts_of_windows_know_the_axes_of_the_windows():
    got = accumulate(truncated_bptt(objective, 4, axes=AXES), 2)(line(), data(), None)
    assert_whole(got, data())


# What a batch of this library says by its fields, with arrays of rows as wide as time.


def batch_of(targets, per=None, resets=None, static=None):
    mask = jnp.ones((ROWS, TIME), bool)
    return SequenceBatch(jnp.zeros((ROWS, TIME)), targets, mask, resets, jnp.ones(ROWS, bool), static, per)


def shapes_in_windows(batch, **options):
    shapes = []

    def looking(model, batch, key, carry):
        shapes.append((jax.tree.map(jnp.shape, batch.targets), jax.tree.map(jnp.shape, batch.static)))
        return squared_error(batch.inputs * model, batch.inputs), {}, jnp.zeros(ROWS)

    truncated_bptt(looking, 2, **options)(jnp.ones(()), batch, None)
    assert len(set(map(str, shapes))) == 1
    return shapes[0]


def test_targets_are_cut_where_they_are_one_a_sample_and_nowhere_else():
    wide = jnp.zeros((ROWS, TIME))
    assert shapes_in_windows(batch_of(wide, "sample"))[0] == (ROWS, 2)
    assert shapes_in_windows(batch_of(wide, "sequence"))[0] == (ROWS, TIME)
    assert shapes_in_windows(batch_of(jnp.zeros(ROWS)))[0] == (ROWS,)
    ends = AtEnd(wide, wide > 0)
    assert shapes_in_windows(batch_of((ends, wide), "sequence"))[0] == (AtEnd((ROWS, 2), (ROWS, 2)), (ROWS, TIME))
    with pytest.raises(ValueError, match=r"which of these arrays have time: batch\.targets \(4, 6\).* targets_per"):
        shapes_in_windows(batch_of(wide))
    said = SequenceBatch(None, "batch", None, None, None)  # the rest as the batch says
    assert shapes_in_windows(batch_of(wide), axes=said)[0] == (ROWS, TIME)


def test_static_features_of_rows_stay_whole_and_those_of_packed_rows_are_cut():
    wide, resets = jnp.zeros((ROWS, TIME)), jnp.zeros((ROWS, TIME), bool)
    assert shapes_in_windows(batch_of(None, static={"a": wide}))[1] == {"a": (ROWS, TIME)}
    assert shapes_in_windows(batch_of(None, resets=resets, static={"a": wide}))[1] == {"a": (ROWS, 2)}


def test_the_function_windows_cuts_by_the_same_knowledge():
    wide = np.arange(ROWS * TIME).reshape(ROWS, TIME)
    batch = batch_of(wide, "sample", static=wide)
    parts = list(windows(batch, 4))
    np.testing.assert_array_equal(parts[0].targets, wide[:, :4])
    np.testing.assert_array_equal(parts[1].targets[:, :2], wide[:, 4:])
    assert not parts[1].targets[:, 2:].any()
    for part in parts:
        np.testing.assert_array_equal(part.static, wide)
    for per in (None, "sequence"):
        with pytest.raises(ValueError, match=r"windows: .*(targets_per|at_end)"):
            windows(dataclasses.replace(batch, targets_per=per), 4)


def test_a_batch_of_rows_has_rows_throughout_and_time_where_it_is_said():
    batch = Batch({"x": jnp.ones((ROWS, TIME)), "y": jnp.ones((ROWS, TIME))}, jnp.arange(ROWS) < 3)
    seen = []

    def looking(model, batch, key, carry=None):
        seen.append(jax.tree.map(jnp.shape, batch))
        loss = squared_error(batch.data["x"] * model, batch.data["x"])
        return (loss, {}) if carry is None else (loss, {}, carry)

    accumulate(looking, 2)(jnp.ones(()), batch, None)
    assert set(map(str, seen)) == {str(Batch({"x": (2, TIME), "y": (2, TIME)}, (2,)))}
    seen.clear()
    axes = Batch({"x": "batch time", "y": "batch"}, None)
    truncated_bptt(looking, 3, axes=axes)(jnp.ones(()), batch, None, jnp.zeros(ROWS))
    assert set(map(str, seen)) == {str(Batch({"x": (ROWS, 3), "y": (ROWS, TIME)}, (ROWS,)))}
    with pytest.raises(ValueError, match=r"cannot be told .* batch\.data\['x'\] \(4, 6\)"):
        truncated_bptt(looking, 3)(jnp.ones(()), batch, None, jnp.zeros(ROWS))


@pytest.mark.usefixtures("unchecked_types")
def test_targets_per_is_checked_and_part_of_the_type():
    with pytest.raises(ValueError, match=r"targets_per must be one of .*, got 'row'"):
        batch_of(None, "row")
    doubled = jax.jit(lambda batch: jax.tree.map(lambda leaf: leaf, batch))(batch_of(jnp.ones(ROWS), "sequence"))
    assert doubled.targets_per == "sequence" and len(jax.tree.leaves(doubled)) == 4


@pytest.mark.parametrize("carry", [{"n": jnp.zeros(())}, jnp.zeros((ROWS + 2, 3))])
def test_a_carry_without_the_rows_of_the_batch_is_refused(carry):
    with pytest.raises(ValueError, match=r"accumulate: carry.* must have the 4 rows of the batch first, got shape \("):
        accumulate(objective, 2, axes=AXES)(line(), data(), None, carry)


def test_devices_divide_what_has_rows():
    rows = {"x": np.ones((8, 4), np.float32), "scale": np.ones(4, np.float32)}
    with pytest.raises(ValueError, match=r"DataParallel: .* number of rows.*say so by batch_axes"):
        DataParallel().place_batch(rows)
    placed = DataParallel(batch_axes={"x": "batch", "scale": ""}).place_batch(rows)
    assert placed["x"].sharding.spec == PartitionSpec("data") and placed["scale"].sharding.spec == PartitionSpec()


@pytest.mark.parametrize(
    ("axes", "error", "message"),
    [
        ("time batch", ValueError, r"axes must be one of \('batch time', 'batch', 'time', ''\), got 'time batch'"),
        ({"x": 1}, TypeError, r"axes\['x'\] must be a string that names leading axes, got int"),
        (
            {"x": "batch time"},
            ValueError,
            r"axes must be a prefix of the batch's tree; axes is a dict of \['x'\] where",
        ),
        ({**AXES, "x": ("batch",)}, ValueError, r"axes\['x'\] is a tuple of .* where batch\['x'\] is a ArrayImpl"),
        (
            {**AXES, "scale": "batch time"},
            ValueError,
            r"batch\['scale'\] must have the leading axes 'batch time', got .*3",
        ),
        ({**AXES, "scale": "batch"}, ValueError, r"number of rows, .*batch\['scale'\] \(3,\)"),
        ({**AXES, "scale": "time"}, ValueError, r"number of samples along time: .*batch\['scale'\] \(3,\)"),
        ("batch time", ValueError, r"batch\['scale'\] must have the leading axes 'batch time'"),
        (dict.fromkeys(AXES, ""), ValueError, "no array of the batch has time"),
    ],
)
def test_axes_that_do_not_fit_are_named(axes, error, message):
    with pytest.raises(error, match=message):
        truncated_bptt(objective, 2, axes=axes)(line(), data(), None)


def test_a_batch_without_rows_has_no_parts():
    with pytest.raises(ValueError, match="no array of the batch has rows, which 2 parts could share"):
        accumulate(without_carry, 2, axes=dict.fromkeys(AXES, ""))(line(), data(), None)
