"""What training costs beside the arithmetic: `fit` beside a loop by hand, and truncated BPTT on rows of any length.

    python recipes/benchmarks/train.py            everything
    python recipes/benchmarks/train.py --only fit

`fit`: wall time of a step in `fit` (clipping, skipping of steps that are not finite, metrics, a line every 50 steps,
files) against the shortest loop one would write by hand, a jitted function of parameters and optimiser state with
donated buffers. `truncated`: the gradient of rows of 100,000 samples in windows of 100, against rows of 10,000:
temporary memory, and time per sample.
"""

import dataclasses
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import tyro

import sequinox as sqx
from sequinox.train import Batches, fit, squared_error, truncated_bptt


@dataclasses.dataclass(frozen=True)
class Options:
    """Training: the loop's own cost, and long rows."""

    only: Literal["fit", "truncated"] | None = None
    """One of the two; default: both."""
    repeats: int = 11
    """Runs of each variant, taking turns; medians are shown."""
    check: bool = False
    """End with an error if a limit is passed: 1.03 for `fit`, 1.1 for memory and 1.05 for time of long rows."""


class Clock:
    """Passes batches on, and notes when the first that counts was asked for."""

    def __init__(self, batches: Batches, warm: int):
        self._batches, self._countdown, self.began = batches, warm, 0.0

    def __iter__(self) -> "Clock":
        return self

    def __next__(self) -> Any:
        if self._countdown == 0:
            self.began = time.perf_counter()
        self._countdown -= 1
        return next(self._batches)


def loop(options: Options) -> bool:
    """A GRU at about 5 ms a step; and one of tiny steps, behind which nothing of the loop's own work is hidden."""
    hand, ours = race(options.repeats, 40, 300)
    ratios = [b / a for a, b in zip(hand, ours, strict=True)]
    ratio = statistics.median(ratios)
    print(
        f"fit: {1e3 * statistics.median(hand):.2f} ms a step by hand, {1e3 * statistics.median(ours):.2f} ms in fit: "
        f"ratio, run by run, {ratio:.3f} ({min(ratios):.3f} to {max(ratios):.3f})"
    )
    hand, ours = race(options.repeats, 1, 2000)
    more = [1e6 * (b - a) for a, b in zip(hand, ours, strict=True)]
    print(
        f"fit: {1e6 * statistics.median(hand):.0f} us a step by hand, {1e6 * statistics.median(ours):.0f} us in fit: "
        f"run by run {statistics.median(more):.0f} us more ({min(more):.0f} to {max(more):.0f})"
    )
    return ratio <= 1.03


def race(repeats: int, length: int, steps: int) -> tuple[list[float], list[float]]:
    """Seconds a step, by hand and in `fit`, taking turns, for rows of `length` samples."""
    batch, n_in, n_hidden, warm = 32, 16, 96, 30
    steps += warm
    rng = np.random.default_rng(0)
    xs = rng.normal(size=(20 * batch, length, n_in)).astype(np.float32)
    arrays = (xs, np.cumsum(xs[..., :4], axis=1).astype(np.float32))
    model = sqx.recurrent_net(n_in, n_hidden, 4, jax.random.key(0), cell="gru", pool=None)
    source = lambda: Clock(Batches(arrays, batch, seed=0), warm)

    def objective(model: Any, batch: Any, key: Any) -> Any:
        del key
        return squared_error(model(batch.data[0]), batch.data[1]), {}

    def by_hand(folder: Path) -> float:
        del folder
        optimiser = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3))
        params, static = eqx.partition(jax.tree.map(lambda x: jnp.array(x, copy=True), model), eqx.is_array)
        opt_state = optimiser.init(params)

        def step(params: Any, opt_state: Any, batch: Any) -> Any:
            def loss(params: Any) -> Any:
                return jnp.mean((eqx.combine(params, static)(batch.data[0]) - batch.data[1]) ** 2)

            value, grads = jax.value_and_grad(loss)(params)
            updates, opt_state = optimiser.update(grads, opt_state)
            return optax.apply_updates(params, updates), opt_state, value

        jitted, clock = jax.jit(step, donate_argnums=(0, 1)), source()
        for _ in range(steps):
            params, opt_state, _ = jitted(params, opt_state, next(clock))
        jax.block_until_ready(params)
        return (time.perf_counter() - clock.began) / (steps - warm)

    def by_fit(folder: Path) -> float:
        clock, ended = source(), []
        fit(
            model,
            optax.adam(1e-3),
            objective,
            clock,
            steps=steps,
            key=jax.random.key(1),
            clip_norm=1.0,
            out_dir=folder,
            progress=False,
            callbacks=[lambda step, values, state: ended.append(time.perf_counter()) if step == steps else None],
        )
        return (ended[-1] - clock.began) / (steps - warm)

    hand, ours = [], []
    for _ in range(repeats):
        for run, times in ((by_hand, hand), (by_fit, ours)):
            with tempfile.TemporaryDirectory() as folder:
                times.append(run(Path(folder)))
    return hand, ours


def truncated(options: Options) -> bool:
    """LSTM of 64 units, 8 rows, windows of 100 samples."""
    batch, n_in, n_hidden, window = 8, 16, 64, 100
    model = sqx.recurrent_net(n_in, n_hidden, 4, jax.random.key(0), cell="lstm", pool=None)

    def objective(model: Any, batch: Any, key: Any, carry: Any) -> Any:
        del key
        ys, carry = model.unroll(batch[0], carry)
        return squared_error(ys, batch[1]), {}, carry

    gradients = truncated_bptt(objective, window, axes="batch time")
    programs, arrays, memory = {}, {}, {}
    for time_steps in (10_000, 100_000):
        xs = jax.random.normal(jax.random.key(1), (batch, time_steps, n_in))
        arrays[time_steps] = (xs, xs[..., :4])
        jitted = jax.jit(lambda batch: gradients(model, batch, None).grads)
        programs[time_steps] = jitted.lower(arrays[time_steps]).compile()
        memory[time_steps] = programs[time_steps].memory_analysis().temp_size_in_bytes
    times: dict[int, list[float]] = {n: [] for n in programs}
    for repeat in range(options.repeats + 1):
        for n, program in programs.items():
            calls = 100_000 // n  # as many samples for both
            began = time.perf_counter()
            for _ in range(calls):
                jax.block_until_ready(program(arrays[n]))
            if repeat:  # the first is warming up
                times[n].append((time.perf_counter() - began) / (calls * n))
    short, long = (statistics.median(times[n]) for n in (10_000, 100_000))
    used = memory[100_000] / memory[10_000]
    print(
        f"truncated: temporary memory {memory[10_000] / 1e6:.2f} MB at T = 10,000, {memory[100_000] / 1e6:.2f} MB at "
        f"T = 100,000: ratio {used:.3f}; {1e6 * short:.2f} and {1e6 * long:.2f} µs a sample: ratio {long / short:.3f}"
    )
    return used <= 1.1 and long / short <= 1.05


def main(options: Options) -> None:
    """Runs what was asked for."""
    print(f"jax {jax.__version__}, {jax.default_backend()}, {os.cpu_count()} cores, float32")
    kept = [run(options) for name, run in (("fit", loop), ("truncated", truncated)) if options.only in (None, name)]
    if options.check and not all(kept):
        sys.exit("a limit was passed")


if __name__ == "__main__":
    main(tyro.cli(Options))
