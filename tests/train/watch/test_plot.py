"""Pictures of metrics: what is drawn is what the file holds."""

import json
import math
import subprocess
import sys

import numpy as np
import pytest

from sequinox.train import MetricsLog, plot_metrics

HISTORY = [
    {"step": 5, "train/loss": 4.0, "train/accuracy": 0.25, "train/grad_norm": 3.0, "train/skipped": 0},
    {"step": 7, "eval/loss": 0.5, "eval/error": -1.0},
    {"step": 10, "train/loss": None, "train/accuracy": 0.5, "train/grad_norm": 0.0, "train/skipped": 5},
    {"step": 15, "train/loss": 0.1, "train/accuracy": 0.75, "train/grad_norm": 9.0, "train/skipped": 1},
]


def panel(figure, name):
    (axes,) = [axes for axes in figure.axes if axes.get_title() == name]
    return axes


def curve(axes, label):
    (line,) = [line for line in axes.lines if line.get_label() == label]
    return [(x, None if math.isnan(y) else y) for x, y in zip(line.get_xdata(), line.get_ydata(), strict=True)]


@pytest.fixture
def run(tmp_path):
    log = MetricsLog(tmp_path / "metrics.jsonl")
    for line in HISTORY:
        log.write(line["step"], {name: value for name, value in line.items() if name != "step"})
    return tmp_path


def test_every_source_gives_the_numbers(run):
    for source in (run, str(run), run / "metrics.jsonl", HISTORY, tuple(HISTORY)):
        figure = plot_metrics(source)
        assert [axes.get_title() for axes in figure.axes] == ["loss", "accuracy", "error", "grad_norm"]
        loss = panel(figure, "loss")
        assert curve(loss, "train") == [(5, 4.0), (10, None), (15, 0.1)]
        assert curve(loss, "eval") == [(7, 0.5)]
        assert curve(panel(figure, "accuracy"), "train") == [(5, 0.25), (10, 0.5), (15, 0.75)]
        assert [line.get_label() for line in panel(figure, "error").lines] == ["eval"]


def test_logarithmic_where_it_spans_decades():
    """4.0 to 0.1 is 1.6 decades; what reaches 0 or below has no logarithm."""
    figure = plot_metrics(HISTORY)
    scales = {axes.get_title(): axes.get_yscale() for axes in figure.axes}
    assert scales == {"loss": "log", "accuracy": "linear", "error": "linear", "grad_norm": "linear"}


def test_several_runs_over_one_another(run):
    figure = plot_metrics({"a": run, "b": [{"step": 3, "train/loss": 1.0, "train/perplexity": 2.7}]})
    loss = panel(figure, "loss")
    assert [line.get_label() for line in loss.lines] == ["a train", "a eval", "b train"]
    assert curve(loss, "b train") == [(3, 1.0)]
    colours = [line.get_color() for line in loss.lines]
    assert colours[0] == colours[1] != colours[2]
    assert loss.lines[0].get_linestyle() != loss.lines[1].get_linestyle()
    assert [line.get_label() for line in panel(figure, "perplexity").lines] == ["b train"]


def test_names_choose_and_order_panels():
    figure = plot_metrics(HISTORY, names=["accuracy", "skipped", "loss"])
    assert [axes.get_title() for axes in figure.axes] == ["accuracy", "skipped", "loss"]
    assert curve(panel(figure, "skipped"), "train") == [(5, 0), (10, 5), (15, 1)]
    with pytest.raises(ValueError, match=r"names must be among \['loss', .*got \['lost'\]"):
        plot_metrics(HISTORY, names=["loss", "lost"])


def test_a_last_line_that_is_cut_off(run):
    path = run / "metrics.jsonl"
    path.write_bytes(path.read_bytes() + b'{"step": 20, "train/loss": 0.0')
    assert curve(panel(plot_metrics(run), "loss"), "train")[-1] == (15, 0.1)


@pytest.mark.usefixtures("unchecked_types")
def test_what_is_no_number_of_a_run(run):
    with pytest.raises(ValueError, match="'train/loss' must be a number or null, got 'low' at step 3"):
        plot_metrics([{"step": 3, "train/loss": "low"}])
    with pytest.raises(ValueError, match='integer "step", line 2'):
        plot_metrics([*HISTORY[:1], {"train/loss": 1.0}])
    with pytest.raises(ValueError, match="nothing to draw"):
        plot_metrics([])
    with pytest.raises(FileNotFoundError, match=r"metrics\.jsonl"):
        plot_metrics(run.parent)
    with pytest.raises(TypeError, match="run must be a directory, a file, a list of lines or a dict of runs, got 3"):
        plot_metrics(3)  # pyright: ignore[reportArgumentType]
    path = run / "metrics.jsonl"
    path.write_bytes(b"not json\n" + path.read_bytes())
    with pytest.raises(ValueError, match=r"line 1 of .* is not JSON"):
        plot_metrics(run)
    assert path.read_bytes().count(b"\n") == len(HISTORY) + 1


@pytest.mark.parametrize(("suffix", "magic"), [("png", b"\x89PNG\r\n"), ("svg", b"<?xml"), ("pdf", b"%PDF-")])
def test_files(tmp_path, suffix, magic):
    path = tmp_path / f"run.{suffix}"
    path.write_bytes(b"old")
    plot_metrics(HISTORY, path, names=["loss"])
    content = path.read_bytes()
    assert content.startswith(magic)
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    if suffix == "png":
        image = pytest.importorskip("matplotlib.image").imread(path)
        assert np.ptp(image[..., :3]) > 0.5 and np.min(image) < 0.9  # something is drawn on it
    with pytest.raises(ValueError, match=r"must end in one of \.png, \.svg, \.pdf"):
        plot_metrics(HISTORY, tmp_path / "run.gif")


def test_pyplot_is_left_alone():
    code = (
        "import sys; from sequinox.train import plot_metrics; assert 'matplotlib' not in sys.modules; "
        f"plot_metrics({json.dumps(HISTORY).replace('null', 'None')}); "
        "assert 'matplotlib.figure' in sys.modules; assert 'matplotlib.pyplot' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_without_matplotlib(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r'pip install "sequinox\[recipes\]"'):
        plot_metrics(HISTORY)
