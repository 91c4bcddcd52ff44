"""Continuing sequences of tokens with any layer that reads tokens and gives logits."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Bool, Float, Int

from ._beam_search import search
from ._checks import check_flags, check_key, number, raise_if, size
from ._decoding import Generated, log_softmax, read_prompt, rest, with_room
from ._layer import SequenceLayer, require_streaming
from ._types import PRNGKey, State
from .layers import PerSample


def generate(
    model: SequenceLayer,
    prompt: Any,
    n_new: int,
    *,
    key: PRNGKey | None = None,
    mask: Any = None,
    state: State = None,
    temperature: Any = 0.0,
    top_k: int | None = None,
    top_p: Any = None,
    n_beams: int | None = None,
    length_penalty: Any = 0.0,
    stop: int | None = None,
    pad: int = 0,
) -> Generated:
    r"""Continues sequences of tokens: the most probable token each time, a drawn one, or beam search.

    The model is any layer that streams, reads integer tokens and gives the logits of the next token at every sample.
    The prompt is read in one `unroll`; then one loop takes a `step` a token, and ends when every row has stopped. Both
    are compiled once for each model configuration, shapes and integer options: other weights, keys, temperatures
    and values of `top_p` take the same program. Dropout is switched off.

    Growing caches become caches of fixed size, with room for what is to come; those of a given state too. A row's
    result depends neither on the other rows nor on where its masked samples stand. Random numbers are drawn for each
    row by its number in the batch: the same row elsewhere in a batch draws others.

    Arguments:
        model: a sequence layer with outputs `"*batch time n_tokens"`, such as a causal decoder or a recurrent network
            behind an embedding.
        prompt: the tokens to go on from, integers `"*batch time"`; at least one real token in every row, since the
            first new token is drawn from the logits at the last of them.
        n_new: number of new tokens.
        key: PRNG key, needed if `temperature` is not 0.
        mask: bool `"*batch time"`, True on real tokens; the others may stand anywhere. Default: all are real.
        state: the state before the prompt; default (None): `init_state`.
        temperature: divides the logits before a token is drawn. At 0 (default) the most probable token is taken.
        top_k: draw from the `top_k` most probable tokens alone (and those as probable as the last of them).
        top_p: draw from the fewest most probable tokens whose probabilities sum up to `top_p` at least, among those
            that `top_k` leaves. In (0, 1].
        n_beams: beam search with this many hypotheses a row. Each time, the best `n_beams` of their continuations are
            looked at: those that end in the stop symbol compete for the result, and the best `n_beams` of the others go
            on. The result is the best that has ended or has `n_new` tokens. Without temperature, `top_k` and `top_p`.
        length_penalty: hypotheses compete by `log_prob / length**length_penalty`; default 0, by their probability.
            Greater values favour longer ones.
        stop: the token that ends a row. Default: none does.
        pad: what stands behind it; default 0.

    Returns:
        A [`Generated`][sequinox.Generated]: tokens, their number, and the logarithm of their probability.

    Raises:
        TypeError: if the model does not stream, reads no tokens or gives no logits at every sample, or a dtype is
            wrong.
        ValueError: if an argument is out of range or missing, or a row has no real token; if logits are NaN or
            infinite. Also under `jit`, as the program runs.

    Sources: `top_k` from [Fan et al. 2018](https://arxiv.org/abs/1805.04833), section 5; `top_p` from [Holtzman et al.
    2020](https://arxiv.org/abs/1904.09751), section 3.1.

    ??? example

        ```python
        >>> import equinox as eqx, jax, jax.numpy as jnp, sequinox as sqx
        >>> k1, k2, k3 = jax.random.split(jax.random.key(0), 3)
        >>> model = sqx.Sequential([eqx.nn.Embedding(9, 4, key=k1), sqx.GRU(4, 8, k2), sqx.Dense(8, 9, k3)])
        >>> prompt = jnp.array([[1, 2, 3], [4, 5, 0]])
        >>> mask = jnp.array([[True, True, True], [True, True, False]])
        >>> sqx.generate(model, prompt, 5, mask=mask).tokens.shape
        (2, 5)
        >>> drawn = sqx.generate(model, prompt, 5, mask=mask, key=jax.random.key(1), temperature=0.8, top_p=0.9)
        >>> best = sqx.generate(model, prompt, 5, mask=mask, n_beams=4, stop=0)

        ```
    """
    who = "generate"
    n_tokens = _check_model(model, who)
    prompt, batch = model._check_samples(prompt, who, "prompt", time=True)
    mask = check_flags(mask, prompt.shape, who, "mask")
    n_new, fill = size(n_new, who, "n_new"), _token(pad, n_tokens, who, "pad")
    end = None if stop is None else _token(stop, n_tokens, who, "stop")
    prompt = _check_prompt(model, prompt, mask, who)
    model = eqx.nn.inference_mode(model)
    if state is not None:
        state = model._resolve_state(state, batch, model.dtype, who)
        state = with_room(state, prompt.shape[-1] + n_new)
    key = None if key is None else check_key(key, who)
    top_k = None if top_k is None else size(top_k, who, "top_k")
    greedy = _is_zero(temperature)
    temperature = _real(temperature, lambda v: v >= 0, who, "temperature", "at least 0")
    if top_p is not None:
        top_p = _real(top_p, lambda v: (v > 0) & (v <= 1), who, "top_p", "greater than 0 and at most 1")
    if n_beams is None:
        if not _is_zero(length_penalty):
            raise ValueError(f"{who}: length_penalty is for beam search: give n_beams")
        if greedy and (top_k is not None or top_p is not None):
            raise ValueError(
                f"{who}: top_k and top_p are for drawing tokens: give a temperature other than 0, and a key"
            )
        if not greedy and key is None:
            raise ValueError(f"{who}: a temperature other than 0 needs a key")
        draw = _Draw(None, None, None, None) if greedy else _Draw(key, temperature, top_k, top_p)
        found, bad = _sample(model, prompt, mask, state, draw, n_new, end, fill)
    else:
        n_beams = size(n_beams, who, "n_beams")
        if not greedy or top_k is not None or top_p is not None:
            raise ValueError(f"{who}: n_beams takes no temperature, top_k or top_p: beam search draws nothing")
        length_penalty = _real(length_penalty, lambda v: v == v, who, "length_penalty", "a number")
        found, bad = search(model, prompt, mask, state, length_penalty, n_new, n_beams, end, fill)
    return raise_if(found, bad, f"{who}: the model's logits are NaN or infinite (a token it does not know gives NaN)")


# ---- checks ----------------------------------------------------------------------------------------------------------


def _check_model(model: Any, who: str) -> int:
    """The number of tokens, of a model that can be asked for them."""
    if not isinstance(model, SequenceLayer):
        raise TypeError(f"{who}: model must be a sequence layer, got {type(model).__name__}")
    require_streaming(model, who)
    if not model.reads_tokens:
        raise TypeError(f"{who}: model must read integer tokens (begin with an eqx.nn.Embedding); it reads vectors")
    if model.pools:
        raise TypeError(f"{who}: model must give logits at every sample; it pools over time")
    if model.n_out is None:
        raise TypeError(f"{who}: model must tell its number of tokens, n_out; it is None")
    return model.n_out


def _check_prompt(model: SequenceLayer, prompt: Array, mask: Array | None, who: str) -> Array:
    """The prompt, if every row has a real token, and all are such as the embedding has."""
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
    """How many tokens the embedding in front has, if it can be told."""
    while model.inside:
        model = model.inside[0]
    known = isinstance(model, PerSample) and isinstance(model.function, eqx.nn.Embedding)
    return model.function.num_embeddings if known else None


def _token(value: Any, n_tokens: int, who: str, name: str) -> Int[Array, ""]:
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"{who}: {name} must be an integer, got {value!r}")
    if not 0 <= value < n_tokens:
        raise ValueError(f"{who}: {name} must be a token, at least 0 and less than {n_tokens}, got {value}")
    return jnp.asarray(value, jnp.int32)


def _real(value: Any, holds: Callable[[Any], Any], who: str, name: str, expected: str) -> Array:
    """A number, which may be traced, as an array: its value must not be baked into the program."""
    if isinstance(value, jax.Array | np.ndarray):
        real = jnp.issubdtype(value.dtype, jnp.floating) or jnp.issubdtype(value.dtype, jnp.integer)
        if value.shape != () or not real:
            raise TypeError(f"{who}: {name} must be a number, got an array of {value.dtype} {value.shape}")
        if isinstance(value, Tracer):
            value = value.astype(jnp.float32)
            return raise_if(value, ~holds(value), f"{who}: {name} must be {expected}")
        value = value.item()
    if not holds(number(value, who, name)):
        raise ValueError(f"{who}: {name} must be {expected}, got {value}")
    return jnp.asarray(value, jnp.float32)


def _is_zero(value: Any) -> bool:
    """Whether a number is known to be zero."""
    known = isinstance(value, int | float | np.number | np.ndarray | jax.Array) and not isinstance(value, Tracer)
    return known and np.shape(value) == () and float(value) == 0


# ---- one token after another -----------------------------------------------------------------------------------------


class _Draw(NamedTuple):
    """How a token is chosen: the most probable one if there is no key."""

    key: Array | None
    temperature: Array | None
    top_k: int | None
    top_p: Array | None

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


class _Rows(NamedTuple):
    """Where the rows stand after `t` new tokens, the last of which has not been read yet."""

    t: Array
    found: Generated
    token: Array
    done: Array
    bad: Array
    state: State


@eqx.filter_jit
def _sample(
    model: SequenceLayer,
    prompt: Array,
    mask: Array | None,
    state: State,
    draw: _Draw,
    n_new: int,
    stop: Array | None,
    pad: Array,
) -> tuple[Generated, Bool[Array, ""]]:
    """The new tokens, and whether logits were NaN."""

    def add(rows: _Rows, logits: Array, state: State) -> _Rows:
        t, (tokens, lengths, log_probs), done = rows.t, rows.found, rows.done
        log_p, nan = log_softmax(logits)
        token = draw(log_p, t)
        gain = jnp.take_along_axis(log_p, jnp.expand_dims(token, -1), -1)[..., 0]
        found = Generated(
            tokens.at[..., t].set(jnp.where(done, pad, token)),
            jnp.where(done, lengths, t + 1),
            jnp.where(done, log_probs, log_probs + gain),
        )
        bad = rows.bad | jnp.any(nan & ~done)
        if stop is not None:
            done = done | (token == stop)
            state = rest(state, done)
        return _Rows(t + 1, found, token, done, bad, state)

    def read(rows: _Rows) -> _Rows:
        return add(rows, *model.step(rows.token, rows.state))

    batch = prompt.shape[:-1]
    logits, state = read_prompt(model, prompt, mask, state, n_new)
    count = jnp.zeros(batch, jnp.int32)
    empty = Generated(jnp.full((*batch, n_new), pad, jnp.int32), count, count.astype(log_softmax(logits)[0].dtype))
    no = jnp.zeros((), bool)
    rows = add(_Rows(count.sum(dtype=jnp.int32), empty, count, jnp.zeros(batch, bool), no, ()), logits, state)
    go_on = lambda rows: (rows.t < n_new) & ~jnp.all(rows.done) & ~rows.bad
    rows = jax.lax.while_loop(go_on, read, rows)
    return rows.found, rows.bad
