"""Recurrent weighted averages: huge pre-activations, what forgetting is for, exact properties, names and starts."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import oracles_averages as oracles
import pytest
from table_averages import squared_ramp

import sequinox as sqx

pytestmark = pytest.mark.usefixtures("quick_compilation", "unchecked_types")

KEY = jax.random.key(0)
N_IN, N_HIDDEN = 3, 5


def with_arrays(cell: Any, **arrays: Any) -> Any:
    """The cell with some arrays replaced; a number fills one."""
    for name, value in arrays.items():
        old = getattr(cell, name)
        new = jnp.broadcast_to(jnp.asarray(value, old.dtype), old.shape)
        cell = eqx.tree_at(lambda c, n=name: getattr(c, n), cell, new)
    return cell


def averager(cell: Any) -> Any:
    """The cell with one hidden unit whose features are the sample's first number, its log-attention the second."""
    cell = jax.tree.map(lambda a: jnp.zeros_like(a) if eqx.is_inexact_array(a) else a, cell)
    return with_arrays(cell, W_u=[[1.0, 0.0]], W_a=[[0.0, 1.0]], b_g=40.0)


@eqx.filter_jit
def unroll(cell: Any, xs: Any, state: Any = None) -> Any:
    return cell.unroll(xs, state)


@eqx.filter_jit
def value_and_pull(cell: Any, xs: Any, d_ys: Any) -> Any:
    ys, pull = eqx.filter_vjp(lambda c, x: c(x), cell, xs)
    return ys, *pull(d_ys)


# ---- huge pre-activations --------------------------------------------------------------------------------------------

LARGE = {
    "RWA": (sqx.RWA, {}, oracles.Average()),
    "RDA-exp": (sqx.RDA, {}, oracles.Average()),
    "RDA-sigmoid": (sqx.RDA, {"f_a": "sigmoid", "f_h": "identity"}, oracles.Average("sigmoid", "identity")),
    "RDA-softplus": (sqx.RDA, {"f_a": "softplus"}, oracles.Average("softplus")),
    "RDA-function": (sqx.RDA, {"f_a": squared_ramp}, oracles.Average("squared ramp")),
}


def large(name: str, dtype: Any, n_time: int) -> tuple[Any, Any, Any]:
    """A cell whose attentions and discounts have pre-activations from -500 to 500, samples, and cotangents."""
    kind, options, _ = LARGE[name]
    random = np.random.default_rng(3)
    cell = kind(N_IN, N_HIDDEN, KEY, trained_start=True, dtype=dtype, **options)
    cell = jax.tree.map(lambda a: jnp.asarray(0.4 * random.normal(size=a.shape), dtype) if eqx.is_array(a) else a, cell)
    cell = with_arrays(cell, W_a=cell.W_a.at[:, 0].set(500.0))
    if kind is sqx.RDA:
        cell = with_arrays(cell, W_gamma=cell.W_gamma.at[:, 1].set(500.0))
    xs = random.choice([-1.0, -0.5, -0.01, 0.0, 0.01, 0.5, 1.0], size=(2, n_time, N_IN))
    xs[0, : n_time // 3, 0] = -1  # a long beginning that a sigmoid in float32 would not see at all
    return cell, jnp.asarray(xs, dtype), jnp.asarray(random.normal(size=(2, n_time, N_HIDDEN)), dtype)


@pytest.mark.parametrize("name", LARGE)
def test_pre_activations_of_500_in_float32_over_1000_samples(name: str):
    """Against the papers' plain equations in float64, which just holds exp(500)."""
    cell, xs, d_ys = large(name, jnp.float32, 1000)
    wide = lambda tree: jax.tree.map(lambda a: np.asarray(a, np.float64) if eqx.is_array(a) else a, tree)
    ys, d_cell, d_xs = value_and_pull(cell, xs, d_ys)
    if name == "RDA-function":  # samples of attention zero under a discount of exp(-500) are too much for them
        with jax.enable_x64(True):
            wanted_ys, d_wanted, wanted_xs = value_and_pull(*jax.tree.map(jnp.asarray, wide((cell, xs, d_ys))))
        wanted = {"ys": wanted_ys, "d_xs": wanted_xs, **sqx.parameters(d_wanted)}
    else:
        oracle, weights = LARGE[name][2], wide(sqx.parameters(cell))
        state = tuple(np.zeros((2, N_HIDDEN)) for _ in range(3))  # not looked at:
        first = np.arange(1000) == np.zeros((2, 1))
        out = oracles.unroll(oracle, weights, wide(xs), state, np.ones_like(first), first, wide(d_ys), state)
        wanted = {"ys": out["ys"], "d_xs": out["d_xs"], **out["d_w"]}
    for key, got in {"ys": ys, "d_xs": d_xs, **sqx.parameters(d_cell)}.items():
        assert got.dtype == jnp.float32 and np.isfinite(got).all() and np.isfinite(wanted[key]).all(), key
        np.testing.assert_allclose(got, wanted[key], rtol=0, atol=1e-4 * np.abs(wanted[key]).max(), err_msg=key)


def test_pre_activations_of_500_in_half_precision():
    cell, xs, d_ys = large("RDA-sigmoid", jnp.float16, 40)
    for a in jax.tree.leaves(value_and_pull(cell, xs, d_ys)):
        assert a.dtype == jnp.float16 and bool(jnp.isfinite(a).all())


def test_a_discount_too_near_to_one_for_the_running_maximum():
    """512 + log(sigmoid(11)) is 512 in float32; a thousand such discounts are 1.7 per cent."""
    rda = with_arrays(averager(sqx.RDA(2, 1, KEY, f_h="identity")), b_gamma=11.0)
    xs = np.tile([0.0, 508.0], (1001, 1)).astype(np.float32)
    xs[0] = 1, 512
    gamma = 1 / (1 + np.exp(-11.0))
    t = np.arange(1001)
    later = np.exp(-4) * np.cumsum(gamma**t)
    expected = gamma**t / (gamma**t + np.concatenate([[0], later[:-1]]))
    ys, _ = unroll(rda, jnp.asarray(xs))
    np.testing.assert_allclose(ys[:, 0], expected, rtol=1e-5)
    undiscounted = 1 / (1 + np.exp(-4) * t)
    assert np.abs(undiscounted / expected - 1).max() > 5e-3


def test_a_long_average_in_half_precision_does_not_stand_still():
    rwa = averager(sqx.RWA(2, 1, KEY, f_h="identity", dtype=jnp.float16))
    xs = np.zeros((6000, 2), np.float16)
    xs[3000:, 0] = 1
    ys, state = unroll(rwa, jnp.asarray(xs))
    assert ys.dtype == jnp.float16 and float(ys[-1, 0]) == 0.5
    assert float(state.d[0]) == 6000


# ---- exact properties ------------------------------------------------------------------------------------------------


def drawn(cell: Any) -> Any:
    random = np.random.default_rng(4)
    draw = lambda a: jnp.asarray(0.6 * random.normal(size=a.shape), a.dtype)
    return jax.tree.map(lambda a: draw(a) if eqx.is_array(a) else a, cell)


SAMPLES = np.random.default_rng(1).normal(size=(2, 20, N_IN)).astype(np.float32)


@pytest.mark.parametrize("kind", [sqx.RWA, sqx.RDA])
def test_a_constant_added_to_every_log_attention_changes_nothing(kind: Any):
    cell, xs = drawn(kind(N_IN, N_HIDDEN, KEY)), SAMPLES.copy()
    xs[..., 2] = 1  # a constant input, seen by the attention alone
    columns = {name: getattr(cell, name).at[:, 2].set(0.0) for name in ("W_u", "W_g", "W_a")}
    cell = with_arrays(cell, **columns)
    plain, _ = unroll(cell, xs)
    for c in (-400.0, 64.0, 400.0):
        shifted, state = unroll(with_arrays(cell, W_a=cell.W_a.at[:, 2].set(c)), xs)
        np.testing.assert_allclose(shifted, plain, rtol=0, atol=1e-4 * abs(c) / 400)
        assert abs(float(state.m.mean()) - c) < 5


def test_a_discount_of_one_is_the_recurrent_weighted_average():
    rda = with_arrays(drawn(sqx.RDA(N_IN, N_HIDDEN, KEY)), W_gamma=0, U_gamma=0, b_gamma=200)
    rwa = sqx.RWA(N_IN, N_HIDDEN, KEY)
    rwa = with_arrays(rwa, **{name: getattr(rda, name) for name in sqx.parameters(rwa)})
    discounted, weighted = unroll(rda, SAMPLES), unroll(rwa, SAMPLES)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-6), discounted, weighted)


@pytest.mark.parametrize("f_a", ["exp", "sigmoid", "softplus", squared_ramp])
def test_a_discount_of_zero_leaves_the_newest_sample(f_a: Any):
    rda = with_arrays(
        drawn(sqx.RDA(N_IN, N_HIDDEN, KEY, f_a=f_a, trained_start=True)), W_gamma=0, U_gamma=0, b_gamma=-200
    )
    if f_a is squared_ramp:
        rda = with_arrays(rda, b_a=9)  # nowhere zero
    ys, _ = unroll(rda, SAMPLES)
    w = {k: np.asarray(v, np.float64) for k, v in sqx.parameters(rda).items()}
    before = np.concatenate([np.broadcast_to(np.tanh(w["s"]), (2, 1, N_HIDDEN)), ys[:, :-1]], 1)
    z = (SAMPLES @ w["W_u"].T + w["b_u"]) * np.tanh(SAMPLES @ w["W_g"].T + before @ w["U_g"].T + w["b_g"])
    np.testing.assert_allclose(ys, np.tanh(z), rtol=0, atol=1e-5)


def test_the_denominator_of_a_weighted_average_only_grows():
    rwa, step = drawn(sqx.RWA(N_IN, N_HIDDEN, KEY)), eqx.filter_jit(sqx.RWA.step)
    state, logs, attention = rwa.init_state(), [], []
    for x in jnp.asarray(3 * SAMPLES[0]):
        attention.append(rwa.W_a @ x + rwa.U_a @ state.h)
        _, state = step(rwa, x, state)
        logs.append(state.m + jnp.log(state.d))
    assert bool(jnp.all(jnp.diff(jnp.stack(logs), axis=0) > 0))
    np.testing.assert_allclose(logs, np.logaddexp.accumulate(np.stack(attention)), rtol=0, atol=1e-5)
    np.testing.assert_allclose(state.m, np.max(attention, 0), rtol=0, atol=1e-6)


# ---- Lemma 1 of the RDA paper: to alternate, an average that cannot forget must shout ever louder --------------------


def alternating_attention(c: float, bound: float, n_time: int) -> tuple[np.ndarray, np.ndarray]:
    """Features of size `bound` and the attentions with which the average gives atanh(c), -atanh(c), ...: solved for."""
    level = np.arctanh(c)
    z, a = [level], [1.0]  # the first average is the first feature
    n, d = level, 1.0
    for t in range(1, n_time):
        target, z_t = level * (-1) ** t, bound * (-1) ** t
        a_t = (target * d - n) / (z_t - target)  # of (n + a z) / (d + a) = target
        n, d = n + a_t * z_t, d + a_t
        z.append(z_t)
        a.append(a_t)
    return np.array(z), np.array(a)


def test_alternating_takes_a_weighted_average_attentions_that_grow_geometrically():
    c, bound, n_time = 0.6, 2.0, 200
    z, a = alternating_attention(c, bound, n_time)
    level = np.arctanh(c)
    np.testing.assert_allclose(a[2:] / a[1:-1], (bound + level) / (bound - level), rtol=1e-9)
    assert a[-1] > 1e60  # far beyond float32
    rwa = averager(sqx.RWA(2, 1, KEY))
    ys, _ = unroll(rwa, jnp.asarray(np.stack([z, np.log(a)], 1), jnp.float32))
    np.testing.assert_allclose(ys[:, 0], c * (-1.0) ** np.arange(n_time), rtol=0, atol=1e-4)
    ys, _ = unroll(rwa, jnp.asarray(np.stack([z, np.minimum(np.log(a), 8.0)], 1), jnp.float32))  # a bounded attention
    assert np.abs(np.diff(ys[-10:, 0])).max() < 0.05


def test_alternating_takes_a_discounted_average_no_more_than_a_discount():
    c, bound, n_time = 0.6, 2.0, 200
    level = np.arctanh(c)
    gamma = (bound - level) / (bound + level)
    rda = with_arrays(averager(sqx.RDA(2, 1, KEY)), b_gamma=np.log(gamma / (1 - gamma)))
    sign = (-1.0) ** np.arange(n_time)
    ys, _ = unroll(rda, jnp.asarray(np.stack([bound * sign, np.zeros(n_time)], 1), jnp.float32))
    np.testing.assert_allclose(ys[60:, 0], c * sign[60:], rtol=0, atol=1e-6)


# ---- an attention of zero --------------------------------------------------------------------------------------------


def test_samples_of_zero_attention_leave_the_output_and_pass_finite_gradients():
    rda = drawn(sqx.RDA(N_IN, N_HIDDEN, KEY, f_a=squared_ramp, trained_start=True, implementation="scan"))
    rda = with_arrays(rda, U_a=0, W_a=np.tile([1.0, 0.0, 0.0], (N_HIDDEN, 1)), b_a=0)
    xs = SAMPLES.copy()
    xs[..., 0] = np.array([-1, -1, -1, 1, -1, -1, 1, -1, 1, -1] * 2)
    ys, d_rda, d_xs = value_and_pull(rda, xs, np.ones((2, 20, N_HIDDEN), np.float32))
    np.testing.assert_allclose(ys[:, :3], np.broadcast_to(np.tanh(rda.s), (2, 3, N_HIDDEN)), rtol=0, atol=1e-6)
    silent = xs[0, 1:, 0] < 0
    np.testing.assert_allclose(ys[:, 1:][:, silent], ys[:, :-1][:, silent], rtol=0, atol=1e-6)
    assert all(bool(jnp.isfinite(a).all()) for a in jax.tree.leaves((d_rda, d_xs)))
    never, _, d_xs = value_and_pull(with_arrays(rda, b_a=-9), xs, np.ones((2, 20, N_HIDDEN), np.float32))
    np.testing.assert_allclose(never, np.broadcast_to(np.tanh(rda.s), never.shape), rtol=0, atol=1e-6)
    assert not d_xs.any()


# ---- names, starts, options ------------------------------------------------------------------------------------------

WEIGHTS = "W_u b_u W_g U_g b_g W_a U_a"


@pytest.mark.parametrize(
    ("cell", "names"),
    [
        (sqx.RWA(N_IN, N_HIDDEN, KEY, trained_start=True), f"{WEIGHTS} s"),
        (sqx.RWA(N_IN, N_HIDDEN, KEY), WEIGHTS),
        (sqx.RDA(N_IN, N_HIDDEN, KEY, trained_start=True), f"{WEIGHTS} W_gamma U_gamma b_gamma s"),
        (sqx.RDA(N_IN, N_HIDDEN, KEY, f_a="sigmoid"), f"{WEIGHTS} b_a W_gamma U_gamma b_gamma"),
    ],
    ids=["RWA", "RWA-untrained", "RDA", "RDA-sigmoid"],
)
def test_names_and_shapes_of_averages(cell: Any, names: str):
    arrays = sqx.parameters(cell)
    assert list(arrays) == names.split()
    for key, array in arrays.items():
        assert array.shape == {"W": (N_HIDDEN, N_IN), "U": (N_HIDDEN, N_HIDDEN)}.get(key[0], (N_HIDDEN,)), key


@pytest.mark.parametrize(
    "cell",
    [
        sqx.RWA(N_IN, N_HIDDEN, KEY, trained_start=True),
        sqx.RDA(N_IN, N_HIDDEN, KEY, trained_start=True, discount_bias=2.0),
    ],
)
def test_what_an_average_starts_with(cell: Any):
    arrays = sqx.parameters(cell)
    for key, array in arrays.items():
        if key[0] in "bs":
            np.testing.assert_array_equal(array, 2 if key == "b_gamma" else 0)
        else:
            assert float(jnp.std(array)) > 0.1
    state = with_arrays(cell, s=[-1, 0, 1, 2, 3]).init_state(2)
    assert isinstance(state, sqx.RWAState)
    np.testing.assert_allclose(state.h, np.tanh([[-1, 0, 1, 2, 3]] * 2), rtol=1e-6)
    assert not any(a.any() for a in state[1:])


@eqx.filter_jit
@eqx.filter_grad
def gradient(cell: Any, how: str) -> Any:
    """Of the same sum, by the three ways of running."""
    xs = jnp.asarray(SAMPLES[:, :3])
    if how == "forward":
        return jnp.sum(cell(xs) ** 2)
    if how == "unroll":
        return jnp.sum(cell.unroll(xs)[0] ** 2)
    state, total = None, 0.0
    for t in range(3):
        y, state = cell.step(xs[:, t], state)
        total = total + jnp.sum(y**2)
    return total


def test_a_trained_start_is_trained_however_a_cell_is_run():
    rda = drawn(sqx.RDA(N_IN, N_HIDDEN, KEY, trained_start=True))
    expected = gradient(rda, "forward")
    assert float(jnp.abs(expected.s).min()) > 1e-4
    for how in ("unroll", "step"):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-5), gradient(rda, how), expected)


@pytest.mark.parametrize("f_a", [jax.nn.relu, jax.nn.softplus, squared_ramp])
def test_functions_are_tried_also_where_a_cell_is_made_under_jit(f_a: Any):
    make = lambda key: sqx.RDA(N_IN, N_HIDDEN, key, f_a=f_a)
    cell = eqx.filter_jit(make)(KEY)
    assert cell.f_a is f_a
    assert eqx.filter_vmap(make)(jax.random.split(KEY, 3)).W_a.shape == (3, N_HIDDEN, N_IN)


def test_recurrent_weights_of_their_own():
    start = jax.nn.initializers.orthogonal()
    for cell in (kind(N_IN, N_HIDDEN, KEY, recurrent_initializer=start) for kind in (sqx.RWA, sqx.RDA, sqx.MGU)):
        arrays = sqx.parameters(cell)
        for U in (a for name, a in arrays.items() if name[0] == "U"):
            np.testing.assert_allclose(U @ U.T, np.eye(N_HIDDEN), atol=1e-6)
        assert all(float(jnp.std(a)) > 0.1 for name, a in arrays.items() if name[0] == "W")


def test_averages_in_a_network():
    net = sqx.recurrent_net(3, 4, 2, KEY, cell=sqx.RDA, n_layers=2, f_a="sigmoid", discount_bias=3.0)
    assert jax.eval_shape(net, jnp.ones((5, 7, 3))).shape == (5, 2)
    cells = [
        node for node in jax.tree.leaves(net, is_leaf=lambda n: isinstance(n, sqx.RDA)) if isinstance(node, sqx.RDA)
    ]
    assert len(cells) == 2
    assert all(c.f_a == "sigmoid" and float(c.b_gamma[0]) == 3 for c in cells)


def test_both_averages_take_a_function_to_squash_with():
    xs = jax.random.normal(jax.random.key(1), (7, 3))
    named, own = (sqx.RWA(3, 5, jax.random.key(0), f_h=f) for f in ("tanh", jnp.tanh))
    np.testing.assert_array_equal(own(xs), named(xs))
    twice = sqx.RWA(3, 5, jax.random.key(0), f_h=jnp.arctan)
    _, state = twice.unroll(xs)
    np.testing.assert_allclose(state.h, np.arctan(np.asarray(state.n) / np.asarray(state.d)), atol=1e-6)


def test_an_exponential_that_overflows_is_told_its_name():
    with pytest.raises(ValueError, match=r'f_a must be finite, but gives inf at .*; "exp" is taken by its logarithm'):
        sqx.RDA(3, 5, jax.random.key(0), f_a=jnp.exp)
