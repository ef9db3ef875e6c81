"""Presets: when one applies, its settings and its messages."""

import copy
import dataclasses
import pickle
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from remotely_rl import a2c, algorithms, ppo, sac, settings
from remotely_rl.config import Common, presets
from remotely_rl.config.presets import Measured, Preset
from remotely_rl.environments import check_is_known
from remotely_rl.errors import TrainingError
from remotely_rl.runs import run_folder, training

MEASURED = Measured((480.0, 500.0, 490.0), 0.3, "abc1234")
ROWS = (
    Preset("CartPole-v1", "ppo", {"gamma": 0.9, "total_steps": 150_000}, MEASURED),
    Preset("ALE/Pong-v5", "ppo", {"gamma": 0.98}, MEASURED),
    Preset("CartPole-v1", "sac", {"epochs": 3}, MEASURED),
)


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presets, "ROWS", ROWS)


def named(row: Preset) -> str:
    return f"{row.algorithm}-{row.env}"


@pytest.mark.parametrize("row", presets.ROWS, ids=named)
def test_every_preset_makes_a_config_of_its_algorithm(row: Preset) -> None:
    kind = algorithms.named(row.algorithm).Config
    config = kind(env=row.env, preset="auto")
    assert config.preset == row.env
    assert {name: getattr(config, name) for name in row.settings} == row.settings
    usual = {field.name: field.default for field in dataclasses.fields(kind)}
    assert all(value != usual[name] for name, value in row.settings.items())
    check_is_known(row.env)
    assert config.total_steps
    assert row.measured.returns


def test_there_is_one_preset_for_an_algorithm_and_an_environment() -> None:
    names = [named(row) for row in presets.ROWS]
    assert sorted(names) == sorted(set(names))


@pytest.mark.parametrize("env", ["CartPole-v1", "CartPole-v0", "my_module:CartPole-v2"])
def test_a_preset_fits_every_version_of_its_environment(rows: None, env: str) -> None:
    config = ppo.Config(env=env, preset="auto")
    assert (config.gamma, config.total_steps, config.preset) == (0.9, 150_000, "CartPole-v1")


def test_arguments_of_a_preset_are_for_its_version_and_those_given_are_added(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    arguments = {"sutton_barto_reward": True, "max_episode_steps": 90}
    given = {"env_kwargs": arguments, "gamma": 0.9}
    monkeypatch.setattr(presets, "ROWS", (Preset("CartPole-v1", "ppo", given, MEASURED),))
    config = ppo.Config(env="CartPole-v1", preset="auto", env_kwargs={"max_episode_steps": 7})
    assert config.env_kwargs == {"sutton_barto_reward": True, "max_episode_steps": 7}
    changed: Any = config.env_kwargs
    changed.clear()
    plain = ppo.Config(env="CartPole-v1", preset="auto")
    assert plain.env_kwargs == arguments
    said = "--env-arg sutton_barto_reward=True --env-arg max_episode_steps=90"
    assert plain.remarks()[1] == f"preset CartPole-v1: {said} --gamma 0.9"
    assert ppo.Config(env="CartPole-v0", preset="auto").env_kwargs == {}
    other = ppo.Config(env="Acrobot-v1", preset="CartPole-v1")
    assert other.env_kwargs == {}
    assert other.remarks()[1] == "preset CartPole-v1: --gamma 0.9"


def test_a_config_without_a_preset_has_the_defaults(rows: None) -> None:
    assert ppo.Config(env="CartPole-v1").gamma == 0.99
    assert ppo.Config(env="CartPole-v1", preset="none").gamma == 0.99


def test_given_values_override_the_preset_even_if_they_are_defaults(rows: None) -> None:
    config = ppo.Config(env="CartPole-v1", preset="auto", gamma=0.99, minutes=5)
    assert (config.gamma, config.total_steps, config.minutes) == (0.99, 150_000, 5)


def test_the_preset_of_another_environment_can_be_selected(rows: None) -> None:
    config = ppo.Config(env=gymnasium.make, preset="CartPole-v1")
    assert (config.gamma, config.preset) == (0.9, "CartPole-v1")


def test_the_paper_is_a_preset_whose_image_size_applies_to_atari_only() -> None:
    assert ppo.Config(env="ALE/Pong-v5", preset="paper").image_size == 84
    config = ppo.Config(env="CartPole-v1", preset="paper")
    assert (config.image_size, config.target_kl, config.preset) == (None, 0.0, "paper")


@pytest.mark.parametrize(
    ("kind", "name", "said"),
    [
        (ppo.Config, "CartPoles-v1", "ppo has no preset 'CartPoles-v1', did you mean 'CartPole-v"),
        (ppo.Config, "pape", "ppo has no preset 'pape', did you mean 'paper'"),
        (ppo.Config, "zzz", "ppo has no preset 'zzz': there is auto, none, paper, CartPole-v1"),
        (a2c.Config, "ALE/Pong-v5", "a2c has no preset 'ALE/Pong-v5', but ppo has one"),
        (sac.Config, "CartPole-v1", "there is no field 'epochs'"),
    ],
)
def test_an_unknown_preset_and_an_unknown_field_of_a_preset_are_rejected(
    rows: None, kind: Any, name: str, said: str
) -> None:
    with pytest.raises(TrainingError) as told:
        kind(env="CartPole-v1", preset=name)
    assert str(told.value).startswith(said)


def test_a_copy_keeps_its_values_and_applies_no_preset(
    rows: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = ppo.Config(env="CartPole-v1", preset="auto", total_steps=7)
    without = ppo.Config(env="Acrobot-v1", preset="auto")
    folder = run_folder.create(tmp_path / "run", "ppo", config)
    changed = {"gamma": 0.5, "lstm": 3}
    later = (*(Preset(env, "ppo", changed, MEASURED) for env in ("CartPole-v1", "Acrobot-v1")),)
    for now in (later, ()):
        monkeypatch.setattr(presets, "ROWS", now)
        assert dataclasses.replace(config, seed=1) == config
        assert dataclasses.replace(without, seed=1) == without
        assert copy.copy(config) == pickle.loads(pickle.dumps(config)) == config
        assert training.config_of(ppo.Config, "ppo", folder.path) == config
        assert training.config_of(ppo.Config, "ppo", folder.path, {"gamma": 0.8}).gamma == 0.8


def test_a_resumed_run_keeps_its_settings_and_applies_no_preset(rows: None, tmp_path: Path) -> None:
    folder = run_folder.create(tmp_path / "run", "ppo", ppo.Config(env="CartPole-v1"))
    with pytest.raises(TrainingError, match="use --resume without --preset"):
        training.config_of(ppo.Config, "ppo", folder.path, {"preset": "auto"})


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (
            lambda: ppo.Config(env="CartPole-v1", preset="auto"),
            ["preset CartPole-v1: --gamma 0.9 --total-steps 150000"],
        ),
        (
            lambda: ppo.Config(env="Taxi-v4", preset="CartPole-v1", gamma=0.5),
            ["preset CartPole-v1: --total-steps 150000; changed: --gamma 0.5"],
        ),
        (
            lambda: a2c.Config(env="CartPole-v0", preset="auto"),
            ["no preset of a2c for CartPole-v0, but ppo and sac have one"],
        ),
        (lambda: ppo.Config(env="CartPole-v1"), []),
        (lambda: ppo.Config(env="Taxi-v4", preset="auto"), []),
    ],
)
def test_a_run_reports_its_preset_or_which_algorithm_has_one(
    rows: None, config: Any, said: list[str]
) -> None:
    made: Common = config()
    assert [line for line in made.remarks() if line.startswith(("preset", "no preset"))] == said


def test_a_preset_is_shown_as_options_with_its_results() -> None:
    assert ROWS[0].options == "--gamma 0.9 --total-steps 150000"
    assert str(ROWS[0]) == "return 490 (480 to 500), 3 seeds, 150,000 steps, 0.3 minutes"
    one = ROWS[0]._replace(measured=MEASURED._replace(returns=(-103.66,)))
    assert str(one) == "return -103.7, 1 seed, 150,000 steps, 0.3 minutes"
    assert str(MEASURED._replace(returns=(8030, 10545))) == "9,288 (8,030 to 10,545)"
    assert settings.option("hidden", "256,256") == "--hidden 256,256"
