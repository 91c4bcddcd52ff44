"""The arrays of a PyTree by their paths: described, compared, and put back."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import PyTree


def is_key(leaf: Any) -> bool:
    """Whether it is an array of typed PRNG keys."""
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def stored_leaves(tree: PyTree, name: str) -> dict[str, Any]:
    """All arrays of a PyTree, or `jax.ShapeDtypeStruct`s in their place, by path: `.model.layers[0].weight`."""
    leaves: dict[str, Any] = {}
    for path, leaf in jtu.tree_leaves_with_path(tree):
        if not _is_stored(leaf):
            continue
        where = jtu.keystr(path)
        if where in leaves:
            raise ValueError(f"{name}: two leaves have the path {where}.")
        leaves[where] = np.asarray(leaf) if isinstance(leaf, np.generic) else leaf
    return leaves


def describe_leaves(leaves: dict[str, Any]) -> dict[str, Any]:
    """Shape and dtype of each, as JSON. A typed key's dtype names its implementation."""
    return {path: {"shape": list(leaf.shape), "dtype": str(leaf.dtype)} for path, leaf in leaves.items()}


def compare_leaves(stored: dict[str, Any], wanted: dict[str, Any]) -> list[str]:
    """One line for each path where two descriptions differ."""
    lines = []
    for path in sorted(stored.keys() | wanted.keys()):
        if path not in stored:
            lines.append(f"{path}: missing in the checkpoint")
        elif path not in wanted:
            lines.append(f"{path}: in the checkpoint, but not in `like`")
        else:
            for what, show in (("shape", tuple), ("dtype", str)):
                was, is_ = stored[path][what], wanted[path][what]
                if was != is_:
                    lines.append(f"{path}: {what} {show(was)} in the checkpoint, {show(is_)} in `like`")
    return lines


def abstract_leaves(leaves: dict[str, Any]) -> dict[str, Any]:
    """What Orbax is to load: NumPy as NumPy, JAX arrays where those of `like` are."""
    return {path: _abstract(leaf) for path, leaf in leaves.items() if leaf.size}


def fill_leaves(like: PyTree, arrays: dict[str, Any]) -> PyTree:
    """`like` with each array replaced by the one of its path; those without elements are made anew, or copied."""

    def fill(path: Any, leaf: Any) -> Any:
        if not _is_stored(leaf):
            return leaf
        if not leaf.size and isinstance(leaf, jax.Array):
            return leaf.copy()  # where it is
        if is_key(leaf):
            data = arrays[jtu.keystr(path)] if leaf.size else jnp.zeros(_key_data(leaf).shape, jnp.uint32)
            return jax.random.wrap_key_data(data, impl=key_impl(leaf))
        if not leaf.size:
            make = np.zeros if isinstance(leaf, (np.ndarray, np.generic)) else jnp.zeros
            return make(leaf.shape, leaf.dtype)
        return arrays[jtu.keystr(path)]

    return jtu.tree_map_with_path(fill, like)


def _is_stored(leaf: Any) -> bool:
    return eqx.is_array(leaf) or isinstance(leaf, (np.ndarray, np.generic, jax.ShapeDtypeStruct))


def _key_data(leaf: Any) -> jax.ShapeDtypeStruct:
    return jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct(leaf.shape, leaf.dtype))


def key_impl(leaf: Any) -> Any:
    """The implementation of typed keys, also of a `jax.ShapeDtypeStruct` of them."""
    found = []
    # `key_impl` wants an array; while tracing, a ShapeDtypeStruct is one.
    jax.eval_shape(lambda key: found.append(jax.random.key_impl(key)), jax.ShapeDtypeStruct(leaf.shape, leaf.dtype))
    return found[0]


def _abstract(leaf: Any) -> Any:
    if isinstance(leaf, np.ndarray):
        return np.empty(leaf.shape, leaf.dtype)
    shape, dtype, sharding = leaf.shape, leaf.dtype, getattr(leaf, "sharding", None)
    if is_key(leaf):
        data = _key_data(leaf)
        shape, dtype = data.shape, data.dtype
        sharding = jax.random.key_data(leaf).sharding if isinstance(leaf, jax.Array) else None
    if sharding is None:
        sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
        if jax.process_count() > 1:
            sharding = jax.NamedSharding(jax.sharding.Mesh(jax.devices(), "devices"), jax.P())
    return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)
