"""Long short-term memory, the vanilla block of Greff et al."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.nn import sigmoid
from jaxtyping import Array, Float

from .._checks import check_key, flag, float_dtype, number, size
from .._types import DType, Initializer, PRNGKey
from ._cell import Implementation, RecurrentCell, check_implementation, make_weights
from ._plan import Affine


class LSTMState(NamedTuple):
    """The state of an LSTM: output `y` and cell `c`, each `"*batch n_hidden"`. A plain pair `(y, c)` serves as well."""

    y: Array
    c: Array


class LSTM(RecurrentCell):
    r"""Long short-term memory with peepholes.

    $$
    \begin{aligned}
    z &= \tanh(W_z x + R_z y + b_z) \\
    i &= \sigma(W_i x + R_i y + p_i \odot c + b_i) \\
    f &= \sigma(W_f x + R_f y + p_f \odot c + b_f) \\
    c' &= z \odot i + c \odot f \\
    o &= \sigma(W_o x + R_o y + p_o \odot c' + b_o) \\
    y' &= \tanh(c') \odot o
    \end{aligned}
    $$

    Input and forget gate look at the old cell, the output gate at the new one. The state is
    [`LSTMState(y, c)`][sequinox.recurrent.LSTMState], the output $y'$.

    Source: [Greff et al. 2017](https://arxiv.org/abs/1503.04069), section II (page 2, forward pass). Most libraries
    leave the peepholes out: `peepholes=False`.

    ??? example

        ```python
        >>> import jax, jax.numpy as jnp, sequinox as sqx
        >>> lstm = sqx.LSTM(3, 5, jax.random.key(0), forget_bias=1.0)
        >>> ys, state = lstm.unroll(jnp.ones((7, 3)))
        >>> ys.shape, state.c.shape
        ((7, 5), (5,))

        ```
    """

    W_z: Float[Array, "n_hidden n_in"]
    W_i: Float[Array, "n_hidden n_in"]
    W_f: Float[Array, "n_hidden n_in"]
    W_o: Float[Array, "n_hidden n_in"]
    R_z: Float[Array, "n_hidden n_hidden"]
    R_i: Float[Array, "n_hidden n_hidden"]
    R_f: Float[Array, "n_hidden n_hidden"]
    R_o: Float[Array, "n_hidden n_hidden"]
    b_z: Float[Array, " n_hidden"]
    b_i: Float[Array, " n_hidden"]
    b_f: Float[Array, " n_hidden"]
    b_o: Float[Array, " n_hidden"]
    p_i: Float[Array, " n_hidden"] | None
    p_f: Float[Array, " n_hidden"] | None
    p_o: Float[Array, " n_hidden"] | None
    n_in: int = eqx.field(static=True)
    n_hidden: int = eqx.field(static=True)
    implementation: Implementation = eqx.field(static=True)

    def __init__(
        self,
        n_in: int,
        n_hidden: int,
        key: PRNGKey,
        *,
        peepholes: bool = True,
        forget_bias: float = 0.0,
        initializer: Initializer = jax.nn.initializers.xavier_normal(),
        implementation: Implementation = None,
        dtype: DType | None = None,
    ):
        """
        Arguments:
            n_in: width of a sample.
            n_hidden: width of the state and of the output.
            key: PRNG key for the weights.
            peepholes: whether the gates look at the cell, as in the paper (default); their weights start at zero.
            forget_bias: what the forget gate's bias starts at. Default 0; 1 or 2 keeps memory from the first update on
                (sigmoid 0.73 and 0.88), which helps where much time passes between cause and effect.
            initializer: of input and recurrent weights, one of `jax.nn.initializers` or any function of
                `(key, shape, dtype)` whose last axis is the output; default `xavier_normal`, which keeps the variances
                of input and state of one order. The other biases start at zero.
            implementation: `"scan"`, `"fused"` or None (chosen), as
                [`RecurrentCell`][sequinox.recurrent.RecurrentCell] explains.
            dtype: of the weights; default: JAX's default, float32.

        Raises:
            TypeError, ValueError: for sizes that are not positive integers, an unknown `implementation`, a forget bias
                that is not finite, a wrong dtype or key.
        """
        self.n_in, self.n_hidden = size(n_in, "LSTM", "n_in"), size(n_hidden, "LSTM", "n_hidden")
        self.implementation = check_implementation(implementation, "LSTM")
        flag(peepholes, "LSTM", "peepholes")
        bias = number(forget_bias, "LSTM", "forget_bias")
        dtype = float_dtype(dtype, "LSTM")
        inputs, hidden = (n_hidden, n_in), (n_hidden, n_hidden)
        shapes = {f"W_{g}": inputs for g in "zifo"} | {f"R_{g}": hidden for g in "zifo"}
        weights = make_weights(check_key(key, "LSTM"), shapes, initializer, dtype, "LSTM")
        self.W_z, self.W_i, self.W_f, self.W_o = (weights[f"W_{g}"] for g in "zifo")
        self.R_z, self.R_i, self.R_f, self.R_o = (weights[f"R_{g}"] for g in "zifo")
        self.b_z, self.b_i, self.b_o = (jnp.zeros(n_hidden, dtype) for _ in "zio")
        self.b_f = jnp.full(n_hidden, bias, dtype)
        self.p_i, self.p_f, self.p_o = (jnp.zeros(n_hidden, dtype) if peepholes else None for _ in "ifo")

    def start(self, dtype: DType) -> LSTMState:
        """Zeros."""
        return LSTMState(jnp.zeros(self.n_hidden, dtype), jnp.zeros(self.n_hidden, dtype))

    def transition(
        self, affine: Affine, x: Float[Array, " n_in"], state: LSTMState
    ) -> tuple[Float[Array, " n_hidden"], LSTMState]:
        """One sample: the output, and the new output and cell."""
        y, c = state
        z = jnp.tanh(affine((self.W_z, x), (self.R_z, y), self.b_z))
        i = sigmoid(peep(affine((self.W_i, x), (self.R_i, y), self.b_i), self.p_i, c))
        f = sigmoid(peep(affine((self.W_f, x), (self.R_f, y), self.b_f), self.p_f, c))
        a_o = affine((self.W_o, x), (self.R_o, y), self.b_o)  # before y is overwritten: all four share one product
        c = z * i + c * f
        o = sigmoid(peep(a_o, self.p_o, c))
        y = jnp.tanh(c) * o
        return y, LSTMState(y, c)


def peep(a: Array, p: Array | None, c: Array) -> Array:
    """The pre-activation of a gate that looks at the cell, if it has a peephole."""
    return a if p is None else a + p * c
