"""Metrics for TensorBoard."""

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from ..._files import make_writable_directory


class TensorBoard:
    """Writes a run's metrics for TensorBoard: a callback of [`fit`][sequinox.train.fit].

    Each number of a line becomes a scalar of its name (`train/loss`) at its step; a null is left out. Every line is on
    the disk when the call returns. What an earlier run left in the directory from the first line's step on is hidden,
    so that a resumed run shows each step once. Of several processes the first writes.

    It is shown by `tensorboard --logdir DIRECTORY`, which is a package of its own.

    ??? example

        ```python
        >>> from sequinox.train import TensorBoard
        >>> with TensorBoard("runs/tensorboard") as tensorboard:  # fit(..., callbacks=[tensorboard])
        ...     tensorboard(10, {"train/loss": 0.5, "eval/loss": None}, None)

        ```
    """

    def __init__(self, directory: str | os.PathLike[str]):
        """Opens no file yet.

        Arguments:
            directory: for the event files; it is made if need be.

        Raises:
            ImportError: tensorboardX is not installed (`pip install "sequinox[tensorboard]"`).
            OSError: `directory` cannot be written to.
        """
        try:
            from tensorboardX import event_file_writer
            from tensorboardX.proto import event_pb2, summary_pb2
        except ImportError:
            raise ImportError('TensorBoard needs tensorboardX: pip install "sequinox[tensorboard]"') from None
        # Not its SummaryWriter: that hands events to a thread, and its flush does not wait for it.
        self._make: Any = event_file_writer.EventsWriter
        self._events: Any = event_pb2
        self._summaries: Any = summary_pb2
        self._directory = Path(directory)
        self._writer: Any = None
        self._writes = jax.process_index() == 0
        if self._writes:
            make_writable_directory(self._directory)

    def begin(self, history: Sequence[Mapping[str, Any]]) -> None:
        """Continues after these lines: whatever else an earlier run wrote is hidden.

        Arguments:
            history: the lines written so far (`fit(...).history`); empty for a new run.
        """
        self.close()
        last = history[-1]["step"] if history else 0
        self._open(last)
        for line in history:
            if line["step"] == last:  # hidden with what came after it at the same step
                self._write(last, {name: value for name, value in line.items() if name != "step"})

    def __call__(self, step: int, values: Mapping[str, Any], state: object) -> None:
        """Writes one line.

        Arguments:
            step: the number of steps taken.
            values: numbers or None by name.
            state: not read.
        """
        del state
        if self._writer is None:
            self._open(step)
        self._write(step, values)

    def close(self) -> None:
        """Closes the event file. A later call opens another."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def __enter__(self) -> "TensorBoard":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _open(self, purge_step: int) -> None:
        if not self._writes:
            return
        # The name has only seconds in it: a second file of one second would overwrite the first.
        self._writer = self._make(str(self._directory / "events"), f".{time.time_ns()}")
        session = self._events.SessionLog(status=self._events.SessionLog.START)
        self._put(self._events.Event(step=purge_step, session_log=session))

    def _write(self, step: int, values: Mapping[str, Any]) -> None:
        if self._writer is None:
            return
        make = self._summaries.Summary
        scalars = [make.Value(tag=name, simple_value=value) for name, value in values.items() if value is not None]
        self._put(self._events.Event(step=step, summary=make(value=scalars)))

    def _put(self, event: Any) -> None:
        event.wall_time = time.time()
        self._writer.write_event(event)
        self._writer.flush()
