"""Initialisers of recurrent weights, and how the weights of a cell are drawn.

As those of `jax.nn.initializers`, an initialiser is a function of `(key, shape, dtype)`.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array

from .._checks import check_key, number, wide
from .._linear import make_weight
from .._types import DType, Initializer, PRNGKey


def scaled_identity(scale: float = 0.95) -> Initializer:
    r"""An initialiser of square weights: the identity times a number.

    $$
    W = \text{scale} \cdot I
    $$

    Every unit begins as a leaky memory of its own, which forgets with the powers of `scale`. With 1 and rectified units
    it is the start of Le et al.; a little less lets the state decay, so that it cannot grow without end.

    Source: [Le et al. 2015](https://arxiv.org/abs/1504.00941), with a scale of 1 or less.

    Arguments:
        scale: the diagonal. Default 0.95: half of the state is left after 14 steps.

    Returns:
        A function of `(key, shape, dtype)`; the key is not used.

    Raises:
        TypeError, ValueError: for a scale that is not a finite number, and from the function for a shape that is not
            square.

    ??? example

        ```python
        >>> import jax, sequinox as sqx
        >>> rnn = sqx.RNN(
        ...     3, 2, jax.random.key(0), activation="relu", recurrent_initializer=sqx.scaled_identity(0.5)
        ... )
        >>> rnn.U.tolist()
        [[0.5, 0.0], [0.0, 0.5]]

        ```
    """
    factor = number(scale, "scaled_identity", "scale")

    def initialize(key: PRNGKey, shape: tuple[int, ...], dtype: DType | None = None) -> Array:
        del key
        if len(shape) != 2 or shape[0] != shape[1]:
            raise ValueError(
                f"scaled_identity: the weight must be square, got the shape {tuple(shape)}; it is meant for the "
                f"recurrent weights, `recurrent_initializer=`"
            )
        return factor * jnp.eye(shape[0], dtype=dtype)

    return initialize


def scaled_to_norm(initializer: Initializer, sigma_max: float = 1.0) -> Initializer:
    r"""An initialiser that draws a matrix and scales it to a given spectral norm, its largest singular value.

    $$
    W = \frac{\sigma_{\max}}{\sigma_1(A)} \, A
    $$

    with $A$ drawn by `initializer` and $\sigma_1(A)$ its largest singular value. No vector is then made longer than
    $\sigma_{\max}$ times its length by a recurrent weight, forward or backward: with tanh, whose slope is at most 1, a
    norm of 1 keeps gradients from exploding. Other singular values are smaller; `jax.nn.initializers.orthogonal` has
    them all equal.

    Source: a textbook definition.

    Arguments:
        initializer: draws the matrix, a function of `(key, shape, dtype)`. It is asked for float32 at least, and the
            result is rounded to `dtype`: half precision has no decompositions.
        sigma_max: the largest singular value, positive. Default 1.

    Returns:
        A function of `(key, shape, dtype)`. A matrix of zeros stays what it is.

    Raises:
        TypeError, ValueError: for a norm that is not a positive, finite number, or an initialiser that is not a
            function, and from the function for a shape that is not that of a matrix.

    ??? example

        ```python
        >>> import jax, jax.numpy as jnp, sequinox as sqx
        >>> gaussian = jax.nn.initializers.variance_scaling(1.0, "fan_in", "normal")
        >>> W = sqx.scaled_to_norm(gaussian, 0.9)(jax.random.key(0), (5, 5), jnp.float32)
        >>> round(float(jnp.linalg.norm(W, 2)), 4)
        0.9

        ```
    """
    if not callable(initializer):
        raise TypeError(
            f"scaled_to_norm: initializer must be a function of (key, shape, dtype), such as those of "
            f"jax.nn.initializers, got {initializer!r}"
        )
    target = number(sigma_max, "scaled_to_norm", "sigma_max")
    if target <= 0:
        raise ValueError(f"scaled_to_norm: sigma_max must be positive, got {sigma_max}")

    def initialize(key: PRNGKey, shape: tuple[int, ...], dtype: DType | None = None) -> Array:
        if len(shape) != 2:
            raise ValueError(f"scaled_to_norm: the weight must be a matrix, got the shape {tuple(shape)}")
        dtype = jnp.zeros((), dtype).dtype
        drawn = initializer(key, shape, wide(dtype))
        norm = jnp.linalg.norm(drawn, 2)
        return (drawn * (target / jnp.where(norm > 0, norm, 1.0))).astype(dtype)

    return initialize


class Draw:
    """Draws the weights of a cell, `(n_out, n_in)`, each from the next of `n` keys."""

    def __init__(
        self,
        who: str,
        key: PRNGKey,
        n: int,
        initializer: Initializer,
        recurrent_initializer: Initializer | None,
        dtype: DType,
    ):
        self.who, self.dtype = who, dtype
        self.keys = iter(jax.random.split(check_key(key, who), n))
        self.initializer, self.recurrent_initializer = initializer, recurrent_initializer

    def input(self, n_out: int, n_in: int) -> Array:
        """A weight that is not recurrent."""
        return make_weight(next(self.keys), (n_out, n_in), self.initializer, self.dtype, self.who)

    def recurrent(self, n_out: int, n_in: int) -> Array:
        """A recurrent weight, which may have an initialiser of its own."""
        if self.recurrent_initializer is None:
            return self.input(n_out, n_in)
        who = f"{self.who}: recurrent_initializer"
        return make_weight(next(self.keys), (n_out, n_in), self.recurrent_initializer, self.dtype, who)

    def pair(self, n_in: int, n_hidden: int) -> tuple[Array, Array]:
        """The weights of sample and state in `W x + U h`."""
        return self.input(n_hidden, n_in), self.recurrent(n_hidden, n_hidden)
