"""Cells that draw random numbers: drawn once a stretch, the same in both engines and in every transformation."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Float
from test_engine import close, like, shapes_inside_loops

import sequinox as sqx
from sequinox.recurrent._cell import Implementation

pytestmark = pytest.mark.usefixtures("quick_compilation", "unchecked_types")

ROWS, TIME, N_IN, N_HIDDEN = 4, 6, 3, 5
KEY = jax.random.key(1)
MASK = jnp.array([[1, 1, 1, 1, 1, 1], [0, 0, 0, 0, 0, 0], [1, 0, 1, 1, 0, 1], [1, 1, 0, 0, 0, 0]], bool)
RESETS = jnp.array([[0, 0, 1, 0, 1, 0], [1, 0, 0, 0, 0, 0], [0, 0, 1, 1, 0, 0], [0, 1, 0, 0, 0, 0]], bool)


class Noisy(sqx.RecurrentCell):
    """Noise of every kind: on a recurrent vector, as a vector for a matrix, elementwise, and a number for a sample."""

    W: Float[Array, "n_hidden n_in"]
    U: Float[Array, "n_hidden n_hidden"]
    V: Float[Array, "n_hidden n_hidden"]
    b: Float[Array, " n_hidden"]
    scale: Float[Array, " n_hidden"]
    inference: bool
    n_in: int = eqx.field(static=True)
    n_hidden: int = eqx.field(static=True)
    implementation: Implementation = eqx.field(static=True)

    def __init__(self, implementation: Implementation = None, inference: bool = False):
        random = np.random.default_rng(2)
        draw = lambda *shape: jnp.asarray(0.5 * random.normal(size=shape), jnp.float32)
        self.W, self.U, self.V = draw(N_HIDDEN, N_IN), draw(N_HIDDEN, N_HIDDEN), draw(N_HIDDEN, N_HIDDEN)
        self.b, self.scale = draw(N_HIDDEN), draw(N_HIDDEN)
        self.n_in, self.n_hidden, self.implementation, self.inference = N_IN, N_HIDDEN, implementation, inference

    def start(self, dtype: Any) -> Any:
        return jnp.full(N_HIDDEN, 0.25, dtype), jnp.zeros((), jnp.int32)

    def noise(self, key: Any, axes: tuple[int, ...], dtype: Any) -> Any:
        if self.inference:
            return None
        k1, k2, k3 = jax.random.split(key, 3)
        return {
            "kept": jax.random.bernoulli(k1, 0.6, (*axes, N_HIDDEN)),
            "hiss": jax.random.normal(k2, (*axes, N_HIDDEN), dtype),
            "gain": jax.random.uniform(k3, axes, dtype),
        }

    def transition(self, affine: Any, x: Array, state: Any, noise: Any = None) -> tuple[Array, Any]:
        h, n = state
        v, hiss, gain = h, jnp.zeros_like(h), jnp.ones((), h.dtype)
        if noise is not None:
            v, hiss, gain = jnp.where(noise["kept"], h / 0.6, 0.0), noise["hiss"], noise["gain"]
        a = jnp.tanh(affine((self.W, x), (self.U, v), self.b))
        c = jax.nn.sigmoid(affine((self.V, hiss), (self.W, x)))
        h = 0.5 * h + gain * (a * c) + self.scale * hiss * 0.1
        return h, (h, n + 1)


def data(seed: int = 0) -> Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=(ROWS, TIME, N_IN)), jnp.float32)


def state() -> Any:
    h = jnp.asarray(np.random.default_rng(7).normal(size=(ROWS, N_HIDDEN)), jnp.float32)
    return h, jnp.arange(ROWS, dtype=jnp.int32)


def loss(cell: Any, xs: Any, state: Any, key: Any, mask: Any = MASK, resets: Any = RESETS) -> Array:
    ys, final = cell.unroll(xs, state, mask=mask, resets=resets, key=key)
    return jnp.sum(jnp.sin(ys + 0.3)) + jnp.sum(jnp.sin(final[0] * 1.3))


def loss_of(floats: Any, rest: Any) -> Array:
    cell, xs, state = eqx.combine(floats, rest)
    return loss(cell, xs, state, KEY)


def split(cell: Any) -> Any:
    return eqx.partition((cell, data(), state()), eqx.is_inexact_array)


@eqx.filter_jit
def run(cell: Any, xs: Any, state: Any, mask: Any, resets: Any, key: Any) -> Any:
    return cell.unroll(xs, state, mask=mask, resets=resets, key=key)


@eqx.filter_jit
def derivatives(cell: Any) -> Any:
    """Reverse, forward, forward over reverse."""
    floats, rest = split(cell)
    gradient = jax.grad(lambda f: loss_of(f, rest))
    tangents = like(floats, 4)
    forward = jax.jvp(lambda f: loss_of(f, rest), (floats,), (tangents,))
    return gradient(floats), forward, jax.jvp(gradient, (floats,), (tangents,))[1]


@eqx.filter_jit
def gradient_of_each_row(cell: Any, keys: Any) -> Any:
    one = lambda c, x, s, k, m, r: eqx.filter_grad(lambda c: loss(c, x, s, k, m, r))(c)
    return eqx.filter_vmap(one, in_axes=(None, 0, 0, 0, 0, 0))(cell, data(), state(), keys, MASK, RESETS)


@eqx.filter_jit
def gradient_of_all_rows(cell: Any, keys: Any) -> Any:
    rows = lambda c: jnp.sum(jax.vmap(lambda *args: loss(c, *args))(data(), state(), keys, MASK, RESETS))
    return eqx.filter_grad(rows)(cell)


@eqx.filter_jit
def value_and_gradient(xs: Any, cell: Any) -> Any:
    return jax.value_and_grad(lambda x: loss(cell, x, state(), KEY))(xs)


@eqx.filter_jit
def three_steps(cell: Any, x: Any, before: Any) -> Any:
    """One sample by a step, a step with flags, and a stretch of one."""
    flags = {"mask": jnp.ones(x.shape[:-1], bool), "resets": jnp.zeros(x.shape[:-1], bool)}
    ys, after = cell.unroll(jnp.expand_dims(x, -2), before, key=KEY)
    flagged = cell.step(x, before, key=KEY, **flags)
    return cell.step(x, before, key=KEY), flagged, (jnp.squeeze(ys, -2), after)


def by_hand(cell: Noisy, xs: Any, first: Any, mask: Any, resets: Any, noise: Any) -> Any:
    """The cell as a NumPy loop, with given noise (time first)."""
    w = {k: np.asarray(v, np.float64) for k, v in sqx.parameters(cell).items()}
    noise = {k: np.asarray(v, np.float64) for k, v in noise.items()}
    hs, ns = np.asarray(first[0], np.float64), np.asarray(first[1]).copy()
    hs, ys = hs.copy(), np.zeros((*xs.shape[:2], N_HIDDEN))
    for i in range(xs.shape[0]):
        for t in range(xs.shape[1]):
            if not mask[i, t]:
                continue
            h, n = (np.full(N_HIDDEN, 0.25), 0) if resets[i, t] else (hs[i], ns[i])
            kept, hiss, gain = (noise[k][t, i] for k in ("kept", "hiss", "gain"))
            a = np.tanh(w["W"] @ xs[i, t] + w["U"] @ (kept * h / 0.6) + w["b"])
            c = 1 / (1 + np.exp(-(w["V"] @ hiss + w["W"] @ xs[i, t])))
            hs[i], ns[i] = 0.5 * h + gain * a * c + w["scale"] * hiss * 0.1, n + 1
            ys[i, t] = hs[i]
    return ys, hs, ns


@pytest.mark.parametrize("implementation", ["fused", "scan"])
def test_a_loop_by_hand(implementation: Any):
    cell = Noisy(implementation)
    noise = cell.noise(KEY, (TIME, ROWS), jnp.float32)
    expected = by_hand(cell, np.asarray(data(), np.float64), state(), np.asarray(MASK), np.asarray(RESETS), noise)
    ys, (h, n) = run(cell, data(), state(), MASK, RESETS, KEY)
    np.testing.assert_allclose(ys, expected[0], atol=1e-6)
    np.testing.assert_allclose(h, expected[1], atol=1e-6)
    np.testing.assert_array_equal(n, expected[2])


def test_the_engines_agree_in_derivatives():
    close(derivatives(Noisy("fused")), derivatives(Noisy("scan")), 2e-5)


def test_gradients_are_those_of_differences():
    """In float64: of the fused engine, along a direction in which everything moves."""
    with jax.enable_x64(True):
        wide = lambda tree: jax.tree.map(lambda a: a.astype(jnp.float64) if eqx.is_inexact_array(a) else a, tree)
        floats, rest = wide(split(Noisy("fused"))[0]), split(Noisy("fused"))[1]
        along = like(floats, 4)
        value = jax.jit(lambda s: loss_of(jax.tree.map(lambda a, d: a + s * d, floats, along), rest))
        difference = (value(1e-5) - value(-1e-5)) / 2e-5
        assert abs(float(jax.grad(value)(0.0)) - float(difference)) < 1e-7 * max(1, abs(float(difference)))


def test_under_vmap_with_a_key_a_row():
    """Fused against scan; and the rows' gradients sum to the gradient of the sum."""
    keys = jax.random.split(KEY, ROWS)
    each, total = gradient_of_each_row(Noisy("fused"), keys), gradient_of_all_rows(Noisy("fused"), keys)
    close(total, gradient_of_all_rows(Noisy("scan"), keys))
    close(jax.tree.map(lambda a: a.sum(0), eqx.filter(each, eqx.is_inexact_array)), total)


def test_under_vmap_a_key_of_its_own_is_another_draw_and_the_same_key_is_the_same():
    xs = jnp.broadcast_to(data()[:1], data().shape)
    one, keys = lambda x, k: Noisy()(x, key=k), jax.random.split(KEY, ROWS)
    apart, same = jax.jit(lambda: (jax.vmap(one)(xs, keys), jax.vmap(one, (0, None))(xs, KEY)))()
    np.testing.assert_array_equal(same, jnp.broadcast_to(same[:1], same.shape))
    assert all(np.abs(apart[i] - apart[j]).max() > 1e-2 for i in range(ROWS) for j in range(i))
    np.testing.assert_allclose(apart[2], Noisy()(xs[2], key=keys[2]), atol=1e-6)


def test_rows_and_samples_draw_apart():
    xs = jnp.broadcast_to(data()[:1, :1], data().shape)
    noise = np.asarray(Noisy().noise(KEY, (TIME, ROWS), jnp.float32)["hiss"]).reshape(-1)
    assert len(np.unique(noise)) == noise.size
    ys = np.asarray(run(Noisy("fused"), xs, state(), None, jnp.ones((ROWS, TIME), bool), KEY)[0])
    flat = ys.reshape(ROWS * TIME, N_HIDDEN)  # all of the same sample and the same state
    assert min(np.abs(flat[i] - flat[j]).max() for i in range(len(flat)) for j in range(i)) > 1e-3


@pytest.mark.parametrize("batch", [(), (4,), (2, 2)])
def test_a_step_is_a_stretch_of_one(batch: tuple[int, ...]):
    """The same numbers from the same key, with and without flags."""
    take = lambda a: a.reshape(*batch, *a.shape[1:]) if batch else a[0]
    x, before = take(data()[:, 0]), jax.tree.map(take, state())
    stepped, flagged, stretch = three_steps(Noisy(), x, before)
    for got in (flagged, stretch):
        for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(stepped), strict=True):
            np.testing.assert_allclose(a, b, atol=1e-6)


@pytest.mark.parametrize("implementation", ["fused", "scan"])
def test_masked_steps_are_absent(implementation: Any):
    """Their content, NaN and infinity, reaches neither values nor gradients."""
    cell = Noisy(implementation)
    clean = value_and_gradient(jnp.where(MASK[..., None], data(), 0.0), cell)
    for content in (jnp.nan, jnp.inf, 1e30):
        got = value_and_gradient(jnp.where(MASK[..., None], data(), content), cell)
        for a, b in zip(got, clean, strict=True):
            np.testing.assert_array_equal(a, b)
    assert not np.any(np.asarray(clean[1])[~np.asarray(MASK)])
    final = run(cell, data(), state(), MASK, RESETS, KEY)[1]
    np.testing.assert_array_equal(final[0][1], state()[0][1])


@pytest.mark.parametrize("shape", [(ROWS, 0), (0, TIME), (0, 0)])
@pytest.mark.parametrize("implementation", ["fused", "scan"])
def test_no_samples_and_no_rows(implementation: Any, shape: tuple[int, int]):
    cell = Noisy(implementation)
    before = jax.tree.map(lambda a: a[: shape[0]], state())
    ys, after = cell.unroll(jnp.zeros((*shape, N_IN)), before, key=KEY)
    assert ys.shape == (*shape, N_HIDDEN) and eqx.tree_equal(after, before)


def primitives(jaxpr: Any, inside: bool = False) -> list[tuple[str, bool]]:
    """Names of all primitives, and whether they stand in a `scan` loop."""
    found = []
    for eqn in jaxpr.eqns:
        found.append((eqn.primitive.name, inside))
        for value in eqn.params.values():
            for sub in jax.tree.leaves(value, is_leaf=lambda v: hasattr(v, "eqns") or hasattr(v, "jaxpr")):
                sub = getattr(sub, "jaxpr", sub)
                if hasattr(sub, "eqns"):
                    found += primitives(sub, inside or eqn.primitive.name == "scan")
    return found


def draws(jaxpr: Any) -> list[bool]:
    """For every random draw of a program, whether it stands in a loop."""
    return [inside for name, inside in primitives(jaxpr) if name.startswith(("random_", "threefry"))]


@pytest.mark.parametrize("implementation", ["fused", "scan"])
def test_all_is_drawn_before_the_loop(implementation: Any):
    floats, rest = split(Noisy(implementation))
    for function in (loss_of, jax.grad(loss_of)):
        found = draws(jax.make_jaxpr(lambda f, function=function: function(f, rest))(floats).jaxpr)
        assert found and not any(found)


def test_the_fused_engine_is_chosen():
    """No weight gradient inside the loop, unlike in the plain scan."""

    def inside(cell: Any) -> set[tuple[int, ...]]:
        floats, rest = split(cell)
        return shapes_inside_loops(jax.make_jaxpr(jax.grad(lambda f: loss_of(f, rest)))(floats).jaxpr)

    matrices = {(N_HIDDEN, N_IN), (N_HIDDEN, N_HIDDEN)}
    assert not matrices & inside(Noisy(None))
    assert matrices <= inside(Noisy("scan"))


def test_in_inference_nothing_is_drawn():
    cell = eqx.nn.inference_mode(Noisy())
    jaxpr = jax.make_jaxpr(lambda x: cell.unroll(x, state(), mask=MASK, resets=RESETS, key=KEY)[0])(data())
    assert draws(jaxpr.jaxpr) == []
    np.testing.assert_array_equal(cell(data(), key=KEY), cell(data()))


def test_a_cell_without_noise_does_not_care_for_a_key():
    gru = sqx.GRU(N_IN, N_HIDDEN, KEY)
    np.testing.assert_array_equal(gru(data(), key=KEY), gru(data()))
    np.testing.assert_array_equal(gru.step(data()[:, 0], key=KEY)[0], gru.step(data()[:, 0])[0])
