"""Rounds: synchronous sampling, in which all actors use the same parameters in every round."""

import time
from collections.abc import Sequence
from concurrent.futures import Future, wait
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any

import remotely
from remotely_rl import cluster
from remotely_rl.acting.actor import Parameters, Rollout
from remotely_rl.acting.samplers import Crewed, SamplingActor
from remotely_rl.supervision.failures import LOST

END_S = 10.0  # how long the end of a run waits for the round that runs


class Rounds:
    """Synchronous sampling, as in A2C and PPO: a round ends when all actors have sampled."""

    def __init__(self, crew: Crewed[Rollout]):
        self.crew = crew
        self._calls: list[tuple[SamplingActor[Rollout], Future[Rollout]]] = []

    @property
    def idle(self) -> bool:
        """Whether no round is running."""
        return not self._calls

    def begin(self, params: Parameters) -> None:
        """Make all actors sample with these parameters; `take` returns the rollouts."""
        self.crew.admit()
        self.crew.publish(params)
        self._calls = [(actor, self.crew.request(actor)) for actor in self.crew.actors]

    def take(self, timeout_s: float) -> list[Rollout]:
        """Return the rollouts of the round, in the order of the actors, once all have sampled.

        Failed actors are left out and replaced.  Returns an empty list if the round is not over in
        time, and without actors, after waiting for a replacement.  Raises TrainingError if there
        are too many crashes.
        """
        if not self._calls:
            self.crew.admit(timeout_s)
            return []
        deadline = time.monotonic() + timeout_s
        for _, call in self._calls:
            try:
                call.exception(max(0.0, deadline - time.monotonic()))
            except FutureTimeout:
                return []
        calls, self._calls = self._calls, []
        rollouts = []
        for actor, call in calls:
            if error := call.exception():
                self.crew.replace(actor, error)
            else:
                rollout = call.result()._replace(actor=self.crew.index_of(actor))
                rollouts.append(rollout)
                self.crew.succeeded(actor, rollout.steps, rollout.crashes)
        return rollouts

    def pause(self, ends: bool = False) -> list[bytes]:
        """Return the state of each actor, from which `resume` continues exactly.

        Returns an empty list while a round is running; if the run `ends`, waits up to END_S for
        it, and drops its experience.  The state is b"" for an actor whose environments cannot be
        saved.
        """
        if not self.idle and ends:
            for _, call in self._calls:
                cluster.discard(call)
            if not wait([call for _, call in self._calls], END_S).not_done:
                self._calls = []
        if not self.idle:
            return []
        try:
            calls = [remotely.submit(actor.pause) for actor in self._by_index()]
            return [call.result() for call in calls]
        except LOST:  # the next round replaces it
            return []

    def resume(self, paused: Sequence[bytes]) -> str:
        """Continue from the states that `pause` returned; return "" or why that failed."""
        actors: Sequence[Any] = self._by_index()
        if not paused:
            return "the checkpoint was made during a round, without the environments"
        if not all(paused):
            return "the environments could not be saved"
        if len(actors) != len(paused):
            return f"there were {len(paused)} actors, and there are {len(actors)} now"
        resumed = [actor.resume(one) for actor, one in zip(actors, paused, strict=True)]
        return "" if all(resumed) else "the environments are not those that were saved"

    def _by_index(self) -> list[Any]:
        """Return the actors by index, so that saved environments keep their ranks."""
        return sorted(self.crew.actors, key=self.crew.index_of)

    def close(self) -> None:
        """Close the actors; a running round is lost."""
        for _, call in self._calls:
            cluster.discard(call)
        self._calls = []
        self.crew.close()
