"""Checkpoints that are written in the background: nothing changes under them, and nothing is lost."""

import contextlib
import re
import sys
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from stored_files import copy_what_is_there
from test_checkpoints import LIKE

from sequinox.train import Checkpoints


class Gate:
    """Holds up a save below a directory where it would be given its final name."""

    def __init__(self, directory):
        self._directory, self._open = str(directory), threading.Event()
        self.reached = threading.Event()
        sys.addaudithook(self._hold)

    def _hold(self, event, arguments):
        if event == "os.rename" and not self._open.is_set() and self._directory in str(arguments[0]):
            self.reached.set()
            self._open.wait(60)

    def open(self):
        self._open.set()


@contextlib.contextmanager
def gate(directory):
    it = Gate(directory)
    try:
        yield it
    finally:
        it.open()


def arrays(seed):
    rng = np.random.default_rng(seed)
    return {
        "large": jnp.asarray(
            rng.normal(size=(2000, 1501)).astype(np.float32)
        ),  # takes much longer to write than to step
        "small": [jnp.asarray(rng.normal(size=n).astype(np.float32)) for n in (1, 2, 33, 1000)],
        "bf16": jnp.asarray(rng.normal(size=(5, 3)), jnp.bfloat16),
        "count": jnp.asarray(seed, jnp.int32),
        "key": jax.random.key(seed),
    }


def is_key(a):
    return jnp.issubdtype(a.dtype, jax.dtypes.prng_key)


@jax.jit
def key_data(tree):
    return jax.tree.map(lambda a: jax.random.key_data(a) if is_key(a) else a, tree)


def test_buffers_donated_or_overwritten_at_once_never_reach_the_file(tmp_path):
    step = jax.jit(lambda tree: jax.tree.map(lambda a: a if is_key(a) else -a - 1, tree), donate_argnums=0)
    step(arrays(9))  # compiled before, so that the step comes close upon the save
    in_time = []
    for attempt in range(5):  # on a busy machine the file may be written before the arrays are overwritten
        state, own = arrays(3), np.arange(5.0)
        expected = jax.tree.map(np.array, key_data(state))
        directory = tmp_path / str(attempt)
        with Checkpoints(directory) as checkpoints, gate(directory) as held:
            checkpoints.save({"state": state, "own": own}, 1)
            own[:] = -1
            for _ in range(3):
                state = step(state)
            jax.block_until_ready(state)
            in_time.append(not held.reached.is_set())  # still being written
            assert float(state["small"][0][0]) != float(expected["small"][0][0])
            held.open()
            checkpoints.wait()
            assert (directory / "1").exists()
            found = checkpoints.restore({"state": arrays(0), "own": np.zeros(5)}).state
        jax.tree.map(np.testing.assert_array_equal, jax.tree.map(np.array, key_data(found["state"])), expected)
        np.testing.assert_array_equal(found["own"], np.arange(5.0))
        if in_time[-1]:
            break
    assert any(in_time)


def test_an_old_checkpoint_is_there_until_the_new_one_is_complete(tmp_path):
    run, copy = tmp_path / "run", tmp_path / "copy"
    with Checkpoints(run) as checkpoints:
        checkpoints.save({"w": jnp.full(2, 1.0)}, 1)
        checkpoints.wait()
        with gate(run) as held:
            checkpoints.save({"w": jnp.full(2, 2.0)}, 2)
            assert held.reached.wait(60)
            copy_what_is_there(run, copy)
        assert checkpoints.steps == [2]  # whatever reads waits
        assert [p.name for p in run.iterdir()] == ["2"]
    with Checkpoints(copy) as checkpoints:  # killed meanwhile
        assert checkpoints.restore(LIKE).state["w"].tolist() == [1, 1]
        assert [p.name for p in copy.iterdir()] == ["1"]


def test_a_second_save_waits_for_the_first_and_so_does_close(tmp_path):
    order = []
    with gate(tmp_path) as held:
        checkpoints = Checkpoints(tmp_path, keep_last=2)
        checkpoints.save(LIKE, 1)
        assert held.reached.wait(60)

        def release():
            order.append(sorted(p.name for p in tmp_path.iterdir() if p.name.isdecimal()))
            held.open()

        timer = threading.Timer(0.2, release)
        timer.start()
        checkpoints.save(LIKE, 2)
        order.append((tmp_path / "1").exists())
        checkpoints.close()
        timer.join()
    assert order == [[], True]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["1", "2"]


def test_without_the_background_a_save_is_complete_when_it_returns(tmp_path):
    with Checkpoints(tmp_path, asynchronous=False) as checkpoints:
        checkpoints.save(LIKE, 1)
        assert [p.name for p in tmp_path.iterdir()] == ["1"]


@pytest.mark.parametrize("method", ["wait", "save", "close"])
def test_a_failure_in_the_background_is_raised_once_by_the_next_call_and_loses_nothing(tmp_path, method):
    checkpoints = Checkpoints(tmp_path / "run")
    checkpoints.save({"w": jnp.full(2, 1.0)}, 1)
    checkpoints.wait()
    with failing("os.rename", tmp_path / "run" / "2."):
        checkpoints.save({"w": jnp.full(2, 2.0)}, 2)
        assert checkpoints.steps == [1]  # what reads does not raise
        assert checkpoints.restore(LIKE).state["w"].tolist() == [1, 1]
        call = {"wait": checkpoints.wait, "save": lambda: checkpoints.save(LIKE, 3), "close": checkpoints.close}[method]
        path = re.escape(str(tmp_path / "run" / "2"))
        with pytest.raises(OSError, match=f"Checkpoints: saving {path} failed: .*No space left on device"):
            call()
    assert [p.name for p in (tmp_path / "run").iterdir()] == ["1"]
    if method != "close":
        checkpoints.wait()
        checkpoints.save({"w": jnp.full(2, 4.0)}, 4)
        assert checkpoints.restore(LIKE).state["w"].tolist() == [4, 4]
        assert [p.name for p in (tmp_path / "run").iterdir()] == ["4"]
    checkpoints.close()


def test_what_fails_before_the_background_is_raised_by_save_itself(tmp_path):
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save({"w": jnp.full(2, 1.0)}, 1)
        checkpoints.wait()
        with (
            failing("os.mkdir", tmp_path / "2."),
            pytest.raises(OSError, match=f"saving {re.escape(str(tmp_path / '2'))} failed: .*No space left on device"),
        ):
            checkpoints.save(LIKE, 2)
        assert checkpoints.restore(LIKE).state["w"].tolist() == [1, 1]
        checkpoints.save({"w": jnp.full(2, 2.0)}, 2)
        assert checkpoints.restore(LIKE).state["w"].tolist() == [2, 2]


@contextlib.contextmanager
def failing(operation, beginning):
    """A file operation of Python below a path fails, as on a full disk."""
    active = True

    def fail(event, arguments):
        if active and event == operation and str(arguments[0]).startswith(str(beginning)):
            raise OSError(28, "No space left on device", str(arguments[0]))

    sys.addaudithook(fail)
    try:
        yield
    finally:
        active = False


@pytest.mark.parametrize(
    ("keep_last", "keep_best", "kept"),
    [(1, 1, [3, 6]), (1, 2, [3, 5, 6]), (2, 2, [3, 5, 6]), (1, 3, [2, 3, 5, 6]), (1, 9, [1, 2, 3, 4, 5, 6])],
)
def test_the_last_n_and_the_best_m_are_kept(tmp_path, keep_last, keep_best, kept):
    values = [0.9, 0.4, 0.1, 0.8, 0.3, 0.7]
    options = {"keep_last": keep_last, "keep_best": keep_best, "best": "eval/a"}
    with Checkpoints(tmp_path, **options) as checkpoints:
        for step, value in enumerate(values, 1):
            checkpoints.save(LIKE, step, metrics={"eval/a": value})
        assert checkpoints.steps == kept and checkpoints.best_step == 3
    assert sorted(p.name for p in tmp_path.iterdir()) == [str(step) for step in kept]


def test_wrong_values_of_keep_best(tmp_path):
    with pytest.raises(ValueError, match="keep_best must be at least 1, got 0"):
        Checkpoints(tmp_path, best="a", keep_best=0)
    with pytest.raises(ValueError, match="keep_best=2 needs best, the metric to rank by"):
        Checkpoints(tmp_path, keep_best=2)
