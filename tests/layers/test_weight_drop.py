"""DropConnect on recurrent weights: which are dropped, how, and what becomes of their gradients."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sequinox as sqx

pytestmark = pytest.mark.usefixtures("quick_compilation", "unchecked_types")

KEY, P = jax.random.key(0), 0.4
XS = jnp.asarray(np.random.default_rng(0).normal(size=(4, 6, 3)), jnp.float32)
MASK = jnp.arange(6)[None, :] < jnp.array([[6], [0], [3], [5]])


def gru(implementation: Any = None) -> sqx.GRU:
    return sqx.GRU(3, 5, KEY, implementation=implementation)


class Weights(sqx.SequenceLayer):
    """What shows its weight: every output is the sum of the samples so far times `U`."""

    U: Any
    n_in: int = eqx.field(static=True)
    n_out: int = eqx.field(static=True)

    def __init__(self, n: int):
        self.U, self.n_in, self.n_out = jnp.ones((n, n)), n, n

    def init_state(self, batch: Any = (), dtype: Any = None) -> Any:
        return ()

    def _step(self, x: Any, state: Any, key: Any) -> Any:
        return x @ self.U, state


def shown(n: int, p: float, key: Any, rows: int = 1, time: int = 1) -> np.ndarray:
    """The dropped weights of a layer of ones, as each row and sample meets them: `(rows, time, n, n)`."""
    layer = sqx.WeightDrop(Weights(n), p, lambda la: la.U)
    xs = jnp.broadcast_to(jnp.eye(n), (rows, time, n, n))
    return np.asarray(jax.vmap(lambda x: layer(x, key=key), 2, 2)(xs))


def test_rate_and_scale():
    """Within four deviations, drawn anew along both axes; another key gives others."""
    W = shown(100, P, KEY)[0, 0]
    np.testing.assert_allclose(np.unique(W), [0, 1 / (1 - P)], rtol=1e-6)
    zero = W == 0
    assert abs(zero.mean() - P) < 4 * np.sqrt(P * (1 - P) / zero.size)
    chance = P**2 + (1 - P) ** 2
    for a in (zero, zero.T):
        assert abs((a[1:] == a[:-1]).mean() - chance) < 4 * np.sqrt(chance * (1 - chance) / a[1:].size)
    other = shown(100, P, jax.random.key(1))[0, 0] == 0
    assert abs((zero == other).mean() - chance) < 4 * np.sqrt(chance * (1 - chance) / zero.size)


def test_all_rows_and_samples_of_a_call_share_it():
    W = shown(6, P, KEY, rows=3, time=4)
    np.testing.assert_array_equal(W, np.broadcast_to(W[:1, :1], W.shape))


@eqx.filter_jit
def run(layer: Any, key: Any, state: Any = None) -> Any:
    def total(layer: Any) -> Any:
        ys, state_ = layer.unroll(XS, state, mask=MASK, key=key)
        return jnp.sum(jnp.sin(ys)) + jnp.sum(state_), (ys, state_)

    (_, out), gradient = eqx.filter_value_and_grad(total, has_aux=True)(layer)
    return out, gradient


@pytest.mark.parametrize("implementation", ["fused", "scan"])
def test_it_is_the_layer_with_these_weights(implementation: Any):
    """Values, and gradients: those of the layer with the dropped weights, scaled; zero exactly where dropped."""
    layer = sqx.WeightDrop(gru(implementation), P)
    assert layer.weights == ("U_r", "U_z", "U")
    (ys, state), gradient = run(layer, KEY)
    dropped: dict[str, Any] = {n: np.asarray(getattr(gradient.layer, n)) != 0 for n in layer.weights}
    patterns = [d.ravel().tolist() for d in dropped.values()]
    assert all(0 < sum(p) < 25 for p in patterns) and len({tuple(p) for p in patterns}) == 3
    replaced = [jnp.where(dropped[n], getattr(layer.layer, n) / (1 - P), 0.0) for n in layer.weights]
    bare = eqx.tree_at(lambda c: tuple(getattr(c, n) for n in layer.weights), layer.layer, replaced)
    (expected, expected_state), d_bare = run(bare, None)
    np.testing.assert_allclose(ys, expected, atol=1e-6)
    np.testing.assert_allclose(state, expected_state, atol=1e-6)
    for name, g in sqx.parameters(gradient.layer).items():
        e = np.asarray(getattr(d_bare, name))
        e = np.where(dropped[name], e / (1 - P), 0) if name in dropped else e
        np.testing.assert_allclose(g, e, atol=1e-5)


def test_ways_of_running():
    """`forward` draws what `unroll` does from the same key; a `step` draws its own; rows alone draw the same."""
    layer = sqx.WeightDrop(gru(), P)
    (ys, _), _ = run(layer, KEY)
    forward = eqx.filter_jit(lambda xs, mask: layer.forward(xs, mask=mask, key=KEY))
    np.testing.assert_allclose(forward(XS, MASK), ys, atol=1e-6)
    np.testing.assert_allclose(forward(XS[2], MASK[2]), ys[2], atol=1e-6)
    step = eqx.filter_jit(lambda key: layer.step(XS[:, 0], jnp.ones((4, 5)), key=key)[0])
    first, second, again = (step(jax.random.key(k)) for k in (1, 2, 1))
    assert np.abs(np.asarray(first - second)).max() > 1e-2
    np.testing.assert_array_equal(first, again)


def test_a_layer_inside_draws_its_own():
    """Dropout inside is given a key, and what it draws is not what the weights draw."""
    net = sqx.Sequential([sqx.Dropout(0.5), gru()])
    quiet = eqx.tree_at(lambda n: n.layers[0].inference, net, True)
    layer = sqx.WeightDrop(net, P)
    (one, _), (two, _) = (sqx.WeightDrop(n, P).unroll(XS, key=KEY) for n in (net, quiet))
    assert np.abs(np.asarray(one - two)).max() > 1e-2
    off = eqx.nn.inference_mode(layer)
    assert off.inference and off.layer.layers[0].inference


class TestOff:
    @pytest.mark.parametrize("p", [0, P], ids=["at zero", "in inference"])
    def test_it_is_the_bare_layer_and_draws_nothing(self, p: float):
        off, expected = sqx.WeightDrop(gru(), p, inference=p > 0), gru()(XS, mask=MASK)
        for key in (None, KEY):
            np.testing.assert_array_equal(off(XS, mask=MASK, key=key), expected)
            np.testing.assert_array_equal(off.unroll(XS, mask=MASK, key=key)[0], expected)
        for call in (lambda x: off(x, key=KEY), lambda x: off.step(x[:, 0], key=KEY)[0]):
            text = str(jax.make_jaxpr(call)(XS))
            assert "random_" not in text and "threefry" not in text
        assert "random_" in str(jax.make_jaxpr(lambda x: sqx.WeightDrop(gru(), P)(x, key=KEY))(XS))


class TestWhichWeights:
    def test_all_cells_inside(self):
        """In nested layers, in cells around cells, and in stacks; no input weights, no other layers' weights."""
        k = KEY
        lstm = sqx.Zoneout(sqx.RecurrentDropout(sqx.LSTM(5, 4, k), 0.1), 0.1)
        net = sqx.Sequential(
            [
                sqx.Bidirectional(sqx.RNN(3, 3, k), sqx.GRU(3, 2, k)),
                sqx.Sequential([lstm, sqx.Dense(4, 4, k)]),
                sqx.Stack([sqx.RNN(4, 4, k), sqx.RNN(4, 4, k)]),
            ]
        )
        assert sqx.WeightDrop(net, P).weights == (
            "layers[0].forward_layer.U",
            "layers[0].backward_layer.U_r",
            "layers[0].backward_layer.U_z",
            "layers[0].backward_layer.U",
            *(f"layers[1].layers[0].cell.cell.R_{g}" for g in "zifo"),
            "layers[2].layer.U",
        )
        assert set(sqx.WeightDrop(net, P).weights) < set(sqx.parameters(net))

    def test_layers_of_a_stack_have_masks_of_their_own(self):
        layer: Any = sqx.WeightDrop(sqx.Stack([sqx.RNN(3, 3, KEY), sqx.RNN(3, 3, KEY)]), P)
        gradient = eqx.filter_jit(eqx.filter_grad(lambda la: jnp.sum(jnp.sin(la(XS, key=KEY)))))(layer)
        stacked = np.asarray(gradient.layer.layer.U) != 0
        assert 0 < stacked.mean() < 1 and (stacked[0] != stacked[1]).any()

    def test_matrices_of_a_cell_alone(self):
        """No vector of such a name, and no matrix of such a name in another layer."""

        class Scaled(sqx.RNN):
            U_scale: Any = eqx.field(default_factory=lambda: jnp.ones(4))

            def __init__(self):
                super().__init__(4, 4, KEY)
                self.U_scale = jnp.ones(4)

        assert sqx.WeightDrop(sqx.Sequential([Weights(4), Scaled()]), P).weights == ("layers[1].U",)

    def test_those_that_are_named(self):
        layer = sqx.WeightDrop(gru(), P, lambda c: (c.W, c.b))
        assert layer.weights == ("W", "b")
        assert sqx.WeightDrop(gru(), P, lambda c: [c.U]).weights == ("U",)

    def test_no_function_is_kept(self):
        """Two layers made with two lambdas are of one configuration: no new compilation."""
        traces = 0

        @eqx.filter_jit
        def call(layer: Any, key: Any) -> Any:
            nonlocal traces
            traces += 1
            return layer(XS, key=key)

        for _ in range(2):
            call(sqx.WeightDrop(gru(), P, lambda c: c.U), KEY)
        assert traces == 1

    def test_names_survive_another_layer_in_its_place(self):
        """An optimiser's new arrays under the same names are dropped as well."""
        layer: Any = sqx.WeightDrop(gru(), P)
        moved = jax.tree.map(lambda a: a + 0.1 if eqx.is_inexact_array(a) else a, layer)
        before, after = (eqx.filter_grad(lambda la: jnp.sum(la(XS, key=KEY)))(la) for la in (layer, moved))
        np.testing.assert_array_equal(np.asarray(before.layer.U) == 0, np.asarray(after.layer.U) == 0)


@pytest.mark.parametrize(
    "around",
    [
        sqx.TrainedStart,
        lambda layer: sqx.TrainedStart(sqx.Sequential([layer])),
        lambda layer: sqx.TrainedStart(sqx.Residual(layer)),
        lambda layer: sqx.Remat(layer, checkpoint_every=2),
    ],
)
def test_one_draw_also_where_a_stretch_is_read_in_pieces(around: Any):
    """h' = h + x with a weight of 1 that is dropped or doubled: h stays 1, or doubles, all along the stretch."""
    cell = sqx.StateSpace([[1.0]], [[1.0]])
    dropped = around(sqx.WeightDrop(cell, 0.5, lambda c: c.A))
    xs, resets = jnp.ones((7, 1)), jnp.zeros(7, bool)
    past = xs[:, 0] if isinstance(dropped, sqx.TrainedStart) and isinstance(dropped.layer, sqx.Residual) else 0
    ones = np.ones(7)
    doubled = 2.0 ** np.arange(1, 8) - 1
    seen = set()
    run = eqx.filter_jit(lambda key: dropped(xs, resets=resets, key=key)[:, 0] - past)
    for i in range(12):
        ys = np.asarray(run(jax.random.key(i)))
        assert np.array_equal(ys, ones) or np.array_equal(ys, doubled)
        seen.add(ys[1].item())
    assert seen == {1.0, 3.0}


def test_resets_of_false_draw_the_same_under_a_trained_start():
    layer, key = sqx.TrainedStart(sqx.WeightDrop(gru(), P)), jax.random.key(3)
    np.testing.assert_array_equal(layer(XS, key=key), layer(XS, resets=jnp.zeros(XS.shape[:2], bool), key=key))
