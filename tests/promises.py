"""Checking an entry of the table against a promise of the contract."""

from entry import Entry
from jaxtyping import config

from sequinox.testing import check_layer


def check(entry: Entry, promise: str) -> None:
    """Shapes and types are checked beside one promise, whose runs go everywhere: they double the time of tracing."""
    before = config.jaxtyping_disable
    config.update("jaxtyping_disable", promise != "transforms")
    try:
        check_layer(entry.layer(), promises=[promise], n_in=entry.n_in, key=entry.key, rebuild=entry.layer)
    finally:
        config.update("jaxtyping_disable", before)
