import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sequinox.train import at_end, pad, unpad


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
        ([[1, 2], [3]], None, TypeError, r"sequences\[0\] must be a JAX or NumPy array, got list"),
        (
            [np.ones(2), np.ones(5)],
            4,
            ValueError,
            r"length must be at least the longest sequence's, 5 .*\[1\].*, got 4",
        ),
        ([np.ones(2)], True, TypeError, "length must be an integer, got True"),
    ],
)
@pytest.mark.usefixtures("unchecked_types")
def test_errors_name_what_came(sequences, length, error, message):
    with pytest.raises(error, match=message):
        pad(sequences, length)


def test_zero_length_row_gives_finite_gradients_through_a_masked_mean():
    inputs, mask = pad([np.ones((3, 2), np.float32), np.zeros((0, 2), np.float32)])

    def mean(xs):
        total = jnp.sum(jnp.where(mask[..., None], xs, 0), axis=1)
        return jnp.sum(total / jnp.maximum(mask.sum(axis=1), 1)[:, None].astype(np.float32))

    assert jnp.all(jnp.isfinite(jax.grad(mean)(jnp.asarray(inputs))))


def test_on_the_left_all_rows_end_together():
    rng = np.random.default_rng(1)
    sequences = [rng.normal(size=(n, 3)) for n in (2, 0, 4)]
    inputs, mask = pad(sequences, 5, side="left")
    for row, real, sequence in zip(inputs, mask, sequences, strict=True):
        n = len(sequence)
        assert real.tolist() == [False] * (5 - n) + [True] * n
        np.testing.assert_array_equal(row[5 - n :], sequence)
        assert not row[: 5 - n].any()
    with pytest.raises(ValueError, match="side must be 'right' or 'left', got 'top'"):
        pad(sequences, side="top")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int8", "bool", "complex64"])
def test_unpad_is_the_inverse(side, dtype):
    rng = np.random.default_rng(2)
    sequences = [rng.integers(0, 2, size=(n, 2, 3)).astype(jnp.dtype(dtype)) for n in (3, 0, 1)]
    for got, expected in zip(unpad(*pad(sequences, 4, side=side)), sequences, strict=True):
        assert got.dtype == expected.dtype and got.shape == expected.shape
        np.testing.assert_array_equal(got, expected)


def test_unpad_closes_gaps_and_takes_pytrees_and_jax_arrays():
    mask = np.array([[True, False, True], [False, False, False]])
    rows = unpad({"x": jnp.arange(6).reshape(2, 3), "y": np.arange(12.0).reshape(2, 3, 2)}, jnp.asarray(mask))
    assert rows[0]["x"].tolist() == [0, 2] and rows[0]["y"].tolist() == [[0, 1], [4, 5]]
    assert rows[1]["x"].shape == (0,) and rows[1]["y"].shape == (0, 2)
    assert isinstance(rows[0]["x"], np.ndarray)


@pytest.mark.parametrize(
    ("arrays", "mask", "error", "message"),
    [
        (np.ones((2, 3)), np.ones((2, 4), bool), ValueError, r"axes of mask, \(2, 4\), got \(2, 3\)"),
        (np.ones((2, 3)), np.ones((2, 3)), TypeError, r"mask must be a bool array \(batch, time\), got float64"),
        (np.ones((2, 3)), np.ones(2, bool), ValueError, r"mask must be \(batch, time\), got shape \(2,\)"),
        ([1, 2], np.ones((2, 3), bool), TypeError, "arrays must be a JAX or NumPy array, got int"),
        (None, np.ones((2, 3), bool), ValueError, "arrays holds no array"),
    ],
)
def test_unpad_names_what_came(arrays, mask, error, message):
    with pytest.raises(error, match=message):
        unpad(arrays, mask)


def test_at_end_is_the_last_real_sample_behind_gaps_too():
    mask = np.array([[True, True, False, False], [False] * 4, [False, True, False, True]])
    targets = np.array([[1, 2], [3, 4], [5, 6]], np.int32)
    values, places = at_end(targets, mask)
    expected = np.zeros((3, 4, 2), np.int32)
    expected[0, 1], expected[2, 3] = [1, 2], [5, 6]
    np.testing.assert_array_equal(values, expected)
    assert values.dtype == np.int32
    assert np.argwhere(places).tolist() == [[0, 1], [2, 3]]
    with pytest.raises(ValueError, match=r"one row for each of mask's 3, got \(2,\)"):
        at_end(np.ones(2), mask)
    with pytest.raises(TypeError, match="targets must be a JAX or NumPy array, got list"):
        at_end([1, 2, 3], mask)  # pyright: ignore[reportArgumentType]
    assert at_end(np.ones(2), np.ones((2, 0), bool)).mask.shape == (2, 0)
