"""How a token is chosen from its log-probabilities."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float, Int

from .._checks import number, raise_if, size
from .._types import ArrayLike

Number: TypeAlias = float | int | np.number | ArrayLike
"""A real number, also as an array without axes, which may be traced."""


class Draw(NamedTuple):
    """The most probable token if there is no key, else one that is drawn."""

    key: Array | None = None
    temperature: Array | None = None
    top_k: int | None = None
    top_p: Array | None = None

    def __call__(self, log_p: Float[Array, "*batch n_tokens"], t: Array) -> Int[Array, "*batch"]:
        key = self.key
        if key is None or self.temperature is None:
            return jnp.argmax(log_p, -1).astype(jnp.int32)
        n, temperature = log_p.shape[-1], self.temperature.astype(log_p.dtype)
        rows = jnp.arange(math.prod(log_p.shape[:-1]))
        one = lambda row: jax.random.gumbel(jax.random.fold_in(jax.random.fold_in(key, row), t), (n,), log_p.dtype)
        noise = jax.vmap(one)(rows).reshape(log_p.shape)
        # As good as log_p / temperature + noise, and right at a temperature of 0.
        return jnp.argmax(self._keep(log_p, temperature) + temperature * noise, -1).astype(jnp.int32)

    def _keep(self, log_p: Array, temperature: Array) -> Array:
        """The log-probabilities of the tokens to draw from, -inf for the others."""
        if self.top_k is not None and self.top_k < log_p.shape[-1]:
            least = jax.lax.top_k(log_p, self.top_k)[0][..., -1:]
            log_p = jnp.where(log_p >= jnp.broadcast_to(least, log_p.shape), log_p, -jnp.inf)
        if self.top_p is not None:
            top_p = self.top_p.astype(log_p.dtype)
            falling = jnp.flip(jnp.sort(log_p), -1)
            scaled = (falling - falling[..., :1]) / jnp.maximum(temperature, jnp.finfo(log_p.dtype).tiny)
            p = jax.nn.softmax(scaled)
            kept = (jnp.cumsum(p, -1) - p < top_p) | (top_p >= 1)
            least = jnp.min(jnp.where(kept, falling, jnp.inf), -1, keepdims=True)
            log_p = jnp.where(log_p >= jnp.broadcast_to(least, log_p.shape), log_p, -jnp.inf)
        return log_p


def make_draw(
    key: Array | None, temperature: Number, who: str, top_k: int | None = None, top_p: Number | None = None
) -> Draw:
    """The choice that the arguments ask for, checked but for the key."""
    greedy = is_zero(temperature)
    temperature = real(temperature, lambda v: v >= 0, who, "temperature", "at least 0")
    top_k = None if top_k is None else size(top_k, who, "top_k")
    if top_p is not None:
        top_p = real(top_p, lambda v: (v > 0) & (v <= 1), who, "top_p", "greater than 0 and at most 1")
    if not greedy and key is None:
        raise ValueError(f"{who}: a temperature other than 0 needs a key")
    if not greedy:
        return Draw(key, temperature, top_k, top_p)
    if top_k is not None or top_p is not None:
        raise ValueError(f"{who}: top_k and top_p are for drawing tokens: give a temperature other than 0, and a key")
    return Draw()


def real(value: Number, holds: Callable[[Any], Any], who: str, name: str, expected: str) -> Array:
    """A number, which may be traced, as an array, so that its value does not become part of the program."""
    if isinstance(value, jax.Array | np.ndarray):
        numeric = jnp.issubdtype(value.dtype, jnp.floating) or jnp.issubdtype(value.dtype, jnp.integer)
        if value.shape != () or not numeric:
            raise TypeError(f"{who}: {name} must be a number, got an array of {value.dtype} {value.shape}")
        if isinstance(value, Tracer):
            value = value.astype(jnp.float32)
            return raise_if(value, ~holds(value), f"{who}: {name} must be {expected}")
        value = value.item()
    if not holds(number(value, who, name)):
        raise ValueError(f"{who}: {name} must be {expected}, got {value}")
    return jnp.asarray(value, jnp.float32)


def is_zero(value: Number) -> bool:
    """Whether a number is known to be zero."""
    known = isinstance(value, int | float | np.number | np.ndarray | jax.Array) and not isinstance(value, Tracer)
    return known and np.shape(value) == () and float(value) == 0
