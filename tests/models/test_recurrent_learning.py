"""The recurrent encoder-decoder learns to reverse short rows of symbols."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import sequinox as sqx

pytestmark = pytest.mark.usefixtures("unchecked_types")

KEY = jax.random.key(0)
N_TOKENS, BEGIN, LENGTH, N_ROWS = 6, 0, 4, 64  # symbols 1 to 5, sources of one to four of them


def task(key: Any) -> tuple[Any, Any, Any]:
    """Sources, their masks, and the sources reversed, with the first symbol again behind them."""
    k1, k2 = jax.random.split(key)
    source = jax.random.randint(k1, (N_ROWS, LENGTH), 1, N_TOKENS)
    length = jax.random.randint(k2, (N_ROWS, 1), 1, LENGTH + 1)
    t = jnp.broadcast_to(jnp.arange(LENGTH)[None], source.shape)
    back = jnp.take_along_axis(source, jnp.maximum(length - 1 - t, 0), 1)
    return source, t < length, back


@eqx.filter_jit
def trained(model: Any, n_steps: int) -> Any:
    arrays, rest = eqx.partition(model, eqx.is_inexact_array)
    optimiser = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-2))

    def loss(arrays: Any, key: Any) -> Any:
        model = eqx.combine(arrays, rest)
        source, real, back = task(key)
        read = jnp.concatenate([jnp.full((N_ROWS, 1), BEGIN), back[:, :-1]], 1)
        logits, _ = model.unroll(read, model.encode(source, mask=real), mask=real)
        each = optax.softmax_cross_entropy_with_integer_labels(logits, back)
        return jnp.sum(jnp.where(real, each, 0)) / jnp.sum(real)

    def step(carry: Any, key: Any) -> Any:
        arrays, opt = carry
        value, gradient = jax.value_and_grad(loss)(arrays, key)
        updates, opt = optimiser.update(gradient, opt)
        return (optax.apply_updates(arrays, updates), opt), value

    keys = jax.random.split(jax.random.key(1), n_steps)
    with jax.numpy_dtype_promotion("standard"):
        (arrays, _), _ = jax.lax.scan(step, (arrays, optimiser.init(arrays)), keys)
    return eqx.combine(arrays, rest)


@pytest.mark.thorough
@pytest.mark.parametrize("attention", [False, True], ids=["vector", "attention"])
def test_it_learns_to_reverse(attention: bool):
    net = sqx.recurrent_encoder_decoder(
        N_TOKENS, 32, N_TOKENS, KEY, tokens=True, attention=attention, implementation="scan"
    )
    model = trained(net, 400)
    source, real, back = task(jax.random.key(2))
    begin = jnp.full((N_ROWS, 1), BEGIN)
    found = sqx.generate(model, begin, LENGTH, state=model.encode(source, mask=real)).tokens
    right = np.all(np.asarray((found == back) | ~real), 1)
    assert right.mean() > 0.9
