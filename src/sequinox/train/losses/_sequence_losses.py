"""Losses over time: the next token, and labels without an alignment."""

import math

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array

from ..._checks import size
from ..._layer import select
from ..._types import ArrayLike
from ._classification import cross_entropy
from ._loss_arguments import check_labels, check_logits, flags_or, nan_unless, reduce_rows
from ._total import Total

_NEVER = -1e30
"""Logarithm of the probability 0: so low that nothing added to it shows, far from the end of float32."""


def next_tokens(
    tokens: ArrayLike, mask: ArrayLike | None = None, resets: ArrayLike | None = None
) -> tuple[Array, Array]:
    """What each step is to predict: the next real token of its sequence, and where there is one.

    The target of step t is the token of the *next real sample* of the row, over any gap of masked ones. There is none
    where t is masked, where no real sample follows, or where that sample has a reset: it starts another sequence.
    (A reset on a masked sample is ignored, as layers ignore it.)

    Call it on whole rows, *before* they are cut into windows: the last step of a window has its target in the next one.

    Arguments:
        tokens: `(*batch, time)`, integers; anything where `mask` is False.
        mask: `(*batch, time)` bool, True on real samples. Default: all are real.
        resets: `(*batch, time)` bool, True on the first sample of a sequence. Default: each row is one sequence.

    Returns:
        `(labels, mask)`, both `(*batch, time)`: the targets as signed integers, and bool, True where there is one. This
        mask is the loss's. Elsewhere the label is -1, which gives NaN in a loss that is not given the mask.

    Raises:
        TypeError: `tokens` not integers, `mask` or `resets` not bool.
        ValueError: no time axis, or `mask` or `resets` of another shape than `tokens`.

    ??? example

        ```python
        >>> import jax.numpy as jnp, sequinox as sqx
        >>> labels, mask = sqx.train.next_tokens(jnp.array([5, 6, 0, 7]), jnp.array([True, True, False, True]))
        >>> labels.tolist(), mask.tolist()
        ([6, 7, -1, -1], [True, True, False, False])

        ```
    """
    return _next_tokens(tokens, mask, resets, "next_tokens")


def next_token_loss(
    logits: ArrayLike, tokens: ArrayLike, mask: ArrayLike | None = None, resets: ArrayLike | None = None
) -> Total:
    """Cross-entropy in nats of each next token: the loss of a language model.

    `cross_entropy(logits, *next_tokens(tokens, mask, resets))`. Write it so to add label smoothing or class weights,
    for `accuracy` of the next token, or for windows of longer rows, whose targets must be found before they are cut.

    Arguments:
        logits: `(*batch, time, n_classes)`, floating: the prediction after reading the token of the same step.
        tokens: `(*batch, time)`, integers in `[0, n_classes)`: what was *read*. They are shifted here, not before.
        mask: `(*batch, time)` bool, True on real samples of the *input*. Default: all are real.
        resets: `(*batch, time)` bool, True on the first sample of a sequence. Default: each row is one sequence.

    Returns:
        `Total`: the sum in nats over the steps that have a next token (a sequence of n has n - 1), and their number.

    Raises:
        TypeError: as `cross_entropy` and `next_tokens`.
        ValueError: as `cross_entropy` and `next_tokens`.

    ??? example

        ```python
        >>> import jax.numpy as jnp, sequinox as sqx
        >>> loss = sqx.train.next_token_loss(jnp.zeros((2, 5, 8)), jnp.ones((2, 5), jnp.int32))
        >>> f"{sqx.train.bits_per_character(loss):.3f}", int(loss.count)
        ('3.000', 8)

        ```
    """
    logits = check_logits(logits, "next_token_loss")
    tokens = check_labels(tokens, "next_token_loss", "tokens")
    if tokens.shape != logits.shape[:-1]:
        raise ValueError(
            f"next_token_loss: tokens must have shape logits.shape[:-1] = {logits.shape[:-1]}, got {tokens.shape}"
        )
    return cross_entropy(logits, *_next_tokens(tokens, mask, resets, "next_token_loss"))


def ctc_loss(
    logits: ArrayLike,
    labels: ArrayLike,
    mask: ArrayLike | None = None,
    label_mask: ArrayLike | None = None,
    *,
    blank: int = 0,
) -> Total:
    r"""Connectionist temporal classification: $-\log p(\text{labels} \mid \text{frames})$ over all alignments.

    Each frame emits a label or a blank; repeated labels count once unless a blank parts them. The sum over alignments
    is `optax.ctc_loss`. Here masks may have gaps anywhere, and a row without an alignment is not trained on unnoticed.

    Arguments:
        logits: `(*batch, time, n_classes)`, floating, blank included; `-inf` (or 1e30 below the largest) rules a class
            out. Half precision is summed in float32.
        labels: `(*batch, n_labels)`, integers in `[0, n_classes)`, never the blank; anything where `label_mask` is
            False. On a real entry the blank, or a label out of range, gives NaN.
        mask: `(*batch, time)` bool, True on real frames, wherever they are. Default: all are real.
        label_mask: `(*batch, n_labels)` bool, True on real labels, wherever they are. Default: all are real.
        blank: the class that says "no label". Default: 0, as in PyTorch.

    Returns:
        `Total`: the sum over sequences in nats, and the number of sequences. A row with neither a real frame nor a real
        label only fills up a batch and is not counted. A row with frames and no labels is a sequence of blanks. `.mean`
        is that of a sequence; PyTorch's default divides each by its number of labels first.

        Where no alignment exists the sum is infinite and its gradient not finite, so that `make_step` skips the step:
        fewer real frames than labels and repeats, or a class that is ruled out and needed. Leave such rows out: a row
        needs `n_labels + (labels[1:] == labels[:-1]).sum()` frames.

    Raises:
        TypeError: `logits` not floating, `labels` not integers, a mask not bool, `blank` not an integer.
        ValueError: `logits` without a time axis, `labels` with other batch axes, a mask of the wrong shape, `blank` not
            in `[0, n_classes)`.

    Source: [Graves et al. 2006](https://doi.org/10.1145/1143844.1143891), section 4.

    ??? example

        ```python
        >>> import jax.numpy as jnp
        >>> from sequinox.train import ctc_loss
        >>> loss = ctc_loss(jnp.zeros((1, 2, 3)), jnp.array([[1]]))  # 3 of 9 alignments: (1, 1), (1, 0), (0, 1)
        >>> f"{loss.mean:.4f}", int(loss.count)
        ('1.0986', 1)

        ```
    """
    logits, labels = check_logits(logits, "ctc_loss"), check_labels(labels, "ctc_loss", "labels")
    if logits.ndim < 2:
        raise ValueError(f"ctc_loss: logits must be (*batch, time, n_classes), got {logits.shape}")
    *batch, time, n_classes = logits.shape
    if labels.ndim == 0 or labels.shape[:-1] != tuple(batch):
        raise ValueError(
            f"ctc_loss: labels must be (*batch, n_labels) with the batch axes of logits, {tuple(batch)}, "
            f"got {labels.shape}"
        )
    blank = size(blank, "ctc_loss", "blank", 0)
    if blank >= n_classes:
        raise ValueError(f"ctc_loss: blank must be in [0, n_classes) = [0, {n_classes}), got {blank}")
    mask = flags_or(True, mask, logits.shape[:-1], "ctc_loss", "mask", "logits.shape[:-1]")
    label_mask = flags_or(True, label_mask, labels.shape, "ctc_loss", "label_mask", "labels.shape")
    rows, n_labels = math.prod(batch), labels.shape[-1]
    counted = (jnp.any(mask, axis=-1) | jnp.any(label_mask, axis=-1)).reshape(rows)
    frames: Array = select(mask, logits, jnp.zeros_like(logits))
    logits, mask = _to_front(frames.reshape(rows, time, n_classes), mask.reshape(rows, time))
    labels, label_mask = _to_front(labels.reshape(rows, n_labels), label_mask.reshape(rows, n_labels))
    valid = jnp.all(~label_mask | ((labels >= 0) & (labels < n_classes) & (labels != blank)), axis=-1)
    # Logarithms of 0 must be finite there. A frame without any class left is NaN by this difference.
    top = jax.lax.stop_gradient(jnp.max(logits, axis=-1, keepdims=True))
    finite = jnp.maximum(logits - top, _NEVER)
    # Optax relies on implicit promotion, and picks log-probabilities by a product, which must not round.
    with (
        jax.numpy_dtype_promotion("standard"),
        jax.numpy_rank_promotion("allow"),
        jax.default_matmul_precision("highest"),
    ):
        paddings, label_paddings = (~mask).astype(logits.dtype), (~label_mask).astype(logits.dtype)
        loss = optax.losses.ctc_loss(finite, paddings, labels, label_paddings, blank_id=blank, log_epsilon=_NEVER)
    loss = loss.astype(logits.dtype)
    loss = loss - jax.lax.stop_gradient(jnp.minimum(loss, 0))  # a confident one may round to below 0
    # By product, as for a label out of range: the gradient is not finite either.
    loss = loss * jnp.where(loss > -_NEVER / 2, jnp.inf, 1).astype(loss.dtype)
    return reduce_rows(nan_unless(valid, loss), counted)


def _next_tokens(tokens: ArrayLike, mask: ArrayLike | None, resets: ArrayLike | None, who: str) -> tuple[Array, Array]:
    tokens = check_labels(tokens, who, "tokens")
    if tokens.ndim == 0:
        raise ValueError(f"{who}: tokens must have a time axis, (*batch, time), got a scalar")
    mask = flags_or(True, mask, tokens.shape, who, "mask", "tokens.shape")
    resets = flags_or(False, resets, tokens.shape, who, "resets", "tokens.shape")
    time, axis = tokens.shape[-1], tokens.ndim - 1
    if time == 0:
        return tokens, mask
    steps = jnp.broadcast_to(jnp.arange(time), tokens.shape)
    here_or_later = jax.lax.cummin(jnp.where(mask, steps, time), axis, reverse=True)
    later = jnp.concatenate([here_or_later[..., 1:], jnp.full((*tokens.shape[:-1], 1), time)], axis=-1)
    exists = mask & (later < time)
    later = jnp.where(exists, later, 0)
    exists &= ~jnp.take_along_axis(resets, later, axis=-1)
    return jnp.where(exists, jnp.take_along_axis(tokens, later, axis=-1), -1), exists


def _to_front(values: Array, mask: Array) -> tuple[Array, Array]:
    """Real entries of each row `(rows, n, *features)` first, in their order, and at least one entry."""
    if mask.shape[1] == 0:
        return jnp.zeros((values.shape[0], 1, *values.shape[2:]), values.dtype), jnp.zeros((values.shape[0], 1), bool)
    order = jnp.argsort(~mask, axis=1, stable=True)
    index = order.reshape(*order.shape, *[1] * (values.ndim - 2))
    return jnp.take_along_axis(values, index, axis=1), jnp.take_along_axis(mask, order, axis=1)
