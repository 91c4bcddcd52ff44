"""Every recurrent cell on the same speech: accuracy, time a step and parameters, at equal size.

    python recipes/compare_cells.py
    python recipes/compare_cells.py --only GRU RDA LRU --seeds 3

Each cell gets as many units as fit into `--parameters`, head included, and is trained alike on the Japanese Vowels (see
japanese_vowels.py): 270 utterances of nine speakers to train on, 370 to be told apart. Variants of the LSTM have the
names of Greff et al. (see `sequinox.LSTM`). Below the cells stand networks without recurrence, of the same number of
parameters. The table says what one seed or the mean of several gives; on 370 utterances, one more or less is 0.003, so
that small differences mean nothing. Takes five minutes on two cores.

Every network is trained for the same number of epochs on all training utterances, and tested after the last: so the
test utterances choose nothing here either. (japanese_vowels.py holds some out to choose an epoch.)

Writes `cells.json`, `cells.png` and every run's `metrics.jsonl` into `--out`. What was stopped is continued by the same
command with `--resume`.
"""

import dataclasses
import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import command
import equinox as eqx
import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
import optax
import tyro

import sequinox as sqx
from sequinox.tasks import japanese_vowels, standardise
from sequinox.train import Batches, accuracy, cross_entropy, fit

matplotlib.use("Agg")
import matplotlib.pyplot as plt


def recurrent(make_cell: Callable[..., sqx.SequenceLayer], **options: Any) -> Callable[..., sqx.SequenceLayer]:
    """A network with one layer of a cell, as a function of its width."""
    return lambda width, n_in, n_out, key: sqx.recurrent_net(n_in, width, n_out, key, cell=make_cell, **options)


CELLS: dict[str, Callable[..., sqx.SequenceLayer]] = {
    "RNN": recurrent(sqx.RNN),
    "RNN, relu": recurrent(sqx.RNN, activation="relu", recurrent_initializer=sqx.scaled_identity()),
    "RNN, layer norm": recurrent(sqx.RNN, layer_norm=True),
    "IndRNN": recurrent(sqx.IndRNN),
    "GRU": recurrent(sqx.GRU),
    "GRU, reset after": recurrent(sqx.GRU, reset_after=True),
    "GRU, layer norm": recurrent(sqx.GRU, layer_norm=True),
    "MGU": recurrent(sqx.MGU),
    "LSTM": recurrent(sqx.LSTM),
    **{f"LSTM, {name}": recurrent(sqx.LSTM, variant=name) for name in ("NIG", "NFG", "NOG", "NIAF", "NOAF")},
    **{f"LSTM, {name}": recurrent(sqx.LSTM, variant=name) for name in ("NP", "CIFG", "FGR")},
    "LSTM, projected": lambda width, n_in, n_out, key: sqx.recurrent_net(
        n_in, 2 * width, n_out, key, cell=sqx.LSTM, n_proj=width
    ),
    "LSTM, layer norm": recurrent(sqx.LSTM, layer_norm=True),
    "RWA": recurrent(sqx.RWA),
    "RDA": recurrent(sqx.RDA),
    "RDA, sigmoid": recurrent(sqx.RDA, f_a="sigmoid"),
    "RDA, softplus": recurrent(sqx.RDA, f_a="softplus"),
    "RDA, identity": recurrent(sqx.RDA, f_h="identity"),
    "MinGRU": recurrent(sqx.MinGRU),
    "MinLSTM": recurrent(sqx.MinLSTM),
    "LRU": recurrent(sqx.LRU),
    "StateSpace": recurrent(sqx.StateSpace.random),
}
OTHERS: dict[str, Callable[..., sqx.SequenceLayer]] = {
    "convolutions": lambda width, n_in, n_out, key: sqx.temporal_conv_net(n_in, (width,) * 3, n_out, key),
    "mean of samples": lambda width, n_in, n_out, key: sqx.pooling_net(n_in, width, n_out, key),
    "flat": lambda width, n_in, n_out, key: sqx.flat_net(n_in, 29, width, n_out, key),
}


@dataclasses.dataclass(frozen=True)
class Options:
    """Every recurrent cell on the Japanese Vowels, at equal parameter count."""

    parameters: int = 15_000
    """Trainable numbers of every network, at most; a GRU of 64 units has as many."""
    epochs: int = 60
    """Passes over the 270 training utterances, the same for all: nothing is chosen by what comes out of the test."""
    batch: int = 32
    """Utterances in a batch: nine steps an epoch."""
    learning_rate: float = 3e-3
    """Adam's step size, the same for all: three times the usual, since the networks are small."""
    clip: float = 1.0
    """Largest global norm of a gradient."""
    seeds: int = 1
    """Runs of every network; the accuracy is their mean."""
    only: Annotated[
        tuple[str, ...],
        tyro.conf.arg(
            metavar="NAME ...",
            help="Those to train, in capitals or not: " + ", ".join(repr(name) for name in CELLS | OTHERS) + ".",
            help_behavior_hint="(default: all)",
        ),
    ] = ()
    out: Path = Path("runs/compare_cells")
    """Folder for everything that is written."""
    resume: bool = False
    """Continue the runs in `--out`: what is finished is only tested and timed again."""


def count(make: Callable[..., Any], width: int, n_in: int, n_out: int) -> int:
    """Trainable numbers of a network of some width, without making it."""
    shapes = eqx.filter_eval_shape(make, width, n_in, n_out, jax.random.key(0))
    floats = [a for a in jax.tree.leaves(shapes) if hasattr(a, "shape") and jnp.issubdtype(a.dtype, jnp.inexact)]
    return sum(int(np.prod(a.shape)) for a in floats)


def widest(make: Callable[..., Any], limit: int, n_in: int, n_out: int) -> int:
    """The largest width that stays within a number of parameters."""
    if count(make, 1, n_in, n_out) > limit:
        raise ValueError(f"--parameters: a network of width 1 has more than {limit}")
    low, high = 1, limit
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if count(make, middle, n_in, n_out) <= limit else (low, middle)
    return low


def objective(model, batch, key):
    """The loss of a batch and its accuracy, as sums and counts."""
    inputs, mask, labels = batch.data
    logits = model(inputs, mask=mask, key=key)
    return cross_entropy(logits, labels, batch.real), {"accuracy": accuracy(logits, labels, batch.real)}


@eqx.filter_jit
def predict(model, inputs, mask):
    """Logits `(utterances, speakers)`, in inference mode."""
    return eqx.nn.inference_mode(model)(inputs, mask=mask)


@eqx.filter_jit
def gradients(model, inputs, mask, labels):
    """Loss and gradients of a batch: what a training step is made of."""
    loss = lambda m: cross_entropy(m(inputs, mask=mask), labels).mean
    return eqx.filter_value_and_grad(loss)(model)


def milliseconds(run: Callable[[], Any], repeats: int = 20) -> float:
    """The median time of a warm call."""
    jax.block_until_ready(run())
    times = []
    for _ in range(repeats):
        begun = time.perf_counter()
        jax.block_until_ready(run())
        times.append(time.perf_counter() - begun)
    return 1e3 * float(np.median(times))


def examine(name: str, make: Callable[..., Any], data: Any, options: Options) -> dict[str, Any]:
    """One network: trained from every seed, scored on the test utterances, and timed."""
    train, test = data
    n_in, n_out = train.inputs.shape[-1], int(train.labels.max()) + 1
    width = widest(make, options.parameters, n_in, n_out)
    scores, model = [], None
    for seed in range(options.seeds):
        model_key, train_key = jax.random.split(jax.random.key(seed))
        batches = Batches((train.inputs, train.mask, train.labels), options.batch, seed=seed)
        result = fit(
            make(width, n_in, n_out, model_key),
            optax.adam(options.learning_rate),
            objective,
            batches,
            steps=options.epochs * batches.steps_per_epoch,
            key=train_key,
            out_dir=options.out / name.replace(", ", "-").replace(" ", "_") / f"seed_{seed}",
            log_every=batches.steps_per_epoch,
            clip_norm=options.clip,
            # What may not differ when a run is continued; epochs may.
            config={"parameters": options.parameters, "batch": options.batch, "learning_rate": options.learning_rate},
            resume=options.resume,
            progress=False,
        )
        model = result.model
        logits = predict(model, test.inputs, test.mask)
        scores.append(float(accuracy(logits, test.labels).mean))
    batch = train.inputs[: options.batch], train.mask[: options.batch], train.labels[: options.batch]
    return {
        "name": name,
        "accuracy": float(np.mean(scores)),
        "accuracies": scores,
        "ms_per_step": milliseconds(partial(gradients, model, *batch)),
        "parameters": count(make, width, n_in, n_out),
        "width": width,
    }


def main(options: Options) -> list[dict[str, Any]]:
    """Trains and times them all; prints the table, draws the picture."""
    networks = CELLS | OTHERS
    by_name = {name.lower(): name for name in networks}
    unknown = sorted(name for name in options.only if name.lower() not in by_name)
    if unknown:
        raise ValueError(f"--only: there is no {', '.join(map(repr, unknown))} among {', '.join(map(repr, networks))}")
    if not options.resume and any(options.out.glob("*/seed_*")):
        raise ValueError(f"{options.out} holds earlier runs: continue with --resume, or give another --out")
    raw = japanese_vowels()
    data = standardise(raw.train, raw.test)
    options.out.mkdir(parents=True, exist_ok=True)
    rows = []
    print(f"{'network':<22}{'width':>6}{'parameters':>12}{'ms a step':>11}{'test accuracy':>15}")
    for name in [by_name[name.lower()] for name in options.only] or networks:
        rows.append(examine(name, networks[name], data, options))
        r = rows[-1]
        print(
            f"{name:<22}{r['width']:>6}{r['parameters']:>12,}{r['ms_per_step']:>11.2f}{r['accuracy']:>15.3f}",
            flush=True,
        )
    (options.out / "cells.json").write_text(json.dumps(rows, indent=1), encoding="utf-8")
    draw(rows, options.out / "cells.png")
    print(f"wrote {options.out}/cells.json and cells.png")
    return rows


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Accuracy, time of a training step and width, a bar a network."""
    rows = sorted(rows, key=lambda r: r["accuracy"])
    columns = (
        ("accuracy", "test accuracy", "{:.3f}"),
        ("ms_per_step", "ms a training step", "{:.1f}"),
        ("parameters", "parameters", "{:,}"),
    )
    fig, axes = plt.subplots(1, 3, figsize=(10, 1.2 + 0.25 * len(rows)), sharey=True, layout="constrained")
    for ax, (key, title, form) in zip(axes, columns, strict=True):
        values = [r[key] for r in rows]
        colours = ["#5c6bc0" if r["name"] in CELLS else "#9e9e9e" for r in rows]
        bars = ax.barh([r["name"] for r in rows], values, color=colours)
        ax.bar_label(bars, [form.format(v) for v in values], padding=3, fontsize=8)
        ax.set_title(title)
        ax.margins(x=0.2, y=0.01)
        ax.spines[["top", "right"]].set_visible(False)
    if rows[0]["accuracy"] > 0.5:  # so that differences can be seen
        axes[0].set_xlim(rows[0]["accuracy"] - 0.05, 1.02)
    fig.savefig(path, dpi=150)
    plt.close(fig)


if __name__ == "__main__":
    command.run(main, Options)
