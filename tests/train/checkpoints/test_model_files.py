"""Models out of runs and files: `load_model`, `save_model`, `warm_start`."""

import json
import subprocess
import sys
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import safetensors
import safetensors.numpy
from stored_files import change_file

import sequinox as sqx
from sequinox.train import Checkpoints, init_train_state, load_model, save_model, warm_start
from sequinox.train.checkpoints import _model_files


def net(seed=0, n_out=2) -> Any:
    return sqx.recurrent_net(3, 4, n_out, jax.random.key(seed), cell="gru")


class Mixed(eqx.Module):
    """Arrays of all kinds."""

    bf16: jax.Array
    empty: jax.Array
    count: jax.Array
    keys: jax.Array
    scalar: jax.Array
    flags: np.ndarray
    layers: list
    name: str = eqx.field(static=True)


def mixed(seed=0):
    return Mixed(
        jnp.asarray([1.1, np.nan, -np.inf, seed], jnp.bfloat16),
        jnp.zeros((0, 3), jnp.float16),
        jnp.array([[seed, 2**31 - 1]], jnp.int32),
        jax.random.split(jax.random.key(seed, impl="rbg"), 2),
        jnp.array(0.5 + seed),
        np.array([True, False]),
        [eqx.nn.Linear(3, 2, key=jax.random.key(seed)), jax.nn.relu],
        "é",
    )


def bits(leaf):
    leaf = jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf
    return type(leaf), str(leaf.dtype), leaf.shape, np.asarray(leaf).tobytes()


def assert_same(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert (bits(x) == bits(y)) if eqx.is_array_like(x) and hasattr(x, "dtype") else x is y


def save(directory, values=(0.5,), **options):
    with Checkpoints(directory, **options) as checkpoints:
        for step, value in enumerate(values, 1):
            state = init_train_state(net(step), optax.adam(0.1), jax.random.key(1))
            checkpoints.save(state, step, metrics={"eval/loss": value})


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run's directory with three checkpoints, of which the first is the best."""
    path = tmp_path_factory.mktemp("run")
    save(path / "checkpoints", (0.1, 0.3, 0.2), keep_last=3, best="eval/loss")
    return path


def test_the_model_of_a_run_of_its_checkpoints_of_a_step_and_of_the_best(run):
    assert_same(load_model(run), net(3))
    assert_same(load_model(run / "checkpoints", step=2), net(2))
    assert_same(load_model(run, best=True), net(1))
    np.testing.assert_array_equal(load_model(run)(jnp.ones((5, 3))), net(3)(jnp.ones((5, 3))))


def test_a_relative_path(run, monkeypatch):
    monkeypatch.chdir(run.parent)
    assert_same(load_model(run.name), net(3))
    assert_same(warm_start(net(0), f"{run.name}/checkpoints"), net(3))


SCRIPT = """
import sys
from sequinox.train import load_model
model = load_model(sys.argv[1])
print(type(model).__module__, [type(layer).__name__ for layer in model.layers], float(model.layers[0].W_z.sum()))
"""


def test_another_process_loads_it_without_the_script_that_made_it(run):
    done = subprocess.run([sys.executable, "-c", SCRIPT, run], capture_output=True, text=True, check=True, timeout=120)
    model = net(3)
    expected = [type(layer).__name__ for layer in model.layers]
    assert done.stdout.split("[")[1].split("]")[0] == str(expected)[1:-1]
    assert float(done.stdout.split()[-1]) == float(model.layers[0].W_z.sum())


@pytest.mark.parametrize("make", [net, mixed])
def test_a_file_of_a_model_comes_back_bit_for_bit_and_anybody_can_read_the_weights(tmp_path, make):
    path = tmp_path / "model.safetensors"
    save_model(make(3), path)
    assert_same(load_model(path, trust=(__name__,)), make(3))
    read = safetensors.numpy.load_file(path) if make is net else None  # which knows no bfloat16
    with safetensors.safe_open(path, framework="np") as file:
        names = set(file.keys())
    weights = sqx.parameters(make(3))
    assert set(weights) <= names
    if read is not None:
        assert set(read) == set(weights)
        for name, array in weights.items():
            np.testing.assert_array_equal(read[name], array)
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_what_cannot_be_written_down_is_refused_when_saving_a_file_and_names_the_field_when_loading_a_run(tmp_path):
    model = {"net": net(3), "f": lambda x: x}
    with pytest.raises(ValueError, match=r"save_model: \['f'\] cannot be written down: .*<lambda>, which has no name"):
        save_model(model, tmp_path / "m.safetensors")
    assert not list(tmp_path.iterdir())
    with Checkpoints(tmp_path) as checkpoints:
        state = init_train_state(model, optax.sgd(0.1), jax.random.key(0))
        checkpoints.save(state, 1)
        assert_same(checkpoints.restore(state).state, state)
    with pytest.raises(ValueError, match=r"cannot be rebuilt: \['f'\] cannot be written down: .*like=model"):
        load_model(tmp_path)
    found = load_model(tmp_path, like={"net": net(5), "f": model["f"]})
    assert_same(found, model)


def test_a_dtype_that_a_file_cannot_hold_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"save_model: \['a'\] has dtype complex64, which a .safetensors file cannot"):
        save_model({"a": jnp.ones(2, jnp.complex64)}, tmp_path / "m.safetensors")


def test_a_class_of_a_package_that_is_not_trusted_is_named_and_not_imported(tmp_path):
    path = tmp_path / "m.safetensors"
    save_model(mixed(), path)
    with pytest.raises(ValueError, match=rf"names {__name__}:Mixed, which is none .*trust=\('{__name__}',\)"):
        load_model(path)
    change_file(path, lambda it: it["structure"].update({"class": "antigravity:Mixed"}))
    with pytest.raises(ValueError, match=r"names antigravity:Mixed, which is none .*trust=\('antigravity',\)"):
        load_model(path)
    assert "antigravity" not in sys.modules


def test_float64_is_not_cast_where_jax_has_none(tmp_path):
    path = tmp_path / "m.safetensors"
    save_model(net(), path)
    arrays = {k: v.astype(np.float64) for k, v in safetensors.numpy.load_file(path).items()}

    def widen(description):
        text = json.dumps(description["structure"])
        description["structure"] = json.loads(text.replace("float32", "float64"))

    change_file(path, widen, arrays)
    with pytest.raises(ValueError, match="an array of float64, which needs JAX's 64-bit mode"):
        load_model(path)
    save_model(net(), path)
    change_file(path, lambda it: None, arrays)
    with pytest.raises(ValueError, match=r"does not fit the model:\n  .layers\[0\].U: dtype float64 in the checkpoint"):
        load_model(path)


@pytest.mark.usefixtures("unchecked_types")
def test_load_models_errors(tmp_path, run):
    give = "; give the out_dir of a run, a directory of Checkpoints, or a .safetensors file of save_model"
    with pytest.raises(FileNotFoundError, match=rf"load_model: there is no file and no directory .*nowhere{give}"):
        load_model(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match=rf"load_model: there is no file .*nowhere.safetensors{give}"):
        load_model(tmp_path / "nowhere.safetensors")
    with pytest.raises(FileNotFoundError, match=r"load_torch: there is no file .*nowhere.safetensors"):
        sqx.load_torch(net().layers[0], tmp_path / "nowhere.safetensors")
    with pytest.raises(FileNotFoundError, match=r"no checkpoint of step 9 in .*steps there: \[1, 2, 3\]"):
        load_model(run, step=9)
    with pytest.raises(ValueError, match="give step or best=True, not both"):
        load_model(run, step=1, best=True)
    for trust in ("tests", None, (3,)):
        with pytest.raises(ValueError, match="trust must be a tuple of names of packages, got "):
            load_model(run, trust=trust)  # pyright: ignore[reportArgumentType]
    save(tmp_path / "plain")
    with pytest.raises(ValueError, match="were kept by no metric, so none is the best"):
        load_model(tmp_path / "plain", best=True)
    with Checkpoints(tmp_path / "no model") as checkpoints:
        checkpoints.save({"w": jnp.ones(2)}, 1)
    with pytest.raises(ValueError, match="the state that was saved has no field `model`"):
        load_model(tmp_path / "no model")
    path = tmp_path / "m.safetensors"
    safetensors.numpy.save_file({"W": np.ones(2)}, path)
    with pytest.raises(ValueError, match="save_model did not write it"):
        load_model(path)
    with pytest.raises(ValueError, match="holds one model; step, best and averaged are for runs"):
        load_model(path, best=True)
    for metadata in ("{", "[]", json.dumps({"structure": 1}), json.dumps({"structure": 1, "keys": {"x": 1}})):
        safetensors.numpy.save_file({"W": np.ones(2)}, path, {"sequinox": metadata})
        with pytest.raises(ValueError, match=r"load_model: the description in .*m.safetensors is damaged"):
            load_model(path)
    (tmp_path / "m.pt").write_bytes(b"x")
    with pytest.raises(ValueError, match=r"must be a .safetensors file, got 'm.pt'"):
        load_model(tmp_path / "m.pt")
    with pytest.raises(ValueError, match=r"name must end in .safetensors, got 'm.npz'"):
        save_model(net(), tmp_path / "m.npz")


# ---- warm_start ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["model", "run", "file"])
def test_every_array_is_taken_but_those_said_to_be_fresh(tmp_path, run, kind):
    old, new = net(3), net(7, n_out=5)
    source = {"model": old, "run": run, "file": tmp_path / "m.safetensors"}[kind]
    if kind == "file":
        save_model(old, source)
    found = warm_start(new, source, fresh=["layers[2]"], unused=("layers[2].W", "layers[2].b"))
    weights, before, after = sqx.parameters(found), sqx.parameters(old), sqx.parameters(new)
    for name in weights:
        expected = after if name.startswith("layers[2]") else before
        assert bits(weights[name]) == bits(expected[name])
    assert jax.tree.structure(found) == jax.tree.structure(new)
    taken = found.layers[0].W_z
    assert taken.unsafe_buffer_pointer() != old.layers[0].W_z.unsafe_buffer_pointer()


def test_keys_empty_arrays_and_numpy_come_along(tmp_path):
    save_model(mixed(3), tmp_path / "m.safetensors")
    for source in (mixed(3), tmp_path / "m.safetensors"):
        assert_same(warm_start(mixed(0), source), mixed(3))
    kept = warm_start(mixed(0), mixed(3), fresh=["keys", "flags"], unused=["keys", "flags"])
    assert bits(kept.keys) == bits(mixed(0).keys) and bits(kept.bf16) == bits(mixed(3).bf16)


def test_renamed_parts():
    old, new = net(3), {"body": net(7), "head": eqx.nn.Linear(3, 2, key=jax.random.key(1))}
    renamed = {"layers[0]": "['body'].layers[0]", "layers[2]": "['body'].layers[2]"}
    found = warm_start(new, old, fresh=["['head']"], renamed=renamed)
    assert_same(found["body"], old)
    assert_same(found["head"], new["head"])


def test_all_that_does_not_fit_is_listed_by_its_path():
    old = {"a": jnp.ones(3), "b": jnp.ones(2), "c": jnp.ones(1), "d": jnp.ones(1), "layers": [jnp.ones(1)] * 12}
    new = {
        "a": jnp.ones(4),
        "b": jnp.ones(2, jnp.bfloat16),
        "d": jnp.ones(1),
        "e": jnp.ones(1),
        "layers": [jnp.ones(1)] * 12,
    }
    with pytest.raises(ValueError) as error:
        warm_start(new, old, fresh=["['d']", "['layers'][13]", "['layers'][1]x"], unused=["layers", "['layers'][1]"])
    assert str(error.value).split("\n") == [
        "warm_start: the source does not fit the model:",
        "  ['a']: shape (3,) in the source, (4,) in the model",
        "  ['b']: dtype float32 in the source, bfloat16 in the model",
        "  ['c']: in the source, but not in the model",
        "  ['d']: in the source, but fresh in the model; if it is to be left out, say so in unused",
        "  ['e']: missing in the source",
        "  ['layers'][1]: missing in the source",  # and not ['layers'][10]
        "  fresh: nothing in the model begins with \"['layers'][13]\"",
        "  fresh: nothing in the model begins with \"['layers'][1]x\"",
        "  unused: nothing in the source begins with '.layers'",
    ]
    two = {"x": jnp.ones(1), "y": jnp.ones(1)}
    with pytest.raises(ValueError, match=r"\['y'\] \(as \['x'\]\): goes to the same place as \['x'\]"):
        warm_start({"x": jnp.ones(1)}, two, renamed={"['y']": "['x']"})
    with pytest.raises(ValueError, match=r"renamed: nothing in the source begins with '.z'"):
        warm_start(two, two, renamed={"z": "x"})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fresh": "layers[2]"}, r"fresh must be a list of paths such as 'layers\[0\].W', got 'layers\[2\]'"),
        ({"unused": [3]}, "unused must be a list of paths"),
        ({"unused": [""]}, "unused must be a list of paths"),
        ({"renamed": ["a"]}, r"renamed must be a dictionary of old and new paths, got \['a'\]"),
    ],
)
@pytest.mark.usefixtures("unchecked_types")
def test_wrong_arguments_of_warm_start(options, message):
    with pytest.raises(ValueError, match="warm_start: " + message):
        warm_start(net(), net(), **options)


def test_a_checkpoint_that_is_removed_while_it_is_read_gives_way_to_the_newer(tmp_path, monkeypatch):
    """As when a run goes on that keeps its last checkpoint only."""
    state = init_train_state(sqx.Dense(3, 2, jax.random.key(0)), optax.sgd(0.1), jax.random.key(1))
    load = _model_files._load
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(state, 1)
        checkpoints.wait()

        def racing(*arguments):
            monkeypatch.setattr(_model_files, "_load", load)
            checkpoints.save(state, 2)
            checkpoints.wait()
            raise FileNotFoundError("of step 1")

        monkeypatch.setattr(_model_files, "_load", racing)
        assert eqx.tree_equal(load_model(tmp_path), state.model)
        with pytest.raises(FileNotFoundError, match="no checkpoint of step 1"):
            load_model(tmp_path, step=1)
