"""Wrong arguments give clear errors, without a type checker; none gives a wrong number."""

import collections
import json
import subprocess
import sys
from pathlib import Path

import pytest

GROUPS = {
    "contract": 85,
    "constructors": 95,
    "training": 35,
    "attention": 280,
    "averages": 45,
    "gated": 25,
    "diagonal": 50,
    "filters": 80,
    "convolution": 35,
    "composition": 60,
    "regularisers": 55,
    "interop": 35,
}
"""The groups of cases, and how many each has at least."""


@pytest.fixture(scope="module")
def answers() -> list[dict[str, str]]:
    """What is wrong with each case, in a process without the import hook that checks types in tests."""
    script = Path(__file__).with_name("bad_inputs.py")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_every_group_has_its_cases_and_every_case_its_name(answers):
    counts = collections.Counter(answer["name"] for answer in answers)
    assert [name for name, n in counts.items() if n > 1] == []
    groups = collections.Counter(answer["group"] for answer in answers)
    assert set(groups) == set(GROUPS)
    assert {group: n for group, n in groups.items() if n < GROUPS[group]} == {}


@pytest.mark.parametrize("group", GROUPS)
def test_bad_inputs(group, answers):
    wrong = {a["name"]: a["complaint"] for a in answers if a["group"] == group and a["complaint"] is not None}
    assert not wrong, "\n".join(f"{name}: {complaint}" for name, complaint in wrong.items())
