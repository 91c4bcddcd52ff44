"""Checkpoints: what is kept and what comes back. Reported faults: test_faults_checkpoints.py."""

import gc
import re
import shutil

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from sequinox.train import Checkpoints, Total, init_train_state


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


def test_restoring_into_shapes_alone(tmp_path):
    original = state()
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(original, 1)
        found = checkpoints.restore(eqx.filter_eval_shape(state)).state
    assert_same(eqx.filter(found, eqx.is_array), eqx.filter(original, eqx.is_array))


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


@pytest.mark.parametrize(
    ("step", "error", "message"),
    [(-1, ValueError, "step must be at least 0, got -1"), (True, TypeError, "step must be an integer, got True")],
)
def test_a_step_that_is_no_number_of_steps(tmp_path, step, error, message):
    with Checkpoints(tmp_path) as checkpoints:
        with pytest.raises(error, match=message):
            checkpoints.save(LIKE, step)
        checkpoints.save(LIKE, 4)
        with pytest.raises(ValueError, match="step 3 must be above 4"):
            checkpoints.save(LIKE, 3)
        assert checkpoints.steps == [4]


def test_bytes_as_a_data_state_come_back_as_bytes(tmp_path):
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(LIKE, 1, data_state=b"\x00\xff{")
        assert checkpoints.peek().data_state == b"\x00\xff{"
        assert checkpoints.peek().state is None


@pytest.mark.usefixtures("unchecked_types")
def test_of_a_total_its_mean_is_the_metric_and_what_is_no_number_is_refused_by_its_name(tmp_path):
    with Checkpoints(tmp_path, best="loss", keep_last=9, keep_best=9) as checkpoints:
        for step, total in enumerate((Total(6.0, 3), Total(jnp.array(1.0), jnp.array(4)), Total(0.0, 0)), 1):
            checkpoints.save(LIKE, step, metrics={"loss": total, "n": np.int32(step)})
        assert [checkpoints.peek(step).metrics["loss"] for step in (1, 2, 3)] == [2.0, 0.25, 0.0]
        assert checkpoints.peek(2).metrics == {"loss": 0.25, "n": 2.0} and checkpoints.best_step == 3
        for value in ("0.5", [0.5], {}, jnp.ones(1), Total(jnp.ones(2), jnp.ones(2)), 1j, object()):
            with pytest.raises(TypeError, match=r"Checkpoints: metrics\['loss'\] must be a number or a Total, got "):
                checkpoints.save(LIKE, 4, metrics={"loss": value})  # pyright: ignore[reportArgumentType]
        for metrics in ([0.5], 0.5, "loss"):
            with pytest.raises(TypeError, match="Checkpoints: metrics must be a dictionary of numbers by name, got "):
                checkpoints.save(LIKE, 4, metrics=metrics)  # pyright: ignore[reportArgumentType]
        for name in ("config", "extra"):
            with pytest.raises(TypeError, match=f"{name} must be a dictionary, got list"):
                checkpoints.save(LIKE, 4, **{name: [1]})  # pyright: ignore[reportArgumentType]
        assert checkpoints.latest_step == 3


class Foreign:
    """As an array of another library: it can be converted, and is none of JAX or NumPy."""

    def __array__(self, dtype=None, copy=None):
        return np.ones(2)


def test_an_array_that_would_not_be_stored_is_refused_with_its_path(tmp_path):
    with Checkpoints(tmp_path) as checkpoints:
        with pytest.raises(TypeError, match=r"state: \['a'\]\[0\] is a test_checkpoints.Foreign, which is not stored"):
            checkpoints.save({"a": [Foreign()]}, 1)
        for array in (np.array(["x"]), np.array([None]), np.array(["2020-01-01"], "datetime64[D]")):
            with pytest.raises(TypeError, match=r"state: \['a'\] is an array of .*, which is not stored: only numbers"):
                checkpoints.save({"a": array}, 1)
        assert checkpoints.steps == []
        checkpoints.save({"kind": jnp.float32, "type": np.float32, "w": jnp.ones(2)}, 1)
        with pytest.raises(TypeError, match=r"like: \['w'\] is a test_checkpoints.Foreign"):
            checkpoints.restore({"kind": jnp.float32, "type": np.float32, "w": Foreign()})


def test_errors_name_what_came(tmp_path):
    with pytest.raises(ValueError, match="keep_last must be at least 1, got 0"):
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


# Orbax leaves reads behind that nobody waits for; they are collected here, not in another test.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::RuntimeWarning")
def test_damaged_arrays_are_reported_with_the_path(tmp_path):
    save_all(tmp_path, [1.0])
    for path in (tmp_path / "1" / "arrays").rglob("d/*"):
        path.write_bytes(path.read_bytes()[:-8])
    with (
        Checkpoints(tmp_path, read_only=True) as checkpoints,
        pytest.raises(
            OSError, match=f"the arrays of {re.escape(str(tmp_path / '1'))} cannot be read: their metadata are damaged"
        ),
    ):
        checkpoints.restore(LIKE)
    gc.collect()
