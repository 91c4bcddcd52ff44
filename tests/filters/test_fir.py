"""FIR against SciPy and a NumPy loop; the window beneath it."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import signal

import sequinox as sqx
from sequinox.convolution._window import window_over

pytestmark = pytest.mark.usefixtures("quick_compilation")

KEY = jax.random.key(0)
RANDOM = np.random.default_rng(0)
ROWS, TIME, N_IN = 3, 12, 2
MASK = RANDOM.random((ROWS, TIME)) < 0.7
RESETS = RANDOM.random((ROWS, TIME)) < 0.25


@eqx.filter_jit
def unroll(layer: Any, xs: Any, state: Any = None, mask: Any = None, resets: Any = None) -> Any:
    return layer.unroll(xs, state, mask=mask, resets=resets)


@eqx.filter_jit
def gradients(layer: Any, xs: Any, state: Any, mask: Any, resets: Any, d_ys: Any, d_final: Any) -> Any:
    _, pull = eqx.filter_vjp(lambda la, x, s: la.unroll(x, s, mask=mask, resets=resets), layer, xs, state)
    return pull((d_ys, d_final))


def draw(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("n_taps", [1, 5, 30])
def test_lfilter(n_taps: int):
    """Every channel on its own, whole and cut into stretches."""
    xs, taps = draw(ROWS, 100, N_IN), draw(n_taps, N_IN) / np.sqrt(n_taps).astype(np.float32)
    layer = sqx.FIR(N_IN, taps)
    assert layer.receptive_field == layer.n_taps == n_taps
    expected = np.stack(
        [signal.lfilter(taps[:, c].astype(np.float64), 1, xs[..., c].astype(np.float64)) for c in range(N_IN)], -1
    )
    ys, final = unroll(layer, xs)
    np.testing.assert_allclose(ys, expected, atol=1e-6)
    if n_taps > 1:
        np.testing.assert_array_equal(final, xs[:, 100 - n_taps + 1 :])
    state, parts = None, []
    for start, stop in ((0, 3), (3, 60), (60, 60), (60, 100)):
        y, state = unroll(layer, xs[:, start:stop], state)
        parts.append(y)
    np.testing.assert_allclose(np.concatenate(parts, 1), expected, atol=1e-6)
    np.testing.assert_array_equal(state, final)


def loop(w: Any, xs: Any, past: Any, mask: Any, resets: Any) -> Any:
    """One row, sample by sample."""
    window, ys = list(past), []
    for x, real, fresh in zip(xs, mask, resets, strict=True):
        if not real:
            ys.append(np.zeros(xs.shape[-1]))
            continue
        if fresh:
            window = [np.zeros_like(x)] * len(past)
        window = [*window, x]
        ys.append(sum(w[j] * window[-1 - j] for j in range(len(w))))
        window = window[1:]
    return np.stack(ys), np.array(window).reshape(past.shape)


FLAGS = {"gaps": (MASK, None), "packed": (None, RESETS), "packed-with-gaps": (MASK, RESETS)}


@pytest.mark.parametrize(  # few taps are summed one by one, many in a loop
    ("flags", "n_taps"), [("gaps", 4), ("packed", 4), ("packed-with-gaps", 4), ("packed-with-gaps", 17)]
)
def test_a_loop_in_float64(flags: str, n_taps: int):
    """Outputs, states, and the gradients of a weighted sum of both, by differences (it is linear in each argument)."""
    mask, resets = FLAGS[flags]
    w, xs, past = draw(n_taps, N_IN) / 2, draw(ROWS, TIME, N_IN), draw(ROWS, n_taps - 1, N_IN)
    d_ys, d_final = draw(ROWS, TIME, N_IN), draw(ROWS, n_taps - 1, N_IN)
    every, none = np.ones((ROWS, TIME), bool), np.zeros((ROWS, TIME), bool)
    m, r = every if mask is None else mask, none if resets is None else resets
    xs = np.where(m[..., None], xs, np.float32(np.nan)) if mask is not None else xs

    def run(w: Any, xs: Any, past: Any) -> Any:
        rows = [loop(w, *row) for row in zip(xs, past, m, r, strict=True)]
        return np.stack([y for y, _ in rows]), np.stack([s for _, s in rows])

    wide = [a.astype(np.float64) for a in (w, xs, past)]
    expected_ys, expected_final = run(*wide)
    layer = sqx.FIR(N_IN, w)
    ys, final = unroll(layer, xs, past, mask, resets)
    np.testing.assert_allclose(ys, expected_ys, atol=2e-6)
    np.testing.assert_array_equal(final, expected_final.astype(np.float32))

    def total(w: Any, xs: Any, past: Any) -> Any:
        ys, final = run(w, xs, past)
        return (ys * d_ys).sum() + (final * d_final).sum()

    d_layer, d_xs, d_past = gradients(layer, jnp.asarray(xs), jnp.asarray(past), mask, resets, d_ys, d_final)
    got = (d_layer.w, d_xs, d_past)
    base = total(*wide)
    for i, a in enumerate(wide):
        expected = np.zeros_like(a)
        for at in np.ndindex(a.shape):
            if np.isfinite(a[at]):
                moved = [v.copy() for v in wide]
                moved[i][at] += 1
                expected[at] = total(*moved) - base
        np.testing.assert_allclose(got[i], expected, atol=1e-5)


def test_many_taps_compile_in_a_loop():
    """As many operations for 400 taps as for 40."""
    length = lambda n: len(str(jax.make_jaxpr(lambda x: sqx.FIR(1, n, KEY)(x))(jnp.ones((5, 1)))).splitlines())
    assert length(400) == length(40)


def test_taps_for_every_channel():
    taps = [0.5, -0.25, 0.125]
    assert sqx.FIR(2, taps).w.tolist() == [[0.5, 0.5], [-0.25, -0.25], [0.125, 0.125]]
    assert sqx.FIR(2, np.array(taps)).w.dtype == jnp.float32
    assert sqx.FIR(2, jnp.array(taps, jnp.bfloat16)).w.dtype == jnp.bfloat16
    assert sqx.FIR(2, taps, dtype=jnp.float16).w.dtype == jnp.float16
    assert sqx.FIR(1, np.array([1, 2])).w.tolist() == [[1.0], [2.0]]


def test_drawn_taps_keep_the_variance():
    w = sqx.FIR(5000, 8, KEY).w
    np.testing.assert_allclose(jnp.sum(w**2, 0).mean(), 1, atol=0.02)


def test_a_window_unfolded():
    """Every lag of the window, against the real samples before each one."""
    xs, past = draw(ROWS, TIME, N_IN), draw(ROWS, 5, N_IN)
    xs = np.where(MASK[..., None], xs, np.float32(0))
    window = jax.jit(window_over)(xs, past, MASK, RESETS)
    lags = (0, 2, 5)
    got = np.asarray(window.stacked(lags))
    for i, lag in enumerate(lags):
        tap = np.zeros((6, N_IN))
        tap[lag] = 1
        expected = np.stack([loop(tap, *row)[0] for row in zip(xs, past, MASK, RESETS, strict=True)])
        ys = np.asarray(window.restore(jnp.asarray(got[:, :, i])))
        np.testing.assert_array_equal(np.where(MASK[..., None], ys, 0), expected.astype(np.float32))


def test_without_flags_the_window_is_slices():
    xs, past = jnp.ones((2, 7, 3)), jnp.zeros((2, 4, 3))
    text = str(jax.make_jaxpr(lambda xs, past: window_over(xs, past, None, None).lagged(3))(xs, past))
    assert "concatenate" in text and "slice" in text
    assert not any(name in text for name in ("gather", "sort", "select_n", "cummax", "scatter"))
