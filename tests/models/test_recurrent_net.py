"""recurrent_net against the layers it is made of."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sequinox as sqx

pytestmark = pytest.mark.usefixtures("quick_compilation")

KEY = jax.random.key(0)
XS = jnp.asarray(np.random.default_rng(0).normal(size=(4, 6, 3)), jnp.float32)
MASK = np.arange(6) < np.array([6, 0, 2, 4])[:, None]


def names(net: Any) -> list[str]:
    return [type(la).__name__ for la in net]


def test_its_layers():
    assert names(sqx.recurrent_net(3, 5, 2, KEY)) == ["LSTM", "LastStep", "Dense"]
    assert names(sqx.recurrent_net(3, 5, 2, KEY, cell="gru", n_layers=2, pool="mean")) == [
        "GRU", "GRU", "MeanOverTime", "Dense",
    ]  # fmt: skip
    assert names(sqx.recurrent_net(3, 5, 2, KEY, cell="rnn", pool=None, dropout=0.1)) == ["RNN", "Dropout", "Dense"]
    both = sqx.recurrent_net(3, 5, 2, KEY, cell="gru", n_layers=2, bidirectional=True)
    assert names(both) == ["Bidirectional", "Bidirectional", "Dense"] and both[1].n_in == 10 and both[2].n_in == 10


@pytest.mark.parametrize(("pool", "shape"), [("last", (4, 2)), ("mean", (4, 2)), (None, (4, 6, 2))])
@pytest.mark.parametrize("bidirectional", [False, True], ids=["one-way", "both-ways"])
def test_what_the_head_reads(pool: Any, shape: tuple, bidirectional: bool):
    net = sqx.recurrent_net(3, 5, 2, KEY, cell="gru", pool=pool, bidirectional=bidirectional)
    cells = [la for la in jax.tree.leaves(net, is_leaf=lambda v: isinstance(v, sqx.GRU)) if isinstance(la, sqx.GRU)]
    assert len(cells) == 1 + bidirectional
    outputs, finals = [], []
    for cell, flipped in zip(cells, (False, True)[: len(cells)], strict=True):
        reader = cell if not flipped else sqx.Bidirectional(cell, cell)
        ys, final = reader.unroll(XS, mask=MASK)
        outputs.append(ys[..., 5:] if flipped else ys)
        finals.append(final.backward if flipped else final)
    hs = np.concatenate(outputs, -1)
    number = np.maximum(np.asarray(MASK).sum(1), 1)[:, None]
    read = {"last": np.concatenate(finals, -1), "mean": hs.sum(1) / number, None: hs}[pool]
    dense = net[-1]
    assert isinstance(dense, sqx.Dense)
    expected = read @ np.asarray(dense.W).T
    got = net(XS, mask=MASK)
    assert got.shape == shape
    np.testing.assert_allclose(got, expected if pool else np.where(MASK[..., None], expected, 0), atol=1e-6)


def test_a_single_sequence_gives_a_vector():
    assert sqx.recurrent_net(3, 4, 2, KEY)(jnp.ones((5, 3))).shape == (2,)


def test_options_reach_the_cell():
    net = sqx.recurrent_net(3, 5, 2, KEY, n_layers=2, forget_bias=1.5, implementation="scan", peepholes=False)
    for cell in net.layers[:2]:
        assert isinstance(cell, sqx.LSTM)
        assert cell.implementation == "scan" and cell.p_i is None and np.all(np.asarray(cell.b_f) == 1.5)


def test_every_layer_has_weights_of_its_own():
    arrays = sqx.parameters(sqx.recurrent_net(3, 3, 3, KEY, cell="gru", n_layers=2, bidirectional=True))
    matrices = [np.asarray(a) for a in arrays.values() if a.shape == (3, 3)]
    assert len(matrices) == 2 * 6 + 2 * 3  # the second layer reads 6 wide: only its U are square
    assert len({m.tobytes() for m in matrices}) == len(matrices)


@pytest.mark.parametrize("cell", ["lstm", "gru", "rnn"])
def test_it_streams(cell: Any):
    net = sqx.recurrent_net(3, 5, 2, KEY, cell=cell, n_layers=2)
    state = None
    for t in range(6):
        y, state = net.step(XS[:, t], state)
        np.testing.assert_allclose(y, net(XS[:, : t + 1]), atol=1e-6)


def test_dropout_stands_behind_every_recurrent_layer_and_needs_a_key():
    net = sqx.recurrent_net(3, 50, 2, KEY, n_layers=2, dropout=0.5)
    assert names(net).count("Dropout") == 2
    with pytest.raises(ValueError, match="key is needed"):
        net(XS)
    first, second = (net(XS, key=k) for k in jax.random.split(KEY))
    assert not jnp.array_equal(first, second)
    plain = sqx.recurrent_net(3, 50, 2, KEY, n_layers=2)
    assert jnp.array_equal(eqx.nn.inference_mode(net)(XS), plain(XS))


def test_a_cell_of_ones_own():
    def narrow(n_in: int, n_hidden: int, key: Any, *, dtype: Any, scale: float) -> sqx.RNN:
        rnn = sqx.RNN(n_in, n_hidden, key, dtype=dtype)
        return eqx.tree_at(lambda r: r.U, rnn, rnn.U * scale)

    net = sqx.recurrent_net(3, 5, 2, KEY, cell=narrow, scale=0.0, dtype=jnp.bfloat16)
    rnn = net[0]
    assert isinstance(rnn, sqx.RNN) and not np.any(rnn.U) and rnn.W.dtype == jnp.bfloat16
    assert net(XS.astype(jnp.bfloat16)).dtype == jnp.bfloat16
