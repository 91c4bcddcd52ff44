"""The recurrent encoder-decoder against a loop in NumPy, and in generation."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sequinox as sqx
from sequinox.testing._probe import wide

pytestmark = pytest.mark.usefixtures("quick_compilation", "unchecked_types")

KEY = jax.random.key(0)
random = np.random.default_rng(0)
make = sqx.recurrent_encoder_decoder
SOURCE = random.normal(size=(4, 6, 3))
REAL = np.arange(6) < np.array([6, 0, 2, 4])[:, None]
REAL[0, 2] = False
TARGETS = random.integers(0, 7, (4, 5))
MASK = np.arange(5) < np.array([5, 3, 0, 4])[:, None]
RESETS = np.zeros((4, 5), bool)
RESETS[0, 3] = RESETS[1, 0] = RESETS[3, 2] = True


# ---- by hand ---------------------------------------------------------------------------------------------------------


def sigmoid(a: Any) -> Any:
    return 1 / (1 + np.exp(-a))


def gru_step(g: Any, x: Any, h: Any) -> Any:
    r = sigmoid(g.W_r @ x + g.U_r @ h + g.b_r)
    z = sigmoid(g.W_z @ x + g.U_z @ h + g.b_z)
    return z * h + (1 - z) * np.tanh(g.W @ x + g.U @ (r * h) + g.b)


def by_hand(model: Any, bidirectional: bool, attention: bool) -> np.ndarray:
    """The logits of every row, sample by sample. `model` holds NumPy arrays."""
    reader, read = model.encoder.layers
    embed, cell = model.decoder.layers
    logits = np.zeros((*TARGETS.shape, 7))
    for row in range(4):
        xs = [reader.W @ x + reader.b for x, real in zip(SOURCE[row], REAL[row], strict=True) if real]
        runs = [(read, xs)] if not bidirectional else [(read.forward_layer, xs), (read.backward_layer, xs[::-1])]
        passes = []
        for gru, inputs in runs:
            hs = [np.zeros(gru.n_hidden)]
            for x in inputs:
                hs.append(gru_step(gru, x, hs[-1]))
            passes.append(hs)
        start = np.concatenate([hs[-1] for hs in passes])
        memory = [np.concatenate(h) for h in zip(passes[0][1:], *(hs[:0:-1] for hs in passes[1:]), strict=True)]
        s = start
        for t in range(5):
            if not MASK[row, t]:
                continue
            s = gru_step(cell, embed.function.weight[TARGETS[row, t]], start if RESETS[row, t] else s)
            out, head = s, model.head
            if attention:
                look, combine = head.layers[0].layers[0], head.layers[1]
                scores = np.array([(look.W_Q @ s) @ (look.W_K @ m) / np.sqrt(s.size) for m in memory])
                a = np.exp(scores - scores.max(initial=-np.inf))
                found = sum((p * (look.W_V @ m) for p, m in zip(a / a.sum(), memory, strict=True)), np.zeros(s.size))
                out, head = np.tanh(combine.W @ np.concatenate([look.W_O @ found, s])), head.layers[3]
            logits[row, t] = head.W @ out + head.b
    return logits


@pytest.mark.parametrize(
    "bidirectional", [pytest.param(False, marks=pytest.mark.thorough), True], ids=["one-way", "both-ways"]
)
@pytest.mark.parametrize("attention", [False, True], ids=["vector", "attention"])
def test_logits_and_gradients(attention: bool, bidirectional: bool):
    """The gradient, along a random direction of all weights (the encoder's among them), against differences."""
    with wide():
        model = make(3, 4, 7, KEY, d_embed=5, attention=attention, bidirectional=bidirectional, dtype=jnp.float64)
        arrays, rest = eqx.partition(model, eqx.is_inexact_array)
        arrays = jax.tree.map(lambda a: jnp.asarray(a + 0.3 * random.normal(size=a.shape)), arrays)
        weights = random.normal(size=(4, 5, 7))

        @jax.jit
        def run(arrays: Any) -> Any:
            model = eqx.combine(arrays, rest)
            state = model.encode(jnp.where(REAL[..., None], SOURCE, jnp.nan), mask=REAL)
            logits, _ = model.unroll(jnp.asarray(TARGETS), state, mask=MASK, resets=RESETS)
            return jnp.sum(logits * weights), logits

        d_arrays, logits = jax.grad(run, has_aux=True)(arrays)
        hand = lambda arrays: by_hand(jax.tree.map(np.asarray, eqx.combine(arrays, rest)), bidirectional, attention)
        np.testing.assert_allclose(logits, hand(arrays), atol=1e-12)
        along = jax.tree.map(lambda a: random.normal(size=a.shape), arrays)
        moved = lambda by: jax.tree.map(lambda a, d: a + by * d, arrays, along)
        slope = np.sum((hand(moved(1e-6)) - hand(moved(-1e-6))) * weights) / 2e-6
        got = sum(jax.tree.leaves(jax.tree.map(lambda g, d: np.sum(np.asarray(g) * d), d_arrays, along)))
        assert got == pytest.approx(slope, rel=1e-6)


# ---- states ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cell", ["lstm", "rnn"])
def test_the_decoder_begins_with_the_encoders_last_state_in_every_layer(cell: Any):
    model = make(9, 4, 7, KEY, cell=cell, n_layers=2, tokens=True, dropout=0.5)
    tokens = jnp.asarray(random.integers(0, 9, (2, 3)))
    model = eqx.nn.inference_mode(model)
    state = model.encode(tokens)
    last = model.encoder.unroll(tokens)[1]
    assert eqx.tree_equal(state.encoded, last) and eqx.tree_equal(state.decoder, last)
    _, after = model.unroll(jnp.asarray([[0, 1], [2, 3]]), state)
    assert eqx.tree_equal(after.encoded, last) and not eqx.tree_equal(after.decoder, last)


@pytest.mark.thorough
def test_streams_generation_and_beams():
    """Each row's continuation is that of its own source, alone; a long beam finds at least as probable ones."""
    model = make(3, 6, 7, KEY, cell="lstm", attention=True)
    model = jax.tree.map(lambda a: 3 * a if eqx.is_inexact_array(a) else a, model)  # peaked
    source = jnp.asarray(SOURCE, jnp.float32)
    state, begin = model.encode(source, mask=REAL), jnp.zeros((4, 1), int)
    found = sqx.generate(model, begin, 4, state=state, stop=5)
    beams = sqx.generate(model, begin, 4, state=state, stop=5, n_beams=30)
    assert np.all(np.asarray(beams.log_probs) >= np.asarray(found.log_probs) - 1e-5)
    alone = sqx.generate(model, begin[3:], 4, state=model.encode(source[3:, :4]), stop=5)
    np.testing.assert_array_equal(alone.tokens[0], found.tokens[3])
    read = jnp.concatenate([begin, beams.tokens[:, :-1]], 1)
    log_p = jax.nn.log_softmax(model.unroll(read, state)[0])
    each = np.take_along_axis(np.asarray(log_p), np.asarray(beams.tokens)[..., None], -1)[..., 0]
    counted = np.where(np.arange(4) < np.asarray(beams.lengths)[:, None], each, 0).sum(1)
    np.testing.assert_allclose(beams.log_probs, counted, atol=1e-4)
    stream = sqx.Stream(model, 4, state=state)
    np.testing.assert_allclose(stream(begin[:, 0]), model.unroll(begin, state)[0][:, 0], atol=1e-5)
    drawn = sqx.generate(model, begin, 4, state=state, stop=5, key=KEY, temperature=1e-3)
    np.testing.assert_array_equal(drawn.tokens, found.tokens)


def test_without_a_source_it_does_not_run():
    with pytest.raises(ValueError, match=r"there is no source: begin with state = model.encode\(source\)"):
        make(3, 4, 7, KEY)(jnp.zeros((2, 3), int))


def test_parts_of_ones_own():
    """Encoder and decoder of other kinds, with names, and states of the same kind."""
    k1, k2 = jax.random.split(KEY)
    encoder = sqx.Sequential({"z": sqx.GRU(3, 5, k1), "a": sqx.RNN(5, 4, k1)})
    decoder = sqx.Sequential({"z": sqx.RNN(2, 5, k2), "a": sqx.GRU(5, 4, k2)})
    model = sqx.RecurrentEncoderDecoder(encoder, decoder, sqx.Dense(4, 2, k1))  # reads vectors, not tokens
    assert (model.n_in, model.n_out) == (2, 2)
    state = model.encode(jnp.ones((6, 3)))
    ys, after = model.unroll(jnp.ones((5, 2)), state, resets=jnp.arange(5) == 3)
    np.testing.assert_allclose(ys[3:], ys[:2], atol=1e-6)
    np.testing.assert_allclose(after.decoder["z"], model.unroll(jnp.ones((2, 2)), state)[1].decoder["z"], atol=1e-6)
