"""Positions: where samples are in their row, and layers that add this to them.

**Angles.** Sinusoidal and rotary positions need `frequency * n`, modulo a turn. In float32 such a product loses its
last digits as `n` grows: at a million samples it is wrong by 0.04. Here a frequency is a whole number of units
of 2^-32 turns, and the product is taken in integers, which wrap around as angles do. So the angle *between* two
positions is the same wherever they are, however long a stream runs. What is not exact is the frequency: it is rounded
by at most 2^-31 turns, and an angle is off the formula by at most 2^-31 turns (3e-9 radians) a sample, and what float32
rounds once (3e-7).

**Counting forever.** A 32-bit count would end after two thousand million samples. The frequencies are multiples of
four units, so that 2^30 samples are whole turns: a count that reaches 2^31 continues from 2^30, and nothing changes.
"""

import abc
import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from .._checks import batch_shape, check_key, flag, float_dtype, number, raise_if, size, sizes, wide
from .._layer import SequenceLayer
from .._linear import make_weight
from .._types import BatchShape, DType, Initializer, PRNGKey

# ---- counting --------------------------------------------------------------------------------------------------------


class Places(NamedTuple):
    """Where the samples of a stretch are. Without a mask, resets and a state, the batch axes are of length 1."""

    earlier: Int[Array, "*batch time"]
    """Real samples before this one in the stretch."""
    row: Int[Array, "*batch time"]
    """Number of the packed row: resets up to this sample. Row 0 continues from the state."""
    position: Int[Array, "*batch time"]
    """Real samples before this one since the reset, in earlier stretches too."""
    n: Int[Array, "*batch"]
    """Samples since the reset, after the stretch."""


def places(
    n: Int[Array, "*batch"] | None,
    batch: tuple[int, ...],
    time: int,
    mask: Bool[Array, "*batch time"] | None,
    resets: Bool[Array, "*batch time"] | None,
) -> Places:
    """Counts the samples of a stretch that begins `n` samples after its row's reset (None: at the start of a row)."""
    if mask is None:
        count = jnp.broadcast_to(jnp.arange(time, dtype=jnp.int32), (*(1 for _ in batch), time))
        total = jnp.full(batch, time, jnp.int32)
    else:
        after = jnp.cumsum(mask, -1, dtype=jnp.int32)
        count, total = after - mask.astype(jnp.int32), jnp.sum(mask, -1, dtype=jnp.int32)
    start = jnp.zeros(batch, jnp.int32) if n is None else n
    if resets is None or not time:
        position = count if n is None else advance(jnp.expand_dims(n, -1), count)
        return Places(count, jnp.zeros_like(count), position, advance(start, total))
    count = jnp.broadcast_to(count, resets.shape)
    fresh = resets if mask is None else resets & mask
    row = jnp.cumsum(fresh, -1, dtype=jnp.int32)
    before = jax.lax.cummax(jnp.where(fresh, count, 0), count.ndim - 1)  # real samples before the packed row
    position = jnp.where(row == 0, advance(jnp.expand_dims(start, -1), count), count - before)
    last = jnp.where(row[..., -1] == 0, advance(start, total), total - before[..., -1])
    return Places(count, row, position, last)


def advance(n: Int[Array, "*#axes"], k: Int[Array, "*#axes"] | int) -> Int[Array, "*axes"]:
    """`n + k`; a count that reaches 2^31 continues from 2^30."""
    total = n.astype(jnp.uint32) + jnp.asarray(k, jnp.uint32)
    return jnp.where(total >= jnp.uint32(2**31), total - jnp.uint32(2**30), total).astype(jnp.int32)


def angles(positions: Int[Array, "*axes"], frequencies: np.ndarray, dtype: DType) -> Float[Array, "*axes n"]:
    """`positions * frequencies` (radians a sample), modulo a turn, between -pi and pi."""
    units = 4 * np.round(np.asarray(frequencies, np.float64) / (2 * np.pi) * 2**30).astype(np.int64)
    units = jnp.asarray(units.astype(np.uint32).astype(np.int32))
    counts = jnp.expand_dims(positions, -1).astype(jnp.int32)
    turns = counts * units.reshape((1,) * (counts.ndim - 1) + units.shape)  # wraps, as it should
    return turns.astype(dtype) * jnp.asarray(2 * np.pi / 2**32, dtype)


# ---- rotary ----------------------------------------------------------------------------------------------------------


class Rotary(eqx.Module):
    r"""Rotary positions for queries and keys: pairs of coordinates are turned by an angle that grows with the position.

    $$
    \begin{pmatrix} x_a' \\ x_b' \end{pmatrix} =
    \begin{pmatrix} \cos n\theta_i & -\sin n\theta_i \\ \sin n\theta_i & \cos n\theta_i \end{pmatrix}
    \begin{pmatrix} x_a \\ x_b \end{pmatrix}
    \qquad \theta_i = \text{base}^{-2i/d}
    $$

    So a product of a query and a key depends on the distance between them alone, however long a stream runs. The
    frequencies are rounded by at most 2^-31 turns. So the angle between a query and a key is within 3e-9 radians of the
    formula for each sample that lies between them, wherever they are; sines and cosines are computed in float32 at
    least.

    Source: [Su et al. 2021](https://arxiv.org/abs/2104.09864), eqs. (15) and (34). That paper pairs neighbours
    (`interleaved=True`); GPT-NeoX and Llama, whose weights are about, pair the two halves of a head.

    ??? example

        ```python
        >>> import jax.numpy as jnp, sequinox as sqx
        >>> turn = sqx.Rotary()
        >>> x = jnp.ones((2, 1, 4))  # two samples, one head of width 4
        >>> turn(x, jnp.array([0, 7])).shape
        (2, 1, 4)

        ```
    """

    base: float = eqx.field(static=True)
    interleaved: bool = eqx.field(static=True)

    def __init__(self, base: float = 10_000.0, *, interleaved: bool = False):
        """
        Arguments:
            base: of the wavelengths, which run from 2 pi samples to `2 pi base`; default 10,000, as in the paper.
            interleaved: whether coordinates 2i and 2i + 1 are a pair, or (default) i and i + d/2.

        Raises:
            ValueError: if `base` is not greater than 1.
        """
        self.base = number(base, "Rotary", "base")
        if self.base <= 1:
            raise ValueError(f"Rotary: base must be greater than 1, got {base}")
        self.interleaved = flag(interleaved, "Rotary", "interleaved")

    def __call__(
        self, x: Float[Array, "*batch time n_heads d_head"], positions: Int[Array, "*#batch time"]
    ) -> Float[Array, "*batch time n_heads d_head"]:
        """Turns queries or keys.

        Arguments:
            x: queries or keys, with an even width.
            positions: integers, one a sample.
        """
        d = x.shape[-1]
        if d % 2:
            raise ValueError(f"Rotary: heads must have an even width, got {d}")
        if not jnp.issubdtype(positions.dtype, jnp.integer):
            raise TypeError(f"Rotary: positions must be integers, got dtype {positions.dtype}")
        dtype = wide(x.dtype)
        angle = jnp.expand_dims(angles(positions, self.base ** (-np.arange(0, d, 2) / d), dtype), -2)
        half = (*x.shape[:-1], d // 2)
        cos, sin = (jnp.broadcast_to(f(angle), half) for f in (jnp.cos, jnp.sin))
        fine = x.astype(dtype)
        a, b = (fine[..., ::2], fine[..., 1::2]) if self.interleaved else (fine[..., : d // 2], fine[..., d // 2 :])
        pair = (a * cos - b * sin, a * sin + b * cos)
        turned = jnp.stack(pair, -1).reshape(x.shape) if self.interleaved else jnp.concatenate(pair, -1)
        return turned.astype(x.dtype)


# ---- layers ----------------------------------------------------------------------------------------------------------


class _Positions(SequenceLayer[Array]):
    """Adds a vector to every sample, which depends on its position alone; the state is the row's number of samples."""

    n_in: eqx.AbstractVar[int | None]
    max_len: eqx.AbstractVar[int | None]

    @abc.abstractmethod
    def _vectors(self, positions: Array, x: Array) -> Array:
        """What is added at `positions`, in the shape of `x`."""

    @property
    def n_out(self) -> int | None:
        """Width of the output: that of a sample."""
        return self.n_in

    @property
    def receptive_field(self) -> int:
        """1: of the samples before only the number counts."""
        return 1

    def init_state(self, batch: BatchShape = (), dtype: DType | None = None) -> Int[Array, "*batch"]:
        """No samples yet: int32 zeros, `"*batch"`."""
        del dtype
        return jnp.zeros(batch_shape(batch, f"{type(self).__name__}.init_state"), jnp.int32)

    def _step(self, x: Array, state: Array, key: Array | None) -> tuple[Array, Array]:
        del key
        return self._bounded((x + self._vectors(state, x), advance(state, 1)), state)

    def _unroll(
        self, xs: Array, state: Array, mask: Array | None, resets: Array | None, key: Array | None
    ) -> tuple[Array, Array]:
        del key
        where = places(state, xs.shape[:-2], xs.shape[-2], mask, resets)
        ys = xs + self._vectors(where.position, xs)
        return self._bounded((ys, where.n), where.position if mask is None else jnp.where(mask, where.position, 0))

    def _forward(self, xs: Array, mask: Array | None, resets: Array | None, key: Array | None) -> Array:
        if self.max_len is not None and xs.shape[-2] > self.max_len:
            return self._unroll(xs, self.init_state(xs.shape[:-2]), mask, resets, key)[0]
        return xs + self._vectors(places(None, xs.shape[:-2], xs.shape[-2], mask, resets).position, xs)

    def _bounded(self, values: Any, positions: Array) -> Any:
        """The values, or an error if a row is longer than `max_len`."""
        if self.max_len is None:
            return values
        message = f"{type(self).__name__}: a row is longer than max_len={self.max_len}"
        return raise_if(values, positions >= min(self.max_len, 2**31 - 1), message)


class AddPositions(_Positions):
    r"""Adds sinusoidal positions. It has no weights.

    $$
    x_n' = x_n + p_n \qquad p_{n,2i} = \sin(n \cdot 10000^{-2i/d}) \qquad p_{n,2i+1} = \cos(n \cdot 10000^{-2i/d})
    $$

    The position $n$ counts a row's real samples since its last reset, from 0, in a stream as in a whole sequence. Sines
    are computed in float32 at least.

    The frequencies $10000^{-2i/d}$ are rounded by at most 2^-31 turns, so that the angle between two positions depends
    on their distance alone, however long a stream runs. An angle itself is within $3 \cdot 10^{-9}\, n$ radians of the
    formula: 0.003 after a million samples.

    Source: [Vaswani et al. 2017](https://arxiv.org/abs/1706.03762), page 6.

    ??? example

        ```python
        >>> import jax.numpy as jnp, sequinox as sqx
        >>> for row in sqx.AddPositions()(jnp.zeros((3, 2))):
        ...     print(*(f"{value:.2f}" for value in row))
        0.00 1.00
        0.84 0.54
        0.91 -0.42

        ```
    """

    n_in: int | None = eqx.field(static=True)
    max_len: int | None = eqx.field(static=True)

    def __init__(self, n_in: int | None = None, max_len: int | None = None):
        """
        Arguments:
            n_in: width of a sample; default: any.
            max_len: the longest row that is allowed; a longer one is an error. Default: no end.
        """
        self.n_in = None if n_in is None else size(n_in, "AddPositions", "n_in")
        self.max_len = None if max_len is None else size(max_len, "AddPositions", "max_len")

    def _vectors(self, positions: Array, x: Array) -> Array:
        d, dtype = x.shape[-1], wide(x.dtype)
        angle = angles(positions, 10_000.0 ** (-np.arange(0, d, 2) / d), dtype)
        table = jnp.stack([jnp.sin(angle), jnp.cos(angle)], -1)
        table = table.reshape(*table.shape[:-2], 2 * angle.shape[-1])[..., :d]
        return jnp.broadcast_to(table.astype(x.dtype), x.shape)


class AddLearnedPositions(_Positions):
    r"""Adds a learned vector for each position, $x_n' = x_n + P_n$.

    The position $n$ counts a row's real samples since its last reset, from 0. A row longer than `max_len` is an error,
    also under `jit`.

    Source: [Gehring et al. 2017](https://arxiv.org/abs/1705.03122), section 3.1.

    ??? example

        ```python
        >>> import jax, jax.numpy as jnp, sequinox as sqx
        >>> sqx.AddLearnedPositions(3, 16, jax.random.key(0))(jnp.zeros((2, 5, 3))).shape
        (2, 5, 3)

        ```
    """

    P: Float[Array, "max_len n_in"]
    n_in: int = eqx.field(static=True)
    max_len: int = eqx.field(static=True)

    def __init__(
        self,
        n_in: int,
        max_len: int,
        key: PRNGKey,
        *,
        initializer: Initializer = jax.nn.initializers.normal(0.02),
        dtype: DType | None = None,
    ):
        """
        Arguments:
            n_in: width of a sample.
            max_len: the longest row.
            key: PRNG key for the vectors.
            initializer: of the vectors; default normal with deviation 0.02, as in GPT-2.
            dtype: of the vectors; default: JAX's default, float32.
        """
        who = "AddLearnedPositions"
        self.n_in, self.max_len = sizes(who, n_in=n_in, max_len=max_len)
        shape = (self.n_in, self.max_len)
        self.P = make_weight(check_key(key, who), shape, initializer, float_dtype(dtype, who), who).T

    def _vectors(self, positions: Array, x: Array) -> Array:
        flat = jnp.minimum(positions, self.max_len - 1).reshape(math.prod(positions.shape))
        rows = jnp.take(self.P, flat, axis=0).reshape(*positions.shape, self.n_in)
        return jnp.broadcast_to(rows, x.shape)
