"""Stack against a Sequential of the same layers; Remat against the layer alone."""

import math
from typing import Any

import equinox as eqx
import jax
import jax.extend.core as jex_core
import jax.numpy as jnp
import numpy as np
import pytest

import sequinox as sqx

pytestmark = pytest.mark.usefixtures("quick_compilation", "unchecked_types")

KEYS = list(jax.random.split(jax.random.key(0), 24))
B, T, D = 4, 6, 6
XS = jnp.asarray(np.random.default_rng(0).normal(size=(B, T, D)), jnp.float32)
D_YS = np.random.default_rng(1).normal(size=(B, T, D)).astype(np.float32)
MASK = jnp.asarray(np.arange(T) < np.array([6, 0, 2, 4])[:, None])
RESETS = jnp.zeros((B, T), bool).at[0, 3].set(True).at[3, 1].set(True)

MAKE: dict[str, Any] = {
    "GRU": lambda k, **options: sqx.GRU(D, D, k, **options),
    "block": lambda k, **options: sqx.TransformerBlock(D, 2, 5, k, causal=True, **options),
    "ring": lambda k, **options: sqx.TransformerBlock(
        D, 3, 5, k, causal=True, window=3, norm="pre", rotary=sqx.Rotary(), **options
    ),
}


def layers(kind: str, depth: int = 3, **options: Any) -> list[Any]:
    return [MAKE[kind](k, **options) for k in KEYS[:depth]]


def run(net: Any, xs: Any, key: Any = None) -> Any:
    ys, state = net.unroll(xs, mask=MASK, resets=RESETS, key=key)
    return jnp.sum(ys * D_YS), (ys, state)


jitted = eqx.filter_jit(eqx.filter_value_and_grad(lambda args, key: run(args[0], args[1], key), has_aux=True))


def at_depth(tree: Any, i: int) -> Any:
    return jax.tree.map(lambda a: a[i], tree)


def assert_close(got: Any, expected: Any, tolerance: float = 2e-5) -> None:
    assert jax.tree.structure(got) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


# ---- a stack is a Sequential -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=() if kind == "block" else pytest.mark.thorough) for kind in MAKE]
)
def test_values_states_and_gradients_are_those_of_a_sequential(kind: str):
    several = layers(kind)
    (_, (ys, states)), (d_plain, d_xs) = jitted((sqx.Sequential(several), XS), None)
    (_, (got, state)), (d_stack, d_got) = jitted((sqx.Stack(several), XS), None)
    assert_close(got, ys)
    assert_close(d_got, d_xs)
    assert_close(state, states)
    for i in range(3):
        assert_close(at_depth(d_stack.layer, i), d_plain.layers[i])


@pytest.mark.parametrize("kind", MAKE)
def test_the_state_is_that_of_a_sequential(kind: str):
    plain, stack = sqx.Sequential(layers(kind)), sqx.Stack(layers(kind))
    for batch in ((), (4,), (2, 3)):
        state = stack.init_state(batch)
        assert_close(state, plain.init_state(batch))
        y, after = jax.eval_shape(stack.step, jax.ShapeDtypeStruct((*batch, D), jnp.float32), state)
        assert y.shape == (*batch, D) and jax.tree.structure(after) == jax.tree.structure(state)


def test_dropout_differs_from_layer_to_layer():
    key = jax.random.key(5)
    noise = sqx.Stack([sqx.Sequential([sqx.Dense(D, D, KEYS[0]), sqx.Dropout(0.5)])] * 2)
    eye = eqx.tree_at(lambda s: s.layer.layers[0].W, noise, jnp.stack([jnp.eye(D)] * 2))
    ys = np.asarray(eye(jnp.ones((9, 50, D)), key=key))
    assert set(np.unique(ys)) == {0.0, 4.0}
    assert np.mean(ys == 4.0) == pytest.approx(1 / 4, abs=0.05)  # one mask for both layers would give 1/2
    with pytest.raises(ValueError, match="key is needed"):
        sqx.Stack(layers("block", dropout=0.5))(XS)


def test_dropout_is_that_of_a_sequential():
    several = layers("block", 2, dropout=0.5)
    call = eqx.filter_jit(lambda net, key: net(XS, key=key))
    first, second = jax.random.split(KEYS[0])
    assert_close(call(sqx.Stack(several), first), call(sqx.Sequential(several), first))
    assert not np.array_equal(call(sqx.Stack(several), first), call(sqx.Stack(several), second))


def test_inference_mode_reaches_the_layers():
    several = layers("block", 2, dropout=0.5, attention_dropout=0.5)
    call = eqx.filter_jit(lambda net: net(XS))
    plain = call(sqx.Sequential(layers("block", 2)))
    net = sqx.Remat(sqx.Stack([sqx.Remat(la) for la in several]))
    assert_close(call(eqx.nn.inference_mode(net)), plain)
    assert_close(sqx.Stream(net, B)(XS[:, 0]), plain[:, 0])


def test_a_stack_of_stacks():
    several = layers("GRU", 4)
    (_, (ys, states)), _ = jitted((sqx.Sequential(several), XS), None)
    (_, (got, state)), _ = jitted((sqx.Stack([sqx.Stack(several[:2]), sqx.Stack(several[2:])]), XS), None)
    assert_close(got, ys)
    assert_close(state, ((states[0], states[1]), (states[2], states[3])))


def test_one_layer():
    one = layers("GRU", 1)
    assert_close(sqx.Stack(one)(XS, mask=MASK), one[0](XS, mask=MASK))


def test_layers_without_a_state():
    several = [sqx.FeedForward(D, 5, k) for k in KEYS[:3]]
    (_, (ys, _)), _ = jitted((sqx.Sequential(several), XS), None)
    (_, (got, state)), _ = jitted((sqx.Stack(several), XS), None)
    assert_close(got, ys)
    assert state == sqx.Stack(several).init_state(4) == ((), (), ())


def test_layers_without_arrays():
    stack = sqx.Stack([sqx.AddPositions(D)] * 3)
    (_, (got, state)), _ = jitted((stack, XS), None)
    (_, (ys, states)), _ = jitted((sqx.Sequential([sqx.AddPositions(D)] * 3), XS), None)
    assert_close(got, ys)
    assert_close(state, states)
    assert_close(stack(XS), sqx.Sequential([sqx.AddPositions(D)] * 3)(XS))
    assert_close(sqx.Stack([sqx.PerSample(jnp.tanh)] * 2)(XS), jnp.tanh(jnp.tanh(XS)))


# ---- streams and caches ----------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_steps_in_a_compiled_scan():
    """Blocks with caches of fixed size, over the whole sequence; the growing ones give the same."""
    several = layers("block", 2)
    stack = sqx.Stack(several)
    start: Any = sqx.with_capacity(stack.init_state(B), T)
    assert isinstance(start[1].self_attention, sqx.KVCache) and start[1].self_attention.k.shape == (B, T, D)

    @jax.jit
    def whole(xs: Any, state: Any) -> Any:
        def step(state: Any, x: Any) -> Any:
            y, state = stack.step(x, state)
            return state, y

        return jax.lax.scan(step, state, jnp.moveaxis(xs, 1, 0))

    state, ys = whole(XS, start)
    expected = eqx.filter_jit(lambda net: net(XS))(sqx.Sequential(several))
    assert_close(jnp.moveaxis(ys, 0, 1), expected)
    grown: Any = stack.init_state(B)
    for t in range(2):
        y, grown = stack.step(XS[:, t], grown)
        assert_close(y, expected[:, t])
    for grew, held in zip(grown, state, strict=True):
        assert isinstance(grew.self_attention, sqx.GrowingKVCache) and grew.self_attention.k.shape == (B, 2, D)
        assert_close(grew.self_attention.k, held.self_attention.k[:, :2])
    ys, _ = stack.unroll(XS[:, 2:], sqx.with_capacity(grown, T))
    assert_close(ys, expected[:, 2:])


def test_a_full_cache_is_an_error_in_a_stack_too():
    stack = sqx.Stack(layers("block"))
    state = sqx.with_capacity(stack.init_state(), 2)
    _, state = stack.unroll(XS[0, :2], state)
    with pytest.raises(Exception, match="cache is full"):
        jax.block_until_ready(eqx.filter_jit(stack.step)(XS[0, 2], state))


def test_a_memory_is_read_by_every_layer():
    several = layers("block", 2, cross=True, d_memory=5)
    memory = jnp.asarray(np.random.default_rng(2).normal(size=(B, 3, 5)), jnp.float32)
    real = jnp.array([[True, True, True], [False, True, True], [True, False, False], [True, True, False]])

    @eqx.filter_jit
    def call(net: Any) -> Any:
        return net.unroll(XS, net._remember(net.init_state(B), memory, real), mask=MASK)

    (ys, states), (got, state) = call(sqx.Sequential(several)), call(sqx.Stack(several))
    assert_close(got, ys)
    assert_close(state, states)


# ---- what it refuses -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("others", "kind", "words"),
    [
        (list, ValueError, "at least one layer"),
        (lambda: [sqx.GRU(3, 5, KEYS[0])], ValueError, "n_in 3 and n_out 5"),
        (lambda: [sqx.LastStep(3)], ValueError, "pools over time"),
        (lambda: [sqx.PerSample(eqx.nn.Embedding(3, 3, key=KEYS[0]))], ValueError, "width that they read"),
        (lambda: [sqx.GRU(3, 3, KEYS[0]), sqx.GRU(4, 4, KEYS[0])], ValueError, r"layers\[1\] differs"),
        (lambda: [*layers("GRU", 2), sqx.GRU(D, D, KEYS[0], dtype=jnp.bfloat16)], ValueError, r"layers\[2\] differs"),
        (lambda: [*layers("GRU", 2), sqx.GRU(D, D, KEYS[0], implementation="scan")], ValueError, "one configuration"),
        (lambda: [sqx.GRU(D, D, KEYS[0]), sqx.RNN(D, D, KEYS[0])], ValueError, "one configuration"),
        (lambda: [*layers("block", 1), *layers("block", 1, activation=jax.nn.silu)], ValueError, "one configuration"),
        (lambda: [*layers("block", 1), *layers("block", 1, norm="pre")], ValueError, "one configuration"),
        (lambda: [*layers("block", 1), *layers("block", 1, window=3)], ValueError, "one configuration"),
        (lambda: [*layers("block", 1), *layers("block", 1, attention_bias=True)], ValueError, "one configuration"),
        (lambda: [*layers("block", 1), *layers("block", 1, n_kv_heads=1)], ValueError, "one configuration"),
        (lambda: [*layers("block", 1), *layers("block", 1, dropout=0.1)], ValueError, "one configuration"),
        (lambda: [*layers("block", 1), eqx.nn.inference_mode(layers("block", 1)[0])], ValueError, "one configuration"),
        (lambda: [*layers("block", 1), sqx.Remat(*layers("block", 1))], ValueError, "one configuration"),
    ],
    ids=[
        "none", "width", "pools", "tokens", "size", "dtype", "implementation", "class",
        "activation", "norm", "window", "biases", "heads", "dropout", "inference", "remat",
    ],
)  # fmt: skip
def test_refuses(others: Any, kind: Any, words: str):
    with pytest.raises(kind, match=words):
        sqx.Stack(others())


def test_a_wrong_state_is_named():
    stack, blocks = sqx.Stack(layers("GRU")), sqx.Stack(layers("block"))
    good, own = stack.init_state(B), blocks.init_state(B)
    cases: list[tuple[Any, Any, Any, str]] = [
        (stack, jnp.ones((B, 3, D)), TypeError, r"Stack.unroll: state must be a tuple of 3, got Array"),
        (stack, good[:2], ValueError, r"Stack.unroll: state must be a tuple of 3, got 2"),
        (stack, (*good[:2], jnp.ones((B, 7))), ValueError, r"state\[2\] must have shape \(4, 6\), got \(4, 7\)"),
        (
            stack,
            (good[0].astype(jnp.float16), *good[1:]),
            TypeError,
            r"state\[0\] must have dtype float32, got float16",
        ),
        (stack, stack.init_state(5), ValueError, r"state\[0\] must have shape"),
        (blocks, blocks.init_state(5), ValueError, r"state\[0\].self_attention.* must have shape \(4,"),
        (blocks, (own[0], own[1], own[1][0]), TypeError, "BlockState"),
        (blocks, (own[0], own[1], sqx.with_capacity(own[2], 5)), ValueError, r"of one kind and shape .* \[2\]"),
    ]
    for net, state, kind, words in cases:
        with pytest.raises(kind, match=words):
            net.unroll(XS, state)


# ---- what it is for --------------------------------------------------------------------------------------------------


def n_equations(jaxpr: Any) -> int:
    """Of a program, and of those inside it."""
    inner = lambda eqn: sum(map(n_equations, jex_core.jaxprs_in_params(eqn.params)))
    return sum(1 + inner(eqn) for eqn in jaxpr.eqns)


@pytest.mark.parametrize("how", ["forward", "gradient"])
def test_compilation_does_not_grow_with_depth(how: str):
    """Counted in equations of the traced program; a Sequential's number grows."""

    def count(kind: Any, depth: int) -> int:
        arrays, rest = eqx.partition(kind(layers("block", depth)), eqx.is_array)

        def call(arrays: Any) -> Any:
            net = eqx.combine(arrays, rest)
            return jnp.sum(net(XS, mask=MASK))

        call = jax.grad(call) if how == "gradient" else call
        return n_equations(jax.make_jaxpr(call)(arrays).jaxpr)

    assert count(sqx.Stack, 24) == count(sqx.Stack, 2)
    assert count(sqx.Sequential, 4) > 1.8 * count(sqx.Sequential, 2)


def test_another_depth_and_other_weights():
    """Weights are read off the arrays at every call: an edit of one layer's is seen."""
    stack: Any = sqx.Stack(layers("GRU"))
    edited = eqx.tree_at(lambda s: s.layer.W, stack, stack.layer.W.at[1].set(0.0))
    plain = layers("GRU")
    plain[1] = eqx.tree_at(lambda la: la.W, plain[1], jnp.zeros_like(plain[1].W))
    assert_close(edited(XS), sqx.Sequential(plain)(XS))


# ---- Remat -----------------------------------------------------------------------------------------------------------


def bytes_kept(net: Any) -> int:
    """For the derivative, between its two passes."""
    _, back = jax.eval_shape(lambda xs: jax.vjp(net, xs), jnp.ones((B, 16, D)))
    return sum(math.prod(a.shape) * a.dtype.itemsize for a in jax.tree.leaves(back))


@pytest.mark.parametrize("kind", ["GRU", "block"])
def test_remat_gives_the_same_numbers(kind: str):
    key = jax.random.key(4)
    options: Any = {} if kind == "GRU" else {"dropout": 0.3}  # masks are drawn again, the same ones
    (one,) = layers(kind, 1, **options)
    (_, out), (d_one, d_xs) = jitted((one, XS), key)
    (_, got), (d_remat, d_got) = jitted((sqx.Remat(one), XS), key)
    assert_close(got, out)
    assert_close(d_got, d_xs)
    assert_close(d_remat.layer, d_one)
    forward = eqx.filter_jit(eqx.filter_grad(lambda net: jnp.sum(net(XS, mask=MASK, key=key) * D_YS)))
    assert_close(forward(sqx.Remat(one)).layer, forward(one))


@pytest.mark.parametrize("form", ["Sequential", "Stack"])
def test_remat_keeps_less(form: str):
    make = getattr(sqx, form)
    several = layers("block")
    plain, remat = bytes_kept(make(several)), bytes_kept(make([sqx.Remat(la) for la in several]))
    weights = sum(a.nbytes for a in jax.tree.leaves(eqx.filter(several, eqx.is_array)))
    between = 3 * B * 16 * D * 4  # what each layer reads
    assert remat <= between + 2 * weights
    assert plain > 4 * between


def test_the_compiled_gradient_needs_less_memory():
    several = [sqx.TransformerBlock(D, 2, 24, k, causal=True) for k in KEYS[:4]]
    xs = jnp.ones((B, 48, D))

    def temporary(net: Any) -> int:
        arrays, rest = eqx.partition(net, eqx.is_array)
        loss = lambda arrays: jnp.sum(eqx.combine(arrays, rest)(xs) ** 2)
        found: Any = jax.jit(jax.grad(loss)).lower(arrays).compile().memory_analysis()
        return found.temp_size_in_bytes

    assert temporary(sqx.Stack([sqx.Remat(la) for la in several])) < 0.5 * temporary(sqx.Stack(several))


@pytest.mark.thorough
def test_remat_is_transparent():
    one = sqx.Sequential([sqx.GRU(D, 5, KEYS[0]), sqx.LastStep()])
    remat = sqx.Remat(one)
    assert (remat.n_in, remat.n_out, remat.pools, remat.streams) == (D, 5, True, True)
    assert_close(remat(XS, mask=MASK), one(XS, mask=MASK))
    assert_close(remat.init_state(B), one.init_state(B))
    with pytest.raises(ValueError, match=r"Remat.unroll: state\[0\]"):
        remat.unroll(XS, (jnp.ones((B, 4)), jnp.ones((B, 5))))
    both = sqx.Remat(sqx.Bidirectional(sqx.GRU(D, 5, KEYS[0]), sqx.GRU(D, 5, KEYS[1])))
    with pytest.raises(TypeError, match=r"Remat.step: this layer does not stream"):
        both.step(XS[:, 0])
    tokens = sqx.Remat(sqx.Sequential([eqx.nn.Embedding(7, D, key=KEYS[0]), sqx.GRU(D, 5, KEYS[1])]))
    assert tokens(jnp.array([[1, 2, 3]])).shape == (1, 3, 5)
