"""The feed-forward network of a transformer block."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._checks import check_key, flag, float_dtype, size
from .._linear import apply_affine, make_weight
from .._types import DType, Initializer, PRNGKey
from ._pointwise import Pointwise


class FeedForward(Pointwise):
    r"""Two dense layers with an activation between them, at every sample.

    $$
    y = W_2\, f(W_1 x + b_1) + b_2
    \qquad\text{or, gated,}\qquad
    y = W_2\, \bigl(f(W_g x + b_g) \odot (W_1 x + b_1)\bigr) + b_2
    $$

    Sources: [Vaswani et al. 2017](https://arxiv.org/abs/1706.03762), eq. (2); gated:
    [Shazeer 2020](https://arxiv.org/abs/2002.05202), eq. (5), which has no biases.

    ??? example

        ```python
        >>> import jax, jax.numpy as jnp, sequinox as sqx
        >>> sqx.FeedForward(8, 32, jax.random.key(0))(jnp.ones((5, 8))).shape
        (5, 8)

        ```
    """

    W_1: Float[Array, "d_ff n_in"]
    b_1: Float[Array, " d_ff"] | None
    W_g: Float[Array, "d_ff n_in"] | None
    b_g: Float[Array, " d_ff"] | None
    W_2: Float[Array, "n_in d_ff"]
    b_2: Float[Array, " n_in"] | None
    n_in: int = eqx.field(static=True)
    n_out: int = eqx.field(static=True)
    d_ff: int = eqx.field(static=True)
    activation: Callable = eqx.field(static=True)

    def __init__(
        self,
        n_in: int,
        d_ff: int,
        key: PRNGKey,
        *,
        activation: Callable = jax.nn.relu,
        gated: bool = False,
        use_bias: bool = True,
        initializer: Initializer = jax.nn.initializers.xavier_normal(),
        dtype: DType | None = None,
    ):
        """
        Arguments:
            n_in: width of a sample, and of the output.
            d_ff: width between the two layers; the paper takes `4 * n_in`.
            key: PRNG key for the weights.
            activation: a function of arrays, number by number, such as those of `jax.nn`; default `jax.nn.relu`, as in
                the paper. A new lambda for every layer means a new compilation for every layer.
            gated: whether the activation of a third dense layer multiplies the first; with `jax.nn.silu`, SwiGLU.
            use_bias: whether the layers have biases, which start at zero.
            initializer: of the weights; default `xavier_normal`, as in the other layers.
            dtype: of the weights; default: JAX's default, float32.

        Raises:
            TypeError, ValueError: for sizes that are not positive integers, an activation that is no function, a wrong
                dtype or key. At the call, if the activation changes shape or dtype.
        """
        who = "FeedForward"
        self.n_in = self.n_out = size(n_in, who, "n_in")
        self.d_ff = size(d_ff, who, "d_ff")
        if not callable(activation):
            raise TypeError(f"{who}: activation must be a function such as jax.nn.relu, got {activation!r}")
        self.activation = activation
        gated, use_bias, dtype = flag(gated, who, "gated"), flag(use_bias, who, "use_bias"), float_dtype(dtype, who)
        k1, k2, kg = jax.random.split(check_key(key, who), 3)
        weight = lambda k, n_out, n_in: make_weight(k, (n_out, n_in), initializer, dtype, who)
        bias = lambda n: jnp.zeros(n, dtype) if use_bias else None
        self.W_1, self.b_1 = weight(k1, self.d_ff, self.n_in), bias(self.d_ff)
        self.W_2, self.b_2 = weight(k2, self.n_in, self.d_ff), bias(self.n_in)
        self.W_g, self.b_g = (weight(kg, self.d_ff, self.n_in), bias(self.d_ff)) if gated else (None, None)

    def apply(self, x: Array, key: Array | None) -> Array:
        """The network on the last axis."""
        del key
        first = apply_affine(self.W_1, x, self.b_1)
        before = first if self.W_g is None else apply_affine(self.W_g, x, self.b_g)
        hidden: Any = self.activation(before)
        if (jnp.shape(hidden), jnp.result_type(hidden)) != (before.shape, before.dtype):
            raise ValueError(
                f"FeedForward: activation must keep shape and dtype, {before.dtype} {before.shape}, "
                f"got {jnp.result_type(hidden)} {jnp.shape(hidden)}"
            )
        return apply_affine(self.W_2, hidden if self.W_g is None else hidden * first, self.b_2)
