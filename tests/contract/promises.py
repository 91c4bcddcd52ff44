"""Checking an entry of the table against a promise of the contract."""

from typing import Any

import pytest
from entry import Entry
from jaxtyping import config

from sequinox.testing._check import PROMISES
from sequinox.testing._probe import Probe, make_probe, strict

DEAR = ("modes", "dtypes", "transforms", "states")
"""Promises that take four fifths of the time."""

REPRESENTATIVES = (
    *("RNN-tanh-fused", "GRU-fused", "LSTM-fused", "RWA", "RDA", "MinGRU", "LRU"),
    *("Conv1d-grouped-normed", "TemporalBlock", "FIR", "LMS", "RunningMean"),
    *("MHSA-causal", "MHCA", "AddPositions"),
    *("Dense", "PerSample-LayerNorm", "Dropout-inference", "LastStep", "MeanOverTime"),
    *("Bidirectional", "Residual-projected", "recurrent_net"),
)
"""Entries that are checked against the dear promises in every run: of each way to remember, and to compose, some."""

COSTLY = (
    *("encoder_decoder", "recurrent_encoder_decoder", "recurrent_encoder_decoder-attention"),
    *("transformer_decoder-window", "wavenet-tokens", "temporal_conv_net-dropout-training"),
)
"""Models that take seconds to compile at all: left to the thorough run, as their layers are entries of their own."""


def quick(entry: Entry, promise: str) -> bool:
    """Whether the promise is checked in every run of the tests; what is not is marked `thorough`."""
    if entry.name in COSTLY:
        return False
    return entry.main and (promise not in DEAR or entry.name in REPRESENTATIVES)


def cases(entries: list[Entry]) -> list[Any]:
    """Every entry with every promise that it does not leave out, entry by entry."""
    return [
        pytest.param(
            entry,
            promise,
            id=f"{entry}-{promise}",
            marks=() if quick(entry, promise) else pytest.mark.thorough,
        )
        for entry in entries
        for promise in PROMISES
        if promise not in entry.left_out
    ]


def check(entry: Entry, promise: str) -> None:
    """As `check_layer(entry.layer(), promises=[promise])`, with one probe for all promises of an entry.

    Shapes and types are checked beside one promise, whose runs go everywhere: they double the time of tracing.
    """
    before = config.jaxtyping_disable
    config.update("jaxtyping_disable", promise != "transforms")
    try:
        with strict():
            PROMISES[promise](_probe(entry))
    finally:
        config.update("jaxtyping_disable", before)


_made: dict[str, Probe] = {}


def _probe(entry: Entry) -> Probe:
    if entry.name not in _made:
        _made.clear()  # entries come one after the other
        _made[entry.name] = make_probe(entry.layer(), key=entry.key, n_in=entry.n_in, rebuild=entry.layer)
    return _made[entry.name]
