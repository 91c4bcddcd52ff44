"""Generated tokens against plain Python: loops of `forward` on ever longer rows, enumeration, NumPy."""

import itertools
import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array

import sequinox as sqx

pytestmark = pytest.mark.usefixtures("quick_compilation", "unchecked_types")

generate: Any = sqx.generate
V, D, TIME = 5, 8, 12  # tokens, width, length of the rows that the oracle reads
KEYS = jax.random.split(jax.random.key(0), 8)
PROMPT = jnp.array([[3, 1, 4, 1], [2, 0, 2, 3], [4, 4, 0, 1]])
MASK = jnp.array([[True, True, True, True], [False, True, False, True], [True, True, False, False]])


def network(*middle, n_tokens: int = V) -> sqx.Sequential:
    """An embedding, layers of width D, and a head of large weights: its distributions are far from uniform."""
    head = sqx.Dense(D, n_tokens, KEYS[6])
    head = eqx.tree_at(lambda h: h.W, head, head.W * 2)
    return sqx.Sequential([eqx.nn.Embedding(n_tokens, D, key=KEYS[7]), *middle, head])


def attention(**options) -> sqx.MultiHeadSelfAttention:
    return sqx.MultiHeadSelfAttention(D, 2, KEYS[1], causal=True, **options)


MODELS = {
    "GRU": network(sqx.GRU(D, D, KEYS[0])),
    "LSTM": network(sqx.LSTM(D, D, KEYS[0]), sqx.Dropout(0.5)),
    "attention": network(sqx.AddPositions(), attention()),
    "ring": network(sqx.AddPositions(), attention(window=3)),
    "rotary": network(attention(rotary=sqx.Rotary()), attention(n_kv_heads=1)),
}
thorough = pytest.mark.thorough
every_model = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in ("GRU", "attention") else thorough) for name in MODELS]
)


@eqx.filter_jit
def _log_probs(model, rows: Array, mask: Array) -> Array:
    return jax.nn.log_softmax(eqx.nn.inference_mode(model).forward(rows, mask=mask))


def log_probs(model, rows) -> np.ndarray:
    """The model's log-probabilities behind every token of rows of one length, `"rows time n_tokens"`."""
    rows = np.asarray(rows)
    padded = np.zeros((len(rows), TIME), np.int32)
    padded[:, : rows.shape[1]] = rows
    mask = np.broadcast_to(np.arange(TIME) < rows.shape[1], padded.shape)
    return np.asarray(_log_probs(model, jnp.asarray(padded), jnp.asarray(mask)))[:, : rows.shape[1]]


def greedy(model, row, n_new: int, stop: int | None = None) -> tuple[list[int], float]:
    row, new, total = list(row), [], 0.0
    while len(new) < n_new and (not new or new[-1] != stop):
        last = log_probs(model, [row + new])[0, -1]
        new.append(int(last.argmax()))
        total += float(last[new[-1]])
    return new, total


def beam_search(model, row, n_new: int, n_beams: int, penalty: float, stop: int | None) -> tuple[list[int], float]:
    live, best = [([], 0.0)], (-math.inf, [], 0.0)
    for _ in range(n_new):
        nexts = log_probs(model, [list(row) + new for new, _ in live])[:, -1]
        all_ = [([*new, v], s + float(p[v])) for (new, s), p in zip(live, nexts, strict=True) for v in range(len(p))]
        all_.sort(key=lambda h: -h[1])
        ended = [h for h in all_[:n_beams] if h[0][-1] == stop]
        live = [h for h in all_ if h[0][-1] != stop][:n_beams]
        for new, s in ended:
            best = max(best, (s / len(new) ** penalty, new, s), key=lambda h: h[0])
    for new, s in live:
        best = max(best, (s / n_new**penalty, new, s), key=lambda h: h[0])
    return best[1:]


def real(row: int) -> list[int]:
    return np.asarray(PROMPT[row])[np.asarray(MASK[row])].tolist()


def check_row(found: sqx.Generated, i, expected: tuple[list[int], float], pad: int = 0) -> None:
    new, total = expected
    n_new = found.tokens.shape[-1]
    assert found.tokens[i].tolist() == new + [pad] * (n_new - len(new))
    assert int(found.lengths[i]) == len(new)
    np.testing.assert_allclose(found.log_probs[i], total, rtol=1e-4, atol=1e-5)


# ---- greedy ----------------------------------------------------------------------------------------------------------


@every_model
def test_greedy_equals_a_loop_of_forward_in_ragged_batches(name: str):
    model = MODELS[name]
    found = generate(model, PROMPT, 6, mask=MASK)
    assert found.tokens.dtype == found.lengths.dtype == jnp.int32
    for i in range(3):
        check_row(found, i, greedy(model, real(i), 6))


@thorough
@pytest.mark.parametrize("name", ["ring"])
def test_a_row_alone_gives_what_it_gives_in_a_batch(name: str):
    model = MODELS[name]
    batch = generate(model, PROMPT[:, None], 4, mask=MASK[:, None], stop=2, pad=1)
    assert batch.tokens.shape == (3, 1, 4)
    for i in range(3):
        alone = generate(model, jnp.array(real(i)), 4, stop=2, pad=1)
        assert alone.lengths.shape == ()
        check_row(batch, (i, 0), (alone.tokens[: alone.lengths].tolist(), float(alone.log_probs)), pad=1)


@pytest.mark.parametrize("name", ["GRU", "attention"])
@pytest.mark.parametrize("stop", range(V))
def test_the_stop_symbol_ends_a_row(name: str, stop: int):
    found = generate(MODELS[name], PROMPT, 6, mask=MASK, stop=stop, pad=3)
    for i in range(3):
        check_row(found, i, greedy(MODELS[name], real(i), 6, stop), pad=3)


def test_one_token_and_narrow_prompts():
    found = generate(MODELS["GRU"], np.array([3, 1], np.uint8), 1)
    check_row(jax.tree.map(lambda a: a[None], found), 0, greedy(MODELS["GRU"], [3, 1], 1))


# ---- the loop --------------------------------------------------------------------------------------------------------


class Counter(sqx.Pointwise):
    """Tells when it is traced, and when it runs."""

    n_in: int | None = eqx.field(static=True, default=None)
    n_out: int | None = eqx.field(static=True, default=None)
    traces: list = eqx.field(static=True, default_factory=list)
    runs: list = eqx.field(static=True, default_factory=list)

    def apply(self, x: Array, key: Array | None) -> Array:
        del key
        self.traces.append(0)
        jax.debug.callback(lambda: self.runs.append(0))
        return x

    def __hash__(self) -> int:
        return id(self.traces)


def chain(*layers) -> sqx.Sequential:
    """After token i comes i + 1, almost surely."""
    return sqx.Sequential([eqx.nn.Embedding(weight=10 * jnp.roll(jnp.eye(V), 1, 1)), *layers])


class Log(list):
    """A list that stands in a static field."""

    __hash__ = object.__hash__  # pyright: ignore[reportAssignmentType]

    def __eq__(self, other: object) -> bool:
        return self is other


def test_the_loop_ends_when_every_row_has():
    counter = Counter(traces=Log(), runs=Log())
    found = generate(chain(counter), jnp.array([[1], [2]]), 1000, stop=4)
    jax.effects_barrier()
    assert found.lengths.tolist() == [3, 2]
    assert len(counter.runs) == 3  # the prompt, and two steps: nobody reads the last token
    counter.runs.clear()
    assert generate(chain(counter), jnp.array([[1], [2]]), 1000, stop=4, n_beams=2).lengths.tolist() == [3, 2]
    jax.effects_barrier()
    assert len(counter.runs) < 10


def test_compiled_once():
    counter = Counter(traces=Log(), runs=Log())
    model = network(counter, attention())
    other = jax.tree.map(lambda a: a + 0.1 if eqx.is_inexact_array(a) else a, model)
    prompt = jnp.array([[1, 2]])
    for options in ({}, {"temperature": 0.5, "key": KEYS[0], "top_p": 0.5, "top_k": 3}, {"n_beams": 2, "stop": 0}):
        generate(model, prompt, 3, **options)
        n = len(counter.traces)
        changed: Any = dict(options)
        if "temperature" in options:
            changed |= {"temperature": 2, "key": KEYS[1], "top_p": np.float32(0.9)}
        if "n_beams" in options:
            changed |= {"length_penalty": jnp.array(0.7)}
        generate(other, prompt + 1, 3, **changed)
        assert len(counter.traces) == n


def test_rows_that_are_done_pass_no_limit():
    model = chain(sqx.AddLearnedPositions(V, 8, KEYS[0]))
    prompt = jnp.zeros((2, 8), int).at[0].set(3)
    mask = jnp.ones((2, 8), bool).at[1, 1:].set(False)
    for options in ({}, {"n_beams": 2}):
        assert generate(model, prompt, 8, mask=mask, stop=4, **options).lengths.tolist() == [1, 4]
    with pytest.raises(Exception, match="a row is longer than max_len=8"):
        jax.block_until_ready(generate(model, prompt, 8, mask=mask))


def test_inside_jit():
    model = MODELS["attention"]

    @eqx.filter_jit
    def run(model, prompt, mask, temperature, top_p):
        return generate(model, prompt, 5, mask=mask, temperature=temperature, top_p=top_p, key=KEYS[2])

    at = lambda t, p: run(model, PROMPT, MASK, jnp.array(t), jnp.array(p))
    np.testing.assert_array_equal(at(0.0, 0.5).tokens, generate(model, PROMPT, 5, mask=MASK).tokens)
    drawn = generate(model, PROMPT, 5, mask=MASK, temperature=1.5, top_p=0.9, key=KEYS[2])
    np.testing.assert_array_equal(at(1.5, 0.9).tokens, drawn.tokens)
    for wrong, message in (
        (lambda: at(-1.0, 0.5), "temperature must be at least 0"),
        (lambda: at(1.0, 0.0), "top_p must be greater than 0"),
        (lambda: run(model, PROMPT, jnp.zeros_like(MASK), jnp.array(0.0), jnp.array(1.0)), "mask must be True"),
        (lambda: run(model, PROMPT + 3, MASK, jnp.array(0.0), jnp.array(1.0)), "NaN or infinite"),
    ):
        with pytest.raises(Exception, match=message):
            jax.block_until_ready(wrong())


def test_vmap_equals_a_batch_axis():
    one = lambda prompt, mask: generate(MODELS["rotary"], prompt, 4, mask=mask, stop=2)
    mapped, batch = jax.vmap(one)(PROMPT, MASK), one(PROMPT, MASK)
    np.testing.assert_array_equal(mapped.tokens, batch.tokens)
    np.testing.assert_array_equal(mapped.lengths, batch.lengths)


def test_double_and_half_precision():
    with jax.enable_x64(True):
        cell = sqx.GRU(D, D, KEYS[0], dtype="float64")
        embedding = eqx.nn.Embedding(V, D, key=KEYS[1], dtype=jnp.float64)
        model = sqx.Sequential([embedding, cell, sqx.Dense(D, V, KEYS[2], dtype="float64")])
        for options in ({}, {"temperature": 0.5, "key": KEYS[0], "top_p": 0.9, "top_k": 3}, {"n_beams": 3, "stop": 1}):
            found = generate(model, PROMPT, 3, mask=MASK, **options)
            assert found.tokens.dtype == found.lengths.dtype == jnp.int32
            assert found.log_probs.dtype == jnp.float64
    half = jax.tree.map(lambda a: a.astype(jnp.bfloat16) if eqx.is_inexact_array(a) else a, MODELS["attention"])
    assert generate(half, PROMPT, 3, n_beams=2).log_probs.dtype == jnp.float32


# ---- a given state ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "capacity"),
    [
        ("GRU", None),
        pytest.param("ring", None, marks=thorough),
        ("attention", None),
        ("attention", 2),
        pytest.param("rotary", 70, marks=thorough),
    ],
)
def test_goes_on_from_a_state(name: str, capacity: int | None):
    model = MODELS[name]
    state = eqx.nn.inference_mode(model).init_state(3)
    state = state if capacity is None else sqx.with_capacity(state, capacity)
    _, state = eqx.nn.inference_mode(model).unroll(PROMPT[:, :2], state, mask=MASK[:, :2])
    mask = jnp.ones((3, 2), bool)
    found = generate(model, PROMPT[:, 2:], 5, state=state, mask=mask)
    for i in range(3):
        check_row(found, i, greedy(model, real(i)[: int(MASK[i, :2].sum())] + PROMPT[i, 2:].tolist(), 5))
    if name != "attention":
        return
    traced = eqx.filter_jit(lambda s: generate(model, PROMPT[:, 2:], 5, state=s, mask=mask))(state)
    np.testing.assert_array_equal(traced.tokens, found.tokens)


@pytest.mark.parametrize("options", [{}, pytest.param({"n_beams": 3, "stop": 1}, marks=thorough)])
def test_looks_at_a_memory(options: dict):
    model = network(sqx.GRU(D, D, KEYS[0]), sqx.MultiHeadCrossAttention(D, 2, KEYS[1], d_memory=3))
    memory = 3 * jax.random.normal(KEYS[2], (3, 4, 3))
    start = lambda m, n: model._remember(model.init_state(n), m, None)
    found = generate(model, PROMPT, 5, state=start(memory, 3), **options)
    ys, _ = model.unroll(jnp.concatenate([PROMPT, found.tokens], 1), start(memory, 3))
    log_p = np.asarray(jax.nn.log_softmax(ys))[:, 3:-1]
    for i in range(3):
        new = found.tokens[i, : found.lengths[i]].tolist()
        np.testing.assert_allclose(found.log_probs[i], sum(log_p[i, t, v] for t, v in enumerate(new)), rtol=1e-4)
        if not options:
            assert log_p[i].argmax(-1).tolist() == new


@thorough
def test_transformers():
    model = sqx.transformer_decoder(V, D, 2, D, 2, V, KEYS[5], tokens=True, tied=True, scan_layers=True, dropout=0.1)
    found = generate(model, PROMPT, 4, mask=MASK)
    for i in range(3):
        check_row(found, i, greedy(model, real(i), 4))
    check_row(generate(model, PROMPT, 4, n_beams=2, stop=1), 0, beam_search(model, PROMPT[0].tolist(), 4, 2, 0.0, 1))
    both = sqx.encoder_decoder(3, D, 2, D, 1, V, KEYS[5])
    state = both.encode(3 * jax.random.normal(KEYS[2], (3, 4, 3)))
    found = generate(both, PROMPT, 4, state=state)
    ys, _ = both.unroll(jnp.concatenate([PROMPT, found.tokens], 1), state)
    np.testing.assert_array_equal(ys[:, 3:-1].argmax(-1), found.tokens)


# ---- draws -----------------------------------------------------------------------------------------------------------


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max())
    return e / e.sum()


def distribution(log_p: np.ndarray, temperature: float, top_k: int | None, top_p: float | None) -> np.ndarray:
    """What is drawn from, by sorting."""
    x = np.asarray(log_p, np.float64) / temperature
    order = np.argsort(-x)
    kept = order[: len(order) if top_k is None else top_k]
    if top_p is not None:
        p = softmax(x[kept])
        kept = kept[: 1 + int(np.searchsorted(np.cumsum(p), top_p))]
    p = np.zeros_like(x)
    p[kept] = softmax(x[kept])
    return p


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"),
    [
        (1.0, None, None),
        pytest.param(0.6, None, None, marks=thorough),
        pytest.param(2.5, 3, None, marks=thorough),
        (1.5, None, 0.7),
        (2.0, 4, 0.8),
        pytest.param(2.0, 9, 1.0, marks=thorough),
        pytest.param(1.0, 1, None, marks=thorough),
        (1.0, None, 1e-6),
    ],
)
def test_frequencies(temperature: float, top_k: int | None, top_p: float | None):
    model, rows = MODELS["GRU"], 4000
    prompt = jnp.broadcast_to(jnp.array([3, 1]), (rows, 2))
    found = generate(model, prompt, 2, key=KEYS[3], temperature=temperature, top_k=top_k, top_p=top_p)
    first = distribution(log_probs(model, [[3, 1]])[0, -1], temperature, top_k, top_p)
    tokens = np.asarray(found.tokens)
    expected = np.zeros((V, V))
    for v in range(V):
        expected[v] = first[v] * distribution(log_probs(model, [[3, 1, v]])[0, -1], temperature, top_k, top_p)
    seen = np.zeros((V, V))
    np.add.at(seen, (tokens[:, 0], tokens[:, 1]), 1)
    assert seen[expected == 0].sum() == 0
    common = expected * rows > 5
    chi2 = (((seen - expected * rows) ** 2)[common] / (expected * rows)[common]).sum()
    assert chi2 < common.sum() + 5 * np.sqrt(2 * common.sum())
    whole = log_probs(model, np.concatenate([prompt, tokens], 1)[:20])
    total = [whole[i, 1, tokens[i, 0]] + whole[i, 2, tokens[i, 1]] for i in range(20)]
    np.testing.assert_allclose(found.log_probs[:20], total, rtol=1e-4, atol=1e-5)


@pytest.mark.thorough
def test_draws_do_not_depend_on_other_rows_or_on_padding():
    options = {"key": KEYS[4], "temperature": 3.0}
    batch = generate(MODELS["rotary"], PROMPT, 6, mask=MASK, **options)
    first = generate(MODELS["rotary"], PROMPT[:2], 6, mask=MASK[:2], stop=4, **options)
    longer = jnp.pad(PROMPT, ((0, 0), (2, 1)))
    padded = generate(MODELS["rotary"], longer, 6, mask=jnp.pad(MASK, ((0, 0), (2, 1))), **options)
    np.testing.assert_array_equal(batch.tokens, padded.tokens)
    for i in range(2):
        n = int(first.lengths[i])
        np.testing.assert_array_equal(first.tokens[i, :n], batch.tokens[i, :n])
    same = generate(MODELS["rotary"], jnp.broadcast_to(PROMPT[0], (8, 4)), 6, **options)
    assert len({tuple(row) for row in same.tokens.tolist()}) > 4


# ---- beam search -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("penalty", [0.0, 1.0, -0.5, 3.0])
@pytest.mark.parametrize("stop", [None, 0, 1, 2])
@pytest.mark.parametrize("cell", ["GRU", pytest.param("attention", marks=thorough)])
def test_enough_beams_find_the_best_of_all(cell: str, stop: int | None, penalty: float):
    n_tokens, n_new = 3, 3
    middle = sqx.GRU(D, D, KEYS[0]) if cell == "GRU" else attention(rotary=sqx.Rotary())
    model = network(middle, n_tokens=n_tokens)
    found = generate(model, PROMPT % 3, n_new, mask=MASK, n_beams=27, length_penalty=penalty, stop=stop, pad=2)
    for i in range(3):
        row, best = [v % 3 for v in real(i)], (-math.inf, [], 0.0)
        every = list(itertools.product(range(n_tokens), repeat=n_new))
        scores = log_probs(model, [row + list(new) for new in every])[:, len(row) - 1 :]
        for new, log_p in zip(every, scores, strict=True):
            n = new.index(stop) + 1 if stop in new else n_new
            s = float(sum(log_p[t, new[t]] for t in range(n)))
            best = max(best, (s / n**penalty, list(new[:n]), s), key=lambda h: h[0])
        check_row(found, i, best[1:], pad=2)


@pytest.mark.parametrize(
    ("name", "n_beams", "penalty", "stop"),
    [
        ("LSTM", 1, 0.0, 2),
        pytest.param("rotary", 1, 0.0, 2, marks=thorough),
        ("ring", 2, 1.0, 3),
        ("GRU", 3, 0.0, None),
        ("attention", 3, 1.0, None),
        pytest.param("LSTM", 4, 2.0, 1, marks=thorough),
        pytest.param("rotary", 4, 2.0, 1, marks=thorough),
    ],
)
def test_beams_equal_plain_beam_search(name: str, n_beams: int, penalty: float, stop: int | None):
    model = MODELS[name]
    found = generate(model, PROMPT, 6, mask=MASK, n_beams=n_beams, length_penalty=penalty, stop=stop)
    for i in range(3):
        check_row(found, i, beam_search(model, real(i), 6, n_beams, penalty, stop))
        if n_beams == 1:
            check_row(found, i, greedy(model, real(i), 6, stop))


def test_beams_of_no_batch_and_of_two_axes():
    whole = generate(MODELS["ring"], PROMPT[:, None], 5, mask=MASK[:, None], n_beams=3, stop=2)
    for i in range(3):
        alone = generate(MODELS["ring"], PROMPT[i], 5, mask=MASK[i], n_beams=3, stop=2)
        np.testing.assert_array_equal(alone.tokens, whole.tokens[i, 0])
        np.testing.assert_allclose(alone.log_probs, whole.log_probs[i, 0], rtol=1e-4)


# ---- what is wrong ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"n_beams": 2}, {"temperature": 1.0, "key": KEYS[0]}])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_logits_that_are_no_numbers(options: dict, value: float):
    later = eqx.tree_at(lambda m: m.layers[0].function.weight, chain(), replace_fn=lambda E: E.at[3].set(value))
    with pytest.raises(ValueError, match="the model's logits are NaN or infinite"):
        generate(later, jnp.array([[0, 1], [1, 1]]), 12, **options)
    found = generate(later, jnp.array([[0, 1], [1, 1]]), 12, stop=2)  # never reads the token
    assert found.lengths.tolist() == [1, 1]


def test_tokens_that_never_come():
    weight = jnp.full((V, V), -jnp.inf).at[jnp.arange(V), (jnp.arange(V) + 1) % V].set(0.0)
    model = sqx.Sequential([eqx.nn.Embedding(weight=weight)])
    for options in ({}, {"temperature": 1.0, "key": KEYS[0], "top_p": 0.9}, {"n_beams": 3, "stop": 4}):
        found = generate(model, jnp.array([0]), 4, **options)
        assert found.tokens.tolist() == [1, 2, 3, 4]
        assert float(found.log_probs) == 0


def test_masked_tokens_may_be_anything():
    prompt = jnp.where(MASK, PROMPT, -100)
    expected = generate(MODELS["attention"], PROMPT, 3, mask=MASK)
    np.testing.assert_array_equal(generate(MODELS["attention"], prompt, 3, mask=MASK).tokens, expected.tokens)


@pytest.mark.parametrize("around", [sqx.Remat, lambda m: sqx.Sequential([sqx.Remat(m), sqx.Dropout(0.5)])])
def test_a_bad_token_is_named_whatever_stands_around_the_embedding(around: Any):
    k1, k2 = jax.random.split(jax.random.key(0))
    model = around(sqx.Sequential([eqx.nn.Embedding(5, 3, key=k1), sqx.RNN(3, 5, k2)]))
    with pytest.raises(ValueError, match="tokens of prompt must be at least 0 and less than 5"):
        sqx.generate(model, jnp.array([1, 5]), 2)
