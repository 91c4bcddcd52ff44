"""One training step, from a state to a state."""

import warnings
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import PyTree

from ..losses._total import Total
from ._adaptive_clip import AdaptiveClipState
from ._clip import clip_by_norm
from ._gradients import Objective, as_gradient_function, fold_in, kind_of
from ._parallel import DataParallel
from ._skeleton import Skeleton, split
from ._state import M, StepReport, TrainState, check_optimiser, standard_promotion
from ._truncated import same_kind

# From here on a warning: no sensible number of buckets is as large.
_MANY_SHAPES = 32
_NUMBERS = (bool, int, float, complex)
_RESERVED = ("loss", "grad_norm", "clipped", "clip_limit", "skipped", "steps")


def make_step(
    optimiser: optax.GradientTransformation,
    objective: Objective,
    *,
    clip_norm: float | None = None,
    donate: bool = False,
    parallel: DataParallel | None = None,
) -> Callable[[TrainState[M], PyTree], tuple[TrainState[M], StepReport]]:
    """A jitted training step of `fit(model, optimiser, objective)`. It is compiled once as long as batches keep their
    shapes and dtypes.

    A step whose loss or gradient is not finite is skipped: the model and the optimiser's state (its schedules too) stay
    bit for bit, the step is counted, the report says so. What is carried goes to the next batch, but for rows in which
    it is not finite: those keep the state they had.

    Arguments:
        optimiser: an optax transformation. It sees the model's floating and complex arrays only; complex gradients are
            conjugated, as optax expects.
        objective: `objective(model, batch, key) -> (loss, metrics)`, the loss as a `Total` and further metrics as a
            dictionary of them. The gradient is that of `loss.total / loss.count`. Loss and metrics may be plain numbers
            of shape `()` as well: these count once a step, so that what is logged is their mean over steps, whatever
            the steps held. Without metrics the loss alone will do, without random numbers `objective(model, batch)`.
            Where the train state has a `carry` it is `objective(model, batch, key, carry) -> (loss, metrics, carry)`,
            and no gradient flows from one batch into another. Or a `GradientFunction`, as `accumulate` and
            `truncated_bptt` return it; these add up parts of a batch, and refuse plain numbers.
        clip_norm: global norm above which the gradient is scaled down (`clip_by_norm`). Default: none. For a bound that
            follows the gradient's size put `adaptive_clip` before the optimiser, for one on each number `optax.clip`.
        donate: let XLA overwrite the state it is given, which saves a copy of model and optimiser state. The old state
            is unusable afterwards. Default: False, the safe choice in a loop of your own; `fit` turns it on.
        parallel: the devices that share the work. The state must have been placed on them (`place_state`); batches
            are placed here. Default: one device.

    Returns:
        `step(state, batch) -> (state, StepReport)`. Python numbers in a batch become arrays, or each new one would
        compile again.

    Raises:
        TypeError: `optimiser` is not an optax transformation, or the two are swapped; at the first step, the objective
            returns something else.
        ValueError: `clip_norm` is not above 0; at the first step, a metric has a name the step itself uses.

    ??? example

        ```python
        >>> import equinox as eqx, jax, jax.numpy as jnp, optax
        >>> from sequinox.train import init_train_state, make_step, squared_error
        >>> model, optimiser = eqx.nn.Linear(3, 1, key=jax.random.key(0)), optax.adam(1e-2)
        >>> def objective(model, batch, key):
        ...     return squared_error(jax.vmap(model)(batch["x"]), batch["y"]), {}
        >>> step = make_step(optimiser, objective)
        >>> state = init_train_state(model, optimiser, jax.random.key(1))
        >>> state, report = step(state, {"x": jnp.ones((4, 3)), "y": jnp.ones((4, 1))})
        >>> int(state.step), int(report.totals["loss"].count), int(report.skipped)
        (1, 4, 0)

        ```
    """
    compiled = CompiledStep(optimiser, objective, clip_norm=clip_norm, donate=donate, parallel=parallel)

    def step(state: TrainState[M], batch: PyTree) -> tuple[TrainState[M], StepReport]:
        arrays, skeleton = split(state)
        arrays, report = compiled(skeleton, arrays, batch)
        return skeleton.join(arrays), report

    return step


class CompiledStep:
    """A step on the arrays of a state. A loop keeps them flat: to take a module of many layers apart is slow."""

    def __init__(
        self, optimiser: Any, objective: Any, *, clip_norm: Any, donate: bool, parallel: Any, who: str = "make_step"
    ):
        if hasattr(objective, "init") and hasattr(objective, "update"):
            raise TypeError(
                f"{who}: the optimiser goes before the objective: make_step(optimiser, objective), fit(model, "
                "optimiser, objective, ...)"
            )
        check_optimiser(optimiser, who)
        if parallel is not None and not isinstance(parallel, DataParallel):
            raise TypeError(f"{who}: parallel must be a DataParallel, got {type(parallel).__name__}")
        self._gradients = as_gradient_function(objective)
        self._optimiser = optax.with_extra_args_support(optimiser)
        self._max_norm = float("inf") if clip_norm is None else clip_norm
        clip_by_norm(None, self._max_norm)  # a wrong value is reported here, not while tracing
        self._clips = clip_norm is not None
        self._parallel = parallel
        self._shapes: set[Any] = set()
        self._jitted = jax.jit(self._step, static_argnums=0, donate_argnums=1 if donate else ())

    def __call__(
        self, skeleton: Skeleton, arrays: tuple[Any, ...], batch: PyTree
    ) -> tuple[tuple[Any, ...], StepReport]:
        """The next state's arrays, and what was measured."""
        leaves = jax.tree.leaves(batch)
        shapes = tuple(getattr(leaf, "shape", () if isinstance(leaf, _NUMBERS) else None) for leaf in leaves)
        if shapes not in self._shapes:
            self._note_shapes(batch, shapes)
        if () in shapes:  # a Python number would be a constant of the program
            batch = jax.tree.map(lambda leaf: jnp.asarray(leaf) if isinstance(leaf, _NUMBERS) else leaf, batch)
        if self._parallel is not None:
            batch = self._parallel.place_batch(batch)
        return self._jitted(skeleton, arrays, batch)

    def _note_shapes(self, batch: Any, shapes: Any) -> None:
        for path, leaf in jax.tree_util.tree_leaves_with_path(batch):
            is_array = isinstance(leaf, (jax.Array, np.ndarray, np.generic))
            numeric = is_array or isinstance(leaf, _NUMBERS)
            if not numeric or getattr(getattr(leaf, "dtype", None), "kind", "V") in "OSUMm":
                where = f"batch{jax.tree_util.keystr(path)}"
                kind = leaf.dtype if is_array else kind_of(leaf)
                hint = "; give its .numpy()" if not is_array and hasattr(leaf, "numpy") else ""
                raise TypeError(f"{where} must be an array of numbers, got {kind}{hint}")
        self._shapes.add(shapes)
        if len(self._shapes) == _MANY_SHAPES:
            warnings.warn(
                f"make_step: batches have come in {_MANY_SHAPES} different shapes, and each is compiled again. Pad "
                "them to a few lengths (Buckets, pad(length=...))",
                stacklevel=3,
            )

    def _step(self, skeleton: Skeleton, arrays: tuple[Any, ...], batch: PyTree) -> tuple[tuple[Any, ...], StepReport]:
        state: TrainState = skeleton.join(arrays)
        params, static = eqx.partition(state.model, eqx.is_inexact_array)
        key = fold_in(state.key, state.step)
        got = self._gradients(state.model, batch, key, state.carry)
        taken = [name for name in got.metrics if name in _RESERVED]
        if taken:
            raise ValueError(f"objective: the names {taken} are the step's own; rename these metrics")
        mean = jnp.asarray(got.loss.mean)
        grads = jax.tree.map(lambda g: jnp.conj(g) if jnp.iscomplexobj(g) else g, got.grads)
        grads, norm = clip_by_norm(grads, self._max_norm)
        ok = jnp.isfinite(norm) & jnp.isfinite(mean)

        def update() -> PyTree:
            with standard_promotion():
                # What some optimisers also ask for (line searches, schedules that watch the loss).
                loss_at = lambda p: jnp.asarray(
                    self._gradients(eqx.combine(p, static), batch, key, state.carry).loss.mean
                )
                asked = {"value": mean, "grad": grads, "value_fn": loss_at}
                updates, opt_state = self._optimiser.update(grads, state.opt_state, params, **asked)
                new_params = optax.apply_updates(params, updates)
            return _in_types_of(kept, eqx.filter((new_params, opt_state), eqx.is_array))

        # A condition, not a choice between two results: that would write and read both (a third of a step's time if the
        # optimiser is most of it).
        kept, rest = eqx.partition((params, state.opt_state), eqx.is_array)
        new_params, opt_state = eqx.combine(jax.lax.cond(ok, update, lambda: kept), rest)
        new = TrainState(
            eqx.combine(new_params, static), opt_state, state.key, state.step + 1, _carried(got.carry, state.carry)
        )
        one = jnp.ones((), jnp.int32)
        totals = {"loss": got.loss, **got.metrics, "grad_norm": Total(norm, one)}
        if self._clips:
            totals["clipped"] = Total((norm > self._max_norm).astype(jnp.float32), one)
        reported = _optimiser_metrics(opt_state)
        taken = [name for name in got.metrics if name in reported]
        if taken:
            raise ValueError(f"objective: the optimiser reports {taken} itself; rename these metrics")
        totals = {**reported, **totals}
        report = StepReport(
            jax.tree.map(lambda x: jnp.where(ok, x, jnp.zeros_like(x)), totals), (~ok).astype(jnp.int32)
        )
        if self._parallel is not None:  # as they came, or the next step would be compiled for another layout
            new = jax.tree.map(
                lambda leaf, place: jax.lax.with_sharding_constraint(leaf, place) if eqx.is_array(leaf) else leaf,
                new,
                self._parallel.shardings(new),
            )
        after, new_skeleton = split(new)
        if new_skeleton != skeleton:
            raise TypeError("make_step: a step must not change anything of a state but its arrays")
        return after, report


def _carried(after: PyTree, before: PyTree) -> PyTree:
    """The carry for the next batch: the new one, but for rows that are not finite, which keep the old."""
    if before is None:
        return None
    after = same_kind("make_step", after, before)
    leaves = [leaf for leaf in jax.tree.leaves(after) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    if not leaves:
        return after
    rows = {leaf.shape[0] if leaf.ndim else None for leaf in jax.tree.leaves(after)}
    by_row = len(rows) == 1 and None not in rows
    sane = jnp.ones((rows.pop(),) if by_row else (), bool)
    for leaf in leaves:
        sane &= jnp.all(jnp.isfinite(leaf), axis=tuple(range(1, leaf.ndim)) if by_row else None)

    def pick(new: Any, old: Any) -> Any:
        return jnp.where(sane.reshape(sane.shape + (1,) * (new.ndim - sane.ndim)), new, old)

    return jax.tree.map(pick, after, before)


def _optimiser_metrics(opt_state: PyTree) -> dict[str, Total]:
    """Metrics in an optimiser's state: bounds of `adaptive_clip`, numbers of `inject_hyperparams`."""
    one = jnp.ones((), jnp.int32)
    found: dict[str, Total] = {}
    is_clip = lambda node: isinstance(node, AdaptiveClipState)
    has_numbers = lambda node: isinstance(getattr(node, "hyperparams", None), dict)
    for node in jax.tree.leaves(opt_state, is_leaf=lambda node: is_clip(node) or has_numbers(node)):
        if is_clip(node):
            bounded = jnp.isfinite(node.limit)  # there is no bound at first
            found["clipped"] = Total((node.norm > node.limit).astype(jnp.float32), one)
            found["clip_limit"] = Total(jnp.where(bounded, node.limit, 0), bounded.astype(jnp.int32))
        elif has_numbers(node):
            for name, value in node.hyperparams.items():
                number = jnp.asarray(value)
                if number.ndim == 0 and jnp.issubdtype(number.dtype, jnp.floating) and name not in _RESERVED:
                    found[name] = Total(number.astype(jnp.float32), one)
    return found


def _in_types_of(old: PyTree, new: PyTree) -> PyTree:
    """`new` in `old`'s exact types: a weak type or another dtype would compile the next step again."""

    def cast(old_leaf: Any, new_leaf: Any) -> Any:
        is_key = jnp.issubdtype(old_leaf.dtype, jax.dtypes.prng_key)
        return new_leaf if is_key else jnp.asarray(new_leaf).astype(old_leaf.dtype)

    return jax.tree.map(cast, old, new)
