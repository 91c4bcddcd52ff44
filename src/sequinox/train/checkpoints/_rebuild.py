"""A model from the JSON that describes its structure: of what is allowed or trusted, and of nothing else."""

import dataclasses
import enum
import functools
import importlib
import inspect
import math
import sys
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu

from ._allowed import allowed_classes, allowed_functions
from ._describe import describe, home
from ._fields import check_by_constructors


def rebuild(structure: Any, array: Callable[[str, tuple[int, ...], Any], Any], trust: tuple[str, ...], who: str) -> Any:
    """A model of a described structure.

    Arguments:
        structure: what `describe` returned.
        array: `(kind, shape, dtype) -> array`, called in no particular order; `kind` is `"array"`, `"numpy"` or
            `"key"`, and `dtype` for keys is their implementation.
        trust: packages whose classes and functions may be named as well as those of the fixed table.
        who: for messages.

    Raises:
        ValueError: a name that is not allowed or not found, a class whose fields have changed, fields that do not fit
            each other, or no description.
    """
    try:
        model = _Builder(array, trust, who).build(structure)
        try:
            again = describe(model)
            check_by_constructors(model)
        except ValueError as error:
            raise ValueError(f"{who}: the description of the model is wrong: {error}") from None
        same = again == structure
    except RecursionError:
        raise ValueError(f"{who}: the description of the model is damaged: it is nested too deeply") from None
    except (ArithmeticError, AttributeError, LookupError, TypeError) as error:
        raise ValueError(f"{who}: the description of the model is damaged: {error!r:.300}") from error
    if not same:
        raise ValueError(f"{who}: what was rebuilt from the description of the model has another description")
    return model


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
            case {"array": [*shape], "dtype": str(dtype)}:
                return self._array("array", self._shape(shape), jnp.dtype(dtype))
            case {"numpy": [*shape], "dtype": str(dtype)}:
                return self._array("numpy", self._shape(shape), jnp.dtype(dtype))
            case {"key": [*shape], "impl": str(impl)}:
                return self._array("key", self._shape(shape), impl)
            case {"dtype": str(name)}:
                return jnp.dtype(name)
            case {"scalar": str(name)} if any(
                jnp.issubdtype(jnp.dtype(name), kind) for kind in (jnp.bool_, jnp.number)
            ):
                return jnp.dtype(name).type  # of numbers alone: `object` or `str` would be a function of anything
            case {"list": [*items]}:
                return [self.build(item) for item in items]
            case {"tuple": [*items]}:
                return tuple(self.build(item) for item in items)
            case {"dict": [*pairs]}:
                return {self.build(key): self.build(value) for key, value in self._pairs(pairs)}
            case {"named": str(name), "items": [*items]}:
                return self._class(name, tuple)(*(self.build(item) for item in items))
            case {"enum": str(name), "member": str(member)}:
                return self._class(name, enum.Enum)[member]
            case {"partial": function, "args": [*args], "keywords": [*keywords], "tree": bool(tree)}:
                return self._partial(function, args, self._pairs(keywords), tree)
            case {"name": str(name)}:
                return self._function(name)
            case {"marker": str(name)}:
                return object.__new__(self._class(name, object))
            case {"class": str(name), "fields": dict(fields)}:
                return self._module(name, fields)
        raise ValueError(f"{self._who}: the description of the model is damaged: {_beginning(node)}")

    def _shape(self, shape: list[Any]) -> tuple[int, ...]:
        if not all(type(n) is int and 0 <= n < 2**63 for n in shape):
            raise ValueError(f"{self._who}: the description of the model is damaged: a shape {_beginning(shape)}")
        return tuple(shape)

    def _pairs(self, pairs: list[Any]) -> list[list[Any]]:
        if not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
            raise ValueError(f"{self._who}: the description of the model is damaged: {_beginning(pairs)}")
        return pairs

    def _partial(self, function: Any, args: list[Any], keywords: list[list[Any]], tree: bool) -> Any:
        """A function with arguments: one that has a name, so that what is called has passed the table or the trust."""
        match function:
            case {"name": str(name)}:
                built = self._function(name)
            case _:
                raise ValueError(f"{self._who}: the model has a partial of what is no function with a name")
        if name in allowed_functions() and not all(map(_is_plain, [*args, *(value for _, value in keywords)])):
            raise ValueError(f"{self._who}: the model has a partial of {name} with arguments that are no plain values")
        given = {key: self.build(value) for key, value in keywords}
        return (jtu.Partial if tree else functools.partial)(built, *map(self.build, args), **given)

    def _module(self, name: str, fields: dict[str, Any]) -> Any:
        cls = self._class(name, eqx.Module)
        unknown = sorted(fields.keys() - {field.name for field in dataclasses.fields(cls)})
        if unknown:
            raise ValueError(f"{self._who}: {name} has no fields {unknown}, which it had when the model was saved")
        module = object.__new__(cls)  # no code of the class runs
        for field in dataclasses.fields(cls):
            if field.name in fields:
                object.__setattr__(module, field.name, self.build(fields[field.name]))
            elif field.init:
                raise ValueError(f"{self._who}: {name} has a field {field.name!r}, which the saved model lacks")
        return module

    def _class(self, name: str, base: type) -> Any:
        found = allowed_classes().get(name)
        if found is None:
            found = self._find(name)
        if not (isinstance(found, type) and issubclass(found, base)):
            raise ValueError(f"{self._who}: {name} is not a class of the kind that the model had")
        return found

    def _function(self, name: str) -> Any:
        found = allowed_functions().get(name)
        return self._find(name) if found is None else found

    def _find(self, name: str) -> Any:
        """A class or function of a trusted package, by its name. Before the trust is sure, nothing is imported."""
        module, _, qualname = name.partition(":")
        root = module.partition(".")[0]
        if root not in self._trusted:
            raise ValueError(
                f"{self._who}: the model names {name}, which is none of the layers and functions that a model may have "
                f"without more trust. If you trust all code of the package {root!r}: trust=({root!r},)"
            )
        try:
            found = sys.modules[module] if module == "__main__" else importlib.import_module(module)
            for part in qualname.split("."):
                found = getattr(found, part)
                if inspect.ismodule(found) or home(found).partition(".")[0] != root:  # what it has merely imported
                    raise ValueError(f"{self._who}: the model names {name}, which is not of the package {root!r}")
        except (ImportError, AttributeError, KeyError) as error:
            raise ValueError(f"{self._who}: the model names {name}, which cannot be found here: {error}") from error
        return found


def _is_plain(node: Any) -> bool:
    """Whether a described value is a number, a text, an array, a function of the table, or made of such."""
    match node:
        case {"name": str(name)}:
            return name in allowed_functions()
        case {"list": [*items]} | {"tuple": [*items]}:
            return all(map(_is_plain, items))
        case {"dict": [*pairs]}:
            return all(_is_plain(part) for pair in pairs for part in pair)
        case dict():
            return not node.keys() & {"named", "enum", "partial", "marker", "class"}
    return True


def _beginning(node: Any) -> str:
    return f"{node!r:.200}" if not isinstance(node, (dict, list)) else f"{type(node).__name__} {list(node)!r:.200}"
