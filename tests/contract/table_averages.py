"""The part of the table of layers for recurrent weighted averages."""

import jax.numpy as jnp
from entry import KEYS, Entry
from jaxtyping import Array

import sequinox as sqx


def squared_ramp(v: Array) -> Array:
    """An attention that is zero for many samples, elsewhere steep."""
    return jnp.square(jnp.maximum(v + 0.25, 0))


def softsign(v: Array) -> Array:
    """Of the user's."""
    return v / (1 + jnp.abs(v))


AVERAGES: list[Entry] = [
    Entry("RWA", sqx.RWA, lambda: sqx.RWA(3, 5, KEYS[0], trained_start=True, implementation="fused")),
    Entry("RDA", sqx.RDA, lambda: sqx.RDA(3, 5, KEYS[0], implementation="fused")),
    Entry(
        "RDA-sigmoid-identity-scan",
        sqx.RDA,
        lambda: sqx.RDA(3, 5, KEYS[0], f_a="sigmoid", f_h="identity", f_o="tanh", implementation="scan"),
        variant_of="RDA",
    ),
    Entry(
        "RDA-softplus",
        sqx.RDA,
        lambda: sqx.RDA(3, 5, KEYS[0], f_a="softplus", discount_bias=-2.0, implementation="scan"),
        variant_of="RDA",
    ),
    Entry(
        "RDA-functions",
        sqx.RDA,
        lambda: sqx.RDA(3, 5, KEYS[0], f_a=squared_ramp, f_h=softsign, f_o=jnp.tanh, implementation="scan"),
        variant_of="RDA",
    ),
    Entry("MGU", sqx.MGU, lambda: sqx.MGU(3, 5, KEYS[0], forget_bias=1.0, implementation="fused")),
    Entry("IndRNN", sqx.IndRNN, lambda: sqx.IndRNN(3, 5, KEYS[0], implementation="fused")),
]
