"""Actors in processes that dial in to a training run: robots, or simulators tied to a machine.

`dial_in` serves a station (`remotely.serve`).  A run with `arrivals` accepts stations as they
arrive, and has each make an actor from the run's config and model.  From then on a station is an
actor like any other.  When the run has ended, the process dials in again, for the next run.
"""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

import remotely
from remotely_rl.acting.actor import Actor, Parameters, Rollout
from remotely_rl.config import Common
from remotely_rl.environments import Source

POLL_S = 2.0  # how often a run that waits for a station checks whether it is over


class Station:
    """An actor, once `begin` has been called."""

    def __init__(self, env: Source | None):
        self._env = env
        self._actor: Actor | None = None

    def begin(self, config: Common, model: nn.Module, seed: int) -> None:
        """Make the actor, with this process's own `env` if it has one."""
        self.close()
        if self._env is not None:
            own = dataclasses.replace(config, env=self._env, env_kwargs={})
            config = own.ranked(config.first_rank)
        self._actor = remotely.local(Actor, config, model, seed)

    def set_param(self, params: Parameters) -> None:
        self._made.set_param(params)

    def read_from(self, source: "remotely.Published[Parameters]") -> None:
        self._made.read_from(source)

    def sample(self, at_least: int = 0) -> Rollout:
        return self._made.sample(at_least)

    def pause(self) -> bytes:
        return self._made.pause()

    def resume(self, paused: bytes) -> bool:
        return self._made.resume(paused)

    def close(self) -> None:
        """Close the environments."""
        actor, self._actor = self._actor, None
        if actor is not None:
            actor.close()

    @property
    def _made(self) -> Actor:
        if self._actor is None:
            raise remotely.RemotelyError("this station has no actor: begin() makes it")
        return self._actor


def dial_in(
    env: Source | None = None,
    *,
    address: str | None = None,
    key: str | Path | None = None,
    name: str | None = None,
    patience_s: float = 60.0,
) -> None:
    """Serve as an actor of a cluster's training runs, one run after the other.

    env   a Gymnasium id or a callable that makes this process's environments; their spaces must
          be those of the run's `env`, which is the default

    The other arguments are those of `remotely.serve`, whose errors it raises.  It returns when the
    cluster is stopped.
    """
    threads = torch.get_num_threads()
    why = ""
    try:
        while why != "the cluster was stopped":
            why = remotely.serve(
                Station(env), name=name, address=address, key=key, patience_s=patience_s
            )
    finally:
        torch.set_num_threads(threads)  # an actor sets it to 1


def arrive(
    config: Common,
    model: nn.Module,
    seed: int,
    over: Callable[[], bool],
    say: Callable[[str], None],
) -> Station:
    """Return the next station that dials in, with its actor made.

    Raises NoResources if the run ends first.
    """
    has_said = False
    while not over():
        try:
            station = next(remotely.arrivals(Station, timeout=POLL_S))
        except remotely.CallTimeout:
            if not has_said:
                say("waiting for an actor to dial in (remotely_rl.dial_in)")
                has_said = True
            continue
        station.begin(config, model, seed)
        return station
    raise remotely.NoResources("the run ended before an actor dialled in")
