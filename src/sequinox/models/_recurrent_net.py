"""A recurrent network, from a sequence to a label."""

from collections.abc import Callable
from typing import Any, Literal

import equinox as eqx
import jax
from jaxtyping import Array

from .._checks import check_key, check_rate, flag, size
from .._layer import SequenceLayer
from .._types import DType, PRNGKey
from ..layers import Bidirectional, Dense, Dropout, LastStep, MeanOverTime, Pointwise, Residual, Sequential
from ..recurrent import GRU, LSTM, RNN

_CELLS = {"lstm": LSTM, "gru": GRU, "rnn": RNN}


def recurrent_net(
    n_in: int,
    n_hidden: int,
    n_out: int,
    key: PRNGKey,
    *,
    cell: Literal["lstm", "gru", "rnn"] | Callable[..., SequenceLayer] = "lstm",
    n_layers: int = 1,
    bidirectional: bool = False,
    pool: Literal["last", "mean"] | None = "last",
    residual: bool = False,
    layer_norm: bool = False,
    dropout: float = 0.0,
    dtype: DType | None = None,
    **options: Any,
) -> Sequential:
    """Recurrent layers, pooling over time, and a dense head.

    Residual connections make deep stacks easy to train: from the second layer on, the output is $h^i_t + h^{i-1}_t$
    ([Wu et al. 2016](https://arxiv.org/abs/1609.08144), section 3.1).

    Arguments:
        n_in: width of a sample.
        n_hidden: width of every recurrent layer (of each direction).
        n_out: width of the output, for example the number of classes.
        key: PRNG key for the weights.
        cell: `"lstm"` (default), `"gru"`, `"rnn"`, or a cell class or function called as
            `cell(n_in, n_hidden, key, dtype=..., **options)`.
        n_layers: number of recurrent layers.
        bidirectional: whether every recurrent layer reads both ways. Such a network does not stream.
        pool: what the head reads: `"last"` (default), the output at each row's last real sample, and of a backward
            direction that at the first, its own last; `"mean"`, the mean over the row's real samples; None, every
            sample, for one output a sample.
        residual: whether every recurrent layer from the second on has a connection past it
            ([`Residual`][sequinox.Residual]).
        layer_norm: whether a layer norm comes before every recurrent layer from the second on, with `residual`
            inside the connection; in a network that reads both ways, each direction has its own.
        dropout: probability of a zero between layers in training, after every recurrent layer (before the addition, if
            there is one). Calls then need `key=`. Default 0.
        dtype: of the weights; default: JAX's default, float32.
        options: further options of the cell, for example `forget_bias=1.0` or `implementation="scan"`.

    Returns:
        A [`Sequential`][sequinox.layers.Sequential] with outputs `"*batch n_out"` (`"*batch time n_out"` if `pool` is
        None).

    Raises:
        TypeError, ValueError: for sizes that are not positive integers, an unknown cell or pooling, a wrong dropout,
            dtype or key.

    ??? example

        ```python
        >>> import jax, jax.numpy as jnp, sequinox as sqx
        >>> net = sqx.recurrent_net(3, 4, 2, jax.random.key(0))
        >>> net(jnp.ones((5, 3))).shape
        (2,)
        >>> len(sqx.parameters(net))
        17

        ```
    """
    who = "recurrent_net"
    for name, value in (("n_in", n_in), ("n_hidden", n_hidden), ("n_out", n_out), ("n_layers", n_layers)):
        size(value, who, name)
    make = cell_maker(cell, who)
    if pool not in ("last", "mean", None):
        raise ValueError(f'{who}: pool must be "last", "mean" or None, got {pool!r}')
    check_rate(dropout, who, "dropout")
    residual, layer_norm = flag(residual, who, "residual"), flag(layer_norm, who, "layer_norm")
    directions = 1 + flag(bidirectional, who, "bidirectional")
    *cell_keys, head_key = jax.random.split(check_key(key, who), n_layers * directions + 1)
    keys = iter(cell_keys)

    layers: list[SequenceLayer] = []
    width = n_in
    for i in range(n_layers):
        cells: list[Any] = [make(width, n_hidden, next(keys), dtype=dtype, **options) for _ in range(directions)]
        after = [Dropout(dropout)] if dropout else []
        widths = [cell.n_out for cell in cells]
        if i > 0 and layer_norm:
            cells = [
                Sequential([eqx.nn.LayerNorm(width, dtype=cells[0].dtype if dtype is None else dtype), cell])
                for cell in cells
            ]
        if i > 0 and residual:
            parts = [None] if directions == 1 else [Part(0, widths[0], width), Part(widths[0], width, width)]
            inside = [Sequential([cell, *after]) if after else cell for cell in cells]
            cells = [Residual(la, projection=part) for la, part in zip(inside, parts, strict=True)]
            after = []
        pooling = [] if i < n_layers - 1 or pool is None else [LastStep() if pool == "last" else MeanOverTime()]
        if not bidirectional:
            layers += [*cells, *pooling]
        elif pooling and pool == "last":  # each direction's own last output
            layers.append(Bidirectional(*(Sequential([cell, *pooling]) for cell in cells)))
        else:
            layers += [Bidirectional(*cells), *pooling]
        layers += after
        width = sum(widths)
    return Sequential([*layers, Dense(width, n_out, head_key, dtype=dtype)])


def cell_maker(cell: Any, who: str) -> Callable[..., Any]:
    """What makes the cells: one of the names, or a class or function, checked."""
    make = _CELLS.get(cell.lower()) if isinstance(cell, str) else cell
    if not callable(make) or isinstance(make, SequenceLayer):
        raise ValueError(
            f'{who}: cell must be "lstm", "gru", "rnn" or a cell class, such as cell=sequinox.MGU, got {cell!r}'
        )
    return make


class Part(Pointwise):
    """Some of the numbers of a sample: in a residual connection, those that a direction's output is added to."""

    start: int = eqx.field(static=True)
    stop: int = eqx.field(static=True)
    n_in: int = eqx.field(static=True)
    n_out: int = eqx.field(static=True)

    def __init__(self, start: int, stop: int, n_in: int):
        self.start, self.stop, self.n_in, self.n_out = start, stop, n_in, stop - start

    def apply(self, x: Array, key: Array | None) -> Array:
        """Those numbers."""
        del key
        return x[..., self.start : self.stop]
