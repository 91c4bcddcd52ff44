"""Elements of a dataset of grain, as the sequences that layouts are made of."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from ..._types import ArrayLike
from ._buckets import padded_batch
from ._sequence_batch import Per, SequenceBatch
from ._sequences import Ragged


class OneSequence(NamedTuple):
    """An element of a dataset of grain that is more than an array, or than an array and a target.

    The functions `grain_pad`, `grain_buckets`, `grain_pack` and `grain_windows` take it. All elements of a dataset have
    the same parts. Make it by `dataset.map(...)`.

    Attributes:
        inputs: `(time, *features)`, or a dictionary of such arrays, several inputs by name.
        targets: None; `(*features)` with `targets_per="sequence"`, `(time, *features)` with `"sample"`.
        mask: `(time,)` bool, False in gaps; None where all samples are real.
        static: what is known of the sequence as a whole, an array `(*features)` or a dictionary of them; or None. A
            batch has it one a row from `grain_pad` and `grain_buckets`, else repeated along the sequence.

    ??? example

        ```python
        >>> import grain, numpy as np, sequinox as sqx
        >>> gap = sqx.train.OneSequence({"x": np.array([9.0, 4.0])}, mask=np.array([False, True]))
        >>> whole = sqx.train.OneSequence({"x": np.array([1.0, 2.0])}, mask=np.array([True, True]))
        >>> ds = grain.MapDataset.source([whole, gap])
        >>> batch = next(iter(sqx.train.grain_pack(ds, length=4, batch_size=1, seed=0)))
        >>> batch.inputs["x"].tolist(), batch.resets.astype(int).tolist()
        ([[1.0, 2.0, 0.0, 4.0]], [[1, 0, 0, 1]])

        ```
    """

    inputs: ArrayLike | Mapping[str, ArrayLike]
    targets: ArrayLike | float | None = None
    mask: ArrayLike | None = None
    static: ArrayLike | Mapping[str, ArrayLike] | None = None


def pad_elements(elements: Sequence[Any], batch_size: int, length: int, per: Per) -> SequenceBatch:
    """A batch of whole rows; `batch_size` of them."""
    data = ragged(elements, per, "grain_pad")
    data.check_longest(length, "length")
    if len(elements) > batch_size:
        raise ValueError(f"grain_pad: batch_size must be that of ds.batch, got {batch_size} for {len(elements)} rows")
    return padded_batch(data, np.arange(len(elements)), batch_size, length)


def ragged(elements: Sequence[Any], per: Per, who: str) -> Ragged:
    """Elements of a dataset as checked sequences."""
    parts = [_one(element, per, who) for element in elements]
    forms = [jax.tree.structure(part) for part in parts]
    if len(set(forms)) > 1:
        other = next(form for form in forms if form != forms[0])
        raise ValueError(f"{who}: all elements must have the same parts, got {other} beside {forms[0]}")
    given = lambda field: [getattr(part, field) for part in parts]
    inputs, targets, mask = given("inputs"), given("targets"), given("mask")
    if isinstance(inputs[0], dict):
        inputs = {key: [one[key] for one in inputs] for key in inputs[0]}
    stacked = lambda field: jax.tree.map(lambda *leaves: np.stack(leaves), *given(field))
    targets = stacked("targets") if per == "sequence" else targets if per == "sample" else None
    return Ragged(inputs, targets, None if mask[0] is None else mask, stacked("static"), who)


def _one(element: Any, per: Per, who: str) -> OneSequence:
    whole = isinstance(element, OneSequence)
    pair = isinstance(element, tuple) and not whole
    has_target = element.targets is not None if whole else pair
    if has_target != (per is not None) or (pair and len(element) != 2):
        form = "pairs (inputs, target)" if per is not None else "arrays"
        came = "OneSequence" + (" with" if has_target else " without") + " targets" if whole else type(element).__name__
        raise TypeError(f"{who}: elements must be {form} with targets_per={per!r}, got {came}")
    if whole:
        return element
    parts: Any = element if pair else (element,)
    return OneSequence(*parts)
