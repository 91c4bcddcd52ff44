"""One batch of ragged sequences, as all sources of this package yield it."""

import dataclasses
from typing import Literal, TypeAlias

import jax
from jaxtyping import PyTree

Per: TypeAlias = Literal["sequence", "sample"] | None
"""What targets may be one for; None where nobody says."""

PER = (None, "sequence", "sample")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class SequenceBatch:
    """A rectangle of sequences: what goes in, what should come out, and what of it is real.

    It is a PyTree, with None where a source has nothing to say. A changed copy is made by `dataclasses.replace`.

    Attributes:
        inputs: `(batch, time, *features)`, or a PyTree of such arrays; zeros where `mask` is False.
        targets: a PyTree of arrays, one a sample `(batch, time, *features)` or one a row `(batch, *features)`; an
            [`AtEnd`][sequinox.train.AtEnd]; or None.
        mask: `(batch, time)` bool, True on real samples.
        resets: `(batch, time)` bool, True on the first real sample of every sequence that begins inside the rectangle;
            None where each row is one sequence from its start.
        real: `(batch,)` bool, False on rows that only fill up a batch. It is the mask of losses with one target a row.
        static: what is known of a sequence as a whole, a PyTree of arrays; or None. One a row, `(batch, *features)`,
            where `resets` is None. With `resets` a row holds several sequences or a part of one: then one a sample,
            `(batch, time, *features)`, repeated along its sequence.
        targets_per: `"sample"` or `"sequence"`: what of the two plain arrays in `targets` are. No array, but a part of
            the batch's type. Default: None, nobody says; where it matters (something is cut along time, and a target of
            a row might be as long as time) that is an error.

    Raises:
        ValueError: another `targets_per`.
    """

    inputs: PyTree
    targets: PyTree
    mask: PyTree
    resets: PyTree
    real: PyTree
    static: PyTree = None
    targets_per: Per = dataclasses.field(default=None, metadata={"static": True})

    def __post_init__(self) -> None:
        if self.targets_per not in PER:
            raise ValueError(f"SequenceBatch: targets_per must be one of {PER}, got {self.targets_per!r}")
