"""A recursive filter that adapts while it runs."""

from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._checks import batch_shape, float_dtype, number, wide
from .._layer import SequenceLayer
from .._precision import KEEPS_FLOAT32
from .._types import BatchShape, DType
from ._lms import positive_step


class AdaptiveOnePoleState(NamedTuple):
    """The coefficients as they are now, the output, and its derivatives by them; in float32 at least."""

    alpha: Float[Array, "*batch"]
    beta: Float[Array, "*batch"]
    y: Float[Array, "*batch"]
    dy_dalpha: Float[Array, "*batch"]
    dy_dbeta: Float[Array, "*batch"]


class AdaptiveOnePole(SequenceLayer[AdaptiveOnePoleState]):
    r"""A one-pole filter whose coefficients follow a desired response while it runs.

    $$
    \begin{aligned}
    y_t &= \alpha\, y_{t-1} + \beta\, x_t \qquad e_t = d_t - y_t \\
    \frac{\partial y_t}{\partial \alpha} &= y_{t-1} + \alpha \frac{\partial y_{t-1}}{\partial \alpha} \qquad
    \frac{\partial y_t}{\partial \beta} = x_t + \alpha \frac{\partial y_{t-1}}{\partial \beta} \\
    \alpha &\leftarrow \alpha + \mu\, e_t \frac{\partial y_t}{\partial \alpha} \qquad
    \beta \leftarrow \beta + \mu\, e_t \frac{\partial y_t}{\partial \beta}
    \end{aligned}
    $$

    A sample is $[x_t, d_t]$: the signal, and the response that is desired of the filter. The output is $[y_t, e_t]$, by
    the coefficients before the sample. The derivatives have states of their own, updated by the same loop as the
    signal: exactly as backpropagation through time finds them, were the coefficients held; since they move, the
    recursion is right for a small $\mu$.

    Unlike the taps of [`LMS`][sequinox.filters.LMS], the pole has a wrong side: with $|\alpha| > 1$ filter and
    derivatives both diverge, and one large step is enough. So the pole is held in $|\alpha| \le$ `limit` after every
    step, and at the start. A pole at the limit is passed no gradient. (The gain $\beta$ has no wrong side, but as with
    LMS a step size that is too large for the input makes it diverge.)

    The state is an [`AdaptiveOnePoleState`][sequinox.filters.AdaptiveOnePoleState]. The step size and first
    coefficients that are given are arrays of the layer, and receive gradients through the adaptation.

    Source: a textbook definition.

    ??? example

        ```python
        >>> import jax, jax.numpy as jnp, sequinox as sqx
        >>> x = jax.random.normal(jax.random.key(0), (2000, 1))
        >>> d = sqx.OnePole(1, alpha=[0.8], beta=[0.3])(x)  # a filter to be identified
        >>> _, state = sqx.AdaptiveOnePole(0.05).unroll(jnp.concatenate([x, d], -1))
        >>> round(float(state.alpha), 3), round(float(state.beta), 3)
        (0.8, 0.3)

        ```
    """

    alpha: Float[Array, ""] | None = eqx.field(metadata=KEEPS_FLOAT32)
    beta: Float[Array, ""] | None
    mu: Float[Array, ""]
    n_in: int = eqx.field(static=True)
    n_out: int = eqx.field(static=True)
    limit: float | None = eqx.field(static=True)

    def __init__(
        self,
        mu: float,
        *,
        alpha: float | None = None,
        beta: float | None = None,
        limit: float | None = 0.999,
        dtype: DType | None = None,
    ):
        r"""
        Arguments:
            mu: the step size $\mu$, positive.
            alpha: the first pole, which is then trained; default: 0, and not trained.
            beta: the first gain of the input, likewise.
            limit: how large the pole may become, in (0, 1); None: no limit.
            dtype: of the coefficients, but of the pole in float32 at least; default: JAX's default, float32.

        Raises:
            TypeError, ValueError: for a step size that is not positive, a limit that is not between 0 and 1, a pole
                beyond it, a wrong dtype.
        """
        who = "AdaptiveOnePole"
        dtype = float_dtype(dtype, who)
        self.limit = None if limit is None else number(limit, who, "limit")
        if self.limit is not None and not 0 < self.limit < 1:
            raise ValueError(f"{who}: limit must be between 0 and 1, or None, got {limit}")
        self.mu = positive_step(mu, dtype, who)
        self.alpha = None if alpha is None else jnp.asarray(number(alpha, who, "alpha"), wide(dtype))
        self.beta = None if beta is None else jnp.asarray(number(beta, who, "beta"), dtype)
        if alpha is not None and self.limit is not None and abs(alpha) > self.limit:
            raise ValueError(f"{who}: alpha must be at most limit={self.limit} in size, got {alpha}")
        self.n_in = self.n_out = 2

    def init_state(self, batch: BatchShape = (), dtype: DType | None = None) -> AdaptiveOnePoleState:
        """The first coefficients; output and derivatives zero.

        Arguments:
            batch: the batch axes, an integer or a tuple; `()` for a single stream.
            dtype: dtype of the stream; default: that of the coefficients.
        """
        who = "AdaptiveOnePole.init_state"
        axes, dtype = batch_shape(batch, who), wide(float_dtype(self.dtype if dtype is None else dtype, who))
        zero = jnp.zeros(axes, dtype)
        everywhere = lambda a: zero if a is None else jnp.broadcast_to(a.astype(dtype), axes)
        return AdaptiveOnePoleState(self._held(everywhere(self.alpha)), everywhere(self.beta), zero, zero, zero)

    def _step(self, x: Array, state: AdaptiveOnePoleState, key: Array | None) -> tuple[Array, AdaptiveOnePoleState]:
        del key
        alpha, beta, y, dy_dalpha, dy_dbeta = state
        signal, desired = x[..., 0].astype(y.dtype), x[..., 1].astype(y.dtype)
        dy_dalpha = y + alpha * dy_dalpha
        dy_dbeta = signal + alpha * dy_dbeta
        y = alpha * y + beta * signal
        e = desired - y
        step = self.mu.astype(y.dtype) * e
        alpha, beta = self._held(alpha + step * dy_dalpha), beta + step * dy_dbeta
        return jnp.stack([y, e], -1).astype(x.dtype), AdaptiveOnePoleState(alpha, beta, y, dy_dalpha, dy_dbeta)

    def _held(self, alpha: Array) -> Array:
        return alpha if self.limit is None else jnp.clip(alpha, -self.limit, self.limit)
