"""Threads of the learner: how many, and how they wait."""

import os
import subprocess
import sys

import pytest

from remotely_rl.learning import threads


def asked_of_openmp(script: str, policy: str | None = None) -> list[str]:
    """What a fresh interpreter has asked of OpenMP after a script, and whether it was too late."""
    ours = (threads.POLICY, threads.SPINS)
    environment = {name: value for name, value in os.environ.items() if name not in ours}
    if policy is not None:
        environment[threads.POLICY] = policy
    show = (
        "import os, remotely_rl.learning.threads as t;"
        " print(os.environ[t.POLICY], os.environ.get(t.SPINS), t.spins)"
    )
    done = subprocess.run(
        [sys.executable, "-c", f"{script}; {show}"],
        env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout.split()


def test_threads_look_for_a_moment_and_then_sleep_unless_the_user_says_otherwise() -> None:
    assert asked_of_openmp("import remotely_rl") == ["passive", "10000", "False"]
    assert asked_of_openmp("import remotely_rl", "active") == ["active", "None", "False"]
    looks = "import os; os.environ['GOMP_SPINCOUNT'] = '0'; import remotely_rl"
    assert asked_of_openmp(looks) == ["passive", "0", "False"]


def test_it_is_known_when_torch_was_loaded_before_and_its_threads_spin() -> None:
    torch = "import sys; sys.modules['torch'] = sys"  # as good as the real one, and faster
    assert asked_of_openmp(f"{torch}; import remotely_rl") == ["passive", "10000", "True"]
    assert asked_of_openmp(f"{torch}; import remotely_rl", "passive") == [
        "passive",
        "None",
        "False",
    ]


@pytest.mark.parametrize(("parameters", "want"), [(5_000, 1), (1_700_000, 8)])
def test_in_rounds_a_learner_has_all_cores_unless_its_network_is_small(
    parameters: int, want: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    assert threads.in_rounds(parameters) == want


def test_beside_actors_that_run_free_it_has_the_cores_that_they_leave(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    assert [threads.beside(actors) for actors in (0, 1, 2, 7, 8, 20)] == [7, 7, 6, 1, 1, 1]
