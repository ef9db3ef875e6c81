"""Supervisor: the rule about the processes of a run that fail.  It has no clock, thread or process.

TABLE says what follows when a process fails, by what it does in the run and by what has happened.
Whoever has the processes asks it, and then makes, closes or leaves them: `cluster.Making`
makes those that are placed on a cluster, `runs/seeds.Processes` those of whole runs.

The limit on replacements is the rate of crashes (crashes.py), except for the probe of an
environment, which has a number of attempts: there are no steps yet to compare with.
"""

from dataclasses import replace
from enum import StrEnum

from remotely_rl.supervision import failures
from remotely_rl.supervision.crashes import Crashes
from remotely_rl.supervision.failures import Failure, failure_of
from remotely_rl.supervision.report import CrashReport


class ProcessRole(StrEnum):
    """The role of a process in a run."""

    PLAYER = "an actor, a host of environments, or an evaluator"
    PROBE = "the probe of an environment"
    LEARNER_IN_STEP = "a learner that averages gradients with others"
    LEARNER_APART = "a learner that shares a store with others"
    RUN = "the run of one of several seeds"


class Consequence(StrEnum):
    """What follows from a failure."""

    REPLACED = "another takes its place"
    WITHOUT = "the others continue without it"
    END = "the run ends"


TABLE = {
    (ProcessRole.PLAYER, Failure.RAISED): Consequence.REPLACED,
    (ProcessRole.PLAYER, Failure.ENDED): Consequence.REPLACED,
    (ProcessRole.PROBE, Failure.RAISED): Consequence.REPLACED,
    (ProcessRole.PROBE, Failure.ENDED): Consequence.REPLACED,
    # Every gradient step needs all of them, and a learner that raises would raise again.
    (ProcessRole.LEARNER_IN_STEP, Failure.RAISED): Consequence.END,
    (ProcessRole.LEARNER_IN_STEP, Failure.ENDED): Consequence.END,
    (ProcessRole.LEARNER_APART, Failure.RAISED): Consequence.END,
    (ProcessRole.LEARNER_APART, Failure.ENDED): Consequence.WITHOUT,
    (ProcessRole.RUN, Failure.RAISED): Consequence.WITHOUT,
    (ProcessRole.RUN, Failure.ENDED): Consequence.WITHOUT,
    **{(job, Failure.WRONG): Consequence.END for job in ProcessRole},
}


def consequence_of(job: ProcessRole, failure: Failure | BaseException) -> Consequence:
    """Return what follows when a process of this job fails, in this way or with this error."""
    kind = failure if isinstance(failure, Failure) else failure_of(failure)
    return TABLE[job, kind]


class Supervisor:
    """The players of one owner, numbered from `first`: each that fails is replaced."""

    def __init__(self, crashes: Crashes, *, first: int = 0, width: int = 1) -> None:
        """`crashes` counts and limits the failures; each process has `width` environments."""
        self.crashes = crashes
        self._first = first
        self._width = width

    def replaces(self, error: BaseException) -> bool:
        """Whether another process takes the place of one that failed with this error."""
        return consequence_of(ProcessRole.PLAYER, error) is Consequence.REPLACED

    def failed(self, index: int, error: BaseException, lived: int = 0) -> None:
        """Count the failure of a process that is to be replaced; see `report_of`.

        Raises `error` if a replacement would not help, and TrainingError if too many fail.
        """
        if not self.replaces(error):
            raise error
        self.count(self.report_of(index, error, lived))

    def report_of(self, index: int, error: BaseException, lived: int = 0) -> CrashReport:
        """Return the report of process `index` that failed.

        `lived` is the number of steps that each of its environments is known to have taken.
        """
        return self.numbered(index, failures.report_of(error, lived))

    def numbered(self, index: int, report: CrashReport) -> CrashReport:
        """Return a report of process `index` with its numbers among those of the whole run."""
        actor = self._first + index
        env = None if report.env is None else actor * self._width + report.env
        return replace(report, env=env, actor=actor)

    def count(self, report: CrashReport) -> None:
        """Count a crash, which the process may have survived.

        Raises TrainingError if there are too many.
        """
        self.crashes.add(report)
