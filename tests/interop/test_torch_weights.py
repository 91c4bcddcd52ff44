"""PyTorch's weights without PyTorch: its equations in NumPy, its names and layouts, files, what does not fit."""

import itertools
import os
import stat
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

import sequinox as sqx

pytestmark = pytest.mark.usefixtures("quick_compilation", "unchecked_types")

KEY = jax.random.key(0)
T, N_IN, N_HIDDEN, N_PROJ = 6, 3, 5, 2


def draw(*shape: int, seed: int = 0, dtype: Any = np.float32) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def drawn(shapes: dict[str, tuple[int, ...]], dtype: Any = np.float32) -> dict[str, np.ndarray]:
    return {name: draw(*shape, seed=i, dtype=dtype) for i, (name, shape) in enumerate(shapes.items())}


def names(rows: int, n_in: int = N_IN, n_out: int = N_HIDDEN, suffix: str = "_l0") -> dict[str, tuple[int, ...]]:
    """The shapes of a recurrent module of PyTorch's with `rows` blocks of rows."""
    n = rows * N_HIDDEN
    shapes = {"weight_ih": (n, n_in), "weight_hh": (n, n_out), "bias_ih": (n,), "bias_hh": (n,)}
    return {name + suffix: shape for name, shape in shapes.items()}


LSTM_NAMES = names(4)
GRU = sqx.GRU(N_IN, N_HIDDEN, KEY, reset_after=True)
LSTM = sqx.LSTM(N_IN, N_HIDDEN, KEY, peepholes=False)


def same(a: Any, b: Any) -> None:
    """The same trees, bit for bit."""
    leaves, others = (jax.tree_util.tree_leaves_with_path(eqx.filter(x, eqx.is_array)) for x in (a, b))
    for (path, x), (other, y) in zip(leaves, others, strict=True):
        assert (path, x.dtype, x.shape) == (other, y.dtype, y.shape)
        assert np.asarray(x).tobytes() == np.asarray(y).tobytes(), path


# ---- PyTorch's equations, as its documentation prints them -----------------------------------------------------------


def sigmoid(a: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-a))


def their_gru(w: dict[str, np.ndarray], xs: np.ndarray) -> np.ndarray:
    W_ir, W_iz, W_in = np.split(w["weight_ih_l0"], 3)
    W_hr, W_hz, W_hn = np.split(w["weight_hh_l0"], 3)
    b_ir, b_iz, b_in = np.split(w["bias_ih_l0"], 3)
    b_hr, b_hz, b_hn = np.split(w["bias_hh_l0"], 3)
    h, hs = np.zeros(N_HIDDEN), []
    for x in xs:
        r = sigmoid(W_ir @ x + b_ir + W_hr @ h + b_hr)
        z = sigmoid(W_iz @ x + b_iz + W_hz @ h + b_hz)
        n = np.tanh(W_in @ x + b_in + r * (W_hn @ h + b_hn))
        h = (1 - z) * n + z * h
        hs.append(h)
    return np.stack(hs)


def their_lstm(w: dict[str, np.ndarray], xs: np.ndarray) -> np.ndarray:
    W_ii, W_if, W_ig, W_io = np.split(w["weight_ih_l0"], 4)
    W_hi, W_hf, W_hg, W_ho = np.split(w["weight_hh_l0"], 4)
    b_i, b_f, b_g, b_o = np.split(w["bias_ih_l0"] + w["bias_hh_l0"], 4)
    W_hr = w.get("weight_hr_l0", np.eye(N_HIDDEN))
    c, h, hs = np.zeros(N_HIDDEN), np.zeros(len(W_hr)), []
    for x in xs:
        i, f = sigmoid(W_ii @ x + W_hi @ h + b_i), sigmoid(W_if @ x + W_hf @ h + b_f)
        g, o = np.tanh(W_ig @ x + W_hg @ h + b_g), sigmoid(W_io @ x + W_ho @ h + b_o)
        c = f * c + i * g
        h = W_hr @ (o * np.tanh(c))
        hs.append(h)
    return np.stack(hs)


def their_rnn(w: dict[str, np.ndarray], xs: np.ndarray) -> np.ndarray:
    h, hs = np.zeros(N_HIDDEN), []
    for x in xs:
        h = np.tanh(w["weight_ih_l0"] @ x + w["bias_ih_l0"] + w["weight_hh_l0"] @ h + w["bias_hh_l0"])
        hs.append(h)
    return np.stack(hs)


@pytest.mark.parametrize(
    ("make", "shapes", "oracle"),
    [
        (sqx.RNN, names(1), their_rnn),
        (lambda *a, **k: sqx.GRU(*a, reset_after=True, **k), names(3), their_gru),
        (lambda *a, **k: sqx.LSTM(*a, peepholes=False, **k), LSTM_NAMES, their_lstm),
        (
            lambda *a, **k: sqx.LSTM(*a, peepholes=False, n_proj=N_PROJ, **k),
            {**names(4, n_out=N_PROJ), "weight_hr_l0": (N_PROJ, N_HIDDEN)},
            their_lstm,
        ),
    ],
    ids=["RNN", "GRU", "LSTM", "projected LSTM"],
)
def test_pytorchs_equations(make: Any, shapes: dict[str, tuple[int, ...]], oracle: Any):
    with jax.enable_x64(True):
        weights, xs = drawn(shapes, np.float64), draw(T, N_IN, seed=9, dtype=np.float64)
        cell = sqx.load_torch(make(N_IN, N_HIDDEN, KEY, dtype=np.float64, implementation="scan"), weights)
        np.testing.assert_allclose(cell(xs), oracle(weights, xs), rtol=0, atol=1e-12)
        np.testing.assert_allclose(cell(xs), oracle(sqx.to_torch(cell), xs), rtol=0, atol=1e-12)


# ---- names and layouts -----------------------------------------------------------------------------------------------


def blocks(*values: float) -> np.ndarray:
    return np.repeat(np.array(values, np.float32), N_HIDDEN)


def test_every_gate_by_its_number():
    """Each block of rows holds one number: a gate that is taken for another shows at once."""
    rows = lambda column: np.broadcast_to(column[:, None], (len(column), N_IN)).copy()
    square = lambda column: np.broadcast_to(column[:, None], (len(column), N_HIDDEN)).copy()
    i, f, g, o = 1.0, 2.0, 3.0, 4.0
    lstm = sqx.load_torch(
        LSTM,
        {
            "weight_ih_l0": rows(blocks(i, f, g, o)),
            "weight_hh_l0": square(10 * blocks(i, f, g, o)),
            "bias_ih_l0": 100 * blocks(i, f, g, o),
            "bias_hh_l0": 1000 * blocks(i, f, g, o),
        },
    )
    for name, value in (("i", i), ("f", f), ("z", g), ("o", o)):
        np.testing.assert_array_equal(getattr(lstm, f"W_{name}"), np.full((N_HIDDEN, N_IN), value))
        np.testing.assert_array_equal(getattr(lstm, f"R_{name}"), np.full((N_HIDDEN, N_HIDDEN), 10 * value))
        np.testing.assert_array_equal(getattr(lstm, f"b_{name}"), np.full(N_HIDDEN, 1100 * value))
    r, z, n = 1.0, 2.0, 3.0
    gru = sqx.load_torch(
        GRU,
        {
            "weight_ih_l0": rows(blocks(r, z, n)),
            "weight_hh_l0": square(10 * blocks(r, z, n)),
            "bias_ih_l0": 100 * blocks(r, z, n),
            "bias_hh_l0": 1000 * blocks(r, z, n),
        },
    )
    for name, value in (("_r", r), ("_z", z), ("", n)):
        np.testing.assert_array_equal(getattr(gru, f"W{name}"), np.full((N_HIDDEN, N_IN), value))
        np.testing.assert_array_equal(getattr(gru, f"U{name}"), np.full((N_HIDDEN, N_HIDDEN), 10 * value))
    for name, value in (("b_r", 1100 * r), ("b_z", 1100 * z), ("b", 100 * n), ("b_U", 1000 * n)):
        np.testing.assert_array_equal(getattr(gru, name), np.full(N_HIDDEN, value))
    back = sqx.to_torch(gru)
    np.testing.assert_array_equal(back["bias_ih_l0"], blocks(1100 * r, 1100 * z, 100 * n))
    np.testing.assert_array_equal(back["bias_hh_l0"], blocks(0, 0, 1000 * n))


def numbered(layer: Any) -> Any:
    """Arrays whose every number tells where it stands."""
    count = itertools.count(1)
    fresh = lambda a: jnp.asarray(next(count) * 1000 + np.arange(a.size).reshape(a.shape), a.dtype)
    return jax.tree.map(lambda a: fresh(a) if eqx.is_inexact_array(a) else a, layer)


def test_layers_and_directions_by_their_names():
    make = lambda n_in: sqx.LSTM(n_in, N_HIDDEN, KEY, peepholes=False)
    both = lambda n_in: sqx.Bidirectional(make(n_in), make(n_in))
    net = numbered(sqx.Sequential([both(N_IN), sqx.Dropout(0.5), both(2 * N_HIDDEN)]))
    weights = sqx.to_torch(net, "rnn")
    suffixes = ("_l0", "_l0_reverse", "_l1", "_l1_reverse")
    assert set(weights) == {f"rnn.{name}" for suffix in suffixes for name in names(4, suffix=suffix)}
    cells = (net[0].forward_layer, net[0].backward_layer, net[2].forward_layer, net[2].backward_layer)
    for cell, suffix in zip(cells, suffixes, strict=True):
        np.testing.assert_array_equal(weights[f"rnn.weight_ih{suffix}"][N_HIDDEN : 2 * N_HIDDEN], cell.W_f)
        np.testing.assert_array_equal(weights[f"rnn.weight_hh{suffix}"][-N_HIDDEN:], cell.R_o)
    same(sqx.load_torch(jax.tree.map(lambda a: a * 0 if eqx.is_array(a) else a, net), weights, "rnn"), net)


ROUND = {
    "RNN": sqx.RNN(N_IN, N_HIDDEN, KEY),
    "GRU": GRU,
    "LSTM": LSTM,
    "projected": sqx.LSTM(N_IN, N_HIDDEN, KEY, peepholes=False, n_proj=N_PROJ),
    "Dense": sqx.Dense(N_IN, 2, KEY),
    "Conv1d": sqx.Conv1d(4, 6, 3, KEY, groups=2, use_bias=False),
    "attention": sqx.MultiHeadSelfAttention(6, 2, KEY, use_bias=True),
    "cross": sqx.MultiHeadCrossAttention(6, 2, KEY, d_memory=4),
    "block": sqx.TransformerBlock(6, 2, 5, KEY, attention_bias=True, cross=True),
    "norm": eqx.nn.LayerNorm(3),
    "embedding": eqx.nn.Embedding(7, 3, key=KEY),
    "named": sqx.Sequential({"rnn": GRU, "last": sqx.LastStep(), "head": sqx.Dense(N_HIDDEN, 2, KEY)}),
    "numbers": sqx.Sequential([eqx.nn.Embedding(7, N_IN, key=KEY), GRU, jnp.tanh, eqx.nn.LayerNorm(N_HIDDEN)]),
}


@pytest.mark.parametrize("kind", ROUND)
def test_there_and_back(kind: str, tmp_path: Path):
    """Bit for bit, also negative zeros and NaN; by a dictionary and by a file."""
    layer = numbered(ROUND[kind])
    odd = lambda a: a.at[(0,) * a.ndim].set(-0.0).at[(-1,) * a.ndim].set(jnp.nan) if eqx.is_inexact_array(a) else a
    layer = jax.tree.map(odd, layer)
    weights = sqx.to_torch(layer)
    assert all(a.flags.writeable for a in weights.values())
    same(sqx.load_torch(ROUND[kind], weights), layer)
    sqx.save_safetensors(layer, tmp_path / "layer.safetensors")
    written = load_file(tmp_path / "layer.safetensors")
    assert {name: a.tobytes() for name, a in written.items()} == {name: a.tobytes() for name, a in weights.items()}
    same(sqx.load_torch(ROUND[kind], tmp_path / "layer.safetensors"), layer)


def test_names_in_a_sequential():
    assert list(sqx.to_torch(ROUND["named"]))[-2:] == ["head.weight", "head.bias"]
    assert set(sqx.to_torch(ROUND["numbers"])) == {
        "0.weight",
        *(f"1.{name}" for name in names(3)),
        "3.weight",
        "3.bias",
    }


def test_the_newest_tap_is_pytorchs_last():
    conv = numbered(sqx.Conv1d(2, 3, 4, KEY))
    weight = sqx.to_torch(conv)["weight"]
    assert weight.shape == (3, 2, 4)
    np.testing.assert_array_equal(weight[:, :, -1], conv.W[0])
    np.testing.assert_array_equal(weight[:, :, 0], conv.W[3])


def test_names_of_a_cell():
    weights = sqx.to_torch(numbered(GRU), "decoder.cell", cell=True)
    assert set(weights) == {f"decoder.cell.{name}" for name in names(3, suffix="")}
    same(sqx.load_torch(GRU, weights, "decoder.cell"), numbered(GRU))
    same(sqx.load_torch(GRU, weights, "decoder.cell."), numbered(GRU))


def test_modules_without_biases():
    weights = {name: a for name, a in drawn(LSTM_NAMES).items() if "bias" not in name}
    cell = sqx.load_torch(numbered(LSTM), weights, bias=False)
    assert not any(np.any(b) for b in (cell.b_i, cell.b_f, cell.b_z, cell.b_o))
    assert all(np.array_equal(a, weights[name]) for name, a in sqx.to_torch(cell, bias=False).items())
    with pytest.raises(ValueError, match=r"missing: bias_ih_l0, bias_hh_l0"):
        sqx.load_torch(LSTM, weights)
    with pytest.raises(ValueError, match=r"not expected: bias_ih_l0, bias_hh_l0"):
        sqx.load_torch(LSTM, drawn(LSTM_NAMES), bias=False)
    with pytest.raises(ValueError, match=r"bias=False.*bias_ih_l0, bias_hh_l0"):
        sqx.to_torch(numbered(GRU), bias=False)


def test_two_biases_are_added_in_their_dtype():
    weights = drawn(LSTM_NAMES, np.float16)
    cell = sqx.load_torch(sqx.LSTM(N_IN, N_HIDDEN, KEY, peepholes=False, dtype=np.float16), weights)
    total = weights["bias_ih_l0"] + weights["bias_hh_l0"]
    assert total.dtype == np.float16
    ours = [np.asarray(b) for b in (cell.b_i, cell.b_f, cell.b_z, cell.b_o)]
    np.testing.assert_array_equal(np.concatenate(ours), total)


def test_other_arrays_than_weights_stay():
    net = sqx.Sequential([sqx.Dense(N_IN, 2, KEY), sqx.Dropout(0.5, inference=True)])
    loaded = sqx.load_torch(net, {"0.weight": draw(2, N_IN), "0.bias": draw(2)})
    assert loaded[1].inference
    assert eqx.tree_equal(jax.tree.map(lambda _: 0, net), jax.tree.map(lambda _: 0, loaded))


# ---- what does not fit -----------------------------------------------------------------------------------------------


def test_all_that_does_not_fit_is_listed():
    weights = drawn(LSTM_NAMES)
    del weights["weight_hh_l0"]
    weights["weight_ih_l0"] = weights["weight_ih_l0"].T
    weights["bias_ih_l0"] = weights["bias_ih_l0"].astype(np.float64)
    weights["weight_hr_l0"] = draw(2, 5)
    before = {name: a.copy() for name, a in weights.items()}
    with pytest.raises(ValueError) as error:
        sqx.load_torch(LSTM, {f"rnn.{name}": a for name, a in weights.items()} | {"head.bias": draw(2)}, "rnn")
    assert str(error.value).split("\n  ") == [
        "load_torch: the weights do not fit LSTM",
        "missing: rnn.weight_hh_l0",
        "not expected: rnn.weight_hr_l0",
        "wrong shape: rnn.weight_ih_l0 must be (20, 3), got (3, 20)",
        "wrong dtype: rnn.bias_ih_l0 must be float32, got float64 (cast=True converts floating dtypes)",
    ]
    assert all(np.array_equal(a, before[name]) for name, a in weights.items())


def test_another_dtype_only_when_asked():
    weights = drawn(LSTM_NAMES, np.float64)
    with pytest.raises(ValueError, match="must be float32, got float64"):
        sqx.load_torch(LSTM, weights)
    cell = sqx.load_torch(LSTM, weights, cast=True)
    np.testing.assert_array_equal(cell.W_i, weights["weight_ih_l0"][:N_HIDDEN].astype(np.float32))
    weights["bias_hh_l0"] = np.ones(20, np.int32)
    with pytest.raises(ValueError, match="bias_hh_l0 must be float32, got int32"):
        sqx.load_torch(LSTM, weights, cast=True)


def test_long_lists_are_cut():
    with pytest.raises(ValueError, match=r"not expected: x0, .*, x11, and 88 more"):
        sqx.load_torch(sqx.Dense(N_IN, 2, KEY), {f"x{i}": draw(1) for i in range(100)})


# ---- files -----------------------------------------------------------------------------------------------------------


def test_several_layers_in_one_file(tmp_path: Path):
    path = tmp_path / "model.safetensors"
    sqx.save_safetensors(sqx.to_torch(numbered(GRU), "rnn") | sqx.to_torch(ROUND["Dense"], "head"), str(path))
    same(sqx.load_torch(GRU, str(path), "rnn"), numbered(GRU))
    same(sqx.load_torch(ROUND["Dense"], path, "head"), ROUND["Dense"])


def test_bfloat16_in_a_file(tmp_path: Path):
    layer = sqx.GRU(N_IN, N_HIDDEN, KEY, reset_after=True, dtype=jnp.bfloat16)
    sqx.save_safetensors(layer, tmp_path / "gru.safetensors")
    same(sqx.load_torch(jax.tree.map(jnp.zeros_like, layer), tmp_path / "gru.safetensors"), layer)


def test_a_file_that_is_there_is_replaced_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Killed while writing, the old file stands and nothing is left over. Others may read what they may elsewhere."""
    path = tmp_path / "gru.safetensors"
    sqx.save_safetensors(GRU, path)
    (tmp_path / "plain").touch()
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE((tmp_path / "plain").stat().st_mode)
    old = path.read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched, pytest.raises(OSError, match="No space"):
        patched.setattr(os, "fsync", full)
        sqx.save_safetensors(numbered(GRU), path)
    assert path.read_bytes() == old
    assert sorted(p.name for p in tmp_path.iterdir()) == ["gru.safetensors", "plain"]
    sqx.save_safetensors(numbered(GRU), path)
    assert path.read_bytes() != old


def test_no_pickle_is_read(tmp_path: Path):
    """Not even opened: the content would run."""
    path = tmp_path / "model.pt"
    path.write_bytes(b"cos\nabort\n(tR.")
    with pytest.raises(ValueError, match=r"pickles.*save_file\(module.state_dict\(\), 'model.safetensors'\)"):
        sqx.load_torch(GRU, path)
    path = path.rename(path.with_suffix(".safetensors"))
    with pytest.raises(ValueError, match=r"model.safetensors is not a safetensors file"):
        sqx.load_torch(GRU, path)


def test_without_the_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setitem(__import__("sys").modules, "safetensors.numpy", None)
    with pytest.raises(ImportError, match=r'pip install "sequinox\[interop\]"'):
        sqx.save_safetensors(GRU, tmp_path / "gru.safetensors")
    assert list(tmp_path.iterdir()) == []


def test_neither_pytorch_nor_safetensors_is_imported():
    import subprocess
    import sys

    code = "import sys, sequinox; sequinox.interop.to_torch; assert not {'torch', 'safetensors'} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
