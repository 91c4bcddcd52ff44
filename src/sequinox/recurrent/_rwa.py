"""The recurrent weighted average of Ostmeyer and Cowell, and the average that it shares with its discounted kin."""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._checks import flag, float_dtype, sizes, wide
from .._types import DType, Initializer, PRNGKey
from ._cell import Implementation, RecurrentCell, check_implementation
from ._initializers import Draw
from ._plan import Affine

Squash = Literal["tanh", "identity"] | Callable[[Array], Array]
"""What is done to an average or an output: by name, or a function."""


class RWAState(NamedTuple):
    """The state of an `RWA` or `RDA`, each leaf `"*batch n_hidden"`. A plain tuple `(h, n, d, m)` serves as well.

    `n` and `d` are numerator and denominator of the average, relative to `exp(m)`: the paper's are `n * exp(m)` and
    `d * exp(m)`. `m` is the logarithm of the largest attention so far (discounted in an `RDA`). While `d` is zero
    nothing has been read, and `m` is not used. These three are float32 at least, because a long average in half
    precision would stand still.
    """

    h: Array
    n: Array
    d: Array
    m: Array


class RWA(RecurrentCell[RWAState]):
    r"""Recurrent weighted average: attention over everything read so far, kept as a running average.

    $$
    \begin{aligned}
    u &= W_u x + b_u \\
    g &= W_g x + U_g h + b_g \\
    z &= u \odot \tanh(g) \\
    a &= \exp(W_a x + U_a h) \\
    n' &= n + a \odot z \\
    d' &= d + a \\
    h' &= f_h(n' / d')
    \end{aligned}
    $$

    with $f_h$ the hyperbolic tangent, the identity or another function. Before the first sample $n = d = 0$ and $h =
    f_h(s)$, where $s$ is zero or, with `trained_start`, trained. The output is the new state $h'$; the whole state is
    [`RWAState(h, n, d, m)`][sequinox.recurrent.RWAState]. The attention has no bias: it would cancel in $n' / d'$.

    It cannot forget: $d$ only grows, so that each sample moves the average less. For sequences with one answer at the
    end this is what is wanted; else take an [`RDA`][sequinox.recurrent.RDA].

    Any attention is safe, however large: with the largest exponent so far, $m' = \max(m, \log a)$, everything is kept
    relative to $e^{m}$, as $n' = n e^{m - m'} + z e^{\log a - m'}$, and $d'$ likewise.

    Source: [Ostmeyer and Cowell 2017](https://arxiv.org/abs/1703.01253). Their own code trains $s$.

    ??? example

        ```python
        >>> import jax, jax.numpy as jnp, sequinox as sqx
        >>> rwa = sqx.RWA(3, 5, jax.random.key(0))
        >>> ys, state = rwa.unroll(jnp.ones((2, 7, 3)))
        >>> ys.shape, state.n.shape
        ((2, 7, 5), (2, 5))

        ```
    """

    W_u: Float[Array, "n_hidden n_in"]
    b_u: Float[Array, " n_hidden"]
    W_g: Float[Array, "n_hidden n_in"]
    U_g: Float[Array, "n_hidden n_hidden"]
    b_g: Float[Array, " n_hidden"]
    W_a: Float[Array, "n_hidden n_in"]
    U_a: Float[Array, "n_hidden n_hidden"]
    s: Float[Array, " n_hidden"] | None
    n_in: int = eqx.field(static=True)
    n_hidden: int = eqx.field(static=True)
    f_h: Squash = eqx.field(static=True)
    implementation: Implementation = eqx.field(static=True)

    def __init__(
        self,
        n_in: int,
        n_hidden: int,
        key: PRNGKey,
        *,
        f_h: Squash = "tanh",
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
            f_h: what squashes the average, `"tanh"` (default), `"identity"` or an elementwise function.
            trained_start: whether `s`, which gives the `h` before the first sample, is an array of the cell, zero at
                first and trained, as it is by the authors. Default False: it is zero, where every cell here begins. It
                matters little, since it meets the first sample alone.
            initializer: of input and recurrent weights, one of `jax.nn.initializers` or any function of
                `(key, shape, dtype)` whose last axis is the output; default `xavier_normal`, as in the other cells.
                The authors draw `W` and `U` as one matrix, uniformly; here each is drawn by itself, so that an
                orthogonal `U` is one. Biases start at zero.
            recurrent_initializer: of the recurrent weights alone, for example `jax.nn.initializers.orthogonal()`;
                default (None): the same as `initializer`.
            implementation: `"scan"`, `"fused"` or None (chosen), as
                [`RecurrentCell`][sequinox.recurrent.RecurrentCell] explains.
            dtype: of the weights; default: JAX's default, float32.

        A function of your own should have a name in the module that defines it: one made in every call, as a lambda
        is, compiles again in every call.

        Raises:
            TypeError, ValueError: for sizes that are not positive integers, an unknown or unfit `f_h`, an unknown
                `implementation`, a wrong dtype or key.
        """
        self.n_in, self.n_hidden = sizes("RWA", n_in=n_in, n_hidden=n_hidden)
        self.implementation = check_implementation(implementation, "RWA")
        dtype = float_dtype(dtype, "RWA")
        self.f_h = check_function(f_h, ("tanh", "identity"), "RWA", "f_h", wide(dtype))
        draw = Draw("RWA", key, 5, initializer, recurrent_initializer, dtype)
        self.W_u = draw.input(n_hidden, n_in)
        self.W_g, self.U_g = draw.pair(n_in, n_hidden)
        self.W_a, self.U_a = draw.pair(n_in, n_hidden)
        self.b_u, self.b_g = jnp.zeros(n_hidden, dtype), jnp.zeros(n_hidden, dtype)
        self.s = jnp.zeros(n_hidden, dtype) if flag(trained_start, "RWA", "trained_start") else None

    def start(self, dtype: DType) -> RWAState:
        """`f_h(s)`, and an average of nothing: zeros."""
        return start_average(self.s, self.f_h, self.n_hidden, dtype)

    def transition(
        self, affine: Affine, x: Float[Array, " n_in"], state: RWAState
    ) -> tuple[Float[Array, " n_hidden"], RWAState]:
        """One sample: the new `h`, and the new state."""
        h, n, d, m = state
        u = affine((self.W_u, x), self.b_u)
        g = affine((self.W_g, x), (self.U_g, h), self.b_g)
        log_a = affine((self.W_a, x), (self.U_a, h)).astype(n.dtype)
        z = (u * jnp.tanh(g)).astype(n.dtype)
        n, d, m = add_sample(n, d, m, z, log_a)
        h = call(self.f_h, n / d).astype(h.dtype)
        return h, RWAState(h, n, d, m)


def call(f: Squash, v: Array) -> Array:
    """`f(v)`."""
    if isinstance(f, str):
        return jnp.tanh(v) if f == "tanh" else v
    return f(v)


def start_average(s: Array | None, f_h: Squash, n_hidden: int, dtype: DType) -> RWAState:
    """The state before the first sample; without `s` it is zero."""
    zeros = jnp.zeros(n_hidden, wide(dtype))
    h = call(f_h, zeros if s is None else s.astype(zeros.dtype)).astype(dtype)
    return RWAState(h, zeros, zeros, zeros)


def add_sample(
    n: Array, d: Array, m: Array, z: Array, log_a: Array, log_gamma: Array | None = None
) -> tuple[Array, Array, Array]:
    """Numerator, denominator and `m` once the old ones are discounted and `z` is added, weighted by `exp(log_a)`.

    Any `m` gives the same average; the largest log-weight keeps one term near 1 and none above it. An attention of
    zero is a `log_a` of minus infinity.
    """
    nothing = d == 0  # has been read so far
    top = jnp.where(nothing, log_a, jnp.maximum(m if log_gamma is None else m + log_gamma, log_a))
    top = jnp.where(top == -jnp.inf, 0, top)
    # In this order the discount is kept to the last bit, even one that is too near 1 to change a large m.
    log_keep = m - top if log_gamma is None else (m - top) + log_gamma
    keep = jnp.where(nothing, 0, jnp.exp(jnp.where(nothing, 0, log_keep)))
    take = jnp.exp(log_a - top)
    return keep * n + take * z, keep * d + take, top


def check_function(f: Any, names: tuple[str, ...], who: str, name: str, dtype: DType) -> Any:
    """A function by name or of the user's, which must be hashable and keep shape and dtype."""
    known = ", ".join(f'"{n}"' for n in names)
    if isinstance(f, str):
        if f not in names:
            raise ValueError(f"{who}: {name} must be {known} or a function, got {f!r}")
        return f
    if not callable(f):
        raise TypeError(f"{who}: {name} must be {known} or a function, got {f!r}")
    try:
        hash(f)
    except TypeError:
        raise TypeError(f"{who}: {name} must be hashable, since it is a static field, got {f!r}") from None
    given = jax.ShapeDtypeStruct((3,), dtype)
    got = jax.eval_shape(f, given)
    if getattr(got, "shape", None) != given.shape or got.dtype != given.dtype:
        raise ValueError(f"{who}: {name} must give an array of the shape and dtype it is given, {given}, got {got}")
    return f
