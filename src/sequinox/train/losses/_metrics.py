"""Metrics: what is measured and not trained on."""

import math
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Int

from ..._checks import size
from ..._types import ArrayLike
from ._loss_arguments import check_labels, class_arguments, flags_or
from ._total import Total


def accuracy(logits: ArrayLike, labels: ArrayLike, mask: ArrayLike | None = None, *, k: int = 1) -> Total:
    """How many labels have the largest logit, or one of the `k` largest.

    Of equal logits the first comes first; a row with a NaN counts as wrong.

    Arguments:
        logits: `(*batch, n_classes)`, floating.
        labels: `(*batch,)`, integers; anything where `mask` is False.
        mask: `(*batch,)` bool, True on real entries. Default: all are real.
        k: how many of the largest logits count. Default: 1.

    Returns:
        `Total`: the number of correct real entries (float32, so that it merges with the losses), and of real entries.

    Raises:
        TypeError: as `cross_entropy`; `k` is not an integer.
        ValueError: as `cross_entropy`; `k` is not in `[1, n_classes]`.

    ??? example

        ```python
        >>> import jax.numpy as jnp, sequinox as sqx
        >>> logits, labels = jnp.array([[0.0, 1.0, 2.0], [2.0, 1.0, 0.0]]), jnp.array([1, 0])
        >>> float(sqx.train.accuracy(logits, labels).mean), float(sqx.train.accuracy(logits, labels, k=2).mean)
        (0.5, 1.0)

        ```
    """
    logits, labels, mask = class_arguments(logits, labels, mask, "accuracy")
    n_classes = logits.shape[-1]
    k = size(k, "accuracy", "k")
    if k > n_classes:
        raise ValueError(f"accuracy: k must be in [1, n_classes] = [1, {n_classes}], got {k}")
    valid = (labels >= 0) & (labels < n_classes) & ~jnp.any(jnp.isnan(logits), axis=-1)
    index = jnp.where(valid, labels, 0)[..., None]
    own = jnp.take_along_axis(logits, index, axis=-1)
    earlier = jnp.broadcast_to(jnp.arange(n_classes, dtype=index.dtype), logits.shape) < index
    ahead = jnp.sum((logits > own) | ((logits == own) & earlier), axis=-1, dtype=jnp.int32)
    correct = jnp.sum((ahead < k) & valid & mask, dtype=jnp.int32)
    return Total(correct.astype(jnp.float32), jnp.sum(mask, dtype=jnp.int32))


def confusion_matrix(
    predictions: ArrayLike, labels: ArrayLike, mask: ArrayLike | None = None, *, n_classes: int | None = None
) -> Int[Array, "n_classes n_classes"]:
    """How often each class was taken for each: rows are labels, columns are predictions.

    Matrices of parts add up to the whole's. An entry that has no cell is in none of them: a row of logits with a NaN, a
    label or a prediction out of range. So the diagonal sums to `accuracy`'s total, and all cells to the number of real
    entries less those.

    With `matrix` whole, `Total(matrix.diagonal(), matrix.sum(1)).mean` is the recall of each class (0 for one that
    never occurred), and `Total(matrix.diagonal(), matrix.sum(0)).mean` the precision.

    Arguments:
        predictions: logits `(*batch, n_classes)`, floating, whose largest is the prediction (the first of equal ones);
            or predicted classes `(*batch,)`, integers.
        labels: `(*batch,)`, integers; anything where `mask` is False.
        mask: `(*batch,)` bool, True on real entries. Default: all are real.
        n_classes: needed with predicted classes, and only then: logits bring their own.

    Returns:
        Counts, int32 `(n_classes, n_classes)`.

    Raises:
        TypeError: as `accuracy`; `predictions` neither floating nor integers, `n_classes` not an integer.
        ValueError: as `accuracy`; `n_classes` missing, not above 0, or another than the logits'.

    ??? example

        ```python
        >>> import jax.numpy as jnp, sequinox as sqx
        >>> matrix = sqx.train.confusion_matrix(jnp.array([0, 1, 1, 1]), jnp.array([0, 0, 1, 1]), n_classes=2)
        >>> matrix.tolist()
        [[1, 1], [0, 2]]
        >>> sqx.train.Total(matrix.diagonal(), matrix.sum(1)).mean.tolist()  # the recall of each class
        [0.5, 1.0]

        ```
    """
    who = "confusion_matrix"
    if n_classes is not None:
        n_classes = size(n_classes, who, "n_classes")
    if jnp.issubdtype(jnp.asarray(predictions).dtype, jnp.integer):
        predictions, labels = check_labels(predictions, who, "predictions"), check_labels(labels, who, "labels")
        if n_classes is None:
            raise ValueError(f"{who}: predicted classes need n_classes")
        if labels.shape != predictions.shape:
            raise ValueError(
                f"{who}: labels must have the shape of predictions, {predictions.shape}, got {labels.shape}"
            )
        mask = flags_or(True, mask, labels.shape, who, "mask", "labels.shape")
        valid = mask & (predictions >= 0) & (predictions < n_classes)
    else:
        logits, labels, mask = class_arguments(predictions, labels, mask, who)
        if n_classes not in (None, logits.shape[-1]):
            raise ValueError(f"{who}: n_classes is {n_classes}, and the logits have {logits.shape[-1]}")
        n_classes = logits.shape[-1]
        predictions = jnp.argmax(logits, axis=-1)
        valid = mask & ~jnp.any(jnp.isnan(logits), axis=-1)
    valid &= (labels >= 0) & (labels < n_classes)
    cell = jnp.where(valid, labels, 0), jnp.where(valid, predictions, 0)
    return jnp.zeros((n_classes, n_classes), jnp.int32).at[cell].add(valid.astype(jnp.int32))


def bits_per_character(total: Total) -> Any:
    r"""The mean in bits instead of nats, $\text{mean} / \ln 2$: what the literature reports for text and other symbols.

    Where an entry is not one character (a word piece, say), put the number of characters for the count:
    `bits_per_character(Total(loss.total, n_characters))`. Class weights and label smoothing change what is summed:
    measure without them.

    Arguments:
        total: nats, as `cross_entropy` and `next_token_loss` return them; the whole, after all parts are added.

    Returns:
        As `total.mean`: a float from Python numbers, an array from arrays. 0 where the count is 0.

    Raises:
        TypeError: `total` is not a `Total`. (Its mean alone would tempt to average over unequal parts.)

    ??? example

        ```python
        >>> import math, sequinox as sqx
        >>> round(sqx.train.bits_per_character(sqx.train.Total(8 * math.log(2), 4)), 6)
        2.0

        ```
    """
    return _check_total(total, "bits_per_character").mean / math.log(2)


def perplexity(total: Total) -> Any:
    r"""$\exp(\text{mean})$ of nats: the number of equally likely choices that would be as hard.

    Arguments:
        total: nats, as `cross_entropy` and `next_token_loss` return them; the whole, after all parts are added. The
            mean of the parts' perplexities is another number.

    Returns:
        As `total.mean`: a float from Python numbers, an array from arrays. Infinity where the dtype ends. 1 where the
        count is 0, as the mean is 0 there.

    Raises:
        TypeError: `total` is not a `Total`.

    ??? example

        ```python
        >>> import math, sequinox as sqx
        >>> round(sqx.train.perplexity(sqx.train.Total(2 * math.log(7), 2)), 6)
        7.0

        ```
    """
    mean = _check_total(total, "perplexity").mean
    if not isinstance(mean, float):
        return jnp.exp(mean)
    try:
        return math.exp(mean)
    except OverflowError:
        return math.inf


def _check_total(total: Any, who: str) -> Total:
    if not isinstance(total, Total):
        raise TypeError(f"{who}: expected a Total, in nats, got {type(total).__name__}")
    return total
