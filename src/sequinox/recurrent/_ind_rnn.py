"""The independently recurrent unit of Li et al."""

from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._checks import check_key, float_dtype, number, sizes, wide
from .._linear import make_weight
from .._precision import KEEPS_FLOAT32
from .._types import DType, Initializer, PRNGKey
from ._cell import Implementation, RecurrentCell, check_implementation
from ._plan import Affine


class IndRNN(RecurrentCell[Array]):
    r"""Independently recurrent unit: every hidden unit remembers itself alone, by one recurrent weight.

    $$
    h' = \phi(W x + u \odot h + b)
    $$

    with $\phi$ the rectifier or the hyperbolic tangent. The output is the new state $h'$, which is kept in float32 at
    least, as is $u$: a unit that remembers for long has a $u$ near 1, and stands still in half precision. Units see
    each other in the next layer only, so stack at least two.

    Over $T$ samples a unit's gradient is multiplied by $u^T$ (with the rectifier, while the unit is on): it neither
    vanishes nor grows where $|u|$ is near 1. The paper keeps $|u| \le 2^{1/T}$, so that $T$ samples at most double it.
    That is `u_max`: the bound of the initial values, and of [`clamped`][sequinox.IndRNN.clamped], which puts $u$ back
    after an update.

    Source: [Li et al. 2018](https://arxiv.org/abs/1803.04831).

    ??? example

        ```python
        >>> import jax, jax.numpy as jnp, sequinox as sqx
        >>> cell = sqx.IndRNN(3, 5, jax.random.key(0), u_max=2 ** (1 / 100))    # for rows of 100 samples
        >>> cell(jnp.ones((2, 7, 3))).shape
        (2, 7, 5)

        ```
    """

    W: Float[Array, "n_hidden n_in"]
    u: Float[Array, " n_hidden"] = eqx.field(metadata=KEEPS_FLOAT32)
    b: Float[Array, " n_hidden"]
    n_in: int = eqx.field(static=True)
    n_hidden: int = eqx.field(static=True)
    activation: Literal["relu", "tanh"] = eqx.field(static=True)
    u_max: float = eqx.field(static=True)
    implementation: Implementation = eqx.field(static=True)

    def __init__(
        self,
        n_in: int,
        n_hidden: int,
        key: PRNGKey,
        *,
        activation: Literal["relu", "tanh"] = "relu",
        u_max: float = 1.0,
        initializer: Initializer = jax.nn.initializers.xavier_normal(),
        implementation: Implementation = None,
        dtype: DType | None = None,
    ):
        """
        Arguments:
            n_in: width of a sample.
            n_hidden: width of the state and of the output.
            key: PRNG key for the weights.
            activation: `"relu"` (the default) or `"tanh"`.
            u_max: the largest absolute recurrent weight: `u` starts uniform between `-u_max` and `u_max`. Default 1,
                safe for rows of any length; for rows of `n_time` samples `2 ** (1 / n_time)`.
            initializer: of the input weights, one of `jax.nn.initializers` or any function of `(key, shape, dtype)`
                whose last axis is the output; default `xavier_normal`. The bias starts at zero.
            implementation: `"scan"`, `"fused"` or None (chosen), as
                [`RecurrentCell`][sequinox.recurrent.RecurrentCell] explains.
            dtype: of the weights; default: JAX's default, float32.

        Raises:
            TypeError, ValueError: for sizes that are not positive integers, an unknown `activation` or
                `implementation`, a bound that is not positive, a wrong dtype or key.
        """
        self.n_in, self.n_hidden = sizes("IndRNN", n_in=n_in, n_hidden=n_hidden)
        if activation not in ("relu", "tanh"):
            raise ValueError(f'IndRNN: activation must be "relu" or "tanh", got {activation!r}')
        self.activation = activation
        self.u_max = number(u_max, "IndRNN", "u_max")
        if self.u_max <= 0:
            raise ValueError(f"IndRNN: u_max must be positive, got {u_max}")
        self.implementation = check_implementation(implementation, "IndRNN")
        dtype = float_dtype(dtype, "IndRNN")
        W_key, u_key = jax.random.split(check_key(key, "IndRNN"))
        self.W = make_weight(W_key, (n_hidden, n_in), initializer, dtype, "IndRNN")
        self.u = jax.random.uniform(u_key, (n_hidden,), wide(dtype), -self.u_max, self.u_max)
        self.b = jnp.zeros(n_hidden, dtype)

    def clamped(self) -> "IndRNN":
        """The cell with every recurrent weight between `-u_max` and `u_max`. Call it after an update of the weights.

        ??? example "In a network"

            ```python
            >>> import jax, sequinox as sqx
            >>> net = sqx.recurrent_net(3, 5, 2, jax.random.key(0), cell=sqx.IndRNN, n_layers=2)
            >>> is_cell = lambda node: isinstance(node, sqx.IndRNN)
            >>> net = jax.tree.map(lambda node: node.clamped() if is_cell(node) else node, net, is_leaf=is_cell)

            ```
        """
        return eqx.tree_at(lambda cell: cell.u, self, jnp.clip(self.u, -self.u_max, self.u_max))

    def start(self, dtype: DType) -> Float[Array, " n_hidden"]:
        """Zeros, in float32 at least."""
        return jnp.zeros(self.n_hidden, wide(dtype))

    def transition(
        self, affine: Affine, x: Float[Array, " n_in"], state: Float[Array, " n_hidden"]
    ) -> tuple[Float[Array, " n_hidden"], Float[Array, " n_hidden"]]:
        """One sample: the new state, as output and as state."""
        h = affine((self.W, x), self.b).astype(state.dtype) + self.u.astype(state.dtype) * state
        h = jnp.tanh(h) if self.activation == "tanh" else jax.nn.relu(h)
        return h, h
