"""A progress bar, where tqdm is installed."""

import contextlib
from collections.abc import Iterator
from typing import Any, Protocol


class _Bar(Protocol):
    def update(self, n: float | None = 1) -> Any: ...

    def set_postfix(self, ordered_dict: Any = None, refresh: bool | None = True, **kwargs: Any) -> Any: ...


class _NoBar:
    def update(self, n: float | None = 1) -> None:
        pass

    def set_postfix(self, ordered_dict: Any = None, refresh: bool | None = True, **kwargs: Any) -> None:
        pass


@contextlib.contextmanager
def progress_bar(total: int, initial: int, enabled: bool) -> Iterator[_Bar]:
    """tqdm's bar (steps, rate, remaining time, and what is set on it), or one that does nothing."""
    if enabled:
        try:
            from tqdm import tqdm
        except ImportError:
            enabled = False
        else:
            with tqdm(total=total, initial=initial, unit="step", dynamic_ncols=True) as bar:
                yield bar
    if not enabled:
        yield _NoBar()
