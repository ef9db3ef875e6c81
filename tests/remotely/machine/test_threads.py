"""Threads of the runtime."""

import subprocess
import sys

from tests.clusters import DEADLINE_S

# In a process without other threads, each of which could take the signal.
AMID_A_SIGNAL = """
import os, signal, threading, time
from types import SimpleNamespace
from remotely.machine import threads

waits = threading.Event()
threads.time = SimpleNamespace(monotonic=time.monotonic, sleep=lambda _: waits.set())

class Amid(threads._Thread):
    def _bootstrap(self):
        os.kill(os.getpid(), signal.SIGUSR1)
        super()._bootstrap()

def note_mask():
    print(signal.pthread_sigmask(signal.SIG_BLOCK, []), flush=True)

def make():
    signal.pthread_sigmask(signal.SIG_SETMASK, [])  # as where the main thread blocks nothing
    made = Amid(target=note_mask)
    made.start()
    made.join()
    note_mask()

signal.signal(signal.SIGUSR1, lambda *_: None)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])  # the main thread takes its time
maker = threading.Thread(target=make)
maker.start()
assert waits.wait(20)
assert signal.sigtimedwait([signal.SIGUSR1], 20)
maker.join()
"""


def test_a_signal_amid_the_making_of_a_thread_is_left_to_the_main_thread() -> None:
    command = [sys.executable, "-c", AMID_A_SIGNAL]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)
    assert (done.stdout, done.stderr) == ("set()\nset()\n", "")
