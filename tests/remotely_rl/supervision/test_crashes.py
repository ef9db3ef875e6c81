"""Tests of CrashRate and Crashes: when crashes are logged, and when there are too many."""

import random
import re

import pytest

from remotely_rl import TrainingError
from remotely_rl.supervision import Cause, Crashes, CrashRate, CrashReport


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def report(env: int = 3, lived: int = 1_000) -> CrashReport:
    return CrashReport(env, Cause.DIED, "SIGSEGV", "a stack", step=7, seed=5, lived=lived)


def test_the_first_crash_is_logged_at_once_with_its_details() -> None:
    said: list[str] = []
    Crashes(said.append, clock=Clock()).add(report())
    assert said == [("environment 3 died in step 7, seed 5: SIGSEGV; it is replaced\na stack")]


def test_later_crashes_are_logged_together_after_a_minute() -> None:
    said: list[str] = []
    clock = Clock()
    crashes = Crashes(said.append, clock=clock)
    for env in range(5):
        crashes.stepped(1_000)
        crashes.add(report(env))
    assert len(said) == 1
    clock.now += 60
    crashes.stepped(1_000)
    assert len(said) == 2
    assert said[1].startswith(
        "4 more crashed in 60 s and were replaced; the last: environment 4 died in step 7"
    )


def test_flush_logs_each_crash_once() -> None:
    said: list[str] = []
    crashes = Crashes(said.append, clock=Clock())
    crashes.add(report())
    crashes.add(report())
    crashes.flush()
    crashes.flush()
    assert len(said) == 2


def test_too_many_crashes_raise_an_error_that_says_what_to_do() -> None:
    crashes = Crashes(lambda text: None, clock=Clock())
    for _ in range(9):
        crashes.add(report(lived=0))
    with pytest.raises(TrainingError, match=r"crash too often.*SIGSEGV.*--max-crash-rate"):
        crashes.add(report(lived=0))


def test_if_crashes_are_not_logged_the_error_has_the_first_details_of_each_cause() -> None:
    crashes = Crashes(None, clock=Clock())
    crashes.add(CrashReport(0, Cause.RAISED, "ValueError", "a traceback"))
    for _ in range(8):
        crashes.add(report(lived=0))
    with pytest.raises(TrainingError) as raised:
        crashes.add(CrashReport(0, Cause.RAISED, "ValueError", "another traceback"))
    assert str(raised.value).splitlines()[1:] == ["a traceback", "a stack"]


def test_the_first_crash_of_another_cause_is_logged_at_once() -> None:
    said: list[str] = []
    crashes = Crashes(said.append, clock=Clock())
    for cause in (Cause.DIED, Cause.DIED, Cause.HUNG, Cause.HUNG):
        crashes.stepped(1_000)
        crashes.add(CrashReport(3, cause, "why", lived=1_000))
    assert len(said) == 2
    assert "2 more crashed in 0 s and were replaced; the last: environment 3 hung" in said[1]


def test_crashes_of_a_lost_machine_do_not_end_the_run() -> None:
    crashes = Crashes(lambda text: None, clock=Clock())
    for _ in range(100):
        crashes.add(CrashReport(None, Cause.LOST, "box is gone"))


def test_a_run_without_a_whole_episode_has_a_sentence_about_its_crashes() -> None:
    crashes = Crashes(lambda text: None, clock=Clock())
    assert crashes.instead_of_episodes(0) == ""
    for _ in range(10):
        crashes.stepped(50)
        crashes.add(report(lived=50))
    said = r"no episode has ended, .* crashed 10 times in 500 steps; the last: .*SIGSEGV"
    assert re.match(said, crashes.instead_of_episodes(0))
    assert crashes.instead_of_episodes(1) == ""


def run(rate: CrashRate, chance: float, envs: int, steps: int, seed: int) -> int | None:
    """Step `envs` environments that crash with `chance`; return the step that ended the run."""
    draws = random.Random(seed)
    lived = [0] * envs
    for step in range(steps):
        for env in range(envs):
            rate.stepped()
            lived[env] += 1
            if draws.random() < chance:
                rate.crashed(lived[env])
                lived[env] = 0
        if rate.is_too_high:
            return step
    return None


def test_an_environment_that_cannot_be_reset_ends_the_run_after_ten_crashes() -> None:
    rate = CrashRate()
    ends = []
    for _ in range(10):
        rate.crashed(lived=0)
        ends.append(rate.is_too_high)
    assert ends == [False] * 9 + [True]


def test_64_environments_that_crash_once_in_a_hundred_steps_go_on() -> None:
    for seed in range(20):
        assert run(CrashRate(), 0.01, envs=64, steps=300, seed=seed) is None


def test_environments_that_crash_in_every_third_step_end_the_run() -> None:
    for envs in (1, 8, 64):
        assert run(CrashRate(), 0.3, envs, steps=1_000, seed=1) is not None


def test_killing_all_environments_at_once_does_not_end_the_run() -> None:
    rate = CrashRate()
    rate.stepped(64 * 1_000)
    for _ in range(64):
        rate.crashed(lived=1_000)
    assert not rate.is_too_high


def test_a_rate_of_1_allows_every_crash() -> None:
    rate = CrashRate(max_rate=1)
    for _ in range(100):
        rate.crashed(lived=0)
    assert not rate.is_too_high


def test_a_rate_of_0_ends_the_run_after_the_first_window() -> None:
    rate = CrashRate(max_rate=0)
    rate.stepped(10**9)
    for _ in range(10):
        rate.crashed(lived=10**6)
    assert rate.is_too_high


def test_a_crash_rate_describes_itself() -> None:
    rate = CrashRate()
    for _ in range(10):
        rate.stepped(4)
        rate.crashed(lived=2)
    assert str(rate) == (
        "the last 10 crashes came within 36 steps of all environments, and the crashed ones had"
        " taken 2.0 steps on average"
    )
