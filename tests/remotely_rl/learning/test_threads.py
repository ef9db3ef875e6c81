"""The learner's threads: their number, and how they wait."""

import itertools
import os
import subprocess
import sys

import pytest

from remotely.machine import cgroup
from remotely_rl.learning import threads


def openmp_settings(script: str, policy: str | None = None) -> list[str]:
    """OpenMP's settings in a new interpreter after a script, and whether they came too late."""
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
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split()


def test_openmp_threads_spin_briefly_then_sleep_unless_the_user_decides() -> None:
    assert openmp_settings("import remotely_rl") == ["passive", "10000", "False"]
    assert openmp_settings("import remotely_rl", "active") == ["active", "None", "False"]
    script = "import os; os.environ['GOMP_SPINCOUNT'] = '0'; import remotely_rl"
    assert openmp_settings(script) == ["passive", "0", "False"]


def test_torch_loaded_before_remotely_rl_is_detected() -> None:
    script = "import sys; sys.modules['torch'] = sys; import remotely_rl"  # a stand-in for torch
    assert openmp_settings(script) == ["passive", "10000", "True"]
    assert openmp_settings(script, "passive") == ["passive", "None", "False"]


@pytest.fixture
def eight(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with eight available cores."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(cgroup, "cpus", lambda: None)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))


@pytest.mark.usefixtures("eight")
@pytest.mark.parametrize(("parameters", "want"), [(5_000, 1), (1_700_000, 8)])
def test_in_rounds_a_learner_uses_all_cores_unless_its_network_is_small(
    parameters: int, want: int
) -> None:
    assert threads.in_rounds(parameters) == want


@pytest.mark.usefixtures("eight")
def test_beside_asynchronous_actors_a_learner_uses_the_remaining_cores() -> None:
    assert [threads.beside(actors) for actors in (0, 1, 2, 7, 8, 20)] == [7, 7, 6, 1, 1, 1]


@pytest.mark.usefixtures("eight")
def test_cores_respect_openmp_cgroup_and_affinity(monkeypatch: pytest.MonkeyPatch) -> None:
    for asked, want in (("3", 3), ("4,2", 4), ("64", 8), ("", 8), ("0", 8), ("many", 8)):
        monkeypatch.setenv("OMP_NUM_THREADS", asked)
        assert threads.cores() == want
    monkeypatch.setattr(cgroup, "cpus", lambda: 2.5)
    assert threads.cores() == 2
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {5})
    assert threads.cores() == 1
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(cgroup, "cpus", lambda: None)
    assert threads.cores() == 8


class Learning:
    """A simulated learner, whose updates take as long as given."""

    def __init__(self, most: int = 2) -> None:
        self.messages: list[str] = []
        self.threads = threads.LearnerThreads(most, lambda topic, text: self.messages.append(text))

    def run(self, for_s: float, update_s: dict[int, float], waiting: float) -> list[int]:
        """Learn for this time; return the number of threads of each update."""
        counts = []
        while for_s > 0:
            count = self.threads.count
            counts.append(count)
            for_s -= update_s[count]
            self.threads.updated(update_s[count], waiting * update_s[count] * (count > 1))
        return counts


IDLE, BUSY = {1: 0.010, 2: 0.007}, {1: 0.010, 2: 0.049}


def test_on_an_idle_machine_the_number_of_threads_stays() -> None:
    learning = Learning()
    assert set(learning.run(600, IDLE, waiting=0.02)) == {2}
    assert set(learning.run(600, BUSY, waiting=0.02)) == {2}  # slower, but not for want of cores
    assert learning.messages == []


@pytest.mark.parametrize("idle_s", [0.0, 100.0])
def test_beside_a_busy_process_threads_are_reduced_and_restored_afterwards(idle_s: float) -> None:
    learning = Learning()
    learning.run(idle_s, IDLE, waiting=0.02)
    assert set(learning.run(4, BUSY, waiting=0.6)) == {1, 2}
    assert "will not repeat bit for bit" in learning.messages[0]
    assert "took 49 ms with 2 threads and takes 10 ms with 1" in learning.messages[1]
    counts = learning.run(600, BUSY, waiting=0.6)
    assert sum(BUSY[count] for count in counts) < 1.05 * BUSY[1] * len(counts)
    assert len(learning.messages) == 2
    learning.run(62, IDLE, waiting=0.02)
    assert set(learning.run(100, IDLE, waiting=0.02)) == {2}


def test_failed_trials_become_rarer() -> None:
    learning = Learning()
    busy = {1: 0.010, 2: 0.0105}
    counts = learning.run(600, busy, waiting=0.6)
    trials = sum(one > other for one, other in itertools.pairwise(counts))
    assert 5 < trials < 15
    assert counts.count(1) < 0.02 * len(counts)
    assert len(learning.messages) == 1


def test_trials_take_a_small_part_of_the_time_however_long_an_update() -> None:
    busy = {1: 0.1, 2: 6.0}
    learning = Learning()
    learning.run(60, busy, waiting=0.9)
    assert learning.run(2000, busy, waiting=0.9).count(2) * busy[2] < 0.05 * 2000


def test_many_threads_are_halved_until_that_is_no_faster() -> None:
    learning = Learning(8)
    learning.run(30, {1: 0.08, 2: 0.04, 4: 0.022, 8: 0.05}, waiting=0.9)
    assert learning.threads.count == 4
    learning.run(100, {1: 0.08, 2: 0.04, 4: 0.022, 8: 0.012}, waiting=0.0)
    assert learning.threads.count == 8


def test_waited_s_measures_waiting_for_a_core() -> None:
    affinity = os.sched_getaffinity(0)
    before = threads.waited_s()
    os.sched_setaffinity(0, {min(affinity)})  # the child process inherits it
    try:
        with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as other:
            while threads.waited_s() < before + 0.02:  # two processes compete for one core
                pass
            other.kill()
    finally:
        os.sched_setaffinity(0, affinity)
