"""Tests of SelfPlay."""

import dataclasses
import functools
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import remotely_rl
from remotely_rl import Hook, SelfPlay, a3c, dqn, ppo
from remotely_rl.agents import evaluation
from remotely_rl.agents.self_play import FOLDER, FormerSelves, Run, snapshots
from remotely_rl.environments import name_of
from remotely_rl.environments.turn_based import Turn
from remotely_rl.errors import TrainingError
from tests.remotely_rl import toys
from tests.remotely_rl.agent_toys import Party, Race

pytestmark = pytest.mark.usefixtures("local", "no_curve")

INFO = functools.partial(Race, masks_in_info=True)
BOX, DISCRETE = Race(masks_in_info=True).observation_space(""), Race().action_space("")
LEGAL = np.ones(3, np.int8)


def config_of(env: Any = None, **more: Any) -> ppo.Config:
    given = {
        "env": env or SelfPlay(Race, every=64),
        "actors": 1,
        "envs_per_actor": 8,
        "batch_rows": 64,
        "epochs": 1,
        "total_steps": 240,
        "learner_threads": 1,
        "probe_steps": 8,
        **more,
    }
    return ppo.Config(**given)


def turns(count: int) -> list[Turn]:
    return [Turn(np.array([9], np.float32), LEGAL) for _ in range(count)]


class Always(nn.Module):
    """Always takes one action."""

    def __init__(self, action: int):
        super().__init__()
        self.logits = nn.Parameter(torch.eye(3)[action] * 100)

    def forward(self, obs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        rows = len(obs["observation"])
        return self.logits.expand(rows, 3), torch.zeros(rows)


def playing(folder: Path, *actions: int) -> FormerSelves:
    """Return opponents that each always take one of these actions."""
    folder.mkdir()
    former = FormerSelves(BOX, DISCRETE, Run(folder, config_of(), Always(0), 10))
    for number, action in enumerate(actions):
        torch.save(Always(action).state_dict(), folder / f"{number}.pt")
    return former


def test_each_game_has_its_own_opponent_until_it_ends(tmp_path: Path) -> None:
    former, random = playing(tmp_path / "pool", 0, 1, 2), np.random.default_rng(1)
    for game in range(30):
        former.begin(game, random)
    taken = [list(former.act(range(30), turns(30), random)) for _ in range(3)]
    assert taken[0] == taken[1] == taken[2]
    assert set(taken[0]) == {0, 1, 2}
    former.begin(0, random)
    assert list(former.act(range(1, 30), turns(29), random)) == taken[0][1:]


def test_each_network_runs_once_for_all_its_games(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes: list[int] = []

    def counted(self: Any, obs: Any) -> Any:
        passes.append(len(obs["observation"]))
        return forward(self, obs)

    forward = Always.forward
    monkeypatch.setattr(Always, "forward", counted)
    former, random = playing(tmp_path / "pool", 0, 1), np.random.default_rng(1)
    for game in range(20):
        former.begin(game, random)
    former.act(range(20), turns(20), random)
    assert len(passes) == 2
    assert sum(passes) == 20


def test_a_recurrent_opponent_has_a_state_per_game(
    tmp_path: Path,
) -> None:
    class Counts(nn.Module):
        """The action is the number of its earlier turns in the game."""

        def __init__(self) -> None:
            super().__init__()
            self.unused = nn.Parameter(torch.zeros(1))

        def initial_state(self, count: int) -> torch.Tensor:
            return torch.zeros(count, 1)

        def forward(self, obs: Any, state: Any, begins: Any) -> Any:
            now = state * ~begins[0][:, None]
            policy = -1000 * (now - torch.arange(3.0)).square()
            return policy[None], torch.zeros(begins.shape), now + 1

    former = FormerSelves(BOX, DISCRETE, Run(tmp_path / "pool", config_of(), Counts(), 10))
    (tmp_path / "pool").mkdir()
    torch.save(Counts().state_dict(), tmp_path / "pool" / "0.pt")
    random = np.random.default_rng(1)
    for game in (0, 1):
        former.begin(game, random)
    assert list(former.act([0, 1], turns(2), random)) == [0, 0]
    assert list(former.act([1], turns(1), random)) == [1]
    assert list(former.act([0, 1], turns(2), random)) == [1, 2]
    former.begin(0, random)
    assert list(former.act([0], turns(1), random)) == [0]


def test_without_a_run_opponents_play_legal_moves_at_random() -> None:
    former, random = FormerSelves(BOX, DISCRETE), np.random.default_rng(1)
    former.begin(0, random)
    states = [Turn(np.array([9], np.float32), np.array([0, 1, 1], np.int8)) for _ in range(40)]
    assert set(former.act([0] * 40, states, random)) == {1, 2}


def test_an_actor_without_the_runs_folder_raises(tmp_path: Path) -> None:
    former = playing(tmp_path / "pool")
    for _ in range(2):
        with pytest.raises(TrainingError, match="no opponents: actors on other machines need the"):
            former.begin(0, np.random.default_rng(1))
        shutil.rmtree(tmp_path / "pool", ignore_errors=True)  # as on a machine without it


def test_a_run_keeps_its_last_snapshots_and_the_first_is_the_initial_model(
    tmp_path: Path,
) -> None:
    env = SelfPlay(Race, every=48, keep=3)
    result = ppo.train(config_of(env, total_steps=64), run=tmp_path / "short")
    first, *later = snapshots(tmp_path / "short" / FOLDER)
    assert (int(Path(first).stem), len(later)) == (0, 1)
    result = ppo.train(config_of(env), run=tmp_path / "run")
    kept = [int(Path(name).stem) for name in snapshots(tmp_path / "run" / FOLDER)]
    assert len(kept) == 3
    assert min(kept) > 0
    last = torch.load(tmp_path / "run" / FOLDER / f"{kept[-1]:012}.pt", weights_only=True)
    assert kept[-1] <= result.env_steps
    assert last.keys() == remotely_rl.load(tmp_path / "run", env=env).model.state_dict().keys()


def test_a_seed_determines_a_self_play_run(tmp_path: Path) -> None:
    for name in ("one", "other"):
        ppo.train(config_of(SelfPlay(Race, every=64)), run=tmp_path / name)
    toys.assert_same_bits(tmp_path / "one", tmp_path / "other")


def test_an_env_can_be_used_in_several_runs(tmp_path: Path) -> None:
    env = SelfPlay(Race, every=64)
    for name, seed in (("one", 1), ("other", 2)):
        ppo.train(config_of(env, seed=seed), run=tmp_path / name)
        evaluation.evaluate(tmp_path / name, 2, env=env)
        (tmp_path / name / FOLDER).rename(tmp_path / f"snapshots of {name}")
    ppo.train(config_of(SelfPlay(Race, every=64), seed=2), run=tmp_path / "fresh")
    toys.assert_same_bits(tmp_path / "fresh", tmp_path / "other")


def test_a_resumed_run_keeps_its_snapshots(tmp_path: Path) -> None:
    ppo.train(config_of(total_steps=160), run=tmp_path / "run")
    before = snapshots(tmp_path / "run" / FOLDER)
    ppo.train(config_of(total_steps=240), resume=tmp_path / "run")
    after = snapshots(tmp_path / "run" / FOLDER)
    assert after[: len(before)] == before
    assert len(after) > len(before)


def test_a_copy_of_a_snapshot_that_a_user_keeps_beside_it_is_left_alone(tmp_path: Path) -> None:
    ppo.train(config_of(total_steps=80), run=tmp_path / "run")
    folder = tmp_path / "run" / FOLDER
    kept = [folder / name for name in ("champion.pt", "000000000000 copy.pt")]
    for copy in kept:
        shutil.copy(folder / snapshots(folder)[0], copy)
    ppo.train(config_of(total_steps=160), resume=tmp_path / "run")
    assert all(copy.exists() for copy in kept)
    assert not {copy.name for copy in kept} & set(snapshots(folder))


def test_a_resumed_run_has_the_opponents_that_an_unbroken_one_has(tmp_path: Path) -> None:
    config = config_of(SelfPlay(Race, every=100), anneal_steps=1_000)
    toys.assert_resumed_to_the_bit(ppo.train, config, (320, 640), tmp_path)
    straight, stopped = (snapshots(tmp_path / name / FOLDER) for name in ("straight", "stopped"))
    assert straight == stopped


class Copies(Hook):
    """Copies the folder of a run at a number of steps, as it is if the run is killed there."""

    def __init__(self, env_steps: int, to: Path):
        self.env_steps, self.to = env_steps, to

    def on_update(self, session: Any, metrics: Any) -> None:
        if session.env_steps >= self.env_steps and not self.to.exists():
            shutil.copytree(session.folder.path, self.to)


def test_a_run_that_was_killed_has_the_opponents_of_its_checkpoint(tmp_path: Path) -> None:
    env = SelfPlay(Race, every=64, keep=2)
    config = config_of(env, checkpoint_interval_s=1e6, anneal_steps=1_000)
    run, killed = tmp_path / "run", tmp_path / "killed"
    whole = dataclasses.replace(config, total_steps=720)
    ppo.train(whole, run=tmp_path / "straight")
    ppo.train(dataclasses.replace(config, total_steps=240), run=run)
    at_checkpoint = snapshots(run / FOLDER)
    ppo.train(whole, resume=run, hooks=[Copies(560, killed)])
    shutil.rmtree(run)
    killed.rename(run)
    later = snapshots(run / FOLDER)
    assert later[:2] == at_checkpoint
    assert len(later) > 4
    ppo.train(whole, resume=run)
    toys.assert_same_bits(tmp_path / "straight", run)
    assert snapshots(tmp_path / "straight" / FOLDER) == snapshots(run / FOLDER)


def test_a_run_whose_folder_has_moved_can_be_resumed(tmp_path: Path) -> None:
    ppo.train(config_of(total_steps=160), run=tmp_path / "run")
    moved = (tmp_path / "run").rename(tmp_path / "moved")
    result = ppo.train(config_of(total_steps=240), resume=moved)
    assert result.new_steps


@pytest.mark.slow
@pytest.mark.timeout(360)
def test_self_play_learns_the_winning_moves(tmp_path: Path) -> None:
    # Leaving four to the opponent wins.
    game = functools.partial(Race, length=5)
    config = config_of(SelfPlay(game, every=1_000), total_steps=6_000, batch_rows=128)
    result = ppo.train(config, run=tmp_path / "run")
    agent = remotely_rl.load(result.run, env=SelfPlay(game))
    for left, move in ((5, 0), (3, 2), (2, 1)):
        mask = np.array([left > i for i in range(3)], np.int8)
        obs = {"observation": np.array([left], np.float32), "action_mask": mask}
        assert int(agent.act(obs)) == move


@pytest.mark.parametrize(
    "algorithm",
    [
        (dqn, {"learn_from": 64, "batch_size": 32, "replay_rows": 1_000, "rollout_steps": 8}),
        (a3c, {"rollout_steps": 8}),
    ],
    ids=["dqn", "a3c"],
)
def test_other_algorithms_can_use_self_play(algorithm: Any, tmp_path: Path) -> None:
    module, more = algorithm
    config = module.Config(
        env=SelfPlay(Race, every=64),
        actors=1,
        envs_per_actor=4,
        total_steps=300,
        probe_steps=8,
        **more,
    )
    module.train(config, run=tmp_path / "run")
    *_, one, other = (
        torch.load(tmp_path / "run" / FOLDER / name, weights_only=True)
        for name in snapshots(tmp_path / "run" / FOLDER)
    )
    assert any((one[name] != other[name]).any() for name in one)


def test_a_run_can_be_evaluated_against_any_opponent(tmp_path: Path) -> None:
    ppo.train(config_of(), run=tmp_path / "run")

    def loses(obs: Any, mask: Any, random: Any) -> int:
        return 0

    against = SelfPlay(functools.partial(Race, length=3), loses)
    found = evaluation.evaluate(tmp_path / "run", 8, greedy=False, env=against, envs=4)
    assert len(found.scores) == 8
    assert set(found.scores) <= {1.0, -1.0}


def test_the_name_of_a_self_play_env_is_that_of_the_game() -> None:
    assert name_of(SelfPlay(Race)) == "race_v0"


@pytest.mark.parametrize(
    ("make", "more", "says"),
    [
        (Party, {}, "lets all agents act at once.*there is MultiAgent"),
        (toys.Guess, {}, "has one agent: SelfPlay takes turn-based games"),
        (functools.partial(Race, players=1), {}, "self-play needs two or more"),
        (Race, {"keep": 0}, "keep must be at least 1, not 0"),
        (Race, {"every": 0}, "every must be at least 1, not 0"),
    ],
)
def test_self_play_refuses_games_that_are_not_turn_based(make: Any, more: Any, says: str) -> None:
    with pytest.raises(TrainingError, match=says):
        SelfPlay(make, **more)


def test_a_config_with_self_play_can_be_replaced() -> None:
    config = config_of()
    assert dataclasses.replace(config, seed=2).env is config.env
