"""One block of a transformer."""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
from jaxtyping import Array

from .._checks import check_key, check_rate, flag, float_dtype
from .._layer import SequenceLayer
from .._types import BatchShape, DType, Initializer, PRNGKey, State
from ..layers import Dropout, FeedForward, PerSample
from ._cross_attention import MultiHeadCrossAttention
from ._positions import Rotary
from ._self_attention import MultiHeadSelfAttention


class BlockState(NamedTuple):
    """The states of the two attention layers of a `TransformerBlock`; the second is empty if there is none."""

    self_attention: State
    cross_attention: State


class TransformerBlock(SequenceLayer[BlockState]):
    r"""Self-attention, cross-attention to a memory if there is one, and a feed-forward network, each with a residual
    connection and a norm.

    $$
    x' = \operatorname{Norm}(x + \operatorname{Sublayer}(x)) \quad\text{(post)}
    \qquad\qquad
    x' = x + \operatorname{Sublayer}(\operatorname{Norm}(x)) \quad\text{(pre)}
    $$

    With `causal=True` the block streams; its state holds the cache of its self-attention, and the memory of its
    cross-attention. After the last of several pre-norm blocks comes one more norm, which
    [`transformer_encoder`][sequinox.models.transformer_encoder] and
    [`transformer_decoder`][sequinox.models.transformer_decoder] add.

    Sources: [Vaswani et al. 2017](https://arxiv.org/abs/1706.03762), pages 3 and 5 (post-norm, and dropout on what each
    sub-layer returns, page 8); pre-norm: [Xiong et al. 2020](https://arxiv.org/abs/2002.04745).

    ??? example

        ```python
        >>> import jax, jax.numpy as jnp, sequinox as sqx
        >>> block = sqx.TransformerBlock(8, 2, 16, jax.random.key(0), causal=True)
        >>> block(jnp.ones((5, 8))).shape
        (5, 8)

        ```
    """

    self_attention: MultiHeadSelfAttention
    cross_attention: MultiHeadCrossAttention | None
    feed_forward: FeedForward
    norm_self: PerSample
    norm_cross: PerSample | None
    norm_feed_forward: PerSample
    dropout: Dropout
    n_in: int = eqx.field(static=True)
    n_out: int = eqx.field(static=True)
    norm: str = eqx.field(static=True)

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        d_ff: int,
        key: PRNGKey,
        *,
        causal: bool = False,
        window: int | None = None,
        rotary: Rotary | None = None,
        cross: bool = False,
        d_memory: int | None = None,
        n_kv_heads: int | None = None,
        d_head: int | None = None,
        attention_bias: bool = False,
        attention_dropout: float = 0.0,
        chunk_size: int | None = None,
        activation: Callable = jax.nn.relu,
        gated: bool = False,
        feed_forward_bias: bool = True,
        norm: Literal["post", "pre"] = "post",
        norm_layer: Callable[..., Any] = eqx.nn.LayerNorm,
        dropout: float = 0.0,
        initializer: Initializer = jax.nn.initializers.xavier_normal(),
        dtype: DType | None = None,
    ):
        """
        Arguments:
            d_model: width of a sample, and of the output.
            n_heads: number of heads.
            d_ff: width inside the feed-forward network.
            key: PRNG key for the weights.
            causal: of self-attention: whether a sample sees no later one; then the block streams.
            window: of self-attention: a sample sees those that are less than `window` away. Default: all.
            rotary: of self-attention: rotary positions, `Rotary()`. Default: none.
            cross: whether the block attends to a memory too, between self-attention and the feed-forward network.
            d_memory: width of the memory; default: `d_model`.
            n_kv_heads: of both attentions: number of heads of keys and values; default: `n_heads`.
            d_head: of both attentions: width of a head; default: `d_model / n_heads`.
            attention_bias: whether the projections of both attentions have biases; the paper has none.
            attention_dropout: probability of a zero among the attention weights in training. Default 0.
            chunk_size: of both attentions: number of queries at a time, for long rows. Default: all at once.
            activation: of the feed-forward network; default `jax.nn.relu`, as in the paper.
            gated: whether the feed-forward network has a gate; with `activation=jax.nn.silu` that is SwiGLU.
            feed_forward_bias: whether the feed-forward network has biases, as in the paper.
            norm: `"post"` (default), as in the paper, or `"pre"`, which trains more easily when it is deep.
            norm_layer: called as `norm_layer(d_model, dtype=dtype)`; default `eqx.nn.LayerNorm`. `eqx.nn.RMSNorm` too.
            dropout: probability of a zero in the output of each sub-layer, before the addition, in training. Calls then
                need `key=`. Default 0.
            initializer: of the weights; default `xavier_normal`.
            dtype: of the weights; default: JAX's default, float32.

        Raises:
            TypeError, ValueError: for sizes that are not positive integers or do not fit, and other wrong arguments.
        """
        who = "TransformerBlock"
        if norm not in ("post", "pre"):
            raise ValueError(f'{who}: norm must be "post" or "pre", got {norm!r}')
        k_self, k_cross, k_forward = jax.random.split(check_key(key, who), 3)
        dtype = float_dtype(dtype, who)
        common: Any = {
            "n_kv_heads": n_kv_heads,
            "d_head": d_head,
            "dropout": attention_dropout,
            "use_bias": attention_bias,
            "chunk_size": chunk_size,
            "initializer": initializer,
            "dtype": dtype,
        }
        self.self_attention = MultiHeadSelfAttention(
            d_model, n_heads, k_self, causal, window=window, rotary=rotary, **common
        )
        self.cross_attention = None
        if flag(cross, who, "cross"):
            self.cross_attention = MultiHeadCrossAttention(d_model, n_heads, k_cross, d_memory=d_memory, **common)
        elif d_memory is not None:
            raise ValueError(f"{who}: d_memory is of no use without cross=True")
        self.feed_forward = FeedForward(
            d_model,
            d_ff,
            k_forward,
            activation=activation,
            gated=gated,
            use_bias=feed_forward_bias,
            initializer=initializer,
            dtype=dtype,
        )
        self.norm_self, self.norm_feed_forward = (make_norm(norm_layer, d_model, dtype, who) for _ in range(2))
        self.norm_cross = make_norm(norm_layer, d_model, dtype, who) if cross else None
        self.dropout = Dropout(check_rate(dropout, who, "dropout"))
        self.n_in = self.n_out = self.self_attention.n_in
        self.norm = norm

    @property
    def offline_reason(self) -> str | None:
        """That of the self-attention."""
        return self.self_attention.offline_reason

    @property
    def receptive_field(self) -> int | None:
        """That of the self-attention."""
        return self.self_attention.receptive_field

    def init_state(self, batch: BatchShape = (), dtype: DType | None = None) -> BlockState:
        """An empty cache, and no memory.

        Arguments:
            batch: the batch axes, an integer or a tuple; `()` for a single stream.
            dtype: dtype of the stream; default: that of the weights.
        """
        memory = () if self.cross_attention is None else self.cross_attention.init_state(batch, dtype)
        return BlockState(self.self_attention.init_state(batch, dtype), memory)

    def _remember(self, state: State, memory: Array, mask: Array | None) -> State:
        if self.cross_attention is None:
            return state
        return BlockState(state.self_attention, self.cross_attention.read(memory, mask=mask))

    def _step(self, x: Array, state: BlockState, key: Array | None) -> tuple[Array, BlockState]:
        run = lambda layer, x, s, key: layer.step(x, s, key=key)
        return self._run(run, x, state, key)

    def _unroll(
        self, xs: Array, state: BlockState, mask: Array | None, resets: Array | None, key: Array | None
    ) -> tuple[Array, BlockState]:
        run = lambda layer, x, s, key: layer.unroll(x, s, mask=mask, resets=resets, key=key)
        return self._run(run, xs, state, key)

    def _forward(self, xs: Array, mask: Array | None, resets: Array | None, key: Array | None) -> Array:
        run = lambda layer, x, _, key: (layer.forward(x, mask=mask, resets=resets, key=key), ())
        return self._run(run, xs, BlockState((), ()), key)[0]

    def _run(self, run: Callable, x: Array, state: BlockState, key: Array | None) -> tuple[Array, BlockState]:
        """The sub-layers one after another; `run(layer, x, state, key)` runs one with a state."""
        keys = [None] * 5 if key is None else list(jax.random.split(key, 5))
        x, own = self._sublayer(self.norm_self, lambda y: run(self.self_attention, y, state[0], keys[0]), x, keys[1])
        memory = state.cross_attention
        if self.cross_attention is not None:
            attend = lambda y: run(self.cross_attention, y, memory, keys[2])
            x, memory = self._sublayer(self.norm_cross, attend, x, keys[3])
        x, _ = self._sublayer(self.norm_feed_forward, lambda y: (self.feed_forward.apply(y, None), ()), x, keys[4])
        return x, BlockState(own, memory)

    def _sublayer(self, norm: Any, run: Callable, x: Array, key: Array | None) -> tuple[Array, State]:
        y, state = run(norm.apply(x, None) if self.norm == "pre" else x)
        x = x + self.dropout.apply(y, key)
        return norm.apply(x, None) if self.norm == "post" else x, state


def make_norm(norm_layer: Callable[..., Any], d_model: int, dtype: Any, who: str) -> PerSample:
    """A norm of samples of width `d_model`."""
    if not callable(norm_layer):
        raise TypeError(f"{who}: norm_layer must be a class such as eqx.nn.LayerNorm, got {norm_layer!r}")
    norm = PerSample(norm_layer(d_model, dtype=dtype), d_model)
    if norm.n_out != d_model:
        raise ValueError(f"{who}: norm_layer must keep the width {d_model} of a sample, but gives {norm.n_out}")
    return norm
