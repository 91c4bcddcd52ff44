"""A layer around another."""

import abc

from jaxtyping import Array

from .._layer import S, SequenceLayer
from .._types import BatchShape, DType


class Wrapper(SequenceLayer[S]):
    """A layer that runs another as it is, except for what a subclass changes."""

    @property
    @abc.abstractmethod
    def inner(self) -> SequenceLayer[S]:
        """The layer inside."""

    @property
    def n_in(self) -> int | None:
        """That of the layer inside."""
        return self.inner.n_in

    @property
    def n_out(self) -> int | None:
        """That of the layer inside."""
        return self.inner.n_out

    @property
    def receptive_field(self) -> int | None:
        """That of the layer inside."""
        return self.inner.receptive_field

    @property
    def keeps_width(self) -> bool:
        return self.inner.keeps_width

    @property
    def inside(self) -> tuple[SequenceLayer, ...]:
        return (self.inner,)

    def init_state(self, batch: BatchShape = (), dtype: DType | None = None) -> S:
        """That of the layer inside."""
        return self.inner.init_state(batch, dtype)

    def _step(self, x: Array, state: S, key: Array | None) -> tuple[Array, S]:
        return self.inner._step(x, state, key)

    def _unroll(
        self, xs: Array, state: S, mask: Array | None, resets: Array | None, key: Array | None
    ) -> tuple[Array, S]:
        return self.inner._unroll(xs, state, mask, resets, key)

    def _unroll_from(
        self, xs: Array, state: S, mask: Array | None, resets: Array | None, key: Array | None, start: S | None
    ) -> tuple[Array, S]:
        return self.inner._unroll_from(xs, state, mask, resets, key, start)

    def _remember(self, state: S, memory: Array, mask: Array | None) -> S:
        return self.inner._remember(state, memory, mask)
