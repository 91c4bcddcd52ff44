"""A state apart: its arrays, and everything else."""

from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree


class Skeleton:
    """What a tree has apart from its arrays: its structure, and leaves such as functions and numbers.

    Hashed once, so that a call of a compiled step need not go through a module of many layers.
    """

    def __init__(self, treedef: Any, rest: tuple[Any, ...]):
        self._treedef, self._rest = treedef, rest
        self._hash = hash((treedef, len(rest)))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return (
            isinstance(other, Skeleton)
            and self._hash == other._hash
            and self._treedef == other._treedef
            and all(
                a is b or (type(a) is type(b) and bool(a == b)) for a, b in zip(self._rest, other._rest, strict=True)
            )
        )

    def join(self, arrays: tuple[Any, ...]) -> Any:
        """The tree with these arrays."""
        found = iter(arrays)
        leaves = [next(found) if leaf is _ARRAY else leaf for leaf in self._rest]
        return jax.tree.unflatten(self._treedef, leaves)


_ARRAY = object()  # in the place of an array


def split(tree: PyTree) -> tuple[tuple[Any, ...], Skeleton]:
    """A tree's arrays, and its skeleton."""
    leaves, treedef = jax.tree.flatten(tree)
    are_arrays = [isinstance(leaf, (jax.Array, np.ndarray, np.generic)) for leaf in leaves]
    arrays = tuple(leaf for leaf, is_array in zip(leaves, are_arrays, strict=True) if is_array)
    rest = tuple(_ARRAY if is_array else leaf for leaf, is_array in zip(leaves, are_arrays, strict=True))
    return arrays, Skeleton(treedef, rest)
