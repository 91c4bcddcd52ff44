"""Layers whose caches grow, for checks that need states of one shape."""

from collections.abc import Callable

import equinox as eqx
from jaxtyping import Array

from .._layer import SequenceLayer
from .._types import BatchShape, DType, State
from ..attention import with_capacity
from ..attention._cache import grows


class WithFixedCaches(SequenceLayer):
    """A layer as it is, but for its initial state: the caches in it have a fixed number of slots."""

    layer: SequenceLayer
    n_in: int | None = eqx.field(static=True)
    n_out: int | None = eqx.field(static=True)
    capacity: int = eqx.field(static=True)

    def __init__(self, layer: SequenceLayer, capacity: int):
        self.layer, self.capacity = layer, capacity
        self.n_in, self.n_out = layer.n_in, layer.n_out

    def init_state(self, batch: BatchShape = (), dtype: DType | None = None) -> State:
        """The layer's own, with caches of fixed size."""
        return with_capacity(self.layer.init_state(batch, dtype), self.capacity)

    def _step(self, x: Array, state: State, key: Array | None) -> tuple[Array, State]:
        return self.layer._step(x, state, key)

    def _unroll(
        self, xs: Array, state: State, mask: Array | None, resets: Array | None, key: Array | None
    ) -> tuple[Array, State]:
        return self.layer._unroll(xs, state, mask, resets, key)

    def _forward(self, xs: Array, mask: Array | None, resets: Array | None, key: Array | None) -> Array:
        return self.layer._forward(xs, mask, resets, key)

    def _filler(self, x: Array) -> Array:
        return self.layer._filler(x)

    @property
    def pools(self) -> bool:
        """Whether the layer does."""
        return self.layer.pools

    @property
    def offline_reason(self) -> str | None:
        """That of the layer."""
        return self.layer.offline_reason

    @property
    def _sample_ndim(self) -> int:
        return self.layer._sample_ndim


def with_fixed_caches(
    layer: SequenceLayer, rebuild: Callable[[], SequenceLayer] | None, capacity: int
) -> tuple[SequenceLayer, Callable[[], SequenceLayer] | None]:
    """The layer and what makes it anew, with caches of fixed size if it has such as grow."""
    if not grows(layer.init_state()):
        return layer, rebuild
    again = None if rebuild is None else lambda: WithFixedCaches(rebuild(), capacity)
    return WithFixedCaches(layer, capacity), again
