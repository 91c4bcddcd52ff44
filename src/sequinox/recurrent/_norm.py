"""Layer normalisation inside the loop of a recurrent cell."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._checks import flag, wide
from .._types import DType
from ._plan import Affine, Term

EPSILON = 1e-6
"""Added to the variance: the slope at a constant vector, whose variance is 0, is 1/sqrt(EPSILON) = 1000 and no more.

Pre-activations have a variance of order 1, which it must not change: 1e-6 is lost in it.
"""


def normalise(a: Float[Array, " n"]) -> Float[Array, " n"]:
    """The deviations of a vector's numbers from their mean, divided by the root of their mean square.

    Half precision is widened meanwhile: its squares overflow at 256, and 1e-6 hardly exists in it.
    """
    fine = a.astype(wide(a.dtype))
    deviations = fine - jnp.mean(fine)
    return (deviations * jax.lax.rsqrt(jnp.mean(deviations * deviations) + EPSILON)).astype(a.dtype)


def normed_affine(affine: Affine, input: Term, recurrent: Term, b: Array, gamma: Array | None) -> Array:
    """`W x + U h + b`; with a gain, the two products are normalised as one, scaled by it, and shifted by `b`."""
    if gamma is None:
        return affine(input, recurrent, b)
    return gamma * normalise(affine(input, recurrent)) + b


def make_gain(layer_norm: bool, n_hidden: int, dtype: DType, who: str) -> Array | None:
    """Ones, or None where nothing is normalised; `layer_norm` is checked."""
    if not flag(layer_norm, who, "layer_norm"):
        return None
    if n_hidden < 2:
        raise ValueError(
            f"{who}: layer_norm needs n_hidden to be at least 2, got {n_hidden}: one number is its own mean, and so "
            f"always normalised to 0"
        )
    return jnp.ones(n_hidden, dtype)
