"""An exponential moving average of the parameters, inside the optimiser's state."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import PyTree

from ..._checks import number, wide
from ._state import M, TrainState, check_optimiser


class AveragedState(NamedTuple):
    """The state of `with_average`.

    Attributes:
        inner: the optimiser's own.
        average: the average, as the parameters, float32 at least.
    """

    inner: Any
    average: PyTree


def with_average(optimiser: optax.GradientTransformation, decay: float = 0.999) -> optax.GradientTransformation:
    r"""The optimiser, which also keeps an average of the parameters: $\bar\theta \leftarrow \alpha \bar\theta + (1 -
    \alpha) \theta$ after every update.

    The average begins at the first parameters and is kept in float32 at least, since steps of $1 - \alpha$ are lost in
    half precision. It lives in the optimiser's state: it is saved, resumed and sharded with it, and a skipped step
    leaves it alone. `fit` evaluates the average, and [`averaged_model`][sequinox.train.averaged_model] returns it.

    Arguments:
        optimiser: an optax transformation. Let nothing be around `with_average`: it would change the update after the
            average was taken.
        decay: $\alpha$, in [0, 1): the average is over about the last $1 / (1 - \alpha)$ updates. Default: 0.999.

    Returns:
        An optax transformation; its `update` needs the parameters.

    Raises:
        TypeError: `optimiser` is not an optax transformation, `decay` not a number.
        ValueError: `decay` is not in [0, 1).

    Source: [Polyak and Juditsky 1992](https://doi.org/10.1137/0330046) for the plain average; the exponential form is
    common practice.

    ??? example

        ```python
        >>> import jax.numpy as jnp, optax
        >>> from sequinox.train import with_average
        >>> optimiser, params = with_average(optax.sgd(1.0), 0.5), jnp.array(1.0)
        >>> updates, state = optimiser.update(jnp.array(1.0), optimiser.init(params), params)
        >>> float(params + updates), float(state.average)
        (0.0, 0.5)

        ```
    """
    check_optimiser(optimiser, "with_average")
    decay = number(decay, "with_average", "decay")
    if not 0 <= decay < 1:
        raise ValueError(f"with_average: decay must be in [0, 1), got {decay!r}")
    inner = optax.with_extra_args_support(optimiser)

    def init(params: PyTree) -> AveragedState:
        copied = jax.tree.map(lambda param: jnp.array(param, wide(param.dtype), copy=True), params)
        return AveragedState(inner.init(params), copied)

    def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        if params is None:
            raise ValueError("with_average: update needs params")
        updates, inner_state = inner.update(updates, state.inner, params, **extra)
        after = optax.apply_updates(params, updates)

        def move(average: Any, param: Any) -> Any:
            return average + (1 - decay) * (param.astype(average.dtype) - average)

        return updates, AveragedState(inner_state, jax.tree.map(move, state.average, after))

    return optax.GradientTransformationExtraArgs(init, update)


def averaged_model(state: TrainState[M]) -> M:
    """The model with its parameters averaged, if the optimiser keeps an average; the model itself if not.

    Arguments:
        state: a `TrainState`.

    Returns:
        The model, its parameters in their own dtypes.

    ??? example

        ```python
        >>> import equinox as eqx, jax, optax
        >>> from sequinox.train import averaged_model, init_train_state, with_average
        >>> model = eqx.nn.Linear(3, 2, key=jax.random.key(0))
        >>> state = init_train_state(model, with_average(optax.sgd(0.1)), jax.random.key(1))
        >>> bool(eqx.tree_equal(averaged_model(state), model))
        True

        ```
    """
    found = _averages(state.opt_state)
    if not found:
        return state.model
    params, static = eqx.partition(state.model, eqx.is_inexact_array)
    return eqx.combine(jax.tree.map(lambda param, average: average.astype(param.dtype), params, found[0]), static)


def _averages(opt_state: Any) -> list[PyTree]:
    is_average = lambda node: isinstance(node, AveragedState)
    return [node.average for node in jax.tree.leaves(opt_state, is_leaf=is_average) if is_average(node)]
