"""The contract that every layer of the library keeps.

    y, state  = layer.step(x, state)                               # one sample
    ys, state = layer.unroll(xs, state, mask=mask, resets=resets)  # a stretch of samples, from a given state
    ys        = layer.forward(xs, mask=mask, resets=resets)        # a whole sequence; the same as layer(xs, ...)
    state     = layer.init_state(batch)                            # the state before the first sample

The three ways of running agree, in values and in gradients, at every way of cutting a sequence into stretches.

**Masks.** `mask` is True on real samples. A masked step leaves every leaf of the state as it was and outputs zeros;
its content (NaN included) reaches nothing, and the gradient with respect to it is exactly zero. Masked steps may be
anywhere in a row, and a row may have no real sample at all.

**Resets.** `resets` is True where the state starts afresh *before* the sample is read, so that rows packed one after
another equal separate rows. A reset on a masked step is as absent as the step itself.

**Batches.** Any number of leading batch axes, including none; every leaf of a state carries them first. Under
`jax.vmap` a layer does the same as with a batch axis.
"""

import abc
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from typing_extensions import TypeVar

from ._checks import check_array, check_flags, check_key, conform
from ._precision import dtypes, misfit
from ._show import pdoc
from ._types import ArrayLike, BatchShape, DType, PRNGKey, State

if TYPE_CHECKING:  # an argument too many: a type checker refuses it, and a call says what to write instead
    from typing import Never

    Misplaced = Never
else:
    Misplaced = Any

S = TypeVar("S", default=Any)
"""The state of a layer: a PyTree of arrays, each with the batch axes first."""


class SequenceLayer(eqx.Module, Generic[S]):
    """A layer that steps and unrolls with the same weights.

    To write one, give `n_in`, `n_out` and `init_state`, and one of the two hooks `_step` (one sample; unrolled by a
    scan) and `_unroll` (a stretch of samples); both where a stretch can be done better than step by step, and
    `_forward` where a whole sequence can be read without a state. The public methods check what comes in, put zeros in
    place of masked samples, and zero masked outputs: the hooks need not. A layer made of others also gives `inside`. A
    recurrent cell is written more easily from [`RecurrentCell`][sequinox.recurrent.RecurrentCell], a layer without
    memory from [`Pointwise`][sequinox.layers.Pointwise].

    `SequenceLayer[MyState]` tells type checkers what `step` and `unroll` return as the state.
    """

    n_in: eqx.AbstractVar[int | None]
    """Width of a sample; None if the layer takes any."""
    n_out: eqx.AbstractVar[int | None]
    """Width of an output; None if it depends on that of the samples."""

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
        return self._step_flagged(x, state, None, None, key)

    def _unroll(
        self, xs: Array, state: S, mask: Array | None, resets: Array | None, key: Array | None
    ) -> tuple[Array, S]:
        """A stretch of samples, checked; masked ones are already replaced. Default: a scan over `_step`.

        A layer that pools writes its own: its output of no samples is that of the state.
        """
        start = None if mask is None and resets is None else self._initial(xs)
        return self._unroll_from(xs, state, mask, resets, key, start)

    def _unroll_from(
        self, xs: Array, state: S, mask: Array | None, resets: Array | None, key: Array | None, start: S | None
    ) -> tuple[Array, S]:
        """As `_unroll`, but a reset goes back to `start`, which has the batch axes. Default: a scan over `_step`."""
        return scan_steps(self, xs, state, mask, resets, key, start)

    def _unroll_every(
        self, xs: Array, state: S, mask: Array | None, resets: Array | None, key: Array | None
    ) -> tuple[Array, S]:
        """As `_unroll`, but with the states after all samples, stacked after the batch axes. Default: a scan over
        what `step` does."""
        return scan_steps(self, xs, state, mask, resets, key, every=True)

    def _forward(self, xs: Array, mask: Array | None, resets: Array | None, key: Array | None) -> Array:
        """A whole sequence, checked; masked samples are already replaced. Default: a stretch from the initial state."""
        return self._unroll(xs, self._initial(xs), mask, resets, key)[0]

    def _split_state(self, state: Any) -> Sequence[State]:
        """The states of the layers `inside`, in their order. Default: the state is their tuple, or that of the one."""
        return (state,) if len(self.inside) == 1 else state

    def _filler(self, x: Array) -> Array:
        """What replaces masked samples; of the shape of `x`. Default: that of the first layer inside, or zeros."""
        return self.inside[0]._filler(x) if self.inside else jnp.zeros_like(x)

    def _draw_once(self, key: Array | None) -> tuple["SequenceLayer", Array | None]:
        """The layer with the weights drawn that are the same for all samples of a stretch, and a key for its steps.

        Default: those of the layers in it.
        """
        below = lambda node: isinstance(node, SequenceLayer) and node is not self

        def drawn(node: Any) -> Any:
            nonlocal key
            if below(node):
                node, key = node._draw_once(key)
            return node

        return (self if key is None else jax.tree.map(drawn, self, is_leaf=below)), key

    def _remember(self, state: S, memory: Array, mask: Array | None) -> S:
        """The state with a memory read, where cross-attention looks for one. Default: nothing looks for one."""
        del memory, mask
        return state

    # ---- what composition asks -------------------------------------------------------------------------------------

    @property
    def pools(self) -> bool:
        """Whether a stretch has one output, `"*batch n_out"`, instead of one a sample. Default: if so inside."""
        return any(layer.pools for layer in self.inside)

    @property
    def offline_reason(self) -> str | None:
        """Why the layer cannot run in a stream, or None if it can. Default: the first reason inside."""
        return next((la.offline_reason for la in self.inside if la.offline_reason is not None), None)

    @property
    def receptive_field(self) -> int | None:
        """How many of a row's latest real samples, its own included, an output depends on; None if on all of them."""
        return None

    def with_width(self, n_in: int) -> "SequenceLayer":
        """The same layer for samples of a given width, where it takes any width and needs to know it for its state.

        A composed layer passes it on to those inside; a call reads it off its samples. Default: the layer itself.

        Arguments:
            n_in: width of a sample.
        """
        del n_in
        return self

    @property
    def keeps_width(self) -> bool:
        """Whether the output is as wide as the samples, where `n_out` is None. Default: it is."""
        return self.n_out is None

    @property
    def inside(self) -> "tuple[SequenceLayer, ...]":
        """The layers that a composed one runs, in this order; the first of them reads its samples. Default: none."""
        return ()

    @property
    def needs_width(self) -> bool:
        """Whether the state cannot be made before `with_width`. Default: if so inside."""
        return any(layer.needs_width for layer in self.inside)

    @property
    def reads_tokens(self) -> bool:
        """Whether a sample is an integer token, not a vector. Default: whether the first layer inside reads them."""
        return bool(self.inside) and self.inside[0].reads_tokens

    # ---- the public interface --------------------------------------------------------------------------------------

    @final
    @property
    def streams(self) -> bool:
        """Whether the layer can be run sample by sample: False if an output depends on later samples."""
        return self.offline_reason is None

    @final
    @property
    def memoryless(self) -> bool:
        """Whether an output depends on its own sample alone: the layer streams, and its state is empty."""
        return self.streams and not self.needs_width and not jax.tree.leaves(jax.eval_shape(self.init_state))

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
        x: ArrayLike,
        state: S | None = None,
        *misplaced: Misplaced,
        mask: ArrayLike | None = None,
        resets: ArrayLike | None = None,
        key: PRNGKey | None = None,
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
        else:
            x = x if mask is None else select(mask, x, self._filler(x))
            y, after = self._step_flagged(x, before, mask, resets, key)
        return self._finish(y, mask, who), after

    @final
    def unroll(
        self,
        xs: ArrayLike,
        state: S | None = None,
        *misplaced: Misplaced,
        mask: ArrayLike | None = None,
        resets: ArrayLike | None = None,
        key: PRNGKey | None = None,
        states: Literal["last", "every"] = "last",
    ) -> tuple[Array, S]:
        """Reads a stretch of samples from a given state.

        Arguments:
            xs: the samples, `"*batch time n_in"`, in the dtype of the weights; `time` may be 0.
            state: the state before the first; default (None): `init_state`.
            mask: bool `"*batch time"`, True on real samples; default: all are real.
            resets: bool `"*batch time"`, True where the state starts afresh before the sample is read.
            key: PRNG key, needed only where something is random (dropout in training).
            states: `"last"` (default), or `"every"`: the states after all samples, for looking into a layer or to store
                them. The layer then goes step by step, so it must stream, and its state must keep its shapes.

        Returns:
            The outputs `"*batch time n_out"` (one output `"*batch n_out"` from a layer that pools), and each row's own
            state after its last real sample. With `states="every"`, every array of the state has a time axis after the
            batch axes, `"*batch time ..."`; a masked sample repeats the state before it.

        Raises:
            TypeError: if a dtype is wrong, or if all states are asked of a layer that does not stream.
            ValueError: if a shape is wrong, or if all states are asked for and a cache in them grows.
        """
        who = f"{type(self).__name__}.unroll"
        refuse_misplaced(misplaced, who)
        xs, batch, mask, resets, key = self._check_sequence(xs, mask, resets, key, who)
        self = self._fitted(xs)
        before = self._resolve_state(state, batch, self._stream_dtype(xs), who)
        if states == "last":
            ys, after = self._unroll(xs, before, mask, resets, key)
        elif states == "every":
            require_streaming(self, f'{who}(states="every")')
            require_fixed(before, f'{who}: states="every"')
            ys, after = self._unroll_every(xs, before, mask, resets, key)
        else:
            raise ValueError(f'{who}: states must be "last" or "every", got {states!r}')
        return self._finish(ys, mask, who), after

    @final
    def forward(
        self,
        xs: ArrayLike,
        *misplaced: Misplaced,
        mask: ArrayLike | None = None,
        resets: ArrayLike | None = None,
        key: PRNGKey | None = None,
    ) -> Array:
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
        self = self._fitted(xs)
        return self._finish(self._forward(xs, mask, resets, key), mask, who)

    @final
    def __call__(
        self,
        xs: ArrayLike,
        *misplaced: Misplaced,
        mask: ArrayLike | None = None,
        resets: ArrayLike | None = None,
        key: PRNGKey | None = None,
    ) -> Array:
        """The same as [`forward`][sequinox.SequenceLayer.forward]."""
        return self.forward(xs, *misplaced, mask=mask, resets=resets, key=key)

    # ---- checks ----------------------------------------------------------------------------------------------------

    def _check_sequence(
        self, xs: Any, mask: Any, resets: Any, key: Any, who: str
    ) -> tuple[Array, tuple[int, ...], Array | None, Array | None, Array | None]:
        xs, batch = self._check_samples(xs, who, "xs", time=True)
        flags = (*batch, xs.shape[len(batch)])
        mask, resets = check_flags(mask, flags, who, "mask"), check_flags(resets, flags, who, "resets")
        key = None if key is None else check_key(key, who)
        if mask is not None:
            xs = select(mask, xs, self._filler(xs))
        return xs, batch, mask, resets, key

    def _finish(self, ys: Array, mask: Array | None, who: str) -> Array:
        if self.n_out is not None and ys.shape[-1:] != (self.n_out,):
            raise ValueError(f"{who}: the layer gives outputs of shape {ys.shape}, but its n_out is {self.n_out}")
        return ys if mask is None or self.pools else select(mask, ys, jnp.zeros_like(ys))

    def _step_flagged(
        self, x: Array, state: S, mask: Array | None, resets: Array | None, key: Array | None
    ) -> tuple[Array, S]:
        """A stretch of one, whose rows may have no sample, or start afresh."""
        one: Any = lambda a: None if a is None else jnp.expand_dims(a, self._time_axis(x.ndim + 1))
        y, state = self._unroll(one(x), state, one(mask), one(resets), key)
        return (y if self.pools else jnp.squeeze(y, -2)), state

    def _time_axis(self, ndim: int) -> int:
        return ndim - 1 if self.reads_tokens else ndim - 2

    def _initial(self, xs: Array) -> S:
        return self.init_state(xs.shape[: self._time_axis(xs.ndim)], self._stream_dtype(xs))

    def _stream_dtype(self, x: Any) -> np.dtype | None:
        """The dtype of the stream: that of vector samples; of tokens, that of the weights."""
        return x.dtype if jnp.issubdtype(x.dtype, jnp.inexact) else self.dtype

    def _check_samples(self, x: Any, who: str, name: str, *, time: bool) -> tuple[Array, tuple[int, ...]]:
        check_array(x, who, name)
        x, tokens = jnp.asarray(x), self.reads_tokens
        width = "n_in" if self.n_in is None else str(self.n_in)
        axes = (["time"] if time else []) + ([] if tokens else [width])
        expected = "(*batch, " + ", ".join(axes) + ("," if not axes else "") + ")"
        if tokens:
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
        if not tokens and self.n_in is not None and x.shape[-1] != self.n_in:
            raise ValueError(f"{who}: {name} must have shape {expected}, got {x.shape}")
        return x, x.shape[: x.ndim - len(axes)]

    def _fitted(self, x: Array) -> "SequenceLayer":
        """The layer that knows the width of its samples, if its state needs that."""
        return self.with_width(x.shape[-1]) if self.needs_width and not self.reads_tokens else self

    def _resolve_state(self, state: S | None, batch: tuple[int, ...], dtype: Any, who: str) -> S:
        """The given state in the layer's own containers, its shapes and dtypes checked; None is the initial state."""
        if state is None:
            return self.init_state(batch, dtype)
        like = jax.eval_shape(lambda: self.init_state(batch, dtype))
        try:
            return conform(state, like, f"{who}: state")
        except (TypeError, ValueError) as error:
            if not isinstance(state, jax.Array | np.ndarray) or state.dtype != np.dtype(bool):
                raise
            raise type(error)(f"{error}; a mask goes by its name: mask=") from None


def refuse_misplaced(misplaced: tuple[Any, ...], who: str) -> None:
    """Raises for a mask, or a state for a whole sequence, given by its place and not by its name."""
    if misplaced:
        place = "samples and a state" if who.endswith((".step", ".unroll")) else "the samples alone"
        raise TypeError(
            f"{who} takes {place} by position, got {len(misplaced)} more: a mask, resets or a key go by their names, "
            "as in mask=mask; to begin at a state there is unroll(xs, state)"
        )


def composed_field(fields: Iterable[int | None]) -> int | None:
    """The receptive field of layers one after another, given theirs."""
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


def grows(state: State) -> bool:
    """Whether some part of a state, as a growing cache, is larger after every sample: its class sets `grows`."""
    marked = lambda node: getattr(node, "grows", False)
    return any(map(marked, jax.tree.leaves(state, is_leaf=marked)))


def require_fixed(state: State, who: str) -> None:
    """Raises the error of a state that grows where its shapes have to stay."""
    if grows(state):
        raise ValueError(
            f"{who} needs a state whose shapes stay, but there is a cache in it that grows: begin with "
            "with_capacity(layer.init_state(batch), capacity)"
        )


def fresh_steps(mask: Array | None, resets: Array | None) -> Array | None:
    """Where a step starts from the initial state: at resets, and where it is masked.

    A masked step is run from the initial state, and thrown away: so nothing in it can overflow, and its derivative is
    finite, whatever the state of its row is.
    """
    if mask is None:
        return resets
    return ~mask if resets is None else resets | ~mask


@eqx.filter_jit  # so that calls outside `jit` are compiled once, too
def scan_steps(
    layer: SequenceLayer,
    xs: Array,
    state: State,
    mask: Array | None,
    resets: Array | None,
    key: Array | None,
    start: State = None,
    *,
    every: bool = False,
) -> tuple[Array, State]:
    """A stretch sample by sample: the outputs, and the last state or, with `every`, all of them.

    Resets go to `start`; with `every`, to where the layer's own `_unroll` takes a stretch of one.
    """
    layer, key = layer._draw_once(key)
    axis = layer._time_axis(xs.ndim)
    keys = None if key is None else jax.random.split(key, xs.shape[axis])
    flagged = mask is not None or resets is not None

    def body(state: State, inputs: Any) -> tuple[State, tuple[Array | None, State]]:
        x, m, r, k = inputs
        if every and flagged:
            y, after = layer._step_flagged(x, state, m, r, k)
        else:
            fresh = fresh_steps(m, r)
            y, after = layer._step(x, state if fresh is None else select(fresh, start, state), k)
            after = after if m is None else select(m, after, state)
        return after, (None if layer.pools else y, after if every else None)

    first = lambda a: None if a is None else jnp.moveaxis(a, axis, 0)
    last, (ys, states) = scan_time(body, state, (first(xs), first(mask), first(resets), keys))
    if layer.pools:  # a stretch of no samples returns the output so far
        ys, _ = layer._unroll(xs[(slice(None),) * axis + (slice(0),)], last, None, None, key)
    else:
        ys = jnp.moveaxis(ys, 0, axis)
    return ys, jax.tree.map(lambda a: jnp.moveaxis(a, 0, axis), states) if every else last


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
