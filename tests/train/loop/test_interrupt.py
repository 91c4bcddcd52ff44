import signal
import threading

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from sequinox.train import Batches, catch_interrupts, fit


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_sets_the_flag_and_the_former_handlers_come_back(signum):
    former = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with catch_interrupts() as interrupt:
        assert not interrupt
        signal.raise_signal(signum)
        assert interrupt and interrupt.signum == signum
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == former
    with pytest.raises(KeyboardInterrupt if signum == signal.SIGINT else SystemExit) as caught:
        interrupt.deliver()
    if signum == signal.SIGTERM:
        assert caught.value.code == 143  # pyright: ignore


def test_handlers_come_back_after_an_error_and_no_signal_is_delivered():
    former = signal.getsignal(signal.SIGTERM)
    with pytest.raises(RuntimeError), catch_interrupts() as interrupt:
        raise RuntimeError
    assert signal.getsignal(signal.SIGTERM) == former
    interrupt.deliver()


def test_a_second_ctrl_c_does_not_wait():
    with pytest.raises(KeyboardInterrupt), catch_interrupts():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)


def test_a_handler_of_ones_own_is_called_and_an_ignored_signal_stays_ignored():
    calls = []
    former = signal.signal(signal.SIGTERM, lambda s, frame: calls.append(s))
    try:
        with catch_interrupts() as interrupt:
            signal.raise_signal(signal.SIGTERM)
        assert calls == []
        interrupt.deliver()
        assert calls == [signal.SIGTERM]
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        with catch_interrupts() as interrupt:
            signal.raise_signal(signal.SIGTERM)
            assert not interrupt
    finally:
        signal.signal(signal.SIGTERM, former)


def test_in_another_thread_it_does_nothing():
    flags = []

    def work():
        with catch_interrupts() as interrupt:
            flags.append(bool(interrupt))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert flags == [False]


class Signalling(Batches):
    """Batches that send a signal when the third is asked for."""

    def __init__(self, signum):
        super().__init__(np.ones(4, np.float32), 2, seed=0)
        self._countdown, self._signum = 3, signum

    def __next__(self):
        self._countdown -= 1
        if self._countdown == 0:
            signal.raise_signal(self._signum)
        return super().__next__()


def run(signum, out_dir, steps=8):
    objective = lambda model, batch: jnp.sum(model) * jnp.sum(batch.data)
    key = jax.random.key(0)
    fit(jnp.ones(()), optax.sgd(0.1), objective, Signalling(signum), steps=steps, key=key, out_dir=out_dir)


@pytest.mark.parametrize("saved", [True, False])
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_the_last_words_of_a_run_say_where_it_stands(signum, saved, tmp_path, capsys):
    out_dir = tmp_path / "run" if saved else None
    with pytest.raises((KeyboardInterrupt, SystemExit)) as caught:
        run(signum, out_dir)
    shown = capsys.readouterr().err
    where = f", saved in {out_dir}; resume=True continues from there"
    expected = "fit: stopped at step 3 of 8" + (where if saved else "; nothing is saved, as there is no out_dir")
    if signum == signal.SIGINT:
        # One traceback, which ends with the line.
        assert type(caught.value) is KeyboardInterrupt and str(caught.value) == expected and shown == ""
        assert caught.value.__suppress_context__
    else:
        assert isinstance(caught.value, SystemExit) and caught.value.code == 143 and shown == expected + "\n"


def test_a_signal_at_the_last_step_says_that_the_run_is_done(tmp_path):
    with pytest.raises(KeyboardInterrupt, match=rf"^fit: finished at step 3, saved in {tmp_path}$"):
        run(signal.SIGINT, tmp_path, steps=3)


def test_a_handler_of_ones_own_says_what_it_likes(tmp_path, capsys):
    former = signal.signal(signal.SIGTERM, lambda s, frame: None)
    try:
        run(signal.SIGTERM, tmp_path)
    finally:
        signal.signal(signal.SIGTERM, former)
    assert capsys.readouterr().err == ""
