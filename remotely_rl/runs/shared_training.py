"""The loop of A3C and n-step Q: workers push to a parameter server until the run is over."""

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
    """Has workers push until the session is over; `make_work(config, model, seed)` is done at
    each.  What follows a push is the rule's business, and so the loop is the same for all."""
    config: Shared = session.learner.config
    # On the CPU, whatever the machine has: that is where vectors come and go.
    learner = SharedLearner(config, networks.copy_to_cpu(session.learner.model))
    work = functools.partial(make_work, config, networks.copy_to_cpu(learner.model))
    if learner.rule.has_fixed_rate:
        session.say(
            f"{config.sync} is plain descent at its own rate: learning_rate, learning_rate_end and"
            " optimizer are not used"
        )
    workers = _serve(session, learner, work)
    while not session.over():
        told = learner.follow(session.env_steps)
        with session.spending("waiting"):
            pushed = workers.take(timeout_s=POLL_S, told=told)
        if pushed is None:
            session.tick()
            continue
        learner.count_in(pushed)
        report: Report = pushed.report
        session.tally.sampled(report.steps, report.episodes, report.seconds)
        session.learnt(report.metrics, [pushed.reply.staleness])


def _serve(
    session: Session[Any], learner: SharedLearner, make_work: Callable[[int], SegmentWork]
) -> ParameterServer:
    session.restore(learner)
    torch.set_num_threads(1)  # the workers have the cores

    def hire(number: int) -> Worker:
        return Worker(make_work, session.seed_of(number), number >= learner.config.actors)

    return session.keep(
        ParameterServer(
            learner.rule,
            hire,
            session.say,
            learner.config.accumulate,
            told=learner.follow(session.env_steps),
            over=session.over,
        )
    )
