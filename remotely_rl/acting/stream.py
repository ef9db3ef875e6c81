"""Stream: asynchronous sampling, in which each actor has calls queued and waits for no other.

At most actors x ahead rollouts are sampled but not yet taken; their futures are the queue.  With
`max_staleness` 0 the stream samples in rounds; larger values lie in between.
"""

from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Generic

from remotely_rl import cluster
from remotely_rl.acting.actor import Parameters
from remotely_rl.acting.samplers import Crewed, R, SamplingActor


class Stream(Generic[R]):
    """Asynchronous sampling, as in IMPALA, APPO and GA3C: up to `ahead` pending calls per actor.

    `max_staleness` limits how many updates old the parameters of a trajectory are when the learner
    takes it.  If an update takes `batch` trajectories, two rules ensure the limit: trajectories are
    taken in the order of their requests, and a request is made only when few enough trajectories
    are pending before it.  Without a limit, trajectories are taken as they arrive.
    """

    def __init__(
        self, crew: Crewed[R], ahead: int = 1, batch: int = 1, max_staleness: int | None = None
    ):
        self.crew = crew
        self._ahead = ahead
        self._batch = batch
        self._max_staleness = max_staleness
        self._calls: dict[Future[R], SamplingActor[R]] = {}  # in the order of the requests
        self._taken = 0  # rollouts since the last parameters
        self._fill()

    def publish(self, params: Parameters) -> None:
        """Send the parameters of a new update to the actors."""
        self.crew.publish(params)
        self._taken = 0
        self._fill()

    def take(self, timeout_s: float) -> R | None:
        """Return the next rollout that holds experience, or None after `timeout_s`.

        Raises TrainingError if there are too many crashes.
        """
        if self.crew.admit(timeout_s=0.0 if self.crew.actors else timeout_s):
            self._fill()
        for call in self._ready(timeout_s):
            if call not in self._calls:  # this loop has just replaced its actor
                continue
            actor = self._calls.pop(call)
            if error := call.exception():
                for other in [call for call, of in self._calls.items() if of == actor]:
                    del self._calls[other]
                    cluster.discard(other)
                self.crew.replace(actor, error)
                continue
            rollout = call.result()
            self.crew.succeeded(actor, rollout.steps, rollout.crashes)
            self._taken += rollout.steps > 0
            self._fill()
            if rollout.steps or rollout.episodes:
                return rollout
        return None

    def close(self) -> None:
        """Close the actors; their pending calls are lost."""
        for call in self._calls:
            cluster.discard(call)
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
        """Request as many rollouts as allowed, first from actors with the fewest pending calls."""
        load = dict.fromkeys(self.crew.actors, 0)
        for actor in self._calls.values():
            load[actor] += 1
        for depth in range(self._ahead):
            for actor in self.crew.actors:
                if load[actor] <= depth and self._may_request():
                    load[actor] += 1
                    self._calls[self.crew.request(actor)] = actor

    def _may_request(self) -> bool:
        if self._max_staleness is None:
            return True
        updates_before = (self._taken + len(self._calls)) // self._batch
        return updates_before <= self._max_staleness
