"""Transformers: encoder, decoder, and the two together."""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax

from .._checks import check_key, check_rate, flag, float_dtype, size
from .._layer import SequenceLayer
from .._types import DType, PRNGKey
from ..attention import AddLearnedPositions, AddPositions, Rotary, TransformerBlock
from ..attention._transformer_block import make_norm
from ..layers import Dense, Dropout, LastStep, MeanOverTime, PerSample, Remat, Sequential, Stack
from ._encoder_decoder import EncoderDecoder
from ._tied_readout import TiedReadout

Positions = Literal["sinusoidal", "learned", "rotary"] | Rotary | None


def transformer_encoder(
    n_in: int,
    d_model: int,
    n_heads: int,
    d_ff: int,
    n_layers: int,
    n_out: int,
    key: PRNGKey,
    max_len: int | None = None,
    *,
    tokens: bool = False,
    positions: Positions = "sinusoidal",
    pool: Literal["mean", "last"] | None = "mean",
    norm: Literal["post", "pre"] = "post",
    dropout: float = 0.0,
    scan_layers: bool = False,
    remat: bool = False,
    dtype: DType | None = None,
    **options: Any,
) -> Sequential:
    """From a sequence to a label: a dense projection, positions, blocks, pooling over time, and a dense head.

    Arguments:
        n_in: width of a sample; with `tokens`, the number of different tokens.
        d_model: width of the blocks.
        n_heads: number of attention heads.
        d_ff: width inside the feed-forward networks.
        n_layers: number of blocks.
        n_out: width of the output, for example the number of classes.
        key: PRNG key for the weights.
        max_len: the longest row, in real samples, of sinusoidal and learned positions; a longer one is an error. Needed
            for learned positions only.
        tokens: whether samples are integer tokens, which an embedding reads in place of the dense projection.
        positions: `"sinusoidal"` (default), as in the paper; `"learned"`; `"rotary"` or a `Rotary`, inside attention;
            or None.
        pool: what the head reads: `"mean"` (default), the mean over the row's real samples; `"last"`, the last of them;
            None, every sample, for one output a sample.
        norm: `"post"` (default), as in the paper, or `"pre"`, with another norm after the last block.
        dropout: probability of a zero in training, after the positions and after every sub-layer. Calls then need
            `key=`. Default 0.
        scan_layers: whether the blocks are a [`Stack`][sequinox.layers.Stack], compiled once for all of them: for deep
            networks. The numbers are the same.
        remat: whether the blocks are computed a second time for the derivative instead of being kept.
        dtype: of the weights; default: JAX's default, float32.
        options: of every [`TransformerBlock`][sequinox.TransformerBlock], for example `causal=True`, `window=64` or
            `activation=jax.nn.gelu`.

    Returns:
        A [`Sequential`][sequinox.layers.Sequential] with outputs `"*batch n_out"` (`"*batch time n_out"` if `pool` is
        None). It streams if `causal=True`.

    Raises:
        TypeError, ValueError: for sizes that are not positive integers or do not fit, and other wrong arguments.

    ??? example

        ```python
        >>> import jax, jax.numpy as jnp, sequinox as sqx
        >>> net = sqx.transformer_encoder(4, 8, 2, 16, 1, 3, jax.random.key(0), 16)
        >>> net(jnp.ones((5, 4))).shape
        (3,)

        ```
    """
    who = "transformer_encoder"
    if pool not in ("mean", "last", None):
        raise ValueError(f'{who}: pool must be "mean", "last" or None, got {pool!r}')
    k_in, k_body, k_out = jax.random.split(check_key(key, who), 3)
    dtype, n_out = float_dtype(dtype, who), size(n_out, who, "n_out")
    blocks = {"n_heads": n_heads, "d_ff": d_ff, "norm": norm, "dropout": dropout, **options}
    body = _Body(who, d_model, n_layers, max_len, positions, scan_layers, remat, dtype, blocks)
    layers = [body.reader(n_in, tokens, k_in), *body.layers(k_body)]
    layers += [] if pool is None else [MeanOverTime() if pool == "mean" else LastStep()]
    return Sequential([*layers, Dense(d_model, n_out, k_out, dtype=dtype)])


def transformer_decoder(
    n_in: int,
    d_model: int,
    n_heads: int,
    d_ff: int,
    n_layers: int,
    n_out: int,
    key: PRNGKey,
    max_len: int | None = None,
    *,
    tokens: bool = False,
    tied: bool = False,
    readout_bias: bool = True,
    positions: Positions = "sinusoidal",
    norm: Literal["post", "pre"] = "post",
    dropout: float = 0.0,
    scan_layers: bool = False,
    remat: bool = False,
    dtype: DType | None = None,
    **options: Any,
) -> SequenceLayer:
    """A causal transformer: one output a sample, from it and those before it. It streams, with a cache.

    With `tokens=True` and `n_out == n_in` a language model: [`generate`][sequinox.generate] continues its sequences.

    Arguments:
        n_in: width of a sample; with `tokens`, the number of different tokens.
        d_model: width of the blocks.
        n_heads: number of attention heads.
        d_ff: width inside the feed-forward networks.
        n_layers: number of blocks.
        n_out: width of the output; of a language model, the number of tokens.
        key: PRNG key for the weights.
        max_len: the longest row of sinusoidal and learned positions; learned ones need it.
        tokens: whether samples are integer tokens.
        tied: whether the readout is the embedding's own matrix, without a bias; then `n_out` is `n_in`.
        readout_bias: whether a readout that is not tied has a bias, which starts at zero.
        positions: `"sinusoidal"` (default), `"learned"`, `"rotary"` or a `Rotary`, or None.
        norm: `"post"` (default) or `"pre"`, with another norm after the last block.
        dropout: probability of a zero in training, after the positions and after every sub-layer; default 0.
        scan_layers: whether the blocks are a [`Stack`][sequinox.layers.Stack], compiled once for all of them.
        remat: whether the blocks are computed a second time for the derivative instead of being kept.
        dtype: of the weights; default: JAX's default, float32.
        options: of every [`TransformerBlock`][sequinox.TransformerBlock], for example `window=64`, `n_kv_heads=2` or
            `activation=jax.nn.gelu`.

    Returns:
        A layer with outputs `"*batch time n_out"`: a [`Sequential`][sequinox.layers.Sequential], or with `tied` a
        [`TiedReadout`][sequinox.models.TiedReadout] around one.

    Raises:
        TypeError, ValueError: for sizes that are not positive integers or do not fit, and other wrong arguments.

    ??? example

        ```python
        >>> import jax, jax.numpy as jnp, sequinox as sqx
        >>> net = sqx.transformer_decoder(11, 8, 2, 16, 1, 11, jax.random.key(0), tokens=True)
        >>> net(jnp.array([3, 1, 4, 1, 5])).shape
        (5, 11)

        ```
    """
    who = "transformer_decoder"
    if options.pop("causal", True) is not True:
        raise ValueError(f"{who}: a decoder is causal; transformer_encoder need not be")
    blocks = {"n_heads": n_heads, "d_ff": d_ff, "norm": norm, "dropout": dropout, **options}
    body = _Body(who, d_model, n_layers, max_len, positions, scan_layers, remat, float_dtype(dtype, who), blocks)
    return body.decoder(n_in, n_out, tokens, key, tied=tied, readout_bias=readout_bias)


def encoder_decoder(
    n_in: int,
    d_model: int,
    n_heads: int,
    d_ff: int,
    n_layers: int,
    n_out: int,
    key: PRNGKey,
    max_len: int | None = None,
    *,
    tokens: bool = False,
    target_tokens: bool = True,
    tied: bool = False,
    readout_bias: bool = True,
    positions: Positions = "sinusoidal",
    norm: Literal["post", "pre"] = "post",
    dropout: float = 0.0,
    scan_layers: bool = False,
    remat: bool = False,
    dtype: DType | None = None,
    **options: Any,
) -> EncoderDecoder:
    """From sequence to sequence: an encoder reads the source, a causal decoder attends to its outputs.

    Arguments:
        n_in: width of a source sample; with `tokens`, the number of different source tokens.
        d_model: width of the blocks.
        n_heads: number of attention heads.
        d_ff: width inside the feed-forward networks.
        n_layers: number of blocks in the encoder, and in the decoder.
        n_out: number of different target tokens, or with `target_tokens=False` the width of a target sample; also the
            width of the output.
        key: PRNG key for the weights.
        max_len: the longest row, source or target, of sinusoidal and learned positions; learned ones need it.
        tokens: whether source samples are integer tokens.
        target_tokens: whether target samples are.
        tied: whether the readout is the target embedding's own matrix.
        readout_bias: whether a readout that is not tied has a bias, which starts at zero.
        positions: `"sinusoidal"` (default), `"learned"`, `"rotary"` or a `Rotary`, or None.
        norm: `"post"` (default) or `"pre"`, with another norm after the last block.
        dropout: probability of a zero in training, after the positions and after every sub-layer; default 0.
        scan_layers: whether the blocks are a [`Stack`][sequinox.layers.Stack], compiled once for all of them.
        remat: whether the blocks are computed a second time for the derivative instead of being kept.
        dtype: of the weights; default: JAX's default, float32.
        options: of every [`TransformerBlock`][sequinox.TransformerBlock].

    Returns:
        An [`EncoderDecoder`][sequinox.models.EncoderDecoder]: `model.unroll(targets, model.encode(source))`.

    Raises:
        TypeError, ValueError: for sizes that are not positive integers or do not fit, and other wrong arguments.

    ??? example

        ```python
        >>> import jax, jax.numpy as jnp, sequinox as sqx
        >>> model = sqx.encoder_decoder(3, 8, 2, 16, 1, 11, jax.random.key(0))
        >>> state = model.encode(jnp.ones((6, 3)))  # a source of six samples of width 3
        >>> logits, state = model.unroll(jnp.array([3, 1, 4]), state)
        >>> logits.shape
        (3, 11)

        ```
    """
    who = "encoder_decoder"
    k_in, k_encoder, k_decoder = jax.random.split(check_key(key, who), 3)
    n_out = size(n_out, who, "n_out")
    if options.keys() & {"causal", "cross", "d_memory"}:
        raise ValueError(f"{who}: causal, cross and d_memory follow from what it is made of; they are no options")
    blocks = {"n_heads": n_heads, "d_ff": d_ff, "norm": norm, "dropout": dropout, **options}
    body = _Body(who, d_model, n_layers, max_len, positions, scan_layers, remat, float_dtype(dtype, who), blocks)
    encoder = Sequential([body.reader(n_in, tokens, k_in), *body.layers(k_encoder)])
    body = body._replace(blocks={**blocks, "cross": True})
    decoder = body.decoder(n_out, n_out, target_tokens, k_decoder, tied=tied, readout_bias=readout_bias)
    return EncoderDecoder(encoder, decoder)


class _Body(NamedTuple):
    """The settings that encoders and decoders share, and the layers that follow from them."""

    who: str
    d_model: int
    n_layers: int
    max_len: int | None
    positions: Positions
    scan_layers: bool
    remat: bool
    dtype: DType
    blocks: Mapping[str, Any]
    """The options of every block."""

    def reader(self, n_in: int, tokens: bool, key: PRNGKey) -> SequenceLayer:
        """The layer that makes vectors of width `d_model` of the samples."""
        n_in, d_model = size(n_in, self.who, "n_in"), size(self.d_model, self.who, "d_model")
        if flag(tokens, self.who, "tokens"):
            return PerSample(eqx.nn.Embedding(n_in, d_model, key=key, dtype=self.dtype))
        return Dense(n_in, d_model, key, dtype=self.dtype)

    def layers(self, key: PRNGKey) -> list[SequenceLayer]:
        """Positions, dropout, the blocks, and a norm after the last of pre-norm blocks."""
        who, dtype, positions = self.who, self.dtype, self.positions
        n_layers, d_model = size(self.n_layers, who, "n_layers"), size(self.d_model, who, "d_model")
        max_len = None if self.max_len is None else size(self.max_len, who, "max_len")
        scan_layers, remat = flag(self.scan_layers, who, "scan_layers"), flag(self.remat, who, "remat")
        options = {**self.blocks, "dropout": check_rate(self.blocks["dropout"], who, "dropout"), "dtype": dtype}
        k_positions, *keys = jax.random.split(key, n_layers + 1)
        layers: list[SequenceLayer] = []
        if "rotary" in options:
            raise ValueError(f'{who}: rotary is no option; take positions="rotary", or a Rotary as positions')
        if isinstance(positions, Rotary) or positions == "rotary":
            options["rotary"] = positions if isinstance(positions, Rotary) else Rotary()
        elif positions == "sinusoidal":
            layers.append(AddPositions(d_model, max_len))
        elif positions == "learned":
            if max_len is None:
                raise ValueError(f"{who}: learned positions need max_len, the longest row")
            layers.append(AddLearnedPositions(d_model, max_len, k_positions, dtype=dtype))
        elif positions is not None:
            raise ValueError(
                f'{who}: positions must be "sinusoidal", "learned", "rotary", a Rotary or None, got {positions!r}'
            )
        if options["dropout"]:
            layers.append(Dropout(options["dropout"]))
        blocks: list[SequenceLayer] = [TransformerBlock(d_model, key=k, **options) for k in keys]
        blocks = [Remat(block) for block in blocks] if remat else blocks
        layers += [Stack(blocks)] if scan_layers else blocks
        if options["norm"] == "pre":
            layers.append(make_norm(options.get("norm_layer", eqx.nn.LayerNorm), d_model, dtype, who))
        return layers

    def decoder(
        self, n_in: int, n_out: int, tokens: bool, key: PRNGKey, *, tied: bool, readout_bias: bool
    ) -> SequenceLayer:
        """A causal transformer with a readout."""
        who, dtype = self.who, self.dtype
        k_in, k_body, k_out = jax.random.split(check_key(key, who), 3)
        n_in, n_out = size(n_in, who, "n_in"), size(n_out, who, "n_out")
        readout_bias = flag(readout_bias, who, "readout_bias")
        if flag(tied, who, "tied") and (not tokens or n_in != n_out):
            raise ValueError(
                f"{who}: a tied readout needs tokens=True and n_out == n_in, got n_in {n_in}, n_out {n_out}"
            )
        layers = self._replace(blocks={**self.blocks, "causal": True}).layers(k_body)
        if tied:
            return TiedReadout(n_in, Sequential(layers), k_in, dtype=dtype)
        head = Dense(self.d_model, n_out, k_out, use_bias=readout_bias, dtype=dtype)
        return Sequential([self.reader(n_in, tokens, k_in), *layers, head])
