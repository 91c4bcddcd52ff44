"""Faults of checkpoints that users of other libraries have reported, a test for each kind. Resuming: test_resume.py."""

import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from stored_files import copy_what_is_there
from test_checkpoints import LIKE, assert_same, save_all, state

from sequinox.train import Checkpoints


def test_typed_prng_keys_of_each_kind_come_back_and_one_of_another_kind_is_refused(tmp_path):
    keys = {
        "one": jax.random.key(3),
        "many": jax.random.split(jax.random.key(4), (2, 3)),
        "rbg": jax.random.key(5, impl="rbg"),
    }
    blank = {
        "one": jax.random.key(0),
        "many": jax.random.split(jax.random.key(0), (2, 3)),
        "rbg": jax.random.key(0, impl="rbg"),
    }
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(keys, 1)
        found = checkpoints.restore(blank).state
        assert_same(found, keys)
        np.testing.assert_array_equal(jax.random.uniform(found["rbg"]), jax.random.uniform(keys["rbg"]))
        with pytest.raises(ValueError, match=r"\['one'\]: dtype key<fry> in the checkpoint, key<rbg> in `like`"):
            checkpoints.restore({**blank, "one": jax.random.key(0, impl="rbg")})


def test_optimiser_state_back_as_other_containers_or_silently_fresh(tmp_path):
    original = eqx.tree_at(lambda s: s.opt_state[0].count, state(), jnp.array(41, jnp.int32))
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(original, 1)
        found = checkpoints.restore(state(seed=1)).state
    assert isinstance(found.opt_state[0], optax.ScaleByAdamState)
    assert int(found.opt_state[0].count) == 41


def test_missing_extra_renamed_and_reshaped_leaves_are_listed_by_their_paths_in_one_message(tmp_path):
    saved = {"a": jnp.ones(3), "b": jnp.ones((2, 2)), "c": jnp.ones(1), "old": jnp.ones(1), "same": jnp.ones(2)}
    like = {
        "a": jnp.ones(4),
        "b": jnp.ones((2, 2), jnp.bfloat16),
        "c": jnp.ones((1, 1)),
        "new": jnp.ones(1),
        "same": jnp.ones(2),
    }
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(saved, 3)
        with pytest.raises(ValueError) as error:
            checkpoints.restore(like)
    lines = str(error.value).split("\n")
    assert lines[0] == f"Checkpoints: step 3 in {tmp_path} does not fit `like`:"
    assert [line.strip() for line in lines[1:]] == [
        "['a']: shape (3,) in the checkpoint, (4,) in `like`",
        "['b']: dtype float32 in the checkpoint, bfloat16 in `like`",
        "['c']: shape (1,) in the checkpoint, (1, 1) in `like`",
        "['new']: missing in the checkpoint",
        "['old']: in the checkpoint, but not in `like`",
    ]


def test_missing_extra_and_reshaped_leaves_of_another_optimiser_or_model(tmp_path):
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(state(), 1)
        with pytest.raises(ValueError, match=r"\.opt_state\[0\]\.mu.* in the checkpoint, but not in `like`"):
            checkpoints.restore(state(optimiser=optax.sgd(0.1)))
        with pytest.raises(
            ValueError, match=r"\.model\.layers\[1\]\.weight: shape \(2, 4\) in the checkpoint, \(2, 5\)"
        ):
            checkpoints.restore(state(width=5))
        with pytest.raises(ValueError, match=r"\.model\.layers\[2\]\.bias: missing in the checkpoint"):
            checkpoints.restore(state(depth=2))
        with pytest.raises(ValueError, match=r"\.model\.layers\[0\]\.bias: dtype float32 in the checkpoint, bfloat16"):
            checkpoints.restore(state(dtype=jnp.bfloat16))


def test_1x1_and_zero_size_arrays_keep_their_shape_and_every_dtype_its_bits(tmp_path):
    tree = {
        "1x1": jnp.full((1, 1), 2.5),
        "empty": jnp.zeros((0, 3), jnp.bfloat16),
        "no keys": jax.random.split(jax.random.key(0), 3)[:0],
        "scalar": jnp.array(True),
        "a/b c": {"['x']": jnp.arange(3, dtype=jnp.int8), "5": jnp.ones(2, jnp.float8_e4m3fn)},
        "bf16": jnp.asarray([1.1, np.nan, -np.inf], jnp.bfloat16),
        "complex": jnp.array([1 + 2j]),
        "numpy": np.array([1.0 + 1e-15]),
        "numpy scalar": np.float64(0.1),
        "numpy empty": np.zeros((2, 0), np.int64),
        "function": jnp.tanh,
        "text": "x",
        "none": None,
    }
    like = jax.tree.map(lambda x: x * 0 if eqx.is_array(x) and np.size(x) and x.dtype != bool else x, tree)
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(tree, 0)
        found = checkpoints.restore(like).state
        assert_same(found, tree)
        assert isinstance(found["numpy"], np.ndarray) and isinstance(found["numpy empty"], np.ndarray)
        checkpoints.save({"only": jnp.zeros((0, 2))}, 1)
        assert checkpoints.restore({"only": jnp.zeros((0, 2))}).state["only"].shape == (0, 2)


def test_killed_while_saving_at_any_file_operation_the_last_complete_one_is_used_and_leftovers_are_cleaned(tmp_path):
    """A kill leaves the files as they are; so they are copied at each operation while one replaces another."""
    run, copies = tmp_path / "run", tmp_path / "copies"
    copies.mkdir()
    save_all(run, [1.0])
    lock, this_thread, active = threading.Lock(), threading.local(), True

    def photograph(event, arguments):
        if not active or event not in ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir"):
            return
        if str(run) not in str(arguments[0]) or getattr(this_thread, "copies", False):
            return
        with lock:  # threads of a save wait for each other's photographs: the moments are all there
            this_thread.copies = True
            try:
                copy_what_is_there(run, copies / f"{len(list(copies.iterdir())):04}")
            finally:
                this_thread.copies = False

    sys.addaudithook(photograph)
    try:
        with Checkpoints(run) as checkpoints:
            checkpoints.save({"w": jnp.full(2, 2.0)}, 2)
    finally:
        active = False
    photographs = sorted(copies.iterdir())
    assert len(photographs) > 20
    found = []
    for photo in photographs:
        with Checkpoints(photo, read_only=True) as checkpoints:
            step = checkpoints.restore(LIKE).step
            found.append(step)
            assert checkpoints.restore(LIKE).state["w"].tolist() == [step, step]
    assert found == sorted(found) and set(found) == {1, 2}
    for photo in photographs[::6]:
        with Checkpoints(photo) as checkpoints:
            for step in (2, 3):
                if step > (checkpoints.latest_step or 0):
                    checkpoints.save({"w": jnp.full(2, float(step))}, step)
            assert checkpoints.restore(LIKE).step == 3
        assert [p.name for p in photo.iterdir()] == ["3"]


@pytest.fixture
def unwritable():
    """A directory that may be read but not written to, also where the tests are run by root."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory)
        save_all(path / "run", [1.0])
        for p in (path, *path.rglob("*")):
            p.chmod(0o555 if p.is_dir() else 0o444)
        root = os.geteuid() == 0
        if root:
            os.seteuid(65534)
        try:
            yield path
        finally:
            if root:
                os.seteuid(0)
            for p in (path, *path.rglob("*")):
                p.chmod(0o755)


def test_a_read_only_disk_is_reported_at_once_and_can_still_be_read(unwritable):
    for path in (unwritable / "run", unwritable / "new" / "deeper"):
        with pytest.raises(PermissionError, match=re.escape(f"cannot write in the directory {path}")):
            Checkpoints(path)
    with Checkpoints(unwritable / "run", read_only=True) as checkpoints:
        assert checkpoints.restore(LIKE).step == 1
        with pytest.raises(ValueError, match="was opened with read_only=True"):
            checkpoints.save(LIKE, 2)


def test_a_full_disk_is_reported_at_once_and_so_is_a_file_in_the_directorys_place(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=r"cannot write in the directory .*file"):
        Checkpoints(tmp_path / "file")

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"cannot write in the directory .*: No space left on device"):
        Checkpoints(tmp_path / "new")


@pytest.mark.parametrize(
    ("stored", "like"),
    [
        (jnp.ones(2), jnp.ones(2, jnp.bfloat16)),
        (jnp.ones(2, jnp.bfloat16), jnp.ones(2)),
        (jnp.ones(2, jnp.int32), jnp.ones(2)),
        (np.ones(2), jnp.ones(2)),
        (jnp.ones(2, bool), jnp.ones(2, jnp.uint8)),
    ],
)
def test_dtype_silently_cast_on_load(tmp_path, stored, like):
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save({"a": stored}, 1)
        message = rf"\['a'\]: dtype {stored.dtype} in the checkpoint, {like.dtype} in `like`"
        with pytest.raises(ValueError, match=message):
            checkpoints.restore({"a": like})
        assert checkpoints.restore({"a": stored}).state["a"].dtype == stored.dtype


def test_a_full_disk_met_in_the_background_is_reported_and_the_last_complete_one_is_used(tmp_path):
    """A limit on the size of files stands for the disk: what is written past it fails as on a full one."""
    rng = np.random.default_rng(0)
    large = {"w": jnp.asarray(rng.normal(size=200_000).astype(np.float32))}
    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(large, 1)
        checkpoints.wait()
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
        try:
            checkpoints.save({"w": large["w"] + 1}, 2)
            with pytest.raises(OSError, match=f"saving {re.escape(str(tmp_path / '2'))} failed: .*File too large"):
                checkpoints.save(large, 3)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
            signal.signal(signal.SIGXFSZ, handler)
        assert [p.name for p in tmp_path.iterdir()] == ["1"]
        np.testing.assert_array_equal(checkpoints.restore(large).state["w"], large["w"])


QUIET = """if True:
    import gc, logging, resource, signal, sys
    from pathlib import Path
    import jax, jax.numpy as jnp, numpy as np
    from sequinox.train import Checkpoints
    directory, rng = Path(sys.argv[1]), np.random.default_rng(0)
    state = {name: jnp.asarray(rng.normal(size=100_000).astype(np.float32)) for name in map(str, range(24))}
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    with Checkpoints(directory) as checkpoints:
        checkpoints.save(state, 1)
        checkpoints.wait()
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limit[1]))
        for step in (2, 3):
            checkpoints.save(state, step)
            try:
                checkpoints.wait()
            except OSError as error:
                print("=", error)
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    largest = max((directory / "1" / "arrays").rglob("d/*"), key=lambda path: path.stat().st_size)
    largest.write_bytes(largest.read_bytes()[:1000])
    with Checkpoints(directory, read_only=True) as checkpoints:
        for _ in range(2):
            try:
                checkpoints.restore(state)
            except OSError as error:
                print("=", error)
            gc.collect()
    logging.getLogger("absl").error("of somebody else's")
    logging.getLogger("asyncio").error("of another task")
"""


def test_a_full_disk_and_damaged_arrays_are_one_error_each_and_not_pages_of_tracebacks(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", QUIET, str(tmp_path)],
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    errors = [line for line in done.stdout.splitlines() if line.startswith("= ")]
    assert [("failed" in line, "cannot be read" in line) for line in errors] == [(True, False)] * 2 + [
        (False, True)
    ] * 2
    assert max(map(len, errors)) < 600
    came = done.stderr.splitlines()
    assert [line for line in came if "of somebody else's" in line or "of another task" in line] == came, done.stderr
    assert len(came) == 2


FOUR_DEVICES = """if True:
    import sys
    import jax, jax.numpy as jnp, numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
    from sequinox.train import Checkpoints
    mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("a", "b"))
    put = lambda x, *spec: jax.device_put(x, NamedSharding(mesh, P(*spec)))
    like = {"w": put(jnp.zeros((8, 6)), "a", "b"), "all": put(jnp.zeros(3)), "key": put(jax.random.key(0))}
    with Checkpoints(sys.argv[1]) as checkpoints:
        found = checkpoints.restore(like, 1).state
        assert len(jax.devices()) == 4
        for name, leaf in like.items():
            assert found[name].sharding.is_equivalent_to(leaf.sharding, leaf.ndim), name
        np.testing.assert_array_equal(found["w"], np.arange(48.0).reshape(8, 6))
        assert found["w"].addressable_shards[3].data.shape == (4, 3)
        found["w"] = jax.jit(lambda x: x + 0.5)(found["w"])
        checkpoints.save(found, 2)
"""


def test_saved_on_four_devices_restored_on_one_and_the_other_way_round(tmp_path):
    original = {"w": jnp.arange(48.0).reshape(8, 6), "all": jnp.array([1.0, 2.0, 3.0]), "key": jax.random.key(7)}
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(original, 1)
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", FOUR_DEVICES, str(tmp_path)],
        env={**os.environ, **flags},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    with Checkpoints(tmp_path, read_only=True) as checkpoints:
        found = checkpoints.restore(jax.tree.map(lambda x: x * 0 if x.ndim else jax.random.key(0), original))
    assert found.step == 2
    assert_same(found.state, {**original, "w": jnp.arange(48.0).reshape(8, 6) + 0.5})
    assert found.state["w"].sharding.device_set == {jax.devices()[0]}
