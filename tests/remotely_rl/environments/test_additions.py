"""Arguments and wrappers of environments: their checks, copies and stored text."""

import functools
import json
import math
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.wrappers import TimeAwareObservation, TimeLimit

from remotely_rl import TrainingError, environments, ppo, settings
from remotely_rl.environments import additions
from remotely_rl.runs import run_folder, training
from tests.remotely_rl import toys, wrapping_toys
from tests.remotely_rl.wrapping_toys import Half

HERE = Path(wrapping_toys.__file__)
TIME_AWARE = "gymnasium.wrappers:TimeAwareObservation"


class Mutable(toys.Counting):
    """An environment that changes the list it receives."""

    def __init__(self, parts: Any = (), *, length: int = 3):
        super().__init__(length)
        self.had = list(parts)
        if isinstance(parts, list):
            parts.append("changed")


def test_arguments_reach_environments_from_every_source() -> None:
    with_length = environments.make("CartPole-v1", 1, kwargs={"max_episode_steps": 7})
    assert with_length.vector.envs[0].spec.max_episode_steps == 7
    assert environments.make(Mutable, 1, kwargs={"length": 9}).vector.envs[0].length == 9
    many = environments.make("ALE/Pong-v5", 1, kwargs={"full_action_space": True})
    assert many.actions.outputs == 18
    assert environments.make(toys.counting_vector, 2).num_envs == 2


def test_environments_and_configs_copy_the_arguments() -> None:
    parts = ["one"]
    config = ppo.Config(env=Mutable, env_kwargs={"parts": parts})
    parts.append("later")
    made = config.make_environments(2)
    assert [env.had for env in made.vector.envs] == [["one"], ["one"]]
    assert config.env_kwargs == {"parts": ["one"]}


@pytest.mark.parametrize(
    ("env", "given", "said"),
    [
        ("CartPole-v1", {"sutton": True}, "no argument 'sutton'; it takes sutton_barto_reward"),
        ("ALE/Pong-v5", {"img_height": 84}, "takes no argument 'img_height'; it takes full_action"),
        (Mutable, {"lenght": 3}, "it takes parts, length, did you mean 'length'"),
        (toys.counting_vector, {"size": 3}, "counting_vector takes no argument 'size'"),
    ],
)
def test_an_unknown_argument_is_rejected_with_the_known_ones(
    env: Any, given: dict[str, Any], said: str
) -> None:
    with pytest.raises(TrainingError, match=said):
        ppo.Config(env=env, env_kwargs=given).check_run()


def test_wrappers_are_applied_to_each_environment_the_first_innermost() -> None:
    config = ppo.Config(env="CartPole-v1", wrappers=[Half, TIME_AWARE])
    made = config.make_environments(2)
    for env in made.vector.envs:
        assert isinstance(env, TimeAwareObservation)
        assert isinstance(env.env, Half)
    assert made.space.shape == (5,)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            [wrapping_toys.needs_more],
            (
                "the wrapper needs_more is called with only an environment:"
                " missing a required argument: 'size'"
            ),
        ),
        ([3], "a wrapper is a class or a function of an environment, not a int"),
        (Half, "wrappers must be a list of wrappers"),
        ("gymnasium.wrappers:TimeLimit", "wrappers must be a list"),
        (["gymnasium.wrappers:TimeAware"], "gymnasium.wrappers has nothing called 'TimeAware'"),
        (["no_such_module:Half"], "the wrapper no_such_module:Half cannot be imported"),
        (["Half"], "named by module:NAME or FILE.py:NAME, not by 'Half'"),
        ([f"{HERE}:Halve"], "wrapping_toys.py has nothing called 'Halve'"),
        ([f"{HERE}:Half(0.25)"], "arguments of a wrapper are NAME=VALUE, with Python literals"),
    ],
)
def test_an_invalid_wrapper_is_rejected_before_a_run(given: Any, said: str) -> None:
    with pytest.raises(TrainingError, match=said):
        ppo.Config(wrappers=given)


def test_a_wrapper_that_returns_no_environment_is_named() -> None:
    config = ppo.Config(env="CartPole-v1", wrappers=[wrapping_toys.nothing])  # type: ignore[list-item]
    with pytest.raises(TrainingError, match="the wrapper nothing returned a NoneType; expected a"):
        config.make_environments(1)


@pytest.mark.parametrize("env", ["ALE/Pong-v5", toys.counting_vector])
def test_environments_that_step_as_one_reject_wrappers(env: Any) -> None:
    with pytest.raises(TrainingError, match=r"makes and wraps|wrap them there"):
        ppo.Config(env=env, wrappers=[Half]).check_run()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (50, "50"),
        (0.5, "0.5"),
        (True, "True"),
        (None, "None"),
        ("rgb_array", "rgb_array"),
        ("50", "'50'"),
        ((0.2, 1.0), "(0.2, 1.0)"),
        ([1], "[1]"),
        ({"a": (1,)}, "{'a': (1,)}"),
        (np.zeros(2), None),
        (Half, None),
    ],
)
def test_an_argument_is_stored_in_the_syntax_of_the_command_line(value: Any, text: Any) -> None:
    assert settings.text_of(value) == text
    if text is not None:
        assert repr(settings.literal(text)) == repr(value)


@pytest.mark.parametrize(
    ("wrapper", "word"),
    [
        (TimeAwareObservation, "gymnasium.wrappers.stateful_observation:TimeAwareObservation"),
        (
            functools.partial(TimeLimit, max_episode_steps=5),
            "gymnasium.wrappers.common:TimeLimit(max_episode_steps=5)",
        ),
        (Half, "tests.remotely_rl.wrapping_toys:Half"),
        (functools.partial(Half, part=math.inf), None),
        (functools.partial(lambda env: env), None),
        (lambda env: env, None),
    ],
)
def test_a_wrapper_is_stored_as_a_reference(wrapper: Any, word: str | None) -> None:
    assert additions.reference_to(wrapper) == word
    if word is not None:
        found = additions.resolve(word)
        assert additions.reference_to(found) == word


def test_a_wrapper_in_a_users_file_is_stored_by_file(tmp_path: Path) -> None:
    file = tmp_path / "wrap_by_file.py"
    file.write_text(HERE.read_text())
    wrapper = additions.resolve(f"{file}:Half(part=0.25)")
    assert additions.reference_to(wrapper) == f"{file}:Half(part=0.25)"
    assert wrapper(gymnasium.make("CartPole-v1")).part == 0.25


def kept(config: Any, folder: Path, given: dict[str, Any] | None = None) -> Any:
    run_folder.write(run_folder.RunFolder(folder), "ppo", config)
    return training.config_of(ppo.Config, "ppo", folder, given)


def test_a_run_folder_stores_arguments_and_wrappers(tmp_path: Path) -> None:
    arguments = {"size": 3, "name": "50", "range": (0.2, 1.0), "deep": {"a": [1.5, None]}}
    wrappers = (Half, functools.partial(TimeLimit, max_episode_steps=5))
    config = kept(ppo.Config(env_kwargs=arguments, wrappers=wrappers), tmp_path)
    assert config.env_kwargs == arguments
    assert config.wrappers[0] is Half
    assert (config.wrappers[1].func, config.wrappers[1].keywords) == (
        TimeLimit,
        {"max_episode_steps": 5},
    )


def test_arguments_given_later_are_added_to_those_of_the_run(tmp_path: Path) -> None:
    config = ppo.Config(env_kwargs={"a": 1, "b": 2}, wrappers=[Half])
    later = kept(config, tmp_path, {"env_kwargs": {"b": 3, "c": 4}, "wrappers": [TIME_AWARE]})
    assert later.env_kwargs == {"a": 1, "b": 3, "c": 4}
    assert later.wrappers == (TimeAwareObservation,)


def test_what_a_folder_cannot_store_is_reported_and_required_on_resume(tmp_path: Path) -> None:
    config = ppo.Config(env_kwargs={"start": np.zeros(2), "b": 2}, wrappers=[lambda env: env])
    assert any("cannot keep start=array" in said for said in run_folder.remarks(config))
    with pytest.raises(TrainingError, match=r"trained with env_kwargs that .* pass them again"):
        kept(config, tmp_path)
    with pytest.raises(TrainingError, match=r"wrappers that a run folder cannot keep: .*<lambda>"):
        kept(config, tmp_path, {"env_kwargs": {"start": 1}})
    again = kept(config, tmp_path, {"env_kwargs": {"start": 1}, "wrappers": [Half]})
    assert (again.env_kwargs, again.wrappers) == ({"start": 1, "b": 2}, (Half,))


def test_a_wrapper_of_a_file_in_the_run_folder_is_not_executed(tmp_path: Path) -> None:
    file = tmp_path / "trap.py"
    file.write_text("raise SystemExit")
    (tmp_path / "config.json").write_text(
        json.dumps({"algorithm": "ppo", "config": {"env": "x", "wrappers": [f"{file}:Trap"]}})
    )
    with pytest.raises(TrainingError, match="code in the folder of a run is not executed"):
        training.config_of(ppo.Config, "ppo", tmp_path)
