"""What layers that are random in training share."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from ._checks import number


def check_rate(value: Any, who: str, name: str) -> float:
    """A probability in [0, 1), checked."""
    rate = number(value, who, name)
    if not 0 <= rate < 1:
        raise ValueError(f"{who}: {name} must be at least 0 and less than 1, got {value}")
    return rate


def need_key(key: Array | None, who: str) -> Array:
    """The key of a call in training, or an error that says how to do without."""
    if key is None:
        raise ValueError(f"{who}: a key is needed in training: pass key=, or use equinox.nn.inference_mode(model)")
    return key


def draw_kept(key: Array, p: float, shape: tuple[int, ...]) -> Bool[Array, "..."]:
    """What is kept: False with probability `p`."""
    return jax.random.bernoulli(key, 1 - p, shape)


def dropped(kept: Bool[Array, "*shape"], a: Array, p: float) -> Array:
    """Zeros where `kept` is False, `a` divided by `1 - p` where it is True."""
    return jnp.where(kept, a / (1 - p), jnp.zeros_like(a))
