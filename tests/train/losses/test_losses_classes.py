"""Label smoothing, class weights, yes-or-no targets, and what is measured, against float64 loops."""

# pyright: reportArgumentType=false

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sequinox.train import (
    Total,
    accuracy,
    binary_cross_entropy,
    bits_per_character,
    confusion_matrix,
    cross_entropy,
    perplexity,
)

pytestmark = pytest.mark.usefixtures("quick_compilation")

# Compiled as a whole, not operation by operation.
ENTROPY = jax.jit(cross_entropy, static_argnames="label_smoothing")
BINARY, ACCURACY = jax.jit(binary_cross_entropy), jax.jit(accuracy, static_argnames="k")
CONFUSION = jax.jit(confusion_matrix, static_argnames="n_classes")

ROWS, CLASSES = 7, 4
WEIGHTS = np.array([0.5, 0.0, 2.0, 1.25], np.float32)


@pytest.fixture
def case():
    rng = np.random.default_rng(3)
    logits = rng.normal(size=(ROWS, CLASSES)).astype(np.float32) * 3
    labels = np.array([0, 1, 2, 3, 2, 0, 1], np.int32)
    mask = np.array([True, True, False, True, True, False, True])
    return logits, labels, mask


def log_softmax(row):
    row = [float(v) for v in row]
    top = max(row)
    level = top + math.log(sum(math.exp(v - top) for v in row))
    return [v - level for v in row]


def by_loop(case, smoothing, weights):
    logits, labels, mask = case
    total = count = 0.0
    for row, label, real in zip(logits, labels, mask, strict=True):
        if real:
            logs = log_softmax(row)
            even = sum(w * v for w, v in zip(weights, logs, strict=True)) / len(logs)
            total -= (1 - smoothing) * weights[label] * logs[label] + smoothing * even
            count += weights[label]
    return total, count


# ---- cross_entropy ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weights", [None, WEIGHTS])
@pytest.mark.parametrize("smoothing", [0, 0.3])
def test_smoothing_and_class_weights_are_the_formula(case, smoothing, weights):
    total, count = by_loop(case, smoothing, np.ones(CLASSES) if weights is None else weights.astype(np.float64))
    loss = jax.jit(lambda *args: ENTROPY(*args, label_smoothing=smoothing, class_weights=weights))(*case)
    np.testing.assert_allclose(loss.total, total, rtol=1e-6)
    np.testing.assert_allclose(loss.count, count, rtol=1e-6)
    assert loss.count.dtype == (jnp.int32 if weights is None else jnp.float32)


def test_gradients_with_both_are_float64_differences(case):
    logits, labels, mask = case
    loss = lambda x: ENTROPY(x, labels, mask, label_smoothing=0.2, class_weights=WEIGHTS).mean
    ours = np.asarray(jax.jit(jax.grad(loss))(jnp.asarray(logits)))
    weights = WEIGHTS.astype(np.float64)

    def mean(x):
        total, count = by_loop((x, labels, mask), 0.2, weights)
        return total / count

    for i in np.ndindex(logits.shape):
        up, down = logits.astype(np.float64), logits.astype(np.float64)
        up[i] += 1e-6
        down[i] -= 1e-6
        np.testing.assert_allclose(ours[i], (mean(up) - mean(down)) / 2e-6, rtol=1e-4, atol=1e-8)
    assert not ours[~mask].any()


def test_weighted_parts_merge_to_the_weighted_mean(case):
    logits, labels, mask = case
    parts = [ENTROPY(logits[cut], labels[cut], mask[cut], class_weights=WEIGHTS) for cut in (slice(0, 2), slice(2, 7))]
    total, count = by_loop((logits, labels, mask), 0, WEIGHTS.astype(np.float64))
    np.testing.assert_allclose(sum(parts, Total(0, 0)).mean, total / count, rtol=1e-6)
    assert abs(float(parts[0].mean + parts[1].mean) / 2 - total / count) > 1e-2  # the parts do differ


def test_a_batch_of_weightless_classes_is_empty():
    weights = jnp.array([0.0, 1.0])
    value, grad = jax.jit(jax.value_and_grad(lambda x: ENTROPY(x, jnp.array([0, 0]), class_weights=weights).mean))(
        jnp.ones((2, 2))
    )
    assert float(value) == 0 and not np.asarray(grad).any()


def test_a_ruled_out_class():
    """Infinite where the formula is: as the label, or under smoothing. NaN nowhere."""
    logits, none = jnp.array([[1.0, -jnp.inf, 2.0]]), jnp.array([0])
    level = math.log(math.exp(1) + math.exp(2))
    value, grad = jax.jit(jax.value_and_grad(lambda x: ENTROPY(x, none).mean))(logits)
    np.testing.assert_allclose(value, level - 1, rtol=1e-6)
    np.testing.assert_allclose(grad[0], [math.exp(1 - level) - 1, 0, math.exp(2 - level)], rtol=1e-5)
    assert float(ENTROPY(logits, jnp.array([1])).mean) == math.inf
    assert float(ENTROPY(logits, none, label_smoothing=0.1).mean) == math.inf
    weightless = ENTROPY(logits, none, label_smoothing=0.3, class_weights=jnp.array([1.0, 0.0, 1.0]))
    np.testing.assert_allclose(weightless.mean, 0.7 * (level - 1) + 0.1 * (level - 1 + level - 2), rtol=1e-6)
    label_too = ENTROPY(logits, jnp.array([1]), class_weights=jnp.array([1.0, 0.0, 1.0]))
    assert (float(label_too.total), float(label_too.count)) == (0, 0)


@pytest.mark.parametrize("label", [-1, CLASSES])
def test_a_wrong_label_is_nan_with_smoothing_and_weights_too(case, label):
    logits, labels, _ = case
    wrong = np.where(np.arange(ROWS) == 2, label, labels)
    for keywords in ({"label_smoothing": 0.1}, {"class_weights": WEIGHTS}):
        assert math.isnan(float(ENTROPY(logits, wrong, **keywords).total))
        assert math.isfinite(float(ENTROPY(logits, wrong, np.arange(ROWS) != 2, **keywords).total))
        # Nothing but wrong labels is not nothing.
        assert math.isnan(float(ENTROPY(logits, np.full(ROWS, label), **keywords).mean))


def test_weights_keep_the_dtype_of_the_sum(case):
    logits, labels, mask = case
    for weights in (WEIGHTS.astype(np.float64), jnp.asarray(WEIGHTS, jnp.bfloat16), np.array([1, 0, 2, 1])):
        loss = ENTROPY(logits.astype(jnp.bfloat16), labels, mask, class_weights=weights)
        assert loss.total.dtype == loss.count.dtype == jnp.float32


def test_a_negative_weight_seen_only_under_jit_is_nan(case):
    loss = jax.jit(lambda w: ENTROPY(*case, class_weights=w).total)
    assert math.isnan(float(loss(jnp.array([1.0, 1.0, 1.0, -1.0]))))
    np.testing.assert_allclose(loss(WEIGHTS), by_loop(case, 0, WEIGHTS.astype(np.float64))[0], rtol=1e-6)


# ---- binary_cross_entropy --------------------------------------------------------------------------------------------


def binary_by_loop(logit, target, weight=1.0):
    """Without a cancellation: log1p of the smaller exponential."""
    softplus = lambda x: max(x, 0.0) + math.log1p(math.exp(-abs(x)))
    return weight * target * softplus(-logit) + (1 - target) * softplus(logit)


@pytest.mark.parametrize("pos_weight", [None, 3.0, np.array([0.0, 2.5, 1.0], np.float32)])
def test_soft_targets_and_weights_of_positives(pos_weight):
    rng = np.random.default_rng(4)
    logits, targets = rng.normal(size=(5, 3)).astype(np.float32) * 4, rng.uniform(size=(5, 3)).astype(np.float32)
    mask = np.array([True, False, True, True, False])
    weights = np.broadcast_to(1.0 if pos_weight is None else pos_weight, 3)
    expected = sum(
        binary_by_loop(float(logits[i, j]), float(targets[i, j]), float(weights[j]))
        for i, j in np.ndindex(5, 3)
        if mask[i]
    )
    loss = BINARY(logits, targets, mask, pos_weight=pos_weight)
    np.testing.assert_allclose(loss.total, expected, rtol=1e-6)
    assert int(loss.count) == 9 and loss.count.dtype == jnp.int32


def test_far_logits_are_exact():
    logits = np.array([[500.0, -500.0, 500.0, -500.0, 30.0, -30.0]], np.float32)
    targets = np.array([[True, True, False, False, True, False]])
    each = [binary_by_loop(float(x), float(t)) for x, t in zip(logits[0], targets[0], strict=True)]
    value, grad = jax.jit(jax.value_and_grad(lambda x: BINARY(x, targets).total))(jnp.asarray(logits))
    np.testing.assert_allclose(value, sum(each), rtol=1e-7)
    np.testing.assert_allclose(grad[0], [0, -1, 1, 0, -math.exp(-30), math.exp(-30)], rtol=1e-5)
    for x, expected in zip(logits[0, 4:], each[4:], strict=True):  # not lost beside a 1
        np.testing.assert_allclose(BINARY(x[None], np.array([x > 0])).total, expected, rtol=1e-6)


def test_a_certain_logit_costs_nothing_where_it_is_right():
    logits, targets = jnp.array([[jnp.inf, -jnp.inf]]), jnp.array([[1.0, 0.0]])
    value, grad = jax.jit(jax.value_and_grad(lambda x: BINARY(x, targets).total))(logits)
    assert float(value) == 0 and not np.asarray(grad).any()
    assert float(BINARY(logits, 1 - targets).total) == math.inf


@pytest.mark.parametrize("target", [-0.01, 1.01, 2, np.nan])
def test_a_target_that_is_no_probability_is_nan(target):
    targets = np.array([[target], [1.0]], np.float32)
    value, grad = jax.jit(jax.value_and_grad(lambda x: BINARY(x, targets).total))(jnp.ones((2, 1)))
    assert math.isnan(float(value)) and math.isnan(float(grad[0, 0])) and math.isfinite(float(grad[1, 0]))
    assert math.isfinite(float(BINARY(np.ones((2, 1)), targets, np.array([False, True])).total))


def test_targets_of_every_kind(case):
    logits, _, mask = case
    targets = logits > 1
    expected = BINARY(logits, targets, mask)
    for dtype in (np.int32, np.uint8, np.float64, jnp.bfloat16):
        assert float(BINARY(logits, targets.astype(dtype), mask).total) == float(expected.total)


# ---- metrics ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [1, 2, 4])
def test_accuracy_of_the_k_largest(k):
    rng = np.random.default_rng(5)
    logits = rng.integers(0, 3, size=(40, CLASSES)).astype(np.float32)  # ties abound
    labels, mask = rng.integers(0, CLASSES, size=40).astype(np.int32), rng.uniform(size=40) < 0.7
    right = sum(int(labels[i]) in sorted(range(CLASSES), key=lambda c: -logits[i, c])[:k] for i in range(40) if mask[i])
    correct = ACCURACY(logits, labels, mask, k=k)
    assert (float(correct.total), int(correct.count)) == (right, mask.sum())
    assert float(ACCURACY(np.array([[np.nan, 0, 0, 0]]), np.array([0]), k=k).total) == 0
    assert float(ACCURACY(logits[:1], np.array([CLASSES]), k=k).total) == 0


def test_confusion_matrix_is_the_loop(case):
    logits, labels, mask = case
    expected = np.zeros((CLASSES, CLASSES), int)
    for row, label, real in zip(logits, labels, mask, strict=True):
        if real:
            expected[label, int(np.argmax(row))] += 1
    matrix = CONFUSION(logits, labels, mask)
    assert matrix.tolist() == expected.tolist() and matrix.dtype == jnp.int32
    parts = [CONFUSION(logits[cut], labels[cut], mask[cut]) for cut in (slice(0, 3), slice(3, 7))]
    assert (parts[0] + parts[1]).tolist() == expected.tolist()
    predictions = logits.argmax(-1).reshape(7, 1)
    assert CONFUSION(predictions, labels[:, None], mask[:, None], n_classes=CLASSES).tolist() == expected.tolist()
    assert int(jnp.trace(matrix)) == int(ACCURACY(logits, labels, mask).total)


def test_recall_and_precision_follow():
    predictions, labels = np.array([0, 0, 2, 0, 2, 2, 2]), np.array([0, 0, 0, 2, 2, 2, 0])
    matrix = CONFUSION(predictions, labels, n_classes=3)
    recall = [0.5, 0, 2 / 3]  # class 1 never occurred: 0, not NaN
    precision = [2 / 3, 0, 0.5]
    np.testing.assert_allclose(Total(matrix.diagonal(), matrix.sum(1)).mean, recall, rtol=1e-6)
    np.testing.assert_allclose(Total(matrix.diagonal(), matrix.sum(0)).mean, precision, rtol=1e-6)


def test_what_has_no_cell_is_in_none():
    logits = np.array([[np.nan, 1.0], [0.0, 1.0], [0.0, 1.0], [5.0, 1.0]], np.float32)
    assert CONFUSION(logits, np.array([0, 2, -1, 1])).tolist() == [[0, 0], [1, 0]]
    # An index of -1 would be the last class.
    assert CONFUSION(np.array([-1, 2, 1]), np.array([1, 1, 1]), n_classes=2).tolist() == [[0, 0], [0, 1]]


def test_bits_and_perplexity_are_of_the_whole_mean():
    parts = [Total(3.0, 4), Total(1.0, 1)]
    whole = sum(parts, Total(0, 0))
    assert bits_per_character(whole) == 4 / 5 / math.log(2) and perplexity(whole) == math.exp(4 / 5)
    on_device = Total(jnp.array(4.0), jnp.array(5))
    np.testing.assert_allclose(bits_per_character(on_device), 4 / 5 / math.log(2), rtol=1e-6)
    np.testing.assert_allclose(jax.jit(perplexity)(on_device), math.exp(4 / 5), rtol=1e-6)
    assert (bits_per_character(Total(0.0, 0)), perplexity(Total(0.0, 0))) == (0, 1)
    empty = Total(jnp.array(0.0), jnp.array(0))
    assert (float(bits_per_character(empty)), float(perplexity(empty))) == (0, 1)
    assert perplexity(Total(1e6, 1)) == math.inf == float(perplexity(Total(jnp.array(1e6), jnp.array(1))))


# ---- bad input -------------------------------------------------------------------------------------------------------

LOGITS, LABELS = np.ones((2, 3), np.float32), np.ones(2, np.int32)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: cross_entropy(LOGITS, LABELS, label_smoothing=1.0), ValueError, r"in \[0, 1\), got 1.0"),
        (lambda: cross_entropy(LOGITS, LABELS, label_smoothing=-0.1), ValueError, r"in \[0, 1\), got -0.1"),
        (lambda: cross_entropy(LOGITS, LABELS, label_smoothing=math.nan), ValueError, "must be finite, got nan"),
        (lambda: cross_entropy(LOGITS, LABELS, label_smoothing=True), TypeError, "must be a number, got True"),
        (lambda: bits_per_character(0.8), TypeError, "bits_per_character: expected a Total, in nats, got float"),
        (lambda: perplexity(0.8), TypeError, "perplexity: expected a Total, in nats, got float"),
        (
            lambda: cross_entropy(LOGITS, LABELS, class_weights=np.ones(2)),
            ValueError,
            r"class_weights must have shape \(3,\), got \(2,\)",
        ),
        (lambda: cross_entropy(LOGITS, LABELS, class_weights=2.0), ValueError, r"must have shape \(3,\), got \(\)"),
        (
            lambda: cross_entropy(LOGITS, LABELS, class_weights=[1.0, -1.0, 1.0]),
            ValueError,
            r"finite and not negative, got \[1.0, -1.0, 1.0\]",
        ),
        (
            lambda: cross_entropy(LOGITS, LABELS, class_weights=[1.0, np.inf, 1.0]),
            ValueError,
            "finite and not negative",
        ),
        (
            lambda: cross_entropy(LOGITS, LABELS, class_weights=[1.0, np.nan, 1.0]),
            ValueError,
            "finite and not negative",
        ),
        (lambda: cross_entropy(LOGITS, LABELS, class_weights=np.ones(3, bool)), TypeError, "real numbers, got bool"),
        (
            lambda: binary_cross_entropy(LOGITS, LOGITS[:, :1]),
            ValueError,
            r"targets must have the shape of logits, \(2, 3\), got \(2, 1\)",
        ),
        (lambda: binary_cross_entropy(LABELS, LABELS), TypeError, "logits must be floating point, got int32"),
        (
            lambda: binary_cross_entropy(LOGITS, LOGITS, pos_weight=np.ones(2)),
            ValueError,
            r"pos_weight must have shape \(\) or \(3,\), got \(2,\)",
        ),
        (
            lambda: binary_cross_entropy(LOGITS, LOGITS, pos_weight=-1.0),
            ValueError,
            "finite and not negative, got -1.0",
        ),
        (lambda: accuracy(LOGITS, LABELS, k=0), ValueError, "k must be at least 1, got 0"),
        (lambda: accuracy(LOGITS, LABELS, k=4), ValueError, r"k must be in \[1, n_classes\] = \[1, 3\], got 4"),
        (lambda: confusion_matrix(LABELS, LABELS), ValueError, "predicted classes need n_classes"),
        (lambda: confusion_matrix(LABELS, LABELS, n_classes=0), ValueError, "n_classes must be at least 1, got 0"),
        (lambda: confusion_matrix(LOGITS, LABELS, n_classes=4), ValueError, "n_classes is 4, and the logits have 3"),
        (
            lambda: confusion_matrix(LABELS, np.ones((2, 1), int), n_classes=3),
            ValueError,
            r"the shape of predictions, \(2,\), got \(2, 1\)",
        ),
        (lambda: confusion_matrix(LABELS > 0, LABELS), TypeError, "logits must be floating point, got bool"),
        (
            lambda: confusion_matrix(LABELS, LABELS, np.ones((1, 2), bool), n_classes=3),
            ValueError,
            r"mask must have shape \(2,\), as labels.shape, got \(1, 2\)",
        ),
    ],
)
@pytest.mark.usefixtures("unchecked_types")
def test_errors_name_what_came(call, error, message):
    with pytest.raises(error, match=message):
        call()
