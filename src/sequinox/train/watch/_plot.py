"""A picture of a run's metrics."""

import io
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from ..._files import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Run: TypeAlias = str | os.PathLike[str] | Sequence[Mapping[str, Any]]
"""A run's directory, its file of metrics, or its history."""

# Counts of the steps in a line: drawn only if asked for.
_BESIDE = ("steps", "skipped")
# Losses that span more than this many decades are drawn on a logarithmic scale.
_DECADES = 1.5
_FORMATS = (".png", ".svg", ".pdf")
_STYLES = {"train": "-", "eval": "--"}


def plot_metrics(
    run: Run | Mapping[str, Run], path: str | os.PathLike[str] | None = None, *, names: Iterable[str] | None = None
) -> "Figure":
    """Draws the metrics of a run, or of several over one another.

    Each metric has a panel, training and evaluation together: `train/loss` is a solid line, `eval/loss`
    dashed. What is all above 0 and spans more than one and a half decades has a logarithmic scale. A null (a metric
    that was not finite) is a gap. A run that is still being written can be drawn: a last line that is cut off is left
    out.

    Arguments:
        run: a run's directory, a `metrics.jsonl`, or a history such as `fit(...).history`; or several of them by label,
            `{"lstm": "runs/lstm", "gru": "runs/gru"}`.
        path: where to write the picture, as PNG, SVG or PDF by its suffix. Default: nowhere.
        names: metrics, without `train/` or `eval/`, in the order of the panels. Default: all but `steps` and `skipped`.

    Returns:
        A matplotlib `Figure`, free of pyplot: no window opens and no backend is chosen.

    Raises:
        ImportError: matplotlib is not installed (`pip install "sequinox[recipes]"`).
        FileNotFoundError: there is no such run.
        TypeError: `run` is something else.
        ValueError: a line is not one of a metrics file; there is nothing to draw; a name that no run has; `path` with
            another suffix.

    ??? example

        ```python
        >>> from sequinox.train import plot_metrics
        >>> history = [{"step": 10, "train/loss": 2.0}, {"step": 20, "train/loss": 1.0, "eval/loss": 1.5}]
        >>> figure = plot_metrics(history)
        >>> [axes.get_title() for axes in figure.axes], [line.get_label() for line in figure.axes[0].lines]
        (['loss'], ['train', 'eval'])

        ```
    """
    who = "plot_metrics"
    suffix = None if path is None else Path(path).suffix.lower()
    if suffix is not None and suffix not in _FORMATS:
        raise ValueError(f"{who}: path must end in one of {', '.join(_FORMATS)}, got {os.fspath(path or '')!r}")
    runs = {str(label): one for label, one in run.items()} if isinstance(run, Mapping) else {"": run}
    curves = {label: _curves(one, who) for label, one in runs.items()}
    there = list(dict.fromkeys(key.partition("/")[2] for one in curves.values() for key in one))
    if names is None:
        # The loss first, the gradient's norm last.
        chosen = sorted(
            set(there) - set(_BESIDE), key=lambda name: (name != "loss", name == "grad_norm", there.index(name))
        )
    else:
        chosen = [names] if isinstance(names, str) else list(names)
        missing = [name for name in chosen if name not in there]
        if missing:
            raise ValueError(f"{who}: names must be among {there}, got {missing}")
    if not chosen:
        raise ValueError(f"{who}: there is nothing to draw: no metric was written yet")
    figure = _draw(chosen, curves)
    if path is not None:
        content = io.BytesIO()
        # Without a date, so that equal runs give equal pictures.
        stamp = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(str(suffix), {})
        figure.savefig(content, format=str(suffix)[1:], dpi=150, metadata=stamp)
        write_atomically(Path(path), content.getvalue())
    return figure


def _curves(run: Any, who: str) -> dict[str, tuple[list[int], list[float]]]:
    """Steps and values by `train/NAME` and `eval/NAME`; NaN where a line has null."""
    found: dict[str, tuple[list[int], list[float]]] = {}
    for line in _lines(run, who):
        for key, value in line.items():
            kind = key.partition("/")[0]
            if kind not in _STYLES:
                continue
            if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
                raise ValueError(f"{who}: {key!r} must be a number or null, got {value!r} at step {line['step']}")
            steps, values = found.setdefault(key, ([], []))
            steps.append(line["step"])
            values.append(math.nan if value is None or not math.isfinite(value) else float(value))
    return found


def _lines(run: Any, who: str) -> list[dict[str, Any]]:
    if isinstance(run, str | os.PathLike):
        path = Path(run)
        path = path / "metrics.jsonl" if path.is_dir() else path
        if not path.exists():
            raise FileNotFoundError(f"{who}: there is no {path}")
        whole = path.read_bytes().split(b"\n")[:-1]  # what has no newline was cut off in the middle
        lines = []
        for i, line in enumerate(whole):
            try:
                lines.append(json.loads(line))
            except ValueError:
                raise ValueError(f"{who}: line {i + 1} of {path} is not JSON: {line[:80]!r}") from None
    elif isinstance(run, list | tuple):
        lines = list(run)
    else:
        raise TypeError(f"{who}: run must be a directory, a file, a list of lines or a dict of runs, got {run!r}")
    for i, line in enumerate(lines):
        if not isinstance(line, dict) or isinstance(line.get("step"), bool) or not isinstance(line.get("step"), int):
            raise ValueError(f'{who}: a line must be a dict with an integer "step", line {i + 1} is {line!r}')
    return lines


def _draw(names: list[str], curves: dict[str, dict[str, tuple[list[int], list[float]]]]) -> "Figure":
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator
    except ImportError:
        raise ImportError('plot_metrics needs matplotlib: pip install "sequinox[recipes]"') from None

    n_columns = 2 if len(names) == 4 else min(len(names), 3)
    n_rows = -(-len(names) // n_columns)
    figure = Figure(figsize=(4.5 * n_columns, 3.2 * n_rows), layout="constrained")
    FigureCanvasAgg(figure)
    for i, name in enumerate(names):
        axes = figure.add_subplot(n_rows, n_columns, i + 1)
        drawn: list[float] = []
        for c, (label, run) in enumerate(curves.items()):
            for kind, style in _STYLES.items():
                steps, values = run.get(f"{kind}/{name}", ([], []))
                if not steps:
                    continue
                # One run: training and evaluation differ in colour too.
                colour = f"C{c if len(curves) > 1 else list(_STYLES).index(kind)}"
                # A single point makes no line.
                marker = "o" if len(steps) < 30 else None
                text = " ".join(part for part in (label, kind) if part)
                axes.plot(steps, values, style, color=colour, label=text, linewidth=1.4, marker=marker, markersize=3)
                drawn += [v for v in values if not math.isnan(v)]
        axes.set_title(name)
        axes.set_xlabel("step")
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.grid(alpha=0.3)
        if drawn and min(drawn) > 0 and math.log10(max(drawn) / min(drawn)) > _DECADES:
            axes.set_yscale("log")
        axes.legend(fontsize="small", frameon=False)
    return figure
