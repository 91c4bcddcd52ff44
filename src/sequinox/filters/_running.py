"""Statistics of a row's real samples so far, one output a sample."""

import abc

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from .._checks import batch_shape, float_dtype, size, wide
from .._layer import S, SequenceLayer, select
from .._types import BatchShape, DType, State
from ..layers._pooling import MOST, MaxState, MeanState, OfAnyWidth, larger, with_more


class _Running(SequenceLayer[S]):
    """A statistic given by its value on one sample, and by how those of two stretches, one after the other, merge.

    The initial state is that of no samples: merged with another on either side, it leaves that as it is, to the bit.
    """

    @abc.abstractmethod
    def _of_one(self, x: Array) -> S:
        """The state after one sample; of many at once."""

    @abc.abstractmethod
    def _merge(self, before: S, after: S) -> S:
        """The state after two stretches."""

    @abc.abstractmethod
    def _value(self, state: S, dtype: DType) -> Array:
        """The output, in the dtype of the stream."""

    def _step(self, x: Array, state: State, key: Array | None) -> tuple[Array, State]:
        del key
        state = self._merge(state, self._of_one(x))
        return self._value(state, x.dtype), state

    def _unroll(
        self, xs: Array, state: State, mask: Array | None, resets: Array | None, key: Array | None
    ) -> tuple[Array, State]:
        del key
        return _unroll_jitted(self, xs, state, mask, resets)

    def _merge_resetting(self, before: tuple[State, Array], after: tuple[State, Array]) -> tuple[State, Array]:
        """As `_merge`, each state with whether its stretch has a reset: then what came before does not count."""
        return select(after[1], after[0], self._merge(before[0], after[0])), before[1] | after[1]


@eqx.filter_jit
def _unroll_jitted(
    layer: _Running, xs: Array, state: State, mask: Array | None, resets: Array | None
) -> tuple[Array, State]:
    """All prefixes at once, by an associative scan. Jitted, so that calls outside of `jit` do not go merge by merge."""
    axis, flags = xs.ndim - 2, xs.shape[:-1]
    parts = layer._of_one(xs)
    if mask is not None:
        parts = select(mask, parts, layer.init_state(flags, xs.dtype))
        resets = None if resets is None else resets & mask
    if resets is None:
        prefixes = jax.lax.associative_scan(layer._merge, parts, axis=axis)
    else:
        prefixes, resets = jax.lax.associative_scan(layer._merge_resetting, (parts, resets), axis=axis)
    along = lambda a: jnp.broadcast_to(jnp.expand_dims(a, axis), (*flags, *a.shape[axis:]))
    states = layer._merge(jax.tree.map(along, state), prefixes)
    states = states if resets is None else select(resets, prefixes, states)
    last = state if xs.shape[axis] == 0 else jax.tree.map(lambda a: jnp.take(a, flags[-1] - 1, axis), states)
    return layer._value(states, xs.dtype), last


class RunningMean(_Running[MeanState], OfAnyWidth):
    r"""The mean of the samples so far, kept with their number.

    $$
    h_t = h_{t-1} + \frac{x_t - h_{t-1}}{t}
    $$

    where $t$ counts the row's real samples since its last reset. Every sample has the same weight, however long ago it
    came: a filter whose pole moves towards 1. The state is the mean and the number, a
    [`MeanState`][sequinox.layers.MeanState], the mean in float32 at least: in half precision a long mean would stand
    still. The number stops at $2^{30} - 1$.

    Source: a textbook definition.

    ??? example

        ```python
        >>> import jax.numpy as jnp, sequinox as sqx
        >>> sqx.RunningMean(1)(jnp.array([[1.0], [3.0], [8.0]])).tolist()
        [[1.0], [2.0], [4.0]]

        ```
    """

    n_in: int | None = eqx.field(static=True)

    def __init__(self, n_in: int | None = None):
        """
        Arguments:
            n_in: number of channels. May be left out where a `Sequential` or the samples tell it.
        """
        self.n_in = None if n_in is None else size(n_in, "RunningMean", "n_in")

    def init_state(self, batch: BatchShape = (), dtype: DType | None = None) -> MeanState:
        """Mean and number zero.

        Arguments:
            batch: the batch axes, an integer or a tuple; `()` for a single stream.
            dtype: dtype of the stream; default float32.
        """
        shape, dtype = self._shape(batch), wide(float_dtype(dtype, "RunningMean.init_state"))
        return MeanState(jnp.zeros(shape, dtype), jnp.zeros(shape[:-1], jnp.int32))

    def _of_one(self, x: Array) -> MeanState:
        return MeanState(x.astype(wide(x.dtype)), jnp.ones(x.shape[:-1], jnp.int32))

    def _merge(self, before: MeanState, after: MeanState) -> MeanState:
        n, dtype = before.n + after.n, before.mean.dtype
        share = jnp.expand_dims(after.n.astype(dtype) / jnp.maximum(n, 1).astype(dtype), -1)
        return MeanState(with_more(before.mean, after.mean * share, share), jnp.minimum(n, MOST))

    def _value(self, state: MeanState, dtype: DType) -> Array:
        return state.mean.astype(dtype)


class RunningMax(_Running[MaxState], OfAnyWidth):
    r"""The largest sample so far, in each channel.

    $$
    h_t = \max(h_{t-1}, x_t)
    $$

    over the row's real samples since its last reset, $h_1 = x_1$. Of equal samples the first one counts: it receives
    the whole gradient. NaN counts as the largest, and stays until a reset. The state is a
    [`MaxState`][sequinox.layers.MaxState].

    Source: a textbook definition.

    ??? example

        ```python
        >>> import jax.numpy as jnp, sequinox as sqx
        >>> sqx.RunningMax(1)(jnp.array([[-3.0], [-5.0], [-1.0]])).tolist()
        [[-3.0], [-3.0], [-1.0]]

        ```
    """

    n_in: int | None = eqx.field(static=True)

    def __init__(self, n_in: int | None = None):
        """
        Arguments:
            n_in: number of channels. May be left out where a `Sequential` or the samples tell it.
        """
        self.n_in = None if n_in is None else size(n_in, "RunningMax", "n_in")

    def init_state(self, batch: BatchShape = (), dtype: DType | None = None) -> MaxState:
        """Zeros, and no sample seen.

        Arguments:
            batch: the batch axes, an integer or a tuple; `()` for a single stream.
            dtype: dtype of the stream; default float32.
        """
        shape = self._shape(batch)
        return MaxState(jnp.zeros(shape, float_dtype(dtype, "RunningMax.init_state")), jnp.zeros(shape[:-1], bool))

    def _of_one(self, x: Array) -> MaxState:
        return MaxState(x, jnp.ones(x.shape[:-1], bool))

    def _merge(self, before: MaxState, after: MaxState) -> MaxState:
        return larger(before, after)

    def _value(self, state: MaxState, dtype: DType) -> Array:
        del dtype
        return state.max


class RunningCount(_Running[Array]):
    r"""The number of samples so far, one output for all channels.

    $$
    n_t = n_{t-1} + 1
    $$

    counts the row's real samples since its last reset, whatever they hold. The state is the number, int32. The output
    is in the dtype of the stream, rounded where that does not hold it (float16 counts by ones to 2,048, bfloat16 to
    256), and at most the dtype's largest number. The number stops at $2^{30} - 1$.

    Source: a textbook definition.

    ??? example

        ```python
        >>> import jax.numpy as jnp, sequinox as sqx
        >>> mask = jnp.array([True, True, False, True])
        >>> sqx.RunningCount()(jnp.ones((4, 5)), mask=mask).tolist()
        [[1.0], [2.0], [0.0], [3.0]]

        ```
    """

    n_in: int | None = eqx.field(static=True)
    n_out: int = eqx.field(static=True)

    def __init__(self, n_in: int | None = None):
        """
        Arguments:
            n_in: width of a sample; default: any.
        """
        self.n_in = None if n_in is None else size(n_in, "RunningCount", "n_in")
        self.n_out = 1

    def init_state(self, batch: BatchShape = (), dtype: DType | None = None) -> Int[Array, "*batch"]:
        """Zero, int32.

        Arguments:
            batch: the batch axes, an integer or a tuple; `()` for a single stream.
            dtype: dtype of the stream; it does not matter.
        """
        del dtype
        return jnp.zeros(batch_shape(batch, "RunningCount.init_state"), jnp.int32)

    def _of_one(self, x: Array) -> Array:
        return jnp.ones(x.shape[:-1], jnp.int32)

    def _merge(self, before: Array, after: Array) -> Array:
        return jnp.minimum(before + after, MOST)

    def _value(self, state: Array, dtype: DType) -> Array:
        number = jnp.minimum(state.astype(wide(dtype)), float(jnp.finfo(dtype).max))
        return jnp.expand_dims(number.astype(dtype), -1)
