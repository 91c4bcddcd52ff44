"""The table of layers: everything public, and layers as users write them, each with sizes that are all different.

Rows 7, time 4, input 3, hidden 5 (6 in a second direction), output 2. Weights are perturbed, so that none is zero.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from entry import KEYS, N_IN, Entry
from jaxtyping import Array, Float
from table_averages import AVERAGES
from table_composition import COMPOSITION
from table_convolution import CONVOLUTION
from table_diagonal import DIAGONAL
from table_filters import FILTERS
from table_gated import GATED
from table_regularisers import REGULARISERS

import sequinox as sqx
from sequinox.recurrent._cell import Implementation

# ---- layers as users write them --------------------------------------------------------------------------------------


class CountedState(NamedTuple):
    h: Float[Array, "*batch n_hidden"]
    n: Array


class LeakyCell(sqx.RecurrentCell):
    """A cell of its own: a leak for each unit, the sample also used without a weight, and a count in the state."""

    W: Float[Array, "n_hidden n_in"]
    U: Float[Array, "n_hidden n_hidden"]
    b: Float[Array, " n_hidden"]
    leak: Float[Array, " n_hidden"]
    n_in: int = eqx.field(static=True)
    n_hidden: int = eqx.field(static=True)
    implementation: Implementation = eqx.field(static=True)

    def __init__(self, n_in: int, n_hidden: int, key: Any, *, implementation: Implementation = None, dtype: Any = None):
        k1, k2 = jax.random.split(key)
        dtype = jnp.float32 if dtype is None else dtype
        self.n_in, self.n_hidden, self.implementation = n_in, n_hidden, implementation
        self.W = jax.random.normal(k1, (n_hidden, n_in), dtype) / 2
        self.U = jax.random.normal(k2, (n_hidden, n_hidden), dtype) / 2
        self.b, self.leak = jnp.zeros(n_hidden, dtype), jnp.ones(n_hidden, dtype)

    def start(self, dtype: Any) -> CountedState:
        return CountedState(jnp.full(self.n_hidden, 0.25, dtype), jnp.zeros((), jnp.int32))

    def transition(self, affine: Any, x: Array, state: Any) -> tuple[Array, CountedState]:
        h, n = state
        a = jax.nn.sigmoid(self.leak)
        h = a * h + (1 - a) * jnp.tanh(affine((self.W, x), (self.U, h), self.b)) + jnp.sin(jnp.sum(x)) * self.leak
        return h / jnp.sqrt((n + 1).astype(h.dtype)), CountedState(h, n + 1)


class Smoother(sqx.RecurrentCell):
    """A cell without any matrix: a one-pole filter for each input, with a pole of its own."""

    pole: Float[Array, " n_in"]
    n_in: int = eqx.field(static=True)
    n_hidden: int = eqx.field(static=True)
    implementation: Implementation = eqx.field(static=True)

    def __init__(self, n_in: int, implementation: Implementation = None):
        self.pole = jnp.linspace(-1.0, 2.0, n_in)
        self.n_in = self.n_hidden = n_in
        self.implementation = implementation

    def start(self, dtype: Any) -> Array:
        return jnp.zeros(self.n_in, dtype)

    def transition(self, affine: Any, x: Array, state: Any) -> tuple[Array, Array]:
        a = jax.nn.sigmoid(self.pole)
        y = a * state + (1 - a) * x
        return y, y


class PeakHold(sqx.SequenceLayer):
    """A layer given by one sample: the largest value so far, falling slowly, times a gain."""

    gain: Float[Array, " n_in"]
    n_in: int = eqx.field(static=True)
    n_out: int = eqx.field(static=True)

    def __init__(self, n_in: int):
        self.gain = jnp.linspace(0.5, 1.5, n_in)
        self.n_in = self.n_out = n_in

    def init_state(self, batch: Any = (), dtype: Any = None) -> dict[str, Array]:
        axes = (batch,) if isinstance(batch, int) else tuple(batch)
        return {"peak": jnp.full((*axes, self.n_in), -1.0, self.gain.dtype if dtype is None else dtype)}

    def _step(self, x: Array, state: Any, key: Any) -> tuple[Array, dict[str, Array]]:
        peak = jnp.maximum(x, 0.9 * state["peak"])
        return peak * jnp.broadcast_to(self.gain, peak.shape), {"peak": peak}


class RunningSum(sqx.SequenceLayer):
    """A layer given by a stretch: the sum so far, by an associative scan."""

    n_in: int = eqx.field(static=True)
    n_out: int = eqx.field(static=True)

    def __init__(self, n_in: int):
        self.n_in = self.n_out = n_in

    def init_state(self, batch: Any = (), dtype: Any = None) -> Array:
        axes = (batch,) if isinstance(batch, int) else tuple(batch)
        return jnp.zeros((*axes, self.n_in), jnp.float32 if dtype is None else dtype)

    def _unroll(self, xs: Array, state: Any, mask: Any, resets: Any, key: Any) -> tuple[Array, Array]:
        fresh = jnp.zeros(xs.shape[:-1], bool) if resets is None else resets if mask is None else resets & mask
        start = jnp.concatenate([jnp.expand_dims(state, -2), xs], -2)
        fresh = jnp.concatenate(
            [jnp.zeros_like(fresh[..., :1]) if xs.shape[-2] else jnp.zeros((*xs.shape[:-2], 1), bool), fresh], -1
        )

        def join(a: Any, b: Any) -> Any:
            return jnp.where(jnp.expand_dims(b[1], -1), b[0], a[0] + b[0]), a[1] | b[1]

        sums, _ = jax.lax.associative_scan(join, (start, fresh), axis=xs.ndim - 2)
        return sums[..., 1:, :], sums[..., -1, :]


# ---- the table -------------------------------------------------------------------------------------------------------


def gru_last(n_hidden: int, key: Any) -> sqx.Sequential:
    return sqx.Sequential([sqx.GRU(N_IN, n_hidden, key), sqx.LastStep()])


CELLS = [
    Entry("RNN-tanh-fused", sqx.RNN, lambda: sqx.RNN(3, 5, KEYS[0], implementation="fused")),
    Entry(
        "RNN-relu-scan",
        sqx.RNN,
        lambda: sqx.RNN(3, 5, KEYS[0], activation="relu", implementation="scan"),
        variant_of="RNN-tanh-fused",
    ),
    Entry("GRU-fused", sqx.GRU, lambda: sqx.GRU(3, 5, KEYS[0], implementation="fused")),
    Entry("GRU-scan", sqx.GRU, lambda: sqx.GRU(3, 5, KEYS[0], implementation="scan"), further=True),
    Entry("LSTM-fused", sqx.LSTM, lambda: sqx.LSTM(3, 5, KEYS[0], implementation="fused")),
    Entry(
        "LSTM-without-peepholes-fused",
        sqx.LSTM,
        lambda: sqx.LSTM(3, 5, KEYS[0], peepholes=False, forget_bias=1.0, implementation="fused"),
        variant_of="LSTM-fused",
    ),
    Entry("LeakyCell-fused", sqx.RecurrentCell, lambda: LeakyCell(3, 5, KEYS[0], implementation="fused")),
    Entry("LeakyCell-scan", sqx.RecurrentCell, lambda: LeakyCell(3, 5, KEYS[0], implementation="scan"), further=True),
    Entry("Smoother", sqx.RecurrentCell, lambda: Smoother(3), further=True),
]

LAYERS = [
    Entry("Dense", sqx.Dense, lambda: sqx.Dense(3, 2, KEYS[0])),
    Entry(
        "Dense-without-bias",
        sqx.Dense,
        lambda: sqx.Dense(3, 2, KEYS[0], use_bias=False),
        variant_of="Dense",
    ),
    Entry("Dropout-inference", sqx.Dropout, lambda: sqx.Dropout(0.5, inference=True)),
    Entry("Dropout-training", sqx.Dropout, lambda: sqx.Dropout(0.5), key=KEYS[3], further=True),
    Entry("PerSample-LayerNorm", sqx.PerSample, lambda: sqx.PerSample(eqx.nn.LayerNorm(3))),
    Entry("PerSample-Linear", sqx.PerSample, lambda: sqx.PerSample(eqx.nn.Linear(3, 2, key=KEYS[0])), further=True),
    Entry(
        "PerSample-Embedding",
        sqx.PerSample,
        lambda: sqx.PerSample(eqx.nn.Embedding(4, 3, key=KEYS[0])),
        n_in=4,
        further=True,
    ),
    Entry("PerSample-tanh", sqx.PerSample, lambda: sqx.PerSample(jnp.tanh), n_in=3, further=True),
    Entry("LastStep", sqx.LastStep, lambda: sqx.LastStep(3)),
    Entry("MeanOverTime", sqx.MeanOverTime, lambda: sqx.MeanOverTime(3)),
    Entry("PeakHold", sqx.SequenceLayer, lambda: PeakHold(3)),
    Entry("RunningSum", sqx.SequenceLayer, lambda: RunningSum(3), further=True),
]

COMPOSED = [
    Entry(
        "Sequential-of-all-kinds",
        sqx.Sequential,
        lambda: sqx.Sequential(
            [sqx.RNN(3, 5, KEYS[0]), eqx.nn.LayerNorm(5), jnp.tanh, PeakHold(5), sqx.Dense(5, 2, KEYS[1])]
        ),
    ),
    Entry(
        "Sequential-tokens",
        sqx.Sequential,
        lambda: sqx.Sequential([eqx.nn.Embedding(4, 3, key=KEYS[0]), sqx.RNN(3, 5, KEYS[1])]),
        n_in=4,
        composed=True,
        further=True,
    ),
    Entry(
        "Sequential-last",
        sqx.Sequential,
        lambda: sqx.Sequential([sqx.RNN(3, 5, KEYS[0]), sqx.LastStep(), sqx.Dense(5, 2, KEYS[1])]),
        further=True,
    ),
    Entry(
        "Sequential-nested-mean",
        sqx.Sequential,
        lambda: sqx.Sequential(
            [
                sqx.Sequential([sqx.RNN(3, 5, KEYS[0]), sqx.Dropout(0.5, inference=True)]),
                sqx.Sequential([sqx.RNN(5, 6, KEYS[1]), sqx.MeanOverTime()]),
                sqx.Sequential([jnp.tanh, sqx.Dense(6, 2, KEYS[2])]),
            ]
        ),
        composed=True,
        further=True,
    ),
    Entry(
        "Sequential-pool-only",
        sqx.Sequential,
        lambda: sqx.Sequential([sqx.Dense(3, 5, KEYS[0]), sqx.MeanOverTime()]),
        composed=True,
        further=True,
    ),
    Entry(
        "Bidirectional",
        sqx.Bidirectional,
        lambda: sqx.Bidirectional(sqx.RNN(3, 5, KEYS[0]), sqx.GRU(3, 6, KEYS[1])),
    ),
    Entry(
        "Bidirectional-pooling",
        sqx.Bidirectional,
        lambda: sqx.Bidirectional(gru_last(5, KEYS[0]), sqx.Sequential([sqx.RNN(3, 6, KEYS[1]), sqx.MeanOverTime()])),
        further=True,
    ),
    Entry(
        "Bidirectional-nested",
        sqx.Bidirectional,
        lambda: sqx.Bidirectional(
            sqx.Sequential(
                [sqx.Bidirectional(sqx.RNN(3, 5, KEYS[0]), sqx.RNN(3, 6, KEYS[1])), sqx.Dense(11, 2, KEYS[2])]
            ),
            PeakHold(3),
        ),
        composed=True,
        further=True,
    ),
    Entry(
        "Bidirectional-tokens",
        sqx.Bidirectional,
        lambda: sqx.Bidirectional(
            sqx.Sequential([eqx.nn.Embedding(4, 3, key=KEYS[0]), sqx.RNN(3, 5, KEYS[1])]),
            sqx.Sequential([eqx.nn.Embedding(4, 3, key=KEYS[2]), sqx.RNN(3, 6, KEYS[3])]),
        ),
        n_in=4,
        composed=True,
        further=True,
    ),
]

MHSA, MHCA = sqx.MultiHeadSelfAttention, sqx.MultiHeadCrossAttention


class Growing(sqx.SequenceLayer):
    """Attention with a cache that grows at every call; what it grows by is cut off, since nothing is in it."""

    layer: Any
    n_in: int = eqx.field(static=True)
    n_out: int = eqx.field(static=True)

    def __init__(self, layer: Any):
        self.layer, self.n_in, self.n_out = layer, layer.n_in, layer.n_out

    def init_state(self, batch: Any = (), dtype: Any = None) -> sqx.KVCache:
        return self.layer.init_state(batch, dtype, capacity=12)

    def _grown(self, state: Any, run: Any) -> Any:
        ys, after = run(sqx.GrowingKVCache(*state))
        return ys, sqx.KVCache(after.k[..., :12, :], after.v[..., :12, :], after.n)

    def _step(self, x: Array, state: Any, key: Any) -> Any:
        return self._grown(state, lambda s: self.layer._step(x, s, key))

    def _unroll(self, xs: Array, state: Any, mask: Any, resets: Any, key: Any) -> Any:
        return self._grown(state, lambda s: self.layer._unroll(xs, s, mask, resets, key))

    def _forward(self, xs: Array, mask: Any, resets: Any, key: Any) -> Array:
        return self.layer._forward(xs, mask, resets, key)


class Remembering(sqx.SequenceLayer):
    """A layer with cross-attention, on a memory of its own; its state is the layer's without that memory."""

    layer: Any
    memory: Array
    mask: Array
    n_in: int = eqx.field(static=True)
    n_out: int = eqx.field(static=True)

    def __init__(self, layer: Any, d_memory: int):
        self.layer, self.n_in, self.n_out = layer, layer.n_in, layer.n_out
        self.memory = jax.random.normal(KEYS[3], (6, d_memory))
        self.mask = jnp.array([True, False, True, True, False, True])

    def init_state(self, batch: Any = (), dtype: Any = None) -> Any:
        return sqx.with_capacity(self.layer.init_state(batch, dtype), 12)

    def _with_memory(self, state: Any, batch: Any) -> Any:
        spread = lambda a, dtype: jnp.broadcast_to(a.astype(dtype), (*batch, *a.shape))
        memory = spread(jnp.where(self.mask[:, None], self.memory, jnp.nan), self.layer.dtype)
        mask = spread(self.mask, bool)
        if isinstance(self.layer, sqx.EncoderDecoder):
            memory = self.layer.encoder.forward(memory, mask=mask)
        return self.layer._remember(state, memory, mask)

    def _without(self, state: Any) -> Any:
        is_memory = lambda node: isinstance(node, sqx.Memory)
        empty = lambda m: sqx.NoMemory(m.k[..., :0, :], m.v[..., :0, :], m.real[..., :0])
        return jax.tree.map(lambda node: empty(node) if is_memory(node) else node, state, is_leaf=is_memory)

    def _step(self, x: Array, state: Any, key: Any) -> Any:
        y, state = self.layer._step(x, self._with_memory(state, x.shape[: self._time_axis(x.ndim + 1)]), key)
        return y, self._without(state)

    def _unroll(self, xs: Array, state: Any, mask: Any, resets: Any, key: Any) -> Any:
        state = self._with_memory(state, xs.shape[: self._time_axis(xs.ndim)])
        ys, state = self.layer._unroll(xs, state, mask, resets, key)
        return ys, self._without(state)

    @property
    def reads_tokens(self) -> bool:
        return self.layer.reads_tokens


def attention(**options: Any) -> sqx.MultiHeadSelfAttention:
    return MHSA(8, 4, KEYS[0], **options)


ATTENTION = [
    Entry("MHSA-window-bias", MHSA, lambda: MHSA(6, 2, KEYS[0], window=2, use_bias=True), further=True),
    Entry("MHSA-causal", MHSA, lambda: MHSA(6, 2, KEYS[0], causal=True)),
    Entry(
        "MHSA-causal-rotary-grouped-chunked",
        MHSA,
        lambda: attention(causal=True, n_kv_heads=2, rotary=sqx.Rotary(), use_bias=True, chunk_size=3),
        further=True,
    ),
    Entry(
        "MHSA-growing-rotary",
        MHSA,
        lambda: Growing(attention(causal=True, rotary=sqx.Rotary(100.0, interleaved=True))),
        further=True,
    ),
    Entry(
        "MHSA-ring-of-three",
        MHSA,
        lambda: attention(causal=True, window=3, rotary=sqx.Rotary(), n_kv_heads=1),
        further=True,
    ),
    Entry(
        "MHSA-dropout-training", MHSA, lambda: MHSA(6, 2, KEYS[0], causal=True, dropout=0.2), key=KEYS[3], further=True
    ),
    Entry(
        "MHCA",
        MHCA,
        lambda: Remembering(MHCA(8, 4, KEYS[0], d_memory=5, n_kv_heads=2, use_bias=True, chunk_size=3), 5),
    ),
    Entry("GatedFusion", sqx.GatedFusion, lambda: sqx.GatedFusion(3, 4, 5, KEYS[0])),
    Entry("AddPositions", sqx.AddPositions, lambda: sqx.AddPositions(max_len=12)),
    Entry("AddLearnedPositions", sqx.AddLearnedPositions, lambda: sqx.AddLearnedPositions(5, 9, KEYS[0])),
]

Block = sqx.TransformerBlock
encoder, decoder = sqx.transformer_encoder, sqx.transformer_decoder

TRANSFORMERS = [
    Entry("FeedForward", sqx.FeedForward, lambda: sqx.FeedForward(3, 5, KEYS[0])),
    Entry(
        "FeedForward-gated",
        sqx.FeedForward,
        lambda: sqx.FeedForward(3, 5, KEYS[0], gated=True, activation=jax.nn.silu, use_bias=False),
        variant_of="FeedForward",
    ),
    Entry("Remat", sqx.Remat, lambda: sqx.Remat(sqx.RNN(3, 5, KEYS[0], implementation="scan"))),
    Entry("Stack", sqx.Stack, lambda: sqx.Stack([sqx.RNN(3, 3, k, implementation="scan") for k in KEYS[:3]])),
    Entry(
        "TransformerBlock-pre-with-memory",
        Block,
        lambda: Remembering(
            Block(
                8,
                4,
                5,
                KEYS[0],
                causal=True,
                cross=True,
                d_memory=5,
                norm="pre",
                norm_layer=eqx.nn.RMSNorm,
                gated=True,
                activation=jax.nn.silu,
                attention_bias=True,
                n_kv_heads=2,
                rotary=sqx.Rotary(),
            ),
            5,
        ),
    ),
    Entry(
        "TiedReadout",
        sqx.TiedReadout,
        lambda: sqx.TiedReadout(4, sqx.RNN(3, 3, KEYS[0], implementation="scan"), KEYS[1]),
        n_in=4,
    ),
    Entry(
        "transformer_encoder",
        encoder,
        lambda: encoder(3, 6, 2, 5, 1, 2, KEYS[0], 16),
        composed=True,
    ),
    Entry(
        "transformer_encoder-causal-dropout",
        encoder,
        lambda: encoder(
            3, 6, 2, 5, 1, 2, KEYS[0], 12, causal=True, positions="learned", pool="last", norm="pre", dropout=0.2
        ),
        key=KEYS[3],
        composed=True,
        further=True,
    ),
    Entry(
        "transformer_decoder-window",
        decoder,
        lambda: decoder(3, 8, 2, 5, 1, 4, KEYS[0], positions="rotary", window=2, norm="pre"),
        composed=True,
    ),
    Entry(
        "transformer_decoder-stack-tied",
        decoder,
        lambda: decoder(4, 6, 3, 5, 2, 4, KEYS[0], tokens=True, tied=True, scan_layers=True, remat=True),
        n_in=4,
        composed=True,
        further=True,
    ),
    Entry(
        "encoder_decoder",
        sqx.encoder_decoder,
        lambda: Remembering(sqx.encoder_decoder(3, 6, 2, 5, 1, 4, KEYS[0]), 3),
        n_in=4,
        composed=True,
    ),
]

_net = sqx.recurrent_net
MODELS = [
    Entry(
        "recurrent_net",
        _net,
        lambda: _net(3, 5, 2, KEYS[0]),
        composed=True,
    ),
    Entry(
        "recurrent_net-two-layers-mean",
        _net,
        lambda: _net(3, 5, 2, KEYS[0], cell="rnn", n_layers=2, pool="mean"),
        variant_of="recurrent_net",
        composed=True,
    ),
    Entry(
        "recurrent_net-every-sample",
        _net,
        lambda: _net(3, 5, 2, KEYS[0], cell="gru", pool=None),
        variant_of="recurrent_net",
        composed=True,
    ),
    Entry(
        "recurrent_net-both-ways",
        _net,
        lambda: _net(3, 5, 2, KEYS[0], cell="rnn", bidirectional=True),
        composed=True,
        further=True,
    ),
    Entry(
        "recurrent_net-two-both-ways-every-sample",
        _net,
        lambda: _net(3, 5, 2, KEYS[0], cell="rnn", n_layers=2, bidirectional=True, pool=None),
        variant_of="recurrent_net-both-ways",
        composed=True,
    ),
    Entry(
        "recurrent_net-own-cell",
        _net,
        lambda: _net(3, 5, 2, KEYS[0], cell=LeakyCell, implementation="fused"),
        variant_of="recurrent_net",
        composed=True,
    ),
    Entry(
        "recurrent_net-dropout-training",
        _net,
        lambda: _net(3, 5, 2, KEYS[0], cell="rnn", dropout=0.2),
        key=KEYS[3],
        composed=True,
        further=True,
    ),
]

TABLE = [
    *CELLS,
    *LAYERS,
    *COMPOSED,
    *ATTENTION,
    *TRANSFORMERS,
    *MODELS,
    *AVERAGES,
    *GATED,
    *DIAGONAL,
    *FILTERS,
    *CONVOLUTION,
    *COMPOSITION,
    *REGULARISERS,
]
