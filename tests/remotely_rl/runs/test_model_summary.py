"""What a run says of its network: the layers, the size, and images that nobody sees as such."""

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from torch import nn

from remotely_rl import a2c, environments, networks, sac
from remotely_rl.runs import progress
from tests.remotely_rl import space_toys, toys


def said(
    space: gymnasium.Space[Any], units: int = 0, maker: networks.ModelSource | None = None
) -> Any:
    envs = environments.make(lambda: toys.Blank(space), 1)
    outputs = envs.actions.outputs
    model = networks.build(maker, envs.spec, outputs, units)
    size = sum(parameter.numel() for parameter in model.parameters())
    first, *rest = progress.summary(model, envs)
    assert f"; {size:,} parameters; sees " in first
    return first.replace(f" {size:,} parameters;", ""), rest


def image(*shape: int, dtype: Any = np.uint8) -> Box:
    return Box(0, 1, shape, dtype)


@pytest.mark.parametrize(
    ("space", "units", "line"),
    [
        (
            image(4, 84, 84), 64,
            "model: 3 convolutions, 512; LSTM 64; sees images of 4 channels, 84x84",
        ),
        (
            image(42, 42, 12, dtype=np.float32), 0,
            "model: 2 convolutions, 256; sees images of 12 channels, which came last, 42x42",
        ),
        (Box(-1, 1, (3,)), 0, "model: MLP, 64, 64; as much for the value; sees 3 numbers"),
        (
            Box(-1, 1, (3, 2)), 8,
            "model: MLP, 64, 64; LSTM 8; as much for the value; sees 3x2, flattened to 6 numbers",
        ),
        (
            Discrete(5), 0,
            "model: MLP, 64, 64; as much for the value; sees one of 5",
        ),
    ],
)  # fmt: skip
def test_the_layers_and_what_they_see_are_said_in_a_line(
    space: gymnasium.Space[Any], units: int, line: str
) -> None:
    assert said(space, units) == (line, [])


@pytest.mark.parametrize(
    ("space", "line"),
    [
        (
            Dict({"camera": image(30, 30, 3), "speed": Box(0, 1, (1,))}),
            (
                "model: 2 convolutions, 256, 64, 64; as much for the value; sees a Dict of"
                " ['camera'] images of 3 channels, 30x30, ['speed'] 1 number"
            ),
        ),
        (
            image(4, 20, 20, 3),  # a stack of pictures
            "model: 2 convolutions, 256; sees images of 12 channels, which came last, 20x20",
        ),
        (
            image(64, 64),
            (
                "model: 3 convolutions, 256, 64, 64; as much for the value; sees images of 1"
                " channel, 64x64"
            ),
        ),
        (
            Tuple([MultiDiscrete([3, 3, 4]), MultiBinary(2)]),
            (
                "model: MLP, 64, 64; as much for the value; sees a Tuple of [0] 3 numbers, each"
                " one of 3 or 4, [1] 2 numbers"
            ),
        ),
    ],
    ids=["Dict", "stack", "gray", "Tuple"],
)
def test_each_part_of_what_is_seen_is_said(space: gymnasium.Space[Any], line: str) -> None:
    assert said(space) == (line, [])


def test_of_images_that_no_convolution_sees_a_run_says_so() -> None:
    line, (warning,) = said(image(6, 30, 30, 7))  # seven frames of six channels, perhaps
    assert line.startswith("model: MLP")
    assert "flattened to" in line
    assert warning.startswith("no convolutions see the images in it")


def test_of_a_policy_with_critics_the_layers_of_the_policy_are_said() -> None:
    envs = environments.make(toys.Aim, 1)
    model = sac.Config(hidden_units=16).make_model(None, envs.spec, envs.actions)
    (line,) = progress.summary(model, envs)
    assert line.startswith("model: MLP, 16, 16; ")
    assert line.endswith("; sees 1 number")


def test_that_illegal_actions_are_masked_is_said() -> None:
    envs = environments.make(space_toys.Masked, 1)
    envs.reset(1)
    model = networks.build(None, envs.spec, envs.actions.outputs)
    (line,) = progress.summary(model, envs)
    assert line.endswith("sees 1 number; illegal actions are masked")


class Own(nn.Module):
    def __init__(self, shape: Any, outputs: int):
        super().__init__()
        self.inner = networks.SmallCNN(shape["camera"], outputs)

    def forward(self, obs: Any) -> Any:
        return self.inner(obs["camera"])


def test_of_a_model_of_ones_own_the_name_is_said_and_no_advice_given() -> None:
    line, rest = said(Dict({"camera": image(30, 30, 3)}), maker=Own)
    assert line == "model: Own; sees a Dict of ['camera'] images of 3 channels, 30x30"
    assert not rest


@pytest.mark.usefixtures("local", "no_curve")
def test_a_run_says_it_at_the_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = a2c.Config(env=toys.Guess, actors=1, envs_per_actor=2, random_start=0, total_steps=1)
    a2c.train(config, run=tmp_path / "run")
    _, second, *_ = capsys.readouterr().out.splitlines()
    # Twice (2 + 1) * 64 and 65 * 64, and heads of 65 * 2 and 65.
    assert second == ("model: MLP, 64, 64; as much for the value; 8,899 parameters; sees 2 numbers")
