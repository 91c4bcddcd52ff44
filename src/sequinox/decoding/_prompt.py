"""Models that generate tokens, and what is done before the first new one: the prompt is checked and read."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float, Int

from .._checks import raise_if, size
from .._layer import SequenceLayer, grows, require_streaming
from .._types import State
from ..attention import with_capacity
from ..attention._cache import bounded
from ..layers import PerSample


def check_model(model: Any, who: str) -> int:
    """The number of tokens of a model that reads tokens and returns logits at every sample, else an error."""
    if not isinstance(model, SequenceLayer):
        raise TypeError(f"{who}: model must be a sequence layer, got {type(model).__name__}")
    require_streaming(model, who)
    if not model.reads_tokens:
        raise TypeError(f"{who}: model must read integer tokens (begin with an eqx.nn.Embedding); it reads vectors")
    if model.pools:
        raise TypeError(f"{who}: model must return logits at every sample; it pools over time")
    if model.n_out is None:
        raise TypeError(f"{who}: model must declare its number of tokens, n_out, got None")
    return model.n_out


def check_prompt(model: SequenceLayer, prompt: Array, mask: Array | None, who: str) -> Array:
    """The prompt; an error if a row has no real token, or one that the embedding does not know."""
    if prompt.shape[-1] == 0:
        raise ValueError(f"{who}: prompt must hold at least one token, got shape {prompt.shape}")
    wrong, known = prompt < 0, _n_known(model)
    if known is not None and known <= jnp.iinfo(prompt.dtype).max:
        wrong = wrong | (prompt >= known)
    if mask is not None:
        message = f"{who}: mask must be True on at least one token of every row: there are no logits in a row without"
        prompt = raise_if(prompt, ~jnp.any(mask, -1), message)
        wrong = wrong & mask
    if isinstance(wrong, Tracer):  # becomes NaN in the embedding
        return prompt
    upper = "" if known is None else f" and less than {known}"
    return raise_if(prompt, wrong, f"{who}: tokens of prompt must be at least 0{upper}")


def _n_known(model: Any) -> int | None:
    """How many tokens the embedding in front has; None if the model does not begin with one."""
    while model.inside:
        model = model.inside[0]
    known = isinstance(model, PerSample) and isinstance(model.function, eqx.nn.Embedding)
    return model.function.num_embeddings if known else None


def as_token(value: int, n_tokens: int, who: str, name: str) -> Int[Array, ""]:
    """One of the model's tokens, checked."""
    if size(value, who, name, least=0) >= n_tokens:
        raise ValueError(f"{who}: {name} must be a token, less than {n_tokens}, got {value}")
    return jnp.asarray(value, jnp.int32)


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


def read_prompt(
    model: SequenceLayer, prompt: Array, mask: Array | None, state: State, n_new: int
) -> tuple[Float[Array, "*batch n_tokens"], State]:
    """The logits at each row's last real token, and a state with room for `n_new` more."""
    axis, time = prompt.ndim - 1, prompt.shape[-1]
    if state is None:
        state = model.init_state(prompt.shape[:-1])
        if not grows(state):  # growing caches make room themselves
            state = with_room(state, time + n_new)
    ys, state = model.unroll(prompt, state, mask=mask)
    if grows(state):
        state = with_capacity(state, n_new + max(cache.k.shape[-2] for cache in bounded(state)))
    if mask is None:
        return ys[..., -1, :], state
    last = time - 1 - jnp.argmax(jnp.flip(mask, axis), axis)
    return jnp.take_along_axis(ys, jnp.expand_dims(last, (-2, -1)), axis)[..., 0, :], state
