"""A layer under test: its data, and one compiled evaluation for all runs."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, PyTree

from .._checks import wide as at_least_single
from .._layer import SequenceLayer
from .._precision import keeps_float32
from .._types import PRNGKey
from ._caches import with_fixed_caches
from ._compare import Comparisons

How = Literal["unroll", "forward", "step"]
STEP = "step"
"""In a list of pieces: one sample through `step`; a number is a stretch of that many samples through `unroll`."""


class Traces:
    """Counts how often `evaluate` is traced. Any two are equal, so that none is a part of what is compiled for."""

    n = 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Traces)

    def __hash__(self) -> int:
        return hash(Traces)


class Result(NamedTuple):
    """What one run gives, and the gradients of a weighted sum of it."""

    ys: Any
    final: PyTree
    d_layer: PyTree
    d_xs: Any
    d_state: PyTree


def _floats(tree: PyTree) -> PyTree:
    return eqx.filter(tree, eqx.is_inexact_array)


def _result(run: Callable, floats: PyTree, d_ys: Array | None, d_final: PyTree) -> Result:
    out, pull, others = jax.vjp(run, floats, has_aux=True)
    ys, final = eqx.combine(out, others)
    kinds = lambda tree: jax.tree.map(lambda a: f"{a.dtype}{list(a.shape)}", tree)
    got, expected = kinds(out), kinds((d_ys, _floats(d_final)))
    if got != expected:
        raise AssertionError(f"a run gives outputs and a state of {got}, where one expects {expected}")
    d_layer, d_xs, d_state = pull((d_ys, _floats(d_final)))[0]
    return Result(ys, final, d_layer, d_xs, d_state)


def outputs_and_gradients(
    layer: SequenceLayer,
    xs: Array,
    state: PyTree,
    mask: Array | None,
    resets: Array | None,
    key: PRNGKey | None,
    d_ys: Array | None,
    d_final: PyTree,
    how: How,
) -> Result:
    floats, rest = eqx.partition((layer, xs, state), eqx.is_inexact_array)

    def run(floats: PyTree) -> tuple[PyTree, PyTree]:
        layer, xs, state = eqx.combine(floats, rest)
        if how == "forward":
            out = layer.forward(xs, mask=mask, resets=resets, key=key), None
        else:
            out = (layer.step if how == "step" else layer.unroll)(xs, state, mask=mask, resets=resets, key=key)
        return eqx.partition(out, eqx.is_inexact_array)

    return _result(run, floats, d_ys, d_final)


@eqx.filter_jit
def evaluate(traces: Traces, *args: Any) -> Result:
    """A run and its gradients, `d_ys` and `d_final` being the weights of the sum; compiled once for a set of shapes."""
    traces.n += 1
    return outputs_and_gradients(*args)


@eqx.filter_jit
def every_state(layer: SequenceLayer, xs: Array, state: PyTree, mask: Array, resets: Array) -> tuple[Array, PyTree]:
    """The outputs of a run, and its states after all samples."""
    return layer.unroll(xs, state, mask=mask, resets=resets, states="every")


@eqx.filter_jit
def evaluate_mapped(
    layer: SequenceLayer, xs: Array, state: PyTree, mask: Array, resets: Array, d_ys: Array, d_final: PyTree
) -> Result:
    """As `evaluate`, with the rows mapped by `jax.vmap`: the weights' gradient is that of the sum over rows."""
    floats, rest = eqx.partition((layer, xs, state), eqx.is_inexact_array)

    def run(floats: PyTree) -> tuple[PyTree, PyTree]:
        layer, xs, state = eqx.combine(floats, rest)
        one = lambda x, s, m, r: layer.unroll(x, s, mask=m, resets=r)
        return eqx.partition(jax.vmap(one)(xs, state, mask, resets), eqx.is_inexact_array)

    return _result(run, floats, d_ys, d_final)


@eqx.filter_jit
def evaluate_rows(
    layer: SequenceLayer, xs: Array, state: PyTree, mask: Array, resets: Array, d_ys: Array, d_final: PyTree
) -> Result:
    """As `evaluate`, mapped over rows as a whole: every row has its own gradient of the weights."""
    one = lambda x, s, m, r, dy, df: outputs_and_gradients(layer, x, s, m, r, None, dy, df, "unroll")
    return jax.vmap(one)(xs, state, mask, resets, d_ys, d_final)


def strict() -> contextlib.ExitStack:
    """No promotion of dtypes or ranks."""
    stack = contextlib.ExitStack()
    stack.enter_context(jax.numpy_dtype_promotion("strict"))
    stack.enter_context(jax.numpy_rank_promotion("raise"))
    return stack


def wide() -> contextlib.AbstractContextManager:
    """64-bit numbers."""
    if hasattr(jax, "enable_x64"):
        return jax.enable_x64(True)
    from jax.experimental import enable_x64  # pyright: ignore[reportAttributeAccessIssue]  # before jax 0.8

    return enable_x64()


def to_numpy(tree: PyTree) -> PyTree:
    """A tree with its arrays as NumPy's."""
    return jax.tree.map(np.asarray, tree)


def to_device(tree: PyTree) -> PyTree:
    """A tree with NumPy's arrays as JAX's. (`jnp.asarray` compiles a program for every shape.)"""
    return jax.tree.map(lambda a: jax.device_put(a) if isinstance(a, np.ndarray) else a, tree)


def cast(tree: PyTree, dtype: Any) -> PyTree:
    """As `sequinox.cast`, but by NumPy, which compiles nothing; arrays of NumPy stay such."""

    def one(a: Any, kept: bool) -> Any:
        to = at_least_single(dtype) if kept else dtype
        if isinstance(a, np.ndarray):
            return a.astype(to) if jnp.issubdtype(a.dtype, jnp.inexact) else a
        return jax.device_put(np.asarray(a).astype(to)) if eqx.is_inexact_array(a) else a

    return jax.tree.map(one, tree, keeps_float32(tree))


@dataclasses.dataclass
class Probe(Comparisons):
    """A layer with samples, states, flags and cotangents to run it on: 7 rows of `n_time` samples each.

    `state` is one that the layer has reached on other samples, another in every row. All is NumPy between the runs, so
    that nothing but the layer is compiled.
    """

    layer: SequenceLayer
    key: PRNGKey | None
    xs: np.ndarray
    state: PyTree
    d_ys: np.ndarray
    d_final: PyTree
    tolerance: float | None
    rebuild: Callable[[], SequenceLayer] | None
    name: str
    traces: Traces = dataclasses.field(default_factory=Traces)

    @property
    def draws(self) -> bool:
        """Whether the layer draws random numbers, so that only runs of the same shapes can be compared."""
        return self.key is not None

    @property
    def n_rows(self) -> int:
        """How many rows there are."""
        return self.xs.shape[0]

    @property
    def n_time(self) -> int:
        """How many samples a row has."""
        return self.xs.shape[1]

    @property
    def masks(self) -> Bool[np.ndarray, "rows time"]:
        """A row each of `MASKED_ROWS`."""
        t, n = np.arange(self.n_time), self.n_time
        rows = (t >= 0, t < (n + 1) // 2, t >= n // 2, t % 2 == 0, t < 0, t == 0, t == n - 1)
        return np.stack(rows)

    @property
    def resets(self) -> Bool[np.ndarray, "rows time"]:
        """A row each of `PACKED_ROWS`."""
        t, n = np.arange(self.n_time), self.n_time
        rows = (t < 0, t == n // 2, t == 0, t % 2 == 1, t >= 0, (t > 0) & (t < n - 1), t % 3 == 0)
        return np.stack(rows)

    def initial(self, n_rows: int | None = None) -> PyTree:
        """The initial state."""
        n_rows = self.n_rows if n_rows is None else n_rows
        return to_numpy(_init_state(self.layer, n_rows, self._stream_dtype))

    def through_start(self, d_initial: PyTree) -> PyTree:
        """The gradient of the weights through the initial state, which may hold some of them; else zeros."""
        if not self._start_holds_weights:
            return jax.tree.map(lambda a: np.zeros(a.shape, a.dtype), _floats(self.layer))
        return to_numpy(_start_gradient(self.layer, to_device(d_initial), self._stream_dtype))

    @functools.cached_property
    def _start_holds_weights(self) -> bool:
        floats, rest = eqx.partition(self.layer, eqx.is_inexact_array)
        start = lambda floats: eqx.combine(floats, rest).init_state(2, self._stream_dtype)
        jaxpr = jax.make_jaxpr(start)(floats).jaxpr
        used = {id(v) for eqn in jaxpr.eqns for v in eqn.invars} | {id(v) for v in jaxpr.outvars}
        return any(id(v) in used for v in jaxpr.invars)

    @property
    def _stream_dtype(self) -> Any:
        return self.layer._stream_dtype(self.xs)

    def zeros(self) -> tuple[np.ndarray, PyTree]:
        """Cotangents of zero."""
        return np.zeros_like(self.d_ys), jax.tree.map(np.zeros_like, self.d_final)

    def run(self, xs: Any = None, state: Any = None, **options: Any) -> Result:
        """A run; what is not given is the probe's own. The cotangents fit themselves to a shorter stretch."""
        layer, how = options.pop("layer", self.layer), options.pop("how", "unroll")
        xs = self.xs if xs is None else xs
        state = self.state if state is None else state
        d_ys, d_final = options.pop("d_ys", None), options.pop("d_final", self.d_final)
        if d_ys is None:
            d_ys = self.d_ys if self.layer.pools else self.d_ys[:, : xs.shape[1]]
        mask, resets = options.pop("mask", None), options.pop("resets", None)
        if options:
            raise TypeError(f"unknown options {sorted(options)}")
        if how == "forward":
            state = d_final = None
        xs, state, mask, resets, d_ys, d_final = to_device((xs, state, mask, resets, d_ys, d_final))
        return to_numpy(evaluate(self.traces, layer, xs, state, mask, resets, self.key, d_ys, d_final, how))

    def full(self, xs: Any = None, state: Any = None, **options: Any) -> Result:
        """A run with a mask and resets, trivial where they are not given: one compilation for all."""
        xs = self.xs if xs is None else xs
        options["mask"] = np.ones(xs.shape[:2], bool) if options.get("mask") is None else options["mask"]
        options["resets"] = np.zeros(xs.shape[:2], bool) if options.get("resets") is None else options["resets"]
        return self.run(xs, state, **options)

    def chain(self, pieces: Sequence[Any], state: Any = None, *, mask: Any = None, resets: Any = None) -> Result:
        """The same run in pieces, each from the state that the one before it left; the gradients by the chain rule."""
        bounds = np.cumsum([0] + [1 if p == STEP else p for p in pieces]).tolist()
        spans = list(zip(bounds[:-1], bounds[1:], pieces, strict=True))
        no_ys, no_final = self.zeros()
        pools = self.layer.pools

        def part(a: Any, start: int, stop: int, piece: Any) -> Any:
            return None if a is None else a[:, start] if piece == STEP else a[:, start:stop]

        def at(span: tuple, state: PyTree, d_ys: Any, d_final: PyTree) -> Result:
            how = "step" if span[2] == STEP else "unroll"
            d_ys = d_ys if pools else part(d_ys, *span)
            flags = {"mask": part(mask, *span), "resets": part(resets, *span)}
            return self.run(part(self.xs, *span), state, how=how, d_ys=d_ys, d_final=d_final, **flags)

        states = [self.state if state is None else state]
        for span in spans:
            states.append(at(span, states[-1], no_ys, no_final).final)
        results, d_final = [], self.d_final
        for i, span in reversed(list(enumerate(spans))):
            d_ys = no_ys if pools and i < len(spans) - 1 else self.d_ys
            results.insert(0, at(span, states[i], d_ys, d_final))
            d_final = results[0].d_state

        def along(parts: list[Any]) -> Any:
            if parts[0] is None:
                return None
            return np.concatenate([p[:, None] if q == STEP else p for p, q in zip(parts, pieces, strict=True)], 1)

        return Result(
            results[-1].ys if pools else along([r.ys for r in results]),
            results[-1].final,
            add(*(r.d_layer for r in results)),
            along([r.d_xs for r in results]),
            d_final,
        )


MASKED_ROWS = ("whole", "right-padded", "left-padded", "with gaps", "empty", "first sample only", "last sample only")
PACKED_ROWS = ("no reset", "one in the middle", "one at the start", "every second", "all", "all but the ends", "thirds")


@eqx.filter_jit
def _init_state(layer: SequenceLayer, batch: Any, dtype: Any) -> PyTree:
    """In one program, instead of one for every shape."""
    return layer.init_state(batch, dtype)


@eqx.filter_jit
def _unroll(layer: SequenceLayer, xs: Any, state: PyTree, key: PRNGKey | None) -> tuple[Array, PyTree]:
    return layer.unroll(xs, state, key=key)


@eqx.filter_jit
def _start_gradient(layer: SequenceLayer, d_initial: PyTree, dtype: Any) -> PyTree:
    """The pull-back of `init_state`."""
    floats, rest = eqx.partition(layer, eqx.is_inexact_array)
    batch = jax.tree.leaves(d_initial)[0].shape[0]
    start = lambda floats: _only_floats(eqx.combine(floats, rest).init_state(batch, dtype))
    return jax.vjp(start, floats)[1](d_initial)[0]


def _only_floats(tree: PyTree) -> PyTree:
    return jax.tree.map(lambda a: a if jnp.issubdtype(a.dtype, jnp.inexact) else None, tree)


def add(*trees: PyTree) -> PyTree:
    """The sum of trees."""
    return jax.tree.map(lambda *leaves: sum(leaves[1:], leaves[0]), *trees)


def make_probe(
    layer: SequenceLayer,
    *,
    key: PRNGKey | None = None,
    n_in: int | None = None,
    n_time: int = 4,
    tolerance: float | None = None,
    rebuild: Callable[[], SequenceLayer] | None = None,
    seed: int = 0,
) -> Probe:
    """Draws the data of a probe."""
    name = type(layer).__name__
    layer, rebuild = with_fixed_caches(layer, rebuild, 3 * n_time)
    random = np.random.default_rng(seed)
    dtype = layer.dtype or np.dtype(np.float32)
    n_rows = len(MASKED_ROWS)

    def samples() -> np.ndarray:
        if layer.reads_tokens:
            return random.integers(0, 2 if n_in is None else n_in, (n_rows, n_time)).astype(np.int32)
        width = layer.n_in or n_in or 3
        return random.normal(size=(n_rows, n_time, width)).astype(dtype)

    def like(tree: PyTree) -> PyTree:
        return jax.tree.map(lambda a: random.normal(size=a.shape).astype(a.dtype), tree)

    xs, before = samples(), samples()
    probe = Probe(layer, key, xs, None, xs, None, tolerance, rebuild, name)
    initial = probe.initial()
    ys, final = eqx.filter_eval_shape(_unroll, layer, xs, initial, key)
    probe.d_ys = like(ys)
    probe.d_final = like(eqx.filter(final, lambda a: jnp.issubdtype(a.dtype, jnp.inexact)))
    mask = np.arange(n_rows)[:, None] >= np.arange(n_time)  # every row has read another number of samples
    probe.state = probe.full(before, initial, mask=mask).final
    return probe
