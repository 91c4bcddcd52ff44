"""Ragged rows: padding all to the longest, buckets, packed rows.

    python recipes/benchmarks/ragged.py

Real samples a second of whole training steps (a GRU of 64 units, cross-entropy, Adam), batches made on the way. Padding
costs the longest row; what can be gained at most is the longest length over the mean. `vowels` are the 640 utterances
of the Japanese Vowels data, `heavy` has a log-normal tail.
"""

import dataclasses
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any, Literal

import equinox as eqx
import jax
import numpy as np
import optax
import tyro

import sequinox as sqx
from sequinox.train import Batches, Buckets, Packs, cross_entropy, init_train_state, make_step, pad, unpad

N_IN, N_CLASSES = 12, 9


@dataclasses.dataclass(frozen=True)
class Options:
    """Ragged rows: padded to the longest, in buckets, packed."""

    only: Literal["vowels", "heavy"] | None = None
    """One of the two; default: both."""
    batch_size: int = 32
    """Rows of a padded batch; the others have as many samples, padding included, or fewer."""
    n_buckets: int = 16
    """Buckets at most."""
    n_hidden: int = 64
    """Units of the GRU."""
    repeats: int = 9
    """Runs of each way, taking turns; medians are shown."""
    epochs: int = 4
    """Epochs in a run."""
    check: bool = False
    """End with an error unless buckets and packing reach 0.8 of what can be gained at most."""


def vowels() -> tuple[list[np.ndarray], np.ndarray]:
    """Lengths of 7 to 29."""
    splits = sqx.tasks.japanese_vowels()
    inputs = [row for split in splits for row in unpad(split.inputs, split.mask)]
    return inputs, np.concatenate([split.labels for split in splits])


def heavy() -> tuple[list[np.ndarray], np.ndarray]:
    """2,048 rows, the longest about ten times the mean."""
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(3.2, 0.8, 2048).astype(int), 1, 350)
    inputs = [rng.normal(size=(n, N_IN)).astype(np.float32) for n in lengths]
    return inputs, rng.integers(0, N_CLASSES, len(inputs)).astype(np.int32)


def ways(inputs: list[np.ndarray], labels: np.ndarray, options: Options) -> dict[str, tuple[Any, Any, Callable]]:
    """For each way a source, a model and its objective."""
    k1, k2 = jax.random.split(jax.random.key(0))
    cell, readout = sqx.GRU(N_IN, options.n_hidden, k1), sqx.Dense(options.n_hidden, N_CLASSES, k2)
    pooled = sqx.Sequential([cell, sqx.LastStep(), readout])

    def of_padded(model, batch, key):
        (inputs, mask, labels), real = batch
        return cross_entropy(model(inputs, mask=mask), labels, real), {}

    def of_buckets(model, batch, key):
        return cross_entropy(model(batch.inputs, mask=batch.mask), batch.targets, batch.real), {}

    def of_packs(model, batch, key):
        cell, readout = model
        hidden = cell(batch.inputs, mask=batch.mask, resets=batch.resets)
        last, labels, real = batch.targets.gather(hidden, 2 * round(batch.mask.size / mean))
        return cross_entropy(readout(last), labels, real), {}

    lengths, size = [len(row) for row in inputs], options.batch_size
    longest, mean = max(lengths), float(np.mean(lengths))
    # As many places a step as the padded way has, or half of them where a long tail would not fill so many.
    places = size * longest if longest < 4 * mean else size // 2 * longest
    buckets = Buckets(inputs, labels, batch_samples=places, n_buckets=options.n_buckets, seed=0)
    packs = Packs(inputs, labels, batch_size=size, length=max(longest, round(3 * mean)), seed=0)
    return {
        "padded": (Batches((*pad(inputs), labels), size, seed=0), pooled, of_padded),
        "buckets": (buckets, pooled, of_buckets),
        "packed": (packs, (cell, readout), of_packs),
    }


def measure(name: str, make: Callable, options: Options) -> bool:
    """Prints a table; whether both reached what they should."""
    inputs, labels = make()
    n_samples, longest = sum(map(len, inputs)), max(map(len, inputs))
    bound = longest * len(inputs) / n_samples
    print(
        f"{name}: {len(inputs)} rows, mean {n_samples / len(inputs):.1f}, longest {longest}, gain at most {bound:.2f}"
    )
    optimiser = optax.adam(1e-3)
    runs = {}
    for way, (source, model, objective) in ways(inputs, labels, options).items():
        step = make_step(optimiser, objective)
        state = init_train_state(model, optimiser, jax.random.key(1))
        runs[way] = [source, step, state, []]
    for repeat in range(options.repeats + 1):
        for run in runs.values():
            source, step, state, speeds = run
            start = time.perf_counter()
            for _ in range(options.epochs):
                for _ in range(source.steps_per_epoch):
                    state, _ = step(state, next(source))
            jax.block_until_ready(eqx.filter(state, eqx.is_array))
            run[2] = state
            if repeat:  # the first compiles
                speeds.append(options.epochs * n_samples / (time.perf_counter() - start))
    speed = {way: statistics.median(run[3]) for way, run in runs.items()}
    print(f"  {'':8} {'samples/s':>10} {'gain':>6} {'of most':>8} {'real':>6} {'shapes':>7} {'steps':>6}")
    for way, (source, _, _, _) in runs.items():
        real = 1 / bound if way == "padded" else source.efficiency
        gain = speed[way] / speed["padded"]
        shapes = len(source.shapes) if way == "buckets" else 1
        print(f"  {way:8} {speed[way]:10.0f} {gain:6.2f} {gain / bound:8.2f} {real:6.2f} {shapes:7} ", end="")
        print(f"{source.steps_per_epoch:6}")
    return all(speed[way] >= 0.8 * bound * speed["padded"] for way in ("buckets", "packed"))


def main(options: Options) -> int:
    """Prints a table for each set of rows; returns the exit status."""
    print(f"jax {jax.__version__}, {jax.default_backend()}, {os.cpu_count()} cores, float32")
    sets = {"vowels": vowels, "heavy": heavy}
    passed = [measure(name, make, options) for name, make in sets.items() if options.only in (None, name)]
    return 0 if all(passed) or not options.check else 1


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Options)))
