"""`unroll(states="every")`: the states after all samples.

For every layer of the table, `check_layer` compares them with those of steps, with masks and resets; here are their
gradients, the edges, and what refuses.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array

import sequinox as sqx

pytestmark = pytest.mark.usefixtures("quick_compilation")

KEYS = jax.random.split(jax.random.key(0), 6)
ROWS, TIME = 3, 5
XS = jnp.asarray(np.random.default_rng(1).normal(size=(ROWS, TIME, 4)), jnp.float32)
MASK = jnp.array([[1, 1, 0, 1, 1], [0, 0, 0, 0, 0], [1, 0, 1, 1, 0]], bool)
RESETS = jnp.array([[0, 1, 1, 0, 1], [1, 0, 0, 0, 0], [0, 0, 1, 0, 0]], bool)

LAYERS: dict[str, Any] = {
    "LSTM": lambda: sqx.LSTM(4, 3, KEYS[0]),
    "LRU": lambda: sqx.LRU(4, 3, KEYS[0]),
    "LMS": lambda: sqx.LMS(3, 0.1),
    "attention": lambda: sqx.MultiHeadSelfAttention(4, 2, KEYS[0], causal=True, window=2),
    "pooled": lambda: sqx.Sequential({"rnn": sqx.GRU(4, 3, KEYS[0]), "mean": sqx.MeanOverTime(), "tanh": jnp.tanh}),
    "stack": lambda: sqx.Stack([sqx.GRU(4, 4, k) for k in KEYS[:2]]),
    "trained start": lambda: sqx.TrainedStart(sqx.Residual(sqx.Conv1d(4, 4, 3, KEYS[0]))),
}


def by_steps(layer: Any, xs: Array, state: Any) -> tuple[list[Array], list[Any]]:
    """Outputs and states of a loop over `step`."""
    ys, states = [], []
    for t in range(xs.shape[1]):
        y, state = layer.step(xs[:, t], state, mask=MASK[:, t], resets=RESETS[:, t])
        ys.append(y)
        states.append(state)
    return ys, states


def weighted(tree: Any) -> Array:
    """A sum of all floating-point numbers, each with a weight of its own."""
    leaves = [a for a in jax.tree.leaves(tree) if eqx.is_inexact_array(a)]
    return sum(
        (jnp.sum(a * jnp.cos(jnp.arange(a.size, dtype=a.dtype).reshape(a.shape))) for a in leaves), jnp.zeros(())
    )


def close(got: Any, expected: Any) -> None:
    assert jax.tree.structure(got) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", LAYERS)
def test_values_and_gradients_are_those_of_steps(name: str):
    layer = LAYERS[name]()
    layer = jax.tree.map(lambda a: a + 0.1 if eqx.is_inexact_array(a) else a, layer)
    xs = XS[..., : layer.n_in]
    state = layer.unroll(xs[:, ::-1])[1]

    @eqx.filter_jit
    @eqx.filter_value_and_grad(has_aux=True)
    def whole(args: Any) -> Any:
        layer, xs, state = args
        ys, states = layer.unroll(xs, state, mask=MASK, resets=RESETS, states="every")
        return weighted(ys) + weighted(states), (ys, states)

    @eqx.filter_jit
    @eqx.filter_value_and_grad(has_aux=True)
    def loop(args: Any) -> Any:
        layer, xs, state = args
        ys, states = by_steps(layer, xs, state)
        y = ys[-1] if layer.pools else jnp.stack(ys, 1)
        states = jax.tree.map(lambda *a: jnp.stack(a, 1), *states)
        return weighted(y) + weighted(states), (y, states)

    close(whole((layer, xs, state)), loop((layer, xs, state)))


def test_a_masked_step_repeats_the_state_before_and_the_last_is_the_final_one():
    lstm, state = sqx.LSTM(4, 3, KEYS[0]), sqx.LSTM(4, 3, KEYS[1]).unroll(XS)[1]
    ys, states = lstm.unroll(XS, state, mask=MASK, states="every")
    np.testing.assert_array_equal(states.c[0, 2], states.c[0, 1])
    np.testing.assert_array_equal(states.c[1], np.broadcast_to(state.c[1], (TIME, 3)))
    assert not np.asarray(ys[1]).any() and not np.asarray(ys[0, 2]).any()
    close(jax.tree.map(lambda a: a[:, -1], states), lstm.unroll(XS, state, mask=MASK)[1])


@pytest.mark.parametrize("name", ["LSTM", "LMS", "pooled"])
def test_rows_under_vmap_several_batch_axes_and_none(name: str):
    layer = LAYERS[name]()
    xs = XS[..., : layer.n_in]
    run = lambda xs: layer.unroll(xs, states="every")
    whole = run(xs)
    close(jax.vmap(run)(xs), whole)
    close(jax.tree.map(lambda a: a[None], run(xs[0])), jax.tree.map(lambda a: a[:1], whole))
    close(run(xs[None]), jax.tree.map(lambda a: a[None], whole))


@pytest.mark.parametrize("name", ["LSTM", "pooled", "stack"])
def test_of_no_samples_there_are_no_states(name: str):
    layer = LAYERS[name]()
    ys, states = layer.unroll(XS[:, :0], states="every")
    initial = layer.init_state(ROWS)
    for a, b in zip(jax.tree.leaves(states), jax.tree.leaves(initial), strict=True):
        assert (a.shape, a.dtype) == ((ROWS, 0, *b.shape[1:]), b.dtype)
    np.testing.assert_array_equal(ys, layer.unroll(XS[:, :0])[0])


def test_a_reset_keeps_what_a_decoder_has_read():
    cross = sqx.MultiHeadCrossAttention(4, 2, KEYS[0])
    ys, states = cross.unroll(XS, cross.read(XS[:, :2]), resets=RESETS, states="every")
    close(ys, cross.unroll(XS, cross.read(XS[:, :2]))[0])
    assert states.k.shape == (ROWS, TIME, 2, 4)


def test_tokens_and_a_cache_of_fixed_size():
    model = sqx.Sequential(
        [eqx.nn.Embedding(7, 4, key=KEYS[0]), sqx.MultiHeadSelfAttention(4, 2, KEYS[1], causal=True)]
    )
    tokens = jnp.array([[1, 2, 3], [6, 5, 4]])
    words = r'Sequential.unroll: states="every" .* cache in it that grows: begin with with_capacity'
    with pytest.raises(ValueError, match=words):
        model.unroll(tokens, states="every")
    start = sqx.with_capacity(model.init_state(2), 3)
    ys, states = model.unroll(tokens, start, states="every")
    close(ys, model(tokens))
    assert states[1].k.shape == (2, 3, 3, 4) and states[1].n.tolist() == [[1, 2, 3], [1, 2, 3]]


def test_weights_that_are_dropped_are_the_same_for_all_samples():
    layer = sqx.WeightDrop(sqx.GRU(4, 3, KEYS[0]), 0.5)
    ys, states = layer.unroll(XS, key=KEYS[1], states="every")
    close(ys, layer.unroll(XS, key=KEYS[1])[0])
    close(states, ys)  # a GRU's output is its state


def test_what_refuses():
    both = sqx.Bidirectional(*(sqx.GRU(4, 3, k) for k in KEYS[:2]))
    with pytest.raises(TypeError, match=r"Bidirectional.unroll\(states=\"every\"\): this layer does not stream"):
        both.unroll(XS, states="every")
