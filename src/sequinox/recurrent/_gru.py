"""The gated recurrent unit of Cho et al."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.nn import sigmoid
from jaxtyping import Array, Float

from .._checks import check_key, float_dtype, size
from .._types import DType, Initializer, PRNGKey
from ._cell import Implementation, RecurrentCell, check_implementation, make_weights
from ._plan import Affine


class GRU(RecurrentCell):
    r"""Gated recurrent unit.

    $$
    \begin{aligned}
    r &= \sigma(W_r x + U_r h + b_r) \\
    z &= \sigma(W_z x + U_z h + b_z) \\
    \tilde h &= \tanh(W x + U (r \odot h) + b) \\
    h' &= z \odot h + (1 - z) \odot \tilde h
    \end{aligned}
    $$

    The update gate $z$ *keeps*: at 1 the state is held. The output is the new state $h'$.

    Source: [Cho et al. 2014](https://arxiv.org/abs/1406.1078), page 3, equations (5) to (8). The paper prints no
    biases; one on each of the three pre-activations, zero at first, is our addition. PyTorch's GRU applies the reset
    gate to $U h$ instead.

    ??? example

        ```python
        >>> import jax, jax.numpy as jnp, sequinox as sqx
        >>> gru = sqx.GRU(3, 5, jax.random.key(0))
        >>> ys = gru(jnp.ones((2, 7, 3)))        # two sequences of seven samples
        >>> ys.shape
        (2, 7, 5)
        >>> y, h = gru.step(jnp.ones(3), gru.init_state())
        >>> h.shape
        (5,)

        ```
    """

    W_r: Float[Array, "n_hidden n_in"]
    U_r: Float[Array, "n_hidden n_hidden"]
    b_r: Float[Array, " n_hidden"]
    W_z: Float[Array, "n_hidden n_in"]
    U_z: Float[Array, "n_hidden n_hidden"]
    b_z: Float[Array, " n_hidden"]
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
        initializer: Initializer = jax.nn.initializers.xavier_normal(),
        implementation: Implementation = None,
        dtype: DType | None = None,
    ):
        """
        Arguments:
            n_in: width of a sample.
            n_hidden: width of the state and of the output.
            key: PRNG key for the weights.
            initializer: of input and recurrent weights, one of `jax.nn.initializers` or any function of
                `(key, shape, dtype)` whose last axis is the output; default `xavier_normal`, which keeps the variances
                of input and state of one order. Biases start at zero.
            implementation: `"scan"`, `"fused"` or None (chosen), as
                [`RecurrentCell`][sequinox.recurrent.RecurrentCell] explains.
            dtype: of the weights; default: JAX's default, float32.

        Raises:
            TypeError, ValueError: for sizes that are not positive integers, an unknown `implementation`, a wrong dtype.
        """
        self.n_in, self.n_hidden = size(n_in, "GRU", "n_in"), size(n_hidden, "GRU", "n_hidden")
        self.implementation = check_implementation(implementation, "GRU")
        inputs, hidden = (n_hidden, n_in), (n_hidden, n_hidden)
        dtype = float_dtype(dtype, "GRU")
        shapes = {"W_r": inputs, "U_r": hidden, "W_z": inputs, "U_z": hidden, "W": inputs, "U": hidden}
        weights = make_weights(check_key(key, "GRU"), shapes, initializer, dtype, "GRU")
        self.W_r, self.U_r = weights["W_r"], weights["U_r"]
        self.W_z, self.U_z = weights["W_z"], weights["U_z"]
        self.W, self.U = weights["W"], weights["U"]
        self.b_r, self.b_z, self.b = (jnp.zeros(n_hidden, dtype) for _ in range(3))

    def start(self, dtype: DType) -> Float[Array, " n_hidden"]:
        """Zeros."""
        return jnp.zeros(self.n_hidden, dtype)

    def transition(
        self, affine: Affine, x: Float[Array, " n_in"], state: Float[Array, " n_hidden"]
    ) -> tuple[Float[Array, " n_hidden"], Float[Array, " n_hidden"]]:
        """One sample: the new state, twice."""
        h = state
        r = sigmoid(affine((self.W_r, x), (self.U_r, h), self.b_r))
        z = sigmoid(affine((self.W_z, x), (self.U_z, h), self.b_z))
        candidate = jnp.tanh(affine((self.W, x), (self.U, r * h), self.b))
        h = z * h + (1 - z) * candidate
        return h, h
