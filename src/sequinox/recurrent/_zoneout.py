"""Zoneout: states that keep old values at random."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from .._checks import check_rate, check_tuple, flag
from .._layer import S
from .._types import DType
from ._cell import RecurrentCell
from ._cell_wrapper import CellWrapper, Noise, check_cell, watch
from ._plan import Affine, affine as plain_affine
from ._rwa import RWAState


class Zoneout(CellWrapper[S]):
    r"""Zoneout around a recurrent cell: in training, each number of the state keeps its old value at random.

    $$
    s_t = d_t \odot s_{t-1} + (1 - d_t) \odot \tilde s_t
    $$

    where $\tilde s_t$ is what the cell makes of the state $s_{t-1}$. $d_t$ is 1 with the probability of the array's
    rate, else 0, drawn for every number, sample and row, from the `key` of the call. In inference $d_t$ is replaced by
    its expectation, the rate, and nothing is drawn. Counts and other integers always move on. The sums
    of an [`RWA`][sequinox.RWA] and their scale belong together, and are refused a rate: `RWAState(0.1, 0, 0, 0)`.

    The state is that of the cell. The output is the array of the *new* state, $s_t$, that is the cell's output: an
    LSTM's $y$. Its $y' = \tanh(\tilde c) \odot o$ reads the cell before zoneout, as in the paper.

    Source: [Krueger et al. 2017](https://arxiv.org/abs/1606.01305), section 3.

    ??? example

        ```python
        >>> import jax, jax.numpy as jnp, sequinox as sqx
        >>> lstm = sqx.LSTM(3, 5, jax.random.key(0))
        >>> zoneout = sqx.Zoneout(lstm, sqx.LSTMState(y=0.05, c=0.5))
        >>> zoneout(jnp.ones((2, 7, 3)), key=jax.random.key(1)).shape
        (2, 7, 5)

        ```
    """

    cell: RecurrentCell[S]
    inference: bool
    rates: tuple[float, ...] = eqx.field(static=True)

    def __init__(self, cell: RecurrentCell[S], rates: PyTree[float | int], *, inference: bool = False):
        """
        Arguments:
            cell: any recurrent cell whose output is one of the arrays of its state.
            rates: the probability that a number keeps its old value, in [0, 1): one for all, or a tree like the state
                with one for each array, such as `LSTMState(y=0.05, c=0.5)` or a plain pair.
            inference: whether the expectation is taken; `equinox.nn.inference_mode` turns it.

        Raises:
            TypeError, ValueError: for what is no recurrent cell, or one whose output is no array of its state; for
                rates that are not in [0, 1) or do not fit the state. On a call in training without a key, unless all
                rates are 0.
        """
        self.cell = check_cell(cell, "Zoneout")
        self.inference = flag(inference, "Zoneout", "inference")
        self.rates = _rates(rates, self._shapes(), "Zoneout: rates")
        shapes = jax.tree.structure(self._shapes())
        is_average = lambda node: isinstance(node, RWAState)
        for node in jax.tree.leaves(jax.tree.unflatten(shapes, self.rates), is_leaf=is_average):
            if is_average(node) and any(node[1:]):
                raise ValueError(
                    "Zoneout: rates must be 0 for the sums n and d of an average and their scale m, which belong "
                    f"together, such as RWAState({node.h}, 0, 0, 0), got {tuple(node)}"
                )
        watch(cell, _check_output)

    @property
    def _draws(self) -> bool:
        return any(self.rates)

    def _shapes(self, dtype: DType | None = None) -> PyTree:
        dtype = (self.cell.dtype or jnp.zeros(()).dtype) if dtype is None else dtype
        return jax.eval_shape(lambda: self.cell.start(dtype))

    def _draw(self, key: Array, axes: tuple[int, ...], dtype: DType) -> list[Array | None]:
        leaves = jax.tree.leaves(self._shapes(dtype))
        keys = jax.random.split(key, len(leaves))
        return [
            jax.random.bernoulli(k, rate, (*axes, *a.shape)) if rate else None
            for k, rate, a in zip(keys, self.rates, leaves, strict=True)
        ]

    def start(self, dtype: DType) -> S:
        """That of the cell."""
        return self.cell.start(dtype)

    def transition(self, affine: Affine, x: Array, state: S, noise: Noise | None = None) -> tuple[Array, S]:
        """One sample: the cell's, and its new state mixed with the old one."""
        y, after = self._run_inside(affine, x, state, noise)
        held = [None] * len(self.rates) if noise is None or noise.own is None else noise.own
        new, tree = jax.tree.flatten(after)
        mixed = [_mix(*leaf) for leaf in zip(self.rates, held, jax.tree.leaves(state), new, strict=True)]
        return mixed[_place(y, new)], jax.tree.unflatten(tree, mixed)


def _mix(rate: float, hold: Array | None, old: Array, new: Array) -> Array:
    if rate == 0:
        return new
    return rate * old + (1 - rate) * new if hold is None else jnp.where(hold, old, new)


def _place(y: Array, leaves: list[Array]) -> int:
    """Which array of the state the output is."""
    return next(i for i, a in enumerate(leaves) if a is y)


def _check_output(transition: Any, x: Array, state: Any) -> None:
    y, after = transition(plain_affine, x, state)
    if not any(a is y for a in jax.tree.leaves(after)):
        raise ValueError("Zoneout: cell must give one of the arrays of its new state as its output, this one does not")


def _rates(given: Any, state: Any, where: str) -> tuple[float, ...]:
    """A rate for each array of a state, from a number or a tree like the state."""
    if isinstance(given, tuple | list | dict):
        if isinstance(state, dict):
            if not isinstance(given, dict) or set(given) != set(state):
                raise ValueError(f"{where} must be a number or a dictionary of {sorted(state)}, got {given!r}")
            parts = [(given[k], state[k], f"{where}[{k!r}]") for k in sorted(state)]
        elif isinstance(state, tuple | list):
            names = getattr(state, "_fields", None)
            check_tuple(given, len(state), where, type(state) if names else None)
            labels = [f".{n}" for n in names] if names else [f"[{i}]" for i in range(len(state))]
            parts = [(g, s, where + n) for g, s, n in zip(given, state, labels, strict=True)]
        else:
            raise ValueError(f"{where} must be a number, got {given!r}: the state has no tuple or dictionary there")
        return tuple(rate for part in parts for rate in _rates(*part))
    who, name = where.split(": ")
    rate = check_rate(given, who, name)
    floats = [jnp.issubdtype(a.dtype, jnp.inexact) for a in jax.tree.leaves(state)]
    if rate and name != "rates" and not any(floats):
        raise ValueError(f"{where} must be 0, got {rate}: the state has integers there, which always move on")
    return tuple(rate if is_float else 0.0 for is_float in floats)
