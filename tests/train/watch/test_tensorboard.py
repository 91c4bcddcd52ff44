"""Event files, read back as TensorBoard reads them."""

import sys

import jax
import numpy as np
import optax
import pytest
import tiny_run

from sequinox.train import Batches, TensorBoard, fit

event_pb2 = pytest.importorskip("tensorboardX.proto.event_pb2")


def events(directory):
    """Every event in every file: a length (8 bytes), its checksum (4), the event, its checksum (4)."""
    found = []
    for path in sorted(directory.glob("events.out.tfevents.*")):
        content, at = path.read_bytes(), 0
        while at < len(content):
            size = int.from_bytes(content[at : at + 8], "little")
            event = event_pb2.Event()
            event.ParseFromString(content[at + 12 : at + 12 + size])
            found.append(event)
            at += 16 + size
    return found


def shown(directory):
    """What TensorBoard shows: a start at a step hides what came before at that step and later."""
    scalars = []
    for event in events(directory):
        if event.session_log.status == event_pb2.SessionLog.START:
            scalars = [scalar for scalar in scalars if scalar[0] < event.step]
        scalars += [(event.step, value.tag, value.simple_value) for value in event.summary.value]
    return scalars


def lines(history):
    return [
        (line["step"], name, float(np.float32(value)))
        for line in history
        for name, value in line.items()
        if name != "step" and value is not None
    ]


def test_numbers_are_written_as_scalars(tmp_path):
    with TensorBoard(tmp_path / "deep" / "down") as tensorboard:
        tensorboard(3, {"train/loss": 0.1, "train/steps": 3, "eval/loss": None}, None)
        written = shown(tmp_path / "deep" / "down")  # before it is closed: a kill loses nothing
        tensorboard(10_000_000_000, {"eval/loss": -2.5}, None)
    assert written == [(3, "train/loss", float(np.float32(0.1))), (3, "train/steps", 3.0)]
    assert shown(tmp_path / "deep" / "down")[2:] == [(10_000_000_000, "eval/loss", -2.5)]


def test_a_run_of_fit(tmp_path):
    with TensorBoard(tmp_path) as tensorboard:
        result = fit(
            tiny_run.model(),
            optax.sgd(0.1),
            tiny_run.objective,
            Batches(tiny_run.data(), 3, seed=5),
            steps=5,
            key=jax.random.key(3),
            log_every=2,
            evaluate=lambda model: {"answer": 42.0},
            callbacks=[tensorboard],
            progress=False,
        )
    assert len(result.history) == 3
    assert shown(tmp_path) == lines(result.history)


def test_a_run_that_was_killed_and_goes_on(tmp_path):
    """Killed at step 8, after the checkpoint at step 6: the steps from there on come a second time."""
    with TensorBoard(tmp_path) as tensorboard:
        for step in (2, 4, 6, 8):
            tensorboard(step, {"train/loss": float(step)}, None)
    with TensorBoard(tmp_path) as tensorboard:
        tensorboard(8, {"train/loss": 80.0}, None)
        tensorboard(10, {"train/loss": 100.0}, None)
    assert shown(tmp_path) == [(n, "train/loss", v) for n, v in ((2, 2.0), (4, 4.0), (6, 6.0), (8, 80.0), (10, 100.0))]


@pytest.mark.parametrize("kept", [0, 1, 2, 3])
def test_a_run_that_begins_behind_given_lines(tmp_path, kept):
    """What stays is the history it begins with, also where the same step had a line that is cut."""
    history = [
        {"step": 2, "train/loss": 2.0},
        {"step": 4, "train/loss": 4.0, "eval/loss": None},
        {"step": 4, "eval/loss": 44.0},
        {"step": 5, "train/loss": 5.0, "eval/loss": 55.0},
    ]
    tensorboard = TensorBoard(tmp_path)
    for line in history:
        tensorboard(line["step"], {name: value for name, value in line.items() if name != "step"}, None)
    tensorboard.begin(history[:kept])  # as one resumes in the same process
    assert sorted(shown(tmp_path)) == sorted(lines(history[:kept]))
    tensorboard(6, {"train/loss": 6.0}, None)
    tensorboard.close()
    assert sorted(shown(tmp_path)) == sorted([*lines(history[:kept]), (6, "train/loss", 6.0)])


def test_other_processes_write_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    with TensorBoard(tmp_path / "logs") as tensorboard:
        tensorboard.begin([])
        tensorboard(1, {"train/loss": 1.0}, None)
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_cannot_be(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="cannot write in the directory"):
        TensorBoard(tmp_path / "file")


def test_without_tensorboardx(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(ImportError, match=r'pip install "sequinox\[tensorboard\]"'):
        TensorBoard(tmp_path)
