"""Which arrays keep float32 where the rest is in half precision: the one place that knows it.

A pole of 0.999 is 1 in bfloat16: another filter. So the classes mark with `KEEPS_FLOAT32` which of their arrays half
precision would change in kind (poles, decays, phases), and whoever casts, checks dtypes, decays weights or shows a
model asks here.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from ._checks import float_dtype, is_inexact, wide
from ._types import DType

_MARK = "sequinox.keeps_float32"

KEEPS_FLOAT32: Mapping[str, bool] = MappingProxyType({_MARK: True})
"""Marks a field of a module: `pole: Array = eqx.field(metadata=sequinox.KEEPS_FLOAT32)`.

Its floating arrays keep float32 at least where the rest of the model is in half precision. The field may hold an array
or any PyTree, a module too: then all of it is kept.

For what half precision, with 8 binary digits (bfloat16) or 11 (float16), would make another thing of: poles, decays
and time constants near their limits, phases that add up, gathered statistics. A weight that is multiplied once a sample
is off by at most 0.4 % in bfloat16, as its product is, and needs no such care.

[`cast`][sequinox.cast] goes by it, and with it `mixed_precision`; a layer's `dtype` is that of its other arrays;
`weight_decay_mask` leaves it alone, and `summary` shows it. The layer itself sees to the arithmetic: it keeps its state
in float32 as well, and returns outputs in the dtype of its samples (a [`RecurrentCell`][sequinox.RecurrentCell] does
that by itself). [Write your own cell](../guides/own_cell.md#what-keeps-float32) has an example.
"""

_FOREIGN = (eqx.nn.State, eqx.nn.StateIndex)
"""Classes of others that are kept whole: what `eqx.nn.BatchNorm` and its like have gathered."""


def keeps_float32(tree: PyTree) -> PyTree:
    """Which leaves of a model keep float32 where the rest of it is in half precision.

    Arguments:
        tree: any PyTree: a model, a part of one, its parameters, gradients, or updates.

    Returns:
        A tree of the same structure with True in the fields that are marked with
        [`KEEPS_FLOAT32`][sequinox.KEEPS_FLOAT32], and in what Equinox's normalisations have gathered
        (`eqx.nn.State`); False elsewhere.

    ??? example

        ```python
        >>> import sequinox as sqx
        >>> keeps = sqx.keeps_float32(sqx.AdaptiveOnePole(0.1, alpha=0.9))
        >>> keeps.alpha, keeps.mu
        (True, False)

        ```
    """
    return _flags(tree, isinstance(tree, _FOREIGN))


def _flags(tree: PyTree, kept: bool) -> PyTree:
    marked = marked_fields(type(tree)) if isinstance(tree, eqx.Module) else frozenset()
    below = lambda node: node is not tree and isinstance(node, (eqx.Module, *_FOREIGN))
    children, structure = jax.tree_util.tree_flatten_with_path(tree, is_leaf=below)
    flags = []
    for path, child in children:
        here = kept or isinstance(child, _FOREIGN) or bool(marked and path[0].name in marked)
        flags.append(_flags(child, here) if below(child) else here)
    return jax.tree.unflatten(structure, flags)


def marked_fields(module: type) -> frozenset[str]:
    """The fields of a module's class that keep float32."""
    fields = getattr(module, "__dataclass_fields__", {})
    return frozenset(name for name, field in fields.items() if field.metadata.get(_MARK))


def cast(tree: PyTree, dtype: DType) -> PyTree:
    """A model with its floating arrays in another dtype; those that keep float32 are in float32 at least.

    What keeps it says the class of each layer: see [`KEEPS_FLOAT32`][sequinox.KEEPS_FLOAT32]. In half precision the
    other weights, samples and outputs are of `dtype`, and the states of slow layers are of float32. Can be
    differentiated: a gradient comes back in the dtype that its array had before.

    Arguments:
        tree: a model, or any PyTree with modules inside. Complex arrays, integers, and what is no array stay as they
            are.
        dtype: a floating dtype of at least 16 bits.

    Returns:
        The same tree with JAX arrays of `dtype`, or float32 if `dtype` is narrower and the array is kept.

    Raises:
        TypeError, ValueError: if `dtype` is no such dtype, or is float64 without JAX's 64-bit mode.

    ??? example

        ```python
        >>> import jax, jax.numpy as jnp, sequinox as sqx
        >>> net = sqx.Sequential([sqx.OnePole(3, 0.999), sqx.GRU(3, 5, jax.random.key(0))])
        >>> half = sqx.cast(net, jnp.bfloat16)
        >>> half[0].alpha.dtype.name, half[1].W.dtype.name, half.dtype.name
        ('float32', 'bfloat16', 'bfloat16')
        >>> half(jnp.ones((7, 3), jnp.bfloat16)).dtype.name
        'bfloat16'

        ```
    """
    dtype = float_dtype(dtype, "cast")

    def convert(leaf: Any, kept: bool) -> Any:
        if not (hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jnp.floating)):
            return leaf
        to = wide(dtype) if kept else dtype
        if isinstance(leaf, jax.ShapeDtypeStruct):
            return jax.eval_shape(lambda a: a.astype(to), leaf)
        return jnp.asarray(leaf).astype(to)

    return jax.tree.map(convert, tree, keeps_float32(tree))


def dtypes(tree: PyTree) -> tuple[np.dtype | None, np.dtype | None]:
    """The dtype of the first ordinary floating array, and of the first that keeps float32; None if there is none."""
    found: list[np.dtype | None] = [None, None]
    for leaf, kept in zip(jax.tree.leaves(tree), jax.tree.leaves(keeps_float32(tree)), strict=True):
        if found[kept] is None and is_inexact(leaf):
            found[kept] = leaf.dtype
    return found[0], found[1]


def misfit(tree: PyTree, dtype: np.dtype) -> np.dtype | None:
    """The dtype of weights that samples of `dtype` do not fit; None if they fit.

    They must have that of the ordinary weights. Weights that keep float32 serve samples of float32 and less.
    """
    weights, kept = dtypes(tree)
    if weights is not None and weights != dtype:
        return weights
    return kept if kept is not None and wide(kept) != wide(dtype) else None
