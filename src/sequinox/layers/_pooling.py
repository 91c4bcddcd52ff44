"""Pooling over time: one output for a whole row. In a stream, the output so far."""

from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array

from .._checks import batch_shape, float_dtype, size
from .._layer import SequenceLayer, select
from .._types import BatchShape, DType, State


class _Pooling(SequenceLayer):
    n_in: eqx.AbstractVar[int | None]

    @property
    def n_out(self) -> int | None:
        """Width of the output: that of a sample."""
        return self.n_in

    @property
    def pools(self) -> bool:
        """True: a stretch gives one output."""
        return True

    def with_width(self, n_in: int) -> "_Pooling":
        """The same layer for samples of a given width: `Sequential` tells it."""
        return type(self)(n_in)  # pyright: ignore[reportCallIssue]

    def _shape(self, batch: BatchShape) -> tuple[int, ...]:
        name = type(self).__name__
        if self.n_in is None:
            raise ValueError(f"{name}: the width is not known; give it, {name}(n_in), or put the layer in a Sequential")
        return (*batch_shape(batch, f"{name}.init_state"), self.n_in)


class LastStep(_Pooling):
    """The row's last real sample; zeros in a row that has had none.

    The state is that sample, so that a stretch in which a row has no real sample still gives it. In a stream, `step`
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
            n_in: width of a sample. May be left out inside a `Sequential`, which knows it.
        """
        self.n_in = None if n_in is None else size(n_in, "LastStep", "n_in")

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
    """The mean so far, `"*batch n_in"` (at least float32), and the number of its samples, int32 `"*batch"`."""

    mean: Array
    n: Array


class MeanOverTime(_Pooling):
    """The mean of the row's real samples (since its last reset); zeros in a row that has had none.

    The state is the running mean and its number, kept in float32 at least: in half precision a long mean would stand
    still. In a stream, `step` gives the mean so far.

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
            n_in: width of a sample. May be left out inside a `Sequential`, which knows it.
        """
        self.n_in = None if n_in is None else size(n_in, "MeanOverTime", "n_in")

    def init_state(self, batch: BatchShape = (), dtype: DType | None = None) -> MeanState:
        """Mean and number zero.

        Arguments:
            batch: the batch axes, an integer or a tuple; `()` for a single stream.
            dtype: dtype of the stream; default float32.
        """
        shape = self._shape(batch)
        dtype = float_dtype(dtype, "MeanOverTime.init_state")
        dtype = dtype if jnp.finfo(dtype).bits >= 32 else jnp.float32
        return MeanState(jnp.zeros(shape, dtype), jnp.zeros(shape[:-1], jnp.int32))

    def _step(self, x: Array, state: MeanState, key: Array | None) -> tuple[Array, MeanState]:
        del key
        n, dtype = state.n + 1, state.mean.dtype
        whole = _column(n, dtype)
        mean = state.mean * (_column(state.n, dtype) / whole) + x.astype(dtype) / whole
        return mean.astype(x.dtype), MeanState(mean, n)

    def _unroll(
        self, xs: Array, state: MeanState, mask: Array | None, resets: Array | None, key: Array | None
    ) -> tuple[Array, MeanState]:
        del key
        counted = jnp.ones(xs.shape[:-1], bool) if mask is None else mask
        if resets is not None and xs.shape[-2]:
            resets = resets & counted
            # Only what comes after the row's last reset counts: where no reset follows.
            later = jnp.flip(jnp.cumsum(jnp.flip(resets, -1), -1, dtype=jnp.int32), -1) - resets.astype(jnp.int32)
            counted = counted & (later == 0)
            state = select(jnp.any(resets, -1), self.init_state(xs.shape[:-2], xs.dtype), state)
        dtype = state.mean.dtype
        n = state.n + jnp.sum(counted, -1, dtype=jnp.int32)
        whole = _column(jnp.maximum(n, 1), dtype)
        # Divided before they are summed, so that the sum cannot overflow.
        shares = jnp.where(jnp.expand_dims(counted, -1), xs.astype(dtype) / jnp.expand_dims(whole, -2), 0)
        mean = state.mean * (_column(state.n, dtype) / whole) + jnp.sum(shares, -2)
        return mean.astype(xs.dtype), MeanState(mean, n)


def _column(n: Array, dtype: DType) -> Array:
    return jnp.expand_dims(n, -1).astype(dtype)
