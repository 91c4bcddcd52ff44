"""Running a layer sample by sample, with its state kept for the caller."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ._checks import check_array, size
from ._layer import SequenceLayer, grows, require_streaming
from ._types import ArrayLike, BatchShape, State
from .attention import with_capacity
from .attention._cache import bounded


class Stream:
    """A layer in a stream: give it a sample, get the output; compiled at the first sample.

    For control loops and servers, where a sample comes at a time and what counts is the time to the answer: the weights
    are bound into the compiled step, which leaves only the sample and the state to be passed. On a CPU,
    `jax.config.update("jax_cpu_enable_async_dispatch", False)` at the start of the program spares small steps a change
    of thread that takes longer than they do. Inside `jit`, `scan` or a training loop use the layer's own `step` and
    `unroll`.

    Caches that grow with every sample would have every step compiled. A stream keeps them as caches of fixed size,
    and doubles that when one is full: a stream of any length compiles a few times. A cache of fixed size in a given
    state keeps its size, unless `capacity` is given, and one sample too many is an error.

    ??? example

        ```python
        >>> import jax, jax.numpy as jnp, sequinox as sqx
        >>> net = sqx.recurrent_net(3, 4, 2, jax.random.key(0))
        >>> run = sqx.Stream(net)
        >>> for x in jnp.ones((5, 3)):
        ...     y = run(x)
        >>> bool(jnp.allclose(y, net(jnp.ones((5, 3))), atol=1e-6))
        True

        ```
    """

    def __init__(
        self, layer: SequenceLayer, batch: BatchShape = (), *, state: State = None, capacity: int | None = None
    ):
        """
        Arguments:
            layer: any layer that streams. Dropout is switched off (`equinox.nn.inference_mode`).
            batch: the batch axes of a sample, an integer or a tuple; `()` for a single stream.
            state: the state to start from; default (None): `init_state`.
            capacity: number of samples for which growing caches have room at first; default 16. Give the length of the
                stream, where it is known, to compile once. If it is given, caches of fixed size grow as well.

        Raises:
            TypeError: if it is no sequence layer, or one that does not stream.
            ValueError: at the first sample, if the state does not fit.
        """
        if not isinstance(layer, SequenceLayer):
            raise TypeError(f"Stream: layer must be a sequence layer, got {type(layer).__name__}")
        require_streaming(layer, "Stream")
        self._layer = eqx.nn.inference_mode(layer)
        step = lambda x, state, mask, resets: self._layer.step(x, state, mask=mask, resets=resets)
        self._step, self._step_in_place = jax.jit(step), jax.jit(step, donate_argnums=1)
        self._grows = capacity is not None
        self._capacity = 16 if capacity is None else size(capacity, "Stream", "capacity")
        self.state = self._layer.init_state(batch) if state is None else state
        self._start = self._state

    def __repr__(self) -> str:
        return f"Stream({self._layer!r}, state={eqx.tree_pformat(self._state)})"

    @property
    def state(self) -> State:
        """The state after the last sample: a PyTree that may be read, kept, and assigned.

        Growing caches are of fixed size in it.
        """
        self._shared = True
        return self._state

    @state.setter
    def state(self, state: State) -> None:
        self._grows = self._grows or grows(state)
        self._state, self._shared = state, True
        self._room = math.inf  # samples for which the caches have room for sure
        if self._grows and bounded(state):
            self._make_room()

    def _make_room(self) -> None:
        """Larger caches, where they are full."""
        caches = bounded(self._state)
        used = max(int(np.max(cache.n, initial=0)) for cache in caches)
        capacity = max(self._capacity, *(cache.k.shape[-2] for cache in caches))
        while capacity <= used:
            capacity *= 2
        if grows(self._state) or any(cache.k.shape[-2] < capacity for cache in caches):
            self._state = with_capacity(self._state, capacity)
        self._room = capacity - used

    def __call__(self, x: ArrayLike, *, mask: ArrayLike | None = None, resets: ArrayLike | None = None) -> Array:
        """Reads one sample.

        Arguments:
            x: the sample, `"*batch n_in"`.
            mask: bool `"*batch"`, False in the rows that have no sample now: their state stays, their output is zeros.
            resets: bool `"*batch"`, True in the rows whose state starts afresh before this sample.

        Returns:
            The output `"*batch n_out"`.

        Raises:
            TypeError, ValueError: if an argument does not fit; the stream is then as it was before.
            RuntimeError: if an error within an earlier step has ended the stream.
        """
        check_array(x, "Stream", "x")
        if self._room == math.inf:
            y, self._state = self._step(x, self._state, mask, resets)
            return y
        if self._state is None:
            raise RuntimeError("Stream: an error ended the stream, and its state is gone; reset() starts it again")
        if self._room == 0:
            self._make_room()
        if self._shared:  # the caller may keep it, and the step overwrites it
            self._state, self._shared = jax.tree.map(jnp.copy, self._state), False
        state = self._state
        self._room -= 1
        try:
            y, self._state = self._step_in_place(x, state, mask, resets)
        except BaseException:  # Ctrl-C as well
            if any(leaf.is_deleted() for leaf in jax.tree.leaves(state)):  # a step that has started overwrites it
                self._state = None
            raise
        return y

    def reset(self) -> None:
        """Back to the state before the first sample."""
        self.state = self._start
