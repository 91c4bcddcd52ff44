"""What a stored model may be made of, without trust in anything but this library: a fixed table, of objects by name.

Classes: modules, named tuples and enumerations that have a public name in one of the rooms of layers. Functions: those
listed here, which compute numbers from numbers. None of them calls what it is given, reads or writes; a function that
is not listed may, whatever package it is of. A name is looked up in the table and nowhere else.
"""

import enum
import functools
from types import ModuleType
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

import sequinox

from ... import attention, convolution, filters, layers, models, recurrent
from ...layers._composite import Named
from ...models._recurrent_encoder_decoder import same
from ...models._recurrent_net import Part

_ROOMS: tuple[ModuleType, ...] = (
    sequinox,
    attention,
    convolution,
    filters,
    layers,
    models,
    recurrent,
    eqx.nn,
)

_OF_JAX_NN = (
    *("relu", "relu6", "leaky_relu", "elu", "celu", "selu", "gelu", "silu", "mish", "glu", "squareplus"),
    *("sigmoid", "log_sigmoid", "hard_sigmoid", "hard_silu", "hard_tanh", "sparse_sigmoid", "soft_sign", "tanh"),
    *("softplus", "sparse_plus", "softmax", "log_softmax", "logsumexp", "standardize", "identity", "one_hot"),
)
_OF_JAX_NUMPY = (
    *("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "cbrt", "square", "reciprocal", "power"),
    *("sin", "cos", "tan", "arcsin", "arccos", "arctan", "arctan2", "sinh", "cosh", "arcsinh", "arccosh", "arctanh"),
    *("sinc", "hypot", "abs", "fabs", "sign", "heaviside", "negative", "positive", "floor", "ceil", "rint", "round"),
    *("trunc", "clip", "minimum", "maximum", "add", "subtract", "multiply", "divide", "mod", "logaddexp", "where"),
    *("nan_to_num", "isnan", "isfinite", "real", "imag", "conj", "angle", "deg2rad", "rad2deg"),
    *("min", "max", "mean", "sum", "ravel"),  # of one sample: for pooling, and a flat vector of it
    *("float16", "float32", "float64", "bfloat16", "complex64", "complex128", "bool_"),
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
)
_OF_JAX_LAX = (
    *("exp", "log", "log1p", "expm1", "sqrt", "rsqrt", "cbrt", "square", "integer_pow", "pow", "sin", "cos", "tanh"),
    *("logistic", "erf", "erfc", "erf_inv", "lgamma", "digamma", "abs", "neg", "sign", "floor", "ceil", "round"),
    *("max", "min", "add", "sub", "mul", "div", "clamp", "stop_gradient"),
)
# What modules put there themselves, under the names that these have where they are at home.
_PRIVATE: dict[str, Any] = {
    "sequinox.layers._composite:Named": Named,
    "sequinox.models._recurrent_net:Part": Part,
    "sequinox.models._recurrent_encoder_decoder:same": same,
    "equinox.nn._mlp:_identity": eqx.nn._mlp._identity,  # pyright: ignore[reportAttributeAccessIssue]
    "equinox.nn._shared:SharedNode": eqx.nn._shared.SharedNode,  # pyright: ignore[reportAttributeAccessIssue]
    "equinox.nn._stateful:_Sentinel": eqx.nn._stateful._Sentinel,  # pyright: ignore[reportAttributeAccessIssue]
}


@functools.cache
def allowed_classes() -> dict[str, type]:
    """Classes by their names, each once."""
    found = {
        f"{room.__name__}:{name}": value
        for room in reversed(_ROOMS)
        for name, value in vars(room).items()
        if not name.startswith("_") and isinstance(value, type) and _is_part(value)
    }
    by_class = {value: name for name, value in found.items()}  # the name in the first room counts
    return {name: cls for cls, name in by_class.items()} | {k: v for k, v in _PRIVATE.items() if isinstance(v, type)}


@functools.cache
def allowed_functions() -> dict[str, Any]:
    """Functions by their names, each once; and dtypes, which are functions of JAX."""
    found: dict[str, Any] = {}
    for module, names in ((jax.nn, _OF_JAX_NN), (jnp, _OF_JAX_NUMPY), (jax.lax, _OF_JAX_LAX)):
        for name in names:
            value = vars(module).get(name)  # not every version of JAX has them all
            if value is not None and not any(value is other for other in found.values()):
                found[f"{module.__name__}:{name}"] = value
    return found | {name: value for name, value in _PRIVATE.items() if not isinstance(value, type)}


@functools.cache
def _names() -> dict[int, tuple[str, Any]]:
    return {id(value): (name, value) for name, value in (allowed_classes() | allowed_functions()).items()}


def allowed_name(x: Any) -> str | None:
    """The name of a class or a function in the table."""
    name, value = _names().get(id(x), (None, None))
    return name if value is x else None


def _is_part(cls: type) -> bool:
    named_tuple = issubclass(cls, tuple) and hasattr(cls, "_fields")
    ours = cls.__module__.partition(".")[0] in ("sequinox", "equinox")
    return ours and (issubclass(cls, (eqx.Module, enum.Enum)) or named_tuple)
