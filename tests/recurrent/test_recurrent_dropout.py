"""Variational recurrent dropout, against loops with the masks that were drawn; masks over time, rows and sequences."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from jaxtyping import Array, Float
from test_engine import shapes_inside_loops
from test_noise import MASK, N_HIDDEN, N_IN, RESETS, ROWS, TIME, data, draws
from test_zoneout import Projected, cell, run, step, unroll

import sequinox as sqx
from sequinox.recurrent._plan import make_plan

pytestmark = pytest.mark.usefixtures("quick_compilation", "unchecked_types")

KEY, P = jax.random.key(3), 0.4


class Dropped:
    """The LSTM of `oracles` with its output masked on its way back; behind each sample stands what would be drawn.

    The state is `(y, c, z, drawn)`, each as wide as the others.
    """

    inner = oracles.Memory()

    def start(self, n_hidden: int) -> Any:
        return np.zeros((4, n_hidden))

    def step(self, w: Any, x: Any, state: Any) -> Any:
        y, c, z, drawn = state
        z = np.where(drawn == 1, z, x[N_IN:])
        out, new, kept = self.inner.step(w, x[:N_IN], np.stack([z * y / (1 - P), c]))
        return out, np.concatenate([new, np.stack([z, np.ones_like(z)])]), (kept, z)

    def back(self, w: Any, kept: Any, dy: Any, dstate: Any) -> Any:
        kept, z = kept
        dw, dx, (dprev, dc) = self.inner.back(w, kept, dy, dstate[:2])
        nothing = np.zeros_like(z)
        return dw, np.concatenate([dx, nothing]), np.stack([z * dprev / (1 - P), dc, nothing, nothing])


@pytest.mark.parametrize("implementation", ["fused", "scan"])
def test_lstm_against_a_loop(implementation: Any):
    """Values, states and gradients, with masks and resets; two rows bring a mask of an earlier stretch."""
    layer: Any = sqx.RecurrentDropout(cell(sqx.LSTM, implementation=implementation), P)
    weights = {k.removeprefix("cell."): np.asarray(v, np.float64) for k, v in sqx.parameters(layer).items()}
    candidates = np.swapaxes(np.asarray(layer.noise(KEY, (TIME, ROWS), jnp.float32).own[0], np.float64), 0, 1)
    random = np.random.default_rng(5)
    draw = lambda *shape: np.asarray(random.normal(size=shape), np.float32)
    y, c, d_ys = draw(ROWS, N_HIDDEN), draw(ROWS, N_HIDDEN), draw(ROWS, TIME, N_HIDDEN)
    dy, dc = draw(ROWS, N_HIDDEN), draw(ROWS, N_HIDDEN)
    brought, drawn = random.random((ROWS, N_HIDDEN)) < 0.5, np.array([True, False, True, False])
    pair = lambda a, b: sqx.LSTMState(jnp.asarray(a), jnp.asarray(b))
    state = sqx.RecurrentDropoutState(pair(y, c), (jnp.asarray(brought),), jnp.asarray(drawn))
    nothing = np.zeros((ROWS, N_HIDDEN))
    expected = oracles.unroll(
        Dropped(),
        weights,
        np.concatenate([np.asarray(data(), np.float64), candidates], -1),
        np.stack([y, c, brought, np.broadcast_to(drawn[:, None], y.shape)], 1).astype(np.float64),
        np.asarray(MASK),
        np.asarray(RESETS),
        d_ys.astype(np.float64),
        np.stack([dy, dc, nothing, nothing], 1),
    )
    no: Any = None  # masks have no derivative
    d_final = sqx.RecurrentDropoutState(pair(dy, dc), (no,), no)
    (ys, final), (d_layer, d_xs, d_state) = run(layer, data(), state, MASK, RESETS, KEY, jnp.asarray(d_ys), d_final)
    close = lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=2e-6 * max(1, np.abs(b).max()))
    close(np.asarray(ys), expected["ys"])
    close(np.stack([final.cell.y, final.cell.c], 1), expected["final"][:, :2])
    np.testing.assert_array_equal(final.kept[0], expected["final"][:, 2] == 1)
    np.testing.assert_array_equal(final.drawn, expected["final"][:, 3, 0] == 1)
    close(np.asarray(d_xs), expected["d_xs"][..., :N_IN])
    close(np.stack([d_state.cell.y, d_state.cell.c], 1), expected["d_state"][:, :2])
    for name, gradient in sqx.parameters(d_layer.cell).items():
        close(np.asarray(gradient), expected["d_w"][name])


def test_gru_against_a_loop():
    """Both `h` and `r * h` are dropped on their way to a matrix; the update gate passes on all of `h`."""
    layer = sqx.RecurrentDropout(cell(sqx.GRU), P)
    w = {k: np.asarray(v, np.float64) for k, v in sqx.parameters(layer.cell).items()}
    ys, state = unroll(layer, data(), None, key=KEY)
    z, sigma = np.asarray(state.kept[0]) / (1 - P), oracles.sigma
    for i, xs in enumerate(np.asarray(data(), np.float64)):
        h = np.zeros(N_HIDDEN)
        for t, x in enumerate(xs):
            r = sigma(w["W_r"] @ x + w["U_r"] @ (z[i] * h) + w["b_r"])
            u = sigma(w["W_z"] @ x + w["U_z"] @ (z[i] * h) + w["b_z"])
            h = u * h + (1 - u) * np.tanh(w["W"] @ x + w["U"] @ (z[i] * r * h) + w["b"])
            np.testing.assert_allclose(ys[i, t], h, atol=2e-6)


def test_the_engines_agree_on_a_projected_cell():
    """Two widths, two masks: of the output that goes back, and of what is projected."""
    fused, scan = (sqx.RecurrentDropout(Projected(how), P) for how in ("fused", "scan"))
    assert fused.widths == (2, N_HIDDEN) and fused.recurrent == ((False, True), (True,))
    w = {k: np.asarray(v, np.float64) for k, v in sqx.parameters(fused.cell).items()}
    ys, state = unroll(fused, data(), None, key=KEY)
    np.testing.assert_allclose(unroll(scan, data(), None, key=KEY)[0], ys, atol=2e-5)
    for i, xs in enumerate(np.asarray(data(), np.float64)):
        z_y, z_c = (np.asarray(k[i]) / (1 - P) for k in state.kept)
        y, c = np.zeros(2), np.zeros(N_HIDDEN)
        for t, x in enumerate(xs):
            c = 0.5 * c + np.tanh(w["W"] @ x + w["U"] @ (z_y * y))
            y = w["P"] @ (z_c * c)
            np.testing.assert_allclose(ys[i, t], y, atol=2e-5)


@pytest.mark.parametrize("zoneout_outside", [True, False])
def test_with_zoneout_around_it_or_within(zoneout_outside: bool):
    """A plain unit: masked on its way to the matrix, and held at random; both draw, and not the same."""
    bare = cell(sqx.RNN)
    if zoneout_outside:
        layer: Any = sqx.Zoneout(sqx.RecurrentDropout(bare, P), 0.3)
        noise = layer.noise(KEY, (TIME, ROWS), jnp.float32)
        hold, kept = noise.own[0], noise.inner.own[0]
    else:
        layer = sqx.RecurrentDropout(sqx.Zoneout(bare, 0.3), P)
        noise = layer.noise(KEY, (TIME, ROWS), jnp.float32)
        hold, kept = noise.inner.own[0], noise.own[0]
    assert 0.2 < np.mean(np.asarray(hold)) < 0.4 and 0.5 < np.mean(np.asarray(kept)) < 0.7
    w = {k: np.asarray(v, np.float64) for k, v in sqx.parameters(bare).items()}
    ys = unroll(layer, data(), None, key=KEY)[0]
    for i, xs in enumerate(np.asarray(data(), np.float64)):
        h, z = np.zeros(N_HIDDEN), np.asarray(kept[0, i]) / (1 - P)
        for t, x in enumerate(xs):
            new = np.tanh(w["W"] @ x + w["U"] @ (z * h) + w["b"])
            h = np.where(np.asarray(hold[t, i]), h, new)
            np.testing.assert_allclose(ys[i, t], h, atol=2e-6)


class TestMasks:
    def test_rate_and_independence(self):
        """Within four deviations; drawn anew for every row and unit."""
        layer = sqx.RecurrentDropout(sqx.RNN(2, 40, KEY), P)
        kept = np.asarray(layer.unroll(jnp.ones((500, 2, 2)), key=KEY)[1].kept[0])
        assert abs(kept.mean() - (1 - P)) < 4 * np.sqrt(P * (1 - P) / kept.size)
        chance = P**2 + (1 - P) ** 2
        for a in (kept, kept.T):
            assert abs((a[1:] == a[:-1]).mean() - chance) < 4 * np.sqrt(chance * (1 - chance) / a[1:].size)

    def test_stretches_and_steps_of_a_sequence_share_one_whatever_their_keys(self):
        layer = sqx.RecurrentDropout(cell(sqx.GRU), P)
        ys, state = unroll(layer, data()[:, :2], None, key=KEY)
        np.testing.assert_array_equal(state.drawn, True)
        pinned = layer.init_state(ROWS)._replace(kept=state.kept, drawn=state.drawn)
        whole, last = unroll(layer, data(), pinned, key=jax.random.key(8))
        np.testing.assert_allclose(ys, whole[:, :2], atol=1e-6)
        ys, state = unroll(layer, data()[:, 2:4], state, key=jax.random.key(9))
        np.testing.assert_allclose(ys, whole[:, 2:4], atol=1e-6)
        for t in (4, 5):
            y, state = step(layer, data()[:, t], state, jax.random.key(10 + t))
            np.testing.assert_allclose(y, whole[:, t], atol=1e-6)
        np.testing.assert_array_equal(state.kept[0], last.kept[0])

    def test_a_reset_draws_a_new_one(self):
        layer = sqx.RecurrentDropout(sqx.RNN(N_IN, 40, KEY), P)
        first = unroll(layer, data(), None, key=KEY)[1]
        resets = jnp.zeros((ROWS, TIME), bool).at[:2, 3].set(True)
        second = unroll(layer, data(), first, None, resets, jax.random.key(4))[1]
        same = np.asarray(first.kept[0] == second.kept[0])
        assert same[2:].all() and (same[:2].mean(1) < 0.8).all()

    def test_rows_without_a_sample_draw_none_and_masked_samples_do_not_draw(self):
        layer: Any = sqx.RecurrentDropout(cell(sqx.GRU), P)
        state = unroll(layer, data(), None, MASK, None, KEY)[1]
        np.testing.assert_array_equal(state.drawn, [True, False, True, True])
        start = layer.init_state(ROWS)
        for a, b in zip(jax.tree.leaves(state), jax.tree.leaves(start), strict=True):
            np.testing.assert_array_equal(a[1], b[1])
        late = jnp.zeros((ROWS, TIME), bool).at[:, 3].set(True)
        state = unroll(layer, data(), None, late, None, KEY)[1]
        np.testing.assert_array_equal(state.kept[0], layer.noise(KEY, (TIME, ROWS), jnp.float32).own[0][3])

    def test_a_dropped_unit_reaches_no_other(self):
        """In a cell of recurrent products alone: the derivative of all later outputs by it is zero, or not."""
        layer = sqx.RecurrentDropout(cell(sqx.RNN), P)
        state = unroll(layer, data(), None, key=KEY)[1]
        total = lambda h: jnp.sum(jnp.sin(layer.unroll(data(), state._replace(cell=h), key=KEY)[0]))
        gradient = jax.jit(jax.grad(total))(state.cell)
        np.testing.assert_array_equal(np.asarray(gradient) != 0, state.kept[0])


class TestEngine:
    @pytest.mark.parametrize("kind", [sqx.RNN, sqx.GRU, sqx.LSTM])
    def test_products_are_grouped_as_in_the_bare_cell(self, kind: Any):
        def groups(layer: Any) -> list[Any]:
            one = lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype)
            noise = layer.noise(KEY, (), jnp.float32)
            state, noise = jax.tree.map(one, (layer.start(jnp.float32), noise))
            plan = make_plan(type(layer).transition, layer, jax.ShapeDtypeStruct((N_IN,), jnp.float32), state, noise)
            return [(c.group, c.rows) for c in plan.calls]

        bare = kind(N_IN, N_HIDDEN, KEY)
        assert groups(sqx.RecurrentDropout(bare, P)) == groups(bare)
        assert groups(sqx.Zoneout(sqx.RecurrentDropout(bare, P), 0.1)) == groups(bare)

    def test_no_weight_gradient_is_formed_inside_the_loop(self):
        bare = cell(sqx.LSTM)
        matrices = {a.shape for a in sqx.parameters(bare).values() if a.ndim == 2}
        layer = sqx.Zoneout(sqx.RecurrentDropout(bare, P), 0.1)
        floats, rest = eqx.partition(layer, eqx.is_inexact_array)
        total = lambda f: jnp.sum(eqx.combine(f, rest)(data(), mask=MASK, key=KEY))
        assert not matrices & shapes_inside_loops(jax.make_jaxpr(jax.grad(total))(floats).jaxpr)


class TestOff:
    def test_at_zero_and_in_inference_it_is_the_bare_cell(self):
        """To the last bit, with a key or without; nothing is drawn, and the state stays as it was."""
        bare = cell(sqx.LSTM)
        expected = unroll(bare, data(), None, MASK, RESETS)
        training = sqx.RecurrentDropout(bare, P)
        for layer in (sqx.RecurrentDropout(bare, 0), eqx.nn.inference_mode(training)):
            for key in (None, KEY):
                ys, state = unroll(layer, data(), None, MASK, RESETS, key)
                for a, b in zip(jax.tree.leaves((ys, state.cell)), jax.tree.leaves(expected), strict=True):
                    np.testing.assert_array_equal(a, b)
                assert not state.drawn.any()
            for call in (lambda x, la=layer: la(x, key=KEY), lambda x, la=layer: la.step(x[:, 0], key=KEY)[0]):
                assert draws(jax.make_jaxpr(call)(data()).jaxpr) == []
        ys = unroll(training, data(), None, MASK, RESETS, KEY)[0]
        assert np.abs(np.asarray(ys - expected[0])).max() > 1e-2


class Fed(sqx.RecurrentCell):
    """The sample passes a matrix of its own before it meets the state."""

    A: Float[Array, "n_hidden n_in"]
    B: Float[Array, "n_hidden n_hidden"]
    U: Float[Array, "n_hidden n_hidden"]
    n_in: int = eqx.field(static=True)
    n_hidden: int = eqx.field(static=True)
    implementation: Any = eqx.field(static=True)

    def __init__(self):
        random = np.random.default_rng(4)
        draw = lambda *shape: jnp.asarray(random.normal(size=shape), jnp.float32)
        self.A, self.B, self.U = draw(N_HIDDEN, N_IN), draw(N_HIDDEN, N_HIDDEN), draw(N_HIDDEN, N_HIDDEN)
        self.n_in, self.n_hidden, self.implementation = N_IN, N_HIDDEN, "fused"

    def start(self, dtype: Any) -> Array:
        return jnp.zeros(self.n_hidden, dtype)

    def transition(self, affine: Any, x: Array, state: Array) -> tuple[Array, Array]:
        h = jnp.tanh(affine((self.B, jnp.sin(affine((self.A, x)))), (self.U, state)))
        return h, h


def test_what_is_made_of_the_sample_alone_is_not_dropped():
    layer = sqx.RecurrentDropout(Fed(), P)
    assert layer.recurrent == ((False,), (False, True))
    np.testing.assert_allclose(layer(data(), key=KEY)[:, 0], Fed()(data())[:, 0], atol=1e-6)  # the state is zero there
    assert np.abs(np.asarray(layer(data(), key=KEY) - Fed()(data())))[:, 1:].max() > 1e-2
