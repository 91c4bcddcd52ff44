"""A filter with a finite impulse response."""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._checks import batch_shape, check_key, float_dtype, size
from .._layer import SequenceLayer
from .._linear import make_weight
from .._types import ArrayLike, BatchShape, DType, Initializer, PRNGKey, State
from ..convolution._window import Window, window_over


class FIR(SequenceLayer[Array]):
    r"""A filter with a finite impulse response: a weighted sum of a channel's last samples.

    $$
    y_t = \sum_{j=0}^{k-1} w_j \odot x_{t-j}
    $$

    with the taps $w_0, \dots, w_{k-1}$, one number a channel each. The taps are trained. Channels do not mix; a
    convolution has matrices for taps. The window counts real samples: a masked one is absent, and a reset empties it.
    The state is the last $k - 1$ real samples, oldest first, zeros where there were fewer.

    Source: a textbook definition; with given taps it is SciPy's `lfilter(w, 1, x)`.

    ??? example

        ```python
        >>> import jax.numpy as jnp, sequinox as sqx
        >>> difference = sqx.FIR(1, jnp.array([1.0, -1.0]))
        >>> difference(jnp.array([[3.0], [5.0], [4.0]])).tolist()
        [[3.0], [2.0], [-1.0]]

        ```
    """

    w: Float[Array, "n_taps n_in"]
    n_in: int = eqx.field(static=True)
    n_out: int = eqx.field(static=True)
    n_taps: int = eqx.field(static=True)

    def __init__(
        self,
        n_in: int,
        taps: int | ArrayLike | Sequence[Any],
        key: PRNGKey | None = None,
        *,
        initializer: Initializer | None = None,
        dtype: DType | None = None,
    ):
        """
        Arguments:
            n_in: number of channels: the width of a sample, and of the output.
            taps: their number, to be drawn; or the taps themselves, that of the sample itself first: `" n_taps"`, the
                same for every channel, or `"n_taps n_in"`.
            key: PRNG key for taps that are drawn.
            initializer: of taps that are drawn, a function of `(key, shape, dtype)` with the shape `(n_taps, n_in)`;
                default `lecun_normal`, of variance `1 / n_taps`, which keeps the variance of white samples.
            dtype: of the taps; default: that of the given ones, or JAX's default, float32.

        Raises:
            TypeError, ValueError: for sizes that are not positive integers, taps of a wrong shape, a key beside given
                taps or none beside their number, a wrong dtype.
        """
        self.n_in = self.n_out = size(n_in, "FIR", "n_in")
        if isinstance(taps, jax.Array | np.ndarray | list | tuple):
            if key is not None:
                raise ValueError("FIR: key is for taps that are drawn, but the taps are given")
            self.w = given_taps(taps, self.n_in, dtype, "FIR", "taps")
        else:
            n_taps = size(taps, "FIR", "taps")
            if key is None:
                raise ValueError(f"FIR: a key is needed to draw {n_taps} taps; or give the taps, an array")
            dtype = float_dtype(dtype, "FIR")
            initializer = jax.nn.initializers.lecun_normal() if initializer is None else initializer
            self.w = make_weight(check_key(key, "FIR"), (self.n_in, n_taps), initializer, dtype, "FIR").T
        self.n_taps = self.w.shape[0]

    @property
    def receptive_field(self) -> int:
        """The number of taps."""
        return self.n_taps

    def init_state(self, batch: BatchShape = (), dtype: DType | None = None) -> Float[Array, "*batch past n_in"]:
        """No samples yet: zeros, `"*batch n_taps-1 n_in"`.

        Arguments:
            batch: the batch axes, an integer or a tuple; `()` for a single stream.
            dtype: dtype of the stream; default: that of the taps.
        """
        dtype = float_dtype(self.dtype if dtype is None else dtype, "FIR.init_state")
        return jnp.zeros((*batch_shape(batch, "FIR.init_state"), self.n_taps - 1, self.n_in), dtype)

    def _unroll(
        self, xs: Array, state: Array, mask: Array | None, resets: Array | None, key: Array | None
    ) -> tuple[Array, State]:
        del key
        return _filter(self.w, xs, state, mask, resets)


@jax.jit
def _filter(w: Array, xs: Array, past: Array, mask: Array | None, resets: Array | None) -> tuple[Array, Array]:
    """Jitted, so that calls outside of `jit` do not go tap by tap."""
    window = window_over(xs, past, mask, resets)
    return window.restore(_weighted_sum(w, window)), window.past


_UNROLLED = 16


def _weighted_sum(w: Array, window: Window) -> Array:
    """The sum over taps, shifted sample by shifted sample: XLA makes one loop of it.

    Its convolution for separate channels took at least 15 times as long on a CPU, and twice as long with the derivative
    (4 to 64 taps, 16 channels, jax 0.10.2). Many taps are summed in a loop over them, whose compile time does not grow
    with their number.
    """
    term = lambda tap, xs: jnp.broadcast_to(tap, xs.shape) * xs
    if w.shape[0] <= _UNROLLED:
        ys = term(w[0], window.lagged(0))
        for j in range(1, w.shape[0]):
            ys = ys + term(w[j], window.lagged(j))
        return ys

    @jax.checkpoint
    def body(ys: Array, tap: tuple[Array, Array]) -> tuple[Array, None]:
        return ys + term(tap[0], window.lagged(tap[1])), None

    lags = jnp.arange(w.shape[0], dtype=jnp.int32)
    return jax.lax.scan(body, jnp.zeros_like(window.lagged(0)), (w, lags))[0]


def given_taps(taps: Any, n: int, dtype: DType | None, who: str, name: str) -> Array:
    """Taps as a user gives them, as `(n_taps, n)`, checked."""
    try:
        array = jnp.asarray(taps)
    except (TypeError, ValueError):
        raise TypeError(f"{who}: {name} must be an array of numbers, got {taps!r}") from None
    if jnp.issubdtype(array.dtype, jnp.complexfloating) or array.dtype == bool:
        raise TypeError(f"{who}: {name} must be real numbers, got dtype {array.dtype}")
    if array.ndim not in (1, 2) or array.shape[0] == 0 or (array.ndim == 2 and array.shape[1] != n):
        raise ValueError(f"{who}: {name} must have shape (n_taps,) or (n_taps, {n}), got {array.shape}")
    own = array.dtype if jnp.issubdtype(array.dtype, jnp.floating) else None
    array = array.astype(float_dtype(own if dtype is None else dtype, who))
    return array if array.ndim == 2 else jnp.broadcast_to(jnp.expand_dims(array, 1), (array.shape[0], n))
