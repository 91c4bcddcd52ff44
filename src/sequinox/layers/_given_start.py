"""Running a layer whose rows start from given states, in place of its own initial state."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from .._layer import SequenceLayer, fresh_steps, scan_time, select
from .._types import State
from ..recurrent._cell import RecurrentCell, _unroll_jitted
from ._sequential import Sequential, split_key
from ._weight_drop import WeightDrop, draw_weights


def has_growing(state: State) -> bool:
    """Whether there is something in a state whose shapes change from call to call, such as a growing cache."""
    grows = lambda node: hasattr(node, "as_given")
    return any(map(grows, jax.tree.leaves(state, is_leaf=grows)))


def unroll_from(
    layer: SequenceLayer,
    xs: Array,
    state: State,
    mask: Array | None,
    resets: Array | None,
    key: Array | None,
    start: State,
) -> tuple[Array, State]:
    """As the layer's own `_unroll`, but a reset goes back to `start`, which has the batch axes of the state."""
    if resets is None or not resets.size or not jax.tree.leaves(state):
        return layer._unroll(xs, state, mask, resets, key)
    if isinstance(layer, RecurrentCell) and type(layer)._unroll is RecurrentCell._unroll:
        return _unroll_jitted(layer, xs, state, mask, resets, start, key)
    if isinstance(layer, WeightDrop):
        drawn, key = layer._drawn(key)
        return unroll_from(drawn, xs, state, mask, resets, key, start)
    if isinstance(layer, Sequential) and not layer.pools:
        states, several = [], zip(layer.layers, layer._apart(state), layer._apart(start), strict=True)
        for (inner, s, begin), k in zip(several, split_key(key, len(layer)), strict=True):
            xs = xs if mask is None else select(mask, xs, inner._filler(xs))
            xs, s = unroll_from(inner, xs, s, mask, resets, k, begin)
            states.append(s)
        return xs, layer._together(states)
    layer, key = draw_weights(layer, key)
    return _steps(layer, xs, state, mask, resets, key, start)


@eqx.filter_jit  # so that calls outside `jit` are compiled once, too
def _steps(
    layer: SequenceLayer,
    xs: Array,
    state: State,
    mask: Array | None,
    resets: Array,
    key: Array | None,
    start: State,
) -> tuple[Array, State]:
    """One sample after the other."""
    axis = layer._time_axis(xs.ndim)
    first = lambda a: None if a is None else jnp.moveaxis(a, axis, 0)
    keys = None if key is None else jax.random.split(key, xs.shape[axis])

    def body(state: State, inputs: Any) -> tuple[State, Array | None]:
        x, fresh, real, key = inputs
        y, after = layer._step(x, select(fresh, start, state), key)
        return (after if real is None else select(real, after, state)), None if layer.pools else y

    inputs = (first(xs), first(fresh_steps(mask, resets)), first(mask), keys)
    state, ys = scan_time(body, state, inputs)
    if layer.pools:  # a stretch of no samples gives the output so far
        return layer._unroll(xs[(slice(None),) * axis + (slice(0),)], state, None, None, key)[0], state
    return jnp.moveaxis(ys, 0, axis), state
