"""Writes zoo.md: every layer at one glance, read off the code.

python docs/zoo.py            writes docs/zoo.md

Equation and source come from a layer's docstring. State, parameters and cost are measured: the layer is built at a few
sizes, without any numbers, and the polynomial in those sizes is found that fits them all.
"""

import dataclasses
import functools
import inspect
import itertools
import math
import pathlib
import re
import textwrap
from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import sequinox as sqx
from sequinox._cost import products_of_step

KEY = jax.random.key(0)
SIZES = {"d": (4, 8, 12, 20), "H": (6, 10, 14, 22), "k": (2, 3, 5, 6), "n": (3, 7, 8, 11), "m": (2, 5, 9, 10)}
"""What each letter stands for in turn, in the layers that are built to be measured."""


@dataclasses.dataclass(frozen=True)
class Specimen:
    """A layer of the zoo: how it is made from sizes, and which sizes those are."""

    make: Callable[..., sqx.SequenceLayer]
    sizes: str = "dH"
    degree: int = 2
    """Of the polynomials: 3 where a kernel's width counts."""
    start: Callable[..., Any] = lambda layer, **_: layer.init_state()
    """The state, from the layer and the sizes."""
    more: str = ""
    """Sizes that only the state knows."""

    @functools.cached_property
    def kind(self) -> type:
        """The class."""
        return type(self.at(self.points[0])[0])

    @functools.cached_property
    def points(self) -> list[dict[str, int]]:
        """The sizes at which it is built: enough for all coefficients, and a few more that must agree."""
        letters = self.sizes + self.more
        needed = len(monomials(letters, self.degree)) + 1
        grid = sorted(itertools.product(range(4), repeat=len(letters)), key=sum)
        return [{c: SIZES[c][i] for c, i in zip(letters, place, strict=True)} for place in grid[:needed]]

    def at(self, point: dict[str, int]) -> tuple[Any, Any, Any]:
        """The layer, a sample and a state at given sizes: shapes without numbers."""
        layer = eqx.filter_eval_shape(self.make, **{c: point[c] for c in self.sizes})
        arrays, rest = eqx.partition(layer, lambda a: isinstance(a, jax.ShapeDtypeStruct))
        state = jax.eval_shape(lambda arrays: self.start(eqx.combine(arrays, rest), **point), arrays)
        width = layer.n_in or point["d"]
        token = layer.reads_tokens
        x = jax.ShapeDtypeStruct(() if token else (width,), jnp.int32 if token else jnp.float32)
        return layer, x, state


# ---- polynomials in the sizes ----------------------------------------------------------------------------------------


def monomials(letters: str, degree: int) -> list[tuple[int, ...]]:
    """Exponents of the letters, higher degrees first."""
    powers = [p for p in itertools.product(range(degree + 1), repeat=len(letters)) if sum(p) <= degree]
    return sorted(powers, key=lambda p: (-sum(p), [-e for e in reversed(p)]))


def polynomial(points: list[dict[str, int]], values: list[int], degree: int) -> str:
    """The polynomial with these values at these points, as text; ValueError if there is none."""
    if len(set(values)) == 1:
        return str(values[0])
    letters = "".join(points[0])
    powers = monomials(letters, degree)
    rows = np.array(
        [[math.prod(p[c] ** e for c, e in zip(letters, power, strict=True)) for power in powers] for p in points], float
    )
    solved, *_ = np.linalg.lstsq(rows, np.array(values, float), rcond=None)
    coefficients = [Fraction(float(c)).limit_denominator(12) for c in solved]
    if not np.allclose(rows @ np.array(coefficients, float), values, rtol=0, atol=1e-6):
        raise ValueError(f"no polynomial of degree {degree} in {letters}: {values}")
    return sum_of_terms(
        (c, "".join(x + {1: "", 2: "²", 3: "³"}[e] for x, e in reversed(list(zip(letters, power, strict=True))) if e))
        for c, power in zip(coefficients, powers, strict=True)
        if c
    )


def sum_of_terms(terms: Iterable[tuple[Fraction, str]]) -> str:
    """`2H² − d + 1` from coefficients and products of letters."""
    text = ""
    for c, product in terms:
        size = "" if abs(c) == 1 and product else str(abs(c)) if c.denominator == 1 else f"({abs(c)})"
        text += (" − " if c < 0 else " + ") + size + product
    return text[3:] if text.startswith(" + ") else "−" + text[3:] if text else "0"


# ---- what is measured ------------------------------------------------------------------------------------------------


def count(layer: Any) -> int:
    """Trainable numbers."""
    arrays = [a for a in jax.tree.leaves(layer) if isinstance(a, jax.ShapeDtypeStruct)]
    return sum(math.prod(a.shape) for a in arrays if jnp.issubdtype(a.dtype, jnp.inexact))


def leaves(state: Any) -> dict[str, tuple[int, ...]]:
    """The arrays of a state by name, with their shapes."""
    return {
        jax.tree_util.keystr(path).lstrip("."): leaf.shape for path, leaf in jax.tree_util.tree_leaves_with_path(state)
    }


def state_text(specimen: Specimen, states: list[dict[str, tuple[int, ...]]]) -> str:
    """`y: H, c: H`; of many arrays, how many numbers they have."""
    if len(states[0]) > 5:
        return polynomial(specimen.points, [sum(map(math.prod, s.values())) for s in states], specimen.degree)
    parts = []
    for name, shape in states[0].items():
        axes = [polynomial(specimen.points, [s[name][i] for s in states], specimen.degree) for i in range(len(shape))]
        size = " × ".join(f"({a})" if " " in a and len(axes) > 1 else a for a in axes) or "1"
        parts.append(f"{name}: {size}" if name else size)
    return ", ".join(parts) or "none"


# ---- what is read off the docstring ----------------------------------------------------------------------------------


def equation(kind: type) -> str:
    """The first displayed equation of a docstring, for a cell of a table; without one, its first sentence."""
    text = inspect.cleandoc(kind.__doc__ or "")
    found = re.search(r"\$\$\n?(.*?)\$\$", text, re.DOTALL)
    if found is None:
        return first_sentence(text)
    tex = " ".join(found[1].split())
    return f"$\\displaystyle {tex}$".replace("|", "\\vert ")


def first_sentence(text: str) -> str:
    """The first sentence of a docstring, without links."""
    found = re.search(r"^(.*?\.)(\s|$)", text, re.DOTALL)
    sentence = " ".join((found[1] if found else text).split())
    return re.sub(r"\[`?([^`\]]*)`?\]\[[^\]]*\]", r"\1", sentence)


def source(kind: type) -> str:
    """The papers that a docstring names; or that it is a textbook definition."""
    text = " ".join(inspect.cleandoc(kind.__doc__ or "").split())
    links = re.search(r"Sources?:(.*?)(?:\?\?\?|$)", text)
    found = [] if links is None else re.findall(r"\[[^\]]+\]\(https?://[^)]+\)", links[1])
    return ", ".join(found) or ("textbook" if "textbook" in text.lower() else "")


# ---- the page --------------------------------------------------------------------------------------------------------

S = Specimen
cell = lambda kind, **options: S(lambda d, H: kind(d, H, KEY, **options))
cached = lambda layer, n, **_: sqx.with_capacity(layer.init_state(), n)

SECTIONS: list[tuple[str, str, list[Specimen]]] = [
    (
        "Recurrent cells",
        "",
        [
            cell(sqx.RNN),
            cell(sqx.IndRNN),
            cell(sqx.GRU),
            cell(sqx.MGU),
            cell(sqx.LSTM),
            cell(sqx.RWA),
            cell(sqx.RDA),
        ],
    ),
    (
        "Diagonal recurrences",
        "Their coefficients do not depend on the state, so that a whole row is one scan.",
        [
            cell(sqx.MinGRU),
            cell(sqx.MinLSTM),
            cell(sqx.LRU),
        ],
    ),
    (
        "Filters and running statistics",
        "Filters of one channel or of each channel by itself; adaptive ones have $k$ taps for $d$ signals.",
        [
            S(lambda d, k: sqx.FIR(d, k, KEY), "dk"),
            S(lambda d: sqx.OnePole(d), "d"),
            S(lambda d, H: sqx.StateSpace.random(d, H, KEY)),
            S(lambda d, k: sqx.LMS(k, 0.1, n_signals=d), "dk"),
            S(lambda d, k: sqx.NLMS(k, 0.1, n_signals=d), "dk"),
            S(lambda: sqx.AdaptiveOnePole(0.1), ""),
            S(lambda d: sqx.RunningMean(d), "d"),
            S(lambda d: sqx.RunningMax(d), "d"),
            S(lambda d: sqx.RunningCount(d), "d"),
        ],
    ),
    (
        "Convolutions",
        "With kernels of $k$ samples, not dilated; `ConvTranspose1d` with three taps and stride 2, blocks with two, "
        "`WaveNet` with three layers of them.",
        [
            S(lambda d, H, k: sqx.Conv1d(d, H, k, KEY), "dHk", degree=3),
            S(lambda d, H: sqx.ConvTranspose1d(d, H, 3, 2, KEY)),
            S(lambda d, H: sqx.TemporalBlock(d, H, 2, KEY)),
            S(lambda d, H: sqx.GatedConv1d(d, H, 2, KEY)),
            S(lambda d, H: sqx.WaveNet(d, H, (1, 2, 4), KEY)),
        ],
    ),
    (
        "Attention",
        "Of one sample, with $n$ slots in the cache. What a decoder looks at has $m$ numbers a sample.",
        [
            S(lambda d: sqx.MultiHeadSelfAttention(d, 2, KEY, causal=True), "d", start=cached, more="n"),
            S(
                lambda d, m: sqx.MultiHeadCrossAttention(d, 2, KEY, d_memory=m),
                "dm",
                start=lambda layer, m, n, **_: layer.read(jnp.zeros((n, m))),
                more="n",
            ),
            S(lambda d, m: sqx.GatedFusion(d, m, d, KEY), "dm"),
            S(lambda d, H: sqx.TransformerBlock(d, 2, H, KEY, causal=True), start=cached, more="n"),
            S(lambda d: sqx.AddPositions(), "d"),
            S(lambda d, n: sqx.AddLearnedPositions(d, n, KEY), "dn"),
        ],
    ),
    (
        "Layers without memory, and pooling",
        "",
        [
            S(lambda d, H: sqx.Dense(d, H, KEY)),
            S(lambda d, H: sqx.FeedForward(d, H, KEY)),
            S(lambda d: sqx.PerSample(eqx.nn.LayerNorm(d)), "d"),
            S(lambda d: sqx.LastStep(d), "d"),
            S(lambda d: sqx.MeanOverTime(d), "d"),
            S(lambda d: sqx.MaxOverTime(d), "d"),
            S(lambda d, n: sqx.Flatten(n, d), "dn"),
        ],
    ),
    (
        "Regularisers",
        "Random in training alone. Around a `GRU`, where they are around something.",
        [
            S(lambda d: sqx.Dropout(), "d"),
            S(lambda d: sqx.VariationalDropout(0.5, d), "d"),
            S(lambda d, H: sqx.RecurrentDropout(sqx.GRU(d, H, KEY))),
            S(lambda d, H: sqx.Zoneout(sqx.GRU(d, H, KEY), 0.1)),
            S(lambda d, H: sqx.WeightDrop(sqx.GRU(d, H, KEY))),
        ],
    ),
    (
        "Composition",
        "Of one or two layers of the class `GRU`; encoder and decoder for $m$ tokens, each of one block or one GRU.",
        [
            S(lambda d, H: sqx.Sequential([sqx.GRU(d, H, KEY), sqx.GRU(H, H, KEY)])),
            S(lambda d, H: sqx.Parallel([sqx.GRU(d, H, KEY), sqx.GRU(d, H, KEY)])),
            S(lambda H: sqx.Residual(sqx.GRU(H, H, KEY)), "H"),
            S(lambda d, H: sqx.Bidirectional(sqx.GRU(d, H, KEY), sqx.GRU(d, H, KEY))),
            S(lambda H: sqx.Stack([sqx.GRU(H, H, KEY)] * 2), "H"),
            S(lambda d, H: sqx.Remat(sqx.GRU(d, H, KEY))),
            S(lambda d, H: sqx.TrainedStart(sqx.GRU(d, H, KEY))),
            S(lambda d, H: sqx.TiedReadout(H, sqx.GRU(d, d, KEY), KEY)),
            S(
                lambda d, H, m: sqx.recurrent_encoder_decoder(d, H, m, KEY),
                "dHm",
                start=lambda layer, d, **_: layer.encode(jnp.zeros((3, d))),
            ),
            S(
                lambda d, H, m: sqx.encoder_decoder(d, H, 2, H, 1, m, KEY),
                "dHm",
                start=lambda layer, d, n, **_: sqx.with_capacity(layer.encode(jnp.zeros((n, d))), n),
                more="n",
            ),
        ],
    ),
]


def row(specimen: Specimen) -> str:
    """A line of the table."""
    built = [specimen.at(p) for p in specimen.points]
    layer = built[0][0]
    fit = lambda values: polynomial(specimen.points, values, specimen.degree)
    steps = fit([products_of_step(*b) for b in built])
    name = specimen.kind.__name__
    cells = [
        f"[`{name}`][sequinox.{name}]",
        equation(specimen.kind),
        state_text(specimen, [leaves(b[2]) for b in built]),
        fit([count(b[0]) for b in built]),
        "elementwise" if steps == "0" else steps,
        "yes" if layer.streams else "no",
        source(specimen.kind),
    ]
    return "| " + " | ".join(cells) + " |"


HEAD = """| layer | equation | state | parameters | products a step | streams | source |
|-------|----------|-------|------------|-----------------|---------|--------|"""


def page() -> str:
    """The page as Markdown."""
    parts = [INTRODUCTION]
    for title, text, specimens in SECTIONS:
        parts += [f"## {title}", text, "\n".join([HEAD, *map(row, specimens)])]
    functions = [f for n, f in vars(sqx.models).items() if inspect.isfunction(f) and not n.startswith("_")]
    lines = [f"- [`{f.__name__}`][sequinox.{f.__name__}]: {first_sentence(f.__doc__ or '')}" for f in functions]
    parts += ["## Models", "Functions that compose these layers.", "\n".join(lines)]
    return "\n\n".join(p.strip() for p in parts if p.strip()) + "\n"


INTRODUCTION = textwrap.dedent(
    """
    ---
    hide:
      - toc
    ---

    # The zoo at one glance

    Every layer, with its equation, its state for one stream, its trainable numbers, and what a step costs: the
    multiplications in products with matrices, beside which elementwise work is small. $d$ is the width of a sample,
    $H$ that of the state or of the output, $k$ a kernel's width, $n$ the number of slots of a cache, $m$ the width of a
    memory. All are as they are by default; options add to them, and wrappers are shown around a `GRU` or what the
    line says. This page is read off the code by `docs/zoo.py`.
    """
)


if __name__ == "__main__":
    path = pathlib.Path(__file__).with_suffix(".md")
    path.write_text(page(), encoding="utf-8")
    print(f"wrote {path}")
