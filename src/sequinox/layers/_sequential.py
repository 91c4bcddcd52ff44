"""Layers one behind another."""

import inspect
from collections.abc import Iterator, Sequence
from typing import Any

import equinox as eqx
import jax
from jaxtyping import Array

from .._checks import batch_shape, check_tuple, float_dtype
from .._layer import SequenceLayer
from .._types import BatchShape, DType, State
from ._pointwise import Dropout, PerSample, Pointwise
from ._pooling import LastStep, MeanOverTime


class Sequential(SequenceLayer):
    """Layers one behind another, each reading what the one before it gives; itself a layer, which streams if they all
    do.

    Its state is the tuple of theirs, in the same order. Whatever is no sequence layer (`eqx.nn.LayerNorm(8)`,
    `jnp.tanh`) is applied to every sample, as [`PerSample`][sequinox.layers.PerSample]. Behind a layer that pools over
    time only layers without memory may stand: they read the pooled output.

    ??? example

        ```python
        >>> import jax, jax.numpy as jnp, sequinox as sqx
        >>> k1, k2 = jax.random.split(jax.random.key(0))
        >>> net = sqx.Sequential([sqx.GRU(3, 5, k1), sqx.LastStep(), sqx.Dense(5, 2, k2)])
        >>> net(jnp.ones((4, 7, 3))).shape
        (4, 2)
        >>> y, state = net.step(jnp.ones((4, 3)), net.init_state(4))
        >>> y.shape
        (4, 2)

        ```
    """

    layers: tuple[SequenceLayer, ...]
    n_in: int | None = eqx.field(static=True)
    n_out: int | None = eqx.field(static=True)

    def __init__(self, layers: Sequence[Any]):
        """
        Arguments:
            layers: at least one; sequence layers, Equinox modules, or functions of one sample.

        Raises:
            ValueError: if there is none, if a layer does not fit the width that the one before it gives, or if a layer
                with memory stands behind one that pools.
        """
        if not isinstance(layers, list | tuple):
            raise TypeError(f"Sequential: layers must be a list or a tuple, got {type(layers).__name__}")
        if not layers:
            raise ValueError("Sequential: layers must hold at least one layer")
        fitted: list[SequenceLayer] = []
        width, pooled = None, None
        for i, given in enumerate(layers):
            where = f"Sequential: layers[{i}]"
            layer = _as_layer(given, width, where)
            if width is not None and layer.n_in not in (None, width):
                raise ValueError(
                    f"{where} ({type(layer).__name__}) takes samples of width {layer.n_in}, "
                    f"but the layer before it gives {width}"
                )
            if pooled is not None and not is_memoryless(layer):
                raise ValueError(
                    f"{where} ({type(layer).__name__}) has a memory, but layers[{pooled}] leaves no time axis for it"
                )
            if layer.pools:
                pooled = i
            fitted.append(layer)
            width = width_behind(layer, width)
        self.layers = tuple(fitted)
        self.n_in = next((la.n_in for la in fitted if la.n_in is not None or not keeps_width(la)), None)
        self.n_out = width

    @property
    def pools(self) -> bool:
        """Whether one of the layers does."""
        return any(layer.pools for layer in self.layers)

    @property
    def offline_reason(self) -> str | None:
        """That of the first layer that has one."""
        return next((la.offline_reason for la in self.layers if la.offline_reason is not None), None)

    @property
    def _sample_ndim(self) -> int:
        return self.layers[0]._sample_ndim

    def init_state(self, batch: BatchShape = (), dtype: DType | None = None) -> tuple[State, ...]:
        """The states of the layers, in their order.

        Arguments:
            batch: the batch axes, an integer or a tuple; `()` for a single stream.
            dtype: dtype of the stream; default: that of the weights.
        """
        batch = batch_shape(batch, "Sequential.init_state")
        dtype = float_dtype(self.dtype if dtype is None else dtype, "Sequential.init_state")
        return tuple(layer.init_state(batch, dtype) for layer in self.layers)

    def _step(self, x: Array, state: State, key: Array | None) -> tuple[Array, State]:
        states = []
        for layer, s, k in zip(self.layers, state, _split(key, len(self.layers)), strict=True):
            x, s = layer.step(x, s, key=k)
            states.append(s)
        return x, tuple(states)

    def _unroll(
        self, xs: Array, state: State, mask: Array | None, resets: Array | None, key: Array | None
    ) -> tuple[Array, State]:
        states, pooled = [], False
        for layer, s, k in zip(self.layers, state, _split(key, len(self.layers)), strict=True):
            if pooled:
                xs, s = layer.step(xs, s, key=k)
            else:
                xs, s = layer.unroll(xs, s, mask=mask, resets=resets, key=k)
                pooled = layer.pools
            states.append(s)
        return xs, tuple(states)

    def _forward(self, xs: Array, mask: Array | None, resets: Array | None, key: Array | None) -> Array:
        pooled = False
        for layer, k in zip(self.layers, _split(key, len(self.layers)), strict=True):
            if pooled:
                xs = layer.step(xs, key=k)[0]
            else:
                xs = layer.forward(xs, mask=mask, resets=resets, key=k)
                pooled = layer.pools
        return xs

    def _conform_state(self, state: Any, batch: tuple[int, ...], dtype: Any, where: str) -> tuple[State, ...]:
        parts = check_tuple(state, len(self.layers), where)
        return tuple(
            layer._conform_state(s, batch, dtype, f"{where}[{i}]")
            for i, (layer, s) in enumerate(zip(self.layers, parts, strict=True))
        )

    def _remember(self, state: State, memory: Array, mask: Array | None) -> tuple[State, ...]:
        return tuple(layer._remember(s, memory, mask) for layer, s in zip(self.layers, state, strict=True))

    def __getitem__(self, i: int) -> SequenceLayer:
        return self.layers[i]

    def __len__(self) -> int:
        return len(self.layers)

    def __iter__(self) -> Iterator[SequenceLayer]:
        return iter(self.layers)


def is_memoryless(layer: SequenceLayer) -> bool:
    """Whether a layer's output depends on its own sample alone."""
    if isinstance(layer, Sequential):
        return all(map(is_memoryless, layer.layers))
    return isinstance(layer, Pointwise)


def keeps_width(layer: SequenceLayer) -> bool:
    """Whether a layer that tells no `n_out` gives what it gets: all but functions of a width that is not known yet."""
    if isinstance(layer, Sequential):
        return all(map(keeps_width, layer.layers))
    return layer.n_out is None and not isinstance(layer, PerSample)


def width_behind(layer: SequenceLayer, width: int | None) -> int | None:
    """The width that a layer gives for samples of `width`; None where it cannot be told."""
    return layer.n_out if layer.n_out is not None else width if keeps_width(layer) else None


def _as_layer(given: Any, width: int | None, where: str) -> SequenceLayer:
    """What stands in a Sequential, as a layer that knows its width if the one before it tells."""
    if isinstance(given, LastStep | MeanOverTime) and given.n_in is None and width is not None:
        return given.with_width(width)
    if isinstance(given, SequenceLayer):
        return given
    if isinstance(given, eqx.nn.Dropout):
        return Dropout(given.p, given.inference)
    if not callable(given) or inspect.isclass(given):
        raise TypeError(f"{where} must be a layer, an Equinox module or a function, got {given!r}")
    layer = PerSample(given)
    return layer if layer.n_in is not None or layer._sample_ndim == 0 or width is None else PerSample(given, width)


def _split(key: Array | None, n: int) -> Sequence[Array | None]:
    return [None] * n if key is None else list(jax.random.split(key, n))
