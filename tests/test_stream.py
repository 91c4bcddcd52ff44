"""A layer in a stream against the whole sequence."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sequinox as sqx

pytestmark = pytest.mark.usefixtures("quick_compilation")


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


# ---- caches ----------------------------------------------------------------------------------------------------------


def decoder(**options) -> sqx.Sequential:
    k1, k2 = jax.random.split(jax.random.key(0))
    attention = sqx.MultiHeadSelfAttention(4, 2, k1, causal=True, **options)
    return sqx.Sequential([sqx.AddPositions(4), attention, sqx.Dropout(0.5), sqx.Dense(4, 2, k2)])


def slots(stream: sqx.Stream) -> int:
    return stream.state[1].k.shape[-2]


def test_growing_caches_double():
    model, sizes = decoder(), set()
    xs = jax.random.normal(jax.random.key(1), (40, 4))
    stream = sqx.Stream(model)
    assert isinstance(stream.state[1], sqx.KVCache)
    ys = []
    for x in xs:
        ys.append(stream(x))
        sizes.add(slots(stream))
    np.testing.assert_allclose(jnp.stack(ys), eqx.nn.inference_mode(model)(xs), atol=1e-5)
    assert sizes == {16, 32, 64}
    step: Any = stream._step_in_place
    assert step._cache_size() == 3
    stream.reset()
    assert slots(stream) == 16
    np.testing.assert_allclose(jnp.stack([stream(x) for x in xs]), jnp.stack(ys), atol=1e-5)
    assert step._cache_size() == 3


def test_capacity_to_begin_with():
    stream = sqx.Stream(decoder(), 2, capacity=3)
    sizes = []
    for _ in range(7):
        stream(jnp.ones((2, 4)))
        sizes.append(slots(stream))
    assert sizes == [3, 3, 3, 6, 6, 6, 12]
    sqx.Stream(net(), capacity=3)(jnp.ones(3))  # has no caches
    with pytest.raises(ValueError, match="Stream: capacity must be at least 1, got 0"):
        sqx.Stream(decoder(), capacity=0)


def test_samples_that_leave_the_caches_take_no_room():
    xs = jax.random.normal(jax.random.key(1), (2, 12, 4))
    mask = jnp.array([[True, False] * 6, [True] * 12])
    resets = jnp.zeros((2, 12), bool).at[1, 3::3].set(True)
    model, stream = decoder(), sqx.Stream(decoder(), 2, capacity=4)
    ys = [stream(xs[:, t], mask=mask[:, t], resets=resets[:, t]) for t in range(7)]
    assert slots(stream) == 4
    ys += [stream(xs[:, t], mask=mask[:, t], resets=resets[:, t]) for t in range(7, 12)]
    assert slots(stream) == 8
    expected = eqx.nn.inference_mode(model)(xs, mask=mask, resets=resets)
    np.testing.assert_allclose(jnp.stack(ys, 1), expected, atol=1e-5)


@pytest.mark.thorough
def test_a_state_with_caches_can_be_kept_and_assigned():
    xs = jax.random.normal(jax.random.key(1), (30, 4))
    stream = sqx.Stream(decoder())
    for x in xs[:10]:
        stream(x)
    kept = stream.state
    after = jnp.stack([stream(x) for x in xs[10:]])
    assert int(kept[1].n) == 10  # not overwritten by the steps that came after
    stream.state = kept
    np.testing.assert_allclose(jnp.stack([stream(x) for x in xs[10:]]), after, atol=1e-5)
    again = sqx.Stream(decoder(), state=kept, capacity=11)  # with a capacity it may grow
    np.testing.assert_allclose(jnp.stack([again(x) for x in xs[10:]]), after, atol=1e-5)
    _, grown = eqx.nn.inference_mode(decoder()).unroll(xs[:10])
    given = sqx.Stream(decoder(), state=grown)
    np.testing.assert_allclose(jnp.stack([given(x) for x in xs[10:]]), after, atol=1e-5)
    given.reset()
    np.testing.assert_allclose(given(xs[10]), after[0], atol=1e-5)


def test_a_cache_of_fixed_size_keeps_it():
    model = decoder()
    stream = sqx.Stream(model, state=sqx.with_capacity(model.init_state(), 3))
    for _ in range(3):
        stream(jnp.ones(4))
    with pytest.raises(Exception, match="the cache is full: it has 3 slots"):
        jax.block_until_ready(stream(jnp.ones(4)))


def test_a_ring_takes_no_room():
    model, xs = decoder(window=3), jax.random.normal(jax.random.key(1), (20, 4))
    stream = sqx.Stream(model)
    ys = jnp.stack([stream(x) for x in xs])
    assert slots(stream) == 4
    np.testing.assert_allclose(ys, eqx.nn.inference_mode(model)(xs), atol=1e-5)


def test_an_error_in_a_stream_says_so_until_it_is_reset():
    key = jax.random.key(0)
    run = sqx.Stream(sqx.Sequential([sqx.AddLearnedPositions(8, 2, key), sqx.MultiHeadSelfAttention(8, 2, key, True)]))
    x = jnp.ones(8)
    first = run(x)
    run(x)
    with pytest.raises(Exception, match="longer than max_len=2"):
        jax.block_until_ready(run(x))
    with pytest.raises(RuntimeError, match="reset"):
        run(x)
    run.reset()
    np.testing.assert_array_equal(run(x), first)


# ---- what an error takes with it -------------------------------------------------------------------------------------

WRONG: dict[str, tuple[Any, dict[str, Any]]] = {
    "shape": (jnp.ones((2, 5)), {}),
    "rank": (jnp.ones(4), {}),
    "dtype": (jnp.ones((2, 4), jnp.bfloat16), {}),
    "list": ([[1.0] * 4] * 2, {}),
    "mask of another shape": (jnp.ones((2, 4)), {"mask": jnp.ones(3, bool)}),
    "mask of integers": (jnp.ones((2, 4)), {"mask": jnp.ones(2, int)}),
    "resets of another shape": (jnp.ones((2, 4)), {"resets": jnp.ones((2, 1), bool)}),
}


@pytest.mark.usefixtures("unchecked_types")
def test_a_state_is_not_given_up_before_the_arguments_are_checked():
    xs = jax.random.normal(jax.random.key(1), (3, 2, 4))
    stream, expected = sqx.Stream(decoder(), 2, capacity=4), sqx.Stream(decoder(), 2, capacity=4)
    stream(xs[0])
    expected(xs[0])
    for x, flags in WRONG.values():
        with pytest.raises((ValueError, TypeError), match=r"must have shape|has dtype|must be a JAX|must be boolean"):
            stream(x, **flags)
    np.testing.assert_array_equal(stream(xs[1]), expected(xs[1]))
    assert slots(stream) == 4  # nor is there room lost
    np.testing.assert_array_equal(stream(xs[2]), expected(xs[2]))


def test_a_stream_goes_on_after_ctrl_c_while_a_step_is_compiled(monkeypatch: pytest.MonkeyPatch):
    stream, x = sqx.Stream(decoder(), capacity=4), jnp.ones(4)
    first = np.asarray(stream(x))
    step: Any = stream._step_in_place

    def interrupted(*args: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(stream, "_step_in_place", interrupted)
    with pytest.raises(KeyboardInterrupt):
        stream(x)
    monkeypatch.setattr(stream, "_step_in_place", step)
    expected = sqx.Stream(decoder(), capacity=4)
    np.testing.assert_array_equal(first, expected(x))
    np.testing.assert_array_equal(stream(x), expected(x))
