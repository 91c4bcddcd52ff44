"""The structure of a model as JSON.

What is not an array is written down by value; classes and functions by the public names under which another version
of their package will still have them. Nothing is pickled.
"""

import dataclasses
import enum
import functools
import math
import sys
import types
from typing import Any

import equinox as eqx
import jax
import jax.tree_util as jtu
import numpy as np

from ._allowed import allowed_name
from ._fields import misfit
from ._leaves import is_key, key_impl

# Where a function has several public names.
_PREFERRED = ("jax.nn", "jax.numpy", "jax.lax", "equinox.nn")


def describe(model: Any) -> Any:
    """The structure of a model, JSON-able: classes, sizes, functions, and of its arrays shape and dtype.

    Raises:
        ValueError: something in it has no name or value to be written down, or does not fit what its class says of it;
            with the path of the field.
    """
    try:
        return _describe(model, "", static=False)
    except RecursionError:
        raise ValueError("the model cannot be written down: it is nested too deeply") from None


def _describe(x: Any, path: str, static: bool) -> Any:
    if x is None or type(x) in (bool, int, str):
        return x
    if type(x) is float:
        return x if math.isfinite(x) else {"float": str(x)}
    if type(x) is complex:
        return {"complex": [_describe(part, path, static) for part in (x.real, x.imag)]}
    if isinstance(x, enum.Enum):
        return {"enum": _name(type(x), path), "member": x.name}
    if isinstance(x, np.dtype):
        return {"dtype": x.name}
    if isinstance(x, (np.ndarray, np.generic, jax.Array, jax.ShapeDtypeStruct)):
        return _describe_array(x, path, static)
    if isinstance(x, type) and issubclass(x, np.generic):
        return {"scalar": np.dtype(x).name}
    if isinstance(x, eqx.Module):
        return _describe_module(x, path, static)
    if type(x) is list or type(x) is tuple:
        return {type(x).__name__: [_describe(item, f"{path}[{i}]", static) for i, item in enumerate(x)]}
    if isinstance(x, tuple):  # one with names
        arguments: Any = x.__getnewargs__()  # pyright: ignore[reportAttributeAccessIssue]
        where = [f"{path}.{name}" for name in getattr(x, "_fields", ())] or [path] * len(arguments)
        items = [_describe(item, at, static) for item, at in zip(arguments, where, strict=True)]
        return {"named": _name(type(x), path), "items": items}
    if type(x) is dict:
        parts = [(_describe(k, path, True), _describe(v, f"{path}[{k!r}]", static)) for k, v in x.items()]
        return {"dict": [list(part) for part in parts]}
    if type(x) in (functools.partial, jtu.Partial):
        static = static or type(x) is functools.partial  # which JAX does not look into
        if isinstance(x.func, eqx.Module):
            raise ValueError(_cannot(path, "a partial of a module; a partial can be of a function with a name"))
        return {
            "partial": _describe(x.func, f"{path}.func", static),
            "args": [_describe(a, f"{path}.args[{i}]", static) for i, a in enumerate(x.args)],
            "keywords": [[k, _describe(v, f"{path}.keywords[{k!r}]", static)] for k, v in x.keywords.items()],
            "tree": type(x) is jtu.Partial,
        }
    if isinstance(x, type) or callable(x):
        return {"name": _name(x, path)}
    if _is_marker(x):
        return {"marker": _name(type(x), path)}
    raise ValueError(_cannot(path, f"an instance of {home(type(x))}.{type(x).__qualname__}"))


def _is_marker(x: Any) -> bool:
    """Whether an object is nothing but its class, such as what `eqx.nn.Shared` puts in a shared array's place."""
    return type(x).__new__ is object.__new__ and getattr(x, "__dict__", None) == {}


def _describe_array(x: Any, path: str, static: bool) -> Any:
    if static:
        raise ValueError(_cannot(path, "an array in a static field or a function's arguments"))
    if is_key(x):
        return {"key": list(x.shape), "impl": str(key_impl(x))}
    kind = "numpy" if isinstance(x, (np.ndarray, np.generic)) else "array"
    return {kind: list(x.shape), "dtype": np.dtype(x.dtype).name}


def _describe_module(module: eqx.Module, path: str, static: bool) -> Any:
    fields: Any = dataclasses.fields(module)  # pyright: ignore[reportArgumentType]
    if vars(module).keys() - {field.name for field in fields}:
        raise ValueError(_cannot(path, f"a {type(module).__qualname__} that wraps a function"))
    if wrong := misfit(module):
        name, what = wrong
        raise ValueError(f"{f'{path}.{name}'.lstrip('.')} is {what}")
    return {
        "class": _name(type(module), path),
        "fields": {
            field.name: _describe(
                vars(module)[field.name], f"{path}.{field.name}", static or field.metadata.get("static", False)
            )
            for field in fields
            if field.name in vars(module)
        },
    }


def _cannot(path: str, what: str) -> str:
    return f"{path.lstrip('.') or 'the model'} cannot be written down: it is {what}"


def home(x: Any) -> str:
    """The module that a class, a function or an object comes from."""
    return getattr(x, "__module__", None) or type(x).__module__


def _name(x: Any, path: str) -> str:
    """`module:name`, under which it is found again; public where there is such a name."""
    if allowed := allowed_name(x):
        return allowed
    module, name, qualname = home(x), getattr(x, "__name__", ""), getattr(x, "__qualname__", "")
    root = module.partition(".")[0]
    for place in _public_modules(root, len(sys.modules)):
        if name and vars(sys.modules[place]).get(name) is x:
            return f"{place}:{name}"
    for place in _public_modules(root, len(sys.modules)):  # an alias only
        for alias, value in list(vars(sys.modules[place]).items()):
            if value is x and not alias.startswith("_"):
                return f"{place}:{alias}"
    if there := sys.modules.get(module):
        if qualname and _follow(there, qualname) is x:
            return f"{module}:{qualname}"
        for alias, value in list(vars(there).items()):  # a private name, such as that of a lambda
            if value is x:
                return f"{module}:{alias}"
    if isinstance(x, types.MethodType):
        raise ValueError(_cannot(path, f"the method {qualname} of an object"))
    shown = f"{module}.{qualname or type(x).__qualname__}"
    raise ValueError(_cannot(path, f"{shown}, which has no name in a module; define it at the top of one"))


@functools.lru_cache(maxsize=64)
def _public_modules(root: str, n_loaded: int) -> list[str]:
    """The public modules of a package that have been imported, the shortest names first."""
    names = [name for name in list(sys.modules) if name == root or name.startswith(root + ".")]
    public = [n for n in names if not any(part.startswith("_") for part in n.split(".")[1:])]
    return sorted(public, key=lambda n: (n.count("."), n not in _PREFERRED, n))


def _follow(x: Any, qualname: str) -> Any:
    for part in qualname.split("."):
        x = getattr(x, part, None)
    return x
