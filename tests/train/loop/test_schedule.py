"""What is due at a step, against the sets of steps at which it is, written down one by one."""

import itertools

from sequinox.train.loop._schedule import Schedule


def multiples(n, steps):
    return set(range(n, steps + 1, n)) if n else set()


def test_everything_that_is_due_in_all_small_runs():
    counts = range(1, 6)
    for steps, log_every, evaluate_every, save_every, evaluates in itertools.product(
        range(1, 8), counts, (None, *counts), counts, (True, False)
    ):
        evaluations = multiples(evaluate_every, steps) if evaluates else set()
        lines = multiples(log_every, steps)
        if evaluates and steps not in evaluations:  # the last evaluation is extra, and has the last line
            lines -= {steps}
        schedule = Schedule(steps, log_every, evaluate_every, save_every, evaluates)
        dues = {step: schedule.at(step) for step in range(1, steps + 1)}
        assert {step for step, due in dues.items() if due.line} == lines, schedule
        assert {step for step, due in dues.items() if due.evaluation} == evaluations, schedule
        assert {step for step, due in dues.items() if due.save} == multiples(save_every, steps) | {steps}, schedule


def test_a_longer_run_has_the_same_due_before_the_shorter_one_ends():
    """A run that is resumed with more steps goes the way of an unbroken one."""
    for log_every, evaluate_every, save_every in itertools.product(range(1, 5), (None, 1, 2, 3), range(1, 5)):
        short, long = (Schedule(steps, log_every, evaluate_every, save_every) for steps in (6, 9))
        assert [short.at(step) for step in range(1, 6)] == [long.at(step) for step in range(1, 6)]
