"""What the README tells people to run is what is checked."""

import pathlib
import re

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


def test_nothing_is_left_to_be_measured():
    places = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    assert [str(path) for path in places if "MEASURED:" in path.read_text()] == []
