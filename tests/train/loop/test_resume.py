"""A run stopped anywhere and resumed leaves what an unbroken one leaves: weights bit for bit, metrics byte for byte."""

import json
import os
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest
import tiny_run
from stored_files import copy_what_is_there

STEPS = tiny_run.STEPS


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    out_dir = tmp_path_factory.mktemp("straight")
    tiny_run.run(out_dir)
    return tiny_run.saved(out_dir)


def assert_as_straight(out_dir, straight):
    left = tiny_run.saved(out_dir)
    assert left["metrics.jsonl"] == straight["metrics.jsonl"]
    assert left == straight
    assert not [p for p in out_dir.rglob("*") if "tmp" in p.name]


def script(out_dir, **options):
    done = subprocess.run(
        [sys.executable, "-W", "error", tiny_run.__file__, str(out_dir), json.dumps(options)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_sigkill_in_mid_epoch_and_resume_in_a_new_process(tmp_path, straight):
    code, output = script(tmp_path, signal=int(signal.SIGKILL), at_batch=11)
    assert code == -signal.SIGKILL, output
    # Step 8 is saved as the best so far; that or the save of step 9 may have been killed in the background.
    assert tiny_run.saved(tmp_path)["step"] in (6, 8, 9)
    code, output = script(tmp_path, resume=True)
    assert code == 0, output
    assert_as_straight(tmp_path, straight)


def test_sigkill_while_saving(tmp_path, straight):
    # The 40th file operation is in the second of the checkpoints; the first is then the last complete one.
    code, output = script(tmp_path, signal=int(signal.SIGKILL), at_event=40)
    assert code == -signal.SIGKILL, output
    tiny_run.run(tmp_path, resume=True)
    assert_as_straight(tmp_path, straight)


@pytest.mark.thorough
def test_sigterm_saves_at_once_and_ends_with_its_exit_status(tmp_path, straight):
    code, output = script(tmp_path, signal=int(signal.SIGTERM), at_batch=8)
    assert code == 128 + signal.SIGTERM, output
    assert tiny_run.saved(tmp_path)["step"] == 8
    tiny_run.run(tmp_path, resume=True)
    assert_as_straight(tmp_path, straight)


@pytest.mark.thorough
def test_killed_at_any_file_operation_of_a_run(tmp_path, straight):
    """A kill leaves the files as they are, so they are copied now and then, and each copy is resumed."""
    run, copies = tmp_path / "run", tmp_path / "copies"
    lock, count, active = threading.Lock(), 0, True

    def photograph(event, arguments):
        nonlocal count
        if not active or event not in ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir"):
            return
        if str(run) in str(arguments[0]) and lock.acquire(blocking=False):
            try:
                count += 1
                if count % 37 == 0:
                    copy_what_is_there(run, copies / f"{count:04}")
            finally:
                lock.release()

    sys.addaudithook(photograph)
    try:
        tiny_run.run(run)
    finally:
        active = False
    assert_as_straight(run, straight)
    photographs = sorted(copies.iterdir())
    assert len(photographs) >= 4
    for photo in photographs:
        tiny_run.run(photo, resume=True)
        assert_as_straight(photo, straight)


class Crash(Exception):
    pass


def crash():
    raise Crash


@pytest.mark.thorough
@pytest.mark.parametrize("at", [2, 4, 10, STEPS])
def test_crash_before_any_save_at_a_save_at_an_epochs_end_and_at_the_last_step(tmp_path, straight, at):
    with pytest.raises(Crash):
        tiny_run.run(tmp_path, batches=tiny_run.Alarm(at, crash))
    tiny_run.run(tmp_path, resume=True)
    assert_as_straight(tmp_path, straight)


@pytest.mark.thorough
def test_two_interruptions_by_ctrl_c_at_steps_that_are_due_for_nothing_and_for_all(tmp_path, straight):
    def ctrl_c():
        os.kill(os.getpid(), signal.SIGINT)

    former = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    for at, expected in ((7, 7), (5, 12)):
        with pytest.raises(KeyboardInterrupt):
            tiny_run.run(tmp_path, batches=tiny_run.Alarm(at, ctrl_c), resume=expected > 7)
        assert tiny_run.saved(tmp_path)["step"] == expected
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == former
    tiny_run.run(tmp_path, resume=True)
    assert_as_straight(tmp_path, straight)


@pytest.mark.thorough
def test_with_a_handler_of_ones_own_the_result_says_interrupted(tmp_path):
    calls = []
    former = signal.signal(signal.SIGTERM, lambda s, frame: calls.append(s))
    try:
        stop = tiny_run.Alarm(4, lambda: os.kill(os.getpid(), signal.SIGTERM))
        result = tiny_run.run(tmp_path, batches=stop)
    finally:
        signal.signal(signal.SIGTERM, former)
    assert calls == [signal.SIGTERM]
    assert result.interrupted and int(result.state.step) == 4


@pytest.mark.thorough
@pytest.mark.parametrize("first", [5, 6])
def test_a_finished_run_goes_on_with_more_steps_as_if_it_had_not_stopped(tmp_path, straight, first):
    tiny_run.run(tmp_path, steps=first)
    result = tiny_run.run(tmp_path, resume=True)
    assert (tmp_path / "metrics.jsonl").read_bytes() == straight["metrics.jsonl"]
    assert tiny_run.saved(tmp_path)["leaves"] == straight["leaves"]
    assert len(result.history) == len(straight["metrics.jsonl"].splitlines())


@pytest.mark.thorough
def test_a_finished_run_resumed_is_left_as_it_is(tmp_path, straight):
    tiny_run.run(tmp_path)
    tiny_run.run(tmp_path, resume=True)
    assert_as_straight(tmp_path, straight)


@pytest.mark.thorough
def test_a_log_that_lost_lines_is_reported(tmp_path):
    tiny_run.run(tmp_path, steps=9)
    (tmp_path / "metrics.jsonl").write_bytes(b"")
    with pytest.raises(ValueError, match="has 0 lines where the checkpoint counts"):
        tiny_run.run(tmp_path, resume=True)
    assert np.array_equal([tiny_run.saved(tmp_path)["step"]], [9])
