import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sequinox.train import pad


def test_rows_stand_on_the_left_and_zeros_after_them():
    rng = np.random.default_rng(0)
    sequences = [rng.normal(size=(n, 3, 2)) for n in (3, 0, 2)]
    inputs, mask = pad(sequences)
    assert inputs.shape == (3, 3, 3, 2) and mask.shape == (3, 3)
    assert inputs.dtype == np.float64 and mask.dtype == bool
    for row, real, sequence in zip(inputs, mask, sequences, strict=True):
        n = len(sequence)
        np.testing.assert_array_equal(row[:n], sequence)
        assert not row[n:].any()
        assert real.tolist() == [True] * n + [False] * (3 - n)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "int32", "int8", "bool", "complex64"])
def test_dtype_is_kept_and_the_result_stays_on_the_host(dtype):
    inputs, mask = pad([jnp.ones((2, 5), dtype), jnp.ones((4, 5), dtype)])
    assert inputs.dtype == jnp.dtype(dtype)
    assert isinstance(inputs, np.ndarray) and isinstance(mask, np.ndarray)


def test_length_fixes_the_time_axis():
    inputs, mask = pad([np.ones((2, 1)), np.ones((1, 1))], length=6)
    assert inputs.shape == (2, 6, 1)
    assert mask.sum(axis=1).tolist() == [2, 1]
    assert pad([np.ones((2, 1))], length=2).inputs.shape == (1, 2, 1)


def test_a_batch_of_empty_rows_and_no_feature_axis():
    inputs, mask = pad([np.zeros((0, 3), np.float32), np.zeros((0, 3), np.float32)])
    assert inputs.shape == (2, 0, 3) and mask.shape == (2, 0)
    tokens, _ = pad([np.array([1, 2]), np.array([3])], length=3)
    assert tokens.tolist() == [[1, 2, 0], [3, 0, 0]]
    assert pad([np.zeros((2, 0))]).inputs.shape == (1, 2, 0)


def test_the_input_is_not_changed_and_not_shared():
    row = np.ones((2, 1))
    inputs, _ = pad([row])
    inputs[:] = 5
    assert row.tolist() == [[1], [1]]


@pytest.mark.parametrize(
    ("sequences", "length", "error", "message"),
    [
        ([], None, ValueError, "sequences is empty"),
        ([np.ones((2, 3)), np.ones((2, 4))], None, ValueError, r"got \(4,\) in sequences\[1\] and \(3,\) in sequences"),
        ([np.ones((2, 3)), np.ones(2)], None, ValueError, r"got \(\) in sequences\[1\]"),
        ([np.ones(2), np.ones(2, np.float32)], None, ValueError, "float32 in sequences.1. and float64 in sequences.0."),
        ([np.ones(2), np.ones(())], None, ValueError, r"sequences\[1\] must have a time axis, got a 0-d array"),
        ([[1, 2], [3]], None, TypeError, r"sequences\[0\] must be a NumPy or JAX array, got list"),
        (
            [np.ones(2), np.ones(5)],
            4,
            ValueError,
            r"length must be at least the longest sequence's, 5 .*\[1\].*, got 4",
        ),
        ([np.ones(2)], True, TypeError, "length must be an integer or None, got True"),
    ],
)
def test_errors_name_what_came(sequences, length, error, message):
    with pytest.raises(error, match=message):
        pad(sequences, length)


def test_zero_length_row_gives_finite_gradients_through_a_masked_mean():
    inputs, mask = pad([np.ones((3, 2), np.float32), np.zeros((0, 2), np.float32)])

    def mean(xs):
        total = jnp.sum(jnp.where(mask[..., None], xs, 0), axis=1)
        return jnp.sum(total / jnp.maximum(mask.sum(axis=1), 1)[:, None].astype(np.float32))

    assert jnp.all(jnp.isfinite(jax.grad(mean)(jnp.asarray(inputs))))
