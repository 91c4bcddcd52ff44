"""Gated convolutions, and the stack of them that WaveNet is made of."""

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._checks import check_key, float_dtype, size, sizes
from .._layer import SequenceLayer, composed_field
from .._types import BatchShape, DType, Initializer, PRNGKey
from ..layers import Dense
from ._conv import add_bias, convolve, convolve_one, dilations_from, make_taps, no_past


class GatedConv1d(SequenceLayer[Array]):
    r"""A causal convolution with a gate, itself a causal convolution.

    $$
    z_t = \tanh\big((W_f * x)_t + b_f\big) \odot \sigma\big((W_g * x)_t + b_g\big)
    $$

    $*$ is the convolution of [`Conv1d`][sequinox.Conv1d]. Both read the same samples, and are done as one. The state is
    the row's last `(kernel_size - 1) * dilation` real samples, oldest first.

    Source: [van den Oord et al. 2016](https://arxiv.org/abs/1609.03499), equation 2. It prints no biases; one for each
    convolution, zero at first, is our addition.

    ??? example

        ```python
        >>> import jax, jax.numpy as jnp, sequinox as sqx
        >>> conv = sqx.GatedConv1d(3, 5, 2, jax.random.key(0), dilation=4)
        >>> conv(jnp.ones((7, 3))).shape
        (7, 5)

        ```
    """

    W_f: Float[Array, "kernel_size n_out n_in"]
    b_f: Float[Array, " n_out"]
    W_g: Float[Array, "kernel_size n_out n_in"]
    b_g: Float[Array, " n_out"]
    n_in: int = eqx.field(static=True)
    n_out: int = eqx.field(static=True)
    kernel_size: int = eqx.field(static=True)
    dilation: int = eqx.field(static=True)

    def __init__(
        self,
        n_in: int,
        n_out: int,
        kernel_size: int,
        key: PRNGKey,
        *,
        dilation: int = 1,
        initializer: Initializer = jax.nn.initializers.xavier_normal(),
        dtype: DType | None = None,
    ):
        """
        Arguments:
            n_in: width of a sample.
            n_out: width of the output.
            kernel_size: number of taps.
            key: PRNG key for the weights.
            dilation: how many real samples lie between one tap and the next; default 1, neighbours.
            initializer: of the weights; default `xavier_normal`. Biases start at zero.
            dtype: of the weights; default: JAX's default, float32.

        Raises:
            TypeError, ValueError: for sizes that are not positive integers, a wrong dtype or key.
        """
        who = "GatedConv1d"
        self.n_in, self.n_out = sizes(who, n_in=n_in, n_out=n_out)
        self.kernel_size, self.dilation = sizes(who, kernel_size=kernel_size, dilation=dilation)
        dtype, shape = float_dtype(dtype, who), (self.kernel_size, self.n_out, self.n_in)
        k_f, k_g = jax.random.split(check_key(key, who))
        self.W_f = make_taps(k_f, shape, initializer, dtype, who)
        self.W_g = make_taps(k_g, shape, initializer, dtype, who)
        self.b_f, self.b_g = (jnp.zeros(self.n_out, dtype) for _ in range(2))

    @property
    def receptive_field(self) -> int:
        """`1 + (kernel_size - 1) * dilation`, the samples between the taps counted."""
        return 1 + (self.kernel_size - 1) * self.dilation

    def init_state(self, batch: BatchShape = (), dtype: DType | None = None) -> Array:
        """Zeros in place of the samples before the first, `"*batch receptive_field-1 n_in"`.

        Arguments:
            batch: the batch axes, an integer or a tuple; `()` for a single stream.
            dtype: dtype of the stream; default: that of the weights.
        """
        return no_past(self, self.receptive_field - 1, batch, dtype)

    def _step(self, x: Array, state: Array, key: Array | None) -> tuple[Array, Array]:
        del key
        a, state = convolve_one(jnp.concatenate([self.W_f, self.W_g], 1), x, state, self.dilation)
        return self._gated(a), state

    def _unroll(
        self, xs: Array, state: Array, mask: Array | None, resets: Array | None, key: Array | None
    ) -> tuple[Array, Array]:
        del key
        a, state = convolve(jnp.concatenate([self.W_f, self.W_g], 1), xs, state, mask, resets, self.dilation)
        return self._gated(a), state

    def _gated(self, a: Array) -> Array:
        f, g = jnp.split(a, 2, -1)
        return jnp.tanh(add_bias(f, self.b_f)) * jax.nn.sigmoid(add_bias(g, self.b_g))


class WaveNet(SequenceLayer[tuple[Array, ...]]):
    r"""The stack of a WaveNet: gated convolutions with growing dilations, joined by residual connections, whose skip
    connections are summed up.

    $$
    \begin{aligned}
    z^{(i)}_t &= \tanh\big((W_f^{(i)} * x^{(i)})_t + b_f^{(i)}\big) \odot
    \sigma\big((W_g^{(i)} * x^{(i)})_t + b_g^{(i)}\big) \\
    x^{(i+1)}_t &= x^{(i)}_t + W_r^{(i)} z^{(i)}_t + b_r^{(i)} \\
    y_t &= \sum_i W_s^{(i)} z^{(i)}_t + b_s^{(i)}
    \end{aligned}
    $$

    $x^{(1)}$ are the samples. The last layer has a skip connection alone, since nothing would read its residual. The
    state is the tuple of those of the gated convolutions. What comes before and after,
    [`wavenet`][sequinox.wavenet] adds.

    Source: [van den Oord et al. 2016](https://arxiv.org/abs/1609.03499), equation 2, section 2.4 and figure 4. The
    biases are our addition.

    ??? example

        ```python
        >>> import jax, jax.numpy as jnp, sequinox as sqx
        >>> stack = sqx.WaveNet(6, 5, (1, 2, 4, 8), jax.random.key(0))
        >>> stack(jnp.ones((7, 6))).shape, stack.receptive_field
        ((7, 5), 16)

        ```
    """

    gates: tuple[GatedConv1d, ...]
    residuals: tuple[Dense, ...]
    skips: tuple[Dense, ...]
    n_in: int = eqx.field(static=True)
    n_out: int = eqx.field(static=True)

    def __init__(
        self,
        n_in: int,
        n_out: int,
        dilations: Sequence[int],
        key: PRNGKey,
        *,
        n_hidden: int | None = None,
        kernel_size: int = 2,
        initializer: Initializer = jax.nn.initializers.xavier_normal(),
        dtype: DType | None = None,
    ):
        """
        Arguments:
            n_in: width of a sample, and of what the layers hand on.
            n_out: width of the skip connections, and of the output.
            dilations: that of each layer; `(1, 2, 4, ..., 512)`, once or several times, in the paper.
            key: PRNG key for the weights.
            n_hidden: width of the gated convolutions; default `n_in`.
            kernel_size: number of taps; default 2.
            initializer: of the weights; default `xavier_normal`. Biases start at zero.
            dtype: of the weights; default: JAX's default, float32.

        Raises:
            TypeError, ValueError: for sizes and dilations that are not positive integers, a wrong dtype or key.
        """
        who = "WaveNet"
        self.n_in, self.n_out = sizes(who, n_in=n_in, n_out=n_out)
        n_hidden = self.n_in if n_hidden is None else size(n_hidden, who, "n_hidden")
        kernel_size, dilations = size(kernel_size, who, "kernel_size"), dilations_from(dilations, who)
        common: Any = {"initializer": initializer, "dtype": float_dtype(dtype, who)}
        keys = jax.random.split(check_key(key, who), (3, len(dilations)))
        self.gates = tuple(
            GatedConv1d(self.n_in, n_hidden, kernel_size, k, dilation=d, **common)
            for k, d in zip(keys[0], dilations, strict=True)
        )
        self.residuals = tuple(Dense(n_hidden, self.n_in, k, **common) for k in keys[1][:-1])
        self.skips = tuple(Dense(n_hidden, self.n_out, k, **common) for k in keys[2])

    @property
    def receptive_field(self) -> int | None:
        """One more than the sum of `(kernel_size - 1) * dilation` over the layers."""
        return composed_field(gate.receptive_field for gate in self.gates)

    def init_state(self, batch: BatchShape = (), dtype: DType | None = None) -> tuple[Array, ...]:
        """The states of the gated convolutions: zeros.

        Arguments:
            batch: the batch axes, an integer or a tuple; `()` for a single stream.
            dtype: dtype of the stream; default: that of the weights.
        """
        return tuple(gate.init_state(batch, dtype) for gate in self.gates)

    def _step(self, x: Array, state: tuple[Array, ...], key: Array | None) -> tuple[Array, tuple[Array, ...]]:
        del key
        return self._run(lambda gate, x, s: gate.step(x, s), x, state)

    def _unroll(
        self, xs: Array, state: tuple[Array, ...], mask: Array | None, resets: Array | None, key: Array | None
    ) -> tuple[Array, tuple[Array, ...]]:
        del key
        return self._run(lambda gate, x, s: gate.unroll(x, s, mask=mask, resets=resets), xs, state)

    def _run(self, run: Callable, x: Array, state: tuple[Array, ...]) -> tuple[Array, tuple[Array, ...]]:
        """The layers one after another; `run(gate, x, state)` runs a gated convolution."""
        states, y = [], None
        for i, (gate, skip) in enumerate(zip(self.gates, self.skips, strict=True)):
            z, s = run(gate, x, state[i])
            states.append(s)
            y = skip.apply(z, None) if y is None else y + skip.apply(z, None)
            if i < len(self.residuals):
                x = x + self.residuals[i].apply(z, None)
        assert y is not None
        return y, tuple(states)
