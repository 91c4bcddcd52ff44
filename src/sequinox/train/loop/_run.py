"""A run and its directory: opened without mixing two runs, measured, saved, resumed."""

import collections
import contextlib
import os
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jax.experimental import multihost_utils

from ..._files import lock, make_writable_directory
from ..checkpoints._checkpoints import Checkpoints
from ..checkpoints._json import describe_model, to_json
from ..losses._total import Total
from ..step._average import averaged_model
from ..step._skeleton import split
from ..step._state import StepReport, TrainState
from ._batch_stream import BatchStream
from ._log import MetricsLog
from ._schedule import Due, Schedule
from ._stopping import StopRule

# Steps handed to the device before the loop waits: one running, one queued. More would only pile up batches.
_IN_FLIGHT = 2


class Run:
    """One run: its train state (`arrays` and `skeleton`) after `step` steps, its data, log, checkpoints and callbacks.

    Without a directory nothing is written.
    """

    bar: Any  # of progress

    def __init__(
        self,
        out_dir: Path | None,
        stream: BatchStream,
        schedule: Schedule,
        *,
        evaluate: Callable[[Any], Any] | None,
        callbacks: Sequence[Any],
        stop: StopRule | None,
        resume: bool,
        config: dict[str, Any] | None,
        settings: dict[str, Any],
        **keep: Any,
    ):
        """`keep`: which checkpoints, as of `Checkpoints`."""
        self._stream, self._schedule = stream, schedule
        self._evaluate, self._callbacks, self._stop = evaluate, callbacks, stop
        self._best, self._resumes = keep["best"], resume
        self._config = to_json(config or {}, "fit: config")
        self._settings = to_json(settings, "fit: settings")
        self._measured: dict[str, Any] = {}  # at this very step
        self._in_flight: collections.deque[Any] = collections.deque()
        self._saved_step: int | None = None
        self._saved_metrics: dict[str, Any] = {}
        self._checkpoints: Checkpoints | None = None
        self._cleanup = contextlib.ExitStack()
        if out_dir is None:
            self.log = MetricsLog()
            return
        try:
            first = jax.process_index() == 0  # the one process that writes
            if first:
                make_writable_directory(out_dir)
                self._take_lock(out_dir)
            metrics = out_dir / "metrics.jsonl"
            if not resume and metrics.exists() and metrics.stat().st_size:
                raise ValueError(_earlier_run(out_dir, metrics.name))
            self.log = MetricsLog(metrics, resume=resume, read_only=not first)
            self._checkpoints = Checkpoints(out_dir / "checkpoints", **keep)
            self._cleanup.callback(self._checkpoints.close)
            if not resume and self._checkpoints.steps:
                raise ValueError(_earlier_run(out_dir, f"checkpoints of the steps {self._checkpoints.steps}"))
        except BaseException:
            self.close()
            raise

    @property
    def state(self) -> TrainState:
        """The train state. The next step overwrites its arrays."""
        return self.skeleton.join(self.arrays)

    def begin(self, state: TrainState) -> None:
        """Takes up `state`, or what the last checkpoint has of it, and tells the callbacks the lines so far."""
        if self._resumes:
            state = self._restore(state)
        self.step = int(state.step)
        self.arrays, self.skeleton = split(state)
        for callback in self._callbacks:
            if hasattr(callback, "begin"):
                callback.begin(self.log.history)
                if hasattr(callback, "close"):
                    self._cleanup.callback(callback.close)

    def catch_up(self) -> bool:
        """Measures what was still due when the step was saved that the run resumes from; whether to stop there."""
        due = self._schedule.at(self.step)
        line, evaluation = due.line and self.log.unfinished, due.evaluation and self.log.last_step != self.step
        if not line and not evaluation:
            return False
        stopped = self.measure(Due(line, evaluation, False))
        if self.step < self._schedule.steps and not stopped and self.is_among_best():
            self.save()
        return stopped

    def next_batch(self) -> Any:
        """The next batch. Where there is none, what was done is saved."""
        try:
            return next(self._stream)
        except StopIteration:
            self.save()
            raise ValueError(f"fit: batches ended after {self.step} of {self._schedule.steps} steps") from None

    def advance(self, arrays: tuple[Any, ...], report: StepReport) -> None:
        """Notes a step that was handed to the device, and waits for the step before last."""
        self.arrays, self.step, self._measured = arrays, self.step + 1, {}
        self.log.add(report)
        self._in_flight.append(report.skipped)
        if len(self._in_flight) > _IN_FLIGHT:
            self._in_flight.popleft().block_until_ready()
        self.bar.update()

    def measure(self, due: Due) -> bool:
        """Writes the line of this step at once, with everything that is due; whether to stop there."""
        self._tell(self.log.flush())
        evaluated = self._evaluated() if due.evaluation else {}
        self._measured = (self.log.take() if due.line else {}) | evaluated
        self._write_line(self._measured)
        return self.should_stop()

    def should_stop(self) -> bool:
        """Whether the rule `stop` ends the run here."""
        return self._stop is not None and bool(self.log.history) and bool(self._stop(self.log.history))

    def tell_finished(self) -> None:
        """Writes the lines whose numbers the device must have by now."""
        self._tell(self.log.flush(self.step - _IN_FLIGHT))

    def is_among_best(self, metrics: dict[str, Any] | None = None) -> bool:
        """Whether these, or what was measured at this step, are among the best so far; process 0 decides for all."""
        metrics = self._measured if metrics is None else metrics
        if self._checkpoints is None or self._best not in metrics:
            return False
        is_best = self._checkpoints.is_among_best(metrics)
        if jax.process_count() == 1:
            return is_best
        return bool(np.ravel(multihost_utils.process_allgather(np.array(is_best)))[0])

    def save(self, metrics: dict[str, Any] | None = None, log_state: dict[str, Any] | None = None) -> None:
        """Saves, unless this step is saved already, with its metric if that makes it one of the best.

        By default with what was measured at this step, and the log as it is.
        """
        self._tell(self.log.flush())
        if self._checkpoints is None:
            return
        metrics = self._measured if metrics is None else metrics
        again = self.step == self._saved_step
        # Saved because the evaluation failed, and measured after a resume.
        if again and (self._best in self._saved_metrics or not self.is_among_best(metrics)):
            return
        self.log.sync()
        self._checkpoints.save(
            self.state,
            self.step,
            data_state=self._stream.get_state(),
            config=self._config,
            metrics=metrics,
            extra={"log": log_state or self.log.get_state(), "settings": self._settings},
            replace=again,
        )
        self._saved_step, self._saved_metrics = self.step, metrics

    def finish(self, interrupted: bool) -> None:
        """Saves the last step; if it was not interrupted, measures what no line has yet."""
        self._tell(self.log.flush())
        log_state, last = self.log.get_state(), {}
        if not interrupted:
            evaluates = self._schedule.evaluates and not self._schedule.at(self.step).evaluation
            evaluated = self._evaluated(log_state) if evaluates else {}
            last = self.log.take() | evaluated
            self._check_best(last)
        # Without the last line: resumed with more steps, a run continues as if it had not stopped.
        self.save(self._measured | last, log_state)
        if last:
            self._write_line(last)

    def close(self) -> None:
        """Closes the callbacks, waits for the last checkpoint, and lets others write to the directory."""
        self._cleanup.close()

    def _take_lock(self, out_dir: Path) -> None:
        try:
            descriptor = lock(out_dir / ".lock")
        except BlockingIOError:
            raise ValueError(
                f"fit: another run is writing to {out_dir}; wait for its end, or take another out_dir"
            ) from None
        if descriptor is not None:
            self._cleanup.callback(os.close, descriptor)

    def _restore(self, state: TrainState) -> TrainState:
        """The last checkpoint's state, data position and log; `state` as it is, and an empty log, if there is none."""
        assert self._checkpoints is not None
        if self._checkpoints.latest_step is None:
            self.log.set_state(None)
            return state
        # What explains a difference in shapes comes before the shapes.
        found = self._checkpoints.peek()
        self._check_same(found.config or {}, found.extra)
        self._check_model(state, found.step)
        if found.step > self._schedule.steps:
            raise ValueError(
                f"fit: the checkpoint is at step {found.step}, past steps={self._schedule.steps}; raise steps"
            )
        restored = self._checkpoints.restore(state, found.step)
        if not np.array_equal(jax.random.key_data(restored.state.key), jax.random.key_data(state.key)):
            raise ValueError("fit: key is not the key this run was started with; resume with the same one")
        self._stream.set_state(restored.data_state)
        self.log.set_state(restored.extra["log"])
        self._saved_step, self._saved_metrics = found.step, found.metrics
        return restored.state

    def _check_same(self, config: dict[str, Any], extra: dict[str, Any]) -> None:
        if "log" not in extra or "settings" not in extra:
            raise ValueError("fit: the checkpoint was not saved by fit, and cannot be resumed by it")
        lines = _differences("config", config, self._config, but=("steps",))
        lines += _differences("fit", extra["settings"], self._settings)
        if lines:
            raise ValueError("fit: this is not the run that was saved:\n  " + "\n  ".join(lines))

    def _check_model(self, state: TrainState, step: int) -> None:
        """Refuses a model of the same arrays that does something else with them."""
        assert self._checkpoints is not None
        was, now = self._checkpoints.describe_step(step)[1].model, describe_model(state)
        if was and was.undescribed is None and now and "structure" in now:
            place = _first_difference(was.structure, to_json(now["structure"], "model"), "model")
            if place is not None:
                raise ValueError(f"fit: this is not the run that was saved:\n  {place}")

    def _check_best(self, values: dict[str, Any]) -> None:
        """Reports a misspelt `best` the first time its kind is measured."""
        if self._best is None:
            return
        kind = self._best.partition("/")[0] + "/"
        names = [name for name in values if name.startswith(kind)]
        if names and self._best not in names:
            raise ValueError(f"fit: best={self._best!r} is not among the metrics {names}")

    def _write_line(self, values: dict[str, Any]) -> None:
        self.log.write(self.step, values)
        self._tell(self.log.history[-1:])

    def _tell(self, lines: list[dict[str, Any]]) -> None:
        """Hands lines that were written to the bar and the callbacks."""
        for line in lines:
            self._check_best(line)
            _warn_if_all_were_skipped(line)
            if "train/loss" in line:
                self.bar.set_postfix(loss=line["train/loss"], refresh=False)
            values = {name: value for name, value in line.items() if name != "step"}
            for callback in self._callbacks:
                callback(line["step"], values, self.state)

    def _evaluated(self, log_state: dict[str, Any] | None = None) -> dict[str, float]:
        """What `evaluate` returns, as `eval/NAME`. If it raises, the step is saved first."""
        assert self._evaluate is not None
        try:
            return _numbers(self._evaluate(eqx.nn.inference_mode(averaged_model(self.state))))
        except Exception:  # hours of training are not to be lost because of a misspelt name
            self.save({}, log_state)
            raise


def _numbers(values: Any) -> dict[str, float]:
    if not isinstance(values, dict):
        raise TypeError(f"fit: evaluate must return a dict of numbers by name, got {type(values).__name__}")
    numbers: dict[str, float] = {}
    for name, value in values.items():
        try:
            numbers[f"eval/{name}"] = float(value.mean if isinstance(value, Total) else value)
        except (TypeError, ValueError):
            raise TypeError(f"fit: evaluate must return numbers, got {value!r} for {name!r}") from None
    return numbers


def _warn_if_all_were_skipped(line: dict[str, Any]) -> None:
    if line.get("train/steps") and line["train/skipped"] == line["train/steps"]:
        warnings.warn(
            f"fit: all {line['train/steps']} steps before step {line['step']} were skipped: their loss or gradient was "
            "not finite",
            stacklevel=5,
        )


def _first_difference(was: Any, now: Any, where: str) -> str | None:
    """The first place where two descriptions differ, in words."""
    if isinstance(was, dict) and isinstance(now, dict) and was.keys() == now.keys():
        pairs = [(was[key], now[key], f"{where}[{key!r}]") for key in was]
    elif isinstance(was, list) and isinstance(now, list) and len(was) == len(now):
        pairs = [(a, b, f"{where}[{i}]") for i, (a, b) in enumerate(zip(was, now, strict=True))]
    else:
        # A script's own classes are in another module when it is imported: `module:name` is compared by its name.
        name = lambda value: value.rpartition(":")[2] if isinstance(value, str) else value
        return None if name(was) == name(now) else f"{where}: {was!r} in the checkpoint, {now!r} now"
    return next((place for pair in pairs if (place := _first_difference(*pair)) is not None), None)


def _earlier_run(out_dir: Path, what: str) -> str:
    return f"fit: {out_dir} holds an earlier run ({what}): pass resume=True to continue it, or another out_dir"


def _differences(name: str, was: dict[str, Any], now: dict[str, Any], but: tuple[str, ...] = ()) -> list[str]:
    lines = []
    for key in sorted((was.keys() | now.keys()) - set(but)):
        before, after = (repr(d[key]) if key in d else "nothing" for d in (was, now))
        if before != after:
            lines.append(f"{name}[{key!r}]: {before} in the checkpoint, {after} now")
    return lines
