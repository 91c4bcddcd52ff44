"""Encoder, decoder, and the two together, against NumPy, against each other, and against the parts they are made of."""

from typing import Any

import equinox as eqx
import jax
import jax.extend.core as jex_core
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import sequinox as sqx

pytestmark = pytest.mark.usefixtures("quick_compilation", "unchecked_types")
thorough = pytest.mark.thorough

KEY = jax.random.key(0)
encoder, decoder = sqx.transformer_encoder, sqx.transformer_decoder

N_IN, D, HEADS, D_FF, DEPTH, N_OUT = 3, 6, 3, 5, 2, 4
B, T = 4, 7
XS = jnp.asarray(np.random.default_rng(0).normal(size=(B, T, N_IN)), jnp.float32)
TOKENS = jnp.asarray(np.random.default_rng(1).integers(0, N_IN, (B, T)))
MASK = jnp.asarray(np.arange(T) < np.array([7, 2, 5, 1])[:, None])
SIZES = (N_IN, D, HEADS, D_FF, DEPTH, N_OUT, KEY)


def filled(module: Any, seed: int = 3) -> Any:
    """Every array drawn anew, so that no bias is zero and no norm the identity."""
    random = np.random.default_rng(seed)
    fill = lambda a: jnp.asarray(0.5 * random.normal(size=a.shape), a.dtype) if eqx.is_inexact_array(a) else a
    return jax.tree.map(fill, module)


def assert_close(got: Any, expected: Any, tolerance: float = 2e-5) -> None:
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


def names(net: Any) -> list[str]:
    return [type(la).__name__ for la in net]


def blocks(net: Any) -> list[sqx.TransformerBlock]:
    is_block = lambda node: isinstance(node, sqx.TransformerBlock)
    return [node for node in jax.tree.leaves(net, is_leaf=is_block) if is_block(node)]


call = eqx.filter_jit(lambda net, xs, mask=None, key=None: net(xs, mask=mask, key=key))


# ---- shapes and names ------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_shapes():
    assert encoder(4, 8, 2, 16, 1, 3, KEY, 16)(jnp.ones((5, 4))).shape == (3,)
    shapes = lambda net, *axes: jax.eval_shape(net, jax.ShapeDtypeStruct(axes, jnp.float32)).shape
    net, causal = encoder(*SIZES), decoder(*SIZES)
    for batch in ((), (B,), (2, 3)):
        assert shapes(net, *batch, T, N_IN) == (*batch, N_OUT)
        assert shapes(causal, *batch, T, N_IN) == (*batch, T, N_OUT)
    assert shapes(encoder(*SIZES, pool=None), B, T, N_IN) == (B, T, N_OUT)
    assert shapes(encoder(*SIZES, pool="last"), B, T, N_IN) == (B, N_OUT)
    assert jax.eval_shape(encoder(*SIZES, tokens=True), TOKENS).shape == (B, N_OUT)


def test_the_layers_of_an_encoder():
    two = ["TransformerBlock"] * 2
    assert names(encoder(*SIZES)) == ["Dense", "AddPositions", *two, "MeanOverTime", "Dense"]
    assert names(encoder(*SIZES, pool="last", dropout=0.1)) == [
        "Dense", "AddPositions", "Dropout", *two, "LastStep", "Dense",
    ]  # fmt: skip
    assert names(encoder(*SIZES, pool=None, positions=None)) == ["Dense", *two, "Dense"]
    assert names(encoder(*SIZES, 9, positions="learned", norm="pre")) == [
        "Dense", "AddLearnedPositions", *two, "PerSample", "MeanOverTime", "Dense",
    ]  # fmt: skip
    assert names(encoder(*SIZES, tokens=True, positions="rotary")) == [
        "PerSample", *two, "MeanOverTime", "Dense",
    ]  # fmt: skip
    assert names(encoder(*SIZES, scan_layers=True))[2] == "Stack"
    assert names(encoder(*SIZES, remat=True))[2:4] == ["Remat", "Remat"]


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_arrays_of_one_block(norm: Any):
    """Counted by hand: 4 d^2 for attention, 2 d d_ff + d_ff + d for the network, 2 d a norm."""
    block = sqx.TransformerBlock(D, HEADS, D_FF, KEY, norm=norm)
    arrays = sqx.parameters(block)
    assert list(arrays) == [
        "self_attention.W_Q", "self_attention.W_K", "self_attention.W_V", "self_attention.W_O",
        "feed_forward.W_1", "feed_forward.b_1", "feed_forward.W_2", "feed_forward.b_2",
        "norm_self.function.weight", "norm_self.function.bias",
        "norm_feed_forward.function.weight", "norm_feed_forward.function.bias",
    ]  # fmt: skip
    number = lambda module: sum(a.size for a in sqx.parameters(module).values())
    assert number(block) == 4 * D * D + 2 * D * D_FF + D_FF + D + 2 * 2 * D
    with_all = sqx.TransformerBlock(D, HEADS, D_FF, KEY, cross=True, attention_bias=True, gated=True, d_memory=7)
    attention = 4 * D * D + 4 * D
    cross = 2 * D * D + 2 * D * 7 + 4 * D
    assert number(with_all) == attention + cross + 3 * D * D_FF + 2 * D_FF + D + 3 * 2 * D
    grouped = sqx.TransformerBlock(8, 4, D_FF, KEY, n_kv_heads=2, d_head=3, feed_forward_bias=False)
    assert number(grouped) == 2 * 8 * 12 + 2 * 8 * 6 + 2 * 8 * D_FF + 2 * 2 * 8


def test_arrays_of_whole_models():
    number = lambda module: sum(a.size for a in sqx.parameters(module).values())
    block = number(sqx.TransformerBlock(D, HEADS, D_FF, KEY))
    ends = N_IN * D + D + D * N_OUT + N_OUT
    assert number(encoder(*SIZES)) == ends + 2 * block
    assert number(encoder(*SIZES, 9, positions="learned", norm="pre")) == ends + 2 * block + 9 * D + 2 * D
    assert number(decoder(*SIZES, tokens=True)) == ends - D + 2 * block  # an embedding has no bias
    assert number(decoder(*SIZES, readout_bias=False)) == ends - N_OUT + 2 * block
    assert number(decoder(N_OUT, *SIZES[1:], tokens=True, tied=True)) == N_OUT * D + 2 * block
    assert number(encoder(*SIZES, scan_layers=True)) == number(encoder(*SIZES))
    matrices = [np.asarray(b.self_attention.W_Q).tobytes() for b in blocks(decoder(*SIZES))]
    assert len(set(matrices)) == 2  # every block has weights of its own


# ---- against NumPy ---------------------------------------------------------------------------------------------------


def softmax(a: np.ndarray) -> np.ndarray:
    e = np.exp(a - a.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def layer_norm(x: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * weight + bias


def row_through_encoder(w: dict[str, np.ndarray], row: np.ndarray, n_blocks: int) -> np.ndarray:
    """One row without padding, post-norm, written from the paper: the samples before pooling."""
    n, width = len(row), w["layers[0].W"].shape[0]
    x = row @ w["layers[0].W"].T + w["layers[0].b"]
    for i in range(width):
        angle = np.arange(n) / 10_000 ** (2 * (i // 2) / width)
        x[:, i] += np.sin(angle) if i % 2 == 0 else np.cos(angle)
    for b in range(n_blocks):
        p = {name.split(f"layers[{2 + b}].")[1]: a for name, a in w.items() if name.startswith(f"layers[{2 + b}].")}
        q, k, v = (x @ p[f"self_attention.W_{letter}"].T for letter in "QKV")
        heads = []
        for cut in np.split(np.arange(width), HEADS):
            heads.append(softmax(q[:, cut] @ k[:, cut].T / np.sqrt(len(cut))) @ v[:, cut])
        x = x + np.concatenate(heads, 1) @ p["self_attention.W_O"].T
        x = layer_norm(x, p["norm_self.function.weight"], p["norm_self.function.bias"])
        hidden = np.maximum(x @ p["feed_forward.W_1"].T + p["feed_forward.b_1"], 0)
        x = x + hidden @ p["feed_forward.W_2"].T + p["feed_forward.b_2"]
        x = layer_norm(x, p["norm_feed_forward.function.weight"], p["norm_feed_forward.function.bias"])
    return x


@pytest.mark.parametrize("pool", ["mean", pytest.param("last", marks=thorough), None])
def test_a_whole_encoder_against_numpy(pool: Any):
    net = filled(encoder(*SIZES, pool=pool))
    w = {name: np.asarray(a, np.float64) for name, a in sqx.parameters(net).items()}
    head = lambda x: x @ w[f"layers[{len(net) - 1}].W"].T + w[f"layers[{len(net) - 1}].b"]
    got = np.asarray(call(net, XS, MASK))
    assert got.shape == ((B, T, N_OUT) if pool is None else (B, N_OUT))
    for i in range(B):
        real = np.asarray(MASK[i])
        hs = row_through_encoder(w, np.asarray(XS[i], np.float64)[real], DEPTH)
        if pool is None:
            np.testing.assert_allclose(got[i, real], head(hs), atol=2e-5)
            assert not np.any(got[i, ~real])
        else:
            np.testing.assert_allclose(got[i], head(hs.mean(0) if pool == "mean" else hs[-1]), atol=2e-5)


# ---- options ---------------------------------------------------------------------------------------------------------


def test_options_reach_every_block():
    net = decoder(
        8, 8, 4, 5, 2, 3, KEY,
        window=3, n_kv_heads=2, d_head=6, activation=jnp.tanh, gated=True, attention_bias=True, chunk_size=2,
        feed_forward_bias=False, attention_dropout=0.25, dropout=0.5, norm="pre", norm_layer=eqx.nn.RMSNorm,
        positions=sqx.Rotary(100.0, interleaved=True), dtype=jnp.bfloat16, cross=True, d_memory=7,
        initializer=jax.nn.initializers.constant(0.5),
    )  # fmt: skip
    assert len(blocks(net)) == 2
    for block in blocks(net):
        attention = block.self_attention
        assert (attention.window, attention.n_kv_heads, attention.d_head, attention.chunk_size) == (3, 2, 6, 2)
        assert attention.causal and attention.b_Q is not None
        assert attention.rotary is not None and attention.rotary.base == 100.0 and attention.rotary.interleaved
        assert attention.dropout.p == 0.25 and block.dropout.p == 0.5 and block.norm == "pre"
        cross = block.cross_attention
        assert cross is not None and (cross.d_memory, cross.n_kv_heads, cross.d_head) == (7, 2, 6)
        assert cross.dropout.p == 0.25 and cross.b_O is not None
        forward = block.feed_forward
        assert forward.activation is jnp.tanh and forward.W_g is not None and forward.b_1 is None
        assert isinstance(block.norm_self.function, eqx.nn.RMSNorm)
        assert np.all(np.asarray(attention.W_Q, np.float32) == 0.5)
    assert all(a.dtype == jnp.bfloat16 for a in sqx.parameters(net).values())
    last = net.layers[-2]  # pyright: ignore[reportAttributeAccessIssue]
    assert isinstance(last, sqx.PerSample) and isinstance(last.function, eqx.nn.RMSNorm)
    assert encoder(*SIZES, causal=True).streams and not encoder(*SIZES).streams and decoder(*SIZES).streams
    assert not any(block.self_attention.causal for block in blocks(encoder(*SIZES)))


@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "rotary", None])
def test_positions_tell_the_order(positions: Any):
    """Without any, an encoder gives the same for the samples in another order."""
    net = filled(encoder(*SIZES, T, positions=positions))
    same = np.allclose(call(net, XS), call(net, XS[:, ::-1]), atol=1e-4)
    assert same == (positions is None)


@pytest.mark.parametrize("form", [pytest.param("remat", marks=thorough), "scan_layers and remat"])
def test_other_forms_of_the_same_network(form: str):
    """Same key, same weights, same numbers and gradients; in decoders the same stream."""
    given: Any = dict.fromkeys(form.split(" and "), True)
    options: Any = {"norm": "pre", "attention_bias": True}
    plain, other = (decoder(*SIZES, **options, **how) for how in ({}, given))

    def loss(args: Any) -> Any:
        ys = args[0](args[1], mask=MASK)
        return jnp.sum(jnp.sin(ys)), ys

    run = eqx.filter_jit(eqx.filter_value_and_grad(loss, has_aux=True))
    (_, ys), (d_plain, d_xs) = run((plain, XS))
    (_, got), (d_other, d_got) = run((other, XS))
    assert_close(got, ys)
    assert_close(d_got, d_xs)
    of_blocks = [eqx.filter(block, eqx.is_array) for block in blocks(d_plain)]
    if "scan" in form:
        (stacked,) = blocks(d_other)
        assert_close(eqx.filter(stacked, eqx.is_array), jax.tree.map(lambda *a: jnp.stack(a), *of_blocks))
    else:
        assert_close([eqx.filter(block, eqx.is_array) for block in blocks(d_other)], of_blocks)
    assert_close([d_other.layers[i].W for i in (0, -1)], [d_plain.layers[i].W for i in (0, -1)])
    run_one = sqx.Stream(other, state=sqx.with_capacity(other.init_state(B), 2))
    for t in range(2):
        assert_close(run_one(XS[:, t]), ys[:, t] if t == 0 else call(plain, XS[:, :2])[:, 1])


# ---- the longest row -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
def test_a_whole_row_that_is_too_long(positions: Any):
    net = decoder(*SIZES, 5, positions=positions)
    assert jax.eval_shape(net, XS[:, :5]).shape == (B, 5, N_OUT)
    with pytest.raises(ValueError, match="a row is longer than max_len=5"):
        net(XS[:, :6])


def test_the_longest_row():
    net = decoder(*SIZES, 5, positions="learned")
    with pytest.raises(ValueError, match="a row is longer than max_len=5"):
        net(XS[:, :6])
    short = jnp.asarray(np.arange(T) < np.array([5, 2, 0, 1])[:, None])
    assert_close(call(net, XS, short)[:, :5], call(net, XS[:, :5], short[:, :5]))  # masked samples do not count
    with pytest.raises(Exception, match="a row is longer than max_len=5"):
        jax.block_until_ready(call(net, XS, short.at[0, 6].set(True)))
    state = sqx.with_capacity(net.init_state(), 9)
    run = sqx.Stream(net, state=state)
    for t in range(5):
        run(XS[0, t])
    with pytest.raises(Exception, match="a row is longer than max_len=5"):
        jax.block_until_ready(run(XS[0, 5]))


# ---- tokens and readouts ---------------------------------------------------------------------------------------------


def test_tokens_are_rows_of_the_embedding():
    net = filled(decoder(*SIZES, tokens=True))
    E = net.layers[0].function.weight
    assert E.shape == (N_IN, D)
    behind = sqx.Sequential(net.layers[1:])
    assert_close(call(net, TOKENS, MASK), call(behind, E[TOKENS], MASK))


def test_a_tied_readout_reads_and_gives_one_matrix():
    """Its gradient is the sum over both uses, which an untied model tells apart."""
    net: Any = filled(decoder(N_OUT, *SIZES[1:], tokens=True, tied=True))
    E = net.embedding.function.weight
    assert [a.shape for a in sqx.parameters(net).values()].count(E.shape) == 1
    ends = eqx.nn.Embedding(weight=E), sqx.Dense(D, N_OUT, KEY, use_bias=False)
    untied = sqx.Sequential([ends[0], *net.body.layers, eqx.tree_at(lambda dense: dense.W, ends[1], E)])
    weigh = jnp.asarray(np.random.default_rng(4).normal(size=(B, T, N_OUT)), jnp.float32)

    def loss(m: Any) -> Any:
        ys = m(TOKENS, mask=MASK)
        return jnp.sum(ys * weigh), ys

    run = eqx.filter_jit(eqx.filter_value_and_grad(loss, has_aux=True))
    (_, ys), d_tied = run(net)
    (_, expected), d_untied = run(untied)
    assert_close(ys, expected)
    read, read_out = d_untied.layers[0].function.weight, d_untied.layers[-1].W
    assert np.any(np.asarray(read)) and np.any(np.asarray(read_out))
    assert_close(d_tied.embedding.function.weight, read + read_out)
    edited = eqx.tree_at(lambda m: m.embedding.function.weight, net, jnp.zeros_like(E))
    assert not np.any(call(edited, TOKENS))


@thorough
def test_a_tied_readout_around_a_recurrent_network():
    gru = sqx.GRU(5, 5, KEY)
    model = sqx.TiedReadout(N_OUT, gru, jax.random.key(1))
    E = np.asarray(model.embedding.function.weight)
    assert np.std(E) == pytest.approx(5**-0.5, rel=0.5)
    assert_close(model(TOKENS, mask=MASK), np.where(MASK[..., None], gru(E[TOKENS], mask=MASK) @ E.T, 0))
    y, state = model.step(TOKENS[:, 0])
    assert_close(y, model(TOKENS)[:, 0])
    assert state.shape == (B, 5)
    pooled = sqx.TiedReadout(N_OUT, sqx.Sequential([gru, sqx.LastStep()]), jax.random.key(1))
    assert pooled.pools and pooled(TOKENS, mask=MASK).shape == (B, N_OUT)


# ---- dropout ---------------------------------------------------------------------------------------------------------


def count_random(jaxpr: Any) -> int:
    inner = sum(count_random(j) for eqn in jaxpr.eqns for j in jex_core.jaxprs_in_params(eqn.params))
    return inner + sum(eqn.primitive.name.startswith(("random", "threefry")) for eqn in jaxpr.eqns)


@pytest.mark.parametrize(
    "scan_layers", [pytest.param(False, id="plain"), pytest.param(True, id="stacked", marks=thorough)]
)
def test_dropout_only_in_training(scan_layers: bool):
    net = decoder(*SIZES, dropout=0.5, attention_dropout=0.5, scan_layers=scan_layers)
    plain = decoder(*SIZES, scan_layers=scan_layers)
    with pytest.raises(ValueError, match="key is needed"):
        net(XS)
    first, second = jax.random.split(KEY)
    assert not np.array_equal(call(net, XS, None, first), call(net, XS, None, second))
    assert np.array_equal(call(net, XS, None, first), call(net, XS, None, first))
    quiet = eqx.nn.inference_mode(net)
    assert np.array_equal(call(quiet, XS), call(plain, XS))
    assert count_random(jax.make_jaxpr(quiet)(XS).jaxpr) == 0
    assert count_random(jax.make_jaxpr(lambda xs: net(xs, key=first))(XS).jaxpr) > 0
    assert not np.array_equal(call(eqx.nn.inference_mode(quiet, value=False), XS, None, first), call(plain, XS))


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_dropout_stands_on_what_each_sublayer_gives(norm: Any):
    """With nothing from the sub-layers but their last biases, the sums show the masks: each number kept or not."""
    block = sqx.TransformerBlock(D, HEADS, D_FF, KEY, norm=norm, dropout=0.5, norm_layer=lambda n, dtype: lambda x: x)
    zero = jax.tree.map(jnp.zeros_like, eqx.filter(block, eqx.is_inexact_array))
    zero = eqx.tree_at(lambda b: b.feed_forward.b_2, zero, jnp.ones(D))
    block = eqx.combine(zero, block)
    ys = np.asarray(block(jnp.full((50, 9, D), 7.0), key=jax.random.key(1)))
    assert set(np.unique(ys)) == {7.0, 9.0}  # x + 0, or x + 1 / (1 - 0.5)
    assert np.mean(ys == 9.0) == pytest.approx(0.5, abs=0.05)


# ---- from sequence to sequence ---------------------------------------------------------------------------------------

PLACES = 5
SOURCE = jnp.asarray(np.random.default_rng(5).normal(size=(B, PLACES, N_IN)), jnp.float32)
SOURCE_MASK = jnp.asarray(np.arange(PLACES) < np.array([5, 1, 3, 2])[:, None])
TARGETS = jnp.asarray(np.random.default_rng(6).integers(0, N_OUT, (B, T)))


@eqx.filter_jit
def translate(model: Any, source: Any, targets: Any, source_mask: Any = None, mask: Any = None) -> Any:
    return model.unroll(targets, model.encode(source, mask=source_mask), mask=mask)[0]


def pair(**options: Any) -> Any:
    return filled(sqx.encoder_decoder(N_IN, D, HEADS, D_FF, options.pop("n_layers", 1), N_OUT, KEY, **options))


def test_a_ragged_source_equals_its_rows():
    model = pair()
    got = np.asarray(translate(model, SOURCE, TARGETS, SOURCE_MASK, MASK))
    for i in (1, 2):
        n, m = int(SOURCE_MASK[i].sum()), int(MASK[i].sum())
        assert_close(got[i, :m], translate(model, SOURCE[i, :n], TARGETS[i, :m]))
        assert not np.any(got[i, m:])
    real = [np.asarray(SOURCE[i])[np.asarray(SOURCE_MASK[i])] for i in range(B)]
    left = np.full(SOURCE.shape, np.nan, np.float32)  # the padding on the left
    for i, rows in enumerate(real):
        left[i, PLACES - len(rows) :] = rows
    assert_close(translate(model, jnp.asarray(left), TARGETS, jnp.flip(SOURCE_MASK, 1), MASK), got)


def test_what_stands_in_the_padding_of_a_source_is_harmless():
    model = pair(norm="pre")
    fill = lambda value: jnp.where(SOURCE_MASK[..., None], SOURCE, value)

    def loss(args: Any) -> Any:
        return jnp.sum(jnp.sin(translate(args[0], args[1], TARGETS, SOURCE_MASK, MASK)))

    run = eqx.filter_jit(eqx.filter_value_and_grad(loss))
    value, (d_model, d_source) = run((model, fill(0.0)))
    for what in (jnp.nan, jnp.inf, 1e30):
        got, (d_got, d_dirty) = run((model, fill(what)))
        assert_close((got, eqx.filter(d_got, eqx.is_array)), (value, eqx.filter(d_model, eqx.is_array)))
        assert_close(d_dirty, d_source)
        assert not np.any(np.asarray(d_dirty)[~np.asarray(SOURCE_MASK)])
    assert np.all(np.any(np.asarray(d_source)[np.asarray(SOURCE_MASK)], -1))


def test_a_source_of_padding_alone():
    """There is nothing to look at: finite outputs that do not depend on the source, and finite gradients."""
    model = pair()
    nothing = jnp.zeros_like(SOURCE_MASK)
    run = eqx.filter_jit(
        eqx.filter_value_and_grad(lambda m, source: jnp.sum(translate(m, source, TARGETS, nothing) ** 2))
    )
    value, gradient = run(model, SOURCE)
    other, _ = run(model, jnp.full_like(SOURCE, jnp.nan))
    assert np.isfinite(value) and value == other
    assert all(np.all(np.isfinite(a)) for a in jax.tree.leaves(eqx.filter(gradient, eqx.is_inexact_array)))


def test_without_a_source():
    model = pair()
    state = model.init_state(B)
    for run in (lambda: model(TARGETS), lambda: model.step(TARGETS[:, 0]), lambda: model.unroll(TARGETS, state)):
        with pytest.raises(ValueError, match="there is no memory to look at"):
            jax.eval_shape(run)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"n_layers": 2, "scan_layers": True, "norm": "pre", "tied": True}, marks=thorough),
        {"window": 2, "positions": "rotary", "n_kv_heads": 1},
    ],
    ids=["stacked", "window"],
)
def test_teacher_forcing_equals_step_by_step(options: Any):
    model = pair(**options)
    whole = translate(model, SOURCE, TARGETS, SOURCE_MASK)
    run = sqx.Stream(model, state=sqx.with_capacity(model.encode(SOURCE, mask=SOURCE_MASK), T))
    for t in range(T):
        assert_close(run(TARGETS[:, t]), whole[:, t])


def test_a_reset_starts_the_target_afresh_with_the_same_source():
    model = pair()
    state = model.encode(SOURCE)
    resets = jnp.zeros((B, T), bool).at[:, 3].set(True)
    ys, _ = eqx.filter_jit(model.unroll)(TARGETS, state, resets=resets)
    assert_close(ys[:, 3:], translate(model, SOURCE, TARGETS[:, 3:]))


def test_batch_axes():
    model = pair()
    whole = np.asarray(translate(model, SOURCE, TARGETS, SOURCE_MASK, MASK))
    none = translate(model, SOURCE[2], TARGETS[2], SOURCE_MASK[2], MASK[2])
    assert_close(none, whole[2])
    two = lambda a: a.reshape(2, 2, *a.shape[1:])
    assert_close(translate(model, *map(two, (SOURCE, TARGETS, SOURCE_MASK, MASK))), two(whole))
    with pytest.raises(ValueError, match=r"state.* must have shape \(4,"):
        model.unroll(TARGETS, model.encode(SOURCE[:3]))


def test_samples_of_both_kinds():
    """Tokens or vectors on either side."""
    model = filled(sqx.encoder_decoder(7, *SIZES[1:], tokens=True, target_tokens=False))
    ys = translate(model, jnp.array([[1, 2, 6]]), jnp.ones((1, 4, N_OUT)))
    assert ys.shape == (1, 4, N_OUT) and model.n_in == N_OUT
    assert sqx.encoder_decoder(*SIZES, tied=True).decoder.n_out == N_OUT
    with pytest.raises(ValueError, match="tied readout needs tokens=True"):
        sqx.encoder_decoder(*SIZES, tied=True, target_tokens=False)


def test_dropout_of_the_encoder():
    model = pair(dropout=0.5)
    with pytest.raises(ValueError, match="key is needed"):
        model.encode(SOURCE)
    first, second = (model.encode(SOURCE, key=k) for k in jax.random.split(KEY))
    assert not all(np.array_equal(a, b) for a, b in zip(*map(jax.tree.leaves, (first, second)), strict=True))
    quiet = eqx.nn.inference_mode(model)
    assert_close(translate(quiet, SOURCE, TARGETS), translate(pair(), SOURCE, TARGETS))


# ---- training, editing, mixing ---------------------------------------------------------------------------------------


def train(model: Any, loss: Any, steps: int, rate: float = 1e-2) -> tuple[Any, list[float]]:
    optimiser = optax.adam(rate)
    opt_state = optimiser.init(eqx.filter(model, eqx.is_inexact_array))

    @eqx.filter_jit
    def step(model: Any, opt_state: Any) -> Any:
        value, grads = eqx.filter_value_and_grad(loss)(model)
        with jax.numpy_dtype_promotion("standard"):  # optax's own
            updates, opt_state = optimiser.update(grads, opt_state)
        return eqx.apply_updates(model, updates), opt_state, value

    values = []
    for _ in range(steps):
        model, opt_state, value = step(model, opt_state)
        values.append(float(value))
    return model, values


@thorough
def test_it_learns_to_copy():
    """The target is the source, a token later."""
    n, key = 5, jax.random.key(3)
    source = jax.random.randint(key, (16, 4), 1, n)
    targets = jnp.concatenate([jnp.zeros((16, 1), source.dtype), source[:, :-1]], 1)
    model = sqx.encoder_decoder(n, 16, 2, 12, 1, n, KEY, tokens=True, norm="pre")
    logits = lambda m: m.unroll(targets, m.encode(source))[0]
    loss = lambda m: optax.softmax_cross_entropy_with_integer_labels(logits(m), source).mean()
    _, values = train(model, loss, 60)
    assert values[0] > 1.0 and values[-1] < 0.1


def test_weights_are_edited_in_place():
    """`tree_at` on a block's matrix: without what attention gives, a causal decoder sees its own sample alone."""
    net = filled(decoder(*SIZES, positions=None))
    other = XS.at[:, 0].add(1.0)
    assert not np.allclose(call(net, XS)[:, -1], call(net, other)[:, -1])
    matrices = lambda m: [block.self_attention.W_O for block in blocks(m)]
    net = eqx.tree_at(lambda m: [m.layers[i].self_attention.W_O for i in (1, 2)], net, [jnp.zeros((D, D))] * 2)
    assert not any(np.any(W) for W in matrices(net))
    assert np.array_equal(call(net, XS)[:, 1:], call(net, other)[:, 1:])


@thorough
def test_recurrent_layers_and_blocks_in_one_stream():
    k1, k2, k3, k4 = jax.random.split(KEY, 4)
    net = sqx.Sequential(
        [
            sqx.LSTM(N_IN, D, k1),
            sqx.TransformerBlock(D, HEADS, D_FF, k2, causal=True),
            jnp.tanh,
            sqx.Stack([sqx.GRU(D, D, k3)] * 2),
            sqx.TransformerBlock(D, HEADS, D_FF, k4, causal=True, norm="pre", window=3),
            sqx.MeanOverTime(),
            sqx.Dense(D, N_OUT, k1),
        ]
    )
    run = sqx.Stream(net, state=sqx.with_capacity(net.init_state(B), T))
    for t in range(T):
        y = run(XS[:, t], mask=MASK[:, t])
        assert_close(y, call(net, XS, jnp.where(np.arange(T)[None] <= t, MASK, False)))


# ---- wrong arguments: more of them in tests/contract/bad_inputs.py ---------------------------------------------------


@pytest.mark.parametrize(
    ("make", "kind", "words"),
    [
        (lambda: encoder(N_IN, D, HEADS, D_FF, 0, N_OUT, KEY), ValueError, "n_layers must be at least 1"),
        (lambda: encoder(N_IN, 8, HEADS, D_FF, 1, N_OUT, KEY), ValueError, "d_model must be a multiple of n_heads"),
        (lambda: decoder(*SIZES, positions="learned"), ValueError, "learned positions need max_len"),
        (lambda: decoder(*SIZES, tied=True), ValueError, "tied readout needs tokens=True and n_out == n_in"),
        (lambda: decoder(*SIZES, tokens=True, tied=True), ValueError, "got n_in 3, n_out 4"),
        (lambda: decoder(*SIZES, causal=False), ValueError, "a decoder is causal"),
        (lambda: decoder(*SIZES, rotary=sqx.Rotary()), ValueError, "rotary is no option"),
        (lambda: encoder(*SIZES, heads=3), TypeError, "heads"),
        (lambda: sqx.encoder_decoder(*SIZES, cross=True), ValueError, "no options"),
        (lambda: sqx.encoder_decoder(*SIZES, causal=True), ValueError, "no options"),
        (lambda: sqx.encoder_decoder(*SIZES, d_memory=5), ValueError, "no options"),
        (lambda: decoder(*SIZES, dropout=1.0), ValueError, "dropout"),
        (lambda: decoder(*SIZES, positions="rotary", d_head=3), ValueError, "even width"),
    ],
    ids=[
        "depth", "heads", "learned", "tied-vectors", "tied-sizes", "causal", "rotary",
        "unknown", "cross", "causal-pair", "d_memory", "dropout", "odd-heads",
    ],
)  # fmt: skip
def test_wrong_arguments(make: Any, kind: Any, words: str):
    with pytest.raises(kind, match=words):
        make()
