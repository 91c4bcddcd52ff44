"""A new model that starts with the weights of an old one, every array accounted for."""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from ._leaves import abstract_leaves, describe_leaves, fill_leaves, is_key, stored_leaves
from ._stored_model import find_model, inner_path, public_name

_Model = TypeVar("_Model")


def warm_start(
    model: _Model,
    source: PyTree | str | os.PathLike[str],
    *,
    fresh: Sequence[str] = (),
    unused: Sequence[str] = (),
    renamed: Mapping[str, str] | None = None,
) -> _Model:
    """A model with the arrays of another, but for what is said to be fresh.

    Arrays are taken by their paths (`layers[0].W_z`, as `sequinox.parameters` shows them), and each must have its
    partner of the same shape and dtype. What is to be left out is said by the beginnings of paths: `"layers[2]"` is the
    whole of that layer. Nothing is skipped in silence, and nothing is cast.

    Arguments:
        model: the new model, freshly built.
        source: a model (or any PyTree), the `out_dir` of a run, a directory of checkpoints, or a `.safetensors` file.
            Of a run it is the last checkpoint; for another, pass `load_model(..., best=True)`.
        fresh: a list of parts of `model` that stay as they are.
        unused: a list of parts of the source that are not taken.
        renamed: a dictionary from parts of the source to the paths in `model` that they go to; the longest part counts.

    Returns:
        `model` with its arrays replaced; they are placed where its own were.

    Raises:
        ValueError: arrays without a partner on either side, of another shape or dtype, or a part that matches
            nothing; all are listed.
        FileNotFoundError: there is no such file, directory or checkpoint.
        OSError: the files are damaged: they cannot be read, or a checksum is wrong.

    ??? example

        ```python
        >>> import jax, sequinox as sqx
        >>> old = sqx.recurrent_net(3, 4, 2, jax.random.key(0), cell="gru")
        >>> new = sqx.recurrent_net(3, 4, 7, jax.random.key(1), cell="gru")  # other classes
        >>> new = sqx.train.warm_start(new, old, fresh=["layers[2]"], unused=["layers[2]"])
        >>> bool((new.layers[0].W_z == old.layers[0].W_z).all()), new.layers[2].W.shape
        (True, (7, 4))

        ```
    """
    fresh, unused = _parts(fresh, "fresh"), _parts(unused, "unused")
    if renamed is not None and not isinstance(renamed, Mapping):
        raise ValueError(f"warm_start: renamed must be a dictionary of old and new paths, got {renamed!r}")
    renamed = renamed or {}
    renames = dict(zip(_parts(list(renamed), "renamed"), _parts(list(renamed.values()), "renamed"), strict=True))
    if isinstance(source, (str, os.PathLike)):
        stored = find_model(Path(source), None, False, "warm_start")
        described, read = stored.leaves, stored.read
    else:
        given = stored_leaves(source, "source")
        described, read = describe_leaves(given), lambda like: _place(given, like)

    leaves = stored_leaves(model, "model")
    wanted = describe_leaves(leaves)
    lines = [f"fresh: nothing in the model begins with {part!r}" for part in fresh if not _any(wanted, part)]
    for name, parts in (("unused", unused), ("renamed", renames)):
        lines += [f"{name}: nothing in the source begins with {part!r}" for part in parts if not _any(described, part)]
    kept = {path: leaf for path, leaf in leaves.items() if not _under(path, fresh)}

    sources: dict[str, str] = {}  # of each array of the model, its path in the source
    for path in described:
        if _under(path, unused):
            continue
        target = _rename(path, renames)
        name = public_name(path) if target == path else f"{public_name(path)} (as {public_name(target)})"
        if target in sources:
            lines.append(f"{name}: goes to the same place as {public_name(sources[target])}")
        elif target in wanted and target not in kept:
            lines.append(f"{name}: in the source, but fresh in the model; if it is to be left out, say so in unused")
        elif target not in wanted:
            lines.append(f"{name}: in the source, but not in the model")
        else:
            sources[target] = path
            for what in ("shape", "dtype"):
                was, is_ = getattr(described[path], what), getattr(wanted[target], what)
                if was != is_:
                    lines.append(f"{name}: {what} {was} in the source, {is_} in the model")
    lines += [f"{public_name(path)}: missing in the source" for path in kept if path not in sources]
    if lines:
        raise ValueError("warm_start: the source does not fit the model:\n  " + "\n  ".join(sorted(lines)))
    found = read({sources[path]: leaf for path, leaf in kept.items() if leaf.size})
    arrays = {path: jax.random.key_data(leaf) if is_key(leaf) else leaf for path, leaf in leaves.items() if leaf.size}
    return fill_leaves(model, arrays | {path: found[sources[path]] for path, leaf in kept.items() if leaf.size})


def _parts(parts: Any, name: str) -> list[str]:
    if isinstance(parts, str) or not isinstance(parts, Sequence) or not all(isinstance(p, str) and p for p in parts):
        raise ValueError(f"warm_start: {name} must be a list of paths such as 'layers[0].W', got {parts!r}")
    return [inner_path(part) for part in parts]


def _begins(path: str, part: str) -> bool:
    return path.startswith(part) and path[len(part) :][:1] in ("", ".", "[")


def _under(path: str, parts: Iterable[str]) -> bool:
    return any(_begins(path, part) for part in parts)


def _any(paths: Iterable[str], part: str) -> bool:
    return any(_begins(path, part) for path in paths)


def _rename(path: str, renames: Mapping[str, str]) -> str:
    matching = [old for old in renames if _begins(path, old)]
    if not matching:
        return path
    old = max(matching, key=len)
    return renames[old] + path[len(old) :]


def _place(arrays: dict[str, Any], like: dict[str, Any]) -> dict[str, Any]:
    """Copies of arrays where those of `like` are; typed keys as their data."""
    placed = {}
    for path, target in abstract_leaves(like).items():
        array = jax.random.key_data(arrays[path]) if is_key(arrays[path]) else arrays[path]
        if isinstance(target, np.ndarray):
            placed[path] = np.array(array)
        else:
            placed[path] = jax.device_put(jnp.array(array, copy=True), target.sharding)
    return placed
