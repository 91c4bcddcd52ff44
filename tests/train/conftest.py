import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache as jax_cache


@pytest.fixture(scope="module", autouse=True)
def compilation_cache(tmp_path_factory):
    """Many tests here run one small program anew; compiling it each time would take most of their time."""
    options = {
        "jax_compilation_cache_dir": str(tmp_path_factory.getbasetemp() / "compiled"),
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    former = {name: getattr(jax.config, name) for name in options}
    for name, value in options.items():
        jax.config.update(name, value)
    yield options
    for name, value in former.items():
        jax.config.update(name, value)
    jax_cache.reset_cache()
