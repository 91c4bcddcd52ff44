"""Whether the fields of a module fit what its class says of them: sizes, names and shapes."""

import collections.abc
import dataclasses
import functools
import inspect
import math
import types
import typing
from typing import Any, Literal, TypeVar, Union

import equinox as eqx
import jax
import numpy as np

from ._allowed import allowed_name


def misfit(module: eqx.Module) -> tuple[str, str] | None:
    """The name of a field that does not fit, and what it is; None if all do.

    Static fields are compared with their annotations as far as these are plain (`int | None`, `Literal["tanh"]`); the
    last axes of arrays with the fields that jaxtyping names them after (`Float[Array, "n_hidden n_in"]`). Axes before
    those are those of several models in one.
    """
    hints = _hints(type(module))
    fields: Any = dataclasses.fields(module)  # pyright: ignore[reportArgumentType]
    values = {field.name: vars(module)[field.name] for field in fields if field.name in vars(module)}
    for field in fields:
        if field.name not in values:
            continue
        value, kind = values[field.name], hints.get(field.name, Any)
        if value is None and allowed_name(type(module)) is None:
            continue  # people write `n_in: int` where they mean `int | None`
        # Elsewhere None and booleans stand for what a filter has taken out.
        plain = field.metadata.get("static", False) or type(value) in (int, float, complex, str)
        if plain and not _fits(value, kind):
            return field.name, f"{value!r:.100}, where {type(module).__qualname__} has {_show(kind)}"
        if isinstance(value, (jax.Array, np.ndarray, jax.ShapeDtypeStruct)) and (axes := _axes(kind)) is not None:
            sizes = [_size(axis, values) for axis in axes]
            shape = tuple(value.shape)
            last = shape[len(shape) - len(axes) :]
            if len(last) != len(axes) or any(s is not None and s != n for s, n in zip(sizes, last, strict=True)):
                named = {name: values[name] for axis in axes for name in axis.split("*") if _is_size(values.get(name))}
                where = ", ".join(f"{name} is {size}" for name, size in named.items())
                return field.name, f"an array of shape {shape}, where its axes are {' '.join(axes)!r} ({where})"
    return None


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    try:
        return typing.get_type_hints(cls)
    except Exception:  # a name that is there for type checkers alone
        return {field.name: field.type for field in dataclasses.fields(cls)}


def _fits(value: Any, kind: Any) -> bool:
    """Whether a value fits an annotation; yes where the annotation is not one of plain values."""
    origin, of = typing.get_origin(kind), typing.get_args(kind)
    if origin in (Union, types.UnionType):
        return any(_fits(value, one) for one in of)
    if origin is Literal:
        return any(value == one and type(value) is type(one) for one in of)
    if origin is tuple and of:
        if not isinstance(value, (tuple, list)):
            return False
        if of[-1] is ...:
            return all(_fits(item, of[0]) for item in value)
        return len(value) == len(of) and all(map(_fits, value, of))
    if kind is collections.abc.Callable or origin is collections.abc.Callable:
        return callable(value)
    if kind is None or kind is types.NoneType:
        return value is None
    if kind is float:
        return type(value) in (int, float)
    if kind in (bool, int, complex, str):
        return type(value) is kind
    if _axes(kind) is not None or (inspect.isclass(kind) and issubclass(kind, eqx.Module)):
        return type(value) not in (bool, int, float, complex, str)
    return True


def _axes(kind: Any) -> list[str] | None:
    """The last axes of an array with an annotation of jaxtyping, after any that stand for several."""
    if typing.get_origin(kind) in (Union, types.UnionType):
        found = [_axes(one) for one in typing.get_args(kind) if one is not types.NoneType]
        return found[0] if len(found) == 1 else None
    text = getattr(kind, "dim_str", None)
    if not isinstance(text, str) or isinstance(kind, TypeVar):
        return None
    axes: list[str] = []
    for axis in text.split():
        axes = [] if axis.startswith("*") or axis == "..." else [*axes, axis.lstrip("#?_").partition("=")[2] or axis]
    return axes


def _size(axis: str, values: dict[str, Any]) -> int | None:
    """What an axis must be by the fields; None if they do not tell."""
    factors = [int(name) if name.isdecimal() else values.get(name) for name in axis.split("*")]
    return math.prod(f for f in factors if f is not None) if all(map(_is_size, factors)) else None


def _is_size(value: Any) -> bool:
    return type(value) is int


def _show(kind: Any) -> str:
    return kind.__name__ if isinstance(kind, type) and not typing.get_args(kind) else str(kind).replace("typing.", "")
