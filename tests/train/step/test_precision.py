import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import sequinox as sqx
from sequinox.train import (
    GradientFunction,
    SequenceBatch,
    accumulate,
    cross_entropy,
    init_train_state,
    make_step,
    mixed_precision,
    truncated_bptt,
)

ROWS, TIME, N_IN, N_HIDDEN, N_OUT = 3, 7, 2, 6, 4


def batch():
    rng = np.random.default_rng(0)
    return SequenceBatch(
        jnp.asarray(rng.normal(size=(ROWS, TIME, N_IN)), jnp.float32),
        jnp.asarray(rng.integers(0, N_OUT, (ROWS, TIME)), jnp.int32),
        jnp.arange(TIME)[None, :] < jnp.array([[7], [0], [4]]),
        None,
        jnp.ones(ROWS, bool),
        targets_per="sample",
    )


def objective(model, batch, key, carry):
    seen.append((batch.inputs.dtype, model.dtype, jax.tree.map(lambda leaf: leaf.dtype, carry)))
    logits, carry = model.unroll(batch.inputs, carry, mask=batch.mask)
    seen.append(logits.dtype)
    return cross_entropy(logits, batch.targets, batch.mask), {}, carry


seen: list = []


def net():
    return sqx.recurrent_net(N_IN, N_HIDDEN, N_OUT, jax.random.key(0), cell="gru", pool=None)


def test_what_is_half_and_what_is_single():
    seen.clear()
    model = sqx.Sequential([sqx.RDA(N_IN, N_HIDDEN, jax.random.key(0)), sqx.Dense(N_HIDDEN, N_OUT, jax.random.key(1))])
    carry = model.init_state(ROWS, jnp.bfloat16)
    got = GradientFunction(mixed_precision(objective))(model, batch(), None, carry)
    (inputs, weights, states), logits = seen
    assert inputs == weights == logits == jnp.bfloat16
    assert {leaf.dtype for leaf in jax.tree.leaves(got.carry)} >= {jnp.dtype("float32")}  # averages stay in single
    assert jax.tree.map(lambda leaf: leaf.dtype, got.carry) == states
    assert got.loss.total.dtype == jnp.float32
    assert {leaf.dtype for leaf in jax.tree.leaves(got.grads)} == {jnp.dtype("float32")}


def test_the_gradient_is_that_of_single_precision_up_to_the_digits_of_bfloat16():
    model = sqx.recurrent_net(N_IN, N_HIDDEN, N_OUT, jax.random.key(0), cell="gru", pool=None)
    full = GradientFunction(objective)(model, batch(), None, model.init_state(ROWS))
    half = GradientFunction(mixed_precision(objective))(model, batch(), None, model.init_state(ROWS, jnp.bfloat16))
    for a, b in zip(jax.tree.leaves(full.grads), jax.tree.leaves(half.grads), strict=True):
        assert np.linalg.norm(a - b) <= 0.05 * np.linalg.norm(a)
        assert not np.array_equal(a, b)
    assert float(half.loss.mean) == pytest.approx(float(full.loss.mean), rel=0.01)


def test_updates_too_small_for_bfloat16_add_up():
    """100 steps of 1e-4 at 1.0, whose neighbour in bfloat16 is 1.0078."""
    one = mixed_precision(lambda model, batch, key: (sqx.train.Total(jnp.sum(model.astype(jnp.float32)), 1), {}))
    optimiser = optax.sgd(1e-4)
    step, state = make_step(optimiser, one), init_train_state(jnp.ones(()), optimiser, jax.random.key(0))
    for _ in range(100):
        state, _ = step(state, 0.0)
    np.testing.assert_allclose(state.model, 0.99, rtol=1e-5)


@pytest.mark.thorough
def test_inside_windows_and_parts():
    model = sqx.recurrent_net(N_IN, N_HIDDEN, N_OUT, jax.random.key(0), cell="gru", pool=None)
    three = jax.tree.map(lambda leaf: jnp.concatenate([leaf, leaf]), batch())
    got = accumulate(truncated_bptt(mixed_precision(objective), 3), 2)(model, three, None)
    again = truncated_bptt(mixed_precision(objective), 3)(model, batch(), None)
    for a, b in zip(jax.tree.leaves(got.grads), jax.tree.leaves(again.grads), strict=True):
        np.testing.assert_allclose(a, b, rtol=0.03, atol=1e-3)
    assert int(got.loss.count) == 22


def test_bad_arguments():
    with pytest.raises(ValueError, match="dtype must be bfloat16, float32 or float64, got float16"):
        mixed_precision(objective, jnp.float16)
    with pytest.raises(TypeError, match=r"put it inside: accumulate\(mixed_precision"):
        mixed_precision(accumulate(objective, 2))
    model = net()
    with pytest.raises(TypeError, match="dtype"):  # without `inputs`, a tuple is not cast, and the layer says so
        plain = lambda model, batch, key: (cross_entropy(model(batch[0]), batch[1]), {})
        GradientFunction(mixed_precision(plain))(model, (batch().inputs, batch().targets), None)
