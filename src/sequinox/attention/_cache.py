"""Caches of keys and values: the states of causal attention."""

import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from .._checks import raise_if, size
from .._types import State
from ._positions import Places, advance


class KVCache(NamedTuple):
    """Keys and values of a row's samples since its last reset, in a number of slots that does not change.

    Its shapes stay what they are, so `jax.jit`, `jax.lax.scan` and buffer donation take it. More samples than slots are
    an error, also under `jit`; of a stretch, those count that are there at its end. Slots that hold nothing are zeros.
    """

    k: Float[Array, "*batch slots d_kv"]
    v: Float[Array, "*batch slots d_kv"]
    n: Int[Array, "*batch"]
    """Samples since the reset, int32."""


class GrowingKVCache(NamedTuple):
    """Keys and values of a row's samples since its last reset; a slot more for each sample read.

    It begins without any and has no limit, but its shapes change with every call, and compiled code with them. For
    `jax.jit` take a [`KVCache`][sequinox.attention.KVCache]: `with_capacity` makes one of it.
    """

    k: Float[Array, "*batch slots d_kv"]
    v: Float[Array, "*batch slots d_kv"]
    n: Int[Array, "*batch"]
    """Samples since the reset, int32."""

    grows = True

    def as_given(self, given: Any, where: str) -> "KVCache | GrowingKVCache":
        """What a given state is to be like, where a layer begins with this: of any number of slots, growing or not."""
        check_kind(given, (KVCache, GrowingKVCache), where)
        shape = given.k.shape if isinstance(given.k, jax.Array | np.ndarray) else ()
        if len(shape) < 2:
            return self
        kv = jax.ShapeDtypeStruct((*self.k.shape[:-2], shape[-2], self.k.shape[-1]), self.k.dtype)
        return type(given)(kv, kv, self.n)  # pyright: ignore[reportArgumentType]


class RingKVCache(NamedTuple):
    """Keys and values of the last samples of a row, as many as a window sees: a stream may run forever.

    Sample `n` is in slot `n % slots`; the slots are the next power of two that holds the window. Slots that hold
    nothing that a later sample sees are zeros.
    """

    k: Float[Array, "*batch slots d_kv"]
    v: Float[Array, "*batch slots d_kv"]
    n: Int[Array, "*batch"]
    """Samples since the reset, int32; after 2^31 it continues from 2^30."""

    def as_given(self, given: Any, where: str) -> "RingKVCache":
        """What a given state is to be like: this, since slots of another kind of cache are in another order."""
        check_kind(given, (RingKVCache,), where)
        return self


Cache = KVCache | GrowingKVCache | RingKVCache


def check_kind(given: Any, kinds: tuple[type, ...], where: str) -> None:
    """Refuses what is not a cache of one of these kinds."""
    if type(given) not in kinds:
        names = " or ".join(kind.__name__ for kind in kinds)
        raise TypeError(f"{where} must be a {names}, as init_cache gives, got {type(given).__name__}")


def with_capacity(state: State, capacity: int) -> State:
    """A state whose caches have room for `capacity` samples, for `jit`, `scan` and donation.

    Works on the state of any layer or model: growing caches become of fixed size, those of fixed size become larger,
    what is in them stays. Rings, which hold what their window sees, and all other states are as they were.

    Arguments:
        state: of a layer or a model, for example `model.init_state(batch)`.
        capacity: samples a row, at least as many as there are slots now.

    Returns:
        The same state with [`KVCache`][sequinox.attention.KVCache]s of `capacity` slots.

    Raises:
        ValueError: if a cache has more slots already.

    ??? example

        ```python
        >>> import jax, sequinox as sqx
        >>> attention = sqx.MultiHeadSelfAttention(8, 2, jax.random.key(0), causal=True)
        >>> sqx.with_capacity(attention.init_state(), 64).k.shape
        (64, 8)

        ```
    """
    size(capacity, "with_capacity", "capacity")
    if isinstance(state, eqx.Module):
        raise TypeError(f"with_capacity: state must be a state, as init_state gives, got a {type(state).__name__}")

    def fix(leaf: Any) -> Any:
        if not isinstance(leaf, KVCache | GrowingKVCache):
            return leaf
        slots = leaf.k.shape[-2]
        if slots > capacity:
            raise ValueError(f"with_capacity: capacity must be at least the {slots} slots of the cache, got {capacity}")
        more = capacity - slots
        return KVCache(_add_slots(leaf.k, more), _add_slots(leaf.v, more), leaf.n)

    return jax.tree.map(fix, state, is_leaf=is_cache)


def is_cache(leaf: Any) -> bool:
    """Whether a node of a state is a cache."""
    return isinstance(leaf, Cache)


def bounded(state: State) -> list[KVCache | GrowingKVCache]:
    """The caches in a state that can be full."""
    leaves = jax.tree.leaves(state, is_leaf=is_cache)
    return [leaf for leaf in leaves if isinstance(leaf, KVCache | GrowingKVCache)]


def _add_slots(a: Any, more: int) -> Array:
    return jnp.pad(a, [(0, 0)] * (a.ndim - 2) + [(0, more), (0, 0)])


class Slots(NamedTuple):
    """Where the samples in the slots are: their place before the next sample (-1 the last), and their row."""

    place: Int[Array, "rows slots"]
    row: Int[Array, "rows slots"]
    """0 in slots that hold a sample, -1 in the others."""


def slots(n: Int[Array, " rows"], number: int) -> Slots:
    """The slots of a cache that has read `n` samples."""
    s = jnp.arange(number, dtype=jnp.int32)[None]
    last = jnp.expand_dims(n, 1) - 1
    shape = (n.shape[0], number)
    age = jnp.mod(jnp.broadcast_to(last, shape) - jnp.broadcast_to(s, shape), max(number, 1))
    held = age < jnp.broadcast_to(jnp.expand_dims(n, 1), shape)
    return Slots(-1 - age, jnp.where(held, 0, -1))


def append(
    cache: Cache,
    k: Float[Array, "rows time d_kv"],
    v: Float[Array, "rows time d_kv"],
    where: Places,
    mask: Bool[Array, "rows time"] | None,
    resets: Bool[Array, "rows time"] | None,
    window: int | None,
) -> Cache:
    """The cache after a stretch: of each row, the real samples since its last reset. Batch axes are one, `rows`."""
    rows, time = k.shape[:2]
    if not time:
        return cache
    keys, values, n = cache
    if isinstance(cache, GrowingKVCache):
        keys, values = _add_slots(keys, time), _add_slots(values, time)
    capacity = keys.shape[1]
    n = where.n
    if isinstance(cache, KVCache):
        if mask is None and resets is None and time > capacity:
            raise ValueError(_full(capacity, f"{time} samples at once"))
        n = raise_if(n, n > capacity, _full(capacity, "more samples"))
    full = (rows, time)
    position, row = (jnp.broadcast_to(a, full) for a in (where.position, where.row))
    kept = row == row[:, -1:]
    if mask is not None:
        kept = kept & mask
    total = jnp.sum(kept, 1, keepdims=True, dtype=jnp.int32)
    if isinstance(cache, RingKVCache) and time > capacity:
        kept = kept & (jnp.cumsum(kept, 1, dtype=jnp.int32) > jnp.broadcast_to(total, full) - capacity)
    t = jnp.broadcast_to(jnp.arange(time, dtype=jnp.int32)[None], full)
    slot = jnp.where(kept, jnp.mod(position, max(capacity, 1)), capacity + t)  # outside: not written
    if resets is not None:
        stays = (row[:, -1] == 0)[:, None, None]
        keys, values = (jnp.where(stays, a, jnp.zeros_like(a)) for a in (keys, values))
    write = jax.vmap(lambda a, i, x: a.at[i].set(x, mode="drop", unique_indices=True))
    keys, values = write(keys, slot, k), write(values, slot, v)
    if window is not None and window < capacity:  # as in `push`
        before, after = slots(cache.n, capacity), slots(n, capacity)
        written = after.place >= -jnp.broadcast_to(total, after.place.shape)
        left = (after.place < -window) & (written | ((before.row == 0) & (before.place >= -window)))
        left = left[:, :, None]
        keys, values = (jnp.where(left, jnp.zeros_like(a), a) for a in (keys, values))
    return type(cache)(keys, values, n)


def push(cache: Cache, k: Float[Array, "rows d_kv"], v: Float[Array, "rows d_kv"], window: int | None) -> Cache:
    """The cache after one sample."""
    keys, values, n = cache
    if isinstance(cache, GrowingKVCache):
        keys, values = _add_slots(keys, 1), _add_slots(values, 1)
    capacity = keys.shape[1]
    if isinstance(cache, KVCache):
        n = raise_if(n, n >= capacity, _full(capacity, "one sample more"))
    slot = jnp.mod(n, max(capacity, 1))
    if window is not None and window < capacity:  # what no later sample sees is let go: `attend_one` relies on it
        left = jnp.where(n >= window, jnp.mod(n - window, capacity), slot)
        keys, values = _write(keys, left, jnp.zeros_like(k)), _write(values, left, jnp.zeros_like(v))
    keys, values = _write(keys, slot, k), _write(values, slot, v)
    return type(cache)(keys, values, advance(n, 1))


def _write(a: Array, slot: Array, x: Array) -> Array:
    if a.shape[0] == 1:  # in place, where a scatter would copy
        return jax.lax.dynamic_update_slice_in_dim(a, x[:, None], slot[0], 1)
    return jax.vmap(lambda a, i, x: a.at[i].set(x))(a, slot, x)


def _full(capacity: int, what: str) -> str:
    return (
        f"KVCache: the cache is full: it has {capacity} slots, and {what} came; begin with a larger one, "
        "init_cache(capacity=...) or with_capacity(state, ...)"
    )


def flatten(cache: Cache) -> Cache:
    """The batch axes as one."""
    rows = math.prod(cache.n.shape)
    one = lambda a: a.reshape(rows, *a.shape[-2:])
    return type(cache)(one(cache.k), one(cache.v), cache.n.reshape(rows))


def unflatten(cache: Cache, batch: tuple[int, ...]) -> Cache:
    """One axis of rows as the batch axes."""
    apart = lambda a: a.reshape(*batch, *a.shape[1:])
    return type(cache)(apart(cache.k), apart(cache.v), cache.n.reshape(batch))
