"""Every public name can be imported from the package itself and from its subpackage."""

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import sequinox as sqx

SUBPACKAGES = ("interop", "layers", "models", "recurrent", "tasks", "testing", "train")


def public_names(subpackage: str) -> list[str]:
    text = (Path(sqx.__file__).parent / subpackage / "__init__.py").read_text()
    return re.findall(r"\b(\w+) as \1\b", text)


@pytest.mark.parametrize("subpackage", SUBPACKAGES)
def test_from_the_package_and_the_subpackage(subpackage: str):
    module = importlib.import_module(f"sequinox.{subpackage}")
    names = public_names(subpackage)
    assert names
    assert [name for name in names if getattr(sqx, name) is not getattr(module, name)] == []
    top = Path(sqx.__file__).read_text()
    assert [name for name in names if f"{name} as {name}" not in top] == []


def test_training_is_imported_only_when_asked_for():
    code = "import sys, sequinox; assert 'orbax' not in sys.modules; sequinox.train.fit; assert 'orbax' in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_name_that_is_not_there():
    with pytest.raises(AttributeError, match="module 'sequinox' has no attribute 'transformer'"):
        _ = sqx.transformer  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(ImportError):
        from sequinox import jnp  # noqa: F401  # pyright: ignore[reportAttributeAccessIssue]
