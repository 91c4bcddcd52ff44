"""What all losses share: checks of their arguments, selection by mask, and the sum at the end.

Masked entries are replaced by zeros *before* any arithmetic and once more after it, so that neither their value nor
their gradient can be anything but zero.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array

from ._total import Total


def class_arguments(name: str, logits: Any, labels: Any, mask: Any) -> tuple[Array, Array, Array]:
    """Logits `(*batch, n_classes)`, labels and mask `(*batch,)`: checked, every masked entry replaced.

    The logits come in the dtype of the sum, the labels in 32 bits at least.
    """
    logits, labels = check_logits(name, logits), check_labels(name, "labels", labels)
    if labels.shape != logits.shape[:-1]:
        raise ValueError(f"{name}: labels must have shape logits.shape[:-1] = {logits.shape[:-1]}, got {labels.shape}.")
    mask = check_flags(name, "mask", mask, labels.shape, "logits.shape[:-1]")
    return select(mask, logits), jnp.where(mask, labels, 0), mask


def element_arguments(
    name: str, predictions: Any, targets: Any, mask: Any, *, called: str = "predictions"
) -> tuple[Array, Array, Array]:
    """Predictions and targets `(*batch, n_out)`, mask `(*batch,)`: checked, in the dtype of the sum, masked rows 0."""
    predictions, targets = jnp.asarray(predictions), jnp.asarray(targets)
    _check_floating(name, called, predictions)
    if jnp.issubdtype(targets.dtype, jnp.complexfloating):
        raise TypeError(f"{name}: targets must be real, got {targets.dtype}.")
    if predictions.ndim == 0:
        raise ValueError(f"{name}: {called} must have a feature axis, (*batch, n_out), got a scalar.")
    if targets.shape != predictions.shape:
        raise ValueError(f"{name}: targets must have the shape of {called}, {predictions.shape}, got {targets.shape}.")
    mask = check_flags(name, "mask", mask, predictions.shape[:-1], f"{called}.shape[:-1]")
    dtype = sum_dtype(predictions.dtype)
    return select(mask, predictions.astype(dtype)), select(mask, targets.astype(dtype)), mask


def check_logits(name: str, logits: Any) -> Array:
    """The logits in the dtype of the sum."""
    logits = jnp.asarray(logits)
    _check_floating(name, "logits", logits)
    if logits.ndim == 0 or logits.shape[-1] == 0:
        raise ValueError(f"{name}: logits must be (*batch, n_classes) with at least one class, got {logits.shape}.")
    return logits.astype(sum_dtype(logits.dtype))


def check_labels(name: str, argument: str, labels: Any) -> Array:
    """Integers, of 32 bits and with a sign at least: the number of classes and -1 must fit."""
    if isinstance(labels, np.ndarray) and labels.dtype in (np.int64, np.uint64):
        # As int32 a large label would wrap round to a real one.
        labels = np.clip(labels, -1, 2**31 - 1).astype(np.int64)
    labels = jnp.asarray(labels)
    if not jnp.issubdtype(labels.dtype, jnp.integer):
        raise TypeError(f"{name}: {argument} must be integers, got {labels.dtype}.")
    return labels if labels.dtype in (jnp.int32, jnp.int64) else _signed(labels)


def check_flags(name: str, argument: str, flags: Any, shape: tuple[int, ...], of: str, default: bool = True) -> Array:
    """Bool of exactly that shape."""
    if flags is None:
        return jnp.full(shape, default)
    if not isinstance(flags, (np.ndarray, np.generic, jax.Array)) or flags.dtype != bool:
        came = getattr(flags, "dtype", type(flags).__name__)
        hint = "; a weight is not a mask" if "mask" in argument else ""
        raise TypeError(f"{name}: {argument} must be a bool array or None, got {came}{hint}.")
    if flags.shape != shape:  # also one that would broadcast: its total and its count would disagree
        raise ValueError(f"{name}: {argument} must have shape {of} = {shape}, got {flags.shape}.")
    return jnp.asarray(flags)


def check_weights(name: str, argument: str, weights: Any, shapes: tuple[tuple[int, ...], ...], dtype: Any) -> Array:
    """Real, finite, not negative, of one of these shapes. Negative ones known only under `jit` become NaN."""
    array = jnp.asarray(weights)
    if not (jnp.issubdtype(array.dtype, jnp.floating) or jnp.issubdtype(array.dtype, jnp.integer)):
        raise TypeError(f"{name}: {argument} must be real numbers, got {array.dtype}.")
    if array.shape not in shapes:
        wanted = " or ".join(map(str, shapes))
        raise ValueError(f"{name}: {argument} must have shape {wanted}, got {array.shape}.")
    if not isinstance(array, Tracer):
        values = np.asarray(array, np.float64)
        if not np.all((values >= 0) & (values < np.inf)):
            raise ValueError(f"{name}: {argument} must be finite and not negative, got {values.tolist()}.")
    array = array.astype(dtype)
    return jnp.where(array >= 0, array, jnp.nan)


def weigh(weights: Array, values: Array) -> Array:
    """`weights * values`, and 0 where the weight is 0, even of an infinite value."""
    return weights * jnp.where(weights == 0, 0, values)


def nan_unless(valid: Array, values: Array) -> Array:
    """`values` with NaN where they are not valid, by product, so that the gradient is NaN as well."""
    return values * jnp.where(valid, 1, jnp.nan).astype(values.dtype)


def sum_dtype(dtype: Any) -> Any:
    """Half precision is summed in float32."""
    return dtype if jnp.dtype(dtype).itemsize >= 4 else jnp.float32


def select(mask: Array, rows: Array) -> Array:
    """Rows `(*batch, n)` with zeros where the mask `(*batch,)` is False."""
    return jnp.where(mask[..., None], rows, 0)


def reduce_rows(rows: Array, mask: Array) -> Total:
    """The sum and number of real entries, `(*batch,)`."""
    return Total(jnp.sum(jnp.where(mask, rows, 0)), jnp.sum(mask, dtype=jnp.int32))


def reduce_elements(elements: Array, mask: Array) -> Total:
    """The sum and number of the elements `(*batch, n_out)` of real rows."""
    total, rows = reduce_rows(jnp.sum(elements, axis=-1), mask)
    return Total(total, rows * elements.shape[-1])


def _check_floating(name: str, argument: str, array: Array) -> None:
    if not jnp.issubdtype(array.dtype, jnp.floating):
        raise TypeError(f"{name}: {argument} must be floating point, got {array.dtype}.")


def _signed(labels: Array) -> Array:
    if labels.dtype in (jnp.uint32, jnp.uint64):
        return jnp.minimum(labels, 2**31 - 1).astype(jnp.int32)  # not round to a negative one or a class
    return labels.astype(jnp.int32)
