"""Looking at a module: its parameters by name, and a table of them."""

import dataclasses
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from ._checks import is_inexact
from ._cost import products_of_step
from ._layer import SequenceLayer
from ._precision import marked_fields


def parameters(module: Any) -> dict[str, Any]:
    """The trainable arrays of a module by their names, in the order of the tree.

    Arguments:
        module: any PyTree, for example an Equinox module, or its shapes alone (`eqx.filter_eval_shape`).

    Returns:
        A dictionary from paths such as `layers[0].W_z` to floating-point arrays (or their shapes).

    ??? example

        ```python
        >>> import jax, sequinox as sqx
        >>> list(sqx.parameters(sqx.RNN(3, 4, jax.random.key(0))))
        ['W', 'U', 'b']

        ```
    """
    leaves = jax.tree_util.tree_leaves_with_path(eqx.filter(module, is_inexact))
    return {jax.tree_util.keystr(path).lstrip("."): leaf for path, leaf in leaves}


def summary(module: eqx.Module, depth: int | None = None) -> str:
    """A table of a module's layers and parameters: shapes, numbers of parameters, bytes; of layers what a step costs.

    Arguments:
        module: an Equinox module, or its shapes alone (`eqx.filter_eval_shape`).
        depth: how many levels of modules inside are shown: 0 is the module itself, 1 the layers that it is made of. The
            arrays of a module are one level below it. Default: all.

    Returns:
        The table as text: a line a module, its arrays indented below it, and the totals last. A star after a dtype
        marks an array that keeps float32 where the rest is [cast][sequinox.cast] to half precision. `state` are the
        bytes of a layer's state for one row, before the first sample. `products` are the multiplications in products
        with matrices and in convolutions that a step of one row does, each of which comes with an addition; those with
        what a growing cache will hold are not known yet. Where they are not known (a width or a source is
        missing) both are blank.

    Raises:
        TypeError: if it is no Equinox module, or `depth` is no integer.
        ValueError: if `depth` is negative.

    ??? example

        ```python
        >>> import jax, sequinox as sqx
        >>> net = sqx.recurrent_net(3, 4, 2, jax.random.key(0), cell="rnn")
        >>> print(sqx.summary(net))
        name         layer       shape   dtype    number  bytes  state  products
        .            Sequential  3 -> 2               42    168     32        36
          layers[0]  RNN         3 -> 4               32    128     16        28
            W                    4 x 3   float32      12     48
            U                    4 x 4   float32      16     64
            b                    4       float32       4     16
          layers[1]  LastStep    4 -> 4                0      0     16         0
          layers[2]  Dense       4 -> 2               10     40      0         8
            W                    2 x 4   float32       8     32
            b                    2       float32       2      8
        total                                         42    168     32        36
        >>> print(sqx.summary(net, depth=0))
        name   layer       shape   dtype  number  bytes  state  products
        .      Sequential  3 -> 2             42    168     32        36
        total                                 42    168     32        36

        ```
    """
    if not isinstance(module, eqx.Module):
        raise TypeError(f"summary: module must be an Equinox module, got {type(module).__name__}")
    if depth is not None and (isinstance(depth, bool) or not isinstance(depth, int)):
        raise TypeError(f"summary: depth must be an integer or None, got {depth!r}")
    if depth is not None and depth < 0:
        raise ValueError(f"summary: depth must not be negative, got {depth}")
    head = ("name", "layer", "shape", "dtype", "number", "bytes", "state", "products")
    rows = _Rows({}, depth).of(".", module, 0)
    rows = [head, *rows, ("total", "", "", "", *rows[0][4:])]
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    left = "  ".join(f"{{:<{w}}}" for w in widths[:4])
    right = "  ".join(f"{{:>{w}}}" for w in widths[4:])
    return "\n".join(f"{left}  {right}".format(*row).rstrip() for row in rows)


class _Rows(NamedTuple):
    """What makes the lines; costs are kept by configuration, since many layers of a model are alike."""

    costs: dict[Any, tuple[str, str]]
    depth: int | None

    def of(self, name: str, node: Any, depth: int, kept: bool = False) -> list[tuple[str, ...]]:
        """The lines of one node of the tree and of what is inside it."""
        label = "  " * depth + name
        if is_inexact(node):
            shape = " x ".join(map(str, node.shape)) or "scalar"
            return [(label, "", shape, f"{node.dtype}{'*' * kept}", str(node.size), str(_nbytes(node)), "", "")]
        if isinstance(node, list | tuple):
            places = getattr(node, "names", range(len(node)))  # layers may have names
            pairs = zip(places, node, strict=True)
            return [row for p, part in pairs for row in self.of(f"{name}[{p!r}]", part, depth, kept)]
        if isinstance(node, dict):
            return [row for k, part in node.items() for row in self.of(f"{name}[{k!r}]", part, depth, kept)]
        if not isinstance(node, eqx.Module):
            return []
        inside = parameters(node).values()
        n_in, n_out = getattr(node, "n_in", None), getattr(node, "n_out", None)
        width = f"{n_in} -> {n_out}" if n_in is not None and n_out is not None else ""
        numbers = str(sum(a.size for a in inside)), str(sum(map(_nbytes, inside)))
        rows: list[tuple[str, ...]] = [(label, type(node).__name__, width, "", *numbers, *self.cost(node))]
        if depth != self.depth:
            for field in dataclasses.fields(node):  # pyright: ignore[reportArgumentType]
                here = kept or field.name in marked_fields(type(node))
                rows += self.of(field.name, getattr(node, field.name), depth + 1, here)
        return rows

    def cost(self, node: Any) -> tuple[str, str]:
        """Bytes of the state of one row, and products of a step."""
        if not isinstance(node, SequenceLayer):
            return "", ""
        like = lambda a: (a.shape, a.dtype) if hasattr(a, "shape") else a
        leaves, tree = jax.tree.flatten(node)
        kind = tree, tuple(map(like, leaves))
        if kind not in self.costs:
            self.costs[kind] = _cost(node)
        return self.costs[kind]


def _cost(layer: SequenceLayer) -> tuple[str, str]:
    tokens = layer.reads_tokens
    if layer.needs_width:
        return "", ""
    state = eqx.filter_eval_shape(lambda layer: layer.init_state(), layer)
    size = str(sum(map(_nbytes, jax.tree.leaves(state))))
    if not tokens and layer.n_in is None:
        return size, ""
    dtype = jnp.int32 if tokens else layer.dtype or jnp.zeros(()).dtype
    x = jax.ShapeDtypeStruct(() if tokens else (layer.n_in,), dtype)
    try:
        return size, str(products_of_step(layer, x, state))
    except ValueError:  # it reads a source first
        return size, ""


def _nbytes(a: Any) -> int:
    return a.size * a.dtype.itemsize
