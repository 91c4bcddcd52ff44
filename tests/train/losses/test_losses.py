"""What all losses share: sums that merge, masks, dtypes, errors. Oracles are float64 loops over real entries."""

import math
import operator

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from sequinox.train import (
    Total,
    absolute_error,
    accuracy,
    binary_cross_entropy,
    cross_entropy,
    huber_error,
    squared_error,
)

pytestmark = pytest.mark.usefixtures("quick_compilation")

BATCH, TIME, CLASSES = 3, 5, 4


@pytest.fixture
def case():
    rng = np.random.default_rng(1)
    logits = rng.normal(size=(BATCH, TIME, CLASSES)).astype(np.float32) * 3
    labels = rng.integers(0, CLASSES, size=(BATCH, TIME)).astype(np.int32)
    mask = np.arange(TIME) < np.array([5, 0, 3])[:, None]
    return logits, labels, mask


def entropy_by_loop(logits, labels, mask):
    total = 0.0
    for i in np.ndindex(labels.shape):
        if mask[i]:
            row = [float(v) for v in logits[i]]
            top = max(row)
            total += top + math.log(sum(math.exp(v - top) for v in row)) - row[labels[i]]
    return total


def test_cross_entropy_is_the_loop_over_real_entries(case):
    loss = cross_entropy(*case)
    np.testing.assert_allclose(loss.total, entropy_by_loop(*case), rtol=1e-6)
    assert int(loss.count) == 8 and loss.total.dtype == jnp.float32
    np.testing.assert_allclose(loss.mean, entropy_by_loop(*case) / 8, rtol=1e-6)


def test_cross_entropy_and_its_gradient_agree_with_optax(case):
    logits, labels, _ = case
    ours, ours_grad = jax.jit(jax.value_and_grad(lambda x: cross_entropy(x, labels).mean))(jnp.asarray(logits))
    with jax.numpy_dtype_promotion("standard"):
        theirs, theirs_grad = jax.jit(
            jax.value_and_grad(lambda x: optax.softmax_cross_entropy_with_integer_labels(x, jnp.asarray(labels)).mean())
        )(jnp.asarray(logits))
    np.testing.assert_allclose(ours, theirs, rtol=1e-6)
    np.testing.assert_allclose(ours_grad, theirs_grad, rtol=1e-5, atol=1e-7)


def test_squared_error_counts_elements(case):
    predictions, _, mask = case
    targets = np.random.default_rng(2).normal(size=predictions.shape).astype(np.float32)
    error = squared_error(predictions, targets, mask)
    difference = predictions.astype(np.float64)[mask] - targets.astype(np.float64)[mask]
    np.testing.assert_allclose(error.total, (difference**2).sum(), rtol=1e-6)
    assert int(error.count) == difference.size == 8 * CLASSES
    np.testing.assert_allclose(error.mean, (difference**2).mean(), rtol=1e-6)
    np.testing.assert_allclose(
        squared_error(predictions, targets).total, 2 * optax.l2_loss(predictions, targets).sum(), rtol=1e-6
    )


def test_accuracy_counts_real_entries(case):
    logits, labels, mask = case
    right = sum(int(np.argmax(logits[i]) == labels[i]) for i in np.ndindex(labels.shape) if mask[i])
    correct = accuracy(logits, labels, mask)
    assert (float(correct.total), int(correct.count)) == (right, 8)
    assert float(accuracy(np.array([[np.nan, 0, 0]]), np.array([0])).total) == 0  # argmax alone would say right


ELEMENTWISE = {
    "squared_error": squared_error,
    "absolute_error": absolute_error,
    "huber_error": huber_error,
    "binary_cross_entropy": binary_cross_entropy,
}
LOSSES = {"cross_entropy": cross_entropy, "accuracy": accuracy, **ELEMENTWISE}


def arguments(name, case):
    logits, labels, mask = case
    if name == "binary_cross_entropy":
        return logits, (logits[..., ::-1] > 0).astype(np.float32), mask
    return (logits, logits[..., ::-1].copy(), mask) if name in ELEMENTWISE else (logits, labels, mask)


def by_element(name, value, target):
    error = abs(value - target)
    if name == "squared_error":
        return error * error
    if name == "absolute_error":
        return error
    if name == "huber_error":
        return error * error / 2 if error <= 1 else error - 0.5
    return math.log1p(math.exp(-value)) if target else math.log1p(math.exp(value))


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_elements_are_the_loop_over_real_rows(name, case):
    values, targets, mask = arguments(name, case)
    loss = ELEMENTWISE[name](values, targets, mask)
    pairs = zip(values[mask].ravel().tolist(), targets[mask].ravel().tolist(), strict=True)
    np.testing.assert_allclose(loss.total, sum(by_element(name, *pair) for pair in pairs), rtol=1e-6)
    assert int(loss.count) == 8 * CLASSES and loss.total.dtype == jnp.float32


@pytest.mark.parametrize("name", ["cross_entropy", *ELEMENTWISE])
def test_gradients_are_float64_differences(name, case):
    values, targets, mask = (x[:, :2] for x in arguments(name, case))
    ours = np.asarray(jax.jit(jax.grad(lambda x: LOSSES[name](x, targets, mask).mean))(values))

    def mean(x):
        if name == "cross_entropy":
            return entropy_by_loop(x, targets, mask) / mask.sum()
        return np.mean([by_element(name, *pair) for pair in zip(x[mask].ravel(), targets[mask].ravel(), strict=True)])

    for i in np.ndindex(values.shape):
        up, down = values.astype(np.float64), values.astype(np.float64)
        up[i] += 1e-6
        down[i] -= 1e-6
        np.testing.assert_allclose(ours[i], (mean(up) - mean(down)) / 2e-6, rtol=1e-4, atol=1e-8)


@pytest.mark.parametrize("name", LOSSES)
def test_mean_of_means_over_unequal_parts_is_not_what_merges(name, case):
    loss, (values, targets, mask) = jax.jit(LOSSES[name]), arguments(name, case)
    whole = loss(values, targets, mask)
    parts = [loss(values[rows], targets[rows], mask[rows]) for rows in (slice(0, 1), slice(1, 3))]
    windows = [loss(values[:, cut], targets[:, cut], mask[:, cut]) for cut in (slice(0, 2), slice(2, 3), slice(3, 5))]
    for split in (parts, windows):
        merged = sum(split, Total(0, 0))
        assert int(merged.count) == int(whole.count)
        np.testing.assert_allclose(merged.total, whole.total, rtol=1e-6)
        np.testing.assert_allclose(merged.mean, whole.mean, rtol=1e-6)
    if name != "accuracy":
        mean_of_means = np.mean([part.mean for part in parts if part.count])
        assert abs(mean_of_means - float(whole.mean)) > 1e-3 or len([p for p in parts if p.count]) == 1


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e30])
@pytest.mark.parametrize("name", ["cross_entropy", *ELEMENTWISE])
def test_mask_times_nan(name, bad, case):
    loss, (values, targets, mask) = LOSSES[name], arguments(name, case)
    poisoned = np.where(mask[..., None], values, np.float32(bad))
    poisoned_targets = np.where(mask[..., None], targets, np.float32(bad)) if name in ELEMENTWISE else targets
    clean = loss(values, targets, mask)
    value, grad = jax.value_and_grad(lambda x: loss(x, poisoned_targets, mask).mean)(jnp.asarray(poisoned))
    assert float(value) == float(clean.mean)
    assert bool(jnp.all(jnp.isfinite(grad)))
    assert not np.asarray(grad)[~mask].any()
    assert np.asarray(grad)[mask].any()
    assert int(accuracy(poisoned, case[1], mask).count) == 8


def test_masked_labels_may_be_anything(case):
    logits, labels, mask = case
    for filler in (-1, 999, CLASSES, np.iinfo(np.int32).max):
        other = np.where(mask, labels, np.int32(filler))
        assert float(cross_entropy(logits, other, mask).total) == float(cross_entropy(logits, labels, mask).total)
        assert float(accuracy(logits, other, mask).total) == float(accuracy(logits, labels, mask).total)


@pytest.mark.parametrize("label", [-1, CLASSES, 999])
def test_a_real_label_out_of_range_is_nan_in_value_and_gradient_not_a_neighbour(label):
    logits = jnp.ones((2, CLASSES))
    value, grad = jax.value_and_grad(lambda x: cross_entropy(x, jnp.array([label, 0])).mean)(logits)
    assert bool(jnp.isnan(value)) and bool(jnp.isnan(grad[0]).all()) and bool(jnp.isfinite(grad[1]).all())
    assert int(accuracy(logits, jnp.array([label, 0])).total) == 1


@pytest.mark.parametrize("name", LOSSES)
def test_all_masked_batch_gives_zero_not_nan(name, case):
    loss, (values, targets, mask) = LOSSES[name], arguments(name, case)
    none = np.zeros_like(mask)
    total = loss(values, targets, none)
    assert (float(total.total), int(total.count), float(total.mean)) == (0, 0, 0)
    grad = jax.grad(lambda x: loss(x, targets, none).mean)(jnp.asarray(values))
    assert not np.asarray(grad).any() and bool(jnp.isfinite(grad).all())


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_is_summed_in_float32(dtype):
    n = 5000  # bfloat16 stops counting at 256, float16 overflows at 65504
    predictions = jnp.full((n, 1), 16, dtype)
    error = squared_error(predictions, jnp.zeros((n, 1), jnp.float32))
    assert error.total.dtype == jnp.float32 and float(error.total) == n * 256
    loss = cross_entropy(jnp.zeros((n, 2), dtype), jnp.zeros(n, jnp.int32))
    np.testing.assert_allclose(loss.total, n * math.log(2), rtol=1e-5)
    assert jax.grad(lambda x: cross_entropy(x, jnp.zeros(n, jnp.int32)).mean)(jnp.zeros((n, 2), dtype)).dtype == dtype


def test_float64_stays():
    with jax.enable_x64(True):
        predictions = jnp.array([[1.0 + 1e-12]], jnp.float64)
        assert float(squared_error(predictions, jnp.ones((1, 1), jnp.float64)).total) > 0
        assert cross_entropy(predictions, jnp.zeros(1, jnp.int64)).total.dtype == jnp.float64


def test_extreme_logits_and_ruled_out_classes():
    logits = jnp.array([[500.0, -500.0], [-500.0, 500.0], [0.0, -jnp.inf]])
    labels = jnp.array([0, 0, 0])
    value, grad = jax.value_and_grad(lambda x: cross_entropy(x, labels).total)(logits)
    assert float(value) == 1000 and bool(jnp.isfinite(grad).all())


@pytest.mark.usefixtures("unchecked_types")
@pytest.mark.parametrize("name", LOSSES)
def test_jit_is_eager_and_no_batch_axis_is_ordinary(name, case):
    loss, args = LOSSES[name], arguments(name, case)
    np.testing.assert_allclose(jax.jit(loss)(*args).total, loss(*args).total, rtol=1e-6)
    single = loss(args[0][0, 0], args[1][0, 0], np.True_)
    assert int(single.count) in (1, CLASSES)


@pytest.mark.parametrize(
    "shape", [(TIME,), (BATCH,), (BATCH, 1), (1, TIME), (BATCH, TIME, 1), (BATCH, TIME, CLASSES), ()]
)
@pytest.mark.parametrize("name", LOSSES)
def test_a_mask_that_would_broadcast_raises(name, shape, case):
    values, targets, _ = arguments(name, case)
    with pytest.raises(ValueError, match=rf"{name}: mask must have shape \(3, 5\), as .*, got"):
        LOSSES[name](values, targets, np.ones(shape, bool))


@pytest.mark.parametrize(
    "mask", [np.ones((BATCH, TIME), np.float32), np.ones((BATCH, TIME), np.int32), [[True] * TIME] * BATCH]
)
@pytest.mark.usefixtures("unchecked_types")
@pytest.mark.parametrize("name", LOSSES)
def test_a_mask_that_is_not_bool_raises(name, mask, case):
    values, targets, _ = arguments(name, case)
    with pytest.raises(
        TypeError,
        match=f"{name}: mask must be (boolean, got dtype .*; a weight is not a mask|a JAX or NumPy array, got list)",
    ):
        LOSSES[name](values, targets, mask)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: cross_entropy(np.ones((2, 3), np.int32), np.ones(2, np.int32)),
            TypeError,
            "logits must be floating point, got int32",
        ),
        (lambda: cross_entropy(np.ones((2, 3)), np.ones(2)), TypeError, "labels must be integers, got float"),
        (lambda: cross_entropy(np.ones((2, 3)), np.ones(2, bool)), TypeError, "labels must be integers, got bool"),
        (
            lambda: cross_entropy(np.ones((2, 3)), np.ones((2, 1), int)),
            ValueError,
            r"logits.shape\[:-1\] = \(2,\), got \(2, 1\)",
        ),
        (lambda: accuracy(np.ones((2, 3)), np.ones((3,), int)), ValueError, r"accuracy: labels must have shape"),
        (lambda: cross_entropy(np.ones(()), np.ones((), int)), ValueError, r"at least one class, got \(\)"),
        (lambda: cross_entropy(np.ones((2, 0)), np.ones(2, int)), ValueError, r"at least one class, got \(2, 0\)"),
        (lambda: squared_error(np.ones((4, 1)), np.ones(4)), ValueError, r"shape of predictions, \(4, 1\), got \(4,\)"),
        (lambda: squared_error(np.ones((), np.float32), np.ones(())), ValueError, "must have a feature axis"),
        (
            lambda: squared_error(np.ones((4, 1), int), np.ones((4, 1))),
            TypeError,
            "predictions must be floating point, got int",
        ),
        (
            lambda: squared_error(np.ones((4, 1)), np.ones((4, 1), complex)),
            TypeError,
            "targets must be real, got complex",
        ),
    ],
)
@pytest.mark.usefixtures("unchecked_types")
def test_errors_name_what_came(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_total_merges_and_nothing_else():
    assert Total(1.0, 2) + Total(3.0, 4) == Total(4.0, 6)
    assert sum([Total(1.0, 2)]) == Total(1.0, 2)
    assert Total(0.0, 0).mean == 0
    for wrong in (1, (1.0, 2), 1.5):
        with pytest.raises(TypeError):
            operator.add(Total(1.0, 2), wrong)
    with pytest.raises(TypeError):
        operator.mul(Total(1.0, 2), 3)
    total = jnp.array(3.0)
    grad = jax.grad(lambda t: Total(t, jnp.array(0)).mean)(total)
    assert float(grad) == 0
    assert float(Total(jnp.array(jnp.nan), jnp.array(0)).mean) == 0
    assert Total(jnp.array(3.0, jnp.bfloat16), jnp.array(2)).mean.dtype == jnp.bfloat16


def test_a_label_beyond_32_bits_does_not_wrap_round_to_a_class():
    for label in (2**32, -(2**32) + 1):
        assert jnp.isnan(cross_entropy(jnp.zeros((1, 4)), np.array([label])).mean)


def test_merged_totals_neither_overflow_nor_stand_still():
    """2^30 three times is more than an int32; a float32 of 2^24 plus one is itself."""
    large = Total(jnp.float32(2.0**30), jnp.int32(2**30))
    merged = sum([large] * 3, Total(0, 0))
    assert merged.count == 3 * 2**30 and merged.mean == 1.0
    one = Total(jnp.float32(1), jnp.int32(1))
    assert sum([Total(jnp.float32(2**24), jnp.int32(2**24))] + [one] * 10, Total(0, 0)).total == 2**24 + 10
    rows = Total(jnp.array([2.0**24, 1.0]), jnp.array([2**24, 0])) + Total(jnp.ones(2), jnp.array([1, 0]))
    assert rows.mean.tolist() == [1.0, 0.0] and rows.total.tolist() == [2.0**24 + 1, 2.0]


def test_an_exact_hit_of_the_absolute_error_stays():
    """The derivative at zero is 0, as PyTorch has it; 1 would push right answers away."""
    targets = jnp.array([[1.0], [2.0], [3.0]])
    got = jax.grad(lambda p: absolute_error(p, targets).total)(jnp.array([[1.0], [4.0], [2.0]]))
    assert got.tolist() == [[0.0], [1.0], [-1.0]]
