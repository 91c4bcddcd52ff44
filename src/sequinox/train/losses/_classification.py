"""Losses of classification, as sums and counts.

A mean of means over unequal parts is wrong, so nothing here takes a mean before the end: a `Total` of micro-batches,
windows or shards is the sum of their `Total`s.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from ..._checks import number
from ..._types import ArrayLike
from ._loss_arguments import (
    check_weights,
    class_arguments,
    element_arguments,
    nan_unless,
    reduce_elements,
    reduce_rows,
    weigh,
)
from ._total import Total


def cross_entropy(
    logits: ArrayLike,
    labels: ArrayLike,
    mask: ArrayLike | None = None,
    *,
    label_smoothing: float = 0.0,
    class_weights: ArrayLike | Sequence[float] | None = None,
) -> Total:
    r"""Cross-entropy in nats of integer labels under `softmax(logits)`.

    With smoothing $\epsilon$ and class weights $w$, an entry of label $y$ adds

    $$
    -(1 - \epsilon)\, w_y \log p_y - \frac{\epsilon}{K} \sum_{c=1}^{K} w_c \log p_c
    $$

    to the sum, and $w_y$ to the count. The count is the sum of weights, not the number of entries, so that `.mean` is
    a weighted mean (PyTorch's): its scale does not depend on which classes a batch holds, a class of weight 0 is as
    good as masked, and parts still merge to the whole.

    Arguments:
        logits: `(*batch, n_classes)`, floating; `-inf` rules a class out. Half precision is summed in float32.
        labels: `(*batch,)`, integers in `[0, n_classes)`. Where `mask` is False they may be anything, -1 included. On a
            real entry a label out of range gives NaN (it cannot raise under `jit`), never a neighbour's logit.
        mask: `(*batch,)` bool, True on real entries. Default: all are real.
        label_smoothing: $\epsilon$ in `[0, 1)`, a Python number: the part of each label that is spread evenly over all
            classes. A class that is ruled out, and has a weight, then makes the loss infinite, as the formula says.
            Default: 0.
        class_weights: `(n_classes,)`, finite and not negative. A negative one that is known only under `jit` gives NaN.
            Default: None, every entry counts 1.

    Returns:
        `Total`: the sum over real entries in nats, and their number (int32); with `class_weights`, the sum of the real
        entries' weights (the dtype of the sum).

    Raises:
        TypeError: `logits` not floating, `labels` not integers, `mask` not bool, `class_weights` not real numbers.
        ValueError: `logits` without a class axis, `labels` or `mask` of another shape than `logits.shape[:-1]`,
            `label_smoothing` not in `[0, 1)`, `class_weights` of the wrong shape, negative or infinite.

    Source: [Szegedy et al. 2016](https://arxiv.org/abs/1512.00567), section 7, for label smoothing.

    ??? example

        ```python
        >>> import jax.numpy as jnp, sequinox as sqx
        >>> logits, labels = jnp.zeros((3, 4)), jnp.array([0, 3, -1])
        >>> mask = jnp.array([True, True, False])
        >>> loss = sqx.train.cross_entropy(logits, labels, mask)
        >>> f"{loss.mean:.4f}", int(loss.count)
        ('1.3863', 2)
        >>> weighted = sqx.train.cross_entropy(logits, labels, mask, class_weights=jnp.array([0.5, 1.0, 1.0, 3.0]))
        >>> f"{weighted.mean:.4f}", float(weighted.count)
        ('1.3863', 3.5)

        ```
    """
    logits, labels, mask = class_arguments(logits, labels, mask, "cross_entropy")
    smoothing = number(label_smoothing, "cross_entropy", "label_smoothing")
    if not 0 <= smoothing < 1:
        raise ValueError(f"cross_entropy: label_smoothing must be in [0, 1), got {smoothing}")
    n_classes = logits.shape[-1]
    in_range = (labels >= 0) & (labels < n_classes)
    # An index past the end is filled, a negative one would wrap round to the last class.
    index = jnp.where(in_range, labels, n_classes)
    picked = jnp.take_along_axis(logits, index[..., None], axis=-1, mode="fill", fill_value=0)[..., 0]
    level = jax.nn.logsumexp(logits, axis=-1)
    loss, count, weights = level - picked, jnp.sum(mask, dtype=jnp.int32), None
    if class_weights is not None:
        weights = check_weights(class_weights, ((n_classes,),), loss.dtype, "cross_entropy", "class_weights")
        # NaN for a wrong label in the count too: a batch of nothing else must not pass for an empty one.
        weight = jnp.take(weights, index, mode="fill", fill_value=jnp.nan)
        loss, count = weigh(weight, loss), jnp.sum(jnp.where(mask, weight, 0))
    if smoothing:
        others = level[..., None] - logits
        others = others if weights is None else weigh(jnp.broadcast_to(weights, logits.shape), others)
        loss = (1 - smoothing) * loss + smoothing * jnp.mean(others, axis=-1)
    return Total(reduce_rows(nan_unless(in_range, loss), mask).total, count)


def binary_cross_entropy(
    logits: ArrayLike,
    targets: ArrayLike,
    mask: ArrayLike | None = None,
    *,
    pos_weight: ArrayLike | Sequence[float] | float | None = None,
) -> Total:
    r"""Cross-entropy in nats of yes-or-no targets under `sigmoid(logits)`, each output on its own.

    An element of logit $x$ and target $y$ adds $-w\, y \log \sigma(x) - (1 - y) \log \sigma(-x)$. It is computed from
    the logits, without a probability between: exact to rounding however large they are.

    Arguments:
        logits: `(*batch, n_out)`, floating. Half precision is summed in float32.
        targets: the same shape exactly, bool, or numbers in `[0, 1]`. On a real row anything else gives NaN.
        mask: `(*batch,)` bool, True on real rows: it drops the last axis. Default: all are real.
        pos_weight: $w$, one number or `(n_out,)`, finite and not negative: how much a positive counts. It scales the
            sum only; the count stays the number of elements, as in PyTorch. Default: None, 1.

    Returns:
        `Total`: the sum in nats, and the number of *elements* in it (real rows times `n_out`).

    Raises:
        TypeError: `logits` not floating, `targets` complex, `mask` not bool, `pos_weight` not real numbers.
        ValueError: no feature axis, `targets` or `mask` of the wrong shape, `pos_weight` of the wrong shape, negative
            or infinite.

    ??? example

        ```python
        >>> import jax.numpy as jnp, sequinox as sqx
        >>> loss = sqx.train.binary_cross_entropy(jnp.array([[0.0, 500.0]]), jnp.array([[True, False]]))
        >>> f"{loss.total:.4f}", int(loss.count)
        ('500.6931', 2)

        ```
    """
    who = "binary_cross_entropy"
    logits, targets, mask = element_arguments(logits, targets, mask, who, "logits")
    positive = targets
    if pos_weight is not None:
        weight = check_weights(pos_weight, ((), logits.shape[-1:]), logits.dtype, who, "pos_weight")
        positive = targets * jnp.broadcast_to(weight, logits.shape)
    loss = weigh(positive, jax.nn.softplus(-logits)) + weigh(1 - targets, jax.nn.softplus(logits))
    return reduce_elements(nan_unless((targets >= 0) & (targets <= 1), loss), mask)
