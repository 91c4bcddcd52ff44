"""The weights of a layer from PyTorch's names, and back."""

import os
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from .._checks import flag
from . import _safetensors
from ._layouts import CELLS, Tensor, arrays, is_floating, layout, path_name

L = TypeVar("L", bound=eqx.Module)

Weights: TypeAlias = Mapping[str, Any] | str | os.PathLike[str]
"""PyTorch tensors or arrays by their names, or the path of a file."""


def load_torch(layer: L, weights: Weights, prefix: str = "", *, bias: bool = True, cast: bool = False) -> L:
    """A layer with the weights of the PyTorch module that computes the same.

    Gates are found by their names, not by their order: the [guide](../guides/from_pytorch.md) shows both layouts.
    PyTorch's two bias vectors become one, their sum; only the GRU's $b_{hn}$, inside the reset, is kept apart.

    Arguments:
        layer: of the module's sizes: an [`RNN`][sequinox.RNN], a [`GRU`][sequinox.GRU] with `reset_after=True`, an
            [`LSTM`][sequinox.LSTM] with `peepholes=False`; for several layers and directions a
            [`Sequential`][sequinox.layers.Sequential] of them or of [`Bidirectional`][sequinox.layers.Bidirectional];
            or another of the layers in the table on [this page](../api/interop.md).
        weights: a `state_dict`, a mapping from names to PyTorch tensors or arrays; or the path of a `.safetensors`
            file. Names of `nn.GRUCell` (without `_l0`) serve a single cell as well.
        prefix: the module's name inside a larger one, such as `"encoder.rnn"`. Names outside of it are left alone;
            inside, each must be used.
        bias: False if the module was made with `bias=False`: our biases are then zero.
        cast: whether weights of another floating dtype are converted to the layer's. Default: an error.

    Returns:
        The layer with its arrays replaced. They are copies: later changes in PyTorch do not reach them.

    Raises:
        ValueError: names that are missing or not expected, wrong shapes, wrong dtypes, all listed; a layer without
            an equivalent in PyTorch; a file in another format (a pickle is never read).
        TypeError: for weights that are neither a mapping nor a path, or values that are no arrays.

    ??? example

        ```python
        >>> import jax, numpy as np, sequinox as sqx
        >>> weights = {"head.weight": np.ones((2, 3), np.float32), "head.bias": np.zeros(2, np.float32)}
        >>> dense = sqx.load_torch(sqx.Dense(3, 2, jax.random.key(0)), weights, "head")
        >>> dense(np.ones((1, 3), np.float32))
        Array([[3., 3.]], dtype=float32)

        ```
    """
    return fill(layer, weights, prefix, bias=bias, cast=cast, who="load_torch")


def to_torch(layer: eqx.Module, prefix: str = "", *, bias: bool = True, cell: bool = False) -> dict[str, np.ndarray]:
    """The weights of a layer as the `state_dict` of the PyTorch module that computes the same.

    In PyTorch, `module.load_state_dict({k: torch.from_numpy(v) for k, v in weights.items()})` takes them. Our biases
    become `bias_ih`, and `bias_hh` is zero but for the GRU's $b_{hn}$; [`load_torch`][sequinox.interop.load_torch]
    then restores every bit. A `Sequential` of cells of one kind is one module of several layers; another
    `Sequential` is numbered as `nn.Sequential`, in which layers without weights count too.

    Arguments:
        layer: as for [`load_torch`][sequinox.interop.load_torch], or a layer's gradient.
        prefix: the module's name inside a larger one.
        bias: False for a module made with `bias=False`. Our biases must then be zero.
        cell: whether the names are those of `nn.GRUCell` (without `_l0`).

    Returns:
        Arrays by PyTorch's names, copies that may be written to. `torch.from_numpy` does not take bfloat16: convert
        those to float32 first, or write a file ([`save_safetensors`][sequinox.interop.save_safetensors]).

    Raises:
        ValueError: PyTorch has no module that computes what the layer does; the error says why. Biases that are not
            zero with `bias=False`.

    ??? example

        ```python
        >>> import jax, sequinox as sqx
        >>> gru = sqx.GRU(3, 5, jax.random.key(0), reset_after=True)
        >>> {name: a.shape for name, a in sqx.to_torch(gru, "rnn").items()}
        {'rnn.weight_ih_l0': (15, 3), 'rnn.weight_hh_l0': (15, 5), 'rnn.bias_ih_l0': (15,), 'rnn.bias_hh_l0': (15,)}

        ```
    """
    who = "to_torch"
    prefix, bias = _dotted(prefix, who), flag(bias, who, "bias")
    ours = {name: np.array(a) for name, a in arrays(layer).items()}
    found, placed = {}, set()
    for tensor in layout(layer, who, flag(cell, who, "cell")):
        parts = [np.zeros_like(ours[f]) if f in placed else ours[f] for f in tensor.fields]
        placed.update(tensor.fields)
        found[prefix + tensor.name] = np.concatenate([tensor.view.theirs(part) for part in parts])
    if not bias:
        biases = {name: found.pop(name) for name in list(found) if _is_bias(name)}
        used = [name for name, b in biases.items() if np.any(b != 0)]
        if used:
            raise ValueError(f"{who}: bias=False, but not all numbers are zero in {_listed(used)}")
    return found


def save_safetensors(weights: eqx.Module | Mapping[str, Any], path: str | os.PathLike[str]) -> None:
    """Writes a layer's weights to a `.safetensors` file under PyTorch's names. A kill leaves the old file or the new.

    In PyTorch, `module.load_state_dict(safetensors.torch.load_file(path))` takes them, bfloat16 too.

    Arguments:
        weights: a layer, or what [`to_torch`][sequinox.interop.to_torch] returned, of one layer or several.
        path: of the file, ending in `.safetensors`. Its directory must exist.

    Raises:
        ValueError: for another ending, or a layer without an equivalent in PyTorch.
        ImportError: without the package safetensors, which the extra `sequinox[interop]` brings.

    ??? example

        ```python
        >>> import jax, sequinox as sqx
        >>> lstm = sqx.LSTM(3, 5, jax.random.key(0), peepholes=False)
        >>> head = sqx.Dense(5, 2, jax.random.key(1))
        >>> sqx.save_safetensors(sqx.to_torch(lstm, "rnn") | sqx.to_torch(head, "head"), "model.safetensors")
        >>> head = sqx.load_torch(head, "model.safetensors", "head")

        ```
    """
    who = "save_safetensors"
    given = weights if isinstance(weights, Mapping) else to_torch(weights)
    _safetensors.write({name: np.ascontiguousarray(_as_numpy(a, name, who)) for name, a in given.items()}, path, who)


def fill(layer: L, weights: Weights, prefix: str, *, bias: bool, cast: bool, who: str) -> L:
    """What `load_torch` does; the layer's arrays may be abstract."""
    prefix, bias, cast = _dotted(prefix, who), flag(bias, who, "bias"), flag(cast, who, "cast")
    given = _mapping(weights, prefix, who)
    cell = type(layer) in CELLS and "weight_ih" in given
    ours, tensors = arrays(layer), layout(layer, who, cell)
    if not bias:
        tensors = [tensor for tensor in tensors if not _is_bias(tensor.name)]
    _check(layer, given, {tensor.name: _whole(tensor, ours) for tensor in tensors}, cast, prefix, who)

    values: dict[str, np.ndarray] = {}
    for tensor in tensors:
        ends = np.cumsum([shape[0] for shape in _shapes(tensor, ours)])[:-1]
        for field, part in zip(tensor.fields, np.split(given[tensor.name], ends), strict=True):
            part = tensor.view.ours(part)
            values[field] = _sum(values[field], part) if field in values else part

    def fresh(path: Any, leaf: Any) -> Any:
        if not is_floating(leaf):
            return leaf
        value = values.get(path_name(path))  # None for a bias that PyTorch's module does not have
        return jnp.zeros(leaf.shape, leaf.dtype) if value is None else jnp.array(value, leaf.dtype, copy=True)

    return jax.tree_util.tree_map_with_path(fresh, layer)


def _sum(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """`a + b`, and every bit of `a` where `b` is zero: -0.0 too."""
    return np.where(b == 0, a, a + b)


def _whole(tensor: Tensor, ours: dict[str, Any]) -> jax.ShapeDtypeStruct:
    """The shape and dtype that a tensor of PyTorch's must have."""
    shapes = _shapes(tensor, ours)
    return jax.ShapeDtypeStruct((sum(shape[0] for shape in shapes), *shapes[0][1:]), ours[tensor.fields[0]].dtype)


def _shapes(tensor: Tensor, ours: dict[str, Any]) -> list[tuple[int, ...]]:
    """The shapes of the parts of a tensor, in PyTorch's layout."""
    return [tensor.view.theirs(np.broadcast_to(0, ours[field].shape)).shape for field in tensor.fields]


def _is_bias(name: str) -> bool:
    return "bias" in name.rsplit(".", 1)[-1]


# ---- given weights ---------------------------------------------------------------------------------------------------


def _dotted(prefix: Any, who: str) -> str:
    if not isinstance(prefix, str):
        raise TypeError(f"{who}: prefix must be a string, got {prefix!r}")
    return prefix if not prefix or prefix.endswith(".") else f"{prefix}."


def _mapping(weights: Any, prefix: str, who: str) -> dict[str, np.ndarray]:
    """The arrays under a prefix, by their names without it."""
    if isinstance(weights, str | os.PathLike):
        weights = _safetensors.read(weights, who)
    if not isinstance(weights, Mapping):
        raise TypeError(
            f"{who}: weights must be a state_dict or the path of a .safetensors file, got {type(weights).__name__}"
        )
    inside = {name: a for name, a in weights.items() if isinstance(name, str) and name.startswith(prefix)}
    if not inside and weights:
        raise ValueError(f"{who}: no name starts with {prefix!r}; there are {_listed(map(str, weights))}")
    return {name.removeprefix(prefix): _as_numpy(a, name, who) for name, a in inside.items()}


def _as_numpy(a: Any, name: str, who: str) -> np.ndarray:
    """An array or a PyTorch tensor, as NumPy's. PyTorch is not imported."""
    if isinstance(a, np.ndarray | jax.Array):
        return np.asarray(a)
    if not hasattr(a, "detach"):
        raise TypeError(f"{who}: {name} must be an array or a PyTorch tensor, got {type(a).__name__}")
    if getattr(a, "is_meta", False):
        raise ValueError(
            f"{who}: {name} is on PyTorch's meta device, which holds no numbers: put the module on another, with "
            'module.to_empty(device="cpu"), and load its weights'
        )
    if str(getattr(a, "layout", "torch.strided")) != "torch.strided":
        raise ValueError(f"{who}: {name} must be a dense tensor, got one of layout {a.layout}")
    a = a.detach().cpu()
    if str(a.dtype) == "torch.bfloat16":  # NumPy has none: float32 holds every number of it
        return a.float().numpy().astype(jnp.bfloat16)
    try:
        return a.numpy()
    except (TypeError, RuntimeError) as error:
        raise ValueError(f"{who}: NumPy cannot hold {name}, of dtype {a.dtype}: {error}") from None


def _check(
    layer: Any,
    given: dict[str, np.ndarray],
    expected: dict[str, jax.ShapeDtypeStruct],
    cast: bool,
    prefix: str,
    who: str,
) -> None:
    """An error that lists everything that does not fit."""
    both = {prefix + name: (a, expected[name]) for name, a in given.items() if name in expected}
    fits = lambda a, b: a.dtype == b.dtype or (cast and jnp.issubdtype(a.dtype, jnp.floating))
    wrong = {
        "missing": [prefix + name for name in expected if name not in given],
        "not expected": [prefix + name for name in given if name not in expected],
        "wrong shape": [f"{n} must be {b.shape}, got {a.shape}" for n, (a, b) in both.items() if a.shape != b.shape],
        "wrong dtype": [f"{n} must be {b.dtype}, got {a.dtype}" for n, (a, b) in both.items() if not fits(a, b)],
    }
    lines = [f"{what}: {_listed(names)}" for what, names in wrong.items() if names]
    if lines and wrong["wrong dtype"] and not cast:
        lines[-1] += " (cast=True converts floating dtypes)"
    if lines:
        raise ValueError("\n  ".join([f"{who}: the weights do not fit {type(layer).__name__}", *lines]))


def _listed(names: Iterable[str], most: int = 12) -> str:
    names = list(names)
    return ", ".join(names[:most]) + (f", and {len(names) - most} more" if len(names) > most else "")
