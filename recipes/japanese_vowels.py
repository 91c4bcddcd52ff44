"""Which of nine speakers said it: a recurrent network or a transformer on the Japanese Vowels, real and ragged speech.

    python recipes/japanese_vowels.py
    python recipes/japanese_vowels.py --model transformer

640 utterances of the vowels /ae/ by nine men, each a sequence of 7 to 29 frames of 12 numbers (LPC cepstrum
coefficients); 270 for training, 30 of each speaker, and 370 for the test. A recurrent layer reads an utterance frame by
frame, and a dense layer names the speaker from its last output; a transformer encoder lets every frame look at every
other, and reads off the mean.

Of each speaker's 30 utterances, 6 are held out of the training. The network is measured on these after every epoch, and
that of the epoch with the lowest loss on them is tested. It need not be the last: the loss on what is trained on falls
on, long after others have ceased to gain. The test utterances choose nothing. Takes 20 seconds on two cores.

Writes `metrics.jsonl`, `checkpoints/`, `learning_curve.png` and `confusion.png` into `--out`. A run that was stopped is
continued by the same command with `--resume`, and ends with the same numbers.
"""

import dataclasses
from pathlib import Path
from typing import Annotated, Literal

import command
import equinox as eqx
import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
import optax
import tyro

import sequinox as sqx
from sequinox.tasks import Split, japanese_vowels, standardise
from sequinox.train import Batches, accuracy, cross_entropy, fit, load_model

matplotlib.use("Agg")
import matplotlib.pyplot as plt


@dataclasses.dataclass(frozen=True)
class Options:
    """Japanese Vowels: which of nine speakers said it."""

    model: Literal["recurrent", "transformer"] = "recurrent"
    """What reads the utterances."""
    cell: Literal["gru", "lstm", "rnn"] = "gru"
    """Recurrent unit. The GRU does best here at this size."""
    layers: Annotated[int | None, tyro.conf.arg(metavar="INT", help_behavior_hint="(default: 1, or 2)")] = None
    """Recurrent layers (more than one do not help on so few utterances) or transformer blocks."""
    bidirectional: bool = False
    """Read every utterance in both directions. A transformer does so anyway."""
    hidden: int = 64
    """Width of a recurrent layer (of each direction), or of a block, whose feed-forward network is twice as wide."""
    heads: int = 4
    """Attention heads of a transformer."""
    dropout: Annotated[float | None, tyro.conf.arg(metavar="FLOAT", help_behavior_hint="(default: 0, or 0.1)")] = None
    """Probability of a zero in training, behind every recurrent layer (runs this short do not need it) or sub-layer of
    a transformer (0.1, as in the paper)."""
    epochs: int = 60
    """Passes over the training utterances. The held-out loss has mostly stopped falling by then; the epoch where it is
    lowest is tested."""
    held_out: int = 6
    """Utterances of each speaker's 30 that choose the epoch and are not trained on: a fifth, enough for a loss that
    does not jump, while 24 remain to learn from."""
    batch: int = 32
    """Utterances in a batch: seven steps an epoch."""
    learning_rate: Annotated[
        float | None, tyro.conf.arg(metavar="FLOAT", help_behavior_hint="(default: 3e-3, or 1e-3)")
    ] = None
    """Adam's step size: for a recurrent network three times that of a transformer, since it is small."""
    clip: float = 1.0
    """Largest global norm of a gradient; larger ones are scaled down, as recurrent networks need."""
    seed: int = 0
    """Of the weights, the utterances held out, the order of the others, and dropout."""
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


def hold_out(split: Split, n: int, seed: int) -> tuple[Split, Split]:
    """Without `n` utterances of each speaker, drawn at random; and these."""
    if seed < 0:
        raise ValueError(f"--seed must be an integer from 0, got {seed}")
    rng = np.random.default_rng(seed)
    speakers = [np.flatnonzero(split.labels == speaker) for speaker in np.unique(split.labels)]
    most = min(len(rows) for rows in speakers) - 1
    if not 1 <= n <= most:
        raise ValueError(f"--held-out must be from 1 to {most}, so that something is left to train on, got {n}")
    chosen = np.isin(np.arange(len(split.labels)), [rng.choice(rows, n, replace=False) for rows in speakers])
    return Split(*(array[~chosen] for array in split)), Split(*(array[chosen] for array in split))


@eqx.filter_jit
def predict(model, split):
    """Logits `(utterances, speakers)`, in inference mode."""
    return eqx.nn.inference_mode(model)(split.inputs, mask=split.mask)


def main(options: Options) -> float:
    """Trains, chooses an epoch, tests it, draws; returns the accuracy on the test utterances."""
    data = japanese_vowels()
    # Scaled by the frames that are trained on alone.
    train, held_out, test = standardise(*hold_out(data.train, options.held_out, options.seed), data.test)
    n_speakers = int(train.labels.max()) + 1
    model_key, train_key = jax.random.split(jax.random.key(options.seed))
    model = make_model(options, train.inputs.shape[-1], n_speakers, model_key)
    print(sqx.summary(model))
    print(f"{len(train.labels)} utterances to train on, {len(held_out.labels)} to choose the epoch, ", end="")
    print(f"{len(test.labels)} to test it")
    batches = Batches((train.inputs, train.mask, train.labels), options.batch, seed=options.seed)

    def evaluate(model) -> dict[str, float]:
        logits = predict(model, held_out)
        loss, hits = cross_entropy(logits, held_out.labels), accuracy(logits, held_out.labels)
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
        best="eval/loss",  # finer than the accuracy, in which many epochs are equal
        config={k: v for k, v in dataclasses.asdict(options).items() if k not in apart},
        resume=options.resume,
        progress=options.progress,
    )
    predictions = np.asarray(jnp.argmax(predict(load_model(options.out, best=True), test), -1))
    score = float(np.mean(predictions == test.labels))
    # Of equal losses the last, as with the checkpoints.
    best = min(reversed(result.history), key=lambda line: line["eval/loss"])
    epoch = best["step"] // batches.steps_per_epoch
    draw_learning_curve(result.history, batches.steps_per_epoch, epoch, options.out / "learning_curve.png")
    draw_confusion(predictions, test.labels, n_speakers, options.out / "confusion.png")
    print(f"wrote {options.out}/metrics.jsonl, checkpoints/, learning_curve.png, confusion.png")
    print(f"chosen: epoch {epoch} of {options.epochs}, ", end="")
    print(f"with the lowest held-out loss, {best['eval/loss']:.3f} (accuracy {best['eval/accuracy']:.3f})")
    print(f"test accuracy {score:.3f}")
    return score


def draw_learning_curve(history: list[dict], steps_per_epoch: int, chosen: int, path: Path) -> None:
    """Loss and accuracy over epochs, on the utterances trained on and on those held out; the chosen epoch."""
    epochs = [line["step"] / steps_per_epoch for line in history]
    fig, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    for ax, name in zip(axes, ("loss", "accuracy"), strict=True):
        for split, label in (("train", "trained on"), ("eval", "held out")):
            ax.plot(epochs, [line[f"{split}/{name}"] for line in history], label=label)
        ax.axvline(chosen, color="black", linestyle="dotted", label=f"chosen and tested: epoch {chosen}")
        ax.set_xlabel("epoch (pass over the training utterances)")
        ax.grid(alpha=0.3)
    axes[0].set_yscale("log")
    axes[0].set_ylabel("cross-entropy an utterance, nats")
    axes[1].set_ylabel("share of utterances told right")
    axes[1].set_ylim(top=1.005)
    axes[1].legend(loc="lower right")
    fig.suptitle("Better to the end on what is trained on; on what is held out, best at the chosen epoch", fontsize=11)
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
    ax.set_title(f"{np.trace(counts)} of {counts.sum()} test utterances right")
    fig.savefig(path, dpi=150)
    plt.close(fig)


if __name__ == "__main__":
    past = {r"steps=\d+; raise steps": "the last of --epochs; raise --epochs", "steps must": "--epochs must"}
    command.run(main, Options, past | {"n_heads": "--heads", "n_layers": "--layers", "d_model": "--hidden"})
