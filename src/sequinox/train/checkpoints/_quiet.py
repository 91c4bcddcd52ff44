"""What Orbax prints of errors that are raised here, with their path: on a full disk a thousand lines for each save."""

import contextlib
import gc
import logging
import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class _RaisedHere(logging.Filter):
    """Drops the errors that Orbax, and asyncio of its tasks, print about directories whose errors are raised.

    What Orbax says of removing old checkpoints is kept: that is not raised.
    """

    def __init__(self) -> None:
        super().__init__()
        self.directories: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING:
            return True
        if record.name == "absl" and (_ORBAX not in record.pathname or _REMOVAL in record.pathname):
            return True
        return not self.is_raised(record.getMessage(), record.exc_info[1] if record.exc_info else None)

    def is_raised(self, text: str, error: BaseException | None) -> bool:
        """Whether an error, printed with this text, is about one of the directories."""
        while error is not None:
            text += f"\n{error}"
            error = error.__cause__ or error.__context__
        return any(directory in text for directory in self.directories)


_ORBAX = str(Path("orbax", "checkpoint"))
_REMOVAL = str(Path("_src", "path"))
_filter = _RaisedHere()


def raises_errors_of(directory: Path) -> None:
    """From now on the errors about what is in a directory are raised, and need not be printed."""
    _filter.directories.add(f"{directory.absolute()}{os.sep}")
    for name in ("absl", "asyncio"):
        logging.getLogger(name).addFilter(_filter)  # once, however often
    if not isinstance(sys.unraisablehook, _Unraisable):
        sys.unraisablehook = _Unraisable(sys.unraisablehook)


class _Unraisable:
    """Drops the errors that threads print whose reads ran at the same time as one that failed."""

    def __init__(self, before: Any) -> None:
        self.before = before

    def __call__(self, unraisable: Any) -> None:
        error = unraisable.exc_value
        late = isinstance(error, RuntimeError) and str(error) == "Event loop is closed" and unraisable.object is None
        if not late and not _filter.is_raised("", error):
            self.before(unraisable)


@contextlib.contextmanager
def collecting() -> Iterator[list[Exception]]:
    """Catches an exception, and collects the unfinished reads of Orbax, which would complain later.

    Yields the list into which the exception is put.
    """
    failed: list[Exception] = []
    try:
        yield failed
    except Exception as error:
        one: BaseException | None = error
        while one is not None:  # the frames hold on to what is to be collected
            one.__traceback__, one = None, one.__cause__ or one.__context__
        failed.append(error)
    if failed:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # of coroutines that nobody waits for any more
            gc.collect()
