"""Multi-head cross-attention, and a gate between two signals."""

import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .._checks import batch_shape, check_array, check_flags, check_key, check_rate, float_dtype, size, sizes
from .._layer import SequenceLayer, select
from .._linear import apply_affine, make_weight
from .._types import ArrayLike, BatchShape, DType, Initializer, PRNGKey, State
from ..layers import Dropout, Pointwise
from ._dot_product import Visible, attend, weights
from ._heads import check_sizes, drop_of, make_projections, merge_batch, split_heads


class Memory(NamedTuple):
    """The state of cross-attention: the keys and values of what is attended to. No sample changes it."""

    k: Float[Array, "*batch places d_kv"]
    v: Float[Array, "*batch places d_kv"]
    real: Bool[Array, "*batch places"]


class NoMemory(NamedTuple):
    """The state of cross-attention before a memory is read: one without places, from which nothing runs."""

    k: Float[Array, "*batch 0 d_kv"]
    v: Float[Array, "*batch 0 d_kv"]
    real: Bool[Array, "*batch 0"]

    def as_given(self, given: Any, where: str) -> "Memory | NoMemory":
        """What a given state is to be like, where a layer begins with this: a memory of any number of places."""
        if isinstance(given, NoMemory):
            return self
        if not isinstance(given, tuple) or len(given) != 3:
            raise TypeError(f"{where} must be a Memory, as read gives, got {type(given).__name__}")
        shape = getattr(given[0], "shape", ())
        batch, number = self.real.shape[:-1], shape[-2] if len(shape) > 1 else 0
        kv = jax.ShapeDtypeStruct((*batch, number, self.k.shape[-1]), self.k.dtype)
        return Memory(kv, kv, jax.ShapeDtypeStruct((*batch, number), bool))  # pyright: ignore[reportArgumentType]


class MultiHeadCrossAttention(SequenceLayer[Memory | NoMemory]):
    r"""Multi-head attention of one sequence to another: each sample attends to every place of a memory.

    As [`MultiHeadSelfAttention`][sequinox.MultiHeadSelfAttention], with queries from the samples $x$ and keys and
    values from the memory $m$: $Q = W_Q x$, $K = W_K m$, $V = W_V m$.

    The memory is the layer's *state*: `state = layer.read(memory, mask=...)` reads it once, and `step` and `unroll`
    take it from there. They leave it as it is, and so does a reset, which starts the samples afresh and not what they
    attend to. Without a memory the layer does not run.

    Source: [Vaswani et al. 2017](https://arxiv.org/abs/1706.03762), section 3.2.3.

    ??? example

        ```python
        >>> import jax, jax.numpy as jnp, sequinox as sqx
        >>> cross = sqx.MultiHeadCrossAttention(8, 2, jax.random.key(0), d_memory=5)
        >>> state = cross.read(jnp.ones((6, 5)))  # six places of width 5
        >>> ys, state = cross.unroll(jnp.ones((4, 8)), state)
        >>> ys.shape
        (4, 8)

        ```
    """

    W_Q: Float[Array, "n_heads*d_head d_model"]
    W_K: Float[Array, "n_kv_heads*d_head d_memory"]
    W_V: Float[Array, "n_kv_heads*d_head d_memory"]
    W_O: Float[Array, "d_model n_heads*d_head"]
    b_Q: Float[Array, " n_heads*d_head"] | None
    b_K: Float[Array, " n_kv_heads*d_head"] | None
    b_V: Float[Array, " n_kv_heads*d_head"] | None
    b_O: Float[Array, " d_model"] | None
    dropout: Dropout
    n_in: int = eqx.field(static=True)
    n_out: int = eqx.field(static=True)
    d_memory: int = eqx.field(static=True)
    n_heads: int = eqx.field(static=True)
    n_kv_heads: int = eqx.field(static=True)
    d_head: int = eqx.field(static=True)
    chunk_size: int | None = eqx.field(static=True)

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        key: PRNGKey,
        *,
        d_memory: int | None = None,
        n_kv_heads: int | None = None,
        d_head: int | None = None,
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
            d_memory: width of the memory; default: `d_model`.
            n_kv_heads: number of heads of keys and values; default: `n_heads`.
            d_head: width of a head; default: `d_model / n_heads`.
            dropout: probability of a zero among the attention weights in training. Calls then need `key=`. Default 0.
            use_bias: whether the projections have biases, which start at zero. The paper has none.
            chunk_size: number of queries at a time. Default: all at once.
            initializer: of the weights; default `xavier_normal`.
            dtype: of the weights; default: JAX's default, float32.

        Raises:
            ValueError: if `d_model` is no multiple of `n_heads`, or `n_heads` of `n_kv_heads`.
            TypeError, ValueError: for sizes that are not positive integers, and other wrong arguments.
        """
        who = "MultiHeadCrossAttention"
        s = check_sizes(who, d_model, n_heads, n_kv_heads, d_head)
        self.n_in = self.n_out = s.d_model
        self.n_heads, self.n_kv_heads, self.d_head = s.n_heads, s.n_kv_heads, s.d_head
        self.d_memory = s.d_model if d_memory is None else size(d_memory, who, "d_memory")
        self.chunk_size = None if chunk_size is None else size(chunk_size, who, "chunk_size")
        self.dropout = Dropout(check_rate(dropout, who, "dropout"))
        weights, biases = make_projections(who, s, self.d_memory, key, use_bias, initializer, dtype)
        self.W_Q, self.W_K, self.W_V, self.W_O = weights
        self.b_Q, self.b_K, self.b_V, self.b_O = biases

    # ---- the state -------------------------------------------------------------------------------------------------

    def read(self, memory: ArrayLike, *, mask: ArrayLike | None = None) -> Memory:
        """The state that holds a memory.

        Arguments:
            memory: `"*batch places d_memory"`, for example the outputs of an encoder.
            mask: bool `"*batch places"`, True on real places; the others are not attended to, and their content (NaN
                included) has no effect. Default: all are real.
        """
        who = "MultiHeadCrossAttention.read"
        check_array(memory, who, "memory")
        given = jnp.asarray(memory)
        if given.dtype != self.dtype:
            raise TypeError(f"{who}: memory has dtype {given.dtype} but the weights have {self.dtype}")
        if given.ndim < 2 or given.shape[-1] != self.d_memory:
            raise ValueError(f"{who}: memory must have shape (*batch, places, {self.d_memory}), got {given.shape}")
        real = check_flags(mask, given.shape[:-1], who, "mask")
        if real is not None:
            given = select(real, given, jnp.zeros_like(given))
        k, v = apply_affine(self.W_K, given, self.b_K), apply_affine(self.W_V, given, self.b_V)
        return Memory(k, v, jnp.ones(given.shape[:-1], bool) if real is None else real)

    def init_state(self, batch: BatchShape = (), dtype: DType | None = None) -> NoMemory:
        """No memory has been read yet.

        Arguments:
            batch: the batch axes, an integer or a tuple; `()` for a single stream.
            dtype: dtype of the stream; default: that of the weights.
        """
        who = "MultiHeadCrossAttention.init_state"
        batch, dtype = batch_shape(batch, who), float_dtype(self.dtype if dtype is None else dtype, who)
        empty = lambda: jnp.zeros((*batch, 0, self.n_kv_heads * self.d_head), dtype)
        return NoMemory(empty(), empty(), jnp.zeros((*batch, 0), bool))

    def _remember(self, state: State, memory: Array, mask: Array | None) -> Memory:
        del state
        return self.read(memory, mask=mask)

    # ---- running ---------------------------------------------------------------------------------------------------

    def _unroll(
        self, xs: Array, state: Memory | NoMemory, mask: Array | None, resets: Array | None, key: Array | None
    ) -> tuple[Array, Memory | NoMemory]:
        del mask, resets
        q, k, v, visible = self._whole(xs, state)
        heads = attend(q, k, v, visible, chunk_size=self.chunk_size, drop=drop_of(self.dropout), key=key)
        y = apply_affine(self.W_O, heads.reshape(*heads.shape[:2], self.n_heads * self.d_head), self.b_O)
        return y.reshape(xs.shape), state

    def attention_weights(self, xs: ArrayLike, state: Memory | NoMemory) -> Float[Array, "*batch n_heads time places"]:
        """The weights with which each sample attends to each place of the memory, for plots.

        Arguments:
            xs: the samples, `"*batch time d_model"`.
            state: the memory, from `read`.

        Returns:
            Weights in float32 at least, without dropout; a row sums to 1, to 0 if the memory has no real place.
        """
        who = "MultiHeadCrossAttention.attention_weights"
        samples, batch = self._check_samples(xs, who, "xs", time=True)
        q, k, _, visible = self._whole(samples, self._resolve_state(state, batch, samples.dtype, who))
        shape = (*batch, self.n_heads, samples.shape[-2], k.shape[1])
        return weights(q, k, visible.pairs(), 1 / math.sqrt(self.d_head)).reshape(shape)

    def _whole(self, xs: Array, state: Memory | NoMemory) -> tuple[Array, Array, Array, Visible]:
        if isinstance(state, NoMemory):
            raise ValueError(
                "MultiHeadCrossAttention: there is no memory to look at: begin with "
                "state = layer.read(memory), or of an encoder-decoder with model.encode(source)"
            )
        k, v, real = merge_batch(state.k, 2), merge_batch(state.v, 2), merge_batch(state.real, 1)
        q = split_heads(apply_affine(self.W_Q, merge_batch(xs, 2), self.b_Q), self.n_heads)
        k, v = (split_heads(a, self.n_kv_heads) for a in (k, v))
        zero = lambda n: jnp.zeros((1, n), jnp.int32)
        row = jnp.where(real, 0, -1)
        return q, k, v, Visible(zero(q.shape[1]), zero(k.shape[1]), zero(q.shape[1]), row)


class GatedFusion(Pointwise):
    r"""A learned gate between two signals, such as two sensors, or a sample and what attention found for it.

    $$
    \begin{aligned}
    h_a &= \tanh(W_a a + b_a) \qquad h_b = \tanh(W_b b + b_b) \\
    z &= \sigma(W_z [a; b] + b_z) \qquad y = z \odot h_a + (1 - z) \odot h_b
    \end{aligned}
    $$

    A sample is the two signals side by side, $[a; b]$. The gate takes $a$ where it is 1, $b$ where it is 0.

    Source: the bimodal unit of [Arevalo et al. 2017](https://arxiv.org/abs/1702.01992), section 3.1; the biases are our
    addition, and start at zero.

    ??? example

        ```python
        >>> import jax, jax.numpy as jnp, sequinox as sqx
        >>> fusion = sqx.GatedFusion(3, 5, 4, jax.random.key(0))
        >>> a, b = jnp.ones((7, 3)), jnp.zeros((7, 5))
        >>> fusion(jnp.concatenate([a, b], -1)).shape
        (7, 4)

        ```
    """

    W_a: Float[Array, "n_out n_a"]
    b_a: Float[Array, " n_out"]
    W_b: Float[Array, "n_out n_b"]
    b_b: Float[Array, " n_out"]
    W_z: Float[Array, "n_out n_a+n_b"]
    b_z: Float[Array, " n_out"]
    n_in: int = eqx.field(static=True)
    n_out: int = eqx.field(static=True)
    n_a: int = eqx.field(static=True)
    n_b: int = eqx.field(static=True)

    def __init__(
        self,
        n_a: int,
        n_b: int,
        n_out: int,
        key: PRNGKey,
        *,
        initializer: Initializer = jax.nn.initializers.xavier_normal(),
        dtype: DType | None = None,
    ):
        """
        Arguments:
            n_a: width of the first signal.
            n_b: width of the second signal, which follows the first in a sample.
            n_out: width of the output.
            key: PRNG key for the weights.
            initializer: of the weights; default `xavier_normal`.
            dtype: of the weights; default: JAX's default, float32.
        """
        who = "GatedFusion"
        self.n_a, self.n_b, self.n_out = sizes(who, n_a=n_a, n_b=n_b, n_out=n_out)
        self.n_in = self.n_a + self.n_b
        dtype = float_dtype(dtype, who)
        keys = jax.random.split(check_key(key, who), 3)
        self.W_a, self.W_b, self.W_z = (
            make_weight(k, (self.n_out, n), initializer, dtype, who)
            for k, n in zip(keys, (self.n_a, self.n_b, self.n_in), strict=True)
        )
        self.b_a, self.b_b, self.b_z = (jnp.zeros(self.n_out, dtype) for _ in range(3))

    def apply(self, x: Array, key: Array | None) -> Array:
        """The fused signal, from the two side by side."""
        del key
        a, b = x[..., : self.n_a], x[..., self.n_a :]
        h_a = jnp.tanh(apply_affine(self.W_a, a, self.b_a))
        h_b = jnp.tanh(apply_affine(self.W_b, b, self.b_b))
        z = jax.nn.sigmoid(apply_affine(self.W_z, x, self.b_z))
        return z * h_a + (1 - z) * h_b
