"""The recurrent discounted attention unit."""

from collections.abc import Callable
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.nn import log_sigmoid, softplus
from jaxtyping import Array, Float

from .._checks import flag, float_dtype, number, sizes, wide
from .._types import DType, Initializer, PRNGKey
from ._cell import Implementation, RecurrentCell, check_implementation
from ._initializers import Draw
from ._plan import Affine
from ._rwa import RWAState, Squash, add_sample, call, check_function, start_average

Attention = Literal["exp", "sigmoid", "softplus"] | Callable[[Array], Array]


class RDA(RecurrentCell[RWAState]):
    r"""Recurrent discounted attention: a recurrent weighted average that can forget.

    $$
    \begin{aligned}
    u &= W_u x + b_u \\
    g &= W_g x + U_g h + b_g \\
    z &= u \odot \tanh(g) \\
    a &= f_a(W_a x + U_a h + b_a) \\
    \gamma &= \sigma(W_\gamma x + U_\gamma h + b_\gamma) \\
    n' &= \gamma \odot n + a \odot z \\
    d' &= \gamma \odot d + a \\
    h' &= f_h(n' / d') \\
    o' &= f_o(h')
    \end{aligned}
    $$

    The discount $\gamma$ *keeps*: at 1 nothing is forgotten, and the unit is an [`RWA`][sequinox.recurrent.RWA]; at 0
    only the newest sample is left. Before the first sample $n = d = 0$ and $h = f_h(s)$, where $s$ is zero or, with
    `trained_start`, trained. The output is $o'$; the state is [`RWAState(h, n, d, m)`][sequinox.recurrent.RWAState].
    With $f_a = \exp$ there is no $b_a$: it would cancel in $n' / d'$.

    Attention and discount are handled by their logarithms, relative to $m' = \max(m + \log \gamma, \log a)$: so
    $n' = n e^{m - m' + \log \gamma} + z e^{\log a - m'}$, and $d'$ likewise. Neither overflows, and $d'$ is not zero,
    whatever the pre-activations are; also with the sigmoid or the softplus, which vanish in float32 near -100.

    Source: [Maginnis and Richemond 2017](https://arxiv.org/abs/1705.08480), section 5. The paper names its variants by
    $f_a$ and $f_h$: exp-tanh, exp-id, sigmoid-tanh, sigmoid-id.

    ??? example

        ```python
        >>> import jax, jax.numpy as jnp, sequinox as sqx
        >>> rda = sqx.RDA(3, 5, jax.random.key(0), f_a="sigmoid", f_h="identity", f_o="tanh")
        >>> y, state = rda.step(jnp.ones(3))
        >>> bool(jnp.array_equal(y, jnp.tanh(state.h)))
        True

        ```
    """

    W_u: Float[Array, "n_hidden n_in"]
    b_u: Float[Array, " n_hidden"]
    W_g: Float[Array, "n_hidden n_in"]
    U_g: Float[Array, "n_hidden n_hidden"]
    b_g: Float[Array, " n_hidden"]
    W_a: Float[Array, "n_hidden n_in"]
    U_a: Float[Array, "n_hidden n_hidden"]
    b_a: Float[Array, " n_hidden"] | None
    W_gamma: Float[Array, "n_hidden n_in"]
    U_gamma: Float[Array, "n_hidden n_hidden"]
    b_gamma: Float[Array, " n_hidden"]
    s: Float[Array, " n_hidden"] | None
    n_in: int = eqx.field(static=True)
    n_hidden: int = eqx.field(static=True)
    f_a: Attention = eqx.field(static=True)
    f_h: Squash = eqx.field(static=True)
    f_o: Squash = eqx.field(static=True)
    implementation: Implementation = eqx.field(static=True)

    def __init__(
        self,
        n_in: int,
        n_hidden: int,
        key: PRNGKey,
        *,
        f_a: Attention = "exp",
        f_h: Squash = "tanh",
        f_o: Squash = "identity",
        discount_bias: float = 1.0,
        trained_start: bool = False,
        initializer: Initializer = jax.nn.initializers.xavier_normal(),
        recurrent_initializer: Initializer | None = None,
        implementation: Implementation = None,
        dtype: DType | None = None,
    ):
        """
        Arguments:
            n_in: width of a sample.
            n_hidden: width of the average and of the output.
            key: PRNG key for the weights.
            f_a: the attention, `"exp"` (default), `"sigmoid"`, `"softplus"`, or an elementwise function that is
                nowhere negative and nowhere decreasing. That is tried on numbers from -500 to 500, where it must be
                finite too; some cannot be tried if the cell is made inside of `jax.vmap`. A sample with an attention
                of zero changes nothing, and has no gradient through `f_a`.
            f_h: what squashes the average, `"tanh"` (default), `"identity"` or an elementwise function.
            f_o: what makes the output of it, `"identity"` (default), `"tanh"` or an elementwise function.
            discount_bias: what the discount's bias starts at. Default 1 (sigmoid 0.73): it keeps more than it forgets.
                The average then reaches back over `1 / (1 - 0.73)`, about 4 samples at first; with 4 over 55.
            trained_start: whether `s`, which gives the `h` before the first sample, is an array of the cell, zero at
                first and trained. Default False: it is zero, where every cell here begins. It matters little, since it
                meets the first sample alone.
            initializer: of input and recurrent weights, one of `jax.nn.initializers` or any function of
                `(key, shape, dtype)` whose last axis is the output; default `xavier_normal`, which keeps the variances
                of input and state of one order. The other biases start at zero.
            recurrent_initializer: of the recurrent weights alone, for example `jax.nn.initializers.orthogonal()`;
                default (None): the same as `initializer`.
            implementation: `"scan"`, `"fused"` or None (chosen), as
                [`RecurrentCell`][sequinox.recurrent.RecurrentCell] explains.
            dtype: of the weights; default: JAX's default, float32.

        Functions of your own should have a name in the module that defines them: one made in every call, as a lambda
        is, compiles again in every call.

        Raises:
            TypeError, ValueError: for sizes that are not positive integers, an unknown or unfit function, an unknown
                `implementation`, a bias that is not finite, a wrong dtype or key.
        """
        self.n_in, self.n_hidden = sizes("RDA", n_in=n_in, n_hidden=n_hidden)
        self.implementation = check_implementation(implementation, "RDA")
        bias = number(discount_bias, "RDA", "discount_bias")
        dtype = float_dtype(dtype, "RDA")
        self.f_a = _check_attention(f_a, wide(dtype))
        self.f_h = check_function(f_h, ("tanh", "identity"), "RDA", "f_h", wide(dtype))
        self.f_o = check_function(f_o, ("tanh", "identity"), "RDA", "f_o", dtype)
        draw = Draw("RDA", key, 7, initializer, recurrent_initializer, dtype)
        self.W_u = draw.input(n_hidden, n_in)
        self.W_g, self.U_g = draw.pair(n_in, n_hidden)
        self.W_a, self.U_a = draw.pair(n_in, n_hidden)
        self.W_gamma, self.U_gamma = draw.pair(n_in, n_hidden)
        self.b_u, self.b_g = jnp.zeros(n_hidden, dtype), jnp.zeros(n_hidden, dtype)
        self.b_a = None if f_a == "exp" else jnp.zeros(n_hidden, dtype)
        self.b_gamma = jnp.full(n_hidden, bias, dtype)
        self.s = jnp.zeros(n_hidden, dtype) if flag(trained_start, "RDA", "trained_start") else None

    def start(self, dtype: DType) -> RWAState:
        """`f_h(s)`, and an average of nothing: zeros."""
        return start_average(self.s, self.f_h, self.n_hidden, dtype)

    def transition(
        self, affine: Affine, x: Float[Array, " n_in"], state: RWAState
    ) -> tuple[Float[Array, " n_hidden"], RWAState]:
        """One sample: the output, and the new state."""
        h, n, d, m = state
        u = affine((self.W_u, x), self.b_u)
        g = affine((self.W_g, x), (self.U_g, h), self.b_g)
        a = affine((self.W_a, x), (self.U_a, h), *(() if self.b_a is None else (self.b_a,)))
        gamma = affine((self.W_gamma, x), (self.U_gamma, h), self.b_gamma)
        z = (u * jnp.tanh(g)).astype(n.dtype)
        log_a = log_attention(self.f_a, a.astype(n.dtype))
        n, d, m = add_sample(n, d, m, z, log_a, log_sigmoid(gamma.astype(n.dtype)))
        # As long as no sample has had any attention there is no average, and h stays.
        average = n / jnp.where(d == 0, 1, d)
        h = jnp.where(d == 0, h, call(self.f_h, average).astype(h.dtype))
        return call(self.f_o, h), RWAState(h, n, d, m)


def log_attention(f_a: Attention, v: Array) -> Array:
    """`log(f_a(v))`, minus infinity where `f_a(v)` is zero; those known by name are exact where they underflow."""
    if f_a == "exp":
        return v
    if f_a == "sigmoid":
        return log_sigmoid(v)
    if f_a == "softplus":  # log(log(1 + e^v)) = v - e^v / 2 + ..., whose next term is lost in float64 from here on
        small = v < -18
        near = jnp.log(softplus(jnp.where(small, 0, v)))
        return jnp.where(small, v - jnp.exp(jnp.where(small, v, 0)) / 2, near)
    a: Any = call(f_a, v)  # pyright: ignore[reportArgumentType]
    return jnp.where(a == 0, -jnp.inf, jnp.log(jnp.where(a == 0, 1, a)))


def _check_attention(f: Any, dtype: DType) -> Any:
    """`f_a`, tried on a few numbers if it is the user's."""
    f = check_function(f, ("exp", "sigmoid", "softplus"), "RDA", "f_a", dtype)
    if not isinstance(f, str):
        grid = np.concatenate([-np.geomspace(500, 0.01, 40), [0], np.geomspace(0.01, 500, 40)])
        with jax.ensure_compile_time_eval():
            tried = f(jnp.asarray(grid, dtype))
        if isinstance(tried, Tracer):  # some functions cannot be tried inside of `jax.vmap`
            return f
        a = np.asarray(tried, np.float64)
        falls = a < np.concatenate([a[:1], a[:-1]])
        rules = ((~np.isfinite(a), "finite"), (a < 0, "nowhere negative"), (falls, "nowhere decreasing"))
        for wrong, rule in rules:
            if wrong.any():
                i = int(np.argmax(wrong))
                known = '; "exp" is taken by its logarithm and does not overflow' if rule == "finite" else ""
                raise ValueError(f"RDA: f_a must be {rule}, but gives {a[i]:.4g} at {grid[i]:.4g}{known}")
        if not a.any():
            raise ValueError("RDA: f_a must not be zero everywhere, but is from -500 to 500")
    return f
