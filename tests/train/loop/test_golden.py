"""Golden traces: N steps at a stretch, and k steps, a stop, N - k steps are the same, bit for bit."""

import signal
import subprocess
import sys

import equinox as eqx
import golden_run
import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytestmark = pytest.mark.usefixtures("quick_compilation", "unchecked_types")
VARIANTS = ["parts", "windows"]


class Stop(Exception):
    pass


def stop():
    raise Stop


def bits(state):
    is_key = lambda leaf: jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    leaves = jax.tree.leaves(eqx.filter(state, eqx.is_array))
    return [np.asarray(jax.random.key_data(leaf) if is_key(leaf) else leaf).tobytes() for leaf in leaves]


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    made = {}

    def of(variant):
        if variant not in made:
            out_dir = tmp_path_factory.mktemp(variant)
            result = golden_run.run(variant, out_dir)
            made[variant] = bits(result.state), (out_dir / "metrics.jsonl").read_bytes(), result.history
        return made[variant]

    return of


def assert_golden(variant, out_dir, straight):
    result = golden_run.run(variant, out_dir, resume=True)
    leaves, log, history = straight(variant)
    assert bits(result.state) == leaves
    assert (out_dir / "metrics.jsonl").read_bytes() == log
    assert result.history == history


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_run_moves_its_weights_and_its_loss(variant, straight):
    """What follows would hold of a run that does nothing."""
    history = straight(variant)[2]
    losses = [line["train/loss"] for line in history if "train/loss" in line]
    assert len(set(losses)) == len(losses) == 7 and history[-1]["step"] == golden_run.STEPS


@pytest.mark.parametrize("variant", VARIANTS)
def test_sigkill_and_a_new_process(variant, straight, tmp_path):
    """In mid-epoch; with windows, in the middle of rows whose state is carried."""
    done = subprocess.run(
        [sys.executable, golden_run.__file__, variant, str(tmp_path), "12"], capture_output=True, text=True, check=False
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert_golden(variant, tmp_path, straight)


@pytest.mark.thorough
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("at", [5, 7, 9], ids=["after a save", "after an evaluation", "after the second save"])
def test_an_exception_anywhere(variant, straight, tmp_path, at):
    with pytest.raises(Stop):
        golden_run.run(variant, tmp_path, at=at, action=stop)
    assert_golden(variant, tmp_path, straight)
