"""Whether the fields of a module fit what its class says of them: kinds, names, sizes and shapes."""

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
import jax.tree_util as jtu
import numpy as np

from ..._layer import SequenceLayer
from ...models import EncoderDecoder, RecurrentEncoderDecoder
from ...recurrent import Zoneout
from ._allowed import allowed_name

_PLAIN = (bool, int, float, complex, str)
# Whose fields are not what the constructor was given, or which run layers; and an MLP, whose depth would be believed.
_NOT_REMADE = (eqx.nn.MLP, eqx.nn.Shared, eqx.nn.StateIndex, EncoderDecoder, RecurrentEncoderDecoder, Zoneout)
_ARRAYS = (jax.Array, np.ndarray, np.generic, jax.ShapeDtypeStruct)


def misfit(module: eqx.Module) -> tuple[str, str] | None:
    """The name of a field that does not fit, and what it is; None if all do.

    Fields are compared with their annotations (`int | None`, `Literal["tanh"]`, `tuple[SequenceLayer, ...]`); the last
    axes of arrays with the fields that jaxtyping names them after (`Float[Array, "n_hidden n_in"]`). Axes before those
    are those of several models in one. Of people's own classes, whose annotations are looser than their values, only
    static fields and plain values are compared.
    """
    hints, ours = _hints(type(module)), allowed_name(type(module)) is not None
    fields: Any = dataclasses.fields(module)  # pyright: ignore[reportArgumentType]
    values = {field.name: vars(module)[field.name] for field in fields if field.name in vars(module)}
    sizes_by_name = values | {"d_model": values.get("n_in")}
    for field in fields:
        if field.name not in values:
            continue
        value, kind = values[field.name], hints.get(field.name, Any)
        static = field.metadata.get("static", False)
        if value is None and not (ours and static):
            continue  # what a filter has taken out; people also write `n_in: int` where they mean `int | None`
        in_range = not ours or _in_range(field.name, value, kind)
        if (static or ours or type(value) in _PLAIN) and not (in_range and _fits(value, kind)):
            return field.name, f"{value!r:.100}, where {type(module).__qualname__} has {_show(kind)}"
        if isinstance(value, _ARRAYS) and (axes := _axes(kind)) is not None:
            sizes = [_size(axis, sizes_by_name) for axis in axes]
            shape = tuple(value.shape)
            last = shape[len(shape) - len(axes) :]
            if len(last) != len(axes) or any(s is not None and s != n for s, n in zip(sizes, last, strict=True)):
                names = [name for axis in axes for name in axis.split("*")]
                named = {name: sizes_by_name[name] for name in names if _is_size(sizes_by_name.get(name))}
                where = ", ".join(f"{name} is {size}" for name, size in named.items())
                return field.name, f"an array of shape {shape}, where its axes are {' '.join(axes)!r} ({where})"
    return None


def check_by_constructors(model: Any) -> None:
    """Refuses a field that its class's own constructor would not make of the others.

    Constructors of the table run on shapes alone, with the static fields and the layers that they are given, and their
    checks of these apply. A module that holds anything from outside the table is not compared: nothing of it runs.

    Raises:
        ValueError: with the path of the field.
    """
    try:
        _remake(model, "")
    except _Contradiction as found:
        path, what = found.args
        raise ValueError(f"{path.lstrip('.') or 'the model'} is {what}") from None


class _Contradiction(Exception):
    """Arguments: the path, and what is there."""


def _remake(node: Any, path: str) -> tuple[Any, bool]:
    """The parts of a tree as their constructors make them, of one model each, and whether all are of the table."""
    if not isinstance(node, eqx.Module):
        known = True

        def part(at: Any, leaf: Any) -> Any:
            nonlocal known
            if isinstance(leaf, eqx.Module):
                leaf, of_table = _remake(leaf, path + jtu.keystr(at))
            else:
                function = leaf.func if isinstance(leaf, functools.partial) else leaf
                of_table = not callable(function) or allowed_name(function) is not None
            known = known and of_table
            return leaf

        is_part = lambda x: isinstance(x, (eqx.Module, functools.partial))
        try:
            return jtu.tree_map_with_path(part, node, is_leaf=is_part), known
        except ValueError:  # a dictionary whose keys JAX cannot sort
            return node, False

    cls, known = type(node), allowed_name(type(node)) is not None
    values, static = {}, set()
    for field in dataclasses.fields(node):  # pyright: ignore[reportArgumentType]
        if field.name in vars(node):
            values[field.name], of_table = _remake(vars(node)[field.name], f"{path}.{field.name}")
            known = known and of_table
            if field.metadata.get("static", False):
                static.add(field.name)
    if not known or cls in _NOT_REMADE:
        return node, known
    given = {}
    for name, parameter in inspect.signature(cls).parameters.items():
        source = "n_in" if name == "d_model" else name
        value = values.get(source)
        needed = parameter.default is parameter.empty and parameter.kind is not parameter.VAR_POSITIONAL
        if name == "key":
            given[name] = jax.eval_shape(lambda: jax.random.key(0))
        elif source in static or (_has_parts(value) and (needed or _fits(value, parameter.annotation))):
            given[name] = value
        elif needed and (value is None or isinstance(value, _ARRAYS)):
            return node, known  # it cannot be told what it was given
        elif needed:
            given[name] = value
    try:
        again = eqx.filter_eval_shape(cls, **given)
    except (TypeError, ValueError) as error:
        raise _Contradiction(path, f"no {cls.__qualname__} that can be: {error}") from None
    for name, made in vars(again).items():
        value = vars(node).get(name)
        if isinstance(value, _ARRAYS) and isinstance(made, _ARRAYS):
            # The axes of our own arrays have names.
            if cls.__module__.startswith("equinox") and value.shape[max(0, value.ndim - made.ndim) :] != made.shape:
                sizes = ", ".join(f"{key}={values[key]!r}" for key in given if key in static)
                what = f"an array of shape {value.shape}, where {sizes} make it {made.shape}"
                raise _Contradiction(f"{path}.{name}", what)
        elif name in static and type(made) in (int, types.NoneType) and value != made:
            raise _Contradiction(f"{path}.{name}", f"{value!r:.100}, where the other fields make it {made}")
    return again, known


def _has_parts(value: Any) -> bool:
    leaves = jax.tree.leaves(value, is_leaf=lambda x: isinstance(x, eqx.Module))
    return any(isinstance(leaf, eqx.Module) or callable(leaf) for leaf in leaves)


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
        return type(value) in (int, float) or isinstance(value, _ARRAYS)
    if kind is bool:
        return type(value) is bool or isinstance(value, _ARRAYS)
    if kind in (int, complex, str):
        return type(value) is kind
    if kind is jax.Array or _axes(kind) is not None:
        # Or what people put there: a module of theirs, or the mark that the array is elsewhere.
        own = isinstance(value, eqx.Module) and allowed_name(type(value)) is None
        return own or isinstance(value, _ARRAYS) or type(value) is eqx.nn._shared.SharedNode  # pyright: ignore[reportAttributeAccessIssue]
    if inspect.isclass(kind) and issubclass(kind, eqx.Module):
        return isinstance(value, SequenceLayer if issubclass(kind, SequenceLayer) else eqx.Module)
    return True


def _in_range(name: str, value: Any, kind: Any) -> bool:
    """Whether numbers may be what their field is called: a size, the probability `p`, `rates`."""
    if name in ("p", "rates"):
        numbers = value if isinstance(value, (tuple, list)) else [value]
        return all(0 <= n <= 1 for n in numbers if type(n) in (int, float))
    return kind is not int or type(value) is not int or value >= 0


def _axes(kind: Any) -> list[str] | None:
    """The last axes of an array with an annotation of jaxtyping, after any that are for several."""
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
    """What an axis must be by the fields; None if they do not say."""
    factors = [int(name) if name.isdecimal() else values.get(name) for name in axis.split("*")]
    return math.prod(f for f in factors if f is not None) if all(map(_is_size, factors)) else None


def _is_size(value: Any) -> bool:
    return type(value) is int


def _show(kind: Any) -> str:
    return kind.__name__ if isinstance(kind, type) and not typing.get_args(kind) else str(kind).replace("typing.", "")
