"""The scan of diagonal recurrences: against NumPy loops, differences, and JAX's own derivative of a plain loop."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from diagonal_oracles import FLAGS, GAPS, PACKED, ROWS, TIME, check_gradients, unroll

import sequinox as sqx

pytestmark = pytest.mark.usefixtures("quick_compilation", "unchecked_types")

N, CHUNK = 4, 5
METHODS = ("sequential", "chunked", "associative")
close = lambda a, b, tolerance: np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * max(1, np.abs(b).max()))


@eqx.filter_jit
def scan(a: Any, b: Any, h0: Any, mask: Any, resets: Any, method: Any) -> Any:
    return sqx.diagonal_scan(a, b, h0, mask=mask, resets=resets, method=method, chunk=CHUNK)


@eqx.filter_jit
def pulled(numbers: Any, mask: Any, resets: Any, method: Any, cotangents: Any) -> Any:
    out, pull = jax.vjp(lambda a, b, h0: scan(a, b, h0, mask, resets, method), *numbers)
    return out, pull(cotangents)


def draw(kind: str, constant: bool, dtype: Any = np.float64) -> list[Any]:
    """a, b, h0 and the weights of states and last state in a sum; complex ones have a leading axis of 2."""
    random, lead = np.random.default_rng(2), (2,) if kind == "complex" else ()
    shapes = ((ROWS, TIME, N), (ROWS, N), (ROWS, TIME, N), (ROWS, N))
    b, h0, d_hs, d_last = (random.normal(size=(*lead, *s)).astype(dtype) for s in shapes)
    a = random.uniform(-0.65, 0.65, (*lead, N) if constant else b.shape).astype(dtype)
    return [a, b, h0, d_hs, d_last]


def to_jax(v: Any) -> Any:
    pair = v.ndim and v.shape[0] == 2
    return sqx.ComplexPair(jnp.asarray(v[0]), jnp.asarray(v[1])) if pair else jnp.asarray(v)


def to_numpy(v: Any) -> Any:
    return np.stack(v) if isinstance(v, tuple) else np.asarray(v)


def looped(a: Any, b: Any, h0: Any, mask: Any, resets: Any) -> Any:
    """States and last state by the loop of NumPy, which has complex numbers."""
    whole = lambda v: v[0] + 1j * v[1] if b.ndim == 4 else v
    apart = lambda v: np.stack([v.real, v.imag]) if b.ndim == 4 else v
    xs = np.concatenate([np.broadcast_to(whole(a), whole(b).shape), whole(b)], -1)

    def step(x: Any, h: Any) -> Any:
        h = x[:N] * h + x[N:]
        return h, h

    hs, last = unroll(step, xs, whole(h0), mask, resets)
    return apart(hs), apart(last)


CASES = [("real", "whole"), ("complex-constant", "gaps"), ("complex-constant", "packed")]
CASES += [(kind, "packed-with-gaps") for kind in ("real", "real-constant", "complex")]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("kind", "flags"), CASES)
def test_values_and_gradients(kind: str, method: Any, flags: str):
    kind, constant = kind.split("-")[0], kind.endswith("constant")
    mask, resets = FLAGS[flags]
    a, b, h0, d_hs, d_last = draw(kind, constant)

    def value(arrays: Any) -> float:
        hs, last = looped(arrays["a"], arrays["b"], arrays["h0"], mask, resets)
        real = 1 if mask is None else mask[..., None]
        return float(np.sum(hs * d_hs * real) + np.sum(last * d_last))

    with jax.enable_x64(True):
        put = tuple(map(to_jax, (a, b, h0)))
        d = d_hs if mask is None else np.where(mask[..., None], d_hs, 0)
        m, r = (None if v is None else jnp.asarray(v) for v in (mask, resets))
        (hs, last), gradients = pulled(put, m, r, method, (to_jax(d), to_jax(d_last)))
        hs, expected = to_numpy(hs), looped(a, b, h0, mask, resets)
        if mask is not None:
            hs = np.where(mask[..., None], hs, 0)
        close(hs, expected[0], 1e-14)
        close(to_numpy(last), expected[1], 1e-14)
        names: dict[str, Any] = dict(zip(("a", "b", "h0"), map(to_numpy, gradients), strict=True))
        check_gradients(value, {"a": a, "b": b, "h0": h0}, names, 1e-7)
        if mask is not None:
            assert not names["b"][..., ~mask, :].any()
            assert constant or not names["a"][..., ~mask, :].any()


@pytest.mark.parametrize("method", METHODS)
def test_a_masked_step_holds_bit_by_bit(method: Any):
    """Whatever stands there, at the place of the step in the tree too; a zero keeps its sign."""
    a, b, h0, *_ = (v.astype(np.float32) for v in draw("real", False))
    h0[:, 0] = -0.0
    h0[4] = [np.nan, np.inf, 1e30, -0.0]
    a, b = (np.where(GAPS[..., None], v, np.float32(np.nan)) for v in (a, b))
    hs, last = scan(*map(jnp.asarray, (a, b, h0, GAPS)), None, method)
    hs = np.concatenate([h0[:, None], np.asarray(hs)], 1)
    for i, t in np.argwhere(~GAPS):
        assert hs[i, t].tobytes() == hs[i, t + 1].tobytes()
    assert np.asarray(last).tobytes() == hs[:, -1].tobytes()
    assert np.isfinite(hs[:4]).all()


@pytest.mark.parametrize(("kind", "method"), [*(("real", m) for m in METHODS), ("complex", "chunked")])
def test_nothing_crosses_a_reset(method: Any, kind: str):
    """Row 0 is reset at 11, row 3 at 2, 7, ...: NaN, infinity and large numbers before and behind."""
    a, b, h0, d_hs, d_last = (v.astype(np.float32) for v in draw(kind, False))
    segment = np.cumsum(PACKED, 1)
    for content in (np.nan, np.inf, 1e30):
        for dirty in (0, 1, 2):
            only = lambda v, keep: np.where(keep[..., None], v, 0)
            seen = segment != dirty
            a_dirty, b_dirty = (np.where(seen[..., None], v, np.float32(content)) for v in (a, b))
            h0_dirty = np.full_like(h0, content) if dirty == 0 else h0
            ends = segment[:, -1] != dirty
            runs = []
            for args in ((a, b, h0), (a_dirty, b_dirty, h0_dirty)):
                cotangents = (to_jax(only(d_hs, seen)), to_jax(only(d_last, ends)))
                out = pulled(tuple(map(to_jax, args)), None, jnp.asarray(PACKED), method, cotangents)
                runs.append([to_numpy(v) for v in (*out[0], *out[1])])
            for clean, got in zip(*runs, strict=True):
                if clean.shape[-3:-1] == (ROWS, TIME):
                    rows = (slice(None),) * (clean.ndim - 3) + (seen,)
                    np.testing.assert_array_equal(got[rows], clean[rows])
            np.testing.assert_array_equal(runs[1][1][..., ends, :], runs[0][1][..., ends, :])
            if dirty:  # rows that start with a reset, and rows whose state the content never met
                np.testing.assert_array_equal(runs[1][4][..., PACKED[:, 0], :], 0)


@pytest.mark.parametrize("method", METHODS)
def test_an_absent_row_gives_no_gradient(method: Any):
    """All masked, or reset at once, with a state and coefficients of NaN."""
    nan = jnp.full((2, TIME, N), jnp.nan)
    mask = jnp.array([[False], [True]]) & jnp.ones((2, TIME), bool)
    resets = ~mask | (jnp.arange(TIME) == 0)[None]
    a = jnp.where(mask[..., None], 0.5, nan)
    b = jnp.where(mask[..., None], 1.0, nan)
    ones = jnp.where(mask[..., None], 1.0, jnp.zeros((2, TIME, N))), jnp.ones((2, N))
    _, (d_a, d_b, d_h0) = pulled((a, b, nan[:, 0]), mask, resets, method, ones)
    assert np.isfinite(d_a).all() and not d_a[0].any() and not d_b[0].any()
    np.testing.assert_array_equal(d_h0, [[1.0] * N, [0.0] * N])


def plain(a: Any, b: Any, h0: Any) -> Any:
    """A scan that JAX differentiates itself."""
    body = lambda h, ab: (ab[0] * h + ab[1],) * 2
    last, hs = jax.lax.scan(body, h0, (jnp.swapaxes(a, 0, 1), jnp.swapaxes(b, 0, 1)))
    return jnp.swapaxes(hs, 0, 1), last


def measure(run: Any, a: Any, b: Any, h0: Any) -> Any:
    """A number that is not linear in the states, for derivatives of the second order."""
    hs, last = run(a, b, h0)
    return jnp.sum(jnp.sin(hs)) + jnp.sum(last**3)


@eqx.filter_jit
def every_mode(a: Any, b: Any, h0: Any, method: Any) -> dict[str, Any]:
    run = plain if method == "plain" else lambda a, b, h0: scan(a, b, h0, None, None, method)
    args, along = (a, b, h0), (b, a, h0 + 1)
    loss = lambda *args: measure(run, *args)
    back = lambda *args: jax.grad(loss, (0, 1, 2))(*args)
    one = lambda *args: jax.grad(lambda *v: loss(*(u[None] for u in v)), (0, 1, 2))(*args)
    return {
        "jvp": jax.jvp(run, args, along)[1],
        "forward over reverse": jax.jvp(back, args, along)[1],
        "reverse over reverse": jax.grad(lambda *v: sum(jnp.sum(g**2) for g in back(*v)), (0, 1, 2))(*args),
        "reverse over forward": jax.grad(lambda *v: jax.jvp(loss, v, along)[1], (0, 1, 2))(*args),
        "per row": jax.vmap(one)(*args),
        "map of a alone": jax.vmap(jax.grad(loss), (0, None, None))(jnp.stack([a, a / 2]), b, h0),
        "checkpoint": jax.grad(jax.checkpoint(loss), (0, 1, 2))(*args),  # pyright: ignore[reportPrivateImportUsage]
    }


@pytest.mark.parametrize("method", ["sequential", "chunked"])
def test_every_mode_of_differentiation(method: Any):
    with jax.enable_x64(True):
        a, b, h0, *_ = (jnp.asarray(v) for v in draw("real", False))
        expected, got = every_mode(a, b, h0, "plain"), every_mode(a, b, h0, method)
        for name in expected:
            for e, g in zip(jax.tree.leaves(expected[name]), jax.tree.leaves(got[name]), strict=True):
                close(np.asarray(g), np.asarray(e), 1e-12)


def test_the_derivative_keeps_no_tree():
    """Plain differentiation keeps every level; the rule keeps the coefficients and the states."""
    shapes = (jax.ShapeDtypeStruct((4, 1024, 8), jnp.float32),) * 2
    behind = lambda one, two: (two[0] * one[0], two[0] * one[1] + two[1])
    ours = lambda a, b: jnp.sum(jnp.sin(sqx.diagonal_scan(a, b, method="associative")[0]))
    theirs = lambda a, b: jnp.sum(jnp.sin(jax.lax.associative_scan(behind, (a, b), axis=1)[1]))
    kept = []
    for loss in (ours, theirs):
        residuals = jax.eval_shape(lambda a, b, f=loss: jax.vjp(f, a, b)[1], *shapes)
        kept.append(sum(np.prod(leaf.shape) for leaf in jax.tree.leaves(residuals)) / (4 * 1024 * 8))
    assert kept[0] <= 4 < kept[1]


@pytest.mark.parametrize("method", METHODS)
def test_ten_thousand_steps(method: Any):
    """Modes that hardly decay, that decay below every number, and a step of 0, in single precision."""
    n_time = 10_000
    random = np.random.default_rng(4)
    a = np.broadcast_to(np.array([1 - 1e-4, 1 - 1e-6, 1.0, 1e-3, 1e-30, -0.999]), (n_time, 6)).astype(np.float32)
    a, b = a.copy(), random.normal(size=(n_time, 6)).astype(np.float32)
    a[5000] = 0
    hs, last = sqx.diagonal_scan(jnp.asarray(a), jnp.asarray(b), method=method)
    h, expected = np.zeros(6), []
    for at, bt in zip(a.astype(np.float64), b.astype(np.float64), strict=True):
        h = at * h + bt
        expected.append(h)
    scale = np.abs(expected).max(0)
    assert (np.abs(np.asarray(hs) - expected) / scale).max() < 2e-5
    np.testing.assert_array_equal(np.asarray(hs)[-1], np.asarray(last))


@pytest.mark.parametrize("method", METHODS)
def test_short_and_empty(method: Any):
    a, b, h0, *_ = (jnp.asarray(v, jnp.float32) for v in draw("real", False))
    hs, last = sqx.diagonal_scan(a[:, :0], b[:, :0], h0, method=method)
    assert hs.shape == (ROWS, 0, N)
    np.testing.assert_array_equal(last, h0)
    hs, last = sqx.diagonal_scan(a[:, :1], b[:, :1], h0, method=method)
    np.testing.assert_allclose(last, a[:, 0] * h0 + b[:, 0], rtol=1e-6)
    hs, last = sqx.diagonal_scan(a[:0], b[:0], h0[:0], method=method)
    assert hs.shape == (0, TIME, N) and last.shape == (0, N)


def test_a_growing_mode_stays_finite_step_by_step():
    """The tree would multiply an infinite coefficient by a state of zero: the documentation says so."""
    hs, _ = sqx.diagonal_scan(jnp.full((1,), 2.0), jnp.zeros((300, 1)), method="sequential")
    assert not np.asarray(hs).any()


class Gated(sqx.DiagonalRecurrence):
    """A layer as users write them, with the defaults of the base class."""

    W: jax.Array
    n_in: int = eqx.field(static=True, default=3)
    n_hidden: int = eqx.field(static=True, default=3)
    method: Any = eqx.field(static=True, default="chunked")

    def coefficients(self, x: Any) -> Any:
        return jax.nn.sigmoid(x * jnp.broadcast_to(self.W, x.shape)), x


def test_a_layer_of_ones_own():
    xs = jax.random.normal(jax.random.key(0), (2, 7, 3))
    ys, h = Gated(jnp.array([0.5, -1.0, 2.0])).unroll(xs, jnp.ones((2, 3)))  # pyright: ignore[reportCallIssue]
    x = np.asarray(xs, np.float64)
    step = lambda x, h: (h / (1 + np.exp(-x * [0.5, -1.0, 2.0])) + x,) * 2
    expected, last = unroll(step, x, np.ones((2, 3)))
    np.testing.assert_allclose(ys, expected, atol=1e-6)
    np.testing.assert_allclose(h, last, atol=1e-6)


def test_half_precision_keeps_a_wide_state():
    """A slow average in bfloat16 moves on: 1 - 0.99^300 = 0.951."""
    layer = sqx.OnePole(1, 0.9921875, 0.0078125, dtype=jnp.bfloat16)  # both exact in bfloat16
    ys, h = layer.unroll(jnp.ones((600, 1), jnp.bfloat16))
    assert h.dtype == jnp.float32 and ys.dtype == jnp.bfloat16
    np.testing.assert_allclose(float(h[0]), 1 - 0.9921875**600, atol=1e-5)
