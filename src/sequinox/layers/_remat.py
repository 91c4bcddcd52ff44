"""Layers that are computed again for the derivative: less memory, more time."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from .._checks import size
from .._layer import S, SequenceLayer, require_fixed
from .._types import State
from ._wrapper import Wrapper


class Remat(Wrapper[S]):
    """A layer whose insides are computed again for the derivative instead of being kept: less memory, more time.

    This changes `unroll` and `forward`. What the layer reads and returns is kept; with `checkpoint_every=k` also its
    state after every stretch of `k` samples, from which one stretch at a time is computed again. The derivative then
    holds `time / k + k` states instead of `time`: fewest where `k` is about the root of `time`. The layer must stream,
    and its state must keep its shape.

    Source: [Chen et al. 2016](https://arxiv.org/abs/1604.06174), by `jax.checkpoint`.

    ??? example

        ```python
        >>> import jax, jax.numpy as jnp, sequinox as sqx
        >>> sqx.Remat(sqx.GRU(3, 5, jax.random.key(0)))(jnp.ones((7, 3))).shape
        (7, 5)
        >>> long = sqx.Remat(sqx.GRU(3, 5, jax.random.key(0)), checkpoint_every=32)
        >>> long(jnp.ones((1000, 3))).shape
        (1000, 5)

        ```
    """

    layer: SequenceLayer[S]
    checkpoint_every: int | None = eqx.field(static=True)

    def __init__(self, layer: SequenceLayer[S], checkpoint_every: int | None = None):
        """
        Arguments:
            layer: any sequence layer; with `checkpoint_every` one that streams.
            checkpoint_every: number of samples in a stretch. Default: all are one stretch. Each stretch has a PRNG key
                of its own, so that a layer that is random in training draws other numbers than without stretches.

        Raises:
            TypeError, ValueError: if it is no sequence layer; with `checkpoint_every`, if the number is not positive or
                the layer does not stream. On a call, if there is a cache in the state that grows.
        """
        if not isinstance(layer, SequenceLayer):
            raise TypeError(f"Remat: layer must be a sequence layer, got {layer!r}")
        if checkpoint_every is not None:
            checkpoint_every = size(checkpoint_every, "Remat", "checkpoint_every")
            if layer.offline_reason is not None:
                raise TypeError(
                    "Remat: checkpoint_every has the layer read one stretch after the other, and this one does not "
                    f"stream: {layer.offline_reason}"
                )
        self.layer, self.checkpoint_every = layer, checkpoint_every

    @property
    def inner(self) -> SequenceLayer[S]:
        """The layer."""
        return self.layer

    def with_width(self, n_in: int) -> "Remat":
        """The same for samples of a given width."""
        return Remat(self.layer.with_width(n_in), self.checkpoint_every)

    def _unroll(
        self, xs: Array, state: S, mask: Array | None, resets: Array | None, key: Array | None
    ) -> tuple[Array, S]:
        if self.checkpoint_every is None or xs.shape[self._time_axis(xs.ndim)] <= self.checkpoint_every:
            return _again(self.layer, xs, state, mask, resets, key)
        require_fixed(state, "Remat: checkpoint_every")
        return _in_stretches(self.layer, self.checkpoint_every, xs, state, mask, resets, key)

    def _unroll_from(
        self, xs: Array, state: S, mask: Array | None, resets: Array | None, key: Array | None, start: S | None
    ) -> tuple[Array, S]:
        run = lambda layer, *args: layer._unroll_from(*args)
        return eqx.filter_checkpoint(run)(self.layer, xs, state, mask, resets, key, start)

    def _forward(self, xs: Array, mask: Array | None, resets: Array | None, key: Array | None) -> Array:
        if self.checkpoint_every is None:
            return eqx.filter_checkpoint(lambda layer, *args: layer._forward(*args))(self.layer, xs, mask, resets, key)
        return super()._forward(xs, mask, resets, key)


def _again(layer: SequenceLayer, *args: Any) -> tuple[Array, State]:
    """A stretch of which nothing inside is kept."""
    return eqx.filter_checkpoint(lambda layer, *args: layer._unroll(*args))(layer, *args)


@eqx.filter_jit  # so that calls outside `jit` are compiled once, too
def _in_stretches(
    layer: SequenceLayer,
    every: int,
    xs: Array,
    state: State,
    mask: Array | None,
    resets: Array | None,
    key: Array | None,
) -> tuple[Array, State]:
    """Stretches of `every` samples by a scan, and one of those that remain."""
    layer, key = layer._draw_once(key)
    axis = layer._time_axis(xs.ndim)
    number, remain = divmod(xs.shape[axis], every)
    whole = number * every
    keys = None if key is None else jax.random.split(key, number + 1)
    before = lambda a: a[(slice(None),) * axis + (slice(whole),)]
    after = lambda a: a[(slice(None),) * axis + (slice(whole, None),)]

    def cut(a: Array) -> Array:
        a = before(a)
        return jnp.moveaxis(a.reshape(*a.shape[:axis], number, every, *a.shape[axis + 1 :]), axis, 0)

    def body(state: State, stretch: Any) -> tuple[State, Array]:
        (xs, mask, resets), key = stretch
        ys, state = _again(layer, xs, state, mask, resets, key)
        return state, ys

    sequence = (xs, mask, resets)
    first = None if keys is None else keys[:-1]
    state, ys = jax.lax.scan(body, state, (jax.tree.map(cut, sequence), first))
    if layer.pools:
        ys = ys[-1]
    else:
        ys = jnp.moveaxis(ys, 0, axis)
        ys = ys.reshape(*ys.shape[:axis], whole, *ys.shape[axis + 2 :])
    if not remain:
        return ys, state
    xs, mask, resets = jax.tree.map(after, sequence)
    rest, state = _again(layer, xs, state, mask, resets, None if keys is None else keys[-1])
    return rest if layer.pools else jnp.concatenate([ys, rest], axis), state
