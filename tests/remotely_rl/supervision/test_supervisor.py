"""Tests of Supervisor: what follows when a process of a run fails."""

import pytest

import remotely
from remotely_rl.errors import TrainingError
from remotely_rl.supervision import Cause, Crashes, CrashReport
from remotely_rl.supervision.failures import Failure
from remotely_rl.supervision.supervisor import Consequence, ProcessRole, Supervisor, consequence_of

DEATH = remotely.ActorDied("Actor-2 was ended by SIGKILL", exit="SIGKILL")


def test_each_job_has_a_consequence_for_each_failure() -> None:
    assert all(consequence_of(job, failure) for job in ProcessRole for failure in Failure)


@pytest.mark.parametrize("job", ProcessRole)
def test_a_wrong_request_ends_every_run(job: ProcessRole) -> None:
    assert consequence_of(job, TrainingError("no such field")) is Consequence.END
    assert consequence_of(job, remotely.NoResources("full")) is Consequence.END
    assert consequence_of(job, KeyboardInterrupt()) is Consequence.END


@pytest.mark.parametrize(
    ("job", "consequence"),
    [
        (ProcessRole.PLAYER, Consequence.REPLACED),
        (ProcessRole.PROBE, Consequence.REPLACED),
        (ProcessRole.LEARNER_IN_STEP, Consequence.END),
        (ProcessRole.LEARNER_APART, Consequence.WITHOUT),
        (ProcessRole.RUN, Consequence.WITHOUT),
    ],
)
def test_a_death_has_the_consequence_of_its_job(job: ProcessRole, consequence: Consequence) -> None:
    assert consequence_of(job, DEATH) is consequence


def test_reports_have_the_numbers_of_the_whole_run() -> None:
    kept: list[CrashReport] = []
    supervisor = Supervisor(Crashes(None, keep=kept.append), first=4, width=8)
    supervisor.failed(1, DEATH, lived=100)
    supervisor.count(supervisor.numbered(1, CrashReport(3, Cause.RAISED, "ValueError")))
    assert [(one.actor, one.env) for one in kept] == [(5, None), (5, 43)]
    assert kept[0].lived == 100


def test_a_failure_that_another_process_would_have_too_is_raised_and_not_counted() -> None:
    crashes = Crashes(None)
    with pytest.raises(remotely.MasterLost):
        Supervisor(crashes).failed(0, remotely.MasterLost("gone"))
    assert crashes.rate.crashes == 0


def test_too_many_failures_raise() -> None:
    supervisor = Supervisor(Crashes(None))
    for _ in range(9):
        supervisor.failed(0, DEATH)
    with pytest.raises(TrainingError, match="crash too often"):
        supervisor.failed(0, DEATH)
