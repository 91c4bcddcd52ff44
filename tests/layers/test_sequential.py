"""Sequential: what it makes of what stands in it."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sequinox as sqx

pytestmark = pytest.mark.usefixtures("quick_compilation")

K1, K2, K3 = jax.random.split(jax.random.key(0), 3)
XS = jnp.asarray(np.random.default_rng(0).normal(size=(4, 6, 3)), jnp.float32)
MASK = np.arange(6) < np.array([6, 0, 2, 4])[:, None]


def test_is_its_layers_one_behind_another():
    gru, dense = sqx.GRU(3, 5, K1), sqx.Dense(5, 2, K2)
    net = sqx.Sequential([gru, jnp.tanh, dense])
    ys, state = net.unroll(XS, mask=MASK)
    hs, h = gru.unroll(XS, mask=MASK)
    expected = np.asarray(jnp.tanh(hs)) @ np.asarray(dense.W).T
    np.testing.assert_allclose(ys, np.where(MASK[..., None], expected, 0), atol=1e-6)
    assert isinstance(state, tuple) and len(state) == 3 and state[1:] == ((), ())
    assert jnp.array_equal(state[0], h)


def test_a_list_serves_as_state():
    net = sqx.Sequential([sqx.LSTM(3, 5, K1), sqx.Dense(5, 2, K2)])
    y, c = jnp.ones((4, 5)), jnp.zeros((4, 5))
    _, state = net.unroll(XS, [[y, c], ()])
    assert isinstance(state, tuple) and isinstance(state[0], sqx.LSTMState)


def test_what_it_makes_of_others():
    net = sqx.Sequential(
        [eqx.nn.Linear(3, 5, key=K1), eqx.nn.LayerNorm(5), jnp.tanh, eqx.nn.Dropout(0.3), sqx.LastStep()]
    )
    kinds = [type(la) for la in net]
    assert kinds == [sqx.PerSample, sqx.PerSample, sqx.PerSample, sqx.Dropout, sqx.LastStep]
    dropout = net[3]
    assert isinstance(dropout, sqx.Dropout) and dropout.p == 0.3
    assert [la.n_in for la in net] == [3, 5, 5, None, 5] and len(net) == 5


def test_widths_and_kinds_are_read_off_its_layers():
    net = sqx.Sequential([sqx.Dropout(0.0), sqx.Dense(3, 2, K1), jnp.tanh])
    assert (net.n_in, net.n_out, net.pools, net.streams) == (3, 2, False, True)
    assert sqx.Sequential([jnp.tanh, sqx.Dense(3, 2, K1)]).n_in is None  # a function may change the width
    net = sqx.Sequential([sqx.GRU(3, 5, K1), sqx.MeanOverTime()])
    assert (net.n_in, net.n_out, net.pools, net.streams) == (3, 5, True, True)
    tokens = sqx.Sequential([eqx.nn.Embedding(6, 3, key=K1), sqx.GRU(3, 5, K2)])
    assert (tokens.n_in, tokens.n_out) == (None, 5)
    assert tokens(jnp.array([[1, 5, 0]], jnp.int32)).shape == (1, 3, 5)


def test_it_does_not_stream_with_a_layer_that_does_not():
    both = sqx.Bidirectional(sqx.RNN(3, 5, K1), sqx.RNN(3, 4, K2))
    net = sqx.Sequential([both, sqx.Dense(9, 2, K3)])
    assert not net.streams and net.offline_reason == both.offline_reason
    with pytest.raises(TypeError, match=r"Sequential.step: this layer does not stream: Bidirectional reads"):
        net.step(XS[:, 0])


def test_a_masked_row_of_a_pooled_network_gives_what_the_head_makes_of_zeros():
    dense = eqx.tree_at(lambda d: d.b, sqx.Dense(5, 2, K2), jnp.array([0.5, -2.0]))
    net = sqx.Sequential([sqx.GRU(3, 5, K1), sqx.LastStep(), dense])
    np.testing.assert_allclose(net(XS, mask=MASK)[1], [0.5, -2.0], atol=1e-7)


def test_layers_may_be_edited():
    net = sqx.Sequential([sqx.RNN(3, 5, K1), sqx.Dense(5, 2, K2)])
    zeroed = eqx.tree_at(lambda n: n.layers[1].W, net, jnp.zeros((2, 5)))
    assert not np.any(zeroed(XS)) and np.any(net(XS))


def test_a_function_of_unknown_width_may_stand_in_front():
    twice = lambda x: jnp.concatenate([x, x])
    net = sqx.Sequential([twice, sqx.Dense(6, 2, jax.random.key(0))])
    assert (net.n_in, net.n_out) == (None, 2)
    xs = jax.random.normal(jax.random.key(1), (4, 3))
    np.testing.assert_allclose(net(xs), net.layers[1](jnp.concatenate([xs, xs], -1)), atol=1e-6)
    both = sqx.Bidirectional(sqx.PerSample(twice), sqx.GRU(3, 4, jax.random.key(0)))
    assert both.n_out is None
    assert sqx.Sequential([both, sqx.Dense(10, 2, jax.random.key(0))])(xs).shape == (4, 2)


class Doubled(sqx.SequenceLayer):
    """A layer of one's own, which has no state."""

    n_in: int = eqx.field(static=True, default=5)
    n_out: int = eqx.field(static=True, default=5)

    def init_state(self, batch=(), dtype=None):
        return ()

    def _step(self, x, state, key):
        return 2 * x, state


def test_what_streams_with_an_empty_state_is_memoryless_whatever_its_class():
    gru, feed = sqx.GRU(3, 5, K1), sqx.FeedForward(5, 7, K2)
    without = {
        "Stack": sqx.Stack([feed, feed]),
        "own": Doubled(),
        "Residual": sqx.Residual(feed),
        "Remat": sqx.Remat(sqx.Stack([feed])),
        "Parallel": sqx.Parallel([feed, Doubled()], join="sum"),
        "nested": sqx.Sequential([jnp.tanh, sqx.Stack([feed])]),
    }
    h = gru(XS)[:, -1]
    for layer in without.values():
        assert layer.memoryless
        net = sqx.Sequential([gru, sqx.LastStep(), layer])
        np.testing.assert_allclose(net(XS), layer(h[:, None])[:, 0], atol=1e-6)
        np.testing.assert_allclose(net.unroll(XS)[0], layer(h[:, None])[:, 0], atol=1e-6)
    both = sqx.Bidirectional(sqx.Dense(5, 2, K1), sqx.Dense(5, 2, K2))
    attention = sqx.MultiHeadCrossAttention(5, 1, K1)
    for layer in (sqx.GRU(5, 4, K2), sqx.VariationalDropout(), sqx.Stack([sqx.RNN(5, 5, K1)]), both, attention):
        assert not layer.memoryless
        with pytest.raises(ValueError, match="has a memory"):
            sqx.Sequential([gru, sqx.LastStep(), layer])
    with pytest.raises(ValueError, match="memory"):
        sqx.Residual(sqx.Dense(3, 5, K1), projection=gru)


def test_a_slice_is_such_a_layer_of_the_layers_in_it():
    net = sqx.Sequential({"rnn": sqx.RNN(3, 5, K1), "last": sqx.LastStep(), "head": sqx.Dense(5, 2, K2)})
    body = net[:2]
    assert isinstance(body, sqx.Sequential) and body.names == ("rnn", "last") and body.n_out == 5
    np.testing.assert_array_equal(body(XS), net["rnn"](XS)[:, -1])
    assert [type(la) for la in sqx.Sequential(list(net))[1:]] == [sqx.LastStep, sqx.Dense]
    side = sqx.Parallel([sqx.RNN(3, 5, K1), sqx.RNN(3, 5, K2), sqx.RNN(3, 5, K3)], join="sum")
    np.testing.assert_allclose(side[1:](XS), side[1](XS) + side[2](XS), atol=1e-6)
    stack = sqx.Stack([sqx.RNN(3, 3, k) for k in (K1, K2, K3)])
    np.testing.assert_allclose(stack[1:](XS), stack[2](stack[1](XS)), atol=1e-6)
    with pytest.raises(ValueError, match="at least one"):
        net[5:]
