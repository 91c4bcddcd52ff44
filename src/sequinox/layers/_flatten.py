"""A row as one long vector."""

from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array

from .._checks import float_dtype, size
from .._layer import select
from .._types import BatchShape, DType
from ._pooling import Pooling, counted_samples, restarts


class FlattenState(NamedTuple):
    """The row's first samples, `"*batch max_len n_in"`, zeros after them; and how many, int32 `"*batch"`."""

    samples: Array
    n: Array


class Flatten(Pooling):
    """The row's first `max_len` real samples (since its last reset), laid out one after the other.

    A longer row is cut, a shorter one is followed by zeros: a length chosen before the data is seen. Masked samples do
    not count, wherever they are. The state is those samples and their number. In a stream, `step` returns the vector so
    far.

    ??? example

        ```python
        >>> import jax.numpy as jnp, sequinox as sqx
        >>> xs = jnp.arange(1.0, 7.0).reshape(1, 3, 2)
        >>> sqx.Flatten(2, 2)(xs).tolist()
        [[1.0, 2.0, 3.0, 4.0]]
        >>> sqx.Flatten(2, 2)(xs, mask=jnp.array([[False, True, False]])).tolist()
        [[3.0, 4.0, 0.0, 0.0]]

        ```
    """

    n_in: int | None = eqx.field(static=True)
    max_len: int = eqx.field(static=True)

    def __init__(self, max_len: int, n_in: int | None = None):
        """
        Arguments:
            max_len: how many samples are laid out.
            n_in: width of a sample. May be left out: a `Sequential` or the samples supply it.
        """
        self.max_len = size(max_len, "Flatten", "max_len")
        self.n_in = None if n_in is None else size(n_in, "Flatten", "n_in")

    @property
    def n_out(self) -> int | None:
        """Width of the output: `max_len` times that of a sample."""
        return None if self.n_in is None else self.max_len * self.n_in

    @property
    def keeps_width(self) -> bool:
        return False

    def with_width(self, n_in: int) -> "Flatten":
        """The same layer for samples of a given width."""
        return Flatten(self.max_len, n_in)

    def init_state(self, batch: BatchShape = (), dtype: DType | None = None) -> FlattenState:
        """Zeros.

        Arguments:
            batch: the batch axes, an integer or a tuple; `()` for a single stream.
            dtype: dtype of the stream; default float32.
        """
        *axes, width = self._shape(batch)
        dtype = float_dtype(dtype, "Flatten.init_state")
        return FlattenState(jnp.zeros((*axes, self.max_len, width), dtype), jnp.zeros(tuple(axes), jnp.int32))

    def _unroll(
        self, xs: Array, state: FlattenState, mask: Array | None, resets: Array | None, key: Array | None
    ) -> tuple[Array, FlattenState]:
        del key
        n_time, axes = xs.shape[-2], xs.shape[:-2]
        if resets is not None:
            state = select(restarts(mask, resets), self.init_state(axes, xs.dtype), state)
        samples, n = state
        if n_time:
            if mask is None and resets is None:
                more = jnp.full(axes, n_time, jnp.int32)
            else:
                counted = counted_samples(xs, mask, resets)
                order = jnp.argsort(~counted, axis=-1, stable=True)
                xs = jnp.take_along_axis(xs, jnp.expand_dims(order, -1), -2)
                more = jnp.sum(counted, -1, dtype=jnp.int32)
            # Which sample of the stretch a slot is for; those before and after are not touched.
            column = lambda a: jnp.broadcast_to(jnp.expand_dims(a, -1), (*axes, self.max_len))
            i = jnp.broadcast_to(jnp.arange(self.max_len, dtype=jnp.int32), (*axes, self.max_len)) - column(n)
            new = jnp.take_along_axis(xs, jnp.expand_dims(jnp.clip(i, 0, n_time - 1), -1), -2)
            samples = select((i >= 0) & (i < column(more)), new, samples)
            n = jnp.minimum(n + more, self.max_len)
        return samples.reshape(*axes, -1) if samples.size else self._nothing(samples), FlattenState(samples, n)

    def _nothing(self, samples: Array) -> Array:
        """The output for a batch of no rows."""
        return jnp.zeros((*samples.shape[:-2], self.max_len * samples.shape[-1]), samples.dtype)
