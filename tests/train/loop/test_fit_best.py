"""The best checkpoint is that of the best model that was measured, whenever checkpoints are due."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from sequinox.train import Batches, Checkpoints, Total, early_stopping, fit, load_model

STEPS = 9
NAN = math.nan


class Stop(Exception):
    pass


class Alarm(Batches):
    """Raises when a batch is asked for; the model is the number of steps taken, so that evaluations know the step."""

    def __init__(self, at=None):
        super().__init__(np.ones(4, np.float32), 2, seed=0)
        self._countdown = at or 0

    def __next__(self):
        self._countdown -= 1
        if self._countdown == 0:
            raise Stop
        return super().__next__()


# With this rate the gradient of the sum takes the model from n to n + 1, exactly.
COUNTING = optax.sgd(-1.0)
LOSSES = jnp.array([4.0, 2.0, 8.0, 1.0, 3.0, 3.0, 0.5, 7.0, 0.5, 6.0])


def objective(model, batch, key):
    loss = jax.lax.stop_gradient(LOSSES[model.astype(int)] - model)
    return Total(loss + model, 1), {}


def run(out_dir, values=None, *, steps=STEPS, at=None, evaluate=None, **options):
    """Evaluations give `values[step]`."""
    if values is not None:
        evaluate = lambda model: {"score": values[int(model)]}
    options = {"keep_best": 1, "log_every": 50, "progress": False} | options
    return fit(
        jnp.zeros(()),
        COUNTING,
        objective,
        Alarm(at),
        steps=steps,
        key=jax.random.key(0),
        out_dir=out_dir,
        evaluate=evaluate,
        **options,
    )


def kept(out_dir, best="eval/score", best_mode="min", keep_best=1):
    with Checkpoints(out_dir / "checkpoints", best=best, best_mode=best_mode, keep_best=keep_best) as checkpoints:
        return checkpoints.steps, checkpoints.best_step


def oracle(measured, last, best_mode="min", keep_best=1):
    """What is kept of `{step: value}`: the last, and the best, of equal ones the later."""
    sign = 1 if best_mode == "max" else -1
    ranked = sorted((sign * value, step) for step, value in measured.items() if math.isfinite(value))
    best = [step for _, step in ranked]
    return sorted({last, *best[-keep_best:]}), (best[-1] if best else None)


@pytest.mark.parametrize(
    ("steps", "every", "save_every", "values", "best"),
    [
        (6, 2, 4, [1, 9, 5], 2),
        (21, 3, 10, [5, 1, 4, 3, 6, 7, 8], 6),
        (6, 2, 100, [3, 2, 1], 6),
        (6, 2, 3, [2, 1, 1], 6),
        (6, 2, 5, [NAN, 1, NAN], 4),
    ],
)
def test_the_best_evaluated_model_is_kept_whatever_is_saved_when(tmp_path, steps, every, save_every, values, best):
    given = {every * (i + 1): value for i, value in enumerate(values)}
    run(tmp_path, given, steps=steps, evaluate_every=every, save_every=save_every, best="eval/score")
    assert kept(tmp_path)[1] == best
    assert float(load_model(tmp_path, best=True)) == best


VALUES = {
    "falling and rising": [0, 5, 4, 3, 2, 1, 2, 3, 4, 5],
    "ties and NaN": [0, NAN, 4, 2, NAN, 2, 7, 2, math.inf, NAN],
    "all over": [0, 3, 9, 1, 8, 2, 7, 5, 6, 4],
}


@pytest.mark.parametrize(
    ("name", "best_mode", "keep_best"),
    [("falling and rising", "min", 1), ("ties and NaN", "min", 2), ("ties and NaN", "max", 1), ("all over", "max", 2)],
)
def test_what_is_kept_against_all_that_was_measured(tmp_path, name, best_mode, keep_best):
    values, options = VALUES[name], {"best_mode": best_mode, "keep_best": keep_best}
    for n, (evaluate_every, save_every) in enumerate(itertools.product((None, 2, 3), (None, 1, 4))):
        out_dir, every = tmp_path / str(n), {"evaluate_every": evaluate_every, "save_every": save_every}
        run(out_dir, values, best="eval/score", **every, **options)
        measured = {s: values[s] for s in range(1, STEPS + 1) if s == STEPS or s % (evaluate_every or STEPS) == 0}
        steps, best = kept(out_dir, **options)
        expected, expected_best = oracle(measured, STEPS, **options)
        assert best == expected_best, every
        ranked = {s for s in steps if math.isfinite(measured.get(s, NAN))}
        assert ranked == {s for s in expected if math.isfinite(measured[s])}, every


@pytest.mark.parametrize("log_every", [1, 2, 3, 4])
def test_the_best_by_a_loss_of_training_is_that_of_the_best_line(tmp_path, log_every):
    """The loss of step n is that of the model before it; a line has the mean since the last."""
    for save_every in (3, 50):
        out_dir = tmp_path / str(save_every)
        result = run(out_dir, log_every=log_every, save_every=save_every, best="train/loss")
        measured = {line["step"]: line["train/loss"] for line in result.history}
        ends = [*range(log_every, STEPS, log_every), STEPS]
        losses = np.asarray(LOSSES)
        means = [losses[start:end].mean() for start, end in zip([0, *ends], ends, strict=False)]
        np.testing.assert_allclose(list(measured.values()), means, rtol=1e-6)
        assert kept(out_dir, "train/loss") == oracle(measured, STEPS)


@pytest.mark.parametrize("at", [3, 4, 5, 6, 8, 9])
def test_a_run_stopped_anywhere_keeps_what_an_unbroken_one_keeps(tmp_path, at):
    values = [0, 3, 2, 1, 8, 2, 7, 5, 1, 4]
    options = {"evaluate_every": 2, "save_every": 5, "log_every": 3, "best": "eval/score", "keep_best": 2}
    run(tmp_path / "straight", values, **options)
    with pytest.raises(Stop):
        run(tmp_path / "broken", values, at=at, **options)
    run(tmp_path / "broken", values, resume=True, **options)
    logs = [(tmp_path / name / "metrics.jsonl").read_bytes() for name in ("straight", "broken")]
    assert logs[0] == logs[1]
    for name in ("straight", "broken"):
        assert kept(tmp_path / name, keep_best=2) == ([2, 8, 9], 8)


@pytest.mark.parametrize("failing", [2, 4, 8])
def test_a_model_that_is_measured_after_a_resume_only_may_be_the_best(tmp_path, failing):
    """Its checkpoint was made, without a metric, where the evaluation failed."""
    values = [9, 9, 9, 9, 9, 9, 9, 9, 9]
    values[failing] = 1
    options = {"steps": 8, "evaluate_every": 2, "save_every": 3, "best": "eval/score"}

    def evaluate(model):
        if model == failing:
            raise Stop
        return {"score": values[int(model)]}

    with pytest.raises(Stop):
        run(tmp_path / "broken", evaluate=evaluate, **options)
    result = run(tmp_path / "broken", values, resume=True, **options)
    straight = run(tmp_path / "straight", values, **options)
    assert result.history == straight.history
    assert kept(tmp_path / "broken") == kept(tmp_path / "straight") == (sorted({failing, 8}), failing)


def test_a_run_that_a_rule_ends_keeps_its_best(tmp_path):
    values = [0, 9, 5, 2, 3, 1, 4, 6, 7, 8]
    rule = early_stopping("eval/score", patience=2)
    result = run(tmp_path, values, evaluate_every=1, save_every=50, best="eval/score", stop=rule)
    assert int(result.state.step) == 7 and kept(tmp_path) == ([5, 7], 5)
