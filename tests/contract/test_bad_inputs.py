"""Wrong arguments give clear errors, without a type checker; none gives a wrong number."""

import collections
import json
import subprocess
import sys
from pathlib import Path

import bad_inputs
import pytest

pytestmark = pytest.mark.usefixtures("quick_compilation")

CASES = bad_inputs.cases()


@pytest.fixture(scope="module")
def answers() -> dict[str, dict]:
    """What each case did in a process without the import hook that checks types in tests."""
    script = Path(bad_inputs.__file__)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return {line["name"]: line for line in lines}


def test_there_are_more_than_a_hundred_and_each_has_its_name():
    counts = collections.Counter(name for name, *_ in CASES)
    assert len(CASES) > 100
    assert [name for name, n in counts.items() if n > 1] == []


@pytest.mark.parametrize("case", CASES, ids=[name for name, *_ in CASES])
def test_bad_input(case, answers):
    name, _, kind, words = case
    answer = answers[name]
    assert kind.__name__ in answer["kinds"], (
        f"expected a {kind.__name__}, got {answer['kinds'][:1]}: {answer['message']}"
    )
    missing = [word for word in words if word not in answer["message"]]
    assert not missing, f"{missing} not in: {answer['message']}"
