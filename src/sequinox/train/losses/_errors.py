"""Losses of regression, as sums and counts of elements."""

import math
from typing import Any

import jax.numpy as jnp
import optax
from jaxtyping import Array

from ._loss_arguments import element_arguments, reduce_elements
from ._total import Total


def squared_error(predictions: Any, targets: Any, mask: Any = None) -> Total:
    """Squared error, summed over real rows and all their features. `.mean` is the mean squared error of an *element*.

    Arguments:
        predictions: `(*batch, n_out)`, floating. Half precision is summed in float32.
        targets: the same shape exactly (`(B, 1)` against `(B,)` would broadcast to `(B, B)`), real numbers.
        mask: `(*batch,)` bool, True on real rows: it drops the last axis. Default: all are real.

    Returns:
        `Total`: the sum of squares, and the number of *elements* in it (real rows times `n_out`).

    Raises:
        TypeError: `predictions` not floating, `targets` complex, `mask` not bool.
        ValueError: no feature axis, or `targets` or `mask` of the wrong shape.

    Examples:
        >>> import jax.numpy as jnp
        >>> from sequinox.train import squared_error
        >>> error = squared_error(jnp.ones((2, 3)), jnp.zeros((2, 3)), jnp.array([True, False]))
        >>> float(error.total), int(error.count)
        (3.0, 3)
    """
    difference, mask = _difference("squared_error", predictions, targets, mask)
    return reduce_elements(difference**2, mask)


def absolute_error(predictions: Any, targets: Any, mask: Any = None) -> Total:
    """Absolute error, summed over real rows and all their features. Its gradient is 0 where the error is 0.

    Arguments:
        predictions: as in `squared_error`.
        targets: as in `squared_error`.
        mask: as in `squared_error`.

    Returns:
        `Total`: the sum of magnitudes, and the number of *elements* in it (real rows times `n_out`).

    Raises:
        TypeError: as `squared_error`.
        ValueError: as `squared_error`.

    Examples:
        >>> import jax.numpy as jnp
        >>> from sequinox.train import absolute_error
        >>> float(absolute_error(jnp.array([[1.0, -3.0]]), jnp.zeros((1, 2))).mean)
        2.0
    """
    difference, mask = _difference("absolute_error", predictions, targets, mask)
    # An exact hit is to stay: the derivative of JAX's `abs` at zero is 1.
    size = jnp.where(difference == 0, 0, jnp.abs(difference))
    return reduce_elements(size, mask)


def huber_error(predictions: Any, targets: Any, mask: Any = None, *, delta: Any = 1.0) -> Total:
    r"""Huber's loss: $\frac12 e^2$ up to $|e| = \delta$, $\delta (|e| - \frac12 \delta)$ beyond.

    One wrong target pulls with $\delta$ at most, where its square would pull without bound.

    Arguments:
        predictions: as in `squared_error`.
        targets: as in `squared_error`.
        mask: as in `squared_error`.
        delta: where the square ends, a Python number above 0, in the targets' unit. Default: 1, for standardised ones.

    Returns:
        `Total`: the sum, and the number of *elements* in it (real rows times `n_out`).

    Raises:
        TypeError: as `squared_error`; `delta` is not a Python number.
        ValueError: as `squared_error`; `delta` is not above 0, or infinite.

    Source: Huber, Robust estimation of a location parameter, Annals of Mathematical Statistics 35, 1964.

    Examples:
        >>> import jax.numpy as jnp
        >>> from sequinox.train import huber_error
        >>> float(huber_error(jnp.array([[0.5, 3.0]]), jnp.zeros((1, 2))).total)
        2.625
    """
    if isinstance(delta, bool) or not isinstance(delta, (int, float)):
        raise TypeError(f"huber_error: delta must be a Python number above 0, got {type(delta).__name__}.")
    if not 0 < delta < math.inf:
        raise ValueError(f"huber_error: delta must be above 0 and finite, got {delta}.")
    difference, mask = _difference("huber_error", predictions, targets, mask)
    return reduce_elements(optax.losses.huber_loss(difference, delta=float(delta)), mask)


def _difference(name: str, predictions: Any, targets: Any, mask: Any) -> tuple[Array, Array]:
    predictions, targets, mask = element_arguments(name, predictions, targets, mask)
    return predictions - targets, mask
