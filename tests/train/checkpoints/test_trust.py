"""What a stored model may name and call without `trust=`: attacks of every kind, and all there is in four packages."""

import enum
import functools
import inspect
import json
import subprocess
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from stored_files import change_checkpoint, model_file

import sequinox as sqx
from sequinox.train import Checkpoints, init_train_state, load_model, save_model
from sequinox.train.checkpoints._allowed import allowed_classes, allowed_functions

# ---- attacks ---------------------------------------------------------------------------------------------------------


def node(value):
    if isinstance(value, dict):
        return {"dict": [[key, node(inner)] for key, inner in value.items()]}
    return {"list": [*map(node, value)]} if isinstance(value, list) else value


def part(function, *args):
    return {"partial": {"name": function}, "args": [*args], "keywords": [], "tree": False}


def lam(function):
    return {"class": "equinox.nn:Lambda", "fields": {"fn": function}}


def per_sample(function):
    return {"class": "sequinox:PerSample", "fields": {"function": function, "n_in": None, "n_out": None}}


def chain(*functions):
    return {"class": "equinox.nn:Sequential", "fields": {"layers": {"tuple": [lam(f) for f in functions]}}}


SYSTEM = part("posix:system", "echo > pwned")
REBUILD = "sequinox.train.checkpoints._rebuild:rebuild"
EVIL_REBUILD = part(REBUILD, node(SYSTEM), {"name": "jax.numpy:zeros"}, {"tuple": ["posix"]}, "x")

PAYLOADS = {
    "a rebuild with a trust of its own": per_sample(chain(EVIL_REBUILD, {"name": "jax:eval_shape"})),
    "an import": per_sample(part("sequinox.interop._safetensors:_package", "evilmod")),
    "an emptied file": per_sample(part("equinox:tree_serialise_leaves", "precious.py")),
    "a command": per_sample(SYSTEM),
    "a command in a tree's partial": per_sample({**SYSTEM, "tree": True}),
    "a partial of a partial": per_sample({**SYSTEM, "partial": part("jax.nn:relu")}),
    "a partial of a module": per_sample({**SYSTEM, "partial": lam(SYSTEM)}),
    "a partial in the arguments of a function that is allowed": per_sample(part("jax.numpy:add", SYSTEM)),
    "a module there": per_sample(part("jax.numpy:add", lam({"name": "jax.nn:relu"}))),
    "a name there": per_sample(part("jax.numpy:add", {"list": [{"name": "posix:system"}]})),
    "a module with a function where Shared looks": {
        "class": "equinox.nn:Shared",
        "fields": {"pytree": None, "where": SYSTEM, "get": {"name": "jax:eval_shape"}},
    },
    "a class that calls its argument": per_sample(part("sequinox:GRU", 3, 4, None)),
    "a wrapper of equinox": {"class": "equinox:Partial", "fields": {"func": SYSTEM, "args": [], "keywords": {}}},
    "a module as a command line": {"marker": "subprocess:Popen"},
    "a module that is imported by its name": per_sample({"name": "evilmod:x"}),
    "a module of a trusted package that has not been imported": per_sample({"name": "jax.tools.jax_to_ir:main"}),
    "an enumeration": {"enum": "evilmod:Colour", "member": "RED"},
    "a tuple": {"named": "evilmod:Pair", "items": []},
}


@pytest.mark.parametrize("kind", ["file", "run"])
@pytest.mark.parametrize("payload", PAYLOADS)
def test_an_attack_is_refused_and_nothing_has_run_been_written_or_imported(tmp_path, monkeypatch, kind, payload):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "precious.py").write_text("precious")
    (tmp_path / "evilmod.py").write_text("import pathlib; pathlib.Path('pwned').touch(); x = print")
    if kind == "file":
        model_file("model.safetensors", PAYLOADS[payload])
    else:
        with Checkpoints("run") as checkpoints:
            checkpoints.save(init_train_state(sqx.Dense(3, 2, jax.random.key(0)), optax.sgd(0.1), jax.random.key(0)), 1)
        change_checkpoint("run/1", lambda it: it["model"].update(structure=PAYLOADS[payload]))
    before, modules = sorted(p.name for p in tmp_path.iterdir()), set(sys.modules)
    with pytest.raises(ValueError, match="load_model: "):
        load_model("model.safetensors" if kind == "file" else "run")(jnp.ones((2, 3)))
    assert sorted(p.name for p in tmp_path.iterdir()) == before and (tmp_path / "precious.py").read_text() == "precious"
    assert {name for name in set(sys.modules) - modules if not name.startswith(("orbax", "tensorstore"))} == set()


NAMES = """
sequinox.train:load_model sequinox.train:fit sequinox.train:save_model
sequinox.train.checkpoints._checkpoint_files:remove sequinox._files:write_atomically
sequinox.train.checkpoints._rebuild:rebuild sequinox.interop._safetensors:_package sequinox:load_torch sequinox:GRU
equinox:tree_deserialise_leaves equinox:tree_serialise_leaves equinox:filter_pure_callback equinox:filter_jit
jax:pure_callback jax.debug:callback jax.profiler:start_trace jax.profiler:save_device_memory_profile
jax._src.xla_bridge:register_plugin jax._src.pickle_util:loads jax._src.debugger.cli_debugger:CliDebugger.evaluate
jax.export:deserialize jax.distributed:initialize jax.tools.jax_to_ir:main jax:eval_shape jax.lax:map jax:jit jax:vmap
jax.numpy:vectorize jax.numpy:apply_along_axis jax.numpy:frompyfunc jax.numpy:piecewise jax.numpy:fromfunction
jax.lax:cond jax.lax:scan jax.lax:custom_root jax.lax:reduce optax:adam optax:tree.map equinox.nn:make_with_state
os:system posix:system builtins:eval builtins:getattr subprocess:Popen jax.numpy:load jax.numpy:save jax.numpy:savez
jax.numpy:fromfile jax:numpy.load jax._src.numpy.lax_numpy:load sequinox.train:os.system
sequinox.train.checkpoints._checkpoints:os.system equinox._module:sys.modules jax.numpy:__builtins__
sequinox:GRU.__init__.__globals__ jax:Array.__subclasses__ .os:system jax.../..:x __main__:t numpy:load jaxlib:x
jax.nn:relu.__class__ jax.nn:relu.__wrapped__ jax.nn:__builtins__ jax.nn jax.nn: :relu :
"""


@pytest.mark.parametrize("name", [*NAMES.split(), "a file:x", ""])
@pytest.mark.parametrize("key", ["name", "class", "named", "enum", "marker"])
def test_a_name_that_no_model_needs_is_refused_wherever_it_stands(tmp_path, name, key):
    more = {"name": {}, "class": {"fields": {}}, "named": {"items": []}, "enum": {"member": "x"}, "marker": {}}[key]
    model_file(tmp_path / "m.safetensors", {"list": [{key: name, **more}]})
    modules = set(sys.modules)
    with pytest.raises(ValueError, match="load_model: "):
        load_model(tmp_path / "m.safetensors")
    assert set(sys.modules) == modules


# ---- the table -------------------------------------------------------------------------------------------------------

# Run in a process of its own: it imports whatever there is in four packages.
WALK = """if True:
    import contextlib, importlib, inspect, io, json, pkgutil, sys, warnings
    warnings.simplefilter("ignore")
    import equinox, jax, optax, sequinox
    from sequinox.train.checkpoints._rebuild import rebuild

    sys.argv = ["walk"]
    modules = []
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        for package in (sequinox, equinox, jax, optax):
            modules.append(package)
            for found in pkgutil.walk_packages(package.__path__, package.__name__ + ".", onerror=lambda name: None):
                if found.name.rpartition(".")[2].startswith(("__main__", "test_")) or found.name.endswith("_test"):
                    continue
                with contextlib.suppress(BaseException):
                    modules.append(importlib.import_module(found.name))
        walked, allowed = 0, {"name": [], "class": [], "named": [], "enum": [], "marker": []}
        more = {"name": {}, "class": {"fields": {}}, "named": {"items": []}, "enum": {"member": "x"}, "marker": {}}
        for module in modules:
            for name in dir(module):
                try:
                    value = getattr(module, name)
                except Exception:
                    continue
                if not callable(value):
                    continue
                walked += 1
                for key, rest in more.items():
                    try:
                        rebuild({key: f"{module.__name__}:{name}", **rest}, None, (), "walk")
                    except ValueError as error:
                        if "without more trust" in str(error) or "not a class of the kind" in str(error):
                            continue
                    allowed[key].append(f"{module.__name__}:{name}")
    print(json.dumps([len(modules), walked, allowed]))
"""


@pytest.fixture(scope="module")
def walk():
    done = subprocess.run([sys.executable, "-c", WALK], capture_output=True, text=True, check=False, timeout=500)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_of_all_that_can_be_called_in_four_packages_few_are_allowed(walk):
    n_modules, n_callables, allowed = walk
    print(n_modules, n_callables, {key: len(names) for key, names in allowed.items()})
    assert n_modules > 500 and n_callables > 20_000
    assert {name.partition(":")[0] for name in allowed["name"]} == {
        *("jax.nn", "jax.numpy", "jax.lax", "equinox.nn._mlp", "sequinox.models._recurrent_encoder_decoder"),
    }
    assert {name.partition(":")[0] for name in allowed["class"]} == {
        *("sequinox", "equinox.nn", "equinox.nn._stateful", "sequinox.models._recurrent_net"),
    }
    assert sorted(allowed["name"]) == sorted(allowed_functions())
    layers = {name for name, cls in allowed_classes().items() if issubclass(cls, eqx.Module)}
    assert set(allowed["class"]) == layers
    assert set(allowed["named"]) == {n for n, c in allowed_classes().items() if issubclass(c, tuple)}
    assert allowed["enum"] == []
    assert "equinox.nn._shared:SharedNode" in allowed["marker"]


def test_no_function_of_the_table_calls_what_it_is_given():
    """Each is called with functions in every place, which none of them may call; and writes no file."""
    called = []

    class Bait:
        def __call__(self, *args, **kwargs):
            called.append(args)
            raise AssertionError

    for name, function in allowed_functions().items():
        for n in (1, 2, 3):
            for bait in (Bait(), functools.partial(Bait()), lambda *a: called.append(a)):
                for arguments in ([bait] * n, [jnp.ones(2), *[bait] * (n - 1)], [*[jnp.ones(2)] * (n - 1), bait]):
                    try:
                        function(*arguments)
                    except Exception:
                        continue
        assert not called, name


def test_the_table_holds_layers_states_and_functions_alone():
    for name, cls in allowed_classes().items():
        module = name.partition(":")[0]
        private = any(p.startswith("_") for p in module.split("."))
        kinds = issubclass(cls, (eqx.Module, enum.Enum)) or hasattr(cls, "_fields")
        assert (kinds and not private) or module in (
            *("sequinox.layers._composite", "sequinox.models._recurrent_net"),
            *("equinox.nn._shared", "equinox.nn._stateful"),
        )
        assert not any(room in cls.__module__ for room in (".train", ".interop", ".testing", ".tasks"))
    classes = [name for name, function in allowed_functions().items() if inspect.isclass(function)]
    assert all(jnp.issubdtype(allowed_functions()[name], np.generic) for name in classes)  # dtypes


# ---- what is still possible ------------------------------------------------------------------------------------------


def of_equinox():
    key = jax.random.key(0)
    nn = eqx.nn
    return [
        nn.MLP(3, 2, 5, 2, key=key),
        nn.MLP(3, "scalar", 5, 2, activation=nn.PReLU(0.2), final_activation=jax.nn.sigmoid, key=key),
        *(nn.Conv1d(2, 3, 3, key=key), nn.Conv2d(2, 3, (3, 2), padding="SAME", key=key), nn.Conv3d(1, 1, 2, key=key)),
        *(nn.ConvTranspose1d(2, 3, 3, key=key), nn.ConvTranspose2d(2, 3, 3, stride=2, key=key)),
        *(nn.AvgPool1d(2), nn.MaxPool2d(2, 1, padding=1), nn.AdaptiveAvgPool1d(2), nn.AdaptiveMaxPool2d(3)),
        *(nn.LayerNorm(4), nn.GroupNorm(2, 4), nn.RMSNorm(4), nn.Dropout(0.5), nn.Identity(), nn.Lambda(jnp.ravel)),
        *(nn.GRUCell(3, 4, key=key), nn.LSTMCell(3, 4, key=key), nn.MultiheadAttention(2, 6, key=key)),
        *(nn.RotaryPositionalEmbedding(4), nn.Embedding(5, 3, key=key)),
        nn.make_with_state(nn.BatchNorm)(3, "batch", mode="batch")[0],
        nn.make_with_state(nn.SpectralNorm)(nn.Linear(3, 2, key=key), "weight", key=key)[0],
        nn.Sequential([nn.Linear("scalar", 2, key=key), nn.Lambda(jax.nn.softmax)]),
        functools.partial(jax.nn.leaky_relu, negative_slope=0.2),
        functools.partial(jnp.where, True),
        jax.tree_util.Partial(jnp.add, jnp.ones(2)),
        functools.partial(jax.nn.one_hot, num_classes=4, dtype=jnp.int32),
    ]


@pytest.mark.parametrize("model", of_equinox(), ids=lambda m: type(m).__name__)
def test_modules_of_equinox_and_partials_of_the_tables_functions_need_no_trust(tmp_path, model):
    save_model(model, tmp_path / "m.safetensors")
    again = load_model(tmp_path / "m.safetensors")
    if type(model) is functools.partial:
        assert (again.func, again.args, again.keywords) == (model.func, model.args, model.keywords)
    else:
        assert eqx.tree_equal(again, model)


MODULE = """
import os
import equinox as eqx

sneaked_in = os.system

class Twice(eqx.Module):
    def __call__(self, x):
        return 2 * x
"""


def test_a_package_that_is_trusted_is_imported_and_what_it_has_imported_is_not_reached(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "somebodys_layers.py").write_text(MODULE)
    path, trust = tmp_path / "m.safetensors", ("somebodys_layers",)
    model_file(path, per_sample({"class": "somebodys_layers:Twice", "fields": {}}))
    with pytest.raises(
        ValueError, match=r"names somebodys_layers:Twice, which is none .*trust=\('somebodys_layers',\)"
    ):
        load_model(path)
    assert "somebodys_layers" not in sys.modules
    np.testing.assert_array_equal(load_model(path, trust=trust)(jnp.ones((2, 3))), np.full((2, 3), 2.0))
    for name in ("somebodys_layers:sneaked_in", "somebodys_layers:os.system", "somebodys_layers:eqx.nn.Linear"):
        model_file(path, per_sample(part(name, "echo > pwned")))
        with pytest.raises(ValueError, match=f"names {name}, which is not of the package 'somebodys_layers'"):
            load_model(path, trust=trust)
    del sys.modules["somebodys_layers"]
