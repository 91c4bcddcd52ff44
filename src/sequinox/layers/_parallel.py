"""Layers side by side."""

from collections.abc import Sequence
from typing import Any, Literal

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array

from .._checks import size
from .._layer import SequenceLayer
from .._types import State
from ._composite import Composite, LayerList, place_of, read_names, with_names
from ._sequential import as_layer, split_key, width_behind


class Parallel(Composite):
    r"""Layers side by side: all read the same samples, and their outputs are put together.

    $$
    y_t = [f_1(x)_t; \dots; f_n(x)_t] \qquad \text{or} \qquad y_t = f_1(x)_t + \dots + f_n(x)_t
    $$

    The state is the tuple of theirs or, if names are given, a dictionary by the names, as in a
    [`Sequential`][sequinox.layers.Sequential]. It streams if all of them do. Either all pool over time, or none does.

    ??? example

        ```python
        >>> import jax, jax.numpy as jnp, sequinox as sqx
        >>> k1, k2 = jax.random.split(jax.random.key(0))
        >>> both = sqx.Parallel([sqx.GRU(3, 5, k1), sqx.Dense(3, 4, k2)])
        >>> both(jnp.ones((7, 3))).shape
        (7, 9)
        >>> summary = sqx.Sequential([sqx.GRU(3, 5, k1), sqx.Parallel([sqx.LastStep(), sqx.MeanOverTime()])])
        >>> summary(jnp.ones((7, 3))).shape
        (10,)

        ```
    """

    layers: tuple[SequenceLayer, ...]
    join: Literal["concatenate", "sum"] = eqx.field(static=True)
    n_in: int | None = eqx.field(static=True)
    n_out: int | None = eqx.field(static=True)

    def __init__(self, layers: LayerList, join: Literal["concatenate", "sum"] = "concatenate"):
        """
        Arguments:
            layers: at least one; sequence layers, Equinox modules, or functions of one sample. A list or a tuple; with
                names a dictionary, or a list of pairs `(name, layer)`.
            join: `"concatenate"` (default), the outputs one after another in the order of the layers, or `"sum"`.

        Raises:
            TypeError, ValueError: if there is none, if they do not read the same samples, if some pool over time and
                others do not, if outputs of different widths are to be summed, or if names are no strings or not all
                different.
        """
        who = "Parallel"
        names, several = read_names(layers, who)
        if join not in ("concatenate", "sum"):
            raise ValueError(f'{who}: join must be "concatenate" or "sum", got {join!r}')
        place = lambda i: place_of(names, i, who)
        fitted = [as_layer(given, None, place(i)) for i, given in enumerate(several)]
        width = next((layer.n_in for layer in fitted if layer.n_in is not None), None)
        fitted = [as_layer(layer, width, place(i)) for i, layer in enumerate(fitted)]
        reads = lambda la: "tokens" if la.reads_tokens else f"samples of width {la.n_in}"
        first = next((la for la in fitted if la.n_in is not None or la.reads_tokens), fitted[0])
        for i, layer in enumerate(fitted):
            here = f"{place(i)} ({type(layer).__name__})"
            if layer.reads_tokens != first.reads_tokens or layer.n_in not in (None, width):
                raise ValueError(f"{here} reads {reads(layer)}, but another layer reads {reads(first)}")
            if layer.pools != fitted[0].pools:
                raise ValueError(f"{here}: either all layers pool over time or none does")
        widths = [width_behind(layer, width) for layer in fitted]
        if join == "sum" and len(set(widths) - {None}) > 1:
            raise ValueError(f"{who}: outputs of widths {widths} cannot be summed")
        self.layers, self.join = with_names(names, fitted), join
        self.n_in, self.n_out = width, None
        known = [w for w in widths if w is not None]
        if join == "sum":
            self.n_out = known[0] if known else None
        elif len(known) == len(widths):
            self.n_out = sum(known)

    @property
    def receptive_field(self) -> int | None:
        """That of the layer that looks back furthest; None if one has no bound."""
        fields = [layer.receptive_field for layer in self.layers]
        known = [field for field in fields if field is not None]
        return max(known) if len(known) == len(fields) else None

    @property
    def keeps_width(self) -> bool:
        return self.n_out is None and self.join == "sum" and all(layer.keeps_width for layer in self.layers)

    def _of(self, layers: tuple[SequenceLayer, ...]) -> "Parallel":
        return Parallel(layers, self.join)

    def with_width(self, n_in: int) -> "Parallel":
        """The same layers for samples of a given width."""
        n_in = size(n_in, "Parallel", "n_in")
        fitted = [as_layer(layer, n_in, place_of(self.names, i, "Parallel")) for i, layer in enumerate(self.layers)]
        return Parallel(with_names(self.names, fitted), self.join)

    def _step(self, x: Array, state: State, key: Array | None) -> tuple[Array, State]:
        return self._run(lambda layer, s, k: layer.step(x, s, key=k), state, key)

    def _unroll(
        self, xs: Array, state: State, mask: Array | None, resets: Array | None, key: Array | None
    ) -> tuple[Array, State]:
        return self._run(lambda layer, s, k: layer.unroll(xs, s, mask=mask, resets=resets, key=k), state, key)

    def _forward(self, xs: Array, mask: Array | None, resets: Array | None, key: Array | None) -> Array:
        keys = split_key(key, len(self.layers))
        parts = zip(self.layers, keys, strict=True)
        return self._joined([layer.forward(xs, mask=mask, resets=resets, key=k) for layer, k in parts])

    def _run(self, run: Any, state: State, key: Array | None) -> tuple[Array, State]:
        keys = split_key(key, len(self.layers))
        ran = [run(*parts) for parts in zip(self.layers, self._split_state(state), keys, strict=True)]
        return self._joined([y for y, _ in ran]), self._join_state([s for _, s in ran])

    def _joined(self, ys: Sequence[Array]) -> Array:
        if self.join == "concatenate":
            return jnp.concatenate(ys, -1)
        if any(y.shape != ys[0].shape for y in ys):
            raise ValueError(f"Parallel: outputs of shapes {[y.shape for y in ys]} cannot be summed")
        return sum(ys[1:], ys[0])
