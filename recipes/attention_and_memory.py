"""Two ways to look back at a sequence: attention's weights, and the state of a recurrent cell.

    python recipes/attention_and_memory.py

Three untrained layers read a synthetic sequence of 4 channels: the angles and velocities of two joints that swing out
after a push. Attention looks at all samples at once; the left panel shows the weight that each sample gives to each,
the mean of two heads. A GRU and an LSTM keep a state instead; the right panel shows its norm from sample to sample.
Takes a few seconds.

Writes `attention_and_memory.png` into `--out`, and prints the norms after the last sample. Run it with `--causal` to
see the weights of attention that can run in a stream.
"""

import dataclasses
from pathlib import Path

import command
import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
from jaxtyping import Array

import sequinox as sqx

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.ticker import MaxNLocator


@dataclasses.dataclass(frozen=True)
class Options:
    """Attention's weights beside the state of a GRU and an LSTM, on a synthetic sequence."""

    causal: bool = False
    """Let a sample see itself and earlier samples only."""
    steps: int = 8
    """Samples of the sequence, 0.2 seconds apart."""
    seed: int = 0
    """Of the weights, which are not trained."""
    out: Path = Path("runs/attention_and_memory")
    """Folder for the picture."""


def swings(steps: int) -> Array:
    """Two joints after a push, `(steps, 4)`: their angles in radians, then their velocities in radians a second."""
    t = 0.2 * jnp.arange(steps)[:, None]
    speed, decay = 3.0, 1.5  # of the push, in radians a second; of the swing, in seconds
    angular = 2 * jnp.pi / jnp.array([1.0, 1.7])  # the periods of the joints, in seconds
    sine, cosine = jnp.sin(angular * t) / angular, jnp.cos(angular * t)
    return speed * jnp.exp(-t / decay) * jnp.concatenate([sine, cosine - sine / decay], -1)


def main(options: Options) -> dict[str, float]:
    """Runs the layers and draws; returns the norms of the last states."""
    xs = swings(options.steps)
    width = xs.shape[-1]
    k1, k2, k3 = jax.random.split(jax.random.key(options.seed), 3)
    attention = sqx.MultiHeadSelfAttention(width, 2, k1, causal=options.causal)
    cells = {"GRU": sqx.GRU(width, width, k2), "LSTM": sqx.LSTM(width, width, k3)}

    weights = attention.attention_weights(xs).mean(0)  # over the heads
    norms = {name: jnp.linalg.norm(cell(xs), axis=-1) for name, cell in cells.items()}  # of h and of y

    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "attention_and_memory.png"
    draw(np.asarray(weights), {name: np.asarray(norm) for name, norm in norms.items()}, path)
    last = {name: float(norm[-1]) for name, norm in norms.items()}
    print(f"wrote {path}")
    print("norm of the last state:", ", ".join(f"{name} {norm:.4f}" for name, norm in last.items()))
    return last


def draw(weights: np.ndarray, norms: dict[str, np.ndarray], path: Path) -> None:
    """The weights as a picture, the norms as lines."""
    fig, (left, right) = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained", gridspec_kw={"wspace": 0.08})
    image = left.imshow(weights, cmap="Blues", vmin=0)
    fig.colorbar(image, ax=left, label="weight")
    left.set(title="attention weights, mean of two heads", xlabel="sample looked at", ylabel="sample that looks")
    for name, norm in norms.items():
        right.plot(norm, marker="o", label=name)
    right.set(title="hidden state of a recurrent cell", xlabel="sample", ylabel="norm", ylim=(0, None))
    right.grid(alpha=0.3)
    right.legend()
    for axis in (left.xaxis, left.yaxis, right.xaxis):
        axis.set_major_locator(MaxNLocator(nbins=8, integer=True))
    fig.savefig(path, dpi=150)
    plt.close(fig)


if __name__ == "__main__":
    command.run(main, Options)
