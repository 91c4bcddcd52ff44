"""Gradients of a batch in parts, against the gradient of the whole by NumPy."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from sequinox.train import (
    GradientFunction,
    Total,
    accumulate,
    init_train_state,
    make_step,
    squared_error,
    truncated_bptt,
)


class Line(eqx.Module):
    w: jax.Array


def objective(model, batch, key):
    x, y, real = batch
    x = jnp.where(real[:, None], x, 0)
    return squared_error(x @ model.w[:, None], y, real), {"rows": Total(jnp.sum(real).astype(jnp.float32), 1)}


def data(rows=12, n_in=3):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(rows, n_in)), rng.normal(size=(rows, 1))
    real = np.arange(rows) % 4 != 0  # all of the first part of four is filler
    x[~real] = np.nan
    return *(jnp.asarray(a, jnp.float32) for a in (x, y)), jnp.asarray(real)


def gradient_by_numpy(w, batch):
    x, y, real = (np.asarray(a) for a in batch)
    x, y = x[real].astype(float), y[real].astype(float)
    error = x @ w[:, None] - y
    return (2 * error * x).sum(0) / error.size, (error**2).mean()


@pytest.mark.parametrize("n", [1, 2, 3, 4, 6, 12])
def test_parts_give_the_gradient_of_the_whole_mean(n):
    w, batch = np.array([0.5, -1.0, 2.0]), data()
    expected, loss = gradient_by_numpy(w, batch)
    got = accumulate(objective, n)(Line(jnp.asarray(w, jnp.float32)), batch, jax.random.key(0))
    np.testing.assert_allclose(got.grads.w, expected, rtol=2e-6)
    np.testing.assert_allclose(got.loss.mean, loss, rtol=1e-6)
    assert int(got.loss.count) == 9 and int(got.metrics["rows"].total) == 9


def test_parts_that_hold_nothing_give_zero():
    x, y, real = data()
    got = accumulate(objective, 3)(Line(jnp.ones(3)), (x, y, jnp.zeros_like(real)), None)
    assert got.grads.w.tolist() == [0.0, 0.0, 0.0] and int(got.loss.count) == 0


def test_half_precision_parts_are_added_in_single():
    """256 parts of gradient 1 and one of 256: bfloat16 has 8 bits, and would stop adding ones at 256."""
    batch = (jnp.concatenate([jnp.full(256, 256.0), jnp.ones(256)]).astype(jnp.bfloat16)[:, None],)

    def linear(model, batch, key):
        return Total(jnp.sum(batch[0][:, 0].astype(jnp.float32)) * model.w[0].astype(jnp.float32), len(batch[0])), {}

    got = accumulate(linear, 512)(Line(jnp.ones(1, jnp.bfloat16)), batch, None)
    assert got.grads.w.dtype == jnp.bfloat16
    assert float(got.grads.w[0]) == float(jnp.bfloat16((256 * 256 + 256) / 512))


def test_each_part_draws_its_own_numbers():
    def drawing(model, batch, key):
        draw = jax.random.uniform(key, batch[0].shape)
        return Total(jnp.sum(draw * model.w), 1), {"first": Total(draw[0], 1)}

    key, rows = jax.random.key(3), (jnp.zeros(6),)
    got = accumulate(drawing, 3)(Line(jnp.ones(())), rows, key)
    first = sum(float(jax.random.uniform(jax.random.fold_in(key, i), (2,))[0]) for i in range(3))
    np.testing.assert_allclose(got.metrics["first"].total, first, rtol=1e-6)


def test_a_carry_is_divided_with_the_rows_and_put_together_again():
    def counting(model, batch, key, carry):
        return squared_error(batch["x"] * model.w[None], batch["x"]), {}, {"seen": carry["seen"] + batch["x"][:, 0]}

    batch = {"x": jnp.arange(6.0)[:, None]}
    start = {"seen": 10.0 * jnp.arange(6.0)}
    got = accumulate(counting, 3)(Line(jnp.ones(1)), batch, None, start)
    assert got.carry["seen"].tolist() == [0.0, 11.0, 22.0, 33.0, 44.0, 55.0]


def test_one_program_serves_all_parts_and_all_steps():
    traces = 0

    def counted(model, batch, key):
        nonlocal traces
        traces += 1
        return objective(model, batch, key)

    optimiser = optax.sgd(0.1)
    step = make_step(optimiser, accumulate(counted, 6))
    state = init_train_state(Line(jnp.ones(3)), optimiser, jax.random.key(0))
    state, report = step(state, data())
    first = traces
    for _ in range(2):
        state, report = step(state, data())
    assert traces == first <= 3  # the types of a part, the loop, and what an optimiser may ask
    assert int(report.totals["loss"].count) == 9


@pytest.mark.usefixtures("unchecked_types")
def test_bad_arguments():
    with pytest.raises(ValueError, match="n must be at least 1, got 0"):
        accumulate(objective, 0)
    with pytest.raises(TypeError, match=r"n must be an integer, got 2\.0"):
        accumulate(objective, 2.0)  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="objective must be a function"):
        accumulate(None, 2)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="the batch has 12 rows, which 5 parts do not divide"):
        accumulate(objective, 5)(Line(jnp.ones(3)), data(), None)
    with pytest.raises(TypeError, match=r"put it inside: accumulate\(truncated_bptt"):
        truncated_bptt(accumulate(objective, 2), 3)
    with pytest.raises(TypeError, match="a carry is returned, but none was given"):
        GradientFunction(lambda model, batch, key: (Total(1.0, 1), {}, None))(Line(jnp.ones(3)), data(), None)
