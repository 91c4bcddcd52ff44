"""Any source of batches, as one iterator that may be able to return its position."""

from collections.abc import Iterable, Iterator
from typing import Any


class BatchStream:
    """The iterator of an iterable, started again at its end if that is possible.

    `get_state` and `set_state` are passed to the iterator if it has them: grain's protocol.
    """

    def __init__(self, batches: Iterable[Any]):
        try:
            self._iterator: Iterator[Any] = iter(batches)
        except TypeError:
            raise TypeError(f"fit: batches must be iterable, got {type(batches).__name__}") from None
        # An iterator is its own `iter`: it cannot be started again.
        self._source = None if self._iterator is batches else batches

    @property
    def has_state(self) -> bool:
        return hasattr(self._iterator, "get_state") and hasattr(self._iterator, "set_state")

    def get_state(self) -> Any:
        return self._iterator.get_state() if self.has_state else None  # pyright: ignore[reportAttributeAccessIssue]

    def set_state(self, state: Any) -> None:
        self._iterator.set_state(state)  # pyright: ignore[reportAttributeAccessIssue]

    def __next__(self) -> Any:
        try:
            return next(self._iterator)
        except StopIteration:
            if self._source is None:
                raise
        self._iterator = iter(self._source)
        return next(self._iterator)
