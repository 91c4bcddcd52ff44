"""A recurrent cell around another."""

import abc
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
from jaxtyping import Array

from .._checks import float_dtype
from .._dropout import need_key
from .._layer import S
from .._types import DType, PRNGKey
from ._cell import Implementation, RecurrentCell
from ._plan import call_transition


class Noise(NamedTuple):
    """What a cell around another draws for a sample, and what the other draws; None where nothing is drawn."""

    own: Any
    inner: Any


class CellWrapper(RecurrentCell[S]):
    """A cell that runs another, `cell`, and is random in training."""

    cell: eqx.AbstractVar[RecurrentCell]
    inference: eqx.AbstractVar[bool]

    @abc.abstractmethod
    def _draw(self, key: Array, axes: tuple[int, ...], dtype: DType) -> Any:
        """Its own random numbers, `"*axes ..."`."""

    @property
    @abc.abstractmethod
    def _draws(self) -> bool:
        """Whether a rate is not 0."""

    @property
    def n_in(self) -> int:
        """That of the cell inside."""
        return self.cell.n_in

    @property
    def n_hidden(self) -> int:
        """That of the cell inside."""
        return self.cell.n_hidden

    @property
    def n_out(self) -> int:
        """That of the cell inside."""
        return self.cell.n_out

    @property
    def implementation(self) -> Implementation:
        """That of the cell inside."""
        return self.cell.implementation

    def noise(self, key: PRNGKey | None, axes: tuple[int, ...], dtype: DType) -> Noise | None:
        """Its own random numbers in training, and those of the cell inside."""
        own = None
        if self._draws and not self.inference:
            mine, key = jax.random.split(need_key(key, type(self).__name__))
            own = self._draw(mine, axes, dtype)
        inner = self.cell.noise(key, axes, dtype)
        return None if own is None and inner is None else Noise(own, inner)

    def _run_inside(self, affine: Callable, x: Array, state: Any, noise: Noise | None) -> Any:
        return call_transition(
            type(self.cell).transition, self.cell, affine, x, state, None if noise is None else noise.inner
        )


def check_cell(cell: Any, who: str) -> RecurrentCell:
    """The cell inside, checked."""
    if not isinstance(cell, RecurrentCell):
        raise TypeError(f"{who}: cell must be a recurrent cell, got {type(cell).__name__}")
    return cell


def watch(cell: RecurrentCell, look: Callable[[Callable[..., Any], Array, Any], Any]) -> Any:
    """Traces one sample of a cell: `look(transition, x, state)` as a jaxpr of the sample and the state's arrays.

    `transition(affine, x, state)` is that of the cell; what it draws in training it is given.
    """
    dtype = float_dtype(cell.dtype, type(cell).__name__)

    def one(x: Array, state: Any) -> Any:
        noise = cell.noise(jax.random.key(0), (), dtype)
        return look(
            lambda affine, x, state: call_transition(type(cell).transition, cell, affine, x, state, noise), x, state
        )

    state = jax.eval_shape(lambda: cell.start(dtype))
    return jax.make_jaxpr(one)(jax.ShapeDtypeStruct((cell.n_in,), dtype), state).jaxpr
