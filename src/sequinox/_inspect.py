"""Looking at a module: its parameters by name, and a table of them."""

import dataclasses
from typing import Any

import equinox as eqx
import jax

from ._checks import is_inexact


def parameters(module: Any) -> dict[str, Any]:
    """The trainable arrays of a module by their names, in the order of the tree.

    Arguments:
        module: any PyTree, for example an Equinox module, or its shapes alone (`eqx.filter_eval_shape`).

    Returns:
        A dictionary from paths such as `layers[0].W_z` to floating-point arrays (or what stands for them).

    ??? example

        ```python
        >>> import jax, sequinox as sqx
        >>> list(sqx.parameters(sqx.RNN(3, 4, jax.random.key(0))))
        ['W', 'U', 'b']

        ```
    """
    leaves = jax.tree_util.tree_leaves_with_path(eqx.filter(module, is_inexact))
    return {jax.tree_util.keystr(path).lstrip("."): leaf for path, leaf in leaves}


def summary(module: eqx.Module) -> str:
    """A table of a module's layers and parameters: shapes, numbers of parameters, bytes.

    Arguments:
        module: an Equinox module.

    Returns:
        The table as text: a line a module, its arrays indented below it, and the totals last.

    Raises:
        TypeError: if it is no Equinox module.

    ??? example

        ```python
        >>> import jax, sequinox as sqx
        >>> print(sqx.summary(sqx.recurrent_net(3, 4, 2, jax.random.key(0), cell="rnn")))
        name         layer       shape   dtype    number  bytes
        .            Sequential  3 -> 2               42    168
          layers[0]  RNN         3 -> 4               32    128
            W                    4 x 3   float32      12     48
            U                    4 x 4   float32      16     64
            b                    4       float32       4     16
          layers[1]  LastStep    4 -> 4                0      0
          layers[2]  Dense       4 -> 2               10     40
            W                    2 x 4   float32       8     32
            b                    2       float32       2      8
        total                                         42    168

        ```
    """
    if not isinstance(module, eqx.Module):
        raise TypeError(f"summary: module must be an Equinox module, got {type(module).__name__}")
    arrays = parameters(module).values()
    rows = [("name", "layer", "shape", "dtype", "number", "bytes"), *_rows(".", module, 0)]
    rows.append(("total", "", "", "", str(sum(a.size for a in arrays)), str(sum(map(_nbytes, arrays)))))
    widths = [max(len(row[i]) for row in rows) for i in range(6)]
    left = "  ".join(f"{{:<{w}}}" for w in widths[:4])
    right = "  ".join(f"{{:>{w}}}" for w in widths[4:])
    return "\n".join(f"{left}  {right}".format(*row) for row in rows)


def _rows(name: str, node: Any, depth: int) -> list[tuple[str, ...]]:
    """The lines of one node of the tree and of what is inside it."""
    label = "  " * depth + name
    if is_inexact(node):
        shape = " x ".join(map(str, node.shape)) or "scalar"
        return [(label, "", shape, str(node.dtype), str(node.size), str(_nbytes(node)))]
    if isinstance(node, list | tuple):
        places = getattr(node, "names", range(len(node)))  # layers may have names
        return [row for p, child in zip(places, node, strict=True) for row in _rows(f"{name}[{p!r}]", child, depth)]
    if isinstance(node, dict):
        return [row for k, child in node.items() for row in _rows(f"{name}[{k!r}]", child, depth)]
    if not isinstance(node, eqx.Module):
        return []
    inside = parameters(node).values()
    n_in, n_out = getattr(node, "n_in", None), getattr(node, "n_out", None)
    width = f"{n_in} -> {n_out}" if n_in is not None and n_out is not None else ""
    numbers = str(sum(a.size for a in inside)), str(sum(map(_nbytes, inside)))
    rows: list[tuple[str, ...]] = [(label, type(node).__name__, width, "", *numbers)]
    for field in dataclasses.fields(node):  # pyright: ignore[reportArgumentType]
        rows += _rows(field.name, getattr(node, field.name), depth + 1)
    return rows


def _nbytes(a: Any) -> int:
    return a.size * a.dtype.itemsize
