import signal

import pytest


@pytest.fixture(autouse=True)
def ctrl_c_is_heard():
    """Python does not install its handler of SIGINT in a process that a shell has put into the background."""
    former = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, former)
