"""An encoder, and a decoder that attends to its outputs."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from .._layer import SequenceLayer
from .._types import ArrayLike, PRNGKey, State
from ..layers._wrapper import Wrapper


class EncoderDecoder(Wrapper):
    """An encoder, and a decoder with cross-attention to the encoder's outputs.

    As a layer it reads the *target* sequence; the source is in its state. `state = model.encode(source)` reads the
    source, and from there the model unrolls, steps and streams as any other. A reset starts the target afresh, with the
    same source.

    ??? example

        ```python
        >>> import jax, jax.numpy as jnp, sequinox as sqx
        >>> model = sqx.encoder_decoder(3, 8, 2, 16, 1, 11, jax.random.key(0))
        >>> state = model.encode(jnp.ones((4, 6, 3)))  # four sources
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
            encoder: reads the source; returns one output a sample.
            decoder: reads the target, with cross-attention in it.

        Raises:
            TypeError, ValueError: if they are no sequence layers, the encoder pools over time, or the decoder has no
                cross-attention in it.
        """
        check_parts("EncoderDecoder", encoder=encoder, decoder=decoder)
        if not _reads_memory(decoder, encoder.n_out):
            raise ValueError(
                "EncoderDecoder: the decoder must have cross-attention in it, such as TransformerBlock(cross=True)"
            )
        self.encoder, self.decoder = encoder, decoder

    def encode(
        self,
        source: ArrayLike,
        *,
        mask: ArrayLike | None = None,
        resets: ArrayLike | None = None,
        key: PRNGKey | None = None,
    ) -> State:
        """The decoder's initial state, with the source read.

        Arguments:
            source: `"*batch time n_in"`, or tokens `"*batch time"`, as the encoder reads them.
            mask: bool `"*batch time"`, True on real samples of the source; the decoder attends to those alone.
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


def check_parts(who: str, *, encoder: Any, **others: Any) -> None:
    """Checks that an encoder and what belongs to it are layers, and that it returns an output a sample."""
    for name, layer in {"encoder": encoder, **others}.items():
        if not isinstance(layer, SequenceLayer):
            raise TypeError(f"{who}: {name} must be a sequence layer, got {layer!r}")
    if encoder.pools:
        raise ValueError(f"{who}: the encoder must return one output a sample, but it pools over time")


def _reads_memory(layer: SequenceLayer, width: int | None) -> bool:
    """Whether a memory changes the state of a layer, of whatever class it is."""
    before, changed = layer.init_state(), []

    def remember(memory: Array) -> None:
        after = layer._remember(before, memory, None)
        same = [a is b for a, b in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=False)]
        changed.append(jax.tree.structure(before) != jax.tree.structure(after) or not all(same))

    try:
        jax.eval_shape(remember, jax.ShapeDtypeStruct((1, width or 1), layer.dtype or jnp.float32))
    except ValueError:  # it reads one, but of another width: `encode` says so
        return True
    return changed[0]
