"""What `fit` calls: callbacks, the rule to stop, an objective with a carry."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import sequinox as sqx
from sequinox.train import Batches, Total, early_stopping, fit, squared_error


def objective(model, batch, key):
    return squared_error(model[None] * batch.data[:, None], jnp.zeros((2, 1))), {}


def run(out_dir=None, *, steps: Any = 20, batches=None, objective=objective, **options):
    defaults = {"key": jax.random.key(0), "log_every": 4, "progress": False, "out_dir": out_dir}
    source = Batches(np.ones(4, np.float32), 2, seed=0) if batches is None else batches
    return fit(jnp.ones(1), optax.sgd(0.1), objective, source, steps=steps, **{**defaults, **options})


def test_callbacks_get_every_line_and_the_state_of_the_moment():
    calls = []
    note = lambda step, values, state: calls.append((step, values, int(state.step), float(state.model[0])))
    result = run(steps=10, callbacks=[note], evaluate=lambda model: {"w": model[0]}, evaluate_every=6)
    assert [{"step": step, **values} for step, values, _, _ in calls] == result.history
    assert [step for step, *_ in calls] == [4, 6, 8, 10]
    for step, values, now, weight in calls:
        assert step <= now <= step + 2
        assert weight == pytest.approx(0.8**now, rel=1e-5)
        if "eval/w" in values:
            assert now == step


class Asked(Batches):
    """Notes how many lines are on the disk when each batch is asked for."""

    def __init__(self, path):
        super().__init__(np.ones(4, np.float32), 2, seed=0)
        self.path, self.lines = path, []

    def __next__(self):
        self.lines.append(self.path.read_bytes().count(b"\n") if self.path.exists() else 0)
        return super().__next__()


def test_a_line_is_written_when_its_numbers_are_there_two_steps_later(tmp_path):
    batches = Asked(tmp_path / "metrics.jsonl")
    run(tmp_path, steps=9, batches=batches)
    # Before steps 1 to 9: the line of step 4 is written after step 6, that of step 8 at the end.
    assert batches.lines == [0, 0, 0, 0, 0, 0, 1, 1, 1]


def metric(values):
    """An evaluation that gives these values in turn."""
    found = iter(values)
    return lambda model: {"loss": next(found)}


def test_early_stopping_ends_the_run_and_a_resumed_one_at_the_same_step(tmp_path):
    values = [3.0, 2.0, 2.5, 1.9, 2.0, 1.95, 1.0, 1.0]
    options = {"evaluate_every": 2, "save_every": 2, "stop": early_stopping("eval/loss", patience=2)}
    result = run(tmp_path / "straight", evaluate=metric(values), **options)
    assert result.stopped and not result.interrupted and int(result.state.step) == 12

    broken = Interrupting(8)
    with pytest.raises(RuntimeError):
        run(tmp_path / "broken", evaluate=metric(values), batches=broken, **options)
    resumed = run(tmp_path / "broken", evaluate=metric(values[3:]), resume=True, **options)
    assert int(resumed.state.step) == 12 and resumed.stopped
    again = run(tmp_path / "broken", evaluate=metric([]), resume=True, **options)
    assert int(again.state.step) == 12 and again.stopped
    names = [(tmp_path / name / "metrics.jsonl").read_bytes() for name in ("straight", "broken")]
    assert names[0] == names[1]


class Interrupting(Batches):
    def __init__(self, at):
        super().__init__(np.ones(4, np.float32), 2, seed=0)
        self._countdown = at

    def __next__(self):
        self._countdown -= 1
        if self._countdown == 0:
            raise RuntimeError
        return super().__next__()


@pytest.mark.parametrize(
    ("values", "options", "expected"),
    [
        ([3, 2, 1, 0], {"patience": 1}, []),
        ([3, 4, 2, 5, 6], {"patience": 2}, [4]),
        ([3, 4, None, 2, 5, None, 6], {"patience": 2}, [6]),
        ([1, 2, 3], {"patience": 1, "mode": "max"}, []),
        ([1, 0.5, 3], {"patience": 1, "mode": "max"}, [1]),
        ([3, 2.9, 2.8, 2.4], {"patience": 2, "min_delta": 0.5}, [2]),
        ([3, 2.9, 2.4, 2.3, 2.2], {"patience": 2, "min_delta": 0.5}, [4]),
        ([3, 3, 3], {"patience": 2}, [2]),
    ],
)
def test_early_stopping_by_hand(values, options, expected):
    rule = early_stopping("eval/loss", **options)
    lines = [{"step": i, "train/loss": 9.0, "eval/loss": value} for i, value in enumerate(values)]
    lines = [{k: v for k, v in line.items() if v != "absent"} for line in lines]
    first = [i for i in range(len(lines)) if rule(lines[: i + 1])][:1]
    assert first == expected


def test_a_carry_goes_from_batch_to_batch_and_is_resumed(tmp_path):
    def counting(model, batch, key, carry):
        loss, _ = objective(model, batch, key)
        return loss, {"seen": Total(carry["n"].sum(), 1)}, {"n": carry["n"] + batch.data}

    def of(out_dir, steps, resume=False):
        return fit(
            jnp.ones(1),
            optax.sgd(0.1),
            counting,
            Batches(np.arange(4, dtype=np.float32), 2, seed=0, shuffle=False),
            steps=steps,
            key=jax.random.key(0),
            carry={"n": jnp.array([10.0, 20.0])},
            out_dir=out_dir,
            log_every=1,
            resume=resume,
            progress=False,
        )

    of(tmp_path, 3)
    result = of(tmp_path, 5, resume=True)
    assert [line["train/seen"] for line in result.history] == [30.0, 31.0, 36.0, 37.0, 42.0]
    assert result.state.carry["n"].tolist() == [10.0 + 0 + 2 + 0 + 2 + 0, 20.0 + 1 + 3 + 1 + 3 + 1]


@pytest.mark.usefixtures("unchecked_types")
@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"callbacks": [3]}, TypeError, "callbacks must be a list of functions"),
        ({"callbacks": print}, TypeError, "callbacks must be a list of functions"),
        ({"stop": 3}, TypeError, "stop must be a function of the history"),
        ({"stop": early_stopping("eval/loss", patience=1)}, ValueError, "'eval/loss', which needs evaluate"),
        ({"parallel": 4}, TypeError, "parallel must be a DataParallel, got int"),
        ({"carry": jnp.zeros(2)}, TypeError, "objective must take"),
    ],
)
def test_bad_arguments(options, error, message):
    with pytest.raises(error, match=message):
        run(**options)


@pytest.mark.usefixtures("unchecked_types")
@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"patience": 0}, ValueError, "patience must be at least 1"),
        ({"patience": 1.5}, TypeError, "patience must be an integer"),
        ({"patience": 1, "mode": "up"}, ValueError, "mode must be 'min' or 'max'"),
        ({"patience": 1, "min_delta": -1.0}, ValueError, "min_delta must not be negative, got -1.0"),
        ({"patience": 1, "metric": 3}, TypeError, "must be the name of a metric"),
    ],
)
def test_bad_rules(options, error, message):
    with pytest.raises(error, match=message):
        early_stopping(**({"metric": "eval/loss"} | options))


def test_the_last_step_has_one_line(tmp_path):
    """Due for the log, and evaluated besides; a run that goes on from there has the lines of an unbroken one."""
    evaluate = lambda model: {"w": model[0]}
    short = run(tmp_path / "broken", steps=8, evaluate=evaluate)
    assert [line["step"] for line in short.history] == [4, 8]
    assert {"train/loss", "eval/w"} <= short.history[-1].keys()
    again = run(tmp_path / "broken", steps=8, evaluate=evaluate, resume=True)
    assert again.history == short.history
    longer = run(tmp_path / "broken", steps=14, evaluate=evaluate, resume=True)
    straight = run(tmp_path / "straight", steps=14, evaluate=evaluate)
    assert longer.history == straight.history
    assert "eval/w" not in longer.history[1]


@pytest.mark.parametrize("evaluate_every", [None, 6])
def test_an_evaluation_that_fails_loses_nothing(tmp_path, evaluate_every):
    def failing(model):
        raise RuntimeError("misspelt")

    good = lambda model: {"w": Total(model[0], 1)}
    with pytest.raises(RuntimeError, match="misspelt"):
        run(tmp_path / "broken", steps=10, evaluate=failing, evaluate_every=evaluate_every)
    resumed = run(tmp_path / "broken", steps=10, evaluate=good, evaluate_every=evaluate_every, resume=True)
    straight = run(tmp_path / "straight", steps=10, evaluate=good, evaluate_every=evaluate_every)
    assert resumed.history == straight.history
    names = [(tmp_path / name / "metrics.jsonl").read_bytes() for name in ("broken", "straight")]
    assert names[0] == names[1]


def test_two_runs_in_one_directory(tmp_path):
    def meanwhile(step, values, state):
        with pytest.raises(ValueError, match="another run is writing to"):
            run(tmp_path, resume=True)

    result = run(tmp_path, steps=4, callbacks=[meanwhile])
    assert len(result.history) == 1
    run(tmp_path, steps=6, resume=True)  # the directory is free again


def test_a_model_that_does_something_else_with_the_same_arrays_is_refused(tmp_path):
    def of(rate, resume=False):
        return fit(
            sqx.Sequential([sqx.Dense(1, 1, jax.random.key(0)), sqx.Dropout(rate)]),
            optax.sgd(0.1),
            lambda model, batch, key: (
                squared_error(model(batch.data[:, None, None], key=key)[:, 0], jnp.ones((2, 1))),
                {},
            ),
            Batches(np.ones(4, np.float32), 2, seed=0),
            steps=4 if resume else 2,
            key=jax.random.key(0),
            out_dir=tmp_path,
            resume=resume,
            progress=False,
        )

    of(0.25)
    with pytest.raises(ValueError, match=r"not the run that was saved:\n  model.*0\.25 in the checkpoint, 0\.5 now"):
        of(0.5, resume=True)
    assert int(of(0.25, resume=True).state.step) == 4


def test_a_run_whose_steps_are_all_skipped_says_so():
    bad = lambda model, batch, key: (Total(jnp.sum(model) * jnp.nan, 1), {})
    with pytest.warns(UserWarning, match="all 4 steps before step 4 were skipped"):
        run(steps=4, objective=bad)


@pytest.mark.usefixtures("unchecked_types")
def test_numbers_of_numpy_and_callbacks_that_close(tmp_path):
    class Closing:
        closed = 0

        def begin(self, history):
            self.began = list(history)

        def __call__(self, step, values, state):
            assert not self.closed

        def close(self):
            self.closed += 1

    callback = Closing()
    options = {"log_every": np.int64(2), "clip_norm": np.float32(2), "save_every": np.int32(2)}
    run(tmp_path, steps=np.int64(4), callbacks=[callback], **options)
    assert callback.began == [] and callback.closed == 1
    run(tmp_path, steps=6, callbacks=[callback := Closing()], resume=True, log_every=2, clip_norm=2.0)
    assert [line["step"] for line in callback.began] == [2, 4]


@pytest.mark.parametrize(
    ("objective", "options", "message"),
    [
        (objective, {"carry": jnp.zeros(2)}, r"objective must take \(model, batch, key, carry\), as there is a carry"),
        (lambda m, b, k, c: None, {}, r"objective must take \(model, batch, key\) or .*, as there is no carry"),
        (lambda m, b, k: (Total(jnp.sum(m), 1), {1: Total(1.0, 1)}), {}, "metrics must have names, got 1"),
    ],
)
def test_objectives_of_another_form(objective, options, message):
    with pytest.raises(TypeError, match=message):
        run(steps=1, objective=objective, **options)


def test_batches_that_are_no_numbers():
    for batch, name in (
        ({"x": np.array(["a"])}, r"batch\['x'\] must be an array of numbers, got <U1"),
        ([object()], "got object"),
    ):
        with pytest.raises(TypeError, match=name):
            run(steps=1, batches=[batch])
