"""What a training step costs: operations and memory against closed forms, time against a clock that is known."""

import itertools
import time
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import sequinox as sqx
from sequinox.train import (
    Batch,
    SequenceBatch,
    accumulate,
    memory_estimate,
    pad,
    profile,
    squared_error,
)
from sequinox.train.watch import _flops
from sequinox.train.watch._flops import count_flops, matmul_peak
from sequinox.train.watch._memory import si

pytestmark = pytest.mark.usefixtures("quick_compilation")

KEY = jax.random.key(0)
B, T, D, H, K = 7, 4, 3, 5, 2


def counted(function, *shapes):
    arrays = [jnp.ones(shape) if isinstance(shape, tuple) else shape for shape in shapes]
    flops = count_flops(jax.make_jaxpr(function)(*arrays))
    return flops.number, flops.uncounted


def of_layer(layer, *shape):
    """Operations of the forward pass, and of a loss with its gradient."""
    params, static = eqx.partition(layer, eqx.is_inexact_array)
    forward = lambda params, xs: eqx.combine(params, static)(xs)
    loss = lambda params, xs: jnp.sum(jnp.square(forward(params, xs)))
    return counted(forward, params, shape)[0], counted(jax.value_and_grad(loss), params, shape)[0]


@pytest.mark.parametrize("implementation", ["scan", "fused"])
def test_operations_of_recurrent_layers(implementation):
    """Forward, weight gradients, and what goes back through the states; samples have no gradient."""
    for cell, gates in ((sqx.RNN, 1), (sqx.GRU, 3), (sqx.LSTM, 4)):
        forward, step = of_layer(cell(D, H, KEY, implementation=implementation), B, T, D)
        assert forward == 2 * B * T * gates * H * (H + D)
        assert step == 2 * B * T * gates * H * ((H + D) + (H + D) + H)


def test_operations_of_a_network():
    """A layer behind another, and the head, pass the gradient on to what they read: three times the forward pass."""
    forward, step = of_layer(sqx.recurrent_net(D, H, K, KEY, n_layers=2, pool=None), B, T, D)
    one, two, head = (2 * B * T * products for products in (4 * H * (H + D), 4 * H * (H + H), K * H))
    assert forward == one + two + head
    assert step == (2 * one + 2 * B * T * 4 * H * H) + 3 * two + 3 * head


def test_operations_of_attention():
    """Four projections, scores and sums; backwards W_O is the one projection that passes a gradient to its input."""
    d, heads = 6, 2
    forward, step = of_layer(sqx.MultiHeadSelfAttention(d, heads, KEY), B, T, d)
    projection, scores = 2 * B * T * d * d, 2 * B * T * T * d
    assert forward == 4 * projection + 2 * scores
    assert step == forward + 4 * projection + projection + 2 * 2 * scores


@pytest.mark.parametrize(
    ("stride", "padding", "spread", "apart", "groups"),
    [(1, (2, 0), 1, 1, 1), (2, (1, 3), 1, 2, 1), (1, (2, 2), 3, 1, 1), (3, (0, 1), 2, 2, 2), (1, (-1, 0), 1, 1, 1)],
)
def test_operations_of_convolutions(stride, padding, spread, apart, groups):
    n, c_in, c_out, length, taps = 3, 4, 6, 11, 3
    layout = ("NCH", "OIH", "NCH")

    def convolve(x, w):
        return jax.lax.conv_general_dilated(
            x,
            w,
            (stride,),
            [padding],
            lhs_dilation=(spread,),
            rhs_dilation=(apart,),
            dimension_numbers=layout,
            feature_group_count=groups,
        )

    shapes = (n, c_in, length), (c_out, c_in // groups, taps)
    m = jax.eval_shape(convolve, *(jax.ShapeDtypeStruct(s, jnp.float32) for s in shapes)).shape[2]
    real = {i * spread for i in range(length)}
    pairs = sum(o * stride + k * apart - padding[0] in real for o, k in itertools.product(range(m), range(taps)))
    assert counted(convolve, *shapes) == (2 * n * c_out * (c_in // groups) * pairs, ())


def test_operations_of_two_axes_and_of_the_gradient():
    """XLA's own analysis is right where there is no loop; it also counts what is elementwise."""
    x, w = jnp.ones((2, 3, 7, 5)), jnp.ones((4, 3, 3, 2))
    convolve = lambda x, w: jax.lax.conv_general_dilated(x, w, (2, 1), [(1, 2), (0, 1)])
    for f, *arguments in (
        (convolve, x, w),
        (jax.value_and_grad(lambda x, w: jnp.sum(convolve(x, w) ** 2), argnums=(0, 1)), x, w),
        (lambda a, b: jnp.einsum("bij,bkj->bik", a, b), jnp.ones((2, 3, 5)), jnp.ones((2, 4, 5))),
    ):
        analysis: Any = jax.jit(f).lower(*arguments).compile().cost_analysis()
        number = counted(f, *arguments)[0]
        assert number <= analysis["flops"] < 1.2 * number


def test_loops_conditions_and_complex_numbers():
    a = jnp.ones((3, 3))
    scan = lambda a: jax.lax.scan(lambda h, _: (h @ a, None), a, None, length=5)[0]
    assert counted(scan, a) == (5 * 2 * 27, ())
    assert counted(lambda a: jax.lax.scan(lambda h, _: (scan(h), None), a, None, length=4)[0], a) == (20 * 2 * 27, ())
    branch = lambda a: jax.lax.cond(jnp.sum(a) > 0, lambda: a @ a @ a, lambda: a @ a)
    assert counted(branch, a) == (2 * 2 * 27, ())
    unknown = lambda a: jax.lax.while_loop(lambda h: jnp.sum(h) > 0, lambda h: h @ a, a)
    assert counted(unknown, a) == (2 * 27, ("while",))
    assert counted(jax.checkpoint(lambda a: jnp.tanh(a @ a)), a) == (2 * 27, ())
    assert counted(lambda a: a @ a, a.astype(complex)) == (8 * 27, ())
    mixed = count_flops(jax.make_jaxpr(lambda a: (a @ a, a.astype(jnp.bfloat16) @ a.astype(jnp.bfloat16)))(a))
    assert mixed.by_dtype == {jnp.dtype(jnp.float32): 54, jnp.dtype(jnp.bfloat16): 54}


# ---- memory ----------------------------------------------------------------------------------------------------------


def test_memory_of_the_lecture():
    """A plain network at B=32, T=100, d=300, H=512, K=10000: nothing is allocated."""
    make = lambda key: sqx.recurrent_net(300, 512, 10_000, key, cell="rnn", pool=None)
    found = memory_estimate(eqx.filter_eval_shape(make, KEY), 32, 100)
    parameters = 512 * (300 + 512 + 1) + 10_000 * (512 + 1)
    assert found.states == 32 * 100 * 512 * 4 == round(6.5536e6)
    assert found.inputs == 32 * 100 * 300 * 4 == round(3.84e6)
    assert found.outputs == 32 * 100 * 10_000 * 4 == round(128e6)
    assert found.weights + found.gradients + found.optimiser == 4 * parameters * 4 + 4  # Adam counts its steps
    assert round((found.weights + found.gradients + found.optimiser) / 1e6) == 89
    assert found.total == sum(found)
    shown = dict(line.split(maxsplit=1) for line in str(found).splitlines())
    assert (shown["states"], shown["inputs"], shown["outputs"]) == ("6.55 MB", "3.84 MB", "128 MB")


def test_memory_by_layer():
    estimate = lambda model, **options: memory_estimate(model, B, T, **options)
    lstm = estimate(sqx.LSTM(D, H, KEY, dtype=jnp.bfloat16), optimiser=optax.sgd(0.1))
    assert (lstm.states, lstm.inputs, lstm.outputs) == (2 * B * T * 2 * H, 2 * B * T * D, 2 * B * T * H)
    assert lstm.optimiser == 0
    # Pooling keeps the last output, once.
    assert estimate(sqx.recurrent_net(D, H, K, KEY, cell="gru")).states == 4 * B * (T * H + H)
    assert estimate(sqx.recurrent_net(D, H, K, KEY, cell="gru")).outputs == 4 * B * K
    both = sqx.Bidirectional(sqx.GRU(D, H, KEY), sqx.Residual(sqx.GRU(D, D, KEY)))
    assert estimate(both).states == 4 * B * T * (H + D)
    stack = sqx.Stack([sqx.GRU(H, H, KEY)] * 3)
    assert estimate(stack).states == 4 * B * T * 3 * H
    # A window of the two samples before, once; a cache of keys and values, with its count.
    assert estimate(sqx.Conv1d(D, H, 3, KEY)).states == 4 * B * 2 * D
    assert estimate(sqx.MultiHeadSelfAttention(6, 2, KEY, causal=True)).states == 4 * B * (2 * T * 6 + 1)
    tokens = estimate(sqx.Sequential([eqx.nn.Embedding(11, D, key=KEY), sqx.GRU(D, H, KEY)]))
    assert (tokens.inputs, tokens.states) == (4 * B * T, 4 * B * T * H)
    assert estimate(sqx.LRU(D, H, KEY)).states == 8 * B * T * H  # complex


@pytest.mark.parametrize(
    ("number", "shown"),
    [(6_553_600, "6.55 MB"), (999.6, "1 kB"), (999, "999 B"), (0, "0 B"), (1.25e-5, "12.5 µB"), (3.2e12, "3.2 TB")],
)
def test_numbers_as_text(number, shown):
    assert si(number, "B") == shown


@pytest.mark.usefixtures("unchecked_types")
@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((sqx.GRU(D, H, KEY), 0, 4), ValueError, "batch_size must be at least 1, got 0"),
        ((sqx.GRU(D, H, KEY), 7, 4.0), TypeError, "time must be an integer, got 4.0"),
        ((sqx.GRU(D, H, KEY), True, 4), TypeError, "batch_size must be an integer, got True"),
        ((eqx.nn.Linear(D, H, key=KEY), 7, 4), TypeError, "model must be a sequence layer, got Linear"),
        ((sqx.MeanOverTime(), 7, 4), ValueError, "any width"),
    ],
)
def test_memory_of_wrong_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        memory_estimate(*arguments)


# ---- the profile -----------------------------------------------------------------------------------------------------


def test_profile_of_a_layer():
    model = sqx.recurrent_net(D, H, K, KEY, cell="gru", dropout=0.5)
    before = [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(model) if eqx.is_array(leaf)]
    padded = pad([np.ones((n, D), np.float32) for n in (4, 0, 2, 3, 1, 4, 4)])
    found = profile(model, padded, repeats=2)

    assert [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(model) if eqx.is_array(leaf)] == before
    gru, head = 2 * B * T * 3 * H * (H + D), 2 * B * K * H
    assert found.forward is not None and found.forward.flops == gru + head
    assert found.step.flops == 2 * gru + 2 * B * T * 3 * H * H + 3 * head
    assert found.step.flops_per_second == found.step.flops / found.step.seconds
    assert found.estimate == memory_estimate(model, B, T)
    assert found.dtype == "float32"
    # Weights, two moments, the batch; two counters, a key for the step.
    assert found.memory is not None and found.estimate is not None
    known = 3 * found.estimate.weights + padded.inputs.nbytes + padded.mask.nbytes
    assert known < found.memory.arguments <= known + 32
    assert found.memory.reused >= 3 * found.estimate.weights
    made = found.memory
    assert made.total == made.arguments + made.outputs - made.reused + made.temporary

    text = str(found)
    rows = {line.split("  ")[0]: line.split() for line in text.splitlines() if line}
    assert rows["products"][-4:] == f"{si(found.forward.flops, 'FLOP')} {si(found.step.flops, 'FLOP')}".split()
    assert rows["time"][-4:] == f"{si(found.forward.seconds, 's')} {si(found.step.seconds, 's')}".split()
    assert rows["total"][1:3] == si(found.estimate.total, "B").split()
    assert rows["total"][-2:] == si(found.memory.total, "B").split()


def test_time_is_that_of_a_clock():
    """The objective sleeps, on the host and in the middle of the program."""
    models = []

    def nap(x):
        time.sleep(0.05)
        return x

    def objective(model, batch, key):
        models.append(model)
        late = jax.pure_callback(nap, jax.ShapeDtypeStruct((), jnp.float32), jnp.float32(1))
        return squared_error(model(batch["x"], key=key) * late, batch["y"]), {}

    model = eqx.nn.inference_mode(sqx.Sequential([sqx.Dropout(0.5), sqx.Dense(D, K, KEY)]))
    found = profile(
        model, {"x": np.ones((B, T, D), np.float32), "y": jnp.ones((B, T, K))}, objective=objective, repeats=3
    )
    assert found.forward is not None
    assert 0.05 <= found.forward.seconds < 0.5
    assert 0.05 <= found.step.seconds < 0.5
    assert found.forward.flops == 2 * B * T * K * D
    assert found.step.flops == 2 * found.forward.flops
    assert found.estimate is None  # a batch of the caller's own
    assert models and all(m.layers[0].inference for m in models)


def test_profile_of_a_gradient_function():
    def objective(model, batch, key):
        return squared_error(model(batch.inputs, mask=batch.mask), batch.targets, batch.mask), {}

    inputs, mask = jnp.ones((6, T, D)), jnp.ones((6, T), bool)
    batch = SequenceBatch(inputs, jnp.ones((6, T, K)), mask, None, None)
    found = profile(
        sqx.Dense(D, K, KEY), batch, objective=accumulate(objective, 3), repeats=1, optimiser=optax.sgd(1.0)
    )
    assert found.forward is None
    assert found.step.flops == 2 * 2 * 6 * T * D * K
    assert "forward" not in str(found).splitlines()[0]
    assert found.estimate is not None and found.estimate.optimiser == 0


def test_peak_is_the_best_rate_of_sizes_that_are_long_enough(monkeypatch):
    taken = iter([[0.002, 0.001], [0.004, 0.002], [0.03, 0.04], [0.0]])
    monkeypatch.setattr(_flops, "run_seconds", lambda run, repeats: next(taken))
    device = jax.devices()[0]
    with jax.default_matmul_precision("highest"):  # a place of its own in the cache
        assert matmul_peak(device, jnp.float16) == max(2 * 256**3 / 0.001, 2 * 512**3 / 0.002, 2 * 1024**3 / 0.03)
        assert matmul_peak(device, jnp.float16) > 0  # measured once: the clock has run out


@pytest.mark.usefixtures("unchecked_types")
@pytest.mark.parametrize(
    ("model", "batch", "options", "error", "message"),
    [
        (sqx.GRU(D, H, KEY), jnp.ones((B, T, D)), {"repeats": 0}, ValueError, "repeats must be at least 1, got 0"),
        (sqx.GRU(D, H, KEY), jnp.ones((B, T, D)), {"repeats": 1.5}, TypeError, "repeats must be an integer, got 1.5"),
        (sqx.GRU(D, H, KEY), jnp.ones((B, T, D)), {"key": 3}, TypeError, "key"),
        (sqx.GRU(D, H, KEY), {"x": 1}, {}, TypeError, "batch must be a SequenceBatch.*got dict"),
        (sqx.GRU(D, H, KEY), Batch(np.ones((B, T, D)), np.ones(B, bool)), {}, TypeError, "got Batch"),
        (sqx.GRU(D, H, KEY), jnp.ones((B, T, D + 1)), {}, ValueError, "xs must have shape"),
        (eqx.nn.Linear(D, H, key=KEY), jnp.ones((B, T, D)), {}, TypeError, "a sequence layer, got Linear"),
        (sqx.MeanOverTime(), jnp.ones((B, T, D)), {}, ValueError, "no floating or complex array to train"),
    ],
)
def test_wrong_arguments(model, batch, options, error, message):
    with pytest.raises(error, match=message):
        profile(model, batch, **options)


def test_an_objective_with_a_carry():
    """The products of a stretch of 6 from a state: as of the LSTM alone, forwards 2 B T 4 H (H + d)."""
    rows, time, d, n = 2, 6, 3, 5
    model = sqx.LSTM(d, n, jax.random.key(0))

    def objective(model, batch, key, carry):
        ys, carry = model.unroll(batch, carry)
        return squared_error(ys, jnp.zeros_like(ys)), {}, carry

    batch = jnp.ones((rows, time, d))
    report = profile(model, batch, objective=objective, carry=model.init_state(rows), repeats=1)
    assert report.forward is not None and report.forward.flops == 2 * rows * time * 4 * n * (n + d)
    with pytest.raises(ValueError, match="a carry needs an objective"):
        profile(model, batch, carry=model.init_state(rows), repeats=1)
