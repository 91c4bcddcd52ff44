"""The structure of a model as JSON, and a model of that structure again.

What is not an array is written down by value; classes and functions by the public names under which another version
of their package will still have them. Nothing is pickled, and no module's `__init__` runs on the way back.
"""

import dataclasses
import enum
import functools
import importlib
import math
import sys
import types
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np

from ._leaves import is_key, key_impl

TRUSTED = ("sequinox", "equinox", "jax", "optax")
"""Packages whose classes and functions may be named by a file."""

# They read and write files, which no model does.
_NEVER = {"jax.numpy": ("fromfile", "load", "save", "savez")}
# Where a function has several public names.
_PREFERRED = ("jax.nn", "jax.numpy", "jax.lax", "equinox.nn")


def describe(model: Any) -> Any:
    """The structure of a model, JSON-able: classes, sizes, functions, and of its arrays shape and dtype.

    Raises:
        ValueError: something in it has no name or value to be written down; with the path of the field.
    """
    return _describe(model, "", static=False)


def rebuild(structure: Any, array: Callable[[str, tuple[int, ...], Any], Any], trust: tuple[str, ...], who: str) -> Any:
    """A model of a described structure.

    Arguments:
        structure: what `describe` gave.
        array: `(kind, shape, dtype) -> array`, called in no particular order; `kind` is `"array"`, `"numpy"` or
            `"key"`, and `dtype` for keys is their implementation.
        trust: packages besides `TRUSTED` whose classes and functions may be named.
        who: for messages.

    Raises:
        ValueError: a name that is not trusted or not found, a class whose fields have changed, or no description.
    """
    try:
        model = _Builder(array, (*TRUSTED, *trust), who).build(structure)
        same = describe(model) == structure
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        raise ValueError(f"{who}: the description of the model is damaged: {error!r}.") from error
    if not same:
        raise ValueError(f"{who}: what was rebuilt from the description of the model has another description.")
    return model


# ---- to JSON ---------------------------------------------------------------------------------------------------------


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
    raise ValueError(_cannot(path, f"an instance of {_home(type(x))}.{type(x).__qualname__}"))


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


def _home(x: Any) -> str:
    return getattr(x, "__module__", None) or type(x).__module__


def _name(x: Any, path: str) -> str:
    """`module:name`, under which it is found again; public where there is such a name."""
    module, name, qualname = _home(x), getattr(x, "__name__", ""), getattr(x, "__qualname__", "")
    root = module.partition(".")[0]
    for place in _public_modules(root, len(sys.modules)):
        if name and vars(sys.modules[place]).get(name) is x:
            return f"{place}:{name}"
    for place in _public_modules(root, len(sys.modules)):  # an alias only
        for alias, value in list(vars(sys.modules[place]).items()):
            if value is x and not alias.startswith("_"):
                return f"{place}:{alias}"
    if home := sys.modules.get(module):
        if qualname and _follow(home, qualname) is x:
            return f"{module}:{qualname}"
        for alias, value in list(vars(home).items()):  # a private name, such as that of a lambda
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


# ---- from JSON -------------------------------------------------------------------------------------------------------


class _Builder:
    def __init__(self, array: Callable[[str, tuple[int, ...], Any], Any], trusted: tuple[str, ...], who: str):
        self._array, self._trusted, self._who = array, trusted, who

    def build(self, node: Any) -> Any:
        match node:  # a pattern also takes nodes with more keys: those with most come first
            case None | bool() | int() | float() | str():
                return node
            case {"float": text}:
                return {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}[text]
            case {"complex": [real, imag]}:
                return complex(self.build(real), self.build(imag))
            case {"array": shape, "dtype": dtype}:
                return self._array("array", tuple(shape), jnp.dtype(dtype))
            case {"numpy": shape, "dtype": dtype}:
                return self._array("numpy", tuple(shape), jnp.dtype(dtype))
            case {"key": shape, "impl": impl}:
                return self._array("key", tuple(shape), impl)
            case {"dtype": name}:
                return jnp.dtype(name)
            case {"scalar": name}:
                return jnp.dtype(name).type
            case {"list": items}:
                return [self.build(item) for item in items]
            case {"tuple": items}:
                return tuple(self.build(item) for item in items)
            case {"dict": pairs}:
                return {self.build(key): self.build(value) for key, value in pairs}
            case {"named": name, "items": items}:
                return self._class(name, tuple)(*(self.build(item) for item in items))
            case {"enum": name, "member": member}:
                return self._class(name, enum.Enum)[member]
            case {"partial": function, "args": args, "keywords": keywords, "tree": tree}:
                kind = jtu.Partial if tree else functools.partial
                given = {name: self.build(value) for name, value in keywords}
                return kind(self.build(function), *(self.build(a) for a in args), **given)
            case {"name": name}:
                return self._find(name)
            case {"marker": name}:
                return object.__new__(self._class(name, object))
            case {"class": name, "fields": fields}:
                return self._module(name, fields)
        raise ValueError(f"{self._who}: the description of the model is damaged: {node!r:.200}.")

    def _module(self, name: str, fields: dict[str, Any]) -> Any:
        cls = self._class(name, eqx.Module)
        unknown = sorted(fields.keys() - {field.name for field in dataclasses.fields(cls)})
        if unknown:
            raise ValueError(f"{self._who}: {name} has no fields {unknown}, which it had when the model was saved.")
        module = object.__new__(cls)  # no code of the class runs
        for field in dataclasses.fields(cls):
            if field.name in fields:
                object.__setattr__(module, field.name, self.build(fields[field.name]))
            elif field.init:
                raise ValueError(f"{self._who}: {name} has a field {field.name!r}, which the saved model lacks.")
        return module

    def _class(self, name: str, base: type) -> Any:
        found = self._find(name)
        if not (isinstance(found, type) and issubclass(found, base)):
            raise ValueError(f"{self._who}: {name} is not a class of the kind that the model had.")
        return found

    def _find(self, name: str) -> Any:
        """A class or function by its name, if its package is trusted; nothing else is ever imported."""
        module, _, qualname = name.partition(":")
        self._check_trust(module, name)
        if qualname in _NEVER.get(module, ()):
            raise ValueError(f"{self._who}: the model names {name}, which is no part of a model.")
        try:
            found = sys.modules[module] if module == "__main__" else importlib.import_module(module)
            for part in qualname.split("."):
                found = getattr(found, part)
        except (ImportError, AttributeError) as error:
            raise ValueError(f"{self._who}: the model names {name}, which cannot be found here: {error}.") from error
        self._check_trust(_home(found), name)  # not what a module has merely imported
        return found

    def _check_trust(self, module: str, name: str) -> None:
        root = module.partition(".")[0]
        if root not in self._trusted:
            raise ValueError(
                f"{self._who}: the model names {name}, of the package {root!r}, which is not among those trusted "
                f"({', '.join(self._trusted)}). If you trust it: trust=({root!r},)."
            )
