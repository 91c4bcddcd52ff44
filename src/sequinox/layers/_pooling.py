"""Pooling over time: one output for a whole row. In a stream, the output so far."""

from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array

from .._checks import batch_shape, float_dtype, size, wide
from .._layer import SequenceLayer, select
from .._types import BatchShape, DType, State


class OfAnyWidth(SequenceLayer):
    """A layer that serves any width, and has to know it only for its state."""

    n_in: eqx.AbstractVar[int | None]

    @property
    def n_out(self) -> int | None:
        """Width of the output: that of a sample."""
        return self.n_in

    @property
    def needs_width(self) -> bool:
        """Whether the width is not known."""
        return self.n_in is None

    def with_width(self, n_in: int) -> "OfAnyWidth":
        """The same layer for samples of a given width."""
        return type(self)(n_in)  # pyright: ignore[reportCallIssue]

    def _shape(self, batch: BatchShape) -> tuple[int, ...]:
        name = type(self).__name__
        if self.n_in is None:
            raise ValueError(f"{name}: the width is not known; give n_in, or put the layer in a Sequential")
        return (*batch_shape(batch, f"{name}.init_state"), self.n_in)


class Pooling(OfAnyWidth):
    """A layer that returns one output for a stretch."""

    @property
    def pools(self) -> bool:
        """True: a stretch has one output."""
        return True


class LastStep(Pooling):
    """The row's last real sample; zeros in a row that has had none.

    The state is that sample, so that a stretch in which a row has no real sample still returns it. In a stream, `step`
    passes the sample on.

    ??? example

        ```python
        >>> import jax.numpy as jnp, sequinox as sqx
        >>> xs = jnp.arange(6.0).reshape(2, 3, 1)
        >>> mask = jnp.array([[True, True, False], [False, False, False]])
        >>> sqx.LastStep(1)(xs, mask=mask).tolist()
        [[1.0], [0.0]]

        ```
    """

    n_in: int | None = eqx.field(static=True)

    def __init__(self, n_in: int | None = None):
        """
        Arguments:
            n_in: width of a sample. May be left out: a `Sequential` or the samples supply it.
        """
        self.n_in = None if n_in is None else size(n_in, "LastStep", "n_in")

    @property
    def receptive_field(self) -> int:
        """1: the last sample alone."""
        return 1

    def init_state(self, batch: BatchShape = (), dtype: DType | None = None) -> Array:
        """Zeros, `"*batch n_in"`.

        Arguments:
            batch: the batch axes, an integer or a tuple; `()` for a single stream.
            dtype: dtype of the stream; default float32.
        """
        return jnp.zeros(self._shape(batch), float_dtype(dtype, "LastStep.init_state"))

    def _step(self, x: Array, state: State, key: Array | None) -> tuple[Array, State]:
        del state, key
        return x, x

    def _unroll(
        self, xs: Array, state: State, mask: Array | None, resets: Array | None, key: Array | None
    ) -> tuple[Array, State]:
        del resets, key
        if xs.shape[-2] == 0:
            return state, state
        if mask is None:
            return xs[..., -1, :], xs[..., -1, :]
        last = xs.shape[-2] - 1 - jnp.argmax(jnp.flip(mask, -1), -1)
        y = jnp.take_along_axis(xs, jnp.expand_dims(last, (-2, -1)), -2)[..., 0, :]
        y = select(jnp.any(mask, -1), y, state)
        return y, y


class MeanState(NamedTuple):
    """The mean so far, `"*batch n_in"` (at least float32), and the number of its samples, int32 `"*batch"`.

    The number stops at 2^30 - 1.
    """

    mean: Array
    n: Array


class MeanOverTime(Pooling):
    """The mean of the row's real samples (since its last reset); zeros in a row that has had none.

    The state is the running mean and its number, kept in float32 at least: in half precision a long mean would stand
    still. In a stream, `step` returns the mean so far.

    ??? example

        ```python
        >>> import jax.numpy as jnp, sequinox as sqx
        >>> xs = jnp.arange(6.0).reshape(2, 3, 1)
        >>> mask = jnp.array([[True, True, False], [False, False, False]])
        >>> sqx.MeanOverTime(1)(xs, mask=mask).tolist()
        [[0.5], [0.0]]

        ```
    """

    n_in: int | None = eqx.field(static=True)

    def __init__(self, n_in: int | None = None):
        """
        Arguments:
            n_in: width of a sample. May be left out: a `Sequential` or the samples supply it.
        """
        self.n_in = None if n_in is None else size(n_in, "MeanOverTime", "n_in")

    def init_state(self, batch: BatchShape = (), dtype: DType | None = None) -> MeanState:
        """Mean and number zero.

        Arguments:
            batch: the batch axes, an integer or a tuple; `()` for a single stream.
            dtype: dtype of the stream; default float32.
        """
        shape = self._shape(batch)
        dtype = wide(float_dtype(dtype, "MeanOverTime.init_state"))
        return MeanState(jnp.zeros(shape, dtype), jnp.zeros(shape[:-1], jnp.int32))

    def _step(self, x: Array, state: MeanState, key: Array | None) -> tuple[Array, MeanState]:
        del key
        n, dtype = state.n + 1, state.mean.dtype
        whole = _column(n, dtype)
        mean = with_more(state.mean, x.astype(dtype) / whole, 1 / whole)
        return mean.astype(x.dtype), MeanState(mean, jnp.minimum(n, MOST))

    def _unroll(
        self, xs: Array, state: MeanState, mask: Array | None, resets: Array | None, key: Array | None
    ) -> tuple[Array, MeanState]:
        del key
        counted = counted_samples(xs, mask, resets)
        if resets is not None:
            state = select(restarts(mask, resets), self.init_state(xs.shape[:-2], xs.dtype), state)
        dtype = state.mean.dtype
        more = jnp.sum(counted, -1, dtype=jnp.int32)
        n = state.n + more
        whole = _column(jnp.maximum(n, 1), dtype)
        # Divided before they are summed, so that the sum cannot overflow.
        shares = jnp.where(jnp.expand_dims(counted, -1), xs.astype(dtype) / jnp.expand_dims(whole, -2), 0)
        mean = with_more(state.mean, jnp.sum(shares, -2), _column(more, dtype) / whole)
        return mean.astype(xs.dtype), MeanState(mean, jnp.minimum(n, MOST))


class MaxState(NamedTuple):
    """The largest sample so far, `"*batch n_in"`, zeros before the first; whether there was one, bool `"*batch"`."""

    max: Array
    seen: Array


class MaxOverTime(Pooling):
    """The largest of the row's real samples (since its last reset) in each channel; zeros in a row that has had none.

    Of equal samples the first one counts: it receives the whole gradient. NaN counts as the largest. The state is the
    largest sample so far and whether there was one, so that negative numbers are not taken for smaller than nothing. In
    a stream, `step` returns the largest so far.

    ??? example

        ```python
        >>> import jax.numpy as jnp, sequinox as sqx
        >>> xs = -jnp.arange(6.0).reshape(2, 3, 1)
        >>> mask = jnp.array([[False, True, True], [False, False, False]])
        >>> sqx.MaxOverTime(1)(xs, mask=mask).tolist()
        [[-1.0], [0.0]]

        ```
    """

    n_in: int | None = eqx.field(static=True)

    def __init__(self, n_in: int | None = None):
        """
        Arguments:
            n_in: width of a sample. May be left out: a `Sequential` or the samples supply it.
        """
        self.n_in = None if n_in is None else size(n_in, "MaxOverTime", "n_in")

    def init_state(self, batch: BatchShape = (), dtype: DType | None = None) -> MaxState:
        """Zeros, and no sample seen.

        Arguments:
            batch: the batch axes, an integer or a tuple; `()` for a single stream.
            dtype: dtype of the stream; default float32.
        """
        shape = self._shape(batch)
        return MaxState(jnp.zeros(shape, float_dtype(dtype, "MaxOverTime.init_state")), jnp.zeros(shape[:-1], bool))

    def _unroll(
        self, xs: Array, state: MaxState, mask: Array | None, resets: Array | None, key: Array | None
    ) -> tuple[Array, MaxState]:
        del key
        if xs.shape[-2] == 0:
            return state.max, state
        counted = counted_samples(xs, mask, resets)
        if resets is not None:
            state = select(restarts(mask, resets), self.init_state(xs.shape[:-2], xs.dtype), state)
        xs = select(counted, xs, jnp.full_like(xs, -jnp.inf))
        first = jnp.argmax(xs, -2, keepdims=True)  # of a NaN, or of the largest
        here = MaxState(jnp.take_along_axis(xs, first, -2)[..., 0, :], jnp.any(counted, -1))
        state = larger(state, here)
        return state.max, state


MOST = 2**30 - 1
"""Where counts of samples stop: two of them can still be added in 32 bits."""


def with_more(mean: Array, new: Array, share: Array) -> Array:
    """`(1 - share) * mean + new`, in a form in which a long mean does not drift, and without a difference that may
    overflow. (`1 - share` would be rounded the same way at every step, for a `share` far below 1.)"""
    return jnp.where(jnp.isinf(mean), mean + new, mean + (new - mean * share))


def larger(before: MaxState, after: MaxState) -> MaxState:
    """The larger of two maxima, the first where they are equal; NaN is the largest."""
    wins = (after.max > before.max) | (jnp.isnan(after.max) & ~jnp.isnan(before.max))
    wins = jnp.expand_dims(after.seen, -1) & (wins | ~jnp.expand_dims(before.seen, -1))
    return MaxState(jnp.where(wins, after.max, before.max), before.seen | after.seen)


def restarts(mask: Array | None, resets: Array) -> Array:
    """In which rows a real sample of a stretch starts afresh."""
    return jnp.any(resets if mask is None else resets & mask, -1)


def counted_samples(xs: Array, mask: Array | None, resets: Array | None) -> Array:
    """The real samples of a stretch that no reset follows."""
    counted = jnp.ones(xs.shape[:-1], bool) if mask is None else mask
    if resets is None or xs.shape[-2] == 0:
        return counted
    resets = resets & counted
    later = jnp.flip(jnp.cumsum(jnp.flip(resets, -1), -1, dtype=jnp.int32), -1) - resets.astype(jnp.int32)
    return counted & (later == 0)


def _column(n: Array, dtype: DType) -> Array:
    return jnp.expand_dims(n, -1).astype(dtype)
