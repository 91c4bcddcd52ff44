"""Layers whose caches grow, for checks that need states of one shape."""

from collections.abc import Callable
from typing import Any

import equinox as eqx

from .._layer import SequenceLayer
from .._types import BatchShape, DType, State
from ..attention import with_capacity
from ..attention._cache import grows
from ..layers._around import Around


class WithFixedCaches(Around):
    """A layer as it is, but for its initial state: the caches in it have a fixed number of slots."""

    layer: SequenceLayer
    capacity: int = eqx.field(static=True)

    def __init__(self, layer: SequenceLayer, capacity: int):
        self.layer, self.capacity = layer, capacity

    @property
    def inner(self) -> SequenceLayer:
        """The layer."""
        return self.layer

    def init_state(self, batch: BatchShape = (), dtype: DType | None = None) -> State:
        """The layer's own, with caches of fixed size."""
        return with_capacity(self.layer.init_state(batch, dtype), self.capacity)

    def _conform_state(self, state: Any, batch: tuple[int, ...], dtype: Any, where: str) -> State:
        return SequenceLayer._conform_state(self, state, batch, dtype, where)  # as `init_state` gives it here


def with_fixed_caches(
    layer: SequenceLayer, rebuild: Callable[[], SequenceLayer] | None, capacity: int
) -> tuple[SequenceLayer, Callable[[], SequenceLayer] | None]:
    """The layer and what makes it anew, with caches of fixed size if it has such as grow."""
    if not grows(layer.init_state()):
        return layer, rebuild
    again = None if rebuild is None else lambda: WithFixedCaches(rebuild(), capacity)
    return WithFixedCaches(layer, capacity), again
