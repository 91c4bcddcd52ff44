"""A bound on the gradient's norm, from the norms there were."""

import math
from typing import Any, NamedTuple

import jax.numpy as jnp
import optax
from jaxtyping import Array

from ..._checks import number, size
from ._clip import clip_by_norm


class AdaptiveClipState(NamedTuple):
    """What `adaptive_clip` remembers. `make_step` reports `limit` and how often it was passed.

    Attributes:
        norms: `(history,)` float32, a ring of the last norms before clipping; infinite where there is none yet.
        n: int32, how many finite norms have been seen.
        norm: float32, the last gradient's norm.
        limit: float32, the bound that was put on it.
    """

    norms: Array
    n: Array
    norm: Array
    limit: Array


def adaptive_clip(
    fraction: float = 0.05, *, history: int = 200, warmup: int = 20, first: float = math.inf
) -> optax.GradientTransformation:
    r"""Clips by norm, at the value that the last norms passed on a small fraction of updates.

    The bound on an update is the quantile $1 - \text{fraction}$ of the norms of the `history` updates before it, taken
    before clipping. So it follows the gradient's size, which falls by orders of magnitude in a run, and a spike
    meets a bound that was set without it. It goes in front of an optimiser:
    `optax.chain(adaptive_clip(), optax.adam(1e-3))`.

    Arguments:
        fraction: of updates to be clipped, in (0, 1). Default: one in twenty; a bound that is passed most of the time
            is a learning rate of its own.
        history: how many norms are remembered. Default: 200, so that a fraction of 0.05 is ten of them.
        warmup: until so many norms are known the bound is `first`; from 1 to `history`.
        first: the bound until then. Default: none.

    Returns:
        An optax transformation. A gradient whose norm is not finite becomes zero and is not remembered (`make_step`
        skips such a step altogether).

    Raises:
        TypeError: `fraction` is not a number, `history` or `warmup` not an integer.
        ValueError: `fraction` is not in (0, 1), `warmup` not in 1 to `history`, `first` not above 0.

    Source: the rule is that of [Pascanu et al. 2013](https://arxiv.org/abs/1211.5063), section 3.2, who take a bound
    from the norms over a sufficiently large number of updates; the quantile and the moving window are ours.

    ??? example

        ```python
        >>> import jax.numpy as jnp, optax
        >>> from sequinox.train import adaptive_clip
        >>> clip = adaptive_clip(0.25, history=4, warmup=4)
        >>> state = clip.init({"W": jnp.zeros(2)})
        >>> for size in (1.0, 2.0, 3.0, 4.0, 1000.0):
        ...     updates, state = clip.update({"W": jnp.array([size, 0.0])}, state)
        >>> float(state.norm), float(state.limit), updates["W"].tolist()
        (1000.0, 3.25, [3.25, 0.0])

        ```
    """
    fraction = number(fraction, "adaptive_clip", "fraction")
    if not 0 < fraction < 1:
        raise ValueError(f"adaptive_clip: fraction must be in (0, 1), got {fraction!r}")
    history = size(history, "adaptive_clip", "history")
    warmup = size(warmup, "adaptive_clip", "warmup")
    if warmup > history:
        raise ValueError(f"adaptive_clip: warmup must be at most history = {history}, got {warmup}")
    clip_by_norm(None, first)  # a wrong bound is reported here

    def init(params: Any) -> AdaptiveClipState:
        del params
        scalar = jnp.zeros((), jnp.float32)
        return AdaptiveClipState(jnp.full(history, jnp.inf, jnp.float32), jnp.zeros((), jnp.int32), scalar, scalar)

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        del params
        limit = jnp.where(state.n < warmup, jnp.float32(first), _quantile(state, 1 - fraction))
        # Norms of zero alone (nothing to learn yet) would set a bound that nothing passes.
        limit = jnp.where(limit > 0, limit, jnp.float32(math.inf))
        clipped, norm = clip_by_norm(updates, limit)
        norm = norm.astype(jnp.float32)
        known = jnp.isfinite(norm)
        slot = state.n % history
        norms = state.norms.at[slot].set(jnp.where(known, norm, state.norms[slot]))
        return clipped, AdaptiveClipState(norms, state.n + known.astype(jnp.int32), norm, limit)

    return optax.GradientTransformation(init, update)


def _quantile(state: AdaptiveClipState, q: float) -> Array:
    """Of the norms known so far, interpolated linearly, as NumPy's default."""
    known = jnp.minimum(state.n, state.norms.shape[0])
    ordered = jnp.sort(state.norms)  # the unknown ones last
    place = jnp.float32(q) * (jnp.maximum(known, 1) - 1).astype(jnp.float32)
    below = jnp.floor(place).astype(jnp.int32)
    above = jnp.minimum(below + 1, jnp.maximum(known, 1) - 1)
    low, high = ordered[below], ordered[above]
    weight = place - below.astype(jnp.float32)
    return jnp.where(high > low, low + weight * (high - low), low)
