"""Dropout on the weights of a layer."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import equinox as eqx
import jax
from jaxtyping import Array

from .._checks import check_rate, flag, is_inexact
from .._dropout import draw_kept, dropped, need_key
from .._layer import S, SequenceLayer
from ..recurrent import RecurrentCell
from ._wrapper import Wrapper


class WeightDrop(Wrapper[S]):
    r"""DropConnect on weights of a layer: in training, each number of a weight is zero at random.

    $$
    \hat U = \frac{M \odot U}{1 - p} \qquad M_{jk} \in \{0, 1\},\ P(M_{jk} = 0) = p
    $$

    takes the place of $U$: by default of every recurrent weight, the matrices `U`, `U_*` and `R_*` of all
    [`RecurrentCell`][sequinox.RecurrentCell]s inside. $M$ is drawn once for a call of `unroll` or `forward`, from its
    `key`, and is the same for all rows and samples, so that a cell's engine runs as ever. A `step` in training draws
    for that step alone: to train on a stretch, unroll it. In inference the layer is as it is, and nothing is drawn.

    The state is that of the layer. Gradients of dropped numbers are zero.

    Source: [Merity et al. 2018](https://arxiv.org/abs/1708.02182), section 2, on recurrent weights, after
    [Wan et al. 2013](https://proceedings.mlr.press/v28/wan13.html). The division by $1 - p$ leaves inference alone.

    ??? example

        ```python
        >>> import jax, jax.numpy as jnp, sequinox as sqx
        >>> net = sqx.recurrent_net(3, 5, 2, jax.random.key(0), cell="gru")
        >>> dropped = sqx.WeightDrop(net, 0.5)
        >>> dropped.weights
        ('layers[0].U_r', 'layers[0].U_z', 'layers[0].U')
        >>> dropped(jnp.ones((4, 7, 3)), key=jax.random.key(1)).shape
        (4, 2)

        ```
    """

    layer: SequenceLayer[S]
    inference: bool
    p: float = eqx.field(static=True)
    weights: tuple[str, ...] = eqx.field(static=True)

    def __init__(
        self,
        layer: SequenceLayer[S],
        p: float = 0.5,
        where: Callable[[Any], Any] | None = None,
        *,
        inference: bool = False,
    ):
        """
        Arguments:
            layer: any sequence layer.
            p: the probability that a number of a weight is zero, in [0, 1).
            where: which weights, a function from the layer to a sequence of its arrays, such as
                `lambda net: (net.layers[0].U, net.layers[0].W)`. It is asked once, and not kept: `weights` holds their
                names. Default: all recurrent weights.
            inference: whether it is off; `equinox.nn.inference_mode` turns it.

        Raises:
            TypeError: if `layer` is no sequence layer, or `where` no function.
            ValueError: if `p` is not in [0, 1); if there are no recurrent weights, or `where` returns none, or what is
                no floating-point array of the layer. On a call in training without a key, if `p` is not 0.
        """
        if not isinstance(layer, SequenceLayer):
            raise TypeError(f"WeightDrop: layer must be a sequence layer, got {type(layer).__name__}")
        self.layer = layer
        self.p = check_rate(p, "WeightDrop", "p")
        self.inference = flag(inference, "WeightDrop", "inference")
        self.weights = _recurrent_weights(layer) if where is None else _chosen_weights(layer, where)

    @property
    def inner(self) -> SequenceLayer[S]:
        """The layer."""
        return self.layer

    def _drop(self, key: Array | None) -> tuple[SequenceLayer[S], Array | None]:
        """The layer with its weights dropped, and a key for the layer itself."""
        if self.inference or self.p == 0:
            return self.layer, key
        key, *keys = jax.random.split(need_key(key, "WeightDrop"), len(self.weights) + 1)
        by_name = dict(zip(self.weights, keys, strict=True))

        def drop(path: Any, a: Any) -> Any:
            k = by_name.get(_name(path))
            return a if k is None else dropped(draw_kept(k, self.p, a.shape), a, self.p)

        return jax.tree_util.tree_map_with_path(drop, self.layer), key

    def _step(self, x: Array, state: S, key: Array | None) -> tuple[Array, S]:
        layer, key = self._drop(key)
        return layer._step(x, state, key)

    def _unroll(
        self, xs: Array, state: S, mask: Array | None, resets: Array | None, key: Array | None
    ) -> tuple[Array, S]:
        layer, key = self._drop(key)
        return layer._unroll(xs, state, mask, resets, key)

    def _unroll_from(
        self, xs: Array, state: S, mask: Array | None, resets: Array | None, key: Array | None, start: S | None
    ) -> tuple[Array, S]:
        layer, key = self._drop(key)
        return layer._unroll_from(xs, state, mask, resets, key, start)

    def _draw_once(self, key: Array | None) -> tuple[SequenceLayer, Array | None]:
        if key is None:
            return self, None
        layer, key = self._drop(key)
        return layer._draw_once(key)

    def _forward(self, xs: Array, mask: Array | None, resets: Array | None, key: Array | None) -> Array:
        layer, key = self._drop(key)
        return layer._forward(xs, mask, resets, key)


def _name(path: Any) -> str:
    """As `sequinox.parameters` names arrays."""
    return jax.tree_util.keystr(path).lstrip(".")


def _weights(layer: SequenceLayer) -> list[tuple[Any, Array]]:
    return [(p, a) for p, a in jax.tree_util.tree_leaves_with_path(layer) if is_inexact(a)]


def _recurrent_weights(layer: SequenceLayer) -> tuple[str, ...]:
    found = [_name(path) for path in _of_cells(layer, ())]
    if not found:
        raise ValueError(
            "WeightDrop: layer has no recurrent weights (U, U_* or R_* of a RecurrentCell): name others by where="
        )
    return tuple(found)


def _of_cells(node: Any, above: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    """Paths of the recurrent weights of all cells in a tree, also of cells within cells."""
    is_cell = lambda n: isinstance(n, RecurrentCell) and n is not node
    for path, leaf in jax.tree_util.tree_leaves_with_path(node, is_leaf=is_cell):
        if is_cell(leaf):
            yield from _of_cells(leaf, above + path)
        elif isinstance(node, RecurrentCell) and len(path) == 1 and _is_recurrent(path[0].name, leaf):
            yield above + path


def _is_recurrent(name: str, leaf: Any) -> bool:
    return is_inexact(leaf) and leaf.ndim > 1 and bool(re.fullmatch(r"U|[UR]_.*", name))


def _chosen_weights(layer: SequenceLayer, where: Callable[[Any], Any]) -> tuple[str, ...]:
    if not callable(where):
        raise TypeError(f"WeightDrop: where must be a function from the layer to its arrays, got {where!r}")
    chosen = where(layer)
    chosen = chosen if isinstance(chosen, tuple | list) else (chosen,)
    weights = _weights(layer)
    for a in chosen:
        if not any(b is a for _, b in weights):
            what = f"an array of shape {a.shape}" if eqx.is_array(a) else repr(a)
            raise ValueError(f"WeightDrop: where must give floating-point arrays of the layer itself, got {what}")
    if not chosen:
        raise ValueError("WeightDrop: where must give at least one array of the layer, got none")
    return tuple(_name(path) for path, b in weights if any(b is a for a in chosen))
