"""The next character of a text: truncated backpropagation over a stream, the state carried from window to window.

    python recipes/next_character.py
    python recipes/next_character.py --data enwik8 --steps 20000

By default the text is Python's own documentation, which is always installed (about 465,000 characters); `--data` is
any other file, read as bytes. The text is cut into as many lanes as a batch has rows, and every window goes on where
the one before it stopped: nothing is reset but at the start of a lane. Gradients reach back one window, and with
`--look-back` so many characters further. Loss and result are in bits a character. Takes about a minute on two cores.

Writes `metrics.jsonl`, `checkpoints/`, `metrics.png` and `sample.txt` into `--out`. A run that was stopped is continued
by the same command with `--resume`, and ends with the same numbers.
"""

import dataclasses
import pydoc_data.topics
from pathlib import Path
from typing import Any, Literal

import command
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

import sequinox as sqx
from sequinox.train import (
    Total,
    Windows,
    adaptive_clip,
    bits_per_character,
    cross_entropy,
    fit,
    look_back,
    mixed_precision,
    next_tokens,
    plot_metrics,
    with_average,
)

LN2 = float(np.log(2))


@dataclasses.dataclass(frozen=True)
class Options:
    """The next character of a text."""

    data: Path | None = None
    """A text; default: the topics of Python's documentation."""
    cell: Literal["lstm", "gru", "rda"] = "lstm"
    """Recurrent unit."""
    hidden: int = 256
    """Units."""
    embedding: int = 32
    """Numbers for a character."""
    batch: int = 32
    """Lanes that are read side by side."""
    window: int = 64
    """Characters of an update; gradients go back no further."""
    look_back: int = 0
    """Characters before a window that its gradient reaches besides, at the price of reading them again."""
    steps: int = 1000
    """Updates: about five passes over the default text."""
    learning_rate: float = 3e-3
    """Adam's largest step size, reached after 50 steps and left along a cosine."""
    half: bool = False
    """Compute in bfloat16; the parameters stay in float32. For accelerators: a CPU is slower in it."""
    seed: int = 0
    """Of the weights and of the order of the lanes."""
    out: Path = Path("runs/next_character")
    """Folder for everything that is written."""
    resume: bool = False
    """Continue the run in `--out`."""
    progress: bool = True
    """Show a progress bar."""


def read(options: Options) -> bytes:
    """The text."""
    if options.data is not None:
        return options.data.read_bytes()
    return "\n".join(topic for _, topic in sorted(pydoc_data.topics.topics.items())).encode()


def make_model(options: Options, n_tokens: int, key: Any) -> sqx.SequenceLayer:
    """Characters in, logits of the next one out."""
    k1, k2, k3 = jax.random.split(key, 3)
    cell = {"lstm": sqx.LSTM, "gru": sqx.GRU, "rda": sqx.RDA}[options.cell]
    return sqx.Sequential(
        {
            "embedding": eqx.nn.Embedding(n_tokens, options.embedding, key=k1),
            "cell": cell(options.embedding, options.hidden, k2),
            "readout": sqx.Dense(options.hidden, n_tokens, k3),
        }
    )


def objective(model: Any, batch: Any, key: Any, carry: Any) -> Any:
    """Cross-entropy of the next character, and the same in bits."""
    del key
    logits, carry = model.unroll(batch.inputs, carry, mask=batch.mask, resets=batch.resets)
    loss = cross_entropy(logits, batch.targets, batch.mask)
    return loss, {"bits": Total(loss.total / LN2, loss.count)}, carry


@eqx.filter_jit
def read_on(model: Any, tokens: Any, carry: Any) -> Any:
    """The loss of a stretch, and the state behind it."""
    logits, carry = model.unroll(tokens[:, :-1], carry)
    return cross_entropy(logits, tokens[:, 1:]), carry


def bits(model: Any, tokens: np.ndarray, length: int) -> float:
    """Bits a character of one long stream, read in stretches with the state carried."""
    total, carry = Total(0.0, 0), model.init_state(1)
    for start in range(0, len(tokens) - 1 - length, length):
        part, carry = read_on(model, tokens[None, start : start + length + 1], carry)
        total += Total(float(part.total), int(part.count))
    return float(bits_per_character(total))


def main(options: Options) -> float:
    """Trains, evaluates, writes a sample; returns bits a character of held-out text."""
    text = np.frombuffer(read(options), np.uint8)
    alphabet, tokens = np.unique(text, return_inverse=True)
    tokens = tokens.astype(np.int32)
    held_out = tokens[int(0.95 * len(tokens)) :]
    tokens = tokens[: int(0.95 * len(tokens))]
    targets, has_next = (np.asarray(a) for a in next_tokens(tokens))  # of the whole text, before it is cut
    windows = Windows(
        [tokens[has_next]],
        [targets[has_next]],
        batch_size=options.batch,
        length=options.window,
        look_back=options.look_back,
        cut=True,
        seed=options.seed,
    )
    model_key, train_key = jax.random.split(jax.random.key(options.seed))
    model = make_model(options, len(alphabet), model_key)
    print(sqx.summary(model))
    print(f"{len(tokens):,} characters, {len(alphabet)} different ones, {windows.steps_per_epoch} steps a pass")

    wrapped: Any = mixed_precision(objective) if options.half else objective
    wrapped = look_back(wrapped, options.look_back) if options.look_back else wrapped
    warm = min(50, options.steps // 2)
    schedule = optax.warmup_cosine_decay_schedule(0.0, options.learning_rate, warm, options.steps)
    optimiser = optax.chain(adaptive_clip(), optax.inject_hyperparams(optax.adam)(learning_rate=schedule))
    apart = ("steps", "out", "resume", "progress", "data")  # these may differ when a run is continued
    every = max(1, options.steps // 10)
    result = fit(
        model,
        with_average(optimiser, 0.99),
        wrapped,
        windows,
        steps=options.steps,
        key=train_key,
        carry=model.init_state(options.batch, jnp.bfloat16 if options.half else None),
        out_dir=options.out,
        evaluate=lambda model: {"bits": bits(model, held_out, 1000)},
        evaluate_every=every,
        log_every=max(1, every // 4),
        best="eval/bits",
        config={k: v for k, v in dataclasses.asdict(options).items() if k not in apart},
        resume=options.resume,
        progress=options.progress,
    )
    plot_metrics(options.out, options.out / "metrics.png", names=["bits", "grad_norm", "clipped", "learning_rate"])
    start = jnp.asarray(held_out[:64])[None]
    written = sqx.generate(
        eqx.nn.inference_mode(result.averaged), start, 400, key=jax.random.key(options.seed), temperature=0.7
    )
    sample = alphabet[np.asarray(written.tokens[0])].tobytes().decode(errors="replace")
    (options.out / "sample.txt").write_text(sample)
    print(sample)
    score = bits(result.averaged, held_out, 1000)
    print(f"wrote {options.out}/metrics.jsonl, checkpoints/, metrics.png, sample.txt")
    print(f"held-out text: {score:.3f} bits a character")
    return score


if __name__ == "__main__":
    past = {r"steps=\d+; raise steps": "the last of --steps; raise --steps", "steps must": "--steps must"}
    command.run(main, Options, past)
