"""Multi-head self-attention against NumPy loops: heads, groups, windows, positions, weights to look at, dropout."""

# pyright: reportArgumentType=false, reportCallIssue=false, reportReturnType=false
# Arguments are unpacked from tables.

from typing import Any

import attention_oracles as oracles
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sequinox as sqx
from sequinox.testing._probe import wide

pytestmark = pytest.mark.usefixtures("quick_compilation")

KEY = jax.random.key(0)
MHSA, ROTARY = sqx.MultiHeadSelfAttention, sqx.Rotary(30.0)
ROWS, TIME, D = 2, 7, 5
MASK = np.array([[1, 1, 0, 1, 1, 1, 0], [0, 1, 1, 0, 1, 0, 1]], bool)
RESETS = np.array([[0, 0, 0, 0, 1, 0, 0], [1, 0, 1, 1, 0, 0, 0]], bool)  # one on a masked sample


@eqx.filter_jit
def run(layer: Any, xs: Any, mask: Any = None, resets: Any = None, key: Any = None) -> Any:
    return layer(xs, mask=mask, resets=resets, key=key)


@eqx.filter_jit
def look(layer: Any, xs: Any, mask: Any = None, resets: Any = None) -> Any:
    return layer.attention_weights(xs, mask=mask, resets=resets)


def draw(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def filled(layer: Any) -> Any:
    """With weights and biases that are all different."""
    leaves, tree = jax.tree.flatten(eqx.filter(layer, eqx.is_inexact_array))
    new = [jnp.asarray(draw(*a.shape, seed=i) / 2, a.dtype) for i, a in enumerate(leaves)]
    return eqx.combine(jax.tree.unflatten(tree, new), layer)


XS = draw(ROWS, TIME, D)


def test_the_weights_and_their_names():
    plain = sqx.parameters(MHSA(6, 3, KEY))
    assert {name: a.shape for name, a in plain.items()} == dict.fromkeys(("W_Q", "W_K", "W_V", "W_O"), (6, 6))
    grouped = sqx.parameters(MHSA(5, 4, KEY, n_kv_heads=2, d_head=3, use_bias=True, dropout=0.1, rotary=None))
    assert {name: a.shape for name, a in grouped.items()} == {
        "W_Q": (12, 5), "W_K": (6, 5), "W_V": (6, 5), "W_O": (5, 12),
        "b_Q": (12,), "b_K": (6,), "b_V": (6,), "b_O": (5,)
    }  # fmt: skip
    assert not any(np.asarray(a).any() for name, a in grouped.items() if name[0] == "b")
    drawn = [np.asarray(a).ravel()[:6] for name, a in grouped.items() if name[0] == "W"]
    assert len({tuple(a) for a in drawn}) == 4  # a key of its own for each


def test_xavier_in_both_directions():
    layer = MHSA(40, 2, KEY, n_kv_heads=1, d_head=30)
    for W, fans in ((layer.W_Q, 100), (layer.W_K, 70), (layer.W_V, 70), (layer.W_O, 100)):
        assert abs(float(jnp.std(W)) / (2 / fans) ** 0.5 - 1) < 0.1


@pytest.mark.parametrize(
    ("sizes", "options", "words"),
    [
        ((5, 2), {}, "d_model must be a multiple of n_heads, got 5 and 2"),
        ((6, 4), {"n_kv_heads": 2}, "d_model must be a multiple of n_heads, got 6 and 4"),
        ((6, 3), {"n_kv_heads": 2}, "n_heads must be a multiple of n_kv_heads, got 3 and 2"),
        ((6, 3), {"n_kv_heads": 6}, "n_heads must be a multiple of n_kv_heads, got 3 and 6"),
    ],
)
def test_sizes_that_do_not_fit(sizes: tuple, options: dict, words: str):
    with pytest.raises(ValueError, match=words):
        MHSA(*sizes, KEY, **options)
    with pytest.raises(ValueError, match=words):
        sqx.MultiHeadCrossAttention(*sizes, KEY, **options)


CASES: dict[str, dict] = {
    "plain": {},
    "bias": {"use_bias": True, "window": 2},
    "grouped": {"n_kv_heads": 2, "rotary": sqx.Rotary(30.0, interleaved=True)},
    "causal": {"causal": True, "n_kv_heads": 1, "use_bias": True},
    "causal-turned": {"causal": True, "rotary": ROTARY, "window": 3, "n_kv_heads": 2, "chunk_size": 3},
    "turned": {"rotary": ROTARY, "chunk_size": 2, "window": 4},
}


@pytest.mark.parametrize("case", CASES)
def test_against_numpy(case: str):
    layer = filled(MHSA(D, 4, KEY, d_head=6, **CASES[case]))
    whole = oracles.self_attention(layer, XS)
    np.testing.assert_allclose(run(layer, XS, None, None), whole, atol=2e-5)
    spoilt = jnp.asarray(np.where(MASK[..., None], XS, np.nan))
    for flags in ((MASK, None), (None, RESETS), (MASK, RESETS)):
        given = [None if f is None else jnp.asarray(f) for f in flags]
        expected = oracles.self_attention(layer, XS, *flags)
        assert np.abs(expected - whole).max() > 0.01
        np.testing.assert_allclose(run(layer, XS if flags[0] is None else spoilt, *given), expected, atol=2e-5)


def test_double_precision():
    with wide():
        layer = filled(MHSA(D, 4, KEY, causal=True, d_head=6, n_kv_heads=2, use_bias=True, dtype=jnp.float64))
        xs = np.random.default_rng(1).normal(size=(ROWS, TIME, D))
        got = run(layer, jnp.asarray(xs), MASK, RESETS)
        np.testing.assert_allclose(got, oracles.self_attention(layer, xs, MASK, RESETS), atol=1e-12)


def test_without_positions_order_does_not_matter():
    """And with them it does."""
    order = np.array([3, 0, 6, 1, 5, 2, 4])
    plain, turned = filled(MHSA(D, 2, KEY, d_head=4)), filled(MHSA(D, 2, KEY, d_head=4, rotary=ROTARY))
    changed = lambda layer: np.abs(np.asarray(run(layer, XS[:, order])) - np.asarray(run(layer, XS))[:, order]).max()
    assert changed(plain) < 1e-5 and changed(turned) > 0.1


# ---- weights to look at ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["grouped", "causal-turned"])
def test_attention_weights(case: str):
    layer = filled(MHSA(D, 4, KEY, d_head=6, dropout=0.5, **CASES[case]))
    spoilt = np.where(MASK[..., None], XS, np.nan)
    w = np.asarray(look(layer, spoilt, MASK, RESETS), np.float64)
    assert w.shape == (ROWS, 4, TIME, TIME)
    np.testing.assert_allclose(w.sum(-1), np.broadcast_to(MASK[:, None], w.shape[:3]), atol=1e-6)
    assert not w[~np.broadcast_to(MASK[:, None, :, None] & MASK[:, None, None, :], w.shape)].any()
    v = (XS @ np.asarray(layer.W_V).T).reshape(ROWS, TIME, layer.n_kv_heads, 6)
    v = np.repeat(v, 4 // layer.n_kv_heads, 2)  # a key head serves heads that stand side by side
    heads = np.einsum("bhts,bshd->bthd", w, v).reshape(ROWS, TIME, 24)
    expected = np.where(MASK[..., None], heads @ np.asarray(layer.W_O).T, 0)
    got = run(eqx.nn.inference_mode(layer), spoilt, MASK, RESETS)
    np.testing.assert_allclose(got, expected, atol=2e-5)
    one = look(layer, XS[0])
    assert one.shape == (4, TIME, TIME)
    np.testing.assert_allclose(one.sum(-1), 1, atol=1e-6)


def test_attention_weights_of_half_precision_are_wide():
    layer = MHSA(8, 2, KEY, causal=True, dtype=jnp.bfloat16)
    w = look(layer, jnp.ones((3, 8), jnp.bfloat16))
    assert w.dtype == jnp.float32
    np.testing.assert_allclose(w[0], np.tril(np.ones((3, 3))) / np.arange(1, 4)[:, None], atol=1e-6)


# ---- dropout ---------------------------------------------------------------------------------------------------------


def weights_through(layer: Any, key: Any) -> np.ndarray:
    """The weights that a layer used, of one head: values that are an identity matrix, and no output projection."""
    return np.asarray(run(layer, jnp.eye(20)[None], key=key))[0]


def test_dropout_is_of_the_weights_and_in_training_only():
    layer = MHSA(20, 1, KEY, causal=True, dropout=0.4)
    layer = eqx.tree_at(lambda la: (la.W_V, la.W_O), layer, (jnp.eye(20), jnp.eye(20)))
    still = np.asarray(look(layer, jnp.eye(20)[None]))[0, 0]
    w = weights_through(layer, KEY)
    kept = w != 0
    np.testing.assert_allclose(w[kept], still[kept] / 0.6, rtol=1e-5)
    below = np.tril(np.ones((20, 20), bool))
    assert not kept[~below].any() and abs(kept[below].mean() - 0.6) < 4 * (0.24 / 210) ** 0.5
    assert (w != weights_through(layer, jax.random.key(1))).any()
    off = eqx.nn.inference_mode(layer)
    for key in (None, KEY):
        np.testing.assert_allclose(weights_through(off, key), still, atol=1e-6)
    with pytest.raises(ValueError, match="a key is needed in training"):
        layer(jnp.eye(20))


@pytest.mark.parametrize("chunk_size", [None, 2])
def test_without_dropout_nothing_is_drawn(chunk_size: int | None):
    make = lambda p: MHSA(6, 2, KEY, causal=True, dropout=p, chunk_size=chunk_size)
    xs, step = jnp.ones((2, 4, 6)), lambda layer: lambda x, key: layer.step(x[:, 0], None, key=key)
    for layer, draws in ((make(0.5), True), (eqx.nn.inference_mode(make(0.5)), False), (make(0.0), False)):
        for run in (lambda x, key: layer(x, key=key), lambda x, key: layer.unroll(x, key=key), step(layer)):  # noqa: B023
            assert ("random_bits" in str(jax.make_jaxpr(run)(xs, KEY))) == draws


def test_steps_of_a_stream_draw_with_their_own_keys():
    layer = MHSA(20, 1, KEY, causal=True, dropout=0.5)
    layer = eqx.tree_at(lambda la: (la.W_V, la.W_O, la.W_Q), layer, (jnp.eye(20), jnp.eye(20), jnp.zeros((20, 20))))
    rows = jnp.eye(20)
    state = jax.jit(lambda xs: layer.unroll(xs, layer.init_cache(capacity=20), key=KEY)[1])(rows[:19])
    step = jax.jit(lambda x, key: layer.step(x, state, key=key)[0])
    drawn = [np.asarray(step(rows[19], key)) for key in jax.random.split(KEY, 3)]
    for y in drawn:
        assert 1 < np.count_nonzero(y) < 19
        np.testing.assert_allclose(y[y != 0], 2 / 20, rtol=1e-5)
    assert (drawn[0] != drawn[1]).any() and (drawn[1] != drawn[2]).any()


# ---- large sizes -----------------------------------------------------------------------------------------------------


def test_a_window_larger_than_any_count_hides_nothing():
    layer = filled(MHSA(D, 2, KEY, d_head=4, window=2**40))
    wide_open = filled(MHSA(D, 2, KEY, d_head=4))
    np.testing.assert_array_equal(run(layer, XS), run(wide_open, XS))


@pytest.mark.parametrize(("causal", "window"), [(True, None), (True, 3), (True, 1), (False, 3), (False, None)])
@pytest.mark.parametrize("chunk_size", [None, 2])
def test_the_support_of_the_jacobian_is_the_window(causal: bool, window: int | None, chunk_size: int | None):
    """Real samples count: those between which others are masked are neighbours; packed rows do not see each other."""
    layer = MHSA(6, 2, KEY, causal, window=window, chunk_size=chunk_size)
    xs = jax.random.normal(jax.random.key(1), (9, 6))
    mask = np.array([1, 1, 0, 1, 1, 1, 0, 1, 1], bool)
    resets = np.array([0, 0, 0, 0, 1, 0, 0, 0, 0], bool)
    jacobian = jax.jacrev(lambda xs: layer(xs, mask=jnp.asarray(mask), resets=jnp.asarray(resets)))(xs)
    place, row = np.cumsum(mask) - 1, np.cumsum(resets)
    expected = np.zeros((9, 9), bool)
    for i in range(9):
        for j in range(9):
            near = window is None or abs(place[i] - place[j]) < window
            expected[i, j] = mask[i] and mask[j] and row[i] == row[j] and near and (j <= i or not causal)
    np.testing.assert_array_equal(np.any(np.asarray(jacobian) != 0, (1, 3)), expected)


@pytest.mark.parametrize("window", [None, 2, 3])
@pytest.mark.parametrize(
    "batch", [pytest.param((), marks=pytest.mark.thorough), pytest.param((1,), marks=pytest.mark.thorough), (3,)]
)
@pytest.mark.thorough
def test_steps_in_64_bit_mode(window: int | None, batch: tuple[int, ...]):
    with wide():
        layer = MHSA(4, 2, KEY, True, window=window, rotary=ROTARY, dtype=jnp.float64)
        xs = jnp.asarray(np.random.default_rng(0).normal(size=(*batch, 6, 4)))
        whole, state = layer(xs), layer.init_cache(batch)
        for t in range(6):
            y, state = layer.step(xs[..., t, :], state)
            np.testing.assert_allclose(y, whole[..., t, :], atol=1e-12)


def test_outside_jit_chunks_are_compiled_once(caplog: Any):
    layer = MHSA(4, 2, KEY, chunk_size=2)
    stack = sqx.Stack([sqx.RNN(4, 4, k) for k in jax.random.split(KEY, 3)])
    xs = jnp.ones((5, 4))
    for each in (layer, stack):
        with jax.log_compiles():
            each(xs)
            assert "Compiling" in caplog.text
            caplog.clear()
            each(xs)
            assert "Compiling" not in caplog.text
