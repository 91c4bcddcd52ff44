"""What is written beside arrays and is not as it was written: an error that says so, whatever is damaged."""

import copy
import json
import random
import re

import equinox as eqx
import jax
import optax
import pytest
import safetensors
import safetensors.numpy
from stored_files import change_checkpoint, change_file, read_file, sealed

import sequinox as sqx
from sequinox.train import Checkpoints, init_train_state, load_model, save_model, warm_start


def net(seed=0):
    return sqx.Sequential([sqx.GRU(3, 4, jax.random.key(seed)), sqx.LastStep(), sqx.Dense(4, 2, jax.random.key(seed))])


def state(seed=0):
    return init_train_state(net(seed), optax.sgd(0.1, 0.9), jax.random.key(seed))


LIKE = state(1)
READ = {
    "restore": lambda path: open_and(path, lambda checkpoints: checkpoints.restore(LIKE).state.model),
    "peek": lambda path: open_and(path, lambda checkpoints: checkpoints.peek()),
    "best_step": lambda path: open_and(path, lambda checkpoints: checkpoints.best_step),
    "load_model": load_model,
    "the best": lambda path: load_model(path, best=True),
    "warm_start": lambda path: warm_start(LIKE.model, path),
}


def open_and(path, read):
    with Checkpoints(path, best="loss", read_only=True) as checkpoints:
        return read(checkpoints)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("saved")
    with Checkpoints(path, best="loss") as checkpoints:
        checkpoints.save(state(), 1, data_state={"epoch": 2}, config={"a": 1}, metrics={"loss": 0.5}, extra={"x": []})
    return path


@pytest.fixture
def metadata(saved):
    """The file with the description, put back afterwards."""
    path = saved / "1" / "_CHECKPOINT_METADATA"
    content = path.read_text()
    yield path
    path.write_text(content)


def deep(levels, inner=None):
    for _ in range(levels):
        inner = [inner]
    return inner


def nested(levels):
    inner = {"name": "jax.nn:relu"}
    for _ in range(levels):
        inner = {"class": "equinox.nn:Lambda", "fields": {"fn": inner}}
    return inner


def put(*path, value):
    def change(it):
        *above, last = path
        for key in above:
            it = it[key]
        it[last] = value

    return change


def drop(*path):
    def change(it):
        *above, last = path
        for key in above:
            it = it[key]
        del it[last]

    return change


STATE, MODEL, ARRAYS = (*READ,), ("load_model", "the best"), ("restore", "load_model", "the best", "warm_start")
W = ".model.layers[0].W_z"
# What is done, what the message says, and who must meet it; the others may read what they need.
EVERYWHERE = tuple(name for name in READ if name != "best_step")
DAMAGES = {
    "leaves a list": (put("leaves", value=[]), "'leaves' must be a dictionary, got \\[\\]", EVERYWHERE),
    "a leaf a number": (put("leaves", W, value=3), f"at 'leaves', is damaged: '{re.escape(W)}' must be", EVERYWHERE),
    "a leaf without dtype": (drop("leaves", W, "dtype"), "W_z', is damaged: it has no 'dtype'", EVERYWHERE),
    "a leaf without sum": (drop("leaves", W, "sum"), "it has no 'sum'", EVERYWHERE),
    "a shape a text": (put("leaves", W, "shape", value="4"), "'shape' must be a list, got '4'", EVERYWHERE),
    "a shape of texts": (put("leaves", W, "shape", value=["4"]), "'shape' must be sizes", EVERYWHERE),
    "a shape below zero": (put("leaves", W, "shape", value=[-4, 3]), "'shape' must be sizes", EVERYWHERE),
    "no data_states": (drop("data_states"), "it has no 'data_states'", EVERYWHERE),
    "data_states empty": (put("data_states", value=[]), "'data_states' must be a list of each", EVERYWHERE),
    "no config": (drop("config"), "it has no 'config'", EVERYWHERE),
    "config a list": (put("config", value=[1]), "'config' must be a dictionary", EVERYWHERE),
    "extra None": (put("extra", value=None), "'extra' must be a dictionary", EVERYWHERE),
    "metrics of texts": (put("metrics", value={"loss": "x"}), "'metrics' must be numbers", EVERYWHERE),
    "best a list of one": (put("best", value=[None]), "'best' must be a metric's name", EVERYWHERE),
    "best without a mode": (put("best", value=["a", "b"]), "'best' must be a metric's name", EVERYWHERE),
    "model a text": (put("model", value="GRU"), "'model' must be a dictionary, got 'GRU'", EVERYWHERE),
    "model empty": (put("model", value={}), "it has no 'structure'", EVERYWHERE),
    "undescribed a list": (put("model", value={"undescribed": []}), "'undescribed' must be a text", EVERYWHERE),
    "nested 400 levels deep": (put("model", "structure", value=nested(400)), "nested too deeply", MODEL),
    "lists 900 levels deep": (put("model", "structure", value=deep(900)), "nested too deeply|is damaged", MODEL),
    "another array than stored": (
        put("leaves", W, "dtype", value="int32"),
        "does not fit",
        ARRAYS,
    ),
    "all of it a list": (lambda it: [], "cannot be read: ", STATE),
    "nothing in it": (lambda it: it.clear(), "it has no '", EVERYWHERE),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_field_is_an_error_that_names_it(saved, metadata, damage):
    change, message, met_by = DAMAGES[damage]
    change_checkpoint(saved / "1", change)
    for name in READ:
        if name in met_by:
            with pytest.raises((ValueError, OSError), match=message) as error:
                READ[name](saved)
            assert str(saved) in str(error.value) or name == "warm_start"
        else:
            READ[name](saved)


TEXTS = {
    "empty": "",
    "no JSON": "{",
    "a list": "[]",
    "a number": "3",
    "lists 200,000 deep": "[" * 200_000,
    "a description 200,000 deep": '{"item_handlers": {}, "metrics": {}, "custom_metadata": {"leaves":' + "[" * 200_000,
    "nothing of Orbax": "{}",
}


@pytest.mark.parametrize("text", TEXTS)
def test_a_description_that_is_not_json_is_an_error_of_the_directory(saved, metadata, text):
    metadata.write_text(TEXTS[text])
    for name in EVERYWHERE:
        with pytest.raises((ValueError, OSError), match=f"{saved}.* cannot be read|is damaged, or not of sequinox"):
            READ[name](saved)


@pytest.mark.parametrize("content", ["", "[]", '{"loss": "x"}', "[" * 200_000, '{"loss": [1]}'])
def test_damaged_metrics_make_no_best(saved, content):
    path = saved / "1" / "metrics" / "metrics"
    before = path.read_text()
    path.write_text(content)
    try:
        for name in READ:
            try:
                READ[name](saved)
            except (ValueError, OSError) as error:
                assert str(saved) in str(error)
    finally:
        path.write_text(before)


def test_an_edited_description_is_noticed_by_its_checksum(saved, metadata):
    edits = [
        put("config", "a", value=2),
        put("extra", "x", value=[1]),
        put("data_states", 0, "epoch", value=3),
        put("metrics", "loss", value=0.25),
        put("leaves", W, "sum", value="0" * 16),
        put("model", "structure", "fields", "n_out", value=3),
        put("checksum", value="0" * 32),
    ]
    content = metadata.read_text()
    for edit in edits:
        metadata.write_text(content)
        change_checkpoint(saved / "1", edit, checksum=False)
        for name in EVERYWHERE:
            with pytest.raises(OSError, match=f"description of {saved / '1'} is damaged: its checksum is wrong"):
                READ[name](saved)
    metadata.write_text(content)
    change_checkpoint(saved / "1", drop("checksum"), checksum=False)
    with pytest.raises(ValueError, match="is damaged, or not of sequinox: it has no checksum"):
        load_model(saved)


# ---- files -----------------------------------------------------------------------------------------------------------

FILE_DAMAGES = {
    "leaves a list": (put("leaves", value=[]), "'leaves' must be a dictionary"),
    "no structure": (drop("structure"), "it has no 'structure'"),
    "a leaf missing": (drop("leaves", ".layers[0].W_z"), r"\.layers\[0\]\.W_z: in the checkpoint|W_z"),
    "keys of no kind": (put("leaves", ".layers[0].b_z", "dtype", value="key<x>"), "there are no keys of the kind"),
    "another dtype": (put("leaves", ".layers[0].b_z", "dtype", value="int32"), r"b_z: dtype int32 in .*, float32 in"),
    "another shape": (put("leaves", ".layers[0].b_z", "shape", value=[2, 2]), r"b_z: shape \(2, 2\) in .*, \(4,\) in"),
    "another sum": (put("leaves", ".layers[0].W_z", "sum", value="0" * 16), r"W_z: its checksum"),
    "nested 400 levels deep": (put("structure", value=nested(400)), "nested too deeply"),
}


@pytest.mark.parametrize("damage", FILE_DAMAGES)
def test_a_damaged_file_of_a_model(tmp_path, damage):
    change, message = FILE_DAMAGES[damage]
    path = tmp_path / "m.safetensors"
    save_model(net(), path)
    change_file(path, change)
    with pytest.raises((ValueError, OSError), match=message) as error:
        load_model(path)
    assert "load_model: " in str(error.value)


def test_a_header_that_is_no_description(tmp_path):
    path = tmp_path / "m.safetensors"
    save_model(net(), path)
    arrays = safetensors.numpy.load_file(path)
    for text in ("{", "[]", "3", '"x"', "{}", "[" * 200_000, '{"checksum": 3}', '{"checksum": "x"}'):
        safetensors.numpy.save_file(arrays, path, {"sequinox": text})
        for read in (load_model, lambda path: warm_start(net(1), path)):
            with pytest.raises((ValueError, OSError), match=r"the description in .*m.safetensors is damaged"):
                read(path)


# ---- any change ------------------------------------------------------------------------------------------------------

VALUES = [None, True, 0, -1, 3, 2**70, 0.5, "", "x", "float32", [], [1], {}, {"name": "jax.nn:relu"}, {"array": [2]}]


def places(node, at=()):
    yield at
    for key in node if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ():
        yield from places(node[key], (*at, key))


def mutate(description, draw):
    """One node of a description replaced, removed, doubled or renamed."""
    description = copy.deepcopy(description)
    *above, last = draw.choice([at for at in places(description) if at and at != ("checksum",)])
    parent = description
    for key in above:
        parent = parent[key]
    kind = draw.choice(["replace", "remove", "swap", "rename"])
    if kind == "replace":
        parent[last] = draw.choice(VALUES)
    elif kind == "remove":
        del parent[last]
    elif kind == "swap":
        other = draw.choice(list(places(description))[1:])
        node = description
        for key in other:
            node = node[key]
        parent[last] = copy.deepcopy(node)
    elif isinstance(parent, dict):
        parent[f"{last}x"] = parent.pop(last)
    return description


def test_whatever_node_of_a_file_is_changed_the_error_is_one_that_is_documented(tmp_path):
    path = tmp_path / "m.safetensors"
    save_model(net(), path)
    original, arrays, draw = read_file(path), safetensors.numpy.load_file(path), random.Random(0)
    came = {"error": 0, "model": 0}
    for n in range(400):
        description = mutate(original, draw)
        if n % 4:
            description = sealed(description)
        safetensors.numpy.save_file(arrays, path, {"sequinox": json.dumps(description)})
        try:
            model = load_model(path)
        except (ValueError, OSError) as error:
            assert str(error).startswith("load_model: ")
            came["error"] += 1
        else:
            assert n % 4 or eqx.tree_equal(model, net())
            came["model"] += 1
    assert came["error"] > 300, came


def test_whatever_node_of_a_checkpoint_is_changed_the_error_is_one_that_is_documented(saved, metadata):
    whole, draw, readers = json.loads(metadata.read_text()), random.Random(1), list(READ)
    for n in range(60):
        description = mutate(whole["custom_metadata"], draw)
        metadata.write_text(json.dumps({**whole, "custom_metadata": sealed(description)}))
        try:
            READ[readers[n % len(readers)]](saved)
        except (ValueError, OSError) as error:
            assert str(saved) in str(error) or "warm_start: " in str(error)
