"""The training loop."""

import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeAlias

import jax
import numpy as np
import optax
from jax.experimental import multihost_utils
from jaxtyping import PyTree

from ..._checks import size
from ..._types import PRNGKey
from ..step._average import averaged_model
from ..step._gradients import Objective
from ..step._parallel import DataParallel
from ..step._state import M, TrainState, begin
from ..step._step import CompiledStep
from ._batch_stream import BatchStream
from ._interrupt import Interrupt, catch_interrupts
from ._progress import progress_bar
from ._run import Run
from ._schedule import Schedule
from ._stopping import StopRule

Callback: TypeAlias = Callable[[int, dict[str, Any], TrainState], Any]

# Steps between checkpoints if nothing is said: a kill loses minutes of short steps, and a save (about 50 ms of the
# loop for a small network) is lost among them.
_SAVE_EVERY = 5000


class _Result(NamedTuple):
    state: TrainState
    history: list[dict[str, Any]]
    interrupted: bool
    stopped: bool = False


class FitResult(_Result, Generic[M]):  # in two classes, as beartype refuses a generic NamedTuple
    """What a run comes to, a named tuple.

    Attributes:
        state: the last `TrainState`.
        history: the lines of `metrics.jsonl`, those before a resume included.
        interrupted: a signal stopped the run before its last step.
        stopped: the rule `stop` ended the run before its last step.
    """

    @property
    def model(self) -> M:
        """The trained model, as after the last step (not the best; that is in the checkpoints)."""
        return self.state.model

    @property
    def averaged(self) -> M:
        """The model with its parameters averaged, if the optimiser is `with_average`; else the model."""
        return averaged_model(self.state)


def fit(
    model: M,
    optimiser: optax.GradientTransformation,
    objective: Objective,
    batches: Iterable[Any],
    *,
    steps: int,
    key: PRNGKey,
    carry: PyTree = None,
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
    keep_best: int = 1,
    callbacks: Sequence[Callback] = (),
    stop: StopRule | None = None,
    parallel: DataParallel | None = None,
    progress: bool = True,
) -> FitResult[M]:
    """Trains a model, with metrics, evaluation and checkpoints; a run stopped anywhere resumes to the same numbers.

    Each piece serves in a loop of your own as well: `make_step`, `MetricsLog`, `Checkpoints`, `catch_interrupts`.

    **Files.** `out_dir/metrics.jsonl` gets a line every `log_every` steps: `train/loss` and the objective's
    metrics as exact means over the steps since the last such line, `train/grad_norm` before clipping, the share of
    steps that were `train/clipped`, `train/steps` and `train/skipped`. What `evaluate` returns is `eval/NAME` in
    the line of its step. After the last step whatever is still due gets a line. No wall-clock time is logged.
    `out_dir/checkpoints/` holds the last `keep_last` checkpoints and the best `keep_best`, written in the background.

    **The device is not waited for.** Two steps are always under way. A line is written two steps after it is due,
    when its numbers are there; only evaluation, a checkpoint, `stop` and a `best` of the training need them at once.

    **Resuming.** State, data position and half-summed metrics come from the last checkpoint, and the lines
    after it are cut: SIGKILL at any moment, then `resume=True`, ends with the same weights bit for bit and the
    same `metrics.jsonl` byte for byte. `steps` may be raised; `config`, `key`, `clip_norm`, `log_every`,
    `evaluate_every` and what the model is apart from its arrays must be those of the run, and so must be
    the data, of which the sources of this package keep a hash. Optimiser and objective are functions and cannot be
    compared: keep what they depend on in `config`. A directory that another process is writing to is refused.

    **Signals.** At SIGINT (Ctrl-C) or SIGTERM the step in hand is finished and saved, then the signal is passed
    on: SIGINT raises KeyboardInterrupt, SIGTERM SystemExit(143); a handler of the caller's is called, and if it
    returns, `fit` returns with `interrupted`. The last line that is then seen says at which step the run was stopped,
    where it is saved, and how to continue: it is the KeyboardInterrupt's message (`str(error)`), and at SIGTERM a line
    on stderr. A second Ctrl-C does not wait.

    **Several processes.** After `jax.distributed.initialize` every process calls `fit` with the same arguments, its own
    part of the data and `parallel=DataParallel()`. The first writes the log; all write one checkpoint into one
    `out_dir` that all can see. A signal to any of them stops all, at the next line that is due.

    Arguments:
        model: any PyTree; its floating and complex arrays are trained. It is copied, never changed.
        optimiser: an optax transformation.
        objective: `objective(model, batch, key) -> (loss, metrics)`, the loss a `Total(sum, count)` and metrics a
            dictionary of them. Plain numbers will do: each counts once a step, where a `Total` counts its entries. So
            do the loss alone and an objective without `key`. With a carry
            `objective(model, batch, key, carry) -> (loss, metrics, carry)`; or a `GradientFunction`. See `make_step`.
        batches: what yields batches of one shape: `Batches`, grain's `DatasetIterator` or any other iterator
            with `get_state` and `set_state`, or a plain iterable. One that can be iterated again (a list) starts
            again at its end. A plain iterable cannot return its position, so it cannot be combined with
            `resume=True`: data that restart silently would make another run.
        steps: steps of the whole run, those before a resume included.
        key: a PRNG key; step n of the objective gets `fold_in(key, n)`.
        carry: what the objective carries from batch to batch, as it is before the first, such as
            `model.init_state(batch_size)`. With the windows of long rows as batches this is truncated BPTT. Default:
            nothing is carried.
        out_dir: for metrics and checkpoints. Default: none are written, and the run cannot be resumed.
        evaluate: `evaluate(model) -> {name: number or Total}`, given the model in inference mode, its parameters
            averaged if the optimiser is `with_average`. Its arrays may be overwritten by the next step: copy what
            is to be kept.
        evaluate_every: steps between evaluations; one more is made after the last step. Default: only that one.
        save_every: steps between checkpoints; one more is made after the last step, and one where `evaluate` raises.
            `best` also saves what it keeps. Default: `evaluate_every`, without that 5,000.
        log_every: steps between lines. Default: 50.
        clip_norm: global norm above which gradients are scaled down. Default: none; recurrent networks want about 1.
        resume: continue from the last checkpoint in `out_dir`, or start if there is none.
        config: JSON-able, kept in every checkpoint. Resuming with another one is refused, except for a key `"steps"`.
        best: a metric (`"train/loss"`, `"eval/accuracy"`) by which the best checkpoint is kept beside the last.
            Whatever `save_every` is, a step at which it is measured (a line, an evaluation) is saved if it is one of
            the best `keep_best` so far; of equal ones the latest is kept, NaN never. For a metric of the training the
            device is waited for at each line, and while a loss falls each line is saved: give it a large `log_every`.
        best_mode: `"min"` or `"max"`.
        keep_last: how many of the latest checkpoints are kept.
        keep_best: how many of the best.
        callbacks: functions `(step, values, state)`, called for every line as it is written: its step, its metrics by
            name, and the train state at that moment, which may be two steps further (`state.step` says). Its arrays are
            overwritten by the next step. One with a method `begin(history)` first gets the lines that a resumed
            run already has. [`TensorBoard`][sequinox.train.TensorBoard] is one.
        stop: `stop(history) -> bool`, asked after every line; True ends the run there, as if `steps` had been reached.
            See [`early_stopping`][sequinox.train.early_stopping]. It should read nothing but the history: so a
            resumed run ends where an unbroken one does.
        parallel: the devices that share the work. Default: one.
        progress: show tqdm's bar with rate, loss and remaining time, if tqdm is installed and stderr is a terminal or a
            notebook: a file that collects it gets no bar.

    Returns:
        `FitResult(state, history, interrupted, stopped)`.

    Raises:
        TypeError: `config` is not JSON-able; the objective or `evaluate` returns something else.
        ValueError: a wrong argument; `out_dir` holds a run and `resume` is False; what it holds does not fit
            this run; `batches` ends early.
        OSError: `out_dir` cannot be written to; before the first step.

    ??? example

        ```python
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

        ```
    """
    take_step = CompiledStep(optimiser, objective, clip_norm=clip_norm, donate=True, parallel=parallel, who="fit")
    every = lambda value, name: None if value is None else size(value, "fit", name)
    evaluate_every = every(evaluate_every, "evaluate_every")
    schedule = Schedule(
        steps=size(steps, "fit", "steps"),
        log_every=size(log_every, "fit", "log_every"),
        evaluate_every=evaluate_every,
        save_every=every(save_every, "save_every") or evaluate_every or _SAVE_EVERY,
        evaluates=evaluate is not None,
    )
    stream = BatchStream(batches)
    _check_best(best, evaluate, out_dir)
    _check_resume(resume, out_dir, stream, batches)
    _check_calls(callbacks, stop, evaluate)
    state = begin("fit", model, optimiser, key, carry)
    if parallel is not None:
        state = parallel.place_state(state)

    run = Run(
        None if out_dir is None else Path(out_dir),
        stream,
        schedule,
        evaluate=evaluate,
        callbacks=callbacks,
        stop=stop,
        resume=resume,
        config=config,
        settings={
            "clip_norm": None if clip_norm is None else float(clip_norm),
            "log_every": schedule.log_every,
            "evaluate_every": schedule.evaluate_every,
        },
        best=best,
        best_mode=best_mode,
        keep_last=keep_last,
        keep_best=keep_best,
    )
    # Whether a line is read as soon as it is due: by the rule, or to know if its step is kept.
    reads_lines = stop is not None or (best is not None and best.startswith("train/"))
    with contextlib.closing(run), catch_interrupts() as interrupt:
        run.begin(state)
        del state  # its buffers are given to the first step
        stopped, interrupted = run.should_stop(), False
        with progress_bar(schedule.steps, run.step, progress and jax.process_index() == 0) as run.bar:
            if run.step > 0 and not stopped:
                stopped = run.catch_up()
            while run.step < schedule.steps and not stopped and not interrupted:
                batch = run.next_batch()
                run.advance(*take_step(run.skeleton, run.arrays, batch))
                due = schedule.at(run.step)
                interrupted = _interrupted(interrupt, due.line)
                if due.evaluation or (due.line and (due.save or interrupted or reads_lines)):
                    stopped = run.measure(due)
                elif due.line:
                    run.log.end_line(run.step)
                run.tell_finished()
                if (due.save or run.is_among_best()) and run.step < schedule.steps and not interrupted and not stopped:
                    run.save()
            interrupted = interrupted and run.step < schedule.steps
            run.finish(interrupted)
    if interrupt:
        _deliver(interrupt, _last_words(run.step, schedule.steps, out_dir))
    return FitResult(run.state, run.log.history, interrupted, stopped and run.step < schedule.steps)


def _last_words(step: int, steps: int, out_dir: str | os.PathLike[str] | None) -> str:
    """What is to be known of a run that a signal has ended."""
    stopped = f"fit: stopped at step {step} of {steps}" if step < steps else f"fit: finished at step {step}"
    if out_dir is None:
        return f"{stopped}; nothing is saved, as there is no out_dir"
    return f"{stopped}, saved in {os.fspath(out_dir)}" + ("; resume=True continues from there" if step < steps else "")


def _deliver(interrupt: Interrupt, line: str) -> None:
    """Passes the signal on. If that ends the program, its last words are `line`."""
    try:
        interrupt.deliver()
    except KeyboardInterrupt:
        raise KeyboardInterrupt(line) from None
    except SystemExit:  # of which Python prints nothing
        if jax.process_index() == 0:
            print(line, file=sys.stderr, flush=True)
        raise


def _interrupted(interrupt: Interrupt, agreed: bool) -> bool:
    """Whether a signal came; in several processes, whether one came to any of them, which is asked only if `agreed`."""
    if jax.process_count() == 1:
        return bool(interrupt)
    return agreed and bool(np.any(multihost_utils.process_allgather(np.array(bool(interrupt)))))


def _check_best(best: str | None, evaluate: Any, out_dir: Any) -> None:
    if best is None:
        return
    if not best.startswith(("train/", "eval/")):
        raise ValueError(f"fit: best must name a metric as 'train/NAME' or 'eval/NAME', got {best!r}")
    if best.startswith("eval/") and evaluate is None:
        raise ValueError(f"fit: best={best!r} needs evaluate")
    if out_dir is None:
        raise ValueError(f"fit: best={best!r} needs out_dir, to keep that checkpoint in")


def _check_resume(resume: bool, out_dir: Any, stream: BatchStream, batches: Any) -> None:
    if resume and out_dir is None:
        raise ValueError("fit: resume=True needs out_dir, the directory of the run to continue")
    if resume and not stream.has_state:
        raise ValueError(
            "fit: resume=True needs batches whose position can be restored, an iterator with get_state and "
            f"set_state (Batches, grain's DatasetIterator); {type(batches).__name__} has none, and its data would "
            "restart silently"
        )


def _check_calls(callbacks: Any, stop: Any, evaluate: Any) -> None:
    if not isinstance(callbacks, (list, tuple)) or not all(map(callable, callbacks)):
        raise TypeError(f"fit: callbacks must be a list of functions (step, values, state), got {callbacks!r}")
    if stop is not None and not callable(stop):
        raise TypeError(f"fit: stop must be a function of the history, such as early_stopping(...), got {stop!r}")
    metric = getattr(stop, "metric", None)
    if metric is not None and metric.startswith("eval/") and evaluate is None:
        raise ValueError(f"fit: stop reads {metric!r}, which needs evaluate")
