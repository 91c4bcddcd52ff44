"""temporal_conv_net and wavenet: what they are made of, what their head reads, how far they see, generation."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sequinox as sqx

pytestmark = pytest.mark.usefixtures("quick_compilation", "unchecked_types")

KEY = jax.random.key(0)
XS = jnp.asarray(np.random.default_rng(0).normal(size=(4, 6, 3)), jnp.float32)
MASK = np.arange(6) < np.array([6, 0, 2, 4])[:, None]


def names(net: Any) -> list[str]:
    return [type(la).__name__ for la in net]


def test_its_layers():
    shapes: Any = lambda channels, **options: eqx.filter_eval_shape(
        lambda: sqx.temporal_conv_net(3, channels, 2, KEY, **options)
    )
    net = shapes([5, 4, 4], kernel_size=3, dropout=0.1)
    assert names(net) == ["TemporalBlock"] * 3 + ["LastStep", "Dense"]
    assert [(b.n_in, b.n_out, b.first.dilation, b.second.dilation) for b in net[:3]] == [
        (3, 5, 1, 1), (5, 4, 2, 2), (4, 4, 4, 4),
    ]  # fmt: skip
    assert all(b.dropout.p == 0.1 and b.first.kernel_size == 3 and b.first.g is not None for b in net[:3])
    assert net.receptive_field == 1 + 2 * 2 * (1 + 2 + 4)
    plain = shapes((5,), pool=None, weight_norm=False)
    assert names(plain) == ["TemporalBlock", "Dense"] and plain[0].first.g is None


@eqx.filter_jit
def read(net: Any, xs: Any, mask: Any = None) -> Any:
    return net(xs, mask=mask)


@pytest.mark.parametrize("pool", ["last", "mean", None])
def test_what_the_head_reads(pool: Any):
    net: Any = sqx.temporal_conv_net(3, [5, 4], 2, KEY, pool=pool)
    hs = np.asarray(read(net[1], read(net[0], XS, MASK), MASK))
    lengths = MASK.sum(1)
    last = np.stack([h[n - 1] if n else np.zeros(4) for h, n in zip(hs, lengths, strict=True)])
    seen = {"last": last, "mean": hs.sum(1) / np.maximum(lengths, 1)[:, None], None: hs}[pool]
    expected = seen @ np.asarray(net[-1].W).T
    np.testing.assert_allclose(
        read(net, XS, MASK), np.where(MASK[..., None], expected, 0) if pool is None else expected, atol=1e-6
    )


def reached(net: Any, n_in: int, time: int) -> Any:
    xs = jnp.asarray(np.random.default_rng(2).normal(size=(time, n_in)), jnp.float32)
    gradient = eqx.filter_jit(jax.grad(lambda xs: jnp.sum(net(xs)[-1] * jnp.arange(1.0, 1 + net.n_out))))(xs)
    return np.asarray(gradient).any(1).tolist()


def test_how_far_a_temporal_conv_net_sees():
    net = sqx.temporal_conv_net(2, [16, 16, 16], 2, KEY, pool=None)
    field = 1 + 2 * (1 + 2 + 4)
    assert net.receptive_field == field
    assert reached(net, 2, 20) == [False] * (20 - field) + [True] * field


def test_ten_layers_of_a_wavenet_see_1024_samples():
    net = sqx.wavenet(1, 8, 2, KEY)
    assert net.receptive_field == 1024
    assert reached(net, 1, 1030) == [False] * 6 + [True] * 1024


def test_two_stacks_and_a_convolution_in_front():
    net, field = sqx.wavenet(3, 8, 2, KEY, n_layers=2, n_stacks=2, kernel_size=3, first_kernel_size=4), 16
    assert names(net) == ["Conv1d", "WaveNet", "PerSample", "Dense", "PerSample", "Dense"]
    assert net.receptive_field == field
    assert reached(net, 3, 20) == [False] * (20 - field) + [True] * field


def test_the_head_of_a_wavenet():
    """Rectifier, dense, rectifier, dense, on the sum of the skip connections."""
    net: Any = sqx.wavenet(3, 8, 2, KEY, n_layers=2, n_skip=7)
    skips = np.asarray(read(net[1], read(net[0], XS)))
    assert skips.shape == (4, 6, 7)
    hidden = np.maximum(np.maximum(skips, 0) @ np.asarray(net[3].W).T, 0)
    np.testing.assert_allclose(read(net, XS), hidden @ np.asarray(net[5].W).T, atol=1e-6)


@pytest.fixture(scope="module")
def language_model() -> Any:
    net = sqx.wavenet(9, 6, 9, jax.random.key(10), n_layers=3, first_kernel_size=2, tokens=True)
    return eqx.tree_at(lambda n: n[1].W, net, 3 * net[1].W)  # so that what came before matters


def test_a_wavenet_of_tokens_streams(language_model: Any):
    tokens = jnp.asarray(np.random.default_rng(3).integers(0, 9, (2, 14)), jnp.int32)
    whole = read(language_model, tokens)
    step, state, outputs = eqx.filter_jit(lambda m, x, s: m.step(x, s)), language_model.init_state(2), []
    for t in range(14):
        y, state = step(language_model, tokens[:, t], state)
        outputs.append(y)
    np.testing.assert_allclose(jnp.stack(outputs, 1), whole, rtol=1e-5, atol=1e-5)


@pytest.mark.thorough
def test_generation_is_that_of_reading_all_anew(language_model: Any):
    """The most probable token each time, from prompts of unequal length, each read as a row of its own."""
    prompt, mask = jnp.array([[3, 1, 4, 1], [5, 7, 0, 0]]), jnp.array([[True] * 4, [True, True, False, False]])
    made = sqx.generate(language_model, prompt, 12, mask=mask).tokens
    whole = eqx.filter_jit(lambda m, row, n: jnp.argmax(m(row, mask=jnp.arange(16) < n)[n - 1]))
    for i, start in enumerate(([3, 1, 4, 1], [5, 7])):
        row = list(start)
        for _ in range(12):
            row.append(int(whole(language_model, jnp.asarray(row + [0] * (16 - len(row)), jnp.int32), len(row))))
        assert made[i].tolist() == row[len(start) :]
        assert len(set(row[len(start) :])) > 3
