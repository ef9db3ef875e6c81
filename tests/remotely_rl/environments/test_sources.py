"""Sources of environments, and the errors of invalid ones."""

import functools
from typing import Any

import pytest
from gymnasium import spaces

from remotely_rl import environments
from remotely_rl.errors import TrainingError
from tests.remotely_rl import toys


def test_a_users_vector_environment_is_used_as_it_is() -> None:
    envs = environments.make(toys.counting_vector, 3)
    assert envs.num_envs == 3
    assert envs.reset(1).shape == (3, 1)


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("pong", "ALE/Pong-v5"),
        ("ALE/Ponk-v5", "ALE/Pong-v5"),
        ("CartPole-v2", "CartPole-v1"),
        ("cartpole", "CartPole-v1"),
    ],
)
def test_an_unknown_id_suggests_the_nearest(wrong: str, right: str) -> None:
    with pytest.raises(TrainingError, match=f"no environment is called '{wrong}', did you mean"):
        environments.make(wrong, 1)
    with pytest.raises(TrainingError, match=right):
        environments.make(wrong, 1)


def test_unsupported_action_spaces_are_rejected() -> None:
    class Both(toys.Counting):
        action_space = spaces.Tuple([spaces.Discrete(2), spaces.Text(5)])

    with pytest.raises(TrainingError, match=r"action\[1\] is Text\(.*supported are Discrete"):
        environments.make(Both, 1)


def test_a_missing_package_of_an_environment_is_named() -> None:
    with pytest.raises(TrainingError, match="cannot make 'no_such_module:Env-v0'"):
        environments.make("no_such_module:Env-v0", 1)


def test_a_name_in_a_module_is_told_from_an_id() -> None:
    word = f"{toys.__name__}:Counting"
    with pytest.raises(
        TrainingError, match=r"Counting is not an id but in .*toys.py: --env .*, or"
    ):
        environments.make(word, 1)


class Sized(toys.Counting):
    def __init__(self, size: Any, kind: type | None = None):
        super().__init__(size)


def test_the_name_of_a_partial_has_its_arguments() -> None:
    assert environments.name_of(Sized) == "Sized"
    given = functools.partial(functools.partial(Sized, 5), kind=toys.Counting)
    assert environments.name_of(given) == "Sized(5, kind=Counting)"
    again = functools.partial(Sized, object())
    assert environments.name_of(again) == environments.name_of(functools.partial(Sized, object()))


def test_a_source_that_needs_arguments_is_rejected_with_a_hint() -> None:
    with pytest.raises(TrainingError, match=r"missing a required argument: 'size'; pass functool"):
        environments.make(Sized, 1)
    assert environments.make(functools.partial(Sized, 5), 1).num_envs == 1
    with pytest.raises(TrainingError, match="env is of type Counting: pass an id, or a class or f"):
        environments.make(toys.Counting(), 1)  # type: ignore[arg-type]


def test_a_callable_that_returns_no_environment_is_rejected() -> None:
    with pytest.raises(TrainingError, match=r"dict returned a dict; expected a gymnasium\.Env"):
        environments.make(dict, 1)
    with pytest.raises(TrainingError, match=r"expected a gymnasium\.vector\.VectorEnv"):
        environments.make(lambda num_envs: toys.Counting(), 2)
