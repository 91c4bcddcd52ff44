"""A run small enough to be killed often: a GRU over ragged rows, dropout, a short last batch, evaluation between saves.

As a script: `python tiny_run.py OUT_DIR '{"signal": 9, "at_batch": 11}'` sends itself the signal there; `"at_event"`
instead counts the file operations below OUT_DIR/checkpoints, so that saving and removing are hit as well.
"""

import json
import os
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

from sequinox.train import (
    Batches,
    Checkpoints,
    Total,
    accuracy,
    cross_entropy,
    epoch_batches,
    fit,
    init_train_state,
    pad,
)

STEPS = 17
OPTIMISER = optax.adam(optax.exponential_decay(1e-2, 5, 0.5))


class Net(eqx.Module):
    cell: eqx.nn.GRUCell
    dropout: eqx.nn.Dropout
    readout: eqx.nn.Linear

    def __init__(self, key):
        k1, k2 = jax.random.split(key)
        self.cell = eqx.nn.GRUCell(3, 5, key=k1)
        self.dropout = eqx.nn.Dropout(0.25)
        self.readout = eqx.nn.Linear(5, 4, key=k2)

    def __call__(self, xs, mask, key):
        def body(h, step):
            x, real = step
            return jnp.where(real, self.cell(x, h), h), None

        h, _ = jax.lax.scan(body, jnp.zeros(5), (xs, mask))
        return self.readout(self.dropout(h, key=key))


@eqx.filter_jit
def model():
    return Net(jax.random.key(7))


def data():
    rng = np.random.default_rng(0)
    lengths = [3, 0, 2, 6, 1, 4, 5]
    inputs, mask = pad([rng.normal(size=(n, 3)).astype(np.float32) for n in lengths])
    return {"inputs": inputs, "mask": mask, "labels": np.arange(7, dtype=np.int32) % 4}


def objective(model, batch, key):
    arrays = batch.data
    keys = jax.random.split(key, len(batch.real))
    logits = jax.vmap(model)(arrays["inputs"], arrays["mask"], keys)
    return cross_entropy(logits, arrays["labels"], batch.real), {
        "accuracy": accuracy(logits, arrays["labels"], batch.real)
    }


@eqx.filter_jit
def _totals(model, batch):
    loss, metrics = objective(model, batch, jax.random.key(0))
    return loss, metrics["accuracy"]


def evaluate(model):
    parts = [_totals(model, batch) for batch in epoch_batches(data(), 4)]
    loss, correct = (sum(part, Total(0, 0)) for part in zip(*parts, strict=True))
    return {"loss": float(loss.mean), "accuracy": float(correct.mean)}


def run(out_dir, *, steps=STEPS, batches=None, **options):
    defaults = {
        "key": jax.random.key(3),
        "out_dir": out_dir,
        "evaluate": evaluate,
        "evaluate_every": 4,
        "save_every": 3,
        "log_every": 5,
        "clip_norm": 1.0,
        "config": {"n_hidden": 5},
        "best": "eval/loss",
        "progress": False,
    }
    batches = Batches(data(), 3, seed=5) if batches is None else batches
    return fit(model(), OPTIMISER, objective, batches, steps=steps, **{**defaults, **options})


def saved(out_dir):
    """All that a run leaves behind: the last state's leaves as bytes, and the log."""
    like = init_train_state(model(), OPTIMISER, jax.random.key(0))
    with Checkpoints(out_dir / "checkpoints", read_only=True) as checkpoints:
        found = checkpoints.restore(like)
        leaves = jax.tree.leaves(eqx.filter(found.state, eqx.is_inexact_array))
        return {
            "step": found.step,
            "leaves": [np.asarray(leaf).tobytes() for leaf in leaves],
            "data": found.data_state,
            "steps": checkpoints.steps,
            "metrics.jsonl": (out_dir / "metrics.jsonl").read_bytes(),
        }


class Alarm(Batches):
    """Batches that do something before a given one."""

    def __init__(self, at, action):
        super().__init__(data(), 3, seed=5)
        self._countdown, self._action = at, action

    def __next__(self):
        self._countdown -= 1
        if self._countdown == 0:
            self._action()
        return super().__next__()


def _main(out_dir, options):
    signum, events = options.pop("signal", None), 0
    at_batch, at_event = options.pop("at_batch", None), options.pop("at_event", None)

    def strike():
        os.kill(os.getpid(), signum)

    def count(event, args):
        nonlocal events
        if event in ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir") and "/checkpoints/" in str(args[0]):
            events += 1
            if events == at_event:
                strike()

    if at_event is not None:
        sys.addaudithook(count)
    run(out_dir, batches=None if at_batch is None else Alarm(at_batch, strike), **options)
    print(events)


if __name__ == "__main__":
    from pathlib import Path

    _main(Path(sys.argv[1]), json.loads(sys.argv[2]))
