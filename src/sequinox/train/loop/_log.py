"""Metrics as JSON lines: exact means, no wall-clock time, and a position to return to."""

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ..._files import write_atomically
from ..step._state import StepReport

# How many reports may wait before the older ones are summed; bounds memory where log_every is large.
_WAITING = 64


class MetricsLog:
    """Sums step reports and writes lines of JSON.

    A line is `{"step": n, ...}`, keys in the order written, numbers as Python prints them, null for what is not
    finite or was never measured. Nothing depends on the clock, so that equal runs give equal bytes. Reports are kept
    on the device; they are summed on the host in float64, in order, when their line is written. `take` and `write` do
    that at once, and so wait for the device. `end_line` and `flush` leave a line until its numbers are there.

    ??? example

        ```python
        >>> import jax.numpy as jnp
        >>> from sequinox.train import MetricsLog, StepReport, Total
        >>> log = MetricsLog()
        >>> for loss, count in ((6.0, 3), (2.0, 1)):
        ...     log.add(StepReport({"loss": Total(jnp.array(loss), jnp.array(count))}, jnp.array(0)))
        >>> log.write(2, log.take())
        >>> log.history
        [{'step': 2, 'train/loss': 2.0, 'train/steps': 2, 'train/skipped': 0}]

        ```
    """

    def __init__(self, path: str | os.PathLike[str] | None = None, *, resume: bool = False, read_only: bool = False):
        """Writes nothing yet.

        Arguments:
            path: the file; it may not exist yet, its directory must. Default: lines are kept in memory only.
            resume: accept a file with lines in it. Call `set_state` before the first `write`.
            read_only: lines of the file are read by `set_state`, new ones are kept in memory only: for all processes
                of a run but the first.

        Raises:
            ValueError: the file has lines and `resume` is False.
        """
        self._path = None if path is None else Path(path)
        self.history: list[dict[str, Any]] = []
        self._read_only = read_only
        self._ended: list[tuple[int, _Sums]] = []  # lines whose numbers may not be there yet
        self._sums = _Sums()
        if self._path is not None and not resume and self._path.exists() and self._path.stat().st_size:
            raise ValueError(
                f"MetricsLog: {self._path} has lines of an earlier run; continue that run with resume=True, or take "
                "another path"
            )

    def add(self, report: StepReport) -> None:
        """Notes one step, without waiting for the device.

        Arguments:
            report: from the step.
        """
        self._sums.add(report)

    def take(self) -> dict[str, Any]:
        """Means over the steps since the last line; the next line starts empty. Waits for the device.

        Returns:
            `"train/NAME"`: sum of totals over sum of counts, for each name in the reports; `"train/steps"`: how many
                steps that is; `"train/skipped"`: how many of them were skipped and count for nothing. Empty without
                steps.
        """
        sums, self._sums = self._sums, _Sums()
        return sums.means()

    def end_line(self, step: int) -> None:
        """Ends the line of the steps so far, without waiting for the device. `flush` writes it.

        Arguments:
            step: the number of steps taken.
        """
        self._ended.append((step, self._sums))
        self._sums = _Sums()

    def flush(self, step: int | None = None) -> list[dict[str, Any]]:
        """Writes the lines that were ended.

        Arguments:
            step: only those of this step or before: give a step the device has finished, and nothing is waited for.
                Default: all.

        Returns:
            The lines written now.
        """
        written: list[dict[str, Any]] = []
        while self._ended and (step is None or self._ended[0][0] <= step):
            ended, sums = self._ended.pop(0)
            self.write(ended, sums.means())
            written.append(self.history[-1])
        return written

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        """Appends a line, as one write.

        Arguments:
            step: the number of steps taken.
            values: numbers or None by name.
        """
        line = {"step": step, **{name: _finite(value) for name, value in values.items()}}
        if self._path is not None and not self._read_only:
            with self._path.open("ab") as file:
                file.write(json.dumps(line, allow_nan=False).encode() + b"\n")
        self.history.append(line)

    @property
    def unfinished(self) -> bool:
        """Whether there are steps since the last line."""
        return self._sums.has_steps

    @property
    def last_step(self) -> int | None:
        """The step of the last line."""
        return self.history[-1]["step"] if self.history else None

    def sync(self) -> None:
        """Waits until all lines are on the disk. Call it before a checkpoint that counts on them."""
        if self._path is not None and not self._read_only and self._path.exists():
            with self._path.open("rb") as file:
                os.fsync(file.fileno())

    def get_state(self) -> dict[str, Any]:
        """The number of lines written and the sums of the line to come, JSON-able and exact. Writes what was ended."""
        self.flush()
        return {"lines": len(self.history), **self._sums.get_state()}

    def set_state(self, state: Mapping[str, Any] | None) -> None:
        """Continues from a `get_state`: later lines of the file are cut off (atomically), earlier ones are `history`.

        Arguments:
            state: from `get_state`; None cuts all lines.

        Raises:
            ValueError: the file has fewer lines than it had then, or a line that is not JSON, or not of a log.
        """
        state = state or {"lines": 0, **_Sums().get_state()}
        n_lines = state["lines"]
        if self._path is None:
            content, lines = b"", [json.dumps(line).encode() for line in self.history]
        else:
            content = self._path.read_bytes() if self._path.exists() else b""
            lines = content.split(b"\n")[:-1]  # what has no newline was cut off in the middle
        if len(lines) < n_lines:
            raise ValueError(
                f"MetricsLog: {self._path or 'the log'} has {len(lines)} lines where the checkpoint counts {n_lines}; "
                "it was changed since"
            )
        self.history = [self._parse(n, line) for n, line in enumerate(lines[:n_lines], 1)]
        kept = b"".join(line + b"\n" for line in lines[:n_lines])
        if self._path is not None and kept != content and not self._read_only:
            write_atomically(self._path, kept)
        self._ended = []
        self._sums = _Sums.from_state(state)

    def _parse(self, n: int, text: bytes) -> dict[str, Any]:
        """Line `n` of the file."""
        try:
            line = json.loads(text)
        except ValueError as error:
            raise ValueError(f"MetricsLog: {self._path} has a line that is not JSON: {error}") from error
        step = line.get("step") if isinstance(line, dict) else None
        if isinstance(step, bool) or not isinstance(step, int):
            raise ValueError(
                f'MetricsLog: line {n} of {self._path} must be an object with an integer "step", got {line!r}'
            )
        return line


class _Sums:
    """Sums of reports: exact in float64, and only as far as they had to be read from the device."""

    def __init__(self) -> None:
        self._waiting: list[StepReport] = []
        self._totals: dict[str, tuple[float, float]] = {}
        self._steps = self._skipped = 0

    @property
    def has_steps(self) -> bool:
        return self._steps > 0

    def add(self, report: StepReport) -> None:
        self._waiting.append(report)
        self._steps += 1
        if len(self._waiting) > _WAITING:
            self._read(len(self._waiting) // 2)  # the older half is long finished

    def means(self) -> dict[str, Any]:
        self._read(len(self._waiting))
        if not self._steps:
            return {}
        values: dict[str, Any] = {}
        for name in sorted(self._totals, key=lambda name: (name != "loss", name)):
            total, count = self._totals[name]
            values[f"train/{name}"] = total / count if count else None
        return values | {"train/steps": self._steps, "train/skipped": self._skipped}

    def get_state(self) -> dict[str, Any]:
        self._read(len(self._waiting))
        sums = {name: [total.hex(), count.hex()] for name, (total, count) in self._totals.items()}
        return {"sums": sums, "steps": self._steps, "skipped": self._skipped}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "_Sums":
        sums = cls()
        sums._totals = {k: (float.fromhex(t), float.fromhex(c)) for k, (t, c) in state["sums"].items()}
        sums._steps, sums._skipped = state["steps"], state["skipped"]
        return sums

    def _read(self, n: int) -> None:
        ready, self._waiting = self._waiting[:n], self._waiting[n:]
        if jax.default_backend() != "cpu":
            ready = jax.device_get(ready)  # all copies at once; where nothing is copied it costs more than it saves
        for report in ready:
            self._skipped += int(np.asarray(report.skipped))
            for name, (total, count) in report.totals.items():
                so_far = self._totals.get(name, (0.0, 0.0))
                self._totals[name] = so_far[0] + float(np.asarray(total)), so_far[1] + float(np.asarray(count))


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
