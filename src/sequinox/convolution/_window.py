"""What a window sees: every sample beside the real samples before it.

    window = window_over(xs, past, mask, resets)
    window.past                    # the last real samples after the stretch: the next state
    window.lagged(2)               # for every sample the one two real samples back
    window.restore(ys)             # outputs, computed from those, at the places of their samples

`xs` are `"*batch time n"`, with zeros in place of masked samples, as every `_unroll` gets them; `past`, the row's last
`depth` real samples before them, is `"*batch depth n"`, oldest first, with zeros where the row had fewer. `depth` may
be 0.

Masked samples are absent: the real ones are packed to the front of the row, in their order, and what is computed from
them there goes back to its place by `restore`. A sample from before the row's last reset, or from before its start, is
zeros: selected, so that a NaN in it reaches nothing. `past` comes out bitwise as it went in where a row has no real
sample.

Without a mask and resets all of this is a concatenation and slices of it. So it is without resets for `samples`, which
a convolution may then read directly: `window.since is None` says so.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, Shaped

from .._layer import select


class Window(NamedTuple):
    """A stretch of samples beside those before it."""

    samples: Shaped[Array, "*batch depth+time n"]
    """Past and samples, oldest first; of the samples the real ones first, then zeros."""
    past: Shaped[Array, "*batch depth n"]
    """The last `depth` real samples since the last reset, oldest first: what the next stretch reads."""
    since: Int[Array, "*batch time"] | None
    """How many samples one sees, its own included: those since the reset, more than `depth` where there was none in
    this stretch. None if there are no resets: then all see all."""
    place: Int[Array, "*batch time"] | None
    """The place of each sample among the packed ones; None if they are as they came."""

    @property
    def depth(self) -> int:
        """How far back it reaches."""
        return self.past.shape[-2]

    def lagged(self, lag: int | Int[Array, ""]) -> Shaped[Array, "*batch time n"]:
        """For every packed sample the one `lag` real samples back, at most `depth`; zeros where there is none."""
        start, n_time, axis = self.depth - lag, self.samples.shape[-2] - self.depth, self.samples.ndim - 2
        if isinstance(start, int):
            xs = jax.lax.slice_in_dim(self.samples, start, start + n_time, axis=axis)
        else:  # a lag that a loop runs through
            xs = jax.lax.dynamic_slice_in_dim(self.samples, start, n_time, axis)
        return xs if self.since is None else select(self.since > lag, xs, jnp.zeros_like(xs))

    def stacked(self, lags: Sequence[int]) -> Shaped[Array, "*batch time lags n"]:
        """`lagged` for several lags at once: the window of every packed sample, unfolded."""
        return jnp.stack([self.lagged(lag) for lag in lags], -2)

    def restore(self, ys: Shaped[Array, "*batch time m"]) -> Shaped[Array, "*batch time m"]:
        """What was computed for the packed samples, at the places of their samples. (Anything at masked ones.)"""
        return ys if self.place is None else jnp.take_along_axis(ys, jnp.expand_dims(self.place, -1), -2)


def window_over(
    xs: Shaped[Array, "*batch time n"],
    past: Shaped[Array, "*batch depth n"],
    mask: Bool[Array, "*batch time"] | None,
    resets: Bool[Array, "*batch time"] | None,
) -> Window:
    """The window over a stretch of samples; see above."""
    axis, (n_time, depth) = xs.ndim - 2, (xs.shape[-2], past.shape[-2])
    if n_time == 0:
        return Window(past, past, None, None)
    place = None
    if mask is not None:
        xs, resets, place = _pack(xs, mask, resets)
    samples = jnp.concatenate([past, xs], axis)
    if resets is None and mask is None:
        return Window(samples, jax.lax.slice_in_dim(samples, n_time, n_time + depth, axis=axis), None, None)

    flags = xs.shape[:-1]
    slot = jnp.broadcast_to(jnp.arange(depth, dtype=jnp.int32), (*flags[:-1], depth))
    if mask is None:
        slot = slot + n_time
        after = jax.lax.slice_in_dim(samples, n_time, n_time + depth, axis=axis)
    else:
        slot = slot + jnp.sum(mask, -1, dtype=jnp.int32, keepdims=True)
        after = jnp.take_along_axis(samples, jnp.expand_dims(slot, -1), -2)
    if resets is None:
        return Window(samples, after, None, place)
    now = jnp.broadcast_to(jnp.arange(n_time, dtype=jnp.int32), flags)
    start = jax.lax.cummax(jnp.where(resets, now, -depth), axis=axis)  # where the packed row begins; -depth: before
    after = select(slot >= start[..., -1:] + depth, after, jnp.zeros_like(after))
    return Window(samples, after, now - start + 1, place)


def _pack(
    xs: Shaped[Array, "*batch time n"], mask: Bool[Array, "*batch time"], resets: Bool[Array, "*batch time"] | None
) -> tuple[Array, Array | None, Array]:
    """Real samples and their resets to the front, and where each sample went."""
    order = jnp.argsort(~mask, axis=-1, stable=True)
    xs = jnp.take_along_axis(xs, jnp.expand_dims(order, -1), -2)
    resets = None if resets is None else jnp.take_along_axis(resets & mask, order, -1)
    return xs, resets, jnp.maximum(jnp.cumsum(mask, -1, dtype=jnp.int32) - 1, 0)
