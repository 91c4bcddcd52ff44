"""The memory of a training step by formula, before anything is allocated."""

import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

from ..._checks import is_inexact, size
from ..._layer import SequenceLayer
from ..._types import State
from ...attention._cache import is_cache


class MemoryEstimate(NamedTuple):
    """Bytes of a training step, by formula. `print` shows a table.

    Attributes:
        states: of all layers, one a sample, as backpropagation through time keeps them.
        inputs: the samples.
        outputs: of the model.
        weights: the trainable arrays.
        gradients: as many bytes again.
        optimiser: its state; of Adam two moments a weight.
    """

    states: int
    inputs: int
    outputs: int
    weights: int
    gradients: int
    optimiser: int

    @property
    def total(self) -> int:
        """The sum."""
        return sum(self)

    def __str__(self) -> str:
        rows = [*self._asdict().items(), ("total", self.total)]
        return "\n".join(f"{name:<9}  {si(number, 'B'):>8}" for name, number in rows)


def memory_estimate(
    model: SequenceLayer, batch_size: int, time: int, *, optimiser: optax.GradientTransformation | None = None
) -> MemoryEstimate:
    """The memory of a training step by formula: states, inputs and outputs of `batch_size` rows of `time` samples,
    weights, gradients and the optimiser's state. Nothing is computed or allocated.

    A recurrent state counts `time` times, since backpropagation through time keeps one a sample. The state of a layer
    that sees a window of samples (a convolution, pooling) and a cache count as they are after `time` samples. What else
    a derivative keeps (pre-activations, outputs of inner layers, attention's weights) is not in it, nor XLA's working
    memory: [`profile`][sequinox.train.profile] also shows what XLA asks for.

    Arguments:
        model: a sequence layer, or its shapes alone: what `eqx.filter_eval_shape` makes of its constructor.
        batch_size: rows.
        time: samples a row.
        optimiser: an optax transformation. Default: Adam.

    Returns:
        `MemoryEstimate`, in bytes.

    Raises:
        TypeError: `model` is no sequence layer; `batch_size` or `time` is not an integer.
        ValueError: `batch_size` or `time` is below 1; `model` reads samples of any width.

    ??? example

        ```python
        >>> import equinox as eqx, jax, sequinox as sqx
        >>> from sequinox.train import memory_estimate
        >>> make = lambda key: sqx.recurrent_net(300, 512, 10_000, key, cell="rnn", pool=None)
        >>> print(memory_estimate(eqx.filter_eval_shape(make, jax.random.key(0)), 32, 100))
        states      6.55 MB
        inputs      3.84 MB
        outputs      128 MB
        weights     22.2 MB
        gradients   22.2 MB
        optimiser   44.4 MB
        total        227 MB

        ```
    """
    who = "memory_estimate"
    if not isinstance(model, SequenceLayer):
        raise TypeError(f"{who}: model must be a sequence layer, got {type(model).__name__}")
    shape = (size(batch_size, who, "batch_size"), size(time, who, "time"))
    if model.reads_tokens:
        return estimate(model, jax.ShapeDtypeStruct(shape, jnp.int32), optimiser)
    if model.n_in is None:
        raise ValueError(f"{who}: the model reads samples of any width (n_in is None), so its memory is not known")
    params = jax.tree.leaves(eqx.filter(model, is_inexact))
    dtype = params[0].dtype if params else jnp.float32
    return estimate(model, jax.ShapeDtypeStruct((*shape, model.n_in), dtype), optimiser)


def estimate(
    model: SequenceLayer, inputs: jax.ShapeDtypeStruct, optimiser: optax.GradientTransformation | None
) -> MemoryEstimate:
    """As `memory_estimate`, for samples of a given shape."""
    optimiser = optax.adam(1e-3) if optimiser is None else optimiser
    params = eqx.filter(model, is_inexact)

    def run(model: Any, xs: Any) -> Any:
        return model.unroll(xs, key=jax.random.key(0))

    outputs, state = eqx.filter_eval_shape(run, model, inputs)
    opt_state = eqx.filter_eval_shape(optimiser.init, params)
    n_time = inputs.shape[model._time_axis(len(inputs.shape))]
    weights = _bytes(params)
    return MemoryEstimate(
        states=_states(model, state, n_time),
        inputs=_bytes(inputs),
        outputs=_bytes(outputs),
        weights=weights,
        gradients=weights,
        optimiser=_bytes(opt_state),
    )


def _states(layer: SequenceLayer, state: State, time: int) -> int:
    """Bytes of a layer's state over all samples."""
    if layer.receptive_field is not None or (layer.pools and not layer.inside):
        return _bytes(state)  # it is not read again to make the next one
    if layer.inside:
        parts = zip(layer.inside, layer._split_state(state), strict=True)
        return sum(_states(inner, part, time) for inner, part in parts)
    leaves = jax.tree.leaves(state, is_leaf=is_cache)
    # Counters have no derivative, so none is kept.
    return sum(_bytes(leaf) if is_cache(leaf) else time * _bytes(eqx.filter(leaf, is_inexact)) for leaf in leaves)


def _bytes(tree: Any) -> int:
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree) if hasattr(leaf, "dtype"))


def si(number: float, unit: str) -> str:
    """`6.55 MB`: three digits, powers of 1000."""
    for power, prefix in ((12, "T"), (9, "G"), (6, "M"), (3, "k"), (0, ""), (-3, "m"), (-6, "µ")):
        if abs(number) >= 0.9995 * 10.0**power:
            return f"{float(f'{number / 10.0**power:.3g}'):g} {prefix}{unit}"
    return f"{number:g} {unit}"
