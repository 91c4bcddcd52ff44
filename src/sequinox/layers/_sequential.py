"""Layers one after another."""

import inspect
from collections.abc import Callable, Sequence
from functools import partial

import equinox as eqx
import jax
from jaxtyping import Array

from .._checks import size
from .._layer import Misplaced, SequenceLayer, composed_field, select
from .._types import State
from ._composite import Composite, LayerLike, LayerList, place_of, read_names, with_names
from ._pointwise import Dropout, PerSample


class Sequential(Composite):
    """Layers one after another, each reading the outputs of the one before it; itself a layer, which streams if they
    all do.

    Its state is the tuple of theirs, in the same order. A dictionary, or a list of pairs, names the layers: the
    state is then a dictionary by those names, `net["rnn"]` is the layer, and `layers['rnn'].W` the path of a weight.
    Such networks nest. A slice, `net[:2]`, is the `Sequential` of the layers in it.

    Whatever is no sequence layer (`eqx.nn.LayerNorm(8)`, `jnp.tanh`) is applied to every sample, as
    [`PerSample`][sequinox.layers.PerSample]. After a layer that pools over time only layers without memory may come:
    they read the pooled output.

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
        >>> net = sqx.Sequential({"rnn": sqx.GRU(3, 5, k1), "head": sqx.Dense(5, 2, k2)})
        >>> y, state = net.step(jnp.ones((4, 3)))
        >>> state["rnn"].shape, net["head"].n_out
        ((4, 5), 2)

        ```
    """

    layers: tuple[SequenceLayer, ...]
    n_in: int | None = eqx.field(static=True)
    n_out: int | None = eqx.field(static=True)

    def __init__(self, layers: LayerList, *misplaced: Misplaced):
        """
        Arguments:
            layers: at least one; sequence layers, Equinox modules, or functions of one sample. A list or a tuple; with
                names a dictionary, in whose order they run, or a list of pairs `(name, layer)`. A dictionary inside
                becomes a `Sequential` of it.

        Raises:
            TypeError, ValueError: if there is none, if a layer does not fit the width of the one before it, if a
                layer with memory comes after one that pools, or if names are no strings or not all different.
        """
        names, several = read_names(layers, "Sequential", misplaced)
        fitted: list[SequenceLayer] = []
        width, pooled = None, None
        for i, given in enumerate(several):
            where = place_of(names, i, "Sequential")
            layer = as_layer(given, width, where)
            if width is not None and layer.n_in not in (None, width):
                raise ValueError(
                    f"{where} ({type(layer).__name__}) takes samples of width {layer.n_in}, "
                    f"but the layer before it gives {width}"
                )
            if pooled is not None and not layer.memoryless:
                raise ValueError(
                    f"{where} ({type(layer).__name__}) has a memory, but {pooled} leaves no time axis for it"
                )
            if layer.pools:
                pooled = where.removeprefix("Sequential: ")
            fitted.append(layer)
            width = width_behind(layer, width)
        self.layers = with_names(names, fitted)
        self.n_in = next((la.n_in for la in fitted if la.n_in is not None or not la.keeps_width), None)
        self.n_out = width

    @property
    def receptive_field(self) -> int | None:
        """One more than the sum of how far each layer looks back; None if one has no bound."""
        return composed_field(layer.receptive_field for layer in self.layers)

    def _of(self, layers: tuple[SequenceLayer, ...]) -> "Sequential":
        return Sequential(layers)

    def with_width(self, n_in: int) -> "Sequential":
        """The same layers for samples of a given width."""
        fitted, width = [], size(n_in, "Sequential", "n_in")
        for i, layer in enumerate(self.layers):
            fitted.append(as_layer(layer, width, place_of(self.names, i, "Sequential")))
            width = width_behind(fitted[-1], width)
        return Sequential(with_names(self.names, fitted))

    def _step(self, x: Array, state: State, key: Array | None) -> tuple[Array, State]:
        run = lambda layer, x, s, key: layer.step(x, s, key=key)
        return self._run([run] * len(self.layers), x, state, key)

    def _unroll(
        self, xs: Array, state: State, mask: Array | None, resets: Array | None, key: Array | None
    ) -> tuple[Array, State]:
        run = lambda layer, xs, s, key: layer.unroll(xs, s, mask=mask, resets=resets, key=key)
        return self._run([run] * len(self.layers), xs, state, key)

    def _unroll_from(
        self, xs: Array, state: State, mask: Array | None, resets: Array | None, key: Array | None, start: State
    ) -> tuple[Array, State]:
        def run(layer: SequenceLayer, xs: Array, s: State, key: Array | None, start: State) -> tuple[Array, State]:
            xs = xs if mask is None else select(mask, xs, layer._filler(xs))
            return layer._unroll_from(xs, s, mask, resets, key, start)

        return self._run([partial(run, start=s) for s in self._split_state(start)], xs, state, key)

    def _run(self, runs: Sequence[Callable], xs: Array, state: State, key: Array | None) -> tuple[Array, State]:
        """The layers one after another, `runs[i](layer, xs, state, key)` each; after a pooled output by steps."""
        states, pooled = [], False
        keys = split_key(key, len(self.layers))
        for layer, run, s, k in zip(self.layers, runs, self._split_state(state), keys, strict=True):
            xs, s = layer.step(xs, s, key=k) if pooled else run(layer, xs, s, k)
            pooled = pooled or layer.pools
            states.append(s)
        return xs, self._join_state(states)

    def _forward(self, xs: Array, mask: Array | None, resets: Array | None, key: Array | None) -> Array:
        pooled = False
        for layer, k in zip(self.layers, split_key(key, len(self.layers)), strict=True):
            if pooled:
                xs = layer.step(xs, key=k)[0]
            else:
                xs = layer.forward(xs, mask=mask, resets=resets, key=k)
                pooled = layer.pools
        return xs


def width_behind(layer: SequenceLayer, width: int | None) -> int | None:
    """The width of a layer's outputs for samples of `width`; None if that is not known."""
    return layer.n_out if layer.n_out is not None else width if layer.keeps_width else None


def as_layer(given: LayerLike, width: int | None, where: str) -> SequenceLayer:
    """What a composed layer is given, as a layer that knows the width of its samples if that is known."""
    if isinstance(given, SequenceLayer):
        if width is None or given.n_in is not None or given.reads_tokens:
            return given
        return given.with_width(width)
    if isinstance(given, dict):
        return Sequential(given)
    if isinstance(given, eqx.nn.Dropout):
        return Dropout(given.p, given.inference)
    if not callable(given) or inspect.isclass(given):
        raise TypeError(f"{where} must be a layer, an Equinox module or a function, got {given!r}")
    layer = PerSample(given)
    return layer if layer.n_in is not None or layer.reads_tokens or width is None else PerSample(given, width)


def split_key(key: Array | None, n: int) -> Sequence[Array | None]:
    """A key for each of `n` layers."""
    return [None] * n if key is None else list(jax.random.split(key, n))
