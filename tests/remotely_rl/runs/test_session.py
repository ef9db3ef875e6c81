"""Sessions: their counts, when they stop, and what they save and restore at the end."""

import contextlib
import dataclasses
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.vector import SyncVectorEnv
from torch import nn

from remotely_rl import a2c, networks, ppo
from remotely_rl.acting.actor import Rollout
from remotely_rl.config import Common
from remotely_rl.environments import Episode
from remotely_rl.errors import LearnerLost, TrainingError
from remotely_rl.learning.threads import LearnerThreads
from remotely_rl.runs import training
from remotely_rl.runs.derived_seeds import seed_of_actor, seed_of_evaluation, seed_of_learner
from remotely_rl.runs.process import Process
from remotely_rl.supervision import CrashReport
from remotely_rl.supervision.report import Cause
from tests.remotely_rl import toys
from tests.remotely_rl.runs.sessions import (
    CONFIG,
    TRAINED,
    Clock,
    Learner,
    finished_run,
    resumed,
    session,
)

pytestmark = pytest.mark.usefixtures("no_curve")


class Stream:
    """Returns the given rollouts, one per call."""

    def __init__(self, rollouts: list[Rollout | None]):
        self.rollouts = rollouts

    def take(self, timeout_s: float) -> Rollout | None:
        return self.rollouts.pop(0)


def rollout(seed: int, **changes: Any) -> Rollout:
    return toys.actor(TRAINED, toys.network(), seed, **changes).sample()


def test_gather_skips_empty_trajectories_and_keeps_the_rest(tmp_path: Path) -> None:
    one, two = rollout(1), rollout(2)
    empty = rollout(3)
    nothing = dataclasses.replace(empty.trajectory, valid=np.zeros_like(empty.trajectory.valid))
    empty = Rollout(nothing, [Episode(1.0, 1)], {})
    stream: Any = Stream([one, None, empty, two])
    with session(tmp_path, TRAINED) as run:
        gathered = [run.gather(stream, 2) for _ in range(4)]
        assert gathered[:3] == [None] * 3
        assert gathered[3] is not None
        both = [one.trajectory.obs, two.trajectory.obs]
        assert (gathered[3].obs == np.concatenate(both, axis=1)).all()
        assert run.env_steps == one.steps + two.steps
        games = len(one.episodes) + len(two.episodes) + 1
        assert run.tally.counters.episodes == games


def test_no_two_actors_share_a_seed(tmp_path: Path) -> None:
    folder = finished_run(tmp_path)
    seeds = set()
    for _ in range(2):
        with resumed(folder) as run:
            run.restore(Learner())
            run.tally.sampled(1, [], {})
            seeds |= {run.seed_of(number) for number in range(100)}
    assert len(seeds) == 200
    with resumed(folder) as run:
        assert run.times_resumed == 3


def loop_that_raises(run: training.Session[Any], error: Exception) -> None:
    with run:
        run.restore(Learner())
        raise error


def test_a_loop_that_raises_keeps_its_checkpoint_and_leaves_the_sentence_to_the_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = session(tmp_path)
    with pytest.raises(TrainingError):
        loop_that_raises(run, TrainingError("actors die"))
    assert run.folder.checkpoint.exists()
    assert run.result.ended == "TrainingError: actors die"
    *_, end = capsys.readouterr().out.splitlines()
    assert end == f"ended by TrainingError; the run is in {run.folder.path}"


def test_a_lost_learner_keeps_the_last_good_checkpoint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = finished_run(tmp_path)
    before = folder.checkpoint.read_bytes()
    run = resumed(folder)
    with pytest.raises(LearnerLost):
        loop_that_raises(run, LearnerLost("update 7 diverged"))
    assert folder.checkpoint.read_bytes() == before
    assert run.result.ended == "LearnerLost: update 7 diverged"
    said = capsys.readouterr().out.splitlines()
    assert f"the last good checkpoint is kept: --resume {folder.path}" in said


def test_a_gpu_error_loses_the_learner(tmp_path: Path) -> None:
    run = session(tmp_path)
    error = torch.AcceleratorError("CUDA error: unspecified launch failure\nmore of it")
    with pytest.raises(LearnerLost, match=r"the GPU is lost: CUDA error: unspecified launch failu"):
        loop_that_raises(run, error)
    assert not run.folder.checkpoint.exists()


def test_a_learner_lost_before_the_first_checkpoint_says_that_there_is_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = session(tmp_path)
    with pytest.raises(LearnerLost):
        loop_that_raises(run, LearnerLost("update 1 diverged"))
    assert not run.folder.checkpoint.exists()
    said = capsys.readouterr().out
    assert "there is no checkpoint yet to resume from" in said
    assert "--resume" not in said


def test_crashes_and_that_no_episode_has_ended_are_said_before_the_summary(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with session(tmp_path) as run:
        run.restore(Learner())
        for _ in range(3):  # the second and the third are logged after a minute, or at the end
            run.crashes.stepped(10_000)
            run.crashes.add(CrashReport(1, Cause.DIED, "SIGKILL"))
    *_, crashes, none, end = capsys.readouterr().out.splitlines()
    assert crashes.startswith("2 more crashed in 0 s")
    assert none.startswith("no episode has ended, and the environments crashed 3 times")
    assert end.endswith(f"the run is in {run.folder.path}")


def test_progress_follows_the_steps_and_the_seconds_of_the_run(tmp_path: Path) -> None:
    clock = Clock()
    config = dataclasses.replace(CONFIG, total_steps=1000, minutes=1)
    with session(tmp_path, config, clock) as run:
        run.restore(Learner())
        clock.now += 6
        assert run.progress == pytest.approx(0.1)
        run.tally.sampled(400, [], {})
        assert run.progress == pytest.approx(0.4)
        clock.now += 24
        assert run.progress == pytest.approx(0.5)


def test_a_warning_is_printed_once_per_topic(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with session(tmp_path) as run:
        for reward in (0, 30, 31):
            run.warn("rewards", f"a reward of {reward}" if reward else "")
            run.warn("steps", "few")
    said = capsys.readouterr().out.splitlines()
    assert [line for line in said if "reward" in line or line == "few"] == ["few", "a reward of 30"]


def test_resources_are_closed_in_reverse_order_even_if_some_fail(
    tmp_path: Path,
) -> None:
    closed: list[str] = []

    class Failing:
        def close(self) -> None:
            closed.append("actors")
            raise RuntimeError("cannot close")

    run = session(tmp_path)
    with pytest.raises(RuntimeError, match="cannot close"), run:  # noqa: PT012
        run.restore(Learner())
        run.at_end(lambda: closed.append(f"server, {run.folder.checkpoint.exists()}"))
        actors: Any = Failing()
        run.keep(actors)
    assert closed == ["actors", "server, True"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.usefixtures("local")
def test_nan_rewards_end_a_run_which_can_be_resumed(
    tmp_path: Path,
) -> None:
    run = tmp_path / "run"
    a2c.train(TRAINED, run=run)
    before = (run / "checkpoint.pt").read_bytes()

    def poisoned(num_envs: int) -> SyncVectorEnv:
        return toys.poisoned(num_envs)

    poisoned.__qualname__ = toys.Guess.__qualname__
    with pytest.raises(LearnerLost, match="look for NaN in rewards"):
        a2c.train(
            dataclasses.replace(TRAINED, env=poisoned, envs_per_actor=5, total_steps=200),
            resume=run,
        )
    assert (run / "checkpoint.pt").read_bytes() == before
    result = a2c.train(dataclasses.replace(TRAINED, total_steps=200), resume=run)
    assert result.env_steps >= 200


def test_a_schedule_by_minutes_continues_when_the_run_is_resumed(tmp_path: Path) -> None:
    config, clock = dataclasses.replace(CONFIG, minutes=10.0), Clock()
    with session(tmp_path, config, clock) as run:
        run.restore(Learner())
        assert run.progress == 0
        clock.now += 150
        assert run.progress == 0.25
    clock.now += 1e6  # between the runs
    with resumed(run.folder, clock, config) as run:
        assert run.progress == pytest.approx(0.25)
        clock.now += 150
        assert run.progress == pytest.approx(0.5)
        clock.now += 1e6
        assert run.progress == 1


def test_the_number_of_threads_follows_the_last_update(tmp_path: Path) -> None:
    class Fewer(LearnerThreads):
        def updated(self, seconds: float, waited_s: float) -> bool:
            took.append(seconds)
            waited.append(waited_s)
            self.count = 1
            return True

    took: list[float] = []
    waited: list[float] = []
    torch.set_num_threads(2)
    with session(tmp_path) as run:
        run.adapt_threads(Fewer(2, run.warn))
        for phase in ("learning", "waiting"):
            with run.spending(phase):
                pass
        run.learnt({}, [])
        assert torch.get_num_threads() == 1
    assert took == [run.tally.close(1.0)["time/learning_s"]]


def test_a_session_stops_when_the_steps_are_done_and_keeps_its_first_reason(tmp_path: Path) -> None:
    with session(tmp_path, Common(env="CartPole-v1", total_steps=100)) as run:
        run.tally.sampled(99, [], {})
        assert not run.over()
        run.tally.sampled(1, [], {})
        assert run.over()
        signal.raise_signal(signal.SIGINT)
        assert run.over()
    assert run.result.ended == "100 steps are done"


@pytest.mark.parametrize(("minutes", "ended"), [(1, "1 minute is over"), (2, "2 minutes are over")])
def test_a_session_stops_when_the_minutes_are_over(
    minutes: int, ended: str, tmp_path: Path
) -> None:
    clock = Clock()
    with session(tmp_path, Common(env="CartPole-v1", minutes=minutes), clock) as run:
        clock.now += 60 * minutes - 1
        assert not run.over()
        clock.now += 1
        assert run.over()
    assert run.result.ended == ended
    assert run.result.seconds == 60 * minutes


def test_a_session_stops_at_its_target_but_not_for_a_lucky_few_games(tmp_path: Path) -> None:
    with session(tmp_path, Common(env="CartPole-v1", target=8.0)) as run:
        run.tally.sampled(1, [Episode(9.0, 9)] * 29, {})
        assert not run.over()
        run.tally.sampled(1, [Episode(9.0, 9)], {})
        assert run.over()
    assert run.result.ended == "the mean return of 8 is reached"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda n: n.name)
def test_ctrl_c_stops_at_the_next_iteration_and_saves_checkpoint_metrics_and_curve(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], number: signal.Signals
) -> None:
    before = signal.getsignal(number)
    with session(tmp_path) as run:
        run.restore(Learner())
        run.tally.sampled(10, [Episode(1.0, 5)], {})
        assert not run.over()
        signal.raise_signal(number)
        assert run.over()
    assert signal.getsignal(number) is before
    assert run.result.ended == f"stopped by {number.name}"
    assert run.folder.checkpoint.exists()
    assert run.folder.curve.exists()
    assert str(run.folder.path) in capsys.readouterr().out.splitlines()[-1]


PPO = ppo.Config(
    env=toys.Guess,
    actors=2,
    envs_per_actor=4,
    rollout_steps=8,
    total_steps=60,
    learner_threads=2,
    device="cpu",
    log_interval_s=1e6,
    checkpoint_interval_s=1e6,
)


def wide(observation_shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Return a network so large that its sums depend on the number of threads."""
    network = networks.MLP(observation_shape, outputs)
    network.policy_body = nn.Sequential(nn.Linear(observation_shape[0], 3000), nn.Tanh())
    network.policy = nn.Linear(3000, outputs)
    return network


@pytest.mark.usefixtures("local")
def test_a_run_restores_threads_random_numbers_and_handlers(tmp_path: Path) -> None:
    torch.set_num_threads(2)
    handler = signal.getsignal(signal.SIGINT)
    random = torch.get_rng_state()
    ppo.train(dataclasses.replace(PPO, learner_threads=1), run=tmp_path / "run")
    assert torch.get_num_threads() == 2
    assert torch.equal(torch.get_rng_state(), random)
    assert signal.getsignal(signal.SIGINT) is handler


def test_a_run_that_cannot_start_restores_them_too(tmp_path: Path) -> None:
    random = torch.get_rng_state()
    (tmp_path / "taken").touch()
    with pytest.raises(TrainingError, match="exists already"):
        training.begin("ppo", ppo.Config, PPO, run=tmp_path)
    assert torch.equal(torch.get_rng_state(), random)


@pytest.mark.usefixtures("local")
def test_runs_in_one_process_are_reproducible(tmp_path: Path) -> None:
    for number, threads in enumerate((2, 1, 2)):
        torch.set_num_threads(threads)  # as set by the user or an earlier run
        torch.rand(number)
        ppo.train(PPO, wide, run=tmp_path / str(number))
    for number in (1, 2):
        toys.assert_same_bits(tmp_path / "0", tmp_path / str(number))


@pytest.mark.usefixtures("local")
def test_parallel_runs_in_threads_do_not_affect_each_other(tmp_path: Path) -> None:
    ppo.train(PPO, run=tmp_path / "alone")

    def train(number: int) -> None:
        ppo.train(PPO, run=tmp_path / str(number))

    threads = [threading.Thread(target=train, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for number in range(3):
        toys.assert_same_bits(tmp_path / "alone", tmp_path / str(number))


def test_the_first_signal_asks_to_stop_and_the_second_interrupts() -> None:
    before = signal.getsignal(signal.SIGTERM)
    process = Process()
    process.listen()
    try:
        signal.raise_signal(signal.SIGTERM)
        assert process.asked_to_stop == "stopped by SIGTERM"
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    finally:
        process.restore()
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_run_in_another_thread_stops_if_the_main_thread_is_interrupted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[Process] = []
    thread = threading.Thread(target=lambda: made.extend(Process() for _ in range(2)))
    thread.start()
    thread.join()
    (waited_for, left), here = made, Process()
    with contextlib.suppress(KeyboardInterrupt):
        try:
            raise KeyboardInterrupt  # Ctrl-C: the main thread waits for the others as it unwinds
        finally:
            assert here.asked_to_stop == ""  # in the main thread only its handler counts
            assert waited_for.asked_to_stop == "stopped by SIGINT"
    assert left.asked_to_stop == ""
    monkeypatch.setattr(threading, "main_thread", lambda: thread)  # which is over
    assert left.asked_to_stop == ""
    monkeypatch.setattr(sys, "last_value", KeyboardInterrupt(), raising=False)
    assert left.asked_to_stop == "stopped by SIGINT"


def test_actors_evaluations_and_learners_have_seeds_of_their_own() -> None:
    seeds = [seed_of_learner(1, rank) for rank in range(1, 9)]
    seeds += [seed_of_evaluation(1, steps) for steps in range(100, 900, 100)]
    seeds += [seed_of_actor(1, resumed, number) for resumed in range(9) for number in range(20)]
    assert len(set(seeds)) == len(seeds) == 8 + 8 + 180
