"""The minimal gated unit of Zhou et al."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.nn import sigmoid
from jaxtyping import Array, Float

from .._checks import float_dtype, number, sizes
from .._types import DType, Initializer, PRNGKey
from ._cell import Implementation, RecurrentCell, check_implementation
from ._initializers import Draw
from ._plan import Affine


class MGU(RecurrentCell[Array]):
    r"""Minimal gated unit: a GRU whose two gates are one.

    $$
    \begin{aligned}
    f &= \sigma(W_f x + U_f h + b_f) \\
    \tilde h &= \tanh(W x + U (f \odot h) + b) \\
    h' &= (1 - f) \odot h + f \odot \tilde h
    \end{aligned}
    $$

    The gate is called a forget gate, and at 1 it does forget: the state is replaced. At 0 the state is held. The output
    is the new state $h'$.

    Source: [Zhou et al. 2016](https://arxiv.org/abs/1603.09420).

    ??? example

        ```python
        >>> import jax, jax.numpy as jnp, sequinox as sqx
        >>> mgu = sqx.MGU(3, 5, jax.random.key(0), forget_bias=-1.0)
        >>> mgu(jnp.ones((2, 7, 3))).shape
        (2, 7, 5)

        ```
    """

    W_f: Float[Array, "n_hidden n_in"]
    U_f: Float[Array, "n_hidden n_hidden"]
    b_f: Float[Array, " n_hidden"]
    W: Float[Array, "n_hidden n_in"]
    U: Float[Array, "n_hidden n_hidden"]
    b: Float[Array, " n_hidden"]
    n_in: int = eqx.field(static=True)
    n_hidden: int = eqx.field(static=True)
    implementation: Implementation = eqx.field(static=True)

    def __init__(
        self,
        n_in: int,
        n_hidden: int,
        key: PRNGKey,
        *,
        forget_bias: float = 0.0,
        initializer: Initializer = jax.nn.initializers.xavier_normal(),
        recurrent_initializer: Initializer | None = None,
        implementation: Implementation = None,
        dtype: DType | None = None,
    ):
        """
        Arguments:
            n_in: width of a sample.
            n_hidden: width of the state and of the output.
            key: PRNG key for the weights.
            forget_bias: what the gate's bias starts at. Default 0. The gate *replaces*, other than an LSTM's: -1 or -2
                keeps memory from the first update on (sigmoid 0.27 and 0.12).
            initializer: of input and recurrent weights, one of `jax.nn.initializers` or any function of
                `(key, shape, dtype)` whose last axis is the output; default `xavier_normal`, which keeps the variances
                of input and state of one order. The other bias starts at zero.
            recurrent_initializer: of the recurrent weights alone, for example `jax.nn.initializers.orthogonal()`;
                default (None): the same as `initializer`.
            implementation: `"scan"`, `"fused"` or None (chosen), as
                [`RecurrentCell`][sequinox.recurrent.RecurrentCell] explains.
            dtype: of the weights; default: JAX's default, float32.

        Raises:
            TypeError, ValueError: for sizes that are not positive integers, an unknown `implementation`, a forget bias
                that is not finite, a wrong dtype or key.
        """
        self.n_in, self.n_hidden = sizes("MGU", n_in=n_in, n_hidden=n_hidden)
        self.implementation = check_implementation(implementation, "MGU")
        bias = number(forget_bias, "MGU", "forget_bias")
        dtype = float_dtype(dtype, "MGU")
        draw = Draw("MGU", key, 4, initializer, recurrent_initializer, dtype)
        self.W_f, self.U_f = draw.pair(n_in, n_hidden)
        self.W, self.U = draw.pair(n_in, n_hidden)
        self.b_f, self.b = jnp.full(n_hidden, bias, dtype), jnp.zeros(n_hidden, dtype)

    def start(self, dtype: DType) -> Float[Array, " n_hidden"]:
        """Zeros."""
        return jnp.zeros(self.n_hidden, dtype)

    def transition(
        self, affine: Affine, x: Float[Array, " n_in"], state: Float[Array, " n_hidden"]
    ) -> tuple[Float[Array, " n_hidden"], Float[Array, " n_hidden"]]:
        """One sample: the new state, as output and as state."""
        h = state
        f = sigmoid(affine((self.W_f, x), (self.U_f, h), self.b_f))
        candidate = jnp.tanh(affine((self.W, x), (self.U, f * h), self.b))
        h = (1 - f) * h + f * candidate
        return h, h
