"""The base class of layers whose state follows a diagonal linear recurrence."""

import abc
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array

from .._checks import batch_shape, float_dtype, wide
from .._layer import S, SequenceLayer
from .._types import BatchShape, DType, State
from ._diagonal_scan import CHUNK, ComplexPair, Method, Numbers, scan_numbers, times


class DiagonalRecurrence(SequenceLayer[S]):
    r"""A layer whose state follows a diagonal linear recurrence.

    $$
    \begin{aligned}
    h' &= a(x) \odot h + b(x) \\
    y &= \mathrm{readout}(h', x)
    \end{aligned}
    $$

    The coefficients depend on the sample alone, not on the state, so those of all time steps are computed at once, and
    [`diagonal_scan`][sequinox.recurrent.diagonal_scan] does the rest. To write one, give `n_in`, `n_hidden`, `method`
    and `coefficients`; `readout` and `n_out` where the output is not the new state.

    The state is $h$, zeros at first, in float32 at least: in half precision a slow one would stand still. A complex one
    is a [`ComplexPair`][sequinox.recurrent.ComplexPair]: then set `is_complex`.

    ??? example

        ```python
        >>> import equinox as eqx, jax, jax.numpy as jnp, sequinox as sqx
        >>> class Forgets(sqx.DiagonalRecurrence):
        ...     n_in: int = eqx.field(static=True, default=3)
        ...     n_hidden: int = eqx.field(static=True, default=3)
        ...     method: str | None = eqx.field(static=True, default=None)
        ...     def coefficients(self, x):
        ...         return jax.nn.sigmoid(-x), x
        >>> Forgets()(jnp.zeros((3, 3)))[:, 0].tolist()
        [0.0, 0.0, 0.0]

        ```
    """

    n_in: eqx.AbstractVar[int]
    n_hidden: eqx.AbstractVar[int]
    method: eqx.AbstractVar[Method]

    @abc.abstractmethod
    def coefficients(self, x: Array) -> tuple[Any, Any]:
        """`a` and `b` of samples with any leading axes, `"*axes n_in"`.

        Each is `"*axes n_hidden"`, or a pair of such arrays if the state is complex; `a` may be `" n_hidden"`, the same
        for all samples.
        """

    def readout(self, h: S, x: Array) -> Array:
        """The outputs `"*axes n_out"` of new states, in the dtype of the samples, and samples. Default: the states."""
        del x
        return h  # pyright: ignore[reportReturnType]

    @property
    def is_complex(self) -> bool:
        """Whether the state is a pair of arrays, real and imaginary parts."""
        return False

    @property
    def n_out(self) -> int:
        """Width of the output: that of the state."""
        return self.n_hidden

    def init_state(self, batch: BatchShape = (), dtype: DType | None = None) -> State:
        """Zeros, `"*batch n_hidden"`, in float32 at least.

        Arguments:
            batch: the batch axes, an integer or a tuple; `()` for a single stream.
            dtype: dtype of the stream; default: that of the weights.
        """
        who = f"{type(self).__name__}.init_state"
        shape = (*batch_shape(batch, who), self.n_hidden)
        zeros = jnp.zeros(shape, wide(float_dtype(self.dtype if dtype is None else dtype, who)))
        return ComplexPair(zeros, zeros) if self.is_complex else zeros

    def _step(self, x: Array, state: State, key: Array | None) -> tuple[Array, State]:
        del key
        a, b = self._coefficients(x)
        h = state if self.is_complex else (state,)
        a = tuple(jnp.broadcast_to(v, n.shape) for v, n in zip(a, h, strict=True))
        h = tuple(n + v for n, v in zip(times(a, h), b, strict=True))
        return self._readout(h, x), ComplexPair(*h) if self.is_complex else h[0]

    def _unroll(
        self, xs: Array, state: State, mask: Array | None, resets: Array | None, key: Array | None
    ) -> tuple[Array, State]:
        del key
        return _unroll_jitted(self, xs, state, mask, resets)

    def _coefficients(self, x: Array) -> tuple[Numbers, Numbers]:
        pair: Any = lambda n: tuple(v.astype(wide(x.dtype)) for v in (n if self.is_complex else (n,)))
        a, b = self.coefficients(x)
        return pair(a), pair(b)

    def _readout(self, h: Numbers, x: Array) -> Array:
        h = tuple(v.astype(x.dtype) for v in h)
        state: Any = ComplexPair(*h) if self.is_complex else h[0]
        return self.readout(state, x)


@eqx.filter_jit
def _unroll_jitted(
    layer: DiagonalRecurrence, xs: Array, state: State, mask: Array | None, resets: Array | None
) -> tuple[Array, State]:
    """Jitted, so that calls outside of `jit` do not trace it again."""
    a, b = layer._coefficients(xs)
    h0 = state if layer.is_complex else (state,)
    hs, last = scan_numbers(a, b, h0, mask, resets, layer.method, CHUNK)
    return layer._readout(hs, xs), ComplexPair(*last) if layer.is_complex else last[0]
