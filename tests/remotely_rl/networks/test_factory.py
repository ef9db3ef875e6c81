"""Default networks, your own models, and errors for models that do not fit."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from remotely_rl import networks, trees
from remotely_rl.environments.observations import ObservationLeaf
from remotely_rl.errors import TrainingError
from remotely_rl.functions.distributions import ILLEGAL

BYTES, FLOATS = np.dtype(np.uint8), np.dtype(np.float32)


@pytest.mark.parametrize(
    ("shape", "dtype", "kind"),
    [
        ((4, 84, 84), BYTES, networks.NatureCNN),
        ((3, 64, 72), BYTES, networks.NatureCNN),
        ((4, 42, 42), BYTES, networks.SmallCNN),
        ((4,), FLOATS, networks.MLP),
        ((3, 8, 8), BYTES, networks.TinyCNN),
        ((3, 4, 4), BYTES, networks.MLP),
    ],
)
def test_the_default_network_fits_the_observations(
    shape: tuple[int, ...], dtype: np.dtype[Any], kind: type[nn.Module]
) -> None:
    model = networks.build(None, ObservationLeaf(shape, dtype), 6)
    assert type(model) is kind
    policy, value = model(torch.from_numpy(np.zeros((5, *shape), dtype)))
    assert policy.shape == (5, 6)
    assert value.shape == (5,)


def test_discrete_numbers_in_the_shape_of_an_image_have_embeddings() -> None:
    board = ObservationLeaf((2, 8, 8), np.dtype("int64"), (4,) * 128, (0,) * 128)

    model = networks.default_network(board, 3)

    assert not any(isinstance(part, nn.Conv2d) for part in model.modules())
    policy, _ = model(torch.randint(0, 4, (5, 2, 8, 8)))
    assert policy.shape == (5, 3)


def test_a_module_instance_is_copied() -> None:
    mine = networks.MLP((4,), 2)
    assert networks.build(mine, ObservationLeaf((4,), FLOATS), 2) is not mine


@pytest.mark.parametrize(
    ("shape", "dtype", "kind", "width"),
    [
        ((4, 42, 42), BYTES, networks.Recurrent, 16),
        ((3, 64, 64), BYTES, networks.Recurrent, 16),
        ((5,), FLOATS, networks.RecurrentMLP, 32),
    ],
)
def test_lstm_adds_an_lstm_before_the_heads(
    shape: tuple[int, ...], dtype: np.dtype[Any], kind: type[nn.Module], width: int
) -> None:
    model = networks.build(None, ObservationLeaf(shape, dtype), 6, networks.Architecture(lstm=8))
    assert type(model) is kind
    assert networks.is_recurrent(model)
    obs = torch.from_numpy(np.zeros((2, 3, *shape), dtype))
    begins = torch.ones(2, 3).bool()
    policy, value, state = networks.unroll(model, obs, networks.initial_state(model, 3), begins)
    assert policy.shape == (2, 3, 6)
    assert value.shape == (2, 3)
    assert state.shape == (3, width)


class NoValue(nn.Module):
    def __init__(self, shape: tuple[int, ...], outputs: int):
        super().__init__()
        self.layer = nn.Linear(shape[0], outputs)

    def forward(self, obs: Tensor) -> Tensor:
        return self.layer(obs)  # type: ignore[no-any-return]


class WideValue(NoValue):
    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        return self.layer(obs), self.layer(obs)[:, :1]


class TooFewActions(NoValue):
    def __init__(self, shape: tuple[int, ...], outputs: int):
        super().__init__(shape, outputs - 1)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        return self.layer(obs), self.layer(obs)[:, 0]


class OtherInput(WideValue):
    def __init__(self, shape: tuple[int, ...], outputs: int):
        super().__init__((9,), outputs)


class Forgetful(NoValue):
    """Claims to be recurrent, but returns no state."""

    def initial_state(self, count: int) -> Tensor:
        return torch.zeros(count, 7)

    def forward(  # type: ignore[override]
        self, obs: Tensor, state: Tensor, begins: Tensor
    ) -> tuple[Tensor, Tensor]:
        return self.layer(obs), self.layer(obs)[..., 0]


class OneStepOnly(Forgetful):
    def forward(  # type: ignore[override]
        self, obs: Tensor, state: Tensor, begins: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        return self.layer(obs)[0], self.layer(obs)[0, :, 0], state


class NoSequences(Forgetful):
    def forward(self, obs: Tensor) -> Tensor:  # type: ignore[override]
        return obs


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (
            NoValue,
            r"NoValue maps observations of shape \[2, 4\] \(float32\) to a Tensor; expected \(poli",
        ),
        (WideValue, r"\(policy \[2, 3\], value \[2, 1\]\); expected .*value \[2\]\)"),
        (TooFewActions, r"\(policy \[2, 2\], value \[2\]\); expected \(policy \[2, 3\]"),
        (OtherInput, r"OtherInput fails on observations of shape \[2, 4\] \(float32\)"),
        (lambda shape, outputs: "a model", "made a str, not a torch.nn.Module"),
        (
            Forgetful,
            r"to \(policy \[1, 2, 3\], value \[1, 2\]\); expected \(.*, state \[2, 7\]\)",
        ),
        (OneStepOnly, r"to \(policy \[2, 3\], value \[2\], state \[2, 7\]\); expected"),
        (NoSequences, r"NoSequences fails on observations .* takes 2 positional arguments"),
    ],
)
def test_a_model_that_does_not_fit_is_refused_with_expected_and_actual_shapes(
    model: Any, said: str
) -> None:
    with pytest.raises(TrainingError, match=said):
        networks.build(model, ObservationLeaf((4,), FLOATS), 3)


@pytest.mark.parametrize("own", [networks.MLP, networks.MLP((4,), 3)], ids=["class", "instance"])
def test_lstm_with_your_own_model_is_refused(own: networks.ModelSource) -> None:
    with pytest.raises(TrainingError, match=r"a model of your own has its own .* lstm at 0"):
        networks.build(own, ObservationLeaf((4,), FLOATS), 3, networks.Architecture(lstm=64))


def leaf(*shape: int, dtype: np.dtype[Any] = FLOATS) -> ObservationLeaf:
    return ObservationLeaf(shape, dtype)


NESTED = {
    "camera": {"image": leaf(3, 24, 30, dtype=BYTES)},
    "mode": ObservationLeaf((), np.dtype(np.int64), (4,), (2,)),
    "parts": (leaf(2), ObservationLeaf((2,), np.dtype(np.int64), (3, 5), (0, -1))),
}


def observed(spec: Any, rows: int) -> Any:
    """Random observations within a spec."""

    def of(one: ObservationLeaf) -> Tensor:
        if not one.counts:
            return torch.randint(200, (rows, *one.shape)).to(getattr(torch, one.dtype.name))
        low, high = torch.tensor(one.starts), torch.tensor(one.counts)
        return (low + torch.randint(1000, (rows, len(low))) % high).reshape(rows, *one.shape)

    return trees.map_tree(of, spec)


@pytest.mark.parametrize("units", [0, 8])
def test_the_policy_depends_on_every_leaf_of_a_nested_observation(units: int) -> None:
    torch.manual_seed(1)
    model = networks.build(None, NESTED, 6, networks.Architecture(lstm=units))
    obs = observed(NESTED, 7)
    sequence = trees.map_tree(lambda x: x[None], obs)
    begins, state = torch.ones(1, 7).bool(), networks.initial_state(model, 7)

    def policy(seen: Any) -> Tensor:
        out: Tensor = networks.unroll(model, seen, state, begins)[0]
        return out

    plain = policy(sequence)
    assert plain.shape == (1, 7, 6)
    for changed in range(len(trees.leaves(NESTED))):
        numbers = itertools.count()
        other = trees.map_tree(
            lambda x, y: y if next(numbers) == changed else x,  # noqa: B023 - called at once
            obs,
            observed(NESTED, 7),
        )
        assert not torch.equal(policy(trees.map_tree(lambda x: x[None], other)), plain), changed


def test_your_own_module_gets_nested_shapes_and_observations() -> None:
    class Mine(nn.Module):
        def __init__(self, shape: Any, outputs: int):
            super().__init__()
            assert shape["camera"]["image"] == (3, 24, 30)
            self.normalizer = networks.Normalizer(shape["parts"][0], of=("parts", 0))
            self.policy, self.value = nn.Linear(2, outputs), nn.Linear(2, 1)

        def forward(self, obs: Any) -> tuple[Tensor, Tensor]:
            assert obs["camera"]["image"].dtype == torch.uint8
            x = self.normalizer(obs["parts"][0])
            return self.policy(x), self.value(x).squeeze(-1)

    model = networks.build(Mine, NESTED, 6)
    obs = observed(NESTED, 9)
    networks.update_normalizers(model, obs, every=1)
    torch.testing.assert_close(model.normalizer.mean, obs["parts"][0].mean(0))


def test_a_normalizer_of_nested_observations_needs_of() -> None:
    model = nn.ModuleDict({"eyes": networks.Normalizer((2,))})
    with pytest.raises(TrainingError, match=r"'eyes' must say .* of=KEY, one of \['camera'\]"):
        networks.update_normalizers(model, observed(NESTED, 2))


@pytest.mark.parametrize("units", [0, 4])
def test_a_masked_policy_changes_only_illegal_actions(units: int) -> None:
    spec = {"observation": leaf(4), "action_mask": leaf(3, dtype=np.dtype(np.bool_))}
    model = networks.build(None, spec, 3, networks.Architecture(lstm=units))
    assert networks.is_recurrent(model) == bool(units)
    mask = torch.tensor([[True, False, True], [True, True, True]])
    obs = {"observation": torch.randn(1, 2, 4), "action_mask": mask[None]}
    state, begins = networks.initial_state(model, 2), torch.ones(1, 2).bool()
    policy, value, _ = networks.unroll(model, obs, state, begins)
    assert isinstance(model, networks.MaskedPolicy)
    inner, same, _ = networks.unroll(model.model, obs["observation"], state, begins)
    assert policy[0, 0, 1] == ILLEGAL
    assert torch.equal(policy[0][mask], inner[0][mask])
    assert torch.equal(value, same)


def test_the_error_for_too_few_outputs_says_what_they_are() -> None:
    with pytest.raises(TrainingError, match=r"expected \(policy \[2, 3\].*\(3 is 1 for a, 2 for b"):
        networks.build(TooFewActions, leaf(4), 3, outputs_are="1 for a, 2 for b")
