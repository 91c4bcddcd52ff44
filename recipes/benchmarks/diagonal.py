"""The scan of diagonal recurrences: its three methods, forward and with gradients, and plain differentiation of each.

    python recipes/benchmarks/diagonal.py

Real coefficients, float32. `plain` are a `lax.scan` and a `lax.associative_scan` that JAX differentiates itself. All
take turns, so that a machine that slows down slows all of them; figures are medians, in milliseconds, with the
megabytes of temporary memory behind those of the gradients.
"""

import dataclasses
import functools
import math
import os
import platform
import statistics
import time

import jax
import jax.numpy as jnp
import tyro

import sequinox as sqx

SHAPES = ((32, 100, 64), (32, 1000, 128), (1, 2000, 256), (8, 4000, 64), (128, 200, 256))


@dataclasses.dataclass(frozen=True)
class Options:
    """Benchmark of the scan of diagonal recurrences."""

    repeats: int = 7
    """Timed runs of each, taken in turn; the median is shown."""


def plain_scan(a, b):
    """The loop, time first and back again."""
    body = lambda h, ab: (ab[0] * h + ab[1],) * 2
    hs = jax.lax.scan(body, jnp.zeros_like(b[:, 0]), (jnp.swapaxes(a, 0, 1), jnp.swapaxes(b, 0, 1)))[1]
    return jnp.swapaxes(hs, 0, 1)


def plain_tree(a, b):
    """All steps combined in a tree."""
    behind = lambda one, two: (two[0] * one[0], two[0] * one[1] + two[1])
    return jax.lax.associative_scan(behind, (a, b), axis=1)[1]


def ours(method, a, b):
    """The library's scan."""
    return sqx.diagonal_scan(a, b, method=method)[0]


WAYS = {m: functools.partial(ours, m) for m in ("sequential", "chunked", "associative")}
WAYS |= {"plain scan": plain_scan, "plain tree": plain_tree}


def measure(shape: tuple[int, int, int], repeats: int) -> dict[str, tuple[float, float, float]]:
    """By way: milliseconds forward, milliseconds with gradients, megabytes of temporary memory of the latter."""
    keys = jax.random.split(jax.random.key(0), 3)
    a, b = jax.nn.sigmoid(jax.random.normal(keys[0], shape)), jax.random.normal(keys[1], shape)
    weights = jax.random.normal(keys[2], shape)
    runs, memory, results = {}, {}, {}
    for name, way in WAYS.items():
        loss = lambda a, b, way=way: jnp.sum(jnp.tanh(way(a, b)) * weights)
        forward = jax.jit(way).lower(a, b).compile()
        both = jax.jit(jax.grad(loss, (0, 1))).lower(a, b).compile()
        runs[name] = forward, both
        analysis = both.memory_analysis()
        memory[name] = math.nan if analysis is None else analysis.temp_size_in_bytes / 1e6
        results[name] = forward(a, b), both(a, b)
        for got, expected in zip(
            jax.tree.leaves(results[name]), jax.tree.leaves(results["sequential"]), strict=True
        ):  # a fast wrong answer is no answer
            error = float(jnp.max(jnp.abs(got - expected)) / jnp.max(jnp.abs(expected)))
            if error > 1e-4:
                raise AssertionError(f"{shape}: {name} differs by {error:.1e}")
    times = {(name, i): [] for name in runs for i in range(2)}
    names = list(runs)
    for repeat in range(repeats):
        for j in range(len(names)):
            name = names[(repeat + j) % len(names)]  # nobody always comes behind the same one
            for i in range(2):
                start = time.perf_counter()
                jax.block_until_ready(runs[name][i](a, b))
                times[name, i].append(time.perf_counter() - start)
    median = lambda name, i: 1e3 * statistics.median(times[name, i])
    return {name: (median(name, 0), median(name, 1), memory[name]) for name in names}


def main(options: Options) -> None:
    """Prints the table."""
    versions = f"jax {jax.__version__}, Python {platform.python_version()}"
    print(f"{versions}, {jax.default_backend()}, {os.cpu_count()} cores, float32; medians of {options.repeats}")
    print(f"{'B, T, H':16}" + "".join(f"{name:>26}" for name in WAYS))
    for shape in SHAPES:
        shown = [f"{f:8.1f} {g:9.1f} [{mb:4.0f}]" for f, g, mb in measure(shape, options.repeats).values()]
        print(f"{', '.join(map(str, shape)):16}" + "".join(f"{cell:>26}" for cell in shown), flush=True)


if __name__ == "__main__":
    main(tyro.cli(Options))
