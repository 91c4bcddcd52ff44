import json

import jax.numpy as jnp
import numpy as np
import pytest

from sequinox.train import MetricsLog, StepReport, Total


def report(loss, count, skipped=0):
    return StepReport({"loss": Total(jnp.float32(loss), jnp.int32(count))}, jnp.int32(skipped))


def test_means_are_exact_sums_over_exact_counts(tmp_path):
    rng = np.random.default_rng(0)
    losses, counts = rng.normal(size=200).astype(np.float32), rng.integers(1, 50, size=200)
    log = MetricsLog(tmp_path / "m.jsonl")
    for loss, count in zip(losses, counts, strict=True):
        log.add(report(loss, count))
    values = log.take()
    assert values["train/loss"] == sum(float(x) for x in losses) / int(counts.sum())
    assert (values["train/steps"], values["train/skipped"]) == (200, 0)
    assert log.take() == {}


def test_lines_are_strict_json_with_the_loss_first(tmp_path):
    path = tmp_path / "m.jsonl"
    log = MetricsLog(path)
    totals = {"accuracy": Total(1.0, 2), "loss": Total(0.0, 0), "z": Total(jnp.nan, 1)}
    log.add(StepReport({k: Total(jnp.array(t), jnp.array(c)) for k, (t, c) in totals.items()}, jnp.array(1)))
    log.write(5, log.take() | {"eval/x": float("inf")})
    text = path.read_text()
    assert text == (
        '{"step": 5, "train/loss": null, "train/accuracy": 0.5, "train/z": null, "train/steps": 1, "train/skipped": 1, '
        '"eval/x": null}\n'
    )
    assert log.history == [json.loads(text)]


@pytest.mark.parametrize("file", [True, False])
def test_a_position_comes_back_exactly_with_half_summed_metrics(tmp_path, file):
    def log(name, resume=False):
        return MetricsLog(tmp_path / name if file else None, resume=resume)

    def steps(log, start, stop):
        for i in range(start, stop):
            log.add(report(0.1 * i, i + 1))
            if (i + 1) % 4 == 0:
                log.write(i + 1, log.take())

    straight = log("a")
    steps(straight, 0, 12)
    broken = log("b")
    steps(broken, 0, 6)
    state = json.loads(json.dumps(broken.get_state()))
    steps(broken, 6, 10)  # a line to be cut
    resumed = broken if not file else log("b", resume=True)
    resumed.set_state(state)
    steps(resumed, 6, 12)
    assert resumed.history == straight.history
    if file:
        assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
        assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "b"]


def test_a_line_cut_off_in_the_middle_is_dropped(tmp_path):
    path = tmp_path / "m.jsonl"
    path.write_bytes(b'{"step": 1}\n{"step": 2}\n{"ste')
    log = MetricsLog(path, resume=True)
    log.set_state({"lines": 2, "sums": {}, "steps": 0, "skipped": 0})
    assert path.read_bytes() == b'{"step": 1}\n{"step": 2}\n'
    assert log.history == [{"step": 1}, {"step": 2}]
    log.set_state(None)
    assert path.read_bytes() == b"" and log.history == []


def test_errors_name_what_came(tmp_path):
    path = tmp_path / "m.jsonl"
    path.write_text('{"step": 1}\nnot json\n')
    with pytest.raises(ValueError, match=r"m\.jsonl has lines of an earlier run; .*resume=True"):
        MetricsLog(path)
    state = {"lines": 3, "sums": {}, "steps": 0, "skipped": 0}
    with pytest.raises(ValueError, match="has 2 lines where the checkpoint counts 3"):
        MetricsLog(path, resume=True).set_state(state)
    with pytest.raises(ValueError, match="has a line that is not JSON"):
        MetricsLog(path, resume=True).set_state({**state, "lines": 2})
    assert path.read_text() == '{"step": 1}\nnot json\n'


@pytest.mark.parametrize("line", ["3", "null", "[1]", "{}", '{"step": true}', '{"step": "2"}'])
def test_a_line_that_is_no_line_of_a_log_is_refused_and_nothing_is_cut(tmp_path, line):
    path = tmp_path / "m.jsonl"
    path.write_text(f'{{"step": 1}}\n{line}\n{{"step": 3}}\n')
    before = path.read_bytes()
    state = {"lines": 2, "sums": {}, "steps": 0, "skipped": 0}
    with pytest.raises(ValueError, match=r"line 2 of .*m\.jsonl must be an object with an integer \"step\", got "):
        MetricsLog(path, resume=True).set_state(state)
    assert path.read_bytes() == before


@pytest.mark.parametrize("relative", [True, False])
def test_a_log_that_is_a_link_stays_one(tmp_path, relative):
    target, path = tmp_path / "elsewhere" / "log", tmp_path / "run" / "m.jsonl"
    target.parent.mkdir()
    path.parent.mkdir()
    target.write_text('{"step": 1}\n{"step": 2}\n')
    path.symlink_to("../elsewhere/log" if relative else target)
    log = MetricsLog(path, resume=True)
    log.set_state({"lines": 1, "sums": {}, "steps": 0, "skipped": 0})
    log.write(5, {})
    assert path.is_symlink() and target.read_text() == '{"step": 1}\n{"step": 5}\n'
    assert [p.name for p in target.parent.iterdir()] == ["log"]
