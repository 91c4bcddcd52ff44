"""Mixed precision: half where the work is, single where sums grow."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import PyTree

from ..._precision import cast
from ..._types import DType
from ._gradients import GradientFunction, Objective, call_objective


def mixed_precision(
    objective: Objective, dtype: DType = jnp.bfloat16, *, inputs: Callable[[Any], Any] | None = None
) -> Objective:
    """An objective that computes in half precision, while parameters, gradients and the optimiser stay in single.

    The model is [cast][sequinox.cast] on its way into the objective, and its gradient comes back in the parameters' own
    dtype. Losses of this package sum in float32, and layers that add up over time (averages, slow recurrences) keep
    their states in float32 whatever they read, and the poles and decays that make these slow: rounded, they would be
    another filter than the one that is evaluated. Modules of your own name such arrays with
    [`KEEPS_FLOAT32`][sequinox.KEEPS_FLOAT32]. Targets are not touched: a number to be predicted has no digits to spare.

    Arguments:
        objective: as of `make_step`, with or without a carry. The carry must be in the dtype that the layer returns:
            `model.init_state(batch, dtype)`.
        dtype: of the computation. Default: bfloat16, which has the range of float32, so that nothing needs scaling.
            float16 is refused: gradients below 6e-8 vanish in it.
        inputs: `inputs(batch)` selects what is also cast, as in `equinox.tree_at`. Default: `batch.inputs` where the
            batch has that field (`SequenceBatch`), nothing otherwise. Floating arrays are cast, tokens are not.

    Returns:
        An objective of the same form, for `make_step`, `accumulate` or `truncated_bptt`.

    Raises:
        TypeError: `objective` is not a plain objective.
        ValueError: `dtype` is not bfloat16, float32 or float64.

    Source: [Micikevicius et al. 2018](https://arxiv.org/abs/1710.03740), section 3.1 (a single-precision master copy).

    ??? example

        ```python
        >>> import jax, jax.numpy as jnp, sequinox as sqx
        >>> from sequinox.train import GradientFunction, mixed_precision, squared_error
        >>> def objective(model, batch, key):
        ...     ys = model(batch["x"])
        ...     return squared_error(ys, batch["y"].astype(ys.dtype)), {}
        >>> batch = {"x": jnp.ones((2, 5, 3)), "y": jnp.zeros((2, 5, 4))}
        >>> half = mixed_precision(objective, inputs=lambda batch: batch["x"])
        >>> got = GradientFunction(half)(sqx.GRU(3, 4, jax.random.key(0)), batch, None)
        >>> str(got.loss.total.dtype), str(got.grads.W.dtype)
        ('float32', 'float32')

        ```
    """
    if not callable(objective) or isinstance(objective, GradientFunction):
        raise TypeError(
            f"mixed_precision: objective must be a plain objective, got {type(objective).__name__}; put it inside: "
            "accumulate(mixed_precision(...), n)"
        )
    dtype = jnp.dtype(dtype)
    if dtype not in (jnp.bfloat16, jnp.float32, jnp.float64):
        raise ValueError(f"mixed_precision: dtype must be bfloat16, float32 or float64, got {dtype}")

    def lowered(model: PyTree, batch: Any, key: Any, *carry: PyTree) -> Any:
        select = inputs
        if select is None and hasattr(batch, "inputs"):
            select = lambda batch: batch.inputs
            if getattr(batch, "static", None) is not None:
                select = lambda batch: (batch.inputs, batch.static)
        if select is not None:
            batch = eqx.tree_at(select, batch, replace=cast(select(batch), dtype))
        return call_objective(objective, cast(model, dtype), batch, key, *carry)

    return lowered
