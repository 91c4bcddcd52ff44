"""The next token against a loop over samples, CTC against the sum over every path."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sequinox.train import Total, accuracy, cross_entropy, ctc_loss, next_token_loss, next_tokens

pytestmark = pytest.mark.usefixtures("quick_compilation")

# Compiled as a whole, not operation by operation.
TARGETS, NEXT, ENTROPY = jax.jit(next_tokens), jax.jit(next_token_loss), jax.jit(cross_entropy)
CTC = jax.jit(ctc_loss, static_argnames="blank")


# ---- next token ------------------------------------------------------------------------------------------------------

BATCH, TIME, CLASSES = 4, 6, 5
MASK = np.array(
    [
        [1, 1, 1, 1, 1, 1],
        [0, 0, 1, 1, 0, 1],  # left and interior
        [1, 0, 0, 1, 0, 0],  # one gap between the only two
        [0, 0, 0, 0, 0, 0],
    ],
    bool,
)
RESETS = np.array(
    [
        [1, 0, 0, 1, 1, 0],  # a sequence of three, of one, of two
        [0, 0, 0, 0, 1, 0],  # on a masked sample: ignored
        [0, 0, 0, 1, 0, 0],  # right after the gap
        [0, 1, 0, 0, 0, 0],
    ],
    bool,
)


@pytest.fixture
def text():
    rng = np.random.default_rng(6)
    logits = rng.normal(size=(BATCH, TIME, CLASSES)).astype(np.float32) * 2
    return logits, rng.integers(0, CLASSES, size=(BATCH, TIME)).astype(np.int32)


def targets_by_loop(tokens, mask, resets):
    """{(row, step): target}: each row's real samples, cut where a real one has a reset, paired with the one after."""
    pairs = {}
    for row in range(len(tokens)):
        before = None
        for t in range(tokens.shape[1]):
            if mask[row, t]:
                if before is not None and not resets[row, t]:
                    pairs[row, before] = tokens[row, t]
                before = t
    return pairs


@pytest.mark.parametrize("with_resets", [False, True])
@pytest.mark.parametrize("with_mask", [False, True])
def test_targets_are_those_of_the_loop(text, with_mask, with_resets):
    _, tokens = text
    mask, resets = MASK if with_mask else None, RESETS if with_resets else None
    pairs = targets_by_loop(tokens, np.ones_like(MASK) if mask is None else mask, RESETS & with_resets)
    labels, there = TARGETS(tokens, mask, resets)
    expected = np.full(tokens.shape, -1)
    for place, target in pairs.items():
        expected[place] = target
    assert labels.tolist() == expected.tolist()
    assert there.tolist() == [[(row, t) in pairs for t in range(TIME)] for row in range(BATCH)]


def test_the_loss_is_the_loop(text):
    logits, tokens = text
    pairs = targets_by_loop(tokens, MASK, RESETS)
    total = 0.0
    for place, target in pairs.items():
        row = logits[place].astype(np.float64)
        total += math.log(np.exp(row).sum()) - row[target]
    loss, grad = jax.jit(jax.value_and_grad(lambda x: NEXT(x, tokens, MASK, RESETS).total))(jnp.asarray(logits))
    np.testing.assert_allclose(loss, total, rtol=1e-6)
    assert int(NEXT(logits, tokens, MASK, RESETS).count) == len(pairs) == 5
    for place in np.ndindex(BATCH, TIME):
        if place not in pairs:
            assert not np.asarray(grad[place]).any()
            continue
        row = np.exp(logits[place].astype(np.float64))
        expected = row / row.sum()
        expected[pairs[place]] -= 1
        np.testing.assert_allclose(grad[place], expected, rtol=1e-4, atol=1e-6)


def test_masked_tokens_and_logits_may_be_anything(text):
    logits, tokens = text
    clean = NEXT(logits, tokens, MASK, RESETS)
    for filler in (-1, CLASSES, 2**31 - 1):
        others = np.where(MASK, tokens, np.int32(filler))
        poisoned = jnp.asarray(np.where(MASK[..., None], logits, np.float32(np.nan)))
        value, grad = jax.jit(jax.value_and_grad(lambda x: NEXT(x, others, MASK, RESETS).total))(poisoned)  # noqa: B023
        assert float(value) == float(clean.total) and bool(jnp.isfinite(grad).all())


def test_packed_rows_are_rows_apart(text):
    logits, tokens = text
    packed = NEXT(logits[:1], tokens[:1], None, RESETS[:1])
    apart = [NEXT(logits[0, cut], tokens[0, cut]) for cut in (slice(0, 3), slice(3, 4), slice(4, 6))]
    assert [int(part.count) for part in apart] == [2, 0, 1]
    np.testing.assert_allclose(packed.total, sum(apart, Total(0, 0)).total, rtol=1e-6)


def test_windows_add_up_if_the_targets_are_found_before_the_cut(text):
    logits, tokens = text
    labels, there = TARGETS(tokens, MASK)
    windows = [slice(0, 2), slice(2, 4), slice(4, 6)]
    whole = NEXT(logits, tokens, MASK)
    parts = sum((ENTROPY(logits[:, cut], labels[:, cut], there[:, cut]) for cut in windows), Total(0, 0))
    assert int(parts.count) == int(whole.count)
    np.testing.assert_allclose(parts.total, whole.total, rtol=1e-6)
    cut_first = sum((NEXT(logits[:, cut], tokens[:, cut], MASK[:, cut]) for cut in windows), Total(0, 0))
    assert int(cut_first.count) < int(whole.count)  # what the documentation warns of


def test_accuracy_of_the_next_token(text):
    logits, tokens = text
    pairs = targets_by_loop(tokens, MASK, RESETS)
    right = sum(int(np.argmax(logits[place]) == target) for place, target in pairs.items())
    correct = jax.jit(accuracy)(logits, *TARGETS(tokens, MASK, RESETS))
    assert (float(correct.total), int(correct.count)) == (right, len(pairs))


def test_the_label_of_no_target_is_nan_in_a_loss_without_the_mask(text):
    logits, tokens = text
    labels, there = TARGETS(tokens)
    assert math.isnan(float(ENTROPY(logits, labels).total))
    assert math.isfinite(float(ENTROPY(logits, labels, there).total))


def test_unsigned_tokens_vmap_and_no_time():
    tokens = np.array([[255, 0, 7], [3, 255, 255]], np.uint8)
    expected = [[0, 7, -1], [255, 255, -1]]
    labels, there = jax.vmap(TARGETS)(tokens)
    assert labels.tolist() == expected == TARGETS(tokens)[0].tolist()
    assert there.tolist() == [[True, True, False]] * 2
    assert TARGETS(jnp.array([2**32 - 1, 1], jnp.uint32))[0].tolist() == [1, -1]
    empty = NEXT(jnp.zeros((2, 0, 3)), jnp.zeros((2, 0), jnp.int32))
    single = NEXT(jnp.zeros((2, 1, 3)), jnp.zeros((2, 1), jnp.int32))
    assert [int(empty.count), int(single.count), float(single.mean)] == [0, 0, 0]


# ---- CTC -------------------------------------------------------------------------------------------------------------


def ctc_by_paths(logits, labels, blank):
    """-log of the summed probability of every path that collapses to the labels; float64."""
    logits = logits.astype(np.float64)
    logs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    total = 0.0
    for path in itertools.product(range(logits.shape[1]), repeat=len(logits)):
        collapsed = [c for c, _ in itertools.groupby(path) if c != blank]
        if collapsed == list(labels):
            total += math.exp(sum(logs[t, c] for t, c in enumerate(path)))
    return -math.log(total) if total else math.inf


FRAMES = np.array([[1, 1, 0, 1, 1, 0], [0, 0, 1, 0, 1, 1], [0, 1, 0, 0, 0, 0], [1, 0, 1, 1, 0, 0]], bool)
LABELS = np.array([[1, 2, 2], [9, 2, -5], [2, 7, 0], [0, 0, 0]])
LABEL_MASK = np.array([[1, 0, 1], [0, 1, 0], [1, 0, 0], [0, 0, 0]], bool)  # also with a gap, and left
ROWS = [[1, 2], [2], [2], []]


@pytest.fixture
def frames():
    return np.random.default_rng(7).normal(size=(4, 6, 3)).astype(np.float32) * 2


@pytest.fixture(scope="module")
def value_and_grad():
    return jax.jit(jax.value_and_grad(lambda x, labels, mask, label_mask: CTC(x, labels, mask, label_mask).total))


def test_ctc_is_the_sum_over_paths_wherever_the_real_frames_are(frames, value_and_grad):
    expected = [ctc_by_paths(x[m], row, 0) for x, m, row in zip(frames, FRAMES, ROWS, strict=True)]
    per_row = jax.vmap(CTC)(frames, LABELS, FRAMES, LABEL_MASK)
    np.testing.assert_allclose(per_row.total, expected, rtol=1e-5)
    assert per_row.count.tolist() == [1, 1, 1, 1]
    poisoned = np.where(FRAMES[..., None], frames, np.float32(np.nan))
    value, grad = value_and_grad(poisoned, LABELS, FRAMES, LABEL_MASK)
    np.testing.assert_allclose(value, sum(expected), rtol=1e-5)
    assert not np.asarray(grad)[~FRAMES].any() and bool(jnp.isfinite(grad).all())
    # probabilities minus the posterior of each class: both sum to 1
    np.testing.assert_allclose(np.asarray(grad).sum(-1), 0, atol=1e-5)
    assert (np.abs(np.asarray(grad)[FRAMES]).sum(-1) > 1e-3).all()


def test_the_gradient_is_that_of_the_sum_over_paths(frames, value_and_grad):
    _, grad = value_and_grad(frames, LABELS, FRAMES, LABEL_MASK)
    row, real = 0, np.flatnonzero(FRAMES[0])
    for t, c in itertools.product(real, range(3)):
        up, down = frames[row].astype(np.float64), frames[row].astype(np.float64)
        up[t, c] += 1e-6
        down[t, c] -= 1e-6
        ends = [ctc_by_paths(x[real], ROWS[row], 0) for x in (up, down)]
        np.testing.assert_allclose(grad[row, t, c], (ends[0] - ends[1]) / 2e-6, rtol=1e-3, atol=1e-5)


def test_many_frames_keep_their_order():
    """Few may keep theirs by accident. As many labels as frames leave one path, whose probability is a product."""
    rng = np.random.default_rng(12)
    mask = rng.uniform(size=400) < 0.7
    n = int(mask.sum())
    path = np.resize([1, 2], n)
    x = rng.normal(size=(400, 3)).astype(np.float32)
    real = x[mask].astype(np.float64)
    expected = -(real - np.log(np.exp(real).sum(-1, keepdims=True)))[np.arange(n), path].sum()
    gaps = rng.permutation(np.r_[np.ones(n, bool), np.zeros(50, bool)])
    labels = np.full(n + 50, 2)
    labels[gaps] = path
    np.testing.assert_allclose(CTC(x, labels, mask, gaps).total, expected, rtol=1e-5)


def test_another_blank_and_repeated_labels(frames):
    x = frames[0, :4]
    for labels in ([1, 1], [0, 1], [1, 0, 1]):
        loss = CTC(x, np.array(labels), blank=2)
        np.testing.assert_allclose(loss.total, ctc_by_paths(x, labels, 2), rtol=1e-5)


def test_filler_rows_are_no_sequences(frames, value_and_grad):
    filler = np.array([True, False, True, False])
    mask, label_mask = FRAMES & filler[:, None], LABEL_MASK & filler[:, None]
    loss = CTC(frames, LABELS, mask, label_mask)
    expected = sum(ctc_by_paths(frames[i][FRAMES[i]], ROWS[i], 0) for i in (0, 2))
    np.testing.assert_allclose(loss.total, expected, rtol=1e-5)
    assert int(loss.count) == 2
    _, grad = value_and_grad(frames, LABELS, mask, label_mask)
    assert not np.asarray(grad)[~filler].any()
    nothing = CTC(frames, LABELS, np.zeros_like(FRAMES), np.zeros_like(LABEL_MASK))
    assert (float(nothing.total), int(nothing.count), float(nothing.mean)) == (0, 0, 0)


def test_no_alignment_is_infinite_and_never_a_gradient_to_follow(value_and_grad):
    """[1, 1] needs a blank between: three frames. A loss of 1e5 or of 0 would train on."""
    labels, label_mask = np.array([[1, 1], [1, 2]]), np.ones((2, 2), bool)
    value, grad = value_and_grad(np.zeros((2, 2, 3), np.float32), labels, np.ones((2, 2), bool), label_mask)
    assert float(value) == math.inf
    assert not np.isfinite(np.asarray(grad[0])).any() and np.isfinite(np.asarray(grad[1])).all()
    no_frames = CTC(np.zeros((1, 4, 3)), np.array([[1, 2]]), np.zeros((1, 4), bool))
    assert (float(no_frames.total), int(no_frames.count)) == (math.inf, 1)


def test_a_ruled_out_class_costs_only_where_it_is_needed():
    x = np.zeros((3, 3), np.float32)
    x[:, 2] = -np.inf
    value, grad = jax.jit(jax.value_and_grad(lambda x: CTC(x, np.array([1])).total))(jnp.asarray(x))
    np.testing.assert_allclose(value, ctc_by_paths(x, [1], 0), rtol=1e-6)
    assert bool(jnp.isfinite(grad).all()) and not np.asarray(grad[:, 2]).any()
    assert float(CTC(x, np.array([2])).total) == math.inf
    assert math.isnan(float(CTC(np.full((3, 3), -np.inf, np.float32), np.array([1])).total))


@pytest.mark.parametrize("label", [-1, 3, 0])
def test_a_label_out_of_range_or_the_blank_is_nan(frames, value_and_grad, label):
    """Out of range it would cost nothing: its probability is taken for 1."""
    labels = np.where(np.arange(4)[:, None] == 1, label, LABELS)
    value, grad = value_and_grad(frames, labels, FRAMES, LABEL_MASK)
    assert math.isnan(float(value))
    assert np.isnan(np.asarray(grad[1])[FRAMES[1]]).all() and np.isfinite(np.asarray(grad)[[0, 2, 3]]).all()


def test_a_long_and_bad_sequence_is_not_taken_for_an_impossible_one():
    """Its loss passes 1e5, which stands for infinity elsewhere: there, the forbidden path [1, 1] would be cheaper."""
    x = np.zeros((3, 3), np.float32)
    x[:, 2] = 3e5
    value, grad = jax.jit(jax.value_and_grad(lambda x: CTC(x, np.array([1, 1])).total))(jnp.asarray(x))
    np.testing.assert_allclose(value, 9e5, rtol=1e-6)
    np.testing.assert_allclose(grad, [[0, -1, 1], [-1, 0, 1], [0, -1, 1]], atol=1e-6)


def test_half_precision_and_float64(frames):
    expected = [ctc_by_paths(x[m], row, 0) for x, m, row in zip(frames, FRAMES, ROWS, strict=True)]
    half = CTC(jnp.asarray(frames, jnp.bfloat16), LABELS, FRAMES, LABEL_MASK)
    np.testing.assert_allclose(half.total, sum(expected), rtol=1e-2)
    assert half.total.dtype == jnp.float32
    with jax.enable_x64(True):
        wide = CTC(frames.astype(np.float64), LABELS, FRAMES, LABEL_MASK)
        np.testing.assert_allclose(wide.total, sum(expected), rtol=1e-12)
        assert CTC(frames, LABELS, FRAMES, LABEL_MASK).total.dtype == jnp.float32


def test_empty_axes():
    blanks = CTC(np.zeros((2, 4, 3)), np.zeros((2, 0), int))
    np.testing.assert_allclose(blanks.total, 2 * 4 * math.log(3), rtol=1e-6)
    assert int(CTC(np.zeros((2, 0, 3)), np.zeros((2, 0), int)).count) == 0
    assert float(CTC(np.zeros((0, 3)), np.array([1])).total) == math.inf
    assert int(CTC(np.zeros((0, 4, 3)), np.zeros((0, 2), int)).count) == 0
    nested = CTC(np.zeros((2, 3, 4, 3)), np.ones((2, 3, 1), int))
    np.testing.assert_allclose(nested.mean, ctc_by_paths(np.zeros((4, 3)), [1], 0), rtol=1e-6)
    assert int(nested.count) == 6


X, Y = np.zeros((2, 4, 3)), np.ones((2, 3), int)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: next_tokens(np.ones(3)), TypeError, "next_tokens: tokens must be integers, got float"),
        (lambda: next_tokens(np.array(3)), ValueError, "next_tokens: tokens must have a time axis"),
        (lambda: next_tokens(Y, np.ones(3, bool)), ValueError, r"mask must have shape \(2, 3\), as tokens.shape, got"),
        (
            lambda: next_tokens(Y, None, Y),
            TypeError,
            r"resets must be boolean, got dtype int64: give resets.astype\(bool\)$",
        ),
        (
            lambda: next_tokens(Y, None, np.ones((2, 1), bool)),
            ValueError,
            r"resets must have shape \(2, 3\), as tokens.shape",
        ),
        (
            lambda: next_token_loss(X, Y),
            ValueError,
            r"tokens must have shape logits.shape\[:-1\] = \(2, 4\), got \(2, 3\)",
        ),
        (lambda: next_token_loss(X[0, 0], np.array(1)), ValueError, "next_token_loss: tokens must have a time axis"),
        (
            lambda: next_token_loss(X, np.ones((2, 4), int), np.ones((2, 3), bool)),
            ValueError,
            "next_token_loss: mask must have shape",
        ),
        (lambda: ctc_loss(X[0, 0], Y[0]), ValueError, r"logits must be \(\*batch, time, n_classes\), got \(3,\)"),
        (lambda: ctc_loss(X, Y[:1]), ValueError, r"with the batch axes of logits, \(2,\), got \(1, 3\)"),
        (lambda: ctc_loss(X, Y[0]), ValueError, r"with the batch axes of logits, \(2,\), got \(3,\)"),
        (lambda: ctc_loss(X, X[0]), TypeError, "ctc_loss: labels must be integers"),
        (lambda: ctc_loss(X, Y, blank=3), ValueError, r"blank must be in \[0, n_classes\) = \[0, 3\), got 3"),
        (lambda: ctc_loss(X, Y, blank=-1), ValueError, "blank must be at least 0, got -1"),
        (lambda: ctc_loss(X, Y, blank=True), TypeError, "blank must be an integer, got True"),
        (
            lambda: ctc_loss(X, Y, np.ones((2, 3), bool)),
            ValueError,
            r"mask must have shape \(2, 4\), as .*, got \(2, 3\)",
        ),
        (
            lambda: ctc_loss(X, Y, None, np.ones((1, 3), bool)),
            ValueError,
            r"label_mask must have shape \(2, 3\), as labels.shape",
        ),
        (
            lambda: ctc_loss(X, Y, None, np.ones((2, 3))),
            TypeError,
            "label_mask must be boolean, got dtype float64: .*; a weight is not a mask",
        ),
    ],
)
@pytest.mark.usefixtures("unchecked_types")
def test_errors_name_what_came(call, error, message):
    with pytest.raises(error, match=message):
        call()
