"""The numbers that a run takes from its machine, and what they leave as it is."""

import json
from pathlib import Path

import pytest

from remotely_rl.algorithms import a3c, dqn, impala, ppo, sac
from remotely_rl.config.hardware import LEAST, Hardware, spread
from remotely_rl.errors import TrainingError
from remotely_rl.runs import curve, run_folder, training


@pytest.mark.parametrize(
    ("cores", "has_gpu", "actors"),
    [
        (1, False, 1),
        (2, False, 2),
        (3, False, 2),  # 3 does not divide 32
        (4, False, 4),
        (64, False, 8),
        (2, True, 2),
        (16, True, 8),
    ],
)
def test_32_environments_are_spread_over_the_cores(cores: int, has_gpu: bool, actors: int) -> None:
    assert spread(32, Hardware(cores, has_gpu)) == actors


@pytest.mark.parametrize("environments", [1, 2, 3, 7, 12, 15, 32, 36, 100])
def test_every_environment_has_an_actor(environments: int) -> None:
    for cores in (1, 2, 5, 16, 128):
        for has_gpu in (False, True):
            actors = spread(environments, Hardware(cores, has_gpu))
            assert environments % actors == 0
            assert actors <= cores
            assert actors == 1 or environments // actors >= LEAST


def test_what_a_run_learns_from_is_the_same_on_every_machine() -> None:
    for kind in (ppo.Config, dqn.Config):
        config = kind(env="CartPole-v1")
        for cores in (1, 2, 8, 64):
            fitted = config.fitted(Hardware(cores))
            assert fitted.actors * fitted.envs_per_actor == config.actors * config.envs_per_actor
            assert fitted.resolved("rollout_steps") == config.resolved("rollout_steps")
            ranks = {
                rank
                for actor in range(fitted.actors)
                for first in [fitted.of_actor(actor).first_rank]
                for rank in range(first, first + fitted.envs_per_actor)
            }
            assert ranks == set(range(32))


def test_a_given_number_of_actors_stays() -> None:
    assert ppo.Config(actors=3).fitted(Hardware(64)).actors == 3
    assert sac.Config().fitted(Hardware(64)).actors == 1
    assert impala.Config().fitted(Hardware(64)).actors == 2  # staleness grows with it


def test_auto_can_be_asked_for_where_it_is_the_default() -> None:
    assert ppo.Config(actors="auto").fitted(Hardware(4)).actors == 4  # type: ignore[arg-type]
    with pytest.raises(TrainingError, match="actors must be a number, not 'auto'"):
        a3c.Config(actors="auto")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("cores", "given", "sampling"),
    [
        (1, {}, "central"),
        (2, {}, "central"),
        (4, {}, "alternating"),
        (16, {}, "alternating"),
        (16, {"actors": 3}, "central"),  # an odd number
        (4, {"actors": 8}, "central"),  # they share cores
        (16, {"sampling": "local"}, "local"),
    ],
)
def test_a_gpu_samples_alternately_if_each_actor_has_a_core(
    cores: int, given: dict[str, int], sampling: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    config = ppo.Config(env="CartPole-v1", **given)  # type: ignore[arg-type]
    assert config.fitted(Hardware(cores, has_gpu=True)).sampling == sampling


def test_alternating_sampling_gets_an_even_number_of_actors() -> None:
    config = ppo.Config(sampling="alternating")
    assert [config.fitted(Hardware(cores)).actors for cores in (1, 2, 3, 4)] == [2, 2, 2, 4]


def test_a_run_says_what_it_has_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    line = "for 4 cores: --actors 4 --envs-per-actor 8 --sampling local"
    assert line in ppo.Config().fitted(Hardware(4)).remarks()
    assert not [line for line in ppo.Config().remarks() if line.startswith("for ")]


def test_a_resumed_run_fits_the_machine_that_it_is_resumed_on(tmp_path: Path) -> None:
    config = ppo.Config(env="CartPole-v1").fitted(Hardware(8))
    folder = run_folder.create(tmp_path / "run", "ppo", config)
    kept = json.loads(folder.config.read_text())["config"]
    assert (kept["actors"], kept["envs_per_actor"]) == (8, 4)

    resumed = training.config_of(ppo.Config, "ppo", folder.path).fitted(Hardware(2))
    assert (resumed.actors, resumed.envs_per_actor, resumed.sampling) == (2, 16, "local")
    fixed = training.config_of(ppo.Config, "ppo", folder.path, {"actors": 4})
    assert fixed.fitted(Hardware(2)).actors == 4


def test_runs_on_other_machines_are_of_one_group(tmp_path: Path) -> None:
    settings = []
    for cores in (2, 8):
        config = ppo.Config(env="CartPole-v1").fitted(Hardware(cores))
        folder = run_folder.create(tmp_path / str(cores), "ppo", config)
        settings.append(curve.group_settings(run_folder.read(folder.path).as_asked))
    assert settings[0] == settings[1]
