"""RNN, GRU and LSTM, by either engine, against NumPy loops with gradients derived by hand."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest

import sequinox as sqx

pytestmark = pytest.mark.usefixtures("quick_compilation")

ROWS, TIME, N_IN, N_HIDDEN = 4, 6, 3, 5
KEY = jax.random.key(0)
CELLS: dict[str, tuple[Any, dict, Any]] = {
    "RNN-tanh": (sqx.RNN, {"activation": "tanh"}, oracles.Elman("tanh")),
    "RNN-relu": (sqx.RNN, {"activation": "relu"}, oracles.Elman("relu")),
    "GRU": (sqx.GRU, {}, oracles.GatedUnit()),
    "LSTM": (sqx.LSTM, {}, oracles.Memory()),
    "LSTM-without-peepholes": (sqx.LSTM, {"peepholes": False, "forget_bias": 1.0}, oracles.Memory()),
}
EVERY = np.ones((ROWS, TIME), bool)
RAGGED = np.arange(TIME) < np.array([6, 0, 2, 4])[:, None]
GAPS = np.array([[1, 0, 1, 1, 0, 1], [0, 0, 1, 1, 1, 1], [1, 0, 0, 0, 0, 1], [0, 1, 0, 1, 0, 0]], bool)
PACKED = np.array([[0, 0, 1, 0, 0, 1], [1, 0, 0, 0, 0, 0], [0, 1, 1, 1, 1, 1], [0, 0, 0, 1, 0, 0]], bool)
FLAGS = {
    "whole": (EVERY, ~EVERY),
    "ragged": (RAGGED, ~EVERY),
    "gaps": (GAPS, ~EVERY),
    "packed": (EVERY, PACKED),
    "packed-with-gaps": (GAPS, PACKED),
}


@eqx.filter_jit
def run(cell: Any, xs: Any, state: Any, mask: Any, resets: Any, d_ys: Any, d_final: Any) -> Any:
    out, pull = eqx.filter_vjp(lambda c, x, s: c.unroll(x, s, mask=mask, resets=resets), cell, xs, state)
    return out, pull((d_ys, d_final))


def make(name: str, implementation: str, dtype: Any) -> tuple[Any, dict[str, np.ndarray]]:
    """A cell with random weights, and the weights by name, in float64."""
    kind, options, _ = CELLS[name]
    cell = kind(N_IN, N_HIDDEN, KEY, implementation=implementation, dtype=dtype, **options)
    random = np.random.default_rng(3)
    draw = lambda a: jnp.asarray(0.5 * random.normal(size=a.shape), a.dtype)
    cell = jax.tree.map(lambda a: draw(a) if eqx.is_array(a) else a, cell)
    return cell, {k: np.asarray(v, np.float64) for k, v in sqx.parameters(cell).items()}


def compare(name: str, implementation: str, dtype: Any, mask: Any, resets: Any, tolerance: float, given: bool) -> None:
    cell, weights = make(name, implementation, dtype)
    oracle, n_time = CELLS[name][2], mask.shape[1]
    random = np.random.default_rng(5)
    draw = lambda *shape: np.asarray(random.normal(size=shape), dtype).astype(np.float64)
    xs, d_ys = draw(ROWS, n_time, N_IN), draw(ROWS, n_time, N_HIDDEN)
    shape = (ROWS, *oracle.start(N_HIDDEN).shape)
    state, d_final = draw(*shape), draw(*shape)
    expected = oracles.unroll(oracle, weights, xs, state, mask, resets, d_ys, d_final)

    pair = isinstance(cell, sqx.LSTM)
    put = lambda a: sqx.LSTMState(*(jnp.asarray(a[:, i], dtype) for i in range(2))) if pair else jnp.asarray(a, dtype)
    take = lambda s: np.stack([s.y, s.c], 1) if pair else np.asarray(s)
    flags = (jnp.asarray(mask), jnp.asarray(resets)) if given else (None, None)
    (ys, final), (d_cell, d_xs, d_state) = run(
        cell, jnp.asarray(xs, dtype), put(state), *flags, jnp.asarray(d_ys, dtype), put(d_final)
    )
    close = lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * max(1, np.abs(b).max(initial=0)))
    close(np.asarray(ys), expected["ys"])
    close(take(final), expected["final"])
    close(np.asarray(d_xs), expected["d_xs"])
    close(take(d_state), expected["d_state"])
    gradients = sqx.parameters(d_cell)
    assert gradients.keys() == expected["d_w"].keys()
    for key, gradient in gradients.items():
        close(np.asarray(gradient), expected["d_w"][key])


@pytest.mark.parametrize("flags", FLAGS)
@pytest.mark.parametrize("implementation", ["fused", "scan"])
@pytest.mark.parametrize("name", CELLS)
def test_float32(name: str, implementation: str, flags: str):
    compare(name, implementation, jnp.float32, *FLAGS[flags], tolerance=2e-6, given=True)


@pytest.mark.parametrize("implementation", ["fused", "scan"])
@pytest.mark.parametrize("name", CELLS)
def test_float32_without_flags(name: str, implementation: str):
    compare(name, implementation, jnp.float32, EVERY, ~EVERY, tolerance=2e-6, given=False)


@pytest.mark.parametrize("flags", FLAGS)
@pytest.mark.parametrize("name", CELLS)
def test_float64(name: str, flags: str):
    with jax.enable_x64(True):
        compare(name, "fused", jnp.float64, *FLAGS[flags], tolerance=1e-13, given=True)


@pytest.mark.parametrize("n_time", [0, 1])
@pytest.mark.parametrize("implementation", ["fused", "scan"])
@pytest.mark.parametrize("name", ["GRU", "LSTM"])
def test_short(name: str, implementation: str, n_time: int):
    compare(name, implementation, jnp.float32, GAPS[:, :n_time], PACKED[:, :n_time], tolerance=2e-6, given=True)


@pytest.mark.parametrize("name", CELLS)
def test_the_oracle_itself(name: str):
    """Its gradients against differences of its values."""
    _, weights = make(name, "scan", jnp.float32)
    oracle, random = CELLS[name][2], np.random.default_rng(8)
    xs, d_ys = random.normal(size=(ROWS, TIME, N_IN)), random.normal(size=(ROWS, TIME, N_HIDDEN))
    state = random.normal(size=(ROWS, *oracle.start(N_HIDDEN).shape))
    d_final = random.normal(size=state.shape)

    def value(weights: Any, xs: Any, state: Any) -> Any:
        out = oracles.unroll(oracle, weights, xs, state, GAPS, PACKED, d_ys, d_final)
        return np.sum(out["ys"] * d_ys) + np.sum(out["final"] * d_final), out

    _, out = value(weights, xs, state)
    w, x, s = {k: random.normal(size=v.shape) for k, v in weights.items()}, xs * 0.3 + 1, state * 0.2 - 1
    ahead = value({k: v + 1e-6 * w[k] for k, v in weights.items()}, xs + 1e-6 * x, state + 1e-6 * s)[0]
    behind = value({k: v - 1e-6 * w[k] for k, v in weights.items()}, xs - 1e-6 * x, state - 1e-6 * s)[0]
    along = sum(np.sum(out["d_w"][k] * w[k]) for k in w) + np.sum(out["d_xs"] * x) + np.sum(out["d_state"] * s)
    np.testing.assert_allclose((ahead - behind) / 2e-6, along, rtol=1e-7)
