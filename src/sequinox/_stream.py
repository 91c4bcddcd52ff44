"""Running a layer sample by sample, with its state kept for the caller."""

from typing import Any

import equinox as eqx
import jax
from jaxtyping import Array

from ._layer import SequenceLayer, require_streaming
from ._types import BatchShape, State


class Stream:
    """A layer in a stream: give it a sample, get the output; compiled at the first sample.

    For control loops and servers, where a sample comes at a time and what counts is the time to the answer: the weights
    are bound into the compiled step, which leaves only the sample and the state to be passed. On a CPU,
    `jax.config.update("jax_cpu_enable_async_dispatch", False)` at the start of the program spares small steps a change
    of thread that takes longer than they do. Inside `jit`, `scan` or a training loop use the layer's own `step` and
    `unroll`.

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

    state: State
    """The state after the last sample: a PyTree that may be read, kept, and assigned."""

    def __init__(self, layer: SequenceLayer, batch: BatchShape = (), *, state: State = None):
        """
        Arguments:
            layer: any layer that streams. Dropout is switched off (`equinox.nn.inference_mode`).
            batch: the batch axes of a sample, an integer or a tuple; `()` for a single stream.
            state: the state to start from; default (None): `init_state`.

        Raises:
            TypeError: if it is no sequence layer, or one that does not stream.
            ValueError: at the first sample, if the state does not fit.
        """
        if not isinstance(layer, SequenceLayer):
            raise TypeError(f"Stream: layer must be a sequence layer, got {type(layer).__name__}")
        require_streaming(layer, "Stream")
        self._layer = eqx.nn.inference_mode(layer)
        self._step = jax.jit(lambda x, state, mask, resets: self._layer.step(x, state, mask=mask, resets=resets))
        self._start = self._layer.init_state(batch) if state is None else state
        self.state = self._start

    def __call__(self, x: Any, *, mask: Any = None, resets: Any = None) -> Array:
        """Reads one sample.

        Arguments:
            x: the sample, `"*batch n_in"`.
            mask: bool `"*batch"`, False in the rows that have no sample now: their state stays, their output is zeros.
            resets: bool `"*batch"`, True in the rows whose state starts afresh before this sample.

        Returns:
            The output `"*batch n_out"`.
        """
        y, self.state = self._step(x, self.state, mask, resets)
        return y

    def reset(self) -> None:
        """Back to the state before the first sample."""
        self.state = self._start
