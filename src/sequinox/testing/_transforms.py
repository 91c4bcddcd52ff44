"""The promises about rows, JAX's transformations, dtypes, compilation and training."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import PyTree

from .._layer import SequenceLayer
from ._compare import TOLERANCES
from ._probe import (
    Probe,
    Result,
    _init_state,
    _only_floats,
    add,
    cast,
    evaluate_mapped,
    evaluate_rows,
    to_device,
    to_numpy,
    wide,
)


def rows(p: Probe) -> None:
    """Promise 5: a batch equals its rows one by one, and no row depends on another."""
    flags = {"mask": p.masks, "resets": np.roll(p.resets, 2, 0)}
    batch = p.full(**flags)
    if not p.draws:
        d_layers = []
        for i in range(p.n_rows):
            one = {
                "mask": flags["mask"][i],
                "resets": flags["resets"][i],
                "d_ys": p.d_ys[i],
                "d_final": _row(p.d_final, i),
            }
            got = p.run(p.xs[i], _row(p.state, i), **one)
            for name in ("ys", "final", "d_xs", "d_state"):
                p.close(getattr(got, name), _row(getattr(batch, name), i), f"row {i} alone and in a batch: {name}")
            d_layers.append(got.d_layer)
        p.close(add(*d_layers), batch.d_layer, "rows alone and in a batch: gradient of the weights")
    clean = p.full()
    for i in range(0, p.n_rows, 2):
        others = np.arange(p.n_rows) != i
        xs = p.xs.copy()
        xs[i] = 1 if p.layer.reads_tokens else np.nan
        got = p.full(xs)
        for name in ("ys", "final", "d_xs", "d_state"):
            case = f"other content in row {i}: {name} of the other rows"
            p.identical(getattr(got, name), getattr(clean, name), case, rows=others)


def transforms(p: Probe) -> None:
    """Promise 8: jit equals eager, `jax.vmap` equals batch axes, and batches nest."""
    flags = {"mask": p.masks, "resets": np.roll(p.resets, 4, 0)}
    batch = p.full(**flags)
    xs, state, mask, resets, d_ys, d_final = to_device((p.xs, p.state, *flags.values(), p.d_ys, p.d_final))
    ys, final = to_numpy(p.layer.unroll(xs, state, mask=mask, resets=resets, key=p.key))
    p.close(ys, batch.ys, "without and with jit: outputs")
    p.close(final, batch.final, "without and with jit: state")
    if p.draws:
        return
    mapped = to_numpy(evaluate_mapped(p.layer, xs, state, mask, resets, d_ys, d_final))
    p.close(mapped, batch, "vmap over rows and a batch axis")
    each = to_numpy(evaluate_rows(p.layer, xs, state, mask, resets, d_ys, d_final))
    p.close(each._replace(d_layer=None), batch._replace(d_layer=None), "vmap of value and gradient, and a batch axis")
    for i in range(0, p.n_rows, 3):
        alone = p.full(**flags, d_ys=_only_rows([i], p.d_ys), d_final=_only_rows([i], p.d_final)).d_layer
        p.close(_row(each.d_layer, i), alone, f"vmap of gradient: row {i}'s gradient of the weights")
    total = jax.tree.map(lambda a: a.sum(0), each.d_layer)
    p.close(total, batch.d_layer, "vmap of gradient: the sum of the rows' gradients of the weights")
    nest = lambda tree: jax.tree.map(lambda a: a[:6].reshape(2, 3, *a.shape[1:]), tree)
    nested = p.run(*map(nest, (p.xs, p.state)), d_ys=nest(p.d_ys), d_final=nest(p.d_final), **nest(flags))
    flat = p.full(**flags, d_ys=_only_rows(range(6), p.d_ys), d_final=_only_rows(range(6), p.d_final))
    expected = jax.tree.map(nest, flat._replace(d_layer=None))._replace(d_layer=flat.d_layer)
    p.close(nested, expected, "batch axes (2, 3) and one of 6")


def _row(tree: PyTree, i: int) -> PyTree:
    return jax.tree.map(lambda a: a[i], tree)


def _only_rows(rows: Any, tree: PyTree) -> PyTree:
    """A tree with zeros in the other rows."""

    def only(a: np.ndarray) -> np.ndarray:
        kept = np.zeros_like(a)
        kept[list(rows)] = a[list(rows)]
        return kept

    return jax.tree.map(only, tree)


def dtypes(p: Probe) -> None:
    """Promise 8: the dtype that goes in comes out, and the state keeps its own."""
    if p.draws:
        return
    with wide():
        exact = _in_dtype(p, jnp.float64)
    for dtype in (jnp.float32, jnp.bfloat16, jnp.float16):
        got = _in_dtype(p, dtype)
        name, limit = jnp.dtype(dtype).name, TOLERANCES[jnp.dtype(dtype).name]
        p.finite(got, name)
        for what in ("ys", "final") if dtype != jnp.float32 else Result._fields:
            a, b = (jax.tree.map(lambda v: np.asarray(v, np.float64), getattr(r, what)) for r in (got, exact))
            p.close(a, b, f"{name} against float64: {what}", tolerance=limit)


def _in_dtype(p: Probe, dtype: Any) -> Result:
    """A run in a dtype, from the initial state; the dtypes of outputs and states are checked."""
    layer, xs = cast(p.layer, dtype), cast(p.xs, dtype)
    stream, name = layer._stream_dtype(xs), jnp.dtype(dtype).name
    initial = to_numpy(_init_state(layer, p.n_rows, stream))
    d_final = jax.tree.map(lambda d, a: d.astype(a.dtype), p.d_final, _only_floats(initial))
    flags = {"mask": p.masks, "resets": np.roll(p.resets, 2, 0)}
    got = p.full(xs, initial, layer=layer, d_ys=p.d_ys.astype(stream), d_final=d_final, **flags)
    p.same_shapes(got.final, initial, f"{name}: the state after unroll")
    if got.ys.dtype != stream:
        p.fail(f"{name} samples give outputs of {got.ys.dtype}")
    if p.layer.streams:
        for n in ({}, {k: f[:, 0] for k, f in flags.items()}, None):
            one = n is None  # a single stream
            x, state = (xs[0, 0], _row(initial, 0)) if one else (xs[:, 0], initial)
            p.same_shapes(eqx.filter_eval_shape(_init_state, layer, () if one else p.n_rows, stream), state, name)
            x, state, n = to_device((x, state, n))
            y, after = eqx.filter_eval_shape(lambda la, x, s, n: la.step(x, s, **n), layer, x, state, n or {})
            p.same_shapes(after, state, f"{name}: the state after step")
            if y.dtype != stream:
                p.fail(f"{name} samples give outputs of {y.dtype} in step")
    return got


def compilation(p: Probe) -> None:
    """Promise 8: one trace for any lengths, any second call, any layer of the same configuration."""
    before = p.traces.n
    p.full()
    for shift in range(p.n_rows):
        p.full(mask=np.roll(p.masks, shift, 0), resets=p.resets)
    if p.traces.n > before + 1:
        p.fail(f"{p.traces.n - before} traces for rows of other lengths and resets")
    before = p.traces.n
    p.full(layer=jax.tree.map(lambda a: a, p.layer))
    if p.rebuild is not None:
        p.full(layer=p.rebuild())
    if p.traces.n > before:
        p.fail("a layer of the same configuration is traced again: it holds something that is not equal to its like")


@eqx.filter_jit
def _stepped(layer: SequenceLayer, gradient: PyTree) -> SequenceLayer:
    """The layer after an optimiser's step."""
    optimiser = optax.sgd(1e-2, momentum=0.9)
    floats = eqx.filter(layer, eqx.is_inexact_array)
    updates, _ = optimiser.update(gradient, optimiser.init(floats), floats)
    return eqx.apply_updates(layer, updates)


def training(p: Probe) -> None:
    """Promise 10: every trainable array receives a gradient, and all else survives an optimiser step."""
    gradient = p.full(resets=p.resets).d_layer
    p.finite(gradient, "the gradient of the weights")
    for path, leaf in jax.tree_util.tree_leaves_with_path(gradient):
        if not np.any(np.asarray(leaf, np.float64)):
            p.fail(f"{jax.tree_util.keystr(path).lstrip('.')} receives no gradient")
    floats, rest = eqx.partition(p.layer, eqx.is_inexact_array)
    updated = _stepped(p.layer, to_device(gradient))
    new, kept = eqx.partition(updated, eqx.is_inexact_array)
    p.same_shapes(new, floats, "the weights after an optimiser step")
    if not eqx.tree_equal(kept, rest):
        p.fail("an optimiser step changes what is no trainable array")
    before = p.traces.n
    p.finite(p.full(layer=updated), "after an optimiser step")
    if p.traces.n > before:
        p.fail("the layer is traced again after an optimiser step")
