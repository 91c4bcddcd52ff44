"""The scan that all diagonal linear recurrences share."""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from .._checks import check_array, check_flags, size
from .._types import ArrayLike

Method: TypeAlias = Literal["sequential", "chunked", "associative"] | None
"""How a diagonal recurrence is run: see [`diagonal_scan`][sequinox.recurrent.diagonal_scan]."""

CHUNK = 256
"""Steps in a chunk, if nobody says otherwise."""


class ComplexPair(NamedTuple):
    """Complex numbers as two real arrays of one shape. A plain pair `(re, im)` serves as well."""

    re: Array
    im: Array


Numbers: TypeAlias = tuple[Array, ...]
"""Real numbers, one array, or complex ones, two."""


class _Steps(NamedTuple):
    """The maps from one state to the next: multiplied, held at a masked step, nothing at a reset."""

    a: Numbers  # of the shape of b, or with axes of length 1 before the last
    holds: Array | None  # "*batch time 1": the step is masked
    fresh: Array | None  # "*batch time 1": the step is real, and starts afresh

    def __call__(self, h: Numbers) -> Numbers:
        still = _either(self.holds, self.fresh)
        # Zeros in place of what is not multiplied, so that nothing in it reaches the derivative of `a`.
        after = times(self.a, h if still is None else tuple(jnp.where(still, 0, v) for v in h))
        if self.holds is None:
            return after
        return tuple(jnp.where(self.holds, v, n) for v, n in zip(h, after, strict=True))

    def at(self, t: Any) -> "_Steps":
        """The one at `t`, its time axis of length 1."""
        return jax.tree.map(lambda v: v if v.shape[-2] == 1 else lax.dynamic_slice_in_dim(v, t, 1, v.ndim - 2), self)

    def turned(self) -> "_Steps":
        """Each transposed: the product with the conjugate."""
        return self._replace(a=(self.a[0], *(-im for im in self.a[1:])))


def diagonal_scan(
    a: ArrayLike | tuple[ArrayLike, ArrayLike],
    b: ArrayLike | tuple[ArrayLike, ArrayLike],
    h0: ArrayLike | tuple[ArrayLike, ArrayLike] | None = None,
    *,
    mask: ArrayLike | None = None,
    resets: ArrayLike | None = None,
    method: Method = None,
    chunk: int = CHUNK,
) -> tuple[Any, Any]:
    r"""All states of a diagonal linear recurrence.

    $$
    h_t = a_t \odot h_{t-1} + b_t
    $$

    Three methods give the same numbers up to rounding. `"sequential"` goes step by step. `"associative"` combines
    steps in a tree, $2 \log_2 T$ rounds over the whole length. `"chunked"` goes chunk by chunk, each combined in a
    tree. None takes the sequential one on a CPU, where it was the fastest at every size that we measured, and
    elsewhere the associative one up to four chunks and the chunked one beyond; that choice is not measured. A tree
    multiplies coefficients with each other, and their rounding errors: of a mode with a memory of 10,000 steps the
    states were wrong by up to 2e-5 of the largest in float32, step by step by 3e-6; at 100 steps there is no
    difference. For $|a| \le 1$ nothing can overflow; for growing modes take `"sequential"`.

    The derivative is the same recurrence, run backwards: $\lambda_t = \bar h_t + a_{t+1} \odot \lambda_{t+1}$, with
    $\bar b_t = \lambda_t$ and $\bar a_t = \lambda_t \odot h_{t-1}$ (complex: conjugated). It keeps `a` and the states,
    whatever the method. Forward mode and higher derivatives work as well.

    Arguments:
        a: coefficients, `"*batch time n_hidden"`, or `" n_hidden"` if they are the same at all times. For complex ones
            give [`ComplexPair(re, im)`][sequinox.recurrent.ComplexPair] here, in `b` and in `h0`.
        b: what is added, `"*batch time n_hidden"`.
        h0: the state before the first step, `"*batch n_hidden"`; default: zeros.
        mask: bool `"*batch time"`; where it is False, the state is held, bit by bit, whatever is in `a` and `b`.
        resets: bool `"*batch time"`; where it is True, the step starts from zeros, whatever the state is. A reset on a
            masked step does nothing.
        method: `"sequential"`, `"chunked"`, `"associative"` or None (chosen).
        chunk: number of steps in a chunk.

    Returns:
        The states after every step, `"*batch time n_hidden"`, and the last one, `"*batch n_hidden"` (`h0` for a time of
        length 0).

    Raises:
        TypeError, ValueError: for arrays whose dtypes or shapes do not fit together, or an unknown method.

    ??? example

        ```python
        >>> import jax.numpy as jnp, sequinox as sqx
        >>> hs, last = sqx.diagonal_scan(jnp.full(1, 0.5), jnp.ones((4, 1)))
        >>> hs[:, 0].tolist(), last.tolist()
        ([1.0, 1.5, 1.75, 1.875], [1.875])

        ```
    """
    factors, terms, first, pair = _check_numbers(a, b, h0)
    shape = terms[0].shape[:-1]
    mask = check_flags(mask, shape, "diagonal_scan", "mask")
    resets = check_flags(resets, shape, "diagonal_scan", "resets")
    method = check_method(method, "diagonal_scan")
    hs, last = scan_numbers(factors, terms, first, mask, resets, method, size(chunk, "diagonal_scan", "chunk"))
    return (ComplexPair(*hs), ComplexPair(*last)) if pair else (hs[0], last[0])


@partial(jax.jit, static_argnames=("method", "chunk"))
def scan_numbers(
    a: Numbers, b: Numbers, h0: Numbers, mask: Array | None, resets: Array | None, method: Method, chunk: int
) -> tuple[Numbers, Numbers]:
    """What `diagonal_scan` does, on lists of arrays that are checked."""
    n_time = b[0].shape[-2]
    if n_time == 0:
        return b, h0
    column = lambda flags: None if flags is None else jnp.expand_dims(flags, -1)
    holds = None if mask is None else column(~mask)
    fresh = column(resets if mask is None or resets is None else resets & mask)
    still = _either(holds, fresh)
    if still is not None and a[0].ndim == b[0].ndim:  # what is there is not read, nor multiplied by zero
        a = tuple(jnp.where(still, 0, v) for v in a)
    if a[0].ndim != b[0].ndim:
        a = tuple(v.reshape((1,) * (b[0].ndim - 1) + v.shape) for v in a)
    if holds is not None:  # x + (-0.0) is x for every x, -0.0 included
        b = tuple(jnp.where(holds, -0.0, v) for v in b)
    steps = _Steps(a, holds, fresh)

    # The first state, which takes up h0; the others solve h_t - step(h_{t-1}) = b_t, linear equations.
    h0 = tuple(jnp.expand_dims(v, -2) for v in h0)
    start = tuple(n + v[..., :1, :] for n, v in zip(steps.at(0)(h0), b, strict=True))
    b = tuple(jnp.concatenate([s, v[..., 1:, :]], -2) for s, v in zip(start, b, strict=True))

    if method is None:
        method = "associative" if n_time <= 4 * chunk else "chunked"
        method = "sequential" if jax.default_backend() == "cpu" else method
    run = _METHODS[method]

    def residual(hs: Numbers) -> Numbers:
        before = tuple(jnp.concatenate([jnp.zeros_like(h[..., :1, :]), h[..., :-1, :]], -2) for h in hs)
        return tuple(h - n for h, n in zip(hs, steps(before), strict=True))

    hs = lax.custom_linear_solve(
        residual,
        b,
        solve=lambda _, b: run(steps, b, chunk, False),
        transpose_solve=lambda _, b: run(steps.turned(), b, chunk, True),
    )
    return hs, tuple(h[..., -1, :] for h in hs)


# ---- the three methods: h_t = step_t(h_{t-1}) + b_t, or backwards h_t = step_{t+1}(h_{t+1}) + b_t ------------------


def _sequential(steps: _Steps, b: Numbers, chunk: int, backwards: bool) -> Numbers:
    """One loop that writes each state over its `b`.

    Not `lax.scan`, which copies its operands to put time first: 4 ms against 21 ms for 32 rows, 1,000 steps and a
    width of 128; 35 ms in a tree, 43 ms by chunks (float32, two CPU cores, jax 0.10.2).
    """
    del chunk
    n_time = b[0].shape[-2]

    def body(i: Any, carry: tuple[Numbers, Numbers]) -> tuple[Numbers, Numbers]:
        h, hs = carry
        t = n_time - 1 - i if backwards else i
        here = (lax.dynamic_slice_in_dim(v, t, 1, v.ndim - 2) for v in hs)
        h = tuple(n + v for n, v in zip(steps.at(t + 1 if backwards else t)(h), here, strict=True))
        hs = tuple(lax.dynamic_update_slice_in_dim(v, n, t, v.ndim - 2) for v, n in zip(hs, h, strict=True))
        return h, hs

    first = tuple(v[..., -1:, :] if backwards else v[..., :1, :] for v in b)
    return lax.fori_loop(1, n_time, body, (first, b))[1]


def _associative(steps: _Steps, b: Numbers, chunk: int, backwards: bool) -> Numbers:
    """All steps combined in a tree."""
    del chunk
    _, hs, _ = _tree(_elements(steps, b, backwards), backwards)
    return hs if backwards else _held(hs, b, steps.holds)


def _chunked(steps: _Steps, b: Numbers, chunk: int, backwards: bool) -> Numbers:
    """One chunk after the other, the last one shorter."""
    elements = _elements(steps, b, backwards)
    n_time = b[0].shape[-2]
    whole, rest = divmod(n_time, chunk)

    def advance(start: Any, length: int, h: Numbers, hs: Numbers) -> tuple[Numbers, Numbers]:
        part = jax.tree.map(lambda v: lax.dynamic_slice_in_dim(v, start, length, v.ndim - 2), elements)
        a, b, fresh = _tree(part, backwards)
        new = tuple(n + v for n, v in zip(times(a, h), b, strict=True))
        if fresh is not None:
            new = tuple(jnp.where(fresh, v, n) for v, n in zip(b, new, strict=True))
        hs = tuple(lax.dynamic_update_slice_in_dim(v, n, start, v.ndim - 2) for v, n in zip(hs, new, strict=True))
        return tuple(n[..., :1, :] if backwards else n[..., -1:, :] for n in new), hs

    def body(i: Any, carry: tuple[Numbers, Numbers]) -> tuple[Numbers, Numbers]:
        return advance(n_time - (i + 1) * chunk if backwards else i * chunk, chunk, *carry)

    carry = tuple(jnp.zeros_like(v[..., :1, :]) for v in b), b
    if whole:
        carry = lax.fori_loop(0, whole, body, carry)
    if rest:
        carry = advance(0 if backwards else n_time - rest, rest, *carry)
    return carry[1] if backwards else _held(carry[1], b, steps.holds)


_METHODS: dict[str, Callable[[_Steps, Numbers, int, bool], Numbers]] = {
    "sequential": _sequential,
    "chunked": _chunked,
    "associative": _associative,
}


def _elements(steps: _Steps, b: Numbers, backwards: bool) -> tuple[Numbers, Numbers, Array | None]:
    """The maps `h -> a h + b` of every step, and where nothing of `h` is left."""
    a, fresh = steps.a, steps.fresh
    if steps.holds is not None:  # the identity
        a = tuple(jnp.where(steps.holds, c, v) for c, v in zip((1, 0), a, strict=False))
    a = tuple(jnp.broadcast_to(v, b[0].shape) for v in a)
    if backwards:  # from the step after, and nothing from after the last
        a, fresh = jax.tree.map(
            lambda v: jnp.concatenate([v[..., 1:, :], jnp.zeros_like(v[..., :1, :])], -2), (a, fresh)
        )
    return a, b, fresh


def _tree(elements: tuple[Numbers, Numbers, Array | None], backwards: bool) -> tuple[Numbers, Numbers, Array | None]:
    return lax.associative_scan(_compose, elements, reverse=backwards, axis=elements[1][0].ndim - 2)


def _compose(one: tuple, two: tuple) -> tuple[Numbers, Numbers, Array | None]:
    """Two maps, one after the other."""
    (a1, b1, fresh1), (a2, b2, fresh2) = one, two
    b = tuple(n + v for n, v in zip(times(a2, b1), b2, strict=True))
    if fresh2 is None:
        return times(a2, a1), b, None
    return times(a2, a1), tuple(jnp.where(fresh2, v, n) for v, n in zip(b2, b, strict=True)), fresh1 | fresh2


def _held(hs: Numbers, b: Numbers, holds: Array | None) -> Numbers:
    """At every step the state of the latest real one: a tree rounds differently at different places.

    The first state is taken as it came, since a tree does not keep the sign of a zero.
    """
    if holds is None:
        return hs
    axis = holds.ndim - 2
    place = lax.cummax(jnp.where(holds, 0, lax.broadcasted_iota(jnp.int32, holds.shape, axis)), axis)
    latest = (jnp.take_along_axis(h, place, axis) for h in hs)
    return tuple(jnp.where(place == 0, v[..., :1, :], h) for v, h in zip(b, latest, strict=True))


def times(a: Numbers, h: Numbers) -> Numbers:
    """The product of real or of complex numbers."""
    if len(a) == 1:
        return (a[0] * h[0],)
    return a[0] * h[0] - a[1] * h[1], a[0] * h[1] + a[1] * h[0]


def _either(one: Array | None, two: Array | None) -> Array | None:
    if one is None or two is None:
        return two if one is None else one
    return one | two


# ---- checks ----------------------------------------------------------------------------------------------------------


def check_method(method: Any, who: str) -> Method:
    """`method` of a constructor, checked."""
    if method not in (*_METHODS, None):
        raise ValueError(f'{who}: method must be "sequential", "chunked", "associative" or None, got {method!r}')
    return method


def _check_numbers(a: Any, b: Any, h0: Any) -> tuple[Numbers, Numbers, Numbers, bool]:
    who = "diagonal_scan"
    pair = isinstance(b, tuple)
    a, b = _parts(a, "a", pair), _parts(b, "b", pair)
    shape, dtype = b[0].shape, b[0].dtype
    if len(shape) < 2:
        raise ValueError(f"{who}: b must have shape (*batch, time, n_hidden), got {shape}")
    if h0 is None:
        h0 = tuple(jnp.zeros((*shape[:-2], shape[-1]), dtype) for _ in b)
    h0 = _parts(h0, "h0", pair)
    one = a[0].shape == shape[-1:]
    expected = {"a": shape[-1:] if one else shape, "b": shape, "h0": (*shape[:-2], shape[-1])}
    for name, parts in (("a", a), ("b", b), ("h0", h0)):
        for v in parts:
            if v.dtype != dtype:
                raise TypeError(f"{who}: {name} must have the dtype of b, {dtype}, got {v.dtype}")
            if v.shape != expected[name]:
                also = f" or {shape[-1:]}" if name == "a" else ""
                raise ValueError(f"{who}: {name} must have shape {expected[name]}{also}, to fit b, got {v.shape}")
    return a, b, h0, pair


def _parts(value: Any, name: str, pair: bool) -> Numbers:
    parts = value if isinstance(value, tuple) else (value,)
    if len(parts) != (2 if pair else 1):
        what = "a pair (re, im), as b is" if pair else "an array, as b is"
        what = "an array or a pair (re, im)" if name == "b" else what
        shown = f"a tuple of {len(parts)}" if isinstance(value, tuple) else type(value).__name__
        raise TypeError(f"diagonal_scan: {name} must be {what}, got {shown}")
    for v in parts:
        check_array(v, "diagonal_scan", name)
        if not jnp.issubdtype(v.dtype, jnp.floating):
            raise TypeError(f"diagonal_scan: {name} must be of a real floating dtype, got {v.dtype}")
    return tuple(map(jnp.asarray, parts))
