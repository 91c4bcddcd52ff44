"""What all ways of generating tokens share: the prompt, room in the caches, log-probabilities."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Bool, Float, Int

from ._layer import SequenceLayer, grows
from ._types import State
from .attention import with_capacity
from .attention._cache import bounded


class Generated(NamedTuple):
    """What [`generate`][sequinox.generate] gives."""

    tokens: Int[Array, "*batch n_new"]
    """The new tokens, int32; `pad` behind a row's stop symbol."""
    lengths: Int[Array, "*batch"]
    """A row's number of new tokens, int32, the stop symbol among them."""
    log_probs: Float[Array, "*batch"]
    """The logarithm of the probability that the model gives a row's new tokens (float32 at least): of its own
    distribution, without temperature, `top_k` and `top_p`."""


def with_room(state: State, more: int) -> State:
    """The state with caches that take `more` samples; their size is rounded up, so that few programs serve many."""
    caches = bounded(state)
    if not caches:
        return state
    slots = max(cache.k.shape[-2] for cache in caches)
    used = slots
    if not any(isinstance(cache.n, Tracer) for cache in caches):
        used = max(int(np.max(cache.n, initial=0)) for cache in caches)
    return with_capacity(state, max(slots, -(-(used + more) // 64) * 64))


def rest(state: State, done: Bool[Array, "*rows"]) -> State:
    """The state, with the counts of rows that are done back at zero.

    Those rows are stepped on with the others, and a count must not pass a limit meanwhile, such as `max_len`.
    """

    def back(a: Array) -> Array:
        counts = a.shape == done.shape and jnp.issubdtype(a.dtype, jnp.integer)
        return jnp.where(done, jnp.zeros_like(a), a) if counts else a

    return jax.tree.map(back, state)


def read_prompt(
    model: SequenceLayer, prompt: Array, mask: Array | None, state: State, n_new: int
) -> tuple[Float[Array, "*batch n_tokens"], State]:
    """The logits at each row's last real token, and a state with room for what is to come."""
    axis, time = prompt.ndim - 1, prompt.shape[-1]
    if state is None:
        state = model.init_state(prompt.shape[:-1])
        if not grows(state):  # what grows does so by itself
            state = with_room(state, time + n_new)
    ys, state = model.unroll(prompt, state, mask=mask)
    if grows(state):
        state = with_capacity(state, n_new + max(cache.k.shape[-2] for cache in bounded(state)))
    if mask is None:
        return ys[..., -1, :], state
    last = time - 1 - jnp.argmax(jnp.flip(mask, axis), axis)
    return jnp.take_along_axis(ys, jnp.expand_dims(last, (-2, -1)), axis)[..., 0, :], state


def log_softmax(logits: Array) -> tuple[Array, Array]:
    """Log-probabilities in float32 at least, and where there are none: NaN, or an infinite logit."""
    wide = logits.dtype if jnp.finfo(logits.dtype).bits >= 32 else jnp.float32
    log_p = jax.nn.log_softmax(logits.astype(wide))
    return log_p, jnp.any(jnp.isnan(log_p), -1)
