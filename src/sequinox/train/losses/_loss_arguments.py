"""What all losses share: checks of their arguments, selection by mask, and the sum at the end.

Masked entries are replaced by zeros *before* any arithmetic and once more after it, so that neither their value nor
their gradient can be anything but zero.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array

from ..._checks import check_flags, wide
from ..._layer import select
from ..._types import ArrayLike, DType
from ._total import Total


def class_arguments(
    logits: ArrayLike, labels: ArrayLike, mask: ArrayLike | None, who: str
) -> tuple[Array, Array, Array]:
    """Logits `(*batch, n_classes)`, labels and mask `(*batch,)`: checked, every masked entry replaced.

    The logits come in the dtype of the sum, the labels in 32 bits at least.
    """
    logits, labels = check_logits(logits, who), check_labels(labels, who, "labels")
    if labels.shape != logits.shape[:-1]:
        raise ValueError(f"{who}: labels must have shape logits.shape[:-1] = {logits.shape[:-1]}, got {labels.shape}")
    mask = flags_or(True, mask, labels.shape, who, "mask", "logits.shape[:-1]")
    return select(mask, logits, jnp.zeros_like(logits)), jnp.where(mask, labels, 0), mask


def element_arguments(
    predictions: ArrayLike, targets: ArrayLike, mask: ArrayLike | None, who: str, name: str = "predictions"
) -> tuple[Array, Array, Array]:
    """Predictions and targets `(*batch, n_out)`, mask `(*batch,)`: checked, in the dtype of the sum, masked rows 0."""
    predictions, targets = jnp.asarray(predictions), jnp.asarray(targets)
    _check_floating(predictions, who, name)
    if jnp.issubdtype(targets.dtype, jnp.complexfloating):
        raise TypeError(f"{who}: targets must be real, got {targets.dtype}")
    if predictions.ndim == 0:
        raise ValueError(f"{who}: {name} must have a feature axis, (*batch, n_out), got a scalar")
    if targets.shape != predictions.shape:
        raise ValueError(f"{who}: targets must have the shape of {name}, {predictions.shape}, got {targets.shape}")
    mask = flags_or(True, mask, predictions.shape[:-1], who, "mask", f"{name}.shape[:-1]")
    zeros = jnp.zeros(targets.shape, wide(predictions.dtype))
    predictions, targets = predictions.astype(zeros.dtype), targets.astype(zeros.dtype)
    return select(mask, predictions, zeros), select(mask, targets, zeros), mask


def check_logits(logits: ArrayLike, who: str) -> Array:
    """The logits in the dtype of the sum."""
    logits = jnp.asarray(logits)
    _check_floating(logits, who, "logits")
    if logits.ndim == 0 or logits.shape[-1] == 0:
        raise ValueError(f"{who}: logits must be (*batch, n_classes) with at least one class, got {logits.shape}")
    return logits.astype(wide(logits.dtype))


def check_labels(labels: ArrayLike, who: str, name: str) -> Array:
    """Integers, of 32 bits and with a sign at least: the number of classes and -1 must fit."""
    if isinstance(labels, np.ndarray) and labels.dtype in (np.int64, np.uint64):
        # As int32 a large label would wrap round to a real one.
        labels = np.clip(labels, -1, 2**31 - 1).astype(np.int64)
    labels = jnp.asarray(labels)
    if not jnp.issubdtype(labels.dtype, jnp.integer):
        raise TypeError(f"{who}: {name} must be integers, got {labels.dtype}")
    return labels if labels.dtype in (jnp.int32, jnp.int64) else _signed(labels)


def flags_or(
    default: bool, flags: ArrayLike | None, shape: tuple[int, ...], who: str, name: str, shape_of: str
) -> Array:
    """The flags, checked; all `default` where none are given."""
    checked = check_flags(flags, shape, who, name, shape_of)
    return jnp.full(shape, default) if checked is None else checked


def check_weights(weights: Any, shapes: tuple[tuple[int, ...], ...], dtype: DType, who: str, name: str) -> Array:
    """Real, finite, not negative, of one of these shapes. Negative ones known only under `jit` become NaN."""
    array = jnp.asarray(weights)
    if not (jnp.issubdtype(array.dtype, jnp.floating) or jnp.issubdtype(array.dtype, jnp.integer)):
        raise TypeError(f"{who}: {name} must be real numbers, got {array.dtype}")
    if array.shape not in shapes:
        wanted = " or ".join(map(str, shapes))
        raise ValueError(f"{who}: {name} must have shape {wanted}, got {array.shape}")
    if not isinstance(array, Tracer):
        values = np.asarray(array, np.float64)
        if not np.all((values >= 0) & (values < np.inf)):
            raise ValueError(f"{who}: {name} must be finite and not negative, got {values.tolist()}")
    array = array.astype(dtype)
    return jnp.where(array >= 0, array, jnp.nan)


def weigh(weights: Array, values: Array) -> Array:
    """`weights * values`, and 0 where the weight is 0, even of an infinite value."""
    return weights * jnp.where(weights == 0, 0, values)


def nan_unless(valid: Array, values: Array) -> Array:
    """`values` with NaN where they are not valid, by product, so that the gradient is NaN as well."""
    return values * jnp.where(valid, 1, jnp.nan).astype(values.dtype)


def reduce_rows(rows: Array, mask: Array) -> Total:
    """The sum and number of real entries, `(*batch,)`."""
    return Total(jnp.sum(jnp.where(mask, rows, 0)), jnp.sum(mask, dtype=jnp.int32))


def reduce_elements(elements: Array, mask: Array) -> Total:
    """The sum and number of the elements `(*batch, n_out)` of real rows."""
    total, rows = reduce_rows(jnp.sum(elements, axis=-1), mask)
    return Total(total, rows * elements.shape[-1])


def _check_floating(array: Array, who: str, name: str) -> None:
    if not jnp.issubdtype(array.dtype, jnp.floating):
        raise TypeError(f"{who}: {name} must be floating point, got {array.dtype}")


def _signed(labels: Array) -> Array:
    if labels.dtype in (jnp.uint32, jnp.uint64):
        return jnp.minimum(labels, 2**31 - 1).astype(jnp.int32)  # not round to a negative one or a class
    return labels.astype(jnp.int32)
