"""Which arrays of a batch have rows, and which have time: the one place that knows.

The batches of this package say it by their fields. Of any other the first axis is rows, by convention; the rest is said
by `axes`, a prefix of the batch's tree (as `in_axes` of `jax.vmap`) whose leaves name the leading axes of the arrays
there. What is not said is an error where it is needed, never a guess.
"""

import itertools
from collections.abc import Iterator
from typing import Any

import jax
import jax.tree_util as jtu
import numpy as np
from jaxtyping import PyTree

from ._at_end import AtEnd
from ._batches import Batch
from ._sequence_batch import SequenceBatch

KINDS = ("batch time", "batch", "time", "")
_UNTOLD = "batch, and perhaps time"


def check_axes(who: str, axes: Any, argument: str = "axes") -> Any:
    """`axes` if its leaves are strings that name axes. Whether it fits a batch is seen when there is one."""
    for path, leaf in jtu.tree_leaves_with_path(axes):
        if not isinstance(leaf, str):
            raise TypeError(
                f"{who}: {argument}{jtu.keystr(path)} must be a string that names leading axes, got "
                f"{type(leaf).__name__}"
            )
        if leaf not in KINDS:
            raise ValueError(f"{who}: {argument}{jtu.keystr(path)} must be one of {KINDS}, got {leaf!r}")
    return axes


def kinds_of(who: str, batch: Any, axes: Any, *, time: bool, argument: str = "axes") -> PyTree:
    """The leading axes of every array, one of `KINDS`, in the batch's tree; all sizes agree.

    With `time` an error where it is not known which arrays have time, else such arrays are "batch".
    """
    leaves, tree = jtu.tree_flatten_with_path(batch)
    kinds = list(_say(who, batch, axes, list(_by_itself(batch)), "", argument))
    shapes = {f"batch{jtu.keystr(path)}": np.shape(leaf) for path, leaf in leaves}
    kind_of = dict(zip(shapes, kinds, strict=True))
    listed = lambda chosen: ", ".join(f"{where} {shapes[where]}" for where in chosen)
    example = f'{argument}={{"x": "batch time", "static": "batch", "scale": ""}}'
    untold = [where for where, kind in kind_of.items() if kind == _UNTOLD]
    if time and untold:
        raise ValueError(
            f"{who}: it cannot be told which of these arrays have time: {listed(untold)}. Say it by {argument}: "
            f'{argument}="batch time" where all have rows and time, or a tree such as {example} (in a SequenceBatch, '
            'targets_per="sample" or "sequence" says it of the targets)'
        )
    kind_of = {where: "batch" if kind == _UNTOLD else kind for where, kind in kind_of.items()}
    for where, kind in kind_of.items():
        if len(shapes[where]) < len(kind.split()):
            raise ValueError(f"{who}: {where} must have the leading axes {kind!r}, got shape {shapes[where]}")
    for axis, what in (("batch", "rows, their first axis"), ("time", "samples along time")):
        having = {where: kind.split().index(axis) for where, kind in kind_of.items() if axis in kind.split()}
        if len({shapes[where][i] for where, i in having.items()}) > 1:
            raise ValueError(
                f"{who}: all of these must have the same number of {what}: {listed(having)}. Where one has no such "
                f"axis, say so by {argument}, such as {example}"
            )
    return jtu.tree_unflatten(tree, list(kind_of.values()))


def size_along(axis: str, batch: Any, kinds: PyTree) -> int | None:
    """How many rows or samples there are; None where no array has the axis."""
    for leaf, kind in zip(jax.tree.leaves(batch), jax.tree.leaves(kinds), strict=True):
        if axis in kind.split():
            return np.shape(leaf)[kind.split().index(axis)]
    return None


def map_along(axis: str, function: Any, batch: Any, kinds: PyTree) -> Any:
    """`function(leaf, i)` of every array whose axis `i` is this one; the others as they are."""

    def each(leaf: Any, kind: str) -> Any:
        words = kind.split()
        return function(leaf, words.index(axis)) if axis in words else leaf

    return jax.tree.map(each, batch, kinds)


def _say(who: str, node: Any, axes: Any, own: list[str], path: str, argument: str) -> Iterator[str]:
    """What `axes` says of each leaf of `node`, in order; where it is None, `own`, what the batch says of itself."""
    if axes is None:
        yield from own
    elif isinstance(axes, str):
        yield from [axes] * len(own)
    else:
        ours, theirs = _children(axes), _children(node)
        if type(axes) is not type(node) or ours.keys() != theirs.keys():
            describe = lambda tree, parts: (
                f"{type(tree).__name__} of {', '.join(parts)}" if parts else type(tree).__name__
            )
            raise ValueError(
                f"{who}: {argument} must be a prefix of the batch's tree; {argument}{path} is a "
                f"{describe(axes, ours)} where batch{path} is a {describe(node, theirs)}"
            )
        left = iter(own)
        for key, part in theirs.items():
            of_part = list(itertools.islice(left, len(jax.tree.leaves(part))))
            yield from _say(who, part, ours[key], of_part, path + key, argument)


def _by_itself(node: Any) -> Iterator[str]:
    every = lambda part, kind: [kind] * len(jax.tree.leaves(part))
    if isinstance(node, SequenceBatch):
        plain = {"sample": "batch time", "sequence": "batch", None: None}[node.targets_per]
        yield from every(node.inputs, "batch time")
        for leaf in jax.tree.leaves(node.targets, is_leaf=lambda part: isinstance(part, AtEnd)):
            if isinstance(leaf, AtEnd) or plain is None:
                yield from _by_itself(leaf)
            else:
                yield plain
        yield from every((node.mask, node.resets), "batch time")
        yield from every(node.real, "batch")
        yield from every(node.static, "batch" if node.resets is None else "batch time")
    elif isinstance(node, AtEnd):
        yield from every(node, "batch time")
    elif isinstance(node, Batch):
        yield from _by_itself(node.data)
        yield from every(node.real, "batch")
    elif jtu.all_leaves([node]):
        yield ("", "batch", _UNTOLD)[min(np.ndim(node), 2)]
    else:
        for part in _children(node).values():
            yield from _by_itself(part)


def _children(node: Any) -> dict[str, Any]:
    """One level of a tree: its parts by their paths."""
    if jtu.all_leaves([node]):
        return {}
    return {jtu.keystr(path): part for path, part in jtu.tree_leaves_with_path(node, is_leaf=lambda n: n is not node)}
