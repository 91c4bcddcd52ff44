"""What stands beside the code: the package's description, who to cite, and what does not belong into the repository."""

import importlib.metadata
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

import sequinox

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"\[([^\]]+)\]\(([^)]+)\)")


def test_links_of_the_readme_work_away_from_the_repository():
    """Whoever reads the package's description has no `docs/` beside it: its links are addresses, or plain words."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    rule = settings["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]["substitutions"][0]
    readme = (ROOT / "README.md").read_text()
    shown = re.sub(rule["pattern"], rule["replacement"], readme)
    away = [target for _, target in LINK.findall(shown)]
    assert away == [target for _, target in LINK.findall(readme) if target.startswith("https://")]
    assert LINK.findall(readme) != LINK.findall(shown)
    assert LINK.sub(r"\1", shown) == LINK.sub(r"\1", readme)  # no word is lost
    described = importlib.metadata.distribution("sequinox").read_text("METADATA")
    assert described is not None and "# sequinox" in described  # as installed, perhaps some edits ago
    assert all(target.startswith("https://") for _, target in LINK.findall(described))


def test_links_of_the_readme_lead_somewhere():
    for name in ("README.md", "CONTRIBUTING.md"):
        targets = [target for _, target in LINK.findall((ROOT / name).read_text()) if not target.startswith("https://")]
        assert targets
        assert [target for target in targets if not (ROOT / target.partition("#")[0]).exists()] == []


def test_citation_names_this_version():
    citation = dict(re.findall(r"^([\w-]+): (.+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE))
    assert citation["cff-version"] == "1.2.0"
    assert citation["version"] == sequinox.__version__
    assert citation["license"] == tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["license"]


def test_extras_name_only_what_is_imported():
    """An extra that people take for the recipes installs nothing that nothing imports."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    sources = "\n".join(p.read_text() for folder in ("src", "recipes") for p in (ROOT / folder).rglob("*.py"))
    named = [dep for extra in ("recipes", "grain", "interop", "tensorboard") for dep in extras[extra]]
    packages = [re.split("[<>=]", dep)[0] for dep in named]
    unused = [name for name in packages if not re.search(rf"""\b(import|from) {name}\b|"{name}[".]""", sources)]
    assert unused == []


def test_no_example_has_left_a_file_in_the_repository():
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if tracked.returncode:
        pytest.skip("not a clone of the repository")
    endings = (".safetensors", ".jsonl", ".npz", ".pkl", ".ckpt")
    left = [name for name in tracked.stdout.split() if name.endswith(endings)]
    assert left == ["src/sequinox/tasks/data/japanese_vowels.npz"]
