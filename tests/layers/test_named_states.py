"""Layers with names: states by name, in every place where a state goes."""

import pickle
from typing import Any

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
PARTS = {"rnn": sqx.LSTM(3, 5, K1), "act": jnp.tanh, "head": sqx.Dense(5, 5, K2)}  # not in the order of the alphabet
NET = sqx.Sequential(PARTS)
PLAIN = sqx.Sequential(list(PARTS.values()))


def test_it_runs_in_the_given_order_whatever_jax_does_to_it():
    expected = np.asarray(PLAIN(XS, mask=MASK))
    copied = jax.tree.map(lambda a: a, NET)
    arrays, rest = eqx.partition(NET, eqx.is_array)
    for net in (
        NET,
        copied,
        eqx.combine(arrays, rest),
        sqx.Sequential(list(PARTS.items())),
        sqx.Sequential(NET.layers),
    ):
        assert net.names == ("rnn", "act", "head")
        np.testing.assert_array_equal(net(XS, mask=MASK), expected)
    np.testing.assert_allclose(eqx.filter_jit(lambda net: net(XS, mask=MASK))(NET), expected, atol=1e-6)
    assert [type(la).__name__ for la in copied] == ["LSTM", "PerSample", "Dense"]
    assert jax.tree.structure(copied) == jax.tree.structure(NET) != jax.tree.structure(PLAIN)


def test_the_state_is_a_dictionary_by_those_names():
    state: Any = NET.init_state(4)
    assert set(state) == {"rnn", "act", "head"} and state["rnn"].c.shape == (4, 5)
    _, after = NET.unroll(XS, state, mask=MASK)
    _, plain = PLAIN.unroll(XS, mask=MASK)
    np.testing.assert_array_equal(after["rnn"].c, plain[0].c)
    other_order = {"head": (), "act": (), "rnn": list(after["rnn"])}  # as it may come from a file
    np.testing.assert_array_equal(NET.unroll(XS, other_order)[0], PLAIN.unroll(XS, plain)[0])
    _, jitted = eqx.filter_jit(lambda net: net.unroll(XS, state, mask=MASK))(NET)
    np.testing.assert_allclose(jitted["rnn"].y, after["rnn"].y, atol=1e-6)


def test_layers_and_weights_by_name():
    assert NET["rnn"] is NET[0] and NET[-1] is NET["head"] and len(NET) == 3
    assert list(sqx.parameters(NET))[-2:] == ["layers['head'].W", "layers['head'].b"]
    assert "  layers['rnn']" in sqx.summary(NET)
    silent = eqx.tree_at(lambda n: n["head"].W, NET, jnp.zeros((5, 5)))
    assert not np.any(silent(XS)) and np.any(NET(XS))
    with pytest.raises(KeyError, match=r"no layer has the name 'gru': there are \['rnn', 'act', 'head'\]"):
        NET["gru"]
    with pytest.raises(KeyError, match="they have none"):
        PLAIN["rnn"]


def test_names_nest():
    net = sqx.Sequential({"body": {"z": sqx.GRU(3, 5, K1), "a": sqx.RNN(5, 2, K2)}, "head": sqx.Dense(2, 2, K3)})
    plain = sqx.Sequential([net["body"]["z"], net["body"]["a"], net["head"]])
    ys, state = net.unroll(XS)
    expected, states = plain.unroll(XS)
    np.testing.assert_array_equal(ys, expected)
    np.testing.assert_array_equal(state["body"]["a"], states[1])
    with pytest.raises(ValueError, match=r"state\['body'\]\['z'\] must have shape \(4, 5\), got \(4, 6\)"):
        net.unroll(XS, {"body": {"z": jnp.ones((4, 6)), "a": jnp.ones((4, 2))}, "head": ()})


def test_a_stream():
    stream = sqx.Stream(NET, 4)
    expected = PLAIN(XS)
    for t in range(2):
        np.testing.assert_allclose(stream(XS[:, t]), expected[:, t], atol=1e-6)
    again = sqx.Stream(NET, 4, state={"rnn": stream.state["rnn"], "act": (), "head": ()})
    np.testing.assert_array_equal(again(XS[:, 2]), stream(XS[:, 2]))


def test_tokens_are_continued():
    parts = {"embed": eqx.nn.Embedding(9, 3, key=K1), "rnn": sqx.GRU(3, 5, K2), "attend": sqx.Dense(5, 9, K3)}
    net, plain = sqx.Sequential(parts), sqx.Sequential(list(parts.values()))
    prompt = jnp.array([[1, 2], [3, 4]])
    several: tuple[Any, ...] = ({}, {"n_beams": 2, "stop": 0})
    for options in several:
        got, expected = (sqx.generate(la, prompt, 3, **options).tokens for la in (net, plain))
        np.testing.assert_array_equal(got, expected)
    with pytest.raises(ValueError, match="less than 9"):
        sqx.generate(net, jnp.array([[9]]), 3)


def test_copies_and_checkpoints(tmp_path: Any):
    _, carried = NET.unroll(XS)
    np.testing.assert_array_equal(
        pickle.loads(pickle.dumps(eqx.filter(NET, eqx.is_array))).layers[0].W_z, NET["rnn"].W_z
    )
    saved = {"net": NET, "carried": carried}
    kept = sqx.Checkpoints(tmp_path)
    kept.save(saved, 1)
    like = {"net": jax.tree.map(lambda a: a * 0 if eqx.is_array(a) else a, NET), "carried": NET.init_state(4)}
    restored = kept.restore(like).state
    assert eqx.tree_equal(restored, saved)
