"""Transformer blocks against PyTorch's encoder and decoder layers, with the same weights: outputs and gradients."""

import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sequinox as sqx

torch = pytest.importorskip("torch", reason="PyTorch is in the extra `parity`")

pytestmark = pytest.mark.usefixtures("quick_compilation", "unchecked_types")

D, HEADS, D_FF = 6, 2, 5
B, T, PLACES = 4, 7, 3
KEY = jax.random.key(0)
MASK = np.arange(T) < np.array([7, 2, 5, 1])[:, None]
HOLES = np.array([[1, 0, 1, 1, 0, 1, 0], [1, 1, 1, 1, 1, 1, 1], [1, 0, 0, 0, 0, 0, 1], [1, 1, 0, 1, 0, 1, 1]], bool)
MEMORY_MASK = np.array([[1, 1, 1], [1, 0, 0], [0, 1, 1], [0, 1, 0]], bool)
GELU = functools.partial(jax.nn.gelu, approximate=False)
ACTIVATIONS = {"relu": jax.nn.relu, "gelu": GELU}


def draw(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def leaf(a: Any) -> Any:
    return torch.tensor(np.asarray(a), requires_grad=True)


def close(got: Any, expected: Any) -> None:
    expected = expected.detach().numpy()
    np.testing.assert_allclose(np.asarray(got), expected, rtol=0, atol=1e-5 * max(1, np.abs(expected).max()))


def filled(block: Any, seed: int) -> Any:
    random = np.random.default_rng(seed)
    fill = lambda a: jnp.asarray(0.5 * random.normal(size=a.shape), a.dtype) if eqx.is_inexact_array(a) else a
    return jax.tree.map(fill, block)


def named(block: Any) -> dict[str, Any]:
    """A block's arrays, or their gradients, by PyTorch's names."""
    arrays: dict[str, Any] = {}

    def attention(name: str, layer: Any) -> None:
        arrays[f"{name}.in_proj_weight"] = jnp.concatenate([layer.W_Q, layer.W_K, layer.W_V])
        arrays[f"{name}.in_proj_bias"] = jnp.concatenate([layer.b_Q, layer.b_K, layer.b_V])
        arrays[f"{name}.out_proj.weight"], arrays[f"{name}.out_proj.bias"] = layer.W_O, layer.b_O

    attention("self_attn", block.self_attention)
    norms = [block.norm_self, block.norm_feed_forward]
    if block.cross_attention is not None:
        attention("multihead_attn", block.cross_attention)
        norms.insert(1, block.norm_cross)
    for i, norm in enumerate(norms, 1):
        arrays[f"norm{i}.weight"], arrays[f"norm{i}.bias"] = norm.function.weight, norm.function.bias
    forward = block.feed_forward
    arrays["linear1.weight"], arrays["linear1.bias"] = forward.W_1, forward.b_1
    arrays["linear2.weight"], arrays["linear2.bias"] = forward.W_2, forward.b_2
    return arrays


def load(theirs: Any, arrays: dict[str, Any]) -> Any:
    theirs.load_state_dict(
        {name: torch.tensor(np.asarray(a)) for name, a in arrays.items()}
    )  # all of them, or an error
    return theirs


def layers(kind: Any, norm: Any, activation: str, **options: Any) -> tuple[Any, Any]:
    """A block of ours, and PyTorch's layer with the same weights."""
    ours = sqx.TransformerBlock(
        D, HEADS, D_FF, KEY, norm=norm, activation=ACTIVATIONS[activation], attention_bias=True, **options
    )
    ours = filled(ours, 10)
    how: Any = {"dropout": 0.0, "activation": activation, "batch_first": True, "norm_first": norm == "pre"}
    return ours, load(kind(D, HEADS, D_FF, **how), named(ours))


def gradients_agree(theirs: Any, gradient: Any) -> None:
    parameters = dict(theirs.named_parameters())
    arrays = named(gradient)
    assert set(arrays) == set(parameters)
    for name, a in arrays.items():
        close(a, parameters[name].grad)


def later() -> Any:
    """PyTorch's masks are True where attention is *not* allowed."""
    return torch.triu(torch.ones(T, T, dtype=torch.bool), 1)


@pytest.mark.parametrize(("norm", "activation"), [("post", "relu"), ("pre", "gelu")])
@pytest.mark.parametrize("see", ["all", "padded", "causal", "causal-holes", "window"])
def test_encoder_layer(see: str, norm: str, activation: str):
    window = 3 if see == "window" else None
    ours, theirs = layers(torch.nn.TransformerEncoderLayer, norm, activation, causal="causal" in see, window=window)
    mask = MASK if "padded" in see else HOLES if "holes" in see else None
    far = torch.tensor(np.abs(np.subtract.outer(np.arange(T), np.arange(T))) >= 3)
    src_mask = later() if "causal" in see else far if window else None
    real = np.ones((B, T), bool) if mask is None else mask
    xs, d_ys = draw(B, T, D, seed=1), draw(B, T, D, seed=2) * real[..., None]

    x = leaf(xs)
    ys = theirs(x, src_mask=src_mask, src_key_padding_mask=None if mask is None else torch.tensor(~mask))
    (ys * torch.tensor(d_ys)).sum().backward()

    def loss(args: Any) -> Any:
        ys = args[0](args[1], mask=None if mask is None else jnp.asarray(mask))
        return jnp.sum(ys * d_ys), ys

    run = eqx.filter_jit(eqx.filter_value_and_grad(loss, has_aux=True))
    (_, got), (d_block, d_xs) = run((ours, jnp.asarray(xs)))
    close(got, ys * torch.tensor(real)[..., None])
    close(d_xs, x.grad)
    gradients_agree(theirs, d_block)


@pytest.mark.parametrize(("norm", "activation"), [("post", "gelu"), ("pre", "relu")])
@pytest.mark.parametrize("masked", [False, True], ids=["whole", "masked"])
def test_decoder_layer(masked: bool, norm: str, activation: str):
    ours, theirs = layers(torch.nn.TransformerDecoderLayer, norm, activation, causal=True, cross=True)
    xs, memory = draw(B, T, D, seed=1), draw(B, PLACES, D, seed=3)
    real = MASK if masked else np.ones((B, T), bool)
    d_ys = draw(B, T, D, seed=2) * real[..., None]
    masks = (jnp.asarray(MASK), jnp.asarray(MEMORY_MASK)) if masked else (None, None)

    x, m = leaf(xs), leaf(memory)
    hidden = lambda mask: None if not masked else torch.tensor(~mask)
    ys = theirs(x, m, tgt_mask=later(), tgt_key_padding_mask=hidden(MASK), memory_key_padding_mask=hidden(MEMORY_MASK))
    (ys * torch.tensor(d_ys)).sum().backward()

    def loss(args: Any) -> Any:
        block, xs, memory = args
        state = block.init_state(B)._replace(cross_attention=block.cross_attention.read(memory, mask=masks[1]))
        ys, _ = block.unroll(xs, state, mask=masks[0])
        return jnp.sum(ys * d_ys), ys

    args = (ours, jnp.asarray(xs), jnp.asarray(memory))
    run = eqx.filter_jit(eqx.filter_value_and_grad(loss, has_aux=True))
    (_, got), (d_block, d_xs, d_memory) = run(args)
    close(got, ys * torch.tensor(real)[..., None])
    close(d_xs, x.grad)
    close(d_memory, m.grad)
    gradients_agree(theirs, d_block)


@pytest.mark.parametrize(("norm", "causal"), [("post", False), ("pre", True)])
def test_an_encoder_of_two_layers(norm: Any, causal: bool):
    """`nn.TransformerEncoder` against plain blocks, a `Stack` of them, and `Remat`."""
    options: Any = {"norm": norm, "activation": GELU, "attention_bias": True, "causal": causal}
    blocks = [filled(sqx.TransformerBlock(D, HEADS, D_FF, KEY, **options), seed) for seed in (10, 50)]
    theirs = torch.nn.TransformerEncoder(
        torch.nn.TransformerEncoderLayer(D, HEADS, D_FF, 0.0, "gelu", batch_first=True, norm_first=norm == "pre"),
        2,
        enable_nested_tensor=False,
    )
    for layer, block in zip(theirs.layers, blocks, strict=True):
        load(layer, named(block))
    xs, d_ys = draw(B, T, D, seed=1), draw(B, T, D, seed=2) * MASK[..., None]
    x = leaf(xs)
    ys = theirs(x, mask=later() if causal else None, src_key_padding_mask=torch.tensor(~MASK))
    (ys * torch.tensor(d_ys)).sum().backward()

    def loss(args: Any) -> Any:
        ys = args[0](args[1], mask=jnp.asarray(MASK))
        return jnp.sum(ys * d_ys), ys

    run = eqx.filter_jit(eqx.filter_value_and_grad(loss, has_aux=True))
    for net in (
        sqx.Sequential(blocks),
        sqx.Stack(blocks),
        sqx.Stack([sqx.Remat(block) for block in blocks]),
    ):
        (_, got), (d_net, d_xs) = run((net, jnp.asarray(xs)))
        close(got, ys * torch.tensor(MASK)[..., None])
        close(d_xs, x.grad)
        if isinstance(net, sqx.Sequential):
            d_blocks = list(d_net.layers)
        else:
            stacked = d_net.layer.layer if isinstance(net.layer, sqx.Remat) else d_net.layer
            d_blocks = [jax.tree.map(lambda a, i=i: a[i], stacked) for i in range(2)]
        for layer, d_block in zip(theirs.layers, d_blocks, strict=True):
            gradients_agree(layer, d_block)
