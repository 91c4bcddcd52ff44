"""Training step of the recurrent cells: deferred weight gradients against JAX's own, at four shapes, in one run.

    python recipes/benchmarks/engine.py

Times the loss and the gradients with respect to all weights and the inputs, for LSTM (with peepholes) and GRU in
float32: the plain loop differentiated by JAX (`scan`), the fused engine with a batch axis (`fused`), and the fused
engine under `jax.vmap` (`vmap`). The three take turns, so that a machine that slows down slows all of them; figures are
medians. Ratios below 1 are in favour of the engine.
"""

import dataclasses
import math
import os
import platform
import statistics
import sys
import time

import equinox as eqx
import jax
import jax.numpy as jnp
import tyro

import sequinox as sqx

SHAPES = ((128, 200, 128, 256), (64, 100, 64, 128), (32, 100, 300, 512), (16, 500, 16, 64))


@dataclasses.dataclass(frozen=True)
class Options:
    """Benchmark of the unrolling engine."""

    repeats: int = 11
    """Timed runs of each, taken in turn; the median is shown. Eleven are steady to a few per cent on a quiet one."""
    check: bool = False
    """End with an error if a limit is passed: fused / scan at most 1.0 at every shape and 0.87 in geometric mean, vmap
    / fused at most 1.08 in geometric mean."""


def step(cell: sqx.SequenceLayer, *, vmap: bool):
    """The compiled function from weights, inputs and output weights to loss and gradients."""
    arrays, static = eqx.partition(cell, eqx.is_array)

    def loss(arrays, xs, weights):
        layer = eqx.combine(arrays, static)
        ys = jax.vmap(layer)(xs) if vmap else layer(xs)
        return jnp.sum(ys * weights)

    return jax.jit(jax.value_and_grad(loss, argnums=(0, 1))), arrays


def measure(cell_class: type, shape: tuple[int, int, int, int], repeats: int) -> dict[str, tuple[float, float]]:
    """Median milliseconds and megabytes of temporary memory, by variant."""
    batch, n_time, n_in, n_hidden = shape
    keys = jax.random.split(jax.random.key(0), 3)
    xs = jax.random.normal(keys[0], (batch, n_time, n_in))
    weights = jax.random.normal(keys[1], (batch, n_time, n_hidden)) / (batch * n_time)
    runs, memory, results = {}, {}, {}
    for name, implementation, vmap in (("scan", "scan", False), ("fused", "fused", False), ("vmap", "fused", True)):
        cell = cell_class(n_in, n_hidden, keys[2], implementation=implementation)
        function, arrays = step(cell, vmap=vmap)
        compiled = function.lower(arrays, xs, weights).compile()
        analysis = compiled.memory_analysis()
        memory[name] = math.nan if analysis is None else analysis.temp_size_in_bytes / 1e6
        results[name] = jax.block_until_ready(compiled(arrays, xs, weights))
        runs[name] = (lambda f, a: lambda: jax.block_until_ready(f(a, xs, weights)))(compiled, arrays)
    for name in ("fused", "vmap"):  # a fast wrong answer is no answer
        for a, b in zip(jax.tree.leaves(results["scan"]), jax.tree.leaves(results[name]), strict=True):
            error = float(jnp.max(jnp.abs(a - b)) / jnp.max(jnp.abs(a)))
            if error > 1e-4:
                raise AssertionError(f"{cell_class.__name__} {shape}: {name} differs from scan by {error:.1e}")
    times = {name: [] for name in runs}
    names = list(runs)
    for repeat in range(repeats):
        for i in range(len(names)):
            name = names[(repeat + i) % len(names)]  # nobody always comes behind the same one
            start = time.perf_counter()
            runs[name]()
            times[name].append(time.perf_counter() - start)
    return {name: (1e3 * statistics.median(times[name]), memory[name]) for name in runs}


def main(options: Options) -> int:
    """Prints the table; returns the exit status."""
    versions = f"jax {jax.__version__}, Python {platform.python_version()}"
    print(f"{versions}, {jax.default_backend()}, {os.cpu_count()} cores, float32")
    print(f"median of {options.repeats} interleaved runs, milliseconds; temporary memory in MB in brackets\n")
    print(f"{'cell':5} {'B, T, n_in, H':20} {'scan':>14} {'fused':>14} {'vmap':>14}  fused/scan  vmap/fused")
    ratios, vmap_ratios = [], []
    for cell_class in (sqx.LSTM, sqx.GRU):
        for shape in SHAPES:
            result = measure(cell_class, shape, options.repeats)
            shown = " ".join(f"{ms:7.1f} [{mb:4.0f}]" for ms, mb in result.values())
            ratios.append(result["fused"][0] / result["scan"][0])
            vmap_ratios.append(result["vmap"][0] / result["fused"][0])
            what = f"{cell_class.__name__:5} {', '.join(map(str, shape)):20}"
            print(f"{what} {shown}  {ratios[-1]:10.2f}  {vmap_ratios[-1]:10.2f}", flush=True)
    mean, vmap_mean = (math.exp(statistics.fmean(map(math.log, r))) for r in (ratios, vmap_ratios))
    print(f"\ngeometric means: fused/scan {mean:.2f}, vmap/fused {vmap_mean:.2f}; worst fused/scan {max(ratios):.2f}")
    passed = max(ratios) <= 1.0 and mean <= 0.87 and vmap_mean <= 1.08
    return 0 if passed or not options.check else 1


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Options)))
