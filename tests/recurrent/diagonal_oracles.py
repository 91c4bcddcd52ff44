"""Linear recurrences as plain NumPy loops in double precision. Nothing here uses sequinox or JAX."""

from collections.abc import Callable
from typing import Any

import numpy as np

ROWS, TIME = 5, 23
_t = np.arange(TIME)
GAPS = np.stack([_t < TIME, _t < 9, _t >= 14, _t % 3 != 1, _t < 0])
PACKED = np.stack([_t == 11, _t % 4 == 0, _t < 0, _t % 5 == 2, _t == 3])
FLAGS = {"whole": (None, None), "gaps": (GAPS, None), "packed": (None, PACKED), "packed-with-gaps": (GAPS, PACKED)}


def unroll(step: Callable, xs: Any, state: Any, mask: Any = None, resets: Any = None) -> tuple[Any, Any]:
    """Outputs (zeros at masked steps) and last states of `y, h = step(x, h)`, row by row."""
    rows, n_time = xs.shape[:2]
    mask = np.ones((rows, n_time), bool) if mask is None else mask
    resets = np.zeros((rows, n_time), bool) if resets is None else resets
    ys, last = [], []
    for i in range(rows):
        h = state[i]
        for t in range(n_time):
            y, new = step(xs[i, t], np.zeros_like(h) if resets[i, t] else h)
            h = new if mask[i, t] else h
            ys.append(y if mask[i, t] else np.zeros_like(y))
        last.append(h)
    return np.stack(ys).reshape(rows, n_time, -1), np.stack(last)


def slope(value: Callable, arrays: dict[str, Any], name: str, direction: Any) -> float:
    """The derivative of a number along a direction in one of the arrays, by central differences."""
    moved = lambda e: value(arrays | {name: arrays[name] + e * direction})
    return (moved(1e-5) - moved(-1e-5)) / 2e-5


def check_gradients(value: Callable, arrays: dict[str, Any], gradients: dict[str, Any], tolerance: float) -> None:
    """Compares gradients with differences, along two directions in every array."""
    assert arrays.keys() == gradients.keys()
    random = np.random.default_rng(11)
    for name, gradient in gradients.items():
        for _ in range(2):
            direction = random.normal(size=np.shape(arrays[name]))
            expected = slope(value, arrays, name, direction)
            got = float(np.sum(np.asarray(gradient, np.float64) * direction))
            assert abs(got - expected) <= tolerance * max(1, abs(expected)), f"{name}: {got} against {expected}"
