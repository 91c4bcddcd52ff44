"""The contract that every layer of the library keeps.

    y, state  = layer.step(x, state)                               # one sample
    ys, state = layer.unroll(xs, state, mask=mask, resets=resets)  # a stretch of samples, from a given state
    ys        = layer.forward(xs, mask=mask, resets=resets)        # a whole sequence; the same as layer(xs, ...)
    state     = layer.init_state(batch)                            # the state before the first sample

The three ways of running agree, in values and in gradients, at every way of cutting a sequence into stretches.

**Masks.** `mask` is True on real samples. A masked step leaves every leaf of the state as it was and outputs zeros;
what stands in it (NaN included) reaches nothing, and the gradient with respect to it is exactly zero. Masked steps may
stand anywhere in a row, and a row may have no real sample at all.

**Resets.** `resets` is True where the state starts afresh *before* the sample is read, so that rows packed one behind
another equal separate rows. A reset on a masked step is as absent as the step itself.

**Batches.** Any number of leading batch axes, also none; every leaf of a state carries them first. Under `jax.vmap` a
layer does the same as with a batch axis.
"""

import abc
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Generic, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from typing_extensions import TypeVar

from ._checks import check_array, check_flags, check_key, conform
from ._precision import dtypes, misfit
from ._show import pdoc
from ._types import BatchShape, DType, State

if TYPE_CHECKING:  # an argument too many: a type checker refuses it, and a call says what to write instead
    from typing import Never as Misplaced
else:
    Misplaced = Any

S = TypeVar("S", default=Any)
"""The state of a layer: a PyTree of arrays, each with the batch axes first."""


class SequenceLayer(eqx.Module, Generic[S]):
    """A layer that steps and unrolls with the same weights.

    To write one, give `n_in`, `n_out` and `init_state`, and one of the two hooks `_step` (one sample; unrolled by a
    scan) and `_unroll` (a stretch of samples); both where a stretch can be done better than step by step, and
    `_forward` where a whole sequence can be read without a state. The public methods check what comes in, put zeros in
    place of masked samples, and zero masked outputs: the hooks need not. A recurrent cell is written more easily from
    [`RecurrentCell`][sequinox.recurrent.RecurrentCell], a layer without memory from
    [`Pointwise`][sequinox.layers.Pointwise].
    """

    n_in: eqx.AbstractVar[int | None]
    """Width of a sample; None where any width will do."""
    n_out: eqx.AbstractVar[int | None]
    """Width of an output; None where it is that of the input."""

    @abc.abstractmethod
    def init_state(self, batch: BatchShape = (), dtype: DType | None = None) -> S:
        """The state before the first sample.

        Arguments:
            batch: the batch axes, an integer or a tuple; `()` for a single stream.
            dtype: dtype of the stream. Default: that of the layer's weights (float32 for a layer without any).

        Returns:
            A PyTree of arrays, each with the batch axes first. Zeros, unless the layer says otherwise.
        """

    # ---- hooks -----------------------------------------------------------------------------------------------------

    def _step(self, x: Array, state: S, key: Array | None) -> tuple[Array, S]:
        """One sample, not masked; `x` and `state` are checked. Default: a stretch of one."""
        ys, state = self._unroll(jnp.expand_dims(x, self._time_axis(x.ndim + 1)), state, None, None, key)
        return (ys if self.pools else jnp.squeeze(ys, -2)), state

    def _unroll(
        self, xs: Array, state: S, mask: Array | None, resets: Array | None, key: Array | None
    ) -> tuple[Array, S]:
        """A stretch of samples, checked; masked ones are already replaced. Default: a scan over `_step`."""
        axis = self._time_axis(xs.ndim)
        fresh = fresh_steps(mask, resets)
        init = None if fresh is None else self.init_state(xs.shape[:axis], self._stream_dtype(xs))
        keys = None if key is None else jax.random.split(key, xs.shape[axis])

        def body(state: S, inputs: Any) -> tuple[State, Array]:
            x, f, m, k = inputs
            y, after = self._step(x, state if f is None else select(f, init, state), k)
            return (after if m is None else select(m, after, state)), y

        first = lambda a: None if a is None else jnp.moveaxis(a, axis, 0)
        state, ys = scan_time(body, state, (first(xs), first(fresh), first(mask), keys))
        return jnp.moveaxis(ys, 0, axis), state

    def _forward(self, xs: Array, mask: Array | None, resets: Array | None, key: Array | None) -> Array:
        """A whole sequence, checked; masked samples are already replaced. Default: a stretch from the initial state."""
        state = self.init_state(xs.shape[: self._time_axis(xs.ndim)], self._stream_dtype(xs))
        return self._unroll(xs, state, mask, resets, key)[0]

    def _filler(self, x: Array) -> Array:
        """What stands in the place of masked samples; of the shape of `x`. Default: zeros."""
        return jnp.zeros_like(x)

    def _remember(self, state: S, memory: Array, mask: Array | None) -> S:
        """The state with a memory read, where cross-attention looks for one. Default: nothing looks for one."""
        del memory, mask
        return state

    # ---- what composition asks -------------------------------------------------------------------------------------

    @property
    def pools(self) -> bool:
        """Whether a stretch gives one output, `"*batch n_out"`, instead of one a sample."""
        return False

    @property
    def offline_reason(self) -> str | None:
        """Why the layer cannot run in a stream, or None if it can."""
        return None

    @property
    def receptive_field(self) -> int | None:
        """How many of a row's latest real samples, its own included, an output depends on; None where all count."""
        return None

    @property
    def memoryless(self) -> bool:
        """Whether an output depends on its own sample alone. So it does where a layer streams with an empty state."""
        if self._inside:
            return self.streams and all(layer.memoryless for layer in self._inside)
        return self.streams and not jax.tree.leaves(jax.eval_shape(self.init_state))

    def with_width(self, n_in: int) -> "SequenceLayer":
        """The same layer for samples of a given width, where it serves any width and has to know it for its state.

        A composed layer tells it to those inside, a call reads it off its samples. Default: the layer itself.

        Arguments:
            n_in: width of a sample.
        """
        del n_in
        return self

    @property
    def _keeps_width(self) -> bool:
        """Whether the output is as wide as the samples, where `n_out` is None. Default: it is."""
        return self.n_out is None

    @property
    def _inside(self) -> "tuple[SequenceLayer, ...]":
        """The layers that a composed one runs; the first of them reads its samples. Default: none."""
        return ()

    @property
    def _lacks_width(self) -> bool:
        """Whether the state cannot be made before `with_width`. Default: if so for a layer inside."""
        return any(layer._lacks_width for layer in self._inside)

    @property
    def _sample_ndim(self) -> int:
        """1 for vectors; 0 for a layer that reads integer tokens."""
        return self._inside[0]._sample_ndim if self._inside else 1

    # ---- the public interface --------------------------------------------------------------------------------------

    @final
    @property
    def streams(self) -> bool:
        """Whether the layer can be run sample by sample: False if an output depends on later samples."""
        return self.offline_reason is None

    @final
    @property
    def dtype(self) -> np.dtype | None:
        """The dtype of the layer's weights, or None if it has none.

        Arrays that keep float32 ([`KEEPS_FLOAT32`][sequinox.KEEPS_FLOAT32]) count only where there are no others.
        """
        weights, kept = dtypes(self)
        return kept if weights is None else weights

    def __pdoc__(self, **options: Any) -> Any:
        return pdoc(self, **options)

    def __hash__(self) -> int:
        try:
            return super().__hash__()
        except TypeError:
            raise TypeError(
                f"{type(self).__name__} holds arrays and cannot be hashed, as jax.jit asks of a function: write "
                "jax.jit(lambda x, state: layer.step(x, state)) or equinox.filter_jit(layer.step)"
            ) from None

    @final
    def step(
        self,
        x: Any,
        state: S | None = None,
        *misplaced: Misplaced,
        mask: Any = None,
        resets: Any = None,
        key: Any = None,
    ) -> tuple[Array, S]:
        """Reads one sample.

        Arguments:
            x: the sample, `"*batch n_in"`, in the dtype of the weights.
            state: the state before it; default (None): `init_state`.
            mask: bool `"*batch"`, False in the rows that have no sample now: their state stays, their output is zeros.
            resets: bool `"*batch"`, True in the rows whose state starts afresh before this sample.
            key: PRNG key, needed only where something is random (dropout in training).

        Returns:
            The output `"*batch n_out"`, and the state after the sample.

        Raises:
            TypeError: if the layer does not stream (`streams` is False), or a dtype is wrong.
            ValueError: if a shape is wrong.
        """
        who = f"{type(self).__name__}.step"
        refuse_misplaced(misplaced, who)
        require_streaming(self, who)
        x, batch = self._check_samples(x, who, "x", time=False)
        self = self._fitted(x)
        mask, resets = check_flags(mask, batch, who, "mask"), check_flags(resets, batch, who, "resets")
        dtype = self._stream_dtype(x)
        before = self._resolve_state(state, batch, dtype, who)
        key = None if key is None else check_key(key, who)
        if mask is None and resets is None:
            y, after = self._step(x, before, key)
        else:  # a stretch of one, whose rows may have no sample, or start afresh
            one: Any = lambda a: None if a is None else jnp.expand_dims(a, len(batch))
            x = x if mask is None else select(mask, x, self._filler(x))
            y, after = self._unroll(one(x), before, one(mask), one(resets), key)
            if not self.pools:  # a layer that pools gives its output so far, also in a row without a sample
                y = jnp.squeeze(y, -2)
                y = y if mask is None else select(mask, y, jnp.zeros_like(y))
        self._check_output(y, who)
        return y, after

    @final
    def unroll(
        self,
        xs: Any,
        state: S | None = None,
        *misplaced: Misplaced,
        mask: Any = None,
        resets: Any = None,
        key: Any = None,
    ) -> tuple[Array, S]:
        """Reads a stretch of samples from a given state.

        Arguments:
            xs: the samples, `"*batch time n_in"`, in the dtype of the weights; `time` may be 0.
            state: the state before the first; default (None): `init_state`.
            mask: bool `"*batch time"`, True on real samples; default: all are real.
            resets: bool `"*batch time"`, True where the state starts afresh before the sample is read.
            key: PRNG key, needed only where something is random (dropout in training).

        Returns:
            The outputs `"*batch time n_out"` (one output `"*batch n_out"` from a layer that pools), and each row's own
            state after its last real sample.

        Raises:
            TypeError: if a dtype is wrong.
            ValueError: if a shape is wrong.
        """
        who = f"{type(self).__name__}.unroll"
        refuse_misplaced(misplaced, who)
        xs, batch, mask, resets, key = self._check_sequence(xs, mask, resets, key, who)
        self = self._fitted(xs)
        before = self._resolve_state(state, batch, self._stream_dtype(xs), who)
        ys, after = self._unroll(xs, before, mask, resets, key)
        return self._finish(ys, mask, who), after

    @final
    def forward(self, xs: Any, *misplaced: Misplaced, mask: Any = None, resets: Any = None, key: Any = None) -> Array:
        """Reads a whole sequence from the initial state: `unroll` without the states.

        Arguments:
            xs: the samples, `"*batch time n_in"`.
            mask: bool `"*batch time"`, True on real samples; default: all are real.
            resets: bool `"*batch time"`, True where the state starts afresh before the sample is read.
            key: PRNG key, needed only where something is random (dropout in training).

        Returns:
            The outputs `"*batch time n_out"`; `"*batch n_out"` from a layer that pools.
        """
        who = f"{type(self).__name__}.forward"
        refuse_misplaced(misplaced, who)
        xs, _, mask, resets, key = self._check_sequence(xs, mask, resets, key, who)
        return self._finish(self._forward(xs, mask, resets, key), mask, who)

    @final
    def __call__(self, xs: Any, *misplaced: Misplaced, mask: Any = None, resets: Any = None, key: Any = None) -> Array:
        """The same as [`forward`][sequinox.SequenceLayer.forward]."""
        return self.forward(xs, *misplaced, mask=mask, resets=resets, key=key)

    # ---- checks ----------------------------------------------------------------------------------------------------

    def _check_sequence(self, xs: Any, mask: Any, resets: Any, key: Any, who: str) -> tuple[Any, ...]:
        xs, batch = self._check_samples(xs, who, "xs", time=True)
        flags = (*batch, xs.shape[len(batch)])
        mask, resets = check_flags(mask, flags, who, "mask"), check_flags(resets, flags, who, "resets")
        key = None if key is None else check_key(key, who)
        if mask is not None:
            xs = select(mask, xs, self._filler(xs))
        return xs, batch, mask, resets, key

    def _finish(self, ys: Array, mask: Array | None, who: str) -> Array:
        self._check_output(ys, who)
        return ys if mask is None or self.pools else select(mask, ys, jnp.zeros_like(ys))

    def _check_output(self, y: Array, who: str) -> None:
        if self.n_out is not None and y.shape[-1:] != (self.n_out,):
            raise ValueError(f"{who}: the layer gives outputs of shape {y.shape}, but its n_out is {self.n_out}")

    def _time_axis(self, ndim: int) -> int:
        return ndim - 1 - self._sample_ndim

    def _stream_dtype(self, x: Any) -> np.dtype | None:
        """The dtype of the stream: that of vector samples; tokens leave it to the weights."""
        return x.dtype if jnp.issubdtype(x.dtype, jnp.inexact) else self.dtype

    def _check_samples(self, x: Any, who: str, name: str, *, time: bool) -> tuple[Array, tuple[int, ...]]:
        check_array(x, who, name)
        x = jnp.asarray(x)
        width = "n_in" if self.n_in is None else str(self.n_in)
        axes = (["time"] if time else []) + ([width] if self._sample_ndim else [])
        expected = "(*batch, " + ", ".join(axes) + ("," if not axes else "") + ")"
        if self._sample_ndim == 0:
            if not jnp.issubdtype(x.dtype, jnp.integer):
                raise TypeError(f"{who}: {name} must hold integer tokens, got dtype {x.dtype}")
        elif not jnp.issubdtype(x.dtype, jnp.inexact):
            weights = "float32" if self.dtype is None else self.dtype
            raise TypeError(
                f"{who}: {name} must be of a floating dtype, got {x.dtype}: cast it, {name}.astype({weights}), or read "
                "tokens through an equinox.nn.Embedding in front (tokens=True of the models that take it)"
            )
        elif (weights := misfit(self, x.dtype)) is not None:
            raise TypeError(
                f"{who}: {name} has dtype {x.dtype} but the weights have {weights}; cast one to the other's dtype"
            )
        if x.ndim < len(axes):
            raise ValueError(f"{who}: {name} must have shape {expected}, got {x.shape}")
        if self._sample_ndim and self.n_in is not None and x.shape[-1] != self.n_in:
            raise ValueError(f"{who}: {name} must have shape {expected}, got {x.shape}")
        return x, x.shape[: x.ndim - len(axes)]

    def _fitted(self, x: Array) -> "SequenceLayer":
        """The layer with the width of its samples told, where its state needs that."""
        return self.with_width(x.shape[-1]) if self._lacks_width and self._sample_ndim else self

    def _resolve_state(self, state: S | None, batch: tuple[int, ...], dtype: Any, who: str) -> S:
        """The given state in the layer's own containers, its shapes and dtypes checked; None is the initial state."""
        if state is None:
            return self.init_state(batch, dtype)
        try:
            return self._conform_state(state, batch, dtype, f"{who}: state")
        except (TypeError, ValueError) as error:
            if not isinstance(state, jax.Array | np.ndarray) or state.dtype != np.dtype(bool):
                raise
            raise type(error)(f"{error}; a mask goes by its name: mask=") from None

    def _conform_state(self, state: Any, batch: tuple[int, ...], dtype: Any, where: str) -> S:
        """A given state in the layer's own containers, checked. Default: it must be like `init_state`'s."""
        return conform(state, jax.eval_shape(lambda: self.init_state(batch, dtype)), where)


def refuse_misplaced(misplaced: tuple[Any, ...], who: str) -> None:
    """Raises for a mask, or a state for a whole sequence, given by its place and not by its name."""
    if misplaced:
        place = "samples and a state" if who.endswith((".step", ".unroll")) else "the samples alone"
        raise TypeError(
            f"{who} takes {place} by position, got {len(misplaced)} more: a mask, resets or a key go by their names, "
            "as in mask=mask; to begin at a state there is unroll(xs, state)"
        )


def composed_field(fields: Iterable[int | None]) -> int | None:
    """The receptive field of layers one behind another, given theirs."""
    total = 1
    for field in fields:
        if field is None:
            return None
        total += field - 1
    return total


def require_streaming(layer: SequenceLayer, who: str) -> None:
    """Raises the one error of layers that cannot run sample by sample."""
    if layer.offline_reason is not None:
        raise TypeError(f"{who}: this layer does not stream: {layer.offline_reason}")


def fresh_steps(mask: Array | None, resets: Array | None) -> Array | None:
    """Where a step starts from the initial state: at resets, and where it is masked.

    A masked step is run from the initial state, and thrown away: so nothing in it can overflow, and its derivative is
    finite, whatever the state of its row is.
    """
    if mask is None:
        return resets
    return ~mask if resets is None else resets | ~mask


def scan_time(body: Callable, state: State, inputs: Any) -> tuple[State, Any]:
    """`jax.lax.scan`, also over no steps where JAX refuses that (under `jax.disable_jit`)."""
    if jax.tree.leaves(inputs)[0].shape[0] == 0:
        one = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape[1:], a.dtype), inputs)
        _, y = jax.eval_shape(body, state, one)
        return state, jax.tree.map(lambda a: jnp.zeros((0, *a.shape), a.dtype), y)
    return jax.lax.scan(body, state, inputs)


def select(flags: Array, on_true: State, on_false: State) -> State:
    """`on_true` in the rows where `flags` is True, `on_false` in the others; `flags` has the leading axes."""

    def pick(a: Array, b: Array) -> Array:
        return jnp.where(flags.reshape(flags.shape + (1,) * (a.ndim - flags.ndim)), a, b)

    return jax.tree.map(pick, on_true, on_false)
