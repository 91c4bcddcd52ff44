"""Zoneout, against NumPy loops with the masks that were drawn, and with gradients derived by hand."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from jaxtyping import Array, Float
from test_noise import MASK, N_HIDDEN, N_IN, RESETS, ROWS, TIME, data, draws

import sequinox as sqx

pytestmark = pytest.mark.usefixtures("quick_compilation", "unchecked_types")

KEY = jax.random.key(3)
RATES: Any = sqx.LSTMState(y=0.3, c=0.6)  # pyright: ignore[reportArgumentType]
EVERY = jnp.ones((ROWS, TIME), bool)


def cell(kind: Any, **options: Any) -> Any:
    """A cell without zeros in it."""
    random = np.random.default_rng(3)
    draw = lambda a: jnp.asarray(0.5 * random.normal(size=a.shape), a.dtype)
    return jax.tree.map(draw, kind(N_IN, N_HIDDEN, KEY, **options))


class Zoned:
    """A cell of `oracles`, its state mixed with the old one; what to hold stands behind each sample."""

    def __init__(self, inner: Any, n_leaves: int):
        self.inner, self.n_leaves = inner, n_leaves

    def start(self, n_hidden: int) -> Any:
        return self.inner.start(n_hidden)

    def step(self, w: Any, x: Any, state: Any) -> Any:
        x, hold = x[:N_IN], x[N_IN:].reshape(state.shape)
        _, new, kept = self.inner.step(w, x, state)
        mixed = hold * state + (1 - hold) * new
        return (mixed if self.n_leaves == 1 else mixed[0]), mixed, (kept, hold)

    def back(self, w: Any, kept: Any, dy: Any, dstate: Any) -> Any:
        kept, hold = kept
        d = dstate + (dy if self.n_leaves == 1 else np.stack([dy, np.zeros_like(dy)]))
        dw, dx, dold = self.inner.back(w, kept, np.zeros_like(dy), (1 - hold) * d)
        return dw, np.concatenate([dx, np.zeros(hold.size)]), dold + hold * d


@eqx.filter_jit
def run(layer: Any, xs: Any, state: Any, mask: Any, resets: Any, key: Any, d_ys: Any, d_final: Any) -> Any:
    forward = lambda c, x, s: c.unroll(x, s, mask=mask, resets=resets, key=key)
    out, pull = eqx.filter_vjp(forward, layer, xs, state)
    return out, pull((d_ys, d_final))


@eqx.filter_jit
def step(layer: Any, x: Any, state: Any, key: Any = None) -> Any:
    return layer.step(x, state, key=key)


@eqx.filter_jit
def unroll(layer: Any, xs: Any, state: Any, mask: Any = None, resets: Any = None, key: Any = None) -> Any:
    return layer.unroll(xs, state, mask=mask, resets=resets, key=key)


def compare(layer: Any, oracle: Any, hold: np.ndarray, key: Any, tolerance: float) -> None:
    """Values, states and gradients; `hold` is time first: what of the state is held."""
    dtype = layer.dtype
    weights = {k.removeprefix("cell."): np.asarray(v, np.float64) for k, v in sqx.parameters(layer).items()}
    oracle, pair = Zoned(oracle, 2 if isinstance(layer.cell, sqx.LSTM) else 1), isinstance(layer.cell, sqx.LSTM)
    random = np.random.default_rng(5)
    draw = lambda *shape: np.asarray(random.normal(size=shape), dtype).astype(np.float64)
    shape = (ROWS, *oracle.start(N_HIDDEN).shape)
    xs, d_ys, state, d_final = draw(ROWS, TIME, N_IN), draw(ROWS, TIME, N_HIDDEN), draw(*shape), draw(*shape)
    extended = np.concatenate([xs, np.swapaxes(hold, 0, 1).reshape(ROWS, TIME, -1)], -1)
    expected = oracles.unroll(oracle, weights, extended, state, np.asarray(MASK), np.asarray(RESETS), d_ys, d_final)
    put = lambda a: sqx.LSTMState(*(jnp.asarray(a[:, i], dtype) for i in range(2))) if pair else jnp.asarray(a, dtype)
    take = lambda s: np.stack([s.y, s.c], 1) if pair else np.asarray(s)
    (ys, final), (d_layer, d_xs, d_state) = run(
        layer, jnp.asarray(xs, dtype), put(state), MASK, RESETS, key, jnp.asarray(d_ys, dtype), put(d_final)
    )
    close = lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * max(1, np.abs(b).max(initial=0)))
    close(np.asarray(ys), expected["ys"])
    close(take(final), expected["final"])
    close(np.asarray(d_xs), expected["d_xs"][..., :N_IN])
    close(take(d_state), expected["d_state"])
    for name, gradient in sqx.parameters(d_layer.cell).items():
        close(np.asarray(gradient), expected["d_w"][name])


def drawn(layer: Any, key: Any) -> np.ndarray:
    """What is held in a stretch of the test's size: `(time, rows, ...)`."""
    held = layer.noise(key, (TIME, ROWS), layer.dtype).own
    return np.stack([np.asarray(h, np.float64) for h in held], 2)


class TestAgainstALoop:
    @pytest.mark.parametrize("implementation", ["fused", "scan"])
    def test_lstm_in_training(self, implementation: Any):
        layer = sqx.Zoneout(cell(sqx.LSTM, implementation=implementation), RATES)
        compare(layer, oracles.Memory(), drawn(layer, KEY), KEY, 2e-6)

    def test_gru_in_training(self):
        layer = sqx.Zoneout(cell(sqx.GRU), 0.4)
        compare(layer, oracles.GatedUnit(), drawn(layer, KEY), KEY, 2e-6)

    def test_lstm_in_inference(self):
        """The expectation: the rate takes the place of the mask."""
        layer = sqx.Zoneout(cell(sqx.LSTM), RATES, inference=True)
        hold = np.broadcast_to(np.array([[0.3], [0.6]]), (TIME, ROWS, 2, N_HIDDEN))
        compare(layer, oracles.Memory(), hold, None, 2e-6)


def test_in_float64():
    with jax.enable_x64(True):
        layer = sqx.Zoneout(cell(sqx.LSTM, dtype=jnp.float64), RATES)
        compare(layer, oracles.Memory(), drawn(layer, KEY), KEY, 1e-13)


class TestWhatIsDrawn:
    def test_rates(self):
        """Each array's own, within four deviations; nothing repeats over time, rows or units, nor between arrays."""
        layer: Any = sqx.Zoneout(sqx.LSTM(2, 30, KEY), RATES)
        y, c = (np.asarray(a) for a in layer.noise(KEY, (40, 50), jnp.float32).own)
        for held, rate in ((y, 0.3), (c, 0.6)):
            assert abs(held.mean() - rate) < 4 * np.sqrt(rate * (1 - rate) / held.size)
            for axis in range(3):
                a = np.moveaxis(held, axis, 0)
                chance = rate**2 + (1 - rate) ** 2
                assert abs((a[1:] == a[:-1]).mean() - chance) < 5 * np.sqrt(chance * (1 - chance) / a[1:].size)
        chance = 0.3 * 0.6 + 0.7 * 0.4
        assert abs((y == c).mean() - chance) < 4 * np.sqrt(chance * (1 - chance) / y.size)

    def test_a_held_number_is_the_old_one_to_the_last_bit(self):
        layer = sqx.Zoneout(cell(sqx.LSTM), RATES)
        before = unroll(layer, data(), None, key=KEY)[1]
        y, after = step(layer, data()[:, 0], before, KEY)
        bare = step(layer.cell, data()[:, 0], before)[1]
        for old, got, new in zip(before, after, bare, strict=True):
            held = np.asarray(got == old)
            assert held.any() and not held.all()
            np.testing.assert_allclose(np.asarray(got)[~held], np.asarray(new)[~held], atol=1e-6)
        np.testing.assert_array_equal(y, after.y)

    def test_close_to_one_the_state_is_held(self):
        """At a rate of 1 - 1e-6 none of these numbers has moved."""
        layer, before = sqx.Zoneout(cell(sqx.GRU), 1 - 1e-6), jnp.asarray(data()[:, 0] @ jnp.ones((N_IN, N_HIDDEN)))
        ys, after = unroll(layer, data(), before, EVERY, ~EVERY, KEY)
        np.testing.assert_array_equal(after, before)
        np.testing.assert_array_equal(ys, jnp.broadcast_to(before[:, None], ys.shape))

    def test_another_key_another_draw_and_the_same_key_the_same(self):
        layer = sqx.Zoneout(cell(sqx.GRU), 0.4)
        first, again, other = (unroll(layer, data(), None, key=k)[0] for k in (KEY, KEY, jax.random.key(4)))
        np.testing.assert_array_equal(first, again)
        assert np.abs(np.asarray(first - other)).max() > 1e-2


class TestInference:
    def test_nothing_is_drawn_and_no_key_is_needed(self):
        layer = eqx.nn.inference_mode(sqx.Zoneout(sqx.RecurrentDropout(cell(sqx.LSTM), 0.5), (RATES, 0, 0)))
        assert layer.inference and layer.cell.inference
        for call in (lambda x: layer(x, key=KEY), lambda x: layer.step(x[:, 0], key=KEY)[0]):
            assert draws(jax.make_jaxpr(call)(data()).jaxpr) == []
        np.testing.assert_array_equal(layer(data()), layer(data(), key=KEY))
        training = eqx.nn.inference_mode(layer, value=False)
        assert draws(jax.make_jaxpr(lambda x: training(x, key=KEY))(data()).jaxpr)

    def test_the_mean_of_many_draws_of_one_step_is_the_expectation(self):
        """20,000 rows alike; each number within five deviations."""
        layer = sqx.Zoneout(cell(sqx.LSTM), RATES)
        spread = lambda a: jnp.broadcast_to(a[:1], (20_000, *a.shape[1:]))
        before = jax.tree.map(spread, unroll(layer, data(), None, key=KEY)[1])
        after = step(layer, spread(data()[:, 0]), before, KEY)[1]
        expected = step(eqx.nn.inference_mode(layer), spread(data()[:, 0]), before)[1]
        for got, mean in zip(after, expected, strict=True):
            got = np.asarray(got, np.float64)
            assert np.all(np.abs(got.mean(0) - np.asarray(mean[0])) < 5 * got.std(0) / np.sqrt(len(got)) + 1e-6)


def test_at_rates_of_zero_it_is_the_bare_cell():
    """To the last bit, with and without a key: none is needed, and nothing is drawn."""
    bare = cell(sqx.LSTM)
    layer = sqx.Zoneout(bare, 0)
    expected = unroll(bare, data(), None, MASK, RESETS)
    for key in (None, KEY):
        got = unroll(layer, data(), None, MASK, RESETS, key)
        for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
            np.testing.assert_array_equal(a, b)
    assert draws(jax.make_jaxpr(lambda x: layer(x, key=KEY))(data()).jaxpr) == []


class Counting(sqx.RecurrentCell):
    """A state in a dictionary, with a count, and a nested pair; the output is the pair's second array."""

    W: Float[Array, "n_hidden n_in"]
    n_in: int = eqx.field(static=True)
    n_hidden: int = eqx.field(static=True)
    implementation: Any = eqx.field(static=True)

    def __init__(self):
        self.W, self.n_in, self.n_hidden, self.implementation = jnp.ones((N_HIDDEN, N_IN)), N_IN, N_HIDDEN, None

    def start(self, dtype: Any) -> Any:
        zeros = jnp.zeros(self.n_hidden, dtype)
        return {"n": jnp.zeros((), jnp.int32), "h": (zeros, zeros)}

    def transition(self, affine: Any, x: Array, state: Any) -> Any:
        h = (state["h"][0] + affine((self.W, x)), jnp.tanh(affine((self.W, x))) + state["h"][1])
        return h[1], {"n": state["n"] + 1, "h": h}


class TestRates:
    def test_a_number_a_tuple_and_a_named_tuple(self):
        lstm = sqx.LSTM(N_IN, N_HIDDEN, KEY)
        assert sqx.Zoneout(lstm, 0.25).rates == (0.25, 0.25)
        assert sqx.Zoneout(lstm, (0.1, 0.2)).rates == (0.1, 0.2)
        assert sqx.Zoneout(lstm, RATES).rates == (0.3, 0.6)

    def test_counts_always_move_on(self):
        """Whatever the rate; and the output is the array that the cell gives, wherever it stands."""
        layer = sqx.Zoneout(Counting(), 1 - 1e-6)
        assert layer.rates == (1 - 1e-6, 1 - 1e-6, 0.0)
        ys, state = layer.unroll(data(), key=KEY)
        np.testing.assert_array_equal(state["n"], TIME)
        assert not np.any(ys) and not np.any(state["h"][0])
        layer = sqx.Zoneout(Counting(), {"h": (1 - 1e-6, 0), "n": 0})
        ys, state = layer.unroll(data(), key=KEY)
        np.testing.assert_allclose(ys, Counting()(data()), atol=1e-6)
        assert np.any(ys) and not np.any(state["h"][0])

    def test_of_another_width_than_the_hidden_one(self):
        """`n_out` is that of the cell."""
        layer = sqx.Zoneout(Projected(), (0.5, 0.2))
        assert layer.n_out == 2
        state: Any = layer.unroll(data(), key=KEY)[1]
        assert state.y.shape == (ROWS, 2) and state.c.shape == (ROWS, N_HIDDEN)


class ProjectedState(NamedTuple):
    y: Array
    c: Array


class Projected(sqx.RecurrentCell):
    """A leaky unit whose output is projected to two numbers, which alone go back."""

    W: Float[Array, "n_hidden n_in"]
    U: Float[Array, "n_hidden n_out"]
    P: Float[Array, "n_out n_hidden"]
    n_in: int = eqx.field(static=True)
    n_hidden: int = eqx.field(static=True)
    implementation: Any = eqx.field(static=True)

    def __init__(self, implementation: Any = None):
        random = np.random.default_rng(4)
        draw = lambda *shape: jnp.asarray(random.normal(size=shape), jnp.float32)
        self.W, self.U, self.P = draw(N_HIDDEN, N_IN), draw(N_HIDDEN, 2), draw(2, N_HIDDEN)
        self.n_in, self.n_hidden, self.implementation = N_IN, N_HIDDEN, implementation

    @property
    def n_out(self) -> int:
        return 2

    def start(self, dtype: Any) -> ProjectedState:
        return ProjectedState(jnp.zeros(2, dtype), jnp.zeros(self.n_hidden, dtype))

    def transition(self, affine: Any, x: Array, state: Any) -> Any:
        c = 0.5 * state.c + jnp.tanh(affine((self.W, x), (self.U, state.y)))
        y = affine((self.P, c))
        return y, ProjectedState(y, c)
