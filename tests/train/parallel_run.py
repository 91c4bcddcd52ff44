"""The same run on one device, on four, and in two processes of two devices each.

An LSTM with dropout over ragged rows, in two parts a batch, the last batch of an epoch short; parameters divided among
the devices if asked for. As a script it is one of two processes: `python parallel_run.py DIR RANK PORT` makes the whole
run in DIR/two and goes on with the one in DIR/begun.
"""

import sys
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

import sequinox as sqx
from sequinox.train import (
    Batches,
    DataParallel,
    accumulate,
    cross_entropy,
    fit,
    pad,
    shard_largest_axis,
    squared_error,
    with_average,
)

OPTIMISER = with_average(optax.adam(1e-2), 0.9)


def model():
    return sqx.recurrent_net(3, 8, 4, jax.random.key(7), cell="lstm", dropout=0.2)


def data():
    rng = np.random.default_rng(0)
    lengths = rng.integers(0, 9, 21)
    inputs, mask = pad([rng.normal(size=(n, 3)).astype(np.float32) for n in lengths], 8)
    return {"inputs": inputs, "mask": mask, "labels": (inputs[:, :, 0].sum(1) > 0).astype(np.int32) + 2}


def objective(model, batch, key):
    logits = model(batch.data["inputs"], mask=batch.data["mask"], key=key)
    labels, real = batch.data["labels"], batch.real
    # Not the accuracy: rows without a sample have only the biases, which are all but equal after one step of Adam.
    return cross_entropy(logits, labels, real), {"size": squared_error(logits, jnp.zeros_like(logits), real)}


@eqx.filter_jit
def predict(model):
    whole = data()
    return model(jnp.asarray(whole["inputs"]), mask=jnp.asarray(whole["mask"]))


def evaluate(model):
    return {"loss": cross_entropy(predict(model), data()["labels"]).mean}


def run(out_dir, *, steps, parallel=None, shard=(0, 1), **options):
    return fit(
        model(),
        OPTIMISER,
        accumulate(objective, 2),
        Batches(data(), 8, seed=5, shard=shard),
        steps=steps,
        key=jax.random.key(3),
        out_dir=out_dir,
        evaluate=evaluate,
        evaluate_every=10,
        save_every=25,
        log_every=1,
        clip_norm=1.0,
        best="eval/loss",
        parallel=parallel,
        progress=False,
        **options,
    )


def divided():
    return DataParallel(rule=shard_largest_axis(len(jax.devices()), min_size=1))


def _main(directory, rank, port):
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.config.update("jax_num_cpu_devices", 2)
    jax.distributed.initialize(f"127.0.0.1:{port}", 2, rank)
    assert len(jax.devices()) == 4 and len(jax.local_devices()) == 2
    run(directory / "two", steps=50, parallel=DataParallel(), shard=(rank, 2))
    result = run(directory / "begun", steps=50, parallel=divided(), shard=(rank, 2), resume=True)
    weight = result.model.layers[0].R_z  # pyright: ignore[reportAttributeAccessIssue]
    assert weight.addressable_shards[0].data.size == weight.size // 4, weight.sharding
    jax.distributed.shutdown()


if __name__ == "__main__":
    _main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
