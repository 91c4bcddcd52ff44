"""The files of one checkpoint as Orbax lays them out: whether they are all there, and the arrays in them."""

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from orbax.checkpoint import v1 as ocp

from ._leaves import abstract_leaves

ARRAYS = "arrays"
"""The name of the PyTree in a checkpoint."""

MARK = "sequinox checkpoint format"
"""In every checkpoint, as Orbax refuses to save no arrays at all (those without elements are only described)."""

# A directory whose removal was cut short still has its name, but lacks one of these.
_NEEDED = ("_CHECKPOINT_METADATA", f"{ARRAYS}/_METADATA", f"{ARRAYS}/manifest.ocdbt")


def is_complete(path: Path) -> bool:
    """Whether a directory is a checkpoint, and not what is left of one."""
    return all((path / name).exists() for name in _NEEDED)


def remove_incomplete(directory: Path) -> None:
    """Removes what is left of checkpoints whose removal was cut short."""
    remove(path for path in directory.iterdir() if path.name.isdecimal() and path.is_dir() and not is_complete(path))


def remove(directories: Iterable[Path]) -> None:
    """Removes directories as far as that goes."""
    for path in list(directories):
        shutil.rmtree(path, ignore_errors=True)


def read_arrays(path: Path, leaves: dict[str, Any]) -> dict[str, Any]:
    """Some arrays of one checkpoint by their paths, as and where those of `leaves` are.

    Raises:
        OSError: the files are damaged.
    """
    wanted = {ARRAYS: {**abstract_leaves(leaves), MARK: np.zeros(1, np.int32)}}
    context = ocp.Context()
    context.pytree.loading.partial_load = True
    try:
        with context:
            return ocp.load_checkpointables(str(path.absolute()), wanted)[ARRAYS]
    except Exception as error:
        reason = str(error.__cause__ or error).partition(" [tensorstore_spec")[0]  # followed by pages of settings
        raise OSError(f"Checkpoints: the arrays of {path} cannot be read: {reason}") from error
