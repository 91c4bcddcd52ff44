"""The residual block of temporal convolutional networks."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
from jaxtyping import Array

from .._checks import check_key, check_rate, flag, float_dtype, sizes
from .._layer import SequenceLayer
from .._types import BatchShape, DType, Initializer, PRNGKey
from ..layers import Dense, Dropout
from ._conv import Conv1d


class TemporalBlockState(NamedTuple):
    """What the two convolutions of a `TemporalBlock` remember: the states of two `Conv1d`."""

    first: Array
    second: Array


class TemporalBlock(SequenceLayer[TemporalBlockState]):
    r"""Two causal convolutions with a residual connection: the block of a temporal convolutional network (TCN).

    $$
    \begin{aligned}
    h_t &= D\big(\operatorname{ReLU}((W^{(1)} *_d x)_t + b^{(1)})\big) \\
    F_t &= D\big(\operatorname{ReLU}((W^{(2)} *_d h)_t + b^{(2)})\big) \\
    o_t &= \operatorname{ReLU}(x_t + F_t)
    \end{aligned}
    $$

    $*_d$ is the convolution of [`Conv1d`][sequinox.Conv1d] with the dilation $d$, its weights normalised, and $D$ is
    dropout in training. Where the widths differ, $W x_t + b$ takes the place of $x_t$ in the last line.

    Source: [Bai et al. 2018](https://arxiv.org/abs/1803.01271), section 3.3 and figure 1(b). Dropout there zeroes whole
    channels; here every number is drawn on its own, as in [`Dropout`][sequinox.Dropout].

    ??? example

        ```python
        >>> import jax, jax.numpy as jnp, sequinox as sqx
        >>> block = sqx.TemporalBlock(3, 5, 3, jax.random.key(0), dilation=2)
        >>> block(jnp.ones((7, 3))).shape, block.receptive_field
        ((7, 5), 9)

        ```
    """

    first: Conv1d
    second: Conv1d
    residual: Dense | None
    dropout: Dropout
    n_in: int = eqx.field(static=True)
    n_out: int = eqx.field(static=True)

    def __init__(
        self,
        n_in: int,
        n_out: int,
        kernel_size: int,
        key: PRNGKey,
        *,
        dilation: int = 1,
        dropout: float = 0.0,
        weight_norm: bool = True,
        initializer: Initializer = jax.nn.initializers.xavier_normal(),
        dtype: DType | None = None,
    ):
        """
        Arguments:
            n_in: width of a sample.
            n_out: width of both convolutions, and of the output.
            kernel_size: number of taps of each.
            key: PRNG key for the weights.
            dilation: of both convolutions; default 1.
            dropout: probability of a zero after each convolution in training. Calls then need `key=`. Default 0.
            weight_norm: whether the convolutions' weights are normalised, as in the paper.
            initializer: of the weights; default `xavier_normal`.
            dtype: of the weights; default: JAX's default, float32.

        Raises:
            TypeError, ValueError: for sizes that are not positive integers, a wrong dropout, dtype or key.
        """
        who = "TemporalBlock"
        self.n_in, self.n_out = sizes(who, n_in=n_in, n_out=n_out)
        kernel_size, dilation = sizes(who, kernel_size=kernel_size, dilation=dilation)
        check_rate(dropout, who, "dropout")
        weight_norm, dtype = flag(weight_norm, who, "weight_norm"), float_dtype(dtype, who)
        k_first, k_second, k_residual = jax.random.split(check_key(key, who), 3)
        common: Any = {"dilation": dilation, "weight_norm": weight_norm, "initializer": initializer, "dtype": dtype}
        self.first = Conv1d(self.n_in, self.n_out, kernel_size, k_first, **common)
        self.second = Conv1d(self.n_out, self.n_out, kernel_size, k_second, **common)
        self.residual = None
        if self.n_in != self.n_out:
            self.residual = Dense(self.n_in, self.n_out, k_residual, initializer=initializer, dtype=dtype)
        self.dropout = Dropout(dropout)

    @property
    def receptive_field(self) -> int:
        """`1 + 2 * (kernel_size - 1) * dilation`: two convolutions, one after the other."""
        return self.first.receptive_field + self.second.receptive_field - 1

    def init_state(self, batch: BatchShape = (), dtype: DType | None = None) -> TemporalBlockState:
        """Zeros in place of the samples before the first, for both convolutions.

        Arguments:
            batch: the batch axes, an integer or a tuple; `()` for a single stream.
            dtype: dtype of the stream; default: that of the weights.
        """
        return TemporalBlockState(self.first.init_state(batch, dtype), self.second.init_state(batch, dtype))

    def _step(self, x: Array, state: TemporalBlockState, key: Array | None) -> tuple[Array, TemporalBlockState]:
        return self._run(lambda conv, x, s: conv.step(x, s), x, state, key)

    def _unroll(
        self, xs: Array, state: TemporalBlockState, mask: Array | None, resets: Array | None, key: Array | None
    ) -> tuple[Array, TemporalBlockState]:
        return self._run(lambda conv, x, s: conv.unroll(x, s, mask=mask, resets=resets), xs, state, key)

    def _run(
        self, run: Callable, x: Array, state: TemporalBlockState, key: Array | None
    ) -> tuple[Array, TemporalBlockState]:
        """The block; `run(conv, x, state)` runs a convolution."""
        k_first, k_second = (None, None) if key is None else jax.random.split(key)
        h, first = run(self.first, x, state.first)
        h = self.dropout.apply(jax.nn.relu(h), k_first)
        h, second = run(self.second, h, state.second)
        h = self.dropout.apply(jax.nn.relu(h), k_second)
        residual = x if self.residual is None else self.residual.apply(x, None)
        return jax.nn.relu(residual + h), TemporalBlockState(first, second)
