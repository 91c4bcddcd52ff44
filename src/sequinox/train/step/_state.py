"""Everything that a run needs to continue, and how it starts."""

import contextlib
from collections.abc import Iterator
from typing import Any, Generic, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Int, Key, PyTree

from ..._checks import check_key
from ..._types import PRNGKey
from ..losses._total import Total

M = TypeVar("M")  # a model


class TrainState(eqx.Module, Generic[M]):
    """Everything that a run needs to continue, as one PyTree.

    Attributes:
        model: the model.
        opt_state: the optimiser's state, for `eqx.filter(model, eqx.is_inexact_array)`.
        key: the run's PRNG key, typed. It stays as it is; step n draws from `fold_in(key, n)`.
        step: the number of steps taken, int32; skipped ones count.
        carry: what the objective carries from batch to batch (the state of a layer, in truncated BPTT), or None.
    """

    model: M
    opt_state: PyTree
    key: Key[Array, ""]
    step: Int[Array, ""]
    carry: PyTree

    def __init__(self, model: M, opt_state: PyTree, key: Key[Array, ""], step: Int[Array, ""], carry: PyTree = None):
        self.model = model
        self.opt_state = opt_state
        self.key = key
        self.step = step
        self.carry = carry


class StepReport(NamedTuple):
    """What one step measured, still on the device.

    Attributes:
        totals: `"loss"`, the objective's own metrics and `"grad_norm"` (before clipping), each a `Total`; `"clipped"`,
            the share of steps whose norm passed a bound, where there is one; and what the optimiser reports itself:
            `"clip_limit"` of `adaptive_clip`, the numbers of `optax.inject_hyperparams` under their names. All zero
            for a skipped step, so that one NaN does not hide the steps it is summed with.
        skipped: int32, 1 if the update was skipped.
    """

    totals: dict[str, Total]
    skipped: Array


def init_train_state(
    model: M, optimiser: optax.GradientTransformation, key: PRNGKey, carry: PyTree = None
) -> TrainState[M]:
    """The state before the first step.

    Every array is copied onto the device, as a step may donate its buffers: the caller's model stays usable,
    and no two leaves share a buffer.

    Arguments:
        model: any PyTree; its floating and complex arrays are trained.
        optimiser: an optax transformation.
        key: a PRNG key, typed (`jax.random.key`) or of the old kind (`jax.random.PRNGKey`).
        carry: what the objective carries from batch to batch, as it is before the first:
            `model.init_state(batch_size)`. Default: nothing is carried.

    Returns:
        A `TrainState` at step 0.

    Raises:
        TypeError: `optimiser` is not an optax transformation, or `key` not one PRNG key.
        ValueError: the model has no array to train.

    ??? example

        ```python
        >>> import equinox as eqx, jax, optax
        >>> from sequinox.train import init_train_state
        >>> model = eqx.nn.Linear(3, 2, key=jax.random.key(0))
        >>> int(init_train_state(model, optax.sgd(0.1), jax.random.key(1)).step)
        0

        ```
    """
    return begin("init_train_state", model, optimiser, key, carry)


def begin(who: str, model: M, optimiser: Any, key: Any, carry: PyTree) -> TrainState[M]:
    """As `init_train_state`, with errors in the name of `who`."""
    key = check_key(key, who)
    if not jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        key = jax.random.wrap_key_data(key)
    check_optimiser(optimiser, who)
    params = eqx.filter(model, eqx.is_inexact_array)
    if not jax.tree.leaves(params):
        raise ValueError(f"{who}: model has no floating or complex array to train")
    with standard_promotion():
        opt_state = optimiser.init(params)
    carry = jax.tree.map(lambda leaf: leaf if eqx.is_array(leaf) else jnp.asarray(leaf), carry)
    state = TrainState(model, opt_state, key, jnp.zeros((), jnp.int32), carry)
    return jax.tree.map(_copy, state)


def check_optimiser(optimiser: Any, who: str) -> None:
    """Refuses what is no optax transformation."""
    if not hasattr(optimiser, "init") or not hasattr(optimiser, "update"):
        raise TypeError(f"{who}: optimiser must be an optax transformation, got {type(optimiser).__name__}")


@contextlib.contextmanager
def standard_promotion() -> Iterator[None]:
    """Optax relies on JAX's implicit promotion, even if the user has turned it off for their own code."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def _copy(leaf: Any) -> Any:
    if not eqx.is_array(leaf):
        return leaf
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jax.random.clone(leaf)
    copied = jnp.array(leaf, copy=True)
    # astype drops a weak type: a step's output has none, so the second step would compile again.
    return copied.astype(copied.dtype)
