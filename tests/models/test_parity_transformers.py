"""Language models of the library `transformers`, with the same weights: logits, in a stream too, and greedy tokens.

The weights are drawn at random; nothing is downloaded. Each model is one that its authors' weights would fit, apart
from its size.
"""

import functools
import os
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sequinox as sqx

os.environ.setdefault("HF_HUB_OFFLINE", "1")
torch = pytest.importorskip("torch", reason="PyTorch is in the extra `parity`")
transformers = pytest.importorskip("transformers", reason="transformers is in the extra `parity`")

pytestmark = pytest.mark.usefixtures("quick_compilation", "unchecked_types")

V, D, HEADS, D_FF, DEPTH, MAX_LEN = 13, 16, 4, 10, 2, 24
B, T = 4, 7
KEY = jax.random.key(0)
WHOLE = np.ones((B, T), bool)
RIGHT = np.arange(T) < np.array([7, 2, 5, 1])[:, None]  # the padding stands on the right
LEFT = RIGHT[:, ::-1].copy()
HOLES = np.array([[1, 0, 1, 1, 0, 1, 0], [1, 1, 1, 1, 1, 1, 1], [0, 1, 0, 0, 0, 0, 1], [0, 0, 1, 1, 0, 1, 0]], bool)
PADDINGS = {"whole": WHOLE, "right": RIGHT, "left": LEFT, "holes": HOLES}
TOKENS = np.random.default_rng(3).integers(0, V, (B, T))

EXACT_GELU = functools.partial(jax.nn.gelu, approximate=False)


def rms_norm(eps: float) -> Any:
    return lambda n, *, dtype: eqx.nn.RMSNorm(n, eps=eps, use_bias=False, dtype=dtype)


def drawn(model: Any) -> Any:
    """The model with weights large enough that every part of it counts, and norms that are not the identity."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = 0.4 * torch.randn(parameter.shape, generator=generator)
            ones = bool((parameter == 1).all()) and parameter.ndim == 1
            parameter.copy_(1 + noise if ones else noise)
    return model.eval()


# ---- their weights in our modules ------------------------------------------------------------------------------------


def replaced(module: Any, arrays: dict[str, Any]) -> Any:
    """The module with other numbers in arrays of the same shapes, by their paths; it must be all that it has."""
    ours = sqx.parameters(module)
    assert {name: a.shape for name, a in ours.items()} == {name: tuple(a.shape) for name, a in arrays.items()}
    trained, rest = eqx.partition(module, eqx.is_inexact_array)
    leaves = [jnp.asarray(arrays[name].detach().numpy()) for name in ours]
    return eqx.combine(jax.tree.unflatten(jax.tree.structure(trained), leaves), rest)


def norm_from(name: str, norm: Any) -> dict[str, Any]:
    arrays = {f"{name}.function.weight": norm.weight}
    return arrays | ({f"{name}.function.bias": norm.bias} if getattr(norm, "bias", None) is not None else {})


def linear_from(weight: str, bias: str, linear: Any) -> dict[str, Any]:
    return {weight: linear.weight} | ({} if linear.bias is None else {bias: linear.bias})


def block_from_llama(block: Any) -> dict[str, Any]:
    """Of Llama, Mistral, and GLM, which keeps gate and first layer in one matrix."""
    arrays = norm_from("norm_self", block.input_layernorm)
    arrays |= norm_from("norm_feed_forward", block.post_attention_layernorm)
    for letter in "QKVO":
        linear = getattr(block.self_attn, f"{letter.lower()}_proj")
        arrays |= linear_from(f"self_attention.W_{letter}", f"self_attention.b_{letter}", linear)
    if hasattr(block.mlp, "gate_up_proj"):
        gate, up = block.mlp.gate_up_proj.weight.chunk(2)
    else:
        gate, up = block.mlp.gate_proj.weight, block.mlp.up_proj.weight
    forward = {"W_g": gate, "W_1": up, "W_2": block.mlp.down_proj.weight}
    return arrays | {f"feed_forward.{name}": a for name, a in forward.items()}


def block_from_gpt2(block: Any) -> dict[str, Any]:
    """GPT-2 keeps queries, keys and values in one matrix, and its matrices as (n_in, n_out)."""
    arrays = norm_from("norm_self", block.ln_1) | norm_from("norm_feed_forward", block.ln_2)
    matrices, biases = block.attn.c_attn.weight.T.chunk(3), block.attn.c_attn.bias.chunk(3)
    for letter, W, b in zip("QKV", matrices, biases, strict=True):
        arrays |= {f"self_attention.W_{letter}": W, f"self_attention.b_{letter}": b}
    arrays |= {"self_attention.W_O": block.attn.c_proj.weight.T, "self_attention.b_O": block.attn.c_proj.bias}
    arrays |= {"feed_forward.W_1": block.mlp.c_fc.weight.T, "feed_forward.b_1": block.mlp.c_fc.bias}
    return arrays | {"feed_forward.W_2": block.mlp.c_proj.weight.T, "feed_forward.b_2": block.mlp.c_proj.bias}


def block_from_neox(block: Any) -> dict[str, Any]:
    """GPT-NeoX keeps queries, keys and values in one matrix, head by head."""
    arrays = norm_from("norm_self", block.input_layernorm)
    arrays |= norm_from("norm_feed_forward", block.post_attention_layernorm)
    fused = block.attention.query_key_value
    W, b = fused.weight.reshape(HEADS, 3, D // HEADS, D), fused.bias.reshape(HEADS, 3, D // HEADS)
    for i, letter in enumerate("QKV"):
        arrays |= {
            f"self_attention.W_{letter}": W[:, i].reshape(D, D),
            f"self_attention.b_{letter}": b[:, i].reshape(D),
        }
    arrays |= linear_from("self_attention.W_O", "self_attention.b_O", block.attention.dense)
    arrays |= linear_from("feed_forward.W_1", "feed_forward.b_1", block.mlp.dense_h_to_4h)
    return arrays | linear_from("feed_forward.W_2", "feed_forward.b_2", block.mlp.dense_4h_to_h)


def loaded(ours: Any, embedding: Any, positions: Any, blocks: list[Any], last_norm: Any, head: Any) -> Any:
    """Our decoder with their weights: `blocks` are dictionaries of arrays, by their paths in a `TransformerBlock`."""
    tied = isinstance(ours, sqx.TiedReadout)
    arrays = {"embedding.function.weight" if tied else "layers[0].function.weight": embedding.weight}
    at = lambda i: f"body.layers[{i}]" if tied else f"layers[{i + 1}]"
    layers = [] if positions is None else [{"P": positions.weight}]
    layers += [*blocks, norm_from("norm", last_norm)]
    for i, layer in enumerate(layers):
        arrays |= {f"{at(i)}.{name.removeprefix('norm.')}": a for name, a in layer.items()}
    if not tied:
        arrays[f"{at(len(layers))}.W"] = head.weight
    return replaced(ours, arrays)


def decoder_for(config: Any, **options: Any) -> Any:
    """Our decoder of the sizes in a configuration of theirs."""
    return sqx.transformer_decoder(
        config.vocab_size,
        config.hidden_size,
        config.num_attention_heads,
        D_FF,
        config.num_hidden_layers,
        config.vocab_size,
        KEY,
        tokens=True,
        tied=config.tie_word_embeddings,
        readout_bias=False,
        norm="pre",
        **options,
    )


# ---- the models ------------------------------------------------------------------------------------------------------


class Pair(NamedTuple):
    """Their model and ours."""

    theirs: Any
    ours: Any


SIZES: dict[str, Any] = {
    "vocab_size": V,
    "hidden_size": D,
    "intermediate_size": D_FF,
    "num_hidden_layers": DEPTH,
    "num_attention_heads": HEADS,
    "max_position_embeddings": MAX_LEN,
    "attn_implementation": "eager",
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}


def llama_like(kind: str, positions: Any, **options: Any) -> Pair:
    """Rotary positions, grouped heads, RMSNorm, a gated feed-forward network, no biases but those asked for."""
    window, bias = options.get("sliding_window"), options.get("attention_bias", False)
    config = getattr(transformers, f"{kind}Config")(**SIZES, num_key_value_heads=2, hidden_act="silu", **options)
    theirs = drawn(getattr(transformers, f"{kind}ForCausalLM")(config))
    ours = decoder_for(
        config,
        positions=positions,
        norm_layer=rms_norm(config.rms_norm_eps),
        activation=jax.nn.silu,
        gated=True,
        feed_forward_bias=False,
        attention_bias=bias,
        n_kv_heads=2,
        d_head=config.head_dim,
        window=window,
        scan_layers=False,
    )
    body = theirs.model
    blocks = [block_from_llama(block) for block in body.layers]
    return Pair(theirs, loaded(ours, body.embed_tokens, None, blocks, body.norm, theirs.get_output_embeddings()))


def llama(tied: bool, **options: Any) -> Pair:
    rope = {"rope_type": "default", "rope_theta": 500.0}
    return llama_like("Llama", sqx.Rotary(500.0), tie_word_embeddings=tied, rope_parameters=rope, **options)


def mistral() -> Pair:
    """A window of three, and heads that are wider than `d_model / n_heads`."""
    return llama_like("Mistral", "rotary", sliding_window=3, head_dim=4)


def glm() -> Pair:
    """Rotary positions that pair neighbours."""
    rope = {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 1.0}
    return llama_like("Glm", sqx.Rotary(interleaved=True), attention_bias=False, head_dim=6, rope_parameters=rope)


def gpt2() -> Pair:
    """Learned positions, LayerNorm, biases, a tied readout."""
    config = transformers.GPT2Config(
        vocab_size=V,
        n_embd=D,
        n_head=HEADS,
        n_layer=DEPTH,
        n_inner=D_FF,
        n_positions=MAX_LEN,
        activation_function="gelu_new",
        attn_implementation="eager",
        bos_token_id=None,
        eos_token_id=None,
    )
    theirs = drawn(transformers.GPT2LMHeadModel(config))
    ours = decoder_for(
        config,
        max_len=MAX_LEN,
        positions="learned",
        activation=jax.nn.gelu,
        attention_bias=True,
    )
    body = theirs.transformer
    blocks = [block_from_gpt2(block) for block in body.h]
    return Pair(theirs, loaded(ours, body.wte, body.wpe, blocks, body.ln_f, None))


def neox() -> Pair:
    """LayerNorm, biases, rotary positions over whole heads, one sub-layer behind the other."""
    rope = {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 1.0}
    config = transformers.GPTNeoXConfig(**SIZES, use_parallel_residual=False, rope_parameters=rope)
    theirs = drawn(transformers.GPTNeoXForCausalLM(config))
    ours = decoder_for(config, positions="rotary", activation=EXACT_GELU, attention_bias=True)
    body = theirs.gpt_neox
    blocks = [block_from_neox(block) for block in body.layers]
    return Pair(
        theirs, loaded(ours, body.embed_in, None, blocks, body.final_layer_norm, theirs.get_output_embeddings())
    )


MODELS = {
    "Llama": functools.partial(llama, False, head_dim=6),
    "Llama-tied-biases": functools.partial(llama, True, attention_bias=True, head_dim=4),
    "GPT-2": gpt2,
    "Mistral": mistral,
    "GPT-NeoX": neox,
    "GLM": glm,
}


@pytest.fixture(scope="module", params=list(MODELS))
def pair(request: Any) -> Pair:
    return MODELS[request.param]()


def their_logits(model: Any, tokens: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Zeros at masked places. Positions count real tokens, as `generate` of transformers lets them do."""
    positions = np.maximum(np.cumsum(mask, 1) - 1, 0)
    with torch.no_grad():
        found = model(
            torch.tensor(tokens), attention_mask=torch.tensor(mask).long(), position_ids=torch.tensor(positions)
        )
    return np.where(mask[..., None], found.logits.numpy(), 0)


def their_logits_with_holes(model: Any, tokens: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """From each row's real tokens alone: a window of theirs counts masked places, one of ours real samples."""
    logits = np.zeros((*mask.shape, V), np.float32)
    for row, (ids, real) in enumerate(zip(tokens, mask, strict=True)):
        logits[row, real] = their_logits(model, ids[None, real], real[None, real])[0]
    return logits


@pytest.mark.parametrize("padding", PADDINGS)
def test_logits(pair: Pair, padding: str):
    mask = PADDINGS[padding]
    theirs = their_logits_with_holes if padding == "holes" else their_logits
    expected = theirs(pair.theirs, TOKENS, mask)
    run = eqx.filter_jit(lambda model, xs, mask: model(xs, mask=mask))
    got = run(pair.ours, jnp.asarray(TOKENS), None if padding == "whole" else jnp.asarray(mask))
    assert expected[mask].std() > 0.5
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-4)


def test_token_by_token(pair: Pair):
    """With a cache, from a ragged batch, against the logits of the whole sequence."""
    mask = LEFT
    expected = their_logits(pair.theirs, TOKENS, mask)
    run = sqx.Stream(pair.ours, state=sqx.with_capacity(pair.ours.init_state(B), T))
    for t in range(T):
        y = run(jnp.asarray(TOKENS[:, t]), mask=jnp.asarray(mask[:, t]))
        np.testing.assert_allclose(y, expected[:, t], rtol=0, atol=1e-4)


def test_greedy_tokens(pair: Pair):
    """From a ragged batch; theirs is padded on the left, as they ask for, ours on the right as well."""
    n = 9
    given = {"max_new_tokens": n, "do_sample": False, "pad_token_id": 0}
    ragged = np.zeros_like(TOKENS)
    for left, right, row in zip(LEFT, RIGHT, range(B), strict=True):
        ragged[row, left] = TOKENS[row, right]
    theirs = pair.theirs.generate(torch.tensor(ragged), attention_mask=torch.tensor(LEFT).long(), **given)
    expected = theirs[:, T:].numpy()
    for tokens, mask in ((ragged, LEFT), (TOKENS, RIGHT)):
        got = sqx.generate(pair.ours, jnp.asarray(tokens), n, mask=jnp.asarray(mask))
        np.testing.assert_array_equal(got.tokens, expected)
    assert len(np.unique(expected)) > 2, expected


def test_greedy_tokens_end_at_the_stop_symbol():
    pair, n = gpt2(), 9
    ids = torch.tensor(TOKENS[:1])
    given = {"max_new_tokens": n, "do_sample": False, "pad_token_id": 0, "attention_mask": torch.ones_like(ids)}
    stop = int(pair.theirs.generate(ids, **given)[0, T + 3])
    expected = pair.theirs.generate(ids, eos_token_id=stop, **given)[0, T:].numpy()
    got = sqx.generate(pair.ours, jnp.asarray(TOKENS[:1]), n, stop=stop)
    assert got.lengths[0] == len(expected) <= 4
    np.testing.assert_array_equal(got.tokens[0, : len(expected)], expected)
