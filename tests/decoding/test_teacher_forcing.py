"""unroll_forced against unroll, generate, and a loop of steps."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sequinox as sqx
from sequinox.testing._probe import cast, wide

pytestmark = pytest.mark.usefixtures("quick_compilation", "unchecked_types")

K1, K2, K3 = jax.random.split(jax.random.key(0), 3)
random = np.random.default_rng(0)
MODEL = sqx.Sequential([eqx.nn.Embedding(7, 3, key=K1), sqx.GRU(3, 5, K2), sqx.Dense(5, 7, K3)])
MODEL = jax.tree.map(lambda a: 3 * a if eqx.is_inexact_array(a) else a, MODEL)  # decided
TOKENS = jnp.asarray(random.integers(0, 7, (4, 6)), jnp.int32)
MASK = jnp.asarray(np.arange(6) < np.array([6, 0, 3, 5])[:, None]).at[0, 2].set(False).at[3, 0].set(False)
RESETS = jnp.zeros((4, 6), bool).at[0, 4].set(True).at[2, 1].set(True)
FORCED = jnp.asarray(random.random((4, 6)) < 0.5)
STATE = jnp.asarray(random.normal(size=(4, 5)), jnp.float32)

forced_run = eqx.filter_jit(sqx.unroll_forced)


@pytest.mark.parametrize("flags", [{}, {"mask": MASK, "resets": RESETS}], ids=["plain", "ragged"])
def test_forced_everywhere_it_is_unroll(flags: Any):
    with wide():
        model, state = cast((MODEL, ((), STATE, ())), jnp.float64)
        ys, final = forced_run(model, TOKENS, jnp.ones((4, 6), bool), state, **flags)
        expected, last = eqx.filter_jit(lambda m, **flags: m.unroll(TOKENS, state, **flags))(model, **flags)
        np.testing.assert_allclose(ys, expected, atol=1e-13)
        np.testing.assert_allclose(final[1], last[1], atol=1e-13)


def test_forced_nowhere_it_is_greedy_generation():
    found = sqx.generate(MODEL, TOKENS[:, :1], 6, state=((), STATE, ())).tokens
    ys, _ = forced_run(MODEL, TOKENS, jnp.zeros((4, 6), bool), ((), STATE, ()))
    np.testing.assert_array_equal(jnp.argmax(ys, -1), found)
    source = jnp.asarray(random.normal(size=(4, 5, 3)), jnp.float32)
    both = sqx.recurrent_encoder_decoder(3, 8, 7, K1, attention=True)
    begin = jnp.zeros((4, 6), int)
    ys, _ = forced_run(both, begin, jnp.zeros((4, 6), bool), both.encode(source))
    np.testing.assert_array_equal(
        jnp.argmax(ys, -1), sqx.generate(both, begin[:, :1], 6, state=both.encode(source)).tokens
    )


def by_hand(tokens: np.ndarray, forced: np.ndarray, mask: np.ndarray, resets: np.ndarray) -> tuple[Any, Any, Any]:
    """One row, its real tokens alone: what is read, the logits, the last state."""
    read, logits = np.zeros(6, int), np.zeros((6, 7), np.float32)
    state, guess = MODEL.init_state(), None
    for t in np.flatnonzero(mask):
        if resets[t]:
            state, guess = MODEL.init_state(), None
        read[t] = tokens[t] if forced[t] or guess is None else guess
        y, state = MODEL.step(jnp.asarray(read[t], jnp.int32), state)
        logits[t], guess = y, int(jnp.argmax(y))
    return read, logits, state[1]


def test_a_mixture_of_the_two():
    """And its gradient: that of `unroll` over the tokens that were read."""
    rows = [by_hand(*(np.asarray(a)[i] for a in (TOKENS, FORCED, MASK, RESETS))) for i in range(4)]
    read, logits, states = (np.stack(part) for part in zip(*rows, strict=True))
    polluted = jnp.where(MASK, TOKENS, -5)
    weights = jnp.asarray(random.normal(size=(4, 6, 7)), jnp.float32)

    def total(model: Any) -> Any:
        ys, state = sqx.unroll_forced(model, polluted, FORCED, mask=MASK, resets=RESETS)
        return jnp.sum(ys * weights), (ys, state)

    (_, (ys, state)), gradient = eqx.filter_jit(eqx.filter_value_and_grad(total, has_aux=True))(MODEL)
    np.testing.assert_allclose(ys, logits, atol=1e-5)
    np.testing.assert_allclose(state[1], states, atol=1e-5)
    assert not np.array_equal(np.where(MASK, read, 0), np.where(MASK, TOKENS, 0))
    unrolled = lambda model: jnp.sum(model.unroll(jnp.asarray(read), mask=MASK, resets=RESETS)[0] * weights)
    expected = eqx.filter_jit(eqx.filter_grad(unrolled))(MODEL)
    for a, b in zip(jax.tree.leaves(gradient), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, atol=2e-4)


def test_drawn_tokens_have_the_models_probabilities():
    """The logits of a table are those of the token that was read: so one sees which it was."""
    table = jnp.asarray(random.normal(size=(3, 3)), jnp.float32)
    dense = eqx.tree_at(lambda d: (d.W, d.b), sqx.Dense(3, 3, K1), (table.T, jnp.zeros(3)))
    model = sqx.Sequential([eqx.nn.Embedding(weight=jnp.eye(3)), dense])
    n = 4000
    tokens, none = jnp.full((n, 2), 1), jnp.zeros((n, 2), bool)
    ys, _ = forced_run(model, tokens, none, key=K1, temperature=0.5)
    read = np.argmin(np.abs(np.asarray(ys)[:, 1, None] - np.asarray(table)).sum(-1), 1)
    share, expected = np.bincount(read, minlength=3) / n, np.asarray(jax.nn.softmax(table[1] / 0.5))
    np.testing.assert_allclose(share, expected, atol=4 * np.sqrt(0.25 / n))
    other, _ = forced_run(model, tokens, none, key=K2, temperature=0.5)
    assert not np.array_equal(ys, other)


def test_dropout_stays_on_and_draws_anew_at_every_step():
    seen = sqx.Sequential(
        [eqx.nn.Embedding(weight=jnp.ones((50, 50))), sqx.Dropout(0.5), sqx.Dense(50, 50, K1, use_bias=False)]
    )
    seen = eqx.tree_at(lambda m: m.layers[2].W, seen, jnp.eye(50))
    ys, _ = forced_run(seen, jnp.ones((2, 3), int), jnp.ones((2, 3), bool), key=K1)
    assert len({np.asarray(y).tobytes() for y in ys.reshape(6, 50)}) == 6 and set(np.unique(ys)) == {0.0, 2.0}


@pytest.mark.thorough
def test_growing_caches_and_no_samples():
    decoder = sqx.transformer_decoder(7, 8, 2, 5, 1, 7, K1, tokens=True)
    ys, _ = forced_run(decoder, TOKENS, jnp.ones((4, 6), bool), mask=MASK)
    expected = eqx.filter_jit(lambda d: d(TOKENS, mask=MASK))(decoder)
    np.testing.assert_allclose(ys, expected, atol=1e-5)
    ys, state = forced_run(MODEL, TOKENS[:, :0], FORCED[:, :0], ((), STATE, ()))
    assert ys.shape == (4, 0, 7) and jnp.array_equal(state[1], STATE)
