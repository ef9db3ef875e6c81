"""A client under load: it calls actors, and records the calls and their outcomes.

It changes each argument right after the call, and an actor each result right after it returns: all
bytes of a value are one number, and both sides check the numbers that arrive.

python -m tests.chaos.load ADDRESS KEY FOLDER NAME SEED [RELAY] [ARRIVALS]

It ends with its standard input.  With ARRIVALS, it calls guests (guest.py) instead of its own
actors.  With RELAY, all its connections go through a relay, whose weather (relay.py) is in the file
FOLDER/weather.
"""

import os
import random
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

import remotely
from remotely.errors import ActorDied, CallTimeout, MasterLost, NoResources, WorkerLost
from remotely.transport import sockets
from tests.chaos.oracle import AGAIN, Outcome
from tests.chaos.relay import Relay

THREADS = 2
ACTORS_A_THREAD = 2
HANG_S = 90.0  # longer than a lease, a wait for resources and a reconnection together
PAUSE_S = 0.004  # two cores are shared by all processes
SIZES = (10, 1_000, 9_000, 20_000, 100_000, 600_000)  # on both sides of every threshold
CHANGED = 255  # written into a value after it was sent
MADE_WITH = 7


class WrongValue(Exception):
    """A value that arrived differs from the one that was sent."""


def check(value: Any, number: int) -> None:
    """Raise WrongValue unless all bytes of a value are this number."""
    found = np.unique(np.frombuffer(value, np.uint8))
    if found.tolist() != [number]:
        raise WrongValue(f"{found} of {len(value)} bytes, and it was {number}")


def number_of(call: str) -> int:
    return int(call.rpartition(":")[2].rstrip(AGAIN)) % CHANGED


@remotely.remote_class(max_restarts=1_000_000)
class Ledger:
    """An actor that records each call in a file before it replies."""

    def __init__(self, folder: str, made_with: Any = None) -> None:
        if made_with is not None:
            check(made_with, MADE_WITH)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        self.file = os.open(Path(folder, "ran"), flags, 0o600)
        self.buffers = {size: np.empty(size, np.uint8) for size in SIZES}
        Path(folder, "pids", str(os.getpid())).touch()

    def run(self, call: str, payload: Any) -> Any:
        os.write(self.file, f"{call}\n".encode())
        check(payload, number_of(call))
        buffer = self.buffers[len(payload)]
        buffer[:] = number_of(call)
        return buffer

    @remotely.idempotent(retries=3)
    def run_again(self, call: str, payload: Any) -> Any:
        return self.run(call, payload)


class Journal:
    """A log whose lines are in the file before the call goes on."""

    def __init__(self, file: Path) -> None:
        self._fd = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(self, *words: str) -> None:
        line = "\t".join(word.replace("\n", " ").replace("\t", " ") for word in words)
        os.write(self._fd, f"{line}\n".encode())


class Client:
    def __init__(self, folder: Path, name: str, seed: int, takes_arrivals: bool) -> None:
        self._takes_arrivals = takes_arrivals
        self.over = threading.Event()
        self._folder = folder
        self._name = name
        self._seed = seed
        self._journal = Journal(folder / "journals" / name)
        self._number = 0
        self._lock = threading.Lock()

    def run(self) -> None:
        threads = [threading.Thread(target=self._load, args=(n,)) for n in range(THREADS)]
        for thread in threads:
            thread.start()
        sys.stdin.read()
        self.over.set()
        for thread in threads:
            thread.join()

    def _next(self) -> str:
        with self._lock:
            self._number += 1
            return f"{self._name}:{self._number}"

    def _load(self, thread: int) -> None:
        draw = random.Random(f"{self._seed}:{self._name}:{thread}")
        actors: list[Any] = [None] * ACTORS_A_THREAD
        while not self.over.is_set():
            place = draw.randrange(ACTORS_A_THREAD)
            if actors[place] is None:
                actors[place] = self._make()
                continue
            size = draw.choice(SIZES)
            if draw.random() < 0.3:
                alive = self._crowd(actors[place], size, draw.randrange(2, 40))
            else:
                alive = self._one(actors[place], size)
            if not alive:
                actors[place] = None  # it ends without the help of the garbage collector
            time.sleep(PAUSE_S)

    def _make(self) -> Any:
        begun = time.monotonic()
        try:
            if self._takes_arrivals:
                return next(remotely.arrivals(Ledger, timeout=2))
            made_with = np.full(20_000, MADE_WITH, np.uint8)
            ledger = Ledger(str(self._folder), made_with)
            made_with[:] = CHANGED
            return ledger
        except CallTimeout:  # there is no guest
            return None
        except (ActorDied, WorkerLost, MasterLost, NoResources):
            time.sleep(0.1)
        except Exception as error:
            self._journal.write(self._next(), "sent")
            self._journal.write(f"{self._name}:{self._number}", "odd", f"making: {error!r}")
        if time.monotonic() - begun > HANG_S:
            call = self._next()
            self._journal.write(call, "sent")
            self._journal.write(call, "hung", "making an actor")
        return None

    def _one(self, ledger: Any, size: int) -> bool:
        call = self._next()
        self._journal.write(call, "sent")
        payload = np.full(size, number_of(call), np.uint8)
        return self._outcome(call, lambda: ledger.run(call, payload))

    def _crowd(self, ledger: Any, size: int, count: int) -> bool:
        """Make several calls at a time, which all reuse one array."""
        futures, payload = [], np.empty(size, np.uint8)
        for number in range(count):
            call = self._next()
            payload[:] = number_of(call)
            run = ledger.run
            if number % 4 == 3:
                call, run = call + AGAIN, ledger.run_again
            self._journal.write(call, "sent")
            futures.append((call, run.submit(call, payload)))
        payload[:] = CHANGED
        outcomes = [self._outcome(call, lambda f=f: f.result(HANG_S)) for call, f in futures]
        return all(outcomes)

    def _outcome(self, call: str, wait: Any) -> bool:
        """Record the outcome of a call; return False if its actor has ended."""
        begun = time.monotonic()
        alive, outcome, why = True, Outcome.VALUE, ""
        try:
            check(wait(), number_of(call))
        except Exception as error:
            # Its frames have the handle and the future, and that has the error: a reference cycle.
            error.__traceback__ = None
            match error:
                case CallTimeout():
                    outcome, why = Outcome.HUNG, str(error)
                case ActorDied() | WorkerLost() | MasterLost():
                    outcome = Outcome.MAY_HAVE_RUN if error.may_have_run else Outcome.DID_NOT_RUN
                    # A MasterLost: the new place of its actor could not be requested.
                    alive = error.may_have_run and not isinstance(error, MasterLost)
                    why = str(error)
                case _:
                    outcome, why = Outcome.ODD, repr(error)
        if time.monotonic() - begun > HANG_S:
            outcome, why = Outcome.HUNG, f"{time.monotonic() - begun:.0f} s: {why}"
        self._journal.write(call, outcome.value, why)
        return alive


def main() -> None:
    """Run the client."""
    address, key, folder, name, seed = sys.argv[1:6]
    if "RELAY" in sys.argv[6:]:
        relay = Relay(lambda: Path(folder, "weather").read_text())
        direct = sockets.connect
        sockets.connect = lambda socket, address: direct(socket, relay.through(address))
        address = relay.through(f"tcp://{address}").removeprefix("tcp://")
    remotely.connect(address, key=key)
    Client(Path(folder), name, int(seed), "ARRIVALS" in sys.argv[6:]).run()
    remotely.shutdown()


if __name__ == "__main__":
    main()
