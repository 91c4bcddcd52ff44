"""The models of Greff et al.: against NumPy loops with gradients by hand, their arrays, and what each gate does.

V and NP, the LSTM with and without peepholes, are compared in `test_oracles.py`.
"""

from typing import Any, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest

import sequinox as sqx
from sequinox.recurrent._lstm import Variant

pytestmark = pytest.mark.usefixtures("quick_compilation", "unchecked_types")

ROWS, TIME, N_IN, N_HIDDEN, N_PROJ = 4, 6, 3, 5, 4
KEY = jax.random.key(0)
GAPS = np.array([[1, 0, 1, 1, 0, 1], [0, 0, 1, 1, 1, 1], [1, 0, 0, 0, 0, 1], [0, 1, 0, 1, 0, 0]], bool)
PACKED = np.array([[0, 0, 1, 0, 0, 1], [1, 0, 0, 0, 0, 0], [0, 1, 1, 1, 1, 1], [0, 0, 0, 1, 0, 0]], bool)
VARIANTS = get_args(Variant)
SIZES = [("NIG", None), ("NFG", None), ("NOG", None), ("NIAF", N_PROJ), ("NOAF", N_PROJ), ("CIFG", None)]
SIZES += [("FGR", None), ("FGR", N_PROJ)]


@eqx.filter_jit
def run(cell: Any, xs: Any, state: Any, mask: Any, resets: Any, d_ys: Any, d_final: Any) -> Any:
    out, pull = eqx.filter_vjp(lambda c, x, s: c.unroll(x, s, mask=mask, resets=resets), cell, xs, state)
    return out, pull((d_ys, d_final))


def drawn(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


def filled(cell: Any, seed: int = 3) -> Any:
    """The cell with random weights."""
    random = np.random.default_rng(seed)
    draw = lambda a: jnp.asarray(0.5 * random.normal(size=a.shape), a.dtype)
    return jax.tree.map(lambda a: draw(a) if eqx.is_array(a) else a, cell)


def weights_of(cell: Any) -> dict[str, np.ndarray]:
    return {name: np.asarray(a, np.float64) for name, a in sqx.parameters(cell).items()}


# ---- values, states and gradients ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("variant", "n_proj"), SIZES, ids=str)
def test_against_a_loop_with_gradients_by_hand(variant: Any, n_proj: int | None):
    n_out = n_proj or N_HIDDEN
    oracle = oracles.Block(variant, N_HIDDEN, n_out)
    xs, d_ys = drawn(ROWS, TIME, N_IN, seed=1), drawn(ROWS, TIME, n_out, seed=2)
    state, d_final = (drawn(ROWS, oracle.cuts[-1], seed=s) for s in (3, 4))
    with jax.enable_x64(True):
        cell = filled(
            sqx.LSTM(N_IN, N_HIDDEN, KEY, variant=variant, n_proj=n_proj, dtype="float64", implementation="fused")
        )
        kind = sqx.FGRState if variant == "FGR" else sqx.LSTMState
        put = lambda a: kind(*map(jnp.asarray, np.split(a, oracle.cuts[:-1], axis=1)))
        flags = jnp.asarray(GAPS), jnp.asarray(PACKED)
        (ys, final), (d_cell, d_xs, d_state) = run(
            cell, jnp.asarray(xs), put(state), *flags, jnp.asarray(d_ys), put(d_final)
        )
        expected = oracles.unroll(oracle, weights_of(cell), xs, state, GAPS, PACKED, d_ys, d_final)
        close = lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-13 * max(1, np.abs(b).max()))
        close(ys, expected["ys"])
        close(np.concatenate(final, -1), expected["final"])
        close(d_xs, expected["d_xs"])
        close(np.concatenate(d_state, -1), expected["d_state"])
        gradients = sqx.parameters(d_cell)
        assert gradients.keys() == expected["d_w"].keys()
        for name, gradient in gradients.items():
            assert np.abs(expected["d_w"][name]).max() > 1e-3
            close(gradient, expected["d_w"][name])


@pytest.mark.parametrize(("variant", "n_proj"), SIZES, ids=str)
def test_the_oracle_itself(variant: Any, n_proj: int | None):
    """Its gradients against differences of its values."""
    oracle, random = oracles.Block(variant, N_HIDDEN, n_proj or N_HIDDEN), np.random.default_rng(8)
    arrays = eqx.filter_eval_shape(sqx.LSTM, N_IN, N_HIDDEN, KEY, variant=variant, n_proj=n_proj)
    weights = {
        jax.tree_util.keystr(path)[1:]: 0.5 * random.normal(size=a.shape)
        for path, a in jax.tree_util.tree_leaves_with_path(arrays)
    }
    xs, d_ys = random.normal(size=(ROWS, TIME, N_IN)), random.normal(size=(ROWS, TIME, n_proj or N_HIDDEN))
    state, d_final = (random.normal(size=(ROWS, oracle.cuts[-1])) for _ in range(2))

    def value(weights: Any, xs: Any, state: Any) -> Any:
        out = oracles.unroll(oracle, weights, xs, state, GAPS, PACKED, d_ys, d_final)
        return np.sum(out["ys"] * d_ys) + np.sum(out["final"] * d_final), out

    _, out = value(weights, xs, state)
    w, x, s = {k: random.normal(size=v.shape) for k, v in weights.items()}, xs * 0.3 + 1, state * 0.2 - 1
    ahead = value({k: v + 1e-6 * w[k] for k, v in weights.items()}, xs + 1e-6 * x, state + 1e-6 * s)[0]
    behind = value({k: v - 1e-6 * w[k] for k, v in weights.items()}, xs - 1e-6 * x, state - 1e-6 * s)[0]
    along = sum(np.sum(out["d_w"][k] * w[k]) for k in w) + np.sum(out["d_xs"] * x) + np.sum(out["d_state"] * s)
    np.testing.assert_allclose((ahead - behind) / 2e-6, along, rtol=1e-7)


# ---- arrays ----------------------------------------------------------------------------------------------------------


def names(gates: str, peepholes: bool = True) -> list[str]:
    found = [f"{letter}_{g}" for letter in "WRb" for g in "z" + gates]
    return found + ([f"p_{g}" for g in gates] if peepholes else [])


@pytest.mark.parametrize(
    ("variant", "expected"),
    [
        ("V", names("ifo")),
        ("NIG", names("fo")),
        ("NFG", names("io")),
        ("NOG", names("if")),
        ("NIAF", names("ifo")),
        ("NOAF", names("ifo")),
        ("NP", names("ifo", peepholes=False)),
        ("CIFG", names("io")),
        ("FGR", names("ifo") + [f"R_{a}{b}" for b in "ifo" for a in "ifo"]),
    ],
)
def test_which_arrays_there_are(variant: Any, expected: list[str]):
    arrays = sqx.parameters(sqx.LSTM(N_IN, N_HIDDEN, KEY, variant=variant))
    assert list(arrays) == expected
    bare = sqx.parameters(sqx.LSTM(N_IN, N_HIDDEN, KEY, variant=variant, peepholes=False))
    assert list(bare) == [name for name in expected if name[0] != "p"]
    if variant == "FGR":
        assert all(arrays[name].shape == (N_HIDDEN, N_HIDDEN) for name in expected[-9:])


def test_projection_and_norm_add_arrays():
    cell = sqx.LSTM(N_IN, N_HIDDEN, KEY, n_proj=N_PROJ, layer_norm=True)
    arrays = sqx.parameters(cell)
    assert list(arrays) == [*names("ifo"), "W_p", *(f"gamma_{g}" for g in "zifoc"), "b_c"]
    assert arrays["R_z"].shape == (N_HIDDEN, N_PROJ) and arrays["W_p"].shape == (N_PROJ, N_HIDDEN)
    assert all(np.all(np.asarray(arrays[f"gamma_{g}"]) == 1) for g in "zifoc") and not np.any(arrays["b_c"])
    assert cell.n_out == N_PROJ and [a.shape for a in cell.init_state(2)] == [(2, N_PROJ), (2, N_HIDDEN)]
    few = sqx.parameters(sqx.LSTM(N_IN, N_HIDDEN, KEY, variant="CIFG", layer_norm=True))
    assert [name for name in few if name.startswith("gamma")] == ["gamma_z", "gamma_i", "gamma_o", "gamma_c"]


def test_vanilla_is_the_default_and_np_is_without_peepholes():
    make = lambda **options: sqx.LSTM(N_IN, N_HIDDEN, KEY, **options)
    assert eqx.tree_equal(make(), make(variant="V"))
    assert eqx.tree_equal(make(peepholes=False), make(variant="NP"))
    assert eqx.tree_equal(make(peepholes=False), make(variant="NP", peepholes=False))
    assert not eqx.tree_equal(make(), make(variant="NIAF"))  # the same arrays, and another cell


def test_the_forget_bias_of_coupled_gates():
    """The forget gate 1 - sigma(-2) is sigma(2)."""
    cell = sqx.LSTM(N_IN, N_HIDDEN, KEY, variant="CIFG", forget_bias=2.0)
    pair: Any = (jnp.zeros(N_HIDDEN), jnp.ones(N_HIDDEN))
    _, state = cell.step(jnp.zeros(N_IN), pair)
    np.testing.assert_allclose(state.c, 1 / (1 + np.exp(-2.0)), rtol=1e-6)
    plain = np.asarray(sqx.LSTM(N_IN, N_HIDDEN, KEY, variant="CIFG").b_i)
    assert not np.any(plain) and not np.any(np.signbit(plain))


def test_a_state_of_five():
    cell, x = filled(sqx.LSTM(N_IN, N_HIDDEN, KEY, variant="FGR")), jnp.ones(N_IN)
    _, state = cell.step(x)
    assert isinstance(state, sqx.FGRState) and state._fields == ("y", "c", "i", "f", "o")
    for a, b in zip(cell.step(x, tuple(state))[1], cell.step(x, state)[1], strict=True):
        assert jnp.array_equal(a, b)


# ---- what the gates do: a bias of 40 opens one, one of -40 closes it -------------------------------------------------

OPEN, CLOSED = 40.0, -40.0
XS = jnp.asarray(drawn(6, N_IN, seed=3), jnp.float32)
Y, C, I, F, O = (jnp.asarray(drawn(N_HIDDEN, seed=s), jnp.float32) for s in range(4, 9))


def with_arrays(cell: Any, **arrays: Any) -> Any:
    """The cell with some arrays replaced; a number fills one."""
    for name, value in arrays.items():
        old = getattr(cell, name)
        new = jnp.broadcast_to(jnp.asarray(value, old.dtype), old.shape)
        cell = eqx.tree_at(lambda c, n=name: getattr(c, n), cell, new)
    return cell


def make(variant: Any, **arrays: Any) -> Any:
    return with_arrays(filled(sqx.LSTM(N_IN, N_HIDDEN, KEY, variant=variant)), **arrays)


def last(cell: Any) -> tuple[np.ndarray, np.ndarray]:
    """Output and cell after all samples."""
    state: Any = sqx.FGRState(Y, C, I, F, O) if cell.variant == "FGR" else sqx.LSTMState(Y, C)
    for x in XS:
        _, state = cell.step(x, state)
    return np.asarray(state.y), np.asarray(state.c)


def close(a: Any, b: Any, atol: float = 1e-5) -> None:
    np.testing.assert_allclose(a, b, rtol=0, atol=atol)


def inputs(cell: Any) -> np.ndarray:
    """z at every sample, of a cell with `R_z` zero."""
    a = np.asarray(XS) @ np.asarray(cell.W_z).T + np.asarray(cell.b_z)
    return a if cell.variant == "NIAF" else np.tanh(a)


BOTH = ("V", "NOG", "NIAF", "NOAF", "NP", "FGR")


@pytest.mark.parametrize("variant", BOTH)
def test_input_and_forget_gate(variant: Any):
    close(last(make(variant, b_i=CLOSED, b_f=OPEN))[1], C)
    cell = make(variant, b_i=OPEN, b_f=CLOSED, R_z=0.0)
    close(last(cell)[1], inputs(cell)[-1])
    cell = make(variant, b_i=OPEN, b_f=OPEN, R_z=0.0)
    close(last(cell)[1], np.asarray(C) + inputs(cell).sum(0))
    close(last(make(variant, b_i=CLOSED, b_f=CLOSED))[1], np.zeros(N_HIDDEN))


def test_without_an_input_gate_every_input_is_taken_whole():
    cell = make("NIG", b_f=OPEN, R_z=0.0)
    close(last(cell)[1], np.asarray(C) + inputs(cell).sum(0))
    cell = make("NIG", b_f=CLOSED, R_z=0.0)
    close(last(cell)[1], inputs(cell)[-1])


def test_without_a_forget_gate_the_cell_keeps_all():
    cell = make("NFG", b_i=OPEN, R_z=0.0)
    close(last(cell)[1], np.asarray(C) + inputs(cell).sum(0))
    close(last(make("NFG", b_i=CLOSED))[1], C)


def test_coupled_gates_add_up_to_one():
    """So a cell of ones that is told ones stays, wherever the gate stands; open it is told, closed it keeps."""
    cell = make("CIFG", b_z=OPEN)
    for sample in XS:
        _, state = cell.step(sample, (Y, jnp.ones(N_HIDDEN)))
        close(state.c, np.ones(N_HIDDEN), 1e-6)
    _, between = cell.step(XS[0], (Y, jnp.zeros(N_HIDDEN)))
    assert np.all((np.asarray(between.c) > 0.01) & (np.asarray(between.c) < 0.99))  # the gate stands in between
    close(last(make("CIFG", b_i=CLOSED))[1], C)
    cell = make("CIFG", b_i=OPEN, R_z=0.0)
    close(last(cell)[1], inputs(cell)[-1])


@pytest.mark.parametrize("variant", [v for v in VARIANTS if v != "NOG"])
def test_output_gate(variant: Any):
    y, c = last(make(variant, b_o=OPEN))
    close(y, c if variant == "NOAF" else np.tanh(c))
    y, c = last(make(variant, b_o=CLOSED))
    close(y, np.zeros(N_HIDDEN))
    assert np.abs(c).max() > 0.1


def test_without_an_output_gate_the_cell_is_seen():
    y, c = last(make("NOG"))
    close(y, np.tanh(c))


def test_no_activation_functions_no_bounds():
    _, c = last(make("NIAF", b_z=100.0, b_i=OPEN, b_f=CLOSED))
    assert c.min() > 90
    y, c = last(make("NOAF", b_z=100.0, b_i=OPEN, b_f=OPEN, b_o=OPEN))
    assert y.min() > 4
    for variant in ("V", "NIG", "NP"):
        assert np.abs(last(make(variant, b_z=100.0))[0]).max() <= 1


@pytest.mark.parametrize("to", "ifo")
@pytest.mark.parametrize("origin", "ifo")
def test_each_recurrence_of_gates_goes_from_gate_to_gate(origin: str, to: str):
    """All else is zero: gate `to` is sigma(1.7 times what gate `origin` was), the two others are one half."""
    zero = jax.tree.map(jnp.zeros_like, sqx.LSTM(N_IN, N_HIDDEN, KEY, variant="FGR"))
    cell = eqx.tree_at(lambda c: getattr(c, f"R_{origin}{to}"), zero, 1.7 * jnp.eye(N_HIDDEN))
    _, state = cell.step(XS[0], sqx.FGRState(Y, C, I, F, O))
    was = np.asarray({"i": I, "f": F, "o": O}[origin])
    for gate in "ifo":
        expected = 1 / (1 + np.exp(-1.7 * was)) if gate == to else np.full(N_HIDDEN, 0.5)
        close(getattr(state, gate), expected, 1e-6)


def test_full_gate_recurrence_without_its_weights_is_vanilla():
    full = make("FGR")
    arrays = {name: a for name, a in sqx.parameters(full).items() if len(name) == 3}
    full = with_arrays(full, **{name: 0.0 for name in sqx.parameters(full) if len(name) == 4})
    vanilla = with_arrays(sqx.LSTM(N_IN, N_HIDDEN, KEY), **arrays)
    _, state = full.step(XS[0], sqx.FGRState(Y, C, I, F, O))
    for a, b in zip(state[:2], vanilla.step(XS[0], (Y, C))[1], strict=True):
        close(a, b, 1e-6)


def test_a_projection_by_the_identity_changes_nothing():
    plain = filled(sqx.LSTM(N_IN, N_HIDDEN, KEY))
    projected = sqx.LSTM(N_IN, N_HIDDEN, KEY, n_proj=N_HIDDEN)
    projected = with_arrays(projected, W_p=jnp.eye(N_HIDDEN), **sqx.parameters(plain))
    for a, b in zip(last(projected), last(plain), strict=True):
        close(a, b, 1e-6)
