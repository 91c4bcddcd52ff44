"""The part of the table of layers for what is random in training."""

from typing import Any

import jax
from entry import KEYS, Entry

import sequinox as sqx

RATES: Any = sqx.LSTMState(y=0.2, c=0.4)  # pyright: ignore[reportArgumentType]


def nested(how: Any, inference: bool) -> Any:
    """Dropout within zoneout: both masks, both kinds of noise."""
    cell = sqx.LSTM(3, 5, KEYS[0], implementation=how)
    dropout = sqx.RecurrentDropout(cell, 0.3, inference=inference)
    return sqx.Zoneout(dropout, (RATES, 0, 0), inference=inference)


def weight_drop(inference: bool) -> Any:
    net = sqx.Sequential([sqx.VariationalDropout(0.3, 3, inference=inference), sqx.GRU(3, 5, KEYS[0])])
    return sqx.WeightDrop(net, 0.4, inference=inference)


REGULARISERS = [
    Entry("Zoneout-inference", sqx.Zoneout, lambda: sqx.Zoneout(sqx.LSTM(3, 5, KEYS[0]), RATES, inference=True)),
    Entry(
        "Zoneout-of-RecurrentDropout-training", sqx.Zoneout, lambda: nested("fused", False), key=KEYS[3], further=True
    ),
    Entry(
        "RecurrentDropout-inference",
        sqx.RecurrentDropout,
        lambda: sqx.RecurrentDropout(sqx.GRU(3, 5, KEYS[0]), 0.3, inference=True),
    ),
    Entry(
        "RecurrentDropout-training",
        sqx.RecurrentDropout,
        lambda: sqx.RecurrentDropout(sqx.GRU(3, 5, KEYS[0], implementation="scan"), 0.3),
        key=KEYS[3],
        further=True,
    ),
    Entry(
        "VariationalDropout-inference", sqx.VariationalDropout, lambda: sqx.VariationalDropout(0.5, 3, inference=True)
    ),
    Entry(
        "VariationalDropout-training",
        sqx.VariationalDropout,
        lambda: sqx.VariationalDropout(0.5, 3),
        key=KEYS[3],
        further=True,
    ),
    Entry("WeightDrop-inference", sqx.WeightDrop, lambda: weight_drop(True)),
    Entry("WeightDrop-training", sqx.WeightDrop, lambda: weight_drop(False), key=jax.random.key(5), further=True),
]
