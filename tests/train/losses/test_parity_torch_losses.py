"""Losses against PyTorch's, in values and gradients, over the real entries alone."""

import jax
import numpy as np
import pytest

from sequinox.train import binary_cross_entropy, cross_entropy, ctc_loss, huber_error

torch = pytest.importorskip("torch", reason="PyTorch is in the extra `parity`")

pytestmark = pytest.mark.usefixtures("quick_compilation", "unchecked_types")

ROWS, CLASSES = 6, 4
MASK = np.array([True, False, True, True, False, True])


@pytest.fixture
def logits():
    return np.random.default_rng(8).normal(size=(ROWS, CLASSES)).astype(np.float32) * 3


def both(ours, theirs, x, mask):
    """Value and gradient at real entries of ours and of theirs in float64; ours is zero at masked ones."""
    value, grad = jax.jit(jax.value_and_grad(ours))(x)
    leaf = torch.tensor(x[mask].astype(np.float64), requires_grad=True)
    expected = theirs(leaf)
    expected.backward()
    np.testing.assert_allclose(value, expected.detach().numpy(), rtol=1e-6)
    np.testing.assert_allclose(np.asarray(grad)[mask], leaf.grad.numpy(), rtol=1e-5, atol=1e-7)
    assert not np.asarray(grad)[~mask].any()


@pytest.mark.parametrize("weights", [None, [0.5, 0.0, 2.0, 1.25]])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_mean_cross_entropy(logits, smoothing, weights):
    labels = np.array([0, 1, 2, 3, 2, 1])
    theirs = lambda x: torch.nn.functional.cross_entropy(
        x,
        torch.tensor(labels[MASK]),
        weight=None if weights is None else torch.tensor(weights, dtype=torch.float64),
        label_smoothing=smoothing,
    )
    ours = lambda x: cross_entropy(x, labels, MASK, label_smoothing=smoothing, class_weights=weights).mean
    both(ours, theirs, logits, MASK)


@pytest.mark.parametrize("pos_weight", [None, [0.5, 3.0, 1.0, 0.0]])
def test_mean_binary_cross_entropy(logits, pos_weight):
    targets = np.random.default_rng(9).uniform(size=(ROWS, CLASSES)).astype(np.float32)
    theirs = lambda x: torch.nn.functional.binary_cross_entropy_with_logits(
        x,
        torch.tensor(targets[MASK].astype(np.float64)),
        pos_weight=None if pos_weight is None else torch.tensor(pos_weight, dtype=torch.float64),
    )
    both(lambda x: binary_cross_entropy(x, targets, MASK, pos_weight=pos_weight).mean, theirs, logits, MASK)


def test_mean_huber_error(logits):
    targets = logits[::-1].copy()
    theirs = lambda x: torch.nn.functional.huber_loss(x, torch.tensor(targets[MASK].astype(np.float64)), delta=1.5)
    both(lambda x: huber_error(x, targets, MASK, delta=1.5).mean, theirs, logits, MASK)


FRAMES = np.array([[1, 1, 0, 1, 1, 1, 1], [0, 0, 1, 1, 0, 1, 0], [0, 1, 0, 0, 0, 0, 1], [1, 1, 1, 1, 1, 1, 1]], bool)
LABELS = np.array([[1, 1, 3], [2, 4, 0], [4, 0, 0], [0, 0, 0]])
N_LABELS = np.array([3, 2, 1, 0])


def test_summed_ctc_loss():
    """PyTorch's takes frames from the left: its rows are ours without their gaps."""
    x = np.random.default_rng(10).normal(size=(4, 7, 5)).astype(np.float32) * 2
    lengths = FRAMES.sum(1)

    def theirs(real):
        rows = torch.nn.utils.rnn.pad_sequence(torch.split(real, lengths.tolist()))  # (time, batch, classes)
        return torch.nn.functional.ctc_loss(
            rows.log_softmax(-1), torch.tensor(LABELS), torch.tensor(lengths), torch.tensor(N_LABELS), reduction="sum"
        )

    ours = lambda x: ctc_loss(x, LABELS, FRAMES, np.arange(3) < N_LABELS[:, None]).total
    both(ours, theirs, x, FRAMES)


def test_an_impossible_ctc_row_is_infinite_for_both():
    arguments = torch.zeros(2, 1, 4).log_softmax(-1), torch.tensor([[1, 1]]), torch.tensor([2]), torch.tensor([2])
    theirs = torch.nn.functional.ctc_loss(*arguments, reduction="sum")
    assert float(theirs) == float(ctc_loss(np.zeros((1, 2, 4)), np.array([[1, 1]])).total) == np.inf
