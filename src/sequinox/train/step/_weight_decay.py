"""Which parameters a weight decay pulls towards zero."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from ..._precision import keeps_float32
from ...layers import Stack

_NORMS = (eqx.nn.LayerNorm, eqx.nn.RMSNorm, eqx.nn.GroupNorm, eqx.nn.BatchNorm)
_NAMES = ("bias", "g")  # biases and gains of Equinox, which may have axes of length 1


def weight_decay_mask(params: PyTree) -> PyTree:
    """Which parameters a weight decay should pull towards zero: the `mask` of `optax.adamw` and its like.

    Weights decay: arrays of two axes and more, kernels and embeddings too. Biases, peepholes and gains of norms do not,
    nor what [keeps float32][sequinox.KEEPS_FLOAT32]: a pole that is pulled from 0.999 towards zero is another memory,
    not a smaller weight. The layers of a `Stack` are judged as each alone; for other arrays with leading axes (an
    ensemble by `jax.vmap`) call it inside the `vmap`.

    Arguments:
        params: the parameters, inside their modules: `equinox.filter(model, eqx.is_inexact_array)`, as the training
            step hands them to the optimiser.

    Returns:
        A tree of True and False, of the structure of `params`.

    ??? example

        ```python
        >>> import equinox as eqx, jax, optax, sequinox as sqx
        >>> from sequinox.train import weight_decay_mask
        >>> optimiser = optax.adamw(1e-3, weight_decay=0.1, mask=weight_decay_mask)  # the function, not its tree
        >>> mask = weight_decay_mask(eqx.filter(sqx.LRU(3, 4, jax.random.key(0)), eqx.is_inexact_array))
        >>> mask.B_re, mask.nu_log
        (True, False)

        ```
    """
    return _decays(params, keeps_float32(params), 0)


def _decays(params: PyTree, kept: PyTree, axes: int) -> PyTree:
    """The mask of what is inside `axes` nested `Stack`s, each of which adds a leading axis to its arrays."""
    if isinstance(params, _NORMS):
        return jax.tree.map(lambda _: False, params)
    axes += isinstance(params, Stack)
    below = lambda node: node is not params and isinstance(node, (Stack, *_NORMS))

    def decays(path: Any, node: Any, kept: Any) -> Any:
        if below(node):
            return _decays(node, kept, axes)
        is_floating = hasattr(node, "dtype") and jnp.issubdtype(node.dtype, jnp.inexact)
        named = bool(path) and getattr(path[-1], "name", None) in _NAMES
        return is_floating and not kept and not named and node.ndim - axes >= 2

    return jax.tree_util.tree_map_with_path(decays, params, kept, is_leaf=below)
