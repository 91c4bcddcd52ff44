"""The arrays of a PyTree by their paths: described, compared, and put back."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import PyTree

from ._form import Leaf


def is_key(leaf: Any) -> bool:
    """Whether it is an array of typed PRNG keys."""
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def stored_leaves(tree: PyTree, name: str) -> dict[str, Any]:
    """All arrays of a PyTree, or `jax.ShapeDtypeStruct`s in their place, by path: `.model.layers[0].weight`.

    Raises:
        TypeError: an array is none of JAX or NumPy, or not of numbers.
        ValueError: two have one path.
    """
    leaves: dict[str, Any] = {}
    for path, leaf in jtu.tree_leaves_with_path(tree):
        where = jtu.keystr(path)
        if not _is_stored(leaf):
            _check_not_foreign(leaf, f"{name}: {where}")
            continue
        if where in leaves:
            raise ValueError(f"{name}: two leaves have the path {where}")
        if isinstance(leaf, np.ndarray | np.generic) and leaf.dtype.kind in "OSUMm":
            raise TypeError(f"{name}: {where} is an array of dtype {leaf.dtype}, which is not stored: only numbers are")
        leaves[where] = np.asarray(leaf) if isinstance(leaf, np.generic) else leaf
    return leaves


def describe_leaves(leaves: dict[str, Any], sums: dict[str, str] | None = None) -> dict[str, Leaf]:
    """Shape and dtype of each, and its checksum where there is one."""
    return {path: Leaf(tuple(a.shape), str(a.dtype), (sums or {}).get(path)) for path, a in leaves.items()}


def compare_leaves(
    stored: dict[str, Leaf], wanted: dict[str, Leaf], source: str = "the checkpoint", target: str = "`like`"
) -> list[str]:
    """One line for each path where two descriptions differ in shape or dtype."""
    lines = []
    for path in sorted(stored.keys() | wanted.keys()):
        if path not in stored:
            lines.append(f"{path}: missing in {source}")
        elif path not in wanted:
            lines.append(f"{path}: in {source}, but not in {target}")
        else:
            for what in ("shape", "dtype"):
                was, is_ = getattr(stored[path], what), getattr(wanted[path], what)
                if was != is_:
                    lines.append(f"{path}: {what} {was} in {source}, {is_} in {target}")
    return lines


def abstract_leaves(leaves: dict[str, Any]) -> dict[str, Any]:
    """What Orbax is to load: NumPy as NumPy, JAX arrays where those of `like` are."""
    return {path: _abstract(leaf) for path, leaf in leaves.items() if leaf.size}


def fill_leaves(like: PyTree, arrays: dict[str, Any]) -> PyTree:
    """`like` with each array replaced by the one of its path; those without elements are made again, or copied."""

    def fill(path: Any, leaf: Any) -> Any:
        if not _is_stored(leaf):
            return leaf
        if not leaf.size and isinstance(leaf, jax.Array):
            return leaf.copy()  # where it is
        if is_key(leaf):
            data = arrays[jtu.keystr(path)] if leaf.size else jnp.zeros(key_data(leaf).shape, jnp.uint32)
            return jax.random.wrap_key_data(data, impl=key_impl(leaf))
        if not leaf.size:
            make = np.zeros if isinstance(leaf, (np.ndarray, np.generic)) else jnp.zeros
            return make(leaf.shape, leaf.dtype)
        return arrays[jtu.keystr(path)]

    return jtu.tree_map_with_path(fill, like)


def _is_stored(leaf: Any) -> bool:
    return eqx.is_array(leaf) or isinstance(leaf, (np.ndarray, np.generic, jax.ShapeDtypeStruct))


def _check_not_foreign(leaf: Any, where: str) -> None:
    """Refuses an array that would be left out, as it is none of JAX or NumPy."""
    if not isinstance(leaf, type) and (hasattr(leaf, "__array__") or hasattr(leaf, "__dlpack__")):
        kind = f"{type(leaf).__module__}.{type(leaf).__qualname__}"
        raise TypeError(f"{where} is a {kind}, which is not stored: only arrays of JAX and NumPy are. Convert it")


def key_data(leaf: Any) -> jax.ShapeDtypeStruct:
    """Shape and dtype of the numbers in typed keys."""
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
        data = key_data(leaf)
        shape, dtype = data.shape, data.dtype
        sharding = jax.random.key_data(leaf).sharding if isinstance(leaf, jax.Array) else None
    if sharding is None:
        sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
        if jax.process_count() > 1:
            sharding = jax.NamedSharding(jax.sharding.Mesh(jax.devices(), "devices"), jax.P())
    return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)
