"""A run and its directory: opened without mixing two runs, saved, taken up again."""

import os
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from ..._files import lock, make_writable_directory
from ..checkpoints._checkpoints import Checkpoints
from ..checkpoints._json import describe_model, to_json
from ..step._state import TrainState
from ._log import MetricsLog
from ._stream import Stream


class Run:
    """The log, checkpoints and data of one run. Without a directory nothing is written."""

    def __init__(
        self,
        out_dir: Path | None,
        stream: Stream,
        *,
        resume: bool,
        config: dict[str, Any] | None,
        settings: dict[str, Any],
        best: str | None,
        best_mode: str,
        keep_last: int,
        keep_best: int,
    ):
        self._stream = stream
        self._best = best
        self._config = to_json(config or {}, "fit: config")
        self._settings = to_json(settings, "fit: settings")
        self._saved_step: int | None = None
        self._saved_metrics: dict[str, Any] = {}
        self._checkpoints: Checkpoints | None = None
        self._lock: int | None = None
        if out_dir is None:
            self.log = MetricsLog()
            return
        try:
            first = jax.process_index() == 0  # the one process that writes
            if first:
                make_writable_directory(out_dir)
                self._lock = _take_lock(out_dir)
            metrics = out_dir / "metrics.jsonl"
            if not resume and metrics.exists() and metrics.stat().st_size:
                raise ValueError(_earlier_run(out_dir, metrics.name))
            self.log = MetricsLog(metrics, resume=resume, read_only=not first)
            self._checkpoints = Checkpoints(
                out_dir / "checkpoints", keep_last=keep_last, best=best, best_mode=best_mode, keep_best=keep_best
            )
            if not resume and self._checkpoints.steps:
                raise ValueError(_earlier_run(out_dir, f"checkpoints of the steps {self._checkpoints.steps}"))
        except BaseException:
            self.close()
            raise

    def resume(self, state: TrainState, steps: int) -> TrainState:
        """The last checkpoint's state, data position and log; `state` as it is, and an empty log, if there is none."""
        assert self._checkpoints is not None
        if self._checkpoints.latest_step is None:
            self.log.set_state(None)
            return state
        # What explains a difference in shapes comes before the shapes.
        found = self._checkpoints.peek()
        self._check_same(found.config or {}, found.extra)
        self._check_model(state, found.step)
        if found.step > steps:
            raise ValueError(f"fit: the checkpoint is at step {found.step}, past steps={steps}; raise steps.")
        restored = self._checkpoints.restore(state, found.step)
        if not np.array_equal(jax.random.key_data(restored.state.key), jax.random.key_data(state.key)):
            raise ValueError("fit: key is not the key this run was started with; resume with the same one.")
        self._stream.set_state(restored.data_state)
        self.log.set_state(restored.extra["log"])
        self._saved_step, self._saved_metrics = found.step, found.metrics
        return restored.state

    def check_measured(self, values: dict[str, Any]) -> None:
        """Reports a misspelt `best` the first time its kind is measured."""
        if self._best is None:
            return
        kind = self._best.partition("/")[0] + "/"
        names = [name for name in values if name.startswith(kind)]
        if names and self._best not in names:
            raise ValueError(f"fit: best={self._best!r} is not among the metrics {names}.")

    def is_among_best(self, values: dict[str, Any]) -> bool:
        """Whether a model with these metrics is one of the best so far; process 0 decides for all of them."""
        if self._checkpoints is None or self._best not in values:
            return False
        is_best = self._checkpoints.is_among_best(values)
        if jax.process_count() == 1:
            return is_best
        return bool(np.ravel(multihost_utils.process_allgather(np.array(is_best)))[0])

    def save(
        self, state: TrainState, step: int, metrics: dict[str, Any], log_state: dict[str, Any] | None = None
    ) -> None:
        """Saves, unless this step is saved already, with its metric if that makes it one of the best."""
        if self._checkpoints is None:
            return
        again = step == self._saved_step
        # Saved where the evaluation failed, and measured after a resume.
        if again and (self._best in self._saved_metrics or not self.is_among_best(metrics)):
            return
        self.log.sync()
        self._checkpoints.save(
            state,
            step,
            data_state=self._stream.get_state(),
            config=self._config,
            metrics=metrics,
            extra={"log": log_state or self.log.get_state(), "settings": self._settings},
            replace=again,
        )
        self._saved_step, self._saved_metrics = step, metrics

    def close(self) -> None:
        """Waits for the last checkpoint, and lets others write to the directory."""
        try:
            if self._checkpoints is not None:
                self._checkpoints.close()
        finally:
            if self._lock is not None:
                os.close(self._lock)
                self._lock = None

    def _check_model(self, state: TrainState, step: int) -> None:
        """Refuses a model of the same arrays that does something else with them."""
        assert self._checkpoints is not None
        was, now = self._checkpoints.describe_step(step)[1].model, describe_model(state)
        if was and now and was.undescribed is None and "structure" in now:
            place = _first_difference(was.structure, to_json(now["structure"], "model"), "model")
            if place is not None:
                raise ValueError(f"fit: this is not the run that was saved:\n  {place}")

    def _check_same(self, config: dict[str, Any], extra: dict[str, Any]) -> None:
        if "log" not in extra or "settings" not in extra:
            raise ValueError("fit: the checkpoint was not saved by fit, and cannot be resumed by it.")
        lines = _differences("config", config, self._config, but=("steps",))
        lines += _differences("fit", extra["settings"], self._settings)
        if lines:
            raise ValueError("fit: this is not the run that was saved:\n  " + "\n  ".join(lines))


def _take_lock(out_dir: Path) -> int | None:
    try:
        return lock(out_dir / ".lock")
    except BlockingIOError:
        raise ValueError(
            f"fit: another run is writing to {out_dir}; wait for its end, or take another out_dir."
        ) from None


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
    return f"fit: {out_dir} holds an earlier run ({what}): pass resume=True to continue it, or another out_dir."


def _differences(name: str, was: dict[str, Any], now: dict[str, Any], but: tuple[str, ...] = ()) -> list[str]:
    lines = []
    for key in sorted((was.keys() | now.keys()) - set(but)):
        before, after = (repr(d[key]) if key in d else "nothing" for d in (was, now))
        if before != after:
            lines.append(f"{name}[{key!r}]: {before} in the checkpoint, {after} now")
    return lines
