"""A sum and its count: what every loss and metric returns."""

from typing import Any, NamedTuple, SupportsIndex

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer


class Total(NamedTuple):
    """A sum and the number of entries in it. `+` merges two, `.mean` divides at the very end.

    `sum(totals, Total(0, 0))` merges any number of them. Outside of `jit` they are merged on the host, in float64 and
    64-bit integers: in float32 a sum of ones stands still at 16,777,216.

    Attributes:
        total: the sum, `()`; under `jax.vmap` one for each row.
        count: how many entries it sums, of the same shape. Where classes have weights, the sum of these.

    ??? example

        ```python
        >>> from sequinox.train import Total
        >>> part, rest = Total(6.0, 3), Total(2.0, 1)
        >>> (part + rest).mean, sum([part, rest], Total(0, 0)).count
        (2.0, 4)

        ```
    """

    total: Any
    count: Any

    @property
    def mean(self) -> Any:
        """`total / count`; 0, with gradient 0, where the count is 0."""
        if isinstance(self.total, (int, float)) and isinstance(self.count, (int, float)):
            return self.total / self.count if self.count else 0.0
        if isinstance(self.total, np.ndarray) and isinstance(self.count, np.ndarray):
            return np.divide(self.total, self.count, out=np.zeros(self.total.shape), where=self.count != 0)
        total = jnp.asarray(self.total)
        empty = jnp.asarray(self.count) == 0
        # Both branches must be finite, or the unused one's gradient is NaN.
        divisor = jnp.where(empty, 1, self.count).astype(total.dtype)
        return jnp.where(empty, 0, jnp.where(empty, 0, total) / divisor)

    # A tuple's `+` would concatenate; adding two totals is the only sense here.
    def __add__(self, other: Any) -> "Total":  # pyright: ignore[reportIncompatibleMethodOverride]
        if not isinstance(other, Total):
            return NotImplemented
        parts = jax.tree.map(_on_host, (tuple(self), tuple(other)))
        if all(part is not None for part in jax.tree.leaves(parts, is_leaf=lambda part: part is None)):
            (total, count), (other_total, other_count) = parts
            return Total(total + other_total, count + other_count)
        return Total(self.total + other.total, self.count + other.count)

    def __radd__(self, other: Any) -> "Total":
        return self if isinstance(other, int) and other == 0 else NotImplemented  # sum() starts at 0

    def __mul__(self, other: SupportsIndex) -> "Total":  # pyright: ignore[reportIncompatibleMethodOverride]
        return NotImplemented

    __rmul__ = __mul__  # pyright: ignore[reportAssignmentType]


def _on_host(value: Any) -> Any:
    """A number in 64 bits; an array of them as NumPy's; None while tracing."""
    if isinstance(value, Tracer):
        return None
    array = np.asarray(value)
    wide = array.astype(np.int64 if np.issubdtype(array.dtype, np.integer) else np.float64)
    return wide if wide.ndim else wide.item()
