"""Long short-term memory: the vanilla block of Greff et al., its eight variants, projection and normalisation."""

from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.nn import sigmoid
from jaxtyping import Array, Float

from .._checks import flag, float_dtype, number, size, sizes
from .._types import DType, Initializer, PRNGKey
from ._cell import Implementation, RecurrentCell, check_implementation
from ._initializers import Draw
from ._norm import make_gain, normalise
from ._plan import Affine

Variant: TypeAlias = Literal["V", "NIG", "NFG", "NOG", "NIAF", "NOAF", "NP", "CIFG", "FGR"]
"""The nine models of Greff et al. 2017."""

GATES = {"NIG": "fo", "NFG": "io", "NOG": "if", "CIFG": "io"}
"""The gates with weights of their own, where they are not all three."""


class LSTMState(NamedTuple):
    """The state of an LSTM: output `y` `"*batch n_out"` and cell `c` `"*batch n_hidden"`.

    A plain pair `(y, c)` serves as well.
    """

    y: Array
    c: Array


class FGRState(NamedTuple):
    """The state of an LSTM with full gate recurrence: output `y`, cell `c`, and the gates `i`, `f` and `o`."""

    y: Array
    c: Array
    i: Array
    f: Array
    o: Array


class LSTM(RecurrentCell[LSTMState | FGRState]):
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

    Input and forget gate read the old cell, the output gate the new one. The state is
    [`LSTMState(y, c)`][sequinox.recurrent.LSTMState], the output $y'$.

    Source: [Greff et al. 2017](https://arxiv.org/abs/1503.04069), section II (page 2, forward pass). Most libraries
    leave the peepholes out: `peepholes=False`.

    **Variants.** The same paper takes one thing away at a time, or adds one. Gates that are fixed or coupled have no
    weights (None):

    | `variant` | what differs                                                                                      |
    |-----------|---------------------------------------------------------------------------------------------------|
    | `"V"`     | vanilla: as above                                                                                 |
    | `"NIG"`   | no input gate: $i = 1$                                                                            |
    | `"NFG"`   | no forget gate: $f = 1$                                                                           |
    | `"NOG"`   | no output gate: $o = 1$                                                                           |
    | `"NIAF"`  | no input activation function: $z = W_z x + R_z y + b_z$                                           |
    | `"NOAF"`  | no output activation function: $y' = c' \odot o$                                                  |
    | `"NP"`    | no peepholes: the same as `peepholes=False`                                                       |
    | `"CIFG"`  | coupled input and forget gate: $f = 1 - i$                                                        |
    | `"FGR"`   | full gate recurrence: see below                                                                   |

    With full gate recurrence, each gate $g \in \{i, f, o\}$ also sees what the three gates were at the sample before:
    $R_{ig} i + R_{fg} f + R_{og} o$ is added to its pre-activation. The gates enter the state, which is
    [`FGRState(y, c, i, f, o)`][sequinox.recurrent.FGRState], zeros at first.

    **Projection.** With `n_proj`, the output is a product of what is $y'$ above, and it is the output that the
    recurrent weights, then `(n_hidden, n_proj)`, and whatever reads the layer see:

    $$
    y' = W_p (\tanh(c') \odot o)
    $$

    ([Sak et al. 2014](https://arxiv.org/abs/1402.1128); PyTorch's `proj_size`.) The layer's `n_out` then is `n_proj`.

    **Normalisation.** With `layer_norm`, each pre-activation $a$, peephole included, becomes
    $\gamma \odot N(a) + b$, with a learned gain of its own (`gamma_z` to `gamma_o`, ones at first), the bias $b$
    after it, and

    $$
    N(a) = \frac{a - \operatorname{mean}(a)}{\sqrt{\operatorname{var}(a) + 10^{-6}}}
    $$

    Wherever the cell is read, by a peephole or for the output, $\gamma_c \odot N(c) + b_c$ is read in its place; what
    is carried on to the next sample is $c$ itself. In [Ba et al. 2016](https://arxiv.org/abs/1607.06450), the products
    with sample and output are normalised apart, and there are no peepholes.

    ??? example

        ```python
        >>> import jax, jax.numpy as jnp, sequinox as sqx
        >>> lstm = sqx.LSTM(3, 5, jax.random.key(0), forget_bias=1.0)
        >>> ys, state = lstm.unroll(jnp.ones((7, 3)))
        >>> ys.shape, state.c.shape
        ((7, 5), (5,))
        >>> coupled = sqx.LSTM(3, 5, jax.random.key(0), variant="CIFG", n_proj=2)
        >>> coupled(jnp.ones((7, 3))).shape, coupled.W_f is None
        ((7, 2), True)

        ```
    """

    W_z: Float[Array, "n_hidden n_in"]
    W_i: Float[Array, "n_hidden n_in"] | None
    W_f: Float[Array, "n_hidden n_in"] | None
    W_o: Float[Array, "n_hidden n_in"] | None
    R_z: Float[Array, "n_hidden n_out"]
    R_i: Float[Array, "n_hidden n_out"] | None
    R_f: Float[Array, "n_hidden n_out"] | None
    R_o: Float[Array, "n_hidden n_out"] | None
    b_z: Float[Array, " n_hidden"]
    b_i: Float[Array, " n_hidden"] | None
    b_f: Float[Array, " n_hidden"] | None
    b_o: Float[Array, " n_hidden"] | None
    p_i: Float[Array, " n_hidden"] | None
    p_f: Float[Array, " n_hidden"] | None
    p_o: Float[Array, " n_hidden"] | None
    R_ii: Float[Array, "n_hidden n_hidden"] | None
    R_fi: Float[Array, "n_hidden n_hidden"] | None
    R_oi: Float[Array, "n_hidden n_hidden"] | None
    R_if: Float[Array, "n_hidden n_hidden"] | None
    R_ff: Float[Array, "n_hidden n_hidden"] | None
    R_of: Float[Array, "n_hidden n_hidden"] | None
    R_io: Float[Array, "n_hidden n_hidden"] | None
    R_fo: Float[Array, "n_hidden n_hidden"] | None
    R_oo: Float[Array, "n_hidden n_hidden"] | None
    W_p: Float[Array, "n_out n_hidden"] | None
    gamma_z: Float[Array, " n_hidden"] | None
    gamma_i: Float[Array, " n_hidden"] | None
    gamma_f: Float[Array, " n_hidden"] | None
    gamma_o: Float[Array, " n_hidden"] | None
    gamma_c: Float[Array, " n_hidden"] | None
    b_c: Float[Array, " n_hidden"] | None
    n_in: int = eqx.field(static=True)
    n_hidden: int = eqx.field(static=True)
    n_proj: int | None = eqx.field(static=True)
    variant: Variant = eqx.field(static=True)
    implementation: Implementation = eqx.field(static=True)

    def __init__(
        self,
        n_in: int,
        n_hidden: int,
        key: PRNGKey,
        *,
        variant: Variant = "V",
        peepholes: bool = True,
        n_proj: int | None = None,
        layer_norm: bool = False,
        forget_bias: float = 0.0,
        initializer: Initializer = jax.nn.initializers.xavier_normal(),
        recurrent_initializer: Initializer | None = None,
        implementation: Implementation = None,
        dtype: DType | None = None,
    ):
        """
        Arguments:
            n_in: width of a sample.
            n_hidden: width of the cell, and of the output unless it is projected.
            key: PRNG key for the weights.
            variant: one of the nine models above; default `"V"`, vanilla.
            peepholes: whether the gates read the cell, as in the paper (default); their weights start at zero.
            n_proj: width to which the output is projected; default (None): it is not.
            layer_norm: whether pre-activations and cell are normalised (see above). Default False.
            forget_bias: what the forget gate's bias starts at. Default 0; 1 or 2 keeps memory from the first update on
                (sigmoid 0.73 and 0.88), which helps where much time passes between cause and effect. Of a coupled gate
                (`"CIFG"`), the input gate's bias starts at minus that, which is the same.
            initializer: of input and recurrent weights, one of `jax.nn.initializers` or any function of
                `(key, shape, dtype)` whose last axis is the output; default `xavier_normal`, which keeps the variances
                of input and state of one order. The other biases start at zero.
            recurrent_initializer: of the recurrent weights `R_*` alone, for example
                `jax.nn.initializers.orthogonal()`; default (None): the same as `initializer`.
            implementation: `"scan"`, `"fused"` or None (chosen), as
                [`RecurrentCell`][sequinox.recurrent.RecurrentCell] explains.
            dtype: of the weights; default: JAX's default, float32.

        Raises:
            TypeError, ValueError: for sizes that are not positive integers, an unknown `variant` or `implementation`, a
                forget bias that is not finite or meant for a gate that the variant has not, a single normalised unit, a
                wrong dtype or key.
        """
        who = "LSTM"
        self.n_in, self.n_hidden = sizes(who, n_in=n_in, n_hidden=n_hidden)
        self.n_proj = None if n_proj is None else size(n_proj, who, "n_proj")
        self.implementation = check_implementation(implementation, who)
        if variant not in get_args(Variant):
            raise ValueError(f"{who}: variant must be one of {', '.join(get_args(Variant))}, got {variant!r}")
        peepholes = flag(peepholes, who, "peepholes") and variant != "NP"
        self.variant = "NP" if variant == "V" and not peepholes else variant
        bias = number(forget_bias, who, "forget_bias")
        if variant == "NFG" and bias:
            raise ValueError(f'{who}: forget_bias must be 0 where there is no forget gate, variant "NFG", got {bias}')
        dtype = float_dtype(dtype, who)

        gates, full = self.gates, variant == "FGR"
        n_weights = 2 + 2 * len(gates) + 9 * full + (n_proj is not None)
        draw = Draw(who, key, n_weights, initializer, recurrent_initializer, dtype)
        across = lambda: draw.recurrent(n_hidden, n_hidden) if full else None
        self.W_z = draw.input(n_hidden, n_in)
        self.W_i, self.W_f, self.W_o = (draw.input(n_hidden, n_in) if g in gates else None for g in "ifo")
        self.R_z = draw.recurrent(n_hidden, self.n_out)
        self.R_i, self.R_f, self.R_o = (draw.recurrent(n_hidden, self.n_out) if g in gates else None for g in "ifo")
        self.R_ii, self.R_fi, self.R_oi = (across() for _ in "ifo")
        self.R_if, self.R_ff, self.R_of = (across() for _ in "ifo")
        self.R_io, self.R_fo, self.R_oo = (across() for _ in "ifo")
        self.W_p = None if n_proj is None else draw.input(n_proj, n_hidden)

        zeros = lambda g: jnp.zeros(n_hidden, dtype) if g in gates else None
        self.b_z = jnp.zeros(n_hidden, dtype)
        self.b_i, self.b_f, self.b_o = (zeros(g) for g in "ifo")
        if variant == "CIFG":
            self.b_i = jnp.full(n_hidden, 0 - bias, dtype)
        elif self.b_f is not None:
            self.b_f = jnp.full(n_hidden, bias, dtype)
        self.p_i, self.p_f, self.p_o = (zeros(g) if peepholes else None for g in "ifo")
        gain = lambda g: make_gain(layer_norm, n_hidden, dtype, who) if g in "zc" + gates else None
        self.gamma_z, self.gamma_i, self.gamma_f, self.gamma_o, self.gamma_c = (gain(g) for g in "zifoc")
        self.b_c = jnp.zeros(n_hidden, dtype) if layer_norm else None

    @property
    def n_out(self) -> int:
        """Width of the output: that of the cell, or that to which it is projected."""
        return self.n_hidden if self.n_proj is None else self.n_proj

    @property
    def gates(self) -> str:
        """The letters of the gates that have weights."""
        return GATES.get(self.variant, "ifo")

    def start(self, dtype: DType) -> LSTMState | FGRState:
        """Zeros."""
        zeros = lambda n: jnp.zeros(n, dtype)
        y, c = zeros(self.n_out), zeros(self.n_hidden)
        return FGRState(y, c, *(zeros(self.n_hidden) for _ in "ifo")) if self.variant == "FGR" else LSTMState(y, c)

    def transition(
        self, affine: Affine, x: Float[Array, " n_in"], state: LSTMState | FGRState
    ) -> tuple[Float[Array, " n_out"], LSTMState | FGRState]:
        """One sample: the output, and the new output and cell."""
        y, c, *before = state

        def pre(weights: tuple[Any, ...], b: Any, gamma: Array | None, p: Array | None = None, c: Any = None) -> Array:
            """`W x + R y + p c + b`, and `R_* i + R_* f + R_* o`; with a gain, normalised before the bias."""
            products = zip(weights, (x, y, *before), strict=False)  # z does not see the gates before
            a = affine(*products, b) if gamma is None else affine(*products)
            a = a if p is None else a + p * c
            return a if gamma is None else gamma * normalise(a) + b

        def gate(weights: tuple[Any, ...], b: Any, gamma: Array | None, p: Array | None, c: Array) -> Any:
            return 1 if weights[0] is None else sigmoid(pre(weights, b, gamma, p, c))

        seen = self._seen(c)
        z = pre((self.W_z, self.R_z), self.b_z, self.gamma_z)
        z = z if self.variant == "NIAF" else jnp.tanh(z)
        i = gate((self.W_i, self.R_i, self.R_ii, self.R_fi, self.R_oi), self.b_i, self.gamma_i, self.p_i, seen)
        f = gate((self.W_f, self.R_f, self.R_if, self.R_ff, self.R_of), self.b_f, self.gamma_f, self.p_f, seen)
        f = 1 - i if self.variant == "CIFG" else f
        c = z * i + c * f
        seen = self._seen(c)
        o = gate((self.W_o, self.R_o, self.R_io, self.R_fo, self.R_oo), self.b_o, self.gamma_o, self.p_o, seen)
        y = (seen if self.variant == "NOAF" else jnp.tanh(seen)) * o
        y = y if self.W_p is None else affine((self.W_p, y))
        return y, FGRState(y, c, i, f, o) if self.variant == "FGR" else LSTMState(y, c)

    def _seen(self, c: Array) -> Array:
        """What peepholes and output read of the cell."""
        return c if self.gamma_c is None or self.b_c is None else self.gamma_c * normalise(c) + self.b_c
