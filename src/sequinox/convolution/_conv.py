"""Causal convolution over time."""

import math
from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._checks import batch_shape, check_key, flag, float_dtype, size, sizes, wide
from .._layer import SequenceLayer
from .._types import BatchShape, DType, Initializer, PRNGKey
from ._window import window_over


class Conv1d(SequenceLayer[Array]):
    r"""Causal convolution over time, dilated or not: an FIR filter whose taps are matrices.

    $$
    y_t = b + \sum_{j=0}^{k-1} W_j\, x_{t - d j}
    $$

    $k$ is `kernel_size` and $d$ is `dilation`; $W_0$ meets the sample itself, $W_j$ the one $d j$ real samples back.
    What lies before the first sample, or before a reset, counts as zeros. The state is the row's last $(k-1) d$ real
    samples, oldest first, so a step costs $k$ small products. With `groups`, the numbers of a sample are dealt into as
    many equal parts, and each part of the output sees its own part of the samples alone.

    With `weight_norm`, each output has its length $g$ apart from its direction, which is all that $W$ still says:
    $g\, W / \lVert W \rVert$ takes the place of $W$, where the norm is taken over all taps and inputs of that output.

    Source: a textbook definition; dilated and causal in [van den Oord et al. 2016](https://arxiv.org/abs/1609.03499),
    section 2.1; weight normalisation from [Salimans and Kingma 2016](https://arxiv.org/abs/1602.07868), equation 2.
    PyTorch's `weight` has the axes `(n_out, n_in / groups, kernel_size)`, with the newest sample last:
    `W = weight.transpose(2, 0, 1)[::-1]`, and it wants $(k-1) d$ zeros in front of the samples.

    ??? example

        ```python
        >>> import jax, jax.numpy as jnp, sequinox as sqx
        >>> conv = sqx.Conv1d(3, 5, 2, jax.random.key(0), dilation=4)
        >>> conv(jnp.ones((2, 7, 3))).shape, conv.receptive_field
        ((2, 7, 5), 5)
        >>> y, state = conv.step(jnp.ones(3))
        >>> state.shape                              # the last four samples
        (4, 3)

        ```
    """

    W: Float[Array, "kernel_size n_out n_group"]
    g: Float[Array, " n_out"] | None
    b: Float[Array, " n_out"] | None
    n_in: int = eqx.field(static=True)
    n_out: int = eqx.field(static=True)
    kernel_size: int = eqx.field(static=True)
    dilation: int = eqx.field(static=True)
    groups: int = eqx.field(static=True)

    def __init__(
        self,
        n_in: int,
        n_out: int,
        kernel_size: int,
        key: PRNGKey,
        *,
        dilation: int = 1,
        groups: int = 1,
        use_bias: bool = True,
        weight_norm: bool = False,
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
            groups: number of parts that do not see each other; it divides `n_in` and `n_out`. With
                `groups == n_in == n_out` every number is filtered on its own.
            use_bias: whether there is a bias; it starts at zero.
            weight_norm: whether the length of each output's weights is trained apart from their direction. At the start
                it changes nothing.
            initializer: of the weights, one of `jax.nn.initializers` or any function of `(key, shape, dtype)` that
                takes a shape `(kernel_size, n_in / groups, n_out)`; default `xavier_normal`, as in the other layers.
            dtype: of the weights; default: JAX's default, float32.

        Raises:
            TypeError, ValueError: for sizes that are not positive integers, groups that do not divide the widths, a
                wrong dtype or key.
        """
        who = "Conv1d"
        self.n_in, self.n_out = sizes(who, n_in=n_in, n_out=n_out)
        self.kernel_size, self.dilation, self.groups = sizes(
            who, kernel_size=kernel_size, dilation=dilation, groups=groups
        )
        if self.n_in % self.groups or self.n_out % self.groups:
            raise ValueError(f"{who}: groups must divide n_in {n_in} and n_out {n_out}, got {groups}")
        dtype = float_dtype(dtype, who)
        shape = (self.kernel_size, self.n_out, self.n_in // self.groups)
        self.W = make_taps(check_key(key, who), shape, initializer, dtype, who)
        self.g = _lengths(self.W.astype(wide(dtype))).astype(dtype) if flag(weight_norm, who, "weight_norm") else None
        self.b = jnp.zeros(self.n_out, dtype) if flag(use_bias, who, "use_bias") else None

    @property
    def kernel(self) -> Float[Array, "kernel_size n_out n_group"]:
        """The matrices in effect: `W`, or with `weight_norm` its direction at the length `g`."""
        if self.g is None:
            return self.W
        W, g = (a.astype(wide(a.dtype)) for a in (self.W, self.g))
        length = _lengths(W)
        scale = g / jnp.where(length == 0, 1, length)
        return (W * jnp.broadcast_to(jnp.expand_dims(scale, (0, 2)), W.shape)).astype(self.W.dtype)

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
        y, state = convolve_one(self.kernel, x, state, self.dilation, self.groups)
        return add_bias(y, self.b), state

    def _unroll(
        self, xs: Array, state: Array, mask: Array | None, resets: Array | None, key: Array | None
    ) -> tuple[Array, Array]:
        del key
        ys, state = convolve(self.kernel, xs, state, mask, resets, self.dilation, self.groups)
        return add_bias(ys, self.b), state


# ---- what convolutions share -----------------------------------------------------------------------------------------


def convolve(
    kernel: Float[Array, "taps n_out n_group"],
    xs: Float[Array, "*batch time n_in"],
    past: Float[Array, "*batch depth n_in"],
    mask: Array | None,
    resets: Array | None,
    dilation: int = 1,
    groups: int = 1,
) -> tuple[Float[Array, "*batch time n_out"], Float[Array, "*batch depth n_in"]]:
    """The outputs of a stretch, and the past of the next; `depth` is `(taps - 1) * dilation`.

    Without resets every sample sees the same lags, and all is one convolution over past and samples (of which masked
    ones have been packed away). With resets a window is unfolded for each sample, so that what lies before its reset
    can be *selected* away: a product with zero would let NaN through.
    """
    n_taps, n_out, _ = kernel.shape
    if xs.size == 0:
        return jnp.zeros((*xs.shape[:-1], n_out), xs.dtype), past
    window = window_over(xs, past, mask, resets)
    if window.since is not None:
        ys = _products(kernel, window.stacked([j * dilation for j in range(n_taps)]), groups)
    else:
        rows = window.samples.reshape(-1, *window.samples.shape[-2:])
        layout = jax.lax.ConvDimensionNumbers(lhs_spec=(0, 2, 1), rhs_spec=(1, 2, 0), out_spec=(0, 2, 1))
        ys = jax.lax.conv_general_dilated(
            rows,
            jnp.flip(kernel, 0),
            (1,),
            [(0, 0)],
            rhs_dilation=(dilation,),
            dimension_numbers=layout,
            feature_group_count=groups,
        ).reshape(*xs.shape[:-1], n_out)
    return window.restore(ys), window.past


def convolve_one(
    kernel: Float[Array, "taps n_out n_group"],
    x: Float[Array, "*batch n_in"],
    past: Float[Array, "*batch depth n_in"],
    dilation: int = 1,
    groups: int = 1,
) -> tuple[Float[Array, "*batch n_out"], Float[Array, "*batch depth n_in"]]:
    """The output of one sample, and the past of the next.

    The past is shifted by one. In a scan over ten layers with dilations 1 to 512, a ring that is written in place was
    no faster for one row and for 32, 16 and 64 wide (CPU, jax 0.10.2); for a single jitted step, up to 1.4 times.
    """
    samples = jnp.concatenate([past, jnp.expand_dims(x, -2)], -2)
    seen = jax.lax.slice_in_dim(samples, 0, samples.shape[-2], dilation, axis=samples.ndim - 2)  # oldest first
    return _products(kernel, jnp.flip(seen, -2), groups), samples[..., 1:, :]


def add_bias(ys: Array, b: Array | None) -> Array:
    """The outputs with a bias, if there is one."""
    return ys if b is None else ys + jnp.broadcast_to(b, ys.shape)


def no_past(layer: SequenceLayer, depth: int, batch: BatchShape, dtype: DType | None) -> Array:
    """The state of a layer that has read nothing yet and remembers `depth` samples."""
    who = f"{type(layer).__name__}.init_state"
    axes, dtype = batch_shape(batch, who), float_dtype(layer.dtype if dtype is None else dtype, who)
    return jnp.zeros((*axes, depth, layer.n_in or 0), dtype)


def make_taps(
    key: PRNGKey, shape: tuple[int, int, int], initializer: Initializer, dtype: DType, who: str
) -> Float[Array, "taps n_out n_in"]:
    """Weights `(taps, n_out, n_in)`. Initialisers take the last two axes for input and output, as JAX's own do."""
    if not callable(initializer):
        raise TypeError(
            f"{who}: initializer must be a function of (key, shape, dtype), such as those of jax.nn.initializers, "
            f"got {initializer!r}"
        )
    n_taps, n_out, n_in = shape
    weight = initializer(key, (n_taps, n_in, n_out), dtype)
    if jnp.shape(weight) != (n_taps, n_in, n_out) or jnp.result_type(weight) != dtype:
        raise ValueError(
            f"{who}: initializer must give an array of shape {(n_taps, n_in, n_out)} and dtype {dtype}, "
            f"got {jnp.shape(weight)} and {jnp.result_type(weight)}"
        )
    return jnp.swapaxes(jnp.asarray(weight), 1, 2)


def dilations_from(values: Sequence[int], who: str) -> tuple[int, ...]:
    """Dilations layer by layer, checked."""
    if not isinstance(values, list | tuple):
        raise TypeError(f"{who}: dilations must be a list or a tuple of integers, got {type(values).__name__}")
    if not values:
        raise ValueError(f"{who}: dilations must hold at least one integer")
    return tuple(size(d, who, f"dilations[{i}]") for i, d in enumerate(values))


def _products(
    kernel: Float[Array, "taps n_out n_group"], seen: Float[Array, "*axes taps n_in"], groups: int
) -> Float[Array, "*axes n_out"]:
    """The sum of the taps' products with the samples that they meet, the newest first."""
    n_taps, n_out, width = kernel.shape
    if groups == 1:  # taps and inputs as one axis: the fastest of three ways to write it (CPU)
        W = jnp.swapaxes(kernel, 0, 1).reshape(n_out, n_taps * width)
        seen = seen.reshape(*seen.shape[:-2], n_taps * width)
        return jax.lax.dot_general(seen, W, (((seen.ndim - 1,), (1,)), ((), ())))
    seen = seen.reshape(*seen.shape[:-1], groups, width)
    kernel = kernel.reshape(n_taps, groups, n_out // groups, width)
    ys = jnp.einsum("...jgi,jgoi->...go", seen, kernel)
    return ys.reshape(*ys.shape[:-2], math.prod(ys.shape[-2:]))


def _lengths(W: Float[Array, "taps n_out n_in"]) -> Float[Array, " n_out"]:
    """The length of each output's weights, with a derivative of zero where it is zero.

    They are in float32 at least: squares of small numbers vanish in half precision.
    """
    squares = jnp.sum(W * W, (0, 2))
    zero = squares == 0
    return jnp.where(zero, 0, jnp.sqrt(jnp.where(zero, 1, squares)))
