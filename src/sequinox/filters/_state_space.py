"""A linear filter given by its matrices."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._checks import check_key, float_dtype, number, size, sizes, wide
from .._precision import KEEPS_FLOAT32
from .._types import DType, Initializer, PRNGKey
from ..recurrent._cell import Implementation, RecurrentCell, check_implementation
from ..recurrent._initializers import Draw
from ..recurrent._plan import Affine
from ._one_pole import Coefficients, numbers


class Modes(NamedTuple):
    r"""The modes of a linear filter, the slowest first: NumPy arrays in double precision.

    `pole` are the eigenvalues $\lambda = r e^{i\theta}$, `radius` their moduli $r$, `horizon` the steps until a mode
    has fallen to $1/e$, $-1/\ln r$ (infinite where it does not fall), and `period` the steps in which it turns once,
    $2\pi/|\theta|$ (infinite where it does not turn).
    """

    pole: np.ndarray
    radius: np.ndarray
    horizon: np.ndarray
    period: np.ndarray


class StateSpace(RecurrentCell[Array]):
    r"""A linear filter with a state of several numbers.

    $$
    \begin{aligned}
    h' &= A h + B x \\
    y &= C h' + D x
    \end{aligned}
    $$

    The state is $h$, in float32 at least. Without $C$ the output is the new state, without $D$ that term is left out.
    Its memory is that of its modes, the eigenvalues of $A$: see `modes`.

    The matrices [keep float32][sequinox.KEEPS_FLOAT32], and so do the products with them: rounded to half precision,
    $A$ has other modes, and a $C$ that takes the difference of large states gives another output. The samples may be of
    any precision up to theirs, and the outputs are as the samples.

    Textbook definition. Other texts read the output off the old state, $C h$: their $C$ and $D$ are our
    $C A^{-1}$ and $D - C A^{-1} B$.

    ??? example

        ```python
        >>> import jax.numpy as jnp, sequinox as sqx
        >>> spiral = sqx.StateSpace([[0.9, 0.3], [-0.3, 0.9]], [[1.0], [0.0]])
        >>> modes = spiral.modes()
        >>> modes.radius.round(2).tolist(), modes.period.round(1).tolist()
        ([0.95, 0.95], [19.5, 19.5])
        >>> spiral(jnp.ones((4, 7, 1))).shape
        (4, 7, 2)

        ```
    """

    A: Float[Array, "n_hidden n_hidden"] = eqx.field(metadata=KEEPS_FLOAT32)
    B: Float[Array, "n_hidden n_in"] = eqx.field(metadata=KEEPS_FLOAT32)
    C: Float[Array, "n_out n_hidden"] | None = eqx.field(metadata=KEEPS_FLOAT32)
    D: Float[Array, "n_out n_in"] | None = eqx.field(metadata=KEEPS_FLOAT32)
    n_in: int = eqx.field(static=True)
    n_hidden: int = eqx.field(static=True)
    implementation: Implementation = eqx.field(static=True)

    def __init__(
        self,
        A: Coefficients,
        B: Coefficients,
        C: Coefficients | None = None,
        D: Coefficients | None = None,
        *,
        implementation: Implementation = None,
        dtype: DType | None = None,
    ):
        """
        Arguments:
            A: from state to state, `(n_hidden, n_hidden)`.
            B: from sample to state, `(n_hidden, n_in)`.
            C: from state to output, `(n_out, n_hidden)`; default: the output is the state.
            D: from sample to output, `(n_out, n_in)`; default: none. Needs `C`.
            implementation: `"scan"`, `"fused"` or None (chosen), as
                [`RecurrentCell`][sequinox.recurrent.RecurrentCell] explains.
            dtype: of the matrices, float32 at least; default: JAX's default, float32.

        Raises:
            TypeError, ValueError: for matrices that hold no finite numbers or do not fit together, a `D` without `C`,
                an unknown `implementation`, a wrong dtype.
        """
        if isinstance(A, int) and not isinstance(A, bool):
            raise TypeError(
                f"StateSpace: A must be a matrix, got {A}: for matrices to be trained, of given sizes, there is "
                "StateSpace.random(n_in, n_hidden, key, n_out=)"
            )
        dtype = wide(float_dtype(dtype, "StateSpace"))
        self.implementation = check_implementation(implementation, "StateSpace")
        given = {"A": A, "B": B, "C": C, "D": D}
        matrices: Any = {k: None if v is None else numbers(v, None, dtype, "StateSpace", k) for k, v in given.items()}
        for name, value in matrices.items():
            if value is None and name in "AB":
                raise TypeError(f"StateSpace: {name} must be a matrix, got None")
            if value is not None and (value.ndim != 2 or 0 in value.shape):
                raise ValueError(f"StateSpace: {name} must be a matrix that is not empty, got shape {value.shape}")
        self.A, self.B, self.C, self.D = matrices.values()
        if D is not None and self.C is None:
            raise ValueError("StateSpace: D needs C; to add D x to the state itself give the identity as C")
        self.n_hidden, self.n_in = n_hidden, n_in = self.A.shape[0], self.B.shape[1]
        n_out = None if self.C is None else self.C.shape[0]
        shapes = {"A": (n_hidden, n_hidden), "B": (n_hidden, n_in), "C": (n_out, n_hidden), "D": (n_out, n_in)}
        for name, value in matrices.items():
            if value is not None and value.shape != shapes[name]:
                raise ValueError(f"StateSpace: {name} must have shape {shapes[name]}, got {value.shape}")

    @classmethod
    def random(
        cls,
        n_in: int,
        n_hidden: int,
        key: PRNGKey,
        *,
        n_out: int | None = None,
        radius: float = 0.9,
        initializer: Initializer = jax.nn.initializers.xavier_normal(),
        implementation: Implementation = None,
        dtype: DType | None = None,
    ) -> "StateSpace":
        """A filter to be trained, stable at the start: `A` is orthogonal times `radius`, which is every mode's modulus.

        Arguments:
            n_in: width of a sample.
            n_hidden: width of the state.
            key: PRNG key for the matrices.
            n_out: width of the output, read off by `C` and `D`; default: the output is the state.
            radius: the modulus of all modes, greater than 0; less than 1 for a stable filter.
            initializer: of `B`, `C` and `D`, one of `jax.nn.initializers` or any function of `(key, shape, dtype)`
                whose last axis is the output; default `xavier_normal`.
            implementation: `"scan"`, `"fused"` or None (chosen).
            dtype: of the matrices, float32 at least; default: JAX's default, float32.

        Raises:
            TypeError, ValueError: for sizes that are not positive integers, a radius that is not positive, a wrong
                dtype or key.
        """
        who = "StateSpace.random"
        n_in, n_hidden = sizes(who, n_in=n_in, n_hidden=n_hidden)
        n_out = None if n_out is None else size(n_out, who, "n_out")
        radius = number(radius, who, "radius")
        if radius <= 0:
            raise ValueError(f"{who}: radius must be greater than 0, got {radius}")
        dtype = wide(float_dtype(dtype, who))
        keys = jax.random.split(check_key(key, who))
        A = radius * jax.random.orthogonal(keys[0], n_hidden, dtype=dtype)
        draw = Draw(who, keys[1], 1 if n_out is None else 3, initializer, None, dtype)
        B, C, D = draw.input(n_hidden, n_in), None, None
        if n_out is not None:
            C, D = draw.input(n_out, n_hidden), draw.input(n_out, n_in)
        return cls(A, B, C, D, implementation=implementation, dtype=dtype)

    @property
    def n_out(self) -> int:
        """Width of the output."""
        return self.n_hidden if self.C is None else self.C.shape[0]

    def start(self, dtype: DType) -> Float[Array, " n_hidden"]:
        """Zeros, in float32 at least."""
        return jnp.zeros(self.n_hidden, wide(dtype))

    def transition(
        self, affine: Affine, x: Float[Array, " n_in"], state: Float[Array, " n_hidden"]
    ) -> tuple[Float[Array, " n_out"], Float[Array, " n_hidden"]]:
        """One sample: the output and the new state."""
        x = x.astype(state.dtype)
        h = affine((self.A, state), (self.B, x))
        if self.C is None:
            return h, h
        return affine((self.C, h), *(() if self.D is None else ((self.D, x),))), h

    @property
    def spectral_radius(self) -> float:
        r"""$\max_i |\lambda_i|$, the modulus of the slowest mode: less than 1 in a stable filter."""
        return float(self.modes().radius[0])

    def modes(self) -> Modes:
        """The eigenvalues of `A` and what they mean in steps, computed by NumPy: not under `jit`."""
        poles = np.linalg.eigvals(np.asarray(self.A, np.float64)).astype(np.complex128)
        poles = poles[np.lexsort((-poles.imag, -poles.real, -np.abs(poles).round(12)))]
        radius, angle = np.abs(poles), np.abs(np.angle(poles))
        with np.errstate(divide="ignore"):
            horizon = np.where(radius < 1, -1 / np.log(np.minimum(radius, 1)), np.inf)
            return Modes(poles, radius, horizon, 2 * np.pi / angle)
