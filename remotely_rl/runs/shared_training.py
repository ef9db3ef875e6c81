"""The loop of A3C and n-step Q: workers push to a parameter server until the run ends."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from remotely_rl import networks
from remotely_rl.acting.crew import POLL_S
from remotely_rl.config import Shared
from remotely_rl.learning.parameter_server import ParameterServer, Worker
from remotely_rl.learning.sharing import Report, SegmentWork, SharedLearner
from remotely_rl.runs.training import Session


def share(session: Session[Any], make_work: Callable[[Any, nn.Module, int], SegmentWork]) -> None:
    """Runs workers until the session is over; each calls `make_work(config, model, seed)`.

    The rule decides what follows a push, so the loop is the same for all rules.
    """
    config: Shared = session.learner.config
    # On the CPU even where there is a GPU: vectors arrive and leave there.
    learner = SharedLearner(config, networks.copy_to_cpu(session.learner.model))
    work = functools.partial(make_work, config, networks.copy_to_cpu(learner.model))
    if learner.rule.has_fixed_rate:
        session.say(
            f"{config.sync} is plain gradient descent at its own rate: learning_rate,"
            " learning_rate_end and optimizer are not used"
        )
    workers = _serve(session, learner, work)
    while not session.over():
        broadcast = learner.broadcast(session.env_steps)
        with session.spending("waiting"):
            pushed = workers.take(timeout_s=POLL_S, broadcast=broadcast)
        if pushed is None:
            session.tick()
            continue
        learner.record(pushed)
        report: Report = pushed.report
        session.tally.sampled(report.steps, report.episodes, report.seconds)
        session.learnt(report.metrics, [pushed.reply.staleness])


def _serve(
    session: Session[Any], learner: SharedLearner, make_work: Callable[[int], SegmentWork]
) -> ParameterServer:
    session.restore(learner)
    torch.set_num_threads(1)  # the workers have the cores

    def make(number: int) -> Worker:
        return Worker(make_work, session.seed_of(number), number >= learner.config.actors)

    return session.keep(
        ParameterServer(
            learner.rule,
            make,
            session.say,
            learner.config.accumulate,
            broadcast=learner.broadcast(session.env_steps),
            over=session.over,
            width=learner.config.envs_per_actor,
            crashes=session.crashes,
        )
    )
