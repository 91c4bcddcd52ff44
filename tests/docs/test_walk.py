"""The walks through the code in docs/design.md pass the functions that the code passes."""

import os
import pathlib
import re
import subprocess
import sys

import walk


def test_the_walks_of_the_design_are_those_of_the_code():
    """In a process of its own, where no import hook wraps the functions."""
    done = subprocess.run(
        [sys.executable, walk.__file__],
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    text = (pathlib.Path(__file__).parents[2] / "docs" / "design.md").read_text()
    (section,) = re.findall(r"^## Two walks.*?^## ", text, re.M | re.S)
    written = re.findall(r"```text\n(.*?)```", section, re.S)
    came = [part.partition("\n")[2].rstrip("\n") + "\n" for part in done.stdout.split("# ") if part]
    assert written == came
