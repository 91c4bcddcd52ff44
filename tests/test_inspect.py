"""`parameters` and `summary`."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

import sequinox as sqx

KEY = jax.random.key(0)


def test_parameters_are_the_trainable_arrays_by_path():
    net: Any = sqx.recurrent_net(3, 4, 2, KEY, cell="rnn", bidirectional=True)
    arrays = sqx.parameters(net)
    path = "layers[0].forward_layer.layers[0].W"
    assert path in arrays and arrays[path] is net.layers[0].forward_layer.layers[0].W
    assert len(arrays) == 3 + 3 + 2


def test_parameters_leave_out_what_is_not_trained():
    class Counted(eqx.Module):
        n: jax.Array
        w: jax.Array
        flag: bool = True

    assert list(sqx.parameters(Counted(jnp.arange(3), jnp.ones((2, 2))))) == ["w"]
    assert sqx.parameters(sqx.LastStep(3)) == {}
    assert list(sqx.parameters({"a": jnp.ones(2), "b": [jnp.zeros(3)]})) == ["['a']", "['b'][0]"]


def test_summary_counts_every_array_once():
    net = sqx.recurrent_net(3, 5, 2, KEY, cell="gru", n_layers=2, bidirectional=True, dtype=jnp.bfloat16)
    arrays = sqx.parameters(net)
    lines = sqx.summary(net).splitlines()
    number = sum(a.size for a in arrays.values())
    by_hand = 2 * 3 * 5 * (3 + 5 + 1) + 2 * 3 * 5 * (10 + 5 + 1) + 2 * (10 + 1)
    assert number == by_hand
    assert lines[-1].split() == ["total", str(number), str(2 * number)]
    rows = [line.split() for line in lines if " bfloat16 " in line]
    assert len(rows) == len(arrays)
    assert sum(int(row[-2]) for row in rows) == number


def test_summary_shows_names_kinds_widths_and_shapes():
    text = sqx.summary(sqx.recurrent_net(3, 5, 2, KEY))
    first, *_ = (line for line in text.splitlines() if "LSTM" in line)
    assert first.split() == ["layers[0]", "LSTM", "3", "->", "5", str(4 * 5 * 9 + 15), str(4 * (4 * 5 * 9 + 15))]
    assert any(line.split() == ["W_z", "5", "x", "3", "float32", "15", "60"] for line in text.splitlines())
    assert len({len(line) for line in text.splitlines()}) == 1, "the columns are not aligned"


def test_summary_of_modules_of_equinox():
    text = sqx.summary(eqx.nn.MLP(3, 2, 7, 1, key=KEY))
    assert "layers[0]" in text and text.splitlines()[-1].split()[1] == str(3 * 7 + 7 + 7 * 2 + 2)


def test_summary_of_a_function_inside():
    text = sqx.summary(sqx.Sequential([sqx.Dense(3, 2, KEY), jnp.tanh, eqx.nn.LayerNorm(2)]))
    assert "PerSample" in text and "LayerNorm" in text and text.splitlines()[-1].split() == ["total", "12", "48"]


def test_abstract_arrays_are_inspected_as_those_they_stand_for():
    make = lambda key: sqx.recurrent_net(3, 5, 2, key, cell="gru", dtype=jnp.bfloat16)
    net, abstract = make(KEY), eqx.filter_eval_shape(make, KEY)
    shapes = {name: (a.shape, a.dtype) for name, a in sqx.parameters(net).items()}
    assert len(shapes) == 11
    assert {name: (a.shape, a.dtype) for name, a in sqx.parameters(abstract).items()} == shapes
    assert abstract.dtype == jnp.bfloat16
    assert sqx.summary(abstract) == sqx.summary(net)
    assert abstract.init_state(7)[0].dtype == jnp.bfloat16
