"""recurrent_net against the layers it is made of."""

import inspect
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
        reader: Any = cell if not flipped else sqx.Bidirectional(cell, cell)
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


@pytest.mark.parametrize("cell", [pytest.param("lstm", marks=pytest.mark.thorough), "gru", "rnn"])
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


# ---- deep stacks -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pool", ["last", None])
@pytest.mark.parametrize("bidirectional", [False, True], ids=["one-way", "both-ways"])
@pytest.mark.parametrize("layer_norm", [False, True], ids=["plain", "norm"])
def test_residual_connections_from_the_second_layer_on(pool: Any, bidirectional: bool, layer_norm: bool):
    """Against the same cells, put together by hand."""
    net = sqx.recurrent_net(
        3,
        5,
        2,
        KEY,
        cell="rnn",
        n_layers=3,
        residual=True,
        layer_norm=layer_norm,
        pool=pool,
        bidirectional=bidirectional,
    )
    cells = [la for la in jax.tree.leaves(net, is_leaf=lambda v: isinstance(v, sqx.RNN)) if isinstance(la, sqx.RNN)]
    xs: Any = XS
    for i in range(3):
        mean, deviation = np.mean(xs, -1, keepdims=True), np.std(xs, -1, keepdims=True)
        read = jnp.asarray((xs - mean) / np.sqrt(deviation**2 + 1e-5)) if i and layer_norm else xs
        layer = sqx.Bidirectional(*cells[2 * i : 2 * i + 2]) if bidirectional else cells[i]
        ys = layer(read, mask=MASK)
        xs = ys + xs if i else ys
    xs = np.where(MASK[..., None], xs, 0)
    expected = xs
    if pool:  # the forward half at the last real sample, the backward one at the first
        last = np.maximum(MASK.sum(1) - 1, 0)
        expected = np.concatenate([xs[np.arange(4), last][:, :5], xs[:, 0, 5:]], -1)
    dense = net[-1]
    expected = np.asarray(expected) @ np.asarray(dense.W).T
    np.testing.assert_allclose(net(XS, mask=MASK), expected, atol=1e-5)


def test_residual_dropout_stands_before_the_addition():
    net = sqx.recurrent_net(3, 4, 2, KEY, n_layers=3, residual=True, dropout=0.5, layer_norm=True)
    assert names(net) == ["LSTM", "Dropout", "Residual", "Residual", "LastStep", "Dense"]
    assert names(net[2].layer) == ["Sequential", "Dropout"] and names(net[2].layer[0]) == ["PerSample", "LSTM"]
    assert names(sqx.recurrent_net(3, 4, 2, KEY, residual=True, layer_norm=True)) == ["LSTM", "LastStep", "Dense"]


def test_gradients_reach_deep_layers():
    """Through twelve layers of small weights: with residual connections they do, without they do not."""

    def shrunk(n_in: int, n_hidden: int, key: Any, *, dtype: Any) -> sqx.RNN:
        return jax.tree.map(lambda a: 0.3 * a, sqx.RNN(n_in, n_hidden, key, dtype=dtype))

    def share(residual: bool) -> float:
        net = sqx.recurrent_net(3, 4, 2, KEY, cell=shrunk, n_layers=12, residual=residual)
        gradient = eqx.filter_jit(eqx.filter_grad(lambda net: jnp.sum(net(XS))))(net)
        return float(jnp.linalg.norm(gradient[0].W))

    assert share(True) > 1e3 * share(False)


def cells() -> list[Any]:
    """Every cell that is called as `cell(n_in, n_hidden, key, dtype=...)`."""
    found = []
    for cell in vars(sqx.recurrent).values():
        a_cell = inspect.isclass(cell) and issubclass(cell, sqx.RecurrentCell) and not inspect.isabstract(cell)
        if a_cell and list(inspect.signature(cell).parameters)[:3] == ["n_in", "n_hidden", "key"]:
            found.append(cell)
    return found


@pytest.mark.parametrize("cell", cells(), ids=lambda c: c.__name__)
def test_every_cell_serves(cell: Any):
    net = eqx.filter_eval_shape(
        lambda: sqx.recurrent_net(3, 4, 2, KEY, cell=cell, n_layers=2, bidirectional=True, residual=True)
    )
    assert isinstance(net[0].forward_layer, cell) and net[-1].n_in == 2 * net[0].forward_layer.n_out
    ys = eqx.filter_eval_shape(lambda net: net(XS, mask=MASK), net)
    assert ys.shape == (4, 2) and ys.dtype == jnp.float32


def test_there_are_cells():
    assert {"RNN", "GRU", "LSTM"} <= {cell.__name__ for cell in cells()}
