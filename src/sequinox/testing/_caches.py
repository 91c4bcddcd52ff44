"""Layers whose caches grow, for checks that need states of one shape."""

from collections.abc import Callable

import equinox as eqx
from jaxtyping import Array

from .._layer import SequenceLayer, grows
from .._types import BatchShape, DType, State
from ..attention import with_capacity
from ..layers._wrapper import Wrapper


class WithFixedCaches(Wrapper):
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

    def _forward(self, xs: Array, mask: Array | None, resets: Array | None, key: Array | None) -> Array:
        return self.layer._forward(xs, mask, resets, key)


def with_fixed_caches(
    layer: SequenceLayer, rebuild: Callable[[], SequenceLayer] | None, capacity: int
) -> tuple[SequenceLayer, Callable[[], SequenceLayer] | None]:
    """The layer and the function that makes it again; with caches of fixed size, if it has growing ones."""
    if not grows(layer.init_state()):
        return layer, rebuild
    again = None if rebuild is None else lambda: WithFixedCaches(rebuild(), capacity)
    return WithFixedCaches(layer, capacity), again
