"""Tests of VectorEnv with real processes: rows as in Gymnasium, crashes, calls, and its end."""

import contextlib
import ctypes
import functools
import math
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.vector.utils import batch_differing_spaces
from gymnasium.wrappers.vector import RecordEpisodeStatistics

import remotely
from remotely_rl import CrashReport, TrainingError, VectorEnv, cluster
from remotely_rl.supervision import Cause
from remotely_rl.vector import hosts
from remotely_rl.vector.bells import Switchboard
from remotely_rl.vector.seat import Seat, Spare
from tests.chaos.numbered import FAULTS, Numbered, Oracle, makes, strike
from tests.clusters import wait_until
from tests.remotely_rl import registered, toys
from tests.remotely_rl.supervision.test_vector import Everything, same
from tests.remotely_rl.vector.test_hosts import interrupted_at

MODES = [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP]
quiet: Any = {"say": lambda text: None}


def cart_pole() -> gymnasium.Env[Any, Any]:
    return gymnasium.make("CartPole-v1")


class Tree(Everything):
    """Has only arrays, which can be shared."""

    observation_space = spaces.Dict(
        {key: space for key, space in Everything.observation_space.items() if key != "word"}
    )


class DrawsByTorch(gymnasium.Env[Any, Any]):
    observation_space = spaces.Box(0, 1, (2,))
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return torch.rand(2).numpy(), {}


@pytest.mark.usefixtures("here")
def test_environments_that_draw_by_torch_differ_from_actor_to_actor() -> None:
    envs = VectorEnv(DrawsByTorch, 3, envs_per_actor=1, **quiet)
    drawn, _ = envs.reset()
    envs.close()

    assert len({*drawn.ravel()}) == 6


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("kind", "width"), [(cart_pole, 3), (cart_pole, 5), (Tree, 3), (Everything, 3)]
)
def test_rows_are_those_of_gymnasium(mode: AutoresetMode, kind: Any, width: int) -> None:
    plain = SyncVectorEnv([kind] * 5, autoreset_mode=mode)
    ours = VectorEnv(kind, 5, autoreset_mode=mode, envs_per_actor=width)
    plain.action_space.seed(1)
    assert same(plain.reset(seed=3), ours.reset(seed=3))
    for _ in range(40):
        actions = plain.action_space.sample()
        assert same(plain.step(actions), ours.step(actions))
    assert ours.metadata == plain.metadata
    assert ours.observation_space == plain.observation_space
    assert ours.action_space == plain.action_space
    ours.close()


@pytest.mark.usefixtures("local")
def test_actions_are_split_once_for_all_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    envs = VectorEnv(cart_pole, 4, envs_per_actor=1)
    envs.reset()
    taken: list[Any] = []

    def iterate(space: Any, actions: Any) -> Any:
        taken.append(actions)
        return gymnasium.vector.utils.iterate(space, actions)

    monkeypatch.setattr(hosts, "iterate", iterate)
    envs.step([0, 1, 0, 1])
    assert taken == [[0, 1, 0, 1]]
    envs.close()


def test_rows_of_other_machines_are_those_of_gymnasium(started: Any, nothing_left: None) -> None:
    remotely.connect(started.address, key=started.key)
    plain = SyncVectorEnv([Tree] * 4)
    ours = VectorEnv(Tree, 4, envs_per_actor=2)
    plain.action_space.seed(1)
    assert same(plain.reset(seed=3), ours.reset(seed=3))
    for _ in range(20):
        actions = plain.action_space.sample()
        assert same(plain.step(actions), ours.step(actions))
    ours.close()


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(("mode", "width"), [(MODES[0], 1), (MODES[1], 3)])
@pytest.mark.parametrize("fault", FAULTS)
def test_no_row_is_wrong_whatever_breaks(
    mode: AutoresetMode, width: int, fault: str, tmp_path: Path
) -> None:
    reports: list[CrashReport] = []
    made = makes(3, (fault,), 0.01, tmp_path)
    envs = VectorEnv(
        made,
        autoreset_mode=mode,
        envs_per_actor=width,
        step_timeout_s=0.2 if fault.startswith("hang") else 60.0,
        max_crash_rate=1,
        on_crash=reports.append,
        **quiet,
    )
    oracle = Oracle(mode)
    oracle.reset(envs.reset(seed=1)[0])
    while len(reports) < 3:
        oracle.step(*envs.step(np.zeros(3, np.int64)))
    for _ in range(5):
        oracle.step(*envs.step(np.zeros(3, np.int64)))
    envs.close()
    assert oracle.wrong == []
    assert oracle.crashed >= 3
    for report in reports:
        assert report.cause is {
            "exception": Cause.RAISED,
            "kill": Cause.DIED,
            "segfault": Cause.DIED,
        }.get(fault, Cause.HUNG)
        assert report.env is not None
        assert report.step
        assert report.seed is not None


def pids(envs: VectorEnv) -> list[int]:
    return list(envs.call("get_pid"))


class Probe(Numbered):
    """Returns the pid of its process, and breaks on request."""

    level = 0

    def get_pid(self) -> int:
        return os.getpid()

    def strike(self, fault: str) -> None:
        strike(fault)

    def render(self) -> Any:
        return np.full((2, 2, 3), self.level)


class Long(Probe):
    """Has long episodes."""

    def reset(self, **given: Any) -> Any:
        super().reset(**given)
        self.length = 60
        return self._obs(), {}


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("mode", [*MODES, AutoresetMode.DISABLED])
def test_a_host_killed_between_steps_is_logged_at_once_and_has_crash_rows_next(
    mode: AutoresetMode,
) -> None:
    said: list[str] = []
    envs = VectorEnv(Probe, 4, envs_per_actor=2, autoreset_mode=mode, say=said.append)
    oracle = Oracle(mode)
    oracle.reset(envs.reset(seed=1)[0])
    before = pids(envs)
    os.kill(before[0], signal.SIGKILL)
    wait_until(lambda: bool(said), "the death is reported")
    assert "SIGKILL; it is replaced" in said[0]
    row = envs.step(np.zeros(4, np.int64))
    oracle.step(*row)
    assert row[3].tolist()[:2] == [True, True]
    assert isinstance(row[4]["crash_report"][0], CrashReport)
    if mode is AutoresetMode.DISABLED:
        over = row[2] | row[3]
        obs, _ = envs.reset(options={"reset_mask": over})
        assert (obs[over, 2] == 0).all()
    else:
        oracle.step(*envs.step(np.zeros(4, np.int64)))
    after = pids(envs)
    assert len(set(before) & set(after)) == 1
    envs.close()
    assert oracle.wrong == []


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), "the process has ended")


def pipes() -> int:
    """Return how many ends of pipes this process has open."""
    links = (os.path.realpath(file) for file in Path("/proc/self/fd").iterdir())
    return sum("pipe:" in link for link in links)


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_host_that_dies_while_it_connects_to_shared_memory_is_replaced(
    moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    envs = VectorEnv(Probe, 1, max_crash_rate=1, **quiet)
    oracle = Oracle(AutoresetMode.NEXT_STEP)
    oracle.reset(envs.reset(seed=1)[0])
    open_before = pipes()
    address, connect, take = Switchboard.address, Switchboard.connect, Spare.take
    taken: list[Any] = []

    def kill_before(bells: Switchboard, host: int) -> Any:
        monkeypatch.undo()
        kill(taken[0].describe().pid)
        return address(bells, host)

    def kill_after(bells: Switchboard, host: int, pid: int) -> None:
        monkeypatch.undo()
        kill(pid)
        connect(bells, host, pid)

    def keep(spare: Spare) -> Any:
        taken.append(take(spare))
        return taken[-1]

    monkeypatch.setattr(Spare, "take", keep)
    if moment == "before":
        monkeypatch.setattr(Switchboard, "address", kill_before)
    else:
        monkeypatch.setattr(Switchboard, "connect", kill_after)
    kill(pids(envs)[0])  # last: another thread takes the spare as soon as it sees the death
    for _ in range(3):
        oracle.step(*envs.step(np.zeros(1, np.int64)))
    assert Spare.take is take  # the replacement was killed
    assert pipes() == open_before
    assert oracle.wrong == []
    envs.close()


@pytest.mark.usefixtures("here")
def test_without_room_a_replacement_waits_until_there_is_room_or_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cluster, "RETRY_S", 0.01)
    refused = threading.Semaphore(0)
    room = threading.Event()
    take = Spare.take

    def take_if_there_is_room(spare: Spare) -> Any:
        if not room.is_set():
            refused.release()
            raise remotely.NoResources("full")
        return take(spare)

    monkeypatch.setattr(Spare, "take", take_if_there_is_room)
    envs = VectorEnv(Probe, 1, max_crash_rate=1, **quiet)
    envs.reset()
    kill(pids(envs)[0])
    assert refused.acquire(timeout=40)
    assert refused.acquire(timeout=40)
    room.set()
    assert envs.step([0])[3].all()
    envs.step([0])
    room.clear()
    kill(pids(envs)[0])
    while refused.acquire(blocking=False):
        pass
    assert refused.acquire(timeout=40)
    envs.close()


@pytest.mark.usefixtures("here")
def test_a_death_that_another_thread_reports_late_counts_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reports: list[CrashReport] = []
    is_replaced, is_reported = threading.Event(), threading.Event()

    class LateSeat(Seat):
        def __init__(self, *given: Any) -> None:
            *rest, on_end = given

            def late(*ended: Any) -> None:
                is_replaced.wait(40)
                on_end(*ended)
                is_reported.set()

            def on_another_thread(*ended: Any) -> None:
                threading.Thread(target=late, args=ended, daemon=True).start()

            super().__init__(*rest, on_another_thread)  # type: ignore[call-arg]

    monkeypatch.setattr(hosts, "Seat", LateSeat)
    envs = VectorEnv(Long, 1, max_crash_rate=1, on_crash=reports.append, **quiet)
    envs.reset()
    kill(pids(envs)[0])
    envs.step([0])
    envs.step([0])
    is_replaced.set()
    assert is_reported.wait(40)
    assert len(reports) == 1
    assert not envs.step([0])[3].any()
    envs.close()


@pytest.mark.usefixtures("here")
def test_attributes_are_also_set_in_replacements() -> None:
    envs = VectorEnv(Probe, 3, envs_per_actor=2, **quiet)
    envs.reset()
    envs.set_attr("level", [1, 2, 3])
    with pytest.raises(remotely.ActorDied):
        envs.call_at([0], "strike", "kill")
    assert envs.get_attr("level") == (1, 2, 3)
    assert [frame[0, 0, 0] for frame in envs.render() or ()] == [1, 2, 3]
    assert envs.call_at([2, 0], "level") == [3, 1]
    assert envs.are_wrapped([0, 2], gymnasium.Wrapper) == [False, False]
    with pytest.raises(RuntimeError, match="the simulator broke"):
        envs.call("strike", "exception")
    envs.close()


@pytest.mark.usefixtures("here")
def test_an_argument_that_cannot_be_pickled_does_not_affect_later_steps() -> None:
    envs = VectorEnv(Long, 1, **quiet)
    envs.reset()
    with pytest.raises(remotely.NotPicklable):
        envs.call("get_pid", threading.Lock())
    assert not envs.step([0])[3].any()
    envs.close()


@pytest.mark.usefixtures("here")
def test_too_many_deaths_end_the_run() -> None:
    class Dies(Probe):
        def step(self, action: int) -> Any:
            os.kill(os.getpid(), signal.SIGKILL)

    envs = VectorEnv(Dies, 2, envs_per_actor=1, **quiet)
    envs.reset()
    with pytest.raises(TrainingError, match=r"crash too often to learn from: .* max_crash_rate"):
        all(envs.step([0, 0]) for _ in range(100))
    envs.close()


@pytest.mark.usefixtures("here")
def test_an_environment_that_can_no_longer_be_reset_ends_the_run() -> None:
    class Once(Numbered):
        resets = 0  # of all instances

        def reset(self, **given: Any) -> Any:
            Once.resets += 1
            if Once.resets > 1:
                raise RuntimeError("no license")
            return super().reset(**given)

        def step(self, action: int) -> Any:
            return (*super().step(action)[:2], True, False, {})

    envs = VectorEnv(Once, 1, max_crash_rate=1, **quiet)
    envs.reset()
    envs.step([0])
    with pytest.raises(TrainingError, match=r"could not be reset 10 times in a row.*no license"):
        envs.step([0])
    envs.close()


@pytest.mark.usefixtures("here")
def test_ids_of_the_users_script_and_of_modules_are_made() -> None:
    gymnasium.register("OfTheScript-v0", "tests.remotely_rl.toys:Counting")
    for name in ("OfTheScript-v0", registered.MODULE_ID):
        envs = VectorEnv(name, 2, envs_per_actor=1)
        assert envs.spec is not None
        assert envs.spec.id == name.rpartition(":")[2]
        envs.reset()
        envs.close()


@pytest.mark.usefixtures("here")
def test_vector_wrappers_of_gymnasium_work() -> None:
    envs = RecordEpisodeStatistics(VectorEnv("CartPole-v1", num_envs=4))
    assert envs.spec is not None
    assert envs.spec.id == "CartPole-v1"
    envs.reset(seed=1)
    seen = 0
    while not seen:
        info = envs.step(envs.action_space.sample())[-1]
        seen = int(info.get("_episode", np.zeros(1)).sum())
    assert info["episode"]["l"].max() > 5
    envs.close()


@pytest.mark.usefixtures("here")
def test_wrappers_are_applied_as_by_make_vec() -> None:
    wrappers: Any = [
        functools.partial(gymnasium.wrappers.TimeLimit, max_episode_steps=3),
        gymnasium.wrappers.NormalizeReward,
    ]
    envs = VectorEnv("CartPole-v1", num_envs=3, wrappers=wrappers, envs_per_actor=2)
    plain = gymnasium.make_vec("CartPole-v1", 3, vectorization_mode="sync", wrappers=wrappers)
    assert same(envs.reset(seed=1), plain.reset(seed=1))
    for _ in range(8):
        assert same(envs.step([0, 1, 0]), plain.step([0, 1, 0]))
    assert envs.are_wrapped([0, 2], gymnasium.wrappers.NormalizeReward) == [True, True]
    envs.close()


@pytest.mark.usefixtures("here")
def test_actors_reserve_cpus_per_actor() -> None:
    several = [VectorEnv(cart_pole, 8, envs_per_actor=1, cpus_per_actor=0.1) for _ in range(3)]
    for envs in several:  # 24 actors, where there is room for 16
        envs.reset()
        envs.step(np.zeros(8, np.int64))
        envs.close()


@pytest.mark.usefixtures("here")
def test_there_is_no_spare_host_on_the_users_cluster() -> None:
    before = len(remotely.status().actors)
    envs = VectorEnv(Probe, 2, envs_per_actor=1, max_crash_rate=1, **quiet)
    envs.reset()
    kill(pids(envs)[0])  # a spare would be made with the replacement
    for _ in range(2):
        envs.step([0, 0])
    assert len(remotely.status().actors) == before + 2
    envs.close()


def test_on_its_own_cluster_a_spare_replaces_the_first_host_that_dies(nothing_left: None) -> None:
    envs = VectorEnv(Probe, 1, max_crash_rate=1, **quiet)
    envs.reset()
    (first,) = pids(envs)
    wait_until(lambda: len(remotely.status().actors) == 2, "the spare has been made")
    (spare,) = {actor.pid for actor in remotely.status().actors} - {first}
    kill(first)
    envs.step([0])
    envs.step([0])  # begins the next episode
    assert pids(envs) == [spare]
    envs.close()
    remotely.shutdown()


@pytest.mark.usefixtures("here")
def test_infos_may_be_large_and_have_objects_of_the_users_script() -> None:
    class Status(NamedTuple):
        level: int

    Status.__module__ = "__main__"

    class Talks(toys.Counting):
        def step(self, action: int) -> Any:
            *row, _ = super().step(action)
            picture = np.full((300, 300), self.now)
            return (*row, {"picture": picture, "status": Status(self.now)})

    envs = VectorEnv(Talks, 3, envs_per_actor=2, **quiet)
    envs.reset()
    *_, truncated, infos = envs.step([0, 0, 0])
    assert not truncated.any()
    assert infos["picture"].shape == (3, 300, 300)
    assert (infos["picture"] == 1).all()
    assert infos["_picture"].all()
    assert [status.level for status in infos["status"]] == [1, 1, 1]
    envs.close()


@pytest.mark.usefixtures("here")
def test_a_call_may_hold_the_gil_for_longer_than_the_step_timeout() -> None:
    class Loads(Long):
        def load(self) -> int:
            return int(ctypes.PyDLL(None).sleep(3))

    envs = VectorEnv(Loads, 1, step_timeout_s=1.0, **quiet)
    envs.reset()
    assert envs.call("load") == (0,)
    assert not envs.step([0])[3].any()
    envs.close()


@pytest.mark.usefixtures("here")
def test_without_copies_the_rows_of_the_last_step_stay_valid() -> None:
    envs = VectorEnv("CartPole-v1", num_envs=4, copy=False)
    first = envs.reset(seed=1)[0]
    kept = first.copy()
    second = envs.step([0, 0, 0, 0])[0]
    assert np.array_equal(first, kept)
    assert not np.shares_memory(first, second)
    assert np.shares_memory(first, envs.step([0, 0, 0, 0])[0])
    envs.close()


@pytest.mark.usefixtures("here")
def test_a_vector_env_closes_its_actors_when_it_is_garbage_collected() -> None:
    envs = VectorEnv(Probe, 2)
    (pid, *_) = pids(envs)
    del envs
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), "its actors have ended")


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"env": "CartPole-v1", "num_envs": 0}, ValueError, "num_envs is 0"),
        ({"env": [], "num_envs": None}, ValueError, "there are 0 callables"),
        ({"env": [cart_pole], "num_envs": 2}, ValueError, "num_envs is 2, and there are 1"),
        ({"env": cart_pole, "num_env": 2}, TypeError, "num_env: only an environment made from"),
        ({"env": 3}, TypeError, "env is 3"),
        ({"env": "CartPale-v1"}, gymnasium.error.NameNotFound, "CartPole"),
        ({"env": cart_pole, "envs_per_actor": 0}, ValueError, "envs_per_actor is 0"),
        ({"env": cart_pole, "step_timeout_s": -1}, ValueError, "step_timeout_s is -1"),
        ({"env": cart_pole, "cpus_per_actor": -1}, ValueError, "cpus_per_actor is -1"),
        ({"env": cart_pole, "max_crash_rate": math.nan}, ValueError, "max_crash_rate is nan"),
        ({"env": lambda: 1 / 0}, ZeroDivisionError, "division"),
        ({"env": functools.partial(strike, "kill")}, remotely.ActorDied, "SIGKILL"),
    ],
)
def test_bad_arguments_are_refused(given: Any, error: Any, words: str) -> None:
    with pytest.raises(error, match=words):
        VectorEnv(**{"num_envs": None, **given})


@pytest.mark.usefixtures("here")
def test_wrong_actions_and_seeds_are_refused_and_have_no_effect() -> None:
    envs = VectorEnv("CartPole-v1", num_envs=3)
    envs.reset()
    with pytest.raises(ValueError, match="2 actions for 3 environments"):
        envs.step([0, 0])
    with pytest.raises(ValueError, match="2 seeds for 3 environments"):
        envs.reset(seed=[1, 2])
    with pytest.raises(ValueError, match=r"actions have dtype float64.*int64"):
        envs.step(np.array([1.7, 0.0, 0.0]))
    envs.step([0, 0, 0])
    envs.close()


def assert_all_raise(error: type[Exception], words: str, envs: VectorEnv) -> None:
    calls: list[Any] = [
        lambda: envs.step_async([0, 0]),
        envs.reset,
        envs.render,
        lambda: envs.get_attr("spec"),
        lambda: envs.set_attr("spec", None),
        lambda: envs.are_wrapped([0], gymnasium.Wrapper),
    ]
    for call in calls:
        with pytest.raises(error, match=words):
            call()


@pytest.mark.usefixtures("local")
def test_a_pending_step_allows_only_one_step_wait() -> None:
    envs = VectorEnv(toys.Counting, 2)
    envs.reset()
    envs.step_async([0, 0])
    assert_all_raise(gymnasium.error.AlreadyPendingCallError, "take its results first", envs)
    assert envs.step_wait()[0].ravel().tolist() == [1, 1]
    with pytest.raises(
        gymnasium.error.NoAsyncCallError, match="without any prior call to `step_async`"
    ):
        envs.step_wait()
    assert envs.step([0, 0])[0].ravel().tolist() == [2, 2]
    envs.close()


@pytest.mark.usefixtures("here")
def test_with_autoreset_disabled_stepping_an_ended_episode_raises() -> None:
    reports: list[CrashReport] = []
    envs = VectorEnv(
        [toys.Counting, functools.partial(toys.Counting, 2)],
        envs_per_actor=2,
        autoreset_mode=AutoresetMode.DISABLED,
        on_crash=reports.append,
    )
    envs.reset()
    envs.step([0, 0])
    assert envs.step([0, 0])[2].tolist() == [False, True]
    for _ in range(2):
        with pytest.raises(ValueError, match=r"environments \[1\] have ended: reset them first"):
            envs.step([0, 0])
    envs.reset(options={"reset_mask": np.array([False, True])})
    assert envs.step([0, 0])[0].ravel().tolist() == [3, 1]
    assert reports == []
    envs.close()


@pytest.mark.usefixtures("here")
def test_every_call_after_close_raises() -> None:
    envs = VectorEnv("CartPole-v1", num_envs=2)
    envs.reset()
    envs.close()
    envs.close()
    assert_all_raise(gymnasium.error.ClosedEnvironmentError, "has been closed", envs)
    with pytest.raises(gymnasium.error.ClosedEnvironmentError, match="has been closed"):
        envs.step_wait()


@pytest.mark.usefixtures("here")
def test_errors_number_environments_as_the_user_does() -> None:
    class NeverBegins(toys.Counting):
        def reset(self, **given: Any) -> Any:
            raise OSError("no scene")

    kinds = [toys.Counting, toys.Counting, toys.Counting, NeverBegins]
    envs = VectorEnv(kinds, envs_per_actor=2, max_crash_rate=1, **quiet)
    with pytest.raises(TrainingError, match="environment 3 could not be reset"):
        envs.reset()
    envs.close()
    with pytest.raises(TrainingError, match="environment 3 has different spaces"):
        VectorEnv([*kinds[:3], cart_pole], envs_per_actor=2)


@pytest.mark.usefixtures("here")
def test_a_crash_row_has_no_infos_of_the_episode_that_it_hides() -> None:
    class Levels(Probe):
        def reset(self, **given: Any) -> Any:
            return super().reset(**given)[0], {"level": 7}

        def step(self, action: int) -> Any:
            return (*super().step(action)[:2], action == 1, False, {})

    envs = VectorEnv(Levels, 2, envs_per_actor=2, max_crash_rate=1, **quiet)
    envs.reset()
    process = pids(envs)[0]
    envs.step([1, 0])
    kill(process)
    *_, truncated, infos = envs.step([0, 0])
    assert truncated.tolist() == [False, True]
    assert infos["_level"].tolist() == [True, False]
    assert infos["_crash_report"].tolist() == [False, True]
    assert envs.step([0, 0])[-1]["_level"].tolist() == [False, True]
    envs.close()


@pytest.mark.usefixtures("here")
def test_an_error_in_on_crash_is_raised_once_by_the_step_and_the_host_replaced() -> None:
    reports: list[CrashReport] = []

    def keep(report: CrashReport) -> None:
        reports.append(report)
        if len(reports) == 1:
            raise OSError("the log disk is full")

    envs = VectorEnv(Long, 1, max_crash_rate=1, on_crash=keep, **quiet)
    envs.reset()
    kill(pids(envs)[0])
    with pytest.raises(OSError, match="the log disk is full"):
        envs.step([0])
    assert not envs.step([0])[3].any()
    assert len(reports) == 1
    envs.close()


def test_importing_vector_env_does_not_import_torch() -> None:
    code = "import sys; from remotely_rl import VectorEnv; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


SCRIPT = """
import signal, sys
from remotely_rl import VectorEnv
envs = VectorEnv("CartPole-v1", num_envs=2)
envs.reset()
print("ready", flush=True)
while True:
    envs.step([0, 0])
"""


def test_an_interrupted_script_ends_within_seconds_and_leaves_nothing(
    nothing_left: None,
) -> None:
    running = subprocess.Popen(
        [sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert running.stdout is not None
    assert running.stdout.readline() == "ready\n"
    began = time.monotonic()
    running.send_signal(signal.SIGINT)
    _, said = running.communicate(timeout=40)
    assert time.monotonic() - began < 20
    assert said.rstrip().endswith("KeyboardInterrupt")


@pytest.mark.usefixtures("here")
def test_rows_are_right_after_an_interrupted_step() -> None:
    plain, ours = SyncVectorEnv([cart_pole] * 4), VectorEnv(cart_pole, 4, envs_per_actor=2)
    plain.reset(seed=1)
    ours.reset(seed=1)
    for line in range(1, 90, 3):
        plain.step([0, 1, 0, 1])
        ours.step_async([0, 1, 0, 1])
        with contextlib.suppress(KeyboardInterrupt), interrupted_at(line):
            ours.step_wait()
        match line % 9:
            case 1:
                assert same(plain.reset(seed=line), ours.reset(seed=line))
            case 4:
                assert plain.get_attr("state") is not None
                assert len(ours.get_attr("state")) == 4
        assert same(plain.step([1, 1, 0, 0]), ours.step([1, 1, 0, 0]))
    ours.close()


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("mode", MODES)
def test_an_interrupt_while_a_host_is_replaced_loses_no_host(mode: AutoresetMode) -> None:
    envs = VectorEnv(Long, 2, envs_per_actor=2, autoreset_mode=mode, max_crash_rate=1, **quiet)
    envs.reset(seed=1)
    for line in (5, 25, 45, 65, 85):
        kill(pids(envs)[0])
        if mode is AutoresetMode.NEXT_STEP:  # returns the crash rows, and needs no host yet
            assert envs.step([0, 0])[3].all()
        envs.step_async([0, 0])
        with contextlib.suppress(KeyboardInterrupt), interrupted_at(line):
            envs.step_wait()
        obs = envs.step([0, 0])[0]  # the interrupted step began the episodes
        assert (obs[:, 2] == 1).all()
    envs.close()


class Gate(gymnasium.Env[Any, Any]):
    """Steps and resets once its file is there."""

    observation_space = spaces.Discrete(10)
    action_space = spaces.Discrete(2)

    def __init__(self, path: Path) -> None:
        self.path = path
        self.count = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.count = 0
        return self.wait_for_it(), {}

    def step(self, action: int) -> Any:
        self.count += 1
        return self.wait_for_it(), 1.0, False, False, {}

    def wait_for_it(self) -> int:
        wait_until(self.path.exists, "the gate")
        return self.count


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("kind", ["reset", "step", "call"])
def test_a_wait_that_times_out_can_be_repeated(tmp_path: Path, kind: str) -> None:
    gate = tmp_path / "open"
    gate.touch()
    envs = VectorEnv([functools.partial(Gate, gate)] * 2, envs_per_actor=1, **quiet)
    envs.reset(seed=1)
    gate.unlink()
    begin: dict[str, Any] = {
        "reset": envs.reset_async,
        "step": lambda: envs.step_async([0, 0]),
        "call": lambda: envs.call_async("wait_for_it"),
    }
    wait: Any = getattr(envs, f"{kind}_wait")
    begin[kind]()
    for _ in range(2):
        with pytest.raises(multiprocessing.TimeoutError, match=f"`{kind}_wait` has timed out"):
            wait(timeout=0.05)
    with pytest.raises(gymnasium.error.AlreadyPendingCallError, match=f"pending call to `{kind}`"):
        envs.reset()
    gate.touch()
    found = wait(timeout=30)
    assert list(found if kind == "call" else found[0]) == ([1, 1] if kind == "step" else [0, 0])
    with pytest.raises(gymnasium.error.NoAsyncCallError):
        wait()
    assert envs.np_random_seed == (1, 2)
    envs.close()


class Bounded(gymnasium.Env[Any, Any]):
    action_space = spaces.Discrete(2)

    def __init__(self, space: spaces.Space[Any], first: Any) -> None:
        self.observation_space = space
        self.first = first

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return self.first, {}

    def step(self, action: int) -> Any:
        return self.first, 0.0, False, False, {}


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("each", [1, 2])
def test_observation_spaces_may_differ_in_their_bounds(each: int) -> None:
    own = [spaces.Discrete(3), spaces.Discrete(9)]
    makes = [
        functools.partial(Bounded, space, last) for space, last in zip(own, (2, 8), strict=True)
    ]
    with pytest.raises(RuntimeError, match="use `observation_mode='different'` instead"):
        VectorEnv(makes, envs_per_actor=each, **quiet)
    envs = VectorEnv(makes, envs_per_actor=each, observation_mode="different", **quiet)
    assert envs.observation_space == batch_differing_spaces(own)
    assert envs.reset()[0].tolist() == [2, 8]
    envs.close()
    unlike = [functools.partial(Bounded, spaces.Box(0, 1, (n,)), np.zeros(n)) for n in (1, 2)]
    with pytest.raises(TrainingError, match="do not share a shape and dtype"):
        VectorEnv(unlike, envs_per_actor=each, observation_mode="different", **quiet)


class Sums(Gate):
    def total(self, numbers: Any) -> float:
        return float(numbers.sum())


@pytest.mark.usefixtures("here")
def test_what_a_pending_call_was_given_may_change_meanwhile(tmp_path: Path) -> None:
    (tmp_path / "open").touch()
    envs = VectorEnv([functools.partial(Sums, tmp_path / "open")] * 2, envs_per_actor=1, **quiet)
    numbers, mask = np.ones(100_000), np.array([True, False])
    envs.call_async("total", numbers)
    numbers[:] = 0
    assert envs.call_wait() == (100_000.0, 100_000.0)
    envs.reset()
    envs.reset_async(options={"reset_mask": mask})
    mask[:] = False
    envs.reset_wait()
    envs.close()


@pytest.mark.usefixtures("here")
def test_an_interrupted_wait_can_be_repeated_and_a_close_aborts_it(tmp_path: Path) -> None:
    gate = tmp_path / "open"
    gate.touch()
    envs = VectorEnv([functools.partial(Gate, gate)] * 2, envs_per_actor=1, **quiet)
    envs.reset()
    for wait in (envs.reset_wait, envs.step_wait):
        gate.unlink()
        if wait == envs.reset_wait:
            envs.reset_async()
        else:
            envs.step_async([0, 0])
            with pytest.raises(multiprocessing.TimeoutError):
                envs.step_wait(timeout=0.01)
        me = threading.get_ident()
        timer = threading.Timer(0.1, signal.pthread_kill, [me, signal.SIGINT])
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            wait()
        timer.join()
        with pytest.raises(gymnasium.error.AlreadyPendingCallError):
            envs.reset()
        gate.touch()
        wait()
    gate.unlink()
    envs.step_async([0, 0])
    with pytest.raises(multiprocessing.TimeoutError):
        envs.step_wait(timeout=0.01)
    with pytest.warns(UserWarning, match="pending call to `step`"):
        envs.close()
    with pytest.raises(gymnasium.error.ClosedEnvironmentError):
        envs.step_wait()
