"""What a cell does with weights: the function it takes its products through, and how it uses that."""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import equinox as eqx
import jax
from jax.extend.core import get_opaque_trace_state
from jaxtyping import Array, PyTree

from .._linear import apply_weight

Term: TypeAlias = tuple[Array, Array] | Array
Affine: TypeAlias = Callable[..., Array]
Transition: TypeAlias = Callable[..., tuple[Array, PyTree]]
"""`transition(cell, affine, x, state)`, with the sample's noise last if the cell draws any."""


def affine(*terms: Term) -> Array:
    """The sum of its terms: a pair `(W, x)` means the product `W @ x`, an array itself (a bias)."""
    total = None
    for term in terms:
        value = apply_weight(*term) if isinstance(term, tuple) else term
        total = value if total is None else total + value
    if total is None:
        raise ValueError("affine: at least one term is needed")
    return total


class NotFusable(Exception):
    """The fused engine cannot take this cell; the message says why."""


class Call(NamedTuple):
    """One use of `affine`: weights and bias as indices into the cell's leaves, and where its rows lie in its group."""

    group: int
    weights: tuple[int, ...]
    bias: int | None
    rows: slice


class Vector(NamedTuple):
    """What a weight is applied to: the sample itself, a leaf of the state (by index), or something computed."""

    is_x: bool
    leaf: int | None


class Plan(NamedTuple):
    """What a cell does with `affine`, in the order in which it does it.

    Calls that share their vectors form a group, whose products are done as one. `direct` are the leaves of the cell
    that it also uses outside `affine` (peepholes, scales), and `x_direct` says whether it uses the sample there.
    """

    calls: tuple[Call, ...]
    groups: tuple[tuple[Vector, ...], ...]
    direct: tuple[int, ...]
    x_direct: bool


def call_transition(transition: Transition, cell: Any, affine: Affine, x: Array, state: PyTree, noise: PyTree) -> Any:
    """One sample's transition, checked; a cell that draws nothing is not asked to take noise."""
    given = (x, state) if noise is None else (x, state, noise)
    result: Any = transition(cell, affine, *given)
    who = f"{type(cell).__name__}.transition"
    if not isinstance(result, tuple) or len(result) != 2:
        came = f"{len(result)} things" if isinstance(result, tuple) else _shown(result)
        raise TypeError(f"{who} must return two things, the output and the next state, got {came}")
    y, after = result
    if not hasattr(y, "shape") or len(y.shape) != 1:
        raise TypeError(f"{who} must return a vector as its output, got {_shown(y)}")
    tree, expected = jax.tree.structure(after), jax.tree.structure(state)
    if tree != expected:
        raise TypeError(f"{who} must return a state of the structure of start, {expected}, got {tree}")
    for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(after), jax.tree.leaves(state), strict=True):
        if not hasattr(a, "shape") or a.shape != b.shape or a.dtype != b.dtype:
            place = f"state{jax.tree_util.keystr(path)}"
            raise ValueError(f"{who} must return {place} as start gives it, {_shown(b)}, got {_shown(a)}")
    return result


def _shown(a: Any) -> str:
    """A value in an error."""
    return f"{a.dtype}{list(a.shape)}" if hasattr(a, "shape") and hasattr(a, "dtype") else f"a {type(a).__name__}"


def make_plan(transition: Transition, cell: Any, x: jax.ShapeDtypeStruct, state: PyTree, noise: PyTree = None) -> Plan:
    """Traces `transition` for one sample, given by its shapes, and notes every use of `affine`."""
    leaves, others, rebuild = split_cell(cell)
    n_rows: list[int] = []
    calls: list[Call] = []
    groups: list[tuple[Vector, ...]] = []

    def watch(leaves: list[Array], x: Array, state: PyTree, noise: PyTree) -> None:
        seen: list[tuple[Array, ...]] = []
        trace = get_opaque_trace_state(convention="flax")
        state_leaves = jax.tree.leaves(state)

        def note(*terms: Term) -> Array:
            if get_opaque_trace_state(convention="flax") != trace:
                raise NotFusable("affine is used inside another transformation (scan, cond, jit, checkpoint)")
            pairs = [t for t in terms if isinstance(t, tuple)]
            biases = [t for t in terms if not isinstance(t, tuple)]
            vectors = tuple(v for _, v in pairs)
            weights = tuple(_index(w, leaves) for w, _ in pairs)
            if not pairs or len(biases) > 1:
                raise NotFusable("a use of affine must have at least one product, and at most one bias")
            bias = _index(biases[0], leaves) if biases else None
            if None in weights or (biases and bias is None):
                raise NotFusable(
                    "affine takes the cell's own arrays as weights and biases, not values computed from them"
                )
            same = [i for i, s in enumerate(seen) if len(s) == len(vectors) and all(map(_is, s, vectors))]
            if not same:
                same = [len(groups)]
                seen.append(vectors)
                groups.append(tuple(Vector(v is x, _index(v, state_leaves)) for v in vectors))
                n_rows.append(0)
            g, n = same[0], pairs[0][0].shape[0]
            calls.append(Call(g, weights, bias, slice(n_rows[g], n_rows[g] + n)))  # pyright: ignore[reportArgumentType]
            n_rows[g] += n
            return affine(*terms)

        call_transition(transition, rebuild(leaves, others), note, x, state, noise)

    jax.eval_shape(watch, leaves, x, state, noise)

    # The leaves and the sample that the transition needs when its pre-activations are given: those it computes with,
    # and those it hands to affine as vectors.
    def rest(leaves: list[Array], values: list[Array], x: Array, state: PyTree, noise: PyTree) -> PyTree:
        given = iter(values)
        vectors: list[Array] = []

        def replace(*terms: Term) -> Array:
            vectors.extend(t[1] for t in terms if isinstance(t, tuple) and t[1] is not x)
            return next(given)

        return call_transition(transition, rebuild(leaves, others), replace, x, state, noise), vectors

    values = [jax.ShapeDtypeStruct((c.rows.stop - c.rows.start,), leaves[c.weights[0]].dtype) for c in calls]
    jaxpr = jax.make_jaxpr(rest)(leaves, values, x, state, noise).jaxpr
    used = {id(v) for eqn in jaxpr.eqns for v in eqn.invars} | {id(v) for v in jaxpr.outvars}
    direct = tuple(i for i in range(len(leaves)) if id(jaxpr.invars[i]) in used)
    if any(leaves[i].ndim > 1 for i in direct):
        raise NotFusable("the cell uses a matrix outside affine")
    return Plan(tuple(calls), tuple(groups), direct, id(jaxpr.invars[len(leaves) + len(values)]) in used)


def split_cell(cell: Any) -> tuple[list[Array], list[Array], Callable[[list[Array], list[Array]], Any]]:
    """The floating-point arrays of a cell, its other arrays, and how to make a cell of such lists."""
    floats, rest = eqx.partition(cell, eqx.is_inexact_array)
    others, static = eqx.partition(rest, eqx.is_array)
    leaves, tree = jax.tree.flatten(floats)
    other_leaves, other_tree = jax.tree.flatten(others)

    def rebuild(leaves: list[Array], others: list[Array]) -> Any:
        return eqx.combine(jax.tree.unflatten(tree, leaves), jax.tree.unflatten(other_tree, others), static)

    return leaves, other_leaves, rebuild


def _is(a: Any, b: Any) -> bool:
    return a is b


def _index(item: Any, among: list) -> int | None:
    return next((i for i, other in enumerate(among) if other is item), None)
