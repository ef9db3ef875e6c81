"""Actors that run free: each has calls ahead of it, and none waits for another.

Every actor is given `ahead` calls of `sample` at the start and a new one for each that is
taken, so what has been sampled but not learnt is bounded by actors x ahead without a
queue of its own: the futures are the queue.  New parameters go to an actor just before
its next call, so that they hold from there on; how stale a trajectory is then follows
from the version written in it.

An actor that dies is replaced, with the newest parameters.  What it was sampling is lost,
and nothing is learnt twice.
"""

import contextlib
import os
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import NamedTuple, Protocol

import numpy as np

import remotely
from remotely_rl.environments import Episode
from remotely_rl.errors import TrainingError
from remotely_rl.trajectory import Trajectory

DEATHS_IN_A_ROW = 5
LOST = (remotely.ActorDied, remotely.WorkerLost)


class Parameters(NamedTuple):
    """A model's state as numpy arrays, and the update count it was read at."""

    version: int
    state: dict[str, np.ndarray]


class Rollout(NamedTuple):
    """What one call of `sample` gives: experience, games finished, seconds spent by phase."""

    trajectory: Trajectory
    episodes: list[Episode]
    seconds: dict[str, float]


class SamplingActor(Protocol):
    """What the sampler calls.  `set_param` returns nothing of interest."""

    def sample(self) -> Rollout: ...
    def set_param(self, params: Parameters) -> None: ...


class Sampler:
    """Keeps `count` actors busy.  See the module's docstring."""

    def __init__(
        self,
        make: Callable[[int], SamplingActor],
        count: int,
        ahead: int,
        params: Parameters | None = None,
        say: Callable[[str], None] = print,
    ):
        """`make(n)` makes the n-th actor ever; replacements count on from `count`.

        `params` are those that the actors begin with, if not with what they were made with.
        """
        self._make = make
        self._ahead = ahead
        self._say = say
        self._deaths = 0
        self._newest: Parameters | None = None
        self._ref: object = None
        self._calls: dict[Future[Rollout], SamplingActor] = {}  # oldest first
        self._sent: dict[SamplingActor, tuple[int, Future[None]]] = {}
        if params is not None:
            self.publish(params)
        self._made = count
        # At once: making sixteen Atari games takes an actor seconds.
        with ThreadPoolExecutor(count) as pool:
            self._actors = list(pool.map(make, range(count)))
        for actor in self._actors:
            self._occupy(actor)

    def publish(self, params: Parameters) -> None:
        """From here on actors are given these parameters, each before its next call."""
        self._newest = params
        self._ref = remotely.put(params)  # pickled once, whatever the number of actors

    def take(self, timeout_s: float) -> Rollout | None:
        """Returns the oldest rollout that is there, or None after `timeout_s`.

        Raises TrainingError if actors die one after another, or what `sample` raised.
        """
        done, _ = wait(self._calls, timeout_s, FIRST_COMPLETED)
        for call in [call for call in self._calls if call in done]:
            if call not in self._calls:  # its actor was replaced a moment ago
                continue
            actor = self._calls.pop(call)
            try:
                rollout = call.result()
            except LOST as error:
                self._replace(actor, error)
                continue
            self._deaths = 0
            self._ask(actor)
            return rollout
        return None

    def close(self) -> None:
        """Ends the actors; what they were sampling is dropped."""
        for actor in self._actors:
            with contextlib.suppress(remotely.RemotelyError):
                remotely.close(actor)
        self._actors.clear()
        self._calls.clear()
        self._sent.clear()

    def _occupy(self, actor: SamplingActor) -> None:
        for _ in range(self._ahead):
            self._ask(actor)

    def _ask(self, actor: SamplingActor) -> None:
        if self._newest is not None:
            version, sent = self._sent.get(actor, (-1, None))
            if sent is not None and sent.done():
                _raise_unless_lost(sent)
            if version < self._newest.version:
                future = remotely.submit(actor.set_param, self._ref)  # type: ignore[arg-type]
                self._sent[actor] = (self._newest.version, future)
        self._calls[remotely.submit(actor.sample)] = actor

    def _replace(self, actor: SamplingActor, error: Exception) -> None:
        self._deaths += 1
        if self._deaths >= DEATHS_IN_A_ROW:
            raise TrainingError(
                f"{self._deaths} actors died without a trajectory in between; the last: {error}"
            ) from error
        self._calls = {call: of for call, of in self._calls.items() if of != actor}
        self._actors = [other for other in self._actors if other != actor]
        self._sent.pop(actor, None)
        self._say(f"an actor died and is replaced: {error}")
        self._actors.append(self._make(self._made))
        self._made += 1
        self._occupy(self._actors[-1])


def _raise_unless_lost(sent: Future[None]) -> None:
    """Raises what `set_param` raised; of an actor that is gone, its `sample` will tell."""
    with contextlib.suppress(*LOST):
        sent.result()


def connect(actors: int) -> None:
    """Starts an embedded cluster with room for `actors`, unless this process has a cluster."""

    if not remotely.is_connected() and not os.environ.get("REMOTELY_ADDRESS"):
        remotely.connect(cpus=max(actors, os.cpu_count() or 1))
