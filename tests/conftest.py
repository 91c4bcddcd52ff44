"""What every test runs under: no silent promotion of dtypes or ranks.

jaxtyping's import hook checks the shapes and types of the whole package meanwhile (`addopts` in pyproject.toml).
"""

import contextlib
import gc
import os
import pathlib
from typing import Any

import jax
import jaxtyping
import pytest
from workers import ByGroup

if (0, 10) <= jax.__version_info__ < (0, 11):
    # XLA's older code generator for CPUs compiles three times as fast, and a fifth less time goes where a program is
    # not split for several compilers (two workers keep two cores busy). Later versions do not know the first flag.
    quick = " --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
    os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + quick

# Four devices, for the tests of training on several; everything else runs on the first.
jax.config.update("jax_num_cpu_devices", 4)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")


@contextlib.contextmanager
def unoptimised_programs():
    """XLA leaves out most of its optimisations, here and in processes that are started meanwhile."""
    name, before = "JAX_DISABLE_MOST_OPTIMIZATIONS", jax.config.read("jax_disable_most_optimizations")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(name, "1")
        jax.config.update(name.lower(), True)
        try:
            yield
        finally:
            jax.config.update(name.lower(), before)


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Layers that stand in tables of cases are made while tests are collected, by every worker."""
    with unoptimised_programs():
        return (yield)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByGroup | None:
    return ByGroup(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.fixture(scope="session", autouse=True)
def nothing_is_left_behind():
    """A test that writes does so in a temporary folder: what lies beside the sources is committed by somebody."""
    root = pathlib.Path(__file__).parents[1]
    before = set(root.iterdir())
    yield
    left = sorted(path.name for path in set(root.iterdir()) - before if not path.name.startswith("."))
    assert left == [], "left in the repository's root by a test"


@pytest.fixture(scope="module", autouse=True)
def compiled_programs_are_let_go():
    """Each compiled program holds several memory maps, of which a process may have 65,530: past them it crashes.

    Only where many are held: what is let go is compiled again by the next module, and collecting takes seconds.
    """
    yield
    maps = pathlib.Path("/proc/self/maps")
    if not maps.exists() or maps.read_bytes().count(b"\n") > 25_000:
        jax.clear_caches()
        gc.collect()


@pytest.fixture(scope="module")
def quick_compilation():
    """Compiles without most optimisations: for suites that compile much and compute little."""
    with unoptimised_programs():
        yield


@pytest.fixture(scope="module")
def unchecked_types():
    """No checks of shapes and types: they double the time of tracing. For suites whose layers others have checked."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", before)
