"""Architectures: layers, activations, convolutions, and the input layer."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from remotely_rl import algorithms, networks, ppo, sac, trees
from remotely_rl.environments.action_spaces import Composite, Continuous, Discrete
from remotely_rl.environments.observations import ObservationLeaf
from remotely_rl.errors import TrainingError
from remotely_rl.functions.distributions import gaussian_parameters
from remotely_rl.networks import Architecture
from remotely_rl.networks.architecture import NETWORKS
from remotely_rl.networks.cnn import CNNS

BYTES, FLOATS = np.dtype(np.uint8), np.dtype(np.float32)
VECTOR, IMAGE = ObservationLeaf((4,), FLOATS), ObservationLeaf((3, 40, 40), BYTES)
NESTED = {"eye": IMAGE, "speed": VECTOR}
BOX = Continuous((-1.0, -1.0), (1.0, 1.0), (2,))


def widths(model: nn.Module) -> list[int]:
    return [part.out_features for part in model.modules() if isinstance(part, nn.Linear)]


def answers(model: nn.Module, spec: Any, rows: int = 3) -> torch.Tensor:
    """The policy [rows, outputs] for zeros."""
    obs = trees.map_tree(
        lambda leaf: torch.from_numpy(np.zeros((1, rows, *leaf.shape), leaf.dtype)), spec
    )
    memory, begins = networks.initial_state(model, rows), torch.ones(1, rows).bool()
    policy: torch.Tensor = networks.unroll(model, obs, memory, begins)[0][0]
    return policy


@pytest.mark.parametrize(
    ("spec", "given", "expected"),
    [
        (VECTOR, {"hidden": (9, 7, 5)}, [9, 7, 5, 9, 7, 5, 6, 1]),
        (VECTOR, {"hidden": ()}, [6, 1]),
        (VECTOR, {"hidden": (9,), "lstm": 8}, [9, 9, 6, 1]),
        (IMAGE, {"hidden": (9, 7)}, [9, 7, 6, 1]),
        (IMAGE, {"hidden": (), "network": "nature"}, [6, 1]),
        (IMAGE, {"hidden": (9,), "lstm": 8}, [9, 6, 1]),
        (IMAGE, {"network": "mlp"}, [64, 64, 64, 64, 6, 1]),
        (NESTED, {"hidden": (9,)}, [256, 9, 9, 6, 1]),
        (NESTED, {"hidden": (9,), "network": "mlp"}, [9, 9, 6, 1]),
    ],
)
def test_hidden_layers_come_before_the_heads_of_every_network(
    spec: Any, given: dict[str, Any], expected: list[int]
) -> None:
    model = networks.build(None, spec, 6, Architecture(**given))
    assert widths(model) == expected


@pytest.mark.parametrize("spec", [VECTOR, IMAGE, NESTED], ids=["vector", "image", "nested"])
@pytest.mark.parametrize("name", ["ppo", "dqn", "sac"])
def test_the_activation_applies_to_all_layers(name: str, spec: Any) -> None:
    config = algorithms.named(name).Config(activation="silu", hidden="8,8")
    model = config.make_model(None, spec, BOX if name == "sac" else Discrete(3))
    kinds = {type(part) for part in model.modules()}
    assert nn.SiLU in kinds
    assert not kinds & {nn.ReLU, nn.Tanh, nn.ELU}


@pytest.mark.parametrize("name", CNNS)
def test_a_network_by_name_is_used_for_images_of_any_size(name: str) -> None:
    assert type(networks.build(None, IMAGE, 6, Architecture(network=name))) is CNNS[name]
    nested = networks.build(None, NESTED, 6, Architecture(network=name))
    of_name = CNNS[name].convolutions(3).state_dict()
    kernels = [value.shape for value in nested.state_dict().values() if value.dim() == 4]
    assert kernels == [value.shape for value in of_name.values() if value.dim() == 4]


def test_every_cnn_is_a_choice_of_network() -> None:
    assert set(NETWORKS) == {"auto", "mlp", *CNNS}


@pytest.mark.parametrize(
    ("spec", "network", "said"),
    [
        (VECTOR, "resnet", "network=resnet is for images, and the observations have none"),
        (
            ObservationLeaf((3, 20, 40), BYTES),
            "nature",
            "sides of at least 36, and these have 20x40",
        ),
    ],
)
@pytest.mark.parametrize("name", ["ppo", "dqn", "sac"])
def test_a_network_that_does_not_fit_the_observations_is_refused(
    name: str, spec: Any, network: str, said: str
) -> None:
    config = algorithms.named(name).Config(network=network)
    with pytest.raises(TrainingError, match=said):
        config.make_model(None, spec, BOX if name == "sac" else Discrete(3))


@pytest.mark.parametrize(
    ("hidden", "units"),
    [
        ("256,128", "256,128"),
        (" 64, 64 ", "64,64"),
        ((8, 4), "8,4"),
        ([8, 4], "8,4"),
        (32, "32"),
        ("", ""),
        (None, None),
    ],
)
def test_hidden_is_normalized_to_a_string(hidden: Any, units: Any) -> None:
    assert ppo.Config(hidden=hidden).hidden == units


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"hidden": "256,x"}, "must be the units of each layer, such as 256,256, not '256,x'"),
        ({"hidden": "256,0"}, "hidden must be the units of each layer"),
        ({"hidden": "256,"}, "hidden must be the units of each layer"),
        ({"hidden": (1.5,)}, "hidden must be the units of each layer"),
        (
            {"activation": "relo"},
            "activation must be tanh, relu, elu, silu, not 'relo', did you mean 'relu'",
        ),
        ({"activation": 3}, "activation must be"),
        ({"network": "resnt"}, "network must be auto, .*, did you mean 'resnet'"),
        ({"log_std_start": 3.0}, "log_std_start must be from -5 to 2, not 3"),
    ],
)
def test_invalid_architectures_are_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(TrainingError, match=said):
        ppo.Config(**given)


@pytest.mark.parametrize("spec", [VECTOR, IMAGE, NESTED], ids=["vector", "image", "nested"])
@pytest.mark.parametrize("given", [{}, {"lstm": 4}], ids=str)
def test_without_normalization_inputs_are_unchanged_and_bytes_divided_by_255(
    spec: Any, given: dict[str, Any]
) -> None:
    model = networks.build(None, spec, 6, Architecture(normalizes=False, **given))
    assert not networks.has_normalizer(model)
    assert not networks.statistics_of(model)
    scaler = networks.Scaler()
    assert scaler(torch.tensor([[0, 51, 255]], dtype=torch.uint8)).tolist() == [
        pytest.approx([0.0, 0.2, 1.0])
    ]
    assert scaler(torch.tensor([[-3.0, 40.0]])).tolist() == [[-3.0, 40.0]]


@pytest.mark.parametrize("name", ["a2c", "ppo", "impala", "appo", "ga3c", "a3c", "sac"])
@pytest.mark.parametrize("log_std", [-2.0, -1.0, 0.5])
def test_a_continuous_policy_starts_at_log_std_start(name: str, log_std: float) -> None:
    kind = algorithms.named(name).Config
    memories = ({}, {"lstm": 4}) if hasattr(kind, "lstm") else ({},)
    for memory in memories:
        config = kind(log_std_start=log_std, **memory)
        policy = answers(config.make_model(None, VECTOR, BOX), VECTOR)
        mean, log_stds = gaussian_parameters(policy)
        torch.testing.assert_close(log_stds, torch.full((3, 2), log_std), atol=0.05, rtol=0)
        torch.testing.assert_close(mean, torch.zeros(3, 2), atol=0.05, rtol=0)


@pytest.mark.parametrize("given", [{}, {"lstm": 4}], ids=str)
def test_free_log_stds_are_the_same_in_every_state(given: dict[str, Any]) -> None:
    actions = Composite((Discrete(3), BOX), ("which", "where"))
    model = ppo.Config(free_log_std=True, **given).make_model(None, VECTOR, actions)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    seen = torch.randn(1, 5, 4)
    state, begins = networks.initial_state(model, 5), torch.ones(1, 5).bool()
    policy = networks.unroll(model, seen, state, begins)[0][0]
    depends = (policy != policy[0]).any(0)
    assert depends.tolist() == [True] * 5 + [False] * 2  # logits and means, then log deviations
    policy[:, -2:].sum().backward()  # type: ignore[no-untyped-call]
    head: Any = model.policy
    assert head.bias.grad.tolist() == [0.0] * 5 + [5.0] * 2
    assert head.weight.grad.abs().sum() == 0


def test_parameters_without_free_log_stds_do_not_load_as_parameters_with_them() -> None:
    plain, free = (
        ppo.Config(free_log_std=each).make_model(None, VECTOR, BOX) for each in (False, True)
    )
    with pytest.raises(RuntimeError, match=r"policy\.depends"):
        free.load_state_dict(plain.state_dict())


def test_architecture_settings_have_no_effect_on_your_own_model() -> None:
    given = {"hidden": "8", "activation": "elu", "log_std_start": -2.0}
    said = ppo.Config(**given).remarks(is_own_model=True)  # type: ignore[arg-type]
    assert [
        f"{name}={value} has no effect: the model is your own" for name, value in given.items()
    ] == [line for line in said if "has no effect" in line]
    said = sac.Config(**given).remarks(is_own_model=True)  # type: ignore[arg-type]
    assert [line for line in said if "has no effect" in line] == [
        "log_std_start=-2.0 has no effect: the model is your own"
    ]  # the others apply to the critics
