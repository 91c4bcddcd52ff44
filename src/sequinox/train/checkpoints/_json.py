"""What is stored beside the arrays of a checkpoint, as JSON."""

import json
from collections.abc import Mapping
from typing import Any

from ._describe import describe


def to_json(value: Any, who: str) -> Any:
    """`value` as it comes back from JSON (tuples as lists), so that what is saved compares equal to what is loaded."""
    try:
        return json.loads(json.dumps(value))
    except (RecursionError, TypeError, ValueError) as error:
        raise TypeError(f"{who} must be JSON-able: {error}") from None


def dictionary_to_json(value: Mapping[str, Any] | None, who: str) -> dict[str, Any] | None:
    """The same, for a dictionary or None."""
    if value is not None and not isinstance(value, Mapping):
        raise TypeError(f"{who} must be a dictionary, got {type(value).__name__}")
    return to_json(value, who)


def data_state_to_json(data_state: Any) -> Any:
    """The same, for the state of a data iterator, which may be bytes."""
    is_bytes = isinstance(data_state, bytes)
    return to_json({"latin-1": data_state.decode("latin-1")} if is_bytes else data_state, "data_state")


def data_state_from_json(data_state: Any) -> Any:
    """The inverse."""
    is_bytes = isinstance(data_state, dict) and data_state.keys() == {"latin-1"}
    return data_state["latin-1"].encode("latin-1") if is_bytes else data_state


def describe_model(state: Any) -> dict[str, Any] | None:
    """The structure of a state's model, or why it cannot be written down; None for a state without a model."""
    if not hasattr(state, "model"):
        return None
    try:
        return {"structure": describe(state.model)}
    except ValueError as error:  # the run continues; `load_model` will say it
        return {"undescribed": str(error)}
