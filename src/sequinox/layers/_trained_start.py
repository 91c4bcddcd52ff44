"""A trained initial state."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from .._checks import batch_shape, float_dtype, wide
from .._layer import S, SequenceLayer, grows
from .._precision import KEEPS_FLOAT32, cast
from .._types import BatchShape, DType, State
from ._wrapper import Wrapper


class TrainedStart(Wrapper[S]):
    r"""A layer whose initial state is trained with its weights: every row starts there, at first and after a reset.

    $$
    s_0 = \theta
    $$

    `start` is the initial state of one stream, as the layer's own `init_state` returns it, in float32 at least; its
    floating-point arrays are parameters, and counts in it stay what they are. A state that is given to `unroll` or
    `step` takes its place.

    Where there are resets, cells run as fast as alone, also in `Sequential`, `Stack` and `Residual`; other layers go
    sample by sample.

    Source: common practice, without a paper of its own.

    ??? example

        ```python
        >>> import jax, jax.numpy as jnp, sequinox as sqx
        >>> lstm = sqx.TrainedStart(sqx.LSTM(3, 5, jax.random.key(0)))
        >>> lstm.start.c.shape, lstm.init_state(4).c.shape
        ((5,), (4, 5))
        >>> lstm(jnp.ones((7, 3))).shape
        (7, 5)

        ```
    """

    layer: SequenceLayer[S]
    start: Any = eqx.field(metadata=KEEPS_FLOAT32)

    def __init__(self, layer: SequenceLayer[S]):
        """
        Arguments:
            layer: a sequence layer that streams. In a `Bidirectional`, give each direction a trained start.

        Raises:
            TypeError, ValueError: if it is no sequence layer, does not stream, has no state with something to train in
                it, or one that grows.
        """
        who = "TrainedStart"
        if not isinstance(layer, SequenceLayer):
            raise TypeError(f"{who}: layer must be a sequence layer, got {layer!r}")
        if layer.offline_reason is not None:
            raise TypeError(f"{who}: layer must stream, and this one does not: {layer.offline_reason}")
        start = cast(layer.init_state((), layer.dtype), wide(float_dtype(layer.dtype, who)))
        if grows(start):
            raise ValueError(f"{who}: the state of layer has a cache in it that grows; it has no start to be trained")
        if not any(map(eqx.is_inexact_array, jax.tree.leaves(start))):
            raise ValueError(f"{who}: layer has nothing in its state that could be trained, got {type(layer).__name__}")
        self.layer, self.start = layer, start

    @property
    def inner(self) -> SequenceLayer[S]:
        """The layer."""
        return self.layer

    def init_state(self, batch: BatchShape = (), dtype: DType | None = None) -> State:
        """The trained state in every row.

        Arguments:
            batch: the batch axes, an integer or a tuple; `()` for a single stream.
            dtype: dtype of the stream; default: that of the weights.
        """
        axes = batch_shape(batch, "TrainedStart.init_state")
        dtype = self.dtype if dtype is None else dtype
        like = jax.eval_shape(lambda: self.layer.init_state(axes, dtype))
        return jax.tree.map(lambda a, b: jnp.broadcast_to(a, b.shape).astype(b.dtype), self.start, like)

    def _unroll(
        self, xs: Array, state: State, mask: Array | None, resets: Array | None, key: Array | None
    ) -> tuple[Array, State]:
        if resets is None:
            return self.layer._unroll(xs, state, mask, None, key)
        return self.layer._unroll_from(xs, state, mask, resets, key, self._initial(xs))
