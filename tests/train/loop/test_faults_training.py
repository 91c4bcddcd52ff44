"""Faults that users of training libraries report, each by its name: truncated BPTT, compilation, the optimiser."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import sequinox as sqx
from sequinox.train import (
    Batches,
    GradientFunction,
    Total,
    accumulate,
    clip_by_norm,
    fit,
    init_train_state,
    look_back,
    make_step,
    squared_error,
    truncated_bptt,
)

pytestmark = pytest.mark.usefixtures("unchecked_types")
ROWS, TIME, N_IN, N_HIDDEN = 2, 12, 3, 4


def lstm():
    return sqx.LSTM(N_IN, N_HIDDEN, jax.random.key(0))


def data():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(ROWS, TIME, N_IN)), rng.normal(size=(ROWS, TIME, N_HIDDEN))
    return {"x": jnp.asarray(x, jnp.float32), "y": jnp.asarray(y, jnp.float32), "mask": jnp.ones((ROWS, TIME), bool)}


def objective(model, batch, key, carry):
    ys, carry = model.unroll(batch["x"], carry, mask=batch["mask"])
    return squared_error(ys, batch["y"], batch["mask"]), {}, carry


def window(batch, start, stop):
    return jax.tree.map(lambda leaf: leaf[:, start:stop], batch)


@eqx.filter_jit
def gradient(gradients, model, batch, carry=None):
    return gradients(model, batch, None, carry)


# ---- truncated BPTT ------------------------------------------------------------------------------------------------


class Probed(eqx.Module):
    """A probe is added to the inputs of the first half only; the loss is that of the second half only."""

    cell: eqx.Module
    probe: jax.Array


def probing(model, batch, key, carry):
    early = batch["early"][..., None]
    xs = batch["x"] + jnp.where(early, model.probe[None, None], 0)
    ys, carry = model.cell.unroll(xs, carry)
    return squared_error(ys, batch["y"], ~batch["early"]), {}, carry


@pytest.mark.parametrize("kind", [sqx.LSTM, sqx.GRU, sqx.RWA])
def test_only_part_of_the_state_cut(kind):
    """Through no leaf of a state, the LSTM's c as little as its y: exactly zero across the cut, and not without."""
    model = Probed(kind(N_IN, N_HIDDEN, jax.random.key(0)), jnp.ones(N_IN))
    batch = data() | {"early": jnp.broadcast_to(jnp.arange(TIME)[None, :] < TIME // 2, (ROWS, TIME))}
    across = gradient(truncated_bptt(probing, TIME // 2, axes="batch time"), model, batch)
    assert across.grads.probe.tolist() == [0.0] * N_IN
    assert jnp.all(gradient(truncated_bptt(probing, TIME, axes="batch time"), model, batch).grads.probe != 0)


def test_gradient_across_a_cut_between_batches_is_exactly_zero():
    model, batch = lstm(), data()
    through = lambda start: GradientFunction(objective)(model, window(batch, 6, 12), None, start).loss.mean
    _, carry = model.unroll(batch["x"][:, :6])
    assert all(not jnp.any(leaf) for leaf in jax.tree.leaves(jax.grad(through)(carry)))


def test_number_of_windows_confused_with_their_length():
    """12 samples in windows of 3 are 4 windows: not those of 4, which are 3."""
    model, batch = lstm(), data()
    parts = [gradient(GradientFunction(objective), model, window(batch, 0, 3), model.init_state(ROWS))]
    for start in (3, 6, 9):
        parts.append(gradient(GradientFunction(objective), model, window(batch, start, start + 3), parts[-1].carry))
    expected = jax.tree.map(lambda *grads: sum(grads) / 4, *[part.grads for part in parts])
    got = gradient(truncated_bptt(objective, 3, axes="batch time"), model, batch).grads
    other = gradient(truncated_bptt(objective, 4, axes="batch time"), model, batch).grads
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
    assert not np.allclose(got.R_z, other.R_z, rtol=1e-3)


def test_time_no_multiple_of_the_window():
    """The rest is a window of its own, and nothing is dropped, padded or counted twice."""
    model, batch = lstm(), window(data(), 0, 11)
    got = gradient(truncated_bptt(objective, 4, axes="batch time"), model, batch)
    assert int(got.loss.count) == ROWS * 11 * N_HIDDEN
    ys, state = model.unroll(batch["x"])
    np.testing.assert_allclose(got.loss.mean, jnp.mean((ys - batch["y"]) ** 2), rtol=1e-5)
    for a, b in zip(got.carry, state, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_rows_ending_inside_a_window():
    """Lengths 5 and 0 in windows of 4: as the row of 5 alone; the state is its own, that of no sample the initial."""
    model, batch = lstm(), data()
    batch["mask"] = jnp.arange(TIME)[None, :] < jnp.array([[5], [0]])
    batch["x"] = jnp.where(batch["mask"][..., None], batch["x"], jnp.nan)
    got = gradient(truncated_bptt(objective, 4, axes="batch time"), model, batch)
    alone = gradient(
        truncated_bptt(objective, 4, axes="batch time"), model, jax.tree.map(lambda leaf: leaf[:1, :5], batch)
    )
    assert int(got.loss.count) == 5 * N_HIDDEN
    for a, b in zip(jax.tree.leaves(got.grads), jax.tree.leaves(alone.grads), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
    for a, b in zip(got.carry, alone.carry, strict=True):
        np.testing.assert_allclose(a[0], b[0], rtol=1e-5)
        assert not jnp.any(a[1])


def test_second_update_with_the_carried_state_raises():
    """It does not: neither freed buffers nor a graph that was used up."""
    optimiser = optax.adam(1e-2)
    for donate in (False, True):
        step = make_step(optimiser, objective, donate=donate)
        state = init_train_state(lstm(), optimiser, jax.random.key(1), carry=lstm().init_state(ROWS))
        for start in (0, 4, 8):
            state, report = step(state, window(data(), start, start + 4))
        assert int(state.step) == 3 and int(report.skipped) == 0


def test_windows_as_long_as_the_row_are_full_bptt():
    model, batch = lstm(), data()
    whole = gradient(GradientFunction(objective), model, batch, model.init_state(ROWS))
    for length in (TIME, TIME + 1, 10 * TIME):
        got = gradient(truncated_bptt(objective, length, axes="batch time"), model, batch, model.init_state(ROWS))
        assert eqx.tree_equal(got.grads, whole.grads)


# ---- compilation ---------------------------------------------------------------------------------------------------


class Net(eqx.Module):
    layers: list
    scale: float
    activation: Any

    def __init__(self, n_layers=2, scale=1.0, activation=None):
        keys = jax.random.split(jax.random.key(0), n_layers)
        self.layers = [eqx.nn.Linear(3, 3, key=key) for key in keys]
        self.scale, self.activation = scale, activation or jnp.tanh

    def __call__(self, x):
        for layer in self.layers:
            x = self.activation(layer(x))
        return self.scale * x


def counting():
    traces = []

    def objective(model, batch, key):
        traces.append(1)
        return squared_error(jax.vmap(model)(batch["x"]) * batch["factor"], batch["y"]), {}

    return objective, traces


def small_batch(factor=1.0):
    return {"x": jnp.ones((4, 3)), "y": jnp.zeros((4, 3)), "factor": factor}


@pytest.mark.parametrize("wrap", [lambda o: o, lambda o: accumulate(o, 2)])
def test_a_python_number_recompiles_every_step(wrap):
    """In a batch it becomes an array; in a module it is part of the program, and stays what it is."""
    objective, traces = counting()
    optimiser = optax.sgd(0.1)
    step, state = make_step(optimiser, wrap(objective)), init_train_state(Net(), optimiser, jax.random.key(0))
    state, _ = step(state, small_batch(1.0))
    first = len(traces)
    for factor in (2.0, 3.0):
        state, _ = step(state, small_batch(factor))
    assert len(traces) == first
    assert state.model.scale == 1.0


def test_a_fresh_lambda_in_a_module_recompiles_every_step():
    """Once for each lambda, not for each step; a module rebuilt with a named function is not compiled again."""
    objective, traces = counting()
    optimiser = optax.sgd(0.1)
    step = make_step(optimiser, objective)
    for _ in range(3):
        state = init_train_state(Net(), optimiser, jax.random.key(0))
        for _ in range(2):
            state, _ = step(state, small_batch())
    assert len(traces) == 1
    for i in range(2):
        state = init_train_state(Net(activation=lambda x: jnp.tanh(x)), optimiser, jax.random.key(0))
        for _ in range(3):
            state, _ = step(state, small_batch())
        assert len(traces) == 2 + i


def test_a_whole_run_is_one_compilation_with_a_short_last_batch_a_carry_and_an_evaluation(tmp_path):
    traces = []

    def carrying(model, batch, key, carry):
        traces.append(1)
        return squared_error(jax.vmap(model)(batch.data), batch.data, batch.real), {}, carry + 1

    run = lambda steps, resume: fit(
        Net(),
        optax.adam(1e-2),
        carrying,
        Batches(np.ones((7, 3), np.float32), 4, seed=0),
        steps=steps,
        key=jax.random.key(0),
        carry=jnp.zeros(()),
        evaluate=lambda model: {"w": model.layers[0].weight[0, 0]},
        evaluate_every=3,
        out_dir=tmp_path,
        resume=resume,
        progress=False,
    )
    assert float(run(9, False).state.carry) == 9 and len(traces) == 1
    run(12, True)
    assert len(traces) == 2  # a new call of `fit`: one more


def test_batches_of_ever_new_shapes_are_warned_about_once():
    optimiser = optax.sgd(0.1)
    objective = lambda model, batch, key: (Total(model * jnp.sum(batch), 1), {})
    step, state = make_step(optimiser, objective), init_train_state(jnp.zeros(()), optimiser, jax.random.key(0))
    with pytest.warns(UserWarning, match="in 32 different shapes, and each is compiled again") as warned:
        for n in range(1, 35):
            state, _ = step(state, np.ones(n, np.float32))
    assert len(warned) == 1


def test_compile_time_grows_with_time():
    """The program of a truncated gradient does not: as many equations for 40 samples as for 4,000."""
    model = lstm()

    def equations(time):
        batch = jax.eval_shape(
            lambda: jax.tree.map(lambda leaf: jnp.zeros((ROWS, time, *leaf.shape[2:]), leaf.dtype), data())
        )
        return str(
            jax.make_jaxpr(lambda batch: truncated_bptt(objective, 10, axes="batch time")(model, batch, None).grads)(
                batch
            )
        ).count("\n")

    assert equations(40) == equations(4000)


def test_call_overhead_of_a_thousand_leaves():
    """The loop keeps a state flat: a module is taken apart and put together as often for 3 steps as for 30."""
    flattened = []
    real = jax.tree_util.tree_flatten

    def count(steps, monkeypatch):
        calls = []
        noting = lambda tree, *rest: (isinstance(tree, eqx.Module) and calls.append(1), real(tree, *rest))[1]
        monkeypatch.setattr(jax.tree, "flatten", noting)
        objective, _ = counting()
        fit(
            Net(9),
            optax.sgd(1e-3),
            objective,
            [small_batch()],
            steps=steps,
            key=jax.random.key(0),
            log_every=100,
            progress=False,
        )
        return len(calls)

    with pytest.MonkeyPatch.context() as monkeypatch:
        flattened.append(count(3, monkeypatch))
    with pytest.MonkeyPatch.context() as monkeypatch:
        flattened.append(count(30, monkeypatch))
    assert flattened[0] == flattened[1]


# ---- the optimiser -------------------------------------------------------------------------------------------------


def test_unfiltered_modules_passed_to_optax():
    """A module with functions, numbers and integer arrays trains as it is."""

    class Mixed(eqx.Module):
        w: jax.Array
        steps: jax.Array
        activation: object
        size: int

    model = Mixed(jnp.ones(3), jnp.arange(4), jax.nn.relu, 7)
    objective = lambda model, batch, key: (squared_error(model.activation(model.w)[None], jnp.zeros((1, 3))), {})
    for optimiser in (optax.adamw(1e-2), optax.lion(1e-2), optax.adafactor(1e-2)):
        state = init_train_state(model, optimiser, jax.random.key(0))
        state, _ = make_step(optimiser, objective)(state, None)
        assert np.all(np.asarray(state.model.w) < 1)
        assert state.model.steps.tolist() == [0, 1, 2, 3]
        assert state.model.activation is jax.nn.relu and state.model.size == 7


def test_static_leaves_changed():
    """Every layer of the state keeps its frame; an optimiser that would change it is refused."""
    model = sqx.recurrent_net(N_IN, N_HIDDEN, 2, jax.random.key(0), cell="gru", dropout=0.25)
    optimiser = optax.sgd(0.1)
    objective = lambda model, batch, key: (squared_error(model(batch, key=key), jnp.ones((ROWS, 2))), {})
    state, _ = make_step(optimiser, objective)(init_train_state(model, optimiser, jax.random.key(0)), data()["x"])
    static = lambda tree: eqx.partition(tree, eqx.is_array)[1]
    assert eqx.tree_equal(static(state.model), static(model))
    growing = optax.GradientTransformation(lambda params: (), lambda updates, state, params=None: (updates, (1,)))
    with pytest.raises((TypeError, ValueError)):
        make_step(growing, objective)(init_train_state(model, growing, jax.random.key(0)), data()["x"])


def test_complex_parameters():
    """Gradient descent on |w - t|^2 goes to t, not to its conjugate: 100 steps of 0.1 leave 0.8^100."""
    target = 1.0 + 2.0j

    def distance(model, batch, key):
        gap = model - jnp.complex64(target)
        return Total(jnp.real(gap * jnp.conj(gap)), 1), {}

    for objective in (distance, accumulate(distance, 2)):
        optimiser = optax.sgd(0.1)
        step = make_step(optimiser, objective)
        state = init_train_state(jnp.zeros((), jnp.complex64), optimiser, jax.random.key(0))
        for _ in range(100):
            state, _ = step(state, jnp.zeros(2))
        np.testing.assert_allclose(state.model, target, rtol=1e-5)


def test_schedules_starting_at_step_one():
    """The first update has the schedule's value at 0, and a skipped step does not use one up."""
    schedule = lambda n: jnp.where(n == 0, 1.0, jnp.where(n == 1, 10.0, 100.0))
    optimiser = optax.inject_hyperparams(optax.sgd)(learning_rate=schedule)
    objective = lambda model, batch, key: (Total(model * batch, 1), {})
    step, state = make_step(optimiser, objective), init_train_state(jnp.zeros(()), optimiser, jax.random.key(0))
    seen = []
    for slope in (1.0, jnp.nan, 1.0):
        state, report = step(state, jnp.float32(slope))
        seen.append((float(state.model), float(report.totals["learning_rate"].total)))
    assert seen == [(-1.0, 1.0), (-1.0, 0.0), (-11.0, 10.0)]


# ---- numerics of clipping ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
def test_norm_clip_of_zero_infinite_nan_and_half_precision_gradients(dtype):
    clip = lambda numbers: clip_by_norm({"a": jnp.asarray(numbers, dtype), "b": jnp.zeros(2, dtype)}, 1.0)
    zero, norm = clip([0.0, 0.0])
    assert zero["a"].tolist() == [0.0, 0.0] and float(norm) == 0.0
    for bad in (jnp.inf, jnp.nan):
        clipped, norm = clip([bad, 1.0])
        assert clipped["a"].tolist() == [0.0, 0.0] and not jnp.isfinite(norm)
    large, norm = clip([30000.0, -40000.0])  # the square of neither is a float16
    np.testing.assert_allclose(np.asarray(large["a"], np.float32), [0.6, -0.8], rtol=1e-2)
    assert large["a"].dtype == dtype and float(norm) == pytest.approx(50000.0, rel=1e-2)


def test_clip_at_zero():
    with pytest.raises(ValueError, match="max_norm must be above 0, got 0"):
        clip_by_norm({"W": jnp.ones(2)}, 0.0)
    with pytest.raises(ValueError, match="max_norm must be above 0, got 0"):
        make_step(optax.sgd(0.1), objective, clip_norm=0)


def test_look_back_that_counts_twice():
    """Windows that overlap count every loss once: 12 samples, 5 of them read again."""
    model, batch = lstm(), data()
    seen = GradientFunction(look_back(objective, 5, axes="batch time"))(model, batch, None, model.init_state(ROWS))
    assert int(seen.loss.count) == ROWS * (TIME - 5) * N_HIDDEN
    ys, _ = model.unroll(batch["x"])
    np.testing.assert_allclose(seen.loss.mean, jnp.mean((ys - batch["y"])[:, 5:] ** 2), rtol=1e-5)
