"""A temporal convolutional network, from a sequence to a label."""

from collections.abc import Sequence
from typing import Literal

import jax

from .._checks import check_key, check_rate, float_dtype, size
from .._layer import SequenceLayer
from .._types import DType, PRNGKey
from ..convolution import TemporalBlock
from ..layers import Dense, LastStep, MeanOverTime, Sequential


def temporal_conv_net(
    n_in: int,
    channels: Sequence[int],
    n_out: int,
    key: PRNGKey,
    *,
    kernel_size: int = 2,
    pool: Literal["last", "mean"] | None = "last",
    dropout: float = 0.0,
    weight_norm: bool = True,
    dtype: DType | None = None,
) -> Sequential:
    """Blocks of causal convolutions whose dilation doubles from block to block, pooling over time, and a dense head.

    What the blocks see at a sample is bounded: `1 + 2 * (kernel_size - 1) * (2**len(channels) - 1)` real samples, which
    is `net.receptive_field` unless the head reads the mean of all.

    Arguments:
        n_in: width of a sample.
        channels: width of each block; their number is the depth.
        n_out: width of the output, for example the number of classes.
        key: PRNG key for the weights.
        kernel_size: number of taps of every convolution; default 2.
        pool: what the head reads: `"last"` (default), the blocks' output at each row's last real sample; `"mean"`, the
            mean over the row's real samples; None, every sample, for one output a sample.
        dropout: probability of a zero after every convolution in training. Calls then need `key=`. Default 0.
        weight_norm: whether the convolutions' weights are normalised, as in the paper.
        dtype: of the weights; default: JAX's default, float32.

    Returns:
        A [`Sequential`][sequinox.layers.Sequential] of [`TemporalBlock`][sequinox.TemporalBlock]s with outputs
        `"*batch n_out"` (`"*batch time n_out"` if `pool` is None). It streams.

    Raises:
        TypeError, ValueError: for sizes that are not positive integers, an unknown pooling, a wrong dropout, dtype or
            key.

    Source: [Bai et al. 2018](https://arxiv.org/abs/1803.01271), section 3.

    ??? example

        ```python
        >>> import jax, jax.numpy as jnp, sequinox as sqx
        >>> net = sqx.temporal_conv_net(3, [8, 8, 8], 2, jax.random.key(0))
        >>> net(jnp.ones((4, 20, 3))).shape, net.receptive_field
        ((4, 2), 15)

        ```
    """
    who = "temporal_conv_net"
    width, n_out, dtype = size(n_in, who, "n_in"), size(n_out, who, "n_out"), float_dtype(dtype, who)
    if not isinstance(channels, list | tuple):
        raise TypeError(f"{who}: channels must be a list or a tuple of integers, got {type(channels).__name__}")
    if not channels:
        raise ValueError(f"{who}: channels must hold at least one integer")
    widths = [size(n, who, f"channels[{i}]") for i, n in enumerate(channels)]
    kernel_size = size(kernel_size, who, "kernel_size")
    if pool not in ("last", "mean", None):
        raise ValueError(f'{who}: pool must be "last", "mean" or None, got {pool!r}')
    check_rate(dropout, who, "dropout")
    *keys, k_head = jax.random.split(check_key(key, who), len(widths) + 1)
    layers: list[SequenceLayer] = []
    for i, (n, k) in enumerate(zip(widths, keys, strict=True)):
        options = {"dilation": 2**i, "dropout": dropout, "weight_norm": weight_norm, "dtype": dtype}
        layers.append(TemporalBlock(width, n, kernel_size, k, **options))
        width = n
    if pool is not None:
        layers.append(LastStep() if pool == "last" else MeanOverTime())
    return Sequential([*layers, Dense(width, n_out, k_head, dtype=dtype)])
