"""A training step: compilation, the optimiser, and a step that is not finite."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from sequinox.train import Total, fit, init_train_state, make_step, squared_error

KEY = jax.random.key(1)


class Linear(eqx.Module):
    W: jax.Array
    b: jax.Array
    count: jax.Array  # an integer array is kept, not trained
    name: str = eqx.field(static=True)
    activation: object = jnp.tanh  # not an array, and not static

    def __call__(self, x):
        return self.W @ x + self.b


def linear(dtype=np.float32):
    rng = np.random.default_rng(0)
    W, b = (jnp.asarray(rng.normal(size=shape), dtype) for shape in ((2, 3), 2))
    return Linear(W, b, jnp.arange(3), "linear")


def batch(n=4, seed=1):
    rng = np.random.default_rng(seed)
    return {"x": rng.normal(size=(n, 3)).astype(np.float32), "y": rng.normal(size=(n, 2)).astype(np.float32)}


def objective(model, batch, key):
    error = squared_error(jax.vmap(model)(batch["x"]), batch["y"])
    return error, {"rows": Total(error.total, jnp.array(len(batch["x"])))}


def test_one_step_of_gradient_descent_by_hand():
    model, data = linear(), batch()
    optimiser = optax.sgd(0.1)
    state, report = make_step(optimiser, objective)(init_train_state(model, optimiser, KEY), data)
    W, b, x, y = (np.asarray(a, np.float64) for a in (model.W, model.b, data["x"], data["y"]))
    residual = x @ W.T + b - y
    grad_W, grad_b = 2 * residual.T @ x / residual.size, 2 * residual.sum(axis=0) / residual.size
    np.testing.assert_allclose(state.model.W, W - 0.1 * grad_W, rtol=1e-5)
    np.testing.assert_allclose(state.model.b, b - 0.1 * grad_b, rtol=1e-5)
    np.testing.assert_allclose(report.totals["loss"].mean, (residual**2).mean(), rtol=1e-5)
    np.testing.assert_allclose(report.totals["rows"].mean, (residual**2).sum() / 4, rtol=1e-5)
    norm = np.sqrt((grad_W**2).sum() + (grad_b**2).sum())
    np.testing.assert_allclose(report.totals["grad_norm"].mean, norm, rtol=1e-5)
    assert int(report.skipped) == 0 and int(state.step) == 1


def test_ten_steps_agree_with_a_loop_written_by_hand():
    optimiser = optax.chain(optax.clip_by_global_norm(0.3), optax.adam(optax.linear_schedule(0.1, 0.01, 5)))
    ours = optax.adam(optax.linear_schedule(0.1, 0.01, 5))
    model = linear()
    grad = eqx.filter_jit(eqx.filter_grad(lambda m, data: objective(m, data, KEY)[0].mean))
    step, state = make_step(ours, objective, clip_norm=0.3), init_train_state(model, ours, KEY)
    with jax.numpy_dtype_promotion("standard"):
        opt_state = optimiser.init(eqx.filter(model, eqx.is_inexact_array))
        for i in range(10):
            grads = grad(model, batch(seed=i))
            updates, opt_state = optimiser.update(grads, opt_state)
            model = eqx.apply_updates(model, updates)
    for i in range(10):
        state, _ = step(state, batch(seed=i))
    np.testing.assert_allclose(state.model.W, model.W, rtol=1e-5)
    np.testing.assert_allclose(state.model.b, model.b, rtol=1e-5)


def test_static_leaves_are_not_changed_and_the_callers_model_stays():
    model, optimiser = linear(), optax.adam(0.1)
    before = np.asarray(model.W).copy()
    step, state = make_step(optimiser, objective, donate=True), init_train_state(model, optimiser, KEY)
    for _ in range(3):
        state, _ = step(state, batch())
    np.testing.assert_array_equal(model.W, before)
    assert state.model.name == "linear" and state.model.activation is jnp.tanh
    assert state.model.count.tolist() == [0, 1, 2] and state.model.count.dtype == model.count.dtype
    assert jax.tree.structure(state.model) == jax.tree.structure(model)


@pytest.mark.parametrize("donate", [True, False])
@pytest.mark.parametrize(
    "optimiser",
    [
        optax.adam(optax.cosine_decay_schedule(0.1, 9)),
        optax.inject_hyperparams(optax.adamw)(learning_rate=0.1),  # pyright: ignore
        optax.chain(optax.add_noise(0.1, 0.5, jax.random.key(0)), optax.sgd(0.1, momentum=0.9)),
        optax.MultiSteps(optax.lamb(0.1), 2).gradient_transformation(),
    ],
)
def test_the_step_is_traced_once(optimiser, donate):
    traces = 0

    def counted(model, batch, key):
        nonlocal traces
        traces += 1
        return objective(model, batch, key)

    step, state = make_step(optimiser, counted, donate=donate), init_train_state(linear(), optimiser, KEY)
    for i in range(4):
        # A Python number in a batch would be a constant of the compiled step.
        state, _ = step(state, {**batch(seed=i), "weight": 0.5 * i, "index": i})
    assert traces == 1


def test_schedules_start_at_step_0_and_stand_still_when_skipped():
    rates = []
    optimiser = optax.sgd(lambda count: jnp.array([1.0, 10.0, 100.0])[count])

    def loss(model, batch, key):
        return Total(jnp.sum(model["w"]) * batch, jnp.array(1)), {}

    step, state = make_step(optimiser, loss), init_train_state({"w": jnp.zeros(1)}, optimiser, KEY)
    for scale in (1.0, np.nan, 1.0, 1.0):
        before = float(state.model["w"][0])
        state, _ = step(state, scale)
        rates.append(before - float(state.model["w"][0]))
    assert rates == [1.0, 0.0, 10.0, 100.0]
    assert int(state.step) == 4


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("clip_norm", [None, 1.0])
def test_a_step_that_is_not_finite_is_skipped_whole(bad, clip_norm):
    optimiser = optax.adam(0.1)
    step, state = make_step(optimiser, objective, clip_norm=clip_norm), init_train_state(linear(), optimiser, KEY)
    state, _ = step(state, batch())
    poisoned = batch()
    poisoned["x"][1, 2] = bad
    after, report = step(state, poisoned)
    assert int(report.skipped) == 1 and int(after.step) == 2
    before_leaves, after_leaves = (jax.tree.leaves((s.model, s.opt_state)) for s in (state, after))
    for a, b in zip(before_leaves, after_leaves, strict=True):
        assert a is b if not eqx.is_array(a) else np.array_equal(a, b)
    assert all(float(t.total) == 0 and float(t.count) == 0 for t in report.totals.values())
    recovered, report = step(after, batch())
    assert int(report.skipped) == 0 and not np.array_equal(recovered.model.W, after.model.W)


def test_a_loss_that_is_not_finite_is_skipped_even_if_its_gradient_is():
    optimiser = optax.sgd(0.1)

    def loss(model, batch, key):
        return Total(jnp.sum(model) + batch, jnp.array(1)), {}

    state, report = make_step(optimiser, loss)(init_train_state(jnp.ones(2), optimiser, KEY), np.float32(np.inf))
    assert int(report.skipped) == 1 and state.model.tolist() == [1, 1]


def test_a_batch_without_real_entries_moves_nothing_and_is_not_skipped():
    optimiser = optax.sgd(0.1)

    def loss(model, batch, key):
        return squared_error(jax.vmap(model)(batch["x"]), batch["y"], np.zeros(4, bool)), {}

    model = linear()
    state, report = make_step(optimiser, loss)(init_train_state(model, optimiser, KEY), batch())
    np.testing.assert_array_equal(state.model.W, model.W)
    assert int(report.skipped) == 0 and int(report.totals["loss"].count) == 0


def test_complex_parameters_descend():
    target = jnp.array([1 + 2j, -1 - 1j])
    optimiser = optax.sgd(0.2)

    def loss(z, batch, key):
        return Total(jnp.sum(jnp.abs(z - target) ** 2), jnp.array(1)), {}

    step, state = make_step(optimiser, loss), init_train_state(jnp.zeros(2, complex), optimiser, KEY)
    for _ in range(40):
        state, _ = step(state, 0.0)
    np.testing.assert_allclose(state.model, target, atol=1e-5)


def test_half_precision_parameters_keep_their_dtype():
    optimiser = optax.adam(0.1)
    data = {k: jnp.asarray(v, jnp.bfloat16) for k, v in batch().items()}
    state, report = make_step(optimiser, objective, clip_norm=0.1)(
        init_train_state(linear(jnp.bfloat16), optimiser, KEY), data
    )
    assert state.model.W.dtype == jnp.bfloat16 and report.totals["loss"].total.dtype == jnp.float32


def test_each_step_draws_its_own_key():
    optimiser = optax.sgd(0.0)

    def loss(model, batch, key):
        return Total(jnp.sum(model), jnp.array(1)), {"u": Total(jax.random.uniform(key), jnp.array(1))}

    step, state = make_step(optimiser, loss), init_train_state(jnp.ones(1), optimiser, KEY)
    draws = []
    for i in range(3):
        state, report = step(state, 0)
        draws.append(float(report.totals["u"].total))
        assert draws[-1] == float(jax.random.uniform(jax.random.fold_in(KEY, i)))
    assert len(set(draws)) == 3


def test_no_two_leaves_share_a_buffer_to_be_donated():
    W = jnp.ones((2, 2))
    optimiser = optax.sgd(0.1)

    def loss(model, batch, key):
        return Total(jnp.sum(model["a"] * model["b"]), jnp.array(1)), {}

    step = make_step(optimiser, loss, donate=True)
    state = init_train_state({"a": W, "b": W, "host": np.ones(3)}, optimiser, KEY)
    for _ in range(2):
        state, _ = step(state, 0)
    assert state.model["a"].tolist() == state.model["b"].tolist()
    assert W.tolist() == [[1, 1], [1, 1]]


@pytest.mark.parametrize(
    ("returned", "error", "message"),
    [
        ((Total(jnp.array(1.0), jnp.array(1)), None), TypeError, "its second is NoneType"),
        ((Total(jnp.array(1.0), jnp.array(1)), {"a": "1.0"}), TypeError, "metric 'a' is str"),
        (
            (Total(jnp.array(1.0), jnp.array(1)), {"grad_norm": Total(jnp.array(1.0), jnp.array(1))}),
            ValueError,
            r"the names \['grad_norm'\] are the step's own",
        ),
    ],
)
def test_what_an_objective_must_return(returned, error, message):
    optimiser = optax.sgd(0.1)
    step = make_step(optimiser, lambda model, batch, key: returned)
    with pytest.raises(error, match=message):
        step(init_train_state(jnp.ones(2), optimiser, KEY), 0)


@pytest.mark.usefixtures("unchecked_types")
def test_arguments_are_checked_before_the_first_step():
    optimiser = optax.sgd(0.1)
    for clip_norm in (0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="max_norm must be above 0"):
            make_step(optimiser, objective, clip_norm=clip_norm)
    for key in (0, None, jnp.ones(3), jax.random.split(KEY)):
        with pytest.raises(TypeError, match="key must be a PRNG key, such as"):
            init_train_state(linear(), optimiser, key)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="no floating or complex array to train"):
        init_train_state({"n": jnp.arange(3)}, optimiser, KEY)
    assert init_train_state(linear(), optimiser, jax.random.PRNGKey(0)).key.dtype == KEY.dtype


@pytest.mark.usefixtures("unchecked_types")
def test_optimiser_and_objective_that_are_swapped():
    swapped: Any = objective, optax.sgd(0.1)
    words = (
        r"the optimiser goes before the objective: make_step\(optimiser, objective\), fit\(model, optimiser, objective"
    )
    with pytest.raises(TypeError, match=f"^make_step: {words}"):
        make_step(*swapped)
    with pytest.raises(TypeError, match=f"^fit: {words}"):
        fit(linear(), *swapped, batches=[batch()], steps=1, key=KEY)
    with pytest.raises(TypeError, match=r"^make_step: optimiser must be an optax transformation, got function"):
        make_step(swapped[0], objective)


@pytest.mark.parametrize("optimiser", [optax.contrib.reduce_on_plateau(), optax.lbfgs(linesearch=None), optax.lbfgs()])
def test_optimisers_that_ask_for_the_loss(optimiser):
    def objective(model, batch, key):
        return squared_error(jax.vmap(model)(batch), batch[:, :1]), {}

    model = eqx.nn.Linear(3, 1, key=jax.random.key(0))
    step = make_step(optimiser, objective)
    state = init_train_state(model, optimiser, jax.random.key(1))
    batch = jax.random.normal(jax.random.key(2), (8, 3))
    state, _ = step(state, batch)
    state, second = step(state, batch)
    assert int(second.skipped) == 0
    assert not jnp.array_equal(state.model.weight, model.weight)
