"""Samplers: a crew of actors that sample with the newest parameters.

The learner publishes messages (`remotely.Published`): parameters, the steps of the run, and
attributes of environments.  An actor reads the newest when a call of `sample` begins: at least the
one that was newest when the call was made.  So a round has the same parameters in all actors, a
queued call may have newer ones than when it was made, and the version of the parameters in a
trajectory shows how stale it is.  Messages have numbers of their own: while a replay is filled the
parameters stay the same, but epsilon falls, and attributes may be set.

An actor that cannot read them is sent the newest message before its next call: one behind a
firewall that has dialled in, or one of a user that has `set_param` alone.  All would be served by
that, but late: the message stands in the actor's queue, behind calls that wait, and is an old one
when its turn comes.
"""

import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Generic, Protocol, TypeVar

import remotely
from remotely_rl import cluster
from remotely_rl.acting.actor import Parameters
from remotely_rl.acting.crew import Crew, Number
from remotely_rl.environments import Episode
from remotely_rl.supervision import Crashes, CrashReport
from remotely_rl.supervision.failures import LOST


class SampleResult(Protocol):
    """Interface of a result of `sample`."""

    @property
    def steps(self) -> int: ...
    @property
    def episodes(self) -> list[Episode]: ...
    @property
    def crashes(self) -> Sequence[CrashReport]: ...


R = TypeVar("R", bound=SampleResult)
R_co = TypeVar("R_co", bound=SampleResult, covariant=True)


class Crewed(Protocol[R]):
    """Interface of the actors of Rounds and Stream: a crew, or an actor in this process."""

    actors: list[Any]

    def publish(self, params: Parameters) -> None: ...
    def request(self, actor: Any) -> "Future[R]": ...
    def admit(self, timeout_s: float = 0.0) -> bool: ...
    def index_of(self, actor: Any) -> int: ...
    def succeeded(self, actor: Any, steps: int, crashes: Sequence[CrashReport] = ()) -> None: ...
    def replace(self, actor: Any, error: BaseException) -> None: ...
    def close(self) -> None: ...


class SamplingActor(Protocol[R_co]):
    """An actor with `sample`, and with `set_param` if there are parameters to send.

    One with `read_from` reads them, and its `sample` takes the number of a message (messages.py).
    """

    def sample(self) -> R_co: ...


class Samplers(Crew[SamplingActor[R]], Generic[R]):
    """A crew whose actors sample, each with the newest parameters if there are any."""

    def __init__(
        self,
        make: Callable[[Number], SamplingActor[R]],
        count: int,
        params: Parameters | None,
        say: Callable[[str], None] = print,
        grows: bool = False,
        over: Callable[[], bool] = lambda: False,
        *,
        width: int = 1,
        crashes: Crashes | None = None,
    ):
        self._sent: dict[SamplingActor[R], tuple[int, Future[None]]] = {}  # not to readers
        self._readers: set[SamplingActor[R]] = set()
        self._number = 0  # of the newest message
        self._published: remotely.Published[Parameters] | None = None
        self._ref: Any = None  # of the newest message, once it is sent
        if params is not None:
            self.publish(params)
        super().__init__(
            lambda number: self._reading(make(number)),
            count,
            say,
            grows,
            over,
            width=width,
            crashes=crashes,
        )

    def publish(self, params: Parameters) -> None:
        """Have each actor use this message from its next call on."""
        self._number += 1
        self._ref = None
        if self._published is None:
            self._published = remotely.Published(params, eager=True)
        else:
            self._published.set(params)

    def request(self, actor: SamplingActor[R]) -> "Future[R]":
        """Make an actor sample with the newest parameters."""
        if actor in self._readers:
            return remotely.submit(actor.sample, self._number)  # type: ignore[call-arg]
        number, sent = self._sent.get(actor, (0, None))
        if sent is not None and sent.done():
            with contextlib.suppress(*LOST):  # if the actor is dead, `sample` raises
                sent.result()
        if number < self._number and self._published is not None:
            if self._ref is None:  # pickled once, whatever the number of actors
                self._ref = remotely.put(self._published.latest(copy=True).value)
            future = remotely.submit(actor.set_param, self._ref)  # type: ignore[attr-defined]
            self._sent[actor] = (self._number, future)
        return remotely.submit(actor.sample)

    def _reading(self, actor: SamplingActor[R]) -> SamplingActor[R]:
        """Have a new actor read what is published, if it can."""
        read_from = getattr(actor, "read_from", None)
        if self._published is not None and read_from is not None:
            with contextlib.suppress(remotely.NotShared):
                read_from(self._published)
                self._readers.add(actor)
        return actor

    def _remove(self, actor: SamplingActor[R]) -> None:
        super()._remove(actor)
        self._readers.discard(actor)
        if actor in self._sent:
            cluster.discard(self._sent.pop(actor)[1])
