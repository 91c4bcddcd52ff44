"""A progress bar, if tqdm is installed."""

import contextlib
import sys
from collections.abc import Iterator
from typing import Any


class _NoBar:
    def update(self) -> None: ...

    def set_postfix(self, **values: Any) -> None: ...


@contextlib.contextmanager
def progress_bar(total: int, initial: int, enabled: bool) -> Iterator[Any]:
    """tqdm's bar (steps, rate, remaining time, and what is set on it), or one that does nothing."""
    # A notebook's stderr is no terminal, and shows a bar all the same.
    if enabled and (sys.stderr.isatty() or "ipykernel" in sys.modules):
        try:
            from tqdm import tqdm
        except ImportError:
            pass
        else:
            with tqdm(total=total, initial=initial, unit="step", dynamic_ncols=True) as bar:
                yield bar
            return
    yield _NoBar()
