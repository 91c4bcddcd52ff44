"""Stopping between two steps instead of in the middle of one."""

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any


class Interrupt:
    """What a block of `catch_interrupts` knows of signals.

    Attributes:
        signum: the signal that came, or None.
    """

    def __init__(self) -> None:
        self.signum: int | None = None
        self._former: dict[int, Any] = {}

    def __bool__(self) -> bool:
        return self.signum is not None

    def deliver(self) -> None:
        """Hands the signal, if one came, to whoever would have had it. Call it after the block.

        SIGINT becomes a KeyboardInterrupt, as ever. If SIGTERM had no handler it becomes `SystemExit(143)`, so that
        `finally` clauses run and buffers are written, with the exit status of a killed process. A handler of your own
        is called; if it returns, so does this.

        Raises:
            KeyboardInterrupt: after SIGINT.
            SystemExit: after SIGTERM.
        """
        if self.signum is None:
            return
        former = self._former.get(self.signum)
        if callable(former):
            signal.raise_signal(self.signum)
        elif former is signal.SIG_DFL or former is None:
            sys.exit(128 + self.signum)


@contextlib.contextmanager
def catch_interrupts() -> Iterator[Interrupt]:
    """Within the block, SIGINT (Ctrl-C) and SIGTERM only set a flag; afterwards the former handlers are back.

    A second SIGINT does what the first would have done without the block, for whoever does not want to wait. Signals
    reach the main thread only: in another one this does nothing.

    Returns:
        A context manager that yields the `Interrupt`, true once a signal has come.

    ??? example

        ```python
        >>> import signal
        >>> from sequinox.train import catch_interrupts
        >>> with catch_interrupts() as interrupt:
        ...     signal.raise_signal(signal.SIGTERM)
        ...     print(bool(interrupt))
        True

        ```
    """
    interrupt = Interrupt()
    if threading.current_thread() is not threading.main_thread():
        yield interrupt
        return

    def handle(signum: int, frame: FrameType | None) -> None:
        if interrupt and signum == signal.SIGINT:
            signal.signal(signum, interrupt._former[signum])
            signal.raise_signal(signum)
        interrupt.signum = interrupt.signum or signum

    # An ignored signal stays ignored (nohup).
    numbers = [s for s in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(s) is not signal.SIG_IGN]
    interrupt._former = {s: signal.getsignal(s) for s in numbers}
    try:
        for s in numbers:
            signal.signal(s, handle)
        yield interrupt
    finally:
        for s, former in interrupt._former.items():
            # None: a handler set in C, which Python cannot put back.
            signal.signal(s, signal.SIG_DFL if former is None else former)
