import signal
import threading

import pytest

from sequinox.train import catch_interrupts


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
