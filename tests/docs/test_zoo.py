"""The page of all layers is complete, and says what the code does."""

import pathlib
import sys
from typing import Any

import jax
import pytest
from test_table import model_functions, public_layers

import sequinox as sqx
from sequinox._cost import products

DOCS = pathlib.Path(__file__).parents[2] / "docs"
sys.path.insert(0, str(DOCS))

import zoo  # noqa: E402  # pyright: ignore[reportMissingImports]

PAGE = (DOCS / "zoo.md").read_text(encoding="utf-8")


def test_every_public_layer_has_a_line():
    shown = {specimen.kind for _, _, specimens in zoo.SECTIONS for specimen in specimens}
    assert sorted(c.__name__ for c in public_layers() if c not in shown) == []


def test_every_model_is_named():
    assert [f.__name__ for f in model_functions() if f"[sequinox.{f.__name__}]" not in PAGE] == []


@pytest.mark.thorough
def test_the_page_is_what_the_code_says():
    assert zoo.page() == PAGE, "run: python docs/zoo.py"


def test_every_formula_has_a_source():
    lines = [line for line in PAGE.splitlines() if line.startswith("| [`")]
    assert len(lines) > 40
    without = {line.split("`")[1] for line in lines if "$\\displaystyle" in line and line.endswith("|  |")}
    assert without <= {"Parallel", "TrainedStart"}  # which say how others are put together


@pytest.mark.parametrize(
    ("layer", "parameters", "products"),
    [
        (zoo.S(lambda d, H: sqx.RNN(d, H, zoo.KEY)), "H² + Hd + H", "H² + Hd"),
        (zoo.S(lambda d, H: sqx.GRU(d, H, zoo.KEY)), "3H² + 3Hd + 3H", "3H² + 3Hd"),
        (zoo.S(lambda d, H: sqx.LSTM(d, H, zoo.KEY, peepholes=False)), "4H² + 4Hd + 4H", "4H² + 4Hd"),
    ],
)
def test_counts_of_the_textbook(layer: Any, parameters: str, products: str):
    cells = [c.strip() for c in zoo.row(layer).split("|")]
    assert cells[4] == parameters
    assert cells[5] == products


def test_sums_of_terms():
    points = [{"d": d, "H": h} for d, h in ((4, 6), (8, 6), (4, 10), (8, 10), (12, 6), (4, 14), (12, 14), (20, 22))]
    values = [3 * p["H"] ** 2 - p["H"] * p["d"] + 2 * p["d"] - 7 for p in points]
    assert zoo.polynomial(points, values, 2) == "3H² − Hd + 2d − 7"
    with pytest.raises(ValueError, match="no polynomial"):
        zoo.polynomial(points, [2 ** p["d"] for p in points], 2)


def test_products_are_counted_inside_loops():
    def run(W: Any, xs: Any) -> Any:
        return jax.lax.scan(lambda h, x: (W @ h + x, None), xs[0], xs)[0]

    program = jax.make_jaxpr(run)(jax.numpy.ones((3, 3)), jax.numpy.ones((5, 3)))
    assert products(program.jaxpr) == 5 * 9
