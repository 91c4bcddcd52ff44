"""Unrolling a model over tokens of which it reads some from its own predictions."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._checks import check_flags
from .._layer import SequenceLayer, scan_time, select
from .._types import ArrayLike, PRNGKey, State
from ._draw import Draw, Number, is_zero, make_draw
from ._generated import log_softmax
from ._prompt import check_model, with_room


def unroll_forced(
    model: SequenceLayer,
    tokens: ArrayLike,
    forced: ArrayLike,
    state: State = None,
    *,
    mask: ArrayLike | None = None,
    resets: ArrayLike | None = None,
    key: PRNGKey | None = None,
    temperature: Number = 0.0,
) -> tuple[Float[Array, "*batch time n_tokens"], State]:
    r"""Unrolls a model over given tokens, or its own predictions in their place: teacher forcing, step by step.

    $$
    x_t = \begin{cases} y_t & \text{where } \texttt{forced}_t \\ \hat y_{t-1} & \text{elsewhere} \end{cases}
    $$

    Here $y_t$ is the given token and $\hat y_{t-1}$ the most probable token at the real sample before, or one that is
    drawn. With `forced` True everywhere this is `model.unroll(tokens)` (to rounding, since it steps), with False
    everywhere greedy generation. `jax.random.bernoulli(key, p, tokens.shape)` is a mixture of the two, and lowering `p`
    during training is scheduled sampling. A row's first real token, and the first after a reset, are always read as
    given, since nothing has been predicted yet.

    The model steps in one compiled scan, as in training (dropout stays on). Gradients flow through its state, not
    through the choice of a token. Growing caches become caches of fixed size.

    Source: [Bengio et al. 2015](https://arxiv.org/abs/1506.03099), section 2.4.

    Arguments:
        model: a sequence layer that streams, reads integer tokens and returns logits at every sample.
        tokens: what it reads where `forced` is True, integers `"*batch time"`: a symbol that begins the row, and the
            targets but the last. The logits at each are to predict the token after it.
        forced: bool `"*batch time"`.
        state: the state before the first token; default (None): `init_state`. Of an encoder-decoder,
            `model.encode(source)`.
        mask: bool `"*batch time"`, True on real tokens; default: all are real.
        resets: bool `"*batch time"`, True where the state starts afresh before the token is read.
        key: PRNG key, needed if `temperature` is not 0, or for dropout. Each step has its own.
        temperature: divides the logits before a token is drawn. At 0 (default) the most probable token is taken.

    Returns:
        The logits `"*batch time n_tokens"`, zeros at masked tokens, and each row's last state.

    Raises:
        TypeError: if the model does not stream, reads no tokens or returns no logits at every sample, or a dtype is
            wrong.
        ValueError: if a shape is wrong, or a key is missing.

    ??? example

        ```python
        >>> import jax, jax.numpy as jnp, sequinox as sqx
        >>> model = sqx.recurrent_encoder_decoder(3, 8, 11, jax.random.key(0))
        >>> tokens = jnp.array([[0, 3, 1, 4], [0, 5, 9, 2]])  # 0 begins a row
        >>> forced = jax.random.bernoulli(jax.random.key(1), 0.75, tokens.shape)
        >>> logits, state = sqx.unroll_forced(model, tokens, forced, model.encode(jnp.ones((2, 6, 3))))
        >>> logits.shape
        (2, 4, 11)

        ```
    """
    who = "unroll_forced"
    check_model(model, who)
    xs, batch, real, fresh, key = model._check_sequence(tokens, mask, resets, key, who)
    given = check_flags(forced, xs.shape, who, "forced")
    if given is None:
        raise TypeError(f"{who}: forced must be a boolean array, got None")
    draw_key = None
    if key is not None and not is_zero(temperature):
        draw_key, key = jax.random.split(key)
    draw = make_draw(draw_key, temperature, who)
    state = model._resolve_state(state, batch, model.dtype, who)
    state = with_room(state, xs.shape[-1])
    return _unroll(model, xs, given, state, real, fresh, key, draw)


@eqx.filter_jit
def _unroll(
    model: SequenceLayer,
    tokens: Array,
    forced: Array,
    state: State,
    mask: Array | None,
    resets: Array | None,
    key: Array | None,
    draw: Draw,
) -> tuple[Array, State]:
    model, key = model._draw_once(key)
    time = tokens.shape[-1]
    real = jnp.ones_like(forced) if mask is None else mask
    first_one = jnp.cumsum(real, -1) == 1  # and the masked ones after it
    given = forced | first_one if resets is None else forced | first_one | resets
    keys = None if key is None else jax.random.split(key, time)

    def body(carry: Any, inputs: Any) -> Any:
        guess, state = carry
        t, token, given, real, fresh, key = inputs
        y, state = model.step(jnp.where(given, token, guess), state, mask=real, resets=fresh, key=key)
        new = draw(log_softmax(y)[0], t).astype(guess.dtype)
        return (new if real is None else select(real, new, guess), state), y

    first = lambda a: None if a is None else jnp.moveaxis(a, -1, 0)
    inputs = (jnp.arange(time), *map(first, (tokens, given, mask, resets)), keys)
    (_, state), ys = scan_time(body, (jnp.zeros(tokens.shape[:-1], tokens.dtype), state), inputs)
    return jnp.moveaxis(ys, 0, -2), state
