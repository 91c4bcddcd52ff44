"""An encoder, and a decoder that looks at what it gives."""

from typing import Any

import jax
import jax.numpy as jnp

from .._layer import SequenceLayer
from .._types import State
from ..attention import TransformerBlock
from ..layers import Sequential, Stack
from ..layers._around import Around
from ._tied_readout import TiedReadout


class EncoderDecoder(Around):
    """An encoder, and a decoder with cross-attention to what the encoder gives.

    As a layer it reads the *target* sequence; the source is in its state. `state = model.start(source)` reads the
    source, and from there the model unrolls, steps and streams as any other. A reset starts the target afresh, with the
    same source.

    ??? example

        ```python
        >>> import jax, jax.numpy as jnp, sequinox as sqx
        >>> model = sqx.encoder_decoder(3, 8, 2, 16, 1, 11, jax.random.key(0))
        >>> state = model.start(jnp.ones((4, 6, 3)))  # four sources
        >>> logits, state = model.step(jnp.zeros(4, int), state)
        >>> logits.shape
        (4, 11)

        ```
    """

    encoder: SequenceLayer
    decoder: SequenceLayer

    def __init__(self, encoder: SequenceLayer, decoder: SequenceLayer):
        """
        Arguments:
            encoder: reads the source; gives one output a sample.
            decoder: reads the target, with cross-attention in it.

        Raises:
            TypeError, ValueError: if they are no sequence layers, the encoder pools over time, or the decoder has no
                cross-attention in it.
        """
        for name, layer in (("encoder", encoder), ("decoder", decoder)):
            if not isinstance(layer, SequenceLayer):
                raise TypeError(f"EncoderDecoder: {name} must be a sequence layer, got {layer!r}")
        if encoder.pools:
            raise ValueError("EncoderDecoder: the encoder must give one output a sample, but it pools over time")
        if not any(map(_looks_at_memory, jax.tree.leaves(decoder, is_leaf=_looks_at_memory))):
            raise ValueError(
                "EncoderDecoder: the decoder must have cross-attention in it, such as TransformerBlock(cross=True)"
            )
        self.encoder, self.decoder = encoder, decoder

    def start(self, source: Any, *, mask: Any = None, resets: Any = None, key: Any = None) -> State:
        """The decoder's initial state, with the source read.

        Arguments:
            source: `"*batch time n_in"`, or tokens `"*batch time"`, as the encoder reads them.
            mask: bool `"*batch time"`, True on real samples of the source; the decoder looks at those alone.
            resets: bool `"*batch time"`, for an encoder that is to start afresh within a row.
            key: PRNG key for the encoder's dropout in training.
        """
        memory = self.encoder.forward(source, mask=mask, resets=resets, key=key)
        state = self.decoder.init_state(memory.shape[:-2], memory.dtype)
        return self.decoder._remember(state, memory, None if mask is None else jnp.asarray(mask))

    @property
    def inner(self) -> SequenceLayer:
        """The decoder: it reads the targets."""
        return self.decoder


def _looks_at_memory(node: Any) -> bool:
    """Whether a node of a tree is itself a layer that looks at a memory, not one that hands it on to those inside."""
    if isinstance(node, Sequential | Stack | Around | TiedReadout):
        return False
    if isinstance(node, TransformerBlock):
        return node.cross_attention is not None
    return isinstance(node, SequenceLayer) and type(node)._remember is not SequenceLayer._remember
