"""Products with a weight `(n_out, n_in)`, for one sample and for all samples of a sequence at once."""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ._checks import wide
from ._types import DType, Initializer, PRNGKey


def apply_weight(W: Float[Array, "n_out n_in"], x: Float[Array, " n_in"]) -> Float[Array, " n_out"]:
    """`W @ x`, written with `x` first: under `jax.vmap` the rows then stay the leading axis, without a transpose."""
    return jax.lax.dot_general(x, W, (((0,), (1,)), ((), ())))


def apply_weight_to_rows(
    W: Float[Array, "n_out n_in"], xs: Float[Array, "time rows n_in"]
) -> Float[Array, "time rows n_out"]:
    """`W @ x` for every `x` of a sequence, in a form whose weight gradient is one product over time and rows.

    On a CPU the float32 product is written as a convolution of width 1. XLA's dot, asked for the gradient of W, copies
    both operands to merge `time` and `rows` into the one axis it sums over, and again to merge an axis that `jax.vmap`
    adds; the convolution sums over both as they lie, and `jax.vmap` folds its axis into `rows`. Gradient of W at time
    200, rows 128, n_in 128, n_out 1024 on two cores: 43 ms against 90 ms (jax 0.10.2).
    """
    if xs.dtype == jnp.float32 and jax.default_backend() == "cpu" and xs.size and W.size:
        layout = jax.lax.ConvDimensionNumbers(lhs_spec=(1, 2, 0), rhs_spec=(0, 1, 2), out_spec=(1, 2, 0))
        return jax.lax.conv_general_dilated(xs, jnp.expand_dims(W, 2), (1,), [(0, 0)], dimension_numbers=layout)
    return jax.lax.dot_general(xs, W, (((2,), (1,)), ((), ())))


def apply_affine(
    W: Float[Array, "n_out n_in"], x: Float[Array, "*axes n_in"], b: Float[Array, " n_out"] | None = None
) -> Float[Array, "*axes n_out"]:
    """`W x + b` for samples with any leading axes; without a bias `W x`."""
    axes = x.shape[:-1]
    if not axes:
        y = apply_weight(W, x)
    else:
        rows = x if len(axes) == 2 else x.reshape(1, math.prod(axes), x.shape[-1])
        y = apply_weight_to_rows(W, rows).reshape(*axes, W.shape[0])
    return y if b is None else y + jnp.broadcast_to(b, y.shape)


def make_weight(key: PRNGKey, shape: tuple[int, int], initializer: Initializer, dtype: DType, who: str) -> Array:
    """A weight `(n_out, n_in)`. Initialisers, as those of `jax.nn.initializers`, take the last axis for the output."""
    if not callable(initializer):
        raise TypeError(
            f"{who}: initializer must be a function of (key, shape, dtype), such as those of jax.nn.initializers, "
            f"got {initializer!r}"
        )
    n_out, n_in = shape
    drawn = wide(dtype)  # half precision has no decompositions, such as `orthogonal` needs
    weight: Any = initializer(key, (n_in, n_out), drawn)
    if jnp.shape(weight) != (n_in, n_out) or jnp.result_type(weight) != drawn:
        raise ValueError(
            f"{who}: initializer must give an array of shape {(n_in, n_out)} and dtype {drawn}, "
            f"got {jnp.shape(weight)} and {jnp.result_type(weight)}"
        )
    return jnp.asarray(weight).T.astype(dtype)
