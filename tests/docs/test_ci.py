"""What the README tells people to run is what is checked."""

import pathlib
import re
import shlex
import tomllib

ROOT = pathlib.Path(__file__).parents[2]


def commands() -> list[str]:
    """The command lines of the README, one a ```bash block."""
    found = re.findall(r"^```bash\n(.*?)\n```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    assert all("\n" not in command for command in found)
    return found


def test_readme_has_two_commands():
    install, tests = commands()
    assert install.endswith("&& python recipes/japanese_vowels.py")
    assert (ROOT / "recipes" / "japanese_vowels.py").is_file()
    assert "pytest" in tests


def test_ci_runs_the_test_command_of_the_readme():
    script = (ROOT / ".ci" / "run").read_text()
    body = re.search(r"^tests\(\) \{\n(.*?)\n\}$", script, re.MULTILINE | re.DOTALL)
    assert body is not None
    assert body[1].strip() == commands()[1]
    assert re.search(r'^stage "tests" tests$', script, re.MULTILINE)


def test_ci_runs_the_tests_that_this_command_leaves_out():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    assert shlex.split(settings["addopts"])[-2:] == ["-m", "not thorough"]
    script = (ROOT / ".ci" / "run").read_text()
    assert re.search(r"^thorough_tests\(\) \{\n    python -m pytest -n 2 -m thorough\n\}$", script, re.MULTILINE)
    assert re.search(r'^stage "thorough tests" thorough_tests$', script, re.MULTILINE)


def test_nothing_is_left_to_be_measured():
    places = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    assert [str(path) for path in places if "MEASURED:" in path.read_text()] == []
