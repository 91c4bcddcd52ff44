"""RWA, RDA, MGU and IndRNN, by either engine, against NumPy loops with gradients derived by hand."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import oracles_averages as oracles
import pytest
from table_averages import softsign, squared_ramp

import sequinox as sqx

pytestmark = pytest.mark.usefixtures("quick_compilation", "unchecked_types")

ROWS, TIME, N_IN, N_HIDDEN = 4, 6, 3, 5
KEY = jax.random.key(0)
CELLS: dict[str, tuple[Any, dict, Any]] = {
    "RWA": (sqx.RWA, {"trained_start": True}, oracles.Average()),
    "RWA-identity": (sqx.RWA, {"f_h": "identity"}, oracles.Average("exp", "identity")),
    "RDA": (sqx.RDA, {"trained_start": True}, oracles.Average()),
    "RDA-sigmoid": (
        sqx.RDA,
        {"f_a": "sigmoid", "f_h": "identity", "f_o": "tanh"},
        oracles.Average("sigmoid", "identity", "tanh"),
    ),
    "RDA-softplus": (sqx.RDA, {"f_a": "softplus"}, oracles.Average("softplus")),
    "RDA-functions": (
        sqx.RDA,
        {"f_a": squared_ramp, "f_h": softsign, "f_o": jnp.tanh, "trained_start": True},
        oracles.Average("squared ramp", "softsign", "tanh"),
    ),
    "MGU": (sqx.MGU, {}, oracles.Minimal()),
    "IndRNN-relu": (sqx.IndRNN, {}, oracles.Independent("relu")),
    "IndRNN-tanh": (sqx.IndRNN, {"activation": "tanh"}, oracles.Independent("tanh")),
}
AVERAGES = [name for name in CELLS if name.startswith("R")]
EVERY = np.ones((ROWS, TIME), bool)
GAPS = np.array([[1, 0, 1, 1, 0, 1], [0, 0, 1, 1, 1, 1], [0, 0, 0, 0, 0, 0], [0, 1, 0, 1, 0, 0]], bool)
PACKED = np.array([[0, 0, 1, 0, 0, 1], [1, 0, 0, 0, 0, 0], [0, 1, 1, 1, 1, 1], [0, 0, 0, 1, 0, 0]], bool)
FLAGS = {"whole": (EVERY, ~EVERY), "gaps": (GAPS, ~EVERY), "packed": (EVERY, PACKED), "both": (GAPS, PACKED)}


@eqx.filter_jit
def run(cell: Any, xs: Any, state: Any, m: Any, mask: Any, resets: Any, d_ys: Any, d_final: Any) -> Any:
    """A run in the papers' terms: numerator and denominator in full, `m` an arbitrary scale of the given ones."""

    def paper(cell: Any, xs: Any, state: Any, m: Any) -> Any:
        if len(state) == 3:
            h, n, d = state
            given = sqx.RWAState(h, n * jnp.exp(-m), d * jnp.exp(-m), m)
        else:
            (given,) = state
        ys, final = cell.unroll(xs, given, mask=mask, resets=resets)
        if len(state) == 1:
            return ys, (final,)
        return ys, (final.h, final.n * jnp.exp(final.m), final.d * jnp.exp(final.m))

    out, pull = eqx.filter_vjp(paper, cell, xs, state, m)
    return out, pull((d_ys, d_final))


def make(name: str, implementation: str, dtype: Any, scale: float = 0.5) -> tuple[Any, dict[str, np.ndarray]]:
    """A cell with random weights, and the weights by name, in float64."""
    kind, options, _ = CELLS[name]
    cell = kind(N_IN, N_HIDDEN, KEY, implementation=implementation, dtype=dtype, **options)
    random = np.random.default_rng(3)
    draw = lambda a: jnp.asarray(scale * random.normal(size=a.shape), a.dtype)
    cell = jax.tree.map(lambda a: draw(a) if eqx.is_array(a) else a, cell)
    return cell, {k: np.asarray(v, np.float64) for k, v in sqx.parameters(cell).items()}


def data(name: str, dtype: Any, n_time: int = TIME) -> tuple[Any, ...]:
    """Samples, a state in the papers' terms, cotangents."""
    random = np.random.default_rng(5)
    draw = lambda *shape: np.asarray(random.normal(size=shape), dtype).astype(np.float64)
    xs, d_ys = draw(ROWS, n_time, N_IN), draw(ROWS, n_time, N_HIDDEN)
    n_leaves = 3 if name in AVERAGES else 1
    state, d_final = [tuple(draw(ROWS, N_HIDDEN) for _ in range(n_leaves)) for _ in range(2)]
    if n_leaves == 3:  # a denominator is positive
        state = (state[0], state[1], np.abs(state[2]) + 0.5)
    return xs, state, d_ys, d_final


def compare(name: str, implementation: str, dtype: Any, flags: str, tolerance: float) -> None:
    cell, weights = make(name, implementation, dtype)
    xs, state, d_ys, d_final = data(name, dtype)
    mask, resets = FLAGS[flags]
    expected = oracles.unroll(CELLS[name][2], weights, xs, state, mask, resets, d_ys, d_final)
    put = lambda tree: jax.tree.map(lambda a: jnp.asarray(a, dtype), tree)
    m = np.random.default_rng(6).normal(size=(ROWS, N_HIDDEN))
    out, gradients = run(cell, put(xs), put(state), put(m), mask, resets, put(d_ys), put(d_final))

    def close(a: Any, b: Any, size: float = 1) -> None:
        np.testing.assert_allclose(np.asarray(a), b, rtol=0, atol=tolerance * max(size, np.abs(b).max(initial=0)))

    jax.tree.map(close, out, (expected["ys"], expected["final"]))
    d_cell, d_xs, d_state, d_m = gradients
    jax.tree.map(close, (d_xs, d_state), (expected["d_xs"], expected["d_state"]))
    close(d_m, np.zeros_like(m), 10)  # the scale is of no consequence; what is left are differences of large numbers
    d_weights = sqx.parameters(d_cell)
    assert d_weights.keys() == expected["d_w"].keys()
    for key, gradient in d_weights.items():
        close(gradient, expected["d_w"][key])


@pytest.mark.parametrize("flags", FLAGS)
@pytest.mark.parametrize("name", CELLS)
def test_float64_fused(name: str, flags: str):
    with jax.enable_x64(True):
        compare(name, "fused", jnp.float64, flags, tolerance=1e-13)


@pytest.mark.parametrize("flags", FLAGS)
@pytest.mark.parametrize("name", ["RWA", "RDA-functions", "IndRNN-relu"])
def test_float32_scan(name: str, flags: str):
    compare(name, "scan", jnp.float32, flags, tolerance=3e-6)


@pytest.mark.parametrize("name", CELLS)
def test_the_oracle_itself(name: str):
    """Its gradients against differences of its values."""
    _, weights = make(name, "scan", jnp.float32)
    xs, state, d_ys, d_final = data(name, np.float64)
    random = np.random.default_rng(8)

    def value(weights: Any, xs: Any, state: Any) -> Any:
        out = oracles.unroll(CELLS[name][2], weights, xs, state, GAPS, PACKED, d_ys, d_final)
        return sum(np.sum(a * b) for a, b in zip((out["ys"], *out["final"]), (d_ys, *d_final), strict=True)), out

    _, out = value(weights, xs, state)
    point = (weights, xs, state)
    way = jax.tree.map(lambda a: random.normal(size=a.shape), point)
    ahead = value(*jax.tree.map(lambda a, v: a + 1e-6 * v, point, way))[0]
    behind = value(*jax.tree.map(lambda a, v: a - 1e-6 * v, point, way))[0]
    along = jax.tree.map(lambda g, v: np.sum(g * v), (out["d_w"], out["d_xs"], out["d_state"]), way)
    np.testing.assert_allclose((ahead - behind) / 2e-6, sum(jax.tree.leaves(along)), rtol=1e-7)
