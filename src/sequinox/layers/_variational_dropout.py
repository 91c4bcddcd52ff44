"""Dropout between layers, the same at every sample of a sequence."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from .._checks import check_rate, flag, size
from .._dropout import draw_kept, dropped, need_key
from .._layer import select
from .._types import BatchShape, DType
from ._pooling import OfAnyWidth


class VariationalDropoutState(NamedTuple):
    """Which units are kept, bool `"*batch n_in"`, and whether that has been drawn, bool `"*batch"`."""

    kept: Array
    drawn: Array


class VariationalDropout(OfAnyWidth):
    r"""Variational dropout between layers: one mask for a whole sequence.

    $$
    y_t = \frac{z \odot x_t}{1 - p} \qquad z \in \{0, 1\}^n,\ P(z_j = 0) = p
    $$

    with the same $z$ at every sample of a row. A row's mask is drawn at the first sample after its start or reset, from
    the `key` of that call, and kept in the state,
    [`VariationalDropoutState`][sequinox.VariationalDropoutState]: so stretches and steps of one sequence share
    it. In inference (`inference=True`, or `equinox.nn.inference_mode(model)`) the layer is the identity, and draws
    nothing.

    Source: [Gal and Ghahramani 2016](https://arxiv.org/abs/1512.05287), section 4, in the scaling that leaves inference
    alone.

    ??? example

        ```python
        >>> import jax, jax.numpy as jnp, sequinox as sqx
        >>> dropout = sqx.VariationalDropout(0.5, 3)
        >>> ys = dropout(jnp.ones((4, 7, 3)), key=jax.random.key(0))
        >>> bool(jnp.all(ys == ys[:, :1]))          # the same at every sample
        True

        ```
    """

    p: float = eqx.field(static=True)
    inference: bool
    n_in: int | None = eqx.field(static=True)

    def __init__(self, p: float = 0.5, n_in: int | None = None, *, inference: bool = False):
        """
        Arguments:
            p: the probability that a unit is dropped, in [0, 1).
            n_in: width of a sample. May be left out: a `Sequential` or the samples supply it.
            inference: whether it is off; `equinox.nn.inference_mode` turns it.

        Raises:
            TypeError, ValueError: if `p` is not in [0, 1), or `n_in` no positive integer. On a call in training without
                a key, if `p` is not 0.
        """
        self.p = check_rate(p, "VariationalDropout", "p")
        self.inference = flag(inference, "VariationalDropout", "inference")
        self.n_in = None if n_in is None else size(n_in, "VariationalDropout", "n_in")

    @property
    def receptive_field(self) -> int:
        """1: an output depends on its own sample alone."""
        return 1

    def with_width(self, n_in: int) -> "VariationalDropout":
        """The same layer for samples of a given width."""
        return VariationalDropout(self.p, n_in, inference=self.inference)

    def init_state(self, batch: BatchShape = (), dtype: DType | None = None) -> VariationalDropoutState:
        """No mask yet.

        Arguments:
            batch: the batch axes, an integer or a tuple; `()` for a single stream.
            dtype: not used: a mask is boolean.
        """
        del dtype
        shape = self._shape(batch)
        return VariationalDropoutState(jnp.ones(shape, bool), jnp.zeros(shape[:-1], bool))

    def _unroll(
        self,
        xs: Array,
        state: VariationalDropoutState,
        mask: Array | None,
        resets: Array | None,
        key: Array | None,
    ) -> tuple[Array, VariationalDropoutState]:
        if self.inference or self.p == 0 or xs.shape[-2] == 0:
            return xs, state
        key = need_key(key, "VariationalDropout")
        # A row's masks by the number of resets that its samples have met: each from a key of its own, so that masked
        # samples and resets that do not happen change nothing.
        n = 1 if resets is None else xs.shape[-2] + 1
        one = lambda i: draw_kept(jax.random.fold_in(key, i), self.p, state.kept.shape)
        fresh = jnp.moveaxis(jax.vmap(one)(jnp.arange(n)), 0, -2)
        first = select(state.drawn, state.kept, fresh[..., 0, :])
        fresh = fresh.at[..., 0, :].set(first)
        if resets is not None:
            met = jnp.cumsum(resets if mask is None else resets & mask, axis=-1)
            fresh = jnp.take_along_axis(fresh, jnp.expand_dims(met, -1), -2, mode="clip")
        ys = dropped(jnp.broadcast_to(fresh, xs.shape), xs, self.p)
        read = jnp.ones_like(state.drawn) if mask is None else jnp.any(mask, -1)
        after = VariationalDropoutState(select(read, fresh[..., -1, :], state.kept), state.drawn | read)
        return ys, after
