"""Dropout on recurrent connections, the same at every step of a sequence."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.extend.core import get_opaque_trace_state
from jaxtyping import Array

from .._checks import check_rate, flag
from .._dropout import draw_kept, dropped
from .._layer import select
from .._types import DType
from ._cell import RecurrentCell
from ._cell_wrapper import CellWrapper, Noise, check_cell, watch
from ._plan import Affine, Term, affine as plain_affine

Uses = tuple[tuple[bool, ...], ...]
"""For every use of `affine` in a transition, which of its vectors depend on the state."""


class RecurrentDropoutState(NamedTuple):
    """The state of the cell inside; which units are kept, bool `"*batch width"`, an array for each width of recurrent
    vectors; and whether that has been drawn, bool `"*batch"`."""

    cell: Any
    kept: tuple[Array, ...]
    drawn: Array


class RecurrentDropout(CellWrapper[RecurrentDropoutState]):
    r"""Variational dropout on the recurrent connections of a cell: one mask for a whole sequence.

    $$
    \hat h_{t-1} = \frac{z \odot h_{t-1}}{1 - p} \qquad z \in \{0, 1\}^n,\ P(z_j = 0) = p
    $$

    takes the place of $h_{t-1}$ in the cell's matrix products, as in $W x_t + U \hat h_{t-1} + b$: the same $z$ in all
    gates and at every step. What is not multiplied by a matrix is left alone: an update gate still passes all of
    $h_{t-1}$ on. Every vector that depends on the state is dropped where it meets a matrix, also one that is computed
    from it on the way, such as the GRU's $r \odot h_{t-1}$; all of one width share a mask. The sample, and what is made
    of it alone, is not.

    A row's mask is drawn at the first sample after its start or reset, from the `key` of that call, and kept in the
    state, [`RecurrentDropoutState`][sequinox.RecurrentDropoutState]: so stretches and steps of one sequence
    share it. In inference the cell is as it is, and nothing is drawn.

    Source: [Gal and Ghahramani 2016](https://arxiv.org/abs/1512.05287), section 4. The mask is tied over gates, as
    there. The division by $1 - p$ is ours, so that inference needs none. For the paper's masks on inputs and outputs
    put [`VariationalDropout`][sequinox.VariationalDropout] before and after it.

    ??? example

        ```python
        >>> import jax, jax.numpy as jnp, sequinox as sqx
        >>> cell = sqx.RecurrentDropout(sqx.GRU(3, 5, jax.random.key(0)), 0.25)
        >>> ys, state = cell.unroll(jnp.ones((2, 7, 3)), key=jax.random.key(1))
        >>> ys.shape, state.kept[0].shape, state.drawn.tolist()
        ((2, 7, 5), (2, 5), [True, True])

        ```
    """

    cell: RecurrentCell
    inference: bool
    p: float = eqx.field(static=True)
    widths: tuple[int, ...] = eqx.field(static=True)
    recurrent: Uses = eqx.field(static=True)

    def __init__(self, cell: RecurrentCell, p: float = 0.5, *, inference: bool = False):
        """
        Arguments:
            cell: any recurrent cell that applies a matrix to something that depends on its state.
            p: the probability that a unit is dropped, in [0, 1).
            inference: whether it is off; `equinox.nn.inference_mode` turns it.

        Raises:
            TypeError, ValueError: for what is no recurrent cell, or one without recurrent products; if `p` is not in
                [0, 1). On a call in training without a key, if `p` is not 0.
        """
        self.cell = check_cell(cell, "RecurrentDropout")
        self.p = check_rate(p, "RecurrentDropout", "p")
        self.inference = flag(inference, "RecurrentDropout", "inference")
        self.recurrent, self.widths = _look(cell)

    @property
    def _draws(self) -> bool:
        return self.p > 0

    @property
    def receptive_field(self) -> int | None:
        """That of the cell inside."""
        return self.cell.receptive_field

    def _draw(self, key: Array, axes: tuple[int, ...], dtype: DType) -> tuple[Array, ...]:
        keys = jax.random.split(key, len(self.widths))
        return tuple(draw_kept(k, self.p, (*axes, n)) for k, n in zip(keys, self.widths, strict=True))

    def start(self, dtype: DType) -> RecurrentDropoutState:
        """That of the cell, and no mask yet."""
        kept = tuple(jnp.ones(n, bool) for n in self.widths)
        return RecurrentDropoutState(self.cell.start(dtype), kept, jnp.zeros((), bool))

    def transition(
        self, affine: Affine, x: Array, state: RecurrentDropoutState, noise: Noise | None = None
    ) -> tuple[Array, RecurrentDropoutState]:
        """One sample: the cell's, with its recurrent vectors dropped."""
        inside, kept, drawn = state
        if noise is not None and noise.own is not None:
            kept, drawn = select(drawn, kept, noise.own), jnp.ones_like(drawn)
            affine = self._dropping(affine, kept)
        y, inside = self._run_inside(affine, x, inside, noise)
        return y, RecurrentDropoutState(inside, kept, drawn)

    def _dropping(self, affine: Affine, kept: tuple[Array, ...]) -> Affine:
        """`affine` with recurrent vectors dropped: the same object for the same vector, by which the engine groups."""
        uses = iter(self.recurrent)
        masks = dict(zip(self.widths, kept, strict=True))
        done: list[tuple[Array, Array]] = []

        def drop(v: Array) -> Array:
            for before, after in done:
                if before is v:
                    return after
            done.append((v, dropped(masks[v.shape[0]], v, self.p)))
            return done[-1][1]

        def product(*terms: Term) -> Array:
            flags = iter(next(uses))
            return affine(*((t[0], drop(t[1]) if next(flags) else t[1]) if isinstance(t, tuple) else t for t in terms))

        return product


def _look(cell: RecurrentCell) -> tuple[Uses, tuple[int, ...]]:
    """Which vectors that a cell hands to `affine` depend on its state, and of what widths they are."""
    numbers: list[int] = []

    def vectors(transition: Any, x: Array, state: Any) -> list[Array]:
        found: list[Array] = []
        trace = get_opaque_trace_state(convention="flax")

        def note(*terms: Term) -> Array:
            if get_opaque_trace_state(convention="flax") != trace:
                raise ValueError(
                    f"RecurrentDropout: {type(cell).__name__} uses affine inside another transformation "
                    "(scan, cond, jit, checkpoint), where its vectors cannot be followed"
                )
            pairs = [t for t in terms if isinstance(t, tuple)]
            numbers.append(len(pairs))
            found.extend(v for _, v in pairs)
            return plain_affine(*terms)

        transition(note, x, state)
        return found

    jaxpr = watch(cell, vectors)
    reached = {id(v) for v in jaxpr.invars[1:]}  # the first is the sample
    for eqn in jaxpr.eqns:
        if any(id(v) in reached for v in eqn.invars):
            reached.update(id(v) for v in eqn.outvars)
    widths = {v.aval.shape[0] for v in jaxpr.outvars if id(v) in reached}
    if not widths:
        raise ValueError(f"RecurrentDropout: {type(cell).__name__} applies no matrix to its state: nothing to drop")
    flags = iter([id(v) in reached for v in jaxpr.outvars])
    return tuple(tuple(next(flags) for _ in range(n)) for n in numbers), tuple(sorted(widths))
