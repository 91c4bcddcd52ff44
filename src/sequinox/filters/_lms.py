"""Filters whose state carries their taps: they adapt while they run."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._checks import batch_shape, float_dtype, number, sizes, wide
from .._layer import SequenceLayer
from .._types import ArrayLike, BatchShape, DType
from ._fir import given_taps


class LMSState(NamedTuple):
    """The taps as they are now, and the samples that they see next."""

    w: Float[Array, "*batch n_taps n_signals"]
    """In float32 at least: in half precision small steps would be lost."""
    past: Float[Array, "*batch n_taps-1 n_signals"]
    """The last inputs, oldest first."""


class _AdaptiveFIR(SequenceLayer[LMSState]):
    w: eqx.AbstractVar[Float[Array, "n_taps n_signals"] | None]
    mu: eqx.AbstractVar[Float[Array, ""]]
    n_taps: eqx.AbstractVar[int]
    n_signals: eqx.AbstractVar[int]

    @property
    def n_in(self) -> int:
        """Width of a sample: the signals, then the desired response."""
        return self.n_signals + 1

    @property
    def n_out(self) -> int:
        """2: the filter's output, and its error."""
        return 2

    def init_state(self, batch: BatchShape = (), dtype: DType | None = None) -> LMSState:
        """The first taps, and inputs of zeros.

        Arguments:
            batch: the batch axes, an integer or a tuple; `()` for a single stream.
            dtype: dtype of the stream; default: that of the taps.
        """
        who = f"{type(self).__name__}.init_state"
        axes, dtype = batch_shape(batch, who), float_dtype(self.dtype if dtype is None else dtype, who)
        shape = (*axes, self.n_taps, self.n_signals)
        w = jnp.zeros(shape, wide(dtype)) if self.w is None else jnp.broadcast_to(self.w.astype(wide(dtype)), shape)
        return LMSState(w, jnp.zeros((*axes, self.n_taps - 1, self.n_signals), dtype))

    def _step(self, x: Array, state: LMSState, key: Array | None) -> tuple[Array, LMSState]:
        del key
        w, past = state
        recent = jnp.concatenate([past, jnp.expand_dims(x[..., :-1], -2)], -2)
        window = jnp.flip(recent, -2).astype(w.dtype)
        y = jnp.sum(w * window, (-2, -1))
        e = x[..., -1].astype(w.dtype) - y
        step = jnp.expand_dims(self._step_size(window) * e, (-2, -1))
        return jnp.stack([y, e], -1).astype(x.dtype), LMSState(w + step * window, recent[..., 1:, :])

    def _step_size(self, window: Array) -> Array:
        """What multiplies the error and the window."""
        return jnp.broadcast_to(self.mu.astype(window.dtype), window.shape[:-2])


class LMS(_AdaptiveFIR):
    r"""The least-mean-squares filter: its taps follow a desired response while it runs.

    $$
    y_t = \sum_{j=0}^{k-1} w_{t,j}^\top x_{t-j}
    \qquad
    e_t = d_t - y_t
    \qquad
    w_{t+1,j} = w_{t,j} + \mu\, e_t\, x_{t-j}
    $$

    A sample is $[x_t, d_t]$: the signals, and the response that is desired of the filter. The output is $[y_t, e_t]$,
    by the taps before the sample. Each sample moves the taps down the gradient of its own $e_t^2 / 2$. Whether they
    approach those of least mean square error is a matter of the step size. With $u_t$ for all that the window holds,
    $R = \mathrm{E}[u u^\top]$ and its eigenvalues $\lambda_i$,

    - their *mean* over many rows does for $\mu < 2 / \lambda_{\max}$, if windows are independent of each other. Of one
      row that says little: it may be anywhere, or overflow;
    - their *mean square deviation* stays finite, for Gaussian input and independent windows, if and only if
      $\mu \lambda_{\max} < 1$ and $\sum_i \mu \lambda_i / (2 - 2 \mu \lambda_i) < 1$. So
      $\mu < 2 / (3 \operatorname{tr} R)$ suffices; for $n$ white numbers of power $\sigma^2$ the bound is
      $2 / ((n + 2) \sigma^2)$;
    - *no step* leads away from taps that give $d$ without error, whatever the input, if $\mu \lVert u_t \rVert^2 < 2$
      for every window. [`NLMS`][sequinox.filters.NLMS] sees to that.

    Windows are independent with `n_taps=1`, if samples are. Those of a delay line overlap. The second bound is then
    nearly right for white input, and too high for coloured input: the [guide](../guides/filters.md) shows how much.
    (Texts that write the update with $2 \mu$ have half of each bound.)

    The state is an [`LMSState`][sequinox.filters.LMSState]: the taps of this very stream, and the last inputs. The step
    size and first taps that are given are arrays of the layer: they receive gradients, through all the adaptation that
    follows, so that they can be learned; and many step sizes can be tried at once under `jax.vmap`. To keep one fixed,
    leave it out of what the optimiser sees.

    Sources: [Widrow and Hoff 1960](https://isl.stanford.edu/~widrow/papers/c1960adaptiveswitching.pdf), in the form of
    the textbooks; the bound of the mean, Widrow and Stearns 1985, *Adaptive Signal Processing*, chapter 6; that of the
    mean square, [Feuer and Weinstein 1985](https://doi.org/10.1109/TASSP.1985.1164493).

    ??? example

        ```python
        >>> import jax, jax.numpy as jnp, sequinox as sqx
        >>> x = jax.random.normal(jax.random.key(0), (500, 1))
        >>> d = sqx.FIR(1, jnp.array([0.5, -0.25]))(x)  # a filter to be identified
        >>> _, state = sqx.LMS(2, 0.1).unroll(jnp.concatenate([x, d], -1))
        >>> jnp.round(state.w[:, 0], 3).tolist()
        [0.5, -0.25]

        ```
    """

    w: Float[Array, "n_taps n_signals"] | None
    mu: Float[Array, ""]
    n_taps: int = eqx.field(static=True)
    n_signals: int = eqx.field(static=True)

    def __init__(
        self,
        n_taps: int,
        mu: float,
        *,
        n_signals: int = 1,
        w: ArrayLike | Sequence[Any] | None = None,
        dtype: DType | None = None,
    ):
        r"""
        Arguments:
            n_taps: number of taps for each signal.
            mu: the step size $\mu$, positive. How large it may be is a matter of the input: see above.
            n_signals: width of $x_t$; a sample has one number more, the desired response.
            w: the first taps, `" n_taps"` or `"n_taps n_signals"`, that of the sample itself first. They are trained,
                unlike the default, zeros.
            dtype: of the taps; default: JAX's default, float32.

        Raises:
            TypeError, ValueError: for sizes that are not positive integers, a step size that is not positive, taps of a
                wrong shape, a wrong dtype.
        """
        self.n_taps, self.n_signals = sizes("LMS", n_taps=n_taps, n_signals=n_signals)
        self.w, self.mu = _first(w, mu, self.n_taps, self.n_signals, dtype, "LMS")


class NLMS(_AdaptiveFIR):
    r"""The normalised least-mean-squares filter: LMS with steps that do not depend on how loud the input is.

    $$
    y_t = \sum_{j=0}^{k-1} w_{t,j}^\top x_{t-j}
    \qquad
    e_t = d_t - y_t
    \qquad
    w_{t+1,j} = w_{t,j} + \frac{\mu\, e_t\, x_{t-j}}{\varepsilon + \sum_{i=0}^{k-1} \lVert x_{t-i} \rVert^2}
    $$

    Everything else is as in [`LMS`][sequinox.filters.LMS]. With $\mu = 1$ and $\varepsilon = 0$ a step would bring the
    error on its own sample to zero. For $0 < \mu < 2$ every step makes that error smaller, and none leads away from
    taps that give $d$ without error: in every row, whatever the input, and not in a mean alone.

    Source: a textbook definition.

    ??? example

        ```python
        >>> import jax, jax.numpy as jnp, sequinox as sqx
        >>> x = 1000 * jax.random.normal(jax.random.key(0), (500, 1))
        >>> d = sqx.FIR(1, jnp.array([0.5, -0.25]))(x)
        >>> _, state = sqx.NLMS(2, 0.5).unroll(jnp.concatenate([x, d], -1))
        >>> jnp.round(state.w[:, 0], 3).tolist()
        [0.5, -0.25]

        ```
    """

    w: Float[Array, "n_taps n_signals"] | None
    mu: Float[Array, ""]
    n_taps: int = eqx.field(static=True)
    n_signals: int = eqx.field(static=True)
    eps: float = eqx.field(static=True)

    def __init__(
        self,
        n_taps: int,
        mu: float,
        eps: float = 1e-6,
        *,
        n_signals: int = 1,
        w: ArrayLike | Sequence[Any] | None = None,
        dtype: DType | None = None,
    ):
        r"""
        Arguments:
            n_taps: number of taps for each signal.
            mu: the step size $\mu$, positive. Steps of 2 and more, which may diverge, are not refused.
            eps: the $\varepsilon$ beside the energy in the window, positive: a silent window must not be divided by.
            n_signals: width of $x_t$; a sample has one number more, the desired response.
            w: the first taps, `" n_taps"` or `"n_taps n_signals"`, that of the sample itself first. They are trained,
                unlike the default, zeros.
            dtype: of the taps; default: JAX's default, float32.

        Raises:
            TypeError, ValueError: for sizes that are not positive integers, a step size or `eps` that is not positive,
                taps of a wrong shape, a wrong dtype.
        """
        self.n_taps, self.n_signals = sizes("NLMS", n_taps=n_taps, n_signals=n_signals)
        self.w, self.mu = _first(w, mu, self.n_taps, self.n_signals, dtype, "NLMS")
        self.eps = number(eps, "NLMS", "eps")
        if self.eps <= 0:
            raise ValueError(f"NLMS: eps must be positive, got {eps}")

    def _step_size(self, window: Array) -> Array:
        return super()._step_size(window) / (self.eps + jnp.sum(window * window, (-2, -1)))


def _first(w: Any, mu: Any, n_taps: int, n_signals: int, dtype: DType | None, who: str) -> tuple[Array | None, Array]:
    """The first taps and the step size, checked."""
    dtype = float_dtype(dtype, who)
    taps = None if w is None else given_taps(w, n_signals, dtype, who, "w")
    if taps is not None and taps.shape[0] != n_taps:
        raise ValueError(f"{who}: w must have {n_taps} taps, got {taps.shape[0]}")
    return taps, positive_step(mu, dtype, who)


def positive_step(mu: Any, dtype: DType, who: str) -> Array:
    """A step size in its dtype, checked."""
    if np.dtype(dtype).type(number(mu, who, "mu")) <= 0:
        small = "" if mu <= 0 else f", which {np.dtype(dtype)} rounds to 0"
        raise ValueError(f"{who}: mu must be positive, got {mu}{small}")
    return jnp.asarray(mu, dtype)
