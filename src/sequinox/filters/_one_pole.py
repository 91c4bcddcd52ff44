"""A one-pole filter for each channel."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float

from .._checks import flag, float_dtype, size, wide
from .._precision import KEEPS_FLOAT32
from .._types import ArrayLike, DType
from ..recurrent._diagonal import DiagonalRecurrence
from ..recurrent._diagonal_scan import Method, check_method

Coefficients: TypeAlias = int | float | np.number | ArrayLike | Sequence[Any]
"""One number, an array, or a list of numbers or of rows."""


class OnePole(DiagonalRecurrence[Array]):
    r"""A one-pole filter for each channel.

    $$
    h' = \alpha \odot h + \beta \odot x
    $$

    The state is $h$, in float32 at least, the output the new state $h'$, in the dtype of the samples. The coefficients
    [keep float32][sequinox.KEEPS_FLOAT32], and take samples of any precision up to theirs. Both can
    be trained and edited (`equinox.tree_at`). With `guard` a pole that training or an edit has put outside the unit
    circle acts as the nearest one inside, and its derivative is taken there, so that training can bring it back.
    Without, $|\alpha| \ge 1$ is what it says: the state stays, or grows.

    Textbook definition: a linear filter with one pole, at $z = \alpha$.

    ??? example

        ```python
        >>> import jax.numpy as jnp, sequinox as sqx
        >>> smooth = sqx.OnePole(2, alpha=[0.9, 0.5])    # beta = 1 - alpha: a constant comes out as it is
        >>> [round(float(tau), 1) for tau in smooth.horizon]
        [9.5, 1.4]
        >>> [round(float(y), 3) for y in smooth(jnp.ones((3, 2)))[:, 1]]
        [0.5, 0.75, 0.875]

        ```
    """

    alpha: Float[Array, " n_in"] = eqx.field(metadata=KEEPS_FLOAT32)
    beta: Float[Array, " n_in"] = eqx.field(metadata=KEEPS_FLOAT32)
    n_in: int = eqx.field(static=True)
    n_hidden: int = eqx.field(static=True)
    guard: bool = eqx.field(static=True)
    method: Method = eqx.field(static=True)

    def __init__(
        self,
        n_in: int,
        alpha: Coefficients = 0.9,
        beta: Coefficients | None = None,
        *,
        guard: bool = True,
        method: Method = None,
        dtype: DType | None = None,
    ):
        r"""
        Arguments:
            n_in: number of channels: width of a sample, of the state and of the output.
            alpha: the poles, one number or one a channel; a negative one alternates in sign.
            beta: what the samples are multiplied by, one number or one a channel; default: $1 - \alpha$, so that a
                constant comes out as it is.
            guard: whether poles are kept inside the unit circle.
            method: how the recurrence is run, as [`diagonal_scan`][sequinox.recurrent.diagonal_scan] explains. A filter
                that grows takes `"sequential"`.
            dtype: of the coefficients, float32 at least; default: JAX's default, float32.

        Raises:
            TypeError, ValueError: for a size that is no positive integer, coefficients that are no finite numbers, or
                not one a channel, a pole of modulus 1 or more (in float32, or a finer `dtype`) with `guard`, a wrong
                dtype or method.
        """
        self.n_in = self.n_hidden = size(n_in, "OnePole", "n_in")
        self.guard, self.method = flag(guard, "OnePole", "guard"), check_method(method, "OnePole")
        dtype = wide(float_dtype(dtype, "OnePole"))
        self.alpha = numbers(alpha, (n_in,), dtype, "OnePole", "alpha")
        self.beta = 1 - self.alpha if beta is None else numbers(beta, (n_in,), dtype, "OnePole", "beta")
        known = not isinstance(self.alpha, Tracer)
        if self.guard and known and bool(jnp.any(jnp.abs(self.alpha) >= 1)):
            shown = np.asarray(self.alpha).tolist()
            raise ValueError(f"OnePole: alpha must be between -1 and 1 with guard=True, got {shown} in {dtype}")

    @property
    def pole(self) -> Float[Array, " n_in"]:
        """The poles as they act: kept inside the unit circle by `guard`. In float32 at least."""
        alpha = self.alpha.astype(wide(self.alpha.dtype))
        return _inside(alpha) if self.guard else alpha

    @property
    def horizon(self) -> Float[Array, " n_in"]:
        r"""Memory of every channel, $\tau = -1 / \ln |\alpha|$: steps until an input has fallen to $1/e$.

        Infinite where it does not fall.
        """
        return horizon(jnp.abs(self.pole))

    @property
    def dc_gain(self) -> Float[Array, " n_in"]:
        r"""What a constant of 1 comes to in the end, $\beta / (1 - \alpha)$, for $|\alpha| < 1$."""
        return self.beta.astype(self.pole.dtype) / (1 - self.pole)

    def impulse_response(self, n_time: int) -> Float[Array, "time n_in"]:
        r"""The outputs after a single 1, $\beta \alpha^t$ for $t = 0, 1, \ldots$

        Arguments:
            n_time: how many.
        """
        shape = (size(n_time, "OnePole.impulse_response", "n_time"), self.n_in)
        t = jax.lax.broadcasted_iota(jnp.int32, shape, 0)
        powers = jax.lax.pow(jnp.broadcast_to(self.pole, shape), t)
        return jnp.broadcast_to(self.beta.astype(powers.dtype), shape) * powers

    def coefficients(self, x: Float[Array, "*axes n_in"]) -> tuple[Array, Array]:
        """The poles, the same at all times, and the samples times `beta`."""
        x = x.astype(wide(x.dtype))
        return self.pole, x * jnp.broadcast_to(self.beta.astype(x.dtype), x.shape)


@jax.custom_jvp
def _inside(alpha: Array) -> Array:
    """The nearest number inside the unit circle; its derivative is 1, outside as well."""
    limit = 1 - float(jnp.finfo(alpha.dtype).epsneg)
    return jnp.clip(alpha, -limit, limit)


@_inside.defjvp
def _(primals: Any, tangents: Any) -> Any:
    return _inside(*primals), tangents[0]


def horizon(modulus: Array) -> Array:
    """Steps until a mode of this modulus has fallen to 1/e; infinite for 1 and more, 0 for 0."""
    falls = modulus < 1
    log = jnp.log(jnp.where(falls & (modulus > 0), modulus, 0.5))
    return jnp.where(falls, jnp.where(modulus > 0, -1 / log, 0), jnp.inf)


def numbers(value: Any, shape: tuple[int, ...] | None, dtype: DType, who: str, name: str) -> Array:
    """Coefficients of a constructor, checked: an array of this shape (any, if None), or one number for all of it."""
    if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        raise TypeError(f"{who}: {name} must be an array of numbers, got a PRNG key")
    try:
        array: Any = value if isinstance(value, Tracer) else np.asarray(value)
    except ValueError:
        raise TypeError(f"{who}: {name} must be an array of numbers, got {value!r}") from None
    if not (jnp.issubdtype(array.dtype, jnp.floating) or np.issubdtype(array.dtype, np.integer)):
        raise TypeError(f"{who}: {name} must hold real numbers, got {value!r}")
    if not isinstance(array, Tracer) and not np.isfinite(array.astype(np.float64)).all():
        raise ValueError(f"{who}: {name} must be finite, got {value!r}")
    if shape is not None and array.shape not in ((), shape):
        raise ValueError(f"{who}: {name} must be one number or have shape {shape}, got {array.shape}")
    return jnp.broadcast_to(jnp.asarray(array).astype(dtype), array.shape if shape is None else shape)
