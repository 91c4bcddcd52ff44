"""Convolutions against PyTorch's own, and the temporal block written with PyTorch's layers."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sequinox as sqx

torch = pytest.importorskip("torch", reason="PyTorch is in the extra `parity`")

pytestmark = pytest.mark.usefixtures("quick_compilation")

B, T = 4, 11
KEY = jax.random.key(0)


def draw(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def filled(layer: Any, seed: int = 1) -> Any:
    leaves, tree = jax.tree.flatten(layer)
    new = [jnp.asarray(0.5 * draw(*a.shape, seed=seed + i)) if eqx.is_array(a) else a for i, a in enumerate(leaves)]
    return jax.tree.unflatten(tree, new)


def leaf(a: Any) -> Any:
    return torch.tensor(np.ascontiguousarray(a), requires_grad=True)


def close(got: Any, expected: Any) -> None:
    expected = expected.detach().numpy()
    np.testing.assert_allclose(np.asarray(got), expected, rtol=0, atol=1e-6 * max(1, np.abs(expected).max()))


@eqx.filter_jit
def run(layer: Any, xs: Any, d_ys: Any) -> Any:
    """Outputs, and the gradients of the layer and of the samples."""
    ys, pull = eqx.filter_vjp(lambda la, x: la(x), layer, xs)
    return ys, *pull(d_ys)


def causal(conv: Any, xs: Any) -> Any:
    """A convolution of PyTorch's on `(batch, time, width)`, behind as many zeros as it looks back."""
    pad = (conv.kernel_size[0] - 1) * conv.dilation[0]
    return conv(torch.nn.functional.pad(xs.transpose(1, 2), (pad, 0))).transpose(1, 2)


def theirs(conv: Any) -> Any:
    """PyTorch's convolution with the same weights."""
    made = torch.nn.Conv1d(conv.n_in, conv.n_out, conv.kernel_size, dilation=conv.dilation, groups=conv.groups)
    with torch.no_grad():
        made.weight.copy_(torch.tensor(np.ascontiguousarray(turned(conv.W))))
        made.bias.copy_(torch.tensor(np.asarray(conv.b)))
    if conv.g is not None:
        torch.nn.utils.parametrizations.weight_norm(made)
        with torch.no_grad():
            made.parametrizations.weight.original0.copy_(torch.tensor(np.asarray(conv.g)[:, None, None]))
            made.parametrizations.weight.original1.copy_(torch.tensor(np.ascontiguousarray(turned(conv.W))))
    return made


def turned(W: Any) -> np.ndarray:
    """Our taps in PyTorch's order and axes."""
    return np.asarray(W)[::-1].transpose(1, 2, 0)


def same_gradients(ours: Any, conv: Any) -> None:
    close(ours.b, conv.bias.grad)
    if ours.g is None:
        close(turned(ours.W), conv.weight.grad)
    else:
        close(ours.g[:, None, None], conv.parametrizations.weight.original0.grad)
        close(turned(ours.W), conv.parametrizations.weight.original1.grad)


@pytest.mark.parametrize(
    "options",
    [{}, {"dilation": 3}, {"groups": 2, "dilation": 2}, {"weight_norm": True, "groups": 2}],
    ids=["plain", "dilated", "grouped", "normed"],
)
def test_conv(options: Any):
    ours = filled(sqx.Conv1d(6, 4, 3, KEY, **options))
    xs, d_ys, conv = draw(B, T, 6), draw(B, T, 4, seed=9), theirs(ours)
    x = leaf(xs)
    expected = causal(conv, x)
    expected.backward(torch.tensor(d_ys))
    ys, d_ours, d_xs = run(ours, jnp.asarray(xs), jnp.asarray(d_ys))
    close(ys, expected)
    close(d_xs, x.grad)
    same_gradients(d_ours, conv)


@pytest.mark.parametrize(("k", "stride"), [(7, 3), (4, 2), (2, 3), (3, 1)])
def test_conv_transpose(k: int, stride: int):
    ours = filled(sqx.ConvTranspose1d(3, 2, k, stride, KEY))
    more = max(stride - k, 0)  # fast samples that no sample reaches, PyTorch makes only if asked
    conv = torch.nn.ConvTranspose1d(3, 2, k, stride, output_padding=more)
    with torch.no_grad():
        conv.weight.copy_(torch.tensor(np.ascontiguousarray(np.asarray(ours.W).transpose(2, 1, 0))))
        conv.bias.copy_(torch.tensor(np.asarray(ours.b)))
    xs, d_fast = draw(B, T, 3), draw(B, stride * T, 2, seed=9)
    x = leaf(xs)
    whole = conv(x.transpose(1, 2)).transpose(1, 2)
    assert whole.shape[1] == stride * T + max(k - stride, 0)
    whole[:, : stride * T].backward(torch.tensor(d_fast))
    ys, d_ours, d_xs = run(ours, jnp.asarray(xs), jnp.asarray(d_fast).reshape(B, T, stride * 2))
    close(ours.spread(ys), whole[:, : stride * T])
    close(d_xs, x.grad)
    close(np.asarray(d_ours.W).transpose(2, 1, 0), conv.weight.grad)
    close(d_ours.b, conv.bias.grad)


@pytest.mark.parametrize(("n_in", "dilation"), [(3, 2), (5, 1)], ids=["projected", "same-width"])
def test_temporal_block(n_in: int, dilation: int):
    ours = filled(sqx.TemporalBlock(n_in, 5, 3, KEY, dilation=dilation))
    assert (ours.residual is None) == (n_in == 5)
    first, second = theirs(ours.first), theirs(ours.second)
    xs, d_ys = draw(B, T, n_in), draw(B, T, 5, seed=9)
    x = leaf(xs)
    residual, W, b = x, None, None
    if ours.residual is not None:
        W, b = leaf(ours.residual.W), leaf(ours.residual.b)
        residual = torch.nn.functional.linear(x, W, b)
    expected = torch.relu(residual + torch.relu(causal(second, torch.relu(causal(first, x)))))
    expected.backward(torch.tensor(d_ys))
    ys, d_ours, d_xs = run(ours, jnp.asarray(xs), jnp.asarray(d_ys))
    close(ys, expected)
    close(d_xs, x.grad)
    same_gradients(d_ours.first, first)
    same_gradients(d_ours.second, second)
    if W is not None and b is not None:
        close(d_ours.residual.W, W.grad)
        close(d_ours.residual.b, b.grad)
