"""Faults: "Checkpoints and resume" of facts/faults.md, but for resuming a run (test_resume.py)."""

import contextlib
import os
import re
import shutil
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

from sequinox.train import Checkpoints, init_train_state


def state(width=4, depth=1, dtype=jnp.float32, seed=0, optimiser=None):
    model = eqx.nn.MLP(3, 2, width, depth, key=jax.random.key(seed), dtype=dtype)
    return init_train_state(model, optimiser or optax.adam(0.1), jax.random.key(seed + 1))


def assert_same(a, b):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        if eqx.is_array(x):
            if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
                x, y = jax.random.key_data(x), jax.random.key_data(y)
            assert (x.shape, x.dtype) == (y.shape, y.dtype)
            assert np.asarray(x).tobytes() == np.asarray(y).tobytes()
        else:
            assert x == y or x is y


def test_a_train_state_comes_back_bit_for_bit_with_what_was_saved_beside_it(tmp_path):
    original = eqx.tree_at(lambda s: s.opt_state[0].mu.layers[0].weight, state(), replace_fn=lambda x: x + 0.1)
    with Checkpoints(tmp_path / "new" / "deep") as checkpoints:
        checkpoints.save(
            original,
            7,
            data_state={"epoch": 1},
            config={"sizes": (3, 4), "name": None},
            metrics={"a": 0.1},
            extra={"x": [1]},
        )
        found = checkpoints.restore(state(seed=5))
    assert_same(found.state, original)
    assert jax.tree.structure(found.state) == jax.tree.structure(original)
    assert found.step == 7 and found.data_state == {"epoch": 1} and found.extra == {"x": [1]}
    assert found.config == {"sizes": [3, 4], "name": None} and found.metrics == {"a": 0.1}


def test_optimiser_state_comes_back_in_its_own_containers_and_is_not_fresh(tmp_path):
    original = eqx.tree_at(lambda s: s.opt_state[0].count, state(), jnp.array(41, jnp.int32))
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(original, 1)
        found = checkpoints.restore(state(seed=1)).state
    assert isinstance(found.opt_state[0], optax.ScaleByAdamState)
    assert int(found.opt_state[0].count) == 41


def test_typed_keys_of_each_kind_and_a_key_of_another_kind_is_refused(tmp_path):
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


def test_1x1_zero_size_and_scalar_arrays_keep_their_shapes_and_every_dtype_its_bits(tmp_path):
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


def test_restoring_into_shapes_alone(tmp_path):
    original = state()
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(original, 1)
        found = checkpoints.restore(eqx.filter_eval_shape(state)).state
    assert_same(eqx.filter(found, eqx.is_array), eqx.filter(original, eqx.is_array))


def test_one_message_lists_the_paths_of_all_that_differ(tmp_path):
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


def test_another_optimiser_or_model_is_refused_by_paths(tmp_path):
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


def save_all(directory, values, **options):
    with Checkpoints(directory, **options) as checkpoints:
        for step, value in enumerate(values, 1):
            checkpoints.save({"w": jnp.full(2, float(step))}, step, metrics={"eval/a": value})
        return checkpoints.steps, checkpoints.best_step


LIKE = {"w": jnp.zeros(2)}
NAN = float("nan")


@pytest.mark.parametrize(
    ("values", "options", "kept", "best"),
    [
        ([3.0, 1.0, 2.0], {}, [3], None),
        ([3.0, 1.0, 2.0], {"keep_last": 2}, [2, 3], None),
        ([3.0, 1.0, 2.0, 4.0], {"best": "eval/a"}, [2, 4], 2),
        ([3.0, 1.0, 2.0, 0.5], {"best": "eval/a", "best_mode": "max"}, [1, 4], 1),
        ([NAN, 1.0, NAN, None], {"best": "eval/a"}, [2, 4], 2),
        ([NAN, None], {"best": "eval/a"}, [2], None),
        ([1.0, 1.0, 2.0], {"best": "eval/a"}, [2, 3], 2),
        ([1.0, -float("inf"), 2.0], {"best": "eval/a"}, [1, 3], 1),
    ],
)
def test_last_and_best_are_both_kept(tmp_path, values, options, kept, best):
    assert save_all(tmp_path, values, **options) == (kept, best)
    assert sorted(p.name for p in tmp_path.iterdir()) == [str(step) for step in kept]
    with Checkpoints(tmp_path, **options, read_only=True) as checkpoints:  # and found again
        assert (checkpoints.steps, checkpoints.best_step) == (kept, best)
        assert checkpoints.restore(LIKE).step == len(values)
        if best is not None:
            found = checkpoints.restore_best(LIKE)
            assert found.step == best and found.state["w"].tolist() == [best, best]


def test_killed_at_any_file_operation_the_last_complete_one_is_used_and_leftovers_are_cleaned(tmp_path):
    """A kill leaves the files as they are; so they are copied at each operation while one replaces another."""
    run, copies = tmp_path / "run", tmp_path / "copies"
    copies.mkdir()
    save_all(run, [1.0])
    lock, active = threading.Lock(), True

    def photograph(event, arguments):
        if not active or event not in ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir"):
            return
        if str(run) in str(arguments[0]) and lock.acquire(blocking=False):
            try:
                copy_what_is_there(run, copies / f"{len(list(copies.iterdir())):04}")
            finally:
                lock.release()

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


@pytest.mark.parametrize("missing", ["_CHECKPOINT_METADATA", "arrays/_METADATA", "arrays/manifest.ocdbt", "arrays"])
def test_a_checkpoint_whose_removal_was_cut_short_is_no_checkpoint(tmp_path, missing):
    save_all(tmp_path, [1.0, 2.0], keep_last=2)
    target = tmp_path / "1" / missing
    if target.is_dir():
        shutil.rmtree(target)
    else:
        target.unlink()
    with Checkpoints(tmp_path, keep_last=2, read_only=True) as checkpoints:
        assert checkpoints.steps == [2]
    assert (tmp_path / "1").exists()
    with Checkpoints(tmp_path, keep_last=2) as checkpoints:
        assert checkpoints.steps == [2]
        assert not (tmp_path / "1").exists()
        checkpoints.save({"w": jnp.full(2, 3.0)}, 3)
        assert checkpoints.restore(LIKE).state["w"].tolist() == [3, 3]


@pytest.mark.parametrize("step", [-1, True])
def test_a_step_that_is_no_number_of_steps(tmp_path, step):
    with Checkpoints(tmp_path) as checkpoints:
        with pytest.raises(ValueError, match="step must be an integer from 0"):
            checkpoints.save(LIKE, step)
        checkpoints.save(LIKE, 4)
        with pytest.raises(ValueError, match="step 3 must be above 4"):
            checkpoints.save(LIKE, 3)
        assert checkpoints.steps == [4]


def copy_what_is_there(source, target):
    """`copytree` that does not mind a file vanishing under it."""
    target.mkdir(parents=True)
    for directory, _, names in os.walk(source):
        to = target / Path(directory).relative_to(source)
        to.mkdir(exist_ok=True)
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                shutil.copyfile(Path(directory) / name, to / name)


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


def test_a_read_only_directory_is_reported_at_once_and_can_still_be_read(unwritable):
    for path in (unwritable / "run", unwritable / "new" / "deeper"):
        with pytest.raises(PermissionError, match=re.escape(f"cannot write in the directory {path}")):
            Checkpoints(path)
    with Checkpoints(unwritable / "run", read_only=True) as checkpoints:
        assert checkpoints.restore(LIKE).step == 1
        with pytest.raises(ValueError, match="was opened with read_only=True"):
            checkpoints.save(LIKE, 2)


def test_a_file_in_the_directorys_place_and_a_full_disk_are_reported_at_once(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=r"cannot write in the directory .*file"):
        Checkpoints(tmp_path / "file")

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"cannot write in the directory .*: No space left on device"):
        Checkpoints(tmp_path / "new")


def test_bytes_as_a_data_state_come_back_as_bytes(tmp_path):
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(LIKE, 1, data_state=b"\x00\xff{")
        assert checkpoints.peek().data_state == b"\x00\xff{"
        assert checkpoints.peek().state is None


def test_errors_name_what_came(tmp_path):
    with pytest.raises(ValueError, match="keep_last must be an integer from 1, got 0"):
        Checkpoints(tmp_path, keep_last=0)
    with pytest.raises(ValueError, match="best_mode must be 'min' or 'max', got 'least'"):
        Checkpoints(tmp_path, best_mode="least")
    with pytest.raises(FileNotFoundError, match=r"there is no directory .*nowhere"):
        Checkpoints(tmp_path / "nowhere", read_only=True)
    with Checkpoints(tmp_path, best="eval/a") as checkpoints:
        with pytest.raises(FileNotFoundError, match=r"no checkpoint in .*; steps there: \[\]"):
            checkpoints.restore(LIKE)
        with pytest.raises(FileNotFoundError, match="has the metric 'eval/a'"):
            checkpoints.restore_best(LIKE)
        checkpoints.save(LIKE, 1)
        with pytest.raises(ValueError, match="step 1 must be above 1, which is already saved"):
            checkpoints.save(LIKE, 1)
        with pytest.raises(FileNotFoundError, match=r"no checkpoint of step 9 in .*; steps there: \[1\]"):
            checkpoints.restore(LIKE, 9)
        with pytest.raises(TypeError, match=r"config must be JSON-able: .*PjitFunction"):
            checkpoints.save(LIKE, 2, config={"f": jnp.tanh})
        with pytest.raises(TypeError, match="data_state must be JSON-able"):
            checkpoints.save(LIKE, 2, data_state={"f": object()})
        assert checkpoints.steps == [1]
    with (
        Checkpoints(tmp_path, read_only=True) as checkpoints,
        pytest.raises(ValueError, match="restore_best needs the metric"),
    ):
        checkpoints.restore_best(LIKE)
