"""Evaluations of the current policy, which plays whole episodes while training continues.

All steps are in the run's thread, which waits only in 5:

    1  begin     `evaluate_every` steps after the last evaluation, or when that one has ended if it
                 is still running.  Copies the checkpoint, for best.pt
    2  look      if the actor is ready, sends it the parameters.  A Crew makes it the first time
    3  look      if the actor has died, the crew replaces it, and 2 is repeated
    4  look      returns the result, with the checkpoint if it is the best so far
    5  look      with a timeout, at the end of the run

A run learns bit by bit the same with and without evaluations: they have their own seeds, random
numbers, and copy of the parameters.  If evaluations fail, training continues without them.
"""

import contextlib
import copy
import dataclasses
import math
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from typing import Any, NamedTuple

from torch import nn

import remotely
from remotely_rl import cluster, networks
from remotely_rl.acting.crew import POLL_S, Crew
from remotely_rl.acting.evaluation import Evaluation
from remotely_rl.acting.evaluator import Evaluator
from remotely_rl.config import Common
from remotely_rl.environments.spaces import Spaces
from remotely_rl.runs import metrics
from remotely_rl.runs.metrics import Row
from remotely_rl.supervision import Crashes

END_S = 300.0  # how long the end of a run waits for its last evaluation
SAY_AFTER_S = 2.0  # after this wait for an evaluation, the end of a run says that it waits


class BegunEvaluation(NamedTuple):
    """A running evaluation."""

    env_steps: int  # of training
    checkpoint: dict[str, Any]  # of the policy, a copy
    state: networks.State
    seed: int


class MeasuredPolicy(NamedTuple):
    """A finished evaluation."""

    evaluation: Evaluation
    checkpoint: dict[str, Any] | None  # of its policy, if it is the best so far


class Evaluations:
    """The evaluations of a run; see the module's docstring."""

    def __init__(
        self,
        config: Common,
        say: Callable[[str], None],
        seed_of: Callable[[int], int],
        saved: Mapping[str, Any],
        spaces: Spaces | None = None,
    ):
        """`seed_of(env_steps)` is the seed of an evaluation; `saved` is a `state`, or empty.

        The environments must have these `spaces`, those of training.
        """
        self._config, self._say, self._seed_of, self._spaces = config, say, seed_of, spaces
        # The highest mean return, or what `best_by` names.
        self.best: float = saved.get("best", -math.inf) if is_by(saved, config) else -math.inf
        self._ended_at: int = saved.get("env_steps", 0)  # training steps of the last one
        self._begun_at = self._ended_at
        self._begun: BegunEvaluation | None = None
        self._crew: Crew[Evaluator] | None = None
        self._call: Future[Evaluation] | None = None
        self._has_given_up = False

    @property
    def is_under_way(self) -> bool:
        """Whether an evaluation runs."""
        return self._begun is not None

    def is_due(self, env_steps: int) -> bool:
        """Whether to start one after this number of training steps."""
        every = self._config.evaluate_every
        is_next = env_steps // every > self._begun_at // every
        return is_next and not self.is_under_way and not self._has_given_up

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint keeps; a running evaluation restarts when the run is resumed."""
        by = {} if self._config.best_by is None else {"by": self._config.best_by}
        return {"env_steps": self._ended_at, "best": self.best} | by

    def begin(self, env_steps: int, checkpoint: dict[str, Any], model: nn.Module) -> None:
        """Start an evaluation of the policy in this checkpoint, which is copied."""
        self._begun_at = env_steps
        kept = copy.deepcopy(checkpoint)
        state = networks.arrays_of(kept["learner"]["model"])
        self._begun = BegunEvaluation(env_steps, kept, state, self._seed_of(env_steps))
        if self._crew is None:
            self._crew = self._make_crew(networks.copy_to_cpu(model))

    def look(self, timeout_s: float = 0.0) -> MeasuredPolicy | None:
        """Return the evaluation if it ends within the timeout, else None."""
        begun, crew = self._begun, self._crew
        if begun is None or crew is None:
            return None
        try:
            crew.admit(0.0 if crew.actors else timeout_s)
            if not crew.actors:
                return None
            (actor,) = crew.actors
            if self._call is None:
                self._call = remotely.submit(actor.evaluate, begun.state, begun.seed)
            if not wait([self._call], timeout_s).done:
                return None
            call, self._call = self._call, None
            if error := call.exception():
                crew.replace(actor, error)
                return None
            evaluation = dataclasses.replace(call.result(), env_steps=begun.env_steps)
            crew.succeeded(actor, sum(evaluation.lengths))
        except Exception as error:
            self._say(f"training continues without evaluations: {error}")
            self._has_given_up = True
            self.close()
            return None
        return self._ended(begun, evaluation)

    def close(self) -> None:
        """End the actor; a running evaluation is discarded."""
        crew, self._crew, self._begun = self._crew, None, None
        if crew is None:
            return
        if self._call is not None:  # kill the actor, because `close` would wait for the call
            for actor in crew.actors:
                with contextlib.suppress(remotely.RemotelyError):
                    remotely.kill(actor)
            cluster.discard(self._call)
            self._call = None
        crew.close()

    def _ended(self, begun: BegunEvaluation, evaluation: Evaluation) -> MeasuredPolicy:
        self._begun, self._ended_at = None, begun.env_steps
        merit, by = evaluation.mean, self._config.best_by
        if by is not None:
            merit = metrics.merit(by, columns_of(evaluation) | own_columns_of(evaluation))
        if merit <= self.best or not choose_best(self._config):
            return MeasuredPolicy(evaluation, None)
        self.best = merit
        return MeasuredPolicy(evaluation, {**begun.checkpoint, "evaluations": self.state()})

    def _make_crew(self, model: nn.Module) -> Crew[Evaluator]:
        # It reserves no cores: if sampling takes them all, it would never be placed.
        place: Callable[..., Evaluator] = remotely.options(Evaluator, cpus=0)

        def say(text: str) -> None:
            self._say(f"evaluation: {text}")

        crew = Crew(
            lambda number: place(self._config, model, self._spaces, number > 0),
            0,
            say,
            crashes=Crashes(say, self._config.max_crash_rate),
        )
        crew.add()
        return crew


class Policy(NamedTuple):
    """A policy to evaluate: the content of its checkpoint, and its model."""

    checkpoint: dict[str, Any]
    model: nn.Module


class Evaluating:
    """Starts the evaluations of a run when they are due, and reports their results.

    `policy` returns what to evaluate, or None if there is nothing yet; `report` receives each
    result.
    """

    def __init__(
        self,
        evaluations: Evaluations,
        policy: Callable[[], Policy | None],
        report: Callable[[MeasuredPolicy], None],
        say: Callable[[str], None],
    ) -> None:
        self._evaluations = evaluations
        self._policy = policy
        self._report = report
        self._say = say

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint keeps."""
        return self._evaluations.state()

    def close(self) -> None:
        """End the actor; a running evaluation is discarded."""
        self._evaluations.close()

    def know_best(self, best: float) -> None:
        """Note the best result of an earlier process of this run."""
        self._evaluations.best = max(best, self._evaluations.best)

    def begin_if_due(self, env_steps: int) -> None:
        """Start an evaluation of the current policy, if one is due."""
        if self._evaluations.is_due(env_steps) and (policy := self._policy()) is not None:
            self._evaluations.begin(env_steps, *policy)

    def look(self, timeout_s: float = 0.0) -> None:
        """Report an evaluation, if one ends within the timeout."""
        if (measured := self._evaluations.look(timeout_s)) is not None:
            self._report(measured)

    def end(self, env_steps: int | None, is_cut_short: Callable[[], bool]) -> None:
        """Wait for the running evaluation and, with `env_steps`, for one that is due."""
        started, has_said = time.monotonic(), False
        while not is_cut_short():
            if env_steps is not None:
                self.begin_if_due(env_steps)
            if not self._evaluations.is_under_way:
                return
            waited_s = time.monotonic() - started
            if waited_s > END_S:
                self._say(f"the last evaluation has not ended in {waited_s:.0f} s: it is skipped")
                return
            if waited_s > SAY_AFTER_S and not has_said:
                self._say("waiting for the last evaluation; Ctrl-C skips it")
                has_said = True
            self.look(POLL_S)


def choose_best(config: Common) -> bool:
    """Whether best.pt is chosen by evaluations, rather than by rows of training."""
    if config.best_by is None:
        return bool(config.evaluate_every)
    return config.best_by.removeprefix("-").startswith("evaluation/")


def is_by(saved: Mapping[str, Any], config: Common) -> bool:
    """Whether a saved `state` has the best by the same metric as this config."""
    return saved.get("by") == config.best_by


def own_columns_of(evaluation: Evaluation) -> Row:
    """Return the columns of the environments' own metrics."""
    return {f"evaluation/{name}": number for name, number in evaluation.metrics.items()}


def columns_of(evaluation: Evaluation) -> Row:
    """Return the columns of an evaluation, except the environments' own metrics."""
    return {
        "evaluation/env_steps": math.nan if evaluation.env_steps is None else evaluation.env_steps,
        "evaluation/episodes": len(evaluation.scores),
        "evaluation/return_mean": evaluation.mean,
        "evaluation/return_std": evaluation.std,
        "evaluation/length_mean": evaluation.mean_length,
    }
