"""Comparisons that say what differs, where, and by how much."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

TOLERANCES = {"float16": 2e-2, "bfloat16": 1e-1, "float32": 1e-5, "float64": 1e-12}


class Comparisons:
    """What compares the runs of a layer."""

    name: str
    tolerance: float | None

    def close(self, got: Any, expected: Any, case: str, *, tolerance: float | None = None) -> None:
        """Asserts that two trees agree within the tolerance, which is relative to the largest number of an array."""

        def check(what: str, a: np.ndarray, b: np.ndarray, dtype: str) -> None:
            given = [t for t in (tolerance, self.tolerance, TOLERANCES.get(dtype, 0.0)) if t is not None]
            limit = given[0] * max(1.0, np.abs(b).max(initial=0.0)) if np.isfinite(b).all() else 0.0
            wrong = ~(np.abs(a - b) <= limit) & ~(np.isnan(a) & np.isnan(b))
            self._no(wrong, a, b, f"{case}: {what}", f"tolerance {limit:.2g}")

        self._compare(got, expected, case, check)

    def identical(self, got: Any, expected: Any, case: str, *, rows: Any = None) -> None:
        """Asserts that two trees are the same to the last bit, in the given rows (a boolean array) or altogether."""

        def check(what: str, a: np.ndarray, b: np.ndarray, dtype: str) -> None:
            if rows is not None:
                a, b = a[rows], b[rows]
            self._no(~((a == b) | (np.isnan(a) & np.isnan(b))), a, b, f"{case}: {what}", "exactly")

        self._compare(got, expected, case, check)

    def zero(self, got: Any, case: str, *, where: Any = None) -> None:
        """Asserts that every number of a tree is exactly zero, where `where` (of its leading axes) is True."""
        for path, leaf in jax.tree_util.tree_leaves_with_path(got):
            a = np.asarray(leaf, np.float64) if where is None else np.asarray(leaf, np.float64)[where]
            self._no(~(a == 0), a, np.zeros_like(a), f"{case}{jax.tree_util.keystr(path)}", "exactly")

    def finite(self, got: Any, case: str) -> None:
        """Asserts that a tree has no NaN and no infinity."""
        for path, leaf in jax.tree_util.tree_leaves_with_path(got):
            if not np.isfinite(np.asarray(leaf, np.float64)).all():
                self.fail(f"{case}: {jax.tree_util.keystr(path).lstrip('.')} holds NaN or infinity")

    def fail(self, message: str) -> None:
        """Raises the error of a broken promise."""
        raise AssertionError(f"{self.name}: {message}")

    def same_shapes(self, got: PyTree, expected: PyTree, case: str) -> None:
        """Asserts that two trees have the same structure, shapes and dtypes."""
        if jax.tree.structure(got) != jax.tree.structure(expected):
            self.fail(f"{case}: the structure is {jax.tree.structure(got)}, not {jax.tree.structure(expected)}")
        for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(got), jax.tree.leaves(expected), strict=True):
            if (a.shape, a.dtype) != (b.shape, b.dtype):
                name = jax.tree_util.keystr(path)
                self.fail(f"{case}{name}: expected {b.dtype}{list(b.shape)}, got {a.dtype}{list(a.shape)}")

    def _compare(self, got: Any, expected: Any, case: str, check: Callable) -> None:
        self.same_shapes(got, expected, case)
        for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(got), jax.tree.leaves(expected), strict=True):
            what = jax.tree_util.keystr(path).lstrip(".") or "value"
            check(what, np.asarray(a, np.float64), np.asarray(b, np.float64), str(a.dtype))

    def _no(self, wrong: Any, got: np.ndarray, expected: np.ndarray, where: str, how: str) -> None:
        wrong = np.asarray(wrong)
        if wrong.any():
            place = tuple(int(i) for i in np.argwhere(wrong)[0])
            self.fail(
                f"{where}: {int(wrong.sum())} of {wrong.size} numbers differ, "
                f"at {place} expected {expected[place]:.9g}, got {got[place]:.9g} ({how})"
            )
