"""Which of nine speakers said it: a recurrent network or a transformer on the Japanese Vowels, real and ragged speech.

    python recipes/japanese_vowels.py
    python recipes/japanese_vowels.py --model transformer

640 utterances of the vowels /ae/ by nine men, each a sequence of 7 to 29 frames of 12 numbers (LPC cepstrum
coefficients); 270 for training, 370 for the test. A recurrent layer reads an utterance frame by frame, and a dense
layer names the speaker from its last output; a transformer encoder lets every frame look at every other, and reads off
the mean. Takes a quarter of a minute on two cores.

Writes `metrics.jsonl`, `checkpoints/`, `learning_curve.png` and `confusion.png` into `--out`. A run that was stopped is
continued by the same command with `--resume`, and ends with the same numbers.
"""

import dataclasses
from pathlib import Path
from typing import Literal

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


@dataclasses.dataclass(frozen=True)
class Options:
    """Japanese Vowels: which of nine speakers said it."""

    model: Literal["recurrent", "transformer"] = "recurrent"
    """What reads the utterances."""
    cell: Literal["gru", "lstm", "rnn"] = "gru"
    """Recurrent unit. The GRU does best here at this size."""
    layers: int | None = None
    """Recurrent layers (default 1; more do not help on 270 utterances) or transformer blocks (default 2)."""
    bidirectional: bool = False
    """Read every utterance in both directions. A transformer does so anyway."""
    hidden: int = 64
    """Width of a recurrent layer (of each direction), or of a block, whose feed-forward network is twice as wide."""
    heads: int = 4
    """Attention heads of a transformer."""
    dropout: float | None = None
    """Probability of a zero in training, behind every recurrent layer (default 0: runs this short do not need it) or
    sub-layer of a transformer (default 0.1, as in the paper)."""
    epochs: int = 60
    """Passes over the 270 training utterances; the loss is flat by then."""
    batch: int = 32
    """Utterances in a batch: nine steps an epoch."""
    learning_rate: float | None = None
    """Adam's step size. Default 3e-3 for a recurrent network, three times the usual, since it is small; 1e-3 for a
    transformer."""
    clip: float = 1.0
    """Largest global norm of a gradient; larger ones are scaled down, as recurrent networks need."""
    seed: int = 0
    """Of the weights, the order of the data, and dropout."""
    out: Path = Path("runs/japanese_vowels")
    """Folder for everything that is written."""
    resume: bool = False
    """Continue the run in `--out`."""
    progress: bool = True
    """Show a progress bar."""


def make_model(options: Options, n_in: int, n_out: int, key) -> sqx.SequenceLayer:
    """The network that the options ask for."""
    if options.model == "transformer":
        return sqx.transformer_encoder(
            n_in,
            options.hidden,
            options.heads,
            2 * options.hidden,
            options.layers or 2,
            n_out,
            key,
            dropout=0.1 if options.dropout is None else options.dropout,
        )
    return sqx.recurrent_net(
        n_in,
        options.hidden,
        n_out,
        key,
        cell=options.cell,
        n_layers=options.layers or 1,
        bidirectional=options.bidirectional,
        dropout=options.dropout or 0.0,
    )


def objective(model, batch, key):
    """The loss of a batch and its accuracy, as sums and counts. Rows that only fill up a batch do not count."""
    inputs, mask, labels = batch.data
    logits = model(inputs, mask=mask, key=key)
    return cross_entropy(logits, labels, batch.real), {"accuracy": accuracy(logits, labels, batch.real)}


@eqx.filter_jit
def predict(model, split):
    """Logits `(utterances, speakers)`, in inference mode."""
    return eqx.nn.inference_mode(model)(split.inputs, mask=split.mask)


def main(options: Options) -> float:
    """Trains, evaluates, draws; returns the accuracy on the test utterances."""
    data = japanese_vowels()
    train, test = standardise(data.train, data.test)  # by the training frames alone
    n_speakers = int(train.labels.max()) + 1
    model_key, train_key = jax.random.split(jax.random.key(options.seed))
    model = make_model(options, train.inputs.shape[-1], n_speakers, model_key)
    print(sqx.summary(model))
    batches = Batches((train.inputs, train.mask, train.labels), options.batch, seed=options.seed)

    def evaluate(model) -> dict[str, float]:
        logits = predict(model, test)
        loss, hits = cross_entropy(logits, test.labels), accuracy(logits, test.labels)
        return {"loss": float(loss.mean), "accuracy": float(hits.mean)}

    apart = ("epochs", "out", "resume", "progress")  # these may differ when a run is continued
    result = fit(
        model,
        optax.adam(options.learning_rate or {"recurrent": 3e-3, "transformer": 1e-3}[options.model]),
        objective,
        batches,
        steps=options.epochs * batches.steps_per_epoch,
        key=train_key,
        out_dir=options.out,
        evaluate=evaluate,
        evaluate_every=batches.steps_per_epoch,
        log_every=batches.steps_per_epoch,
        save_every=batches.steps_per_epoch * 5,
        clip_norm=options.clip,
        best="train/loss",  # the test speakers choose nothing
        config={k: v for k, v in dataclasses.asdict(options).items() if k not in apart},
        resume=options.resume,
        progress=options.progress,
    )
    predictions = np.asarray(jnp.argmax(predict(result.model, test), -1))
    draw_learning_curve(result.history, batches.steps_per_epoch, options.out / "learning_curve.png")
    draw_confusion(predictions, test.labels, n_speakers, options.out / "confusion.png")
    score = float(np.mean(predictions == test.labels))
    print(f"wrote {options.out}/metrics.jsonl, checkpoints/, learning_curve.png, confusion.png")
    print(f"test accuracy {score:.3f}")
    return score


def draw_learning_curve(history: list[dict], steps_per_epoch: int, path: Path) -> None:
    """Loss and accuracy over epochs, on the training and the test utterances."""
    epochs = [line["step"] / steps_per_epoch for line in history]
    fig, axes = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    for ax, name in zip(axes, ("loss", "accuracy"), strict=True):
        for split, label in (("train", "training"), ("eval", "test")):
            ax.plot(epochs, [line[f"{split}/{name}"] for line in history], label=label)
        ax.set(xlabel="epoch", title=name)
        ax.grid(alpha=0.3)
    axes[0].set_yscale("log")
    axes[1].set_ylim(top=1.005)
    axes[1].legend(loc="lower right")
    fig.savefig(path, dpi=150)
    plt.close(fig)


def draw_confusion(predictions: np.ndarray, labels: np.ndarray, n: int, path: Path) -> None:
    """How often each speaker was taken for each."""
    counts = np.zeros((n, n), int)
    np.add.at(counts, (labels, predictions), 1)
    fig, ax = plt.subplots(figsize=(4.6, 4.2), layout="constrained")
    shares = counts / counts.sum(1, keepdims=True)
    ax.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    for i, j in np.argwhere(counts):
        color = "white" if shares[i, j] > 0.5 else "black"
        ax.text(j, i, str(counts[i, j]), ha="center", va="center", color=color, fontsize=8)
    ax.set(xlabel="predicted speaker", ylabel="speaker", xticks=range(n), yticks=range(n))
    ax.set_title(f"{np.trace(counts)} of {counts.sum()} utterances right")
    fig.savefig(path, dpi=150)
    plt.close(fig)


if __name__ == "__main__":
    main(tyro.cli(Options))
