"""What recurrent cells share: written for one sample, lifted over batch axes and time."""

import abc
import math
from functools import partial
from typing import Any, ClassVar, Literal, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from .._checks import batch_shape, float_dtype
from .._layer import S, SequenceLayer
from .._types import BatchShape, DType, PRNGKey, State
from ._engine import Flags, unroll_fused, unroll_scan
from ._plan import Affine, NotFusable, affine, call_transition

Implementation: TypeAlias = Literal["scan", "fused"] | None
"""How a cell is unrolled: see [`RecurrentCell`][sequinox.recurrent.RecurrentCell]."""


class RecurrentCell(SequenceLayer[S]):
    """A recurrent layer given by what it does with one sample.

    A cell is its arrays, `start` (the state before the first sample) and `transition` (one sample, as the paper prints
    it, vectors only). Products with weights go through the function `affine` that `transition` is handed:
    `affine((W, x), (U, h), b)` is `W @ x + U @ h + b`. The rest of the contract is made from these.

    `implementation` chooses how it is unrolled. `"fused"` groups products that share their vectors and defers weight
    gradients to one large product after the loop: faster to train, with less memory. `"scan"` is the plain loop,
    differentiated by JAX. The two agree in values and derivatives of any order. None takes `"fused"` wherever it can,
    that is, where every matrix of the cell is used through `affine`; a cell without such a field has None. An ensemble,
    `jax.vmap` over the *weights*, trains faster with `"scan"` on a CPU.
    """

    n_in: eqx.AbstractVar[int]
    n_hidden: eqx.AbstractVar[int]
    implementation: ClassVar[Implementation] = None

    @abc.abstractmethod
    def start(self, dtype: DType) -> S:
        """The state before the first sample, for one stream: vectors."""

    @abc.abstractmethod
    def transition(self, affine: Affine, x: Array, state: S) -> tuple[Array, S]:
        """One sample: the output and the next state.

        Arguments:
            affine: `affine(*terms)` is the sum of its terms, a pair `(W, v)` means `W @ v`, an array itself.
            x: the sample, `" n_in"`.
            state: the state before it, of the structure of `start`.

        The output is cast to the dtype of the samples, so that a cell whose state is in float32 at least may give that.

        A cell that draws random numbers takes them as a fourth argument: see `noise`.
        """

    def noise(self, key: PRNGKey | None, axes: tuple[int, ...], dtype: DType) -> Any:
        """Random numbers for `transition`, drawn for all samples of a stretch at once. Default: None, there are none.

        A cell that is random in training overrides this, and takes `noise=None` as the last argument of `transition`.

        Arguments:
            key: the key of the call; None where none was given.
            axes: the leading axes of what is drawn: time and rows, or rows alone for a step.
            dtype: dtype of the stream.

        Returns:
            A PyTree of arrays `"*axes ..."`, of which each transition is handed its own; or None where nothing is
            drawn, as in inference. Nothing is differentiated with respect to it.
        """
        del key, axes, dtype
        return None

    @property
    def n_out(self) -> int:
        """Width of the output: that of the hidden state."""
        return self.n_hidden

    def init_state(self, batch: BatchShape = (), dtype: DType | None = None) -> S:
        """The state before the first sample.

        Arguments:
            batch: the batch axes, an integer or a tuple; `()` for a single stream.
            dtype: dtype of the stream; default: that of the weights.

        Returns:
            A PyTree of arrays, each with the batch axes first.
        """
        axes = batch_shape(batch, f"{type(self).__name__}.init_state")
        one = self.start(float_dtype(self.dtype if dtype is None else dtype, f"{type(self).__name__}.init_state"))
        return jax.tree.map(lambda a: jnp.broadcast_to(a, (*axes, *a.shape)), one)

    def _step(self, x: Array, state: S, key: Array | None) -> tuple[Array, S]:
        batch, transition = x.shape[:-1], partial(call_transition, type(self).transition, self, affine)
        if not batch:
            y, state = transition(x, state, self.noise(key, (), x.dtype))
            return y.astype(x.dtype), state
        x, state = _merge(x, len(batch)), jax.tree.map(partial(_merge, n=len(batch)), state)
        y, state = jax.vmap(transition)(x, state, self.noise(key, x.shape[:1], x.dtype))
        apart = lambda a: a.reshape(*batch, *a.shape[1:])
        return apart(y.astype(x.dtype)), jax.tree.map(apart, state)

    def _unroll_from(
        self, xs: Array, state: S, mask: Array | None, resets: Array | None, key: Array | None, start: S | None
    ) -> tuple[Array, S]:
        return _unroll_jitted(self, xs, state, mask, resets, start, key)


@eqx.filter_jit
def _unroll_jitted(
    cell: RecurrentCell,
    xs: Array,
    state: State,
    mask: Array | None,
    resets: Array | None,
    init: State,
    key: Array | None,
) -> tuple[Array, State]:
    """Batch axes merged into one, time first. Jitted, so that calls outside of `jit` do not trace the loop again."""
    batch, n = xs.shape[:-2], xs.ndim - 2
    rows = partial(_merge, n=n)
    mask, resets, xs = jax.tree.map(lambda a: jnp.swapaxes(rows(a), 0, 1), (mask, resets, xs))
    flags = Flags(mask, resets, jax.tree.map(rows, init))
    noise = cell.noise(key, xs.shape[:2], xs.dtype)
    args = (type(cell).transition, cell, xs, jax.tree.map(rows, state), flags, noise)
    if cell.implementation != "scan" and xs.size:
        try:
            ys, final = unroll_fused(*args)
        except NotFusable as reason:
            if cell.implementation == "fused":
                raise ValueError(f'{type(cell).__name__}: implementation="fused" does not serve it: {reason}') from None
            ys, final = unroll_scan(*args)
    else:
        ys, final = unroll_scan(*args)
    back = lambda a: a.reshape(*batch, *a.shape[1:])
    return back(jnp.swapaxes(ys.astype(xs.dtype), 0, 1)), jax.tree.map(back, final)


def _merge(a: Array, n: int) -> Array:
    """The first `n` axes as one."""
    return a.reshape(math.prod(a.shape[:n]), *a.shape[n:])


def check_implementation(value: Any, who: str) -> Implementation:
    """`implementation` of a cell's constructor, checked."""
    if value not in ("scan", "fused", None):
        raise ValueError(f'{who}: implementation must be "scan", "fused" or None, got {value!r}')
    return value
