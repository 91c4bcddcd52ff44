"""The plain recurrent unit of Elman."""

from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._checks import float_dtype, sizes
from .._types import DType, Initializer, PRNGKey
from ._cell import Implementation, RecurrentCell, check_implementation
from ._initializers import Draw
from ._norm import make_gain, normed_affine
from ._plan import Affine


class RNN(RecurrentCell[Array]):
    r"""Plain (Elman) recurrent unit.

    $$
    h' = \phi(W x + U h + b)
    $$

    with $\phi$ the hyperbolic tangent or the rectifier. The output is the new state $h'$.

    With `layer_norm`, the pre-activation is normalised inside the loop:

    $$
    \begin{aligned}
    h' &= \phi(\gamma \odot N(W x + U h) + b) \\
    N(a) &= \frac{a - \operatorname{mean}(a)}{\sqrt{\operatorname{var}(a) + 10^{-6}}}
    \end{aligned}
    $$

    with a learned gain $\gamma$ (`gamma`, ones at first), as in [Ba et al. 2016](https://arxiv.org/abs/1607.06450),
    section 3.1. The size of $W$ and $U$ together then no longer matters, only that of one beside the other.

    Source: [Elman 1990](https://doi.org/10.1207/s15516709cog1402_1), a textbook definition. PyTorch's `nn.RNN` adds two
    biases; ours is their sum.

    ??? example

        ```python
        >>> import jax, jax.numpy as jnp, sequinox as sqx
        >>> rnn = sqx.RNN(3, 5, jax.random.key(0), activation="relu")
        >>> rnn(jnp.ones((7, 3))).shape
        (7, 5)

        ```
    """

    W: Float[Array, "n_hidden n_in"]
    U: Float[Array, "n_hidden n_hidden"]
    b: Float[Array, " n_hidden"]
    gamma: Float[Array, " n_hidden"] | None
    n_in: int = eqx.field(static=True)
    n_hidden: int = eqx.field(static=True)
    activation: Literal["tanh", "relu"] = eqx.field(static=True)
    implementation: Implementation = eqx.field(static=True)

    def __init__(
        self,
        n_in: int,
        n_hidden: int,
        key: PRNGKey,
        *,
        activation: Literal["tanh", "relu"] = "tanh",
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
            activation: `"tanh"` (bounded; the default) or `"relu"`.
            layer_norm: whether the pre-activation is normalised (see above). Default False.
            initializer: of input and recurrent weights, one of `jax.nn.initializers` or any function of
                `(key, shape, dtype)` whose last axis is the output; default `xavier_normal`, which keeps the variances
                of input and state of one order. The bias starts at zero.
            recurrent_initializer: of the recurrent weight alone, for example `jax.nn.initializers.orthogonal()` or
                [`scaled_identity`][sequinox.scaled_identity]`()`; default (None): the same as `initializer`.
            implementation: `"scan"`, `"fused"` or None (chosen), as
                [`RecurrentCell`][sequinox.recurrent.RecurrentCell] explains.
            dtype: of the weights; default: JAX's default, float32.

        Raises:
            TypeError, ValueError: for sizes that are not positive integers, an unknown `activation` or
                `implementation`, a wrong dtype or key.
        """
        self.n_in, self.n_hidden = sizes("RNN", n_in=n_in, n_hidden=n_hidden)
        if activation not in ("tanh", "relu"):
            raise ValueError(f'RNN: activation must be "tanh" or "relu", got {activation!r}')
        self.activation = activation
        self.implementation = check_implementation(implementation, "RNN")
        dtype = float_dtype(dtype, "RNN")
        self.W, self.U = Draw("RNN", key, 2, initializer, recurrent_initializer, dtype).pair(n_in, n_hidden)
        self.b = jnp.zeros(n_hidden, dtype)
        self.gamma = make_gain(layer_norm, n_hidden, dtype, "RNN")

    def start(self, dtype: DType) -> Float[Array, " n_hidden"]:
        """Zeros."""
        return jnp.zeros(self.n_hidden, dtype)

    def transition(
        self, affine: Affine, x: Float[Array, " n_in"], state: Float[Array, " n_hidden"]
    ) -> tuple[Float[Array, " n_hidden"], Float[Array, " n_hidden"]]:
        """One sample: the new state, as output and as state."""
        h = normed_affine(affine, (self.W, x), (self.U, state), self.b, self.gamma)
        h = jnp.tanh(h) if self.activation == "tanh" else jax.nn.relu(h)
        return h, h
