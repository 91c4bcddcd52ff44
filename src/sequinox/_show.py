"""How a layer is shown: what is set, and its arrays by their shapes."""

import dataclasses
import functools
import inspect
from typing import Any

import equinox as eqx
import wadler_lindig as wl

from ._checks import is_inexact


def pdoc(module: Any, **options: Any) -> wl.AbstractDoc:
    """`GRU(n_in=3, n_hidden=4, W_r W_z W=f32[4,3], U_r U_z U=f32[4,4], b_r b_z b=f32[4])`, broken where it is long.

    Widths come first, then options, then arrays, those of one shape together, and modules inside last. Left out are
    fields that are None or as the constructor has them by default, and widths where there are only modules inside.
    """
    settings, inside = [], []
    arrays: dict[str, list[str]] = {}
    for name, value in _fields(module):
        if is_inexact(value) or eqx.is_array(value):
            shown = wl.pformat(wl.array_summary(tuple(value.shape), value.dtype.name, None))
            arrays.setdefault(shown, []).append(name)
        elif isinstance(value, tuple) and any(isinstance(v, eqx.Module) for v in value):
            names = getattr(value, "names", None)  # layers may have names
            inside += _named(zip(names, value, strict=True), options) if names else [_doc(v, options) for v in value]
        else:
            (inside if isinstance(value, eqx.Module) else settings).extend(_named([(name, value)], options))
    if inside and not arrays:
        settings = [s for s in settings if not wl.pformat(s).startswith(("n_in=", "n_out="))]
    grouped = [wl.TextDoc(f"{' '.join(names)}={shown}") for shown, names in arrays.items()]
    begin, end = wl.TextDoc(f"{type(module).__name__}("), wl.TextDoc(")")
    docs = [*settings, *grouped, *inside]
    if not docs:
        return begin + end
    separator = wl.comma if inside else wl.TextDoc(",") + wl.GroupDoc(wl.BreakDoc(" "))  # as many in a line as fit
    return wl.bracketed(begin, docs, separator, end, options["indent"])


def _fields(module: Any) -> list[tuple[str, Any]]:
    """What is set, the widths first."""
    defaults = _defaults(type(module))
    names = [f.name for f in dataclasses.fields(module) if f.repr]
    names.sort(key=lambda name: not name.startswith("n_"))
    found = [(name, getattr(module, name, None)) for name in names]
    return [(name, value) for name, value in found if value is not None and not _same(value, defaults.get(name))]


@functools.cache
def _defaults(kind: Any) -> dict[str, Any]:
    """What a constructor takes for its arguments by default."""
    return {name: p.default for name, p in inspect.signature(kind.__init__).parameters.items()}


def _same(value: Any, default: Any) -> bool:
    plain = isinstance(value, str | int | float) and type(value) is type(default)
    return value is default or (plain and value == default)


def _named(pairs: Any, options: Any) -> list[wl.AbstractDoc]:
    return [wl.TextDoc(f"{name}=") + _doc(value, options) for name, value in pairs]


def _doc(value: Any, options: Any) -> wl.AbstractDoc:
    """A function by its name, a module of Equinox as a layer."""
    if isinstance(value, eqx.Module) and type(value).__repr__ is eqx.Module.__repr__:
        return wl.pdoc(value, **options) if hasattr(type(value), "__pdoc__") else pdoc(value, **options)
    if callable(value) and hasattr(value, "__name__") and not isinstance(value, type | eqx.Module):
        return wl.TextDoc(value.__name__)
    return wl.pdoc(value, **options)
