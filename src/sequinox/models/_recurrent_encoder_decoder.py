"""From sequence to sequence with recurrent units: the decoder starts where the encoder ends."""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from .._checks import batch_shape, check_key, check_rate, check_tuple, flag, float_dtype, size
from .._layer import SequenceLayer, grows
from .._types import ArrayLike, BatchShape, DType, PRNGKey, State
from ..attention import MultiHeadCrossAttention
from ..layers import Bidirectional, BidirectionalState, Dense, Dropout, Parallel, PerSample, Sequential
from ._encoder_decoder import check_parts
from ._recurrent_net import cell_maker


class SourceState(NamedTuple):
    """The state of a `RecurrentEncoderDecoder`."""

    encoded: State
    """The decoder's state after the source, to which a reset returns; the empty tuple before a source is read."""
    decoder: State
    """The decoder's state now."""
    head: State
    """The head's state, with what its attention reads."""

    def as_given(self, given: Any, where: str) -> "SourceState":
        """What a given state is to be like, where a layer begins with this: with a source read, or without."""
        encoded = check_tuple(given, 3, where, SourceState)[0]
        return self if isinstance(encoded, tuple) and encoded == () else self._replace(encoded=self.decoder)


class RecurrentEncoderDecoder(SequenceLayer):
    r"""A recurrent encoder, a recurrent decoder that starts where the encoder ends, and a head after it.

    $$
    s_0 = h_T \qquad s_t = f(y_{t-1}, s_{t-1}) \qquad \hat y_t = g(s_t, h_1, \dots, h_T)
    $$

    Here $h_t$ are the encoder's states ($h_T$ each row's own last), $f$ is the decoder and $g$ the head, which may
    attend to the encoder's outputs with cross-attention. As a layer it reads the *target* sequence, beginning with a
    symbol of your choice; the source is in its state. `state = model.encode(source)` reads the source, and from there
    the model unrolls, steps and streams as any other. A reset starts the target afresh, with the same source. Without a
    source it does not run.

    Source: [Sutskever et al. 2014](https://arxiv.org/abs/1409.3215), section 2, and [Cho et al.
    2014](https://arxiv.org/abs/1406.1078), section 2.2, for the vector between the two.

    ??? example

        ```python
        >>> import equinox as eqx, jax, jax.numpy as jnp, sequinox as sqx
        >>> k1, k2, k3, k4 = jax.random.split(jax.random.key(0), 4)
        >>> encoder = sqx.Sequential([sqx.Dense(3, 4, k1), sqx.LSTM(4, 8, k2)])
        >>> decoder = sqx.Sequential([eqx.nn.Embedding(11, 4, key=k3), sqx.LSTM(4, 8, k4)])
        >>> model = sqx.RecurrentEncoderDecoder(encoder, decoder, sqx.Dense(8, 11, k1))
        >>> state = model.encode(jnp.ones((5, 6, 3)))  # five sources
        >>> logits, state = model.step(jnp.zeros(5, int), state)
        >>> logits.shape
        (5, 11)

        ```
    """

    encoder: SequenceLayer
    decoder: SequenceLayer
    head: SequenceLayer
    n_in: int | None = eqx.field(static=True)
    n_out: int | None = eqx.field(static=True)

    def __init__(self, encoder: SequenceLayer, decoder: SequenceLayer, head: SequenceLayer):
        """
        Arguments:
            encoder: reads the source; returns one output a sample. If it is bidirectional, the states of its two
                directions are concatenated.
            decoder: reads the target. Its state is like that of the encoder.
            head: reads the decoder's outputs; may attend to a memory.

        Raises:
            TypeError, ValueError: if they are no sequence layers, the encoder pools over time, decoder or head do not
                stream, or the states of encoder and decoder differ in structure or shapes.
        """
        who = "RecurrentEncoderDecoder"
        check_parts(who, encoder=encoder, decoder=decoder, head=head)
        for name, layer in (("decoder", decoder), ("head", head)):
            if layer.offline_reason is not None:
                raise TypeError(f"{who}: {name} must stream, and it does not: {layer.offline_reason}")
        if decoder.n_out is not None and head.n_in not in (None, decoder.n_out):
            raise ValueError(f"{who}: head takes samples of width {head.n_in}, but decoder returns {decoder.n_out}")
        states = [jax.eval_shape(lambda la=la: _concatenated(la.init_state())) for la in (encoder, decoder)]
        shapes = [jax.tree.map(lambda a: f"{a.dtype}{list(a.shape)}", s) for s in states]
        if shapes[0] != shapes[1] or grows(states[1]) or not jax.tree.leaves(states[1]):
            raise ValueError(
                f"{who}: the state of decoder must be like that of encoder, from which it starts: arrays of fixed "
                f"shapes, at least one; encoder has {shapes[0]}, decoder {shapes[1]}"
            )
        self.encoder, self.decoder, self.head = encoder, decoder, head
        self.n_in, self.n_out = decoder.n_in, head.n_out

    def encode(
        self,
        source: ArrayLike,
        *,
        mask: ArrayLike | None = None,
        resets: ArrayLike | None = None,
        key: PRNGKey | None = None,
    ) -> SourceState:
        """The state with the source read.

        Arguments:
            source: `"*batch time n_in"`, or tokens `"*batch time"`, as the encoder reads them.
            mask: bool `"*batch time"`, True on real samples of the source.
            resets: bool `"*batch time"`, for an encoder that is to start afresh within a row.
            key: PRNG key for the encoder's dropout in training.
        """
        memory, last = self.encoder.unroll(source, mask=mask, resets=resets, key=key)
        batch = memory.shape[:-2]
        last = self.decoder._resolve_state(_concatenated(last), batch, memory.dtype, "RecurrentEncoderDecoder.encode")
        head = self.head.init_state(batch, memory.dtype)
        mask = None if mask is None else jnp.asarray(mask)
        return SourceState(last, last, self.head._remember(head, memory, mask))

    def init_state(self, batch: BatchShape = (), dtype: DType | None = None) -> SourceState:
        """No source has been read: `encode` returns a state to run from.

        Arguments:
            batch: the batch axes, an integer or a tuple; `()` for a single stream.
            dtype: dtype of the stream; default: that of the weights.
        """
        who = "RecurrentEncoderDecoder.init_state"
        batch, dtype = batch_shape(batch, who), float_dtype(self.dtype if dtype is None else dtype, who)
        return SourceState((), self.decoder.init_state(batch, dtype), self.head.init_state(batch, dtype))

    @property
    def inside(self) -> tuple[SequenceLayer, ...]:
        return self.decoder, self.head

    def _split_state(self, state: SourceState) -> tuple[State, State]:
        return state.decoder, state.head

    def _step(self, x: Array, state: SourceState, key: Array | None) -> tuple[Array, SourceState]:
        own, others = self._keys(state, key)
        h, decoder = self.decoder._step(x, state.decoder, own)
        y, head = self.head.step(h, state.head, key=others)
        return y, SourceState(state.encoded, decoder, head)

    def _unroll(
        self, xs: Array, state: SourceState, mask: Array | None, resets: Array | None, key: Array | None
    ) -> tuple[Array, SourceState]:
        own, others = self._keys(state, key)
        if resets is None:
            hs, decoder = self.decoder._unroll(xs, state.decoder, mask, None, own)
        else:
            hs, decoder = self.decoder._unroll_from(xs, state.decoder, mask, resets, own, state.encoded)
        ys, head = self.head.unroll(hs, state.head, mask=mask, resets=resets, key=others)
        return ys, SourceState(state.encoded, decoder, head)

    def _keys(self, state: SourceState, key: Array | None) -> tuple[Array | None, Array | None]:
        if state.encoded == ():
            raise ValueError("RecurrentEncoderDecoder: there is no source: begin with state = model.encode(source)")
        own, others = (None, None) if key is None else jax.random.split(key)
        return own, others


def _concatenated(state: State) -> State:
    """The state with those of the two directions of every bidirectional layer concatenated."""

    def join(node: Any) -> Any:
        if not isinstance(node, BidirectionalState):
            return node
        forward, backward = _concatenated(node.forward), _concatenated(node.backward)
        return jax.tree.map(lambda a, b: jnp.concatenate([a, b], -1), forward, backward)

    return jax.tree.map(join, state, is_leaf=lambda node: isinstance(node, BidirectionalState))


def same(x: Array) -> Array:
    """The sample as it is."""
    return x


def recurrent_encoder_decoder(
    n_in: int,
    n_hidden: int,
    n_out: int,
    key: PRNGKey,
    *,
    cell: Literal["lstm", "gru", "rnn"] | Callable[..., SequenceLayer] = "gru",
    n_layers: int = 1,
    d_embed: int | None = None,
    tokens: bool = False,
    attention: bool = False,
    bidirectional: bool = False,
    dropout: float = 0.0,
    dtype: DType | None = None,
    **options: Any,
) -> RecurrentEncoderDecoder:
    r"""From sequence to sequence with recurrent units: the decoder starts from the encoder's last state.

    With `attention` the decoder also attends to all outputs $h$ of the encoder, at every step:

    $$
    c_t = \operatorname{Attention}(s_t, h) \qquad \tilde h_t = \tanh(W_c [c_t; s_t]) \qquad \hat y_t = W \tilde h_t + b
    $$

    The attention is [`MultiHeadCrossAttention`][sequinox.MultiHeadCrossAttention] with one head. Its score,
    $(W_Q s_t) \cdot (W_K h) / \sqrt d$, is Luong's *general* one, with the matrix in two factors.

    Sources: [Cho et al. 2014](https://arxiv.org/abs/1406.1078) and [Sutskever et al.
    2014](https://arxiv.org/abs/1409.3215); attention: [Luong et al. 2015](https://arxiv.org/abs/1508.04025), equations
    (5) and (6).

    Arguments:
        n_in: width of a source sample; with `tokens`, the number of different source tokens.
        n_hidden: width of every recurrent layer.
        n_out: number of different target tokens, the symbol that begins a target among them; also the width of the
            output.
        key: PRNG key for the weights.
        cell: `"gru"` (default), `"lstm"`, `"rnn"`, or a cell class or function called as
            `cell(n_in, n_hidden, key, dtype=..., **options)`.
        n_layers: number of recurrent layers in the encoder, and in the decoder.
        d_embed: width of the embeddings, and of the dense projection of source samples that are no tokens; default:
            `n_hidden`.
        tokens: whether source samples are integer tokens.
        attention: whether the decoder attends to the encoder's outputs.
        bidirectional: whether the encoder reads both ways, with half the units in each direction.
        dropout: probability of a zero after every recurrent layer in training. Calls then need `key=`. Default 0.
        dtype: of the weights; default: JAX's default, float32.
        options: further options of the cell.

    Returns:
        A [`RecurrentEncoderDecoder`][sequinox.RecurrentEncoderDecoder]: `model.unroll(targets, model.encode(source))`.

    Raises:
        TypeError, ValueError: for sizes that are not positive integers, an odd `n_hidden` with `bidirectional`, and
            other wrong arguments.

    ??? example

        ```python
        >>> import jax, jax.numpy as jnp, sequinox as sqx
        >>> model = sqx.recurrent_encoder_decoder(3, 8, 11, jax.random.key(0), attention=True)
        >>> state = model.encode(jnp.ones((6, 3)))  # a source of six samples of width 3
        >>> logits, state = model.unroll(jnp.array([0, 3, 1, 4]), state)
        >>> logits.shape
        (4, 11)

        ```
    """
    who = "recurrent_encoder_decoder"
    n_in, n_hidden, n_out = size(n_in, who, "n_in"), size(n_hidden, who, "n_hidden"), size(n_out, who, "n_out")
    n_layers, make, dtype = size(n_layers, who, "n_layers"), cell_maker(cell, who), float_dtype(dtype, who)
    d_embed = n_hidden if d_embed is None else size(d_embed, who, "d_embed")
    tokens, attention = flag(tokens, who, "tokens"), flag(attention, who, "attention")
    check_rate(dropout, who, "dropout")
    directions = 1 + flag(bidirectional, who, "bidirectional")
    if n_hidden % directions:
        raise ValueError(f"{who}: n_hidden must be even, half for each direction of the encoder, got {n_hidden}")
    k_source, k_target, k_encoder, k_decoder, k_attention, k_combine, k_readout = jax.random.split(
        check_key(key, who), 7
    )
    embed = lambda n, k: PerSample(eqx.nn.Embedding(n, d_embed, key=k, dtype=dtype))

    def stack(reader: SequenceLayer, key: PRNGKey, directions: int) -> Sequential:
        layers, width, keys = [reader], d_embed, iter(jax.random.split(key, n_layers * directions))
        for _ in range(n_layers):
            units = n_hidden // directions
            cells: list[Any] = [make(width, units, next(keys), dtype=dtype, **options) for _ in range(directions)]
            layers.append(Bidirectional(*cells) if directions == 2 else cells[0])
            layers += [Dropout(dropout)] if dropout else []
            width = sum(la.n_out for la in cells)
        return Sequential(layers)

    reader = embed(n_in, k_source) if tokens else Dense(n_in, d_embed, k_source, dtype=dtype)
    encoder, decoder = stack(reader, k_encoder, directions), stack(embed(n_out, k_target), k_decoder, 1)
    width: Any = decoder.n_out
    readout = Dense(width, n_out, k_readout, dtype=dtype)
    if not attention:
        return RecurrentEncoderDecoder(encoder, decoder, readout)
    look = MultiHeadCrossAttention(width, 1, k_attention, d_memory=encoder.n_out, dtype=dtype)
    head = {
        "look": Parallel({"context": look, "state": same}),
        "combine": Dense(2 * width, width, k_combine, use_bias=False, dtype=dtype),
        "tanh": jnp.tanh,
        "readout": readout,
    }
    return RecurrentEncoderDecoder(encoder, decoder, Sequential(head))
