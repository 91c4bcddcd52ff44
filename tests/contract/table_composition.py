"""The part of the table of layers for composition."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from entry import KEYS, Entry
from jaxtyping import Array

import sequinox as sqx


def sixty_fourths(a: Array) -> Array:
    """Whole numbers that differ, in the shape of an array of floats; others as they are."""
    return jnp.arange(a.size, dtype=jnp.int32).reshape(a.shape) * 7 - 20 if eqx.is_inexact_array(a) else a


def from_sixty_fourths(a: Array, like: Any) -> Array:
    floats = jnp.issubdtype(like.dtype, jnp.inexact)
    return jnp.broadcast_to(a.astype(like.dtype) / 64 if floats else a, like.shape)


class Reading(sqx.SequenceLayer):
    """A recurrent encoder-decoder at a source of its own, given by what its encoder makes of it; its state is the
    decoder's alone.

    The encoder has no gradient where the promises give a state; `test_recurrent_encoder_decoder.py` has it.
    """

    model: Any
    start: Any
    memory: Array
    mask: Array
    n_in: None = eqx.field(static=True)
    n_out: int = eqx.field(static=True)

    def __init__(self, model: sqx.RecurrentEncoderDecoder):
        self.start = jax.tree.map(sixty_fourths, model.decoder.init_state())
        self.memory = sixty_fourths(jnp.zeros((6, model.encoder.n_out or 0)))
        self.mask = jnp.array([True, False, True, True, False, True])
        self.model = eqx.tree_at(lambda m: m.encoder, model, sqx.Dropout(0.0))
        self.n_in, self.n_out = None, model.n_out or 0

    def init_state(self, batch: Any = (), dtype: Any = None) -> Any:
        like = self.model.decoder.init_state(batch, self.dtype if dtype is None else dtype)
        return jax.tree.map(from_sixty_fourths, self.start, like)

    def _whole(self, state: Any, batch: Any) -> sqx.SourceState:
        dtype = self.model.dtype
        memory = jnp.where(self.mask[:, None], self.memory.astype(dtype) / 64, jnp.nan)
        spread = lambda a: jnp.broadcast_to(a, (*batch, *a.shape))
        head = self.model.head._remember(self.model.head.init_state(batch, dtype), spread(memory), spread(self.mask))
        return sqx.SourceState(self.init_state(batch, dtype), state, head)

    def _step(self, x: Array, state: Any, key: Array | None) -> Any:
        y, state = self.model._step(x, self._whole(state, x.shape), key)
        return y, state.decoder

    def _unroll(self, xs: Array, state: Any, mask: Any, resets: Any, key: Any) -> Any:
        ys, state = self.model._unroll(xs, self._whole(state, xs.shape[:-1]), mask, resets, key)
        return ys, state.decoder

    @property
    def reads_tokens(self) -> bool:
        return True


def scan(cell: Any, n_in: int, n_hidden: int, i: int = 0) -> Any:
    return cell(n_in, n_hidden, KEYS[i], implementation="scan")


def nested() -> sqx.Sequential:
    """Names, in an order that is not sorted, and nested."""
    deep = {"z": scan(sqx.LSTM, 5, 5), "a": jnp.tanh}
    return sqx.Sequential({"in": sqx.Dense(3, 5, KEYS[0]), "deep": sqx.Residual(sqx.Sequential(deep))})


def window() -> sqx.Sequential:
    """A receptive field of two."""
    recent = sqx.MultiHeadSelfAttention(6, 2, KEYS[1], causal=True, window=2)
    both = sqx.Parallel({"recent": recent, "now": sqx.Dense(6, 6, KEYS[2])}, join="sum")
    return sqx.Sequential([sqx.Dense(3, 6, KEYS[0]), both])


def pooled(cell: Any, n_hidden: int, pooling: Any) -> sqx.Sequential:
    return sqx.Sequential([scan(cell, 3, n_hidden), pooling])


make = sqx.recurrent_encoder_decoder

COMPOSITION: list[Entry] = [
    Entry(
        "Residual-projected",
        sqx.Residual,
        lambda: sqx.Residual(scan(sqx.GRU, 3, 5), projection=sqx.Dense(3, 5, KEYS[1])),
    ),
    Entry(
        "Sequential-named-residual",
        sqx.Sequential,
        nested,
        composed=True,
        further=True,
    ),
    Entry("Parallel-sum-in-a-window", sqx.Sequential, window, further=True),
    Entry(
        "Parallel-pooling",
        sqx.Parallel,
        lambda: sqx.Parallel([pooled(sqx.RNN, 5, sqx.LastStep()), pooled(sqx.GRU, 2, sqx.MeanOverTime())]),
        composed=True,
    ),
    Entry(
        "Remat-in-stretches",
        sqx.Remat,
        lambda: sqx.Remat(sqx.Sequential([sqx.LSTM(3, 5, KEYS[0]), jnp.tanh]), checkpoint_every=3),
        further=True,
    ),
    Entry(
        "Remat-in-stretches-pooling",
        sqx.Remat,
        lambda: sqx.Remat(pooled(sqx.RNN, 5, sqx.MeanOverTime()), checkpoint_every=2),
        composed=True,
        further=True,
    ),
    Entry("TrainedStart", sqx.TrainedStart, lambda: sqx.TrainedStart(sqx.LSTM(3, 5, KEYS[0]))),
    Entry(
        "TrainedStart-of-several",
        sqx.TrainedStart,
        lambda: sqx.TrainedStart(
            sqx.Sequential([scan(sqx.GRU, 3, 5), sqx.Sequential([sqx.AddPositions(), scan(sqx.RNN, 5, 2)])])
        ),
        composed=True,
        further=True,
    ),
    Entry(
        "recurrent_net-residual-norm-both-ways",
        sqx.recurrent_net,
        lambda: sqx.recurrent_net(
            3, 5, 2, KEYS[0], cell="rnn", n_layers=2, bidirectional=True, residual=True, layer_norm=True
        ),
        composed=True,
        further=True,
    ),
    Entry(
        "recurrent_encoder_decoder",
        sqx.RecurrentEncoderDecoder,
        lambda: Reading(make(3, 5, 4, KEYS[0], cell="lstm", n_layers=2)),
        n_in=4,
        composed=True,
    ),
    Entry(
        "recurrent_encoder_decoder-attention",
        sqx.recurrent_encoder_decoder,
        lambda: Reading(make(3, 6, 4, KEYS[0], attention=True, bidirectional=True, d_embed=5)),
        n_in=4,
        composed=True,
    ),
]
