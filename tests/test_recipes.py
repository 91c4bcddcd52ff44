"""What the recipes say of themselves."""

import importlib.util
import inspect
import pathlib
import sys
from typing import Any, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import sequinox as sqx
from sequinox.recurrent._cell_wrapper import CellWrapper
from sequinox.recurrent._lstm import Variant
from sequinox.train import Checkpoints, load_model

RECIPES = pathlib.Path(__file__).parents[1] / "recipes"


def load(name: str) -> Any:
    spec: Any = importlib.util.spec_from_file_location(name, RECIPES / f"{name}.py")
    sys.modules[name] = importlib.util.module_from_spec(spec)  # dataclasses look their module up
    spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


command = load("command")  # which the others import
compare_cells = load("compare_cells")
japanese_vowels = load("japanese_vowels")


def cells_of(make: Any) -> list[Any]:
    """The recurrent cells of a network, without numbers."""
    net = eqx.filter_eval_shape(make, 4, 12, 9, jax.random.key(0))
    is_cell = lambda node: isinstance(node, sqx.RecurrentCell | sqx.DiagonalRecurrence)
    return [node for node in jax.tree.leaves(net, is_leaf=is_cell) if is_cell(node)]


def test_every_cell_is_compared():
    kinds = sqx.RecurrentCell, sqx.DiagonalRecurrence
    public = {
        c
        for c in vars(sqx).values()
        if inspect.isclass(c) and issubclass(c, kinds) and not inspect.isabstract(c) and not issubclass(c, CellWrapper)
    }
    cells = [cell for make in compare_cells.CELLS.values() for cell in cells_of(make)]
    assert public - {type(c) for c in cells} == {sqx.OnePole}  # a filter of each channel by itself
    assert {c.variant for c in cells if isinstance(c, sqx.LSTM)} == set(get_args(Variant))
    assert {c.f_a for c in cells if isinstance(c, sqx.RDA)} == {"exp", "sigmoid", "softplus"}


@pytest.mark.parametrize("name", ["GRU", "IndRNN", "LSTM, projected", "LRU", "flat"])
def test_networks_are_as_large_as_they_may_be(name: str):
    make = (compare_cells.CELLS | compare_cells.OTHERS)[name]
    width = compare_cells.widest(make, 15_000, 12, 9)
    assert 14_000 < compare_cells.count(make, width, 12, 9) <= 15_000 < compare_cells.count(make, width + 1, 12, 9)


def test_networks_are_chosen_in_capitals_or_not(tmp_path, monkeypatch, capsys):
    trained = []

    def examine(name, make, data, options):
        trained.append(name)
        return {"name": name, "accuracy": 0.5, "ms_per_step": 1.0, "parameters": 9, "width": 1}

    monkeypatch.setattr(compare_cells, "examine", examine)
    compare_cells.main(compare_cells.Options(only=("gru", "lstm, np", "MinGRU"), out=tmp_path))
    assert trained == ["GRU", "LSTM, NP", "MinGRU"]
    with pytest.raises(ValueError, match="there is no 'gruu' among 'RNN', "):
        compare_cells.main(compare_cells.Options(only=("gruu", "GRU"), out=tmp_path))


@pytest.mark.parametrize(("n", "seed"), [(6, 0), (1, 3), (29, 1)])
def test_what_is_held_out_is_a_part_of_each_speaker_and_not_trained_on(n, seed):
    whole = sqx.tasks.japanese_vowels().train
    rest, held_out = japanese_vowels.hold_out(whole, n, seed)
    assert np.bincount(held_out.labels).tolist() == [n] * 9 and np.bincount(rest.labels).tolist() == [30 - n] * 9
    rows = lambda split: [(x.tobytes(), m.tobytes(), int(y)) for x, m, y in zip(*split, strict=True)]
    assert sorted(rows(rest) + rows(held_out)) == sorted(rows(whole))  # each utterance is in one of them, once
    again, other = (japanese_vowels.hold_out(whole, n, s)[1] for s in (seed, seed + 1))
    assert rows(again) == rows(held_out) != rows(other)


@pytest.mark.parametrize(
    ("n", "seed", "message"), [(0, 0, "--held-out must be from 1 to 29"), (30, 0, "got 30"), (6, -1, "--seed")]
)
def test_what_cannot_be_held_out(n, seed, message):
    with pytest.raises(ValueError, match=message):
        japanese_vowels.hold_out(sqx.tasks.japanese_vowels().train, n, seed)


def test_the_epoch_that_is_best_on_what_is_held_out_is_tested(tmp_path, capsys, monkeypatch):
    """After three epochs the steps become so large that no later epoch can be the best."""
    astray = lambda _: optax.sgd(lambda count: jnp.where(jnp.asarray(count) < 3 * 7, 0.1, 1e4))
    monkeypatch.setattr(japanese_vowels.optax, "adam", astray)
    options = japanese_vowels.Options(hidden=5, epochs=5, out=tmp_path, progress=False, seed=1)
    score = japanese_vowels.main(options)
    raw = sqx.tasks.japanese_vowels()
    *_, test = sqx.tasks.standardise(*japanese_vowels.hold_out(raw.train, 6, 1), raw.test)
    with Checkpoints(tmp_path / "checkpoints", best="eval/loss", read_only=True) as checkpoints:
        best, last, config = checkpoints.best_step, checkpoints.latest_step, checkpoints.peek().config
    assert best is not None and config is not None and config["held_out"] == 6
    assert last == 5 * 7 and best < last  # 216 utterances in batches of 32
    model = load_model(tmp_path, step=best)
    predictions = np.argmax(np.asarray(japanese_vowels.predict(model, test)), -1)
    assert score == np.mean(predictions == test.labels)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith(("chosen", "216"))]
    assert lines[0] == "216 utterances to train on, 54 to choose the epoch, 370 to test it"
    assert lines[1].startswith(f"chosen: epoch {best // 7} of 5, with the lowest held-out loss, ")
    assert {"learning_curve.png", "confusion.png"} <= {path.name for path in tmp_path.iterdir()}


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (
            "fit: runs/x holds an earlier run (metrics.jsonl): pass resume=True to continue it, or another out_dir.",
            "runs/x holds an earlier run (metrics.jsonl): give --resume to continue it, or another --out.",
        ),
        (
            "fit: stopped at step 81 of 420, saved in runs/x; resume=True continues from there",
            "stopped at step 81 of 420, saved in runs/x; --resume continues from there",
        ),
        (
            "fit: this is not the run that was saved:\n  config['learning_rate']: 1 in the checkpoint, 2 now\n  x: 1",
            "this is not the run that was saved: --learning-rate: 1 in the checkpoint, 2 now; x: 1",
        ),
        ("GRU: n_hidden must be at least 1, got 0", "GRU: --hidden must be at least 1, got 0"),
        ("fit: steps must be 1", "--epochs must be 1"),
        ("fit: batches ended after 3 of 5 steps.", "batches ended after 3 of 5 steps."),
    ],
)
def test_errors_speak_of_the_commands_own_options(message, expected):
    assert command.in_words_of_the_command(message, command._WORDS | {"steps must": "--epochs must"}) == expected


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (
            KeyboardInterrupt("fit: stopped at step 2; resume=True continues"),
            130,
            "stopped at step 2; --resume continues",
        ),
        (KeyboardInterrupt(), 130, "stopped"),
        (ValueError("n_hidden must be 1"), 2, "--hidden must be 1"),
        (OSError("cannot write in the directory x"), 2, "cannot write in the directory x"),
    ],
)
def test_what_is_to_be_expected_ends_in_one_line(error, status, line, monkeypatch, capsys):
    def main(options):
        raise error

    monkeypatch.setattr(sys, "argv", ["recipe"])
    with pytest.raises(SystemExit) as end:
        command.run(main, compare_cells.Options)
    shown = capsys.readouterr()
    assert end.value.code == status and shown.err == line + "\n" and shown.out == ""


def test_what_is_not_to_be_expected_is_shown_whole(monkeypatch):
    def main(options):
        raise AttributeError("a fault")

    monkeypatch.setattr(sys, "argv", ["recipe"])
    with pytest.raises(AttributeError, match="a fault"):
        command.run(main, compare_cells.Options)
