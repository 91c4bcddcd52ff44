"""The files of one checkpoint as Orbax lays them out: whether they are all there, and the arrays in them."""

import contextlib
import shutil
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from orbax.checkpoint import v1 as ocp

from ._checksum import add_up, own_sums
from ._form import Leaf
from ._leaves import abstract_leaves
from ._processes import gather_json
from ._quiet import collecting, raises_errors_of

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
    """Removes directories as far as that goes; threads beside one that failed may write into them for a moment."""
    for path in list(directories):
        for _ in range(10):
            shutil.rmtree(path, ignore_errors=True)
            if not path.exists():
                break
            time.sleep(0.05)


def first_unreadable(directory: Path) -> Path:
    """The checkpoint in a directory that Orbax stumbles over; the directory where none is found."""
    for path in sorted(path for path in directory.iterdir() if path.name.isdecimal() and is_complete(path)):
        try:
            ocp.checkpointables_metadata(str(path))
        except Exception:
            return path
    return directory


@contextlib.contextmanager
def readable(path: Path) -> Iterator[None]:
    """What Orbax stumbles over in a checkpoint, or in a directory of them, is an error that says where."""
    try:
        yield
    except FileNotFoundError:
        raise
    except Exception as error:
        found = first_unreadable(path) if path.is_dir() and not is_complete(path) else path
        raise OSError(f"Checkpoints: {found} cannot be read: {error}") from error


def read_arrays(path: Path, leaves: dict[str, Any], described: dict[str, Leaf]) -> dict[str, Any]:
    """Some arrays of one checkpoint by their paths, as and where those of `leaves` are, and as they were described.

    Raises:
        OSError: the files are damaged: they cannot be read, or are not what was saved.
    """
    wanted = abstract_leaves(leaves)
    if not wanted:
        return {}
    raises_errors_of(path)
    arrays: Any = {}
    with collecting() as failed:
        stored: Any = ocp.checkpointables_metadata(str(path.absolute())).metadata[ARRAYS]
        if not stored:  # damaged, and so are the arrays: Orbax would leave many reads unfinished
            raise OSError("their metadata are damaged")
        _check_stored(stored, wanted)
        context = ocp.Context()
        context.pytree.loading.partial_load = True
        with context:
            arrays = ocp.load_checkpointables(str(path.absolute()), {ARRAYS: wanted})[ARRAYS]
    if failed:
        reason = str(failed[0].__cause__ or failed[0])
        for pages in (" [tensorstore_spec", " See full TensorStore details"):  # of settings
            reason = reason.partition(pages)[0]
        raise OSError(f"Checkpoints: the arrays of {path} cannot be read: {reason}")
    sums = add_up(gather_json(own_sums({name: arrays[name] for name in wanted})))
    changed = [name for name in wanted if sums[name] != described[name].sum]
    if changed:
        raise OSError(
            f"Checkpoints: the arrays of {path} are damaged, or of another checkpoint; their checksums are wrong:\n  "
            + "\n  ".join(changed)
        )
    return arrays


def _check_stored(stored: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Orbax would cast, without a word."""
    for name in wanted.keys() & stored.keys():
        for what in ("shape", "dtype"):
            was, is_ = getattr(stored[name], what), getattr(wanted[name], what)
            if was != is_:
                raise ValueError(f"{name} has {what} {was} there, and {is_} in its description")
