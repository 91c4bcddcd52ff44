"""`weight_decay_mask`: what a decay of 1/2 moves where all gradients are zero."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import sequinox as sqx
from sequinox.train import init_train_state, make_step, weight_decay_mask

KEYS = jax.random.split(jax.random.key(0), 4)


def ones(model: Any) -> Any:
    return jax.tree.map(lambda a: jnp.ones_like(a) if eqx.is_inexact_array(a) else a, model)


def decayed(model: Any) -> set[str]:
    """The names of what is halved; all else must stay 1."""
    model = ones(model)
    params = eqx.filter(model, eqx.is_inexact_array)
    optimiser = optax.chain(optax.add_decayed_weights(0.5, weight_decay_mask), optax.sgd(1.0))
    updates, _ = optimiser.update(jax.tree.map(jnp.zeros_like, params), optimiser.init(params), params)
    after = sqx.parameters(eqx.apply_updates(model, updates))
    assert all(np.unique(a).tolist() in ([0.5], [1.0]) for a in after.values())
    return {name for name, a in after.items() if np.all(a == 0.5)}


class Rows(eqx.Module):
    rows: eqx.nn.Embedding
    slow: jax.Array = eqx.field(metadata=sqx.KEEPS_FLOAT32)


CASES = {
    "LSTM-normed": (
        lambda: sqx.LSTM(3, 5, KEYS[0], layer_norm=True),
        {*(f"{w}_{gate}" for w in "WR" for gate in "zifo")},
    ),
    "LRU": (lambda: sqx.LRU(3, 5, KEYS[0], n_out=2), {"B_re", "B_im", "C_re", "C_im", "D"}),
    "IndRNN": (lambda: sqx.IndRNN(3, 5, KEYS[0]), {"W"}),
    "StateSpace": (lambda: sqx.StateSpace.random(3, 5, KEYS[0], n_out=2), set()),
    "Conv1d": (lambda: sqx.Conv1d(3, 5, 2, KEYS[0], weight_norm=True), {"W"}),
    "TrainedStart": (lambda: sqx.TrainedStart(sqx.LMS(3, 0.1, w=jnp.ones((3, 2)), n_signals=2)), {"layer.w"}),
    "Sequential": (
        lambda: sqx.Sequential([eqx.nn.LayerNorm(3), sqx.Dense(3, 2, KEYS[0])]),
        {"layers[1].W"},
    ),
    "Stack": (
        lambda: sqx.Stack([sqx.Sequential([eqx.nn.LayerNorm(3), sqx.GRU(3, 3, k)]) for k in KEYS]),
        {f"layer.layers[1].{w}" for w in ("W_r", "U_r", "W_z", "U_z", "W", "U")},
    ),
    "Stack-of-stacks": (
        lambda: sqx.Stack([sqx.Stack([sqx.Dense(3, 3, k), sqx.Dense(3, 3, k)]) for k in KEYS]),
        {"layer.layer.W"},
    ),
    "equinox": (
        lambda: [eqx.nn.Conv1d(3, 5, 2, key=KEYS[0]), eqx.nn.LayerNorm((2, 3)), eqx.nn.Linear(1, 1, key=KEYS[1])],
        {"[0].weight", "[2].weight"},
    ),
    "one's own": (lambda: Rows(eqx.nn.Embedding(4, 3, key=KEYS[0]), jnp.ones((2, 2))), {"rows.weight"}),
}


@pytest.mark.parametrize("name", CASES)
def test_matrices_decay_and_nothing_else(name: str):
    make, expected = CASES[name]
    assert decayed(make()) == expected


def test_in_a_training_step():
    """A loss of no slope: the weight is halved a step, the poles stay."""
    model = ones(sqx.Sequential([sqx.OnePole(3, 0.5, guard=False), sqx.Dense(3, 2, KEYS[0])]))
    flat = lambda model, batch, key: (sqx.train.Total(0 * jnp.sum(model(batch)), 1), {})
    optimiser = optax.adamw(1.0, weight_decay=0.5, mask=weight_decay_mask)
    state, _ = make_step(optimiser, flat)(init_train_state(model, optimiser, KEYS[1]), jnp.ones((1, 4, 3)))
    values = {name: np.unique(a).tolist() for name, a in sqx.parameters(state.model).items()}
    one = ("layers[0].alpha", "layers[0].beta", "layers[1].b")
    assert values == {name: [1.0] for name in one} | {"layers[1].W": [0.5]}
