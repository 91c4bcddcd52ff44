"""A layer in a stream against the whole sequence."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sequinox as sqx


def net(**options) -> sqx.Sequential:
    return sqx.recurrent_net(3, 4, 2, jax.random.key(0), n_layers=2, **options)


def test_stream_equals_forward_and_keeps_its_state():
    xs = jax.random.normal(jax.random.key(1), (6, 3))
    model = net()
    stream = sqx.Stream(model)
    for t in range(6):
        y = stream(np.asarray(xs[t]))
        np.testing.assert_allclose(y, model(xs[: t + 1]), atol=1e-6)
    stream.reset()
    np.testing.assert_allclose(stream(xs[0]), model(xs[:1]), atol=1e-6)


def test_batch_of_streams_with_mask_and_resets():
    xs = jax.random.normal(jax.random.key(1), (2, 5, 3))
    mask = jnp.array([[True, False, True, True, True], [True, True, True, False, False]])
    resets = jnp.array([[False, False, False, True, False], [False, True, False, False, False]])
    model = net(cell="gru", pool=None)
    stream = sqx.Stream(model, 2)
    ys = [stream(xs[:, t], mask=mask[:, t], resets=resets[:, t]) for t in range(5)]
    np.testing.assert_allclose(jnp.stack(ys, 1), model(xs, mask=mask, resets=resets), atol=1e-6)


def test_a_state_can_be_taken_out_and_put_back():
    xs = jax.random.normal(jax.random.key(1), (4, 3))
    stream = sqx.Stream(net())
    stream(xs[0])
    kept = stream.state
    after = [stream(x) for x in xs[1:]]
    again = sqx.Stream(net(), state=kept)
    np.testing.assert_array_equal(jnp.stack(after), jnp.stack([again(x) for x in xs[1:]]))


def test_dropout_is_off():
    x = jnp.ones(3)
    model = net(dropout=0.5)
    np.testing.assert_allclose(sqx.Stream(model)(x), eqx.nn.inference_mode(model)(x[None]), atol=1e-6)


def test_refuses_what_does_not_stream():
    both = net(bidirectional=True)
    with pytest.raises(TypeError, match=r"Stream: this layer does not stream: Bidirectional reads") as stream_error:
        sqx.Stream(both)
    with pytest.raises(TypeError) as step_error:
        both.step(jnp.ones(3))
    assert str(stream_error.value).split(": ", 1)[1] == str(step_error.value).split(": ", 1)[1]
