"""From an objective to its gradient: of a batch at once, or of its parts, added up exactly."""

import copy
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from ..._checks import size, wide
from ..._types import PRNGKey
from ..data._axes import check_axes, kinds_of, map_along, size_along
from ..losses._total import Total

Objective: TypeAlias = Callable[..., Any]
"""`(model, batch[, key]) -> loss` or `(loss, metrics)`, or `(model, batch, key, carry) -> (loss, metrics, carry)`."""


class Gradients(NamedTuple):
    """What one batch says of a model.

    Attributes:
        loss: the objective, a sum and a count.
        metrics: the objective's further metrics.
        grads: the gradient of `loss.mean` with respect to the model's floating and complex arrays, as `jax.grad` gives
            it; None in the place of everything else.
        carry: what is carried to the next batch, without a gradient; None where nothing is.
    """

    loss: Total
    metrics: dict[str, Total]
    grads: PyTree
    carry: PyTree


class GradientFunction:
    """An objective with its gradient; what `make_step` takes in the place of an objective.

    [`accumulate`][sequinox.train.accumulate] and [`truncated_bptt`][sequinox.train.truncated_bptt] make others, which
    go through a batch in parts. Each is called as `gradients(model, batch, key, carry=None)` and returns `Gradients`,
    in `make_step` or in a loop of your own, under `jit` or not.

    ??? example

        ```python
        >>> import equinox as eqx, jax, jax.numpy as jnp
        >>> from sequinox.train import GradientFunction, squared_error
        >>> def objective(model, batch, key):
        ...     return squared_error(jax.vmap(model)(batch["x"]), batch["y"]), {}
        >>> model = eqx.nn.Linear(3, 1, use_bias=False, key=jax.random.key(0))
        >>> model = eqx.tree_at(lambda m: m.weight, model, jnp.zeros((1, 3)))
        >>> got = GradientFunction(objective)(model, {"x": jnp.ones((4, 3)), "y": jnp.ones((4, 1))}, None)
        >>> float(got.loss.mean), got.grads.weight.tolist()
        (1.0, [[-2.0, -2.0, -2.0]])

        ```
    """

    part_of: str | None = None  # who calls it with parts of a batch, whose losses must be sums with counts
    axes: PyTree = None  # which arrays of a batch have rows and time, if the batch does not say it

    def __init__(self, objective: Objective):
        """
        Arguments:
            objective: `(model, batch, key) -> (loss, metrics)`, a `Total` and a dictionary of them; with a carry
                `(model, batch, key, carry) -> (loss, metrics, carry)`. The shorter forms are those of `make_step`.

        Raises:
            TypeError: it cannot be called.
        """
        if not callable(objective):
            raise TypeError(f"objective must be a function (model, batch, key), got {type(objective).__name__}")
        self.objective = objective

    def __call__(self, model: PyTree, batch: PyTree, key: PRNGKey | None, carry: PyTree = None) -> Gradients:
        """The loss of a batch and its gradient.

        Arguments:
            model: any PyTree.
            batch: what the objective reads.
            key: handed to the objective.
            carry: from the batch before, handed to the objective as its fourth argument; no gradient flows into it.
                None: the objective is called without.

        Returns:
            `Gradients`.

        Raises:
            TypeError: the objective returns something else than it should.
        """
        return self.differentiate(model, batch, key, carry, carries=carry is not None)

    def differentiate(
        self, model: PyTree, batch: PyTree, key: PRNGKey | None, carry: PyTree, *, carries: bool
    ) -> Gradients:
        """As a call; the objective has a carry if `carries`, even while there is none yet (`carry` None)."""
        params, static = eqx.partition(model, eqx.is_inexact_array)
        carry = cut(carry)

        def mean(params: PyTree) -> tuple[Any, tuple[Any, ...]]:
            arguments = (eqx.combine(params, static), batch, key, carry)[: 4 if carries else 3]
            returned = call_objective(self.objective, *arguments)
            loss, metrics, after = check_objective(returned, carries, self.part_of)
            return jnp.asarray(loss.mean), (loss, metrics, after)

        grads, (loss, metrics, after) = jax.grad(mean, has_aux=True)(params)
        return Gradients(loss, metrics, grads, cut(after))


class Accumulated(GradientFunction):
    """What `accumulate` makes."""

    def __init__(self, objective: Objective, n: int, axes: PyTree):
        self.inner = as_gradient_function(objective)
        self.n = n
        if n > 1:
            self.inner = _within("accumulate", self.inner)
        self.axes = self.inner.axes if axes is None else axes

    def __call__(self, model: PyTree, batch: PyTree, key: PRNGKey | None, carry: PyTree = None) -> Gradients:
        """As of any `GradientFunction`; the number of rows must be a multiple of the number of parts."""
        if self.n == 1:
            return self.inner(model, batch, key, carry)
        kinds = kinds_of("accumulate", batch, self.axes, time=False)
        _check_rows(size_along("batch", batch, kinds), self.n, carry)
        parts = map_along("batch", lambda leaf, _: _interleave(leaf, self.n), batch, kinds)
        carries = jax.tree.map(lambda leaf: _interleave(leaf, self.n), carry)

        def part(i: Any) -> Gradients:
            take = lambda leaf, _=0: jax.lax.dynamic_index_in_dim(leaf, i, 1, keepdims=False)
            part_of_batch = map_along("batch", take, parts, kinds)
            return self.inner(model, part_of_batch, fold_in(key, i), jax.tree.map(take, carries))

        total, carries = jax.lax.scan(lambda so_far, i: add(so_far, part(i)), nothing_of(part), jnp.arange(self.n))
        # `(n, rows, ...)` back to rows as they came.
        carries = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, 1).reshape(-1, *leaf.shape[2:]), carries)
        return mean_of(total, carries, model)


def accumulate(objective: Objective, n: int, *, axes: PyTree = None) -> GradientFunction:
    """The gradient of a batch in `n` parts, one after another: the memory of a part, the gradient of the whole.

    Losses are sums with counts, so the result is the gradient of the batch's mean even if the parts hold unequal
    numbers of real entries: not the mean of their means. Row `i` goes into part `i mod n`. All parts are one compiled
    program.

    Arguments:
        objective: as of `make_step`, or another `GradientFunction`, such as `truncated_bptt(...)`.
        n: number of parts. The rows of a batch must be a multiple of it.
        axes: which arrays of a batch have rows: a prefix of its tree (as `in_axes` of `jax.vmap`) with `"batch"` or
            `"batch time"` where they do, `""` or `"time"` where an array goes to every part whole, such as
            `axes={"x": "batch", "scale": ""}`; None anywhere for what the default says. Default: what `objective` was
            given (`truncated_bptt(..., axes=...)`), else rows are the first axis of every array that has one. The
            arrays of a carry have rows first, always.

    Returns:
        A `GradientFunction`, for `make_step` and `fit` or for a loop of your own. Part `i` gets the key
        `fold_in(key, i)`.

    Raises:
        TypeError: `n` is not an integer, `objective` is not a function, `axes` holds something else than strings.
        ValueError: `n` is below 1, or `axes` holds another string; at the first step, rows that cannot be divided by
            `n`, arrays of different numbers of rows, or `axes` that do not fit the batch.

    ??? example

        ```python
        >>> import equinox as eqx, jax, jax.numpy as jnp
        >>> from sequinox.train import GradientFunction, accumulate, squared_error
        >>> def objective(model, batch, key):
        ...     return squared_error(jax.vmap(model)(batch["x"]), batch["y"], batch["real"]), {}
        >>> model = eqx.nn.Linear(2, 1, key=jax.random.key(0))
        >>> batch = {"x": jnp.arange(8.0).reshape(4, 2), "y": jnp.ones((4, 1)), "real": jnp.arange(4) < 3}
        >>> whole, parts = GradientFunction(objective)(model, batch, None), accumulate(objective, 2)(model, batch, None)
        >>> bool(jnp.allclose(whole.grads.weight, parts.grads.weight)), int(parts.loss.count)
        (True, 3)

        ```
    """
    return Accumulated(objective, size(n, "accumulate", "n"), check_axes("accumulate", axes))


def as_gradient_function(objective: Objective) -> GradientFunction:
    """`objective` with its gradient, unless it has one already."""
    return objective if isinstance(objective, GradientFunction) else GradientFunction(objective)


def _within(who: str, gradients: GradientFunction) -> GradientFunction:
    """A copy that knows that it is called with parts of a batch, by `who`."""
    gradients = copy.copy(gradients)
    gradients.part_of = gradients.part_of or who
    if isinstance(gradients, Accumulated):
        gradients.inner = _within(who, gradients.inner)
    return gradients


def cut(tree: PyTree) -> PyTree:
    """A state through which no gradient flows."""
    return jax.tree.map(lambda leaf: jax.lax.stop_gradient(leaf) if eqx.is_array(leaf) else leaf, tree)


def fold_in(key: PRNGKey | None, i: Any) -> PRNGKey | None:
    """`jax.random.fold_in`; None without a key."""
    return None if key is None else jax.random.fold_in(key, i)


class Sum(NamedTuple):
    """Gradients so far, each weighted with the count of its loss."""

    loss: Total
    metrics: dict[str, Total]
    weighted: PyTree


def nothing_of(part: Callable[[Any], Gradients]) -> Sum:
    """The empty sum, in the shapes and dtypes of a part's gradients."""
    kind = jax.eval_shape(part, jax.ShapeDtypeStruct((), jnp.int32))
    zeros = lambda leaf: jnp.zeros(leaf.shape, leaf.dtype)
    # Half precision would lose small parts.
    weighted = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, wide(leaf.dtype)), kind.grads)
    return Sum(jax.tree.map(zeros, kind.loss), jax.tree.map(zeros, kind.metrics), weighted)


def add(so_far: Sum, got: Gradients) -> tuple[Sum, PyTree]:
    """The sum with one more part, and that part's carry: what the body of a scan returns."""

    def weigh(total: Any, grad: Any) -> Any:
        return total + grad.astype(total.dtype) * jnp.asarray(got.loss.count).astype(total.dtype)

    loss, metrics = jax.tree.map(lambda a, b: a + b, (so_far.loss, so_far.metrics), (got.loss, got.metrics))
    return Sum(loss, metrics, jax.tree.map(weigh, so_far.weighted, got.grads)), got.carry


def mean_of(total: Sum, carry: PyTree, model: PyTree) -> Gradients:
    """The gradient of the whole mean; zero where nothing counts."""
    count = jnp.asarray(total.loss.count)
    divisor = jnp.where(count == 0, 1, count)

    def divide(weighted: Any, param: Any) -> Any:
        return (weighted / divisor.astype(weighted.dtype)).astype(param.dtype)

    params = eqx.filter(model, eqx.is_inexact_array)
    return Gradients(total.loss, total.metrics, jax.tree.map(divide, total.weighted, params), carry)


def call_objective(objective: Objective, model: PyTree, batch: PyTree, key: PRNGKey | None, *carry: PyTree) -> Any:
    """Calls an objective, without the key if it takes only a model and a batch."""
    arguments = (model, batch, key, *carry)
    if not carry and not _takes_key(objective) and _takes(objective, 2):
        return objective(model, batch)
    try:
        inspect.signature(objective).bind(*arguments)
    except TypeError as error:  # Python's own message would not mention the carry
        wanted = (
            "(model, batch, key, carry), as there is a carry"
            if carry
            else "(model, batch, key) or (model, batch), as there is no carry"
        )
        raise TypeError(f"objective must take {wanted}: {error}") from None
    except ValueError:  # a function without a signature
        pass
    return objective(*arguments)


def _takes_key(objective: Objective) -> bool:
    """Whether it takes three arguments, the third of which is no option of its own, such as `scale=2.0`."""
    if not _takes(objective, 3):
        return False
    try:
        third = [*inspect.signature(objective).parameters.values()][2:3]
    except ValueError:
        return True
    return all(p.name == "key" or p.kind is p.KEYWORD_ONLY or p.default in (p.empty, None) for p in third)


def _takes(objective: Objective, n: int) -> bool:
    try:
        inspect.signature(objective).bind(*range(n))
    except TypeError:
        return False
    except ValueError:
        return n > 2
    return True


def check_objective(returned: Any, carries: bool, part_of: str | None = None) -> tuple[Total, dict[str, Total], PyTree]:
    """What an objective returned, checked, its numbers as arrays. `part_of`: who sums it over parts of a batch."""
    n = 3 if carries else 2
    form = "objective must return " + ("(loss, metrics, carry)" if carries else "(loss, metrics) or the loss")
    form += ", the loss as a number or as Total(sum, count), and metrics as a dict of these"
    if not carries and (isinstance(returned, Total) or not isinstance(returned, (tuple, list, dict, type(None)))):
        returned = returned, {}
    if isinstance(returned, Total) or not isinstance(returned, tuple):
        raise TypeError(f"{form}; got {kind_of(returned)}")
    if len(returned) != n:
        hint = " (a carry is returned, but none was given: pass carry=)" if not carries and len(returned) == 3 else ""
        raise TypeError(f"{form}; got a tuple of {len(returned)}{hint}")
    loss, metrics = returned[:2]
    if not isinstance(metrics, dict):
        raise TypeError(f"{form}; its second is {kind_of(metrics)}")
    for name in metrics:
        if not isinstance(name, str):
            raise TypeError(f"{form}; metrics must have names, got {name!r}")
    loss = _as_total("the loss", loss, form, part_of)
    metrics = {name: _as_total(f"metric {name!r}", value, form, part_of) for name, value in metrics.items()}
    dtype = loss.total.dtype
    if not jnp.issubdtype(dtype, jnp.floating):
        raise TypeError(f"{form}; the loss must be a floating number, got {dtype}, which has no derivative")
    return loss, metrics, returned[2] if carries else None


def _as_total(what: str, value: Any, form: str, part_of: str | None) -> Total:
    """A sum and its count, as arrays; a plain number counts once."""
    plain = not isinstance(value, Total)
    numbers = {"": value} if plain else {" total": value.total, " count": value.count}
    for name, number in numbers.items():
        if not isinstance(number, (bool, int, float, np.generic, np.ndarray, jax.Array)):
            raise TypeError(f"{form}; {what}{name} is {kind_of(number)}")
        if jnp.shape(number):
            hint = f": give its mean, or Total({what.split()[-1]}.sum(), how_many)" if plain else ""
            raise TypeError(f"{form}; {what}{name} has shape {jnp.shape(number)}, not (){hint}")
    if plain and part_of is not None:
        raise TypeError(
            f"{part_of}: {what} is a plain number, and parts of a batch need Total(sum, count) (from sequinox.train): "
            "they may hold unequal numbers of entries, and the mean of their means is not the mean of all"
        )

    def as_number(x: Any) -> Any:  # True counts as 1; a sum in half precision would stop growing
        if x.dtype == bool:
            return x.astype(jnp.float32)
        return x.astype(wide(x.dtype)) if jnp.issubdtype(x.dtype, jnp.floating) else x

    return jax.tree.map(lambda x: as_number(jnp.asarray(x)), Total(value, 1) if plain else value)


def kind_of(value: Any) -> str:
    """What kind of thing came, for an error."""
    if isinstance(value, (np.ndarray, jax.Array)):
        return f"an array of shape {value.shape}"
    kind = type(value)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__.partition('.')[0]}.{kind.__name__}"


def _check_rows(rows: int | None, n: int, carry: PyTree) -> None:
    if rows is None:
        raise ValueError(f"accumulate: no array of the batch has rows, which {n} parts could share")
    if rows % n:
        raise ValueError(f"accumulate: the batch has {rows} rows, which {n} parts do not divide")
    for path, leaf in jax.tree_util.tree_leaves_with_path(carry):
        if jnp.shape(leaf)[:1] != (rows,):
            raise ValueError(
                f"accumulate: carry{jax.tree_util.keystr(path)} must have the {rows} rows of the batch first, got "
                f"shape {jnp.shape(leaf)}"
            )


def _interleave(leaf: Any, n: int) -> Any:
    """`(rows, ...)` as `(rows / n, n, ...)`: a part takes every n-th row, so that each device has its share of each."""
    leaf = jnp.asarray(leaf)
    return leaf.reshape(leaf.shape[0] // n, n, *leaf.shape[1:])
