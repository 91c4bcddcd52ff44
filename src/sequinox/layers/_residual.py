"""A connection past a layer."""

import jax
from jaxtyping import Array

from .._checks import size
from .._layer import SequenceLayer
from .._types import State
from ._composite import LayerLike
from ._sequential import as_layer, width_behind
from ._wrapper import Wrapper


class Residual(Wrapper):
    r"""A layer, and a connection past it: the samples are added to the outputs of the layer.

    $$
    y_t = x_t + f(x)_t \qquad \text{or, with a projection,} \qquad y_t = P x_t + f(x)_t
    $$

    Its state is that of the layer $f$, which may be any that gives one output a sample. Where its output is not as wide
    as its samples, a projection $P$ is needed.

    Source: [He et al. 2016](https://arxiv.org/abs/1512.03385), equations (1) and (2).

    ??? example

        ```python
        >>> import jax, jax.numpy as jnp, sequinox as sqx
        >>> k1, k2 = jax.random.split(jax.random.key(0))
        >>> sqx.Residual(sqx.GRU(4, 4, k1))(jnp.ones((7, 4))).shape
        (7, 4)
        >>> sqx.Residual(sqx.GRU(3, 4, k1), projection=sqx.Dense(3, 4, k2))(jnp.ones((7, 3))).shape
        (7, 4)

        ```
    """

    layer: SequenceLayer
    projection: SequenceLayer | None

    def __init__(self, layer: LayerLike, *, projection: LayerLike | None = None):
        """
        Arguments:
            layer: a sequence layer that does not pool over time, an Equinox module or a function of one sample.
            projection: what the samples go through on the way past the layer: a layer without memory, with
                outputs as wide as those of the layer, such as `Dense(n_in, n_out, key)`. Default: nothing.

        Raises:
            TypeError, ValueError: if the layer pools over time or changes the width without a projection, or if the
                projection has a memory or does not fit.
        """
        who = "Residual"
        inner = as_layer(layer, None, f"{who}: layer")
        past = None if projection is None else as_layer(projection, None, f"{who}: projection")
        if inner.pools:
            raise ValueError(f"{who}: layer must give one output a sample, but {type(inner).__name__} pools over time")
        if past is None and inner.reads_tokens:
            raise ValueError(f"{who}: layer reads tokens, which cannot be added to what it gives; give a projection")
        if past is not None and not past.memoryless:
            raise ValueError(f"{who}: projection must be a layer without memory, got {type(past).__name__}")
        if past is not None and past.reads_tokens != inner.reads_tokens:
            raise ValueError(f"{who}: projection must read the samples that the layer reads: vectors, or tokens")
        n_in = inner.n_in if past is None or inner.n_in is not None else past.n_in
        if past is not None and None not in (n_in, past.n_in) and past.n_in != n_in:
            raise ValueError(f"{who}: projection must read samples of width {n_in}, as the layer, got {past.n_in}")
        given, added = width_behind(inner, n_in), n_in if past is None else width_behind(past, n_in)
        if None not in (given, added) and given != added:
            other = f"samples have {added}; projection=Dense({added}, {given}, key)"
            what = other if past is None else f"the projection gives {added}"
            raise ValueError(f"{who}: layer gives outputs of width {given}, but {what}")
        self.layer, self.projection = inner, past

    @property
    def inner(self) -> SequenceLayer:
        """The layer."""
        return self.layer

    @property
    def n_in(self) -> int | None:
        """That of the layer, or of the projection."""
        if self.layer.n_in is not None:
            return self.layer.n_in
        return self.layer.n_out if self.projection is None else self.projection.n_in

    @property
    def n_out(self) -> int | None:
        """That of the layer, or of the projection."""
        if self.layer.n_out is not None:
            return self.layer.n_out
        return self.layer.n_in if self.projection is None else self.projection.n_out

    @property
    def keeps_width(self) -> bool:
        return self.n_out is None and (self.projection is None or self.projection.keeps_width)

    def with_width(self, n_in: int) -> "Residual":
        """The same for samples of a given width."""
        n_in = size(n_in, "Residual", "n_in")
        past = None if self.projection is None else as_layer(self.projection, n_in, "Residual: projection")
        return Residual(as_layer(self.layer, n_in, "Residual: layer"), projection=past)

    def _step(self, x: Array, state: State, key: Array | None) -> tuple[Array, State]:
        own, others = self._keys(key)
        y, state = self.layer.step(x, state, key=own)
        return self._add(y, x if self.projection is None else self.projection.step(x, key=others)[0]), state

    def _unroll(
        self, xs: Array, state: State, mask: Array | None, resets: Array | None, key: Array | None
    ) -> tuple[Array, State]:
        own, others = self._keys(key)
        ys, state = self.layer.unroll(xs, state, mask=mask, resets=resets, key=own)
        return self._add(ys, self._past(xs, mask, others)), state

    def _unroll_from(
        self, xs: Array, state: State, mask: Array | None, resets: Array | None, key: Array | None, start: State
    ) -> tuple[Array, State]:
        own, others = self._keys(key)
        ys, state = self.layer._unroll_from(xs, state, mask, resets, own, start)
        return self._add(ys, self._past(xs, mask, others)), state

    def _forward(self, xs: Array, mask: Array | None, resets: Array | None, key: Array | None) -> Array:
        own, others = self._keys(key)
        return self._add(self.layer.forward(xs, mask=mask, resets=resets, key=own), self._past(xs, mask, others))

    def _keys(self, key: Array | None) -> tuple[Array | None, Array | None]:
        if key is None or self.projection is None:
            return key, None
        own, others = jax.random.split(key)
        return own, others

    def _past(self, xs: Array, mask: Array | None, key: Array | None) -> Array:
        return xs if self.projection is None else self.projection.forward(xs, mask=mask, key=key)

    def _add(self, y: Array, past: Array) -> Array:
        if y.shape != past.shape:
            raise ValueError(
                f"Residual: the layer gives outputs of shape {y.shape}, to which {past.shape} cannot be added; "
                "give a projection"
            )
        return past + y
