"""What the recipes say of themselves."""

import importlib.util
import inspect
import pathlib
import sys
from typing import Any, get_args

import equinox as eqx
import jax
import pytest

import sequinox as sqx
from sequinox.recurrent._around_cell import AroundCell
from sequinox.recurrent._lstm import Variant

RECIPES = pathlib.Path(__file__).parents[1] / "recipes"


def load(name: str) -> Any:
    spec: Any = importlib.util.spec_from_file_location(name, RECIPES / f"{name}.py")
    sys.modules[name] = importlib.util.module_from_spec(spec)  # dataclasses look their module up
    spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


compare_cells = load("compare_cells")


def cells_of(make: Any) -> list[Any]:
    """The recurrent cells of a network, without numbers."""
    net = eqx.filter_eval_shape(make, 4, 12, 9, jax.random.key(0))
    is_cell = lambda node: isinstance(node, sqx.RecurrentCell | sqx.DiagonalRecurrence)
    return [node for node in jax.tree.leaves(net, is_leaf=is_cell) if is_cell(node)]


def test_every_cell_is_compared():
    kinds = sqx.RecurrentCell, sqx.DiagonalRecurrence
    public = {
        c
        for c in vars(sqx).values()
        if inspect.isclass(c) and issubclass(c, kinds) and not inspect.isabstract(c) and not issubclass(c, AroundCell)
    }
    cells = [cell for make in compare_cells.CELLS.values() for cell in cells_of(make)]
    assert public - {type(c) for c in cells} == {sqx.OnePole}  # a filter of each channel by itself
    assert {c.variant for c in cells if isinstance(c, sqx.LSTM)} == set(get_args(Variant))
    assert {c.f_a for c in cells if isinstance(c, sqx.RDA)} == {"exp", "sigmoid", "softplus"}


@pytest.mark.parametrize("name", ["GRU", "IndRNN", "LSTM, projected", "LRU", "flat"])
def test_networks_are_as_large_as_they_may_be(name: str):
    make = (compare_cells.CELLS | compare_cells.OTHERS)[name]
    width = compare_cells.widest(make, 15_000, 12, 9)
    assert 14_000 < compare_cells.count(make, width, 12, 9) <= 15_000 < compare_cells.count(make, width + 1, 12, 9)
