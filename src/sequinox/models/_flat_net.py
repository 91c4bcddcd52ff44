"""Baselines without recurrence: a row as one long vector, and a row as a set of samples."""

from collections.abc import Callable
from typing import Any, Literal

import jax

from .._checks import check_key, check_rate, size
from .._types import DType, PRNGKey
from ..layers import Dense, Dropout, Flatten, MaxOverTime, MeanOverTime, PerSample, Sequential


def flat_net(
    n_in: int,
    max_len: int,
    d_hidden: int,
    n_out: int,
    key: PRNGKey,
    *,
    activation: Callable = jax.nn.relu,
    dropout: float = 0.0,
    dtype: DType | None = None,
) -> Sequential:
    """A feed-forward network that reads a whole row as one vector: the baseline that memory has to beat.

    Every place in the row has weights of its own, `d_hidden * n_in` of them: what is learned at one place is unknown at
    another. A row that is longer than `max_len` is cut, a shorter one is followed by zeros.

    Arguments:
        n_in: width of a sample.
        max_len: how many of a row's real samples are read.
        d_hidden: width of the hidden layer.
        n_out: width of the output, for example the number of classes.
        key: PRNG key for the weights.
        activation: of the hidden layer, a function of arrays, number by number; default `jax.nn.relu`.
        dropout: probability of a zero after the hidden layer in training. Calls then need `key=`. Default 0.
        dtype: of the weights; default: JAX's default, float32.

    Returns:
        A [`Sequential`][sequinox.layers.Sequential] of [`Flatten`][sequinox.layers.Flatten], a dense layer, the
        activation and a dense layer, with outputs `"*batch n_out"`.

    Raises:
        TypeError, ValueError: for sizes that are not positive integers, an activation that is no function, a wrong
            dropout, dtype or key.

    ??? example

        ```python
        >>> import jax, jax.numpy as jnp, sequinox as sqx
        >>> net = sqx.flat_net(3, 10, 16, 2, jax.random.key(0))
        >>> net(jnp.ones((4, 7, 3))).shape, net[1].W.shape
        ((4, 2), (16, 30))

        ```
    """
    who = "flat_net"
    n_in, max_len = size(n_in, who, "n_in"), size(max_len, who, "max_len")
    return _head(who, Flatten(max_len, n_in), max_len * n_in, d_hidden, n_out, key, activation, dropout, dtype)


def pooling_net(
    n_in: int,
    d_hidden: int,
    n_out: int,
    key: PRNGKey,
    *,
    pool: Literal["mean", "max"] = "mean",
    activation: Callable = jax.nn.relu,
    dropout: float = 0.0,
    dtype: DType | None = None,
) -> Sequential:
    """A feed-forward network on the mean (or the largest) of a row's samples: the baseline that order has to beat.

    It takes any length, with the same weights at every place, and the order of the samples makes no difference.

    Arguments:
        n_in: width of a sample.
        d_hidden: width of the hidden layer.
        n_out: width of the output, for example the number of classes.
        key: PRNG key for the weights.
        pool: `"mean"` (default) or `"max"`, of the row's real samples.
        activation: of the hidden layer, a function of arrays, number by number; default `jax.nn.relu`.
        dropout: probability of a zero after the hidden layer in training. Calls then need `key=`. Default 0.
        dtype: of the weights; default: JAX's default, float32.

    Returns:
        A [`Sequential`][sequinox.layers.Sequential] of the pooling, a dense layer, the activation and a dense layer,
        with outputs `"*batch n_out"`.

    Raises:
        TypeError, ValueError: for sizes that are not positive integers, an unknown pooling, an activation that is no
            function, a wrong dropout, dtype or key.

    ??? example

        ```python
        >>> import jax, jax.numpy as jnp, sequinox as sqx
        >>> net = sqx.pooling_net(3, 16, 2, jax.random.key(0))
        >>> xs = jax.random.normal(jax.random.key(1), (7, 3))
        >>> bool(jnp.allclose(net(xs), net(xs[::-1]), atol=1e-6))
        True

        ```
    """
    who = "pooling_net"
    n_in = size(n_in, who, "n_in")
    if pool not in ("mean", "max"):
        raise ValueError(f'{who}: pool must be "mean" or "max", got {pool!r}')
    pooling = MeanOverTime(n_in) if pool == "mean" else MaxOverTime(n_in)
    return _head(who, pooling, n_in, d_hidden, n_out, key, activation, dropout, dtype)


def _head(
    who: str,
    pooling: Any,
    width: int,
    d_hidden: int,
    n_out: int,
    key: PRNGKey,
    activation: Callable,
    dropout: float,
    dtype: DType | None,
) -> Sequential:
    """The pooling, and a network with one hidden layer after it."""
    d_hidden, n_out = size(d_hidden, who, "d_hidden"), size(n_out, who, "n_out")
    if not callable(activation):
        raise TypeError(f"{who}: activation must be a function such as jax.nn.relu, got {activation!r}")
    check_rate(dropout, who, "dropout")
    first, second = jax.random.split(check_key(key, who))
    hidden = [Dense(width, d_hidden, first, dtype=dtype), PerSample(activation)]
    return Sequential(
        [pooling, *hidden, *([Dropout(dropout)] if dropout else []), Dense(d_hidden, n_out, second, dtype=dtype)]
    )
