"""One entry of the table of layers, and what the entries share.

Rows 7, time 4, input 3, hidden 5 (6 in a second direction), output 2. Weights are perturbed, so that none is zero.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

N_IN, N_HIDDEN, N_OUT = 3, 5, 2
KEYS = tuple(jax.random.split(jax.random.key(7), 4))


def perturbed(layer: Any, seed: int = 1) -> Any:
    """The layer with something added to every trainable array."""
    random = np.random.default_rng(seed)
    shift = lambda a: jnp.asarray(np.asarray(a) + 0.3 * random.normal(size=a.shape), a.dtype)
    return jax.tree.map(lambda a: shift(a) if eqx.is_inexact_array(a) else a, layer)


_ELSEWHERE = "one code does it for the class, whatever its options: checked on the entry that this is a variant of"
VARIANT: dict[str, str] = dict.fromkeys(("resets", "rows", "transforms", "final_state", "states"), _ELSEWHERE)
"""Promises that a variant leaves to the entry that stands for its class in full, and why."""

_PARTS = "what is composed keeps it if its parts do: checked on these, and on Sequential and Bidirectional"
COMPOSED: dict[str, str] = dict.fromkeys(("rows", "transforms", "dtypes"), _PARTS)
"""Promises that a model leaves to the layers it is made of, and why."""


@dataclasses.dataclass(frozen=True)
class Entry:
    """A layer of the table: its name, what public class or function it stands for, and how it is made."""

    name: str
    of: Any
    make: Callable[[], Any]
    n_in: int | None = None
    """Width, or number of tokens, for a layer that does not tell."""
    key: Any = None
    """For a layer that draws random numbers."""
    variant_of: str | None = None
    """The entry that stands for the same class in full; this one has other options of it."""

    further: bool = False
    """One more of its class or model, beside the main entry; it leaves no promise to that."""

    composed: bool = False
    """Made of layers that are in the table themselves."""

    @property
    def main(self) -> bool:
        """Whether it stands for its class or model in every run of the tests, and not in the thorough one alone."""
        return self.variant_of is None and not self.further

    @property
    def left_out(self) -> dict[str, str]:
        """Promises that are not checked, and why."""
        return (VARIANT if self.variant_of is not None else {}) | (COMPOSED if self.composed else {})

    def layer(self) -> Any:
        return perturbed(self.make())

    def __repr__(self) -> str:
        return self.name
