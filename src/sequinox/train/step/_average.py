"""An exponential moving average of the parameters, inside the optimiser's state."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import PyTree

from ..._checks import wide
from ._state import TrainState


class AveragedState(NamedTuple):
    """The state of `with_average`.

    Attributes:
        inner: the optimiser's own.
        average: the average, as the parameters, float32 at least.
    """

    inner: Any
    average: PyTree


def with_average(optimiser: Any, decay: Any = 0.999) -> optax.GradientTransformation:
    r"""The optimiser, keeping an average of the parameters besides: $\bar\theta \leftarrow \alpha \bar\theta + (1 -
    \alpha) \theta$ after every update.

    The average begins at the first parameters and is kept in float32 at least, since steps of $1 - \alpha$ are lost in
    half precision. It lives in the optimiser's state: it is saved, resumed and sharded with it, and a skipped step
    leaves it alone. `fit` evaluates the average, and [`averaged_model`][sequinox.train.averaged_model] gives it.

    Arguments:
        optimiser: an optax transformation, the outermost: what stands around it would change the update after it was
            averaged.
        decay: $\alpha$, in [0, 1): the average looks back over about $1 / (1 - \alpha)$ updates. Default: 0.999.

    Returns:
        An optax transformation; its `update` needs the parameters.

    Raises:
        TypeError: `optimiser` is not an optax transformation.
        ValueError: `decay` is not in [0, 1).

    Source: Polyak and Juditsky, Acceleration of stochastic approximation by averaging, SIAM J. Control Optim. 30
        (1992), for the plain average; the exponential form is common practice.

    Examples:
        >>> import jax.numpy as jnp, optax
        >>> from sequinox.train import with_average
        >>> optimiser, params = with_average(optax.sgd(1.0), 0.5), jnp.array(1.0)
        >>> updates, state = optimiser.update(jnp.array(1.0), optimiser.init(params), params)
        >>> float(params + updates), float(state.average)
        (0.0, 0.5)
    """
    if not hasattr(optimiser, "init") or not hasattr(optimiser, "update"):
        raise TypeError(f"with_average: optimiser must be an optax transformation, got {type(optimiser).__name__}.")
    if isinstance(decay, bool) or not isinstance(decay, (int, float)) or not 0 <= decay < 1:
        raise ValueError(f"with_average: decay must be in [0, 1), got {decay!r}.")
    inner = optax.with_extra_args_support(optimiser)

    def init(params: PyTree) -> AveragedState:
        return AveragedState(inner.init(params), jax.tree.map(_widened, params))

    def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        if params is None:
            raise ValueError("with_average: update needs params.")
        updates, inner_state = inner.update(updates, state.inner, params, **extra)
        after = optax.apply_updates(params, updates)

        def move(average: Any, param: Any) -> Any:
            return average + (1 - decay) * (param.astype(average.dtype) - average)

        return updates, AveragedState(inner_state, jax.tree.map(move, state.average, after))

    return optax.GradientTransformationExtraArgs(init, update)


def averaged_model(state: TrainState) -> Any:
    """The model with its parameters averaged, if the optimiser keeps an average; the model itself if not.

    Arguments:
        state: a `TrainState`.

    Returns:
        The model, its parameters in their own dtypes.

    Examples:
        >>> import equinox as eqx, jax, optax
        >>> from sequinox.train import averaged_model, init_train_state, with_average
        >>> model = eqx.nn.Linear(3, 2, key=jax.random.key(0))
        >>> state = init_train_state(model, with_average(optax.sgd(0.1)), jax.random.key(1))
        >>> bool(eqx.tree_equal(averaged_model(state), model))
        True
    """
    found = _averages(state.opt_state)
    if not found:
        return state.model
    params, static = eqx.partition(state.model, eqx.is_inexact_array)
    return eqx.combine(jax.tree.map(lambda param, average: average.astype(param.dtype), params, found[0]), static)


def _averages(opt_state: Any) -> list[PyTree]:
    is_average = lambda node: isinstance(node, AveragedState)
    return [node.average for node in jax.tree.leaves(opt_state, is_leaf=is_average) if is_average(node)]


def _widened(param: Any) -> Any:
    if jnp.iscomplexobj(param):
        return jnp.array(param, copy=True)
    return jnp.array(param, wide(param.dtype), copy=True)
