"""The training loop."""

import collections
import contextlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import numpy as np
import optax
from jaxtyping import PyTree

from ._interrupt import catch_interrupts
from ._progress import progress_bar
from ._run import Run
from ._state import Objective, TrainState, init_train_state, make_step
from ._stream import Stream

# Steps handed to the device before the loop waits: one running, one queued. More would only pile up batches.
_IN_FLIGHT = 2


class FitResult(NamedTuple):
    """What a run comes to.

    Attributes:
        state: the last `TrainState`.
        history: the lines of `metrics.jsonl`, those before a resume included.
        interrupted: a signal stopped the run before its last step.
    """

    state: TrainState
    history: list[dict[str, Any]]
    interrupted: bool

    @property
    def model(self) -> Any:
        """The trained model, as after the last step (not the best; that is in the checkpoints)."""
        return self.state.model


def fit(
    model: PyTree,
    optimiser: optax.GradientTransformation,
    objective: Objective,
    batches: Iterable[Any],
    *,
    steps: int,
    key: Any,
    out_dir: str | os.PathLike[str] | None = None,
    evaluate: Callable[[Any], dict[str, Any]] | None = None,
    evaluate_every: int | None = None,
    save_every: int | None = None,
    log_every: int = 50,
    clip_norm: float | None = None,
    resume: bool = False,
    config: dict[str, Any] | None = None,
    best: str | None = None,
    best_mode: str = "min",
    keep_last: int = 1,
    progress: bool = True,
) -> FitResult:
    """Trains a model, with metrics, evaluation and checkpoints; a run stopped anywhere resumes to the same numbers.

    Each piece serves in a loop of one's own as well: `make_step`, `MetricsLog`, `Checkpoints`, `catch_interrupts`.

    **Files.** `out_dir/metrics.jsonl` gets a line every `log_every` steps: `train/loss` and the objective's
    metrics as exact means over the steps since the last such line, `train/grad_norm` before clipping,
    `train/steps` and `train/skipped`. What `evaluate` returns stands as `eval/NAME` in the line of its step.
    After the last step whatever is still due gets a line. No time enters it. `out_dir/checkpoints/` holds the
    last `keep_last` checkpoints and the best.

    **Resuming.** State, data position and half-summed metrics come from the last checkpoint, and the lines
    after it are cut: SIGKILL at any moment, then `resume=True`, ends with the same weights bit for bit and the
    same `metrics.jsonl` byte for byte. `steps` may be raised; `config`, `key`, `clip_norm`, `log_every` and
    `evaluate_every` must be those of the run.

    **Signals.** At SIGINT (Ctrl-C) or SIGTERM the step in hand is finished and saved, then the signal is passed
    on: SIGINT raises KeyboardInterrupt, SIGTERM SystemExit(143); a handler of the caller's is called, and if it
    returns, `fit` returns with `interrupted`. A second Ctrl-C does not wait.

    Arguments:
        model: any PyTree; its floating and complex arrays are trained. It is copied, never changed.
        optimiser: an optax transformation.
        objective: `objective(model, batch, key) -> (loss, metrics)`, see `make_step`.
        batches: what yields batches of one shape: `Batches`, grain's `DatasetIterator` or any other iterator
            with `get_state` and `set_state`, or a plain iterable. One that can be iterated anew (a list) starts
            again at its end. A plain iterable cannot say where it stands, so it cannot be combined with
            `resume=True`: data that restart in silence would make another run.
        steps: steps of the whole run, those before a resume included.
        key: a PRNG key; step n of the objective gets `fold_in(key, n)`.
        out_dir: for metrics and checkpoints. Default: none are written, and the run cannot be resumed.
        evaluate: `evaluate(model) -> {name: number}`, given the model in inference mode. Its arrays may be
            overwritten by the next step: copy what is to be kept.
        evaluate_every: steps between evaluations; one more is made after the last step. Default: only that one.
        save_every: steps between checkpoints; one more is made after the last step. Default: `evaluate_every`.
        log_every: steps between lines. The device is waited for only then. Default: 50.
        clip_norm: global norm above which gradients are scaled down. Default: none; recurrent networks want about 1.
        resume: continue from the last checkpoint in `out_dir`, or start if there is none.
        config: JSON-able, kept in every checkpoint. Resuming with another one is refused, except for a key `"steps"`.
        best: a metric (`"train/loss"`, `"eval/accuracy"`) by which the best checkpoint is kept beside the last.
            It counts where it was measured at the very step that is saved.
        best_mode: `"min"` or `"max"`.
        keep_last: how many of the latest checkpoints are kept.
        progress: show tqdm's bar, if tqdm is installed.

    Returns:
        `FitResult(state, history, interrupted)`.

    Raises:
        TypeError: `config` is not JSON-able; the objective or `evaluate` returns something else.
        ValueError: a wrong argument; `out_dir` holds a run and `resume` is False; what it holds does not fit
            this run; `batches` ends early.
        OSError: `out_dir` cannot be written to; before the first step.

    Examples:
        >>> import equinox as eqx, jax, numpy as np, optax
        >>> from sequinox.train import Batches, fit, squared_error
        >>> x = np.linspace(-1, 1, 20, dtype=np.float32)[:, None]
        >>> def objective(model, batch, key):
        ...     x, y = batch.data
        ...     return squared_error(jax.vmap(model)(x), y, batch.real), {}
        >>> model = eqx.nn.Linear(1, 1, key=jax.random.key(0))
        >>> result = fit(model, optax.adam(0.1), objective, Batches((x, 2 * x), 8, seed=0), steps=100,
        ...              key=jax.random.key(1), progress=False)
        >>> bool(result.history[-1]["train/loss"] < 0.01)
        True
    """
    step_function = make_step(objective, optimiser, clip_norm=clip_norm, donate=True)
    evaluate_every, save_every = _every("evaluate_every", evaluate_every), _every("save_every", save_every)
    save_every = save_every or evaluate_every
    if _every("log_every", log_every) is None:
        raise ValueError("fit: log_every must be an integer from 1, got None.")
    if _every("steps", steps) is None:
        raise ValueError("fit: steps must be an integer from 1, got None.")
    stream = Stream(batches)
    _check_best(best, evaluate, out_dir)
    _check_resume(resume, out_dir, stream, batches)
    state = init_train_state(model, optimiser, key)

    run = Run(
        None if out_dir is None else Path(out_dir),
        stream,
        resume=resume,
        config=config,
        settings={"clip_norm": clip_norm, "log_every": log_every, "evaluate_every": evaluate_every},
        best=best,
        best_mode=best_mode,
        keep_last=keep_last,
    )
    with contextlib.closing(run), catch_interrupts() as interrupt:
        if resume:
            state = run.resume(state, steps)
        step = int(state.step)
        values: dict[str, Any] = {}  # measured at this very step
        in_flight: collections.deque[Any] = collections.deque()
        with progress_bar(steps, step, progress) as bar:
            while step < steps and not interrupt:
                try:
                    batch = next(stream)
                except StopIteration:
                    run.save(state, step, values)
                    raise ValueError(f"fit: batches ended after {step} of {steps} steps.") from None
                state, report = step_function(state, batch)
                step += 1
                run.log.add(report)
                in_flight.append(report.skipped)
                if len(in_flight) > _IN_FLIGHT:
                    in_flight.popleft().block_until_ready()
                bar.update()

                values = run.log.take() if step % log_every == 0 else {}
                if values:
                    bar.set_postfix(loss=values["train/loss"], refresh=False)
                if evaluate is not None and _due(step, evaluate_every):
                    values |= _evaluate(evaluate, state)
                if values:
                    run.check_measured(values)
                    run.log.write(step, values)
                if _due(step, save_every) and step < steps and not interrupt:
                    run.save(state, step, values)

        interrupted = step < steps
        log_state = run.log.get_state()
        last: dict[str, Any] = {}
        if not interrupted:
            last = run.log.take()
            if evaluate is not None and not _due(step, evaluate_every):
                last |= _evaluate(evaluate, state)
            run.check_measured(last)
        # The last line is not part of what is saved: resumed with more steps, a run goes on as if it had not stopped.
        run.save(state, step, values | last, log_state)
        if last:
            run.log.write(step, last)
    interrupt.deliver()
    return FitResult(state, run.log.history, interrupted)


def _due(step: int, every: int | None) -> bool:
    return every is not None and step % every == 0


def _every(name: str, value: Any) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
        raise ValueError(f"fit: {name} must be an integer from 1, got {value!r}.")
    return int(value)


def _check_best(best: str | None, evaluate: Any, out_dir: Any) -> None:
    if best is None:
        return
    if not best.startswith(("train/", "eval/")):
        raise ValueError(f"fit: best must name a metric as 'train/NAME' or 'eval/NAME', got {best!r}.")
    if best.startswith("eval/") and evaluate is None:
        raise ValueError(f"fit: best={best!r} needs evaluate.")
    if out_dir is None:
        raise ValueError(f"fit: best={best!r} needs out_dir, to keep that checkpoint in.")


def _check_resume(resume: bool, out_dir: Any, stream: Stream, batches: Any) -> None:
    if resume and out_dir is None:
        raise ValueError("fit: resume=True needs out_dir, the directory of the run to continue.")
    if resume and not stream.has_state:
        raise ValueError(
            "fit: resume=True needs batches whose position can be restored, an iterator with get_state and "
            f"set_state (Batches, grain's DatasetIterator); {type(batches).__name__} has none, and its data would "
            "restart in silence."
        )


def _evaluate(evaluate: Callable[[Any], dict[str, Any]], state: TrainState) -> dict[str, float]:
    values = evaluate(eqx.nn.inference_mode(state.model))
    if not isinstance(values, dict):
        raise TypeError(f"fit: evaluate must return a dict of numbers by name, got {type(values).__name__}.")
    numbers: dict[str, float] = {}
    for name, value in values.items():
        try:
            numbers[f"eval/{name}"] = float(value)
        except (TypeError, ValueError):
            raise TypeError(f"fit: evaluate must return numbers, got {value!r} for {name!r}.") from None
    return numbers
