"""Layers without memory: the same function of every sample."""

import abc
import inspect
import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float

from .._checks import batch_shape, check_key, check_rate, flag, float_dtype, size
from .._dropout import draw_kept, dropped, need_key
from .._layer import SequenceLayer
from .._linear import apply_affine, make_weight
from .._types import BatchShape, DType, Initializer, PRNGKey, State


class Pointwise(SequenceLayer):
    """A layer without memory: its state is the empty tuple.

    To write one, give `n_in`, `n_out` and `apply`, a function of arrays with any leading axes.
    """

    @abc.abstractmethod
    def apply(self, x: Array, key: Array | None) -> Array:
        """The outputs `"*axes n_out"` of samples `"*axes n_in"`, each from its own sample alone."""

    @property
    def receptive_field(self) -> int:
        """1: an output depends on its own sample alone."""
        return 1

    def init_state(self, batch: BatchShape = (), dtype: DType | None = None) -> State:
        """The empty tuple: there is nothing to remember."""
        del dtype
        batch_shape(batch, f"{type(self).__name__}.init_state")
        return ()

    def _step(self, x: Array, state: State, key: Array | None) -> tuple[Array, State]:
        return self.apply(x, key), state

    def _unroll_from(
        self, xs: Array, state: State, mask: Array | None, resets: Array | None, key: Array | None, start: State
    ) -> tuple[Array, State]:
        del mask, resets, start
        return self.apply(xs, key), state


class Dense(Pointwise):
    r"""A dense layer, $y = W x + b$, at every sample.

    ??? example

        ```python
        >>> import jax, jax.numpy as jnp, sequinox as sqx
        >>> dense = sqx.Dense(3, 2, jax.random.key(0))
        >>> dense(jnp.ones((5, 7, 3))).shape
        (5, 7, 2)

        ```
    """

    W: Float[Array, "n_out n_in"]
    b: Float[Array, " n_out"] | None
    n_in: int = eqx.field(static=True)
    n_out: int = eqx.field(static=True)

    def __init__(
        self,
        n_in: int,
        n_out: int,
        key: PRNGKey,
        *,
        use_bias: bool = True,
        initializer: Initializer = jax.nn.initializers.xavier_normal(),
        dtype: DType | None = None,
    ):
        """
        Arguments:
            n_in: width of a sample.
            n_out: width of the output.
            key: PRNG key for the weights.
            use_bias: whether there is a bias; it starts at zero.
            initializer: of the weights, one of `jax.nn.initializers` or any function of `(key, shape, dtype)` whose
                last axis is the output; default `xavier_normal`, as in the recurrent cells.
            dtype: of the weights; default: JAX's default, float32.

        Raises:
            TypeError, ValueError: for sizes that are not positive integers, a wrong dtype or key.
        """
        self.n_in, self.n_out = size(n_in, "Dense", "n_in"), size(n_out, "Dense", "n_out")
        dtype = float_dtype(dtype, "Dense")
        self.W = make_weight(check_key(key, "Dense"), (n_out, n_in), initializer, dtype, "Dense")
        self.b = jnp.zeros(n_out, dtype) if flag(use_bias, "Dense", "use_bias") else None

    def apply(self, x: Array, key: Array | None) -> Array:
        """`W x + b` on the last axis."""
        del key
        return apply_affine(self.W, x, self.b)


class Dropout(Pointwise):
    """Dropout: in training, each number is zero with probability `p`, and the others are divided by `1 - p`.

    Every number of every sample is drawn on its own, from the `key` of the call. In inference (`inference=True`, or
    `equinox.nn.inference_mode(model)`) it is the identity, and draws nothing.

    Source: [Srivastava et al. 2014](https://jmlr.org/papers/v15/srivastava14a.html), in the scaling that leaves
    inference alone.

    ??? example

        ```python
        >>> import jax, jax.numpy as jnp, sequinox as sqx
        >>> dropout = sqx.Dropout(0.5)
        >>> float(dropout(jnp.ones((10, 100)), key=jax.random.key(0)).max())
        2.0

        ```
    """

    p: float = eqx.field(static=True)
    inference: bool
    n_in: int | None = eqx.field(static=True)
    n_out: int | None = eqx.field(static=True)

    def __init__(self, p: float = 0.5, inference: bool = False):
        """
        Arguments:
            p: the probability of a zero, in [0, 1).
            inference: whether it is off; `equinox.nn.inference_mode` turns it.

        Raises:
            ValueError: if `p` is not in [0, 1). On a call in training without a key, if `p` is not 0.
        """
        self.p = check_rate(p, "Dropout", "p")
        self.inference = flag(inference, "Dropout", "inference")
        self.n_in = self.n_out = None

    def apply(self, x: Array, key: Array | None) -> Array:
        """Zeros and scaled values in training; `x` in inference."""
        if self.inference or self.p == 0:
            return x
        return dropped(draw_kept(need_key(key, "Dropout"), self.p, x.shape), x, self.p)


class PerSample(Pointwise):
    """An Equinox module, or any function of one sample, applied to every sample.

    [`Sequential`][sequinox.layers.Sequential] makes one of whatever it is given that is no sequence layer, so that
    `eqx.nn.LayerNorm(8)` or `jnp.tanh` can be written there as they are. `eqx.nn.Embedding` reads integer tokens; one
    out of range is an error in plain calls, and gives NaN under `jit`, which cannot raise.

    ??? example

        ```python
        >>> import equinox as eqx, jax.numpy as jnp, sequinox as sqx
        >>> norm = sqx.PerSample(eqx.nn.LayerNorm(3))
        >>> norm(jnp.ones((5, 7, 3))).shape
        (5, 7, 3)

        ```
    """

    function: Any
    n_in: int | None = eqx.field(static=True)
    n_out: int | None = eqx.field(static=True)

    def __init__(self, function: Callable[..., Any], n_in: int | None = None):
        """
        Arguments:
            function: takes one sample, `" n_in"` (one integer for `eqx.nn.Embedding`), and returns one output; a module
                of Equinox is also given `key=`, one of its own for each sample.
            n_in: width of a sample. Default: that of the module, if it has one.

        Raises:
            TypeError: for what is no function of one sample: modules with a state, that work over an axis, or recurrent
                cells (sequinox has those).
        """
        if not callable(function) or inspect.isclass(function):
            raise TypeError(f"PerSample: function must be an Equinox module or a function, got {function!r}")
        if isinstance(function, eqx.nn.Dropout):
            raise TypeError("PerSample: take sequinox.Dropout in place of equinox.nn.Dropout")
        stateful = isinstance(function, eqx.nn.StatefulLayer) and function.is_stateful()
        if stateful or isinstance(function, _NOT_PER_SAMPLE):
            raise TypeError(f"PerSample: {type(function).__name__} is not a function of one sample")
        self.function = function
        width = _width(function)
        self.n_in = width if n_in is None else size(n_in, "PerSample", "n_in")
        if width is not None and self.n_in != width:
            raise ValueError(f"PerSample: {type(function).__name__} takes samples of width {width}, got {n_in}")
        self.n_out = self._find_n_out()

    @property
    def reads_tokens(self) -> bool:
        """Whether the function is an embedding."""
        return isinstance(self.function, eqx.nn.Embedding)

    @property
    def keeps_width(self) -> bool:
        return False

    def with_width(self, n_in: int) -> "PerSample":
        """The same function of samples of a given width: the width of its outputs is then known."""
        return PerSample(self.function, n_in) if type(self) is PerSample else self

    def _filler(self, x: Array) -> Array:
        """For masked samples, numbers between 1/4 and 3/4, not all equal.

        A function may have no derivative at zero (a norm, a logarithm) or where all numbers are equal (a deviation),
        and then zero times that would be NaN in the gradient of its weights.
        """
        if self.reads_tokens:
            return jnp.zeros_like(x)
        return jnp.broadcast_to(jnp.linspace(0.25, 0.75, x.shape[-1], dtype=x.dtype), x.shape)

    def _find_n_out(self) -> int | None:
        if self.reads_tokens:
            return self.function.embedding_size
        if self.n_in is None:
            return None
        x = jax.ShapeDtypeStruct((self.n_in,), self.dtype or float_dtype(None, "PerSample"))
        key = jax.eval_shape(lambda: jax.random.key(0))
        y = eqx.filter_eval_shape(self._one, x, key)
        if not isinstance(y, jax.ShapeDtypeStruct) or y.ndim != 1:
            raise ValueError(f"PerSample: the function must give a vector for a vector, got {y}")
        return y.shape[0]

    def _one(self, x: Array, key: Array | None) -> Array:
        y = self.function(x, key=key) if self._takes_key() else self.function(x)
        if self.reads_tokens:  # a token out of range would read another's row
            token = x if x.dtype.itemsize >= 4 else x.astype(jnp.int32)
            y = jnp.where((token >= 0) & (token < self.function.num_embeddings), y, jnp.nan)
        return y

    def _takes_key(self) -> bool:
        if not isinstance(self.function, eqx.Module):
            return False
        return "key" in inspect.signature(type(self.function).__call__).parameters

    def apply(self, x: Array, key: Array | None) -> Array:
        """The function at every sample."""
        if self.reads_tokens and not isinstance(x, Tracer):
            _check_tokens(np.asarray(x), self.function.num_embeddings)
        axes = x.shape if self.reads_tokens else x.shape[:-1]
        rows = x.reshape(math.prod(axes), *x.shape[len(axes) :])
        keys = None if key is None or not self._takes_key() else jax.random.split(key, rows.shape[0])
        y = jax.vmap(self._one, in_axes=(0, None if keys is None else 0))(rows, keys)
        if y.ndim != 2:
            raise ValueError(f"PerSample: the function must give a vector for a vector, got shape {y.shape[1:]}")
        return y.reshape(*axes, *y.shape[1:])


def _check_tokens(tokens: np.ndarray, n: int) -> None:
    if tokens.size and not (tokens.min() >= 0 and tokens.max() < n):
        wrong = tokens[(tokens < 0) | (tokens >= n)][0]
        raise ValueError(f"PerSample: tokens must be in 0..{n - 1}, the rows of the equinox.nn.Embedding, got {wrong}")


_NOT_PER_SAMPLE = (
    SequenceLayer,
    eqx.nn.GRUCell,
    eqx.nn.LSTMCell,
    eqx.nn.MultiheadAttention,
    eqx.nn.Conv,
    eqx.nn.ConvTranspose,
    eqx.nn.Pool,
    eqx.nn.AdaptivePool,
    eqx.nn.GroupNorm,
)


def _width(module: Any) -> int | None:
    """The width of the samples that an Equinox module reads, if it has one."""
    for name in ("in_features", "in_size"):
        width = getattr(module, name, None)
        if isinstance(width, int):
            return width
    if isinstance(module, eqx.nn.LayerNorm | eqx.nn.RMSNorm) and len(module.shape) == 1:
        return module.shape[0]
    if isinstance(module, eqx.nn.Sequential) and module.layers:
        return _width(module.layers[0])
    return None
