"""Central sampling: the same experience as local sampling, with one inference for all."""

import contextlib
import dataclasses
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.error import ClosedEnvironmentError
from torch import nn

import remotely
from remotely_rl import TrainingError, algorithms, appo, impala, networks, ppo
from remotely_rl.acting.actor import Actor, Parameters, Rollout
from remotely_rl.acting.player import play
from remotely_rl.algorithms import dqn
from remotely_rl.algorithms.ppo import update as ppo_update
from remotely_rl.environments.action_spaces import Discrete
from remotely_rl.environments.observations import ObservationLeaf
from remotely_rl.errors import LearnerLost
from remotely_rl.experience.trajectory import Trajectory, stack
from remotely_rl.learning.learner import Learner
from remotely_rl.runs import central as central_module
from remotely_rl.runs.central import CentralCrew, Closed
from remotely_rl.supervision import Crashes, CrashReport
from tests.remotely_rl import toys
from tests.remotely_rl.space_toys import FOR_BOXES

pytestmark = pytest.mark.usefixtures("here", "no_curve")

SEEDS = [7, 1000, 30, 4]
CONFIG = ppo.Config(
    env="CartPole-v1",
    actors=4,
    envs_per_actor=2,
    rollout_steps=20,
    random_start=9,
    device="cpu",
    learner_threads=1,
    precision="float32",
)
FORMS = {"central": 1, "alternating": 2}


class InFloat64(nn.Module):
    """Computes in float64, so that the size of a batch changes no action."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.body = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3)).double()

    def forward(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        out = self.body(obs.double())
        return out[:, :2], out[:, 2]


@contextlib.contextmanager
def central(
    halves: int, kind: type[Actor] = Actor, model: nn.Module | None = None, **changes: Any
) -> Iterator[CentralCrew]:
    said: list[CrashReport] = []
    made = CentralCrew(
        kind,
        dataclasses.replace(CONFIG, **changes),
        model or InFloat64(),
        SEEDS,
        halves,
        1,
        Crashes(lambda text: None, keep=said.append),
    )
    try:
        yield made
    finally:
        made.close()


def rounds(made: CentralCrew, count: int) -> list[Rollout]:
    return [made.request(made.actors[0]).result(60) for _ in range(count)]


def test_an_end_amid_a_step_is_no_warning() -> None:
    """Gymnasium warns a user who closes a vector then; sampling ends so."""
    with central(1) as made:
        rounds(made, 1)
        (vector,) = made._vectors
        made._do(lambda: vector.step_async(np.zeros(8, int))).result(60)


def test_resets_in_the_pause_equal_those_of_local_sampling() -> None:
    for halves in FORMS.values():
        with central(halves, resets="in_pause") as made:
            played = rounds(made, 4)
        for rollout, want in zip(played, locally(4, resets="in_pause"), strict=True):
            assert_same(rollout.trajectory, want)
        valid = np.stack([rollout.trajectory.valid for rollout in played])
        assert not valid.all()  # some wait
        assert (np.diff(valid.astype(int), axis=1) <= 0).all()  # until the end of the round


def locally(count: int, **changes: Any) -> list[Trajectory]:
    config = dataclasses.replace(CONFIG, **changes)
    actors = [remotely.local(Actor, config, InFloat64(), seed) for seed in SEEDS]
    played = [stack([actor.sample().trajectory for actor in actors]) for _ in range(count)]
    for actor in actors:
        actor.close()
    return played


def assert_same(one: Trajectory, other: Trajectory, columns: slice = slice(None)) -> None:
    for field in dataclasses.fields(Trajectory):
        a, b = getattr(one, field.name), getattr(other, field.name)
        axis = 0 if field.name in ("state", "version") else 1
        a, b = np.moveaxis(a, axis, 0)[columns], np.moveaxis(b, axis, 0)[columns]
        np.testing.assert_allclose(a, b, rtol=1e-6, err_msg=field.name)


@pytest.mark.parametrize("halves", FORMS.values(), ids=FORMS)
def test_trajectories_equal_those_of_local_sampling(halves: int) -> None:
    with central(halves) as made:
        played = rounds(made, 5)
    for rollout, want in zip(played, locally(5), strict=True):
        assert_same(rollout.trajectory, want)
    assert sum(len(rollout.episodes) for rollout in played) > 10


class ReportsSteps(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Reports in each step the length of the episode so far."""

    def __init__(self) -> None:
        super().__init__(gymnasium.make("CartPole-v1"))
        self.now = 0

    def reset(self, **kwargs: Any) -> Any:
        self.now = 0
        return super().reset(**kwargs)

    def step(self, action: Any) -> Any:
        self.now += 1
        *row, info = super().step(action)
        return *row, info | {"episode": {"steps": self.now}, "success": self.now > 9}


@pytest.mark.parametrize("resets", ["at_once", "in_pause"])
def test_hosts_report_the_metrics_of_episodes(resets: str) -> None:
    with central(2, env=ReportsSteps, resets=resets) as made:
        episodes = [one for rollout in rounds(made, 3) for one in rollout.episodes]
    assert len(episodes) > 3
    for episode in episodes:
        assert episode.metrics == {"steps": episode.length, "success": episode.length > 9}


def test_an_update_learns_the_same_from_observations_as_tensors() -> None:
    config = dataclasses.replace(CONFIG, random_start=0)
    learnt = []
    for keeps in (False, True):
        model = toys.network(4)
        learner = Learner(config, model, Discrete(2))
        actor = remotely.local(Actor, config, model, 5)
        room = torch.empty(21, 2, 4) if keeps else None
        played, _ = play(actor.players, 20, actor.act, 0, "inference", room)
        actor.close()
        assert isinstance(played.obs, torch.Tensor) == keeps
        ppo_update(learner, stack([played, played]), 0.0)
        learnt.append(toys.weights(learner.model))
    assert torch.equal(*learnt)


def test_new_parameters_apply_from_the_next_round_on() -> None:
    newer = InFloat64()
    with torch.no_grad():
        newer.body[2].bias.copy_(torch.tensor([-50.0, 50.0, 0.0]))  # type: ignore[operator]
    with central(1) as made:
        before = made.request(made.actors[0])
        state = {name: tensor.numpy() for name, tensor in newer.state_dict().items()}
        made.publish(Parameters(3, state))
        after = made.request(made.actors[0])
        assert not before.result(60).trajectory.action.all()
        assert after.result(60).trajectory.action.all()
        assert (after.result().trajectory.version == 3).all()


class Dies(toys.Counting):
    """Kills the first actor in which an environment takes its 30th step."""

    def __init__(self, mark: Path):
        super().__init__(length=7)
        self.mark, self.steps = mark, 0

    def step(self, action: int) -> Any:
        self.steps += 1
        if self.steps == 30:
            with contextlib.suppress(FileExistsError):
                self.mark.touch(exist_ok=False)
                os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)


@pytest.mark.parametrize("halves", FORMS.values(), ids=FORMS)
def test_a_dead_host_is_logged_and_replaced_without_effect_on_the_others(
    halves: int, tmp_path: Path
) -> None:
    model = toys.network(1)
    told: list[CrashReport] = []

    def sampled(env: Any) -> list[Trajectory]:
        config = dataclasses.replace(CONFIG, env=env, random_start=0)
        crashes = Crashes(lambda text: None, keep=told.append)
        made = CentralCrew(Actor, config, model, SEEDS, halves, 1, crashes)
        try:
            return [rollout.trajectory for rollout in rounds(made, 4)]
        finally:
            made.close()

    mark = tmp_path / "died"
    mark.touch()
    whole = sampled(lambda: Dies(mark))
    assert not told
    mark.unlink()
    crashed = sampled(lambda: Dies(mark))
    assert len(told) == 1
    actor = told[0].actor
    assert actor is not None
    assert told[0].env in (2 * actor, 2 * actor + 1)
    for one, other in zip(crashed, whole, strict=True):
        for host in range(4):
            if host != actor:
                assert_same(one, other, slice(2 * host, 2 * host + 2))
    at = slice(2 * actor, 2 * actor + 2)
    lost = np.stack([one.truncated[:, at] & ~one.valid[:, at] for one in crashed])
    assert lost.sum() == 2  # a row of each environment of the actor


@pytest.mark.parametrize("sampling", FORMS)
def test_a_resumed_run_learns_bit_by_bit_the_same_as_an_uninterrupted_one(
    sampling: str, tmp_path: Path
) -> None:
    config = dataclasses.replace(
        CONFIG, sampling=sampling, actors=2, anneal_steps=320, random_start=0
    )
    toys.assert_resumed_to_the_bit(ppo.train, config, (160, 320), tmp_path)


@pytest.mark.parametrize("name", ["pqn", "appo", "impala", "dqn", "sac", "td3", "crossq"])
def test_other_algorithms_support_central_sampling(name: str, tmp_path: Path) -> None:
    kind = algorithms.named(name).Config
    given: dict[str, Any] = {"learn_from": 64, "replay_rows": 999, "batch_size": 16}
    given = given if hasattr(kind, "replay_rows") else {}
    if name in FOR_BOXES:
        given |= {"hidden": "8,8", "replay_ratio": 1.0}
    config = kind(
        env=toys.Aim if name in FOR_BOXES else toys.Guess,
        actors=2,
        envs_per_actor=4,
        rollout_steps=8,
        total_steps=400,
        sampling="alternating",
        learner_threads=1,
        device="cpu",
        **given,
    )
    result = algorithms.named(name).train(config, run=tmp_path / "run")
    assert result.ended == "400 steps are done"
    assert result.updates > 2


def test_in_a_replay_each_environment_has_its_own_column_and_epsilon() -> None:
    config = dqn.Config(
        env=toys.Counting,
        actors=4,
        envs_per_actor=2,
        rollout_steps=100,
        epsilon=0.6,
        epsilon_spread=19.0,
        explore_steps=1,
        learn_from=1,
        batch_size=1,
        device="cpu",
    )
    model = config.make_model(None, ObservationLeaf((1,), np.dtype(np.float32)), Discrete(2))
    made = CentralCrew(dqn.QActor, config, model, SEEDS, 2, 1, Crashes(lambda text: None))
    try:
        made.actors[0].env_steps = 10
        (played,) = rounds(made, 1)
    finally:
        made.close()
    seen = played.trajectory
    best = made.actors[0].model(torch.from_numpy(seen.obs[:-1].reshape(-1, 1)))[0].argmax(-1)
    share = (seen.action == best.numpy().reshape(100, 8)).mean(0)
    assert (share[::2] < 0.85).all()  # epsilon 0.6, of two actions
    assert (share[1::2] > 0.97).all()  # 0.6 ** 20
    assert len(played.episodes) == 4 * 25  # only those of the environments that explore least


def test_with_resets_in_the_pause_a_dead_host_ends_only_its_own_episodes(tmp_path: Path) -> None:
    (mark := tmp_path / "died").touch()
    for dies in (False, True):
        if dies:
            mark.unlink()
        with central(
            1, env=lambda: Dies(mark), resets="in_pause", random_start=0, model=toys.network(1)
        ) as made:
            played = rounds(made, 6)
        assert [len(one.episodes) for one in played].count(8) == 6 - dies  # 7 steps of 20 each
        assert {game.length for one in played for game in one.episodes} == {7}


@pytest.mark.parametrize("victims", [1, 2], ids=["one actor", "all actors"])
def test_with_lives_the_row_after_a_dead_host_starts_a_game_and_is_invalid(
    victims: int,
) -> None:
    config = dataclasses.replace(
        CONFIG, env="ALE/Breakout-v5", actors=2, life_loss_is_terminal=True, random_start=0
    )
    model = networks.default_network(ObservationLeaf((4, 42, 42), np.dtype(np.uint8)), 4)
    made = CentralCrew(Actor, config, model, SEEDS[:2], 1, 1, Crashes(lambda text: None))
    try:
        rounds(made, 1)
        hosts = sorted(one.pid for one in remotely.actors() if one.class_name == "Host")
        for pid in hosts[:victims]:
            os.kill(pid, signal.SIGKILL)
        seen = rounds(made, 1)[0].trajectory
    finally:
        made.close()
    lost = seen.truncated[0] & ~seen.valid[0]
    assert lost.sum() >= 2 * victims - 1  # one has just lost a life, and resets
    assert not seen.valid[1, lost].any()
    assert seen.begins[2, lost].all()
    assert seen.valid[2:, lost].all()


def test_an_id_registered_only_in_this_process_is_known_to_the_actors() -> None:
    gymnasium.register("OnlyHere-v0", lambda **_: toys.Counting())
    try:
        with central(1, env="OnlyHere-v0", random_start=0, model=toys.network(1)) as made:
            assert rounds(made, 1)[0].episodes
    finally:
        del gymnasium.registry["OnlyHere-v0"]


def test_noisy_networks_are_perturbed_for_each_actor_as_in_local_sampling() -> None:
    config = dqn.Config(env="CartPole-v1", actors=4, envs_per_actor=2, noisy=True, device="cpu")
    object.__setattr__(config, "learn_from", 0)
    model = config.make_model(None, ObservationLeaf((4,), np.dtype(np.float32)), Discrete(2))
    made = CentralCrew(dqn.QActor, config, model, SEEDS, 2, 1, Crashes(lambda text: None))
    try:
        made.actors[0].env_steps = 10
        central_actions = rounds(made, 1)[0].trajectory.action
    finally:
        made.close()
    for i, seed in enumerate(SEEDS):
        actor = remotely.local(dqn.QActor, config, model, seed)
        actor.env_steps = 10
        actions = actor.sample().trajectory.action
        actor.close()
        assert (central_actions[:, 2 * i : 2 * i + 2] == actions).all()


def test_an_update_uses_batch_trajectories_whatever_the_size_of_a_round(
    tmp_path: Path,
) -> None:
    config = impala.Config(
        env=toys.Guess,
        actors=4,
        envs_per_actor=2,
        rollout_steps=8,
        total_steps=400,
        batch_trajectories=1,
        sampling="central",
        learner_threads=1,
        device="cpu",
    )
    assert impala.train(config, run=tmp_path / "run").updates >= 400 // (2 * 8)


def test_environments_that_cannot_be_saved_are_reported_as_in_local_sampling() -> None:
    with central(2, env=toys.Unsaveable, random_start=0, model=toys.network(2)) as made:
        rounds(made, 1)
        assert made.actors[0].pause() == b""


def test_a_gpu_lost_while_sampling_loses_the_learner(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def lost(*_: object) -> None:
        raise torch.AcceleratorError("CUDA error: unspecified launch failure")

    monkeypatch.setattr(Actor, "act", lost)
    with central(1) as made, pytest.raises(LearnerLost, match="the GPU is lost"):
        rounds(made, 1)


class Hangs(toys.Counting):
    """Its third step does not return."""

    def step(self, action: int) -> Any:
        if self.now == 2:
            threading.Event().wait()
        return super().step(action)


def test_a_hanging_environment_does_not_keep_a_run_from_ending(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(central_module, "CLOSE_S", 0.5)
    said: list[str] = []
    config = dataclasses.replace(CONFIG, env=Hangs, random_start=0)
    made = CentralCrew(Actor, config, toys.network(1), SEEDS, 2, 1, Crashes(said.append))
    call = made.request(made.actors[0])
    made.close()
    assert isinstance(call.exception(30), (ClosedEnvironmentError, Closed))
    assert not said


class SlowToMake(toys.Counting):
    def __init__(self) -> None:
        threading.Event().wait(3.0)
        super().__init__()


def test_a_finished_run_does_not_wait_for_its_environments() -> None:
    config = dataclasses.replace(CONFIG, env=SlowToMake, actors=2, random_start=0)
    made = CentralCrew(
        Actor, config, toys.network(1), SEEDS[:2], 1, 1, Crashes(lambda text: None), lambda: True
    )
    assert not made.actors
    made.close()


class TimesOut(toys.Counting):
    def __init__(self) -> None:
        raise TimeoutError("the simulator does not answer")


def test_an_error_while_making_environments_is_raised_even_a_timeout() -> None:
    with (
        pytest.raises(TimeoutError, match="the simulator does not answer"),
        central(1, env=TimesOut, model=toys.network(1)),
    ):
        pass


def test_a_gpu_lost_before_the_first_step_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(device: torch.device) -> None:
        raise RuntimeError("no such device")

    monkeypatch.setattr("remotely_rl.runs.central._ahead_of_learning", lost)
    with (
        pytest.raises(RuntimeError, match="no such device"),
        central(1, model=toys.network(1)),
    ):
        pass


def test_close_stops_a_round() -> None:
    made = CentralCrew(
        Actor,
        dataclasses.replace(CONFIG, rollout_steps=10_000_000),
        InFloat64(),
        SEEDS,
        2,
        1,
        Crashes(lambda text: None),
    )
    call: Future[Rollout] = made.request(made.actors[0])
    made.close()
    assert call.exception(40) is not None


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"sampling": "centrl"}, "must be auto, local, central, alternating.*'central'"),
        ({"sampling": "alternating", "actors": 3}, "needs an even number of actors, not 3"),
        ({"sampling": "central", "arrivals": True}, "dial in compute their own actions"),
        ({"sampling": "central", "actors": 0}, "needs a number of actors"),
        ({"sampling": "central", "max_staleness": 1, "actors": 4}, "must be a multiple of that"),
    ],
)
def test_unsupported_configs_are_rejected(given: dict[str, Any], words: str) -> None:
    with pytest.raises(TrainingError, match=words):
        appo.Config(**given)


def test_an_unsupported_algorithm_names_those_that_support_it() -> None:
    with pytest.raises(
        TrainingError, match=r"a3c samples in its workers.*a2c, ppo.*have the choice"
    ):
        algorithms.named("a3c").Config(sampling="central")


def test_a_same_step_vector_environment_is_rejected(
    tmp_path: Path,
) -> None:
    config = dataclasses.replace(CONFIG, env=toys.guess_in_pairs, sampling="central")
    with pytest.raises(TrainingError, match=r"autoreset mode .*SAME_STEP.* sampling=local"):
        ppo.train(config, run=tmp_path / "run")
