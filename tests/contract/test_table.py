"""The table of layers is complete."""

import collections
import functools
import inspect
from typing import Any

import jax
import pytest
import test_promises
from entry import COMPOSED
from promises import COSTLY, REPRESENTATIVES
from table import TABLE, Growing, Remembering
from table_composition import Reading
from workers import group

import sequinox as sqx
import sequinox.attention
import sequinox.convolution
import sequinox.filters
import sequinox.layers
import sequinox.models
import sequinox.recurrent
from sequinox.testing._check import PROMISES

pytestmark = pytest.mark.usefixtures("quick_compilation")

ROOMS = ("attention", "convolution", "filters", "layers", "models", "recurrent")


def public_layers() -> list[type]:
    """Every public class of layers that can be built."""
    modules = [m for n, m in vars(sqx).items() if inspect.ismodule(m) and not n.startswith("_")]
    found = {v for m in [sqx, *modules] for v in vars(m).values() if inspect.isclass(v)}
    return sorted(
        (c for c in found if issubclass(c, sqx.SequenceLayer) and not inspect.isabstract(c)), key=lambda c: c.__name__
    )


def unwrapped(layer: Any) -> Any:
    """The layer itself, where the table runs it inside one of its own."""
    if isinstance(layer, Reading):
        return layer.model
    return layer.layer if isinstance(layer, Growing | Remembering) else layer


def model_functions() -> list[Any]:
    return [f for n, f in vars(sequinox.models).items() if inspect.isfunction(f) and not n.startswith("_")]


def test_the_search_finds_them():
    names = {c.__name__ for c in public_layers()}
    assert {"RNN", "GRU", "LSTM", "Dense", "LastStep", "Bidirectional", "Sequential"} <= names
    assert "SequenceLayer" not in names and "RecurrentCell" not in names
    assert sorted(f.__name__ for f in model_functions()) == [
        "encoder_decoder",
        "flat_net",
        "pooling_net",
        "recurrent_encoder_decoder",
        "recurrent_net",
        "temporal_conv_net",
        "transformer_decoder",
        "transformer_encoder",
        "wavenet",
    ]


@functools.cache
def classes_of_main_entries() -> list[type]:
    main = [entry for entry in TABLE if entry.main]
    return [entry.of if inspect.isclass(entry.of) else type(unwrapped(entry.make())) for entry in main]


@pytest.mark.parametrize("layer", public_layers(), ids=lambda c: c.__name__)
def test_every_public_layer_has_an_entry(layer: type):
    assert layer in classes_of_main_entries(), f"{layer.__name__} is missing from tests/contract/table.py"


@pytest.mark.parametrize("function", model_functions(), ids=lambda f: f.__name__)
def test_every_model_has_an_entry(function: Any):
    assert any(entry.of is function for entry in TABLE), f"{function.__name__} is missing from tests/contract/table.py"


def test_every_class_and_every_model_has_one_main_entry():
    """Of what has entries; that everything public has one is tested above."""
    counts = collections.Counter(entry.of for entry in TABLE if entry.main)
    assert {subject.__name__: n for subject, n in counts.items() if n > 1} == {}
    assert {entry.of for entry in TABLE} == set(counts)


def test_quick_and_thorough_tests_check_every_promise():
    """All cases of `test_promises.py`, counted: every entry with all promises but those it says it leaves."""
    found = collections.Counter()
    quick = collections.defaultdict(set)
    (mark,) = (each for each in vars(test_promises.test_promise)["pytestmark"] if each.name == "parametrize")
    for case in mark.args[1]:
        entry, promise = case.values
        found[entry.name, promise] += 1
        assert group(f"tests/contract/test_promises.py::test_promise[{case.id}]") == entry.name  # for one worker
        if not any(each.name == "thorough" for each in case.marks):
            quick[entry.name].add(promise)
    assert found == {(entry.name, p): 1 for entry in TABLE for p in set(PROMISES) - set(entry.left_out)}

    main = [entry for entry in TABLE if entry.main]
    assert set(COSTLY) <= {entry.name for entry in main if entry.composed}
    assert set(quick) == {entry.name for entry in main} - set(COSTLY)
    for entry in main:  # what stands for a class leaves a promise to others only where it is made of them
        assert set(entry.left_out) == (set(COMPOSED) if entry.composed else set())
        dear = set() if entry.name in REPRESENTATIVES else {"modes", "dtypes", "transforms", "states"}
        if entry.name not in COSTLY:
            assert quick[entry.name] == set(PROMISES) - set(entry.left_out) - dear
    names = {entry.name: entry.of.__module__.split(".")[1] for entry in main}
    assert set(REPRESENTATIVES) <= set(names)
    assert {names[name] for name in REPRESENTATIVES} == set(ROOMS)


def test_every_public_name_stands_at_the_top_and_in_its_subpackage():
    for module in (vars(sequinox)[room] for room in ROOMS):
        for name, value in vars(module).items():
            if not name.startswith("_") and not inspect.ismodule(value):
                assert getattr(sqx, name) is value, f"{module.__name__}.{name} is not sequinox.{name}"


def test_variants_stand_beside_an_entry_of_their_class_in_full():
    entries = {entry.name: entry for entry in TABLE}
    variants = [entry for entry in TABLE if entry.variant_of is not None]
    assert variants
    for entry in variants:
        full = entries[str(entry.variant_of)]
        assert full.variant_of is None and full.of is entry.of
    assert all(reason for entry in TABLE for reason in entry.left_out.values())


def test_names_differ():
    names = [entry.name for entry in TABLE]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("entry", TABLE, ids=str)
def test_entries_are_what_they_say(entry: Any):
    layer = entry.layer()
    assert isinstance(unwrapped(layer), entry.of if inspect.isclass(entry.of) else sqx.SequenceLayer)
    assert all((a != 0).all() for a in jax.tree.leaves(sqx.parameters(layer)))
