"""What layers made of a list of others share: their names, and a state of their states."""

import abc
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import equinox as eqx
import jax

from .._checks import batch_shape, float_dtype
from .._layer import SequenceLayer
from .._types import BatchShape, DType, State

LayerLike: TypeAlias = SequenceLayer | Callable[..., Any] | dict[str, Any]
"""What a composed layer takes as one: a layer, an Equinox module, a function of one sample, layers by their names."""

LayerList: TypeAlias = list[Any] | tuple[Any, ...] | dict[str, Any]
"""Several of those, or pairs of a name and one."""


class Named(tuple):
    """A tuple of layers that have names: `layers['rnn'].W` is the path of a weight in it.

    The order is the given one, that of execution; a dictionary in a PyTree is sorted by its keys.
    """

    names: tuple[str, ...]

    def __new__(cls, names: Sequence[str], layers: Iterable[Any]) -> "Named":
        self = super().__new__(cls, layers)
        self.names = tuple(names)
        return self

    def __getnewargs__(self) -> tuple[Any, ...]:
        return self.names, tuple(self)


jax.tree_util.register_pytree_with_keys(
    Named,
    lambda named: ([(jax.tree_util.DictKey(n), la) for n, la in zip(named.names, named, strict=True)], named.names),
    Named,
    lambda named: (tuple(named), named.names),
)


class Composite(SequenceLayer):
    """A layer made of a list of others. Its state is the tuple of theirs, or a dictionary by their names."""

    layers: eqx.AbstractVar[tuple[SequenceLayer, ...]]

    @property
    def names(self) -> tuple[str, ...] | None:
        """The names of the layers, in their order; None if they have none."""
        return getattr(self.layers, "names", None)

    @property
    def inside(self) -> tuple[SequenceLayer, ...]:
        return self.layers

    @property
    def keeps_width(self) -> bool:
        """Whether all layers do."""
        return all(layer.keeps_width for layer in self.layers)

    @abc.abstractmethod
    def _of(self, layers: tuple[SequenceLayer, ...]) -> "Composite":
        """The same of other layers."""

    def init_state(self, batch: BatchShape = (), dtype: DType | None = None) -> Any:
        """The states of the layers: a tuple in their order, or a dictionary by their names.

        Arguments:
            batch: the batch axes, an integer or a tuple; `()` for a single stream.
            dtype: dtype of the stream; default: that of the weights.
        """
        who = f"{type(self).__name__}.init_state"
        batch = batch_shape(batch, who)
        dtype = float_dtype(self.dtype if dtype is None else dtype, who)
        return self._join_state([layer.init_state(batch, dtype) for layer in self.layers])

    def _join_state(self, states: Sequence[State]) -> Any:
        return tuple(states) if self.names is None else dict(zip(self.names, states, strict=True))

    def _split_state(self, state: State) -> Sequence[State]:
        return state if self.names is None else [state[name] for name in self.names]

    def _remember(self, state: State, memory: Any, mask: Any) -> Any:
        parts = zip(self.layers, self._split_state(state), strict=True)
        return self._join_state([layer._remember(s, memory, mask) for layer, s in parts])

    def __getitem__(self, i: Any) -> Any:
        if isinstance(i, slice):
            return self._of(with_names(None if self.names is None else self.names[i], self.layers[i]))
        if not isinstance(i, str):
            if isinstance(i, int) and not -len(self.layers) <= i < len(self.layers):
                raise IndexError(f"{type(self).__name__}: there are {len(self.layers)} layers, none at {i}")
            return self.layers[i]
        if i not in (self.names or ()):
            there = "they have none" if self.names is None else f"there are {list(self.names)}"
            raise KeyError(f"{type(self).__name__}: no layer has the name {i!r}: {there}")
        return self.layers[(self.names or ()).index(i)]

    def __len__(self) -> int:
        return len(self.layers)

    def __iter__(self) -> Iterator[SequenceLayer]:
        return iter(self.layers)


def read_names(layers: Any, who: str, misplaced: tuple[Any, ...] = ()) -> tuple[tuple[str, ...] | None, list[Any]]:
    """The names and the layers of an argument: a list, a tuple, a dictionary, or a list of pairs (name, layer)."""
    if misplaced or isinstance(layers, eqx.Module):
        raise TypeError(f"{who}: give the layers as one list, {who}([...]), got {1 + len(misplaced)} by position")
    if not isinstance(layers, list | tuple | dict):
        raise TypeError(f"{who}: layers must be a list, a tuple or a dictionary, got {type(layers).__name__}")
    if not layers:
        raise ValueError(f"{who}: layers must hold at least one layer")
    if isinstance(layers, Named):
        return layers.names, list(layers)
    pairs: list[Any] = list(layers.items()) if isinstance(layers, dict) else list(layers)
    if not all(isinstance(pair, tuple) and len(pair) == 2 for pair in pairs):
        return None, pairs
    names = [name for name, _ in pairs]
    for name in names:
        if not isinstance(name, str) or not name:
            raise TypeError(f"{who}: the name of a layer must be a string, got {name!r}")
        if names.count(name) > 1:
            raise ValueError(f"{who}: two layers have the name {name!r}")
    return tuple(names), [layer for _, layer in pairs]


def with_names(names: tuple[str, ...] | None, layers: Sequence[SequenceLayer]) -> tuple[SequenceLayer, ...]:
    """The layers as they are kept."""
    return tuple(layers) if names is None else Named(names, layers)


def place_of(names: tuple[str, ...] | None, i: int, who: str) -> str:
    """What an error calls a layer."""
    return f"{who}: layers[{i if names is None else names[i]!r}]"
