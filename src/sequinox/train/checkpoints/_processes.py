"""What several processes tell each other about one checkpoint."""

import json
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils


def gather_json(value: Any) -> list[Any]:
    """The JSON-able values of all processes, in their order; every process must call it."""
    if jax.process_count() == 1:
        return [value]
    content = np.frombuffer(json.dumps(value).encode(), np.uint8)
    lengths = np.ravel(multihost_utils.process_allgather(np.array([content.size], np.int32)))
    padded = np.zeros(lengths.max(), np.uint8)  # all must send equally much
    padded[: content.size] = content
    rows = np.asarray(multihost_utils.process_allgather(padded))
    return [json.loads(row[:n].tobytes()) for row, n in zip(rows, lengths, strict=True)]


def wait_for_all(name: str) -> None:
    """Returns when every process has come here."""
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(name)


def own_data_state(stored: list[Any], where: str) -> Any:
    """This process's data state, of those of all processes that saved.

    Raises:
        ValueError: other processes saved than restore, and their states differ.
    """
    if len(stored) == jax.process_count():
        return stored[jax.process_index()]
    if all(state == stored[0] for state in stored):
        return stored[0]
    raise ValueError(
        f"Checkpoints: {where} was saved by {len(stored)} processes whose data were at different places, so "
        f"{jax.process_count()} cannot continue from there: use as many processes, or data whose state is one for all "
        "(load_model reads the model alone)"
    )


def check_global(leaves: dict[str, Any], name: str) -> None:
    """Refuses arrays that only one of several processes knows of.

    Raises:
        ValueError: with their paths.
    """
    if jax.process_count() == 1:
        return
    local = [path for path, leaf in leaves.items() if isinstance(leaf, jax.Array) and leaf.is_fully_addressable]
    if local:
        raise ValueError(
            f"Checkpoints: with {jax.process_count()} processes every array of {name} must be a global one "
            "(jax.device_put(x, jax.NamedSharding(mesh, jax.P()))); these belong to one process:\n  "
            + "\n  ".join(local)
        )
