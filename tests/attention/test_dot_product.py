"""Scaled dot-product attention against NumPy loops in float64: who sees whom, what is not seen, and nothing else."""

# pyright: reportArgumentType=false, reportCallIssue=false, reportReturnType=false
# Arguments are unpacked from tables.

import itertools
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

BATCH, D, D_V = (2, 3), 6, 7
KEY = jax.random.key(0)


def draw(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


def chance(p: float, *shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).random(shape) < p


def inputs(T: int, S: int, batch: tuple[int, ...] = BATCH, dtype: Any = np.float32) -> list[np.ndarray]:
    """q, k, v and the weights of the sum that is differentiated."""
    shapes = ((T, D), (S, D), (S, D_V), (T, D_V))
    return [draw(*batch, *shape, seed=i).astype(dtype) for i, shape in enumerate(shapes)]


@eqx.filter_jit
def run(q: Any, k: Any, v: Any, d_out: Any, options: dict) -> tuple[Any, Any]:
    out, pull = jax.vjp(lambda *qkv: sqx.scaled_dot_product_attention(*qkv, **options), q, k, v)
    return out, pull(d_out)


@eqx.filter_jit
def apply(q: Any, k: Any, v: Any, options: dict) -> Any:
    return sqx.scaled_dot_product_attention(q, k, v, **options)


def against_numpy(arrays: list[np.ndarray], options: dict, tolerance: float = 1e-5) -> None:
    q, k, v, d_out = arrays
    names = ("mask", "causal", "window", "key_mask", "resets")
    asked = {name: value for name, value in options.items() if name in names}
    sees = oracles.visible(q.shape[:-2], q.shape[-2], k.shape[-2], **asked)
    out, grads = run(*map(jnp.asarray, arrays), jax.tree.map(_traced, options))
    np.testing.assert_allclose(out, oracles.attend(q, k, v, sees, options.get("scale")), atol=tolerance)
    expected = oracles.gradients(q, k, v, sees, d_out, options.get("scale"))
    for name, got, want in zip("qkv", grads, expected, strict=True):
        np.testing.assert_allclose(got, want, atol=tolerance, err_msg=name)
    unseen = ~sees.any(-2)
    assert not np.asarray(grads[1])[unseen].any() and not np.asarray(grads[2])[unseen].any()
    assert not np.asarray(out)[~sees.any(-1)].any() and not np.asarray(grads[0])[~sees.any(-1)].any()


def _traced(value: Any) -> Any:
    return jnp.asarray(value) if isinstance(value, np.ndarray) else value


# ---- values and gradients --------------------------------------------------------------------------------------------


def test_the_worked_example():
    q, k, v = jnp.array([[1.0, 0.0]]), jnp.array([[1.0, 0.0], [0.0, 1.0]]), jnp.array([[10.0], [20.0]])
    assert sqx.scaled_dot_product_attention(q, k, v)[0, 0] == pytest.approx(13.3024, abs=5e-5)


@pytest.mark.parametrize(("T", "S"), [(3, 5), (4, 4), (5, 3)])
@pytest.mark.parametrize("window", [None, 2])
@pytest.mark.parametrize("causal", [False, True])
def test_causal_and_window(causal: bool, window: int | None, T: int, S: int):
    against_numpy(inputs(T, S, (2,)), {"causal": causal, "window": window})


def test_with_fewer_keys_than_queries_the_first_queries_see_nothing():
    q, k, v, _ = inputs(5, 2)
    out = np.asarray(apply(q, k, v, {"causal": True}))
    assert not out[..., :3, :].any()
    np.testing.assert_allclose(out[..., 3, :], v[..., 0, :], atol=1e-6)  # the last but one sees the first key alone


@pytest.mark.parametrize(
    "shape", [(4, 5), (1, 5), (4, 1), (1, 1), (2, 3, 4, 5), (1, 3, 4, 5), (2, 1, 4, 1), (2, 3, 1, 5)]
)
def test_masks_of_every_shape(shape: tuple[int, ...]):
    against_numpy(inputs(4, 5), {"mask": chance(0.6, *shape, seed=len(shape))})


@pytest.mark.parametrize(
    ("batch", "shape"),
    [
        ((), (4, 5)),
        ((), (1, 5)),
        ((3,), (3, 4, 5)),
        ((3,), (1, 4, 5)),
        ((2, 3, 2), (2, 1, 2, 4, 5)),
        ((4, 5), (4, 5)),  # as long as queries and keys: still queries by keys
    ],
)
def test_masks_for_other_batch_axes(batch: tuple[int, ...], shape: tuple[int, ...]):
    against_numpy(inputs(4, 5, batch), {"mask": chance(0.6, *shape, seed=5)})


@pytest.mark.parametrize(
    ("batch", "shape"),
    [
        ((2, 3), (2, 4, 5)),  # rows without heads
        ((2, 3), (3, 4, 5)),  # heads without rows
        ((2, 3), (1, 4, 5)),
        ((2, 3), (5,)),
        ((2, 3), ()),
        ((2, 3), (5, 4)),
        ((2, 3), (2, 5)),
        ((2, 3), (4, 4)),
        ((2, 3), (3, 2, 4, 5)),
        ((2, 3), (2, 3, 4)),
        ((2, 3), (1, 2, 3, 4, 5)),
        ((2, 3), (0, 5)),
        ((4,), (4, 5, 4)),
        ((), (1, 4, 5)),
    ],
)
def test_masks_that_are_refused(batch: tuple[int, ...], shape: tuple[int, ...]):
    q, k, v, _ = inputs(4, 5, batch)
    with pytest.raises(ValueError, match="mask must have shape"):
        sqx.scaled_dot_product_attention(q, k, v, np.ones(shape, bool))


@pytest.mark.parametrize("name", ["key_mask", "resets"])
@pytest.mark.parametrize("shape", [(4,), (2, 4), (3, 4), (2, 3, 1), (2, 3, 5), (3, 2, 4), (1, 2, 3, 4), (2, 3, 4, 1)])
def test_flags_of_keys_that_are_refused(name: str, shape: tuple[int, ...]):
    q, k, v, _ = inputs(4, 4)
    with pytest.raises(ValueError, match=f"{name} must have shape"):
        sqx.scaled_dot_product_attention(q, k, v, **{name: np.ones(shape, bool)})


@pytest.mark.parametrize("shape", [(2, 3, 5), (1, 3, 5), (2, 1, 5)])
def test_key_mask_and_resets(shape: tuple[int, ...]):
    key_mask, resets = chance(0.7, *shape, seed=1), chance(0.4, *shape, seed=2)
    assert (resets & ~key_mask).any()  # a reset on a key that is not there
    against_numpy(inputs(4, 5), {"key_mask": key_mask})
    against_numpy(inputs(5, 5), {"resets": resets})
    against_numpy(inputs(5, 5), {"key_mask": key_mask, "resets": resets})


def combined(T: int, S: int, seed: int) -> dict:
    """Any number of ways to hide keys, at once."""
    random = np.random.default_rng(seed)
    options: dict[str, Any] = {"causal": bool(random.integers(2)), "window": [None, 2, 3][random.integers(3)]}
    if random.integers(2):
        shape = [(2, 3, T, S), (T, S), (1, 3, T, S), (2, 1, 1, S)][random.integers(4)]
        options["mask"] = chance(0.8, *shape, seed=seed)
    if random.integers(2):
        options["key_mask"] = chance(0.7, 2, 1, S, seed=seed + 1)
    if T == S and random.integers(2):
        options["resets"] = chance(0.3, 1, 3, S, seed=seed + 2)
    if random.integers(2):
        options["scale"] = 0.7
    return options


@pytest.mark.parametrize(("T", "S"), [(3, 5), (5, 5), (6, 4)])
@pytest.mark.parametrize("seed", range(3))
def test_all_together(T: int, S: int, seed: int):
    against_numpy(inputs(T, S), combined(T, S, 10 * seed + T))


def test_the_scale():
    for scale in (0.0, -1.5, 3):
        against_numpy(inputs(3, 4, (2,)), {"scale": scale})


@pytest.mark.parametrize("chunk_size", [None, 2])
def test_double_precision(chunk_size: int | None):
    with wide():
        options = {"causal": True, "key_mask": chance(0.7, 2, 3, 5, seed=3), "chunk_size": chunk_size}
        against_numpy(inputs(5, 5, dtype=np.float64), options, 1e-12)


# ---- what is not seen ------------------------------------------------------------------------------------------------

HIDING = {
    "key mask": {"key_mask": np.array([[[1, 0, 1, 1, 0]], [[1, 0, 1, 1, 1]]], bool)},
    "mask": {"mask": np.array([[1, 0, 1, 0, 0], [0, 0, 1, 1, 1], [1, 0, 0, 0, 0], [1] * 5, [0, 1, 1, 0, 0]], bool)},
    "causal": {"causal": True},
    "window": {"window": 2},
    "resets": {"resets": np.array([[[0, 0, 1, 0, 1]]], bool)},
    "resets and key mask": {
        "resets": np.array([[[0, 0, 1, 0, 1]]], bool), "key_mask": np.array([[[1, 0, 1, 0, 1]]], bool),
    },
}  # fmt: skip


@pytest.mark.parametrize("chunk_size", [None, 2])
@pytest.mark.parametrize("kind", HIDING)
def test_what_is_hidden_has_no_effect(kind: str, chunk_size: int | None):
    """Bit for bit: for queries that do not see key 1, also where others do."""
    options = jax.tree.map(_traced, HIDING[kind])
    sees = oracles.visible(BATCH, 5, 5, **HIDING[kind])[..., 1]
    assert sees.any() or kind != "causal"
    q, k, v, d_out = inputs(5, 5)
    d_out[sees] = 0  # what sees the key is not counted
    clean_out, clean_grads = run(q, k, v, d_out, options | {"chunk_size": chunk_size})
    for bad, where in itertools.product((np.nan, np.inf, -np.inf, 1e30, -1e30), "kv"):
        spoilt = {"k": k.copy(), "v": v.copy()}
        spoilt[where][..., 1, :] = bad
        out, grads = run(q, spoilt["k"], spoilt["v"], d_out, options | {"chunk_size": chunk_size})
        np.testing.assert_array_equal(np.asarray(out)[~sees], np.asarray(clean_out)[~sees], err_msg=f"{bad} in {where}")
        for name, got, expected in zip("qkv", grads, clean_grads, strict=True):
            np.testing.assert_array_equal(got, expected, err_msg=f"{bad} in {where}: gradient of {name}")
        if not np.isfinite(bad):
            assert np.isnan(np.asarray(out)[sees]).all(), "a number that is seen and not finite must be seen"


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("promotion", ["strict", "standard"])
def test_the_largest_numbers_hidden(promotion: str, dtype: str):
    """Their products overflow, and zero times infinity is NaN: values and gradients must not see it."""
    q, k, v, d_out = (a.astype(dtype) for a in inputs(5, 5, (2,)))
    hidden = np.array([[True, True, True, False, True]] * 2)
    for where, options in (("k", {"key_mask": hidden}), ("v", {"key_mask": hidden}), ("v", {"causal": True})):
        sees = oracles.visible((2,), 5, 5, **options)[..., 3]
        d_seen = np.where(sees[..., None], 0, d_out).astype(dtype)
        options = jax.tree.map(_traced, options)
        spoilt = {"k": k.copy(), "v": v.copy()}
        spoilt[where][:, 3] = jnp.finfo(dtype).max
        with jax.numpy_dtype_promotion(promotion):
            clean_out, clean_grads = run(q, k, v, d_seen, options)
            out, grads = run(q, spoilt["k"], spoilt["v"], d_seen, options)
        np.testing.assert_array_equal(np.asarray(out)[~sees], np.asarray(clean_out)[~sees])
        for name, got, expected in zip("qkv", grads, clean_grads, strict=True):
            np.testing.assert_array_equal(got, expected, err_msg=f"{where}, {list(options)}: gradient of {name}")


def test_a_nan_query_is_its_own_affair():
    q, k, v, d_out = inputs(4, 5)
    clean, _ = run(q, k, v, d_out, {})
    q[:, :, 2, 1] = np.nan
    out, grads = run(q, k, v, d_out, {})
    assert np.isnan(out[:, :, 2]).all()
    rest = [0, 1, 3]
    np.testing.assert_array_equal(np.asarray(out)[:, :, rest], np.asarray(clean)[:, :, rest])
    assert all(np.isfinite(g).all() for g in (grads[0][:, :, np.array(rest)],))


@pytest.mark.parametrize("chunk_size", [None, 1])
def test_rows_without_any_key(chunk_size: int | None):
    """Zeros, and gradients that are finite, also in weights that made queries, keys and values."""
    x = jnp.asarray(draw(2, 4, 5), jnp.float32)
    W = [jnp.asarray(draw(n, 5, seed=i), jnp.float32) for i, n in enumerate((D, D, D_V))]
    key_mask = jnp.array([[True, False, True, True], [False] * 4])

    def loss(W: list, x: Any, key_mask: Any) -> Any:
        q, k, v = (x @ w.T for w in W)
        out = sqx.scaled_dot_product_attention(q, k, v, key_mask=key_mask, chunk_size=chunk_size)
        return jnp.sum(jnp.sin(out)), out

    (_, out), (d_W, d_x) = jax.jit(jax.value_and_grad(loss, (0, 1), has_aux=True))(W, x, key_mask)
    assert not np.asarray(out[1]).any() and not np.asarray(d_x[1]).any()
    first = jax.jit(jax.grad(lambda W: loss(W, x[:1], key_mask[:1])[0]))(W)
    for got, expected in zip(d_W, first, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-6)  # the empty row adds nothing


@pytest.mark.parametrize(("batch", "T", "S"), [((2,), 0, 4), ((2,), 3, 0), ((2,), 0, 0), ((0,), 3, 4), ((2, 0), 3, 4)])
def test_nothing_to_read(batch: tuple[int, ...], T: int, S: int):
    for options in ({}, {"causal": True, "key_mask": jnp.ones((*batch, S), bool), "chunk_size": 2}):
        out, grads = run(*inputs(T, S, batch), options)
        np.testing.assert_array_equal(out, np.zeros((*batch, T, D_V)))
        assert [g.shape for g in grads] == [(*batch, T, D), (*batch, S, D), (*batch, S, D_V)]
        assert not any(np.asarray(g).any() for g in grads)


# ---- precision -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("promotion", ["strict", "standard"])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float16", 2e-3), ("bfloat16", 2e-2)])
def test_half_precision_with_large_scores(dtype: str, tolerance: float, promotion: str):
    """Scores in the hundreds, which half precision would round by a quarter and more; and sums of 300 shares."""
    q, k, v, d_out = (a.astype(dtype) for a in inputs(3, 300, (2,)))
    q, k = q * q.dtype.type(12), k * k.dtype.type(12)
    scores = np.einsum("bqd,bkd->bqk", q.astype(np.float64), k.astype(np.float64)) / D**0.5
    assert np.abs(scores).max() > 300
    with jax.numpy_dtype_promotion(promotion):
        out, grads = run(*map(jnp.asarray, (q, k, v, d_out)), {})
    assert out.dtype == jnp.dtype(dtype) and {g.dtype for g in grads} == {jnp.dtype(dtype)}
    np.testing.assert_allclose(np.asarray(out, np.float64), oracles.attend(q, k, v, True), atol=tolerance)
    flat = [a.astype(dtype) for a in inputs(3, 300, (2,))]
    flat[0] *= 0  # all scores equal: the mean of 300 values
    with jax.numpy_dtype_promotion(promotion):
        mean, _ = run(*map(jnp.asarray, flat), {})
    np.testing.assert_allclose(np.asarray(mean, np.float64)[:, 0], flat[2].astype(np.float64).mean(1), atol=tolerance)


def test_scores_of_hundreds_in_float32():
    q, k, v, d_out = inputs(3, 5, (2,))
    against_numpy([q * 30, k * 30, v, d_out], {"causal": True}, 2e-3)  # gradients are as large as the factors


# ---- chunks ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk_size", [1, 3, 4, 6, 9])
def test_chunks(chunk_size: int):
    """Six queries: sizes that divide, that do not, one, all, and more than there are; and every kind of mask."""
    flags = {"key_mask": chance(0.7, 2, 1, 6, seed=1), "resets": chance(0.3, 2, 3, 6, seed=2)}
    for options in (
        {"causal": True, "window": 3, "mask": chance(0.9, 2, 1, 6, 6)} | flags,
        {"mask": chance(0.6, 1, 6)},
    ):
        against_numpy(inputs(6, 6), options | {"chunk_size": chunk_size})


def test_chunks_keep_the_queries_aligned():
    against_numpy(inputs(5, 7), {"causal": True, "window": 4, "chunk_size": 2})
    against_numpy(inputs(7, 5), {"causal": True, "chunk_size": 3})


def test_chunks_save_memory():
    """No array as large as queries times keys is left, forwards or backwards."""
    T = 64
    q, k, v, d_out = (jnp.asarray(a) for a in inputs(T, T, ()))

    def largest(chunk_size: int | None) -> int:
        fun = lambda *qkv: jax.vjp(
            lambda *a: sqx.scaled_dot_product_attention(*a, causal=True, chunk_size=chunk_size), *qkv
        )[1](d_out)
        sizes, stack = [0], [jax.make_jaxpr(fun)(q, k, v).jaxpr]
        while stack:
            jaxpr = stack.pop()
            for eqn in jaxpr.eqns:
                sizes += [a.aval.size for a in eqn.outvars if hasattr(a.aval, "size")]
                stack += [
                    getattr(p, "jaxpr", p)
                    for p in jax.tree.leaves(list(eqn.params.values()), is_leaf=_is_jaxpr)
                    if _is_jaxpr(p)
                ]
        return max(sizes)

    assert largest(None) >= T * T and largest(8) <= 8 * T * 2


def _is_jaxpr(value: Any) -> bool:
    return hasattr(value, "eqns") or hasattr(value, "jaxpr")


# ---- dropout ---------------------------------------------------------------------------------------------------------


def dropped(p: float, key: Any, chunk_size: int | None = None, T: int = 40, S: int = 50) -> np.ndarray:
    """The weights after dropout, read off values that are an identity matrix; without it each were 1 / S."""
    q, k = jnp.zeros((*BATCH, T, D)), jnp.zeros((*BATCH, S, D))
    v = jnp.broadcast_to(jnp.eye(S), (*BATCH, S, S))
    return np.asarray(apply(q, k, v, {"dropout": p, "key": key, "chunk_size": chunk_size})) * S


@pytest.mark.parametrize("chunk_size", [None, 7])
def test_dropout(chunk_size: int | None):
    w = dropped(0.3, KEY, chunk_size)
    kept = w != 0
    np.testing.assert_allclose(w[kept], 1 / 0.7, rtol=1e-5)
    n = w.size  # 12,000: four deviations of the fraction are 0.017
    assert abs(kept.mean() - 0.7) < 4 * (0.21 / n) ** 0.5
    assert abs(w.mean() - 1) < 4 * (0.3 / 0.7 / n) ** 0.5
    # Rows, heads and queries draw on their own: two of them agree as often as chance has it.
    flat = kept.reshape(-1, kept.shape[-1])
    for step in (1, 7, 40, 120):  # a query, a chunk, a head and a row further
        agree = (flat[step:] == flat[:-step]).mean()
        assert abs(agree - (0.49 + 0.09)) < 0.03
    assert (w == dropped(0.3, KEY, chunk_size)).all() and (w != dropped(0.3, jax.random.key(1), chunk_size)).any()


def test_dropout_spares_causality_and_masks():
    """`causal` and the masks hold with dropout on."""
    S = 8
    q, k = jnp.asarray(draw(*BATCH, S, D), jnp.float32), jnp.asarray(draw(*BATCH, S, D, seed=1), jnp.float32)
    v = jnp.broadcast_to(jnp.eye(S), (*BATCH, S, S))
    key_mask = chance(0.7, *BATCH, S, seed=2)
    w = apply(q, k, v, {"causal": True, "key_mask": key_mask, "dropout": 0.4, "key": KEY})
    sees = oracles.visible(BATCH, S, S, causal=True, key_mask=key_mask)
    expected = oracles.weights(q, k, sees) / 0.6
    kept = np.asarray(w) != 0
    assert not kept[~sees].any() and 0.4 < kept[sees].mean() < 0.8
    np.testing.assert_allclose(np.asarray(w)[kept], expected[kept], rtol=1e-5)


def test_dropout_of_zero_draws_nothing():
    q, k, v, _ = inputs(3, 4)
    off = jax.make_jaxpr(lambda key: sqx.scaled_dot_product_attention(q, k, v, key=key))(KEY)
    on = jax.make_jaxpr(lambda key: sqx.scaled_dot_product_attention(q, k, v, dropout=0.1, key=key))(KEY)
    assert "random_bits" not in str(off) and "random_bits" in str(on)


def test_the_gradient_under_dropout_is_that_of_the_weights_that_were_kept():
    q, k, v, d_out = inputs(4, 5)
    identity = np.broadcast_to(np.eye(5, dtype=np.float32), (*BATCH, 5, 5))
    options = {"dropout": 0.4, "key": KEY}
    kept = np.asarray(apply(q, k, identity, options)) != 0
    out, grads = run(q, k, v, d_out, options)
    w = oracles.weights(q, k, True)
    dropped = w * kept / 0.6
    np.testing.assert_allclose(out, dropped @ v, atol=1e-5)
    d_w = kept / 0.6 * (d_out @ v.swapaxes(-1, -2))
    d_scores = D**-0.5 * w * (d_w - (w * d_w).sum(-1, keepdims=True))
    expected = [d_scores @ k, d_scores.swapaxes(-1, -2) @ q, dropped.swapaxes(-1, -2) @ d_out]
    for got, want in zip(grads, expected, strict=True):
        np.testing.assert_allclose(got, want, atol=1e-5)


# ---- transformations -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk_size", [None, 2])
def test_vmap_and_gradients_of_rows(chunk_size: int | None):
    arrays = inputs(4, 4, (3,))
    flags = {"mask": chance(0.7, 4, 4), "key_mask": chance(0.7, 3, 4), "resets": chance(0.3, 3, 4)}
    sees = oracles.visible((3,), 4, 4, **flags)

    def row(q: Any, k: Any, v: Any, d_out: Any, key_mask: Any, resets: Any) -> Any:
        def loss(q: Any, k: Any, v: Any) -> Any:
            out = sqx.scaled_dot_product_attention(
                q, k, v, flags["mask"], key_mask=key_mask, resets=resets, chunk_size=chunk_size
            )
            return jnp.sum(out * d_out), out

        return jax.grad(loss, (0, 1, 2), has_aux=True)(q, k, v)

    grads, out = jax.jit(jax.vmap(row))(*map(jnp.asarray, (*arrays, flags["key_mask"], flags["resets"])))
    q, k, v, d_out = arrays
    np.testing.assert_allclose(out, oracles.attend(q, k, v, sees), atol=1e-5)
    for got, want in zip(grads, oracles.gradients(q, k, v, sees, d_out), strict=True):
        np.testing.assert_allclose(got, want, atol=1e-5)


def test_an_axis_may_be_mapped_over_queries_alone():
    q, k, v, _ = inputs(4, 5, (3,))
    out = jax.jit(jax.vmap(sqx.scaled_dot_product_attention, (0, None, None)))(q, k[0], v[0])
    expected = oracles.attend(q, *(np.broadcast_to(a[:1], (3, *a.shape[1:])) for a in (k, v)), True)
    np.testing.assert_allclose(out, expected, atol=1e-5)


def test_forward_mode_and_second_derivatives():
    with wide():
        q, k, v, d_out = inputs(3, 3, (), np.float64)
        loss = lambda q: jnp.sum(sqx.scaled_dot_product_attention(q, k, v, causal=True) * d_out)
        tangent = jnp.asarray(draw(3, D, seed=8))
        step = 1e-5
        grad = jax.jit(jax.grad(loss))
        _, along = jax.jit(lambda q, t: jax.jvp(loss, (q,), (t,)))(jnp.asarray(q), tangent)
        sees = oracles.visible((), 3, 3, causal=True)
        slope = lambda q: oracles.gradients(q, k, v, sees, d_out)[0]
        np.testing.assert_allclose(along, np.sum(slope(q) * tangent), atol=1e-12)
        _, curve = jax.jit(lambda q, t: jax.jvp(grad, (q,), (t,)))(jnp.asarray(q), tangent)
        expected = (slope(q + step * np.asarray(tangent)) - slope(q - step * np.asarray(tangent))) / (2 * step)
        np.testing.assert_allclose(curve, expected, atol=1e-8)
