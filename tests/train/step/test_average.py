from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import sequinox as sqx
from sequinox.train import (
    AveragedState,
    Batches,
    Total,
    averaged_model,
    fit,
    init_train_state,
    load_model,
    make_step,
    squared_error,
    with_average,
)


class Line(eqx.Module):
    w: jax.Array
    n: int = 3


def objective(model, batch, key):
    return squared_error(model.w[None] * batch[:, None], jnp.zeros((2, 1))), {}


def test_the_average_is_the_recursion_by_hand_and_skipped_steps_leave_it():
    optimiser = with_average(optax.sgd(0.1), 0.75)
    step, state = make_step(optimiser, objective), init_train_state(Line(jnp.ones(1)), optimiser, jax.random.key(0))
    w = average = 1.0
    for size in (1.0, 2.0, np.nan, 0.5):
        state, _ = step(state, jnp.float32(size) * jnp.ones(2))
        if np.isfinite(size):
            w -= 0.1 * 2 * w * size**2
            average = 0.75 * average + 0.25 * w
    np.testing.assert_allclose(state.model.w, [w], rtol=1e-6)
    np.testing.assert_allclose(averaged_model(state).w, [average], rtol=1e-6)
    assert averaged_model(state).n == 3


def test_half_precision_parameters_have_an_average_in_single():
    """Steps of 2^-9 around 1 are below bfloat16's spacing: an average in bfloat16 would stand still."""
    optimiser = with_average(optax.sgd(1.0), 0.99)
    params = jnp.ones(1, jnp.bfloat16)
    state: Any = optimiser.init(params)
    for _ in range(20):
        _, state = optimiser.update(jnp.full(1, 0.25, jnp.bfloat16), state, params)
    assert state.average.dtype == jnp.float32
    np.testing.assert_allclose(state.average, [0.75 + 0.25 * 0.99**20], rtol=1e-5)


def test_what_keeps_single_precision_has_its_average_unrounded():
    """The pole moves by 2^-12 a step, below bfloat16's spacing; the weight beside it comes back in its own dtype."""
    model = sqx.cast(sqx.Sequential([sqx.OnePole(1, 0.75), sqx.Dense(1, 2, jax.random.key(0))]), jnp.bfloat16)
    optimiser = with_average(optax.sgd(2.0**-12), 0.5)
    step = make_step(optimiser, lambda m, batch, key: (Total(m.layers[0].alpha[0] * batch, 1), {}))
    state = init_train_state(model, optimiser, jax.random.key(1))
    pole = average = 0.75
    for _ in range(3):
        state, _ = step(state, jnp.float32(1))
        pole -= 2.0**-12
        average = 0.5 * average + 0.5 * pole
    got: Any = averaged_model(state)
    assert got.layers[0].alpha.tolist() == [average]
    assert jax.tree.map(lambda a: a.dtype, got) == jax.tree.map(lambda a: a.dtype, model)


def test_it_is_found_inside_other_transformations_and_absent_without():
    inside = optax.chain(optax.clip(1.0), with_average(optax.adam(1e-3)))
    state = init_train_state(Line(jnp.full(1, 2.0)), inside, jax.random.key(0))
    assert averaged_model(state).w.tolist() == [2.0]
    plain = init_train_state(Line(jnp.ones(1)), optax.sgd(0.1), jax.random.key(0))
    assert averaged_model(plain) is plain.model


def test_fit_evaluates_the_average():
    seen = []
    result = fit(
        Line(jnp.ones(1)),
        with_average(optax.sgd(0.1), 0.5),
        lambda model, batch, key: objective(model, batch.data, key),
        Batches(np.ones(4, np.float32), 2, seed=0),
        steps=2,
        key=jax.random.key(0),
        evaluate=lambda model: seen.append(float(model.w[0])) or {"w": model.w[0]},
        progress=False,
    )
    assert seen == [pytest.approx(0.5 * (0.5 * 1 + 0.5 * 0.8) + 0.5 * 0.64)]
    assert float(result.averaged.w[0]) == seen[0] and float(result.model.w[0]) == pytest.approx(0.64)


def test_a_run_gives_its_average_to_load_model(tmp_path):
    def run(optimiser, out_dir):
        model = sqx.recurrent_net(2, 3, 1, jax.random.key(0), cell="gru", dtype=jnp.bfloat16)
        return fit(
            model,
            optimiser,
            lambda model, batch, key: (squared_error(model(batch.data), jnp.zeros((2, 1), jnp.bfloat16)), {}),
            Batches(np.ones((4, 5, 2), jnp.bfloat16), 2, seed=0),
            steps=2,
            key=jax.random.key(0),
            out_dir=out_dir,
            progress=False,
        )

    result = run(optax.chain(optax.clip(1.0), with_average(optax.sgd(0.5), 0.5)), tmp_path / "kept")
    average = load_model(tmp_path / "kept", averaged=True)
    assert eqx.tree_equal(average, result.averaged) and average.dtype == jnp.bfloat16
    assert eqx.tree_equal(load_model(tmp_path / "kept"), result.model)
    assert not eqx.tree_equal(result.averaged, result.model)
    run(optax.sgd(0.5), tmp_path / "none")
    with pytest.raises(ValueError, match="kept no average of the parameters"):
        load_model(tmp_path / "none", averaged=True)


@pytest.mark.usefixtures("unchecked_types")
def test_bad_arguments():
    with pytest.raises(ValueError, match=r"decay must be in \[0, 1\), got 1.0"):
        with_average(optax.sgd(0.1), 1.0)
    with pytest.raises(TypeError, match="must be an optax transformation, got float"):
        with_average(0.9)  # pyright: ignore[reportArgumentType]
    optimiser = with_average(optax.sgd(0.1))
    with pytest.raises(ValueError, match="update needs params"):
        optimiser.update(jnp.ones(1), optimiser.init(jnp.ones(1)))
    assert isinstance(optimiser.init(jnp.ones(1)), AveragedState)
