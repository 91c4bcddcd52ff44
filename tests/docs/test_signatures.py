"""Public signatures have types: `Any` is for arguments that truly take anything."""

import collections
import inspect
import types
from collections.abc import Callable, Iterator
from typing import Any, Union, get_args, get_origin

from test_examples import NAMES


def signatures() -> Iterator[tuple[str, Callable]]:
    """Every function, constructor and method of the public names, each once, by its qualified name."""
    is_callable = lambda thing: inspect.isfunction(thing) or inspect.ismethod(thing)
    seen = set()
    for item in NAMES.values():
        members: list[Any] = inspect.getmembers(item, is_callable) if inspect.isclass(item) else [("__call__", item)]
        public = [thing for name, thing in members if name in ("__init__", "__call__") or not name.startswith("_")]
        for function in map(inspect.unwrap, filter(is_callable, public)):
            name = f"{function.__module__}.{function.__qualname__}"
            if name.startswith("sequinox.") and name not in seen:
                seen.add(name)
                yield name, function


def untyped(parameter: inspect.Parameter) -> bool:
    """Whether the annotation is missing, `Any`, or a union with it, such as `Any | None`."""
    given = parameter.annotation
    kinds = get_args(given) if get_origin(given) in (Union, types.UnionType) else [given]
    return Any in kinds or inspect.Parameter.empty in kinds


def parameters(function: Callable) -> list[inspect.Parameter]:
    return [p for name, p in inspect.signature(function).parameters.items() if name != "self"]


def test_less_than_a_twentieth_of_the_public_parameters_takes_anything():
    of_any, of_all, names = collections.Counter(), collections.Counter(), collections.Counter()
    for name, function in signatures():
        for parameter in parameters(function):
            room, anything = name.split(".")[1], untyped(parameter)
            of_any[room] += anything
            of_all[room] += 1
            names[name] += anything
    assert of_all.total() > 900
    rooms = ", ".join(f"{room} {n} of {of_all[room]}" for room, n in of_any.items() if n)
    worst = ", ".join(f"{name} {n}" for name, n in names.most_common(40) if n)
    assert of_any.total() < 0.05 * of_all.total(), f"{of_any.total()} of {of_all.total()}: {rooms}. Most in {worst}"


def test_what_counts_as_untyped():
    def function(a, b: Any, c: Any | None, d: int, e: list[Any], f: int | None, *g: Any):
        del a, b, c, d, e, f, g

    assert [parameter.name for parameter in parameters(function) if untyped(parameter)] == ["a", "b", "c", "g"]
