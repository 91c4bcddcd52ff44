"""What a package shows of itself: its public names, each of them once."""

import contextlib
import sys
import types
from collections.abc import Iterable
from typing import Any

from jax import export


def close_room(name: str, later: Iterable[str] = ()) -> None:
    """Ends the `__init__.py` of a public package: `__all__` and `dir()` are its public names, and nothing else.

    Its named tuples, among which are all states, are made known to `jax.export`, so that an exported step may be
    written to a file.

    Arguments:
        name: of the package, its `__name__`.
        later: names that are not there yet, but found when asked for.
    """
    room: Any = sys.modules[name]
    there = [n for n, value in vars(room).items() if not n.startswith("_") and not isinstance(value, types.ModuleType)]
    names = sorted({*there, *later})
    room.__all__, room.__dir__ = names, lambda: list(names)
    for each in there:
        kind = getattr(room, each)
        if isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields"):
            with contextlib.suppress(ValueError):  # it is known already, from another room or before a reload
                export.register_namedtuple_serialization(kind, serialized_name=f"sequinox.{kind.__name__}")
