"""Files of models and checkpoints, changed by somebody who also writes the checksums anew."""

import contextlib
import json
import os
import shutil
from pathlib import Path

import numpy as np
import safetensors
import safetensors.numpy

from sequinox.train.checkpoints._checksum import add_up, array_sum
from sequinox.train.checkpoints._form import seal


def read_file(path):
    """The description in a `.safetensors` file."""
    with safetensors.safe_open(path, framework="np") as file:
        return json.loads(file.metadata()["sequinox"])


def write_file(path, description, arrays):
    safetensors.numpy.save_file(dict(arrays), path, {"sequinox": json.dumps(description)})


def change_file(path, change, arrays=None, checksum=True):
    """Applies `change` to the description; `arrays` go in the place of those there, with their sums."""
    description = read_file(path)
    change(description)
    for name, array in (arrays or {}).items():
        leaf = {"shape": list(array.shape), "dtype": str(array.dtype), "sum": sum_of(array)}
        description["leaves"][name if name.startswith(("[", ".")) else f".{name}"] = leaf
    arrays = safetensors.numpy.load_file(path) if arrays is None else arrays
    write_file(path, sealed(description) if checksum else description, arrays)


def model_file(path, structure):
    """A file of a model without arrays."""
    write_file(path, seal({"leaves": {}, "structure": structure}), {})


def change_checkpoint(directory, change, checksum=True):
    """Applies `change` to the description of one checkpoint; what it gives back, if anything, is put in its place."""
    path = Path(directory) / "_CHECKPOINT_METADATA"
    whole = json.loads(path.read_text())
    changed = change(whole["custom_metadata"])
    description = whole["custom_metadata"] if changed is None else changed
    whole["custom_metadata"] = sealed(description) if checksum and isinstance(description, dict) else description
    path.write_text(json.dumps(whole))


def sealed(description):
    return seal({key: value for key, value in description.items() if key != "checksum"})


def sum_of(array):
    return add_up([{"": array_sum(np.asarray(array))}])[""]


def copy_what_is_there(source, target):
    """`copytree` that does not mind a file vanishing under it."""
    target.mkdir(parents=True)
    for directory, _, names in os.walk(source):
        to = target / Path(directory).relative_to(source)
        to.mkdir(exist_ok=True)
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                shutil.copyfile(Path(directory) / name, to / name)
