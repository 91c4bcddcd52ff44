"""Beam search: the best of several continuations that are kept at a time."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from .._layer import SequenceLayer, select
from .._types import State
from ._generated import Generated, log_softmax, zero_counts
from ._prompt import read_prompt


class _Best(NamedTuple):
    """The best hypothesis of a row that has ended."""

    found: Generated
    score: Float[Array, "*batch"]


class _Beams(NamedTuple):
    """The hypotheses that have not ended, best first, after `t` tokens; the last token is still to be read."""

    t: Array
    tokens: Int[Array, "*batch beams n_new"]
    log_probs: Float[Array, "*batch beams"]
    parent: Int[Array, "*batch beams"]
    """The hypothesis that each continues, whose state it takes."""
    best: _Best
    bad: Array
    state: State


@eqx.filter_jit
def search(
    model: SequenceLayer,
    prompt: Array,
    mask: Array | None,
    state: State,
    length_penalty: Array,
    n_new: int,
    n_beams: int,
    stop: Array | None,
    pad: Array,
) -> tuple[Generated, Bool[Array, ""]]:
    """The best hypothesis of each row, and whether logits were NaN."""
    batch = prompt.shape[:-1]
    logits, state = read_prompt(model, prompt, mask, state, n_new)
    pick = lambda a, i: a.at[i].get(mode="promise_in_bounds")
    for _ in batch:  # of the axis after the batch axes
        pick = jax.vmap(pick)
    copies = lambda a: jnp.broadcast_to(jnp.expand_dims(a, len(batch)), (*batch, n_beams, *a.shape[len(batch) :]))

    def score(log_probs: Array, length: Any) -> Array:
        penalty = length_penalty.astype(log_probs.dtype)
        return log_probs / jnp.asarray(length, log_probs.dtype) ** penalty

    def better(best: _Best, found: Generated, length: Any) -> _Best:
        new = _Best(found, score(found.log_probs, length))
        return select(new.score > best.score, new, best)

    def add(beams: _Beams, logits: Array, state: State) -> _Beams:
        t, tokens, best = beams.t, beams.tokens, beams.best
        log_p, nan = log_softmax(logits)
        bad = beams.bad | jnp.any(nan & (beams.log_probs > -jnp.inf))
        n_tokens = log_p.shape[-1]
        total = jnp.broadcast_to(jnp.expand_dims(beams.log_probs, -1), log_p.shape) + log_p
        total = jnp.where(jnp.isnan(total), -jnp.inf, total).reshape(*batch, n_beams * n_tokens)
        # Of each hypothesis one continuation ends: among twice n_beams are the best n_beams that do not.
        log_probs, i = jax.lax.top_k(total, n_beams if stop is None else min(2, n_tokens) * n_beams)
        parent, token = i // n_tokens, i % n_tokens
        if stop is not None:
            ends, counted = token == stop, jnp.arange(i.shape[-1]) < n_beams
            ended = jnp.where(ends & jnp.broadcast_to(counted, ends.shape), log_probs, -jnp.inf)
            j = jnp.argmax(ended, -1)
            whole = pick(tokens, pick(parent, j)).at[..., t].set(stop)
            best = better(best, Generated(whole, jnp.full(batch, t + 1), pick(ended, j)), t + 1)
            log_probs, j = jax.lax.top_k(jnp.where(ends, -jnp.inf, log_probs), n_beams)
            parent, token = pick(parent, j), pick(token, j)
            # A log-probability only falls, so this is the best score still possible; if it is too low, the row is done.
            length = jnp.where(length_penalty >= 0, n_new, jnp.minimum(t + 2, n_new))
            done = best.score >= score(log_probs[..., 0], length)
            done = jnp.broadcast_to(jnp.expand_dims(done, -1), log_probs.shape)
            log_probs = jnp.where(done, -jnp.inf, log_probs)
            state = zero_counts(state, done)
        tokens = pick(tokens, parent).at[..., t].set(token)
        return _Beams(t + 1, tokens, log_probs, parent, best, bad, state)

    def read(beams: _Beams) -> _Beams:
        state = jax.tree.map(lambda a: pick(a, beams.parent), beams.state)
        token = jax.lax.dynamic_index_in_dim(beams.tokens, beams.t - 1, -1, keepdims=False)
        return add(beams, *model.step(token, state))

    dtype = log_softmax(logits)[0].dtype
    nothing = jnp.full(batch, -jnp.inf, dtype)
    empty = Generated(jnp.full((*batch, n_new), pad, jnp.int32), jnp.full(batch, n_new, jnp.int32), nothing)
    first = jnp.where(jnp.arange(n_beams) == 0, jnp.zeros((), dtype), -jnp.inf)  # the others are copies of it
    beams = _Beams(
        jnp.zeros((), jnp.int32),
        copies(empty.tokens),
        jnp.broadcast_to(first, (*batch, n_beams)),
        jnp.zeros((*batch, n_beams), jnp.int32),
        _Best(empty, nothing),
        jnp.zeros((), bool),
        (),
    )
    beams = add(beams, copies(logits), jax.tree.map(copies, state))
    unfinished = lambda beams: (beams.t < n_new) & jnp.any(beams.log_probs > -jnp.inf) & ~beams.bad
    beams = jax.lax.while_loop(unfinished, read, beams)
    whole = Generated(beams.tokens[..., 0, :], empty.lengths, beams.log_probs[..., 0])
    return better(beams.best, whole, n_new).found, beams.bad
