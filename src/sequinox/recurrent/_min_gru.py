"""The minimal gated recurrent unit of Feng et al."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.nn import sigmoid
from jaxtyping import Array, Float

from .._checks import float_dtype, sizes, wide
from .._linear import apply_affine
from .._types import DType, Initializer, PRNGKey
from ._diagonal import DiagonalRecurrence
from ._diagonal_scan import Method, check_method
from ._initializers import Draw


class MinGRU(DiagonalRecurrence[Array]):
    r"""Minimal gated recurrent unit: a GRU whose gate and candidate see the sample alone.

    $$
    \begin{aligned}
    z &= \sigma(W_z x + b_z) \\
    \tilde h &= W x + b \\
    h' &= (1 - z) \odot h + z \odot \tilde h
    \end{aligned}
    $$

    The gate $z$ *writes*: at 0 the state is held. (In [`GRU`][sequinox.recurrent.GRU] it keeps.) The state is $h$, in
    float32 at least, the output the new state $h'$.

    Source: [Feng et al. 2024](https://arxiv.org/abs/2410.01201), section 3.1. This is the plain form, not the one in
    logarithms, which needs positive states.

    ??? example

        ```python
        >>> import jax, jax.numpy as jnp, sequinox as sqx
        >>> gru = sqx.MinGRU(3, 5, jax.random.key(0))
        >>> gru(jnp.ones((2, 7, 3))).shape
        (2, 7, 5)

        ```
    """

    W_z: Float[Array, "n_hidden n_in"]
    b_z: Float[Array, " n_hidden"]
    W: Float[Array, "n_hidden n_in"]
    b: Float[Array, " n_hidden"]
    n_in: int = eqx.field(static=True)
    n_hidden: int = eqx.field(static=True)
    method: Method = eqx.field(static=True)

    def __init__(
        self,
        n_in: int,
        n_hidden: int,
        key: PRNGKey,
        *,
        initializer: Initializer = jax.nn.initializers.xavier_normal(),
        method: Method = None,
        dtype: DType | None = None,
    ):
        """
        Arguments:
            n_in: width of a sample.
            n_hidden: width of the state and of the output.
            key: PRNG key for the weights.
            initializer: of the weights, one of `jax.nn.initializers` or any function of `(key, shape, dtype)` whose
                last axis is the output; default `xavier_normal`. Biases start at zero.
            method: how the recurrence is run, as [`diagonal_scan`][sequinox.recurrent.diagonal_scan] explains.
            dtype: of the weights; default: JAX's default, float32.

        Raises:
            TypeError, ValueError: for sizes that are not positive integers, an unknown `method`, a wrong dtype or key.
        """
        self.n_in, self.n_hidden = sizes("MinGRU", n_in=n_in, n_hidden=n_hidden)
        self.method = check_method(method, "MinGRU")
        dtype = float_dtype(dtype, "MinGRU")
        draw = Draw("MinGRU", key, 2, initializer, None, dtype)
        self.W_z, self.W = (draw.input(n_hidden, n_in) for _ in range(2))
        self.b_z, self.b = (jnp.zeros(n_hidden, dtype) for _ in range(2))

    def coefficients(self, x: Float[Array, "*axes n_in"]) -> tuple[Array, Array]:
        """`1 - z` and `z` times the candidate."""
        a_z = apply_affine(self.W_z, x, self.b_z).astype(wide(x.dtype))
        candidate = apply_affine(self.W, x, self.b).astype(a_z.dtype)
        return sigmoid(-a_z), sigmoid(a_z) * candidate
