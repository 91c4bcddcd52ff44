"""The gated recurrent unit of Cho et al."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.nn import sigmoid
from jaxtyping import Array, Float

from .._checks import flag, float_dtype, sizes
from .._types import DType, Initializer, PRNGKey
from ._cell import Implementation, RecurrentCell, check_implementation
from ._initializers import Draw
from ._norm import make_gain, normalise, normed_affine
from ._plan import Affine


class GRU(RecurrentCell[Array]):
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

    **Two conventions of the update gate.** Here, in Cho et al. and in PyTorch it keeps. In others, such as
    [Chung et al. 2014](https://arxiv.org/abs/1412.3555), it *writes*, $h' = (1 - z) \odot h + z \odot \tilde h$. Since
    $1 - \sigma(a) = \sigma(-a)$, the two are the same unit: negate `W_z`, `U_z` and `b_z` to go from one to the other.

    **Two places of the reset gate.** By default it acts on the state before the product with $U$, as in the paper. With
    `reset_after` it acts on the product, as in PyTorch and cuDNN, and there is an inner bias `b_U`:

    $$
    \tilde h = \tanh(W x + b + r \odot (U h + b_U))
    $$

    **Normalisation.** With `layer_norm`, each of the three pre-activations $a$ becomes $\gamma \odot N(a) + b$, with a
    learned gain $\gamma$ of its own (`gamma_r`, `gamma_z`, `gamma`, ones at first), the bias $b$ after it, and

    $$
    N(a) = \frac{a - \operatorname{mean}(a)}{\sqrt{\operatorname{var}(a) + 10^{-6}}}
    $$

    Only $b_U$ stays inside. [Ba et al. 2016](https://arxiv.org/abs/1607.06450) normalise the products with the sample
    and with the state apart, and only then add them.

    Source: [Cho et al. 2014](https://arxiv.org/abs/1406.1078), page 3, equations (5) to (8). The paper prints no
    biases; one on each of the three pre-activations, zero at first, is our addition.

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
    b_U: Float[Array, " n_hidden"] | None
    gamma_r: Float[Array, " n_hidden"] | None
    gamma_z: Float[Array, " n_hidden"] | None
    gamma: Float[Array, " n_hidden"] | None
    n_in: int = eqx.field(static=True)
    n_hidden: int = eqx.field(static=True)
    implementation: Implementation = eqx.field(static=True)

    def __init__(
        self,
        n_in: int,
        n_hidden: int,
        key: PRNGKey,
        *,
        reset_after: bool = False,
        layer_norm: bool = False,
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
            reset_after: whether the reset gate acts on the product with the state instead of the state (see above).
                Default False.
            layer_norm: whether the pre-activations are normalised (see above). Default False.
            initializer: of input and recurrent weights, one of `jax.nn.initializers` or any function of
                `(key, shape, dtype)` whose last axis is the output; default `xavier_normal`, which keeps the variances
                of input and state of one order. Biases start at zero.
            recurrent_initializer: of the recurrent weights alone, for example `jax.nn.initializers.orthogonal()`;
                default (None): the same as `initializer`.
            implementation: `"scan"`, `"fused"` or None (chosen), as
                [`RecurrentCell`][sequinox.recurrent.RecurrentCell] explains.
            dtype: of the weights; default: JAX's default, float32.

        Raises:
            TypeError, ValueError: for sizes that are not positive integers, an unknown `implementation`, a wrong dtype.
        """
        self.n_in, self.n_hidden = sizes("GRU", n_in=n_in, n_hidden=n_hidden)
        self.implementation = check_implementation(implementation, "GRU")
        dtype = float_dtype(dtype, "GRU")
        draw = Draw("GRU", key, 6, initializer, recurrent_initializer, dtype)
        self.W_r, self.U_r = draw.pair(n_in, n_hidden)
        self.W_z, self.U_z = draw.pair(n_in, n_hidden)
        self.W, self.U = draw.pair(n_in, n_hidden)
        self.b_r, self.b_z, self.b = (jnp.zeros(n_hidden, dtype) for _ in range(3))
        self.b_U = jnp.zeros(n_hidden, dtype) if flag(reset_after, "GRU", "reset_after") else None
        self.gamma_r, self.gamma_z, self.gamma = (make_gain(layer_norm, n_hidden, dtype, "GRU") for _ in range(3))

    def start(self, dtype: DType) -> Float[Array, " n_hidden"]:
        """Zeros."""
        return jnp.zeros(self.n_hidden, dtype)

    def transition(
        self, affine: Affine, x: Float[Array, " n_in"], state: Float[Array, " n_hidden"]
    ) -> tuple[Float[Array, " n_hidden"], Float[Array, " n_hidden"]]:
        """One sample: the new state, as output and as state."""
        h = state
        r = sigmoid(normed_affine(affine, (self.W_r, x), (self.U_r, h), self.b_r, self.gamma_r))
        z = sigmoid(normed_affine(affine, (self.W_z, x), (self.U_z, h), self.b_z, self.gamma_z))
        if self.b_U is None:
            candidate = jnp.tanh(normed_affine(affine, (self.W, x), (self.U, r * h), self.b, self.gamma))
        elif self.gamma is None:
            candidate = jnp.tanh(affine((self.W, x), self.b) + r * affine((self.U, h), self.b_U))
        else:
            a = affine((self.W, x)) + r * affine((self.U, h), self.b_U)
            candidate = jnp.tanh(self.gamma * normalise(a) + self.b)
        h = z * h + (1 - z) * candidate
        return h, h
