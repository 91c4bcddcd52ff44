"""Positions against formulas in float64: sinusoidal, learned, rotary; how they are counted, and how far."""

from typing import Any

import attention_oracles as oracles
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sequinox as sqx
from sequinox.testing._probe import wide

pytestmark = pytest.mark.usefixtures("quick_compilation")

KEY = jax.random.key(0)


def draw(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def sinusoids(positions: Any, d: int) -> np.ndarray:
    """The paper's formula, number by number."""
    out = np.zeros((*np.shape(positions), d))
    for place in np.ndindex(*np.shape(positions)):
        n = int(np.asarray(positions)[place])
        for j in range(d):
            angle = n / 10_000 ** (2 * (j // 2) / d)
            out[place][j] = np.sin(angle) if j % 2 == 0 else np.cos(angle)
    return out


def at(layer: Any, positions: Any, d: int, dtype: Any = jnp.float32) -> np.ndarray:
    """What a layer adds at these positions: steps from states that have come so far."""
    n = jnp.asarray(positions, jnp.int32)
    y, after = jax.jit(lambda x, n: layer.step(x, n))(jnp.zeros((*n.shape, d), dtype), n)
    assert np.asarray(after).tolist() == (np.asarray(positions) + 1).tolist()
    return np.asarray(y, np.float64)


# ---- sinusoidal ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("d", [1, 6, 7])
def test_the_formula(d: int):
    xs = draw(2, 9, d)
    np.testing.assert_allclose(jax.jit(sqx.AddPositions(d))(xs), xs + sinusoids(np.arange(9), d), atol=1e-5)


def test_the_formula_far_out():
    """As a float32 product the angle of the fastest pair is wrong by up to 0.03 at a million; here it is not."""
    near, far = np.array([100, 5_003, 10_000]), np.array([123_457, 777_777, 999_999])
    layer, d = sqx.AddPositions(8), 8
    np.testing.assert_allclose(at(layer, near, d), sinusoids(near, d), atol=1e-4)
    ours = np.abs(at(layer, far, d) - sinusoids(far, d)).max()
    angles = far.astype(np.float32)[:, None] * (10_000 ** (-np.arange(0, d, 2) / d)).astype(np.float32)
    plain = np.stack([np.sin(angles.astype(np.float64)), np.cos(angles.astype(np.float64))], -1).reshape(3, d)
    assert ours < 1e-2 and ours < np.abs(plain - sinusoids(far, d)).max()


@pytest.mark.parametrize(("dtype", "tolerance"), [("bfloat16", 2**-8), ("float16", 2**-11)])
def test_half_precision_is_rounded_once(dtype: str, tolerance: float):
    """Position 3,000 is no number of bfloat16; computed in it, the sines would be of 2,992 or 3,008."""
    got = at(sqx.AddPositions(6), [3_000, 3_001], 6, jnp.dtype(dtype))
    np.testing.assert_allclose(got, sinusoids([3_000, 3_001], 6), atol=tolerance)


def test_double_precision():
    with wide():
        got = at(sqx.AddPositions(6), [3, 70], 6, jnp.float64)
    np.testing.assert_allclose(got, sinusoids([3, 70], 6), atol=1e-6)  # the frequencies are rounded, to 2^-31 turns


TURN = 2 * np.pi
PER_SAMPLE = TURN / 2**31  # radians: what the documentation says of a rounded frequency
ONCE = 5e-7  # of the angle and the sine in float32


def frequencies(base: float, d: int) -> np.ndarray:
    return base ** (-np.arange(0, d, 2) / d)


def rounded(n: int, base: float, d: int) -> np.ndarray:
    """Angles in Python's integers: `n` times a frequency that is a multiple of 2^-30 turns, modulo a turn."""
    units = [round(f / TURN * 2**30) for f in frequencies(base, d)]
    return np.array([TURN * (n * u % 2**30) / 2**30 for u in units])


@pytest.mark.parametrize("n", [10_000, 1_000_000, 10_000_000])
def test_angles_are_as_near_the_formula_as_the_documentation_says(n: int):
    """And no nearer: what the frequencies' rounding makes of it is seen."""
    d, places = 64, np.array([n - 3, n])
    error = np.abs(at(sqx.AddPositions(d), places, d) - sinusoids(places, d)).max()
    assert PER_SAMPLE * n / 10 < error < PER_SAMPLE * n + ONCE
    q = jnp.ones((1, 1, d))
    got = jax.jit(lambda n: jnp.sum(sqx.Rotary()(q, n) * sqx.Rotary()(q, n - n)))(jnp.array([n], jnp.int32))
    expected = 2 * np.sum(np.cos(n * frequencies(1e4, d)))
    assert abs(got - expected) < d * (PER_SAMPLE * n + ONCE)


@pytest.mark.parametrize("n", [7, 1_000_000, 10**9, 2**30 + 5, 2**31 - 2])
def test_nothing_but_the_frequency_is_rounded(n: int):
    """At any position, for sines and for rotary positions."""
    d = 12
    angle = rounded(n, 1e4, d)
    expected = np.stack([np.sin(angle), np.cos(angle)], -1).reshape(1, d)
    np.testing.assert_allclose(at(sqx.AddPositions(d), [n], d), expected, rtol=0, atol=ONCE)
    x = jnp.tile(jnp.array([1.0, 0.0]), d // 2).reshape(1, 1, d)
    got = jax.jit(lambda n: sqx.Rotary(500.0, interleaved=True)(x, n))(jnp.array([n], jnp.int32))
    angle = rounded(n, 500.0, d)
    np.testing.assert_allclose(got[0, 0], np.stack([np.cos(angle), np.sin(angle)], -1).ravel(), rtol=0, atol=ONCE)


@pytest.mark.parametrize("n", [1_000_000, 10**9, 2**31 - 10])
def test_the_angle_between_two_positions_is_the_same_wherever_they_stand(n: int):
    d = 6
    near, far = at(sqx.AddPositions(d), [0, 8], d), at(sqx.AddPositions(d), [n, n + 8], d)
    between = lambda p: np.arctan2(
        p[1, ::2] * p[0, 1::2] - p[1, 1::2] * p[0, ::2], np.sum(p.reshape(2, 3, 2).prod(0), -1)
    )
    np.testing.assert_allclose(between(far), between(near), atol=2e-6)


def test_counting_for_ever():
    layer, xs = sqx.AddPositions(), draw(2, 9, 5)
    run = jax.jit(lambda xs, n: layer.unroll(xs, n))
    n = np.array([2**31 - 5, 2**31 - 1], np.int32)
    ys, after = run(xs, n)
    far, _ = run(xs, n - 2**30)
    np.testing.assert_array_equal(ys, far)  # 2^30 samples are whole turns
    assert np.asarray(after).tolist() == [2**30 + 4, 2**30 + 8]
    y, after = jax.jit(lambda x, n: layer.step(x, n))(xs[:, 0], n)
    np.testing.assert_array_equal(y, ys[:, 0])
    assert np.asarray(after).tolist() == [2**31 - 4, 2**30]


# ---- counting --------------------------------------------------------------------------------------------------------

P = draw(12, 5, seed=3)


def learned(max_len: int = 12) -> Any:
    layer = sqx.AddLearnedPositions(5, max_len, KEY)
    return jax.tree.map(lambda _: jnp.asarray(P[:max_len]), layer)


LAYERS = [(sqx.AddPositions(5), sinusoids(np.arange(12), 5)), (sqx.AddPositions(5, 12), sinusoids(np.arange(12), 5))]
LAYERS += [(learned(), P)]


@pytest.mark.parametrize(("layer", "table"), LAYERS, ids=["sines", "bounded", "learned"])
def test_real_samples_since_the_reset_are_counted(layer: Any, table: np.ndarray):
    """Whole, and in a stream of stretches and steps, with masks and resets, also resets that are masked."""
    random = np.random.default_rng(1)
    xs, mask, resets = draw(3, 12, 5), random.random((3, 12)) < 0.7, random.random((3, 12)) < 0.2
    assert (resets & ~mask).any() and (resets & mask).any()
    expected, counts = np.zeros(xs.shape), [0, 0, 0]
    for r in range(3):
        for t in np.flatnonzero(mask[r]):
            counts[r] = 0 if resets[r, t] else counts[r]
            expected[r, t] = xs[r, t] + table[counts[r]]
            counts[r] += 1
    xs = np.where(mask[..., None], xs, np.nan)
    forward = jax.jit(lambda x, m, r: layer(x, mask=m, resets=r))
    np.testing.assert_allclose(forward(xs, mask, resets), expected, atol=1e-5)
    unroll = jax.jit(lambda x, s, m, r: layer.unroll(x, s, mask=m, resets=r))
    step = jax.jit(lambda x, s, m, r: layer.step(x, s, mask=m, resets=r))
    state, ys = layer.init_state(3), []
    for part in (slice(0, 5), 5, slice(6, 6), slice(6, 7), 7, slice(8, 12)):
        run = step if isinstance(part, int) else unroll
        y, state = run(xs[:, part], state, mask[:, part], resets[:, part])
        ys.append(y[:, None] if isinstance(part, int) else y)
    np.testing.assert_allclose(np.concatenate(ys, 1), expected, atol=1e-5)
    assert np.asarray(state).tolist() == counts


def test_the_gradient_of_learned_positions():
    """Each vector gets the cotangents of the samples that stood there; rows of two and four samples."""
    layer, weight, mask = learned(6), draw(2, 4, 5), np.array([[True, False, True, False], [True] * 4])
    grad = jax.jit(jax.grad(lambda P: jnp.sum(_with(layer, P)(jnp.zeros((2, 4, 5)), mask=mask) * weight)))(layer.P)
    expected = np.zeros((6, 5))
    expected[:4] += weight[1]
    expected[:2] += weight[0, [0, 2]]
    np.testing.assert_allclose(grad, expected, atol=1e-6)


def _with(layer: Any, P: Any) -> Any:
    return jax.tree.map(lambda _: P, layer)


def test_learned_positions_begin_small():
    layer = sqx.AddLearnedPositions(40, 50, KEY)
    assert layer.P.shape == (50, 40) and abs(float(jnp.std(layer.P)) - 0.02) < 0.002


# ---- the longest row -------------------------------------------------------------------------------------------------


def error_of(call: Any) -> str:
    with pytest.raises((ValueError, RuntimeError)) as caught:
        jax.block_until_ready(call())
    return str(caught.value)


@pytest.mark.parametrize(
    ("layer", "wrap"),
    [(sqx.AddPositions(5, 4), jax.jit), (learned(4), jax.jit), (learned(4), lambda f: f)],
    ids=["sines", "learned", "learned-eager"],
)
def test_rows_that_are_too_long(layer: Any, wrap: Any):
    said = f"{type(layer).__name__}: a row is longer than max_len=4"
    xs, four = draw(2, 6, 5), np.array([[1, 0, 1, 1, 0, 1], [0, 0, 1, 1, 0, 1]], bool)
    five, restarted = four.copy(), np.zeros((2, 6), bool)
    five[1] = [1, 1, 0, 1, 1, 1]
    restarted[1, 3] = True
    forward = wrap(lambda xs, m=None, r=None: layer(xs, mask=m, resets=r))
    unroll = wrap(lambda xs, s, m=None, r=None: layer.unroll(xs, s, mask=m, resets=r))
    step = wrap(lambda x, s, m=None, r=None: layer.step(x, s, mask=m, resets=r))
    zero = layer.init_state(2)
    assert said in error_of(lambda: forward(xs))
    assert said in error_of(lambda: forward(xs, five))
    assert said in error_of(lambda: unroll(xs, zero, five))
    np.testing.assert_allclose(forward(xs, four), unroll(xs, zero, four)[0], atol=1e-6)  # four that count, in six
    assert np.isfinite(forward(xs, five, restarted)).all()  # five, two of them behind a reset
    full = jnp.array([4, 3], jnp.int32)
    assert said in error_of(lambda: step(xs[:, 0], full))
    assert said in error_of(lambda: unroll(xs[:, :1], full))
    _, after = step(xs[:, 0], full, np.array([False, True]))
    assert np.asarray(after).tolist() == [4, 4]
    _, after = step(xs[:, 0], full, None, np.array([True, False]))
    assert np.asarray(after).tolist() == [1, 4]
    _, after = unroll(xs[:, :2], full, np.array([[False, False], [False, True]]))
    assert np.asarray(after).tolist() == [4, 4]


# ---- rotary ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("base", [50.0, 10_000.0])
def test_rotary_against_complex_numbers(base: float, interleaved: bool):
    turn, x = sqx.Rotary(base, interleaved=interleaved), draw(2, 4, 3, 6)
    positions = np.array([[0, 1, 5, 40], [7, 3, 1000, 0]])
    got = jax.jit(lambda x, n: turn(x, n))(x, jnp.asarray(positions))
    for place in np.ndindex(2, 4):
        expected = oracles.turned(x[place], int(positions[place]), base, interleaved)
        np.testing.assert_allclose(got[place], expected, atol=2e-5)
    np.testing.assert_array_equal(got[0, 0], x[0, 0])  # nothing is turned at position 0
    shared = jax.jit(lambda x, n: turn(x, n))(x, jnp.asarray(positions[:1]))
    np.testing.assert_allclose(shared[0], got[0], atol=1e-6)


@pytest.mark.parametrize("offset", [0, 1_000_000, 10**9, 2**31 - 6])
def test_scores_depend_on_the_distance_alone(offset: int):
    turn, q, k = sqx.Rotary(10_000.0), jnp.asarray(draw(1, 1, 8)), jnp.asarray(draw(1, 1, 8, seed=1))
    score = jax.jit(lambda n, m: jnp.sum(turn(q, n) * turn(k, m)))
    for distance in (0, 1, 5):
        got = score(jnp.array([offset + distance], jnp.int32), jnp.array([offset], jnp.int32))
        expected = np.sum(oracles.turned(q, distance, 1e4, False) * np.asarray(k, np.float64))
        np.testing.assert_allclose(got, expected, atol=1e-5)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_rotary_tables_are_not_of_half_precision(dtype: str):
    x = draw(2, 1, 8).astype(dtype)
    got = jax.jit(lambda x: sqx.Rotary()(x, jnp.array([3_000, 2_999])))(x)
    assert got.dtype == jnp.dtype(dtype)
    rounding = float(jnp.finfo(dtype).eps)
    for i, n in enumerate((3_000, 2_999)):
        expected = oracles.turned(x[i].astype(np.float64), n, 10_000.0, False)
        np.testing.assert_allclose(np.asarray(got[i], np.float64), expected, atol=rounding * np.abs(expected).max())


def test_rotary_in_double_precision():
    with wide():
        x = draw(3, 2, 6).astype(np.float64)
        got = sqx.Rotary(100.0)(jnp.asarray(x), jnp.array([0, 2, 9]))
        for i, n in enumerate((0, 2, 9)):
            np.testing.assert_allclose(got[i], oracles.turned(x[i], n, 100.0, False), atol=1e-7)


def test_heads_of_an_odd_width_cannot_be_turned():
    with pytest.raises(ValueError, match="an even width, got 5"):
        sqx.Rotary()(jnp.ones((2, 1, 5)), jnp.arange(2))
    with pytest.raises(ValueError, match="an even width, got d_head 3"):
        sqx.MultiHeadSelfAttention(6, 2, KEY, rotary=sqx.Rotary())
