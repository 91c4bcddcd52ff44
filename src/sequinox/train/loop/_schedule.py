"""What is due at a step of a run: arithmetic on the number of steps alone."""

from typing import NamedTuple


class Due(NamedTuple):
    """What is due after a step: a line of the log, an evaluation (whose numbers are in that line), a checkpoint."""

    line: bool
    evaluation: bool
    save: bool


class Schedule(NamedTuple):
    """How often a run writes lines, evaluates and saves.

    After its last step a run that `evaluates` does so in any case. If that is not due by itself, the line that is due
    there waits for it: the last step has one line.

    ??? example

        ```python
        >>> schedule = Schedule(steps=9, log_every=3, evaluate_every=2, save_every=4)
        >>> [n for n in range(1, 10) if schedule.at(n).line]
        [3, 6]
        >>> [n for n in range(1, 10) if schedule.at(n).save], schedule.at(6)
        ([4, 8, 9], Due(line=True, evaluation=True, save=False))

        ```
    """

    steps: int
    log_every: int
    evaluate_every: int | None
    save_every: int
    evaluates: bool = True

    def at(self, step: int) -> Due:
        """What is due when so many steps have been taken."""
        steps, log_every, evaluate_every, save_every, evaluates = self
        evaluation = evaluates and evaluate_every is not None and step % evaluate_every == 0
        waits = step == steps and evaluates and not evaluation
        return Due(step % log_every == 0 and not waits, evaluation, step % save_every == 0 or step == steps)
