"""Truncated backpropagation through time: windows of a long row, and a look back into the samples before one."""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import PyTree

from ..._checks import size
from ..._types import PRNGKey
from ..data._axes import check_axes, kinds_of, map_along, size_along
from ._gradients import (
    GradientFunction,
    Gradients,
    Objective,
    add,
    check_objective,
    cut,
    fold_in,
    mean_of,
    nothing_of,
)


class Truncated(GradientFunction):
    """What `truncated_bptt` makes."""

    def __init__(self, objective: Objective, length: int, axes: PyTree):
        super().__init__(objective)
        self.length = length
        self.part_of = "truncated_bptt"
        self.axes = axes

    def __call__(self, model: PyTree, batch: PyTree, key: PRNGKey | None, carry: PyTree = None) -> Gradients:
        """As of any `GradientFunction`; the objective always has a carry, None at the first window if none is given."""
        kinds, time = _along_time("truncated_bptt", batch, self.axes)
        length = self.length
        whole, rest = divmod(time, length)
        one = lambda part, key, carry: self.differentiate(model, part, key, carry, carries=True)
        if time <= length:
            return one(batch, key, carry)

        window = lambda w: one(_stretch(batch, kinds, w * length, length), fold_in(key, w), carry)
        total, first = nothing_of(window), 0
        if carry is None:
            total, carry = add(total, window(0))
            first = 1

        def body(so_far: Any, w: Any) -> tuple[Any, None]:
            total, carry = so_far
            got = one(_stretch(batch, kinds, w * length, length), fold_in(key, w), carry)
            total, after = add(total, got)
            return (total, same_kind("truncated_bptt", after, carry)), None

        (total, carry), _ = jax.lax.scan(body, (total, carry), jnp.arange(first, whole))
        if rest:
            total, carry = add(total, one(_stretch(batch, kinds, whole * length, rest), fold_in(key, whole), carry))
        return mean_of(total, carry, model)


def truncated_bptt(objective: Objective, length: int, *, axes: PyTree = None) -> GradientFunction:
    r"""The gradient of long rows in windows of `length` samples, in the memory of one window.

    The state is carried from window to window with its gradient cut: a loss reaches back to its window's first sample
    and no further. Losses add up over the windows as sums with counts, and there is one update a batch. Memory does not
    grow with the rows' length. With `length` at least that of the rows this is backpropagation through all of time,
    exactly.

    For one update a *window*, and streams that do not fit into memory, no such function is needed: give `fit` the
    windows as batches ([`Windows`][sequinox.train.Windows]) and a `carry`.

    Arguments:
        objective: `(model, batch, key, carry) -> (loss, metrics, carry)`, on any stretch of samples:
            `ys, carry = model.unroll(batch.inputs, carry, mask=batch.mask)`. In the first window `carry` is what
            `make_step`'s state carries, or None, which `unroll` takes for the initial state.
        length: of a window, in samples. The last is shorter if the rows' length is no multiple of it.
        axes: which arrays of a batch have time: one string for all, such as `axes="batch time"`, or a prefix of the
            batch's tree (as `in_axes` of `jax.vmap`) that names the leading axes of the arrays there, `"batch time"`,
            `"batch"`, `"time"` or `""`, such as `axes={"x": "batch time", "static": "batch"}`; None anywhere for what
            the batch says itself. Default: what it says itself. A `SequenceBatch` does (targets of two axes or more by
            its `targets_per`). Of another batch nothing is guessed: an array of two axes may be one vector a row.

    Returns:
        A `GradientFunction`. Arrays with time are cut along it, others go to every window whole. Window `w` gets the
        key `fold_in(key, w)`.

    Raises:
        TypeError: `length` is not an integer, `objective` is not a function, `axes` holds something else than strings;
            the carry changes its structure.
        ValueError: `length` is below 1, or `axes` holds another string; at the first step, arrays of which it is not
            known whether they have time, arrays of different lengths, or `axes` that do not fit the batch.

    Source: [Williams and Peng 1990](https://doi.org/10.1162/neco.1990.2.4.490), truncation at a fixed distance. Windows
    that do not overlap are what [Zaremba et al. 2014](https://arxiv.org/abs/1409.2329), section 4.1, train with.

    ??? example

        ```python
        >>> import jax, jax.numpy as jnp, sequinox as sqx
        >>> from sequinox.train import squared_error, truncated_bptt
        >>> def objective(model, batch, key, carry):
        ...     ys, carry = model.unroll(batch["x"], carry)
        ...     return squared_error(ys, batch["y"]), {}, carry
        >>> model = sqx.GRU(3, 4, jax.random.key(0))
        >>> batch = {"x": jnp.ones((2, 50, 3)), "y": jnp.zeros((2, 50, 4))}
        >>> gradients = truncated_bptt(objective, 20, axes="batch time")  # windows of 20, 20 and 10 samples
        >>> got = gradients(model, batch, None)
        >>> int(got.loss.count), got.carry.shape
        (400, (2, 4))

        ```
    """
    if isinstance(objective, GradientFunction):
        raise TypeError(
            "truncated_bptt: objective must be a plain objective; put it inside: accumulate(truncated_bptt(...), n)"
        )
    length = size(length, "truncated_bptt", "length")
    return Truncated(objective, length, check_axes("truncated_bptt", axes))


def look_back(objective: Objective, n: int, *, axes: PyTree = None) -> Objective:
    r"""An objective whose gradient reaches `n` samples further back than its losses.

    For windows that overlap: each starts with `n` samples that earlier windows have counted; the rest, $k_1$ samples,
    are new. So every loss reaches back at least `n` samples and at most $k_2 = n + k_1$; in windows side by
    side, the first loss reaches back to nothing. `Windows(..., look_back=n)` makes such windows.

    Arguments:
        objective: `(model, batch, key, carry) -> (loss, metrics, carry)`.
        n: how many samples at the start of every window are read for the state alone.
        axes: which arrays of a batch have time, as of [`truncated_bptt`][sequinox.train.truncated_bptt]. Default: what
            the batch says itself, as those of `Windows` do.

    Returns:
        An objective of the same form. The carry it takes and returns is the state before a window's first sample.

    Raises:
        TypeError: `n` is not an integer, `objective` is not a function, `axes` holds something else than strings.
        ValueError: `n` is below 1, or `axes` holds another string; at the first step, a window that is not longer than
            `n`, or a batch whose time is not known, as of `truncated_bptt`.

    Source: [Williams and Peng 1990](https://doi.org/10.1162/neco.1990.2.4.490), BPTT(h; h'): every h' samples a
    derivative over the last h; here $h = k_2$ and $h' = k_1$.

    ??? example

        ```python
        >>> import jax, jax.numpy as jnp, sequinox as sqx
        >>> from sequinox.train import GradientFunction, look_back, squared_error
        >>> def objective(model, batch, key, carry):
        ...     ys, carry = model.unroll(batch["x"], carry)
        ...     return squared_error(ys, batch["y"]), {}, carry
        >>> model = sqx.GRU(3, 4, jax.random.key(0))
        >>> window = {"x": jnp.ones((2, 25, 3)), "y": jnp.zeros((2, 25, 4))}
        >>> gradients = GradientFunction(look_back(objective, 15, axes="batch time"))
        >>> got = gradients(model, window, None, model.init_state(2))
        >>> int(got.loss.count) == 2 * 10 * 4  # the losses of the last 10 samples
        True

        ```
    """
    if not callable(objective) or isinstance(objective, GradientFunction):
        raise TypeError(f"look_back: objective must be a plain objective, got {type(objective).__name__}")
    n, axes = size(n, "look_back", "n"), check_axes("look_back", axes)

    def looking_back(model: PyTree, batch: PyTree, key: PRNGKey | None, carry: PyTree) -> tuple[Any, ...]:
        kinds, time = _along_time("look_back", batch, axes)
        if time <= n:
            raise ValueError(f"look_back: a window must be longer than n = {n} samples, got {time}")
        stride, counted, after = time - n, None, None
        cuts = sorted({0, n, stride, time})
        for i, (start, end) in enumerate(itertools.pairwise(cuts)):
            returned = objective(model, _stretch(batch, kinds, start, end - start), fold_in(key, i), carry)
            loss, metrics, carry = check_objective(returned, True, "look_back")
            if start >= n:
                part = loss, metrics
                counted = part if counted is None else jax.tree.map(lambda a, b: a + b, counted, part)
            if end == stride:  # here the next window begins
                after = cut(carry)
        assert counted is not None
        return *counted, after

    return looking_back


def same_kind(who: str, after: PyTree, before: PyTree) -> PyTree:
    """`after`, if it has the tree, shapes and dtypes of `before`; weak types dropped."""
    if jax.tree.structure(after) != jax.tree.structure(before):
        got, wanted = jax.tree.structure(after), jax.tree.structure(before)
        raise TypeError(f"{who}: the carry must keep its structure, got {got} after {wanted}")
    kind = lambda leaf: f"{jnp.asarray(leaf).dtype}{list(jnp.shape(leaf))}"
    differing = [
        f"carry{jtu.keystr(path)}: {kind(old)} before, {kind(new)} after"
        for (path, old), new in zip(jtu.tree_leaves_with_path(before), jax.tree.leaves(after), strict=True)
        if kind(old) != kind(new)
    ]
    if differing:
        raise TypeError(
            f"{who}: the carry must keep its shapes and dtypes; {'; '.join(differing)} (a cache that grows cannot be "
            "carried: give attention a window, or caches a capacity by with_capacity)"
        )
    is_key = lambda leaf: jnp.issubdtype(jnp.asarray(leaf).dtype, jax.dtypes.prng_key)
    return jax.tree.map(lambda new, old: new if is_key(old) else jnp.asarray(new).astype(old.dtype), after, before)


def _along_time(who: str, batch: Any, axes: Any) -> tuple[PyTree, int]:
    """Which axes the arrays have, and the length of time."""
    kinds = kinds_of(who, batch, axes, time=True)
    time = size_along("time", batch, kinds)
    if time is None:
        raise ValueError(f"{who}: no array of the batch has time, which could be cut")
    return kinds, time


def _stretch(batch: Any, kinds: PyTree, start: Any, length: int) -> Any:
    """`length` samples from `start`, which may be traced."""
    take = lambda leaf, axis: jax.lax.dynamic_slice_in_dim(leaf, start, length, axis)
    return map_along("time", take, batch, kinds)
