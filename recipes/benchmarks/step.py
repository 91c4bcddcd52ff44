"""One step at batch 1, the time a control loop waits: a `Stream`, a step through `filter_jit`, and PyTorch's cells.

    python recipes/benchmarks/step.py

Microseconds a step, medians over blocks of steps taken in turn; n_in 16, n_hidden 64, float32. PyTorch is timed if it
is installed (`pip install "sequinox[parity]"`).
"""

import dataclasses
import importlib.util
import os
import statistics
import time

import equinox as eqx
import jax
import numpy as np
import tyro

import sequinox as sqx

# Otherwise JAX hands each step to another thread, and waking it takes longer than the step.
jax.config.update("jax_cpu_enable_async_dispatch", False)


@dataclasses.dataclass(frozen=True)
class Options:
    """One step at batch 1."""

    blocks: int = 15
    """Blocks of steps, after one that is not counted; medians are shown."""
    steps: int = 400
    """Steps a block."""


def sequinox_steps(cell_class: type) -> dict:
    """By name, a function that makes one step from a NumPy sample and waits for the output."""
    cell = cell_class(16, 64, jax.random.key(0))
    stream, jitted = sqx.Stream(cell), eqx.filter_jit(lambda cell, x, state: cell.step(x, state))
    state = cell.init_state()

    def through_filter_jit(x):
        nonlocal state
        y, state = jitted(cell, x, state)
        y.block_until_ready()

    return {"Stream": lambda x: stream(x).block_until_ready(), "filter_jit(step)": through_filter_jit}


def torch_steps(name: str) -> dict:
    """The same with PyTorch's cell, where it is installed."""
    if importlib.util.find_spec("torch") is None:
        return {}
    import torch

    cell = {"LSTM": torch.nn.LSTMCell, "GRU": torch.nn.GRUCell}[name](16, 64)
    state = None

    def step(x):
        nonlocal state
        with torch.inference_mode():
            state = cell(torch.from_numpy(x)[None], state)

    return {f"PyTorch {torch.__version__}": step}


def main(options: Options) -> None:
    """Prints the table."""
    print(f"jax {jax.__version__}, {jax.default_backend()}, {os.cpu_count()} cores")
    x = np.random.default_rng(0).standard_normal(16).astype(np.float32)
    for cell_class in (sqx.LSTM, sqx.GRU):
        ways = sequinox_steps(cell_class) | torch_steps(cell_class.__name__)
        times = {name: [] for name in ways}
        for block in range(options.blocks + 1):
            for name, step in ways.items():
                start = time.perf_counter()
                for _ in range(options.steps):
                    step(x)
                if block:  # the first compiles
                    times[name].append((time.perf_counter() - start) / options.steps)
        print(
            cell_class.__name__, *(f"{name} {1e6 * statistics.median(t):.1f} us" for name, t in times.items()), sep="  "
        )


if __name__ == "__main__":
    main(tyro.cli(Options))
