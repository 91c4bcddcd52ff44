"""Unrolling a recurrent cell over time.

A cell is plain mathematics for one sample, `transition(affine, x, state)`, and takes all its products with weights
through the function `affine` that it is handed. Two ways of unrolling it are built on that:

`unroll_scan` hands it the plain `affine` and leaves derivatives to JAX, which accumulates the gradient of every weight
inside the loop, one small product a step.

`unroll_fused` traces the cell once (`make_plan`), to learn which weights meet which vectors. Going forward, products
that share their vectors become one. For the derivative it is a `jax.custom_jvp` of the whole loop, in which every
product's tangent `dW x + W dx + dU h + db` is formed for all time steps at once, outside the loop; inside, only `U dh`
and the cell's elementwise part are left, the latter re-derived from the pre-activations that were kept, so that no
product is done twice. Transposed, as reverse mode does, this is backpropagation through time with deferred weight
gradients: the loop gives the cotangents of the pre-activations, and each weight's gradient is one large product
afterwards. Since the rule is written in ordinary JAX, forward mode, reverse mode, higher derivatives, `jax.vmap` and
per-example gradients follow from it.
"""

from collections.abc import Callable
from functools import partial, reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero
from jaxtyping import Array, Bool, PyTree

from .._layer import fresh_steps, scan_time, select
from .._linear import apply_weight_to_rows
from ._plan import Plan, Term, Transition, affine, call_transition, make_plan, split_cell


class Flags(NamedTuple):
    """Mask and resets with time leading, and the initial state that resets return to (None where there are none)."""

    mask: Bool[Array, "time rows"] | None
    resets: Bool[Array, "time rows"] | None
    init: PyTree

    @property
    def per_step(self) -> tuple[Array | None, Array | None]:
        """For every step: where the transition starts from `init`, and where its new state is kept."""
        return fresh_steps(self.mask, self.resets), self.mask


def unroll_scan(
    transition: Transition, cell: Any, xs: Array, state: PyTree, flags: Flags, noise: PyTree = None
) -> tuple[Array, PyTree]:
    """Outputs `(time, rows, n_out)` and final state; differentiated by JAX."""

    def body(state: PyTree, inputs: Any) -> tuple[PyTree, Array]:
        x, noise, fresh, keep = inputs
        seen = state if fresh is None else select(fresh, flags.init, state)
        y, after = jax.vmap(partial(call_transition, transition, cell, affine))(x, seen, noise)
        return (after if keep is None else select(keep, after, state)), y

    state, ys = scan_time(body, state, (xs, noise, *flags.per_step))
    return ys, state


class Cell(NamedTuple):
    """A cell taken apart: its transition, what that does with `affine`, and how to make the cell of its arrays."""

    transition: Transition
    plan: Plan
    rebuild: Callable[[list[Array], list[Array]], Any]


class Inputs(NamedTuple):
    """All arrays that the loop reads, time leading where they have it; and all their tangents."""

    leaves: list[Array]  # the cell's floating-point arrays
    others: list[Array]  # its other arrays
    xs: Array
    state: PyTree
    init: PyTree
    noise: PyTree
    fresh: Array | None
    keep: Array | None


class Kept(NamedTuple):
    """What the backward pass needs of every step, stacked over time."""

    seen: PyTree  # the state that the transition saw
    pre: list[Array]  # pre-activations, by group
    computed: list[list[Array]]  # by group, the vectors that are neither the sample nor a leaf of the state


class Step(NamedTuple):
    """One step for all rows, as the backward pass replays it."""

    x: Array
    noise: PyTree
    fresh: Array | None
    keep: Array | None
    kept: Kept


class Varied(NamedTuple):
    """What a replayed step is differentiated with respect to; None for what has no tangent."""

    zs: list[Array]  # for every use of `affine`, what is added to its pre-activation: zeros
    x: Array | None
    state: list[Array]
    init: list[Array] | None
    direct: list[Array]  # the leaves that the cell also uses outside `affine`, once a row


def _grouped(plan: Plan, leaves: list[Array]) -> tuple[list[list[Array]], list[Array | None]]:
    """Weights and biases of each group, stacked over its calls. Done once an unroll, outside the loop."""
    weights, biases = [], []
    for g, vectors in enumerate(plan.groups):
        calls = [c for c in plan.calls if c.group == g]
        weights.append([_join([leaves[c.weights[j]] for c in calls]) for j in range(len(vectors))])
        if all(c.bias is None for c in calls):
            biases.append(None)
        else:
            rows = [
                jnp.zeros(c.rows.stop - c.rows.start, leaves[c.weights[0]].dtype) if c.bias is None else leaves[c.bias]
                for c in calls
            ]
            biases.append(_join(rows))
    return weights, biases


def _join(arrays: list[Array]) -> Array:
    return arrays[0] if len(arrays) == 1 else jnp.concatenate(arrays)


def _record(cell: Cell, given: Inputs, grouped: tuple, x: Array, state: PyTree, noise: PyTree) -> tuple:
    """One sample's transition with its products grouped: output, next state, pre-activations, computed vectors."""
    weights, biases = grouped
    groups = cell.plan.groups
    pre: list[Any] = [None] * len(groups)
    computed: list[Any] = [None] * len(groups)
    calls = iter(cell.plan.calls)

    def product(*terms: Term) -> Array:
        call = next(calls)
        g = call.group
        if pre[g] is None:
            vectors = [t[1] for t in terms if isinstance(t, tuple)]
            bias = () if biases[g] is None else (biases[g],)
            pre[g] = affine(*zip(weights[g], vectors, strict=True), *bias)
            known = zip(vectors, groups[g], strict=True)
            computed[g] = [v for v, kind in known if not kind.is_x and kind.leaf is None]
        return pre[g][call.rows]

    whole = cell.rebuild(given.leaves, given.others)
    y, state = call_transition(cell.transition, whole, product, x, state, noise)
    return y, state, pre, computed


@jax.custom_jvp
def _replayed(pre: Array, z: Array, weights: list[Array], vectors: list[Array]) -> Array:
    """The kept pre-activation, with the derivative of the product it came from: `z` has its outer part."""
    del z, weights, vectors
    return pre


@_replayed.defjvp
def _replayed_jvp(primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    pre, _, weights, _ = primals
    _, dz, _, dvectors = tangents
    return pre, affine(dz, *zip(weights, dvectors, strict=True))


def _replay(
    cell: Cell,
    given: Inputs,
    pre: list[Array],
    zs: list[Array],
    x: Array,
    state: PyTree,
    direct: list[Array],
    noise: PyTree,
) -> tuple[Array, PyTree]:
    """One sample's transition from kept pre-activations: only its derivative is of interest."""
    calls = iter(enumerate(cell.plan.calls))

    def product(*terms: Term) -> Array:
        i, call = next(calls)
        vectors = [t[1] for t in terms if isinstance(t, tuple)]
        each = zip(call.weights, vectors, cell.plan.groups[call.group], strict=True)
        inner = [(given.leaves[w], v) for w, v, kind in each if not kind.is_x]
        return _replayed(pre[call.group][call.rows], zs[i], [w for w, _ in inner], [v for _, v in inner])

    leaves = list(given.leaves)
    for i, p in zip(cell.plan.direct, direct, strict=True):
        leaves[i] = p
    return call_transition(cell.transition, cell.rebuild(leaves, given.others), product, x, state, noise)


def unroll_fused(
    transition: Transition, cell: Any, xs: Array, state: PyTree, flags: Flags, noise: PyTree = None
) -> tuple[Array, PyTree]:
    """Outputs `(time, rows, n_out)` and final state; weight gradients are deferred.

    Raises:
        NotFusable: if the cell does something with its weights that the engine does not follow.
    """
    one_noise = jax.tree.map(partial(_one, axes=2), noise)
    plan = make_plan(transition, cell, _one(xs, axes=2), jax.tree.map(_one, state), one_noise)
    leaves, others, rebuild = split_cell(cell)
    run = _make_run(Cell(transition, plan, rebuild))
    return run(Inputs(leaves, others, xs, state, flags.init, noise, *flags.per_step))


def _one(a: Array, axes: int = 1) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(a.shape[axes:], a.dtype)


def _make_run(cell: Cell) -> Callable[[Inputs], tuple[Array, PyTree]]:
    """The loop as a function of everything it reads, with its derivative."""

    @jax.custom_jvp
    def run(given: Inputs) -> tuple[Array, PyTree]:
        ys, final, _ = _forward(cell, given, keep_all=False)
        return ys, final

    @partial(run.defjvp, symbolic_zeros=True)
    def run_jvp(primals: tuple[Inputs], tangents: tuple[Inputs]) -> tuple:
        (given,), (d,) = primals, tangents
        ys, final, kept = _forward(cell, given, keep_all=True)
        dys, dfinal = _tangents(cell, given, d, kept)
        return (ys, final), (dys, _put_floats(dfinal, jax.tree.map(_no_tangent, final)))

    return run


def _forward(cell: Cell, given: Inputs, *, keep_all: bool) -> tuple[Array, PyTree, Kept | None]:
    """Outputs, final state, and what the backward pass needs."""
    record = jax.vmap(partial(_record, cell, given, _grouped(cell.plan, given.leaves)))

    def body(state: PyTree, inputs: Any) -> tuple[PyTree, Any]:
        x, noise, fresh, keep = inputs
        seen = state if fresh is None else select(fresh, given.init, state)
        y, after, pre, computed = record(x, seen, noise)
        after = after if keep is None else select(keep, after, state)
        return after, (y, Kept(seen, pre, computed) if keep_all else None)

    state, (ys, kept) = jax.lax.scan(body, given.state, (given.xs, given.noise, given.fresh, given.keep))
    return ys, state, kept


def _tangents(cell: Cell, given: Inputs, d: Inputs, kept: Any) -> tuple[Array, list[Array]]:
    """The tangents of outputs and final state, of `d` alone; noise has none."""
    plan, (leaves, _, xs, state, _, noise, fresh, keep) = cell.plan, given
    # Parameters used elementwise get their gradient row by row, summed once at the end.
    direct = [_to_rows(leaves[i], xs, state) for i in plan.direct]
    ddirect = [_to_rows(_filled(d.leaves[i]), xs, state) for i in plan.direct]
    dinit = None if all(_is_zero(t) for t in jax.tree.leaves(d.init)) else _floats(_filled(d.init))

    def body(dstate: list[Array], inputs: tuple[Step, Any, list[Array]]) -> tuple[list[Array], Array]:
        step, dx, dzs = inputs
        # The state seen stands for the state before and, where the step starts afresh, for the initial one: the step is
        # linear in whichever of them it does not take.
        seen = _floats(step.kept.seen)
        zs = [jnp.zeros_like(dz) for dz in dzs]
        at = Varied(zs, step.x if plan.x_direct else None, seen, seen if dinit else None, direct)
        towards = Varied(dzs, dx, dstate, dinit, ddirect)
        _, (dy, dafter) = jax.jvp(partial(_replay_step, cell, given, step), (at,), (towards,))
        return dafter, dy

    dxs = _filled(d.xs) if plan.x_direct else None
    over = (Step(xs, noise, fresh, keep, kept), dxs, _outer_tangents(plan, leaves, d.leaves, xs, d.xs, kept))
    dfinal, dys = jax.lax.scan(jax.checkpoint(body, prevent_cse=False), _floats(_filled(d.state)), over)
    return dys, dfinal


def _replay_step(cell: Cell, given: Inputs, step: Step, at: Varied) -> tuple[Array, list[Array]]:
    """One step for all rows, as a function of what has tangents: the outputs and the state after it."""
    kept = step.kept
    state = seen = _put_floats(at.state, kept.seen)
    if step.fresh is not None:
        seen = select(step.fresh, kept.seen if at.init is None else _put_floats(at.init, kept.seen), state)
    x = step.x if at.x is None else at.x
    y, after = jax.vmap(partial(_replay, cell, given))(kept.pre, at.zs, x, seen, at.direct, step.noise)
    return y, _floats(after if step.keep is None else select(step.keep, after, state))


def _outer_tangents(plan: Plan, leaves: list[Array], dleaves: list, xs: Array, dxs: Any, kept: Kept) -> list[Array]:
    """For every use of `affine`, the part of its tangent that needs no other tangent of the loop, at all time steps."""
    state_leaves = jax.tree.leaves(kept.seen)
    result = []
    computed = [iter(c) for c in kept.computed]
    vectors = [
        [xs if v.is_x else state_leaves[v.leaf] if v.leaf is not None else next(computed[g]) for v in group]
        for g, group in enumerate(plan.groups)
    ]
    for call in plan.calls:
        n = call.rows.stop - call.rows.start
        total = jnp.zeros((*xs.shape[:2], n), leaves[call.weights[0]].dtype)
        for w, v, known in zip(call.weights, vectors[call.group], plan.groups[call.group], strict=True):
            if not _is_zero(dleaves[w]):
                total = total + apply_weight_to_rows(dleaves[w], v)
            if known.is_x and not _is_zero(dxs):
                total = total + apply_weight_to_rows(leaves[w], dxs)
        if call.bias is not None and not _is_zero(dleaves[call.bias]):
            total = total + jnp.broadcast_to(dleaves[call.bias], total.shape)
        result.append(total)
    return result


def _to_rows(p: Array, xs: Array, state: PyTree) -> Array:
    """A copy of `p` for each row.

    Selected between two equal copies by a flag of the row, so that under `jax.vmap` over `xs` or `state` the copies are
    mapped as well.
    """
    firsts = [a.reshape(a.shape[0], -1)[:, 0] for a in (xs[0], *jax.tree.leaves(state)) if a.size]
    flag = reduce(jnp.logical_or, [first == first for first in firsts])
    rows = jnp.broadcast_to(p, (xs.shape[1], *p.shape))
    return select(flag, rows, rows)


def _is_zero(tangent: Any) -> bool:
    return isinstance(tangent, SymbolicZero)


def _filled(tree: PyTree) -> PyTree:
    """Symbolic zeros made real."""
    fill = lambda t: jnp.zeros(t.shape, t.dtype) if _is_zero(t) and t.dtype != jax.dtypes.float0 else t
    return jax.tree.map(fill, tree, is_leaf=_is_zero)


def _floats(tree: PyTree) -> list[Array]:
    """The leaves that have derivatives."""
    return [a for a in jax.tree.leaves(tree) if jnp.issubdtype(a.dtype, jnp.inexact)]


def _put_floats(floats: list[Array], tree: PyTree) -> PyTree:
    """`tree` with its floating-point leaves replaced."""
    new = iter(floats)
    return jax.tree.map(lambda a: next(new) if jnp.issubdtype(a.dtype, jnp.inexact) else a, tree)


def _no_tangent(a: Array) -> Any:
    """What JAX wants for the tangent of an integer leaf; floating-point leaves are left to be replaced."""
    return a if jnp.issubdtype(a.dtype, jnp.inexact) else np.zeros(a.shape, jax.dtypes.float0)
