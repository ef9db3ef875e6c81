"""Races of rules on a live cluster, to 475 on CartPole and 15 on Pong, with uneven workers.

`race` measures the cost of waiting: synchronous, semi-asynchronous, asynchronous.  `penalties`
tests whether older gradients should count for less: asynchronous, SASGD, FASGD.

A straggler sleeps after each gradient for a multiple of its time.  This differs from a slow
machine: on two busy cores, sleeping leaves the cores to others, so with stragglers the total work
is less, but each other worker does the same or more.

A mean of k gradients is less noisy than one and allows a larger step: the learning rate is that of
one gradient times the fourth root of k.  With the square root, the means of sixteen fell back
before the target and stayed low; with no factor they took two to three times as long.  SASGD's rate
is such that its usual staleness, N - 1, divides it to that of one gradient, so only the weights of
older gradients differ.  FASGD is plain descent at a constant rate of its own: of 0.01, 0.03 and
0.1, the one with the fewest steps over three seeds.
"""

import dataclasses
import functools
import statistics
import time
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor, nn

from remotely_rl import a3c, cluster, networks
from remotely_rl.learning import sharing
from remotely_rl.learning.learner import LearningRate
from remotely_rl.learning.parameter_server import ParameterServer, Worker
from remotely_rl.runs import metrics
from remotely_rl.runs.training import make_learner
from tools import runs, tables
from tools.sync import page


class Race(NamedTuple):
    """The rules of a race, and the file of their finishes."""

    file: Path
    rules: tuple[str, ...]  # the specs without their settings


RACES = {
    "race": Race(runs.FOLDER / "race.jsonl", ("synchronous", "semi_async", "asynchronous")),
    "penalties": Race(runs.FOLDER / "penalties.jsonl", ("asynchronous", "sasgd", "fasgd")),
}


class Task(NamedTuple):
    """A problem: its target, the most minutes, the number of seeds and the settings."""

    target: float
    minutes: float
    seeds: int
    config: dict[str, Any]


CARTPOLE: dict[str, Any] = {
    "envs_per_actor": 2,
    "rollout_steps": 8,
    "random_start": 0,
    "entropy_coef": 0.0,
    "entropy_coef_end": 0.0,
    "gae_lambda": 0.9,
    "gamma": 0.98,
    "normalize_advantage": True,
    "optimizer": "adam",
    "learning_rate": 1e-3,
    "learning_rate_end": 5e-4,
    "anneal_steps": 200_000,
    # Rewards of 1 make values of 50, whose errors dominate the clipped gradient: one run in five
    # then fell back and stayed low.
    "reward_clip": 0.05,
}
PONG: dict[str, Any] = {"envs_per_actor": 4, "optimizer": "adam", "learning_rate": 5e-4}
TASKS = {
    "CartPole-v1": Task(475.0, 2.0, 5, CARTPOLE),
    "ALE/Pong-v5": Task(15.0, 20.0, 1, PONG),
}


class SlowWork:
    """Work that sleeps after each gradient for `slowness` - 1 times its duration."""

    def __init__(self, work: sharing.SegmentWork, slowness: float):
        self.work = work
        self.slowness = slowness

    def gradient(self, parameters: Tensor, broadcast: sharing.Broadcast | None) -> Tensor:
        began = time.perf_counter()
        gradient = self.work.gradient(parameters, broadcast)
        time.sleep((self.slowness - 1) * (time.perf_counter() - began))
        return gradient

    def report(self) -> sharing.WorkReport:
        return self.work.report()


def make_work(config: a3c.Config, model: nn.Module, slow: int, by: float, number: int) -> SlowWork:
    """Return the work of a worker; the first `slow` workers are slow."""
    work = a3c.make_work(config, model, config.seed * 1000 + number)
    return SlowWork(work, by if number < slow else 1.0)


class Course(NamedTuple):
    """A course: the workers, the number of slow ones and their factor."""

    workers: int
    slow: int = 0
    by: float = 1.0
    env: str = "CartPole-v1"

    @property
    def name(self) -> str:
        stragglers = f", {self.slow} of them {self.by:g} times slower" if self.slow else ""
        return f"{self.env}: {self.workers} workers{stragglers}"

    @property
    def task(self) -> Task:
        return TASKS[self.env]


class Finish(NamedTuple):
    """The end of a run: a line of the race's file."""

    course: str
    spec: str
    seed: int
    reached: bool
    seconds: float
    steps: int
    pushes: int
    staleness: float
    dropped: int

    def is_of(self, course: Course, spec: str, seed: int) -> bool:
        return (self.course, self.spec, self.seed) == (course.name, spec, seed)


COURSES = [
    Course(workers, slow, by) for workers in (8, 16) for slow, by in ((0, 1.0), (2, 2.0), (2, 5.0))
] + [Course(8, 2, 2.0, "ALE/Pong-v5")]


def specs(workers: int) -> dict[str, float]:
    """Return the rules with settings for a number of workers, and the factors of their rates."""
    half, quarter = workers // 2, workers // 4
    return {
        "synchronous": workers**0.25,
        f"semi_async:n={half},counted=3,weak=5": half**0.25,
        f"semi_async:n={quarter},counted=6,weak=9": quarter**0.25,
        "asynchronous": 1.0,
        "sasgd": workers - 1.0,
        "fasgd:rate=0.03": 1.0,
    }


def run(spec: str, course: Course, seed: int, minutes: float) -> Finish:
    """Train until the mean of 30 returns reaches the target, or until the time is over."""
    by = specs(course.workers)[spec]
    at_one = a3c.Config(course.env, course.workers, sync=spec, seed=seed, **course.task.config)
    rate = LearningRate(at_one.learning_rate, at_one.learning_rate_end)
    config = dataclasses.replace(
        at_one, learning_rate=rate.start * by, learning_rate_end=rate.end * by
    )
    cluster.connect(max(one.workers for one in COURSES))
    shared = sharing.SharedLearner(config, make_learner(config).model)
    model = networks.copy_to_cpu(shared.model)
    work = functools.partial(make_work, config, model, course.slow, course.by)
    server = ParameterServer(shared.rule, lambda number: Worker(work, number), lambda text: None)
    tally = metrics.Tally(metrics.Counters())
    steps = 0
    try:
        while server.take(timeout_s=1.0) is None:
            pass  # the clock starts with the first worker
        began = time.monotonic()
        while time.monotonic() - began < 60 * minutes:
            if tally.short_return_mean() >= course.task.target:
                break
            broadcast = shared.broadcast(steps, config.progress(steps))
            pushed = server.take(timeout_s=1.0, broadcast=broadcast)
            if pushed is not None:
                shared.record(pushed)
                steps += pushed.report.steps
                tally.sampled(pushed.report.steps, pushed.report.episodes, {})
        seconds = time.monotonic() - began
    finally:
        server.close()
    counters = shared.rule.counters
    return Finish(
        course.name,
        spec,
        seed,
        tally.short_return_mean() >= course.task.target,
        seconds,
        steps,
        counters.pushes,
        counters.staleness_mean,
        counters.dropped,
    )


def table(finishes: list[Finish]) -> str:
    """Return medians of seconds and steps over the seeds, and the range of seconds, in Markdown."""
    cells = {}
    for course, spec in dict.fromkeys((one.course, one.spec) for one in finishes):
        runs = [one for one in finishes if (one.course, one.spec) == (course, spec)]
        seconds, reached = [run.seconds for run in runs], sum(run.reached for run in runs)
        cells[course, page.rule_of(page.Curve(course, spec, []))] = (
            f"{statistics.median(seconds):.0f} s ({min(seconds):.0f}-{max(seconds):.0f}), "
            f"{statistics.median(run.steps for run in runs) / 1000:,.0f}k steps"
            f"{f', {reached} of {len(runs)}' if reached < len(runs) else ''}"
        )
    return tables.pivoted(cells)
