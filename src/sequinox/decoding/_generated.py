"""What all ways of generating tokens share in their loops: the result, log-probabilities, rows that have ended."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from .._checks import wide
from .._types import State


class Generated(NamedTuple):
    """What [`generate`][sequinox.generate] returns."""

    tokens: Int[Array, "*batch n_new"]
    """The new tokens, int32; `pad` after a row's stop symbol."""
    lengths: Int[Array, "*batch"]
    """A row's number of new tokens, int32, including the stop symbol."""
    log_probs: Float[Array, "*batch"]
    """The logarithm of the probability of a row's new tokens (float32 at least) in the model's own distribution,
    without temperature, `top_k` and `top_p`."""


def log_softmax(logits: Array) -> tuple[Array, Array]:
    """Log-probabilities in float32 at least, and where there are none: NaN, or an infinite logit."""
    log_p = jax.nn.log_softmax(logits.astype(wide(logits.dtype)))
    return log_p, jnp.any(jnp.isnan(log_p), -1)


def zero_counts(state: State, done: Bool[Array, "*rows"]) -> State:
    """The state, with the counts of rows that are done set to zero.

    Those rows are stepped with the others until all are done. Their counts must not pass a limit such as `max_len`.
    """

    def zero(a: Array) -> Array:
        counts = a.shape == done.shape and jnp.issubdtype(a.dtype, jnp.integer)
        return jnp.where(done, jnp.zeros_like(a), a) if counts else a

    return jax.tree.map(zero, state)
