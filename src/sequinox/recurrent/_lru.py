"""The linear recurrent unit of Orvieto et al."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._checks import check_key, float_dtype, number, size, sizes, wide
from .._linear import apply_affine
from .._precision import KEEPS_FLOAT32
from .._types import DType, PRNGKey
from ._diagonal import DiagonalRecurrence
from ._diagonal_scan import ComplexPair, Method, check_method


class LRU(DiagonalRecurrence[ComplexPair]):
    r"""Linear recurrent unit: complex modes, each inside the unit circle whatever its weights are.

    $$
    \begin{aligned}
    \lambda &= \exp(-\exp(\nu^{\log}) + i \exp(\theta^{\log})) \\
    h' &= \lambda \odot h + \exp(\gamma^{\log}) \odot (B x) \\
    y &= \mathrm{Re}(C h') + D x
    \end{aligned}
    $$

    $\nu^{\log}, \theta^{\log}, \gamma^{\log}$ are `nu_log`, `theta_log`, `gamma_log`; $B$ and $C$ are complex, kept and
    multiplied as two real arrays each, `B_re` and `B_im`. The state is $h$, a
    [`ComplexPair`][sequinox.recurrent.ComplexPair] in float32 at least. $|\lambda| < 1$ also where the formula rounds
    to 1: there it stays at `1 - 4 * eps`.

    Source: [Orvieto et al. 2023](https://arxiv.org/abs/2303.06349), section 3 and the listing in its appendix. There
    $D$ is diagonal; here it is a matrix, since input and output may differ in width.

    ??? example

        ```python
        >>> import jax, jax.numpy as jnp, sequinox as sqx
        >>> lru = sqx.LRU(3, 5, jax.random.key(0), r_min=0.9, r_max=0.99)
        >>> ys, state = lru.unroll(jnp.ones((2, 7, 3)))
        >>> ys.shape, state.re.shape
        ((2, 7, 5), (2, 5))
        >>> bool((lru.radius < 1).all())
        True

        ```
    """

    nu_log: Float[Array, " n_hidden"] = eqx.field(metadata=KEEPS_FLOAT32)
    theta_log: Float[Array, " n_hidden"] = eqx.field(metadata=KEEPS_FLOAT32)
    gamma_log: Float[Array, " n_hidden"] = eqx.field(metadata=KEEPS_FLOAT32)
    B_re: Float[Array, "n_hidden n_in"]
    B_im: Float[Array, "n_hidden n_in"]
    C_re: Float[Array, "n_out n_hidden"]
    C_im: Float[Array, "n_out n_hidden"]
    D: Float[Array, "n_out n_in"]
    n_in: int = eqx.field(static=True)
    n_hidden: int = eqx.field(static=True)
    method: Method = eqx.field(static=True)

    def __init__(
        self,
        n_in: int,
        n_hidden: int,
        key: PRNGKey,
        *,
        n_out: int | None = None,
        r_min: float = 0.0,
        r_max: float = 1.0,
        max_phase: float = 2 * math.pi,
        method: Method = None,
        dtype: DType | None = None,
    ):
        """
        Arguments:
            n_in: width of a sample.
            n_hidden: number of complex modes.
            key: PRNG key for the weights.
            n_out: width of the output; default: `n_hidden`, as of every cell.
            r_min: the modes start evenly over the area of the ring between this radius and
            r_max: this one, at most 1. Modes near 1 remember for longer.
            max_phase: and at angles between 0 and this one.
            method: how the recurrence is run, as [`diagonal_scan`][sequinox.recurrent.diagonal_scan] explains.
            dtype: of the weights; default: JAX's default, float32.

        Raises:
            TypeError, ValueError: for sizes that are not positive integers, radii that are not 0 <= r_min < r_max <= 1,
                a phase that is not in (0, 2 pi], an unknown `method`, a wrong dtype or key.
        """
        self.n_in, self.n_hidden = sizes("LRU", n_in=n_in, n_hidden=n_hidden)
        n_out = self.n_hidden if n_out is None else size(n_out, "LRU", "n_out")
        self.method = check_method(method, "LRU")
        r_min, r_max = number(r_min, "LRU", "r_min"), number(r_max, "LRU", "r_max")
        if not 0 <= r_min < r_max <= 1:
            raise ValueError(f"LRU: radii must be 0 <= r_min < r_max <= 1, got r_min={r_min} and r_max={r_max}")
        max_phase = number(max_phase, "LRU", "max_phase")
        if not 0 < max_phase <= 2 * math.pi:
            raise ValueError(f"LRU: max_phase must be greater than 0 and at most 2 pi, got {max_phase}")
        dtype = float_dtype(dtype, "LRU")
        fine = wide(dtype)
        keys = jax.random.split(check_key(key, "LRU"), 7)
        # Not quite 0 nor 1, where a logarithm would be infinite.
        u1, u2 = (jax.random.uniform(k, (n_hidden,), fine, 1e-6, 1 - 1e-6) for k in keys[:2])
        nu = -0.5 * jnp.log(u1 * (r_max**2 - r_min**2) + r_min**2)
        self.nu_log, self.theta_log = jnp.log(nu), jnp.log(max_phase * u2)
        self.gamma_log = 0.5 * jnp.log(-jnp.expm1(-2 * nu))
        inputs, outputs = (n_hidden, n_in), (n_out, n_hidden)
        normal = lambda k, shape, scale: (jax.random.normal(k, shape, fine) * scale).astype(dtype)
        self.B_re, self.B_im = (normal(k, inputs, 1 / math.sqrt(2 * n_in)) for k in keys[2:4])
        self.C_re, self.C_im = (normal(k, outputs, 1 / math.sqrt(n_hidden)) for k in keys[4:6])
        self.D = normal(keys[6], (n_out, n_in), 1 / math.sqrt(n_in))

    @property
    def n_out(self) -> int:
        """Width of the output."""
        return self.D.shape[0]

    @property
    def is_complex(self) -> bool:
        """True: real and imaginary parts."""
        return True

    @property
    def radius(self) -> Float[Array, " n_hidden"]:
        """The modulus of every mode, less than 1; in float32 at least."""
        nu_log = self.nu_log.astype(wide(self.nu_log.dtype))
        # Beyond 7 the radius is zero in every dtype; so the derivative is no infinity times zero.
        r = jnp.exp(-jnp.exp(jnp.minimum(nu_log, 7)))
        return jnp.minimum(r, 1 - 4 * float(jnp.finfo(r.dtype).eps))

    @property
    def phase(self) -> Float[Array, " n_hidden"]:
        """The angle of every mode, by which it turns in a step; in float32 at least."""
        theta_log = self.theta_log.astype(wide(self.theta_log.dtype))
        return jnp.exp(jnp.minimum(theta_log, 16))  # beyond, float32 does not resolve a turn

    def coefficients(self, x: Float[Array, "*axes n_in"]) -> tuple[ComplexPair, ComplexPair]:
        """The modes, and `B x` normalised."""
        r, theta = self.radius, self.phase
        gamma = jnp.exp(self.gamma_log.astype(r.dtype))
        re, im = (apply_affine(B, x).astype(r.dtype) for B in (self.B_re, self.B_im))
        scaled = lambda v: v * jnp.broadcast_to(gamma, v.shape)
        return ComplexPair(r * jnp.cos(theta), r * jnp.sin(theta)), ComplexPair(scaled(re), scaled(im))

    def readout(self, h: ComplexPair, x: Float[Array, "*axes n_in"]) -> Float[Array, "*axes n_out"]:
        """`Re(C h) + D x`."""
        return apply_affine(self.C_re, h.re) - apply_affine(self.C_im, h.im) + apply_affine(self.D, x)
