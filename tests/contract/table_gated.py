"""The part of the table of layers for gated and plain units in all their options."""

from typing import Any

from entry import KEYS, Entry

import sequinox as sqx


def lstm(name: str, implementation: Any = "scan", **options: Any) -> Entry:
    make = lambda: sqx.LSTM(3, 5, KEYS[0], implementation=implementation, **options)
    full = None if name == "FGR" else "LSTM-fused"
    return Entry(f"LSTM-{name}-{implementation}", sqx.LSTM, make, variant_of=full, further=full is None)


GATED: list[Entry] = [
    lstm("NIG", variant="NIG"),
    lstm("NFG-projected", variant="NFG", n_proj=4),
    lstm("NOG", variant="NOG"),
    lstm("NIAF-normed", variant="NIAF", layer_norm=True),
    lstm("NOAF-NP", variant="NOAF", peepholes=False),
    lstm("CIFG", variant="CIFG", forget_bias=1.0),
    lstm("FGR", "fused", variant="FGR"),
    lstm("projected-normed", "fused", n_proj=4, layer_norm=True),
    Entry(
        "GRU-reset-after-normed-fused",
        sqx.GRU,
        lambda: sqx.GRU(3, 5, KEYS[0], reset_after=True, layer_norm=True, implementation="fused"),
        further=True,
    ),
    Entry(
        "GRU-reset-after-scan",
        sqx.GRU,
        lambda: sqx.GRU(3, 5, KEYS[0], reset_after=True, implementation="scan"),
        variant_of="GRU-fused",
    ),
    Entry(
        "RNN-normed-scan",
        sqx.RNN,
        lambda: sqx.RNN(
            3,
            5,
            KEYS[0],
            layer_norm=True,
            activation="relu",
            recurrent_initializer=sqx.scaled_identity(),
            implementation="scan",
        ),
        variant_of="RNN-tanh-fused",
    ),
]
