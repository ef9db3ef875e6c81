"""Faults on purpose: what is written is what happens, and nothing is written by mistake."""

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


def test_a_fault_happens_each_time_or_at_one_or_by_chance() -> None:
    assert due("die", 3) == [1, 2, 3]
    assert due("die@2", 5) == [2]
    assert 60 < len(due("delay=5@10%", 1000)) < 140


def test_several_faults_at_several_points() -> None:
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
def test_a_word_that_means_nothing_is_refused(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        faults.parse(text)


def test_none_are_on_by_themselves() -> None:
    assert not faults.ON


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
        outcomes.append("well" if adder.add(n) == n + 1 else "wrong")
    except (remotely.ActorDied, remotely.WorkerLost) as error:
        outcomes.append("doubt" if error.may_have_run else "did not run")
print(*map(outcomes.count, ("well", "doubt", "did not run")), len(outcomes))
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


def test_an_actor_that_dies_before_its_tenth_reply_leaves_that_call_in_doubt(
    nothing_left: None,
) -> None:
    well, doubted, not_run, calls = run("actor.reply:die@10")
    assert calls == 40
    assert doubted >= 3
    assert not_run == 0
    assert well == 40 - doubted


def test_a_call_that_was_lost_on_the_way_did_not_run_and_a_lost_reply_may_have(
    nothing_left: None,
) -> None:
    well, doubted, not_run, calls = run("client.call:lose@7")
    assert (well, doubted, not_run, calls) == (39, 0, 1, 40)
    well, doubted, not_run, calls = run("client.reply:lose@7")
    assert (well, doubted, not_run, calls) == (39, 1, 0, 40)
