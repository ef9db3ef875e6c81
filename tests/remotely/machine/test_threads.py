"""Threads of the runtime."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from remotely.machine import threads
from tests.clusters import DEADLINE_S


@pytest.fixture
def blocked() -> Iterator[None]:
    """The main thread takes no SIGUSR1 before it waits for it."""
    handler = signal.signal(signal.SIGUSR1, lambda *_: None)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    yield
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    signal.signal(signal.SIGUSR1, handler)


def test_a_signal_amid_the_making_of_a_thread_is_left_to_the_main_thread(
    blocked: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start
    masks = []
    waits = threading.Event()
    clock = SimpleNamespace(monotonic=time.monotonic, sleep=lambda _: waits.set())
    monkeypatch.setattr(threads, "time", clock)

    def start_amid_a_signal(thread: threading.Thread) -> None:
        os.kill(os.getpid(), signal.SIGUSR1)
        start(thread)

    def note_mask() -> None:
        masks.append(signal.pthread_sigmask(signal.SIG_BLOCK, []))

    def make() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, [])  # as where the main thread blocks nothing
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", start_amid_a_signal)
            made = threads.start("made", note_mask)
        made.join(DEADLINE_S)
        note_mask()

    maker = threading.Thread(target=make)
    maker.start()
    assert waits.wait(DEADLINE_S)  # the main thread has not taken it yet
    taken = signal.sigtimedwait([signal.SIGUSR1], DEADLINE_S)
    maker.join(DEADLINE_S)
    assert taken is not None
    assert masks == [set(), set()]
