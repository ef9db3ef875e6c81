"""Settings of a run, and the errors of invalid ones."""

import contextlib
import dataclasses
import json
import math
import pickle
import re
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

import remotely_rl
from remotely_rl import (
    a2c,
    a3c,
    algorithms,
    c51,
    dqn,
    ga3c,
    impala,
    other_names,
    ppo,
    qr_dqn,
    sac,
    settings,
    td3,
)
from remotely_rl.config import GROUPS, Common, device_named, device_of
from remotely_rl.environments.action_spaces import Continuous, Discrete
from remotely_rl.errors import TrainingError
from remotely_rl.settings import Range
from tests.remotely_rl import toys

CONFIGS: list[type[Common]] = [
    Common,
    *(algorithms.named(name).Config for name in algorithms.ALGORITHMS),
]


@pytest.mark.parametrize("kind", CONFIGS, ids=lambda kind: kind.__module__.rsplit(".")[-1])
def test_every_field_has_a_type_a_line_of_prose_and_a_default_within_its_bounds(
    kind: type[Common],
) -> None:
    found = settings.settings(kind)
    assert [setting.name for setting in found] == [field.name for field in dataclasses.fields(kind)]
    for setting in found:
        assert 10 < len(setting.prose) < 110, setting.name
        assert not setting.prose.endswith("."), setting.name
        assert setting.bounds is None or isinstance(setting.bounds, Range), setting.name
    kind()  # checks the defaults


def test_every_field_in_a_group_of_the_help_is_a_field_of_some_algorithm() -> None:
    fields = {field.name for kind in CONFIGS for field in dataclasses.fields(kind)}
    grouped = [name for names in GROUPS.values() for name in names]
    assert set(grouped) <= fields
    assert len(grouped) == len(set(grouped))


def test_an_unknown_field_suggests_the_nearest() -> None:
    with pytest.raises(TrainingError, match="no field 'gama', did you mean 'gamma'"):
        ppo.Config(gama=0.9)  # type: ignore[call-arg]
    with pytest.raises(TrainingError, match="no field 'minibatch', did you mean 'minibatches'"):
        ppo.Config(minibatch=2)  # type: ignore[call-arg]
    with pytest.raises(TrainingError, match=r"there is no field 'zzz'$"):
        Common(zzz=2)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("kind", "name", "meant"),
    [
        (ppo.Config, "n_steps", "'rollout_steps'"),
        (ppo.Config, "clip_coef", "'clip_range'"),
        (ppo.Config, "lr", "'learning_rate'"),
        (ppo.Config, "batch_size", "'minibatches'"),
        (dqn.Config, "n_steps", "'rollout_steps' or 'n_step'"),
        (dqn.Config, "buffer_size", "'replay_rows'"),
        (sac.Config, "ent_coef", "'initial_temperature'"),
        (ppo.Config, "log_std_init", "'log_std_start'"),
        (sac.Config, "hidden_units", "'hidden'"),
    ],
)
def test_a_field_of_another_library_suggests_its_name_here(
    kind: type[Common], name: str, meant: str
) -> None:
    given: dict[str, Any] = {name: 1}
    with pytest.raises(TrainingError, match=f"no field '{name}': here that is {meant}$"):
        kind(**given)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("PPO", "write remotely_rl.ppo: ppo.train(ppo.Config(env=...))"),
        ("Td3", "write remotely_rl.td3: td3.train(td3.Config(env=...))"),
        ("QRDQN", "write remotely_rl.qr_dqn: qr_dqn.train(qr_dqn.Config(env=...))"),
        ("laod", "did you mean 'load'?"),
        ("init", "write remotely.connect()"),
    ],
)
def test_an_unknown_name_of_the_package_suggests_another(name: str, said: str) -> None:
    with pytest.raises(AttributeError, match=re.escape(f"remotely_rl has no {name!r}; {said}")):
        getattr(remotely_rl, name)


def test_dir_lists_all_public_names() -> None:
    assert set(remotely_rl.__all__) <= set(dir(remotely_rl))


def test_every_name_in_the_table_of_other_libraries_is_a_field() -> None:
    fields = {field.name for kind in CONFIGS for field in dataclasses.fields(kind)}
    assert other_names.TABLE.keys() <= fields


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            dqn.Config(),
            (
                "differs from the paper, which has --n-step 1 --no-double --no-dueling"
                " --image-size 84"
            ),
        ),
        (dqn.Config(env="CartPole-v1", n_step=1, double=False, dueling=False), ""),
        (
            dqn.Config(
                env="CartPole-v1", n_step=1, double=False, dueling=False, noisy=True, epsilon=0.2
            ),
            "epsilon=0.2 has no effect: noisy layers explore instead of epsilon",
        ),
        (
            c51.Config(env="CartPole-v1", dueling=False, n_step=1, value_bound=50),
            "differs from the paper, which has --no-double",
        ),
        (
            qr_dqn.Config(env="CartPole-v1", dueling=False, n_step=1, double=False, value_bound=50),
            "value_bound=50.0 has no effect: it bounds the atoms, and atoms is 1",
        ),
        (
            td3.Config(batch_size=100, replay_ratio=100),
            "differs from the paper, which has --learning-rate 0.001 --hidden 400,300",
        ),
        (
            sac.Config(prioritized_beta=0.5),
            "prioritized_beta=0.5 has no effect: prioritized_alpha is 0",
        ),
        (sac.Config(prioritized_alpha=0.5, prioritized_beta=0.5), ""),
        (
            sac.Config(sticky_actions=0.25),
            "sticky_actions=0.25 has no effect: env is not an Atari game",
        ),
        (
            a3c.Config(
                env="CartPole-v1",
                random_start=0,
                rollout_steps=5,
                entropy_coef=0.01,
                optimizer="adam",
                rmsprop_decay=0.9,
            ),
            "rmsprop_decay=0.9 has no effect: the optimizer is adam",
        ),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_settings_without_effect_and_deviations_from_the_paper_are_reported(
    given: Common, said: str
) -> None:
    assert "\n".join(given.remarks()) == said


@pytest.mark.parametrize("name", algorithms.ALGORITHMS)
def test_the_preset_paper_has_the_papers_settings(name: str) -> None:
    kind = algorithms.named(name).Config
    assert kind().unused().keys() <= {field.name for field in dataclasses.fields(kind)}
    config = kind(**kind.paper)
    assert not any("paper" in said for said in config.remarks())
    if hasattr(kind, "target_kl"):  # it is 0 then
        assert not any("target-kl" in said for said in kind(learning_rate=1e-4).remarks())


def test_a_whole_number_may_be_of_any_numeric_type() -> None:
    numbers: dict[str, Any] = {
        "total_steps": 1e6,
        "actors": np.int64(2),
        "anneal_steps": 2e3,
        "gamma": np.float32(0.5),
    }
    config = ppo.Config(**numbers)
    given = (config.total_steps, config.actors, config.anneal_steps, config.gamma)
    assert json.dumps(given) == "[1000000, 2, 2000, 0.5]"
    with pytest.raises(TrainingError, match=r"actors must be a whole number, not 1\.5"):
        ppo.Config(actors=1.5)  # type: ignore[arg-type]
    with pytest.raises(TrainingError, match="total_steps must be a number, not inf"):
        ppo.Config(total_steps=math.inf)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"actors": 0}, "actors must be at least 1, not 0"),
        ({"total_steps": -1}, "steps must be at least 0, not -1"),
        ({"gamma": 1.5}, "gamma must be from 0 to 1, not 1.5"),
        ({"image_size": 10}, "image_size must be at least 20, not 10"),
        ({"learning_rate": math.nan}, "learning_rate must be a number, not nan"),
        ({"actors": "many"}, "actors must be a number, not 'many'"),
        ({"epochs": True}, "epochs must be a number, not True"),
        ({"overlap": "no"}, "overlap must be True or False, not 'no'"),
        ({"precision": 3}, "precision must be a str, not 3"),
        ({"gamma": None}, "gamma must be a number, not None"),
        ({"seed": [1]}, r"seed must be a number, not \[1\]"),
    ],
)
def test_a_number_out_of_range_is_rejected_with_the_range(given: dict[str, Any], said: str) -> None:
    with pytest.raises(TrainingError, match=said):
        ppo.Config(**given)
    with pytest.raises(TrainingError, match=said):
        dataclasses.replace(ppo.Config(), **given)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"rho_bar": 0.5}, r"rho_bar \(0.5\) must be at least c_bar \(1.0\)"),
        ({"max_staleness": -1}, "max_staleness must be at least 0, not -1"),
        ({"max_staleness": "few"}, "max_staleness must be a number, not 'few'"),
        ({"actors": -1}, "actors must be at least 0, not -1"),
    ],
)
def test_an_algorithm_checks_its_own_fields_too(given: dict[str, Any], said: str) -> None:
    with pytest.raises(TrainingError, match=said):
        impala.Config(**given)


def test_the_bounds_are_inclusive_and_none_is_allowed_where_meaningful() -> None:
    assert ppo.Config(gamma=1.0, random_start=0, actors=1, total_steps=0).gamma == 1.0
    assert Common(target=None).target is None
    assert Common(target=-21.0).target == -21.0
    assert impala.Config(max_staleness=None, actors=0).max_staleness is None
    assert impala.Config(max_staleness=0).max_staleness == 0


@pytest.mark.parametrize(
    ("given", "progress"),
    [
        ({"total_steps": 1000}, [0, 0.25, 1, 1]),
        ({"minutes": 10}, [0, 0.1, 0.2, 1]),
        ({"total_steps": 2000, "minutes": 10}, [0, 0.125, 0.5, 1]),  # the earlier end counts
        ({"total_steps": 5000, "minutes": 10}, [0, 0.1, 0.2, 1]),
        ({"anneal_steps": 500}, [0, 0.5, 1, 1]),
        ({"anneal_steps": 0.5, "total_steps": 1000}, [0, 0.5, 1, 1]),
        ({"anneal_steps": 1, "total_steps": 1000}, [0, 1, 1, 1]),
        ({"anneal_steps": 10_000, "total_steps": 1000, "minutes": 1}, [0, 0.025, 0.1, 0.5]),
        ({"target": 18.0}, [0, 0.00025, 0.001, 0.005]),  # its length is unknown
    ],
    ids=str,
)
def test_a_schedule_has_the_length_of_the_run_or_of_anneal_steps(
    given: dict[str, Any], progress: list[float]
) -> None:
    config = ppo.Config(**given)
    at = [(0, 0.0), (250, 60.0), (1000, 120.0), (5000, 900.0)]  # steps, and seconds
    assert [config.progress(*now) for now in at] == pytest.approx(progress)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"explore_steps": 0}, "explore_steps must be a number of steps, or below 1 a fraction"),
        ({"anneal_steps": 1.5}, "anneal_steps must be a number of steps"),
        ({"explore_steps": 0.1, "minutes": 5}, "explore_steps=0.1 is a fraction of total_steps"),
        ({"anneal_steps": 0.5}, "anneal_steps=0.5 is a fraction of total_steps, which is 0"),
    ],
)
def test_a_schedule_without_a_length_is_rejected(given: dict[str, Any], said: str) -> None:
    with pytest.raises(TrainingError, match=said):
        dqn.Config(**given)


def test_exploration_lasts_for_a_fraction_of_the_run() -> None:
    config = dqn.Config(total_steps=10_000, explore_steps=0.2, learn_from=100, epsilon=0.0)
    assert config.epsilons_at(1_100).tolist() == pytest.approx([0.5] * config.envs_per_actor)
    steps = dqn.Config(explore_steps=1e6).explore_steps
    assert (steps, type(steps)) == (1_000_000, int)


@pytest.mark.parametrize(
    ("kind", "horizon"),
    [
        (ppo.Config, "1,000,000"),
        (sac.Config, "1,000,000"),
        (a2c.Config, "3,000,000"),
        (a3c.Config, "3,000,000"),
        (dqn.Config, "500,000"),
    ],
    ids=lambda given: given if isinstance(given, str) else given.__module__.rsplit(".")[-1],
)
def test_the_schedule_of_an_endless_run_has_its_documented_length(
    kind: type[Common], horizon: str
) -> None:
    (prose,) = [one.prose for one in settings.settings(kind) if one.name == "anneal_steps"]
    assert prose.endswith(f"none: the run's length, else {horizon}")
    assert kind().progress(int(horizon.replace(",", "")) // 4, seconds=1e9) == 0.25


def test_the_fields_of_atari_become_its_preprocessing() -> None:
    atari = Common(image_size=84, sticky_actions=0.25, life_loss_is_terminal=True).atari
    assert (atari.image_size, atari.sticky_actions, atari.life_loss_is_terminal) == (84, 0.25, True)


def test_device_auto_uses_a_gpu_if_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert device_of(ppo.Config(device="cpu")) == device_of(a3c.Config()) == torch.device("cpu")
    for there, kind in ((True, "cuda"), (False, "cpu")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda there=there: there)
        assert device_of(ppo.Config()).type == kind


@pytest.mark.parametrize(
    ("name", "count", "said"),
    [
        ("gpu", 1, "device must be auto, cpu, cuda or cuda:N, not 'gpu'"),
        ("mps", 1, "device must be auto, cpu, cuda or cuda:N, not 'mps'"),
        ("", 1, "device must be auto"),
        ("cuda", 0, "there is no cuda here: torch .* sees no GPU; use --device cpu"),
        ("cuda:0", 0, "there is no cuda:0 here"),
        ("cuda:1", 1, "there is no cuda:1 here: torch .* sees 1 GPU;"),
        ("cuda:7", 2, "sees 2 GPUs;"),
    ],
)
def test_a_missing_device_is_rejected_with_the_existing_ones(
    monkeypatch: pytest.MonkeyPatch, name: str, count: int, said: str
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    with pytest.raises(TrainingError, match=said):
        device_named(name)


def test_a_gpu_is_selected_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert device_named("cuda:1") == torch.device("cuda", 1)


@pytest.mark.parametrize("name", algorithms.ALGORITHMS)
def test_an_algorithm_without_learners_says_why_and_which_have_it(name: str) -> None:
    kind = algorithms.named(name).Config
    if name in ("a2c", "ppo", "pqn", "appo", "dqn", "c51", "qr_dqn", "rainbow"):
        assert kind(learners=2).processes == 2 * kind().actors + 1
        return
    with pytest.raises(
        TrainingError, match=f"^{name} has .*a2c, ppo, pqn, appo, dqn, c51, qr_dqn and rainbow can"
    ):
        kind(learners=2)


def test_another_default_without_prose_keeps_the_prose_and_the_bounds() -> None:
    @dataclasses.dataclass(frozen=True)
    class Mine(ppo.Config):
        gamma: float = 0.9
        actors: int = 7

    found = {setting.name: setting for setting in settings.settings(Mine)}
    assert found["gamma"].prose == "discount of a reward one step later"
    assert (found["gamma"].default, found["actors"].default) == (0.9, 7)
    assert list(found) == [setting.name for setting in settings.settings(ppo.Config)]
    with pytest.raises(TrainingError, match="gamma must be from 0 to 1, not 2"):
        Mine(gamma=2.0)


def test_an_unpickled_config_registers_its_environment() -> None:
    gymnasium.register("OfTheScript-v1", "tests.remotely_rl.toys:Counting")
    sent = pickle.dumps(Common(env="OfTheScript-v1"))
    del gymnasium.registry["OfTheScript-v1"]
    arrived = pickle.loads(sent)
    assert arrived == Common(env="OfTheScript-v1")
    with contextlib.closing(arrived.make_environments(2)) as envs:
        assert envs.num_envs == 2
    assert dataclasses.replace(arrived, env=toys.Counting).env is toys.Counting


DISCRETE, BOX = Discrete(2), Continuous((-1.0,), (1.0,), (1,))


@pytest.mark.parametrize(
    ("kind", "given", "actions", "said"),
    [
        (ppo.Config, {"log_std_start": -2.0}, DISCRETE, "log_std_start=-2.0 has no eff"),
        (ppo.Config, {"free_log_std": True}, DISCRETE, "free_log_std=True has no effect: the act"),
        (ppo.Config, {"free_log_std": True}, BOX, ""),
        (dqn.Config, {"anneal_updates": 5}, DISCRETE, "there is no n_step_start or gamma_start"),
        (dqn.Config, {"anneal_updates": 5, "n_step_start": 9}, DISCRETE, ""),
        (dqn.Config, {"epsilon_spread": 7.0, "envs_per_actor": 1}, DISCRETE, "has one environment"),
        (dqn.Config, {"epsilon_spread": 7.0}, DISCRETE, ""),
        (ga3c.Config, {"compile": True}, DISCRETE, "compile=True has no effect: trainers"),
    ],
)
def test_a_setting_without_effect_is_named(
    kind: Any, given: dict[str, Any], actions: Any, said: str
) -> None:
    remarks = [one for one in kind(**given).remarks(actions=actions) if "no effect" in one]
    assert len(remarks) == bool(said)
    assert said in "".join(remarks)
