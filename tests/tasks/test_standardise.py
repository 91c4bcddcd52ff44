import numpy as np
import pytest

from sequinox.tasks import Split, japanese_vowels, standardise
from sequinox.train import Padded, pad


def ragged(lengths, seed, scale=3.0):
    rng = np.random.default_rng(seed)
    return pad([(rng.normal(size=(n, 2)) * scale + 5).astype(np.float32) for n in lengths])


def test_moments_are_those_of_real_training_frames():
    train, test = ragged([3, 0, 5], 0), ragged([4, 1], 1)
    new_train, new_test = standardise(train, test)
    real = np.concatenate([train.inputs[i, :n] for i, n in enumerate((3, 0, 5))]).astype(np.float64)
    mean, deviation = real.sum(axis=0) / 8, np.sqrt(((real - real.sum(axis=0) / 8) ** 2).sum(axis=0) / 8)
    for old, new in ((train, new_train), (test, new_test)):
        expected = np.where(old.mask[..., None], (old.inputs - mean) / deviation, 0)
        np.testing.assert_allclose(new.inputs, expected, rtol=1e-5, atol=1e-6)
        assert not new.inputs[~new.mask].any() and new.inputs.dtype == np.float32
        assert new.mask is old.mask
    np.testing.assert_allclose(new_train.inputs[new_train.mask].mean(axis=0), 0, atol=1e-6)
    np.testing.assert_allclose(new_train.inputs[new_train.mask].std(axis=0), 1, atol=1e-6)


def test_padding_and_other_splits_do_not_count_whatever_they_hold():
    train, test = ragged([3, 2], 0), ragged([4], 1)
    poisoned = Padded(np.where(train.mask[..., None], train.inputs, np.float32(np.nan)), train.mask)
    for other in (test, Padded(test.inputs + 100, test.mask)):
        np.testing.assert_array_equal(standardise(poisoned, other)[0].inputs, standardise(train)[0].inputs)


def test_a_constant_feature_is_only_centred():
    train = pad([np.full((3, 2), np.float32(0.1)), np.full((2, 2), np.float32(0.1))])
    assert not standardise(train)[0].inputs.any()


def test_inputs_are_not_changed_and_the_labels_pass_through():
    train, test = japanese_vowels()
    before = train.inputs.copy()
    new_train, new_test = standardise(train, test)
    np.testing.assert_array_equal(train.inputs, before)
    assert isinstance(new_train, Split) and new_test.labels is test.labels


@pytest.mark.parametrize(
    ("parts", "error", "message"),
    [
        ([np.ones((2, 3))], TypeError, "train must be a NamedTuple or dataclass with inputs and mask, got ndarray"),
        ([Padded(np.ones((2, 3, 1), int), np.ones((2, 3), bool))], TypeError, "the inputs of train must be floating"),
        ([Padded(np.ones((2, 3, 1)), np.ones((2, 3)))], TypeError, "the mask of train must be bool, got float64"),
        ([Padded(np.ones((2, 3, 1)), np.ones((2,), bool))], ValueError, r"must have shape \(2, 3\) .*, got \(2,\)"),
        ([Padded(np.ones((2, 3, 1)), np.zeros((2, 3), bool))], ValueError, "train has no real frame"),
        (
            [Padded(np.ones((2, 3, n)), np.ones((2, 3), bool)) for n in (1, 1, 2)],
            ValueError,
            r"the same features, got 2 in others\[1\] and 1 in train",
        ),
    ],
)
def test_errors_name_what_came(parts, error, message):
    with pytest.raises(error, match=message):
        standardise(*parts)
