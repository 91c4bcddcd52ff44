"""Cross-attention and the gate between two signals against NumPy; the memory, its mask, and what leaves it alone."""

from typing import Any

import attention_oracles as oracles
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sequinox as sqx

pytestmark = pytest.mark.usefixtures("quick_compilation")

KEY = jax.random.key(0)
MHCA = sqx.MultiHeadCrossAttention
ROWS, TIME, PLACES, D, D_MEMORY = 2, 4, 6, 5, 3
REAL = np.array([[1, 0, 1, 1, 0, 1], [0, 0, 0, 1, 1, 0]], bool)


def draw(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def filled(layer: Any) -> Any:
    leaves, tree = jax.tree.flatten(eqx.filter(layer, eqx.is_inexact_array))
    new = [jnp.asarray(draw(*a.shape, seed=i) / 2, a.dtype) for i, a in enumerate(leaves)]
    return eqx.combine(jax.tree.unflatten(tree, new), layer)


LAYER = filled(MHCA(D, 4, KEY, d_memory=D_MEMORY, n_kv_heads=2, d_head=7, use_bias=True))
XS, MEMORY = draw(ROWS, TIME, D), draw(ROWS, PLACES, D_MEMORY, seed=9)
SPOILT = np.where(REAL[..., None], MEMORY, np.nan)


@eqx.filter_jit
def run(layer: Any, xs: Any, memory: Any, real: Any, mask: Any = None, resets: Any = None) -> Any:
    return layer.unroll(xs, layer.read(memory, mask=real), mask=mask, resets=resets)[0]


def test_the_weights_and_their_names():
    assert {name: a.shape for name, a in sqx.parameters(MHCA(4, 2, KEY)).items()} == dict.fromkeys(
        ("W_Q", "W_K", "W_V", "W_O"), (4, 4)
    )
    shapes = {name: a.shape for name, a in sqx.parameters(LAYER).items()}
    assert shapes == {
        "W_Q": (28, 5), "W_K": (14, 3), "W_V": (14, 3), "W_O": (5, 28),
        "b_Q": (28,), "b_K": (14,), "b_V": (14,), "b_O": (5,)
    }  # fmt: skip


@pytest.mark.parametrize("chunk_size", [None, 3])
def test_against_numpy(chunk_size: int | None):
    layer = filled(MHCA(D, 4, KEY, d_memory=D_MEMORY, n_kv_heads=2, d_head=7, use_bias=True, chunk_size=chunk_size))
    everything = np.ones_like(REAL)
    np.testing.assert_allclose(
        run(layer, XS, MEMORY, None), oracles.cross_attention(layer, XS, MEMORY, everything), atol=2e-5
    )
    expected = oracles.cross_attention(layer, XS, MEMORY, REAL)
    np.testing.assert_allclose(run(layer, XS, SPOILT, REAL), expected, atol=2e-5)


def test_steps_and_stretches_see_the_same_memory():
    state = LAYER.read(SPOILT, mask=REAL)
    expected = oracles.cross_attention(LAYER, XS, MEMORY, REAL)
    step, unroll = (jax.jit(lambda x, s, f=f, **flags: f(x, s, **flags)) for f in (LAYER.step, LAYER.unroll))
    ys, after = unroll(XS[:, :2], state)
    y, after = step(XS[:, 2], after)
    z, after = step(XS[:, 3], after, resets=jnp.array([True, False]), mask=jnp.array([True, False]))
    np.testing.assert_allclose(ys, expected[:, :2], atol=2e-5)
    np.testing.assert_allclose(y, expected[:, 2], atol=2e-5)
    np.testing.assert_allclose(z[0], expected[0, 3], atol=2e-5)
    assert not np.asarray(z[1]).any()
    assert isinstance(after, sqx.Memory)
    assert all(np.array_equal(a, b) for a, b in zip(after, state, strict=True))  # resets and masks leave it alone


def test_resets_and_masks_of_the_samples_leave_the_memory():
    resets, mask = np.array([[0, 1, 0, 1], [1, 0, 0, 0]], bool), np.array([[1, 1, 0, 1], [0, 1, 1, 1]], bool)
    xs = np.where(mask[..., None], XS, np.inf)
    got = run(LAYER, xs, MEMORY, REAL, mask, resets)
    expected = np.where(mask[..., None], oracles.cross_attention(LAYER, XS, MEMORY, REAL), 0)
    np.testing.assert_allclose(got, expected, atol=2e-5)


def test_what_is_masked_in_the_memory_has_no_effect():
    """Nor has it a gradient; and the gradients of the weights are those without it."""
    weight = draw(ROWS, TIME, D, seed=4)

    @eqx.filter_jit
    def grads(memory: Any) -> Any:
        return eqx.filter_grad(lambda both: jnp.sum(run(both[0], XS, both[1], jnp.asarray(REAL)) * weight))(
            (LAYER, memory)
        )

    clean, spoilt = (
        grads(jnp.asarray(MEMORY)),
        [grads(jnp.where(REAL[..., None], MEMORY, x)) for x in (np.nan, np.inf, 1e30)],
    )
    for got in spoilt:
        for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(clean), strict=True):
            np.testing.assert_array_equal(a, b)
    assert not np.asarray(clean[1])[~REAL].any() and np.abs(np.asarray(clean[1])[REAL]).min() > 0


def test_a_memory_without_places_gives_the_bias():
    """Zeros from every head, so what is left is `b_O`; zeros without biases. Gradients are finite."""
    nothing = np.zeros((ROWS, PLACES), bool)
    nothing[0, 2] = True
    plain = filled(MHCA(D, 1, KEY, d_memory=D_MEMORY))
    assert not np.asarray(run(plain, XS, np.zeros((ROWS, 0, D_MEMORY), np.float32), None)).any()
    got = run(plain, XS, MEMORY, nothing)
    assert not np.asarray(got[1]).any() and np.asarray(got[0]).any()
    with_bias = run(LAYER, XS, MEMORY, nothing)
    np.testing.assert_allclose(with_bias[1], np.broadcast_to(LAYER.b_O, (TIME, D)), atol=1e-6)
    grad = eqx.filter_jit(eqx.filter_grad(lambda la: jnp.sum(jnp.sin(run(la, XS, MEMORY, nothing)))))(LAYER)
    assert all(np.isfinite(a).all() for a in jax.tree.leaves(grad))
    empty = eqx.filter_jit(eqx.filter_grad(lambda la: jnp.sum(run(la, XS, MEMORY[:, :0], None))))(plain)
    assert not any(np.asarray(a).any() for a in jax.tree.leaves(empty))


def test_no_memory_is_an_error():
    words = r"there is no memory to look at: begin with state = layer.read\(memory\)"
    for call in (
        lambda: LAYER(XS),
        lambda: LAYER.unroll(XS),
        lambda: LAYER.step(XS[:, 0]),
        lambda: LAYER.step(XS[:, 0], LAYER.init_state(2)),
        lambda: jax.jit(lambda x: LAYER.step(x, LAYER.init_state(2)))(XS[:, 0]),
        lambda: LAYER.attention_weights(XS, LAYER.init_state(2)),
    ):
        with pytest.raises(ValueError, match=words):
            call()


@pytest.mark.parametrize("how", ["step", "unroll", "attention_weights"])
@pytest.mark.usefixtures("unchecked_types")
def test_wrong_memories(how: str):
    good, x = LAYER.read(MEMORY), XS[:, 0] if how == "step" else XS
    for state, kind, words in [
        (good.k, TypeError, "state must be a Memory, as read gives, got"),
        (good[:2], TypeError, "state must be a Memory, as read gives, got tuple"),
        (
            sqx.KVCache(good.k, good.v, jnp.zeros(2, jnp.int32)),
            TypeError,
            r"state must be Memory\(k, v, real\), got KVCache",
        ),
        (LAYER.read(MEMORY[0]), ValueError, r"state\.k must have shape \(2, 6, 14\), got \(6, 14\)"),
        (good._replace(v=good.v[:, 1:]), ValueError, r"state\.v must have shape \(2, 6, 14\), got \(2, 5, 14\)"),
        (good._replace(real=good.real.astype(jnp.int32)), TypeError, r"state\.real must have dtype bool, got int32"),
        (good._replace(k=good.k.astype(jnp.float16)), TypeError, r"state\.k must have dtype float32, got float16"),
        (good._replace(k=None), TypeError, r"state\.k must be an array, got NoneType"),
    ]:
        with pytest.raises(kind, match=words):
            getattr(LAYER, how)(x, state)


def test_several_batch_axes():
    xs, memory, real = (
        draw(2, 3, TIME, D),
        draw(2, 3, PLACES, D_MEMORY, seed=1),
        np.random.default_rng(2).random((2, 3, PLACES)) < 0.6,
    )
    flat = lambda a: a.reshape(6, *a.shape[2:])
    expected = oracles.cross_attention(LAYER, flat(xs), flat(memory), flat(real)).reshape(xs.shape)
    np.testing.assert_allclose(run(LAYER, xs, memory, real), expected, atol=2e-5)
    state = LAYER.read(memory, mask=real)
    assert state.k.shape == (2, 3, PLACES, 14) and state.real.shape == (2, 3, PLACES)
    y, _ = jax.jit(lambda x, s: LAYER.step(x, s))(xs[:, :, 1], state)
    np.testing.assert_allclose(y, expected[:, :, 1], atol=2e-5)
    mapped = jax.jit(jax.vmap(lambda x, m, r: LAYER.unroll(x, LAYER.read(m, mask=r))[0]))
    np.testing.assert_allclose(mapped(xs, memory, real), expected, atol=2e-5)
    np.testing.assert_allclose(run(LAYER, xs[1, 2], memory[1, 2], real[1, 2]), expected[1, 2], atol=2e-5)


def test_attention_weights():
    state = LAYER.read(SPOILT, mask=REAL)
    w = np.asarray(LAYER.attention_weights(XS, state), np.float64)
    assert w.shape == (ROWS, 4, TIME, PLACES)
    np.testing.assert_allclose(w.sum(-1), 1, atol=1e-6)
    assert not w[~np.broadcast_to(REAL[:, None, None], w.shape)].any()
    v = np.asarray(state.v).reshape(ROWS, PLACES, 2, 7).repeat(2, 2)
    heads = np.einsum("bhts,bshd->bthd", w, v).reshape(ROWS, TIME, 28)
    np.testing.assert_allclose(
        run(LAYER, XS, SPOILT, REAL), heads @ np.asarray(LAYER.W_O).T + np.asarray(LAYER.b_O), atol=2e-5
    )
    assert not np.asarray(LAYER.attention_weights(XS, LAYER.read(MEMORY, mask=np.zeros_like(REAL)))).any()


def test_dropout_of_the_weights():
    layer = MHCA(20, 1, KEY, dropout=0.4)
    layer = eqx.tree_at(lambda la: (la.W_V, la.W_O, la.W_Q), layer, (jnp.eye(20), jnp.eye(20), jnp.zeros((20, 20))))
    xs, state = jnp.ones((30, 20)), layer.read(jnp.eye(20))
    unroll = eqx.filter_jit(lambda la, key=None: la.unroll(xs, state, key=key)[0])
    w = np.asarray(unroll(layer, KEY)) * 20  # without dropout each were 1
    np.testing.assert_allclose(w[w != 0], 1 / 0.6, rtol=1e-5)
    assert abs((w != 0).mean() - 0.6) < 4 * (0.24 / 600) ** 0.5 and (w[1:] != w[:-1]).any(-1).all()
    off = eqx.nn.inference_mode(layer)
    np.testing.assert_allclose(unroll(off), np.full((30, 20), 1 / 20), atol=1e-6)
    draws = lambda la: "random_bits" in str(jax.make_jaxpr(lambda x, key: la.unroll(x, state, key=key))(xs, KEY))
    assert draws(layer) and not draws(off) and not draws(MHCA(20, 1, KEY))
    with pytest.raises(ValueError, match="a key is needed in training"):
        layer.unroll(xs, state)


# ---- the gate --------------------------------------------------------------------------------------------------------


def test_the_gate_against_numpy():
    layer = filled(sqx.GatedFusion(3, 5, 4, KEY))
    a, b = draw(2, 6, 3), draw(2, 6, 5, seed=1)
    got = eqx.filter_jit(layer)(np.concatenate([a, b], -1))
    w = {name: np.asarray(value, np.float64) for name, value in sqx.parameters(layer).items()}
    for r, t in np.ndindex(2, 6):
        h_a, h_b = np.tanh(w["W_a"] @ a[r, t] + w["b_a"]), np.tanh(w["W_b"] @ b[r, t] + w["b_b"])
        z = 1 / (1 + np.exp(-(w["W_z"] @ np.concatenate([a[r, t], b[r, t]]) + w["b_z"])))
        np.testing.assert_allclose(got[r, t], z * h_a + (1 - z) * h_b, atol=1e-5)


@pytest.mark.parametrize(("bias", "open_to"), [(60.0, "a"), (-60.0, "b")])
def test_the_gate_forced(bias: float, open_to: str):
    """Open, it is the first signal's and forgets the second, also in the gradient; shut, the other way round."""
    layer = eqx.tree_at(lambda la: la.b_z, filled(sqx.GatedFusion(3, 5, 4, KEY)), jnp.full(4, bias))
    x = draw(2, 8)
    W, b, part = (
        getattr(layer, f"W_{open_to}"),
        getattr(layer, f"b_{open_to}"),
        x[:, :3] if open_to == "a" else x[:, 3:],
    )
    expected = np.tanh(part @ np.asarray(W).T + np.asarray(b))
    np.testing.assert_allclose(layer(x), expected, atol=1e-6)
    slope = np.asarray(jax.jit(jax.grad(lambda x: jnp.sum(layer(x))))(x))
    closed, opened = (slope[:, 3:], slope[:, :3]) if open_to == "a" else (slope[:, :3], slope[:, 3:])
    assert np.abs(closed).max() < 1e-6 < np.abs(opened).min()


def test_the_gate_under_a_mask():
    layer, mask = filled(sqx.GatedFusion(3, 5, 4, KEY)), np.array([[True, False, True], [False] * 3])
    x = draw(2, 3, 8)
    got = np.asarray(layer(np.where(mask[..., None], x, np.nan), mask=mask))
    assert not got[~mask].any()
    np.testing.assert_allclose(got[mask], np.asarray(layer(x))[mask], atol=1e-6)
