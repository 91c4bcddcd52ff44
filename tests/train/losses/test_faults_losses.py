"""Faults that users report of losses elsewhere, one test each, with the value that is right.

Numbers are those of public reports. Values come from loops, closed forms, or the same rows without what is masked.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sequinox.train import (
    Total,
    absolute_error,
    accuracy,
    binary_cross_entropy,
    confusion_matrix,
    cross_entropy,
    ctc_loss,
    huber_error,
    next_token_loss,
    squared_error,
)

pytestmark = pytest.mark.usefixtures("quick_compilation")

BATCH, TIME, WIDTH = 3, 5, 4
MASK = np.arange(TIME) < np.array([5, 0, 2])[:, None]
RNG = np.random.default_rng(11)
VALUES = RNG.normal(size=(BATCH, TIME, WIDTH)).astype(np.float32)
LABELS = RNG.integers(0, WIDTH, size=(BATCH, TIME)).astype(np.int32)
TARGETS = RNG.uniform(size=VALUES.shape).astype(np.float32)

LOSSES = {
    "cross_entropy": (cross_entropy, LABELS),
    "smoothed": (lambda *args: cross_entropy(*args, label_smoothing=0.2), LABELS),
    "weighted": (lambda *args: cross_entropy(*args, class_weights=np.array([1.0, 2.0, 0.5, 3.0])), LABELS),
    "next_token_loss": (next_token_loss, LABELS),
    "binary_cross_entropy": (binary_cross_entropy, TARGETS),
    "squared_error": (squared_error, TARGETS),
    "absolute_error": (absolute_error, TARGETS),
    "huber_error": (huber_error, TARGETS),
    "ctc_loss": (
        lambda logits, labels, mask=None: ctc_loss(
            logits, labels[:, :1] % 3 + 1, mask, None if mask is None else jnp.any(mask, axis=1, keepdims=True)
        ),
        LABELS,
    ),
}
PARTS = {name: jax.jit(loss) for name, (loss, _) in LOSSES.items()}
GRADIENTS = {name: jax.jit(jax.value_and_grad(lambda *args, f=f: f(*args).mean)) for name, (f, _) in LOSSES.items()}
each_loss = pytest.mark.parametrize("name", LOSSES)


@each_loss
def test_mean_of_means_over_unequal_micro_batches(name):
    """Rows one by one, of 5, 0 and 2 real samples: sums and gradients add up to the whole batch's."""
    targets = LOSSES[name][1]
    grads = jax.jit(
        jax.value_and_grad(lambda *args: (lambda t: (t.total, t.count))(LOSSES[name][0](*args)), has_aux=True)
    )
    parts = [grads(*(x[row : row + 1] for x in (VALUES, targets, MASK))) for row in range(BATCH)]
    merged = sum((Total(*value) for value, _ in parts), Total(0, 0))
    mean, grad = GRADIENTS[name](VALUES, targets, MASK)
    np.testing.assert_allclose(merged.mean, mean, rtol=1e-6)
    np.testing.assert_allclose(
        np.concatenate([g for _, g in parts]) / np.float32(merged.count), grad, rtol=1e-5, atol=1e-7
    )


@each_loss
def test_all_masked_batch_is_not_0_over_0(name):
    """torch#70348: NaN since 1.11."""
    value, grad = GRADIENTS[name](np.full_like(VALUES, np.nan), LOSSES[name][1], np.zeros_like(MASK))
    assert float(value) == 0 and not np.asarray(grad).any()


@each_loss
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_mask_times_nan(name, bad):
    """torch#121416: a NaN that was masked after the loss still reached the gradient, in all but one of its losses."""
    targets = LOSSES[name][1]
    hide = lambda x: np.where(MASK if x.ndim == 2 else MASK[..., None], x, x.dtype.type(bad if x.ndim == 3 else -1))
    value, grad = GRADIENTS[name](hide(VALUES), targets if name == "ctc_loss" else hide(targets), MASK)
    clean, clean_grad = GRADIENTS[name](VALUES, targets, MASK)
    assert float(value) == float(clean)
    assert np.array_equal(grad, clean_grad) and not np.asarray(grad)[~MASK].any() and np.asarray(grad)[MASK].any()


@each_loss
def test_an_infinity_where_nothing_is_looked_at_poisons_the_gradient_by_the_other_branch(name):
    """where() of two branches, one of them NaN: masked 1e30 squares to infinity, and 0 times its slope is NaN."""
    value, grad = GRADIENTS[name](np.where(MASK[..., None], VALUES, np.float32(1e30)), LOSSES[name][1], MASK)
    assert np.isfinite(value) and np.isfinite(np.asarray(grad)).all()


def test_target_shifted_but_mask_not():
    """Row of 3 of 5: steps 0 and 1 have a target. With the input's mask, step 2 would be trained to say padding."""
    tokens, mask = np.array([[1, 2, 3, 0, 0]]), np.array([[True, True, True, False, False]])
    logits = np.zeros((1, 5, 4), np.float32)
    logits[0, 2, 0] = 50  # sure of the padding after the end: neither right nor wrong
    logits[0, [0, 1], [2, 3]] = 1
    loss = jax.jit(next_token_loss)(logits, tokens, mask)
    assert int(loss.count) == 2
    np.testing.assert_allclose(loss.mean, math.log(math.e + 3) - 1, rtol=1e-6)


def test_mask_that_broadcasts_in_the_total_but_not_in_the_count():
    values, mask = np.ones((2, 3, 4), np.float32), np.array([True, True, False])
    for loss, targets in (
        (squared_error, values),
        (cross_entropy, np.ones((2, 3), int)),
        (accuracy, np.ones((2, 3), int)),
    ):
        with pytest.raises(ValueError, match=r"mask must have shape \(2, 3\), as .*, got \(3,\)"):
            loss(values, targets, mask)
    per_element = np.ones((2, 3, 4), bool)
    with pytest.raises(ValueError, match=r"mask must have shape \(2, 3\), as .*, got \(2, 3, 4\)"):
        huber_error(values, values, per_element)


@pytest.mark.parametrize("shape", [(BATCH, TIME - 1), (TIME, BATCH), (BATCH, TIME, 1), (1, TIME), ()])
def test_mask_of_wrong_shape(shape):
    for name, (loss, targets) in LOSSES.items():
        if name != "ctc_loss":
            with pytest.raises(ValueError, match=r"mask must have shape \(3, 5\), as .*, got"):
                loss(VALUES, targets, np.ones(shape, bool))
    with pytest.raises(ValueError, match=r"mask must have shape \(3, 5\), as .*, got"):
        ctc_loss(VALUES, LABELS, np.ones(shape, bool))
    with pytest.raises(ValueError, match=r"mask must have shape \(3, 5\), as .*, got"):
        confusion_matrix(VALUES, LABELS, np.ones(shape, bool))


@each_loss
def test_masked_entries_dilute_the_mean(name):
    """keras#15323, tensorflow#34158: the sum over real samples was divided by all of them.

    keras#2546: it was scaled by the fraction masked, so that two batches with the same real rows had two losses.
    """
    targets = LOSSES[name][1]
    expected, _ = GRADIENTS[name](VALUES, targets, MASK)
    wider = [np.concatenate([x, x[:, :3]], 1) for x in (VALUES, targets, np.zeros_like(MASK))]
    wider[2][:, :TIME] = MASK
    if name == "ctc_loss":
        wider[1] = targets
    taller = [np.concatenate([x, x]) for x in (VALUES, targets, MASK)]
    taller[2][BATCH:] = False
    for values, aims, mask in (wider, taller):
        np.testing.assert_allclose(PARTS[name](values, aims, mask).mean, expected, rtol=1e-6)


@pytest.mark.parametrize("weights", [None, np.array([0.2, 0.3, 1.0, 2.0])])
def test_label_smoothing_and_class_weights_of_ignored_entries(weights):
    """torch#73205: smoothing summed ignored entries too. torch#69339, #91383: weights of a label -100 were read."""
    labels, keywords = np.where(MASK, LABELS, -100), {"label_smoothing": 0.1, "class_weights": weights}
    entropy = jax.jit(lambda *args: cross_entropy(*args, **keywords))
    loss, alone = entropy(VALUES, labels, MASK), entropy(VALUES[MASK], LABELS[MASK])
    np.testing.assert_allclose(loss, alone, rtol=1e-6)


def test_a_wrong_label_that_costs_nothing():
    """torch#12670: a label of -4 gave 0 or a neighbour's loss. Here NaN: the step is skipped and says so."""
    for loss, logits, labels in ((cross_entropy, np.ones((2, 3)), [0, -4]), (ctc_loss, np.ones((4, 3)), [1, 7])):
        assert math.isnan(float(jax.jit(loss)(logits, np.array(labels)).mean))


def test_ctc_below_zero():
    """optax#1771: -8e-8 for a certain alignment, and the logarithm of that was NaN. The true value is 1.7e-15."""
    x = np.array([[0, 17], [0, 17]], np.float32)
    value, grad = jax.jit(jax.value_and_grad(lambda x: ctc_loss(x, np.array([1])).total))(x)
    assert 0 <= float(value) < 1e-6 and np.abs(grad).max() < 1e-6


def test_ctc_gradient_past_the_end_of_the_frames():
    """tensorflow#41280: what stood behind a short row was left in its gradient."""
    mask = np.array([[True] * 3 + [False] * 2])
    _, grad = GRADIENTS["ctc_loss"](VALUES[:1], LABELS[:1], mask)
    alone = jax.jit(jax.grad(lambda x: ctc_loss(x, LABELS[0, :1] % 3 + 1).total))(VALUES[0, :3])
    np.testing.assert_allclose(grad[0, :3], alone, rtol=1e-5, atol=1e-7)
    assert not np.asarray(grad[0, 3:]).any() and np.asarray(alone).any()


def test_ctc_of_an_impossible_row_trains_on_without_a_word():
    """rwth-i6/returnn#1835: a loss of 0 with a full-sized gradient; elsewhere 1e5, or a mean that hides it."""
    value, grad = jax.jit(jax.value_and_grad(lambda x: ctc_loss(x, np.array([1, 1, 2])).mean))(
        np.zeros((3, 3), np.float32)
    )
    assert float(value) == math.inf and not np.isfinite(np.asarray(grad)).any()


def test_half_precision_counts_stop_growing():
    """bfloat16 cannot count past 256, float16 ends at 65504."""
    for dtype in (jnp.bfloat16, jnp.float16):
        loss = absolute_error(jnp.full((3000, 1), 30, dtype), jnp.zeros((3000, 1), dtype))
        assert (float(loss.total), int(loss.count)) == (90000, 3000)
