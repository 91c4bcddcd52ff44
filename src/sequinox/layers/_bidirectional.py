"""Two layers on one sequence, one of them reading it from its end."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from .._checks import batch_shape, float_dtype
from .._layer import SequenceLayer
from .._types import BatchShape, DType, State
from ._sequential import width_behind


class BidirectionalState(NamedTuple):
    """The states of the two layers of a `Bidirectional`."""

    forward: State
    backward: State


class Bidirectional(SequenceLayer):
    """Two layers on one sequence, the second reading it backwards; their outputs are concatenated.

    Each row is read backwards within its own mask: the backward layer's first sample is the row's last real one, its
    final state is at the row's first. Packed rows (`resets`) are read backwards each on its own. Two layers that
    pool give one output, each direction's own: `Bidirectional(Sequential([GRU(...), LastStep()]), Sequential([GRU(...),
    LastStep()]))` is the forward output at the last sample beside the backward output at the first; of packed rows,
    both are the last one's.

    It does not stream, since the backward layer needs the end of the sequence; `init_state` gives both directions a
    start.

    Source: [Schuster and Paliwal 1997](https://doi.org/10.1109/78.650093).

    ??? example

        ```python
        >>> import jax, jax.numpy as jnp, sequinox as sqx
        >>> k1, k2 = jax.random.split(jax.random.key(0))
        >>> both = sqx.Bidirectional(sqx.GRU(3, 5, k1), sqx.GRU(3, 4, k2))
        >>> both(jnp.ones((7, 3))).shape
        (7, 9)

        ```
    """

    forward_layer: SequenceLayer
    backward_layer: SequenceLayer
    n_in: int | None = eqx.field(static=True)
    n_out: int | None = eqx.field(static=True)

    def __init__(self, forward_layer: SequenceLayer, backward_layer: SequenceLayer | None = None):
        """
        Arguments:
            forward_layer: reads from the first sample on.
            backward_layer: reads from the last sample back; of the same `n_in`, and pooling if the other does.

        Raises:
            TypeError: if one is not a sequence layer.
            ValueError: if they do not fit together.
        """
        if backward_layer is None:
            raise TypeError(
                "Bidirectional: give two layers, of which each has weights of its own: "
                "Bidirectional(GRU(n_in, n_hidden, key_1), GRU(n_in, n_hidden, key_2))"
            )
        for name, layer in (("forward_layer", forward_layer), ("backward_layer", backward_layer)):
            if not isinstance(layer, SequenceLayer):
                raise TypeError(f"Bidirectional: {name} must be a sequence layer, got {layer!r}")
        widths = {forward_layer.n_in, backward_layer.n_in} - {None}
        if len(widths) > 1 or forward_layer.reads_tokens != backward_layer.reads_tokens:
            raise ValueError(
                "Bidirectional: both layers read the same samples, "
                f"got widths {forward_layer.n_in} and {backward_layer.n_in}"
            )
        if forward_layer.pools != backward_layer.pools:
            raise ValueError("Bidirectional: either both layers pool over time or neither does")
        self.forward_layer, self.backward_layer = forward_layer, backward_layer
        self.n_in = next(iter(widths), None)
        one, other = (width_behind(la, self.n_in) for la in (forward_layer, backward_layer))
        self.n_out = None if one is None or other is None else one + other

    @property
    def keeps_width(self) -> bool:
        return False

    @property
    def offline_reason(self) -> str | None:
        """The backward layer."""
        return "Bidirectional reads the sequence from its end, which a stream has not reached"

    @property
    def inside(self) -> tuple[SequenceLayer, ...]:
        return self.forward_layer, self.backward_layer

    def with_width(self, n_in: int) -> "Bidirectional":
        """The same layers for samples of a given width."""
        return Bidirectional(self.forward_layer.with_width(n_in), self.backward_layer.with_width(n_in))

    def init_state(self, batch: BatchShape = (), dtype: DType | None = None) -> BidirectionalState:
        """A start for each direction.

        Arguments:
            batch: the batch axes, an integer or a tuple; `()` for a single sequence.
            dtype: dtype of the sequence; default: that of the weights.
        """
        batch = batch_shape(batch, "Bidirectional.init_state")
        dtype = float_dtype(self.dtype if dtype is None else dtype, "Bidirectional.init_state")
        return BidirectionalState(
            self.forward_layer.init_state(batch, dtype), self.backward_layer.init_state(batch, dtype)
        )

    def _unroll(
        self, xs: Array, state: BidirectionalState, mask: Array | None, resets: Array | None, key: Array | None
    ) -> tuple[Array, BidirectionalState]:
        run = lambda layer, xs, s, mask, resets, key: layer.unroll(xs, s, mask=mask, resets=resets, key=key)
        (forward, final_f), (backward, final_b) = self._both(run, xs, state, mask, resets, key)
        return self._join(forward, backward), BidirectionalState(final_f, final_b)

    def _forward(self, xs: Array, mask: Array | None, resets: Array | None, key: Array | None) -> Array:
        run = lambda layer, xs, _, mask, resets, key: layer.forward(xs, mask=mask, resets=resets, key=key)
        return self._join(*self._both(run, xs, BidirectionalState(None, None), mask, resets, key))

    def _both(
        self,
        run: Callable,
        xs: Array,
        state: BidirectionalState,
        mask: Array | None,
        resets: Array | None,
        key: Array | None,
    ) -> tuple[Any, Any]:
        """Each layer's run, the backward one's on the flipped sequence."""
        axis = self._time_axis(xs.ndim)
        keys = (None, None) if key is None else jax.random.split(key)
        flip = lambda a: None if a is None else jnp.flip(a, axis)
        forward = run(self.forward_layer, xs, state.forward, mask, resets, keys[0])
        if self.pools:  # the output is of the last packed row alone, in both directions
            mask, resets = _last_packed(mask, resets), None
        return forward, run(
            self.backward_layer, flip(xs), state.backward, flip(mask), flip(_ends(mask, resets)), keys[1]
        )

    def _join(self, forward: Array, backward: Array) -> Array:
        return jnp.concatenate([forward, backward if self.pools else jnp.flip(backward, -2)], -1)


def _last_packed(mask: Array | None, resets: Array | None) -> Array | None:
    """The mask without the packed rows before the last."""
    if resets is None or resets.shape[-1] == 0:
        return mask
    real = jnp.ones_like(resets) if mask is None else mask
    row = jnp.cumsum(resets & real, -1, dtype=jnp.int32)
    return real & (row == row[..., -1:])


def _ends(mask: Array | None, resets: Array | None) -> Array | None:
    """Where a packed row has its last real sample and another row follows: there the backward layer starts afresh."""
    if resets is None or resets.shape[-1] == 0:
        return resets
    real = jnp.ones_like(resets) if mask is None else mask
    row = jnp.cumsum(resets & real, -1)
    # Of the real samples that follow, the nearest one's row number; those of a row never fall.
    beyond = jnp.where(real, row, row.max(initial=0) + 1)
    following = jnp.flip(jax.lax.cummin(jnp.flip(beyond, -1), beyond.ndim - 1), -1)[..., 1:]
    is_real_after = jnp.flip(jnp.cumsum(jnp.flip(real, -1), -1), -1)[..., 1:] > 0
    ends = is_real_after & (following != row[..., :-1])
    return jnp.concatenate([ends, jnp.zeros_like(resets[..., :1])], -1)
