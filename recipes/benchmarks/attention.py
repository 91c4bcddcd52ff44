"""Attention in a stream, over long rows, and in depth; generation beside Hugging Face's.

    python recipes/benchmarks/attention.py            everything
    python recipes/benchmarks/attention.py --only decode

`decode`: 4,096 cached steps of a decoder at batch 1 through one compiled step; the time of the last 512 against the
first 512, and the outputs against `forward`. `generate`: tokens a second, greedy, beside `transformers` with a model of
the same sizes, if it is installed (`pip install "sequinox[parity]"`). `long`: temporary memory of the gradient of
self-attention at 16,384 samples, in chunks. `depth`: compile time of an encoder of 24 blocks against one of 2.
"""

import dataclasses
import functools
import importlib.util
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import tyro

import sequinox as sqx

SIZES: dict[str, Any] = {"d_model": 256, "n_heads": 8, "d_ff": 688, "n_layers": 4}
N_TOKENS, N_KV_HEADS, PROMPT, NEW = 1000, 4, 16, 256


@dataclasses.dataclass(frozen=True)
class Options:
    """Attention: steps, generation, long rows, depth."""

    only: Literal["decode", "generate", "long", "depth"] | None = None
    """One of the four; default: all."""
    repeats: int = 5
    """Runs of each variant, taking turns; medians are shown."""
    check: bool = False
    """End with an error if a limit is passed: last 512 steps within 1.25 of the first; more tokens a second than
    `transformers`; less than 1 GB; compile time at most 1.5 times."""


def llama_like(key: Any) -> sqx.SequenceLayer:
    """A small decoder with the options of a Llama."""
    return sqx.transformer_decoder(
        N_TOKENS,
        n_out=N_TOKENS,
        key=key,
        **SIZES,
        tokens=True,
        readout_bias=False,
        positions="rotary",
        norm="pre",
        norm_layer=functools.partial(eqx.nn.RMSNorm, eps=1e-6, use_bias=False),
        gated=True,
        activation=jax.nn.silu,
        feed_forward_bias=False,
        n_kv_heads=N_KV_HEADS,
    )


def decode(options: Options) -> bool:
    """4,096 steps with a cache of fixed size, which is donated: a compilation, flat times, the outputs of `forward`."""
    n = 4096
    model = sqx.transformer_decoder(16, 64, 4, 128, 2, 16, jax.random.key(0))
    traces = 0

    def step(x, state):
        nonlocal traces
        traces += 1
        return model.step(x, state)

    run = jax.jit(step, donate_argnums=1)
    xs = jax.random.normal(jax.random.key(1), (n, 16))
    samples = list(np.asarray(xs))
    ratios, ys, first, last = [], [], 0.0, 0.0
    for _ in range(options.repeats):
        state, times, ys = sqx.with_capacity(model.init_state(), n), [], []
        for x in samples:
            start = time.perf_counter()
            y, state = run(x, state)
            y.block_until_ready()
            times.append(time.perf_counter() - start)
            ys.append(y)
        first, last = (statistics.median(times[part]) for part in (slice(1, 513), slice(n - 512, n)))
        ratios.append(last / first)
    whole = eqx.filter_jit(model)(xs)
    error = float(jnp.max(jnp.abs(jnp.stack(ys) - whole)) / jnp.max(jnp.abs(whole)))
    ratio = statistics.median(ratios)
    print(f"decode    {n} steps, {traces} compilation, last 512 against first 512: {ratio:.2f}", end="")
    print(f" ({1e6 * last:.0f} and {1e6 * first:.0f} us a step); difference from forward {error:.1e}")
    return traces == 1 and ratio <= 1.25 and error < 1e-5


def generate(options: Options) -> bool:
    """Greedy tokens a second, ours and those of `transformers`, at batch 1 and 8."""
    model, passed = llama_like(jax.random.key(0)), True
    for batch in (1, 8):
        prompt = np.random.default_rng(0).integers(0, N_TOKENS, (batch, PROMPT))
        ways = {"sequinox": functools.partial(generated, model, jnp.asarray(prompt))}
        ways |= transformers_way(prompt)
        speed = {name: [] for name in ways}
        for repeat in range(options.repeats + 1):
            for name, way in ways.items():
                start = time.perf_counter()
                way()
                if repeat:  # the first compiles
                    speed[name].append(batch * NEW / (time.perf_counter() - start))
        shown = {name: statistics.median(s) for name, s in speed.items()}
        print(f"generate  batch {batch}:", ", ".join(f"{name} {s:.0f} tokens/s" for name, s in shown.items()))
        passed &= max(shown, key=lambda name: shown[name]) == "sequinox"
    return passed


def generated(model: sqx.SequenceLayer, prompt: jax.Array) -> None:
    """Greedy tokens behind a prompt, waited for."""
    jax.block_until_ready(sqx.generate(model, prompt, NEW).tokens)


def transformers_way(prompt: np.ndarray) -> dict[str, Callable]:
    """The same with `transformers`, where it is installed."""
    if importlib.util.find_spec("transformers") is None or importlib.util.find_spec("torch") is None:
        return {}
    import torch
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=N_TOKENS,
        hidden_size=SIZES["d_model"],
        intermediate_size=SIZES["d_ff"],
        num_hidden_layers=SIZES["n_layers"],
        num_attention_heads=SIZES["n_heads"],
        num_key_value_heads=N_KV_HEADS,
        max_position_embeddings=2048,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    model: Any = transformers.LlamaForCausalLM(config).eval()
    tokens = torch.from_numpy(prompt)

    def run():
        with torch.inference_mode():
            made = model.generate(
                tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=NEW, min_new_tokens=NEW, do_sample=False
            )
        assert made.shape[1] == PROMPT + NEW

    return {f"transformers {transformers.__version__}": run}


def long(options: Options) -> bool:
    """Temporary memory of the gradient at 16,384 samples, and the chunked gradient against the plain one at 1,024."""
    del options

    def gradient(chunk_size: int | None) -> tuple[Any, Any]:
        layer = sqx.MultiHeadSelfAttention(64, 4, jax.random.key(0), causal=True, chunk_size=chunk_size)
        _, rest = eqx.partition(layer, eqx.is_array)
        loss = lambda arrays, xs: jnp.sum(eqx.combine(arrays, rest)(xs) ** 2)
        return jax.jit(jax.grad(loss, (0, 1))), eqx.filter(layer, eqx.is_array)

    chunked, arrays = gradient(256)
    memory = {}
    for time_steps in (8192, 16_384):
        shape = jax.ShapeDtypeStruct((time_steps, 64), jnp.float32)
        memory[time_steps] = chunked.lower(arrays, shape).compile().memory_analysis().temp_size_in_bytes / 1e6
    xs = jax.random.normal(jax.random.key(1), (1024, 64))
    plain, plain_arrays = gradient(None)
    got, expected = chunked(arrays, xs), plain(plain_arrays, xs)
    scale = lambda a, b: float(jnp.max(jnp.abs(a - b)) / jnp.max(jnp.abs(b)))
    error = max(map(scale, jax.tree.leaves(got), jax.tree.leaves(expected)))
    print("long      temporary memory", ", ".join(f"T={t}: {mb:.0f} MB" for t, mb in memory.items()), end="")
    print(f"; chunked against plain gradient at T=1024: {error:.1e}")
    return memory[16_384] < 1000 and error < 1e-5


def depth(options: Options) -> bool:
    """Compile time of the gradient of an encoder whose layers are scanned over."""
    times = {2: [], 24: []}
    xs, mask = jnp.ones((8, 32, 12)), jnp.ones((8, 32), bool)
    for repeat in range(options.repeats):
        for n in times:
            model = sqx.transformer_encoder(12, 64, 4, 128, n, 9, jax.random.key(repeat), scan_layers=True)
            arrays, rest = eqx.partition(model, eqx.is_array)
            loss = lambda arrays, rest=rest: jnp.sum(eqx.combine(arrays, rest)(xs, mask=mask) ** 2)
            start = time.perf_counter()
            jax.jit(jax.grad(loss)).lower(arrays).compile()
            times[n].append(time.perf_counter() - start)
            jax.clear_caches()
    shown = {n: statistics.median(t) for n, t in times.items()}
    ratio = shown[24] / shown[2]
    print(f"depth     compile time: 2 blocks {shown[2]:.2f} s, 24 blocks {shown[24]:.2f} s, ratio {ratio:.2f}")
    return ratio <= 1.5


def main(options: Options) -> int:
    """Prints a line or two for each; returns the exit status."""
    print(f"jax {jax.__version__}, {jax.default_backend()}, {os.cpu_count()} cores, float32")
    parts = {"decode": decode, "generate": generate, "long": long, "depth": depth}
    passed = [run(options) for name, run in parts.items() if options.only in (None, name)]
    return 0 if all(passed) or not options.check else 1


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Options)))
