"""Checkpoints: a state, the position of its data, and its configuration, whole or not at all."""

import contextlib
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import PyTree
from orbax.checkpoint import v1 as ocp

from ..._checks import size
from ..._files import make_writable_directory
from ._checkpoint_files import ARRAYS, MARK, is_complete, read_arrays, readable, remove, remove_incomplete
from ._checksum import add_up, own_sums
from ._form import Description, leaves_to_json, read_checkpoint, seal
from ._json import data_state_from_json, data_state_to_json, describe_model, dictionary_to_json
from ._leaves import compare_leaves, describe_leaves, fill_leaves, is_key, stored_leaves
from ._metrics import Metrics, Ranking, to_numbers
from ._processes import check_global, gather_json, own_data_state, wait_for_all
from ._quiet import raises_errors_of


class Restored(NamedTuple):
    """What `Checkpoints.restore` returns.

    Attributes:
        state: the PyTree, in the structure of `like`.
        step: its step.
        data_state: what the data iterator's `get_state` returned, or None.
        config: the configuration, or None.
        metrics: the metrics measured at this step.
        extra: whatever else was saved with it.
    """

    state: PyTree
    step: int
    data_state: Any
    config: dict[str, Any] | None
    metrics: dict[str, float]
    extra: dict[str, Any]


class Checkpoints:
    """The checkpoints of one run in one directory, on Orbax.

    The last `keep_last` are kept, and the best `keep_best` by one metric. Each is written under a temporary name and
    renamed when complete, and only then are others removed: a kill while saving costs that checkpoint and no other.
    Leftovers are ignored, and cleaned when the directory is next opened for writing. All arrays are stored, typed PRNG
    keys and arrays without elements included; nothing is pickled. Everything else of a PyTree (functions, sizes,
    strings) comes from `like` on the way back; for a state with a `model` the model's structure is stored as well, so
    that `load_model` does without.

    Each array has a checksum, and so has all that is stored beside them, the checksums included. They are compared with
    what is read: a changed byte, arrays of another step, an edited description are an `OSError`. That finds accidents;
    somebody who changes files on purpose can also write the checksums.

    `save` returns when the arrays can no longer change under it, and writes in the background; the state may be donated
    or overwritten at once. Whatever reads waits for that first, so only complete checkpoints are ever seen. What went
    wrong in the background is raised by the next `save`, `wait` or `close`.

    With several processes (`jax.distributed`) each makes its own `Checkpoints` of the one directory and calls the same
    methods with the same global arrays. Each has its own `data_state`; the rest is taken from process 0.

    Use it as a context manager, or call `close`.

    ??? example

        ```python
        >>> import tempfile
        >>> import jax.numpy as jnp
        >>> from sequinox.train import Checkpoints
        >>> with tempfile.TemporaryDirectory() as directory, Checkpoints(directory, best="eval/loss") as checkpoints:
        ...     for step, loss in ((10, 0.5), (20, 0.4), (30, 0.6)):
        ...         checkpoints.save({"W": jnp.full(2, step)}, step, metrics={"eval/loss": loss})
        ...     like = {"W": jnp.zeros(2, int)}
        ...     checkpoints.steps, checkpoints.restore(like).step, checkpoints.restore_best(like).step
        ([20, 30], 30, 20)

        ```
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        keep_last: int = 1,
        best: str | None = None,
        best_mode: str = "min",
        keep_best: int = 1,
        asynchronous: bool = True,
        read_only: bool = False,
    ):
        """Opens a directory, and makes it unless `read_only`.

        Arguments:
            directory: where; one sub-directory a step.
            keep_last: how many of the latest are kept, at least 1.
            best: the metric by which more are kept. A checkpoint saved without it, or with NaN, is never the
                best. Of equal ones the latest is. Default: the latest only.
            best_mode: `"min"` if less is better, `"max"` if more is.
            keep_best: how many of the best are kept, at least 1.
            asynchronous: write in the background. False: `save` returns when the checkpoint is complete.
            read_only: only to restore: the directory must exist, nothing in it is touched, and one that cannot
                be written to serves as well.

        Raises:
            TypeError: a number is not an integer.
            ValueError: another wrong argument.
            FileNotFoundError: `read_only`, and there is no such directory.
            OSError: the directory cannot be written to: at once, not at the first save. Or a checkpoint in it cannot be
                read.
        """
        keep_last, keep_best = size(keep_last, "Checkpoints", "keep_last"), size(keep_best, "Checkpoints", "keep_best")
        if best is None and keep_best != 1:
            raise ValueError(f"Checkpoints: keep_best={keep_best} needs best, the metric to rank by")
        if best_mode not in ("min", "max"):
            raise ValueError(f"Checkpoints: best_mode must be 'min' or 'max', got {best_mode!r}")
        self._directory = Path(directory).absolute()
        self._ranking = Ranking(best, best_mode, keep_best)
        self._asynchronous, self._read_only = asynchronous, read_only
        self._saving: tuple[int, Any] | None = None
        self._failure: OSError | None = None
        if not read_only:
            make_writable_directory(self._directory)
            if jax.process_index() == 0:
                remove_incomplete(self._directory)
            wait_for_all("sequinox checkpoints opened")
        elif not self._directory.is_dir():
            raise FileNotFoundError(f"Checkpoints: there is no directory {self._directory}")
        policies = ocp.training.preservation_policies
        keep: list[Any] = [policies.LatestN(keep_last)]
        if best is not None:
            rank = self._ranking.rank
            keep.append(policies.BestN(get_metric_fn=rank, n=keep_best, keep_checkpoints_without_metrics=False))
        context = ocp.Context()
        # Where directories cannot be made, Orbax's background would wait for them for minutes.
        context.asynchronous.create_directories_asynchronously = False
        raises_errors_of(self._directory)
        with readable(self._directory):
            self._checkpointer = ocp.training.Checkpointer(
                str(self._directory),
                context=context,
                # Orbax annotates its own policies and this argument with two classes of metadata.
                preservation_policy=policies.AnyPreservationPolicy(keep),  # pyright: ignore[reportArgumentType]
                cleanup_tmp_directories=not read_only,
            )

    @property
    def steps(self) -> list[int]:
        """The steps of all complete checkpoints, ascending."""
        return [c.step for c in self._complete()]

    @property
    def latest_step(self) -> int | None:
        """The step of the last complete checkpoint, or None."""
        return max(self.steps, default=None)

    @property
    def best_step(self) -> int | None:
        """The step of the best complete checkpoint by `best`; None without `best`, or while none has that metric."""
        ranked = [(self._ranking.rank(c.metrics), c.step) for c in self._complete()]
        rank, step = max(ranked, default=(-math.inf, None))
        return step if rank > -math.inf else None

    def is_among_best(self, metrics: Metrics | None) -> bool:
        """Whether a checkpoint with these metrics would now be one of the best `keep_best`: one that is worth a save.

        Arguments:
            metrics: numbers by name, as for `save`.

        Returns:
            True or False; False without `best`, and where it is missing, None or not finite.
        """
        return self._ranking.admits(metrics, [self._ranking.rank(c.metrics) for c in self._complete()])

    def save(
        self,
        state: PyTree,
        step: int,
        *,
        data_state: Any = None,
        config: Mapping[str, Any] | None = None,
        metrics: Metrics | None = None,
        extra: Mapping[str, Any] | None = None,
        replace: bool = False,
    ) -> None:
        """Saves in the background; when the checkpoint is complete, removes those that are no longer kept.

        Waits for the former save first.

        Arguments:
            state: any PyTree; all its arrays are stored under their paths.
            step: its step, above those already saved.
            data_state: what the data iterator's `get_state` returned: JSON-able, or bytes as some of grain's
                iterators give. Each process has its own.
            config: a JSON-able dictionary, enough to build `like` again.
            metrics: numbers by name, measured on this very state; of a `Total` its mean is taken. Those not finite or
                None are left out.
            extra: a JSON-able dictionary for whatever else a loop wants back.
            replace: `step` may be the last one saved; that checkpoint is removed first. For metrics that were measured
                later.

        Raises:
            TypeError: `step` is no integer, `data_state`, `config` or `extra` not JSON-able, a metric no number, or an
                array in the state neither of JAX nor of NumPy.
            ValueError: opened `read_only`, the step is not above those saved, or two leaves have one path.
            OSError: the former save failed (a full disk); this one was not started. Or this one failed.
        """
        if self._read_only:
            raise ValueError(f"Checkpoints: {self._directory} was opened with read_only=True")
        step = size(step, "Checkpoints", "step", 0)
        self.wait()
        latest = self.latest_step
        # "The last" must stay the last that was saved.
        if latest is not None and (step < latest or (step == latest and not replace)):
            raise ValueError(
                f"Checkpoints: step {step} must be above {latest}, which is already saved in {self._directory}"
            )
        measured = to_numbers(metrics)
        leaves = stored_leaves(state, "state")
        check_global(leaves, "state")
        filled = {path: leaf for path, leaf in leaves.items() if leaf.size}
        arrays = {path: jax.random.key_data(leaf) if is_key(leaf) else leaf for path, leaf in filled.items()}
        own = {"data_state": data_state_to_json(data_state), "metrics": measured}
        own |= {"config": dictionary_to_json(config, "config"), "extra": dictionary_to_json(extra, "extra") or {}}
        all_processes = gather_json({**own, "sums": own_sums(arrays)})
        first = all_processes[0]
        sums = add_up(process["sums"] for process in all_processes)
        description = seal(
            {
                "leaves": leaves_to_json(describe_leaves(leaves, sums)),
                "model": describe_model(state),
                "data_states": [process["data_state"] for process in all_processes],
                "best": [self._ranking.metric, self._ranking.mode],
                "config": first["config"],
                "extra": first["extra"],
                "metrics": first["metrics"],
            }
        )
        try:
            # Orbax has all arrays on the host when this returns. On a CPU they may be views of JAX's own buffers, which
            # JAX then neither overwrites nor frees.
            response = self._checkpointer.save_checkpointables_async(
                step,
                {ARRAYS: {**arrays, MARK: np.ones(1, np.int32)}},
                force=True,
                overwrite=replace and step == latest,
                metrics=first["metrics"],
                custom_metadata=description,
            )
        except Exception as error:
            raise self._clean_up(step, error) from error
        self._saving = step, response
        if not self._asynchronous:
            self.wait()

    def wait(self) -> None:
        """Returns when the checkpoint that is being written is complete.

        Raises:
            OSError: it could not be written, with its path. Those before it are all still there.
        """
        self._settle()
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def restore(self, like: PyTree, step: int | None = None) -> Restored:
        """Restores a checkpoint into the structure of `like`.

        What is stored is compared with `like` before anything is loaded: a leaf of another shape or dtype, a
        missing one or one too many is an error that lists every such path, never a cast or a fresh value.

        Arguments:
            like: a PyTree as it was saved: freshly built, or of `jax.ShapeDtypeStruct`s (`eqx.filter_eval_shape`). It
                says everything that is not an array, and where arrays are placed.
            step: which. Default: the last.

        Returns:
            `Restored`.

        Raises:
            FileNotFoundError: there is no such checkpoint.
            ValueError: it does not fit `like`; or it was saved by another number of processes, each with another
                `data_state`. Or what is stored beside the arrays has not the form that it was written in.
            OSError: its files are damaged: they cannot be read, or a checksum is wrong.
        """
        found, description = self._read(step)
        leaves = stored_leaves(like, "like")
        check_global(leaves, "like")
        mismatches = compare_leaves(description.leaves, describe_leaves(leaves))
        if mismatches:
            lines = "\n  ".join(mismatches)
            raise ValueError(f"Checkpoints: step {found.step} in {self._directory} does not fit `like`:\n  {lines}")
        arrays = read_arrays(self._directory / str(found.step), leaves, description.leaves)
        return found._replace(state=fill_leaves(like, arrays))

    def peek(self, step: int | None = None) -> Restored:
        """Everything but the state: its configuration says how to build `like`.

        Arguments:
            step: which. Default: the last.

        Returns:
            `Restored` with `state=None`.

        Raises:
            FileNotFoundError: there is no such checkpoint.
            ValueError, OSError: it is damaged, as for `restore`.
        """
        return self._read(step)[0]

    def restore_best(self, like: PyTree) -> Restored:
        """Restores the best checkpoint by the metric `best`.

        Arguments:
            like: as for `restore`.

        Returns:
            `Restored`.

        Raises:
            FileNotFoundError: no checkpoint has that metric.
            ValueError: opened without `best`, or the checkpoint does not fit `like`.
        """
        if self._ranking.metric is None:
            raise ValueError("Checkpoints: restore_best needs the metric: Checkpoints(..., best='eval/loss')")
        step = self.best_step
        if step is None:
            raise FileNotFoundError(
                f"Checkpoints: no checkpoint in {self._directory} has the metric {self._ranking.metric!r}"
            )
        return self.restore(like, step)

    def close(self) -> None:
        """Waits for the checkpoint that is being written, and lets go of Orbax's threads.

        Raises:
            OSError: it could not be written, with its path.
        """
        self._settle()
        self._checkpointer.close()
        self.wait()

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def describe_step(self, step: int | None = None) -> tuple[int, Description]:
        """A checkpoint's step, and what was written about it. For this package."""
        steps = self.steps
        if step is None and steps:
            step = steps[-1]
        if step is None or step not in steps:
            wanted = "no checkpoint" if step is None else f"no checkpoint of step {step}"
            raise FileNotFoundError(f"Checkpoints: there is {wanted} in {self._directory}; steps there: {steps}")
        where = f"Checkpoints: the description of {self._directory / str(step)}"
        with readable(self._directory / str(step)):
            metadata = self._checkpointer.checkpointables_metadata(step)
        return step, read_checkpoint(metadata.custom_metadata, where)

    def _read(self, step: int | None) -> tuple[Restored, Description]:
        step, it = self.describe_step(step)
        data_state = own_data_state(it.data_states, str(self._directory / str(step)))
        return Restored(None, step, data_state_from_json(data_state), it.config, it.metrics, it.extra), it

    def _complete(self) -> list[Any]:
        """What Orbax knows of each complete checkpoint, ascending."""
        self._settle()
        return [c for c in self._checkpointer.checkpoints if is_complete(self._directory / str(c.step))]

    def _settle(self) -> None:
        """Waits for the background, and keeps what went wrong there for `wait`."""
        if self._saving is None:
            return
        step, response = self._saving
        try:
            response.result()
        except Exception as error:
            self._failure = self._clean_up(step, error)
            self._failure.__cause__ = error
        self._saving = None

    def _clean_up(self, step: int, error: Exception) -> OSError:
        with contextlib.suppress(Exception):
            self._checkpointer.wait()  # raises the same error once more
        if jax.process_index() == 0:  # on a full disk the space is wanted back
            remove(self._directory.glob(f"{step}.orbax-checkpoint-tmp*"))
        self._checkpointer.reload()  # as Orbax no longer lists those that would have been removed
        return OSError(f"Checkpoints: saving {self._directory / str(step)} failed: {error}")
