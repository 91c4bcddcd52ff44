"""Runs that use much at once, to be stopped anywhere.

`parts`: shuffled ragged rows in buckets, a short last batch, two parts a batch, half precision, dropout, an average, a
schedule, evaluation between saves. `windows`: truncated BPTT over rows laid end to end, which begin and end inside
windows, with a carried state, a look back, an adaptive bound.

As a script: `python golden_run.py VARIANT OUT_DIR AT` sends itself SIGKILL when batch AT is asked for.
"""

import os
import signal
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

import sequinox as sqx
from sequinox.train import (
    Buckets,
    Windows,
    accumulate,
    accuracy,
    adaptive_clip,
    cross_entropy,
    fit,
    look_back,
    mixed_precision,
    with_average,
)

STEPS = 19


def rows():
    rng = np.random.default_rng(0)
    return [rng.normal(size=(n, 3)).astype(np.float32) for n in rng.integers(1, 12, 13)]


class Alarm:
    """Batches that do something before a given one."""

    def __init__(self, batches, at, action):
        self._batches, self._countdown, self._action = batches, at, action
        self.get_state, self.set_state = batches.get_state, batches.set_state

    def __iter__(self):
        return self

    def __next__(self):
        self._countdown -= 1
        if self._countdown == 0:
            self._action()
        return next(self._batches)


def parts():
    labels = np.array([row[0, 0] > 0 for row in rows()]).astype(np.int32)

    def objective(model, batch, key):
        logits = model(batch.inputs, mask=batch.mask, key=key)
        return cross_entropy(logits, batch.targets, batch.real), {
            "accuracy": accuracy(logits, batch.targets, batch.real)
        }

    return {
        "model": sqx.recurrent_net(3, 6, 2, jax.random.key(0), cell="gru", dropout=0.2),
        "optimiser": with_average(optax.adam(optax.exponential_decay(1e-2, 5, 0.5)), 0.9),
        "objective": accumulate(mixed_precision(objective), 2),
        "batches": Buckets(rows(), labels, batch_size=4, n_buckets=2, seed=1),
        "clip_norm": 1.0,
    }


def windows():
    targets = [(np.cumsum(row[:, 0]) > 0).astype(np.int32) for row in rows()]
    model = sqx.recurrent_net(3, 6, 2, jax.random.key(0), cell="lstm", pool=None)

    def objective(model, batch, key, carry):
        logits, carry = model.unroll(batch.inputs, carry, mask=batch.mask, resets=batch.resets)
        return cross_entropy(logits, batch.targets, batch.mask), {}, carry

    return {
        "model": model,
        "optimiser": optax.chain(adaptive_clip(0.2, history=8, warmup=2), optax.adam(1e-2)),
        "objective": look_back(objective, 2),
        "batches": Windows(rows(), targets, batch_size=2, length=5, look_back=2, seed=1),
        "carry": model.init_state(2),
    }


def run(variant, out_dir, *, at=None, action=None, resume=False, steps=STEPS):
    given = {"parts": parts, "windows": windows}[variant]()
    batches = given.pop("batches")
    return fit(
        **given,
        batches=batches if at is None else Alarm(batches, at, action),
        steps=steps,
        key=jax.random.key(3),
        out_dir=out_dir,
        evaluate=lambda model: {"W": jnp.sum(jax.tree.leaves(model)[0])},
        evaluate_every=6,
        save_every=4,
        log_every=3,
        best="eval/W",
        keep_best=2,
        resume=resume,
        progress=False,
    )


if __name__ == "__main__":
    kill = lambda: os.kill(os.getpid(), signal.SIGKILL)
    run(sys.argv[1], Path(sys.argv[2]), at=int(sys.argv[3]), action=kill)
