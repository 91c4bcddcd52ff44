"""Parallel against its layers alone."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sequinox as sqx

pytestmark = pytest.mark.usefixtures("quick_compilation", "unchecked_types")

K1, K2, K3 = jax.random.split(jax.random.key(0), 3)
XS = jnp.asarray(np.random.default_rng(0).normal(size=(4, 6, 3)), jnp.float32)
MASK = np.arange(6) < np.array([6, 0, 2, 4])[:, None]


def test_outputs_one_behind_another_or_summed():
    gru, lstm = sqx.GRU(3, 5, K1), sqx.LSTM(3, 5, K2)
    (hs, h), (ys, s) = gru.unroll(XS, mask=MASK), lstm.unroll(XS, mask=MASK)
    beside, state = sqx.Parallel([gru, lstm, sqx.Dense(3, 2, K3)]).unroll(XS, mask=MASK)
    assert beside.shape == (4, 6, 12)
    np.testing.assert_allclose(beside[..., :10], np.concatenate([hs, ys], -1), atol=1e-6)
    np.testing.assert_allclose(state[0], h, atol=1e-6)
    np.testing.assert_allclose(state[1].c, s.c, atol=1e-6)
    total = sqx.Parallel([gru, lstm], join="sum")
    np.testing.assert_allclose(total(XS, mask=MASK), np.asarray(hs) + np.asarray(ys), atol=1e-6)
    assert total.n_out == 5
    y, _ = total.step(XS[:, 0])
    np.testing.assert_allclose(y, np.asarray(gru(XS))[:, 0] + np.asarray(lstm(XS))[:, 0], atol=1e-6)


def test_names():
    net = sqx.Parallel({"slow": sqx.GRU(3, 5, K1), "fast": sqx.Dense(3, 2, K2)})
    assert net.names == ("slow", "fast")
    ys, state = net.unroll(XS)
    assert set(state) == {"slow", "fast"} and state["slow"].shape == (4, 5)
    np.testing.assert_allclose(ys[..., 5:], net["fast"](XS), atol=1e-6)  # the given order, not the sorted one


def test_poolings_side_by_side_are_told_the_width():
    net = sqx.Sequential([sqx.GRU(3, 5, K1), sqx.Parallel([sqx.LastStep(), sqx.MeanOverTime()]), sqx.Dense(10, 2, K2)])
    assert net[1].pools and net[1].n_out == 10
    hs, h = net[0].unroll(XS, mask=MASK)
    number = np.maximum(MASK.sum(1), 1)[:, None]
    read = np.concatenate([h, np.asarray(hs).sum(1) / number], -1)
    np.testing.assert_allclose(net(XS, mask=MASK), read @ np.asarray(net[2].W).T, atol=1e-6)


def test_functions_are_told_the_width_of_the_others():
    net = sqx.Parallel([jnp.tanh, sqx.Dense(3, 2, K1), sqx.Dropout(0.0)])
    assert (net.n_in, net.n_out) == (3, 8)
    np.testing.assert_allclose(net(XS)[..., :3], np.tanh(XS), atol=1e-6)
    unknown = sqx.Parallel([jnp.tanh, sqx.Dropout(0.0)])
    assert (unknown.n_in, unknown.n_out) == (None, None)
    head = sqx.Dense(6, 2, K1)
    assert sqx.Sequential([sqx.Dense(3, 3, K2), unknown, head]).n_out == 2  # told by the layer before it
    assert sqx.Sequential([unknown, head])(XS).shape == (4, 6, 2)
    with pytest.raises(ValueError, match=r"Parallel: outputs of shapes .* cannot be summed"):
        sqx.Parallel([lambda x: x[:1], jnp.tanh], join="sum")(XS)  # shapes (1,) and (3,) would add silently


def test_every_layer_draws_its_own_numbers():
    drop, xs = sqx.Dropout(0.5), jnp.ones((50, 20))
    both = np.asarray(sqx.Parallel([drop, drop], join="sum")(xs, key=jax.random.key(3)))
    assert set(np.unique(both)) == {0.0, 2.0, 4.0} and np.mean(both == 2) == pytest.approx(0.5, abs=0.05)


def test_it_looks_back_as_far_as_the_furthest():
    window = lambda n: sqx.MultiHeadSelfAttention(6, 2, K1, causal=True, window=n)
    assert sqx.Parallel([window(2), sqx.Dense(6, 3, K1), window(4)]).receptive_field == 4
    assert sqx.Parallel([window(2), sqx.GRU(6, 3, K1)]).receptive_field is None


def test_it_does_not_stream_with_a_layer_that_does_not():
    both = sqx.Bidirectional(sqx.RNN(3, 5, K1), sqx.RNN(3, 4, K2))
    net = sqx.Parallel([sqx.GRU(3, 2, K3), both])
    assert net.offline_reason == both.offline_reason
    np.testing.assert_allclose(net(XS, mask=MASK)[..., 2:], both(XS, mask=MASK), atol=1e-6)


def test_tokens():
    embed = lambda n, k: sqx.Sequential([eqx.nn.Embedding(7, n, key=k), sqx.GRU(n, n, k)])
    assert sqx.Parallel([embed(3, K1), embed(2, K2)])(jnp.array([[1, 6, 0]])).shape == (1, 3, 5)
