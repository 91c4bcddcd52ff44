"""Killing a run at random moments, saving included: is what remains always whole, and the end always the same?

    python recipes/kills.py                 50 kills, about 5 minutes
    python recipes/kills.py --kills 3
    python recipes/kills.py --kills 9 --processes 2    two processes of two devices

A process trains a GRU on windows of ragged rows (truncated BPTT with the state carried from window to window, half
precision, dropout, an average of the weights, an adaptive bound on the gradient) and saves every 5 steps. It gets
SIGKILL at a random moment and is started again with `resume=True`, over and over. Then it runs to its end undisturbed,
and is compared with a run that was never killed: the log byte for byte, every array of the train state bit for bit.
After every kill the checkpoints on the disk must be whole, and no more than two saves' steps may be lost: the save that
was under way, and the steps since. Of several processes one gets the signal; the others must end by themselves, which
JAX lets them do at once or after a minute and a half.
"""

import dataclasses
import hashlib
import os
import random
import signal
import socket
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
    processes: int = 1
    """Processes of the run; more than one have two CPU devices each."""


def run(out_dir: Path, steps: int, rank: int, processes: int) -> Any:
    """The run, or what is left of it."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    import optax

    import sequinox as sqx
    from sequinox.train import DataParallel, Windows, adaptive_clip, cross_entropy, fit, mixed_precision, with_average

    rng = np.random.default_rng(0)
    rows = [rng.normal(size=(n, 3)).astype(np.float32) for n in rng.integers(1, 40, 23)]
    targets = [(np.cumsum(row[:, 0]) > 0).astype(np.int32) for row in rows]
    model = sqx.recurrent_net(3, 8, 2, jax.random.key(0), cell="gru", pool=None, dropout=0.1)

    def objective(model: Any, batch: Any, key: Any, carry: Any) -> Any:
        logits, carry = model.unroll(batch.inputs, carry, mask=batch.mask, resets=batch.resets, key=key)
        return cross_entropy(logits, batch.targets, batch.mask), {}, carry

    def tell(step: int, values: Any, state: Any) -> None:
        del values, state
        print("step", step, flush=True)

    return fit(
        model,
        with_average(optax.chain(adaptive_clip(history=50), optax.adam(1e-2)), 0.99),
        mixed_precision(objective),
        Windows(rows, targets, batch_size=4, length=7, seed=3, shard=(rank, processes)),
        steps=steps,
        key=jax.random.key(1),
        carry=model.init_state(4, jnp.bfloat16),
        out_dir=out_dir,
        save_every=SAVE_EVERY,
        log_every=1,
        evaluate=lambda model: {"W": float(jnp.sum(model.layers[0].W))},
        evaluate_every=13,
        resume=True,
        callbacks=[tell],
        parallel=DataParallel() if processes > 1 else None,
        progress=False,
    )


def child(out_dir: Path, steps: int, rank: int, processes: int, port: int) -> None:
    """One process of a run; in the end it prints a digest of its arrays."""
    import jax

    if processes > 1:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.config.update("jax_num_cpu_devices", 2)
        jax.distributed.initialize(f"127.0.0.1:{port}", processes, rank)
    print("digest", digest(run(out_dir, steps, rank, processes)), flush=True)
    if processes > 1:
        jax.distributed.shutdown()


def digest(result: Any) -> str:
    """A hash of every array of a train state, bit for bit, or of what this process has of it."""
    import equinox as eqx
    import jax
    import jax.numpy as jnp
    import numpy as np

    found = hashlib.sha256()
    for leaf in jax.tree.leaves(eqx.filter(result.state, eqx.is_array)):
        is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        for shard in (jax.random.key_data(leaf) if is_key else leaf).addressable_shards:
            found.update(np.asarray(shard.data).tobytes())
    return found.hexdigest()


def start(out_dir: Path, steps: int, processes: int, cache: Path) -> list[subprocess.Popen]:
    """The processes of a run; compiled programs are shared by all of them, which spares time."""
    environment = dict(
        os.environ,
        JAX_COMPILATION_CACHE_DIR=str(cache),
        JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS="0",
        JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES="-1",
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, __file__, "--child", str(out_dir), str(steps)]
    return [
        subprocess.Popen(
            [*command, str(rank), str(processes), str(port)], stdout=subprocess.PIPE, text=True, env=environment
        )
        for rank in range(processes)
    ]


def killed_run(out_dir: Path, processes: int, cache: Path, moment: float, victim: int) -> tuple[int, list[int]]:
    """A run of which one process is killed: the last step it told of, and how its processes ended."""
    running = start(out_dir, 10**6, processes, cache)
    first, told = running[0], []
    assert first.stdout is not None
    while not told:
        line = first.stdout.readline()
        if not line:
            break
        told = steps_in(line)
    time.sleep(moment)
    running[victim].send_signal(signal.SIGKILL)
    told += steps_in(first.stdout.read())
    return max(told, default=0), [process.wait(timeout=300) for process in running]


def steps_in(output: str) -> list[int]:
    """The steps that a process has told of."""
    return [int(line.split()[1]) for line in output.splitlines() if line.startswith("step ")]


def whole_run(out_dir: Path, steps: int, processes: int, cache: Path) -> list[str]:
    """A run to its end: the digest of each process."""
    outputs = [process.communicate()[0] for process in start(out_dir, steps, processes, cache)]
    return [line for output in outputs for line in output.splitlines() if line.startswith("digest ")]


def saved_steps(out_dir: Path) -> list[int]:
    """The steps of the checkpoints that are whole."""
    from sequinox.train import Checkpoints

    if not (out_dir / "checkpoints").is_dir():
        return []
    with Checkpoints(out_dir / "checkpoints", read_only=True) as checkpoints:
        return checkpoints.steps


def main(options: Options) -> int:
    """Kills, resumes, compares; returns the exit status."""
    moments, begun = random.Random(options.seed), time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        killed, straight, cache = (Path(folder) / name for name in ("killed", "straight", "cache"))
        saving, lost, last = 0, [], 0
        for kill in range(options.kills):
            moment, victim = moments.uniform(0, options.longest), kill % options.processes
            reached, ends = killed_run(killed, options.processes, cache, moment, victim)
            if ends[victim] != -signal.SIGKILL or 0 in ends:
                print(f"kill {kill}: the processes ended with {ends}")
                return 1
            saving += any("tmp" in path.name for path in (killed / "checkpoints").iterdir())
            now = max(saved_steps(killed), default=0)
            lost.append(reached - now)
            if now < last or lost[-1] > 2 * SAVE_EVERY + 2:
                print(f"kill {kill}: at step {reached} the last checkpoint is {now}, and was {last}")
                return 1
            last = now
        steps = last + 25
        ours = whole_run(killed, steps, options.processes, cache)
        unbroken = whole_run(straight, steps, options.processes, cache)
        same = ours == unbroken and len(ours) == options.processes
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
        child(Path(sys.argv[2]), *map(int, sys.argv[3:]))
    else:
        sys.exit(main(tyro.cli(Options)))
