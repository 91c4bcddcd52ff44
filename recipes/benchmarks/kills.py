"""Killing a run at random moments, saving included: is what remains always whole, and the end always the same?

    python recipes/benchmarks/kills.py                 50 kills, about 5 minutes
    python recipes/benchmarks/kills.py --kills 3

A process trains a GRU on windows of ragged rows (truncated BPTT with the state carried from window to window, half
precision, dropout, an average of the weights, an adaptive bound on the gradient) and saves every 5 steps. It gets
SIGKILL at a random moment and is started again with `resume=True`, over and over. Then it runs to its end undisturbed,
and is compared with a run that was never killed: the log byte for byte, every array of the train state bit for bit.
After every kill the checkpoints on the disk must be whole, and no more than two saves' steps may be lost: the save that
was under way, and the steps since.
"""

import dataclasses
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import tyro

SAVE_EVERY = 5


@dataclasses.dataclass(frozen=True)
class Options:
    """SIGKILL at random moments."""

    kills: int = 50
    """How often the run is killed."""
    seed: int = 0
    """Of the moments."""
    longest: float = 2.0
    """Seconds from the first step to the latest kill."""


def run(out_dir: Path, steps: int, resume: bool) -> Any:
    """The run, or what is left of it."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    import optax

    import sequinox as sqx
    from sequinox.train import Windows, adaptive_clip, cross_entropy, fit, mixed_precision, with_average

    rng = np.random.default_rng(0)
    rows = [rng.normal(size=(n, 3)).astype(np.float32) for n in rng.integers(1, 40, 23)]
    targets = [(np.cumsum(row[:, 0]) > 0).astype(np.int32) for row in rows]
    model = sqx.recurrent_net(3, 8, 2, jax.random.key(0), cell="gru", pool=None, dropout=0.1)

    def objective(model: Any, batch: Any, key: Any, carry: Any) -> Any:
        logits, carry = model.unroll(batch.inputs, carry, mask=batch.mask, resets=batch.resets, key=key)
        return cross_entropy(logits, batch.targets, batch.mask), {}, carry

    def tell(step: int, values: Any, state: Any) -> None:
        del values, state
        print(step, flush=True)

    return fit(
        model,
        with_average(optax.chain(adaptive_clip(history=50), optax.adam(1e-2)), 0.99),
        mixed_precision(objective),
        Windows(rows, targets, batch_size=4, length=7, seed=3),
        steps=steps,
        key=jax.random.key(1),
        carry=model.init_state(4, jnp.bfloat16),
        out_dir=out_dir,
        save_every=SAVE_EVERY,
        log_every=1,
        evaluate=lambda model: {"W": float(jnp.sum(model.layers[0].W))},
        evaluate_every=13,
        resume=resume,
        callbacks=[tell] if "--child" in sys.argv else [],
        progress=False,
    )


def child(out_dir: Path, steps: int, cache: Path) -> subprocess.Popen:
    """The run in a process of its own; compiled programs are shared by all of them, which spares time."""
    environment = dict(
        os.environ,
        JAX_COMPILATION_CACHE_DIR=str(cache),
        JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS="0",
        JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES="-1",
    )
    command = [sys.executable, __file__, "--child", str(out_dir), str(steps)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def saved_steps(out_dir: Path) -> list[int]:
    """The steps of the checkpoints that are whole."""
    from sequinox.train import Checkpoints

    if not (out_dir / "checkpoints").is_dir():
        return []
    with Checkpoints(out_dir / "checkpoints", read_only=True) as checkpoints:
        return checkpoints.steps


def digest(result: Any) -> list[bytes]:
    """Every array of a train state, bit for bit."""
    import equinox as eqx
    import jax
    import jax.numpy as jnp
    import numpy as np

    leaves = jax.tree.leaves(eqx.filter(result.state, eqx.is_array))
    is_key = lambda leaf: jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return [np.asarray(jax.random.key_data(leaf) if is_key(leaf) else leaf).tobytes() for leaf in leaves]


def main(options: Options) -> int:
    """Kills, resumes, compares; returns the exit status."""
    moments, begun = random.Random(options.seed), time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        killed, straight, cache = (Path(folder) / name for name in ("killed", "straight", "cache"))
        saving, lost, last = 0, [], 0
        for kill in range(options.kills):
            process = child(killed, 10**6, cache)
            assert process.stdout is not None
            reached = int(process.stdout.readline() or -1)  # the first step of this process
            time.sleep(moments.uniform(0, options.longest))
            process.send_signal(signal.SIGKILL)
            rest = process.stdout.read().split()
            reached = max([reached, *map(int, rest)])
            if process.wait() != -signal.SIGKILL:
                print(f"kill {kill}: the run ended by itself with {process.returncode}")
                return 1
            saving += any("tmp" in path.name for path in (killed / "checkpoints").iterdir())
            now = max(saved_steps(killed), default=0)
            lost.append(reached - now)
            if now < last or lost[-1] > 2 * SAVE_EVERY + 2:
                print(f"kill {kill}: at step {reached} the last checkpoint is {now}, and was {last}")
                return 1
            last = now
        steps = last + 25
        ours = run(killed, steps, True)
        unbroken = run(straight, steps, False)
        same = digest(ours) == digest(unbroken)
        log = (killed / "metrics.jsonl").read_bytes() == (straight / "metrics.jsonl").read_bytes()
        whole = not [path for path in killed.rglob("*") if "tmp" in path.name]
    print(
        f"{options.kills} kills in {steps} steps, {saving} of them while saving; lost {min(lost)} to {max(lost)} steps "
        f"each; arrays {'equal' if same else 'DIFFER'}, log {'equal' if log else 'DIFFERS'}, "
        f"{'nothing' if whole else 'FILES'} left over; {time.perf_counter() - begun:.0f} s"
    )
    return 0 if same and log and whole else 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        run(Path(sys.argv[2]), int(sys.argv[3]), (Path(sys.argv[2]) / "checkpoints").is_dir())
    else:
        sys.exit(main(tyro.cli(Options)))
