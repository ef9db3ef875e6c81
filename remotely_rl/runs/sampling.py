"""The actors of a run, which sample in rounds, in a stream, or as workers that share parameters.

All functions restore the learner if the run is resumed, and divide the cores of the CPU.
"""

import functools
from collections.abc import Callable
from typing import Any, Protocol, Self

import torch
from torch import nn

import remotely
from remotely_rl import networks
from remotely_rl.acting.actor import Actor, Rollout
from remotely_rl.acting.crew import Number
from remotely_rl.acting.dial_in import Station, arrive
from remotely_rl.acting.rounds import Rounds
from remotely_rl.acting.samplers import Samplers
from remotely_rl.acting.stream import Stream
from remotely_rl.config import learners_of, sampling_of
from remotely_rl.learning import threads
from remotely_rl.learning.parameter_server import ParameterServer, Worker
from remotely_rl.learning.sharing import SegmentWork, SharedLearner, SharingConfig
from remotely_rl.runs.central import CentralCrew
from remotely_rl.runs.session import Session

MakeWork = Callable[[Any, nn.Module, int], SegmentWork]


class StreamConfig(Protocol):
    """What `stream` reads of the Configs of IMPALA and APPO."""

    @property
    def actors(self) -> int: ...

    @property
    def batch_trajectories(self) -> int: ...

    @property
    def ahead(self) -> int: ...


class WorkersConfig(SharingConfig, Protocol):
    """What `workers` reads of the Configs of A3C and n-step Q."""

    @property
    def accumulate(self) -> int: ...

    @property
    def rows_per_actor(self) -> int: ...

    def of_actor(self, index: int, is_replacement: bool = False) -> Self: ...


def rounds(session: Session[Any], kind: type[Actor] = Actor, arrivals: bool = False) -> Rounds:
    """Start actors of this kind, which sample in rounds; with `arrivals`, in processes that dial
    in.

    The learner uses all cores, or its share of them, unless its network is small, because the
    actors are idle while it learns.  In a resumed run the actors continue where they were, if
    their environments can be saved and there is one learner.
    """
    size = sum(parameter.numel() for parameter in session.learner.model.parameters())
    shared = max(1, threads.in_rounds(size) // learners_of(session.learner.config))
    _set_threads(shared, session)
    actors = session.keep(Rounds(_actors(session, kind, arrivals)))
    if session.over():  # perhaps before there were actors: no game goes on, and none begins
        return actors
    if session.saved and learners_of(session.learner.config) == 1:
        states = session.saved["actors"]
        if states is None:
            why = "the environments have other settings"
        else:
            why = actors.resume([each.numpy().tobytes() for each in states])
        if why:
            session.say(f"{why}: new games begin")
    elif session.saved:
        session.say("the environments of several learners are not saved: new games begin")
    return actors


def stream(session: Session[Any]) -> Stream[Rollout]:
    """Start actors that never wait.  The learner uses the cores that they leave, at least one."""
    config: StreamConfig = session.learner.config
    learners = learners_of(config)
    _set_threads(max(1, threads.beside(config.actors * learners) // learners), session)
    actors = _actors(session, Actor, getattr(config, "arrivals", False))
    batch = config.batch_trajectories
    if isinstance(actors, CentralCrew):  # one rollout holds the trajectories of all actors
        batch = -(-batch // config.actors)
    return session.keep(Stream(actors, config.ahead, batch, getattr(config, "max_staleness", None)))


def workers(session: Session[Any], make_work: MakeWork) -> tuple[SharedLearner, ParameterServer]:
    """Start workers that share parameters under the config's sync rule.

    Each calls `make_work(config, model, seed)` in its process.  Returns the learner, which holds
    the rule, and the server, which receives the pushes.
    """
    config: WorkersConfig = session.learner.config
    # On the CPU even if there is a GPU: pushes and parameters are sent and received there.
    learner = SharedLearner(config, networks.copy_to_cpu(session.learner.model))
    learner.scale = session.learner.value_scale  # of a model of another run
    model = networks.copy_to_cpu(learner.model)
    if learner.rule.has_fixed_rate:
        session.say(
            f"{config.sync} is plain gradient descent at its own rate: learning_rate,"
            " learning_rate_end and optimizer are not used"
        )
    else:
        session.tally.gauges.append(lambda: {"train/learning_rate": learner.rate.value})
    session.restore(learner)
    torch.set_num_threads(1)  # the workers have the cores

    def make(number: Number) -> Worker:
        own = config.of_actor(number.index, number.is_replacement)
        work = functools.partial(make_work, own, model)
        return Worker(work, session.seed_of(number), number.is_replacement)

    server = ParameterServer(
        learner.rule,
        make,
        session.say,
        config.accumulate,
        broadcast=learner.broadcast(session.env_steps, session.progress),
        over=session.over,
        width=config.rows_per_actor,
        crashes=session.crashes,
    )
    return learner, session.keep(server)


def _set_threads(count: int, session: Session[Any]) -> None:
    learner = session.learner
    given: int = getattr(learner.config, "learner_threads", 0)
    count = given or count
    torch.set_num_threads(count)
    if count == 1 or learner.device.type != "cpu":
        return
    if threads.spins:
        session.say(threads.WARNING)
    if not given and learner.dtype is torch.bfloat16:
        session.adapt_threads(threads.LearnerThreads(count, session.warn))


def _actors(
    session: Session[Any], kind: type[Actor], arrivals: bool
) -> Samplers[Rollout] | CentralCrew:
    learner = session.learner
    session.restore(learner)
    config = learner.config
    if (mode := sampling_of(config)) != "local":
        return _central(session, kind, 2 if mode == "alternating" else 1)
    model = networks.copy_to_cpu(learner.model)
    # With actors=0 (as many as fit) each must reserve a CPU, whatever the cluster's default.
    place: Callable[..., Actor] = kind if config.actors else remotely.options(kind, cpus=1)

    def make(number: Number) -> Actor | Station:
        own = config.of_actor(number.index, number.is_replacement)
        seed = session.seed_of(number)
        if arrivals:
            say = session.say if number == 0 else lambda text: None
            return arrive(own, model, seed, session.over, say)
        return place(own, model, seed, number.is_replacement)

    return Samplers(
        make,
        config.actors or 1,
        learner.parameters(),
        session.say,
        grows=config.actors == 0 or arrivals,
        over=session.over,
        width=config.rows_per_actor,
        crashes=session.crashes,
    )


def _central(session: Session[Any], kind: type[Actor], halves: int) -> CentralCrew:
    learner = session.learner
    config, learners = learner.config, learners_of(learner.config)
    # In alternating sampling half of the actors step while actions are computed.
    stepping = config.actors * learners // 2 if halves == 2 else 0
    free = threads.beside(stepping) if stepping else threads.cores()
    count = config.actors * config.rows_per_actor
    session.say(
        f"{sampling_of(config)} sampling: the actions of {count} environments are computed here"
    )
    actor = CentralCrew(
        kind,
        config,
        learner.model,
        [session.seed_of(number) for number in range(config.actors)],
        halves,
        getattr(config, "learner_threads", 0) or max(1, free // learners),
        session.crashes,
        session.over,
    )
    actor.publish(learner.parameters())
    return actor
