"""Losses and metrics as sums and counts.

A mean of means over unequal parts is wrong, so nothing here takes a mean before the end: a `Total` of micro-batches,
windows or shards is the sum of their `Total`s. Masked entries are replaced by zeros *before* any arithmetic, so that
neither their value nor their gradient can be anything but zero.
"""

from typing import Any, NamedTuple, SupportsIndex

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array


class Total(NamedTuple):
    """A sum and the number of entries in it. `+` merges two, `.mean` divides at the very end.

    `sum(totals, Total(0, 0))` merges any number of them.

    Attributes:
        total: the sum, `()`.
        count: how many entries it sums, `()`.

    Examples:
        >>> from sequinox.train import Total
        >>> part, rest = Total(6.0, 3), Total(2.0, 1)
        >>> (part + rest).mean, sum([part, rest], Total(0, 0)).count
        (2.0, 4)
    """

    total: Any
    count: Any

    @property
    def mean(self) -> Any:
        """`total / count`; 0, with gradient 0, where the count is 0."""
        if isinstance(self.total, (int, float)) and isinstance(self.count, (int, float)):
            return self.total / self.count if self.count else 0.0
        total = jnp.asarray(self.total)
        empty = jnp.asarray(self.count) == 0
        # Both branches must be finite, or the unused one's gradient is NaN.
        divisor = jnp.where(empty, 1, self.count).astype(total.dtype)
        return jnp.where(empty, 0, jnp.where(empty, 0, total) / divisor)

    # A tuple's `+` would concatenate; adding two totals is the only sense here.
    def __add__(self, other: Any) -> "Total":  # pyright: ignore[reportIncompatibleMethodOverride]
        if not isinstance(other, Total):
            return NotImplemented
        return Total(self.total + other.total, self.count + other.count)

    def __radd__(self, other: Any) -> "Total":
        return self if isinstance(other, int) and other == 0 else NotImplemented  # sum() starts at 0

    def __mul__(self, other: SupportsIndex) -> "Total":  # pyright: ignore[reportIncompatibleMethodOverride]
        return NotImplemented

    __rmul__ = __mul__  # pyright: ignore[reportAssignmentType]


def cross_entropy(logits: Any, labels: Any, mask: Any = None) -> Total:
    """Cross-entropy in nats of integer labels under `softmax(logits)`.

    Arguments:
        logits: `(*batch, n_classes)`, floating; `-inf` rules a class out. Half precision is summed in float32.
        labels: `(*batch,)`, integers in `[0, n_classes)`. Where `mask` is False they may be anything, -1 included. On a
            real entry a label out of range gives NaN (it cannot raise under `jit`), never a neighbour's logit.
        mask: `(*batch,)` bool, True on real entries. Default: all are real.

    Returns:
        `Total`: the sum over real entries in nats, and their number.

    Raises:
        TypeError: `logits` not floating, `labels` not integers, `mask` not bool.
        ValueError: `logits` without a class axis, or `labels` or `mask` of another shape than `logits.shape[:-1]`.

    Examples:
        >>> import jax.numpy as jnp
        >>> from sequinox.train import cross_entropy
        >>> loss = cross_entropy(jnp.zeros((3, 4)), jnp.array([0, 3, -1]), jnp.array([True, True, False]))
        >>> f"{loss.mean:.4f}", int(loss.count)
        ('1.3863', 2)
    """
    logits, labels, mask = _class_arguments("cross_entropy", logits, labels, mask)
    n_classes = logits.shape[-1]
    in_range = (labels >= 0) & (labels < n_classes)
    # An index past the end is filled, a negative one would wrap round to the last class.
    picked = jnp.take_along_axis(
        logits, jnp.where(in_range, labels, n_classes)[..., None], axis=-1, mode="fill", fill_value=0
    )[..., 0]
    loss = jax.nn.logsumexp(logits, axis=-1) - picked
    # By product, so that the gradient is NaN as well: a wrong label must not train on quietly.
    loss = loss * jnp.where(in_range, 1, jnp.nan).astype(loss.dtype)
    return _reduce(loss, mask)


def accuracy(logits: Any, labels: Any, mask: Any = None) -> Total:
    """How many labels have the largest logit. The first of equal logits is taken; a row with a NaN counts as wrong.

    Arguments:
        logits: `(*batch, n_classes)`, floating.
        labels: `(*batch,)`, integers; anything where `mask` is False.
        mask: `(*batch,)` bool, True on real entries. Default: all are real.

    Returns:
        `Total`: the number of correct real entries (float32, so that it merges with the losses), and of real entries.

    Raises:
        TypeError: as `cross_entropy`.
        ValueError: as `cross_entropy`.

    Examples:
        >>> import jax.numpy as jnp
        >>> from sequinox.train import accuracy
        >>> float(accuracy(jnp.array([[0.0, 1.0], [1.0, 0.0]]), jnp.array([1, 1])).mean)
        0.5
    """
    logits, labels, mask = _class_arguments("accuracy", logits, labels, mask)
    correct = (jnp.argmax(logits, axis=-1) == labels) & ~jnp.any(jnp.isnan(logits), axis=-1)
    return Total(jnp.sum(correct & mask, dtype=jnp.int32).astype(jnp.float32), jnp.sum(mask, dtype=jnp.int32))


def squared_error(predictions: Any, targets: Any, mask: Any = None) -> Total:
    """Squared error, summed over real rows and all their features. `.mean` is the mean squared error of an *element*.

    Arguments:
        predictions: `(*batch, n_out)`, floating. Half precision is summed in float32.
        targets: the same shape exactly (`(B, 1)` against `(B,)` would broadcast to `(B, B)`), real numbers.
        mask: `(*batch,)` bool, True on real rows: it drops the last axis. Default: all are real.

    Returns:
        `Total`: the sum of squares, and the number of *elements* in it (real rows times `n_out`).

    Raises:
        TypeError: `predictions` not floating, `targets` complex, `mask` not bool.
        ValueError: no feature axis, or `targets` or `mask` of the wrong shape.

    Examples:
        >>> import jax.numpy as jnp
        >>> from sequinox.train import squared_error
        >>> error = squared_error(jnp.ones((2, 3)), jnp.zeros((2, 3)), jnp.array([True, False]))
        >>> float(error.total), int(error.count)
        (3.0, 3)
    """
    predictions, targets = jnp.asarray(predictions), jnp.asarray(targets)
    _check_floating("squared_error", "predictions", predictions)
    if jnp.issubdtype(targets.dtype, jnp.complexfloating):
        raise TypeError(f"squared_error: targets must be real, got {targets.dtype}.")
    if predictions.ndim == 0:
        raise ValueError("squared_error: predictions must have a feature axis, (*batch, n_out), got a scalar.")
    if targets.shape != predictions.shape:
        raise ValueError(
            f"squared_error: targets must have the shape of predictions, {predictions.shape}, got {targets.shape}."
        )
    mask = _check_mask("squared_error", mask, predictions.shape[:-1], "predictions.shape[:-1]")
    dtype = _sum_dtype(predictions.dtype)
    difference = _select(mask, predictions.astype(dtype)) - _select(mask, targets.astype(dtype))
    total, rows = _reduce(jnp.sum(difference**2, axis=-1), mask)
    return Total(total, rows * predictions.shape[-1])


def _class_arguments(name: str, logits: Any, labels: Any, mask: Any) -> tuple[Array, Array, Array]:
    """Checked, in the dtype of the sum, with every masked entry replaced."""
    if isinstance(labels, np.ndarray) and labels.dtype in (np.int64, np.uint64):
        # As int32 a large label would wrap round to a real one.
        labels = np.clip(labels, -1, 2**31 - 1).astype(np.int64)
    logits, labels = jnp.asarray(logits), jnp.asarray(labels)
    _check_floating(name, "logits", logits)
    if not jnp.issubdtype(labels.dtype, jnp.integer):
        raise TypeError(f"{name}: labels must be integers, got {labels.dtype}.")
    if logits.ndim == 0 or logits.shape[-1] == 0:
        raise ValueError(f"{name}: logits must be (*batch, n_classes) with at least one class, got {logits.shape}.")
    if labels.shape != logits.shape[:-1]:
        raise ValueError(f"{name}: labels must have shape logits.shape[:-1] = {logits.shape[:-1]}, got {labels.shape}.")
    mask = _check_mask(name, mask, labels.shape, "logits.shape[:-1]")
    # int32 at least: the number of classes itself must fit.
    labels = labels if labels.dtype.itemsize >= 4 else labels.astype(jnp.int32)
    return _select(mask, logits.astype(_sum_dtype(logits.dtype))), jnp.where(mask, labels, 0), mask


def _check_floating(name: str, argument: str, array: Array) -> None:
    if not jnp.issubdtype(array.dtype, jnp.floating):
        raise TypeError(f"{name}: {argument} must be floating point, got {array.dtype}.")


def _check_mask(name: str, mask: Any, shape: tuple[int, ...], of: str) -> Array:
    if mask is None:
        return jnp.ones(shape, bool)
    if not isinstance(mask, (np.ndarray, np.generic, jax.Array)) or mask.dtype != bool:
        came = getattr(mask, "dtype", type(mask).__name__)
        raise TypeError(f"{name}: mask must be a bool array or None, got {came}; a weight is not a mask.")
    if mask.shape != shape:  # also one that would broadcast: its total and its count would disagree
        raise ValueError(f"{name}: mask must have shape {of} = {shape}, got {mask.shape}.")
    return jnp.asarray(mask)


def _sum_dtype(dtype: Any) -> Any:
    return dtype if jnp.dtype(dtype).itemsize >= 4 else jnp.float32


def _select(mask: Array, rows: Array) -> Array:
    return jnp.where(mask[..., None], rows, 0)


def _reduce(rows: Array, mask: Array) -> Total:
    return Total(jnp.sum(jnp.where(mask, rows, 0)), jnp.sum(mask, dtype=jnp.int32))
