"""Depth: layers of one configuration, compiled once for all."""

from collections.abc import Iterator, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from .._checks import batch_shape, float_dtype
from .._layer import SequenceLayer, composed_field, select
from .._types import BatchShape, DType, State


class Stack(SequenceLayer):
    """Layers of one configuration, one after another: as a `Sequential` of them, but compiled once for all.

    Their arrays are stacked along a new leading axis, and `jax.lax.scan` walks over them in `forward` and `unroll`, so
    that compilation takes no longer for many layers than for one. `stack.layer` holds the stacked arrays. The state is
    that of the `Sequential`, a tuple of the layers' states, and `step` goes through it layer by layer: a scan would
    copy every cache at every step.

    ??? example

        ```python
        >>> import jax, jax.numpy as jnp, sequinox as sqx
        >>> keys = jax.random.split(jax.random.key(0), 12)
        >>> stack = sqx.Stack([sqx.GRU(4, 4, k) for k in keys])
        >>> stack(jnp.ones((7, 4))).shape, stack.layer.W.shape
        ((7, 4), (12, 4, 4))

        ```
    """

    layer: SequenceLayer
    depth: int = eqx.field(static=True)
    n_in: int | None = eqx.field(static=True)
    n_out: int | None = eqx.field(static=True)

    def __init__(self, layers: Sequence[SequenceLayer]):
        """
        Arguments:
            layers: at least one, all of the same class, sizes and options, which keep the width: `n_out == n_in`.

        Raises:
            TypeError: if one is not a sequence layer.
            ValueError: if there is none, if they differ in more than the numbers in their arrays, change the width, or
                pool over time.
        """
        if not isinstance(layers, list | tuple):
            raise TypeError(f"Stack: layers must be a list or a tuple, got {type(layers).__name__}")
        if not layers:
            raise ValueError("Stack: layers must hold at least one layer")
        for i, layer in enumerate(layers):
            if not isinstance(layer, SequenceLayer):
                raise TypeError(f"Stack: layers[{i}] must be a sequence layer, got {layer!r}")
        first = layers[0]
        if first.n_in != first.n_out or first.pools or first.reads_tokens:
            raise ValueError(
                f"Stack: layers must give samples of the width that they read, got {type(first).__name__} "
                f"with n_in {first.n_in} and n_out {first.n_out}" + (", which pools over time" if first.pools else "")
            )
        arrays, rest = zip(*(eqx.partition(layer, eqx.is_array) for layer in layers), strict=True)
        shapes = [jax.tree.map(lambda a: (a.shape, a.dtype), a) for a in arrays]
        for i in range(1, len(layers)):
            same = jax.tree.structure(arrays[i]) == jax.tree.structure(arrays[0]) and shapes[i] == shapes[0]
            if not same or not eqx.tree_equal(rest[i], rest[0]):
                raise ValueError(f"Stack: layers must be of one configuration, but layers[{i}] differs from layers[0]")
        self.layer = eqx.combine(jax.tree.map(lambda *a: jnp.stack(a), *arrays), rest[0])
        self.depth = len(layers)
        self.n_in, self.n_out = first.n_in, first.n_out

    @property
    def receptive_field(self) -> int | None:
        """One more than the sum of how far each layer looks back; None if they have no bound."""
        return composed_field(self.layer.receptive_field for _ in range(self.depth))

    @property
    def inside(self) -> tuple[SequenceLayer, ...]:
        """`layer`, in which the arrays of all are, for each of them."""
        return (self.layer,) * self.depth

    def with_width(self, n_in: int) -> "Stack":
        """The same layers for samples of a given width."""
        return Stack([layer.with_width(n_in) for layer in self])

    def init_state(self, batch: BatchShape = (), dtype: DType | None = None) -> tuple[State, ...]:
        """The states of the layers, in their order.

        Arguments:
            batch: the batch axes, an integer or a tuple; `()` for a single stream.
            dtype: dtype of the stream; default: that of the weights.
        """
        batch = batch_shape(batch, "Stack.init_state")
        dtype = float_dtype(self.dtype if dtype is None else dtype, "Stack.init_state")
        return tuple(layer.init_state(batch, dtype) for layer in self)

    def __len__(self) -> int:
        return self.depth

    def __getitem__(self, i: Any) -> Any:
        if isinstance(i, slice):
            return Stack([self[k] for k in range(self.depth)[i]])
        arrays, rest = eqx.partition(self.layer, eqx.is_array)
        return eqx.combine(jax.tree.map(lambda a: a[range(self.depth)[i]], arrays), rest)

    def __iter__(self) -> Iterator[SequenceLayer]:
        return (self[i] for i in range(self.depth))

    def _step(self, x: Array, state: tuple[State, ...], key: Array | None) -> tuple[Array, tuple[State, ...]]:
        states, keys = [], [None] * self.depth if key is None else list(jax.random.split(key, self.depth))
        for layer, s, k in zip(self, state, keys, strict=True):
            x, s = layer.step(x, s, key=k)
            states.append(s)
        return x, tuple(states)

    def _unroll(
        self, xs: Array, state: tuple[State, ...], mask: Array | None, resets: Array | None, key: Array | None
    ) -> tuple[Array, tuple[State, ...]]:
        return _scan(self, xs, state, mask, resets, key)

    def _unroll_from(
        self, xs: Array, state: State, mask: Array | None, resets: Array | None, key: Array | None, start: State
    ) -> tuple[Array, tuple[State, ...]]:
        return _scan(self, xs, state, mask, resets, key, start)

    def _forward(self, xs: Array, mask: Array | None, resets: Array | None, key: Array | None) -> Array:
        return _scan(self, xs, None, mask, resets, key)[0]

    def _split_state(self, state: tuple[State, ...]) -> tuple[State, ...]:
        return state

    def _remember(self, state: tuple[State, ...], memory: Array, mask: Array | None) -> tuple[State, ...]:
        return tuple(layer._remember(s, memory, mask) for layer, s in zip(self, state, strict=True))


@eqx.filter_jit  # so that calls outside `jit` are compiled once, too
def _scan(
    stack: Stack,
    xs: Array,
    states: tuple[State, ...] | None,
    mask: Array | None,
    resets: Array | None,
    key: Array | None,
    starts: tuple[State, ...] | None = None,
) -> tuple[Array, Any]:
    """A stretch, or without states a whole sequence, through all layers; resets go to `starts`, if they are given."""
    arrays, rest = eqx.partition(stack.layer, eqx.is_array)
    keys = None if key is None else jax.random.split(key, stack.depth)

    def body(xs: Array, inputs: Any) -> tuple[Array, State]:
        arrays, s, k, start = inputs
        layer = eqx.combine(arrays, rest)
        if states is None:
            return layer.forward(xs, mask=mask, resets=resets, key=k), ()
        if starts is None:
            return layer.unroll(xs, s, mask=mask, resets=resets, key=k)
        xs = xs if mask is None else select(mask, xs, layer._filler(xs))
        return layer._unroll_from(xs, s, mask, resets, k, start)

    ys, stacked = jax.lax.scan(body, xs, (arrays, _stacked(states), keys, _stacked(starts)), length=stack.depth)
    return ys, tuple(jax.tree.map(lambda a, i=i: a[i], stacked) for i in range(stack.depth))


def _stacked(states: tuple[State, ...] | None) -> State:
    """The states of all layers as one, with a new leading axis."""
    if states is None:
        return ()
    kinds = [(jax.tree.structure(s), [(a.shape, a.dtype) for a in jax.tree.leaves(s)]) for s in states]
    for i, kind in enumerate(kinds):
        if kind != kinds[0]:
            raise ValueError(f"Stack: state must be of one kind and shape in all layers, but [{i}] differs from [0]")
    return jax.tree.map(lambda *a: jnp.stack(a), *states)
