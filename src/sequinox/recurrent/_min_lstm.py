"""The minimal LSTM of Feng et al."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.nn import sigmoid, softplus
from jaxtyping import Array, Float

from .._checks import float_dtype, number, sizes, wide
from .._linear import apply_affine
from .._types import DType, Initializer, PRNGKey
from ._diagonal import DiagonalRecurrence
from ._diagonal_scan import Method, check_method
from ._initializers import Draw


class MinLSTM(DiagonalRecurrence[Array]):
    r"""Minimal LSTM: forget and input gate see the sample alone, and their shares add up to 1.

    $$
    \begin{aligned}
    f &= \sigma(W_f x + b_f) \\
    i &= \sigma(W_i x + b_i) \\
    \tilde h &= W x + b \\
    h' &= \frac{f}{f + i} \odot h + \frac{i}{f + i} \odot \tilde h
    \end{aligned}
    $$

    The state is $h$, in float32 at least, the output the new state $h'$. The shares are computed from the difference of
    the gates' logarithms, $\frac{f}{f + i} = \sigma(\ln f - \ln i)$, so that two shut gates do not give $0/0$.

    Source: [Feng et al. 2024](https://arxiv.org/abs/2410.01201), section 3.2. This is the plain form, not the one in
    logarithms, which needs positive states.

    ??? example

        ```python
        >>> import jax, jax.numpy as jnp, sequinox as sqx
        >>> lstm = sqx.MinLSTM(3, 5, jax.random.key(0), forget_bias=1.0)
        >>> lstm(jnp.ones((2, 7, 3))).shape
        (2, 7, 5)

        ```
    """

    W_f: Float[Array, "n_hidden n_in"]
    b_f: Float[Array, " n_hidden"]
    W_i: Float[Array, "n_hidden n_in"]
    b_i: Float[Array, " n_hidden"]
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
        forget_bias: float = 0.0,
        initializer: Initializer = jax.nn.initializers.xavier_normal(),
        method: Method = None,
        dtype: DType | None = None,
    ):
        """
        Arguments:
            n_in: width of a sample.
            n_hidden: width of the state and of the output.
            key: PRNG key for the weights.
            forget_bias: what the forget gate's bias starts at; default 0. More of it keeps memory for longer.
            initializer: of the weights, one of `jax.nn.initializers` or any function of `(key, shape, dtype)` whose
                last axis is the output; default `xavier_normal`. The other biases start at zero.
            method: how the recurrence is run, as [`diagonal_scan`][sequinox.recurrent.diagonal_scan] explains.
            dtype: of the weights; default: JAX's default, float32.

        Raises:
            TypeError, ValueError: for sizes that are not positive integers, an unknown `method`, a forget bias that is
                not finite, a wrong dtype or key.
        """
        self.n_in, self.n_hidden = sizes("MinLSTM", n_in=n_in, n_hidden=n_hidden)
        self.method = check_method(method, "MinLSTM")
        bias = number(forget_bias, "MinLSTM", "forget_bias")
        dtype = float_dtype(dtype, "MinLSTM")
        draw = Draw("MinLSTM", key, 3, initializer, None, dtype)
        self.W_f, self.W_i, self.W = (draw.input(n_hidden, n_in) for _ in range(3))
        self.b_f = jnp.full(n_hidden, bias, dtype)
        self.b_i, self.b = (jnp.zeros(n_hidden, dtype) for _ in range(2))

    def coefficients(self, x: Float[Array, "*axes n_in"]) -> tuple[Array, Array]:
        """The share of `f`, and that of `i` times the candidate."""
        a_f, a_i, candidate = (
            apply_affine(W, x, b).astype(wide(x.dtype))
            for W, b in ((self.W_f, self.b_f), (self.W_i, self.b_i), (self.W, self.b))
        )
        more = softplus(-a_i) - softplus(-a_f)  # ln f - ln i
        return sigmoid(more), sigmoid(-more) * candidate
