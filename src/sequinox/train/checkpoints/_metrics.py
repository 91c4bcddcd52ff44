"""Metrics of checkpoints: as the numbers that are stored, and which checkpoint is the best by one of them."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple, SupportsFloat, TypeAlias

import numpy as np

from ..losses._total import Total

Metrics: TypeAlias = Mapping[str, Total | SupportsFloat | None]
"""Numbers by name."""


class Ranking(NamedTuple):
    """By which metric the best checkpoints are kept, if any; `"min"` or `"max"`, which is better; and how many."""

    metric: str | None
    mode: str
    n: int

    def rank(self, metrics: Any) -> float:
        """The higher the better; minus infinity without the metric."""
        value: Any = metrics.get(self.metric) if isinstance(metrics, dict) and self.metric is not None else None
        return self._signed(value) if type(value) in (int, float) else -math.inf

    def admits(self, metrics: Metrics | None, ranks: list[float]) -> bool:
        """Whether a new checkpoint would be kept beside others of these ranks; of equal ones the later is kept."""
        value: Any = (metrics or {}).get(self.metric or "")
        if value is None or not math.isfinite(value):
            return False
        return len(ranks) < self.n or self._signed(float(value)) >= sorted(ranks)[-self.n]

    def _signed(self, value: float) -> float:
        return value if self.mode == "max" else -value


def to_numbers(metrics: Metrics | None) -> dict[str, float]:
    """Metrics as numbers; those not finite left out."""
    if metrics is not None and not isinstance(metrics, Mapping):
        raise TypeError(f"Checkpoints: metrics must be a dictionary of numbers by name, got {type(metrics).__name__}")
    found = {}
    for name, value in (metrics or {}).items():
        number: Any = value.mean if isinstance(value, Total) else value
        try:
            wrong = not isinstance(name, str) or isinstance(number, str | bytes) or np.ndim(number) != 0
            measured = math.nan if number is None else float(number)
        except (TypeError, ValueError):
            wrong, measured = True, math.nan
        if wrong:
            raise TypeError(f"Checkpoints: metrics[{name!r}] must be a number or a Total, got {value!r:.200}")
        if math.isfinite(measured):
            found[name] = measured
    return found
