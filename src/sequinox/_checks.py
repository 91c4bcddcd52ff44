"""Checks of what users pass: each says what was expected, what came, and which argument."""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.export import is_symbolic_dim
from jaxtyping import Array

from ._types import BatchShape, DType, State


def conform(state: Any, expected: Any, where: str) -> State:
    """`state` in the containers of `expected` (a tree of shapes and dtypes), or an error that names the place.

    Tuples and lists stand for each other and for named tuples, so that a plain pair `(y, c)` is an LSTM's state.
    """
    if hasattr(expected, "as_given"):  # a cache may have other shapes than at the start
        expected = expected.as_given(state, where)
    if isinstance(expected, tuple) or type(expected) is list:
        names = getattr(expected, "_fields", None)
        given = check_tuple(state, len(expected), where, type(expected) if names else None)
        labels = [f".{n}" for n in names] if names else [f"[{i}]" for i in range(len(expected))]
        parts = [conform(s, e, where + n) for s, e, n in zip(given, expected, labels, strict=True)]
        return type(expected)(*parts) if names else type(expected)(parts)
    if type(expected) is dict:
        if not isinstance(state, dict) or set(state) != set(expected):
            shown = sorted(state) if isinstance(state, dict) else type(state).__name__
            raise TypeError(f"{where} must be a dictionary of {sorted(expected)}, got {shown}")
        return {k: conform(state[k], e, f"{where}[{k!r}]") for k, e in expected.items()}
    if isinstance(expected, jax.ShapeDtypeStruct):
        if not isinstance(state, jax.Array | np.ndarray):
            raise TypeError(f"{where} must be an array, got {type(state).__name__}")
        state = jnp.asarray(state)  # as samples are read: NumPy's float64 in JAX's own width
        if state.dtype != expected.dtype:
            raise TypeError(f"{where} must have dtype {expected.dtype}, got {state.dtype}")
        if state.shape != expected.shape:
            raise ValueError(
                f"{where} must have shape {expected.shape}, got {state.shape} (init_state(batch) gives one that fits)"
            )
        return state
    got, want = jax.tree.structure(state), jax.tree.structure(expected)
    if got != want:
        raise ValueError(f"{where} must have the structure {want}, got {got}")
    leaves = [
        conform(s, e, where + jax.tree_util.keystr(p))
        for (p, s), e in zip(jax.tree_util.tree_leaves_with_path(state), jax.tree.leaves(expected), strict=True)
    ]
    return jax.tree.unflatten(want, leaves)


def check_tuple(state: Any, n: int, where: str, kind: Any = None) -> Any:
    """A tuple or list of `n` parts of a state, checked; with the names of `kind`, a named tuple, or without any."""
    names = getattr(kind, "_fields", None)
    shown = f"{kind.__name__}({', '.join(names)})" if names else f"a tuple of {n}"
    if not isinstance(state, tuple | list):
        raise TypeError(f"{where} must be {shown}, got {type(state).__name__}")
    came: Any = getattr(state, "_fields", names)  # a plain tuple has no names to mistake
    if names and came != names:
        raise TypeError(f"{where} must be {shown}, got {type(state).__name__}({', '.join(came)})")
    if len(state) != n:
        raise ValueError(f"{where} must be {shown}, got {len(state)} entries")
    return state


def batch_shape(batch: BatchShape, who: str) -> tuple[int, ...]:
    """The batch axes as a tuple, checked."""
    axes: Any = tuple(batch) if isinstance(batch, tuple | list) else (batch,)
    for n in axes:
        if is_symbolic_dim(n):  # of a function being exported for any batch
            continue
        if not isinstance(n, int | np.integer) or isinstance(n, bool):
            raise TypeError(f"{who}: batch must be an integer or a tuple of integers, got {batch!r}")
        if n < 0:
            raise ValueError(f"{who}: batch must not be negative, got {batch!r}")
    return axes


def size(value: Any, who: str, name: str, least: int = 1) -> int:
    """A whole number of at least `least`, checked: a width or a count."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"{who}: {name} must be an integer, got {value!r}")
    if value < least:
        raise ValueError(f"{who}: {name} must be at least {least}, got {value}")
    return int(value)


def sizes(who: str, **values: Any) -> tuple[int, ...]:
    """Several positive integers by their names, checked, as `sizes(who, n_in=n_in, n_hidden=n_hidden)`."""
    return tuple(size(value, who, name) for name, value in values.items())


def raise_if(values: Any, wrong: Array, message: str) -> Any:
    """The values, or a `ValueError` if any of `wrong` is True: at once, or under `jit` as the program runs."""
    if isinstance(wrong, Tracer):
        return eqx.error_if(values, wrong, message)
    if bool(jnp.any(wrong)):
        raise ValueError(message)
    return values


def check_array(x: Any, who: str, name: str) -> None:
    """Refuses what is no array of JAX or NumPy, and says how to make one of a list or another library's."""
    if isinstance(x, jax.Array | np.ndarray):
        return
    hint = ""
    if isinstance(x, list | tuple | int | float):
        hint = f": give numpy.asarray({name}, numpy.float32), or numpy.asarray({name}) of integer tokens"
    elif callable(getattr(x, "numpy", None)):  # of PyTorch or TensorFlow
        hint = f": give {name}.numpy()"
    raise TypeError(f"{who}: {name} must be a JAX or NumPy array, got {type(x).__name__}{hint}")


def is_inexact(leaf: Any) -> bool:
    """Whether a leaf is a floating-point array, or stands for one (`jax.ShapeDtypeStruct`): what is trained."""
    return eqx.is_inexact_array(leaf) or (
        isinstance(leaf, jax.ShapeDtypeStruct) and bool(jnp.issubdtype(leaf.dtype, jnp.inexact))
    )


def check_flags(flags: Any, shape: tuple[int, ...], who: str, name: str, shape_of: str = "the samples") -> Array | None:
    """A boolean array of exactly this shape, that of `shape_of`; None stays None."""
    if flags is None:
        return None
    if not isinstance(flags, jax.Array | np.ndarray | np.generic):
        raise TypeError(f"{who}: {name} must be a JAX or NumPy array, got {type(flags).__name__}")
    if flags.dtype != np.dtype(bool):
        hint = f"give {name}.astype(bool)" + ("; a weight is not a mask" if "mask" in name else "")
        if name == "mask" and shape and flags.shape == shape[:-1] and jnp.issubdtype(flags.dtype, jnp.integer):
            hint = f"lengths become a mask by sequinox.mask_from_lengths(lengths, {shape[-1]})"
        raise TypeError(f"{who}: {name} must be boolean, got dtype {flags.dtype}: {hint}")
    if flags.shape != shape:
        raise ValueError(f"{who}: {name} must have shape {shape}, as {shape_of}, got {flags.shape}")
    return jnp.asarray(flags)


def check_key(key: Any, who: str) -> Array:
    """A PRNG key, typed or raw, checked."""
    typed = isinstance(key, jax.Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    raw = isinstance(key, jax.Array | np.ndarray) and key.dtype == np.uint32 and key.shape == (2,)
    if not (typed and key.shape == ()) and not raw:
        what = f"an array of {key.dtype} {key.shape}" if isinstance(key, jax.Array | np.ndarray) else repr(key)
        raise TypeError(f"{who}: key must be a PRNG key, such as jax.random.key(0), got {what}")
    return jnp.asarray(key)


def float_dtype(dtype: DType | None, who: str) -> np.dtype:
    """`dtype` of a constructor, checked; None is JAX's default floating-point dtype."""
    if dtype is None:
        return jnp.zeros(()).dtype
    try:
        dtype = jnp.dtype(dtype)
    except TypeError:
        raise TypeError(f"{who}: dtype must be a floating dtype, got {dtype!r}") from None
    if not jnp.issubdtype(dtype, jnp.floating):
        raise TypeError(f"{who}: dtype must be a floating dtype, got {dtype}")
    if jnp.finfo(dtype).bits < 16:
        raise TypeError(f"{who}: dtype must be a floating dtype of at least 16 bits, got {dtype}")
    if jax.dtypes.canonicalize_dtype(dtype) != dtype:
        raise ValueError(f'{who}: dtype {dtype} needs JAX\'s 64-bit mode: jax.config.update("jax_enable_x64", True)')
    return dtype


def wide(dtype: DType) -> np.dtype:
    """Float32 at least: the dtype of sums and of states that move slowly, which would stand still in half precision."""
    return jnp.dtype(dtype if jnp.finfo(dtype).bits >= 32 else jnp.float32)


def flag(value: Any, who: str, name: str) -> bool:
    """True or False, checked."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{who}: {name} must be True or False, got {value!r}")
    return bool(value)


def number(value: Any, who: str, name: str) -> float:
    """A finite real number, checked."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise TypeError(f"{who}: {name} must be a number, got {value!r}")
    if not math.isfinite(value):
        raise ValueError(f"{who}: {name} must be finite, got {value}")
    return float(value)


def check_rate(value: Any, who: str, name: str) -> float:
    """A probability in [0, 1), checked."""
    rate = number(value, who, name)
    if not 0 <= rate < 1:
        raise ValueError(f"{who}: {name} must be at least 0 and less than 1, got {value}")
    return rate
