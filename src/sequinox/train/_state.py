"""One training step, from a state to a state."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Int, Key, PyTree

from ._clip import clip_by_norm
from ._losses import Total

Objective = Callable[[Any, Any, Any], tuple[Total, dict[str, Total]]]

_RESERVED = ("loss", "grad_norm", "skipped", "steps")


class TrainState(eqx.Module):
    """Everything a run needs to go on, as one PyTree.

    Attributes:
        model: the model.
        opt_state: the optimiser's state, for `eqx.filter(model, eqx.is_inexact_array)`.
        key: the run's PRNG key, typed. It stays as it is; step n draws from `fold_in(key, n)`.
        step: the number of steps taken, int32; skipped ones count.
        carry: a layer state carried from batch to batch, or None. `make_step` passes it on untouched.
    """

    model: PyTree
    opt_state: PyTree
    key: Key[Array, ""]
    step: Int[Array, ""]
    carry: PyTree

    def __init__(self, model: PyTree, opt_state: PyTree, key: Any, step: Any, carry: PyTree = None):
        self.model = model
        self.opt_state = opt_state
        self.key = key
        self.step = step
        self.carry = carry


class StepReport(NamedTuple):
    """What one step measured, still on the device.

    Attributes:
        totals: `"loss"`, the objective's own metrics and `"grad_norm"` (before clipping), each a `Total`. All zero for
            a skipped step, so that one NaN does not blot out the steps it is summed with.
        skipped: int32, 1 if the update was skipped.
    """

    totals: dict[str, Total]
    skipped: Array


def init_train_state(model: PyTree, optimiser: optax.GradientTransformation, key: Any) -> TrainState:
    """The state before the first step.

    Every array is copied onto the device, as a step may donate its buffers: the caller's model stays usable,
    and no two leaves share a buffer.

    Arguments:
        model: any PyTree; its floating and complex arrays are trained.
        optimiser: an optax transformation.
        key: a PRNG key, typed (`jax.random.key`) or of the old kind (`jax.random.PRNGKey`).

    Returns:
        A `TrainState` at step 0.

    Raises:
        ValueError: `key` is not one PRNG key, or the model has no array to train.

    Examples:
        >>> import equinox as eqx, jax, optax
        >>> from sequinox.train import init_train_state
        >>> model = eqx.nn.Linear(3, 2, key=jax.random.key(0))
        >>> int(init_train_state(model, optax.sgd(0.1), jax.random.key(1)).step)
        0
    """
    if not isinstance(key, jax.Array) or not (
        jnp.issubdtype(key.dtype, jax.dtypes.prng_key) or (key.dtype == jnp.uint32 and key.ndim == 1)
    ):
        raise ValueError(f"init_train_state: key must be a PRNG key (jax.random.key(seed)), got {key!r}.")
    if not jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        key = jax.random.wrap_key_data(key)
    if key.ndim:
        raise ValueError(f"init_train_state: key must be a single PRNG key, got an array of shape {key.shape}.")
    params = eqx.filter(model, eqx.is_inexact_array)
    if not jax.tree.leaves(params):
        raise ValueError("init_train_state: model has no floating or complex array to train.")
    with _standard_promotion():
        opt_state = optimiser.init(params)
    state = TrainState(model, opt_state, key, jnp.zeros((), jnp.int32))
    return jax.tree.map(_copy, state)


def make_step(
    objective: Objective,
    optimiser: optax.GradientTransformation,
    *,
    clip_norm: float | None = None,
    donate: bool = False,
) -> Callable[[TrainState, Any], tuple[TrainState, StepReport]]:
    """A jitted training step. It is compiled once as long as batches keep their shapes and dtypes.

    A step whose loss or gradient is not finite is skipped: the model and the optimiser's state (its schedules too) stay
    bit for bit, the step is counted, the report says so.

    Arguments:
        objective: `objective(model, batch, key) -> (loss, metrics)`, the loss as a `Total` and further metrics as a
            dictionary of them. The gradient is that of `loss.total / loss.count`.
        optimiser: an optax transformation. It sees the model's floating and complex arrays only; complex gradients are
            conjugated, as optax expects.
        clip_norm: global norm above which the gradient is scaled down (`clip_by_norm`). Default: none.
        donate: let XLA overwrite the state it is given, which saves a copy of model and optimiser state. The old state
            is unusable afterwards. Default: False, the safe choice in one's own loop; `fit` turns it on.

    Returns:
        `step(state, batch) -> (state, StepReport)`. Python numbers in a batch become arrays, or each new one would
        compile again.

    Raises:
        TypeError: at the first step, the objective returns something else.
        ValueError: `clip_norm` is not above 0; at the first step, a metric has a name the step itself uses.

    Examples:
        >>> import equinox as eqx, jax, jax.numpy as jnp, optax
        >>> from sequinox.train import init_train_state, make_step, squared_error
        >>> model, optimiser = eqx.nn.Linear(3, 1, key=jax.random.key(0)), optax.adam(1e-2)
        >>> def objective(model, batch, key):
        ...     return squared_error(jax.vmap(model)(batch["x"]), batch["y"]), {}
        >>> step = make_step(objective, optimiser)
        >>> state = init_train_state(model, optimiser, jax.random.key(1))
        >>> state, report = step(state, {"x": jnp.ones((4, 3)), "y": jnp.ones((4, 1))})
        >>> int(state.step), int(report.totals["loss"].count), int(report.skipped)
        (1, 4, 0)
    """
    max_norm = float("inf") if clip_norm is None else clip_norm
    optimiser = optax.with_extra_args_support(optimiser)
    clip_by_norm(None, max_norm)  # a wrong value is reported here, not while tracing

    def loss_of(params: PyTree, static: PyTree, batch: Any, key: Any) -> tuple[Array, tuple[Total, dict[str, Total]]]:
        loss, metrics = _check_objective(objective(eqx.combine(params, static), batch, key))
        return jnp.asarray(loss.mean), (loss, metrics)

    # The batch first: only what follows is donated.
    def step(batch: Any, state: TrainState) -> tuple[TrainState, StepReport]:
        params, static = eqx.partition(state.model, eqx.is_inexact_array)
        key = jax.random.fold_in(state.key, state.step)
        (mean, (loss, metrics)), grads = jax.value_and_grad(loss_of, has_aux=True)(params, static, batch, key)
        grads = jax.tree.map(lambda g: jnp.conj(g) if jnp.iscomplexobj(g) else g, grads)
        grads, norm = clip_by_norm(grads, max_norm)
        ok = jnp.isfinite(norm) & jnp.isfinite(mean)

        def update() -> PyTree:
            with _standard_promotion():
                # What some optimisers ask for besides (line searches, schedules that watch the loss).
                loss_at = lambda params: loss_of(params, static, batch, key)[0]
                asked = {"value": mean, "grad": grads, "value_fn": loss_at}
                updates, opt_state = optimiser.update(grads, state.opt_state, params, **asked)
                new_params = optax.apply_updates(params, updates)
            return _in_types_of(kept, eqx.filter((new_params, opt_state), eqx.is_array))

        # A condition, not a choice between two results: that would write and read both (a third of a step's time where
        # the optimiser is most of it).
        kept, rest = eqx.partition((params, state.opt_state), eqx.is_array)
        new_params, opt_state = eqx.combine(jax.lax.cond(ok, update, lambda: kept), rest)
        model = eqx.combine(new_params, static)
        totals = {"loss": loss, **metrics, "grad_norm": Total(norm, jnp.ones((), jnp.int32))}
        report = StepReport(
            jax.tree.map(lambda x: jnp.where(ok, x, jnp.zeros_like(x)), totals), (~ok).astype(jnp.int32)
        )
        new = TrainState(
            model,
            opt_state,
            state.key,
            state.step + 1,
            state.carry,
        )
        return new, report

    jitted = eqx.filter_jit(step, donate="all-except-first" if donate else "none")

    def call(state: TrainState, batch: Any) -> tuple[TrainState, StepReport]:
        return jitted(jax.tree.map(_as_array, batch), state)

    return call


@contextlib.contextmanager
def _standard_promotion() -> Iterator[None]:
    """Optax relies on JAX's implicit promotion, also where the user has turned it off for their own code."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def _check_objective(returned: Any) -> tuple[Total, dict[str, Total]]:
    form = "objective must return (Total, dict of Totals): the loss as a sum and a count, and further metrics"
    if isinstance(returned, Total) or not isinstance(returned, tuple) or len(returned) != 2:
        raise TypeError(f"{form}; got {type(returned).__name__}.")
    loss, metrics = returned
    if not isinstance(loss, Total):
        raise TypeError(f"{form}; its first is {type(loss).__name__}.")
    if not isinstance(metrics, dict):
        raise TypeError(f"{form}; its second is {type(metrics).__name__}.")
    for name, value in {"loss": loss, **metrics}.items():
        if not isinstance(value, Total):
            raise TypeError(f"{form}; {name!r} is {type(value).__name__}.")
        if jnp.shape(value.total) or jnp.shape(value.count):
            shapes = jnp.shape(value.total), jnp.shape(value.count)
            raise TypeError(f"{form}; {name!r} has shapes {shapes} where scalars are needed.")
    taken = [name for name in metrics if name in _RESERVED]
    if taken:
        raise ValueError(f"objective: the names {taken} are the step's own; rename these metrics.")
    return jax.tree.map(jnp.asarray, (loss, metrics))


def _in_types_of(old: PyTree, new: PyTree) -> PyTree:
    """`new` in `old`'s exact types: a weak type or another dtype would compile the next step again."""

    def cast(old_leaf: Any, new_leaf: Any) -> Any:
        is_key = jnp.issubdtype(old_leaf.dtype, jax.dtypes.prng_key)
        return new_leaf if is_key else jnp.asarray(new_leaf).astype(old_leaf.dtype)

    return jax.tree.map(cast, old, new)


def _copy(leaf: Any) -> Any:
    if not eqx.is_array(leaf):
        return leaf
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jax.random.clone(leaf)
    copied = jnp.array(leaf, copy=True)
    # astype drops a weak type: a step's output has none, so the second step would compile again.
    return copied.astype(copied.dtype)


def _as_array(leaf: Any) -> Any:
    return jnp.asarray(leaf) if isinstance(leaf, (bool, int, float, complex)) else leaf
