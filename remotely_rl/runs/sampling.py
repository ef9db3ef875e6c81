"""The actors of a run with one central learner: in rounds, or in a stream.

Both put the session's learner back where it was if the run is resumed, and give it the CPU
cores that the actors leave.
"""

from collections.abc import Callable
from typing import Any

import torch

import remotely
from remotely_rl import networks
from remotely_rl.acting.actor import Actor, Rollout
from remotely_rl.acting.dial_in import Station, arrive
from remotely_rl.acting.rounds import Rounds
from remotely_rl.acting.samplers import Samplers
from remotely_rl.acting.stream import Stream
from remotely_rl.config import OffPolicy, PolicyGradient, Streaming
from remotely_rl.learning import threads
from remotely_rl.runs.session import Session


def rounds(session: Session[Any], kind: type[Actor] = Actor) -> Rounds:
    """Starts actors of this kind, which sample in rounds.

    The learner has all cores, unless its network is small: the actors rest while it learns.  If
    the run is resumed, the actors continue where they were, if their environments can be saved.
    """
    size = sum(parameter.numel() for parameter in session.learner.model.parameters())
    _set_threads(threads.in_rounds(size), session)
    made = session.keep(Rounds(_actors(session, kind)))
    if session.saved:
        paused = [one.numpy().tobytes() for one in session.saved["actors"]]
        if why := made.resume(paused):
            session.say(f"{why}: new games begin")
    return made


def stream(session: Session[Any]) -> Stream[Rollout]:
    """Starts actors that never wait.  The learner has the cores that they leave, at least one."""
    config: Streaming = session.learner.config
    _set_threads(threads.beside(config.actors), session)
    actors = _actors(session)
    return session.keep(
        Stream(actors, config.ahead, config.batch_trajectories, config.max_staleness)
    )


def _set_threads(count: int, session: Session[Any]) -> None:
    config: PolicyGradient | OffPolicy = session.learner.config
    count = config.learner_threads or count
    torch.set_num_threads(count)
    if threads.spins and count > 1 and session.learner.device.type == "cpu":
        session.say(threads.WARNING)


def _actors(session: Session[Any], kind: type[Actor] = Actor) -> Samplers[Rollout]:
    learner = session.learner
    session.restore(learner)
    config, model = learner.config, networks.copy_to_cpu(learner.model)
    # Of as many as there is room for, each takes room, whatever the cluster counts by itself.
    place: Callable[..., Actor] = kind if config.actors else remotely.options(kind, cpus=1)

    def make(number: int) -> Actor | Station:
        seed = session.seed_of(number)
        if config.arrivals:
            say = session.say if number == 0 else lambda text: None
            return arrive(config, model, seed, session.over, say)
        return place(config, model, seed, number >= (config.actors or 1))

    return Samplers(
        make,
        config.actors or 1,
        learner.parameters(),
        session.say,
        grows=config.actors == 0 or config.arrivals,
        over=session.over,
        width=config.envs_per_actor,
        crashes=session.crashes,
    )
