"""MinGRU and MinLSTM against NumPy loops in double precision."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from diagonal_oracles import FLAGS, ROWS, TIME, check_gradients, unroll

import sequinox as sqx

pytestmark = pytest.mark.usefixtures("quick_compilation", "unchecked_types")

N_IN, N_HIDDEN = 3, 5
UNITS: dict[str, Any] = {"MinGRU": sqx.MinGRU, "MinLSTM": sqx.MinLSTM}


def sigma(a: Any) -> Any:
    return 1 / (1 + np.exp(-a))


def min_gru(w: Any, x: Any, h: Any) -> Any:
    z = sigma(w["W_z"] @ x + w["b_z"])
    return (1 - z) * h + z * (w["W"] @ x + w["b"])


def min_lstm(w: Any, x: Any, h: Any) -> Any:
    f, i = sigma(w["W_f"] @ x + w["b_f"]), sigma(w["W_i"] @ x + w["b_i"])
    return f / (f + i) * h + i / (f + i) * (w["W"] @ x + w["b"])


ORACLES = {"MinGRU": min_gru, "MinLSTM": min_lstm}


@eqx.filter_jit
def run(layer: Any, xs: Any, state: Any, mask: Any, resets: Any, d_ys: Any, d_last: Any) -> Any:
    out, pull = eqx.filter_vjp(lambda c, x, s: c.unroll(x, s, mask=mask, resets=resets), layer, xs, state)
    return out, pull((d_ys, d_last))


@pytest.mark.parametrize("method", ["sequential", "associative"])
@pytest.mark.parametrize("name", UNITS)
def test_against_a_loop(name: str, method: Any):
    mask, resets = FLAGS["packed-with-gaps"]
    random = np.random.default_rng(6)
    with jax.enable_x64(True):
        layer = UNITS[name](N_IN, N_HIDDEN, jax.random.key(0), method=method, dtype=jnp.float64)
        layer = jax.tree.map(lambda a: jnp.asarray(random.normal(size=a.shape)) if eqx.is_array(a) else a, layer)
        xs, state = random.normal(size=(ROWS, TIME, N_IN)), random.normal(size=(ROWS, N_HIDDEN))
        d_ys, d_last = random.normal(size=(ROWS, TIME, N_HIDDEN)), random.normal(size=state.shape)
        arrays = {"xs": xs, "state": state, **{k: np.asarray(v) for k, v in sqx.parameters(layer).items()}}

        def loop(arrays: Any) -> Any:
            step = lambda x, h: (ORACLES[name](arrays, x, h),) * 2
            return unroll(step, arrays["xs"], arrays["state"], mask, resets)

        def value(arrays: Any) -> float:
            ys, last = loop(arrays)
            return float(np.sum(ys * d_ys) + np.sum(last * d_last))

        args = map(jnp.asarray, (xs, state, mask, resets, d_ys, d_last))
        (ys, last), (d_layer, d_xs, d_state) = run(layer, *args)
        expected = loop(arrays)
        np.testing.assert_allclose(ys, expected[0], atol=1e-13)
        np.testing.assert_allclose(last, expected[1], atol=1e-13)
        check_gradients(value, arrays, {"xs": d_xs, "state": d_state, **sqx.parameters(d_layer)}, 1e-7)


@pytest.mark.parametrize("name", UNITS)
def test_single_precision(name: str):
    layer = UNITS[name](N_IN, N_HIDDEN, jax.random.key(0))
    w = {k: np.asarray(v, np.float64) for k, v in sqx.parameters(layer).items()}
    xs = np.random.default_rng(7).normal(size=(2, 40, N_IN)).astype(np.float32)
    ys, last = layer.unroll(xs)
    step = lambda x, h: (ORACLES[name](w, x, h),) * 2
    expected, _ = unroll(step, xs.astype(np.float64), np.zeros((2, N_HIDDEN)))
    np.testing.assert_allclose(ys, expected, atol=1e-6)
    np.testing.assert_array_equal(ys[:, -1], last)


def edited(layer: Any, **values: float) -> Any:
    for name, value in values.items():
        where = lambda c, n=name: getattr(c, n)
        layer = eqx.tree_at(where, layer, jnp.full_like(where(layer), value))
    return layer


XS = jnp.asarray(np.random.default_rng(9).normal(size=(7, N_IN)), jnp.float32)
H = jnp.arange(5.0) - 2


def test_min_gru_gates():
    """Shut, it holds; open, it is the candidate alone."""
    layer = edited(sqx.MinGRU(N_IN, N_HIDDEN, jax.random.key(0)), W_z=0)
    ys, last = edited(layer, b_z=-200).unroll(XS, H)
    np.testing.assert_array_equal(last, H)
    ys, _ = edited(layer, b_z=200).unroll(XS, H)
    np.testing.assert_allclose(ys, XS @ layer.W.T, atol=1e-6)


def test_min_lstm_gates():
    layer = edited(sqx.MinLSTM(N_IN, N_HIDDEN, jax.random.key(0)), W_f=0, W_i=0)
    _, last = edited(layer, b_i=-200).unroll(XS, H)
    np.testing.assert_array_equal(last, H)
    ys, _ = edited(layer, b_f=-200).unroll(XS, H)
    np.testing.assert_allclose(ys, XS @ layer.W.T, atol=1e-6)


@pytest.mark.parametrize(("b_f", "b_i", "share"), [(-500, -500, 0.5), (500, 500, 0.5), (-500, -499, sigma(-1.0))])
def test_min_lstm_shares_of_shut_gates(b_f: float, b_i: float, share: float):
    """f and i are both below the smallest number, and their shares are what they are; so is the gradient."""
    layer = edited(sqx.MinLSTM(N_IN, N_HIDDEN, jax.random.key(0)), W_f=0, W_i=0, W=0, b_f=b_f, b_i=b_i)
    _, last = layer.unroll(XS[:1], H)
    np.testing.assert_allclose(last, share * H, rtol=1e-5)
    gradient = eqx.filter_grad(lambda c: jnp.sum(c.unroll(XS[:1], H)[1]))(layer)
    slope = share * (1 - share) if b_f < 0 else 0
    np.testing.assert_allclose(gradient.b_f, slope * H, rtol=1e-4, atol=1e-7)


def test_starts():
    lstm = sqx.MinLSTM(N_IN, N_HIDDEN, jax.random.key(0), forget_bias=1.5)
    assert (lstm.b_f == 1.5).all() and not lstm.b_i.any() and not lstm.b.any()
    assert list(sqx.parameters(lstm)) == ["W_f", "b_f", "W_i", "b_i", "W", "b"]
    assert list(sqx.parameters(sqx.MinGRU(N_IN, N_HIDDEN, jax.random.key(0)))) == ["W_z", "b_z", "W", "b"]
