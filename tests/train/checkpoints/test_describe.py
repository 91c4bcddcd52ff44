"""A model's structure as JSON and back: every layer of the library's table, and what a file may not do."""

import dataclasses
import enum
import functools
import json
import math
import re
import sys
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from stored_files import change_file
from table import TABLE

import sequinox as sqx
from sequinox.train import load_model, save_model
from sequinox.train.checkpoints._describe import describe
from sequinox.train.checkpoints._rebuild import rebuild

TESTS = tuple(sorted({name for name in sys.modules if name.startswith(("table", "test_describe"))} | {"promises"}))


def blank(kind, shape, dtype):
    if kind == "numpy":
        return np.zeros(shape, dtype)
    return jax.ShapeDtypeStruct(shape, jax.random.key(0, impl=dtype).dtype if kind == "key" else dtype)


def there_and_back(model, trust=TESTS):
    return rebuild(json.loads(json.dumps(describe(model), allow_nan=False)), blank, trust, "load_model")


def shown(value):
    """The id of a case: the same in every process."""
    return re.sub(r" at 0x[0-9a-f]+", "", str(value))


@pytest.mark.parametrize("entry", TABLE, ids=repr)
def test_every_layer_of_the_table_comes_back_with_its_whole_structure(entry):
    layer = eqx.filter_eval_shape(entry.make)
    again = there_and_back(layer)
    assert jax.tree.structure(again) == jax.tree.structure(layer)
    assert jax.tree.leaves(again) == jax.tree.leaves(layer)
    assert repr(again) == repr(layer)


@pytest.mark.parametrize("entry", TABLE, ids=repr)
def test_edits_of_every_layer_fit_their_classes(entry):
    """Several in one, what a filter leaves, and half precision."""
    layer = eqx.filter_eval_shape(entry.make)
    is_shape = lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct)
    half = lambda a: jnp.bfloat16 if a.dtype == jnp.float32 else a.dtype
    for edited in (
        jax.tree.map(lambda a: jax.ShapeDtypeStruct((5, *a.shape), half(a)) if is_shape(a) else a, layer),
        eqx.filter(layer, lambda leaf: False),
    ):
        there_and_back(edited)


def test_a_layer_that_is_built_and_one_of_shapes_have_one_description():
    make = lambda: sqx.recurrent_net(3, 4, 2, jax.random.key(0), cell="gru", dropout=0.25)
    assert describe(make()) == describe(eqx.filter_eval_shape(make))


class Colour(enum.Enum):
    RED = 1


class Pair(NamedTuple):
    left: Any
    right: Any


class Everything(eqx.Module):
    arrays: Any
    values: Any = eqx.field(static=True)

    def __init__(self, arrays, values=None):
        raise AssertionError("no constructor runs on the way back")


def everything(arrays, values=None):
    module = object.__new__(Everything)
    object.__setattr__(module, "arrays", arrays)
    object.__setattr__(module, "values", values)
    return module


def scale(x, by):
    return x * by


_unnamed = lambda x: x


def embedding_and_head(seed=0):
    """A tied embedding: what is shared has a marker in its place."""
    keys = jax.random.split(jax.random.key(seed))
    pair = eqx.nn.Embedding(5, 3, key=keys[0]), eqx.nn.Linear(3, 5, key=keys[1])
    return eqx.nn.Shared(pair, head_weight, embedding_weight)


def head_weight(pair):
    return pair[1].weight


def embedding_weight(pair):
    return pair[0].weight


class Marked:
    """Not a marker: it has a value of its own."""

    def __init__(self):
        self.value = 1


@pytest.mark.parametrize(
    "value",
    [
        *(None, True, 3, 2**70, 0.1, -0.0, math.inf, -math.inf, math.nan, 1e-320, 1 - 2j, "é\n", "", Colour.RED),
        *((), [], {}, (1,), [1, (2.0, {"b": 1, "a": None, (1, "x"): [3]})], Pair(1, Pair("a", ())), {"dtype": "x"}),
        *(np.dtype("int8"), jnp.dtype(jnp.bfloat16), jnp.float32, np.float32, np.int64, jnp.bfloat16),
        *(jax.nn.relu, jax.nn.silu, jax.nn.gelu, jnp.tanh, jax.lax.rsqrt, jnp.abs, jnp.add, jax.nn.sigmoid),
        *(scale, _unnamed, sqx.GRU, eqx.nn.LayerNorm, jax.random.normal, Pair, jax.nn.initializers.zeros, sqx.GRU.step),
    ],
    ids=shown,
)
def test_a_value_in_a_static_field_and_outside_one(value):
    for module in (everything((), value), everything([value])):
        again = there_and_back(module, (*TESTS, "sequinox", "equinox", "jax"))
        was, came = (module.values, again.values) if module.arrays == () else (module.arrays[0], again.arrays[0])
        assert type(came) is type(was) and repr(came) == repr(was)
        assert came is was or came == was or math.isnan(came)
        if isinstance(value, dict):
            assert list(came) == list(was)


def test_a_perceptron_and_shared_weights_come_back_and_compute():
    """Equinox's own: a lambda with a private name as default, and an object that is nothing but its class."""
    x = jnp.asarray([0.3, -0.2, 0.9])
    perceptron = eqx.nn.MLP(3, 2, 5, 2, key=jax.random.key(0))
    again = eqx.combine(eqx.filter(perceptron, eqx.is_array), there_and_back(perceptron))
    np.testing.assert_array_equal(again(x), perceptron(x))

    tied = embedding_and_head()
    again = there_and_back(tied)
    shapes = [leaf.shape for leaf in jax.tree.leaves(again) if isinstance(leaf, jax.ShapeDtypeStruct)]
    assert shapes == [(5, 3), (5,)]  # the embedding and the head's bias
    again = eqx.combine(eqx.filter(tied, eqx.is_array), again)
    embedding, head = again()
    assert head.weight is embedding.weight
    np.testing.assert_array_equal(head(x), np.asarray(embedding.weight) @ x + head.bias)


def test_partial_functions_and_arrays_of_every_kind():
    tree = {
        "partial": functools.partial(scale, by=2),
        "tree": jax.tree_util.Partial(scale, by=jnp.ones(3)),
        "key": jax.random.split(jax.random.key(0, impl="rbg"), 2),
        "numpy": np.zeros((0, 2), np.int16),
        "bf16": jnp.zeros((1, 1), jnp.bfloat16),
        "scalar": jnp.zeros(()),
    }
    again = there_and_back(tree)
    assert again["partial"].func is scale and again["partial"].keywords == {"by": 2} and again["partial"].args == ()
    assert again["tree"].func is scale and again["tree"].keywords["by"].shape == (3,)
    assert type(again["tree"]) is jax.tree_util.Partial
    assert (again["key"].shape, again["key"].dtype) == ((2,), tree["key"].dtype)
    assert (
        isinstance(again["numpy"], np.ndarray) and again["numpy"].shape == (0, 2) and again["numpy"].dtype == np.int16
    )
    assert again["bf16"] == jax.ShapeDtypeStruct((1, 1), jnp.bfloat16)


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (jax.nn.relu, "jax.nn:relu"),
        (jnp.exp, "jax.numpy:exp"),
        (sqx.GRU, "sequinox:GRU"),
        (eqx.nn.MLP, "equinox.nn:MLP"),
    ],
)
def test_names_are_public_ones_that_another_version_has_as_well(value, name):
    assert describe(value) == {"name": name}


def local():
    class Local(eqx.Module):
        pass

    return Local()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (
            lambda x: x,
            r"layers\[1\]\.values\[0\] cannot be written down: it is test_describe\.<lambda>, which has no name",
        ),
        (local(), r"layers\[1\].*: it is test_describe\.local\.<locals>\.Local, which has no name in a module"),
        (jnp.ones(2), r"layers\[1\].*: it is an array in a static field"),
        (
            functools.partial(scale, by=jnp.ones(2)),
            r"\.keywords\['by'\] cannot.*an array in a static field or a function's",
        ),
        ("x".join, r"layers\[1\].*"),
        (object(), r"layers\[1\].*: it is an instance of builtins\.object"),
        (Marked(), r"layers\[1\].*: it is an instance of test_describe\.Marked"),
        ({1, 2}, r"layers\[1\].*: it is an instance of builtins\.set"),
    ],
    ids=shown,
)
def test_what_has_no_name_or_value_is_refused_with_its_path(value, message):
    model = {"layers": [1, everything(jnp.ones(1), (value,))]}
    with pytest.raises(ValueError, match=message.replace(r"layers\[1\]", r"\['layers'\]\[1\]", 1)):
        describe(model)


EVIL = {"partial": {"name": "os:system"}, "args": ["echo"], "keywords": [], "tree": False}


NO_PART = "which is none of the layers and functions that a model may have without more trust"


@pytest.mark.parametrize(
    ("structure", "message"),
    [
        (EVIL, rf"the model names os:system, {NO_PART}. .*trust=\('os',\)"),
        ({"name": "builtins:eval"}, f"names builtins:eval, {NO_PART}"),
        ({"name": "sequinox:GRU"}, NO_PART),  # a class as a function: it calls its `initializer`
        ({"class": "sequinox:NoSuchLayer", "fields": {}}, f"names sequinox:NoSuchLayer, {NO_PART}"),
        ({"class": "sequinox:load_torch", "fields": {}}, NO_PART),
        ({"class": "jax:Array", "fields": {}}, NO_PART),
        ({"class": "jax.nn:relu", "fields": {}}, NO_PART),
        ({"named": "sequinox:GRU", "items": []}, "is not a class of the kind"),
        ({"enum": "sequinox:LSTMState", "member": "h"}, "is not a class of the kind"),
        ({"marker": "sequinox:GRU"}, "the description of the model is damaged|has another description"),
        ({"marker": "builtins:list"}, NO_PART),
        ({"partial": {"name": "jax.nn:relu"}, "args": [], "keywords": [3], "tree": False}, "description .* is damaged"),
        ({"nothing": 1}, "the description of the model is damaged"),
        ({"dict": 3}, "the description of the model is damaged"),
        ({"dict": [[1, 2, 3]]}, "the description of the model is damaged"),
        ({"dict": [[[], 2]]}, "the description of the model is damaged"),
        ({"array": [2], "dtype": "flout32"}, "the description of the model is damaged"),
        ({"array": [-2], "dtype": "float32"}, "the description of the model is damaged"),
        ({"float": 0.5}, "the description of the model is damaged"),
        ({"list": [1], "more": 2}, "has another description"),
    ],
    ids=shown,
)
def test_a_description_that_names_or_is_what_no_model_has_is_refused(structure, message):
    with pytest.raises(ValueError, match="load_model: .*" + message):
        rebuild({"list": [structure]}, blank, (), "load_model")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("sequinox.nowhere:X", "which cannot be found here: No module named"),
        ("sequinox:Nothing", "which cannot be found here: module 'sequinox' has no attribute"),
        ("sequinox._files:os.system", "which is not of the package 'sequinox'"),
        ("sequinox._files:tempfile", "which is not of the package 'sequinox'"),
        ("sequinox:train.load_model", "which is not of the package 'sequinox'"),  # by a module that is no class
        ("jax:lax.exp", NO_PART),
    ],
)
def test_trust_in_a_package_reaches_what_is_its_own_alone(name, message):
    with pytest.raises(ValueError, match=f"load_model: the model names {name}, {message}"):
        rebuild({"name": name}, blank, ("sequinox",), "load_model")


def test_a_class_whose_fields_have_changed_is_refused():
    structure = describe(eqx.filter_eval_shape(lambda: sqx.Dense(3, 2, jax.random.key(0))))
    fields = structure["fields"]
    assert {f.name for f in dataclasses.fields(sqx.Dense)} == set(fields)
    more = {"class": "sequinox:Dense", "fields": {**fields, "old": 1}}
    with pytest.raises(ValueError, match=r"sequinox:Dense has no fields \['old'\], which it had"):
        rebuild(more, blank, (), "load_model")
    fewer = {"class": "sequinox:Dense", "fields": {k: v for k, v in fields.items() if k != "W"}}
    with pytest.raises(ValueError, match="sequinox:Dense has a field 'W', which the saved model lacks"):
        rebuild(fewer, blank, (), "load_model")


@pytest.mark.parametrize("name", ["object", "str", "bytes", "void", "datetime64"])
def test_a_type_that_is_none_of_numbers_is_refused(name):
    with pytest.raises(ValueError, match="damaged"):
        rebuild({"scalar": name}, blank, (), "here")


@pytest.mark.parametrize("implementation", ["threefry2x32", "rbg", "unsafe_rbg"])
def test_keys_of_every_implementation_come_back_from_a_file(tmp_path, implementation):
    keys = jax.random.split(jax.random.key(3, impl=implementation), 2)
    save_model([keys], tmp_path / "m.safetensors")
    (again,) = load_model(tmp_path / "m.safetensors")
    assert again.dtype == keys.dtype
    np.testing.assert_array_equal(jax.random.key_data(again), jax.random.key_data(keys))


def test_keys_of_an_unknown_implementation_are_an_error_of_the_house(tmp_path):
    path = tmp_path / "m.safetensors"
    save_model([jax.random.key(0)], path)

    def change(it):
        it["structure"]["list"][0]["impl"] = "foo"

    change_file(path, change)
    with pytest.raises(ValueError, match="load_model: the model has PRNG keys of the implementation 'foo', which JAX"):
        load_model(path)
    change_file(path, lambda it: it["leaves"]["[0]"].update(dtype="key<foo>"))
    with pytest.raises(ValueError, match="damaged: there are no keys of the kind 'key<foo>'"):
        load_model(path)


@pytest.mark.parametrize("field", ["b_U", "W_r"])
def test_a_number_in_the_place_of_an_array_is_refused(field):
    structure = describe(sqx.GRU(3, 4, jax.random.key(0)))
    structure["fields"][field] = 3.0
    with pytest.raises(ValueError, match=field):
        rebuild(structure, blank, (), "here")
