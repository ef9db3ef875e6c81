"""Keeping actors at work: in rounds, or free.

`Rounds`: all sample with the same parameters, and nobody goes on before all are done.
`Stream`: each has calls ahead of it, and none waits for another.  What has been sampled
but not learnt is bounded by actors x ahead without a queue of its own: the futures are the
queue.  `max_staleness` turns it, in steps, into the former: see `Stream`.

New parameters go to an actor just before its next call, so that they hold from there on;
how stale a trajectory is then follows from the version written in it.

An actor that dies, or whose environment raises, is replaced, with the newest parameters, as
soon as there is room for another; until then the others go on.  What it was sampling is lost,
and nothing is learnt twice.  `failures.py` says when there are too many.

Nothing here waits without an end: an environment may hang, and who trains has a clock to look at
and a Ctrl-C to hear.
"""

import contextlib
import os
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any, Generic, Protocol, TypeVar

import remotely
from remotely_rl.acting.actor import Parameters, Rollout
from remotely_rl.acting.failures import LOST, Failures, is_failure
from remotely_rl.environments import Episode

EMBEDDED_ROOM = 64  # actors of a cluster that training makes for itself
LOOK_EVERY_S = 0.5  # at the clock, and whether Ctrl-C was pressed, while actors are waited for


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
    """Actors that are made, and replaced when they fail."""

    def __init__(
        self,
        make: Callable[[int], A],
        count: int,
        say: Callable[[str], None] = print,
        grows: bool = False,
        over: Callable[[], bool] = lambda: False,
    ):
        """`make(n)` makes the n-th actor ever; it may wait for room.

        With `grows` there is no end to it: whenever one is placed another is asked for, so
        that machines that join the cluster are used.  The first `count` are waited for, unless
        training is `over` before: an environment may hang as it is made.  Raises what making
        one of them raised that no other could do better, and TrainingError if they fail again
        and again.
        """
        self._make = make
        self._say = say
        self._grows = grows
        self._closed = False
        self._newcomers: queue.SimpleQueue[tuple[int, A | BaseException]] = queue.SimpleQueue()
        self._made = 0
        self.failures = Failures(say)
        self.coming = 0  # those that are being made
        self.actors: list[A] = []
        try:
            self._make_first(count, over)
        except BaseException:
            self.close()
            raise
        if grows:
            self._hire()

    def answered(self) -> None:
        """To be called for each answer that came: failures are judged by their share of them."""
        self.failures.answered()

    def replace(self, actor: A, error: BaseException) -> None:
        """Has another take the place of one that failed.

        Raises `error` if no other could do better, and TrainingError if too many fail.
        """
        if not is_failure(error):
            raise error
        self.failures.failed(error)
        self._forget(actor)
        if self._grows:  # another is being asked for already
            threading.Thread(target=_end, args=(actor,), daemon=True).start()
        else:
            self._hire(instead_of=actor)

    def welcome(self, timeout_s: float = 0.0) -> bool:
        """Takes in those that were made meanwhile; returns whether there were any.

        Raises what making one raised that no other could do better, and TrainingError if too
        many fail.
        """
        came = [actor for _, actor in self._arrivals(timeout_s)]
        for actor in came:
            self.actors.append(actor)
            if self._grows:
                self._say(f"an actor joined; there are {len(self.actors)}")
                self._hire()
        return bool(came)

    def hire(self, count: int = 1) -> None:
        """Has more made; `welcome` takes them in."""
        for _ in range(count):
            self._hire()

    def dismiss(self, actor: A) -> None:
        """Lets one go for good."""
        self._forget(actor)
        _end(actor)

    def close(self) -> None:
        """Ends the actors; what they were doing is dropped."""
        self._closed = True
        self.failures.tell()
        if self.actors:  # together: one that hangs is waited for some seconds
            with ThreadPoolExecutor(len(self.actors)) as pool:
                list(pool.map(_end, self.actors))
        self.actors.clear()

    def _make_first(self, count: int, over: Callable[[], bool]) -> None:
        """At once: making sixteen Atari games takes an actor seconds."""
        for _ in range(count):
            self._hire(waits_for_room=False)
        came: list[tuple[int, A]] = []
        while len(came) < count and not over():
            came += self._arrivals(timeout_s=0.5)
            self.actors = [actor for _, actor in sorted(came, key=lambda one: one[0])]

    def _arrivals(self, timeout_s: float) -> list[tuple[int, A]]:
        """Those that were made meanwhile, and their numbers; in place of failures others are."""
        came: list[tuple[int, A]] = []
        with contextlib.suppress(queue.Empty):
            while True:
                number, newcomer = self._newcomers.get(timeout=0.0 if came else timeout_s)
                self.coming -= 1
                if not isinstance(newcomer, BaseException):
                    came.append((number, newcomer))
                    continue
                if not is_failure(newcomer):
                    raise newcomer
                self.failures.failed(newcomer)
                self._hire()
        return came

    def _forget(self, actor: A) -> None:
        self.actors = [other for other in self.actors if other != actor]

    def _hire(self, instead_of: A | None = None, waits_for_room: bool = True) -> None:
        number, self._made = self._made, self._made + 1
        self.coming += 1
        # A daemon: it may wait for room, or for an environment that hangs, when the run ends.
        args = (number, instead_of, waits_for_room)
        threading.Thread(target=self._make_one, args=args, daemon=True).start()

    def _make_one(self, number: int, instead_of: A | None, waits_for_room: bool) -> None:
        if instead_of is not None:
            _end(instead_of)
        while not self._closed:
            try:
                actor = self._make(number)
            except remotely.NoResources as error:
                if not waits_for_room:
                    self._newcomers.put((number, error))
                    return
                time.sleep(1.0)  # a machine may join
                continue
            except BaseException as error:
                self._newcomers.put((number, error))
                return
            if self._closed:  # nobody takes it in
                _end(actor)
            else:
                self._newcomers.put((number, actor))
            return


def drop(call: "Future[Any]") -> None:
    """Waits no longer for a call; remotely would tell of an error that nobody looked at."""
    call.add_done_callback(lambda done: done.cancelled() or done.exception())


def _end(actor: Any) -> None:
    with contextlib.suppress(remotely.RemotelyError):
        remotely.close(actor)


class Samplers(Crew[SamplingActor[R]], Generic[R]):
    """A crew that samples, each with the newest parameters; without any they are sent none."""

    def __init__(
        self,
        make: Callable[[int], SamplingActor[R]],
        count: int,
        params: Parameters | None,
        say: Callable[[str], None] = print,
        grows: bool = False,
        over: Callable[[], bool] = lambda: False,
    ):
        self._sent: dict[SamplingActor[R], tuple[int, Future[None]]] = {}
        self.version = -1
        self._ref: Any = None
        if params is not None:
            self.publish(params)
        super().__init__(make, count, say, grows, over)

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
        if actor in self._sent:
            drop(self._sent.pop(actor)[1])


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
        """Has all sample with these parameters; `take` returns what."""
        self.crew.welcome()
        self.crew.publish(params)
        self._calls = [(actor, self.crew.ask(actor)) for actor in self.crew.actors]

    def take(self, timeout_s: float) -> list[Rollout]:
        """Returns the round's rollouts, in the order of the actors, once all have sampled.

        None of an actor that failed, and none at all before the round is over, or if there is
        nobody to sample: a replacement is then waited for, so long.  Raises TrainingError if
        too many fail.
        """
        if not self._calls:
            self.crew.welcome(timeout_s)
            return []
        until = time.monotonic() + timeout_s
        for _, call in self._calls:
            try:
                call.exception(max(0.0, until - time.monotonic()))
            except FutureTimeout:
                return []
        calls, self._calls = self._calls, []
        rollouts = []
        for actor, call in calls:
            if error := call.exception():
                self.crew.replace(actor, error)
            else:
                rollouts.append(call.result())
                self.crew.answered()
        return rollouts

    def pause(self) -> list[bytes]:
        """What each actor needs to go on as if nothing had happened between; nothing amid a round.

        What is empty is of environments that cannot be saved.
        """
        if not self.idle:
            return []
        try:
            calls = [
                remotely.submit(actor.pause)  # type: ignore[attr-defined]
                for actor in self.crew.actors
            ]
            return [call.result() for call in calls]
        except LOST:  # the next round will tell, and replace it
            return []

    def go_on(self, paused: Sequence[bytes]) -> str:
        """Has the actors go on where they were paused; returns why they cannot, or nothing."""
        actors: Sequence[Any] = self.crew.actors
        if not paused:
            return "the checkpoint was made amid a round, without the environments"
        if not all(paused):
            return "the environments could not be saved"
        if len(actors) != len(paused):
            return f"there were {len(paused)} actors, and there are {len(actors)} now"
        went_on = [actor.go_on(one) for actor, one in zip(actors, paused, strict=True)]
        return "" if all(went_on) else "the environments are not those that were saved"

    def close(self) -> None:
        for _, call in self._calls:
            drop(call)
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

        Raises TrainingError if too many actors fail.
        """
        if self.crew.welcome(timeout_s=0.0 if self.crew.actors else timeout_s):
            if self._wanted is not None:  # more may have come than are wanted by now
                self.resize(self._wanted)
            self._fill()
        for call in self._ready(timeout_s):
            if call not in self._calls:  # its actor was replaced a moment ago
                continue
            actor = self._calls.pop(call)
            if error := call.exception():
                for other in [call for call, of in self._calls.items() if of == actor]:
                    del self._calls[other]
                    drop(other)
                self._leaving.discard(actor)
                self.crew.replace(actor, error)
                continue
            rollout = call.result()
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
        for call in self._calls:
            drop(call)
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
