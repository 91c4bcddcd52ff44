"""Continuing sequences of tokens with any layer that reads tokens and returns logits."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from .._checks import check_flags, check_key, raise_if, size
from .._layer import SequenceLayer
from .._types import ArrayLike, PRNGKey, State
from ._beam_search import search
from ._draw import Draw, Number, is_zero, make_draw, real
from ._generated import Generated, log_softmax, zero_counts
from ._prompt import as_token, check_model, check_prompt, read_prompt, with_room


def generate(
    model: SequenceLayer,
    prompt: ArrayLike,
    n_new: int,
    *,
    key: PRNGKey | None = None,
    mask: ArrayLike | None = None,
    state: State = None,
    temperature: Number = 0.0,
    top_k: int | None = None,
    top_p: Number | None = None,
    n_beams: int | None = None,
    length_penalty: Number = 0.0,
    stop: int | None = None,
    pad: int = 0,
) -> Generated:
    r"""Continues sequences of tokens: the most probable token each time, a drawn one, or beam search.

    The model is any layer that streams, reads integer tokens and returns the logits of the next token at every sample.
    The prompt is read in one `unroll`; then one loop takes a `step` a token, and ends when every row has stopped. Both
    are compiled once for each model configuration, shapes and integer options: other weights, keys, temperatures
    and values of `top_p` take the same program. Dropout is switched off.

    Growing caches become caches of fixed size, with room for what is to come; those of a given state too. A row's
    result depends neither on the other rows nor on where its masked samples are. Random numbers are drawn for each
    row by its number in the batch: the same row elsewhere in a batch draws others.

    Arguments:
        model: a sequence layer with outputs `"*batch time n_tokens"`, such as a causal decoder or a recurrent network
            after an embedding.
        prompt: the tokens to continue, integers `"*batch time"`; at least one real token in every row, since the
            first new token is drawn from the logits at the last of them.
        n_new: number of new tokens.
        key: PRNG key, needed if `temperature` is not 0.
        mask: bool `"*batch time"`, True on real tokens; the others may be anywhere. Default: all are real.
        state: the state before the prompt; default (None): `init_state`.
        temperature: divides the logits before a token is drawn. At 0 (default) the most probable token is taken.
        top_k: draw from the `top_k` most probable tokens alone (and those as probable as the last of them).
        top_p: draw from the fewest most probable tokens whose probabilities sum up to `top_p` at least, among those
            that `top_k` leaves. In (0, 1].
        n_beams: beam search with this many hypotheses a row. Of their best `n_beams` continuations, those that end in
            the stop symbol compete for the result; the best `n_beams` that do not end are continued. The result is the
            best that has ended or has `n_new` tokens. Without temperature, `top_k` and `top_p`.
        length_penalty: hypotheses compete by `log_prob / length**length_penalty`; default 0, by their probability.
            Greater values favour longer ones.
        stop: the token that ends a row. Default: none does.
        pad: the token after it; default 0.

    Returns:
        A [`Generated`][sequinox.Generated]: tokens, their number, and the logarithm of their probability.

    Raises:
        TypeError: if the model does not stream, reads no tokens or returns no logits at every sample, or a dtype is
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
    n_tokens = check_model(model, who)
    prompt, batch = model._check_samples(prompt, who, "prompt", time=True)
    mask = check_flags(mask, prompt.shape, who, "mask")
    n_new, fill = size(n_new, who, "n_new"), as_token(pad, n_tokens, who, "pad")
    end = None if stop is None else as_token(stop, n_tokens, who, "stop")
    prompt = check_prompt(model, prompt, mask, who)
    model = eqx.nn.inference_mode(model)
    if state is not None:
        state = model._resolve_state(state, batch, model.dtype, who)
        state = with_room(state, prompt.shape[-1] + n_new)
    key = None if key is None else check_key(key, who)
    if n_beams is None:
        if not is_zero(length_penalty):
            raise ValueError(f"{who}: length_penalty is for beam search: give n_beams")
        draw = make_draw(key, temperature, who, top_k, top_p)
        found, bad = _sample(model, prompt, mask, state, draw, n_new, end, fill)
    else:
        n_beams = size(n_beams, who, "n_beams")
        if not is_zero(temperature) or top_k is not None or top_p is not None:
            raise ValueError(f"{who}: n_beams takes no temperature, top_k or top_p: beam search draws nothing")
        penalty = real(length_penalty, lambda v: v == v, who, "length_penalty", "a number")
        found, bad = search(model, prompt, mask, state, penalty, n_new, n_beams, end, fill)
    return raise_if(found, bad, f"{who}: the model's logits are NaN or infinite (those of an unknown token are NaN)")


class _Rows(NamedTuple):
    """The rows after `t` new tokens; the last token is still to be read."""

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
    draw: Draw,
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
            state = zero_counts(state, done)
        return _Rows(t + 1, found, token, done, bad, state)

    def read(rows: _Rows) -> _Rows:
        return add(rows, *model.step(rows.token, rows.state))

    batch = prompt.shape[:-1]
    logits, state = read_prompt(model, prompt, mask, state, n_new)
    count = jnp.zeros(batch, jnp.int32)
    empty = Generated(jnp.full((*batch, n_new), pad, jnp.int32), count, count.astype(log_softmax(logits)[0].dtype))
    no = jnp.zeros((), bool)
    rows = add(_Rows(count.sum(dtype=jnp.int32), empty, count, jnp.zeros(batch, bool), no, ()), logits, state)
    unfinished = lambda rows: (rows.t < n_new) & ~jnp.all(rows.done) & ~rows.bad
    rows = jax.lax.while_loop(unfinished, read, rows)
    return rows.found, rows.bad
