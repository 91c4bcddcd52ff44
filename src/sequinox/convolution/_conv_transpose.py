"""Transposed convolution over time: more samples out than in."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .._checks import check_flags, check_key, flag, float_dtype, sizes
from .._layer import SequenceLayer
from .._types import BatchShape, DType, Initializer, PRNGKey
from ._conv import add_bias, convolve, convolve_one, make_taps, no_past


class ConvTranspose1d(SequenceLayer[Array]):
    r"""Transposed convolution over time: every sample is spread over `kernel_size` faster samples, `stride` for each
    sample read.

    $$
    y_{s t + r} = b + \sum_{m} W_{r + s m}\, x_{t - m} \qquad 0 \le r < s, \quad 0 \le r + s m < k
    $$

    $k$ is `kernel_size`, $s$ is `stride`, and $y$ runs $s$ times as fast as $x$. When $x_t$ has been read,
    $y_{s t}, \dots, y_{s t + s - 1}$ are complete: what follows cannot change them. These $s$ samples, one after the
    other, are the layer's output, of width `stride * n_channels`; `spread` makes one fast sequence of it. So the layer
    streams. A row of $T$ samples gives $s T$; the last $k - s$ that its last samples reach beyond are left out, since
    in a stream they belong to the samples to come.

    The state is the row's last $\lceil k / s \rceil - 1$ real samples, oldest first: what later outputs still need.

    Source: a textbook definition. PyTorch's `weight` has the axes `(n_in, n_channels, kernel_size)`:
    `W = weight.transpose(2, 1, 0)`, and of its outputs ours are the first $s T$.

    ??? example

        ```python
        >>> import jax, jax.numpy as jnp, sequinox as sqx
        >>> up = sqx.ConvTranspose1d(3, 2, 6, 4, jax.random.key(0))
        >>> ys = up(jnp.ones((7, 3)))                  # four samples of width 2 for each of the seven
        >>> ys.shape, up.spread(ys).shape
        ((7, 8), (28, 2))

        ```
    """

    W: Float[Array, "kernel_size n_channels n_in"]
    b: Float[Array, " n_channels"] | None
    n_in: int = eqx.field(static=True)
    n_channels: int = eqx.field(static=True)
    n_out: int = eqx.field(static=True)
    kernel_size: int = eqx.field(static=True)
    stride: int = eqx.field(static=True)

    def __init__(
        self,
        n_in: int,
        n_channels: int,
        kernel_size: int,
        stride: int,
        key: PRNGKey,
        *,
        use_bias: bool = True,
        initializer: Initializer = jax.nn.initializers.xavier_normal(),
        dtype: DType | None = None,
    ):
        """
        Arguments:
            n_in: width of a sample.
            n_channels: width of a fast sample. The layer's `n_out` is `stride * n_channels`.
            kernel_size: over how many fast samples one sample is spread.
            stride: number of fast samples for each sample.
            key: PRNG key for the weights.
            use_bias: whether there is a bias, the same for every fast sample; it starts at zero.
            initializer: of the weights, one of `jax.nn.initializers` or any function of `(key, shape, dtype)` that
                takes a shape `(kernel_size, n_in, n_channels)`; default `xavier_normal`, as in the other layers.
            dtype: of the weights; default: JAX's default, float32.

        Raises:
            TypeError, ValueError: for sizes that are not positive integers, a wrong dtype or key.
        """
        who = "ConvTranspose1d"
        self.n_in, self.n_channels = sizes(who, n_in=n_in, n_channels=n_channels)
        self.kernel_size, self.stride = sizes(who, kernel_size=kernel_size, stride=stride)
        self.n_out = self.stride * self.n_channels
        dtype = float_dtype(dtype, who)
        shape = (self.kernel_size, self.n_channels, self.n_in)
        self.W = make_taps(check_key(key, who), shape, initializer, dtype, who)
        self.b = jnp.zeros(self.n_channels, dtype) if flag(use_bias, who, "use_bias") else None

    def spread(self, ys: Float[Array, "*batch time n_out"]) -> Float[Array, "*batch fast n_channels"]:
        """The layer's outputs as one sequence, `stride` times as long, of samples of width `n_channels`."""
        if ys.ndim < 2 or ys.shape[-1] != self.n_out:
            raise ValueError(f"ConvTranspose1d.spread: ys must have shape (*batch, time, {self.n_out}), got {ys.shape}")
        return ys.reshape(*ys.shape[:-2], ys.shape[-2] * self.stride, self.n_channels)

    def spread_mask(self, mask: Bool[Array, "*batch time"]) -> Bool[Array, "*batch fast"]:
        """The mask of the spread sequence: the `stride` samples of a real sample are real."""
        return jnp.repeat(self._flags(mask, "mask"), self.stride, -1)

    def spread_resets(self, resets: Bool[Array, "*batch time"]) -> Bool[Array, "*batch fast"]:
        """The resets of the spread sequence: at the first of the `stride` samples."""
        spread = jnp.repeat(self._flags(resets, "resets"), self.stride, -1)
        return spread & jnp.broadcast_to(jnp.arange(spread.shape[-1]) % self.stride == 0, spread.shape)

    def _flags(self, flags: Array, name: str) -> Array:
        who = f"ConvTranspose1d.spread_{name}"
        if jnp.ndim(flags) == 0:
            raise ValueError(f"{who}: {name} must have shape (*batch, time), got ()")
        checked = check_flags(flags, jnp.shape(flags), who, name)
        assert checked is not None
        return checked

    @property
    def receptive_field(self) -> int:
        """How many samples the outputs of one depend on, `kernel_size / stride` rounded up."""
        return -(-self.kernel_size // self.stride)

    def init_state(self, batch: BatchShape = (), dtype: DType | None = None) -> Array:
        """Zeros in place of the samples before the first, `"*batch receptive_field-1 n_in"`.

        Arguments:
            batch: the batch axes, an integer or a tuple; `()` for a single stream.
            dtype: dtype of the stream; default: that of the weights.
        """
        return no_past(self, self.receptive_field - 1, batch, dtype)

    def _kernel(self) -> Float[Array, "taps n_out n_in"]:
        """The matrices by how many samples back they reach: those of `stride` fast samples, one above the other."""
        missing = self.receptive_field * self.stride - self.kernel_size
        W = jnp.concatenate([self.W, jnp.zeros((missing, *self.W.shape[1:]), self.W.dtype)])
        return W.reshape(self.receptive_field, self.n_out, self.n_in)

    def _biased(self, ys: Array) -> Array:
        return ys if self.b is None else add_bias(ys, jnp.tile(self.b, self.stride))

    def _step(self, x: Array, state: Array, key: Array | None) -> tuple[Array, Array]:
        del key
        y, state = convolve_one(self._kernel(), x, state)
        return self._biased(y), state

    def _unroll(
        self, xs: Array, state: Array, mask: Array | None, resets: Array | None, key: Array | None
    ) -> tuple[Array, Array]:
        del key
        ys, state = convolve(self._kernel(), xs, state, mask, resets)
        return self._biased(ys), state
