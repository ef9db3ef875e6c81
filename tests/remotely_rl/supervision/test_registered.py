"""Tests of makers of environments whose ids other processes do not know."""

import gymnasium
import pytest

from remotely_rl.supervision.vector import maker_of, spec_of


def test_a_maker_does_not_need_the_registration_of_its_id() -> None:
    gymnasium.register("Passing-v0", "gymnasium.envs.classic_control:CartPoleEnv")
    make = maker_of("Passing-v0", {"render_mode": "rgb_array"})
    del gymnasium.registry["Passing-v0"]
    env = make()
    assert env.spec is not None
    assert env.spec.id == "Passing-v0"
    assert env.render_mode == "rgb_array"


def test_the_module_of_an_id_is_imported() -> None:
    assert spec_of("tests.remotely_rl.registered:Registered-v0").id == "Registered-v0"


def test_an_unknown_id_or_module_raises() -> None:
    with pytest.raises(gymnasium.error.NameNotFound, match="CartPole"):
        spec_of("CartPale-v1")
    with pytest.raises(ImportError, match="no_such_module"):
        spec_of("no_such_module:Env-v0")
