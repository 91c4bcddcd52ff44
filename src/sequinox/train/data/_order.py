"""What all sources of batches share: an epoch's order, its position as a few numbers, the part of a process."""

import abc
from typing import Any

import numpy as np

from ..._checks import size
from ._digest import digest


def epoch_order(n_rows: int, seed: int, epoch: int, shuffle: bool, stream: int = 0) -> np.ndarray:
    """A permutation that depends on its arguments alone. `stream` keeps orders within one epoch apart."""
    if not shuffle:
        return np.arange(n_rows)
    return np.argsort(_bits(n_rows, seed, epoch, stream), kind="stable")


def rough_order(lengths: np.ndarray, seed: int, epoch: int, shuffle: bool) -> np.ndarray:
    """Roughly from long to short: packs well as the exact order does, and mixes again each epoch.

    A length counts by a random factor between a half and one; without shuffling, as it is.
    """
    keys = lengths.astype(np.float64)
    if shuffle:
        keys *= 0.5 + 0.5 * (_bits(len(lengths), seed, epoch, 1) >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return np.argsort(-keys, kind="stable")


def _bits(n: int, seed: int, epoch: int, stream: int) -> np.ndarray:
    # NumPy promises the raw stream of a bit generator forever, but not what `permutation` makes of it.
    entropy = [seed, epoch, stream] if stream else [seed, epoch]
    return np.random.PCG64(np.random.SeedSequence(entropy)).random_raw(n)


class EpochSource(abc.ABC):
    """Endless batches over epochs, in grain's iterator protocol; a base class, not public.

    A subclass defines `_plan(epoch)`, a pure function of the seed, of `shuffle` and of what `_identity` holds,
    `_n_steps(plan)`, `_make(plan, position)`, and `_content()`, the arrays. A position is then two numbers, and
    restoring it is exact anywhere.
    """

    def __init__(self, seed: int, shuffle: bool):
        self._seed = size(seed, type(self).__name__, "seed", 0)
        self._shuffle = bool(shuffle)
        self._epoch, self._position = 0, 0
        self._in_hand: tuple[int, Any] | None = None  # the plan of an epoch; recomputed, never saved
        self._digests: dict[str, str] | None = None  # of the arrays, made when they are first asked for

    @abc.abstractmethod
    def _plan(self, epoch: int) -> Any:
        """Which rows come when in an epoch."""

    @abc.abstractmethod
    def _n_steps(self, plan: Any) -> int:
        """Batches in it."""

    @abc.abstractmethod
    def _make(self, plan: Any, position: int) -> Any:
        """One of its batches."""

    @abc.abstractmethod
    def _identity(self) -> dict[str, Any]:
        """What else plans depend on, JSON-able."""

    @abc.abstractmethod
    def _content(self) -> dict[str, list[np.ndarray]]:
        """All arrays, by what they are for."""

    def _plan_of(self, epoch: int) -> Any:
        if self._in_hand is None or self._in_hand[0] != epoch:
            self._in_hand = epoch, self._plan(epoch)
        return self._in_hand[1]

    def _order(self) -> dict[str, Any]:
        if self._digests is None:
            self._digests = {name: digest(arrays) for name, arrays in self._content().items()}
        return {**self._identity(), "seed": self._seed, "shuffle": self._shuffle, "content": dict(self._digests)}

    @property
    def steps_per_epoch(self) -> int:
        """Batches in the epoch of the next batch.

        Every epoch of `Batches` and `Buckets` has as many; of `Packs` and `Windows` another may have a few more or
        fewer.
        """
        return self._n_steps(self._plan_of(self._epoch))

    def __iter__(self) -> "EpochSource":
        return self

    def __next__(self) -> Any:
        plan = self._plan_of(self._epoch)
        batch = self._make(plan, self._position)
        last = self._position + 1 == self._n_steps(plan)  # an epoch's end has one description, not two
        self._epoch, self._position = (self._epoch + 1, 0) if last else (self._epoch, self._position + 1)
        return batch

    def get_state(self) -> dict[str, Any]:
        """The position of the next batch, as JSON-able numbers, with what the order depends on.

        It does not hold the shard: it is the same in all processes, and serves a run on another number of them.

        `content` is a hash of the data, by which other rows of the same lengths are noticed. It is made at the first
        call. Up to 64 MiB (of inputs, of targets, of masks, of static features each) every byte is in it, with dtypes
        and shapes; of more, 256 blocks of 4 KiB spread evenly over them, the first and the last included: other data,
        another order of rows, another scale, but not a single changed number between the blocks. Numbers that are
        changed in place after the first call go unnoticed.
        """
        return {"epoch": self._epoch, "position": self._position, **self._order()}

    def set_state(self, state: dict[str, Any]) -> None:
        """Continues where `get_state` was taken.

        Arguments:
            state: from `get_state` of a source of the same kind, with the same data and arguments; the shard may
                differ.

        Raises:
            ValueError: it is of other data or another order, or is no such state.
        """
        who, expected = f"{type(self).__name__}.set_state", self.get_state()
        if not isinstance(state, dict) or state.keys() != expected.keys():
            raise ValueError(f"{who}: state must be a dict with keys {sorted(expected)}, got {state!r}")
        differing = {k: (state[k], v) for k, v in self._order().items() if state[k] != v}
        if differing:
            lines = ", ".join(_difference(k, was, now) for k, (was, now) in differing.items())
            raise ValueError(f"{who}: the state is of another order of data ({lines})")
        epoch, position = state["epoch"], state["position"]
        if not (isinstance(epoch, int) and isinstance(position, int)) or epoch < 0:
            raise ValueError(f"{who}: epoch and position must be integers from 0, got {epoch!r}, {position!r}")
        steps = self._n_steps(self._plan_of(epoch))
        if not 0 <= position < steps:
            raise ValueError(f"{who}: position must be in [0, {steps}), got {position}")
        self._epoch, self._position = epoch, position


def _difference(name: str, was: Any, now: Any) -> str:
    if name != "content":
        return f"{name}: {was!r} in the state, {now!r} here"
    was = was if isinstance(was, dict) else {}
    return "content: other numbers in " + ", ".join(part for part in now if was.get(part) != now[part])


def shard_rows(n_rows: int, shard: tuple[int, int], who: str) -> slice:
    """The contiguous rows of a global batch that process `index` of `count` yields: `shard`, checked."""
    if not isinstance(shard, tuple) or len(shard) != 2:
        raise TypeError(f"{who}: shard must be a pair (index, count), got {shard!r}")
    count, index = size(shard[1], who, "shard[1]"), size(shard[0], who, "shard[0]", 0)
    if index >= count:
        raise ValueError(f"{who}: shard must be (index, count) with index < count, got {shard!r}")
    if n_rows % count:
        raise ValueError(
            f"{who}: the rows of every batch must be divisible by the {count} processes of shard, got {n_rows}"
        )
    part = n_rows // count
    return slice(index * part, (index + 1) * part)
