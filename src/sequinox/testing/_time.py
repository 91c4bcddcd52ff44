"""The promises about time: stretches, masks, empty rows, resets, causality, final states."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from .._layer import SequenceLayer
from ..attention import with_capacity
from ._caches import WithFixedCaches
from ._probe import STEP, Probe, Result, add, every_state, to_device, to_numpy


def modes(p: Probe) -> None:
    """Promise 1: step, unroll and forward agree, at every split point and from any state."""
    initial, T = p.initial(), p.n_time
    for n in range(T + 1):
        p.same_shapes(p.full(p.xs[:, :n]).final, initial, f"the state after unroll over {n} samples")
    whole = p.full()
    if not p.draws:
        p.close(p.run(), whole, "without mask and resets, and with trivial ones")
        p.close(p.run(mask=np.ones((p.n_rows, T), bool)), whole, "with a mask of True, and with trivial resets too")
        p.close(p.run(resets=np.zeros((p.n_rows, T), bool)), whole, "with resets of False, and with a trivial mask too")
        from_start = p.full(state=initial, d_final=p.zeros()[1])
        forward = p.run(how="forward", mask=np.ones((p.n_rows, T), bool), resets=np.zeros((p.n_rows, T), bool))
        from_start = from_start._replace(d_layer=add(from_start.d_layer, p.through_start(from_start.d_state)))
        for name in ("ys", "d_layer", "d_xs"):
            p.close(getattr(forward, name), getattr(from_start, name), f"forward against unroll: {name}")
        called, forward = _called(p.layer, p.xs)
        p.identical(called, forward, "layer(xs) against layer.forward(xs)")
    if not p.layer.streams:
        _refuses_to_step(p)
        return
    if isinstance(p.layer, WithFixedCaches) and not p.draws:
        _grows(p, p.layer)
    for flags in ({}, {"mask": p.masks[:, 0], "resets": p.resets[:, 0]}):
        after = p.run(p.xs[:, 0], how="step", d_ys=p.d_ys if p.layer.pools else p.d_ys[:, 0], **flags).final
        p.same_shapes(after, initial, "the state after step")
    if p.draws:
        return
    from_none, from_initial = _stepped(p.layer, p.xs[:, 0], initial)
    p.close(from_none, from_initial, "step from None and from the initial state")
    for pieces in ([STEP] * T, [T - 1, STEP]):
        p.close(p.chain(pieces), p.run(), f"without mask and resets, cut into {pieces}")
    cuts = [[c, T - c] for c in range(T + 1)]
    cuts += [[STEP] * T, [1] * T, [1, 0, STEP, T - 2], [STEP, T - 1], [T - 2, STEP, 1]]
    trivial = {"mask": np.ones((p.n_rows, T), bool), "resets": np.zeros((p.n_rows, T), bool)}
    packed = {"mask": p.masks, "resets": np.roll(p.resets, 2, 0)}
    for flags, what in ((trivial, "whole rows"), (packed, "rows with masks and resets")):
        for state, start in ((p.state, "a state reached before"), (initial, "the initial state")):
            expected = p.full(state=state, **flags)
            for pieces in cuts:
                p.close(p.chain(pieces, state, **flags), expected, f"{what} from {start}, cut into {pieces}")


def _grows(p: Probe, fixed: WithFixedCaches) -> None:
    """The layer's own caches, which grow, and larger ones of fixed size take two samples, as those of the probe do."""
    state = p.initial()
    more = with_capacity(state, fixed.capacity + 3)
    runs = [_two_steps(fixed, p.xs, state), _two_steps(fixed.layer, p.xs, None), _two_steps(fixed.layer, p.xs, more)]
    for got, what in zip(runs[1:], ("growing", "larger"), strict=True):
        p.close(got, runs[0], f"two steps with {what} caches")


@eqx.filter_jit
def _two_steps(layer: Any, xs: Any, state: PyTree) -> Any:
    y, state = layer.step(xs[:, 0], state)
    return y, layer.step(xs[:, 1], state)[0]


@eqx.filter_jit
def _called(layer: Any, xs: Any) -> Any:
    return layer(xs), layer.forward(xs)


@eqx.filter_jit
def _stepped(layer: Any, x: Any, initial: PyTree) -> Any:
    return layer.step(x), layer.step(x, initial)


def _refuses_to_step(p: Probe) -> None:
    reason = p.layer.offline_reason or ""
    try:
        p.layer.step(p.xs[:, 0], p.state)
    except TypeError as error:
        if reason not in str(error):
            p.fail(f"step must name the reason {reason!r}, got {str(error)!r}")
    else:
        p.fail("streams is False, but step raises no TypeError")


def masks(p: Probe) -> None:
    """Promise 2: a masked step is absent."""
    mask = p.masks
    pollutions = (0, 1, -1, 10**6) if p.layer.reads_tokens else (0.0, 1.0, np.nan, np.inf, -np.inf, 1e30)
    for resets in (np.zeros_like(mask), np.roll(p.resets, 3, 0)):
        fill = lambda content: _fill(p.xs, ~mask, content)
        base = p.full(fill(0), mask=mask, resets=resets)
        bare = p.run(fill(0), mask=mask)
        for content in pollutions[1:]:
            got = p.full(fill(content), mask=mask, resets=resets)
            p.identical(got, base, f"masked samples of {content}")
            p.identical(p.run(fill(content), mask=mask), bare, f"masked samples of {content}, no resets given")
        p.finite(base, "with masked samples")
        p.zero(base.d_xs, "the gradient of masked samples", where=~mask)
        if not p.layer.pools:
            p.zero(base.ys, "outputs at masked samples", where=~mask)
        p.identical(base.final, p.state, "the state of a row of masked samples", rows=~mask.any(1))
        if not p.draws:
            _without_masked_samples(p, mask, resets, base)
    if p.layer.streams:
        real = np.arange(p.n_rows) % 2 == 0
        xs = _fill(p.xs[:, 0], ~real, pollutions[2])
        flags = {"mask": real, "resets": np.arange(p.n_rows) % 3 == 0}
        d_ys = p.d_ys if p.layer.pools else p.d_ys[:, 0]
        got = p.run(xs, how="step", d_ys=d_ys, **flags)
        p.identical(got.final, p.state, "the state after a masked step", rows=~real)
        p.zero(got.d_xs, "the gradient of a masked step", where=~real)
        p.finite(got, "with a masked step")
        if not p.layer.pools:
            p.zero(got.ys, "the output of a masked step", where=~real)


def _without_masked_samples(p: Probe, mask: Any, resets: Any, base: Result) -> None:
    """Rows as if their masked samples had never been there."""
    order = np.argsort(~mask, axis=1, kind="stable")
    pick = lambda a: np.take_along_axis(a, _lift(order, a), 1)
    xs, d_ys = pick(p.xs), p.d_ys if p.layer.pools else pick(p.d_ys)
    packed = np.take_along_axis(resets & mask, order, 1)
    d_layers = []
    for n in range(p.n_time + 1):
        rows = mask.sum(1) == n
        d_final = _only(rows, p.d_final)
        dy = _only(rows, d_ys if p.layer.pools else d_ys[:, :n])
        got = p.full(xs[:, :n], resets=packed[:, :n], d_ys=dy, d_final=d_final)
        case = f"rows of {n} real samples, without and with masked ones between"
        p.close(_rows(got.final, rows), _rows(base.final, rows), f"{case}: state")
        p.close(_rows(got.d_state, rows), _rows(base.d_state, rows), f"{case}: gradient of the state")
        if p.layer.pools:
            p.close(_rows(got.ys, rows), _rows(base.ys, rows), f"{case}: output")
        else:
            p.close(_rows(got.ys, rows), _rows(pick(base.ys)[:, :n], rows), f"{case}: outputs")
        if base.d_xs is not None:
            p.close(_rows(got.d_xs, rows), _rows(pick(base.d_xs)[:, :n], rows), f"{case}: gradient of the samples")
        d_layers.append(got.d_layer)
    p.close(add(*d_layers), base.d_layer, "rows without and with masked samples: gradient of the weights")


def empty(p: Probe) -> None:
    """Promise 3: rows without a real sample, and time of length 0."""
    initial, pools = p.initial(), p.layer.pools
    for state, start in ((p.state, "a state reached before"), (initial, "the initial state")):
        nothing = p.full(p.xs[:, :0], state)
        case = f"no samples, from {start}"
        p.identical(nothing.final, state, f"{case}: the state")
        p.finite(nothing, case)
        if not pools:
            p.identical(nothing.d_state, p.d_final, f"{case}: the gradient of the state")
            p.zero(nothing.d_layer, f"{case}: the gradient of the weights")
        content = np.full_like(p.xs, -1 if p.layer.reads_tokens else np.nan)
        masked = p.full(content, state, mask=np.zeros((p.n_rows, p.n_time), bool))
        p.identical(masked.final, nothing.final, f"all masked, from {start}: final")
        # What is computed after a pooled output may be rounded otherwise in a program for another length.
        same = p.close if pools and not _pooled_last(p.layer) else p.identical
        for name in ("d_state", "d_layer", *(["ys"] if pools else [])):
            same(getattr(masked, name), getattr(nothing, name), f"all masked, from {start}: {name}")
        p.zero(masked.d_xs, f"all masked, from {start}: the gradient of the samples")
        lengths = np.array([3, 0, 2] + [0] * (p.n_rows - 4) + [p.n_time])
        ragged = p.full(state=state, mask=np.arange(p.n_time) < lengths[:, None])
        p.identical(ragged.final, state, f"lengths {lengths}, from {start}: the state of empty rows", rows=lengths == 0)
        p.finite(ragged, f"lengths {lengths}, from {start}")
        got, expected = (_rows(r.d_state, lengths == 0) for r in (ragged, nothing))
        same(got, expected, f"lengths {lengths}: gradient of the state of empty rows")
        if pools and _pooled_last(p.layer) and state is initial:
            p.zero(masked.ys, "the pooled output of rows without a real sample")
            p.zero(ragged.ys, "the pooled output of an empty row beside others", where=lengths == 0)
    if p.layer.streams:
        x, state = to_device((p.xs[:0, 0], p.initial(0)))
        _, after = eqx.filter_eval_shape(lambda la, x, s: la.step(x, s, key=p.key), p.layer, x, state)
        p.same_shapes(after, state, "a step of no rows: the state")
    none = p.full(p.xs[:0], p.initial(0), d_ys=p.d_ys[:0], d_final=jax.tree.map(lambda a: a[:0], p.d_final))
    p.same_shapes(none.final, p.initial(0), "a batch of no rows: the state")
    p.same_shapes(none.ys, p.d_ys[:0], "a batch of no rows: the outputs")
    p.zero(none.d_layer, "a batch of no rows: the gradient of the weights")


def _pooled_last(layer: SequenceLayer) -> bool:
    """Whether the output is the pooled one itself, with nothing after it."""
    inside = layer.inside or (layer,)
    return inside[-1].pools and (not layer.inside or all(_pooled_last(la) for la in inside if la.pools))


def resets(p: Probe) -> None:
    """Promise 4: rows packed with resets equal separate rows, and nothing crosses."""
    every = np.ones_like(p.masks)
    # A layer that reads from the end meets a given state after the last reset, so such states are not compared.
    start = {} if p.layer.streams else {"state": p.initial(), "d_final": p.zeros()[1]}
    if not p.draws:
        bare = p.run(resets=p.resets, **start)
        p.close(bare, p.full(resets=p.resets, **start), "resets without and with a trivial mask")
    for mask, flags in ((every, p.resets), (p.masks, np.roll(p.resets, 1, 0)), (np.roll(p.masks, 3, 0), p.resets)):
        packed = p.full(mask=mask, resets=flags, **start)
        p.identical(p.full(mask=mask, resets=flags & mask, **start), packed, "a reset on a masked step does nothing")
        p.identical(p.full(mask=mask, resets=flags | ~mask, **start), packed, "a reset on a masked step does nothing")
        if not p.draws:
            _separately(p, mask, flags, packed)
        if not p.layer.reads_tokens:
            _isolated(p, mask, flags)
    if p.layer.streams:
        _fresh_start(p)


def _separately(p: Probe, mask: Any, flags: Any, packed: Result) -> None:
    """Every packed row on its own; the rows of one length at once."""
    offline, pools, T = not p.layer.streams, p.layer.pools, p.n_time
    starts = flags & mask
    starts[:, 0] = True
    ends = np.concatenate([starts[:, 1:], np.ones_like(starts[:, :1])], 1)
    initial, d_layers = p.initial(), []
    for s in range(T):
        for n in range(1, T - s + 1):
            rows = starts[:, s] & ends[:, s + n - 1] & ~starts[:, s + 1 : s + n].any(1)
            if not rows.any():
                continue
            given = ~(flags & mask)[:, 0] & (s == 0) & (not offline)
            state = _choose(given, p.state, initial)
            last = rows & (s + n == T)
            d_ys = _only(last, p.d_ys) if pools else _only(rows, p.d_ys[:, s : s + n])
            d_final = p.zeros()[1] if offline else _only(last, p.d_final)
            got = p.full(p.xs[:, s : s + n], state, mask=mask[:, s : s + n], d_ys=d_ys, d_final=d_final)
            case = f"samples {s} to {s + n - 1}, packed and as a row of their own"
            if not pools:
                p.close(_rows(got.ys, rows), _rows(packed.ys[:, s : s + n], rows), f"{case}: outputs")
            elif last.any():
                p.close(_rows(got.ys, last), _rows(packed.ys, last), f"{case}: output")
            if packed.d_xs is not None:
                d_xs = packed.d_xs[:, s : s + n]
                p.close(_rows(got.d_xs, rows), _rows(d_xs, rows), f"{case}: gradient of the samples")
            if not offline:
                p.close(_rows(got.final, last), _rows(packed.final, last), f"{case}: state")
                first = rows & given
                p.close(_rows(got.d_state, first), _rows(packed.d_state, first), f"{case}: gradient of the state")
            started = rows & (flags & mask)[:, s]  # by a reset, not in a given state
            d_layers += [got.d_layer, p.through_start(_only(started, got.d_state))]
    p.close(add(*d_layers), packed.d_layer, "packed and as rows of their own: gradient of the weights")


def _isolated(p: Probe, mask: Any, flags: Any) -> None:
    """A NaN in one packed row does not reach the others, nor does a gradient, in either direction."""
    offline, pools = not p.layer.streams, p.layer.pools
    row = np.cumsum(flags & mask, 1)  # the number of the packed row; 0 reads the given state
    last = row[:, -1]
    for loss in range(row.max() + 1):
        d_ys = _only(last == loss, p.d_ys) if pools else _only(row == loss, p.d_ys)
        d_final = p.zeros()[1] if offline else _only(last == loss, p.d_final)
        options = {"mask": mask, "resets": flags, "d_ys": d_ys, "d_final": d_final}
        if offline:
            options["state"] = p.initial()
        clean = p.full(**options)
        p.zero(clean.d_xs, f"gradient across a reset, loss on packed row {loss}", where=row != loss)
        if loss and not offline:
            p.zero(clean.d_state, f"gradient of the state across a reset, loss on packed row {loss}")
        for dirty in range(row.max() + 1):
            if dirty == loss:
                continue
            xs = _fill(p.xs, row == dirty, np.nan)
            got = p.full(xs, **options)
            case = f"NaN in packed row {dirty}, loss on packed row {loss}"
            p.identical(got.d_xs, clean.d_xs, f"{case}: gradient of the samples", rows=row != dirty)
            if pools:
                p.identical(got.ys, clean.ys, f"{case}: output", rows=last != dirty)
            else:
                p.identical(got.ys, clean.ys, f"{case}: outputs", rows=row != dirty)
            if not offline:
                p.identical(got.final, clean.final, f"{case}: state", rows=last != dirty)
                reads_state = (row[:, 0] == 0) & (dirty == 0)
                p.identical(got.d_state, clean.d_state, f"{case}: gradient of the state", rows=~reads_state)


def _fresh_start(p: Probe) -> None:
    """A reset at the first sample discards the given state, a NaN in it included."""
    first = np.arange(p.n_rows) % 2 == 0
    flags = np.zeros((p.n_rows, p.n_time), bool)
    flags[:, 0] = first
    spoil = lambda a: _fill(a, first, np.nan) if jnp.issubdtype(a.dtype, jnp.inexact) else a
    dirty = jax.tree.map(spoil, p.state)
    clean = p.full(resets=flags)
    p.identical(p.full(state=dirty, resets=flags), clean, "NaN in a state that a reset discards")
    p.identical(p.run(state=dirty, resets=flags), p.run(resets=flags), "NaN in a state that a reset discards, no mask")
    p.zero(clean.d_state, "the gradient of a state that a reset discards", where=first)
    if not p.draws:
        expected = p.full(state=_choose(first, p.initial(), p.state))
        through = p.through_start(_only(first, expected.d_state))
        expected = expected._replace(d_layer=add(expected.d_layer, through))
        for name in ("ys", "final", "d_layer", "d_xs"):
            p.close(getattr(clean, name), getattr(expected, name), f"a reset at the first sample: {name}")
    d_ys = p.d_ys if p.layer.pools else p.d_ys[:, 0]
    step = {"how": "step", "mask": np.ones(p.n_rows, bool), "resets": first, "d_ys": d_ys}
    clean = p.run(p.xs[:, 0], **step)
    p.identical(p.run(p.xs[:, 0], dirty, **step), clean, "step: NaN in a state that a reset discards")
    p.zero(clean.d_state, "step: the gradient of a state that a reset discards", where=first)


def causality(p: Probe) -> None:
    """Promise 6: what comes later does not matter to an output, nor what came before the receptive field."""
    if p.layer.pools or not p.layer.streams:
        return
    t = np.arange(p.n_time)
    clean = p.full()
    for now in range(p.n_time):
        only_now = _only(np.broadcast_to(t == now, p.xs.shape[:2]), p.d_ys)
        got = p.full(d_ys=only_now, d_final=p.zeros()[1])
        case = f"of samples after the output at {now}"
        later = np.broadcast_to(t > now, p.xs.shape[:2])
        p.zero(got.d_xs, f"the gradient {case}", where=later)
        if p.layer.receptive_field is not None and not p.layer.reads_tokens:
            _reaches_back(p, got.d_xs, now, p.layer.receptive_field)
        content = 1 - np.minimum(p.xs, 1) if p.layer.reads_tokens else np.full_like(p.xs, np.nan)
        dirty = p.full(np.where(_lift(later, p.xs), content, p.xs))
        p.identical(dirty.ys, clean.ys, f"the content {case}", rows=~later)


def _reaches_back(p: Probe, d_xs: np.ndarray, now: int, field: int) -> None:
    """The output's gradient reaches back to the end of the receptive field (there may be holes in it), no further."""
    t = np.arange(p.n_time)
    case = f"the receptive field is {field}: the gradient of the output at {now}"
    p.zero(d_xs, f"{case} before it", where=np.broadcast_to(t <= now - field, p.xs.shape[:2]))
    last = now - field + 1
    if last >= 0 and not p.draws and not np.any(np.asarray(d_xs[:, last], np.float64)):
        p.fail(f"{case} is zero at sample {last}, the last in it")


def final_state(p: Probe) -> None:
    """Promise 7: the final state is each row's own, at its own length."""
    if not p.layer.streams or p.draws:
        return
    states = [p.state]
    for t in range(p.n_time):
        d_ys = p.d_ys if p.layer.pools else p.d_ys[:, t]
        states.append(p.run(p.xs[:, t], states[-1], how="step", d_ys=d_ys).final)
    lengths = np.arange(p.n_rows)[::-1] % (p.n_time + 1)
    final = p.full(mask=np.arange(p.n_time) < lengths[:, None]).final
    for n in range(p.n_time + 1):
        rows = lengths == n
        p.close(_rows(final, rows), _rows(states[n], rows), f"the final state of rows of length {n}")


def states(p: Probe) -> None:
    """Promise 7: `unroll(states="every")` returns the states that steps reach."""
    if not p.layer.streams or p.draws:
        return
    mask, resets, state, y = p.masks, np.roll(p.resets, 3, 0), p.state, None
    ys, every = to_numpy(every_state(p.layer, *to_device((p.xs, state, mask, resets))))
    for t in range(p.n_time):
        d_ys = p.d_ys if p.layer.pools else p.d_ys[:, t]
        y, state, *_ = p.run(p.xs[:, t], state, how="step", mask=mask[:, t], resets=resets[:, t], d_ys=d_ys)
        case = f'sample {t} of unroll(states="every") and of steps'
        p.close(jax.tree.map(lambda a, t=t: a[:, t], every), state, f"{case}: state")
        if not p.layer.pools:
            p.close(ys[:, t], y, f"{case}: output")
    if p.layer.pools:
        p.close(ys, y, 'unroll(states="every") and steps: output')


def _lift(flags: Any, like: Any) -> Any:
    """Flags of the leading axes, shaped to broadcast against an array."""
    return np.reshape(flags, np.shape(flags) + (1,) * (like.ndim - np.ndim(flags)))


def _fill(a: np.ndarray, flags: Any, content: float) -> np.ndarray:
    """An array with `content` where `flags` (of its leading axes) is True."""
    with np.errstate(over="ignore"):  # 1e30 is infinity in half precision
        return np.where(_lift(flags, a), np.asarray(content).astype(a.dtype), a)


def _only(flags: Any, tree: PyTree) -> PyTree:
    """The numbers of a tree where `flags` (of its leading axes) is True, zeros elsewhere."""
    return jax.tree.map(lambda a: np.where(_lift(flags, a), a, np.zeros_like(a)), tree)


def _choose(flags: Any, on_true: PyTree, on_false: PyTree) -> PyTree:
    return jax.tree.map(lambda a, b: np.where(_lift(flags, a), a, b), on_true, on_false)


def _rows(tree: PyTree, rows: Any) -> PyTree:
    return jax.tree.map(lambda a: a[np.flatnonzero(rows)], tree)
