"""Fake actors, whose calls finish when the test says so."""

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any, NamedTuple
from unittest import mock

import numpy as np

import remotely
from remotely_rl.acting.actor import Parameters
from remotely_rl.acting.messages import Messages
from remotely_rl.acting.samplers import Samplers
from remotely_rl.environments import Episode
from remotely_rl.supervision import CrashReport


class Sample(NamedTuple):
    """A rollout of a fake."""

    ident: int
    number: int
    version: int
    steps: int = 1
    episodes: list[Episode] = []  # noqa: RUF012 - never modified
    crashes: tuple[CrashReport, ...] = ()
    actor: int = 0


class Fake:
    """Runs its calls in order, each `sample` at `finish`, with the newest message then."""

    def __init__(self, ident: int, at_once: bool = False):
        self.ident = ident
        self.at_once = at_once
        self.version = -1
        self.count = 0
        self.closed = False
        self.messages = Messages()
        self.calls: deque[tuple[Future[Any], Parameters | None]] = deque()

    def read_from(self, source: "remotely.Published[Parameters]") -> None:
        self.messages = Messages(source)

    def set_param(self, params: Parameters) -> None: ...
    def sample(self, at_least: int = 0) -> Sample: ...  # type: ignore[empty-body]

    def submit(self, *args: Any) -> Future[Any]:
        future: Future[Any] = Future()
        given = args[0] if args and isinstance(args[0], Parameters) else None
        self.calls.append((future, given))
        if self.at_once:
            self.finish()
        return future

    @property
    def pending(self) -> int:
        return sum(params is None for _, params in self.calls)

    def finish(self, steps: int = 1) -> None:
        """Run all calls up to the next `sample`, inclusive."""
        while self.calls:
            future, params = self.calls.popleft()
            if params is None:
                if (newest := self.messages.newest(0)) is not None:
                    self.version = newest.version
                self.count += 1
                future.set_result(Sample(self.ident, self.count, self.version, steps))
                return
            self.version = params.version
            future.set_result(None)

    def die(self) -> None:
        self.fail(remotely.ActorDied(f"{self.ident} was killed", exit="SIGKILL"))

    def fail(self, error: Exception) -> None:
        for future, _ in self.calls:
            future.set_exception(error)
        self.calls.clear()


class Told(Fake):
    """A fake that cannot read what is published, and is sent it."""

    def read_from(self, source: "remotely.Published[Parameters]") -> None:
        raise remotely.NotShared("not here")


@contextlib.contextmanager
def faked() -> Iterator[None]:
    """Let remotely call the fakes, and pass parameters as they are."""

    def submit(method: Any, *args: Any) -> Future[Any]:
        return method.__self__.submit(*args)  # type: ignore[no-any-return]

    def close(actor: Fake) -> None:
        actor.closed = True

    with mock.patch.multiple(remotely, submit=submit, close=close, put=lambda value: value):
        yield
        for thread in threading.enumerate():
            if "_make_one" in thread.name:  # it may still close a fake that came too late
                thread.join(40)


def params(version: int, width: int = 2) -> Parameters:
    return Parameters(version, {"weight": np.zeros(width, np.float32)})


def crew_of(
    count: int,
    make: Callable[[int], Any] = Fake,
    said: list[str] | None = None,
    grows: bool = False,
    first: Parameters | None = None,
) -> Samplers[Any]:
    say = said.append if said is not None else lambda text: None
    return Samplers(make, count, first or params(0), say, grows)


def wait_for_newcomer(crew: Any) -> None:
    while not crew.admit(timeout_s=10):
        pass
