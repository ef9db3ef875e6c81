"""Fault injection: parsing of REMOTELY_FAULTS, and its effects."""

import os
import random
import subprocess
import sys

import pytest

import remotely
from remotely.testing import faults


def due(word: str, times: int) -> list[int]:
    (fault,) = faults.parse(f"actor.call:{word}")["actor.call"]
    draw = random.Random(0)
    return [n for n in range(1, times + 1) if fault.is_due(draw)]


def test_a_fault_is_due_each_time_or_once_or_at_random() -> None:
    assert due("die", 3) == [1, 2, 3]
    assert due("die@2", 5) == [2]
    assert 60 < len(due("delay=5@10%", 1000)) < 140


def test_several_faults_at_several_points_are_parsed() -> None:
    found = faults.parse("actor.call:die@3, client.call:lose@1%,actor.call:delay=2.5")
    assert [fault.action for fault in found["actor.call"]] == ["die", "delay"]
    assert found["actor.call"][1].delay_s == 0.0025
    assert found["client.call"][0].chance == 0.01


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("actor.call", "is not POINT:ACTION"),
        ("actor.cal:die", "there is no point 'actor.cal'; there are client.call"),
        ("actor.call:burn", "cannot 'burn'; it can die, stop, delay$"),
        ("actor.call:lose", "cannot 'lose'"),
        ("actor.call:delay", "only delay takes milliseconds"),
        ("actor.call:die=3", "only delay takes milliseconds"),
        ("actor.call:die@often", "is not POINT:ACTION"),
    ],
)
def test_an_invalid_fault_raises_a_value_error(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        faults.parse(text)


@remotely.remote_class(max_restarts=100)
class Adder:
    def add(self, n: int) -> int:
        return n + 1


SCRIPT = """
import remotely
from tests.remotely.testing.test_faults import Adder
adder = Adder()
outcomes = []
for n in range(40):
    try:
        outcomes.append("right" if adder.add(n) == n + 1 else "wrong")
    except (remotely.ActorDied, remotely.WorkerLost) as error:
        outcomes.append("may have run" if error.may_have_run else "did not run")
print(*map(outcomes.count, ("right", "may have run", "did not run")), len(outcomes))
"""


def run(faults_: str) -> list[int]:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        capture_output=True,
        text=True,
        timeout=100,
        env={**os.environ, "REMOTELY_FAULTS": faults_, "PYTHONPATH": "."},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [int(word) for word in done.stdout.split()]


def test_if_an_actor_dies_before_a_reply_that_call_may_have_run(
    nothing_left: None,
) -> None:
    right, may_have_run, did_not_run, calls = run("actor.reply:die@10")
    assert calls == 40
    assert may_have_run >= 3
    assert did_not_run == 0
    assert right == 40 - may_have_run


def test_a_lost_call_did_not_run_and_the_call_of_a_lost_reply_may_have(nothing_left: None) -> None:
    assert run("client.call:lose@7") == [39, 0, 1, 40]
    assert run("client.reply:lose@7") == [39, 1, 0, 40]
