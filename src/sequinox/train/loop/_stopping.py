"""A rule that ends a run early."""

from collections.abc import Callable
from typing import Any, TypeAlias

from ..._checks import number, size

StopRule: TypeAlias = Callable[[list[dict[str, Any]]], bool]


def early_stopping(metric: str, *, patience: int, min_delta: float = 0.0, mode: str = "min") -> StopRule:
    """A rule that ends a run whose metric gets no better.

    It reads the run's history, and nothing else: so a run that is stopped by a signal and resumed ends at the same
    step, and a loop of your own can use it too.

    Arguments:
        metric: a name in the lines of the history, such as `"eval/loss"`. Lines without it, or with null, do not count.
        patience: after how many lines without an improvement the run ends.
        min_delta: what an improvement must exceed.
        mode: `"min"` if less is better, `"max"` if more is.

    Returns:
        `rule(history) -> bool`, for `fit(stop=...)`.

    Raises:
        TypeError: `patience` is not an integer, `min_delta` not a number, `metric` not a name.
        ValueError: `patience` is below 1, `min_delta` below 0, an unknown mode.

    ??? example

        ```python
        >>> from sequinox.train import early_stopping
        >>> rule = early_stopping("eval/loss", patience=2)
        >>> lines = [{"step": n, "eval/loss": loss} for n, loss in enumerate((3.0, 2.0, 2.5, 2.1))]
        >>> [rule(lines[:n]) for n in range(1, 5)]
        [False, False, False, True]

        ```
    """
    patience = size(patience, "early_stopping", "patience")
    if not isinstance(metric, str):
        raise TypeError(f"early_stopping: metric must be the name of a metric, got {metric!r}")
    if mode not in ("min", "max"):
        raise ValueError(f"early_stopping: mode must be 'min' or 'max', got {mode!r}")
    min_delta = number(min_delta, "early_stopping", "min_delta")
    if min_delta < 0:
        raise ValueError(f"early_stopping: min_delta must not be negative, got {min_delta!r}")
    sign = 1.0 if mode == "min" else -1.0

    def rule(history: list[dict[str, Any]]) -> bool:
        best, since = float("inf"), 0
        for line in history:
            if line.get(metric) is None:
                continue
            value = sign * line[metric]
            if value < best - min_delta:
                best, since = value, 0
            else:
                since += 1
        return since >= patience

    rule.metric = metric  # pyright: ignore[reportFunctionMemberAccess]  # so that fit can report a misspelt one
    return rule
