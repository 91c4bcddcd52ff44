"""Where arrays live when several devices, or several processes, train one model."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import PyTree

from ..._checks import size
from ..data._axes import check_axes, kinds_of
from ._state import TrainState

Rule = Callable[[str, tuple[int, ...]], PartitionSpec | None]


class DataParallel:
    """Data parallel training over the devices of a mesh: every device has its rows of a batch.

    XLA divides the work: the training step is the same program as on one device, and its numbers are those of one
    device up to the order of sums, dropout included. Parameters and the optimiser's state are copied to every device,
    or divided among them by a rule. In several processes (`jax.distributed`) the mesh spans them all, and each feeds
    its rows of the batch.

    ??? example

        ```python
        >>> import jax
        >>> from sequinox.train import DataParallel
        >>> everywhere = DataParallel()  # all devices there are
        >>> everywhere.n_devices == len(jax.devices())
        True

        ```
    """

    def __init__(
        self,
        mesh: Mesh | None = None,
        *,
        axis: str | None = None,
        rule: Rule | None = None,
        batch_axes: PyTree = None,
    ):
        """
        Arguments:
            mesh: a `jax.sharding.Mesh`. Default: all devices of all processes, on one axis `"data"`.
            axis: the mesh's axis over which rows are divided. Default: its first.
            rule: `rule(path, shape)` returns the `PartitionSpec` of an array of the model or of the optimiser's state,
                or None for a copy on every device. Paths are those of checkpoints, such as `.model.layers[0].W_z`.
                Default: copies. See [`shard_largest_axis`][sequinox.train.shard_largest_axis].
            batch_axes: which arrays of a batch have rows, as `axes` of [`accumulate`][sequinox.train.accumulate].
                Default: rows are the first axis of every array that has one.

        Raises:
            TypeError: `mesh` is not a mesh, `rule` not a function, `batch_axes` holds something else than strings.
            ValueError: the mesh has no such axis, or `batch_axes` holds another string than names of axes.
        """
        if mesh is None:
            mesh = Mesh(np.asarray(jax.devices()), ("data",))
        if not isinstance(mesh, Mesh):
            raise TypeError(f"DataParallel: mesh must be a jax.sharding.Mesh, got {type(mesh).__name__}")
        if rule is not None and not callable(rule):
            raise TypeError(f"DataParallel: rule must be a function (path, shape), got {type(rule).__name__}")
        axis = mesh.axis_names[0] if axis is None else axis
        if axis not in mesh.axis_names:
            raise ValueError(f"DataParallel: axis must be one of the mesh's axes {mesh.axis_names}, got {axis!r}")
        # XLA is to divide the work by itself; `jax.make_mesh` gives axes on which every program states its own.
        self.mesh = Mesh(mesh.devices, mesh.axis_names)
        self._axis, self._rule = axis, rule
        self._batch_axes = check_axes("DataParallel", batch_axes, "batch_axes")
        local = [device for device in self.mesh.devices.flat if device.process_index == jax.process_index()]
        if not local:
            raise ValueError("DataParallel: mesh holds no device of this process")
        self._spans_processes = len(local) < self.mesh.devices.size

    @property
    def n_devices(self) -> int:
        """Into how many parts a batch is divided."""
        return self.mesh.shape[self._axis]

    def shardings(self, state: TrainState) -> TrainState:
        """Where each array of a state belongs: a `NamedSharding` in the place of every array.

        Arguments:
            state: a `TrainState`.

        Returns:
            The same tree. What is carried is divided by rows; the key and the step are everywhere.

        Raises:
            ValueError: the rule's `PartitionSpec` does not fit an array.
        """

        def place(path: Any, leaf: Any) -> Any:
            if not eqx.is_array(leaf):
                return leaf
            where: str = jtu.keystr(path)
            spec: Any = None
            if where.startswith(".carry"):
                spec = PartitionSpec(self._axis) if leaf.ndim else None
            elif self._rule is not None and where.startswith((".model", ".opt_state")):
                spec = self._rule(where, leaf.shape)
            return self._fitting(PartitionSpec() if spec is None else spec, leaf.shape, where)

        return jtu.tree_map_with_path(place, state)

    def place_state(self, state: TrainState) -> TrainState:
        """The state with its arrays where they belong. In several processes all must hold the same values.

        Arguments:
            state: a `TrainState`, as of `init_train_state`; a carry has the rows of the whole batch.

        Returns:
            The placed state.
        """
        move = lambda leaf, sharding: self._put(leaf, sharding) if eqx.is_array(leaf) else leaf
        return jax.tree.map(move, state, self.shardings(state))

    def place_batch(self, batch: PyTree) -> PyTree:
        """A batch with its rows divided over the devices.

        Arguments:
            batch: a PyTree of arrays; in several processes each gives its own rows. Arrays without rows go everywhere,
                and must be the same in all processes.

        Returns:
            The same tree of arrays over the whole mesh.

        Raises:
            ValueError: the rows cannot be divided by the devices; arrays of different numbers of rows.
        """
        kinds = kinds_of("DataParallel", batch, self._batch_axes, time=False, argument="batch_axes")
        parts = self.n_devices // (jax.process_count() if self._spans_processes else 1)

        def move(path: Any, leaf: Any, kind: str) -> Any:
            if not isinstance(leaf, (jax.Array, np.ndarray, np.generic)):
                return leaf
            has_rows = "batch" in kind
            spec = PartitionSpec(self._axis) if has_rows else PartitionSpec()
            if has_rows and np.shape(leaf)[0] % max(parts, 1):
                raise ValueError(
                    f"DataParallel: batch{jtu.keystr(path)} has {np.shape(leaf)[0]} rows, which cannot be divided by "
                    f"{parts} devices"
                )
            sharding = NamedSharding(self.mesh, spec)
            if not self._spans_processes or (isinstance(leaf, jax.Array) and not leaf.is_fully_addressable):
                return jax.device_put(leaf, sharding)
            return jax.make_array_from_process_local_data(sharding, np.asarray(leaf))

        return jtu.tree_map_with_path(move, batch, kinds)

    def _fitting(self, spec: PartitionSpec, shape: tuple[int, ...], where: str) -> NamedSharding:
        sharding = NamedSharding(self.mesh, spec)
        try:
            sharding.check_compatible_aval(shape)
            sharding.shard_shape(shape)
        except ValueError as error:
            raise ValueError(f"DataParallel: {where} of shape {shape} cannot be divided as {spec}: {error}") from None
        return sharding

    def _put(self, leaf: Any, sharding: NamedSharding) -> Any:
        if not self._spans_processes:
            return jax.device_put(leaf, sharding)
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            data = self._put(jax.random.key_data(leaf), sharding)
            return jax.random.wrap_key_data(data, impl=jax.random.key_impl(leaf))
        local = np.asarray(leaf)
        return jax.make_array_from_callback(local.shape, sharding, lambda index: local[index])


def shard_largest_axis(n: int, axis: str = "data", *, min_size: int = 2**14) -> Rule:
    """A rule for `DataParallel`: large arrays are divided along their largest axis that `n` divides.

    Parameters and the optimiser's averages then take a part of their memory on each device; XLA gathers a weight where
    it is used.

    Arguments:
        n: number of devices on the axis.
        axis: the mesh's axis.
        min_size: numbers in an array from which it is divided. Default: 16,384; small ones cost more to gather than
            to keep.

    Returns:
        A function `(path, shape) -> PartitionSpec | None`.

    Raises:
        TypeError: `n` or `min_size` is not an integer.
        ValueError: they are below 1.

    Source: [Rajbhandari et al. 2020](https://arxiv.org/abs/1910.02054), stage 3.

    ??? example

        ```python
        >>> from sequinox.train import shard_largest_axis
        >>> rule = shard_largest_axis(4)
        >>> tuple(rule(".model.W", (128, 256))), rule(".model.b", (256,))
        ((None, 'data'), None)

        ```
    """
    n, min_size = size(n, "shard_largest_axis", "n"), size(min_size, "shard_largest_axis", "min_size")

    def rule(path: str, shape: tuple[int, ...]) -> PartitionSpec | None:
        del path
        axes = [i for i, length in enumerate(shape) if length % n == 0 and length >= n]
        if not axes or int(np.prod(shape)) < min_size:
            return None
        largest = max(axes, key=lambda i: shape[i])
        return PartitionSpec(*(axis if i == largest else None for i in range(largest + 1)))

    return rule
