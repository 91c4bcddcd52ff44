"""One checkpoint of several processes (`jax.distributed`): arrays of all, each process's own data state."""

import json
import os
import shutil
import socket
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sequinox.train import Checkpoints

SCRIPT = """if True:
    import json, sys
    import jax
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    port, n, rank, directory, do = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5:]
    if n > 1:
        jax.distributed.initialize(f"127.0.0.1:{port}", n, rank)
    import jax.numpy as jnp, numpy as np
    from jax.sharding import NamedSharding, PartitionSpec as P
    from sequinox.train import Checkpoints

    mesh = jax.sharding.Mesh(np.array(jax.devices()), "d")
    assert len(jax.devices()) == 4 and len(jax.local_devices()) == 4 // n

    def put(x, *spec):
        x = np.asarray(x)
        return jax.make_array_from_callback(x.shape, NamedSharding(mesh, P(*spec)), lambda index: x[index])

    def state(scale):
        key = jax.random.wrap_key_data(put(np.array([scale, 7], np.uint32)))
        return {
            "sharded": put(scale * np.arange(24.0, dtype=np.float32).reshape(8, 3), "d"),
            "replicated": put(scale * np.arange(5, dtype=np.int32)),
            "key": key,
            "empty": put(np.zeros((0, 2), np.float32)),
            "numpy": scale * np.arange(3.0),
        }

    def data(a):
        return jax.random.key_data(a) if jnp.issubdtype(a.dtype, jax.dtypes.prng_key) else a

    def check(found, scale):
        for name, expected in state(scale).items():
            a, b = data(found[name]), data(expected)
            if isinstance(a, jax.Array):
                assert a.sharding.is_equivalent_to(b.sharding, a.ndim), name
                for one, other in zip(a.addressable_shards, b.addressable_shards, strict=True):
                    np.testing.assert_array_equal(one.data, other.data)
            else:
                np.testing.assert_array_equal(a, b)

    options = dict(best="eval/loss", keep_last=2)
    with Checkpoints(directory, **options) as checkpoints:
        for what in do:
            if what == "save":
                step = (checkpoints.latest_step or 0) + 1
                # What was measured differs by process: the first one's counts for all.
                loss = [0.1, 0.5, 0.3, 0.4, 0.2][step - 1] * (1 - 2 * rank)
                told = dict(config={"n": n}, metrics={"eval/loss": loss}, extra={"rank": rank})
                checkpoints.save(state(step), step, data_state={"at": [rank, "é" * 40 * rank]}, **told)
            elif what == "save one position":
                step = checkpoints.latest_step + 1
                checkpoints.save(state(step), step, data_state={"epoch": 3})
            elif what == "restore":
                found = checkpoints.restore(state(0))
                check(found.state, found.step)
                if n > 1:
                    best = checkpoints.restore_best(state(0))
                    check(best.state, best.step)
                abstract = lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype) if isinstance(a, jax.Array) else a
                alone = checkpoints.restore(jax.tree.map(abstract, state(0))).state["key"]
                np.testing.assert_array_equal(data(alone).addressable_data(0), [found.step, 7])
                came = found.data_state, found.config, found.extra
                print("=", json.dumps([checkpoints.steps, checkpoints.best_step, *came]))
            elif what == "restore the wrong arrays":
                try:
                    checkpoints.restore(state(0))
                except OSError as error:
                    print("=", json.dumps(str(error)))
            elif what == "local":
                try:
                    checkpoints.save({"a": jnp.ones(2), "b": put(np.ones(2))}, 99)
                except ValueError as error:
                    print("=", json.dumps(str(error)))
    if n > 1:
        jax.distributed.shutdown()
"""


def processes(n, directory, *do):
    """The last line of each of n processes, with four devices between them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    flags = {"XLA_FLAGS": f"--xla_force_host_platform_device_count={4 // n}", "JAX_PLATFORMS": "cpu"}
    running = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, port, str(n), str(rank), str(directory), *do],
            env={**os.environ, **flags},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(n)
    ]
    outputs = []
    try:
        for process in running:
            out, err = process.communicate(timeout=120)
            assert process.returncode == 0, err[-4000:]
            outputs.append([json.loads(line[2:]) for line in out.splitlines() if line.startswith("= ")])
    finally:
        for process in running:
            process.kill()
    return outputs


LIKE = {
    "sharded": jnp.zeros((8, 3)),
    "replicated": jnp.zeros(5, jnp.int32),
    "key": jax.random.key(0),
    "empty": jnp.zeros((0, 2)),
    "numpy": np.zeros(3),
}


def test_two_processes_make_one_checkpoint_which_one_process_reads_and_the_other_way_round(tmp_path):
    two = processes(2, tmp_path, "save", "save", "save", "restore", "local", "save one position")
    for rank, (restored, refused) in enumerate(two):
        steps, best, data_state, config, extra = restored
        assert (steps, best) == ([1, 2, 3], 1)  # by the first process's numbers, on both
        assert data_state == {"at": [rank, "é" * 40 * rank]}
        assert (config, extra) == ({"n": 2}, {"rank": 0})
        assert "with 2 processes every array of state must be a global one" in refused
        assert refused.endswith(":\n  ['a']")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["1", "3", "4"]

    with Checkpoints(tmp_path, read_only=True) as checkpoints:  # one process, one device
        for read in (lambda: checkpoints.restore(LIKE, 3), lambda: checkpoints.peek(3)):
            with pytest.raises(
                ValueError, match=r"3 was saved by 2 processes whose data were at different places, so 1"
            ):
                read()
        found = checkpoints.restore(LIKE)
    assert (found.step, found.data_state) == (4, {"epoch": 3})
    np.testing.assert_array_equal(found.state["sharded"], 4 * np.arange(24.0).reshape(8, 3))
    np.testing.assert_array_equal(found.state["numpy"], 4 * np.arange(3.0))
    np.testing.assert_array_equal(jax.random.key_data(found.state["key"]), [4, 7])
    assert found.state["sharded"].sharding.device_set == {jax.devices()[0]}

    [[one]] = processes(1, tmp_path, "restore", "save one position")  # four devices
    assert one[:3] == [[1, 3, 4], 1, {"epoch": 3}]
    two = processes(2, tmp_path, "restore")
    assert [restored[2] for [restored] in two] == [{"epoch": 3}] * 2

    shutil.rmtree(tmp_path / "5" / "arrays")  # the last
    shutil.copytree(tmp_path / "1" / "arrays", tmp_path / "5" / "arrays")
    for [refused] in processes(2, tmp_path, "restore the wrong arrays"):
        lines = [f"  ['{name}']" for name in ("key", "numpy", "replicated", "sharded")]
        assert "their checksums are wrong" in refused and sorted(refused.splitlines()[1:]) == lines
