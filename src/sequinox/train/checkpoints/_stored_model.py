"""Where a model is stored: in a checkpoint, or in a file of its own."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ...interop import _safetensors
from ._checkpoint_files import read_arrays
from ._checkpoints import Checkpoints
from ._checksum import add_up, array_sum
from ._form import Description, Leaf, ModelDescription, read_file
from ._leaves import abstract_leaves, compare_leaves, describe_leaves, key_data

GIVE = "give the out_dir of a run, a directory of Checkpoints, or a .safetensors file of save_model"
_MODEL = ".model"  # in a state

# What JAX calls the implementation of keys whose dtype has a shorter name.
_IMPLEMENTATIONS = {"fry": "threefry2x32", "urbg": "unsafe_rbg"}


class StoredModel(NamedTuple):
    """A model that has not been loaded yet.

    Attributes:
        where: for messages.
        description: its structure, or why there is none.
        leaves: shape, dtype and checksum of each array by its path in the model.
        read: returns the arrays at the paths of its argument, each placed as the one there; typed keys as their data.
    """

    where: str
    description: ModelDescription
    leaves: dict[str, Leaf]
    read: Callable[[dict[str, Any]], dict[str, Any]]


def find_model(path: Path, step: int | None, best: bool, who: str, *, averaged: bool = False) -> StoredModel:
    """The model of a file, of a run's directory or of checkpoints; `averaged`: its averaged parameters."""
    if step is not None and best:
        raise ValueError(f"{who}: give step or best=True, not both")
    if path.suffix == ".safetensors" or path.is_file():
        if step is not None or best or averaged:
            raise ValueError(f"{who}: {path.name} holds one model; step, best and averaged are for runs")
        return _in_file(path, who)
    return _in_checkpoints(path, step, best, who, averaged)


def public_name(path: str) -> str:
    """`layers[0].W` for the path `.layers[0].W`, as in `sequinox.parameters`."""
    return path.removeprefix(".")


def inner_path(name: str) -> str:
    """The path for a public name."""
    return name if name.startswith(("[", ".")) or not name else f".{name}"


def _in_file(path: Path, who: str) -> StoredModel:
    if not path.is_file():
        raise FileNotFoundError(f"{who}: there is no file {path}; {GIVE}")
    arrays = {inner_path(name): array for name, array in _safetensors.read(path, who).items()}
    metadata = _safetensors.read_metadata(path, who).get("sequinox")
    if metadata is None:
        model = ModelDescription(None, "save_model did not write it")
        return StoredModel(str(path), model, describe_leaves(arrays), _reader(arrays))
    where = f"{who}: the description in {path}"
    try:
        raw = json.loads(metadata)
    except (RecursionError, ValueError) as error:
        raise ValueError(f"{where} is damaged: {error}") from error
    leaves, model = read_file(raw, where)
    described = {name: _stored_leaf(leaf, where) for name, leaf in leaves.items()}
    lines = compare_leaves(described, describe_leaves(arrays), "its description", "its arrays")
    lines += [f"{p}: its checksum" for p in leaves if not lines and arrays[p].size and _sum(arrays[p]) != leaves[p].sum]
    if lines:
        raise OSError(f"{who}: {path} is damaged; its arrays are not those it describes:\n  " + "\n  ".join(lines))
    return StoredModel(str(path), model, leaves, _reader(arrays))


def _stored_leaf(leaf: Leaf, where: str) -> Leaf:
    """What a file holds: of typed keys their data."""
    tag = re.fullmatch(r"key<(\w+)>", leaf.dtype)
    if tag is None:
        return leaf
    try:
        kind = jax.random.key(0, impl=_IMPLEMENTATIONS.get(tag[1], tag[1])).dtype
    except ValueError:
        raise ValueError(f"{where} is damaged: there are no keys of the kind {leaf.dtype!r}") from None
    data = key_data(jax.ShapeDtypeStruct(leaf.shape, kind))
    return Leaf(data.shape, str(data.dtype))


def _sum(array: np.ndarray) -> str:
    return add_up([{"": array_sum(array)}])[""]


def _reader(arrays: dict[str, Any]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    def read(leaves: dict[str, Any]) -> dict[str, Any]:
        return {
            path: np.array(arrays[path]) if isinstance(target, np.ndarray) else _put(arrays[path], target.sharding)
            for path, target in abstract_leaves(leaves).items()
        }

    return read


def _put(array: np.ndarray, sharding: Any) -> jax.Array:
    return jax.device_put(np.array(array), sharding)  # a copy: JAX may take over memory that it finds aligned


def _in_checkpoints(path: Path, step: int | None, best: bool, who: str, averaged: bool) -> StoredModel:
    directory = path / "checkpoints" if (path / "checkpoints").is_dir() else path
    if not directory.is_dir():
        raise FileNotFoundError(f"{who}: there is no file and no directory {path}; {GIVE}")
    with Checkpoints(directory, read_only=True) as checkpoints:
        step, description = checkpoints.describe_step(step)
    if best:
        step, description = _best(directory, description.best, who)
    state_leaves = description.leaves.items()
    leaves = {p.removeprefix(_MODEL): leaf for p, leaf in state_leaves if _is_of_model(p)}
    where = f"step {step} in {directory}"
    model = description.model or ModelDescription(None, "the state that was saved has no field `model`")

    averages = _averages(description.leaves) if averaged else {}
    if averaged and not averages:
        raise ValueError(f"{who}: the optimiser of {where} kept no average of the parameters (with_average does)")

    def read(like: dict[str, Any]) -> dict[str, Any]:
        wanted = {_MODEL + path: leaf for path, leaf in like.items() if path not in averages}
        for path, (stored, dtype) in averages.items():
            if path in like:
                sharding = getattr(like[path], "sharding", None)
                wanted[stored] = jax.ShapeDtypeStruct(like[path].shape, dtype, sharding=sharding)
        arrays = read_arrays(directory / str(step), wanted, description.leaves)
        found = {p.removeprefix(_MODEL): array for p, array in arrays.items() if _is_of_model(p)}
        return found | {
            path: arrays[stored].astype(like[path].dtype)
            for path, (stored, _) in averages.items()
            if path in like and stored in arrays
        }

    return StoredModel(where, model, leaves, read)


def _is_of_model(path: str) -> bool:
    return path.startswith(_MODEL) and path[len(_MODEL) :][:1] in ("", ".", "[")


def _averages(leaves: dict[str, Leaf]) -> dict[str, tuple[str, Any]]:
    """Where the averages of `with_average` are, by the paths of their parameters, and their dtypes."""
    paths = [path.removeprefix(_MODEL) for path in leaves if _is_of_model(path)]
    ends = {path: [p for p in leaves if p.startswith(".opt_state") and p.endswith(".average" + path)] for path in paths}
    return {path: (found[0], jnp.dtype(leaves[found[0]].dtype)) for path, found in ends.items() if found}


def _best(directory: Path, kept_by: tuple[str | None, str], who: str) -> tuple[int, Description]:
    metric, mode = kept_by
    if metric is None:
        raise ValueError(f"{who}: the checkpoints in {directory} were kept by no metric, so none is the best")
    with Checkpoints(directory, best=metric, best_mode=mode, read_only=True) as checkpoints:
        if checkpoints.best_step is None:
            raise FileNotFoundError(f"{who}: no checkpoint in {directory} has the metric {metric!r}")
        return checkpoints.describe_step(checkpoints.best_step)
