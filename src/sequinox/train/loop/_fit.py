"""The training loop."""

import collections
import contextlib
import os
import sys
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
from jax.experimental import multihost_utils
from jaxtyping import PyTree

from ..losses._total import Total
from ..step._average import averaged_model
from ..step._state import TrainState, begin
from ..step._step import CompiledStep, split
from ._interrupt import Interrupt, catch_interrupts
from ._progress import progress_bar
from ._run import Run
from ._stream import Stream

# Steps handed to the device before the loop waits: one running, one queued. More would only pile up batches.
_IN_FLIGHT = 2
# Steps between checkpoints where nothing is said: a kill loses minutes of short steps, and a save (about 50 ms of the
# loop for a small network) is lost among them.
_SAVE_EVERY = 5000


class FitResult(NamedTuple):
    """What a run comes to.

    Attributes:
        state: the last `TrainState`.
        history: the lines of `metrics.jsonl`, those before a resume included.
        interrupted: a signal stopped the run before its last step.
        stopped: the rule `stop` ended the run before its last step.
    """

    state: TrainState
    history: list[dict[str, Any]]
    interrupted: bool
    stopped: bool = False

    @property
    def model(self) -> Any:
        """The trained model, as after the last step (not the best; that is in the checkpoints)."""
        return self.state.model

    @property
    def averaged(self) -> Any:
        """The model with its parameters averaged, where the optimiser is `with_average`; else the model."""
        return averaged_model(self.state)


def fit(
    model: PyTree,
    optimiser: Any,
    objective: Any,
    batches: Any,
    *,
    steps: Any,
    key: Any,
    carry: PyTree = None,
    out_dir: str | os.PathLike[str] | None = None,
    evaluate: Any = None,
    evaluate_every: Any = None,
    save_every: Any = None,
    log_every: Any = 50,
    clip_norm: Any = None,
    resume: bool = False,
    config: dict[str, Any] | None = None,
    best: str | None = None,
    best_mode: str = "min",
    keep_last: int = 1,
    keep_best: int = 1,
    callbacks: Any = (),
    stop: Any = None,
    parallel: Any = None,
    progress: bool = True,
) -> FitResult:
    """Trains a model, with metrics, evaluation and checkpoints; a run stopped anywhere resumes to the same numbers.

    Each piece serves in a loop of one's own as well: `make_step`, `MetricsLog`, `Checkpoints`, `catch_interrupts`.

    **Files.** `out_dir/metrics.jsonl` gets a line every `log_every` steps: `train/loss` and the objective's
    metrics as exact means over the steps since the last such line, `train/grad_norm` before clipping, the share of
    steps that were `train/clipped`, `train/steps` and `train/skipped`. What `evaluate` returns stands as `eval/NAME`
    in the line of its step. After the last step whatever is still due gets a line. No time enters it.
    `out_dir/checkpoints/` holds the last `keep_last` checkpoints and the best `keep_best`, written in the background.

    **The device is not waited for.** Two steps are always on their way. A line is written two steps after it is due,
    when its numbers are there; only evaluation, a checkpoint, `stop` and a `best` of the training need them at once.

    **Resuming.** State, data position and half-summed metrics come from the last checkpoint, and the lines
    after it are cut: SIGKILL at any moment, then `resume=True`, ends with the same weights bit for bit and the
    same `metrics.jsonl` byte for byte. `steps` may be raised; `config`, `key`, `clip_norm`, `log_every`,
    `evaluate_every` and what the model is besides its arrays must be those of the run, and so must be the
    data, of which the sources of this package keep a hash. Optimiser and objective are functions and cannot be
    compared: keep what they depend on in `config`. A directory that another process is writing to is refused.

    **Signals.** At SIGINT (Ctrl-C) or SIGTERM the step in hand is finished and saved, then the signal is passed
    on: SIGINT raises KeyboardInterrupt, SIGTERM SystemExit(143); a handler of the caller's is called, and if it
    returns, `fit` returns with `interrupted`. The last line that is then seen says at which step the run was stopped,
    where it is saved, and how to go on: it is the KeyboardInterrupt's message (`str(error)`), and at SIGTERM a line on
    stderr. A second Ctrl-C does not wait.

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
            with `get_state` and `set_state`, or a plain iterable. One that can be iterated anew (a list) starts
            again at its end. A plain iterable cannot say where it stands, so it cannot be combined with
            `resume=True`: data that restart in silence would make another run.
        steps: steps of the whole run, those before a resume included.
        key: a PRNG key; step n of the objective gets `fold_in(key, n)`.
        carry: what the objective carries from batch to batch, as it is before the first, such as
            `model.init_state(batch_size)`. With the windows of long rows as batches this is truncated BPTT. Default:
            nothing is carried.
        out_dir: for metrics and checkpoints. Default: none are written, and the run cannot be resumed.
        evaluate: `evaluate(model) -> {name: number or Total}`, given the model in inference mode, its parameters
            averaged where the optimiser is `with_average`. Its arrays may be overwritten by the next step: copy what
            is to be kept.
        evaluate_every: steps between evaluations; one more is made after the last step. Default: only that one.
        save_every: steps between checkpoints; one more is made after the last step, and one where `evaluate` raises.
            Besides, `best` saves what it keeps. Default: `evaluate_every`, without that 5,000.
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
            overwritten by the next step. One with a method `begin(history)` is told the lines that a resumed run
            already has. [`TensorBoard`][sequinox.train.TensorBoard] is one.
        stop: `stop(history) -> bool`, asked after every line; True ends the run there, as if `steps` had been reached.
            See [`early_stopping`][sequinox.train.early_stopping]. It should look at nothing but the history: so a
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
    take_step = CompiledStep(objective, optimiser, clip_norm=clip_norm, donate=True, parallel=parallel)
    evaluate_every, save_every = _every("evaluate_every", evaluate_every), _every("save_every", save_every)
    save_every = save_every or evaluate_every or _SAVE_EVERY
    log_every, steps = _needed("log_every", log_every), _needed("steps", steps)
    stream = Stream(batches)
    _check_best(best, evaluate, out_dir)
    _check_resume(resume, out_dir, stream, batches)
    _check_calls(callbacks, stop, evaluate)
    state = begin("fit", model, optimiser, key, carry)
    if parallel is not None:
        state = parallel.place_state(state)

    run = Run(
        None if out_dir is None else Path(out_dir),
        stream,
        resume=resume,
        config=config,
        settings={
            "clip_norm": None if clip_norm is None else float(clip_norm),
            "log_every": log_every,
            "evaluate_every": evaluate_every,
        },
        best=best,
        best_mode=best_mode,
        keep_last=keep_last,
        keep_best=keep_best,
    )
    with contextlib.closing(run), contextlib.ExitStack() as cleanup, catch_interrupts() as interrupt:
        if resume:
            state = run.resume(state, steps)
        step = int(state.step)
        arrays, frame = split(state)
        values: dict[str, Any] = {}  # measured at this very step
        in_flight: collections.deque[Any] = collections.deque()
        judged = best is not None and best.startswith("train/")  # a line says whether its step is kept
        ended = lambda: stop is not None and bool(run.log.history) and bool(stop(run.log.history))
        stopped, interrupted = ended(), False
        del state  # its buffers are given to the first step
        for callback in callbacks:
            if hasattr(callback, "begin"):
                callback.begin(run.log.history)
                if hasattr(callback, "close"):
                    cleanup.callback(callback.close)

        def tell(lines: list[dict[str, Any]]) -> None:
            for line in lines:
                run.check_measured(line)
                _warn_if_all_were_skipped(line)
                if "train/loss" in line:
                    bar.set_postfix(loss=line["train/loss"], refresh=False)
                told = {name: value for name, value in line.items() if name != "step"}
                for callback in callbacks:
                    callback(line["step"], told, frame.join(arrays))

        def measure(line_due: bool, evaluation_due: bool) -> dict[str, Any]:
            """Everything that is due at this step, in one line."""
            tell(run.log.flush())
            evaluated = evaluate_or_save(None) if evaluation_due else {}
            values = (run.log.take() if line_due else {}) | evaluated
            run.log.write(step, values)
            tell(run.log.history[-1:])
            return values

        def due(step: int) -> tuple[bool, bool]:
            """Whether a line is due at this step, and an evaluation."""
            evaluation_due = evaluate is not None and _due(step, evaluate_every)
            # The last step's line waits for the evaluation behind the loop.
            waits = step == steps and evaluate is not None and not evaluation_due
            return step % log_every == 0 and not waits, evaluation_due

        def evaluate_or_save(log_state: dict[str, Any] | None) -> dict[str, Any]:
            try:
                return _evaluate(evaluate, frame.join(arrays))
            except Exception:  # hours of training are not to be lost by a misspelt name
                run.save(frame.join(arrays), step, {}, log_state)
                raise

        with progress_bar(steps, step, progress and jax.process_index() == 0) as bar:
            if 0 < step <= steps and not stopped:  # what was still due when this step was saved
                line_due, evaluation_due = due(step)
                line_due, evaluation_due = line_due and run.log.unfinished, evaluation_due and run.log.last_step != step
                if line_due or evaluation_due:
                    values = measure(line_due, evaluation_due)
                    stopped = ended()
                    if step < steps and not stopped and run.is_among_best(values):
                        run.save(frame.join(arrays), step, values)
            while step < steps and not stopped and not interrupted:
                try:
                    batch = next(stream)
                except StopIteration:
                    tell(run.log.flush())
                    run.save(frame.join(arrays), step, values)
                    raise ValueError(f"fit: batches ended after {step} of {steps} steps.") from None
                arrays, report = take_step(frame, arrays, batch)
                step += 1
                run.log.add(report)
                in_flight.append(report.skipped)
                if len(in_flight) > _IN_FLIGHT:
                    in_flight.popleft().block_until_ready()
                bar.update()

                save_due = _due(step, save_every)
                interrupted = _interrupted(interrupt, step % log_every == 0)
                line_due, evaluation_due = due(step)
                values = {}
                needed = save_due or interrupted or step == steps or stop is not None or judged
                if evaluation_due or (line_due and needed):
                    values = measure(line_due, evaluation_due)
                    stopped = ended()
                elif line_due:
                    run.log.end_line(step)
                tell(run.log.flush(step - _IN_FLIGHT))
                save_due = run.is_among_best(values) or save_due
                if save_due and step < steps and not interrupted and not stopped:  # else it is saved behind the loop
                    tell(run.log.flush())
                    run.save(frame.join(arrays), step, values)

            interrupted = interrupted and step < steps
            tell(run.log.flush())
            log_state = run.log.get_state()
            last: dict[str, Any] = {}
            if not interrupted:
                evaluation_due = evaluate is not None and not _due(step, evaluate_every)
                evaluated = evaluate_or_save(log_state) if evaluation_due else {}
                last = run.log.take() | evaluated
                run.check_measured(last)
            # The last line is not part of what is saved: resumed with more steps, a run goes on as if it had not
            # stopped.
            run.save(frame.join(arrays), step, values | last, log_state)
            if last:
                run.log.write(step, last)
                tell(run.log.history[-1:])
    if interrupt:
        _deliver(interrupt, _where_it_stands(step, steps, out_dir))
    return FitResult(frame.join(arrays), run.log.history, interrupted, stopped and step < steps)


def _where_it_stands(step: int, steps: int, out_dir: Any) -> str:
    """What is to be known of a run that a signal has ended."""
    begun = f"fit: stopped at step {step} of {steps}" if step < steps else f"fit: finished at step {step}"
    if out_dir is None:
        return f"{begun}; nothing is saved, as there is no out_dir."
    return f"{begun}, saved in {os.fspath(out_dir)}" + ("; resume=True goes on from there." if step < steps else ".")


def _deliver(interrupt: Interrupt, line: str) -> None:
    """Passes the signal on. Where that ends the program, its last words are `line`."""
    try:
        interrupt.deliver()
    except KeyboardInterrupt:
        raise KeyboardInterrupt(line) from None
    except SystemExit:  # of which Python prints nothing
        if jax.process_index() == 0:
            print(line, file=sys.stderr, flush=True)
        raise


def _interrupted(interrupt: Interrupt, agreed: bool) -> bool:
    """Whether a signal came; in several processes, to any of them, which they agree on where `agreed`."""
    if jax.process_count() == 1:
        return bool(interrupt)
    return agreed and bool(np.any(multihost_utils.process_allgather(np.array(bool(interrupt)))))


def _warn_if_all_were_skipped(line: dict[str, Any]) -> None:
    if line.get("train/steps") and line["train/skipped"] == line["train/steps"]:
        warnings.warn(
            f"fit: all {line['train/steps']} steps before step {line['step']} were skipped: their loss or gradient was "
            "not finite.",
            stacklevel=3,
        )


def _needed(name: str, value: Any) -> int:
    number = _every(name, value)
    if number is None:
        raise ValueError(f"fit: {name} must be an integer from 1, got None.")
    return number


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


def _check_calls(callbacks: Any, stop: Any, evaluate: Any) -> None:
    if not isinstance(callbacks, (list, tuple)) or not all(map(callable, callbacks)):
        raise TypeError(f"fit: callbacks must be a list of functions (step, values, state), got {callbacks!r}.")
    if stop is not None and not callable(stop):
        raise TypeError(f"fit: stop must be a function of the history, such as early_stopping(...), got {stop!r}.")
    metric = getattr(stop, "metric", None)
    if metric is not None and metric.startswith("eval/") and evaluate is None:
        raise ValueError(f"fit: stop looks at {metric!r}, which needs evaluate.")


def _evaluate(evaluate: Any, state: TrainState) -> dict[str, float]:
    values = evaluate(eqx.nn.inference_mode(averaged_model(state)))
    if not isinstance(values, dict):
        raise TypeError(f"fit: evaluate must return a dict of numbers by name, got {type(values).__name__}.")
    numbers: dict[str, float] = {}
    for name, value in values.items():
        try:
            numbers[f"eval/{name}"] = float(value.mean if isinstance(value, Total) else value)
        except (TypeError, ValueError):
            raise TypeError(f"fit: evaluate must return numbers, got {value!r} for {name!r}.") from None
    return numbers
