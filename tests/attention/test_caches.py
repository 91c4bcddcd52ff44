"""Caches of causal attention: streams, stretches, capacity, rings that run for ever; against lists of samples."""

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

pytestmark = pytest.mark.usefixtures("quick_compilation")

KEY = jax.random.key(0)
D, ROWS, D_KV = 5, 3, 12  # four heads of width 6, two of keys and values
FULL = "the cache is full: it has {} slots"


def attention(**options: Any) -> Any:
    return sqx.MultiHeadSelfAttention(D, 4, KEY, causal=True, n_kv_heads=2, d_head=6, **options)


def draw(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@eqx.filter_jit
def call(layer: Any, how: str, args: Any, flags: Any) -> Any:
    return getattr(layer, how)(*args, **flags)


def compiled(layer: Any, how: str) -> Any:
    """A method, compiled once for all tests."""
    return lambda *args, **flags: call(layer, how, args, flags)


def close(got: Any, expected: Any, tolerance: float = 1e-5) -> None:
    np.testing.assert_allclose(np.asarray(got), expected, atol=tolerance)


def same(a: Any, b: Any) -> bool:
    equal = jax.tree.map(lambda x, y: x.dtype == y.dtype and np.array_equal(x, y), a, b)
    return jax.tree.structure(a) == jax.tree.structure(b) and all(jax.tree.leaves(equal))


PLAIN, TURNED, RING = attention(), attention(rotary=sqx.Rotary(50.0), use_bias=True), attention(window=3)
RING_TURNED = attention(window=5, rotary=sqx.Rotary(50.0, interleaved=True))


# ---- caches that grow ------------------------------------------------------------------------------------------------


def test_a_cache_grows_from_nothing():
    layer = sqx.MultiHeadSelfAttention(8, 2, KEY, causal=True)
    xs = draw(4, 8)
    state, ys, step = layer.init_cache(), [], compiled(layer, "step")
    assert isinstance(state, sqx.GrowingKVCache) and state.k.shape == state.v.shape == (0, 8)
    for t in range(4):
        y, state = step(xs[t], state)
        ys.append(y)
        close(state.k, xs[: t + 1] @ np.asarray(layer.W_K).T)
        close(state.v, xs[: t + 1] @ np.asarray(layer.W_V).T)
        assert int(state.n) == t + 1
    close(np.stack(ys), compiled(layer, "forward")(xs), 1e-6)
    close(np.stack(ys), oracles.self_attention(layer, xs[None])[0])


PIECES = [3, 0, "step", "step", 2, 5, "step", 1, 4, "step"]  # 19 samples


def flags(seed: int, total: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of different lengths with gaps, and resets, also on samples that are masked."""
    random = np.random.default_rng(seed)
    return random.random((ROWS, total)) < 0.75, random.random((ROWS, total)) < 0.12


@pytest.mark.parametrize(
    ("layer", "capacity", "flagged"),
    [
        (PLAIN, None, "neither"),
        pytest.param(PLAIN, 19, "resets", marks=pytest.mark.thorough),
        (TURNED, None, "both"),
        pytest.param(TURNED, 19, "both", marks=pytest.mark.thorough),
        pytest.param(RING, None, "resets", marks=pytest.mark.thorough),
        (RING_TURNED, None, "both"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, sqx.MultiHeadSelfAttention) else str(value),
)
def test_prefill_steps_and_chunks_in_any_order(layer: Any, capacity: int | None, flagged: str):
    total = 19
    xs = draw(ROWS, total, D)
    mask, resets = flags(4, total)
    assert (resets & ~mask).any() and (resets & mask).sum() > 2
    mask = mask if flagged in ("mask", "both") else np.ones_like(mask)
    resets = resets if flagged in ("resets", "both") else np.zeros_like(resets)
    if flagged != "neither":
        xs = np.where(mask[..., None], xs, np.nan)
    expected = oracles.self_attention(layer, np.nan_to_num(xs), mask, resets)
    state = layer.init_state(ROWS) if capacity is None else layer.init_cache(ROWS, capacity=capacity)
    kind, step, unroll = type(state), compiled(layer, "step"), compiled(layer, "unroll")
    at, ys = 0, []
    for piece in PIECES:
        n = 1 if piece == "step" else piece
        cut = lambda a, n=n, at=at, piece=piece: a[:, at] if piece == "step" else a[:, at : at + n]
        options = {"mask": cut(mask)} if flagged in ("mask", "both") else {}
        options |= {"resets": cut(resets)} if flagged in ("resets", "both") else {}
        y, state = (step if piece == "step" else unroll)(cut(xs), state, **options)
        ys.append(y[:, None] if piece == "step" else y)
        at += n
    assert at == total and type(state) is kind
    close(np.concatenate(ys, 1), expected)
    last = [np.flatnonzero(r & m)[-1:] for r, m in zip(resets, mask, strict=True)]
    counts = [m[(s[0] if len(s) else 0) :].sum() for s, m in zip(last, mask, strict=True)]
    assert np.asarray(state.n).tolist() == counts
    if isinstance(state, sqx.KVCache):
        assert not any(np.asarray(a)[r, n:].any() for a in state[:2] for r, n in enumerate(counts))  # zeros behind
    close(compiled(layer, "forward")(xs, mask=mask, resets=resets), expected)


# ---- caches of fixed size --------------------------------------------------------------------------------------------


def test_a_fixed_cache_in_a_scan_with_donation():
    """The loop that a program writes: a prefill, then a scan of steps that reuses the cache's memory."""
    xs = draw(ROWS, 12, D)
    state = TURNED.init_cache(ROWS, capacity=12)

    def scan(state: Any, xs: Any) -> Any:
        return jax.lax.scan(lambda s, x: TURNED.step(x, s)[::-1], state, xs)

    prefill = jax.jit(lambda xs, s: TURNED.unroll(xs, s), donate_argnums=1)
    run = jax.jit(scan, donate_argnums=0)
    first = state
    head, state = prefill(jnp.asarray(xs[:, :4]), state)
    assert first.k.is_deleted() and first.v.is_deleted()
    second, place = state, state.k.unsafe_buffer_pointer()
    state, tail = run(state, jnp.moveaxis(jnp.asarray(xs[:, 4:]), 1, 0))
    assert second.k.is_deleted() and second.v.is_deleted() and second.n.is_deleted()
    assert state.k.unsafe_buffer_pointer() == place  # the same memory
    close(np.concatenate([head, np.moveaxis(np.asarray(tail), 0, 1)], 1), oracles.self_attention(TURNED, xs))


def test_one_compilation_serves_a_stream():
    traces = []

    @jax.jit
    def step(x: Any, state: Any) -> Any:
        traces.append(x)
        return PLAIN.step(x, state)

    xs, state, ys = draw(200, D), PLAIN.init_cache(capacity=200), []
    shapes = jax.tree.map(jnp.shape, state)
    for x in xs:
        y, state = step(x, state)
        ys.append(y)
    assert len(traces) == 1 and jax.tree.map(jnp.shape, state) == shapes
    close(np.stack(ys), compiled(PLAIN, "forward")(xs))


def error_of(call: Any) -> str:
    with pytest.raises((ValueError, RuntimeError)) as caught:
        jax.block_until_ready(call())
    return str(caught.value)


@pytest.mark.parametrize(
    ("how", "masked"),
    [pytest.param("eager", False, marks=pytest.mark.thorough), ("jit", False), ("filter_jit", False), ("jit", True)],
)
def test_one_sample_too_many(how: str, masked: bool):
    """By step and by stretch, in one row of three; a masked sample takes no room."""
    layer, xs = PLAIN, draw(ROWS, 4, D)
    wrap = {"eager": lambda f: f, "jit": jax.jit, "filter_jit": eqx.filter_jit}[how]
    step = wrap(lambda x, s, m: layer.step(x, s, mask=m))
    unroll = wrap(lambda xs, s, m: layer.unroll(xs, s, mask=m))
    lengths = np.arange(4) < np.array([4, 2, 3])[:, None]  # the first row fills its four slots
    _, state = compiled(layer, "unroll")(xs, layer.init_cache(ROWS, capacity=4), mask=lengths)
    before = jax.tree.map(np.array, state)
    first = jnp.array([not masked, True, True])
    stretch = jnp.stack([first, jnp.zeros(3, bool)], 1)
    for call in (lambda: step(xs[:, 0], state, first), lambda: unroll(xs[:, :2], state, stretch)):
        if masked:
            _, after = call()
            assert np.asarray(after.n).tolist() == [4, 3, 4]
            assert same((after.k[0], after.v[0]), (before.k[0], before.v[0]))
        else:
            assert FULL.format(4) in error_of(call)
        assert same(state, before)
    if how == "eager" and not masked:
        with pytest.raises(ValueError, match=FULL.format(4)):
            layer.step(xs[:, 0], state)


def test_too_many_without_flags():
    xs = draw(2, 5, D)
    unroll, step = compiled(PLAIN, "unroll"), compiled(PLAIN, "step")
    with pytest.raises(ValueError, match=f"{FULL.format(4)}, and 5 samples at once"):
        unroll(xs, PLAIN.init_cache(2, capacity=4))  # told from the shapes
    _, state = unroll(xs[:, :3], PLAIN.init_cache(2, capacity=4))
    assert FULL.format(4) in error_of(lambda: unroll(xs[:, :2], state))
    _, state = step(xs[:, 3], state)
    assert FULL.format(4) in error_of(lambda: step(xs[:, 4], state))
    y, after = step(xs[:, 4], state, resets=jnp.ones(2, bool))  # afresh: there is room again
    close(y, oracles.self_attention(PLAIN, xs[:, 4:])[:, 0])
    assert np.asarray(after.n).tolist() == [1, 1] and not np.asarray(after.k)[:, 1:].any()


def test_a_stretch_with_a_reset_needs_room_for_what_is_left():
    """Nine samples for four slots: what lies before the reset is read, and not kept."""
    xs, resets = draw(2, 9, D), np.zeros((2, 9), bool)
    resets[0, 6] = resets[1, 5] = True
    ys, state = compiled(PLAIN, "unroll")(xs, PLAIN.init_cache(2, capacity=4), resets=resets)
    close(ys, oracles.self_attention(PLAIN, xs, None, resets))
    close(state.k[0, :3], xs[0, 6:] @ np.asarray(PLAIN.W_K).T)
    assert np.asarray(state.n).tolist() == [3, 4]
    resets[1] = False
    assert FULL.format(4) in error_of(
        lambda: compiled(PLAIN, "unroll")(xs, PLAIN.init_cache(2, capacity=4), resets=resets)
    )


def test_too_many_inside_a_scan_and_under_vmap():
    run = jax.jit(lambda s, xs: jax.lax.scan(lambda s, x: PLAIN.step(x, s)[::-1], s, xs))
    xs = draw(5, 2, D)
    state, _ = run(PLAIN.init_cache(2, capacity=4), xs[:4])
    assert np.asarray(state.n).tolist() == [4, 4]
    assert FULL.format(4) in error_of(lambda: run(PLAIN.init_cache(2, capacity=4), xs))
    mapped = jax.jit(jax.vmap(lambda x, s: PLAIN.step(x, s)))
    _, state = mapped(xs[0], PLAIN.init_cache(2, capacity=1))
    assert FULL.format(1) in error_of(lambda: mapped(xs[0], state))


def test_too_many_when_only_the_outputs_are_used():
    """The compiler drops what is not used: the error must hang on the output, or the output must be right."""
    xs = draw(2, 5, D)
    _, state = compiled(PLAIN, "unroll")(xs[:, :4], PLAIN.init_cache(2, capacity=4))
    assert FULL.format(4) in error_of(lambda: jax.jit(lambda x, s: PLAIN.step(x, s)[0])(xs[:, 4], state))


# ---- other sizes -----------------------------------------------------------------------------------------------------


def test_with_capacity():
    xs = draw(ROWS, 6, D)
    unroll = compiled(TURNED, "unroll")
    head, growing = unroll(xs[:, :3], mask=jnp.array([[True] * 3, [False, True, False], [False] * 3]))
    for state in (growing, sqx.with_capacity(growing, 4)):
        wider = sqx.with_capacity(state, 9)
        assert isinstance(wider, sqx.KVCache) and wider.k.shape == wider.v.shape == (ROWS, 9, D_KV)
        assert same((wider.k[:, :3], wider.v[:, :3], wider.n), (state.k[:, :3], state.v[:, :3], state.n))
        assert not np.asarray(wider.k[:, 3:]).any() and not np.asarray(wider.v[:, 3:]).any()
        tail, _ = unroll(xs[:, 3:], wider)
        expected, _ = unroll(xs[:, 3:], growing)
        close(tail, expected, 1e-6)
        whole = oracles.self_attention(TURNED, xs[:1])
        close(np.concatenate([head, tail], 1)[:1], whole)
    assert same(sqx.with_capacity(growing, 3)[:2], growing[:2])
    for small, state in ((2, growing), (8, sqx.with_capacity(growing, 9))):
        with pytest.raises(ValueError, match=f"capacity must be at least the {state.k.shape[-2]} slots of the cache"):
            sqx.with_capacity(state, small)
    ring = RING.init_state(ROWS)
    assert sqx.with_capacity(ring, 2) is ring


def test_with_capacity_reaches_every_cache_of_a_model():
    cross = sqx.MultiHeadCrossAttention(D, 1, KEY, d_memory=2)
    model = sqx.Sequential(
        [sqx.Sequential([sqx.AddPositions(), PLAIN]), RING, sqx.GRU(D, 4, KEY), sqx.Dense(4, 2, KEY)]
    )
    state = {"model": model.init_state(2), "memory": cross.read(draw(2, 3, 2)), "none": None}
    fixed = sqx.with_capacity(state, 7)
    assert same(fixed["memory"], state["memory"]) and fixed["none"] is None
    assert isinstance(fixed["model"][0][1], sqx.KVCache) and fixed["model"][0][1].k.shape == (2, 7, D_KV)
    assert same(fixed["model"][1:], state["model"][1:]) and same(fixed["model"][0][0], state["model"][0][0])
    xs = draw(2, 7, D)
    step, run, ys = compiled(model, "step"), fixed["model"], []
    for t in range(7):
        y, run = step(xs[:, t], run)
        ys.append(y)
    close(np.stack(ys, 1), compiled(model, "forward")(xs))
    assert FULL.format(7) in error_of(lambda: step(xs[:, 0], run))


def test_caches_that_cannot_be():
    with pytest.raises(TypeError, match="does not stream"):
        sqx.MultiHeadSelfAttention(D, 1, KEY).init_cache()
    with pytest.raises(TypeError, match="does not stream"):
        sqx.MultiHeadSelfAttention(D, 1, KEY).init_state(capacity=3)
    with pytest.raises(ValueError, match=r"capacity is not needed: with window=3 the cache is a ring"):
        RING.init_cache(capacity=8)
    assert sqx.MultiHeadSelfAttention(D, 1, KEY).init_state(4) == ()


# ---- rings -----------------------------------------------------------------------------------------------------------


def test_a_ring_runs_on():
    """300 samples through a window of five; the ring stays as large as it is."""
    xs = draw(2, 300, D)
    state = RING_TURNED.init_state(2)
    assert isinstance(state, sqx.RingKVCache) and state.k.shape == (2, 8, D_KV)
    run = jax.jit(lambda s, xs: jax.lax.scan(lambda s, x: RING_TURNED.step(x, s)[::-1], s, xs))
    state, ys = run(state, jnp.moveaxis(xs, 1, 0))
    close(np.moveaxis(np.asarray(ys), 0, 1), oracles.self_attention(RING_TURNED, xs))
    close(compiled(RING_TURNED, "forward")(xs), np.moveaxis(np.asarray(ys), 0, 1))
    assert state.k.shape == (2, 8, D_KV)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 9])
def test_stretches_shorter_and_longer_than_the_ring(size: int):
    """A window of three in four slots; with a mask, so that the rows stand at different slots."""
    xs, mask = draw(2, 22, D), np.ones((2, 22), bool)
    mask[1, 2:7] = mask[1, 10] = False
    expected = oracles.self_attention(RING, xs, mask)
    unroll, state, ys = compiled(RING, "unroll"), RING.init_state(2), []
    for start in range(0, 22, size):
        cut = slice(start, start + size)
        y, state = unroll(xs[:, cut], state, mask=mask[:, cut])
        assert state.k.shape == (2, 4, D_KV)
        ys.append(y)
    close(np.concatenate(ys, 1), expected)
    y, _ = compiled(RING, "step")(xs[:, 0], state)
    again = np.concatenate([xs, xs[:, :1]], 1), np.concatenate([mask, np.ones((2, 1), bool)], 1)
    close(y, oracles.self_attention(RING, *again)[:, -1])


@pytest.mark.parametrize("window", [1, 2, 7])
def test_windows(window: int):
    layer, xs = attention(window=window), draw(1, 9, D)
    assert layer.init_state().k.shape[0] == {1: 1, 2: 2, 4: 4, 7: 8}[window]
    expected, state, step = oracles.self_attention(layer, xs)[0], None, compiled(layer, "step")
    for t in range(9):
        y, state = step(xs[0, t], state)
        close(y, expected[t])
    close(compiled(layer, "forward")(xs)[0], expected)


@pytest.mark.parametrize("size", [None, 1, 3, 9])
def test_a_ring_beyond_the_largest_count(size: int | None):
    """A count that passes 2^31 - 1 goes on from 2^30, which is as many whole turns and whole rings further back."""
    layer, xs = RING_TURNED, draw(2, 14, D)
    run = jax.jit(lambda s, xs: layer.step(xs[:, 0], s) if size is None else layer.unroll(xs, s))

    def stream(n: int) -> tuple[np.ndarray, Any]:
        state, ys = layer.init_state(2)._replace(n=jnp.array([n, n + 3], jnp.int32)), []
        for t in range(0, 14, size or 1):
            y, state = run(state, xs[:, t : t + (size or 1)])
            ys.append(y[:, None] if size is None else y)
        return np.concatenate(ys, 1), state

    over, far, near = stream(2**31 - 8), stream(2**30 - 8), stream(8)
    np.testing.assert_array_equal(over[0], far[0])
    assert same(over[1], far[1])
    assert np.asarray(over[1].n).tolist() == [2**30 + 6, 2**30 + 9]
    close(over[0], near[0])  # the same stream, shifted


# ---- states that do not fit ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["step", "unroll"])
def test_wrong_states(how: str):
    x = jnp.asarray(draw(2, D) if how == "step" else draw(2, 3, D))
    good = PLAIN.init_cache(2, capacity=6)
    narrow = sqx.MultiHeadSelfAttention(D, 1, KEY, causal=True, d_head=4).init_cache(2, capacity=6)
    for layer, state, kind, words in [
        (PLAIN, tuple(good), TypeError, "must be a KVCache or GrowingKVCache, as init_cache gives, got tuple"),
        (PLAIN, good.k, TypeError, "must be a KVCache or GrowingKVCache"),
        (PLAIN, (), TypeError, "must be a KVCache or GrowingKVCache"),
        (PLAIN, RING.init_state(2), TypeError, "got RingKVCache"),
        (RING, good, TypeError, "must be a RingKVCache, as init_cache gives, got KVCache"),
        (
            PLAIN,
            PLAIN.init_cache(3, capacity=6),
            ValueError,
            r"state\.k must have shape \(2, 6, 12\), got \(3, 6, 12\)",
        ),
        (PLAIN, PLAIN.init_cache(capacity=6), ValueError, r"state\.k must have shape \(2, 6, 12\), got \(6, 12\)"),
        (PLAIN, narrow, ValueError, r"state\.k must have shape \(2, 6, 12\), got \(2, 6, 4\)"),
        (PLAIN, good._replace(v=good.v[:, :5]), ValueError, r"state\.v must have shape \(2, 6, 12\), got \(2, 5, 12\)"),
        (PLAIN, good._replace(n=good.n[0]), ValueError, r"state\.n must have shape \(2,\), got \(\)"),
        (PLAIN, good._replace(k=None), TypeError, r"state\.k must be an array, got NoneType"),
        (PLAIN, good._replace(n=2.0 * good.k[:, 0, 0]), TypeError, r"state\.n must have dtype int32, got float32"),
        (
            PLAIN,
            PLAIN.init_cache(2, "float16", capacity=6),
            TypeError,
            r"state\.k must have dtype float32, got float16",
        ),
        (
            RING,
            attention(window=5).init_state(2),
            ValueError,
            r"state\.k must have shape \(2, 4, 12\), got \(2, 8, 12\)",
        ),
    ]:
        with pytest.raises(kind, match=words):
            getattr(layer, how)(x, state)


def test_a_stream_object_takes_a_fixed_cache():
    xs = draw(6, D)
    run = sqx.Stream(TURNED, state=TURNED.init_cache(capacity=6))
    close(np.stack([run(x) for x in xs]), oracles.self_attention(TURNED, xs[None])[0])
    assert FULL.format(6) in error_of(lambda: run(xs[0]))
    run.reset()
    close(run(xs[3]), oracles.self_attention(TURNED, xs[None, 3:4])[0, 0])


def test_gradients_through_a_stream_are_those_of_the_sequence():
    """Through steps, a stretch and the cache between them, of weights and samples; the steps computed anew."""
    xs, weight = draw(2, 7, D), draw(2, 7, D, seed=1)

    def streamed(layer: Any, xs: Any, state: Any) -> Any:
        ys, state = layer.unroll(xs[:, :3], state)
        parts = [ys]
        for t in (3, 4):
            y, state = jax.checkpoint(lambda x, s: layer.step(x, s))(xs[:, t], state)
            parts.append(y[:, None])
        parts.append(layer.unroll(xs[:, 5:], state)[0])
        return jnp.sum(jnp.concatenate(parts, 1) * weight)

    for layer, state in ((TURNED, TURNED.init_cache(2, capacity=7)), (RING, None)):
        got = eqx.filter_jit(eqx.filter_grad(lambda both, state=state: streamed(*both, state)))(
            (layer, jnp.asarray(xs))
        )
        whole = eqx.filter_jit(eqx.filter_grad(lambda both: jnp.sum(both[0](both[1]) * weight)))(
            (layer, jnp.asarray(xs))
        )
        for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(whole), strict=True):
            close(a, np.asarray(b), 2e-5)


@pytest.mark.thorough
def test_without_compilation():
    xs = draw(1, 3, D)
    with jax.disable_jit():
        head, state = RING.unroll(xs[:, :2])
        tail, _ = RING.step(xs[:, 2], state)
    close(np.concatenate([head, tail[:, None]], 1), oracles.self_attention(RING, xs))
