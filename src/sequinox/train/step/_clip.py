"""Clipping of gradients."""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float, PyTree

from ..._types import ArrayLike


def clip_by_norm(grads: PyTree, max_norm: float | ArrayLike) -> tuple[PyTree, Float[Array, ""]]:
    r"""Scales a gradient down so that its global norm is at most `max_norm`.

    $g \leftarrow g \min(1, c / \lVert g \rVert)$, with $\lVert g \rVert$ over all leaves together. Everything
    is divided by the largest magnitude first, so that float16 gradients and ones of 1e30 have a norm at all;
    sums are in float32 at least. When the norm is NaN or infinite (a leaf is, or the norm itself passes the
    dtype's range) *all* of the result is zero: scaling by infinity would leave NaN behind, and one bad leaf
    would spread through the optimiser's averages. The reported norm shows it.

    Arguments:
        grads: any PyTree. Floating and complex arrays are clipped and keep their dtype; everything else (None,
            integers, float0) is left as it is and does not count.
        max_norm: above 0; infinity only measures. 0 is refused: it would stop all training silently.

    Returns:
        The clipped tree, of the same structure and dtypes, and the norm before clipping, float32 or wider.

    Raises:
        ValueError: `max_norm` is not above 0, or not a scalar.

    Source: [Pascanu et al. 2013](https://arxiv.org/abs/1211.5063), section 3.2.

    ??? example

        ```python
        >>> import jax.numpy as jnp
        >>> from sequinox.train import clip_by_norm
        >>> clipped, norm = clip_by_norm({"W": jnp.array([3.0, 4.0])}, 1.0)
        >>> f"{norm:.1f}", [f"{x:.1f}" for x in clipped["W"]]
        ('5.0', ['0.6', '0.8'])

        ```
    """
    if not isinstance(max_norm, Tracer):
        _check_limit(max_norm, "clip_by_norm", "max_norm")
    numbers = [leaf for leaf in jax.tree.leaves(grads) if isinstance(leaf, float | complex) and not eqx.is_array(leaf)]
    if numbers:
        raise TypeError(f"clip_by_norm: grads must hold arrays, got the Python number {numbers[0]!r}")
    arrays, rest = eqx.partition(grads, eqx.is_inexact_array)
    arrays = jax.tree.map(jnp.asarray, arrays)
    leaves = jax.tree.leaves(arrays)
    dtype = jnp.float64 if any(jnp.finfo(leaf.dtype).bits == 64 for leaf in leaves) else jnp.float32
    wide = [leaf.astype(np.promote_types(leaf.dtype, dtype)) for leaf in leaves]
    largest = jnp.zeros((), dtype)
    for leaf in wide:
        largest = jnp.maximum(largest, jnp.max(jnp.abs(leaf), initial=0))  # maximum keeps NaN
    # A power of two scales without rounding, and its reciprocal has to be a normal number: XLA divides by way of
    # that, and a subnormal one would count as zero.
    widest = -jnp.finfo(dtype).minexp
    exponent = jnp.clip(jnp.frexp(largest)[1], -widest, widest)
    unit = jnp.ldexp(jnp.ones((), dtype), exponent)
    scaled = [leaf * (1 / unit).astype(leaf.dtype) for leaf in wide]
    squares = jnp.zeros((), dtype)
    for leaf in scaled:
        squares = squares + jnp.sum(jnp.abs(leaf) ** 2)
    some = squares > 0  # the root has no derivative at zero
    root = jnp.where(some, jnp.sqrt(jnp.where(some, squares, 1)), squares)
    norm = unit * root
    limit = jnp.asarray(max_norm).astype(dtype)
    finite = jnp.isfinite(norm) & (limit > 0)  # a limit known only under jit cannot raise: a wrong one gives zeros
    above = norm > limit
    shrink = limit / jnp.where(above, root, 1)

    def clip(leaf: Array, scaled_leaf: Array) -> Array:
        # `scaled * (limit / root)`, not `leaf * (limit / norm)`: that factor can underflow to zero.
        shrunk = (scaled_leaf * shrink.astype(scaled_leaf.dtype)).astype(leaf.dtype)
        return jnp.where(finite, jnp.where(above, shrunk, leaf), 0)

    clipped = [clip(leaf, s) for leaf, s in zip(leaves, scaled, strict=True)]
    return eqx.combine(jax.tree.unflatten(jax.tree.structure(arrays), clipped), rest), norm


def clip_by_value(grads: PyTree, max_value: float | ArrayLike) -> PyTree:
    r"""Limits every number of a gradient to $[-c, c]$; a complex one to magnitude $c$, in its direction.

    Unlike clipping by norm it changes the gradient's direction. NaN stays NaN: hiding it would hide a fault
    (`make_step` skips such a step).

    Arguments:
        grads: any PyTree. Floating and complex arrays are clipped and keep their dtype; everything else is left.
        max_value: $c$, above 0; infinity clips nothing.

    Returns:
        The clipped tree. Before an optimiser, `optax.chain(optax.clip(c), optimiser)` does the same for real
        gradients.

    Raises:
        ValueError: `max_value` is not above 0, or not a scalar.

    Source: Mikolov's thesis (Brno 2012), as [Pascanu et al. 2013](https://arxiv.org/abs/1211.5063), section 3.2, report
    it.

    ??? example

        ```python
        >>> import jax.numpy as jnp
        >>> from sequinox.train import clip_by_value
        >>> clip_by_value({"W": jnp.array([3.0, -0.25])}, 1.0)["W"].tolist()
        [1.0, -0.25]

        ```
    """
    if not isinstance(max_value, Tracer):
        _check_limit(max_value, "clip_by_value", "max_value")

    def clip(leaf: Array) -> Array:
        leaf = jnp.asarray(leaf)
        limit = jnp.asarray(max_value).astype(jnp.finfo(leaf.dtype).dtype)
        if not jnp.iscomplexobj(leaf):
            return jnp.clip(leaf, -limit, limit)
        size = jnp.abs(leaf)
        factor = jnp.where(size > limit, limit / jnp.where(size > limit, size, 1), 1)
        return leaf * factor.astype(leaf.dtype)

    arrays, rest = eqx.partition(grads, eqx.is_inexact_array)
    return eqx.combine(jax.tree.map(clip, arrays), rest)


def _check_limit(limit: Any, who: str, name: str) -> None:
    if not isinstance(limit, (int, float, np.generic, np.ndarray, jax.Array)) or np.ndim(limit):
        raise ValueError(f"{who}: {name} must be a number above 0, got {limit!r}")
    value = float(limit)
    if math.isnan(value) or value <= 0:
        raise ValueError(f"{who}: {name} must be above 0, got {value}")
