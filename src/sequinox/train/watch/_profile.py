"""What a training step costs on the device at hand."""

import dataclasses
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, PyTree

from ..._checks import check_key, size, wide
from ..._layer import SequenceLayer
from ..._types import PRNGKey
from ..data._batches import Batch
from ..data._ragged import Padded
from ..data._sequence_batch import SequenceBatch
from ..losses._total import Total
from ..step._gradients import GradientFunction, Objective
from ..step._state import init_train_state
from ..step._step import make_step
from ._flops import Flops, count_flops, matmul_peak, run_seconds
from ._memory import MemoryEstimate, estimate, si


class ProgramCost(NamedTuple):
    """What one compiled program costs.

    Attributes:
        seconds: of one run, the median.
        compile_seconds: for tracing and compiling it.
        flops: floating-point operations in its matrix products and convolutions, two for a product and its addition.
        uncounted: names of instructions in which there may be more: a `while` loop is counted once, as nobody knows how
            often it runs; a kernel written by hand not at all.
    """

    seconds: float
    compile_seconds: float
    flops: int
    uncounted: tuple[str, ...]

    @property
    def flops_per_second(self) -> float:
        """Operations a second."""
        return self.flops / self.seconds


class ProgramMemory(NamedTuple):
    """Bytes that XLA asks for, to run a program.

    Attributes:
        arguments: what it reads. Of a training step: weights, optimiser state, the batch.
        outputs: what it returns.
        reused: the part of the outputs that is written over arguments (donated).
        temporary: what it needs meanwhile, states and gradients among it.
    """

    arguments: int
    outputs: int
    reused: int
    temporary: int

    @property
    def total(self) -> int:
        """All of them, what is reused counted once."""
        return self.arguments + self.outputs - self.reused + self.temporary


class Profile(NamedTuple):
    """What a training step costs. `print` shows a table.

    Attributes:
        forward: the model alone, or the objective without its gradient where one was given; None for a
            `GradientFunction`, which has no such part.
        step: one training step, of the loss, its gradient and the update.
        peak: operations a second of the device in square matrix products of that dtype, the best of a few sizes.
        memory: of the step, as XLA plans it; None where the backend does not say.
        estimate: of the step, by formula (`memory_estimate`); None where the model is no sequence layer, or does not
            read the batch's inputs as they are.
        device: its kind.
        dtype: of most of the step's products.
    """

    forward: ProgramCost | None
    step: ProgramCost
    peak: float
    memory: ProgramMemory | None
    estimate: MemoryEstimate | None
    device: str
    dtype: str

    def __str__(self) -> str:
        costs = {"forward": self.forward, "training step": self.step}
        named = {name: cost for name, cost in costs.items() if cost is not None}
        shown = named.values()
        rows = [
            (f"{self.device}, {self.dtype}", *named),
            ("time", *(si(c.seconds, "s") for c in shown)),
            ("compilation", *(si(c.compile_seconds, "s") for c in shown)),
            ("products", *(("at least " if c.uncounted else "") + si(c.flops, "FLOP") for c in shown)),
            ("rate", *(si(c.flops_per_second, "FLOP/s") for c in shown)),
            (f"of the peak, {si(self.peak, 'FLOP/s')}", *(f"{c.flops_per_second / self.peak:.1%}" for c in shown)),
        ]
        hidden = sorted({name for c in shown for name in c.uncounted})
        lines = _aligned(rows) + ([f"more may be in: {', '.join(hidden)}"] if hidden else [])
        by_formula = [] if self.estimate is None else [*self.estimate._asdict().items(), ("total", self.estimate.total)]
        by_xla = [] if self.memory is None else [*self.memory._asdict().items(), ("total", self.memory.total)]
        columns = [
            [(title, ""), *((name, si(n, "B")) for name, n in column)]
            for title, column in (("memory by formula", by_formula), ("memory by XLA", by_xla))
            if column
        ]
        height = max(map(len, columns), default=0)
        # Totals are in one line, the last.
        filled = [[*c[:-1], *[("", "")] * (height - len(c)), c[-1]] for c in columns]
        table = _aligned([tuple(cell for pair in row for cell in pair) for row in zip(*filled, strict=True)])
        return "\n".join(lines + (["", *table] if table else []))


def profile(
    model: PyTree,
    batch: PyTree,
    *,
    objective: Objective | None = None,
    optimiser: optax.GradientTransformation | None = None,
    carry: PyTree = None,
    repeats: int = 10,
    key: PRNGKey | None = None,
) -> Profile:
    """Measures what a training step of a model costs: time, compilation, operations, memory.

    The step is `make_step`'s, with the state donated as in `fit`. It runs on a copy of the model, on the device where
    the model lies; the batch lies there too before the clock starts. The model trains or infers as it is given: dropout
    is on unless `eqx.nn.inference_mode` has turned it off.

    Operations are those of matrix products and convolutions, counted in the traced program. (XLA's own count takes the
    body of a loop once, however often it runs, and so misses nearly all of a recurrent layer.) Attention counts every
    pair of samples, masked ones too. The peak is measured, not looked up: the share of it says how much faster any
    code could be that does these products.

    Arguments:
        model: a sequence layer; with an `objective`, any PyTree.
        batch: a `SequenceBatch`, a `Padded`, a pair `(inputs, mask)`, or inputs alone, `(*batch, time, n_in)`; with an
            `objective`, whatever that takes.
        objective: `objective(model, batch, key) -> (loss, metrics)`, or a `GradientFunction`, as for `make_step`.
            Default: the mean square of the outputs, in the place of a loss.
        optimiser: an optax transformation. Default: Adam.
        carry: what the objective takes as its fourth argument, as in `init_train_state`. Default: it takes three.
        repeats: timed runs, after one that is not timed; the median counts. Default: 10.
        key: PRNG key. Default: a fixed one, as times do not depend on it.

    Returns:
        `Profile(forward, step, peak, memory, estimate, device, dtype)`.

    Raises:
        TypeError: `model` is no sequence layer, or `batch` none of the kinds above, and there is no `objective`;
            `repeats` is not an integer.
        ValueError: `repeats` is below 1; `model` has nothing to train, or lies on several devices; `batch` does not fit
            the model.

    ??? example

        ```python
        >>> import jax, jax.numpy as jnp, sequinox as sqx
        >>> from sequinox.train import profile
        >>> report = profile(sqx.LSTM(3, 5, jax.random.key(0)), jnp.ones((7, 4, 3)), repeats=1)
        >>> report.forward.flops == 2 * (7 * 4) * (4 * 5) * (5 + 3)  # rows, samples, gates, what they read
        True
        >>> report.estimate.states == 4 * (7 * 4) * (5 + 5)  # bytes, rows, samples, y and c
        True

        ```
    """
    who = "profile"
    repeats = size(repeats, who, "repeats")
    key = jax.random.key(0) if key is None else check_key(key, who)
    weights = jax.tree.leaves(eqx.filter(model, eqx.is_inexact_array))
    if not weights:
        raise ValueError(f"{who}: model has no floating or complex array to train")
    devices = {device for leaf in weights for device in leaf.devices()}
    if len(devices) > 1:
        raise ValueError(f"{who}: model must lie on one device, got {len(devices)}")
    device = devices.pop()
    read = _read(batch)
    if objective is None:
        if not isinstance(model, SequenceLayer):
            raise TypeError(f"{who}: without an objective, model must be a sequence layer, got {type(model).__name__}")
        if read is None:
            raise TypeError(
                f"{who}: without an objective, batch must be a SequenceBatch, a Padded, a pair (inputs, mask) or an "
                f"array of inputs, got {type(batch).__name__}"
            )
        if carry is not None:
            raise ValueError(f"{who}: a carry needs an objective that takes it")
    optimiser = optax.adam(1e-3) if optimiser is None else optimiser
    numbers, others = eqx.partition(batch if objective is not None else read, eqx.is_array_like)
    numbers = jax.device_put(numbers, device)

    arrays, static = eqx.partition(model, eqx.is_array)
    run_model = _outputs if objective is None else objective
    forward = None

    # The key is an argument, or XLA would draw at compile time.
    def run_forward(arrays: Any, numbers: Any, key: Any, *carry: Any) -> Any:
        return run_model(eqx.combine(arrays, static), eqx.combine(numbers, others), key, *carry)

    if not isinstance(objective, GradientFunction):
        arguments = (arrays, numbers, key) if carry is None else (arrays, numbers, key, carry)
        run, compile_seconds, flops, _ = _compile(run_forward, *arguments)
        seconds = _median(lambda: run(*arguments), repeats)
        forward = ProgramCost(seconds, compile_seconds, flops.number, flops.uncounted)

    step = make_step(optimiser, _stand_in if objective is None else objective)
    state, rest = eqx.partition(init_train_state(model, optimiser, key, carry), eqx.is_array)

    def take_step(state: Any, numbers: Any) -> Any:
        new, report = step(eqx.combine(state, rest), eqx.combine(numbers, others))
        return eqx.filter(new, eqx.is_array), report

    train, compile_seconds, flops, memory = _compile(take_step, state, numbers, donate=True)

    def run_step() -> Any:
        nonlocal state
        state, report = train(state, numbers)
        return state, report

    seconds = _median(run_step, repeats)
    sizes = flops.by_dtype or {leaf.dtype: leaf.size for leaf in weights}
    dtype = max(sizes, key=lambda dtype: sizes[dtype])
    return Profile(
        forward=forward,
        step=ProgramCost(seconds, compile_seconds, flops.number, flops.uncounted),
        peak=matmul_peak(device, dtype),
        memory=memory,
        estimate=_estimate(model, read, optimiser),
        device=device.device_kind,
        dtype=str(dtype),
    )


def _estimate(
    model: Any, batch: SequenceBatch | None, optimiser: optax.GradientTransformation
) -> MemoryEstimate | None:
    if batch is None or not isinstance(model, SequenceLayer):
        return None
    inputs: Any = jax.eval_shape(jnp.asarray, batch.inputs)
    try:
        return estimate(model, inputs, optimiser)
    except (TypeError, ValueError):  # an objective may make something else of them before the model reads it
        return None


def _read(batch: Any) -> SequenceBatch | None:
    """What of a batch a model reads; None if it is none of this library's."""
    array = lambda a: isinstance(a, jax.Array | np.ndarray)
    if isinstance(batch, SequenceBatch):
        return dataclasses.replace(batch, targets=None, real=None) if array(batch.inputs) else None
    if isinstance(batch, Batch):  # its first may be anything
        return None
    if array(batch):
        return SequenceBatch(batch, None, None, None, None)
    if isinstance(batch, Padded | tuple | list) and len(batch) == 2 and array(batch[0]):
        return SequenceBatch(batch[0], None, batch[1], None, None)
    return None


def _outputs(model: Any, batch: SequenceBatch, key: Any) -> Array:
    return model(batch.inputs, mask=batch.mask, resets=batch.resets, key=key)


def _stand_in(model: Any, batch: SequenceBatch, key: Any) -> tuple[Total, dict[str, Total]]:
    ys = _outputs(model, batch, key)
    squares = jnp.square(jnp.abs(ys))
    return Total(jnp.sum(squares, dtype=wide(squares.dtype)), jnp.asarray(ys.size)), {}


def _compile(
    run: Callable[..., Any], *arguments: Any, donate: bool = False
) -> tuple[Any, float, Flops, ProgramMemory | None]:
    """The compiled program, how long that took, its operations and memory."""
    start = time.perf_counter()
    traced = jax.jit(run, donate_argnums=0 if donate else ()).trace(*arguments)
    compiled = traced.lower().compile()
    seconds = time.perf_counter() - start
    asked = compiled.memory_analysis()
    memory = asked and ProgramMemory(
        asked.argument_size_in_bytes, asked.output_size_in_bytes, asked.alias_size_in_bytes, asked.temp_size_in_bytes
    )
    return compiled, seconds, count_flops(traced.jaxpr), memory


def _median(run: Callable[[], Any], repeats: int) -> float:
    return statistics.median(run_seconds(run, repeats))


def _aligned(rows: list[tuple[str, ...]]) -> list[str]:
    """Columns of text, the even ones of names on the left, numbers on the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    names = (0, 2) if len(widths) == 4 else (0,)
    pad = lambda i, cell: f"{cell:<{widths[i]}}" if i in names else f"{cell:>{widths[i]}}"
    return ["  ".join(pad(i, cell) for i, cell in enumerate(row)).rstrip() for row in rows]
