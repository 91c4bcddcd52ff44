"""Truncated BPTT against a plain RNN's gradient by NumPy, loss by loss and step by step."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import sequinox as sqx
from sequinox.train import (
    GradientFunction,
    Windows,
    accumulate,
    init_train_state,
    look_back,
    make_step,
    squared_error,
    truncated_bptt,
)

ROWS, TIME, N_IN, N_HIDDEN = 3, 13, 2, 4


def objective(model, batch, key, carry):
    ys, carry = model.unroll(batch["x"], carry, mask=batch.get("mask"), resets=batch.get("resets"))
    return squared_error(ys, batch["y"], batch.get("mask")), {}, carry


def data(time=TIME, rows=ROWS):
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(rows, time, N_IN)), rng.normal(size=(rows, time, N_HIDDEN))
    return {"x": jnp.asarray(x, jnp.float32), "y": jnp.asarray(y, jnp.float32)}


@eqx.filter_jit
def rnn():
    return sqx.RNN(N_IN, N_HIDDEN, jax.random.key(0))


@eqx.filter_jit
def gradient(gradients, model, batch, key=None, carry=None):
    got = gradients(model, batch, key, carry)
    return got.loss, got.grads, got.carry


def by_numpy(model, batch, first_of):
    """The gradient of the mean over all losses, where that of step t reaches back to step `first_of(t)`."""
    W, U, b = (np.asarray(a, float) for a in (model.W, model.U, model.b))
    xs, ys = np.asarray(batch["x"], float), np.asarray(batch["y"], float)
    grads = {"W": np.zeros_like(W), "U": np.zeros_like(U), "b": np.zeros_like(b)}
    for x, y in zip(xs, ys, strict=True):
        hs = [np.zeros(len(b))]
        for sample in x:
            hs.append(np.tanh(W @ sample + U @ hs[-1] + b))
        for t in range(len(x)):
            delta = 2 * (hs[t + 1] - y[t])
            for s in range(t, first_of(t) - 1, -1):
                delta = delta * (1 - hs[s + 1] ** 2)
                grads["W"] += np.outer(delta, x[s])
                grads["U"] += np.outer(delta, hs[s])
                grads["b"] += delta
                delta = U.T @ delta
    return {name: g / ys.size for name, g in grads.items()}


def assert_gradient(grads, expected):
    for name, value in expected.items():
        np.testing.assert_allclose(getattr(grads, name), value, rtol=2e-5, atol=1e-7, err_msg=name)


@pytest.mark.parametrize("length", [1, 4, 6])
def test_a_loss_reaches_to_its_windows_first_sample_and_no_further(length):
    model, batch = rnn(), data()
    _, grads, carry = gradient(truncated_bptt(objective, length, axes="batch time"), model, batch)
    assert_gradient(grads, by_numpy(model, batch, lambda t: t // length * length))
    np.testing.assert_allclose(carry, model.unroll(batch["x"])[1], rtol=1e-6)


@pytest.mark.parametrize("length", [TIME, TIME + 5])
def test_windows_as_long_as_the_row_are_full_bptt_exactly(length):
    model, batch = rnn(), data()
    _, grads, _ = gradient(truncated_bptt(objective, length, axes="batch time"), model, batch)
    without = lambda model, batch, key: objective(model, batch, key, None)[:2]
    _, full, _ = gradient(GradientFunction(without), model, batch)
    assert eqx.tree_equal(grads, full)
    assert_gradient(full, by_numpy(model, batch, lambda t: 0))


def test_from_a_carried_state_and_in_parts_of_a_batch():
    model, batch = rnn(), data(rows=4)
    stretch = lambda a, b: jax.tree.map(lambda leaf: leaf[:, a:b], batch)
    head, tail = stretch(0, 5), stretch(5, TIME)
    _, carry = model.unroll(head["x"])
    _, grads, after = gradient(truncated_bptt(objective, 3, axes="batch time"), model, tail, None, carry)
    reach = by_numpy(model, batch, lambda t: t + 1 if t < 5 else 5 + (t - 5) // 3 * 3)
    assert_gradient(grads, {name: g * TIME / (TIME - 5) for name, g in reach.items()})
    _, in_parts, after_parts = gradient(
        accumulate(truncated_bptt(objective, 3, axes="batch time"), 2), model, tail, None, carry
    )
    assert_gradient(in_parts, {name: g * TIME / (TIME - 5) for name, g in reach.items()})
    np.testing.assert_allclose(after_parts, after, rtol=1e-6)


@pytest.mark.parametrize("stride", [2, 3, 5])
@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_look_back_reaches_n_samples_further(n, stride):
    """Windows of n + stride samples, masked before the row begins, as `Windows(look_back=n)` gives them."""
    time = 3 * stride
    model, batch = rnn(), data(time)
    early = lambda leaf: jnp.concatenate([jnp.zeros_like(leaf[:, :n]), leaf], axis=1)
    padded = jax.tree.map(early, batch) | {"mask": (jnp.arange(n + time) >= n)[None, :] & jnp.ones((ROWS, 1), bool)}
    gradients, carry = GradientFunction(look_back(objective, n, axes="batch time")), model.init_state(ROWS)
    total: dict[str, Any] = dict.fromkeys(("W", "U", "b"), 0.0)
    for w in range(3):
        window = jax.tree.map(lambda leaf, w=w: leaf[:, w * stride : (w + 1) * stride + n], padded)
        loss, grads, carry = gradient(gradients, model, window, None, carry)
        assert int(loss.count) == ROWS * stride * N_HIDDEN
        total = {name: total[name] + np.asarray(getattr(grads, name)) / 3 for name in total}
    expected = by_numpy(model, batch, lambda t: max(0, t // stride * stride - n))
    for name, value in expected.items():
        np.testing.assert_allclose(total[name], value, rtol=2e-5, atol=1e-7, err_msg=name)


@pytest.mark.parametrize("n", [0, 3])
def test_rows_that_begin_and_end_inside_windows(n):
    """An epoch of `Windows`: a loss reaches back to its row's first sample, or to its window's and n further."""
    lengths, lanes, length = (5, 9, 2, 7, 1), 2, 4
    rows = [data(time, rows=1) for time in lengths]
    xs, ys = ([np.asarray(row[name][0]) for row in rows] for name in ("x", "y"))
    windows = Windows(xs, ys, batch_size=lanes, length=length, look_back=n, seed=0, shuffle=False)
    model = rnn()
    reading = lambda model, batch, key, carry: objective(
        model, {"x": batch.inputs, "y": batch.targets, "mask": batch.mask, "resets": batch.resets}, key, carry
    )
    gradients = GradientFunction(look_back(reading, n) if n else reading)
    total: dict[str, Any] = dict.fromkeys(("W", "U", "b"), 0.0)
    carry = model.init_state(lanes)
    counted = 0
    for _ in range(windows.steps_per_epoch):
        loss, grads, carry = gradient(gradients, model, next(windows), None, carry)
        counted += int(loss.count)
        total = {name: total[name] + np.asarray(getattr(grads, name), float) * int(loss.count) for name in total}
    assert counted == sum(lengths) * N_HIDDEN

    expected: dict[str, Any] = dict.fromkeys(total, 0.0)
    free = [0] * lanes  # each row goes to the lane that is free first
    for row, time in zip(rows, lengths, strict=True):
        begin = min(free)
        free[free.index(begin)] += time
        reach = lambda t, begin=begin: max(0, (begin + t) // length * length - n - begin)
        alone = by_numpy(model, row, reach)
        expected = {name: expected[name] + alone[name] * time * N_HIDDEN for name in total}
    for name, value in expected.items():
        np.testing.assert_allclose(total[name], value, rtol=2e-5, atol=1e-5, err_msg=name)


def test_memory_does_not_grow_with_time():
    model = rnn()
    memory = []
    for time in (400, 4000):
        batch = jax.eval_shape(lambda time=time: data_shape(time))
        program = (
            jax.jit(lambda batch: truncated_bptt(objective, 40, axes="batch time")(model, batch, None).grads)
            .lower(batch)
            .compile()
        )
        memory.append(_temporary(program))
    assert memory[1] <= 1.1 * memory[0], memory


def _temporary(program):
    analysis = program.memory_analysis()
    assert analysis is not None
    return analysis.temp_size_in_bytes


def data_shape(time):
    return {"x": jnp.zeros((ROWS, time, N_IN)), "y": jnp.zeros((ROWS, time, N_HIDDEN))}


def test_windows_as_batches_with_a_carry_give_the_same_gradients_one_by_one():
    """`make_step` with a carry, at a learning rate of zero: each report's norm is that of the window's own gradient."""
    model, batch, optimiser = rnn(), data(12), optax.sgd(0.0)
    step = make_step(optimiser, objective)
    state = init_train_state(model, optimiser, jax.random.key(0), carry=model.init_state(ROWS))
    for w in range(3):
        window = jax.tree.map(lambda leaf, w=w: leaf[:, 4 * w : 4 * w + 4], batch)
        state, report = step(state, window)
        reach = by_numpy(model, batch, lambda t, w=w: 4 * w if t // 4 == w else t + 1)
        norm = np.sqrt(sum((3 * g**2 * 3).sum() for g in reach.values()))
        np.testing.assert_allclose(float(report.totals["grad_norm"].total), norm, rtol=2e-5)
    np.testing.assert_allclose(state.carry, model.unroll(batch["x"])[1], rtol=1e-5)


def test_a_row_that_is_not_finite_keeps_the_state_it_had():
    model, batch, optimiser = rnn(), data(4), optax.sgd(0.1)
    step = make_step(optimiser, objective)
    carry = 0.1 * jnp.arange(float(ROWS * N_HIDDEN)).reshape(ROWS, N_HIDDEN)
    before = init_train_state(model, optimiser, jax.random.key(0), carry=carry)
    bad = batch | {"x": batch["x"].at[1, 2].set(jnp.nan)}
    after, report = step(before, bad)
    assert int(report.skipped) == 1 and eqx.tree_equal(after.model, before.model)
    assert after.carry[1].tolist() == carry[1].tolist()
    good = model.unroll(batch["x"], carry)[1]
    np.testing.assert_allclose(after.carry[jnp.array([0, 2])], good[jnp.array([0, 2])], rtol=1e-6)


@pytest.mark.usefixtures("unchecked_types")
def test_bad_arguments():
    model, batch, optimiser = rnn(), data(6), optax.sgd(0.1)
    with pytest.raises(ValueError, match="length must be at least 1, got 0"):
        truncated_bptt(objective, 0, axes="batch time")
    with pytest.raises(TypeError, match="length must be an integer"):
        truncated_bptt(objective, 2.5)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match=r"same number of samples along time: .*batch\['y'\] \(3, 5, 4\)"):
        truncated_bptt(objective, 2, axes="batch time")(model, batch | {"y": batch["y"][:, :5]}, None)
    with pytest.raises(ValueError, match="longer than n = 6 samples, got 6"):
        look_back(objective, 6, axes="batch time")(model, batch, None, None)
    with pytest.raises(TypeError, match="must be a plain objective, got Accumulated"):
        look_back(accumulate(objective, 2), 6)
    with pytest.raises(TypeError, match="objective must return"):
        truncated_bptt(lambda model, batch, key, carry: objective(model, batch, key, carry)[:2], 2, axes="batch time")(
            model, batch, None
        )
    lists = lambda model, batch, key, carry: (*objective(model, batch, key, carry)[:2], [batch["x"][:, 0]])
    with pytest.raises(TypeError, match="carry must keep its structure"):
        make_step(optimiser, lists)(
            init_train_state(model, optimiser, jax.random.key(0), carry=jnp.zeros((ROWS, 4))), batch
        )
    with pytest.raises(TypeError, match=r"carry: float32\[3, 4\] before, float16\[3, 4\] after"):
        half = lambda m, b, k, c: (*objective(m, b, k, c)[:2], c.astype(jnp.float16))
        make_step(optimiser, half)(
            init_train_state(model, optimiser, jax.random.key(0), carry=jnp.zeros((ROWS, 4))), batch
        )
