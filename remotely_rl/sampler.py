"""Keeping actors at work: in rounds, or free.

`Rounds`: all sample with the same parameters, and nobody goes on before all are done.
`Stream`: each has calls ahead of it, and none waits for another.  What has been sampled
but not learnt is bounded by actors x ahead without a queue of its own: the futures are the
queue.  `max_staleness` turns it, in steps, into the former: see `Stream`.

New parameters go to an actor just before its next call, so that they hold from there on;
how stale a trajectory is then follows from the version written in it.

An actor that dies is replaced, with the newest parameters, as soon as there is room for
another; until then the others go on.  What it was sampling is lost, and nothing is learnt
twice.
"""

import contextlib
import os
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any, Generic, Protocol, TypeVar

import remotely
from remotely_rl.acting import Parameters, Rollout
from remotely_rl.environments import Episode
from remotely_rl.errors import TrainingError

DEATHS_IN_A_ROW = 5
EMBEDDED_ROOM = 64  # actors of a cluster that training makes for itself
LOST = (remotely.ActorDied, remotely.WorkerLost)


class Sampled(Protocol):
    """What is asked of what `sample` returns."""

    @property
    def steps(self) -> int: ...
    @property
    def episodes(self) -> list[Episode]: ...


R = TypeVar("R", bound=Sampled)
R_co = TypeVar("R_co", bound=Sampled, covariant=True)
A = TypeVar("A")


class SamplingActor(Protocol[R_co]):
    """What is called here: `sample`, and `set_param` if there are parameters to send."""

    def sample(self) -> R_co: ...


class Crew(Generic[A]):
    """Actors that are made, and replaced when they die."""

    def __init__(
        self,
        make: Callable[[int], A],
        count: int,
        say: Callable[[str], None] = print,
        grows: bool = False,
    ):
        """`make(n)` makes the n-th actor ever; it may wait for room.

        With `grows` there is no end to it: whenever one is placed another is asked for, so
        that machines that join the cluster are used.
        """
        self._make = make
        self._say = say
        self._grows = grows
        self._deaths = 0
        self._closed = False
        self._newcomers: queue.SimpleQueue[A | BaseException] = queue.SimpleQueue()
        self.coming = 0  # those that are being made
        self._made = count
        # At once: making sixteen Atari games takes an actor seconds.
        with ThreadPoolExecutor(count) as pool:
            self.actors = list(pool.map(make, range(count)))
        if grows:
            self._hire()

    def answered(self) -> None:
        """To be called for each answer that came: those who die are not all of them."""
        self._deaths = 0

    def replace(self, actor: A, error: Exception) -> None:
        """Has another take the place of one that died.

        Raises TrainingError if they die one after another.
        """
        self._deaths += 1
        if self._deaths >= DEATHS_IN_A_ROW:
            raise TrainingError(
                f"{self._deaths} actors died without a trajectory in between; the last: {error}"
            ) from error
        self._say(f"an actor died and is replaced: {error}")
        self._forget(actor)
        if not self._grows:  # else one is being asked for already
            self._hire()

    def welcome(self, timeout_s: float = 0.0) -> bool:
        """Takes in those that were made meanwhile; returns whether there were any.

        Raises what making one raised.
        """
        came = False
        with contextlib.suppress(queue.Empty):
            while True:
                newcomer = self._newcomers.get(timeout=0.0 if came else timeout_s)
                self.coming -= 1
                if isinstance(newcomer, BaseException):
                    raise newcomer
                self.actors.append(newcomer)
                came = True
                if self._grows:
                    self._say(f"an actor joined; there are {len(self.actors)}")
                    self._hire()
        return came

    def hire(self, count: int = 1) -> None:
        """Has more made; `welcome` takes them in."""
        for _ in range(count):
            self._hire()

    def dismiss(self, actor: A) -> None:
        """Lets one go for good."""
        self._forget(actor)
        with contextlib.suppress(remotely.RemotelyError):
            remotely.close(actor)

    def close(self) -> None:
        """Ends the actors; what they were doing is dropped."""
        self._closed = True
        for actor in self.actors:
            with contextlib.suppress(remotely.RemotelyError):
                remotely.close(actor)
        self.actors.clear()

    def _forget(self, actor: A) -> None:
        self.actors = [other for other in self.actors if other != actor]

    def _hire(self) -> None:
        number, self._made = self._made, self._made + 1
        self.coming += 1
        # A daemon: it may wait for room when the run ends.
        threading.Thread(target=self._make_one, args=(number,), daemon=True).start()

    def _make_one(self, number: int) -> None:
        while not self._closed:
            try:
                actor = self._make(number)
            except remotely.NoResources:
                time.sleep(1.0)  # a machine may join
                continue
            except BaseException as error:
                self._newcomers.put(error)
            else:
                self._newcomers.put(actor)
            return


class Samplers(Crew[SamplingActor[R]], Generic[R]):
    """A crew that samples, each with the newest parameters; without any they are sent none."""

    def __init__(
        self,
        make: Callable[[int], SamplingActor[R]],
        count: int,
        params: Parameters | None,
        say: Callable[[str], None] = print,
        grows: bool = False,
    ):
        self._sent: dict[SamplingActor[R], tuple[int, Future[None]]] = {}
        self.version = -1
        self._ref: Any = None
        if params is not None:
            self.publish(params)
        super().__init__(make, count, say, grows)

    def publish(self, params: Parameters) -> None:
        """From here on actors are given these parameters, each before its next call."""
        self.version = params.version
        self._ref = remotely.put(params)  # pickled once, whatever the number of actors

    def ask(self, actor: SamplingActor[R]) -> "Future[R]":
        """Has an actor sample, with the newest parameters."""
        version, sent = self._sent.get(actor, (-1, None))
        if sent is not None and sent.done():
            with contextlib.suppress(*LOST):  # of an actor that is gone, `sample` will tell
                sent.result()
        if version < self.version:
            future = remotely.submit(actor.set_param, self._ref)  # type: ignore[attr-defined]
            self._sent[actor] = (self.version, future)
        return remotely.submit(actor.sample)

    def _forget(self, actor: SamplingActor[R]) -> None:
        super()._forget(actor)
        self._sent.pop(actor, None)


class Rounds:
    """All actors sample, and are waited for."""

    def __init__(self, crew: Samplers[Rollout]):
        self.crew = crew
        self._calls: list[tuple[SamplingActor[Rollout], Future[Rollout]]] = []

    @property
    def idle(self) -> bool:
        """Whether no round is under way."""
        return not self._calls

    def begin(self, params: Parameters) -> None:
        """Has all sample with these parameters; `finish` returns what."""
        crew = self.crew
        crew.welcome()
        while not crew.actors:
            crew.welcome(timeout_s=1.0)
        crew.publish(params)
        self._calls = [(actor, crew.ask(actor)) for actor in crew.actors]

    def finish(self) -> list[Rollout]:
        """Returns the round's rollouts, in the order of the actors; of one that died, none."""
        rollouts = []
        for actor, call in self._calls:
            try:
                rollouts.append(call.result())
            except LOST as error:
                self.crew.replace(actor, error)
            else:
                self.crew.answered()
        self._calls = []
        return rollouts

    def sample(self, params: Parameters) -> list[Rollout]:
        """A whole round.  It is never empty: if all died, their replacements are waited for."""
        while True:
            self.begin(params)
            if rollouts := self.finish():
                return rollouts

    def close(self) -> None:
        self._calls = []
        self.crew.close()


class Stream(Generic[R]):
    """Actors that run free, each with up to `ahead` calls under way.

    With `max_staleness` no trajectory is learnt from by parameters that are more updates
    newer than those it was sampled with.  Two rules see to that, given that an update takes
    `batch` trajectories: they are taken in the order in which they were asked for, and one is
    only asked for when few enough are still to be taken before it.  0 is rounds again.
    Without it, whatever comes first is taken first.
    """

    def __init__(
        self, crew: Samplers[R], ahead: int = 1, batch: int = 1, max_staleness: int | None = None
    ):
        self.crew = crew
        self._ahead = ahead
        self._batch = batch
        self._max_staleness = max_staleness
        self._calls: dict[Future[R], SamplingActor[R]] = {}  # in the order of asking
        self._leaving: set[SamplingActor[R]] = set()
        self._wanted: int | None = None  # actors, once that was said
        self._taken = 0  # since the last parameters
        self._fill()

    def publish(self, params: Parameters) -> None:
        """The learner has made an update: these parameters are to be used from here on."""
        self.crew.publish(params)
        self._taken = 0
        self._fill()

    def resize(self, count: int) -> None:
        """Has so many actors from here on.  Those who go finish what they do."""
        self._wanted = count
        staying = [actor for actor in self.crew.actors if actor not in self._leaving]
        for actor in staying[count:]:
            if actor in self._calls.values():
                self._leaving.add(actor)
            else:
                self.crew.dismiss(actor)
        self.crew.hire(max(0, count - len(staying) - self.crew.coming))

    def take(self, timeout_s: float) -> R | None:
        """Returns the next rollout that holds experience, or None after `timeout_s`.

        Raises TrainingError if actors die one after another, or what `sample` raised.
        """
        if self.crew.welcome(timeout_s=0.0 if self.crew.actors else timeout_s):
            if self._wanted is not None:  # more may have come than are wanted by now
                self.resize(self._wanted)
            self._fill()
        for call in self._ready(timeout_s):
            if call not in self._calls:  # its actor was replaced a moment ago
                continue
            actor = self._calls.pop(call)
            try:
                rollout = call.result()
            except LOST as error:
                self._calls = {call: of for call, of in self._calls.items() if of != actor}
                self._leaving.discard(actor)
                self.crew.replace(actor, error)
                continue
            self.crew.answered()
            self._taken += rollout.steps > 0
            if actor in self._leaving and actor not in self._calls.values():
                self._leaving.discard(actor)
                self.crew.dismiss(actor)
            self._fill()
            if rollout.steps or rollout.episodes:
                return rollout
        return None

    def close(self) -> None:
        self._calls.clear()
        self.crew.close()

    def _ready(self, timeout_s: float) -> Sequence["Future[R]"]:
        if self._max_staleness is None:
            done = wait(self._calls, timeout_s, FIRST_COMPLETED).done
            return [call for call in self._calls if call in done]
        first = list(self._calls)[:1]
        wait(first, timeout_s)
        return [call for call in first if call.done()]

    def _fill(self) -> None:
        """Asks whoever may be asked, those first who have the least to do."""
        load = dict.fromkeys(self.crew.actors, 0)
        for actor in self._calls.values():
            load[actor] += 1
        for depth in range(self._ahead):
            for actor in self.crew.actors:
                if load[actor] <= depth and actor not in self._leaving and self._may_ask():
                    load[actor] += 1
                    self._calls[self.crew.ask(actor)] = actor

    def _may_ask(self) -> bool:
        if self._max_staleness is None:
            return True
        updates_before = (self._taken + len(self._calls)) // self._batch
        return updates_before <= self._max_staleness


def connect(actors: int) -> None:
    """Starts an embedded cluster with room for `actors`, unless this process has a cluster.

    There is room for many more, for the next run of this process may want them; for 0, which
    is as many as there is room for, there is a core each.
    """
    if not remotely.is_connected() and not os.environ.get("REMOTELY_ADDRESS"):
        cores = os.cpu_count() or 1
        remotely.connect(cpus=max(actors, cores, EMBEDDED_ROOM) if actors else cores)
