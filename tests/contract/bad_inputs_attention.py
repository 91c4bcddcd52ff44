"""Wrong arguments of attention, transformers and generation: a part of the table of `bad_inputs.py`."""

# pyright: reportArgumentType=false, reportCallIssue=false
# Wrong arguments are this file's business.

import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

import sequinox as sqx

Case = tuple[str, Callable[[], Any], type[Exception], tuple[str, ...]]

KEY = jax.random.key(0)
XS, X = jnp.ones((4, 5, 3)), jnp.ones((4, 3))
GRU = sqx.GRU(3, 6, KEY)
TOKENS = sqx.Sequential([eqx.nn.Embedding(9, 3, key=KEY), sqx.GRU(3, 6, KEY)])
MASK = jnp.ones((4, 5), bool)


def attention() -> list[Case]:
    """The function, the layers, their caches and memories, positions."""
    sdpa = "scaled_dot_product_attention"
    attend = sqx.scaled_dot_product_attention
    q, k, v = jnp.ones((2, 3, 4, 6)), jnp.ones((2, 3, 5, 6)), jnp.ones((2, 3, 5, 7))
    same = (q, q, q)
    cases: list[Case] = [
        (f"{sdpa}: list", lambda: attend([[1.0]], k, v), TypeError, (sdpa, "q", "array", "list")),
        (f"{sdpa}: integers", lambda: attend(q, k.astype(int), v), TypeError, (sdpa, "k", "floating", "int32")),
        (f"{sdpa}: complex", lambda: attend(q, k, v.astype(jnp.complex64)), TypeError, (sdpa, "v", "complex64")),
        (f"{sdpa}: rank", lambda: attend(q[0, 0, 0], k, v), ValueError, (sdpa, "q", "(*batch, time, width)", "(6,)")),
        (f"{sdpa}: dtypes", lambda: attend(q, k.astype(jnp.float16), v), TypeError, (sdpa, "float32", "float16")),
        (f"{sdpa}: no width", lambda: attend(q[..., :0], k[..., :0], v), ValueError, (sdpa, "width", "(2, 3, 4, 0)")),
        (
            f"{sdpa}: widths",
            lambda: attend(q, k[..., :5], v),
            ValueError,
            (sdpa, "k must", "(2, 3, 4, 6)", "(2, 3, 5, 5)"),
        ),
        (f"{sdpa}: batch", lambda: attend(q, k[:1], v), ValueError, (sdpa, "k must", "(2, 3, 4, 6)", "(1, 3, 5, 6)")),
        (f"{sdpa}: batch rank", lambda: attend(q, k[0], v), ValueError, (sdpa, "k must", "(3, 5, 6)")),
        (
            f"{sdpa}: values",
            lambda: attend(q, k, v[:, :, :4]),
            ValueError,
            (sdpa, "v must", "(2, 3, 5, 6)", "(2, 3, 4, 7)"),
        ),
        (f"{sdpa}: mask of numbers", lambda: attend(q, k, v, jnp.ones((4, 5))), TypeError, (sdpa, "mask", "boolean")),
        (f"{sdpa}: mask a list", lambda: attend(q, k, v, [[True]]), TypeError, (sdpa, "mask", "array", "list")),
        (
            f"{sdpa}: mask without heads",
            lambda: attend(q, k, v, jnp.ones((2, 4, 5), bool)),
            ValueError,
            (sdpa, "mask", "(4, 5)", "(2, 3, 4, 5)", "(2, 4, 5)"),
        ),
        (f"{sdpa}: mask of keys", lambda: attend(q, k, v, jnp.ones(5, bool)), ValueError, (sdpa, "mask", "(5,)")),
        (f"{sdpa}: mask turned", lambda: attend(q, k, v, jnp.ones((5, 4), bool)), ValueError, (sdpa, "mask", "(5, 4)")),
        (
            f"{sdpa}: key_mask",
            lambda: attend(q, k, v, key_mask=jnp.ones((2, 5), bool)),
            ValueError,
            (sdpa, "key_mask", "(2, 3, 5)", "(2, 5)"),
        ),
        (
            f"{sdpa}: key_mask floats",
            lambda: attend(q, k, v, key_mask=v[..., 0]),
            TypeError,
            (sdpa, "key_mask", "bool"),
        ),
        (
            f"{sdpa}: resets",
            lambda: attend(q, k, v, resets=jnp.ones((2, 3, 5), bool)),
            ValueError,
            (sdpa, "resets", "as many queries as keys", "4", "5"),
        ),
        (
            f"{sdpa}: resets' shape",
            lambda: attend(*same, resets=jnp.ones((3, 4), bool)),
            ValueError,
            (sdpa, "resets", "(2, 3, 4)", "(3, 4)"),
        ),
        (f"{sdpa}: causal", lambda: attend(q, k, v, causal=1), TypeError, (sdpa, "causal", "True or False", "1")),
        (f"{sdpa}: window 0", lambda: attend(q, k, v, window=0), ValueError, (sdpa, "window", "at least 1", "0")),
        (f"{sdpa}: window float", lambda: attend(q, k, v, window=2.0), TypeError, (sdpa, "window", "integer", "2.0")),
        (f"{sdpa}: scale", lambda: attend(q, k, v, scale=math.inf), ValueError, (sdpa, "scale", "finite")),
        (f"{sdpa}: dropout 1", lambda: attend(q, k, v, dropout=1.0, key=KEY), ValueError, (sdpa, "dropout", "1.0")),
        (f"{sdpa}: dropout -1", lambda: attend(q, k, v, dropout=-1.0, key=KEY), ValueError, (sdpa, "dropout", "-1.0")),
        (
            f"{sdpa}: dropout NaN",
            lambda: attend(q, k, v, dropout=math.nan, key=KEY),
            ValueError,
            (sdpa, "dropout", "nan"),
        ),
        (f"{sdpa}: no key", lambda: attend(q, k, v, dropout=0.1), ValueError, (sdpa, "dropout", "key")),
        (f"{sdpa}: wrong key", lambda: attend(q, k, v, dropout=0.1, key=3), TypeError, (sdpa, "key", "PRNG key", "3")),
        (f"{sdpa}: chunk_size", lambda: attend(q, k, v, chunk_size=0), ValueError, (sdpa, "chunk_size", "at least 1")),
    ]
    for make in (sqx.MultiHeadSelfAttention, sqx.MultiHeadCrossAttention):
        n = make.__name__
        cases += [
            (f"{n}: d_model", lambda m=make: m(0, 1, KEY), ValueError, (n, "d_model", "at least 1", "0")),
            (f"{n}: d_model float", lambda m=make: m(6.0, 2, KEY), TypeError, (n, "d_model", "integer", "6.0")),
            (f"{n}: n_heads", lambda m=make: m(6, -2, KEY), ValueError, (n, "n_heads", "-2")),
            (
                f"{n}: indivisible",
                lambda m=make: m(6, 4, KEY),
                ValueError,
                (n, "d_model", "multiple", "n_heads", "6 and 4"),
            ),
            (f"{n}: kv heads", lambda m=make: m(6, 3, KEY, n_kv_heads=2), ValueError, (n, "n_kv_heads", "3 and 2")),
            (
                f"{n}: no kv heads",
                lambda m=make: m(6, 3, KEY, n_kv_heads=0),
                ValueError,
                (n, "n_kv_heads", "at least 1"),
            ),
            (f"{n}: d_head", lambda m=make: m(6, 3, KEY, d_head=True), TypeError, (n, "d_head", "integer", "True")),
            (f"{n}: key", lambda m=make: m(6, 3, 0), TypeError, (n, "key", "PRNG key", "0")),
            (
                f"{n}: dropout",
                lambda m=make: m(6, 3, KEY, dropout=1.0),
                ValueError,
                (n, "dropout", "less than 1", "1.0"),
            ),
            (f"{n}: dropout NaN", lambda m=make: m(6, 3, KEY, dropout=math.nan), ValueError, (n, "dropout", "nan")),
            (
                f"{n}: dropout text",
                lambda m=make: m(6, 3, KEY, dropout="0.1"),
                TypeError,
                (n, "dropout", "number", "0.1"),
            ),
            (f"{n}: use_bias", lambda m=make: m(6, 3, KEY, use_bias=1), TypeError, (n, "use_bias", "True or False")),
            (
                f"{n}: chunk_size",
                lambda m=make: m(6, 3, KEY, chunk_size=0),
                ValueError,
                (n, "chunk_size", "at least 1"),
            ),
            (f"{n}: initializer", lambda m=make: m(6, 3, KEY, initializer="he"), TypeError, (n, "initializer", "'he'")),
            (f"{n}: dtype", lambda m=make: m(6, 3, KEY, dtype=int), TypeError, (n, "dtype", "floating", "int")),
        ]
    mhsa = sqx.MultiHeadSelfAttention
    causal, ring = mhsa(3, 1, KEY, causal=True), mhsa(3, 1, KEY, causal=True, window=3)
    whole, n = mhsa(3, 1, KEY), "MultiHeadSelfAttention"
    cache = causal.init_cache(4, capacity=2)
    full = causal.unroll(XS[:, :2], cache)[1]
    cases += [
        (f"{n}: causal", lambda: mhsa(6, 2, KEY, "yes"), TypeError, (n, "causal", "True or False", "'yes'")),
        (f"{n}: window", lambda: mhsa(6, 2, KEY, window=0), ValueError, (n, "window", "at least 1", "0")),
        (f"{n}: rotary", lambda: mhsa(6, 3, KEY, rotary=True), TypeError, (n, "rotary", "Rotary()", "True")),
        (
            f"{n}: rotary odd",
            lambda: mhsa(6, 2, KEY, rotary=sqx.Rotary()),
            ValueError,
            (n, "rotary", "even", "d_head 3"),
        ),
        (f"{n}: step", lambda: whole.step(X), TypeError, (f"{n}.step", "does not stream", "causal=True")),
        (
            f"{n}: width",
            lambda: causal(jnp.ones((4, 5, 2))),
            ValueError,
            (f"{n}.forward", "(*batch, time, 3)", "(4, 5, 2)"),
        ),
        (f"{n}: mask", lambda: causal(XS, mask=MASK[:, :4]), ValueError, ("mask", "(4, 5)", "(4, 4)")),
        (f"{n}: no key", lambda: mhsa(3, 1, KEY, dropout=0.5)(XS), ValueError, ("key", "inference_mode")),
        (
            f"{n}: no cache",
            lambda: whole.init_cache(),
            TypeError,
            (f"{n}.init_cache", "does not stream", "causal=True"),
        ),
        (f"{n}: capacity", lambda: causal.init_cache(capacity=0), ValueError, ("capacity", "at least 1", "0")),
        (f"{n}: capacity float", lambda: causal.init_cache(capacity=8.0), TypeError, ("capacity", "integer", "8.0")),
        (f"{n}: batch", lambda: causal.init_cache(-1, capacity=3), ValueError, ("batch", "negative", "-1")),
        (f"{n}: ring's capacity", lambda: ring.init_cache(capacity=8), ValueError, ("capacity", "window=3", "ring")),
        (
            f"{n}: state a tuple",
            lambda: causal.step(X, tuple(cache)),
            TypeError,
            ("state", "KVCache", "init_cache", "tuple"),
        ),
        (f"{n}: state of a ring", lambda: causal.step(X, ring.init_cache(4)), TypeError, ("state", "got RingKVCache")),
        (f"{n}: no ring", lambda: ring.step(X, cache), TypeError, ("state", "must be a RingKVCache", "got KVCache")),
        (f"{n}: state's batch", lambda: causal.step(X[:3], cache), ValueError, ("state.k", "(3, 2, 3)", "(4, 2, 3)")),
        (f"{n}: state of none", lambda: whole.unroll(XS, cache), ValueError, ("state", "tuple of 0", "3 entries")),
        (
            f"{n}: None in it",
            lambda: causal.step(X, cache._replace(k=None)),
            TypeError,
            ("state.k", "array", "NoneType"),
        ),
        (f"{n}: full", lambda: causal.step(X, full), ValueError, ("full", "2 slots", "capacity")),
        (f"{n}: full at once", lambda: causal.unroll(XS, cache), ValueError, ("full", "2 slots", "5 samples")),
        (
            f"{n}: weights",
            lambda: whole.attention_weights(XS[..., :2]),
            ValueError,
            (f"{n}.attention_weights", "(4, 5, 2)"),
        ),
        (
            "with_capacity: smaller",
            lambda: sqx.with_capacity(cache, 1),
            ValueError,
            ("with_capacity", "2 slots", "got 1"),
        ),
        ("with_capacity: float", lambda: sqx.with_capacity(cache, 4.0), TypeError, ("capacity", "integer", "4.0")),
        ("with_capacity: zero", lambda: sqx.with_capacity(cache, 0), ValueError, ("capacity", "at least 1", "0")),
    ]
    n = "MultiHeadCrossAttention"
    cross = sqx.MultiHeadCrossAttention(3, 1, KEY, d_memory=2)
    places = jnp.ones((4, 6, 2))
    memory = cross.read(places)
    cases += [
        (
            f"{n}: d_memory",
            lambda: sqx.MultiHeadCrossAttention(6, 2, KEY, d_memory=0),
            ValueError,
            (n, "d_memory", "0"),
        ),
        (f"{n}: no memory", lambda: cross(XS), ValueError, (n, "no memory", "layer.read(memory)")),
        (f"{n}: no memory in a step", lambda: cross.step(X), ValueError, (n, "no memory", "layer.read(memory)")),
        (f"{n}: memory a list", lambda: cross.read([[1.0, 2.0]]), TypeError, (f"{n}.read", "memory", "array", "list")),
        (f"{n}: memory's width", lambda: cross.read(XS), ValueError, (f"{n}.read", "(*batch, places, 2)", "(4, 5, 3)")),
        (
            f"{n}: memory's rank",
            lambda: cross.read(places[0, 0]),
            ValueError,
            (f"{n}.read", "(*batch, places, 2)", "(2,)"),
        ),
        (f"{n}: memory's dtype", lambda: cross.read(places.astype(int)), TypeError, (f"{n}.read", "int32", "float32")),
        (
            f"{n}: memory's mask",
            lambda: cross.read(places, mask=jnp.ones((4, 5), bool)),
            ValueError,
            (f"{n}.read", "mask", "(4, 6)", "(4, 5)"),
        ),
        (f"{n}: raw memory", lambda: cross.unroll(XS, places), TypeError, ("state", "Memory", "read")),
        (f"{n}: a cache", lambda: cross.unroll(XS, cache), TypeError, ("state", "Memory(k, v, real)", "KVCache")),
        (
            f"{n}: memory's batch",
            lambda: cross.unroll(XS[:3], memory),
            ValueError,
            ("state.k", "(3, 6, 3)", "(4, 6, 3)"),
        ),
        (f"{n}: None in it", lambda: cross.step(X, (None, None, None)), TypeError, ("state.k", "array", "NoneType")),
        (f"{n}: batch", lambda: cross.init_state(-1), ValueError, (f"{n}.init_state", "batch", "-1")),
        (f"{n}: weights", lambda: cross.attention_weights(XS, cross.init_state(4)), ValueError, (n, "no memory")),
        ("GatedFusion: width", lambda: sqx.GatedFusion(3, 0, 4, KEY), ValueError, ("GatedFusion", "n_b", "at least 1")),
        ("GatedFusion: key", lambda: sqx.GatedFusion(3, 2, 4, 1), TypeError, ("GatedFusion", "key", "PRNG key")),
        (
            "GatedFusion: one signal",
            lambda: sqx.GatedFusion(3, 2, 4, KEY)(XS),
            ValueError,
            ("GatedFusion.forward", "5", "(4, 5, 3)"),
        ),
        ("Rotary: base", lambda: sqx.Rotary(1.0), ValueError, ("Rotary", "base", "greater than 1", "1.0")),
        ("Rotary: base NaN", lambda: sqx.Rotary(math.nan), ValueError, ("Rotary", "base", "finite")),
        ("Rotary: base text", lambda: sqx.Rotary("10000"), TypeError, ("Rotary", "base", "number")),
        (
            "Rotary: interleaved",
            lambda: sqx.Rotary(interleaved=0),
            TypeError,
            ("Rotary", "interleaved", "True or False"),
        ),
        ("Rotary: odd", lambda: sqx.Rotary()(jnp.ones((4, 1, 3)), jnp.arange(4)), ValueError, ("Rotary", "even", "3")),
        (
            "Rotary: positions",
            lambda: sqx.Rotary()(jnp.ones((4, 1, 2)), jnp.ones(4)),
            TypeError,
            ("Rotary", "positions", "integers", "float32"),
        ),
        ("AddPositions: n_in", lambda: sqx.AddPositions(0), ValueError, ("AddPositions", "n_in", "at least 1")),
        ("AddPositions: max_len", lambda: sqx.AddPositions(max_len=2.5), TypeError, ("AddPositions", "max_len", "2.5")),
        ("AddPositions: too long", lambda: sqx.AddPositions(3, 4)(XS), ValueError, ("AddPositions", "max_len=4")),
        (
            "AddPositions: state",
            lambda: sqx.AddPositions(3).step(X, jnp.zeros(4)),
            TypeError,
            ("AddPositions.step", "state", "int32", "float32"),
        ),
        (
            "AddLearnedPositions: max_len",
            lambda: sqx.AddLearnedPositions(3, 0, KEY),
            ValueError,
            ("max_len", "at least 1"),
        ),
        (
            "AddLearnedPositions: key",
            lambda: sqx.AddLearnedPositions(3, 4, None),
            TypeError,
            ("key", "PRNG key", "None"),
        ),
        (
            "AddLearnedPositions: too long",
            lambda: sqx.AddLearnedPositions(3, 4, KEY)(XS),
            ValueError,
            ("AddLearnedPositions", "max_len=4"),
        ),
    ]
    return cases


def generation() -> list[Case]:
    """Continuing tokens."""
    k1, k2 = jax.random.split(KEY)
    model = sqx.Sequential([eqx.nn.Embedding(9, 3, key=k1), sqx.Dense(3, 9, k2)])
    both = sqx.Bidirectional(sqx.GRU(3, 4, k1), sqx.GRU(3, 4, k2))
    later = sqx.Sequential([eqx.nn.Embedding(9, 3, key=k1), both])
    pooled = sqx.Sequential([eqx.nn.Embedding(9, 3, key=k1), sqx.LastStep()])
    attention = sqx.Sequential([eqx.nn.Embedding(9, 4, key=k1), sqx.MultiHeadSelfAttention(4, 2, k2, causal=True)])
    prompt, mask = jnp.ones((4, 5), int), jnp.ones((4, 5), bool)
    go = lambda prompt=prompt, n_new=2, model=model, **kw: sqx.generate(model, prompt, n_new, **kw)
    return [
        ("generate: no layer", lambda: go(model=jnp.tanh), TypeError, ("generate", "model", "sequence layer")),
        ("generate: does not stream", lambda: go(model=later), TypeError, ("generate", "does not stream")),
        ("generate: vectors", lambda: go(model=GRU), TypeError, ("generate", "model", "integer tokens")),
        ("generate: pools", lambda: go(model=pooled), TypeError, ("generate", "model", "pools")),
        ("generate: prompt of floats", lambda: go(prompt * 1.0), TypeError, ("generate", "prompt", "float32")),
        ("generate: prompt a list", lambda: go([1, 2]), TypeError, ("generate", "prompt", "array", "list")),
        ("generate: prompt a token", lambda: go(jnp.array(1)), ValueError, ("prompt", "(*batch, time)", "()")),
        ("generate: empty prompt", lambda: go(prompt[:, :0]), ValueError, ("prompt", "at least one", "(4, 0)")),
        ("generate: token too large", lambda: go(prompt * 9), ValueError, ("prompt", "less than 9")),
        ("generate: token negative", lambda: go(-prompt), ValueError, ("prompt", "at least 0")),
        ("generate: mask shape", lambda: go(mask=mask[:3]), ValueError, ("generate", "mask", "(4, 5)", "(3, 5)")),
        ("generate: mask dtype", lambda: go(mask=prompt), TypeError, ("generate", "mask", "bool", "int32")),
        ("generate: row without tokens", lambda: go(mask=mask.at[2].set(False)), ValueError, ("mask", "every row")),
        ("generate: n_new 0", lambda: go(n_new=0), ValueError, ("generate", "n_new", "at least 1", "0")),
        ("generate: n_new float", lambda: go(n_new=2.0), TypeError, ("generate", "n_new", "integer", "2.0")),
        ("generate: no key", lambda: go(temperature=1.0), ValueError, ("generate", "temperature", "key")),
        ("generate: top_p of nothing", lambda: go(top_p=0.9, key=KEY), ValueError, ("top_k", "top_p", "temperature")),
        ("generate: key", lambda: go(temperature=1.0, key=3), TypeError, ("generate", "key", "PRNG key", "3")),
        ("generate: cold", lambda: go(temperature=-1, key=KEY), ValueError, ("temperature", "at least 0", "-1")),
        ("generate: NaN", lambda: go(temperature=math.nan, key=KEY), ValueError, ("temperature", "finite", "nan")),
        ("generate: text", lambda: go(temperature="hot", key=KEY), TypeError, ("temperature", "number", "'hot'")),
        ("generate: temperatures", lambda: go(temperature=jnp.ones(4), key=KEY), TypeError, ("temperature", "(4,)")),
        ("generate: top_k", lambda: go(top_k=0), ValueError, ("generate", "top_k", "at least 1", "0")),
        ("generate: top_p 0", lambda: go(top_p=0.0), ValueError, ("generate", "top_p", "greater than 0", "0.0")),
        ("generate: top_p 2", lambda: go(top_p=jnp.array(2.0)), ValueError, ("generate", "top_p", "at most 1", "2.0")),
        ("generate: stop", lambda: go(stop=9), ValueError, ("generate", "stop", "less than 9", "9")),
        ("generate: stop float", lambda: go(stop=1.0), TypeError, ("generate", "stop", "integer", "1.0")),
        ("generate: pad", lambda: go(pad=-1), ValueError, ("generate", "pad", "at least 0", "-1")),
        ("generate: n_beams", lambda: go(n_beams=0), ValueError, ("generate", "n_beams", "at least 1", "0")),
        ("generate: warm beams", lambda: go(n_beams=2, temperature=1.0), ValueError, ("n_beams", "temperature")),
        ("generate: beams, top_k", lambda: go(n_beams=2, top_k=3), ValueError, ("n_beams", "top_k")),
        ("generate: penalty", lambda: go(length_penalty=1.0), ValueError, ("length_penalty", "n_beams")),
        ("generate: penalty text", lambda: go(n_beams=2, length_penalty="1"), TypeError, ("length_penalty", "'1'")),
        ("generate: state", lambda: go(model=attention, state=((), ())), TypeError, ("generate", "state", "KVCache")),
        (
            "generate: state of another batch",
            lambda: go(model=attention, state=attention.init_state(3)),
            ValueError,
            ("generate", "state", "(4, 0, 4)", "(3, 0, 4)"),
        ),
        ("Stream: capacity", lambda: sqx.Stream(attention, capacity=0), ValueError, ("Stream", "capacity", "0")),
    ]


def transformers_() -> list[Case]:
    """Blocks, feed-forward networks, depth, readouts, encoder and decoder."""
    sizes = (3, 6, 2, 5, 1, 4, KEY)
    encoder, decoder, both = sqx.transformer_encoder, sqx.transformer_decoder, sqx.encoder_decoder
    block = lambda **options: sqx.TransformerBlock(6, 2, 5, KEY, **options)
    forward = lambda **options: sqx.FeedForward(3, 5, KEY, **options)
    gru = lambda n_in, n_out: sqx.GRU(n_in, n_out, KEY)
    last = lambda: sqx.Sequential([gru(3, 3), sqx.LastStep()])
    rows, seen, tokens = jnp.ones((4, 5, 6)), block(causal=True, cross=True), jnp.ones((4, 5), int)
    model = both(*sizes)
    wide = lambda n, dtype: eqx.nn.Linear(n, n + 1, key=KEY)
    stack = sqx.Stack([block(causal=True)] * 2)
    cases: list[Case] = []
    for make in (encoder, decoder, both):
        n = make.__name__
        at = lambda i, value, m=make: m(*sizes[:i], value, *sizes[i + 1 :])
        cases += [
            (f"{n}: n_in", lambda f=at: f(0, 0), ValueError, (n, "n_in", "at least 1", "0")),
            (f"{n}: d_model text", lambda f=at: f(1, "6"), TypeError, (n, "d_model", "integer", "'6'")),
            (f"{n}: d_model", lambda f=at: f(1, 7), ValueError, ("d_model", "multiple of n_heads", "7 and 2")),
            (f"{n}: n_heads", lambda f=at: f(2, 0), ValueError, ("n_heads", "at least 1", "0")),
            (f"{n}: d_ff", lambda f=at: f(3, -5), ValueError, ("FeedForward", "d_ff", "-5")),
            (f"{n}: n_layers", lambda f=at: f(4, 0), ValueError, (n, "n_layers", "at least 1", "0")),
            (f"{n}: n_layers a float", lambda f=at: f(4, 1.0), TypeError, (n, "n_layers", "integer", "1.0")),
            (f"{n}: n_out", lambda f=at: f(5, 0), ValueError, (n, "n_out", "at least 1", "0")),
            (f"{n}: key", lambda f=at: f(6, 0), TypeError, (n, "key", "PRNG key", "0")),
            (f"{n}: max_len", lambda m=make: m(*sizes, 0), ValueError, (n, "max_len", "at least 1", "0")),
            (f"{n}: max_len a float", lambda m=make: m(*sizes, 5.0), TypeError, (n, "max_len", "integer", "5.0")),
            (f"{n}: positions", lambda m=make: m(*sizes, positions="sine"), ValueError, (n, "sinusoidal", "'sine'")),
            (f"{n}: a class", lambda m=make: m(*sizes, positions=sqx.Rotary), ValueError, (n, "positions", "Rotary")),
            (f"{n}: learned", lambda m=make: m(*sizes, positions="learned"), ValueError, (n, "learned", "max_len")),
            (f"{n}: odd heads", lambda m=make: m(*sizes, positions="rotary"), ValueError, ("rotary", "even", "3")),
            (f"{n}: rotary", lambda m=make: m(*sizes, rotary=sqx.Rotary()), ValueError, (n, "rotary", "positions")),
            (f"{n}: norm", lambda m=make: m(*sizes, norm="both"), ValueError, ("norm", "post", "pre", "'both'")),
            (f"{n}: dropout", lambda m=make: m(*sizes, dropout=1.0), ValueError, (n, "dropout", "less than 1", "1.0")),
            (f"{n}: tokens", lambda m=make: m(*sizes, tokens=1), TypeError, (n, "tokens", "True or False", "1")),
            (f"{n}: scan_layers", lambda m=make: m(*sizes, scan_layers=1), TypeError, (n, "scan_layers", "1")),
            (f"{n}: remat", lambda m=make: m(*sizes, remat=None), TypeError, (n, "remat", "True or False", "None")),
            (f"{n}: dtype", lambda m=make: m(*sizes, dtype=int), TypeError, (n, "dtype", "floating", "int")),
            (f"{n}: unknown", lambda m=make: m(*sizes, heads=3), TypeError, ("heads",)),
            (f"{n}: activation", lambda m=make: m(*sizes, activation="gelu"), TypeError, ("activation", "'gelu'")),
            (f"{n}: window", lambda m=make: m(*sizes, window=0), ValueError, ("window", "at least 1", "0")),
        ]
    cases += [
        ("transformer_encoder: pool", lambda: encoder(*sizes, pool="max"), ValueError, ("pool", "mean", "'max'")),
        ("transformer_encoder: no key", lambda: encoder(*sizes, dropout=0.1)(XS), ValueError, ("key", "inference")),
        ("transformer_encoder: causal", lambda: encoder(*sizes, causal=1), TypeError, ("causal", "True or False")),
        ("transformer_encoder: step", lambda: encoder(*sizes).step(X), TypeError, ("does not stream", "causal=True")),
        ("transformer_encoder: too long", lambda: encoder(*sizes, 4)(XS), ValueError, ("AddPositions", "max_len=4")),
        ("transformer_decoder: not causal", lambda: decoder(*sizes, causal=False), ValueError, ("decoder is causal",)),
        ("transformer_decoder: tied", lambda: decoder(*sizes, tied=1), TypeError, ("tied", "True or False", "1")),
        ("transformer_decoder: tied vectors", lambda: decoder(*sizes, tied=True), ValueError, ("tied", "tokens=True")),
        (
            "transformer_decoder: tied sizes",
            lambda: decoder(*sizes, tokens=True, tied=True),
            ValueError,
            ("tied", "n_in 3", "n_out 4"),
        ),
        (
            "transformer_decoder: readout_bias",
            lambda: decoder(*sizes, readout_bias=0),
            TypeError,
            ("transformer_decoder", "readout_bias", "True or False", "0"),
        ),
        ("encoder_decoder: causal", lambda: both(*sizes, causal=True), ValueError, ("encoder_decoder", "causal")),
        ("encoder_decoder: cross", lambda: both(*sizes, cross=True), ValueError, ("encoder_decoder", "cross")),
        ("encoder_decoder: d_memory", lambda: both(*sizes, d_memory=5), ValueError, ("encoder_decoder", "d_memory")),
        ("encoder_decoder: pool", lambda: both(*sizes, pool="mean"), TypeError, ("pool",)),
        ("encoder_decoder: no source", lambda: jax.eval_shape(model, tokens), ValueError, ("no memory", "read")),
        ("encode: None", lambda: model.encode(None), TypeError, ("xs", "array", "NoneType")),
        ("encode: width", lambda: model.encode(rows), ValueError, ("(*batch, time, 3)", "(4, 5, 6)")),
        ("encode: mask", lambda: model.encode(XS, mask=MASK[:, :4]), ValueError, ("mask", "(4, 5)", "(4, 4)")),
        ("encode: mask a list", lambda: model.encode(XS, mask=[True]), TypeError, ("mask", "array", "list")),
        (
            "start: another batch",
            lambda: jax.eval_shape(lambda: model.unroll(tokens, model.encode(XS[:3]))),
            ValueError,
            ("EncoderDecoder.unroll", "state[1]", "(4,)", "(3,)"),
        ),
        ("EncoderDecoder: no layer", lambda: sqx.EncoderDecoder(GRU, jnp.tanh), TypeError, ("decoder", "layer")),
        ("EncoderDecoder: a class", lambda: sqx.EncoderDecoder(sqx.GRU, GRU), TypeError, ("encoder", "GRU")),
        ("EncoderDecoder: pools", lambda: sqx.EncoderDecoder(last(), seen), ValueError, ("encoder", "pools")),
        (
            "EncoderDecoder: nobody looks",
            lambda: sqx.EncoderDecoder(gru(3, 6), sqx.Sequential([stack, block(causal=True)])),
            ValueError,
            ("EncoderDecoder", "decoder", "cross-attention", "cross=True"),
        ),
        (
            "EncoderDecoder: widths",
            lambda: jax.eval_shape(sqx.EncoderDecoder(gru(3, 5), seen).encode, XS),
            ValueError,
            ("memory", "(*batch, places, 6)", "(4, 5, 5)"),
        ),
        ("TransformerBlock: norm", lambda: block(norm=None), ValueError, ("TransformerBlock", "norm", "post", "None")),
        ("TransformerBlock: cross", lambda: block(cross=1), TypeError, ("TransformerBlock", "cross", "1")),
        ("TransformerBlock: d_memory", lambda: block(d_memory=3), ValueError, ("d_memory", "cross=True")),
        ("TransformerBlock: dropout", lambda: block(dropout="a"), TypeError, ("dropout", "number", "'a'")),
        ("TransformerBlock: attention's", lambda: block(attention_dropout=2), ValueError, ("dropout", "less than 1")),
        ("TransformerBlock: norm_layer", lambda: block(norm_layer="LayerNorm"), TypeError, ("norm_layer", "class")),
        ("TransformerBlock: wide norm", lambda: block(norm_layer=wide), ValueError, ("norm_layer", "width 6", "7")),
        ("TransformerBlock: heads", lambda: block(n_kv_heads=4), ValueError, ("n_heads", "n_kv_heads", "2 and 4")),
        ("TransformerBlock: rotary", lambda: block(rotary=True), TypeError, ("rotary", "Rotary()", "True")),
        ("TransformerBlock: no memory", lambda: seen(rows), ValueError, ("no memory", "read")),
        ("TransformerBlock: step", lambda: block().step(rows[0]), TypeError, ("TransformerBlock.step", "causal=True")),
        ("TransformerBlock: width", lambda: block()(XS), ValueError, ("(*batch, time, 6)", "(4, 5, 3)")),
        (
            "TransformerBlock: state",
            lambda: block(causal=True).unroll(rows, ()),
            ValueError,
            ("state", "BlockState(self_attention, cross_attention)", "0"),
        ),
        (
            "TransformerBlock: state of the attention",
            lambda: block(causal=True).unroll(rows, ((), ())),
            TypeError,
            ("state.self_attention", "KVCache", "tuple"),
        ),
        ("FeedForward: n_in", lambda: sqx.FeedForward(0, 5, KEY), ValueError, ("FeedForward", "n_in", "0")),
        ("FeedForward: d_ff", lambda: sqx.FeedForward(3, 5.0, KEY), TypeError, ("FeedForward", "d_ff", "5.0")),
        ("FeedForward: key", lambda: sqx.FeedForward(3, 5, 0), TypeError, ("FeedForward", "key", "PRNG key")),
        ("FeedForward: activation", lambda: forward(activation="relu"), TypeError, ("activation", "'relu'")),
        ("FeedForward: a sum", lambda: forward(activation=jnp.sum)(XS), ValueError, ("activation", "shape", "()")),
        ("FeedForward: gated", lambda: forward(gated=3), TypeError, ("gated", "True or False", "3")),
        ("FeedForward: use_bias", lambda: forward(use_bias=None), TypeError, ("use_bias", "True or False", "None")),
        ("FeedForward: initializer", lambda: forward(initializer="glorot"), TypeError, ("initializer", "'glorot'")),
        ("Stack: empty", lambda: sqx.Stack([]), ValueError, ("Stack", "layers", "at least one")),
        ("Stack: one layer", lambda: sqx.Stack(GRU), TypeError, ("Stack", "list", "GRU")),
        ("Stack: a function", lambda: sqx.Stack([gru(3, 3), jnp.tanh]), TypeError, ("Stack", "layers[1]", "tanh")),
        ("Stack: width", lambda: sqx.Stack([gru(3, 5)]), ValueError, ("Stack", "GRU", "n_in 3", "n_out 5")),
        ("Stack: pools", lambda: sqx.Stack([last()]), ValueError, ("Stack", "pools")),
        ("Stack: sizes", lambda: sqx.Stack([gru(3, 3), gru(4, 4)]), ValueError, ("Stack", "layers[1]", "layers[0]")),
        ("Stack: options", lambda: sqx.Stack([block(), block(norm="pre")]), ValueError, ("Stack", "configuration")),
        (
            "Stack: state a text",
            lambda: stack.unroll(rows, "x"),
            TypeError,
            ("Stack.unroll", "state", "tuple of 2", "str"),
        ),
        ("Stack: state empty", lambda: stack.unroll(rows, ()), ValueError, ("Stack.unroll", "state", "2", "0 entries")),
        (
            "Stack: state of one layer",
            lambda: stack.unroll(rows, block(causal=True).init_state(4)),
            TypeError,
            ("Stack.unroll", "state[0]", "BlockState", "GrowingKVCache"),
        ),
        ("Stack: batch", lambda: stack.init_state(-1), ValueError, ("Stack.init_state", "batch", "-1")),
        ("Remat: no layer", lambda: sqx.Remat(jnp.tanh), TypeError, ("Remat", "layer", "tanh")),
        ("Remat: width", lambda: sqx.Remat(GRU)(rows), ValueError, ("Remat.forward", "3", "(4, 5, 6)")),
        ("TiedReadout: tokens", lambda: sqx.TiedReadout(0, gru(3, 3), KEY), ValueError, ("TiedReadout", "n_tokens")),
        ("TiedReadout: no layer", lambda: sqx.TiedReadout(9, jnp.tanh, KEY), TypeError, ("TiedReadout", "body")),
        ("TiedReadout: widths", lambda: sqx.TiedReadout(9, gru(3, 4), KEY), ValueError, ("body", "n_in 3", "n_out 4")),
        ("TiedReadout: body of tokens", lambda: sqx.TiedReadout(9, TOKENS, KEY), ValueError, ("body", "n_in None")),
        ("TiedReadout: key", lambda: sqx.TiedReadout(9, gru(3, 3), 3), TypeError, ("TiedReadout", "key", "3")),
        ("TiedReadout: dtype", lambda: sqx.TiedReadout(9, gru(3, 3), KEY, dtype=int), TypeError, ("dtype", "int")),
        ("TiedReadout: vectors", lambda: sqx.TiedReadout(9, gru(3, 3), KEY)(XS), TypeError, ("integer", "float32")),
    ]
    return cases


def cases() -> list[Case]:
    return attention() + transformers_() + generation()
