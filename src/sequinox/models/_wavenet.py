"""WaveNet: a causal convolutional model of sequences."""

import equinox as eqx
import jax

from .._checks import check_key, flag, float_dtype, size
from .._layer import SequenceLayer
from .._types import DType, PRNGKey
from ..convolution import Conv1d, WaveNet
from ..layers import Dense, PerSample, Sequential


def wavenet(
    n_in: int,
    n_hidden: int,
    n_out: int,
    key: PRNGKey,
    *,
    n_layers: int = 10,
    n_stacks: int = 1,
    n_skip: int | None = None,
    kernel_size: int = 2,
    first_kernel_size: int = 1,
    tokens: bool = False,
    dtype: DType | None = None,
) -> Sequential:
    """A stack of gated convolutions with doubling dilations, and two dense layers on what they skip: one output a
    sample, from it and those before it.

    With `tokens=True` and `n_out == n_in` a language model: [`generate`][sequinox.generate] continues its sequences.

    Arguments:
        n_in: width of a sample; with `tokens`, the number of different tokens.
        n_hidden: width of what the layers hand on.
        n_out: width of the output; of a language model, the number of tokens.
        key: PRNG key for the weights.
        n_layers: number of gated convolutions in a stack, with the dilations 1, 2, 4 and so on; default 10, up to 512,
            as in the paper.
        n_stacks: number of such stacks, one after another; default 1.
        n_skip: width of the skip connections and of the first dense layer after them; default `n_hidden`.
        kernel_size: number of taps of the gated convolutions; default 2.
        first_kernel_size: number of taps of a causal convolution in front; default 1, each sample alone. The paper's
            figure 4 has one that reaches back.
        tokens: whether samples are integer tokens, which an embedding reads.
        dtype: of the weights; default: JAX's default, float32.

    Returns:
        A [`Sequential`][sequinox.layers.Sequential] with outputs `"*batch time n_out"`, around a
        [`WaveNet`][sequinox.WaveNet]. It streams. Its receptive field is `2**n_layers` real samples for one stack of
        kernels of size 2, if `first_kernel_size` is 1.

    Raises:
        TypeError, ValueError: for sizes that are not positive integers, a wrong dtype or key.

    Source: [van den Oord et al. 2016](https://arxiv.org/abs/1609.03499), sections 2.1 to 2.4 and figure 4.

    ??? example

        ```python
        >>> import jax, jax.numpy as jnp, sequinox as sqx
        >>> net = sqx.wavenet(11, 8, 11, jax.random.key(0), n_layers=4, tokens=True)
        >>> net(jnp.array([3, 1, 4, 1, 5])).shape, net.receptive_field
        ((5, 11), 16)

        ```
    """
    who = "wavenet"
    n_in, n_hidden, n_out = size(n_in, who, "n_in"), size(n_hidden, who, "n_hidden"), size(n_out, who, "n_out")
    n_layers, n_stacks = size(n_layers, who, "n_layers"), size(n_stacks, who, "n_stacks")
    n_skip = n_hidden if n_skip is None else size(n_skip, who, "n_skip")
    kernel_size = size(kernel_size, who, "kernel_size")
    first_kernel_size = size(first_kernel_size, who, "first_kernel_size")
    dtype = float_dtype(dtype, who)
    k_tokens, k_first, k_stack, k_head, k_out = jax.random.split(check_key(key, who), 5)
    layers: list[SequenceLayer] = []
    if flag(tokens, who, "tokens"):
        layers.append(PerSample(eqx.nn.Embedding(n_in, n_hidden, key=k_tokens, dtype=dtype)))
        if first_kernel_size > 1:
            layers.append(Conv1d(n_hidden, n_hidden, first_kernel_size, k_first, dtype=dtype))
    else:
        layers.append(Conv1d(n_in, n_hidden, first_kernel_size, k_first, dtype=dtype))
    dilations = [2**i for i in range(n_layers)] * n_stacks
    layers += [
        WaveNet(n_hidden, n_skip, dilations, k_stack, kernel_size=kernel_size, dtype=dtype),
        PerSample(jax.nn.relu),
        Dense(n_skip, n_skip, k_head, dtype=dtype),
        PerSample(jax.nn.relu),
        Dense(n_skip, n_out, k_out, dtype=dtype),
    ]
    return Sequential(layers)
