"""Unrolling a recurrent cell over time.

A cell is plain mathematics for one sample, `transition(affine, x, state)`, and takes all its products with weights
through the function `affine` that it is handed. Two ways of unrolling it are built on that:

`unroll_scan` hands it the plain `affine` and leaves derivatives to JAX, which accumulates the gradient of every weight
inside the loop, one small product a step.

`unroll_fused` looks at the cell once (`make_plan`), to learn which weights meet which vectors. Going forward, products
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
from ._plan import Plan, Term, Transition, affine, make_plan, run as run_transition, split_cell


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
        y, after = jax.vmap(partial(run_transition, transition, cell, affine))(x, seen, noise)
        return (after if keep is None else select(keep, after, state)), y

    state, ys = scan_time(body, state, (xs, noise, *flags.per_step))
    return ys, state


class Kept(NamedTuple):
    """What the backward pass needs of every step, stacked over time."""

    seen: PyTree  # the state that the transition saw
    pre: list[Array]  # pre-activations, by group
    computed: list[list[Array]]  # by group, the vectors that are neither the sample nor a leaf of the state


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


def _record(
    transition: Transition, cell: Any, plan: Plan, grouped: tuple, x: Array, state: PyTree, noise: PyTree
) -> tuple:
    """One sample's transition with its products grouped: output, next state, pre-activations, computed vectors."""
    weights, biases = grouped
    pre: list[Any] = [None] * len(plan.groups)
    computed: list[Any] = [None] * len(plan.groups)
    calls = iter(plan.calls)

    def product(*terms: Term) -> Array:
        call = next(calls)
        g = call.group
        if pre[g] is None:
            vectors = [t[1] for t in terms if isinstance(t, tuple)]
            bias = () if biases[g] is None else (biases[g],)
            pre[g] = affine(*zip(weights[g], vectors, strict=True), *bias)
            computed[g] = [
                v for v, known in zip(vectors, plan.groups[g], strict=True) if not known.is_x and known.leaf is None
            ]
        return pre[g][call.rows]

    y, state = run_transition(transition, cell, product, x, state, noise)
    return y, state, pre, computed


@jax.custom_jvp
def _replayed(pre: Array, z: Array, weights: list[Array], vectors: list[Array]) -> Array:
    """The kept pre-activation, with the derivative of the product it came from: `z` stands for its outer part."""
    del z, weights, vectors
    return pre


@_replayed.defjvp
def _replayed_jvp(primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    pre, _, weights, _ = primals
    _, dz, _, dvectors = tangents
    return pre, affine(dz, *zip(weights, dvectors, strict=True))


def _replay(
    transition: Transition,
    cell: Any,
    plan: Plan,
    leaves: list[Array],
    pre: list,
    zs: list,
    x: Array,
    state: PyTree,
    noise: PyTree,
) -> tuple[Array, PyTree]:
    """One sample's transition from kept pre-activations: only its derivative is of interest."""
    calls = iter(enumerate(plan.calls))

    def product(*terms: Term) -> Array:
        i, call = next(calls)
        vectors = [t[1] for t in terms if isinstance(t, tuple)]
        inner = [
            (leaves[w], v)
            for w, v, known in zip(call.weights, vectors, plan.groups[call.group], strict=True)
            if not known.is_x
        ]
        return _replayed(pre[call.group][call.rows], zs[i], [w for w, _ in inner], [v for _, v in inner])

    return run_transition(transition, cell, product, x, state, noise)


def unroll_fused(
    transition: Transition, cell: Any, xs: Array, state: PyTree, flags: Flags, noise: PyTree = None
) -> tuple[Array, PyTree]:
    """Outputs `(time, rows, n_out)` and final state; weight gradients are deferred.

    Raises:
        Unserved: if the cell does something with its weights that the engine does not follow.
    """
    one_noise = jax.tree.map(partial(_one, axes=2), noise)
    plan = make_plan(transition, cell, _one(xs, axes=2), jax.tree.map(_one, state), one_noise)
    leaves, others, rebuild = split_cell(cell)
    run = _make_run(transition, plan, rebuild)
    return run(leaves, others, xs, state, flags.init, noise, *flags.per_step)


def _one(a: Array, axes: int = 1) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(a.shape[axes:], a.dtype)


def _make_run(transition: Transition, plan: Plan, rebuild: Callable) -> Callable:
    """The loop as a function of everything it reads, with its derivative."""

    def forward(leaves, others, xs, state, init, noise, fresh, keep, *, keep_all: bool) -> tuple:
        record = jax.vmap(partial(_record, transition, rebuild(leaves, others), plan, _grouped(plan, leaves)))

        def body(state: PyTree, inputs: Any) -> tuple[PyTree, Any]:
            x, noise, fresh, keep = inputs
            seen = state if fresh is None else select(fresh, init, state)
            y, after, pre, computed = record(x, seen, noise)
            after = after if keep is None else select(keep, after, state)
            return after, (y, Kept(seen, pre, computed) if keep_all else None)

        state, (ys, kept) = jax.lax.scan(body, state, (xs, noise, fresh, keep))
        return ys, state, kept

    @jax.custom_jvp
    def run(leaves, others, xs, state, init, noise, fresh, keep) -> tuple[Array, PyTree]:
        ys, state, _ = forward(leaves, others, xs, state, init, noise, fresh, keep, keep_all=False)
        return ys, state

    @partial(run.defjvp, symbolic_zeros=True)
    def run_jvp(primals: tuple, tangents: tuple) -> tuple:
        leaves, others, xs, state, _, noise, fresh, keep = primals
        dleaves, _, dxs, dstate, dinit, _, _, _ = tangents  # noise has no derivative
        ys, final, kept = forward(*primals, keep_all=True)

        # Parameters used elementwise get their gradient row by row, summed once at the end.
        direct = [_to_rows(leaves[i], xs, state) for i in plan.direct]
        ddirect = [_to_rows(_filled(dleaves[i]), xs, state) for i in plan.direct]
        dinit = None if all(_is_zero(d) for d in jax.tree.leaves(dinit)) else _floats(_filled(dinit))

        def body(dstate: list[Array], inputs: Any) -> tuple[list[Array], Array]:
            x, dx, noise, fresh, keep, kept, dzs = inputs

            def replay(
                pre: list, zs: list, x: Array, seen: PyTree, direct: list[Array], noise: PyTree
            ) -> tuple[Array, PyTree]:
                mixed = list(leaves)
                for i, p in zip(plan.direct, direct, strict=True):
                    mixed[i] = p
                return _replay(transition, rebuild(mixed, others), plan, leaves, pre, zs, x, seen, noise)

            def step(zs: list, dx: Any, state: list, init: Any, direct: list) -> tuple[Array, list[Array]]:
                state = _put_floats(state, kept.seen)
                seen = state
                if fresh is not None:
                    seen = select(fresh, kept.seen if init is None else _put_floats(init, kept.seen), state)
                y, after = jax.vmap(replay)(kept.pre, zs, x if dx is None else dx, seen, direct, noise)
                return y, _floats(after if keep is None else select(keep, after, state))

            # The state seen stands for the state before and, where the step starts afresh, for the initial one: the
            # step is linear in whichever of them it does not take.
            seen = _floats(kept.seen)
            at = ([jnp.zeros_like(d) for d in dzs], x if plan.x_direct else None, seen, seen if dinit else None, direct)
            _, (dy, dafter) = jax.jvp(step, at, (dzs, dx, dstate, dinit, ddirect))
            return dafter, dy

        dfinal, dys = jax.lax.scan(
            jax.checkpoint(body, prevent_cse=False),
            _floats(_filled(dstate)),
            (
                xs,
                _filled(dxs) if plan.x_direct else None,
                noise,
                fresh,
                keep,
                kept,
                _outer_tangents(plan, leaves, dleaves, xs, dxs, kept),
            ),
        )
        return (ys, final), (dys, _put_floats(dfinal, jax.tree.map(_no_tangent, final)))

    return run


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
    """`p` once a row.

    Chosen between two equal values by something of each row, so that under `jax.vmap` every row has its own.
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
