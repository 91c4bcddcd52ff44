"""Metrics as JSON lines: exact means, no clock, and a position to come back to."""

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import jax

from .._files import write_atomically
from ._state import StepReport

# How many reports may wait before the older ones are summed; bounds memory where log_every is large.
_WAITING = 64


class MetricsLog:
    """Sums step reports and writes lines of JSON.

    A line is `{"step": n, ...}`, keys in the order written, numbers as Python prints them, null for what is not
    finite or was never measured. Nothing depends on the clock, so that equal runs give equal bytes. Reports are
    kept on the device until a line is due; then they are summed on the host in float64, in order.

    Examples:
        >>> import jax.numpy as jnp
        >>> from sequinox.train import MetricsLog, StepReport, Total
        >>> log = MetricsLog()
        >>> for loss, count in ((6.0, 3), (2.0, 1)):
        ...     log.add(StepReport({"loss": Total(jnp.array(loss), jnp.array(count))}, jnp.array(0)))
        >>> log.write(2, log.take())
        >>> log.history
        [{'step': 2, 'train/loss': 2.0, 'train/steps': 2, 'train/skipped': 0}]
    """

    def __init__(self, path: str | os.PathLike[str] | None = None, *, resume: bool = False):
        """Writes nothing yet.

        Arguments:
            path: the file; it may not exist yet, its directory must. Default: lines are kept in memory only.
            resume: accept a file with lines in it. Call `set_state` before the first `write`.

        Raises:
            ValueError: the file has lines and `resume` is False.
        """
        self._path = None if path is None else Path(path)
        self.history: list[dict[str, Any]] = []
        self._waiting: list[StepReport] = []
        self._sums: dict[str, tuple[float, float]] = {}
        self._steps = self._skipped = 0
        if self._path is not None and not resume and self._path.exists() and self._path.stat().st_size:
            raise ValueError(
                f"MetricsLog: {self._path} has lines of an earlier run; continue that run with resume=True, or take "
                "another path."
            )

    def add(self, report: StepReport) -> None:
        """Notes one step, without waiting for the device.

        Arguments:
            report: from the step.
        """
        self._waiting.append(report)
        self._steps += 1
        if len(self._waiting) > _WAITING:
            self._sum(len(self._waiting) // 2)  # the older half is long finished

    def take(self) -> dict[str, Any]:
        """Means over the steps since the last `take`, and starts anew.

        Returns:
            `"train/NAME"`: sum of totals over sum of counts, for each name in the reports; `"train/steps"`: how many
                steps that is; `"train/skipped"`: how many of them were skipped and count for nothing. Empty without
                steps.
        """
        self._sum(len(self._waiting))
        if not self._steps:
            return {}
        values: dict[str, Any] = {}
        for name in sorted(self._sums, key=lambda name: (name != "loss", name)):
            total, count = self._sums[name]
            values[f"train/{name}"] = total / count if count else None
        values |= {"train/steps": self._steps, "train/skipped": self._skipped}
        self._sums, self._steps, self._skipped = {}, 0, 0
        return values

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        """Appends a line, as one write.

        Arguments:
            step: the number of steps taken.
            values: numbers or None by name.
        """
        line = {"step": step, **{name: _finite(value) for name, value in values.items()}}
        if self._path is not None:
            with self._path.open("ab") as file:
                file.write(json.dumps(line, allow_nan=False).encode() + b"\n")
        self.history.append(line)

    def sync(self) -> None:
        """Waits until all lines are on the disk. Call it before a checkpoint that counts on them."""
        if self._path is not None and self._path.exists():
            with self._path.open("rb") as file:
                os.fsync(file.fileno())

    def get_state(self) -> dict[str, Any]:
        """The number of lines written and the sums of the line to come, JSON-able and exact."""
        self._sum(len(self._waiting))
        sums = {name: [total.hex(), count.hex()] for name, (total, count) in self._sums.items()}
        return {"lines": len(self.history), "sums": sums, "steps": self._steps, "skipped": self._skipped}

    def set_state(self, state: Mapping[str, Any] | None) -> None:
        """Continues from a `get_state`: later lines of the file are cut off (atomically), earlier ones are `history`.

        Arguments:
            state: from `get_state`; None cuts all lines.

        Raises:
            ValueError: the file has fewer lines than it had then, or a line that is not JSON.
        """
        state = state or {"lines": 0, "sums": {}, "steps": 0, "skipped": 0}
        n_lines = state["lines"]
        if self._path is None:
            lines = [json.dumps(line).encode() for line in self.history]
        else:
            content = self._path.read_bytes() if self._path.exists() else b""
            lines = content.split(b"\n")[:-1]  # what has no newline was cut off in the middle
            if len(lines) >= n_lines:
                kept = b"".join(line + b"\n" for line in lines[:n_lines])
                if kept != content:
                    write_atomically(self._path, kept)
        if len(lines) < n_lines:
            raise ValueError(
                f"MetricsLog: {self._path or 'the log'} has {len(lines)} lines where the checkpoint counts {n_lines}; "
                "it was changed since."
            )
        try:
            self.history = [json.loads(line) for line in lines[:n_lines]]
        except ValueError as error:
            raise ValueError(f"MetricsLog: {self._path} has a line that is not JSON: {error}.") from error
        self._waiting = []
        self._sums = {k: (float.fromhex(t), float.fromhex(c)) for k, (t, c) in state["sums"].items()}
        self._steps, self._skipped = state["steps"], state["skipped"]

    def _sum(self, n: int) -> None:
        ready, self._waiting = self._waiting[:n], self._waiting[n:]
        for report in cast(list[StepReport], jax.device_get(ready)):
            self._skipped += int(report.skipped)
            for name, (total, count) in report.totals.items():
                so_far = self._sums.get(name, (0.0, 0.0))
                self._sums[name] = so_far[0] + float(total), so_far[1] + float(count)


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
