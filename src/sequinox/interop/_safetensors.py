"""Files of named arrays in the safetensors format."""

import importlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from .._files import write_atomically

_DTYPES = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "BF16": jnp.bfloat16,
    "I64": np.int64,
    "I32": np.int32,
    "I16": np.int16,
    "I8": np.int8,
    "U64": np.uint64,
    "U32": np.uint32,
    "U16": np.uint16,
    "U8": np.uint8,
    "BOOL": np.bool_,
}


def read(path: str | os.PathLike, who: str) -> dict[str, np.ndarray]:
    """The arrays of a file by their names.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is no safetensors file. Pickles are never read: unpickling runs code that is in the file.
    """
    path = Path(path)
    if path.suffix != ".safetensors":
        raise ValueError(
            f"{who}: the file must be a .safetensors file, got {path.name!r}. PyTorch's own files (.pt, .pth, .bin) "
            f"are pickles, which run code as they are read. In PyTorch, convert one that you trust: "
            f"safetensors.torch.save_file(module.state_dict(), {path.with_suffix('.safetensors').name!r})"
        )
    if not path.is_file():
        raise FileNotFoundError(f"{who}: there is no file {path}")
    safetensors, content = _package("safetensors", who), path.read_bytes()
    try:
        parts = safetensors.deserialize(content)
    except safetensors.SafetensorError as error:
        raise ValueError(f"{who}: {path} is not a safetensors file: {error}") from None
    unknown = sorted({part["dtype"] for _, part in parts} - set(_DTYPES))
    if unknown:
        raise ValueError(f"{who}: {path} holds arrays of a dtype that cannot be read: {', '.join(unknown)}")
    return {
        name: np.frombuffer(part["data"], np.dtype(_DTYPES[part["dtype"]])).reshape(part["shape"])
        for name, part in parts
    }


def read_metadata(path: str | os.PathLike, who: str) -> dict[str, str]:
    """The texts in the header of a file that `read` can read."""
    with _package("safetensors", who).safe_open(path, framework="np") as file:
        return file.metadata() or {}


def holds(dtype: Any) -> bool:
    """Whether arrays of a dtype can be written and read again."""
    return np.dtype(dtype) in [np.dtype(known) for known in _DTYPES.values()]


def write(
    arrays: Mapping[str, np.ndarray],
    path: str | os.PathLike,
    who: str,
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Writes a file of named arrays, and texts in its header, whole or not at all."""
    path = Path(path)
    if path.suffix != ".safetensors":
        raise ValueError(f"{who}: the file's name must end in .safetensors, got {path.name!r}")
    header = {"format": "pt", **(metadata or {})}  # without "format", Hugging Face refuses the file
    write_atomically(path, _package("safetensors.numpy", who).save(dict(arrays), metadata=header))


def _package(name: str, who: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise ImportError(f'{who}: needs the package safetensors: pip install "sequinox[interop]"') from None
