"""Products of numbers: how many a program has, and how many a second a device can do."""

import collections
import functools
import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..._types import DType

# Programs in which no products are seen: kernels written by hand, and what runs outside XLA.
_OPAQUE = ("pallas_call", "ffi_call", "custom_call", "triton_call")
# Sizes of the square matrices that find the peak, and how long a product is long enough.
_SIZES = (256, 512, 1024, 2048, 4096, 8192)
_ENOUGH_SECONDS = 0.01


class Flops(NamedTuple):
    """Of a program: the operations in its products by dtype, and the names of instructions that hide some."""

    by_dtype: dict[Any, int]
    uncounted: tuple[str, ...]

    @property
    def number(self) -> int:
        """In all dtypes."""
        return sum(self.by_dtype.values())


def count_flops(jaxpr: Any) -> Flops:
    """Floating-point operations in the matrix products and convolutions of a traced program.

    A product of two numbers and its addition are two operations, of complex numbers eight. Everything elementwise is
    left out, and so are a convolution's products with padding and inserted zeros. A scan counts as often as it runs
    (XLA's own analysis counts the body of any loop once), a condition by its dearer branch.

    Arguments:
        jaxpr: as `jax.jit(f).trace(...).jaxpr` or `jax.make_jaxpr(f)(...)` returns it.
    """
    numbers: collections.Counter[Any] = collections.Counter()
    uncounted: set[str] = set()
    for eqn in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        name = eqn.primitive.name
        if name == "dot_general":
            (contracted, _), _ = eqn.params["dimension_numbers"]
            depth = math.prod(eqn.invars[0].aval.shape[i] for i in contracted)
            numbers[eqn.invars[0].aval.dtype] += _operations(eqn) * eqn.outvars[0].aval.size * depth
        elif name == "conv_general_dilated":
            numbers[eqn.invars[0].aval.dtype] += _operations(eqn) * _convolution_products(eqn)
        elif name in _OPAQUE:
            uncounted.add(name)
        else:
            if name == "while":
                uncounted.add(name)  # nobody knows how often it runs: counted once
            parts = [count_flops(sub) for value in eqn.params.values() for sub in _inside(value)]
            uncounted.update(*(part.uncounted for part in parts))
            if name == "cond":
                parts = [max(parts, key=lambda part: part.number)]
            for part in parts:
                numbers.update({dtype: n * eqn.params.get("length", 1) for dtype, n in part.by_dtype.items()})
    return Flops(dict(numbers), tuple(sorted(uncounted)))


def _inside(value: Any) -> list[Any]:
    """The programs in a parameter of an instruction."""
    if isinstance(value, list | tuple):
        return [sub for v in value for sub in _inside(v)]
    return [value] if hasattr(getattr(value, "jaxpr", value), "eqns") else []


def _operations(eqn: Any) -> int:
    return 8 if all(jnp.issubdtype(v.aval.dtype, jnp.complexfloating) for v in eqn.invars) else 2


def _convolution_products(eqn: Any) -> int:
    """Of one entry of the output with each tap of the kernel that meets an entry of the input."""
    p, (lhs, rhs), out = eqn.params, [v.aval.shape for v in eqn.invars], eqn.outvars[0].aval.shape
    layout = p["dimension_numbers"]
    taps = 1
    for axis, (low, _) in enumerate(p["padding"]):
        n, k, m = (shape[spec[2 + axis]] for shape, spec in zip((lhs, rhs, out), layout, strict=True))
        stride, spread, apart = p["window_strides"][axis], p["lhs_dilation"][axis], p["rhs_dilation"][axis]
        starts = np.arange(m) * stride - low
        places = (starts + tap * apart for tap in range(k))
        taps *= sum(int(np.sum((at >= 0) & (at <= (n - 1) * spread) & (at % spread == 0))) for at in places)
    return out[layout.out_spec[0]] * out[layout.out_spec[1]] * rhs[layout.rhs_spec[1]] * taps


def matmul_peak(device: Any, dtype: DType) -> float:
    """Operations a second in square matrix products, the best of a few sizes; measured once a process.

    In the precision that JAX is set to, which is what a model's products have.
    """
    precision: Any = getattr(jax.config, "jax_default_matmul_precision")  # noqa: B009  # pyright does not know it
    return _matmul_peak(device, jnp.dtype(dtype), precision)


@functools.cache
def _matmul_peak(device: Any, dtype: Any, precision: Any) -> float:
    del precision  # of the cache
    best = 0.0
    with jax.default_device(device):
        multiply = jax.jit(jnp.matmul)
        for n in _SIZES:
            a = jnp.full((n, n), 1 / n, dtype)
            seconds = min(run_seconds(lambda a=a: multiply(a, a), 5))
            best = max(best, (8 if jnp.iscomplexobj(a) else 2) * n**3 / seconds)
            if seconds > _ENOUGH_SECONDS:
                break
    return best


def run_seconds(run: Callable[[], Any], repeats: int) -> list[float]:
    """How long each of several runs took, until what it returns is computed; after one that is not counted."""
    taken = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        jax.block_until_ready(run())
        taken.append(time.perf_counter() - start)
    return taken[1:]
