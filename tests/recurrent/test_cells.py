"""The cells themselves: worked numbers, names and sizes of weights, initial values, and what each gate does."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sequinox as sqx

pytestmark = pytest.mark.usefixtures("quick_compilation")

KEY = jax.random.key(0)
N_IN, N_HIDDEN = 3, 5


def with_arrays(cell: Any, **arrays: Any) -> Any:
    """The cell with some arrays replaced; a number fills one."""
    for name, value in arrays.items():
        old = getattr(cell, name)
        cell = eqx.tree_at(
            lambda c, n=name: getattr(c, n), cell, jnp.broadcast_to(jnp.asarray(value, old.dtype), old.shape)
        )
    return cell


def zeroed(cell: Any) -> Any:
    return jax.tree.map(lambda a: jnp.zeros_like(a) if eqx.is_inexact_array(a) else a, cell)


def drawn(shape: tuple[int, ...], seed: int = 0) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


# ---- worked numbers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("implementation", ["fused", "scan"])
def test_one_step_of_a_gru(implementation: Any):
    gru = zeroed(sqx.GRU(1, 1, KEY, implementation=implementation))
    gru = with_arrays(gru, W_r=1, W_z=1, W=2, U=1)
    y, h = gru.step(jnp.ones(1), jnp.array([0.5]))
    assert round(float(y[0]), 4) == round(float(h[0]), 4) == 0.6298
    ys, _ = gru.unroll(jnp.ones((1, 1)), jnp.array([0.5]))
    assert round(float(ys[0, 0]), 4) == 0.6298


@pytest.mark.parametrize("implementation", ["fused", "scan"])
def test_one_step_of_an_lstm(implementation: Any):
    lstm = zeroed(sqx.LSTM(1, 1, KEY, implementation=implementation))
    lstm = with_arrays(lstm, W_z=1, W_i=1, W_f=1, W_o=1)
    start = jnp.array([0.1]), jnp.array([0.2])
    for state in (lstm.step(jnp.array([0.5]), start)[1], lstm.unroll(jnp.array([[0.5]]), start)[1]):
        assert round(float(state.y[0]), 4) == 0.2429
        # 0.4122 with factors rounded to four places; (tanh 0.5 + 0.2) sigma(0.5) is 0.412141.
        assert abs(float(state.c[0]) - 0.412141) < 1e-6 and abs(float(state.c[0]) - 0.4122) < 1e-4


@pytest.mark.parametrize(("cell", "count"), [("lstm", 17), ("gru", 11), ("rnn", 5)])
def test_numbers_of_arrays_in_a_network(cell: Any, count: int):
    assert len(sqx.parameters(sqx.recurrent_net(3, 4, 2, KEY, cell=cell))) == count


# ---- names and sizes -------------------------------------------------------------------------------------------------

NAMES = {
    "RNN": "W U b",
    "GRU": "W_r U_r b_r W_z U_z b_z W U b",
    "LSTM": "W_z W_i W_f W_o R_z R_i R_f R_o b_z b_i b_f b_o p_i p_f p_o",
}


@pytest.mark.parametrize("name", NAMES)
def test_names_and_shapes(name: str):
    arrays = sqx.parameters(getattr(sqx, name)(N_IN, N_HIDDEN, KEY))
    assert list(arrays) == NAMES[name].split()
    for key, array in arrays.items():
        shape = {"W": (N_HIDDEN, N_IN), "U": (N_HIDDEN, N_HIDDEN), "R": (N_HIDDEN, N_HIDDEN)}.get(key[0], (N_HIDDEN,))
        assert array.shape == shape, key


def test_an_lstm_without_peepholes_has_twelve_arrays():
    assert list(sqx.parameters(sqx.LSTM(N_IN, N_HIDDEN, KEY, peepholes=False))) == NAMES["LSTM"].split()[:12]


@pytest.mark.parametrize(
    ("cell", "formula"),
    [
        (sqx.RNN(N_IN, N_HIDDEN, KEY), N_HIDDEN**2 + N_HIDDEN * N_IN + N_HIDDEN),
        (sqx.GRU(N_IN, N_HIDDEN, KEY), 3 * N_HIDDEN * (N_HIDDEN + N_IN + 1)),
        (sqx.LSTM(N_IN, N_HIDDEN, KEY, peepholes=False), 4 * N_HIDDEN * (N_HIDDEN + N_IN + 1)),
        (sqx.LSTM(N_IN, N_HIDDEN, KEY), 4 * N_HIDDEN * (N_HIDDEN + N_IN + 1) + 3 * N_HIDDEN),
    ],
    ids=["RNN", "GRU", "LSTM-without-peepholes", "LSTM"],
)
def test_numbers_of_parameters(cell: Any, formula: int):
    assert sum(a.size for a in sqx.parameters(cell).values()) == formula


@pytest.mark.parametrize("kind", [sqx.RNN, sqx.GRU, sqx.LSTM])
def test_the_key_by_position_and_by_name(kind: Any):
    assert eqx.tree_equal(kind(N_IN, N_HIDDEN, KEY), kind(n_in=N_IN, n_hidden=N_HIDDEN, key=KEY))
    assert not eqx.tree_equal(kind(N_IN, N_HIDDEN, KEY), kind(N_IN, N_HIDDEN, jax.random.key(1)))
    assert kind(N_IN, N_HIDDEN, jax.random.PRNGKey(3)).n_hidden == N_HIDDEN  # a raw key serves as well


def test_the_state_of_an_lstm_is_named_and_a_pair_serves():
    lstm, xs = sqx.LSTM(N_IN, N_HIDDEN, KEY), drawn((4, N_IN))
    y, c = drawn((N_HIDDEN,), 1), drawn((N_HIDDEN,), 2)
    for state in ((y, c), [y, c], sqx.LSTMState(y, c), (np.asarray(y), np.asarray(c))):
        ys, final = lstm.unroll(xs, state)  # pyright: ignore[reportArgumentType]
        assert isinstance(final, sqx.LSTMState)
        assert jnp.array_equal(ys, lstm.unroll(xs, sqx.LSTMState(y=y, c=c))[0])
    assert jnp.array_equal(final.y, ys[-1])


# ---- initial values --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [sqx.RNN, sqx.GRU, sqx.LSTM])
def test_xavier_normal_weights_and_zero_biases(kind: Any):
    """Variance 2 / (n_in + n_out) of every matrix, at sizes that differ."""
    n_in, n_hidden = 60, 170
    for name, array in sqx.parameters(kind(n_in, n_hidden, KEY)).items():
        if array.ndim == 1:
            assert not np.any(array), name
        else:
            expected = 2 / (array.shape[0] + array.shape[1])
            spread = expected * np.sqrt(2 / array.size)
            assert abs(np.var(array) - expected) < 5 * spread, name
            assert abs(np.mean(array)) < 5 * np.sqrt(expected / array.size), name


def test_every_weight_is_drawn_on_its_own():
    matrices = [a for a in sqx.parameters(sqx.LSTM(7, 7, KEY)).values() if a.ndim == 2]
    assert len(matrices) == 8
    for i, a in enumerate(matrices):
        assert all(abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 0.6 for b in matrices[i + 1 :])


def test_the_initialiser_is_told_which_axis_is_which():
    """lecun_normal scales by the number of inputs: variance 1 / n_in, not 1 / n_out."""
    rnn = sqx.RNN(50, 400, KEY, initializer=jax.nn.initializers.lecun_normal())
    np.testing.assert_allclose([np.var(rnn.W), np.var(rnn.U)], [1 / 50, 1 / 400], rtol=0.1)
    square = sqx.RNN(N_IN, 30, KEY, initializer=jax.nn.initializers.orthogonal())
    np.testing.assert_allclose(square.U @ square.U.T, np.eye(30), atol=1e-5)


def test_the_forget_bias():
    lstm = sqx.LSTM(N_IN, N_HIDDEN, KEY, forget_bias=2.0)
    assert np.all(np.asarray(lstm.b_f) == 2)
    assert not any(np.any(b) for b in (lstm.b_z, lstm.b_i, lstm.b_o))
    assert not np.any(sqx.LSTM(N_IN, N_HIDDEN, KEY).b_f)


@pytest.mark.parametrize("kind", [sqx.RNN, sqx.GRU, sqx.LSTM])
def test_the_dtype_of_the_weights(kind: Any):
    cell = kind(N_IN, N_HIDDEN, KEY, dtype=jnp.bfloat16)
    assert {a.dtype for a in sqx.parameters(cell).values()} == {jnp.dtype(jnp.bfloat16)}
    assert all(a.dtype == jnp.bfloat16 for a in jax.tree.leaves(cell.init_state(2)))


@pytest.mark.parametrize("batch", [(), 4, (4,), (2, 4), 0])
def test_initial_states(batch: Any):
    axes = (batch,) if isinstance(batch, int) else batch
    state = sqx.LSTM(N_IN, N_HIDDEN, KEY).init_state(batch)
    assert state.y.shape == state.c.shape == (*axes, N_HIDDEN)
    assert not np.any(state.y) and not np.any(state.c)


# ---- gates (promise 9): a bias of 40 opens a gate, one of -40 closes it ------------------------------------------

OPEN, CLOSED = 40.0, -40.0
XS = drawn((6, N_IN), 3)
H = drawn((N_HIDDEN,), 4)
C = drawn((N_HIDDEN,), 5)


def close(a: Any, b: Any) -> None:
    np.testing.assert_allclose(np.asarray(a), np.asarray(b), atol=1e-6)


def test_gru_update_gate_open_keeps_the_state():
    ys, h = with_arrays(sqx.GRU(N_IN, N_HIDDEN, KEY), b_z=OPEN).unroll(XS, H)
    close(h, H)
    close(ys, jnp.broadcast_to(H, ys.shape))


def test_gru_update_gate_closed_writes_the_candidate():
    """With the reset gate closed as well nothing of the past is left: a function of the sample alone."""
    gru = with_arrays(sqx.GRU(N_IN, N_HIDDEN, KEY), b_z=CLOSED, b_r=CLOSED, b=0.3)
    ys, _ = gru.unroll(XS, H)
    close(ys, np.tanh(np.asarray(XS) @ np.asarray(gru.W).T + 0.3))


def test_gru_reset_gate_closed_hides_the_state_from_the_candidate():
    """The update gate still sees it: so the state matters only through z and what z keeps."""
    gru = with_arrays(sqx.GRU(N_IN, N_HIDDEN, KEY), b_r=CLOSED, U_z=0.0)
    first = gru.step(XS[0], H)[0]
    second = gru.step(XS[0], jnp.zeros(N_HIDDEN))[0]
    z = 1 / (1 + np.exp(-np.asarray(gru.W_z) @ np.asarray(XS[0])))
    close(first - second, z * np.asarray(H))


def test_gru_reset_gate_open_shows_it_whole():
    gru = with_arrays(sqx.GRU(N_IN, N_HIDDEN, KEY), b_r=OPEN, b_z=CLOSED)
    plain = with_arrays(sqx.RNN(N_IN, N_HIDDEN, KEY), W=gru.W, U=gru.U, b=gru.b)
    close(gru.unroll(XS, H)[0], plain.unroll(XS, H)[0])


def test_lstm_forget_gate_open_and_input_gate_closed_holds_the_cell():
    lstm = with_arrays(sqx.LSTM(N_IN, N_HIDDEN, KEY), b_f=OPEN, b_i=CLOSED)
    close(lstm.unroll(XS, (H, C))[1].c, C)


def test_lstm_forget_gate_closed_and_input_gate_open_writes_the_input():
    lstm = with_arrays(sqx.LSTM(N_IN, N_HIDDEN, KEY), b_f=CLOSED, b_i=OPEN, R_z=0.0, b_z=0.2)
    _, state = lstm.unroll(XS, (H, C))
    close(state.c, np.tanh(np.asarray(lstm.W_z) @ np.asarray(XS[-1]) + 0.2))


def test_lstm_forget_and_input_gates_open_adds_up():
    lstm = with_arrays(sqx.LSTM(N_IN, N_HIDDEN, KEY), b_f=OPEN, b_i=OPEN, R_z=0.0)
    _, state = lstm.unroll(XS, (H, C))
    close(state.c, np.asarray(C) + np.tanh(np.asarray(XS) @ np.asarray(lstm.W_z).T).sum(0))


def test_lstm_output_gate_closed_gives_zeros_but_keeps_the_cell():
    lstm = with_arrays(sqx.LSTM(N_IN, N_HIDDEN, KEY), b_o=CLOSED)
    ys, state = lstm.unroll(XS, (H, C))
    close(ys, np.zeros_like(ys))
    assert np.abs(np.asarray(state.c)).max() > 0.1


def test_lstm_output_gate_open_shows_the_cell():
    ys, state = with_arrays(sqx.LSTM(N_IN, N_HIDDEN, KEY), b_o=OPEN).unroll(XS, (H, C))
    close(ys[-1], np.tanh(np.asarray(state.c)))


@pytest.mark.parametrize(("peephole", "sees_old"), [("p_i", True), ("p_f", True), ("p_o", False)])
def test_lstm_peepholes_look_where_they_should(peephole: str, sees_old: bool):
    """Input and forget gate at the old cell, the output gate at the new: all else of the cell is cut off."""
    cell = with_arrays(zeroed(sqx.LSTM(N_IN, N_HIDDEN, KEY)), W_z=0.4, **{peephole: 1.7})
    x = jnp.ones(N_IN)
    sigma = lambda a: 1 / (1 + np.exp(-np.asarray(a)))
    z = np.tanh(0.4 * N_IN) * np.ones(N_HIDDEN)
    i, f = (sigma(1.7 * C) if peephole == p else 0.5 for p in ("p_i", "p_f"))
    new = z * i + np.asarray(C) * f
    o = 0.5 if sees_old else sigma(1.7 * new)
    y, state = cell.step(x, (H, C))
    close(state.c, new)
    close(y, np.tanh(new) * o)


def test_rnn_activations():
    tanh, relu = (with_arrays(sqx.RNN(N_IN, N_HIDDEN, KEY, activation=a), b=0.1) for a in ("tanh", "relu"))
    a = np.asarray(tanh.W) @ np.asarray(XS[0]) + np.asarray(tanh.U) @ np.asarray(H) + 0.1
    close(tanh.step(XS[0], H)[0], np.tanh(a))
    close(relu.step(XS[0], H)[0], np.maximum(a, 0))


@pytest.mark.parametrize("kind", [sqx.RNN, sqx.GRU, sqx.LSTM])
def test_saturated_gates_have_finite_gradients(kind: Any):
    cell = jax.tree.map(lambda a: 500 * a if eqx.is_inexact_array(a) else a, kind(N_IN, N_HIDDEN, KEY))
    gradient = eqx.filter_grad(lambda c: jnp.sum(c(100 * XS)))(cell)
    assert all(np.isfinite(a).all() for a in sqx.parameters(gradient).values())


def test_a_masked_step_of_a_row_whose_state_is_nan():
    """`step` as `unroll`: the masked row is run from the initial state, and reaches no weight's gradient."""
    gru = sqx.GRU(3, 4, jax.random.key(0))
    xs, state = jnp.ones((2, 3)), jnp.array([[jnp.nan] * 4, [0.0] * 4])
    mask = jnp.array([False, True])
    step = eqx.filter_grad(lambda c: jnp.sum(c.step(xs, state, mask=mask)[0]))(gru)
    alone = eqx.filter_grad(lambda c: jnp.sum(c.step(xs[1], state[1])[0]))(gru)
    for a, b in zip(jax.tree.leaves(step), jax.tree.leaves(alone), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


def test_no_samples_without_jit():
    with jax.disable_jit():
        ys, state = sqx.LSTM(3, 4, jax.random.key(0)).unroll(jnp.ones((2, 0, 3)))
    assert ys.shape == (2, 0, 4) and state.c.tolist() == [[0] * 4] * 2
