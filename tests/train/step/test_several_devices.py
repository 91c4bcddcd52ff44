"""One device, four devices, two processes of two devices: the same run, and each other's checkpoints."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import parallel_run
import pytest
from jax.sharding import Mesh, PartitionSpec

import sequinox as sqx
from sequinox.train import DataParallel, init_train_state, shard_largest_axis, squared_error
from sequinox.train.step._skeleton import split
from sequinox.train.step._step import CompiledStep

pytestmark = pytest.mark.usefixtures("quick_compilation", "unchecked_types")
STEPS = 50


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Whole runs: `alone` on one device, `four` on four, `two` in two processes; `begun` by one device, ended by two
    processes."""
    root = tmp_path_factory.mktemp("runs")
    parallel_run.run(root / "alone", steps=STEPS)
    parallel_run.run(root / "begun", steps=20)
    two = two_processes(root)
    result = parallel_run.run(root / "four", steps=STEPS, parallel=DataParallel())
    assert {len(leaf.sharding.device_set) for leaf in jax.tree.leaves(eqx.filter(result.model, eqx.is_array))} == {4}
    for process in two:
        output, _ = process.communicate(timeout=300)
        assert process.returncode == 0, output
    return root


def two_processes(root):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = os.environ | {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}  # compiled as in this process
    return [
        subprocess.Popen(
            [sys.executable, parallel_run.__file__, str(root), str(rank), str(port)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
        )
        for rank in range(2)
    ]


def lines(out_dir):
    return [json.loads(line) for line in (out_dir / "metrics.jsonl").read_text().splitlines()]


def assert_same_run(out_dir, expected_dir, steps=STEPS):
    got, expected = lines(out_dir), lines(expected_dir)[:steps]
    assert [line["step"] for line in got] == list(range(1, steps + 1))
    for line, wanted in zip(got, expected, strict=True):
        assert line.keys() == wanted.keys()
        for name, value in wanted.items():
            assert line[name] == pytest.approx(value, rel=1e-5 if "grad_norm" in name else 1e-6, abs=1e-6), (line, name)


@pytest.mark.thorough
@pytest.mark.parametrize("other", ["four", "two", "begun"])
def test_the_same_losses_whatever_the_devices(runs, other):
    assert_same_run(runs / other, runs / "alone")


@pytest.mark.thorough
@pytest.mark.parametrize(("saved_by", "continued_on"), [("alone", 1), ("four", 1), ("two", 4)])
def test_a_checkpoint_opens_on_other_devices(runs, tmp_path, saved_by, continued_on):
    """From step 50, where all are alike, to 53: each as one device goes on from its own."""
    shutil.copytree(runs / saved_by, tmp_path / "copy")
    parallel = parallel_run.divided() if continued_on == 4 else None
    result = parallel_run.run(tmp_path / "copy", steps=STEPS + 3, parallel=parallel, resume=True)
    assert len(result.model.layers[0].R_z.sharding.device_set) == continued_on  # pyright: ignore[reportAttributeAccessIssue]
    losses = [line["train/loss"] for line in lines(tmp_path / "copy")[STEPS:] if "train/loss" in line]
    continued.append(losses)
    assert len(losses) == 3 and losses == pytest.approx(continued[0], rel=1e-6)


continued: list[list[float]] = []  # the first is one device's own


def test_a_rule_divides_the_largest_axis_that_it_can():
    rule = shard_largest_axis(4, "model", min_size=32)
    assert rule("x", (8, 12)) == PartitionSpec(None, "model")
    assert rule("x", (12, 8)) == PartitionSpec("model")
    assert rule("x", (16, 9)) == PartitionSpec("model")
    assert rule("x", (9, 9)) is None and rule("x", (2, 2)) is None and rule("x", ()) is None


@pytest.mark.usefixtures("unchecked_types")
def test_bad_arguments():
    mesh = Mesh(np.array(jax.devices()[:1]), ("rows",))
    with pytest.raises(TypeError, match=r"mesh must be a jax.sharding.Mesh, got int"):
        DataParallel(3)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="axis must be one of"):
        DataParallel(mesh, axis="data")
    with pytest.raises(TypeError, match="rule must be a function"):
        DataParallel(mesh, rule=PartitionSpec())  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="parallel must be a DataParallel"):
        parallel_run.run(None, steps=1, parallel=mesh)
    state = init_train_state(eqx.nn.Linear(3, 2, key=jax.random.key(0)), optax.sgd(0.1), jax.random.key(0))
    with pytest.raises(ValueError, match=r"\.model\.weight of shape \(2, 3\) cannot be divided"):
        DataParallel(mesh, rule=lambda path, shape: PartitionSpec(None, None, "rows")).shardings(state)
    with pytest.raises(TypeError, match="n must be an integer"):
        shard_largest_axis(2.0)  # pyright: ignore[reportArgumentType]
    assert DataParallel(mesh).place_batch({"x": jnp.ones((3, 2)), "n": np.float32(1)})["x"].shape == (3, 2)


@pytest.mark.thorough
def test_only_sums_travel_between_devices():
    """Gradients, totals and norms; no row of a batch, and no state."""
    model = sqx.recurrent_net(6, 8, 4, jax.random.key(0), cell="lstm", pool=None)
    objective = lambda model, batch, key: (squared_error(model(batch[0]), batch[1]), {})
    parallel = DataParallel()
    step = CompiledStep(optax.adam(1e-3), objective, clip_norm=1.0, donate=False, parallel=parallel)
    state = parallel.place_state(init_train_state(model, optax.adam(1e-3), jax.random.key(1)))
    arrays, skeleton = split(state)
    batch = parallel.place_batch((np.zeros((16, 9, 6), np.float32), np.zeros((16, 9, 4), np.float32)))
    program = str(step._jitted.lower(skeleton, arrays, batch).compile().as_text())
    kinds = "all-reduce|reduce-scatter|all-gather|all-to-all|collective-permute|collective-broadcast"
    assert set(re.findall(rf"\b({kinds})(?:-start)?\(", program)) == {"all-reduce"}
