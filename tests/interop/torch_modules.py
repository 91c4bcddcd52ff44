"""Modules of PyTorch's with numbers of their own, and what compares them with ours."""

from typing import Any

import equinox as eqx
import jax
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is in the extra `parity`")

B, T, N_IN, N_HIDDEN, N_PROJ = 4, 6, 3, 5, 2
LENGTHS = [6, 2, 5, 1]
MASK = np.arange(T) < np.array(LENGTHS)[:, None]

KINDS: dict[str, dict[str, Any]] = {
    "tanh": {},
    "relu": {"nonlinearity": "relu"},
    "GRU": {},
    "LSTM": {},
    "projected": {"proj_size": N_PROJ},
}


def recurrent(kind: str, layers: int, directions: int, bias: bool, dtype: Any = None, **options: Any) -> Any:
    name = {"tanh": "RNN", "relu": "RNN", "projected": "LSTM"}.get(kind, kind)
    make = getattr(torch.nn, name)
    module = make(
        N_IN,
        N_HIDDEN,
        layers,
        bias=bias,
        bidirectional=directions == 2,
        batch_first=True,
        dtype=dtype,
        **KINDS[kind],
        **options,
    )
    return filled(module)


def draw(*shape: int, seed: int = 0, dtype: Any = np.float32) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def filled(module: Any, seed: int = 0) -> Any:
    """Every number its own: PyTorch starts norms at one and attention's biases at zero."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(0.5 * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype))
    return module


def close(got: Any, expected: Any, tolerance: float = 1e-6, what: str = "") -> None:
    expected = expected.detach().numpy()
    limit = tolerance * max(1, np.abs(expected).max(initial=0))
    np.testing.assert_allclose(np.asarray(got), expected, rtol=0, atol=limit, err_msg=what)


def same(a: Any, b: Any) -> None:
    """The same trees, bit for bit."""
    leaves, others = (jax.tree_util.tree_leaves_with_path(eqx.filter(x, eqx.is_array)) for x in (a, b))
    assert len(leaves) == len(others)
    for (path, x), (other, y) in zip(leaves, others, strict=True):
        assert (path, x.dtype, x.shape) == (other, y.dtype, y.shape)
        assert np.asarray(x).tobytes() == np.asarray(y).tobytes(), path


def tensors(weights: dict[str, np.ndarray]) -> dict[str, Any]:
    return {name: torch.from_numpy(a) for name, a in weights.items()}


@eqx.filter_jit
def outputs(net: Any, xs: Any, mask: Any = None) -> Any:
    return net(xs, mask=mask)


@eqx.filter_jit
def unroll(net: Any, xs: Any, state: Any) -> Any:
    return net.unroll(xs, state)[0]
