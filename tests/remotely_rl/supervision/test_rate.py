"""CrashRate: a flaky environment goes on, a broken one ends the run."""

import random

from remotely_rl.supervision import CrashRate


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


def test_environments_that_crash_once_in_a_hundred_steps_go_on_however_many_there_are() -> None:
    for seed in range(20):
        assert run(CrashRate(), 0.01, envs=64, steps=300, seed=seed) is None


def test_environments_that_crash_in_every_third_step_end_the_run() -> None:
    for envs in (1, 8, 64):
        assert run(CrashRate(), 0.3, envs, steps=1_000, seed=1) is not None


def test_somebody_who_kills_all_environments_at_once_does_not_end_the_run() -> None:
    rate = CrashRate()
    rate.stepped(64 * 1_000)
    for _ in range(64):
        rate.crashed(lived=1_000)
    assert not rate.is_too_high


def test_a_rate_of_one_allows_every_crash() -> None:
    rate = CrashRate(max_rate=1)
    for _ in range(100):
        rate.crashed(lived=0)
    assert not rate.is_too_high


def test_a_rate_of_zero_ends_the_run_with_the_first_full_window() -> None:
    rate = CrashRate(max_rate=0)
    rate.stepped(10**9)
    for _ in range(10):
        rate.crashed(lived=10**6)
    assert rate.is_too_high


def test_it_says_what_it_has_seen() -> None:
    rate = CrashRate()
    for _ in range(10):
        rate.stepped(4)
        rate.crashed(lived=2)
    assert str(rate) == (
        "the last 10 crashes came within 36 steps of all environments, and those that crashed had"
        " lived 2.0 steps on average"
    )
