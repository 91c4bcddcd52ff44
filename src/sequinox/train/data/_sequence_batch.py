"""One batch of ragged sequences, as all sources of this package give it."""

from typing import Any, NamedTuple


class SequenceBatch(NamedTuple):
    """A rectangle of sequences: what goes in, what should come out, and what of it is real.

    It is a PyTree: None stands where a source has nothing to say.

    Attributes:
        inputs: `(batch, time, *features)`, or a PyTree of such arrays; zeros where `mask` is False.
        targets: a PyTree of arrays, one a sample `(batch, time, *features)` or one a row `(batch, *features)`; or None.
        mask: `(batch, time)` bool, True on real samples.
        resets: `(batch, time)` bool, True on the first sample of every sequence that begins inside the rectangle; None
            where each row is one sequence from its start.
        real: `(batch,)` bool, False on rows that only fill up a batch. It is the mask of losses with one target a row.
    """

    inputs: Any
    targets: Any
    mask: Any
    resets: Any
    real: Any
