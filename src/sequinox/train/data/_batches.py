"""Batches of arrays that lie in memory: one shape, an exact order, a position that can be saved."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.tree_util as jtu
import numpy as np
from jaxtyping import PyTree

from ..._checks import size
from ._order import EpochSource, epoch_order, shard_rows
from ._sequences import on_host


class Batch(NamedTuple):
    """Rows of a data set, always the same number.

    The last batch of an epoch is filled up with rows of zeros (False in a mask), marked in `real`: a whole
    epoch has one compiled shape. A loss leaves the filler out by `mask & real[:, None]`, or by `real` itself
    where there is one target for a row.

    Attributes:
        data: the PyTree given, each leaf `(batch_size, ...)`.
        real: `(batch_size,)` bool, False on filler.
    """

    data: PyTree
    real: PyTree


class Batches(EpochSource):
    """Endless shuffled batches over epochs, in grain's iterator protocol.

    The order is a pure function of `(seed, epoch)`, so a position is two numbers and restoring it is exact
    anywhere, an epoch's end included.

    ??? example

        ```python
        >>> import numpy as np, sequinox as sqx
        >>> batches = sqx.train.Batches({"x": np.arange(5)}, 2, seed=0, shuffle=False)
        >>> [next(batches).data["x"].tolist() for _ in range(4)]
        [[0, 1], [2, 3], [4, 0], [0, 1]]
        >>> batches.get_state()["epoch"], batches.get_state()["position"]
        (1, 1)

        ```
    """

    def __init__(
        self, arrays: PyTree, batch_size: int, *, seed: int, shuffle: bool = True, shard: tuple[int, int] = (0, 1)
    ):
        """Takes the arrays as they are, without a copy.

        Arguments:
            arrays: a PyTree of arrays with one leading axis (None is allowed beside them). They stay on the host.
            batch_size: rows in every batch, those of all processes together; it may exceed the number of rows.
            seed: of the shuffling, a non-negative integer. No default: an order nobody chose cannot be repeated.
            shuffle: a new order each epoch. Default: True, as sorted data make poor gradients.
            shard: `(index, count)`: process `index` of `count` yields its part of every batch, a contiguous
                `batch_size / count` rows. Default: `(0, 1)`, whole batches.

        Raises:
            TypeError: a leaf is not an array; `batch_size` or `seed` is not an integer; `shard` is not a pair of them.
            ValueError: no arrays, no rows, different leading axes; `batch_size < 1`, or not divisible by the number of
                processes; `seed < 0`.
        """
        self._arrays, self._n_rows = _check_arrays(arrays, "Batches")
        self._batch_size = size(batch_size, "Batches", "batch_size")
        super().__init__(seed, shuffle)
        self._part = shard_rows(self._batch_size, shard, "Batches")

    def _plan(self, epoch: int) -> np.ndarray:
        return epoch_order(self._n_rows, self._seed, epoch, self._shuffle)

    def _n_steps(self, plan: Any) -> int:
        return -(-self._n_rows // self._batch_size)

    def _make(self, plan: np.ndarray, position: int) -> Batch:
        start = position * self._batch_size
        rows = plan[start : start + self._batch_size][self._part]
        return _take(self._arrays, rows, self._part.stop - self._part.start)

    def _content(self) -> dict[str, list[np.ndarray]]:
        return {"arrays": jax.tree.leaves(self._arrays)}

    def _identity(self) -> dict[str, Any]:
        return {"n_rows": self._n_rows, "batch_size": self._batch_size}


def epoch_batches(arrays: PyTree, batch_size: int) -> Iterator[Batch]:
    """One pass in order, for evaluation; the last batch is filled up as in `Batches`.

    Arguments:
        arrays: a PyTree of arrays with one leading axis.
        batch_size: rows in every batch.

    Returns:
        An iterator of `Batch`. Wrong arguments are reported at the call, not at the first batch.

    Raises:
        TypeError: as `Batches`.
        ValueError: as `Batches`.

    ??? example

        ```python
        >>> import numpy as np, sequinox as sqx
        >>> [batch.real.tolist() for batch in sqx.train.epoch_batches(np.arange(3), 2)]
        [[True, True], [True, False]]

        ```
    """
    checked, n_rows = _check_arrays(arrays, "epoch_batches")
    n = size(batch_size, "epoch_batches", "batch_size")
    rows = np.arange(n_rows)
    return (_take(checked, rows[start : start + n], n) for start in range(0, n_rows, n))


def _check_arrays(arrays: PyTree, who: str) -> tuple[PyTree, int]:
    leaves = jtu.tree_leaves_with_path(arrays)
    if not leaves:
        raise ValueError(f"{who}: arrays holds no array")
    rows: dict[str, int] = {}
    for path, leaf in leaves:
        where = f"arrays{jtu.keystr(path)}"
        if on_host(leaf, who, where).ndim == 0:
            raise ValueError(f"{who}: {where} must have a leading axis of rows, got a 0-d array")
        rows[where] = leaf.shape[0]
    if len(set(rows.values())) > 1:
        raise ValueError(f"{who}: all arrays must have the same number of rows, got {rows}")
    n_rows = next(iter(rows.values()))
    if n_rows == 0:
        raise ValueError(f"{who}: arrays has no rows")
    return jax.tree.map(np.asarray, arrays), n_rows


def _take(arrays: PyTree, rows: np.ndarray, n: int) -> Batch:
    def take(array: np.ndarray) -> np.ndarray:
        out = np.zeros((n, *array.shape[1:]), array.dtype)
        out[: len(rows)] = array[rows]
        return out

    return Batch(jax.tree.map(take, arrays), np.arange(n) < len(rows))
