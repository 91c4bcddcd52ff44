"""Losses of regression, as sums and counts of elements."""

import jax.numpy as jnp
import optax
from jaxtyping import Array

from ..._checks import number
from ..._types import ArrayLike
from ._loss_arguments import element_arguments, reduce_elements
from ._total import Total


def squared_error(predictions: ArrayLike, targets: ArrayLike, mask: ArrayLike | None = None) -> Total:
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

    ??? example

        ```python
        >>> import jax.numpy as jnp, sequinox as sqx
        >>> error = sqx.train.squared_error(jnp.ones((2, 3)), jnp.zeros((2, 3)), jnp.array([True, False]))
        >>> float(error.total), int(error.count)
        (3.0, 3)

        ```
    """
    difference, mask = _difference(predictions, targets, mask, "squared_error")
    return reduce_elements(difference**2, mask)


def absolute_error(predictions: ArrayLike, targets: ArrayLike, mask: ArrayLike | None = None) -> Total:
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

    ??? example

        ```python
        >>> import jax.numpy as jnp, sequinox as sqx
        >>> float(sqx.train.absolute_error(jnp.array([[1.0, -3.0]]), jnp.zeros((1, 2))).mean)
        2.0

        ```
    """
    difference, mask = _difference(predictions, targets, mask, "absolute_error")
    # An exact hit is to stay: the derivative of JAX's `abs` at zero is 1.
    size = jnp.where(difference == 0, 0, jnp.abs(difference))
    return reduce_elements(size, mask)


def huber_error(
    predictions: ArrayLike, targets: ArrayLike, mask: ArrayLike | None = None, *, delta: float = 1.0
) -> Total:
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

    Source: [Huber 1964](https://doi.org/10.1214/aoms/1177703732).

    ??? example

        ```python
        >>> import jax.numpy as jnp, sequinox as sqx
        >>> float(sqx.train.huber_error(jnp.array([[0.5, 3.0]]), jnp.zeros((1, 2))).total)
        2.625

        ```
    """
    delta = number(delta, "huber_error", "delta")
    if delta <= 0:
        raise ValueError(f"huber_error: delta must be above 0, got {delta}")
    difference, mask = _difference(predictions, targets, mask, "huber_error")
    return reduce_elements(optax.losses.huber_loss(difference, delta=delta), mask)


def _difference(predictions: ArrayLike, targets: ArrayLike, mask: ArrayLike | None, who: str) -> tuple[Array, Array]:
    predictions, targets, mask = element_arguments(predictions, targets, mask, who)
    return predictions - targets, mask
