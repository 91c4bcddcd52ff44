import json
import re
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import tiny_run

from sequinox.train import Batches, Checkpoints, FitResult, Total, fit, init_train_state, make_step, squared_error
from sequinox.train.loop import _log

KEY = jax.random.key(0)
ADAM = optax.adam(0.1)


def line_data(n=10):
    x = np.linspace(-1, 1, n, dtype=np.float32)[:, None]
    return x, 2 * x


def batches(seed=0):
    return Batches(line_data(), 4, seed=seed)


def line():
    return eqx.nn.Linear(1, 1, key=KEY)


def objective(model, batch, key):
    x, y = batch.data
    return squared_error(jax.vmap(model)(x), y, batch.real), {}


def quick(**options):
    data = options.pop("batches", None)
    defaults = {"steps": 7, "key": KEY, "log_every": 3, "progress": False}
    return fit(line(), ADAM, objective, batches() if data is None else data, **{**defaults, **options})


def test_fit_is_the_loop_of_its_pieces():
    result = quick()
    # With donation as in `fit`: it is part of the program, and another program may round otherwise.
    step, state, data = make_step(ADAM, objective, donate=True), init_train_state(line(), ADAM, KEY), batches()
    totals = []
    for _ in range(7):
        state, report = step(state, next(data))
        totals.append(report.totals["loss"])
    np.testing.assert_array_equal(result.model.weight, state.model.weight)
    assert isinstance(result, FitResult) and int(result.state.step) == 7 and not result.interrupted
    assert [written["step"] for written in result.history] == [3, 6, 7]
    for written, window in zip(result.history, (totals[:3], totals[3:6], totals[6:]), strict=True):
        expected = sum(float(t.total) for t in window) / sum(int(t.count) for t in window)
        assert written["train/loss"] == expected and written["train/skipped"] == 0
        assert written["train/steps"] == len(window)


def test_the_whole_run_is_traced_once(tmp_path):
    traces = 0

    def counted(model, batch, key):
        nonlocal traces
        traces += 1
        return objective(model, batch, key)

    def evaluate(model):
        return {"w": float(model.weight[0, 0])}

    every = {"evaluate_every": 2, "save_every": 3}
    options = {"key": KEY, "out_dir": tmp_path, "evaluate": evaluate, "progress": False, **every}
    fit(line(), ADAM, counted, batches(), steps=8, **options)  # over an epoch's end with its short batch
    assert traces == 1
    fit(line(), ADAM, counted, batches(), steps=12, resume=True, **options)
    assert traces == 2


def test_the_log_does_not_wait_for_the_device_at_each_step(monkeypatch):
    read = []
    means = _log._Sums.means
    monkeypatch.setattr(_log._Sums, "means", lambda sums: read.append(len(sums._waiting)) or means(sums))
    quick(steps=9)
    assert [n for n in read if n] == [3, 3, 3]


def test_evaluation_is_in_inference_mode_every_few_steps_and_at_the_end():
    seen = []

    def evaluate(model):
        seen.append(model.inference)
        return {"n": np.float32(len(seen)), "nan": jnp.array(jnp.nan)}

    def loss(model, batch, key):
        return Total(jnp.sum(model.scale**2) + 0 * jnp.sum(batch.data[0]), jnp.array(1)), {}

    class Model(eqx.Module):
        scale: jax.Array
        inference: bool = False

    result = fit(
        Model(jnp.ones(2)), ADAM, loss, batches(), steps=5, key=KEY, evaluate=evaluate, evaluate_every=2, progress=False
    )
    assert seen == [True, True, True] and not result.model.inference
    assert [(line["step"], line["eval/n"], line["eval/nan"]) for line in result.history] == [
        (2, 1.0, None),
        (4, 2.0, None),
        (5, 3.0, None),
    ]


def test_skipped_steps_are_counted_and_left_out_of_the_means():
    def data():
        for i in range(4):
            yield np.float32(np.nan if i in (1, 2) else i)

    def loss(model, batch, key):
        return Total(jnp.sum(model) + batch, jnp.array(1)), {}

    result = fit(jnp.zeros(1), optax.sgd(0.0), loss, data(), steps=4, key=KEY, log_every=4, progress=False)
    (line,) = result.history
    assert (line["train/loss"], line["train/skipped"], line["train/steps"]) == (1.5, 2, 4)
    assert int(result.state.step) == 4


def test_nothing_in_the_log_depends_on_the_clock_or_the_place(tmp_path):
    for name in ("a", "b"):
        quick(out_dir=tmp_path / name, save_every=2, evaluate=lambda model: {"w": model.weight[0, 0]})
    assert (tmp_path / "a/metrics.jsonl").read_bytes() == (tmp_path / "b/metrics.jsonl").read_bytes()
    lines = [json.loads(line) for line in (tmp_path / "a/metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [3, 6, 7] and set(lines[-1]) >= {
        "train/loss",
        "train/grad_norm",
        "eval/w",
    }


def test_best_and_last_are_kept(tmp_path):
    scores = iter([3.0, 1.0, 2.0])
    quick(
        out_dir=tmp_path,
        steps=6,
        evaluate=lambda model: {"score": next(scores)},
        evaluate_every=2,
        best="eval/score",
        config={"n": 1},
    )
    with Checkpoints(tmp_path / "checkpoints", best="eval/score", read_only=True) as checkpoints:
        assert checkpoints.steps == [4, 6] and checkpoints.best_step == 4
        assert checkpoints.peek().config == {"n": 1}
        assert checkpoints.restore_best(init_train_state(line(), ADAM, KEY)).metrics["eval/score"] == 1.0


def test_an_earlier_run_is_neither_destroyed_nor_mixed(tmp_path):
    quick(out_dir=tmp_path)
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    message = "holds an earlier run .* pass resume=True to continue it, or another out_dir"
    with pytest.raises(ValueError, match=message):
        quick(out_dir=tmp_path)
    (tmp_path / "metrics.jsonl").rename(tmp_path / "moved")
    with pytest.raises(ValueError, match=message):
        quick(out_dir=tmp_path)
    (tmp_path / "moved").rename(tmp_path / "metrics.jsonl")
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before


def test_resume_without_a_checkpoint_starts_fresh(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 3}\n')  # of a run killed before it first saved
    result = quick(out_dir=tmp_path, resume=True)
    assert result.history == quick().history
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 3


def test_resume_with_another_run_lists_what_differs_and_touches_nothing(tmp_path):
    config = {"lr": 0.1, "old": 1, "steps": 7, "sizes": (1, 2)}
    quick(out_dir=tmp_path, config=config, clip_norm=1.0)
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    again = {"out_dir": tmp_path, "resume": True, "config": config, "clip_norm": 1.0}
    with pytest.raises(ValueError) as error:
        quick(
            **{
                **again,
                "config": {"lr": 0.2, "new": None, "steps": 9, "sizes": [1, 2]},
                "clip_norm": 2.0,
                "log_every": 5,
            }
        )
    assert [line.strip() for line in str(error.value).split("\n")] == [
        "fit: this is not the run that was saved:",
        "config['lr']: 0.1 in the checkpoint, 0.2 now",
        "config['new']: nothing in the checkpoint, None now",
        "config['old']: 1 in the checkpoint, nothing now",
        "fit['clip_norm']: 1.0 in the checkpoint, 2.0 now",
        "fit['log_every']: 3 in the checkpoint, 5 now",
    ]
    for change, message in (
        ({"key": jax.random.key(9)}, "key is not the key this run was started with"),
        ({"steps": 5}, "the checkpoint is at step 7, past steps=5"),
        ({"batches": batches(seed=3)}, "the state is of another order of data .*seed: 0 in the state, 3 here"),
        ({"batches": iter([1])}, "resume=True needs batches whose position can be restored, .*list_iterator has none"),
    ):
        with pytest.raises(ValueError, match=message):
            quick(**{**again, **change})
    with pytest.raises(ValueError, match=r"\.opt_state\[0\]\.mu"):
        fit(line(), optax.sgd(0.1), objective, batches(), **{**again, "steps": 7, "key": KEY, "log_every": 3})
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before
    assert len(quick(**again).history) == 3  # nothing left to do


def test_a_plain_list_starts_again_and_an_iterator_that_ends_is_reported(tmp_path):
    data = [next(batches()) for _ in range(2)]
    twice = quick(batches=data, steps=4)
    np.testing.assert_array_equal(twice.model.weight, quick(batches=[*data, *data], steps=4).model.weight)
    with pytest.raises(ValueError, match="batches ended after 2 of 4 steps"):
        quick(batches=iter(data), steps=4, out_dir=tmp_path)
    with Checkpoints(tmp_path / "checkpoints", read_only=True) as checkpoints:
        assert checkpoints.steps == [2]  # what was done is not lost
    with pytest.raises(ValueError, match="batches ended after 0 of 4 steps"):
        quick(batches=[], steps=4)


class GrainLike:
    """grain's protocol as its DatasetIterator has it, over an IterDataset that is not its own iterator."""

    def __init__(self, n):
        self.n = n

    def __iter__(self):
        return GrainLikeIterator(self.n)


class GrainLikeIterator:
    def __init__(self, n):
        self._source, self._next, self._n = batches(), 0, n

    def __iter__(self):
        return self

    def __next__(self):
        if self._next == self._n:
            raise StopIteration
        self._next += 1
        return next(self._source)

    def get_state(self):
        return {"next_index": self._next, "inner": self._source.get_state()}

    def set_state(self, state):
        self._next = state["next_index"]
        self._source.set_state(state["inner"])


@pytest.mark.parametrize("stop", [3, 4, 5, 8])
def test_any_iterator_with_grains_protocol_resumes(tmp_path, stop):
    straight = quick(batches=GrainLike(4), steps=11)
    quick(batches=GrainLike(4), steps=stop, out_dir=tmp_path)
    resumed = quick(batches=GrainLike(4), steps=11, out_dir=tmp_path, resume=True)
    np.testing.assert_array_equal(resumed.model.weight, straight.model.weight)
    assert resumed.history == straight.history


@pytest.mark.usefixtures("unchecked_types")
@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"steps": 0}, ValueError, "steps must be at least 1, got 0"),
        ({"steps": True}, TypeError, "steps must be an integer, got True"),
        ({"log_every": 0}, ValueError, "log_every must be at least 1, got 0"),
        ({"save_every": -1}, ValueError, "save_every must be at least 1, got -1"),
        ({"evaluate_every": 0}, ValueError, "evaluate_every must be at least 1, got 0"),
        ({"clip_norm": 0.0}, ValueError, "max_norm must be above 0"),
        ({"resume": True}, ValueError, "resume=True needs out_dir"),
        ({"best": "train/loss"}, ValueError, "best='train/loss' needs out_dir"),
        (
            {"best": "loss", "out_dir": "x"},
            ValueError,
            "best must name a metric as 'train/NAME' or 'eval/NAME', got 'loss'",
        ),
        ({"best": "eval/loss", "out_dir": "x"}, ValueError, "best='eval/loss' needs evaluate"),
        ({"config": {"f": jnp.tanh}, "out_dir": "x"}, TypeError, "fit: config must be JSON-able"),
        ({"key": 3}, TypeError, "key must be a PRNG key"),
        ({"evaluate": lambda model: {"a": "b"}}, TypeError, "evaluate must return numbers, got 'b' for 'a'"),
        ({"evaluate": lambda model: 0.5}, TypeError, "evaluate must return a dict of numbers by name, got float"),
    ],
)
def test_errors_name_what_came(options, error, message, tmp_path):
    if "out_dir" in options:
        options = {**options, "out_dir": tmp_path / "x"}
    with pytest.raises(error, match=re.escape(message)):
        quick(**options)
    assert not (tmp_path / "x").exists() or not any((tmp_path / "x").iterdir())


def test_a_misspelt_best_is_reported_when_its_kind_is_first_measured(tmp_path):
    with pytest.raises(
        ValueError, match=r"best='train/los' is not among the metrics \['train/loss', 'train/grad_norm'"
    ):
        quick(out_dir=tmp_path, best="train/los")


def test_an_unwritable_out_dir_is_reported_before_the_first_step(tmp_path):
    (tmp_path / "file").write_text("")

    def never(model, batch, key):
        raise AssertionError

    with pytest.raises(OSError, match="cannot write in the directory"):
        fit(line(), ADAM, never, batches(), steps=2, key=KEY, out_dir=tmp_path / "file")


def test_the_progress_bar_shows_the_loss_on_a_terminal_and_is_not_needed(capsys, monkeypatch):
    quick(progress=True)
    assert capsys.readouterr().err == ""  # no terminal, but a file or a pipe
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    quick(progress=True)
    shown = capsys.readouterr().err
    assert "7/7" in shown and "loss=" in shown
    monkeypatch.setitem(sys.modules, "tqdm", None)
    quick(progress=True)
    assert capsys.readouterr().err == ""


def test_a_real_objective_learns():
    result = tiny_run.run(None, steps=60, best=None, evaluate_every=60)
    assert result.history[-1]["eval/loss"] < result.history[0]["train/loss"]
