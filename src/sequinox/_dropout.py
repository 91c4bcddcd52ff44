"""What layers share that drop numbers in training."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from ._checks import check_key
from ._types import PRNGKey


def need_key(key: PRNGKey | None, who: str) -> Array:
    """The key of a call in training, or an error that says how to do without."""
    if key is None:
        raise ValueError(f"{who}: a key is needed in training: pass key=, or use equinox.nn.inference_mode(model)")
    return check_key(key, who)


def draw_kept(key: Array, p: float, shape: tuple[int, ...]) -> Bool[Array, "..."]:
    """What is kept: False with probability `p`."""
    return jax.random.bernoulli(key, 1 - p, shape)


def dropped(kept: Bool[Array, "*shape"], a: Array, p: float) -> Array:
    """Zeros where `kept` is False, `a` divided by `1 - p` where it is True."""
    return jnp.where(kept, a / (1 - p), jnp.zeros_like(a))
