"""A trained model from a run or a file, without the script that made it."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar, overload

import jax
import numpy as np
from jaxtyping import PyTree

from ...interop import _safetensors
from ._checksum import add_up, array_sum
from ._describe import describe
from ._fields import check_by_constructors
from ._form import leaves_to_json, seal
from ._leaves import compare_leaves, describe_leaves, fill_leaves, is_key, stored_leaves
from ._rebuild import rebuild
from ._stored_model import find_model, public_name

# How often a checkpoint may be removed while it is read.
_TRIES = 20

_Model = TypeVar("_Model")


@overload
def load_model(
    path: str | os.PathLike[str], *, step: int | None = None, best: bool = False, averaged: bool = False, like: _Model
) -> _Model: ...
@overload
def load_model(
    path: str | os.PathLike[str],
    *,
    step: int | None = None,
    best: bool = False,
    averaged: bool = False,
    trust: Sequence[str] = (),
    like: None = None,
) -> Any: ...
def load_model(
    path: str | os.PathLike[str],
    *,
    step: int | None = None,
    best: bool = False,
    averaged: bool = False,
    trust: Sequence[str] = (),
    like: PyTree = None,
) -> Any:
    """The model of a run or of a file, rebuilt from its description: no script, no pickle.

    What a model may be made of is a fixed list: the layers of sequinox and of `equinox.nn`, functions of numbers of
    `jax.nn`, `jax.numpy` and `jax.lax`, and partials of these. Another name is an error that shows it, before anything
    is imported; `trust` allows it. Fields are compared with their annotations and with what the constructors of the
    fixed list make of them on shapes alone, sizes with the arrays, and the arrays with their checksums.

    The run may continue meanwhile: where a checkpoint is removed while it is read, the newer one is taken.

    Arguments:
        path: the `out_dir` of a run, a directory of `Checkpoints`, or a `.safetensors` file of `save_model`.
        step: which checkpoint. Default: the last.
        best: the best checkpoint instead, by the metric that they were kept by.
        averaged: the average of the parameters that the optimiser kept (`with_average`), instead of the last ones.
        trust: packages all of whose classes and functions may be named as well: a tuple of their names. A script's own
            are in `"__main__"`. A trusted package is imported, and the file then decides what of it is called with
            what, so trust is for files whose author you know. Default: none.
        like: a model of the same structure, to be filled instead of one rebuilt. It serves where the description has
            something that cannot be written down, such as a lambda; then nothing is named, and `trust` is not needed.

    Returns:
        The model. Its arrays are on the default device, or where those of `like` are.

    Raises:
        FileNotFoundError: there is no such file, directory or checkpoint.
        ValueError: the model cannot be rebuilt: a name that is not allowed or no longer there, a part that could not
            be described, fields or arrays that do not fit, a description of another form, no average. Or a wrong
            argument.
        OSError: the files are damaged: they cannot be read, or a checksum is wrong.
        ImportError: for a file, without the package safetensors, which the extra `sequinox[interop]` brings.

    ??? example

        ```python
        >>> import tempfile, jax, sequinox as sqx
        >>> from sequinox.train import Checkpoints, load_model, init_train_state
        >>> import optax
        >>> state = init_train_state(sqx.GRU(3, 4, jax.random.key(0)), optax.sgd(0.1), jax.random.key(1))
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     with Checkpoints(directory) as checkpoints:
        ...         checkpoints.save(state, 1)
        ...     type(load_model(directory)).__name__
        'GRU'

        ```
    """
    for _ in range(_TRIES):  # a run that continues removes old checkpoints, also while they are read
        seen = _latest(Path(path))
        try:
            return _load(Path(path), step, best, averaged, trust, like)
        except (OSError, ValueError):
            if step is not None or _latest(Path(path)) == seen:
                raise
    return _load(Path(path), step, best, averaged, trust, like)


def _latest(path: Path) -> list[str]:
    """The names of what is in a directory of checkpoints now."""
    directory = path / "checkpoints" if (path / "checkpoints").is_dir() else path
    return sorted(entry.name for entry in directory.iterdir()) if directory.is_dir() else []


def _load(path: Path, step: int | None, best: bool, averaged: bool, trust: Sequence[str], like: PyTree) -> Any:
    if not isinstance(trust, tuple | list) or not all(isinstance(name, str) for name in trust):
        raise ValueError(f"load_model: trust must be a tuple of names of packages, got {trust!r}")
    stored = find_model(path, step, best, "load_model", averaged=averaged)
    model = like
    if model is None:
        if stored.description.undescribed is not None:
            raise ValueError(
                f"load_model: the model of {stored.where} cannot be rebuilt: {stored.description.undescribed}. "
                "Build one of the same structure and pass it: load_model(path, like=model)"
            )
        model = rebuild(stored.description.structure, _blank, tuple(trust), f"load_model: {stored.where}")
    leaves = stored_leaves(model, "like")
    mismatches = compare_leaves(stored.leaves, describe_leaves(leaves))
    if mismatches:
        raise ValueError(f"load_model: {stored.where} does not fit the model:\n  " + "\n  ".join(mismatches))
    return fill_leaves(model, stored.read(leaves))


def save_model(model: PyTree, path: str | os.PathLike[str]) -> None:
    """Writes a model to one `.safetensors` file: its arrays by their paths, its description in the header.

    `load_model` reads it; so does every other reader of such files, which finds the weights under the names of
    `sequinox.parameters` (`layers[0].W_z`). Each array's checksum is in the header, so that what other programs
    change is noticed. A kill leaves the old file or the new.

    Arguments:
        model: any PyTree whose parts have names: classes and functions at the top of a module.
        path: of the file, ending in `.safetensors`. Its directory must be there.

    Raises:
        TypeError: a path in the place of the model.
        ValueError: for another ending, or a part that cannot be described or stored, or a field that does not fit its
            annotation, with its path.
        ImportError: without the package safetensors, which the extra `sequinox[interop]` brings.

    ??? example

        ```python
        >>> import tempfile, jax, sequinox as sqx
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     sqx.train.save_model(sqx.GRU(3, 4, jax.random.key(0)), f"{directory}/gru.safetensors")
        ...     model = sqx.train.load_model(f"{directory}/gru.safetensors")
        >>> model.n_hidden
        4

        ```
    """
    if isinstance(model, (str, os.PathLike)):
        raise TypeError(f"save_model: give the model first, then the path: save_model(model, {os.fspath(model)!r})")
    try:
        structure = describe(model)
        check_by_constructors(model)
    except ValueError as error:
        raise ValueError(f"save_model: {error}") from None
    arrays, sums = {}, {}
    leaves = stored_leaves(model, "save_model: model")
    for path_in, leaf in leaves.items():
        array = np.asarray(jax.random.key_data(leaf) if is_key(leaf) else leaf)
        if not _safetensors.holds(array.dtype):
            raise ValueError(
                f"save_model: {public_name(path_in)} has dtype {array.dtype}, which a .safetensors file cannot hold"
            )
        arrays[public_name(path_in)] = np.ascontiguousarray(array).reshape(array.shape)
        if array.size:
            sums[path_in] = array_sum(array)
    described = describe_leaves(leaves, add_up([sums]))
    content = seal({"leaves": leaves_to_json(described), "structure": structure})
    _safetensors.write(arrays, path, "save_model", {"sequinox": json.dumps(content)})


def _blank(kind: str, shape: tuple[int, ...], dtype: Any) -> Any:
    """What takes an array's place until it is read."""
    if kind == "numpy":
        return np.broadcast_to(np.zeros((), dtype), shape)
    if kind == "key":
        try:
            return jax.ShapeDtypeStruct(shape, jax.random.key(0, impl=dtype).dtype)
        except ValueError:
            raise ValueError(
                f"load_model: the model has PRNG keys of the implementation {dtype!r}, which JAX does not know here"
            ) from None
    if jax.dtypes.canonicalize_dtype(dtype) != dtype:
        raise ValueError(
            f"load_model: the model has an array of {dtype}, which needs JAX's 64-bit mode: "
            'jax.config.update("jax_enable_x64", True)'
        )
    return jax.ShapeDtypeStruct(shape, dtype)
