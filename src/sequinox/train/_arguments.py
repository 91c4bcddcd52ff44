"""Checks of arguments that several parts share."""

from typing import Any

import numpy as np


def check_integer(name: str, argument: str, value: Any, least: int) -> int:
    """`value` as an int of at least `least`, or an error in the name of `name`."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name}: {argument} must be an integer, got {value!r}.")
    if value < least:
        raise ValueError(f"{name}: {argument} must be at least {least}, got {value}.")
    return int(value)
