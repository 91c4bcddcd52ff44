"""Attention against PyTorch's function and layer, with the same weights: outputs and gradients."""

# pyright: reportArgumentType=false, reportCallIssue=false, reportReturnType=false
# Arguments are unpacked from tables.

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sequinox as sqx

torch = pytest.importorskip("torch", reason="PyTorch is in the extra `parity`")

pytestmark = pytest.mark.usefixtures("quick_compilation")

KEY = jax.random.key(0)
B, T, S, D, N = 2, 4, 5, 6, 3


def draw(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def leaf(a: Any) -> Any:
    return torch.tensor(np.asarray(a), requires_grad=True)


def close(got: Any, expected: Any, what: str = "") -> None:
    expected = expected.detach().numpy()
    limit = 1e-5 * max(1, np.abs(expected).max())
    np.testing.assert_allclose(np.asarray(got), expected, rtol=0, atol=limit, err_msg=what)


# ---- the function ----------------------------------------------------------------------------------------------------

SEEN = np.random.default_rng(3).random((B, 1, T, S)) < 0.6
SEEN[..., 0] = True  # PyTorch's answer for a query that sees nothing is another


@pytest.mark.parametrize("case", ["plain", "mask", "causal", "scale", "wide values"])
def test_the_function(case: str):
    keys = T if case == "causal" else S  # with fewer queries than keys PyTorch aligns the other corner
    q, k, v = draw(B, N, T, D), draw(B, N, keys, D, seed=1), draw(B, N, keys, 8 if case == "wide values" else D, seed=2)
    options: dict[str, Any] = {"causal": True} if case == "causal" else {"scale": 0.7} if case == "scale" else {}
    theirs = {"is_causal": True} if case == "causal" else options
    if case == "mask":
        options, theirs = {"mask": SEEN}, {"attn_mask": torch.tensor(SEEN)}
    d_out, leaves = draw(B, N, T, v.shape[-1], seed=4), [leaf(a) for a in (q, k, v)]
    expected = torch.nn.functional.scaled_dot_product_attention(*leaves, **theirs)
    (expected * torch.tensor(d_out)).sum().backward()

    @jax.jit
    def run(q: Any, k: Any, v: Any) -> Any:
        out, pull = jax.vjp(lambda *qkv: sqx.scaled_dot_product_attention(*qkv, **options), q, k, v)
        return out, pull(d_out)

    out, grads = run(q, k, v)
    close(out, expected)
    for name, got, want in zip("qkv", grads, leaves, strict=True):
        close(got, want.grad, name)


def test_grouped_heads_are_grouped_as_in_pytorch():
    """Four query heads on two of keys: ours is the layer with identity projections."""
    layer = sqx.MultiHeadSelfAttention(8, 4, KEY, n_kv_heads=2)
    W = {name: draw(*getattr(layer, name).shape, seed=i) for i, name in enumerate(("W_Q", "W_K", "W_V"))}
    layer = eqx.tree_at(
        lambda la: [la.W_Q, la.W_K, la.W_V, la.W_O], layer, [*(jnp.asarray(a) for a in W.values()), jnp.eye(8)]
    )
    xs = draw(B, T, 8)
    heads = lambda a, n: torch.tensor((xs @ a.T).reshape(B, T, n, 2).swapaxes(1, 2))
    expected = torch.nn.functional.scaled_dot_product_attention(
        heads(W["W_Q"], 4), heads(W["W_K"], 2), heads(W["W_V"], 2), enable_gqa=True
    )
    close(eqx.filter_jit(layer)(xs), expected.transpose(1, 2).reshape(B, T, 8))


# ---- the layer -------------------------------------------------------------------------------------------------------


def filled(layer: Any) -> Any:
    leaves, tree = jax.tree.flatten(eqx.filter(layer, eqx.is_inexact_array))
    new = [jnp.asarray(draw(*a.shape, seed=10 + i) / 2) for i, a in enumerate(leaves)]
    return eqx.combine(jax.tree.unflatten(tree, new), layer)


def their_layer(ours: Any, bias: bool, d_memory: int | None = None) -> tuple[Any, Any]:
    """PyTorch's layer with our weights; and a function that reads its gradients by our names."""
    theirs = torch.nn.MultiheadAttention(D, N, bias=bias, batch_first=True, kdim=d_memory, vdim=d_memory)
    stacked = lambda kind: torch.tensor(np.concatenate([getattr(ours, f"{kind}_{n}") for n in "QKV"]))
    apart = {"W_Q": "q_proj_weight", "W_K": "k_proj_weight", "W_V": "v_proj_weight"}
    with torch.no_grad():
        theirs.out_proj.weight.copy_(torch.tensor(np.asarray(ours.W_O)))
        if d_memory is None:
            theirs.in_proj_weight.copy_(stacked("W"))
        else:
            for name, their_name in apart.items():
                getattr(theirs, their_name).copy_(torch.tensor(np.asarray(getattr(ours, name))))
        if bias:
            theirs.in_proj_bias.copy_(stacked("b"))
            theirs.out_proj.bias.copy_(torch.tensor(np.asarray(ours.b_O)))

    def gradients() -> dict[str, Any]:
        if d_memory is None:
            grads = dict(zip(("W_Q", "W_K", "W_V"), theirs.in_proj_weight.grad.chunk(3), strict=True))
        else:
            grads = {name: getattr(theirs, their_name).grad for name, their_name in apart.items()}
        grads["W_O"] = theirs.out_proj.weight.grad
        if bias:
            grads |= dict(zip(("b_Q", "b_K", "b_V"), theirs.in_proj_bias.grad.chunk(3), strict=True))
            grads["b_O"] = theirs.out_proj.bias.grad
        return grads

    return theirs, gradients


def compare(grads: Any, expected: dict[str, Any]) -> None:
    for name, want in expected.items():
        close(getattr(grads, name), want, name)


LENGTHS = np.arange(T) < np.array([4, 2])[:, None]


@pytest.mark.parametrize(
    ("case", "bias"),
    [
        ("plain", False),
        ("plain", True),
        ("padded", True),
        ("causal", False),
        ("window", True),
        ("causal-padded", False),
    ],
)
def test_self_attention(case: str, bias: bool):
    causal, window = "causal" in case, 2 if case == "window" else None
    ours = filled(sqx.MultiHeadSelfAttention(D, N, KEY, causal=causal, use_bias=bias, window=window))
    theirs, gradients = their_layer(ours, bias)
    xs, d_ys = draw(B, T, D), draw(B, T, D, seed=1)
    mask = LENGTHS if "padded" in case else None
    x, options = leaf(xs), {}
    distance = np.arange(T)[:, None] - np.arange(T)
    hidden = {"causal": distance < 0, "window": abs(distance) >= 2, "causal-padded": distance < 0}.get(case)
    if hidden is not None:
        options = {"attn_mask": torch.tensor(hidden), "is_causal": causal}
    if mask is not None:
        options["key_padding_mask"] = torch.tensor(~mask)
        d_ys = np.where(mask[..., None], d_ys, 0)
    expected, w = theirs(x, x, x, average_attn_weights=False, **options)
    (expected * torch.tensor(d_ys)).sum().backward()

    @eqx.filter_jit
    def run(layer: Any, xs: Any) -> Any:
        loss = lambda both: jnp.sum(both[0](both[1], mask=mask) * d_ys)
        return layer(xs, mask=mask), eqx.filter_grad(loss)((layer, xs)), layer.attention_weights(xs, mask=mask)

    ys, (grads, d_xs), weights = run(ours, jnp.asarray(xs))
    real = np.ones((B, T), bool) if mask is None else mask
    close(np.asarray(ys)[real], expected[torch.tensor(real)])
    close(d_xs, x.grad, "xs")
    close(np.moveaxis(np.asarray(weights), 1, 2)[real], w.transpose(1, 2)[torch.tensor(real)], "weights")
    compare(grads, gradients())


@pytest.mark.parametrize("bias", [False, True])
def test_cross_attention(bias: bool):
    """Queries of width 6, a memory of width 4, whose places are partly padding."""
    ours = filled(sqx.MultiHeadCrossAttention(D, N, KEY, d_memory=4, use_bias=bias))
    theirs, gradients = their_layer(ours, bias, 4)
    xs, memory, d_ys = draw(B, T, D), draw(B, S, 4, seed=1), draw(B, T, D, seed=2)
    real = np.arange(S) < np.array([3, 5])[:, None]
    x, m = leaf(xs), leaf(memory)
    expected, _ = theirs(x, m, m, key_padding_mask=torch.tensor(~real))
    (expected * torch.tensor(d_ys)).sum().backward()

    @eqx.filter_jit
    def run(layer: Any, xs: Any, memory: Any) -> Any:
        def loss(args: Any) -> Any:
            layer, xs, memory = args
            return jnp.sum(layer.unroll(xs, layer.read(memory, mask=real))[0] * d_ys)

        return layer.unroll(xs, layer.read(memory, mask=real))[0], eqx.filter_grad(loss)((layer, xs, memory))

    ys, (grads, d_xs, d_memory) = run(ours, jnp.asarray(xs), jnp.asarray(memory))
    close(ys, expected)
    close(d_xs, x.grad, "xs")
    close(d_memory, m.grad, "memory")
    compare(grads, gradients())
