"""Remat in stretches against the layer alone, and the memory that it saves."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sequinox as sqx

pytestmark = pytest.mark.usefixtures("quick_compilation", "unchecked_types")

K1, K2 = jax.random.split(jax.random.key(0))
random = np.random.default_rng(0)
XS = jnp.asarray(random.normal(size=(4, 7, 3)), jnp.float32)
MASK = jnp.asarray(np.arange(7) < np.array([7, 0, 2, 5])[:, None]).at[0, 2].set(False)
RESETS = jnp.zeros((4, 7), bool).at[0, 3].set(True).at[3, 1].set(True)
STATE = jax.tree.map(lambda a: jnp.asarray(random.normal(size=a.shape), a.dtype), sqx.LSTM(3, 5, K1).init_state(4))
LSTM = sqx.LSTM(3, 5, K1)


@eqx.filter_jit
def run(layer: Any, state: Any, mask: Any, resets: Any) -> Any:
    def total(args: Any) -> Any:
        layer, xs, state = args
        ys, state = layer.unroll(xs, state, mask=mask, resets=resets)
        return jnp.sum(jnp.sin(jnp.arange(ys.size, dtype=ys.dtype).reshape(ys.shape) * ys)), (ys, state)

    (_, out), (d_layer, d_xs, d_state) = eqx.filter_value_and_grad(total, has_aux=True)((layer, XS, state))
    return out, d_layer, d_xs, d_state


def assert_close(got: Any, expected: Any) -> None:
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, atol=2e-5)


@pytest.mark.parametrize(
    "every", [pytest.param(1, marks=pytest.mark.thorough), 3, pytest.param(7, marks=pytest.mark.thorough), 8]
)
def test_values_states_and_gradients_are_those_of_the_layer(every: int):
    flags = (None, None) if every == 8 else (MASK, RESETS)
    assert_close(run(sqx.Remat(LSTM, every), STATE, *flags), run(LSTM, STATE, *flags))


def test_pooling():
    net = sqx.Sequential([sqx.RNN(3, 5, K1), sqx.MeanOverTime(), sqx.Dense(5, 2, K2)])
    for every in (2, 7):
        assert_close(
            run(sqx.Remat(net, every), net.init_state(4), MASK, RESETS), run(net, net.init_state(4), MASK, RESETS)
        )
    np.testing.assert_allclose(sqx.Remat(net, 3)(XS, mask=MASK), net(XS, mask=MASK), atol=1e-6)


def test_no_samples_and_tokens():
    remat = sqx.Remat(LSTM, 3)
    ys, state = remat.unroll(XS[:, :0], STATE)
    assert ys.shape == (4, 0, 5) and jnp.array_equal(state.c, STATE.c)
    tokens = sqx.Sequential([eqx.nn.Embedding(7, 3, key=K2), LSTM])
    read = jnp.array([[1, 2, 3, 0, 6], [5, 5, 0, 1, 2]])
    np.testing.assert_allclose(sqx.Remat(tokens, 2)(read), tokens(read), atol=1e-6)


def test_states_of_a_fixed_shape_alone():
    attention = sqx.MultiHeadSelfAttention(6, 2, K1, causal=True)
    xs = jnp.asarray(random.normal(size=(4, 7, 6)), jnp.float32)
    remat = sqx.Remat(attention, 3)
    with pytest.raises(ValueError, match=r"Remat: checkpoint_every needs a state whose shapes stay"):
        remat(xs)
    ys, _ = remat.unroll(xs, sqx.with_capacity(remat.init_state(4), 7))
    np.testing.assert_allclose(ys, attention(xs), atol=1e-5)
    ring = sqx.MultiHeadSelfAttention(6, 2, K1, causal=True, window=2)
    np.testing.assert_allclose(sqx.Remat(ring, 3)(xs, mask=MASK), ring(xs, mask=MASK), atol=1e-5)


def test_every_stretch_draws_its_own_numbers_the_same_twice():
    """The derivative of dropout is where it let through in the first pass."""
    remat, xs, key = sqx.Remat(sqx.Dropout(0.5), 10), jnp.ones((35, 40)), jax.random.key(3)
    ys, pull = jax.vjp(lambda xs: remat(xs, key=key), xs)
    np.testing.assert_array_equal(pull(jnp.ones_like(xs))[0], ys)
    assert len({np.asarray(part).tobytes() for part in ys[:30].reshape(3, 400)}) == 3
    assert np.mean(np.asarray(ys) == 0) == pytest.approx(0.5, abs=0.05)


def test_the_compiled_gradient_needs_several_times_less_memory():
    lstm, xs = sqx.LSTM(3, 16, K1), jnp.ones((4, 4096, 3))

    def temporary(layer: Any) -> int:
        arrays, rest = eqx.partition(layer, eqx.is_array)
        loss = lambda arrays, xs: jnp.sum(eqx.combine(arrays, rest)(xs) ** 2)
        found: Any = jax.jit(jax.grad(loss)).lower(arrays, xs).compile().memory_analysis()
        return found.temp_size_in_bytes

    assert 4 * temporary(sqx.Remat(lstm, checkpoint_every=64)) < temporary(lstm)
