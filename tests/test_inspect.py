"""`parameters` and `summary`."""

import re
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from table import TABLE

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
    assert lines[-1].split()[:3] == ["total", str(number), str(2 * number)]
    rows = [line.split() for line in lines if " bfloat16 " in line]
    assert len(rows) == len(arrays)
    assert sum(int(row[-2]) for row in rows) == number


def test_summary_shows_names_kinds_widths_and_shapes():
    text = sqx.summary(sqx.recurrent_net(3, 5, 2, KEY))
    first, *_ = (line for line in text.splitlines() if "LSTM" in line)
    assert first.split()[:7] == ["layers[0]", "LSTM", "3", "->", "5", str(4 * 5 * 9 + 15), str(4 * (4 * 5 * 9 + 15))]
    assert any(line.split() == ["W_z", "5", "x", "3", "float32", "15", "60"] for line in text.splitlines())
    whole = {len(line) for line in text.splitlines() if "->" in line or "total" in line or "name" in line}
    assert len(whole) == 1, "the columns are not aligned"


def test_summary_of_modules_of_equinox():
    text = sqx.summary(eqx.nn.MLP(3, 2, 7, 1, key=KEY))
    assert "layers[0]" in text and text.splitlines()[-1].split()[1] == str(3 * 7 + 7 + 7 * 2 + 2)


def test_summary_of_a_function_inside():
    text = sqx.summary(sqx.Sequential([sqx.Dense(3, 2, KEY), jnp.tanh, eqx.nn.LayerNorm(2)]))
    assert (
        "PerSample" in text and "LayerNorm" in text and text.splitlines()[-1].split() == ["total", "12", "48", "0", "6"]
    )


def test_abstract_arrays_are_inspected_as_those_they_stand_for():
    make = lambda key: sqx.recurrent_net(3, 5, 2, key, cell="gru", dtype=jnp.bfloat16)
    net, abstract = make(KEY), eqx.filter_eval_shape(make, KEY)
    shapes = {name: (a.shape, a.dtype) for name, a in sqx.parameters(net).items()}
    assert len(shapes) == 11
    assert {name: (a.shape, a.dtype) for name, a in sqx.parameters(abstract).items()} == shapes
    assert abstract.dtype == jnp.bfloat16
    assert sqx.summary(abstract) == sqx.summary(net)
    assert abstract.init_state(7)[0].dtype == jnp.bfloat16


def row(text: str, name: str) -> list[str]:
    """The last four columns of a line, of which the last two may be blank."""
    (line,) = (line for line in text.splitlines() if line.split()[0] == name)
    return line.split()[-4:]


def test_summary_tells_the_state_and_the_cost_of_a_step():
    net = sqx.recurrent_net(3, 5, 2, KEY, cell="lstm", n_layers=2, pool="mean", dtype=jnp.bfloat16)
    text = sqx.summary(net)
    first, second = 4 * (3 * 5 + 5 * 5), 4 * (5 * 5 + 5 * 5)  # products of 4 gates with x and y
    assert row(text, "layers[0]")[2:] == [str(2 * 2 * 5), str(first)]  # y and c, 2 bytes a number
    assert row(text, "layers[1]")[2:] == [str(2 * 2 * 5), str(second)]
    assert row(text, "layers[2]")[2:] == [str(4 * 5 + 4), "0"]  # a mean in float32, and a count
    assert row(text, "layers[3]")[2:] == ["0", str(5 * 2)]
    assert row(text, "total")[2:] == [str(20 + 20 + 24), str(first + second + 10)] == row(text, ".")[2:]
    assert row(sqx.summary(sqx.Bidirectional(sqx.RNN(3, 5, KEY), sqx.RNN(3, 4, KEY))), "total")[2:] == ["36", "68"]
    tokens = sqx.Sequential([eqx.nn.Embedding(7, 3, key=KEY), sqx.RNN(3, 5, KEY)])
    assert row(sqx.summary(tokens), "total")[2:] == ["20", "40"]


def test_summary_leaves_blank_what_cannot_be_told():
    number = lambda text: len(text.splitlines()[-1].split()) - 1
    assert number(sqx.summary(sqx.MeanOverTime())) == 2  # the width is missing
    assert number(sqx.summary(sqx.Sequential([jnp.tanh, sqx.RNN(3, 5, KEY)]))) == 3
    assert number(sqx.summary(sqx.encoder_decoder(3, 4, 2, 8, 1, 5, KEY))) == 3  # the source is missing
    assert number(sqx.summary(eqx.nn.Linear(3, 2, key=KEY))) == 2  # is no layer of ours


def test_summary_down_to_a_depth():
    net = sqx.recurrent_net(3, 5, 2, KEY, cell="rnn", bidirectional=True)
    names = lambda depth: [line.split()[0] for line in sqx.summary(net, depth=depth).splitlines()[1:-1]]
    assert names(0) == ["."]
    assert names(1) == [".", "layers[0]", "layers[1]"]
    assert names(2)[:3] == [".", "layers[0]", "forward_layer"] and len(names(2)) == 1 + (1 + 2) + (1 + 2)
    full = sqx.summary(net).splitlines()
    for depth in (0, 1, 2, None):
        assert sqx.summary(net, depth).splitlines()[-1].split() == full[-1].split()
    assert len(names(9)) == len(full) - 2
    with pytest.raises(ValueError, match="depth must not be negative, got -1"):
        sqx.summary(net, -1)
    with pytest.raises(TypeError, match="depth must be an integer or None, got True"):
        sqx.summary(net, True)


# ---- how a layer is shown --------------------------------------------------------------------------------------------


def test_a_layer_shows_what_is_set_and_its_arrays_by_shape():
    lstm = sqx.LSTM(3, 4, KEY, peepholes=False, dtype=jnp.bfloat16)
    shown = " ".join(repr(lstm).split())
    assert shown == (
        "LSTM( n_in=3, n_hidden=4, variant='NP', W_z W_i W_f W_o=bf16[4,3], R_z R_i R_f R_o=bf16[4,4], "
        "b_z b_i b_f b_o=bf16[4] )"
    )
    assert repr(eqx.filter_eval_shape(lambda: lstm)) == repr(lstm)
    assert repr(sqx.Dense(3, 2, KEY)) == "Dense(n_in=3, n_out=2, W=f32[2,3], b=f32[2])"
    assert repr(sqx.Dense(3, 2, KEY, use_bias=False)) == "Dense(n_in=3, n_out=2, W=f32[2,3])"
    assert repr(sqx.LastStep()) == "LastStep()"
    assert repr(sqx.PerSample(jnp.tanh)) == "PerSample(function=tanh)"
    assert repr(sqx.PerSample(eqx.nn.LayerNorm(3))) == "PerSample(function=LayerNorm(shape=(3,), weight bias=f32[3]))"


def test_nested_layers_are_shown_in_their_places():
    long = sqx.Remat(sqx.RNN(3, 4, KEY), 5)
    net = sqx.Sequential({"rnn": long, "last": sqx.LastStep(), "head": sqx.Dense(4, 2, KEY)})
    assert repr(net).splitlines() == [
        "Sequential(",
        "  rnn=Remat(",
        "    checkpoint_every=5,",
        "    layer=RNN(n_in=3, n_hidden=4, W=f32[4,3], U=f32[4,4], b=f32[4])",
        "  ),",
        "  last=LastStep(n_in=4),",
        "  head=Dense(n_in=4, n_out=2, W=f32[2,4], b=f32[2])",
        ")",
    ]


@pytest.mark.parametrize("entry", [entry for entry in TABLE if entry.main], ids=str)
def test_every_layer_is_shown_shortly_and_without_nones(entry: Any):
    layer = entry.make()
    shown = repr(layer)
    assert shown.startswith(type(layer).__name__ + "(") and "None" not in shown and "0x" not in shown
    shapes = {f"f32[{','.join(map(str, a.shape))}]" for a in sqx.parameters(layer).values()}
    assert set(re.findall(r"f32\[[\d,]*\]", shown)) >= shapes


def test_a_stream_shows_its_layer_its_rows_and_its_state():
    stream = sqx.Stream(sqx.RNN(3, 4, KEY), 2)
    assert repr(stream) == "Stream(RNN(n_in=3, n_hidden=4, W=f32[4,3], U=f32[4,4], b=f32[4]), state=f32[2,4])"


def test_summary_of_shapes_alone_where_the_state_begins_at_weights():
    for make in (
        lambda: sqx.AdaptiveOnePole(0.1, alpha=0.9),
        lambda: sqx.TrainedStart(sqx.LSTM(3, 4, jax.random.key(0))),
    ):
        assert sqx.summary(eqx.filter_eval_shape(make)) == sqx.summary(make())
