"""The code in the documents runs and prints what they say.

A page's ```python blocks run from top to bottom in one namespace, under JAX's defaults, as a reader has them. What a
block prints must be what its lines starting with `# > ` show, in order: a block without such lines must print nothing.
Docstrings use doctest's `>>>` instead. Both run in a folder of their own, which is thrown away.
"""

import contextlib
import doctest
import inspect
import io
import pathlib
import re
import runpy
import sys
import tempfile
import types

import jax
import jaxtyping
import pytest

import sequinox

pytestmark = pytest.mark.usefixtures("quick_compilation")

ROOT = pathlib.Path(__file__).parents[2]
SOURCE = ROOT / "src" / "sequinox"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^(?P<indent> *)```(?P<info>[^\n`]*)\n(?P<code>.*?)^(?P=indent)```[ ]*$", re.MULTILINE | re.DOTALL)


def blocks(text: str) -> list[tuple[int, str]]:
    """Line number and code of every ```python block."""
    found = []
    for match in FENCE.finditer(text):
        if match["info"].strip().split(" ")[0] == "python":
            line = text.count("\n", 0, match.start("code")) + 1
            code = "\n".join(row.removeprefix(match["indent"]) for row in match["code"].split("\n"))
            found.append((line, code))
    return found


@contextlib.contextmanager
def defaults():
    """JAX's own promotion, and no checks of types: what a reader has. (optax does not run under strict promotion.)"""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", before)


@contextlib.contextmanager
def folder_of_its_own():
    """Where an example may write `model.safetensors` without leaving it to whoever runs the tests."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        yield


def run_page(text: str, filename: str, name: str) -> None:
    """Runs the blocks of a page; AssertionError where one prints something else than it shows."""
    module = types.ModuleType(name)
    sys.modules[name] = module  # dataclasses and type checkers look their module up
    try:
        with folder_of_its_own():
            for line, code in blocks(text):
                shown = [row[4:] for row in code.split("\n") if row.startswith("# > ")]
                printed = io.StringIO()
                with contextlib.redirect_stdout(printed), defaults():
                    exec(compile("\n" * (line - 1) + code, filename, "exec"), module.__dict__)
                got = [row.rstrip() for row in printed.getvalue().splitlines()]
                assert got == shown, f"{filename}:{line} prints {got}, and shows {shown}"
    finally:
        del sys.modules[name]


def public_names() -> dict[str, object]:
    """Every `X as X` of every `__init__.py`, by its dotted name: the subpackage's own, and `sequinox.X`."""
    names = {}
    for path in sorted(SOURCE.rglob("__init__.py")):
        module = ".".join(("sequinox", *path.parent.relative_to(SOURCE).parts))
        __import__(module)
        for name, alias in re.findall(r"\b(\w+) as (\w+)\b", path.read_text()):
            if name == alias:
                names[f"{module}.{name}"] = getattr(sys.modules[module], name)
    names["sequinox.testing.check_layer"] = __import__("sequinox.testing").testing.check_layer
    return names


NAMES = public_names()


def page_cases() -> list:
    for_all = {"README.md", "docs/getting_started.md"}
    names = [str(page.relative_to(ROOT)) for page in PAGES]
    assert for_all <= set(names)
    marks = lambda name: () if name in for_all else pytest.mark.thorough
    return [pytest.param(page, id=name, marks=marks(name)) for page, name in zip(PAGES, names, strict=True)]


@pytest.mark.parametrize("page", page_cases())
def test_page(page: pathlib.Path):
    run_page(page.read_text(), str(page), "page_" + re.sub(r"\W", "_", page.stem))


def test_pages_have_code():
    assert sum(len(blocks(page.read_text())) for page in PAGES) > 25
    assert len(blocks((ROOT / "README.md").read_text())) >= 2


@pytest.mark.parametrize(
    "text",
    [
        "```python\nprint(1)\n# > 2\n```",
        "```python\nprint(1)\n```",
        "```python\n# > 1\n```",
        "```python\nx = 1\n```\ntext\n```python\nassert x == 2\n```",
        "- item\n\n    ```python\n    print(1)\n    # > 2\n    ```",
    ],
)
def test_wrong_pages_fail(text: str):
    with pytest.raises(AssertionError):
        run_page(text, "page.md", "wrong_page")


def docstrings() -> dict[str, str]:
    """The docstrings with examples, of the public names and of what their classes define."""
    found = {}
    for path, item in NAMES.items():
        members = vars(item).items() if inspect.isclass(item) else ()
        for name, thing in ((path, item), *((f"{path}.{n}", m) for n, m in members)):
            text = inspect.getdoc(thing)
            if text is not None and ">>>" in text:
                found.setdefault(text, name)
    return {name: text for text, name in found.items()}


DOCSTRINGS = docstrings()


def run_doctest(name: str, text: str) -> tuple[doctest.TestResults, str]:
    test = doctest.DocTestParser().get_doctest(text, {"__name__": "__main__"}, name, None, None)
    report: list[str] = []
    with folder_of_its_own():
        return doctest.DocTestRunner(verbose=False).run(test, out=report.append), "".join(report)


@pytest.mark.parametrize("name", DOCSTRINGS)
def test_docstring(name: str):
    results, report = run_doctest(name, DOCSTRINGS[name])
    assert results.attempted > 0
    assert results.failed == 0, report


def test_wrong_docstrings_fail():
    assert run_doctest("wrong", "```python\n>>> 1 + 1\n3\n\n```")[0].failed == 1


def test_examples_leave_no_file_behind():
    """Neither where the tests were started nor in the repository, also of an example that fails half-way."""
    here, before = pathlib.Path.cwd(), {path for folder in (ROOT, pathlib.Path.cwd()) for path in folder.iterdir()}
    write = "__import__('pathlib').Path('left_behind').write_text('')"
    run_page(f"```python\nprint({write})\n# > 0\n```", "page.md", "writing_page")
    with pytest.raises(ZeroDivisionError):
        run_page(f"```python\n{write}\n1 / 0\n```", "page.md", "failing_page")
    assert run_doctest("writing", f">>> {write}\n0\n")[0] == doctest.TestResults(failed=0, attempted=1)
    name = next(name for name in DOCSTRINGS if name.endswith(".save_safetensors"))
    assert "model.safetensors" in DOCSTRINGS[name] and run_doctest(name, DOCSTRINGS[name])[0].failed == 0
    assert pathlib.Path.cwd() == here
    assert {path for folder in (ROOT, here) for path in folder.iterdir()} - before == set()


def test_functions_and_layers_have_an_example():
    """Abstract layers need none, nor do classes that only hold results."""
    without = [
        name
        for name, item in NAMES.items()
        if (inspect.isfunction(item) or (inspect.isclass(item) and issubclass(item, sequinox.SequenceLayer)))
        and not inspect.isabstract(item)
        and ">>>" not in (inspect.getdoc(item) or "")
    ]
    assert without == []


def test_every_public_name_is_on_an_api_page():
    pages = "\n".join(page.read_text() for page in (ROOT / "docs" / "api").glob("*.md"))
    on_page = {id(_find(path)) for path in re.findall(r"^::: ([\w.]+)$", pages, re.MULTILINE)}
    missing = [name for name, item in NAMES.items() if id(item) not in on_page]
    assert missing == []


def _find(path: str) -> object:
    """What a dotted path on an API page names."""
    item: object = sequinox
    for part in path.split(".")[1:]:
        item = getattr(item, part)
    return item


@pytest.mark.thorough
def test_pictures_are_what_their_scripts_draw():
    for script in (ROOT / "docs" / "figures").glob("*.py"):
        picture = script.with_suffix(".svg")
        assert runpy.run_path(str(script))["draw"]() == picture.read_text(), f"run python {script.relative_to(ROOT)}"
