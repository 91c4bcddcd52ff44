"""Multi-head self-attention."""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .._checks import batch_shape, check_flags, check_rate, flag, float_dtype, size
from .._layer import SequenceLayer, require_streaming, select
from .._linear import apply_affine
from .._types import ArrayLike, BatchShape, DType, Initializer, PRNGKey, State
from ..layers import Dropout
from ._cache import Cache, GrowingKVCache, KVCache, RingKVCache, append, flatten, push, slots, unflatten
from ._dot_product import Visible, attend, attend_one, weights
from ._heads import check_sizes, drop_of, make_projections, merge_batch, split_heads
from ._positions import Rotary, places


class MultiHeadSelfAttention(SequenceLayer[Cache]):
    r"""Multi-head self-attention: every sample attends to the row's samples, weighted by a learned similarity.

    $$
    \begin{aligned}
    \text{head}_i &= \operatorname{softmax}\!\left(\frac{Q_i K_i^\top}{\sqrt{d_\text{head}}}\right) V_i
    \qquad Q = W_Q x \quad K = W_K x \quad V = W_V x \\
    y &= W_O\, [\text{head}_1; \dots; \text{head}_h]
    \end{aligned}
    $$

    $Q_i$, $K_i$, $V_i$ are the $i$-th slices of width $d_\text{head}$. With `causal=True` a sample sees itself and the
    samples before it, and the layer streams: its state is a cache of keys and values. The cache grows by default;
    `init_cache(capacity=...)` or [`with_capacity`][sequinox.attention.with_capacity] gives one of fixed size, for
    `jit`. With a `window` it is a ring, and the stream may run forever. Without `causal` the layer does not stream,
    and its state is empty.

    Sources: [Vaswani et al. 2017](https://arxiv.org/abs/1706.03762), page 5; fewer key-value heads:
    [Shazeer 2019](https://arxiv.org/abs/1911.02150), [Ainslie et al. 2023](https://arxiv.org/abs/2305.13245); window:
    [Beltagy et al. 2020](https://arxiv.org/abs/2004.05150), section 3.1.

    ??? example

        ```python
        >>> import jax, jax.numpy as jnp, sequinox as sqx
        >>> attention = sqx.MultiHeadSelfAttention(8, 2, jax.random.key(0), causal=True)
        >>> attention(jnp.ones((4, 8))).shape
        (4, 8)
        >>> y, cache = attention.step(jnp.ones(8), attention.init_cache())
        >>> cache.k.shape
        (1, 8)

        ```
    """

    W_Q: Float[Array, "n_heads*d_head d_model"]
    W_K: Float[Array, "n_kv_heads*d_head d_model"]
    W_V: Float[Array, "n_kv_heads*d_head d_model"]
    W_O: Float[Array, "d_model n_heads*d_head"]
    b_Q: Float[Array, " n_heads*d_head"] | None
    b_K: Float[Array, " n_kv_heads*d_head"] | None
    b_V: Float[Array, " n_kv_heads*d_head"] | None
    b_O: Float[Array, " d_model"] | None
    rotary: Rotary | None
    dropout: Dropout
    n_in: int = eqx.field(static=True)
    n_out: int = eqx.field(static=True)
    n_heads: int = eqx.field(static=True)
    n_kv_heads: int = eqx.field(static=True)
    d_head: int = eqx.field(static=True)
    causal: bool = eqx.field(static=True)
    window: int | None = eqx.field(static=True)
    chunk_size: int | None = eqx.field(static=True)

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        key: PRNGKey,
        causal: bool = False,
        *,
        n_kv_heads: int | None = None,
        d_head: int | None = None,
        window: int | None = None,
        rotary: Rotary | None = None,
        dropout: float = 0.0,
        use_bias: bool = False,
        chunk_size: int | None = None,
        initializer: Initializer = jax.nn.initializers.xavier_normal(),
        dtype: DType | None = None,
    ):
        """
        Arguments:
            d_model: width of a sample, and of the output.
            n_heads: number of heads.
            key: PRNG key for the weights.
            causal: whether a sample sees no later one; then the layer streams.
            n_kv_heads: number of heads of keys and values, each serving `n_heads / n_kv_heads` heads of queries, and a
                cache smaller by as much; 1 is multi-query attention. Default: `n_heads`.
            d_head: width of a head; default: `d_model / n_heads`.
            window: a sample sees those that are less than `window` real samples away, itself among them. Default: all.
            rotary: rotary positions for queries and keys, `Rotary()`. Default: none; attention then does not know the
                order of what it sees.
            dropout: probability of a zero among the attention weights in training. Calls then need `key=`. Default 0.
            use_bias: whether the projections have biases, which start at zero. The paper has none.
            chunk_size: number of queries at a time in `unroll` and `forward`, for long rows: memory grows with
                `chunk_size * time` instead of `time * time`. Default: all at once, which is faster.
            initializer: of the weights; default `xavier_normal`, as in the other layers.
            dtype: of the weights; default: JAX's default, float32.

        Raises:
            ValueError: if `d_model` is no multiple of `n_heads`, or `n_heads` of `n_kv_heads`.
            TypeError, ValueError: for sizes that are not positive integers, and other wrong arguments.
        """
        who = "MultiHeadSelfAttention"
        s = check_sizes(who, d_model, n_heads, n_kv_heads, d_head)
        self.n_in = self.n_out = s.d_model
        self.n_heads, self.n_kv_heads, self.d_head = s.n_heads, s.n_kv_heads, s.d_head
        self.causal = flag(causal, who, "causal")
        self.window = None if window is None else size(window, who, "window")
        self.chunk_size = None if chunk_size is None else size(chunk_size, who, "chunk_size")
        if rotary is not None and not isinstance(rotary, Rotary):
            raise TypeError(f"{who}: rotary must be a Rotary, such as Rotary(), or None, got {rotary!r}")
        if rotary is not None and s.d_head % 2:
            raise ValueError(f"{who}: rotary positions need heads of an even width, got d_head {s.d_head}")
        self.rotary = rotary
        self.dropout = Dropout(check_rate(dropout, who, "dropout"))
        weights, biases = make_projections(who, s, s.d_model, key, use_bias, initializer, dtype)
        self.W_Q, self.W_K, self.W_V, self.W_O = weights
        self.b_Q, self.b_K, self.b_V, self.b_O = biases

    @property
    def offline_reason(self) -> str | None:
        """Attention that is not causal sees later samples."""
        if self.causal:
            return None
        return "MultiHeadSelfAttention without causal=True sees later samples, which a stream has not reached"

    @property
    def receptive_field(self) -> int | None:
        """The window; None without one."""
        return self.window if self.causal else None

    # ---- the state -------------------------------------------------------------------------------------------------

    def init_state(self, batch: BatchShape = (), dtype: DType | None = None, *, capacity: int | None = None) -> State:
        """An empty cache; the empty tuple if the layer is not causal.

        Arguments:
            batch: the batch axes, an integer or a tuple; `()` for a single stream.
            dtype: dtype of the stream; default: that of the weights.
            capacity: number of slots of a cache of fixed size. Default: a cache that grows. With a `window` the cache
                is a ring, and takes no capacity.

        Returns:
            A [`GrowingKVCache`][sequinox.attention.GrowingKVCache] of shapes `"*batch 0 n_kv_heads*d_head"`; a
            [`KVCache`][sequinox.attention.KVCache] of `capacity` slots; or a
            [`RingKVCache`][sequinox.attention.RingKVCache].
        """
        who = "MultiHeadSelfAttention.init_state"
        batch = batch_shape(batch, who)
        dtype = float_dtype(self.dtype if dtype is None else dtype, who)
        if capacity is not None:
            require_streaming(self, who)
            capacity = size(capacity, who, "capacity")
            if self.window is not None:
                raise ValueError(f"{who}: capacity is not needed: with window={self.window} the cache is a ring")
        if not self.causal:
            return ()
        make: Any = GrowingKVCache if capacity is None else KVCache
        number = 0 if capacity is None else capacity
        if self.window is not None:
            make, number = RingKVCache, 1 << (self.window - 1).bit_length()
        empty = lambda: jnp.zeros((*batch, number, self.n_kv_heads * self.d_head), dtype)
        return make(empty(), empty(), jnp.zeros(batch, jnp.int32))  # two buffers, since both may be donated

    def init_cache(self, batch: BatchShape = (), dtype: DType | None = None, *, capacity: int | None = None) -> Cache:
        """The same as [`init_state`][sequinox.MultiHeadSelfAttention.init_state], of a layer that streams."""
        require_streaming(self, "MultiHeadSelfAttention.init_cache")
        return self.init_state(batch, dtype, capacity=capacity)

    # ---- running ---------------------------------------------------------------------------------------------------

    def _step(self, x: Array, state: State, key: Array | None) -> tuple[Array, State]:
        batch = x.shape[:-1]
        cache = flatten(state)
        q, k, v = self._project(x.reshape(math.prod(batch), 1, self.n_in), cache.n[:, None])
        cache = push(cache, k[:, 0], v[:, 0], self.window)
        held = slots(cache.n, cache.k.shape[1])
        seen = held.row == 0
        if self.window is not None:
            seen = seen & (held.place >= -self.window)
        heads = attend_one(q[:, 0], cache.k, cache.v, seen, self.n_kv_heads, drop=drop_of(self.dropout), key=key)
        y = apply_affine(self.W_O, heads[:, None], self.b_O)
        return y.reshape(*batch, self.n_out), unflatten(cache, batch)

    def _unroll(
        self, xs: Array, state: State, mask: Array | None, resets: Array | None, key: Array | None
    ) -> tuple[Array, State]:
        if not self.causal:
            return self._forward(xs, mask, resets, key), state
        batch, time = xs.shape[:-2], xs.shape[-2]
        cache = flatten(state)
        mask, resets = (None if a is None else merge_batch(a, 1) for a in (mask, resets))
        where = places(cache.n, cache.n.shape, time, mask, resets)
        q, k, v = self._project(merge_batch(xs, 2), where.position)
        held = slots(cache.n, cache.k.shape[1])
        full = (cache.n.shape[0], time)
        place, row = (jnp.broadcast_to(a, full) for a in (where.earlier, where.row))
        visible = Visible(
            place,
            jnp.concatenate([held.place, place], 1),
            row,
            jnp.concatenate([held.row, row if mask is None else jnp.where(mask, row, -1)], 1),
            causal=True,
            window=self.window,
        )
        ks, vs = (jnp.concatenate([a, b], 1) for a, b in ((cache.k, k), (cache.v, v)))
        y = self._attend(q, ks, vs, visible, key, self.chunk_size)
        after = append(cache, k, v, where, mask, resets, self.window)
        return y.reshape(*batch, time, self.n_out), unflatten(after, batch)

    def _forward(self, xs: Array, mask: Array | None, resets: Array | None, key: Array | None) -> Array:
        (q, k, v), visible = self._whole(xs, mask, resets)
        return self._attend(q, k, v, visible, key, self.chunk_size).reshape(xs.shape)

    def attention_weights(
        self, xs: ArrayLike, *, mask: ArrayLike | None = None, resets: ArrayLike | None = None
    ) -> Float[Array, "*batch n_heads time time"]:
        """The weights with which each sample attends to each, for plots: rows are queries, columns keys.

        Arguments:
            xs: a whole sequence, `"*batch time d_model"`.
            mask: bool `"*batch time"`, True on real samples; default: all are real.
            resets: bool `"*batch time"`, True where the state starts afresh before the sample is read.

        Returns:
            Weights in float32 at least, without dropout. A row sums to 1; to 0 where a sample is masked.
        """
        who = "MultiHeadSelfAttention.attention_weights"
        samples, batch = self._check_samples(xs, who, "xs", time=True)
        shape, time = samples.shape[:-1], samples.shape[-2]
        real, fresh = check_flags(mask, shape, who, "mask"), check_flags(resets, shape, who, "resets")
        if real is not None:
            samples = select(real, samples, jnp.zeros_like(samples))
        (q, k, _), visible = self._whole(samples, real, fresh)
        k = split_heads(k, self.n_kv_heads)
        w = weights(q, k, visible.pairs(), 1 / math.sqrt(self.d_head))
        return w.reshape(*batch, self.n_heads, time, time)

    def _whole(
        self, xs: Array, mask: Bool[Array, "..."] | None, resets: Bool[Array, "..."] | None
    ) -> tuple[tuple[Array, Array, Array], Visible]:
        """Queries, keys and values of a whole sequence, and who sees whom."""
        batch, time = xs.shape[:-2], xs.shape[-2]
        mask, resets = (None if a is None else merge_batch(a, 1) for a in (mask, resets))
        where = places(None, (math.prod(batch),), time, mask, resets)
        qkv = self._project(merge_batch(xs, 2), where.position)
        q_row = k_row = None
        if mask is not None or resets is not None:
            q_row = k_row = where.row
        if mask is not None:
            row = jnp.broadcast_to(where.row, mask.shape)
            q_row, k_row = jnp.where(mask, row, -2), jnp.where(mask, row, -1)  # a masked one sees nothing, unseen
        return qkv, Visible(where.earlier, where.earlier, q_row, k_row, causal=self.causal, window=self.window)

    def _project(self, xs: Array, positions: Array) -> tuple[Array, Array, Array]:
        """Queries with their heads apart, keys and values as they are kept."""
        q = split_heads(apply_affine(self.W_Q, xs, self.b_Q), self.n_heads)
        k, v = apply_affine(self.W_K, xs, self.b_K), apply_affine(self.W_V, xs, self.b_V)
        if self.rotary is not None:
            q = self.rotary(q, positions)
            k = self.rotary(split_heads(k, self.n_kv_heads), positions).reshape(k.shape)
        return q, k, v

    def _attend(
        self, q: Array, k: Array, v: Array, visible: Visible, key: Array | None, chunk_size: int | None
    ) -> Array:
        k, v = (split_heads(a, self.n_kv_heads) for a in (k, v))
        heads = attend(q, k, v, visible, chunk_size=chunk_size, drop=drop_of(self.dropout), key=key)
        return apply_affine(self.W_O, heads.reshape(*heads.shape[:2], self.n_heads * self.d_head), self.b_O)
