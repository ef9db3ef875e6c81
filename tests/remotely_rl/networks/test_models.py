"""Networks, with a memory and without, and what is said of one that does not fit."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from remotely_rl.errors import TrainingError
from remotely_rl.networks import models
from tests.remotely_rl import toys

BYTES, FLOATS = np.dtype(np.uint8), np.dtype(np.float32)


@pytest.mark.parametrize(
    ("shape", "dtype", "kind"),
    [
        ((4, 84, 84), BYTES, models.NatureCNN),
        ((3, 64, 72), BYTES, models.NatureCNN),
        ((4, 42, 42), BYTES, models.SmallCNN),
        ((4,), FLOATS, models.MLP),
        ((3, 5, 5), BYTES, models.MLP),
    ],
)
def test_the_network_that_fits_the_observations_is_chosen(
    shape: tuple[int, ...], dtype: np.dtype[Any], kind: type[nn.Module]
) -> None:
    model = models.build(None, shape, dtype, 6)
    assert type(model) is kind
    policy, value = model(torch.from_numpy(np.zeros((5, *shape), dtype)))
    assert policy.shape == (5, 6)
    assert value.shape == (5,)


@pytest.mark.parametrize("shape", [(4, 42, 42), (1, 20, 31)])
def test_the_residual_network_takes_images_of_any_size(shape: tuple[int, ...]) -> None:
    model = models.build(models.ResNet, shape, BYTES, 6)
    policy, value = model(torch.zeros(3, *shape, dtype=torch.uint8))
    assert (policy.shape, value.shape) == ((3, 6), (3,))


def test_the_residual_network_has_the_fifteen_convolutions_of_the_paper() -> None:
    model = models.ResNet((4, 42, 42), 6)
    convolutions = [part for part in model.modules() if isinstance(part, nn.Conv2d)]
    assert len(convolutions) == 15
    parameters = sum(parameter.numel() for parameter in model.parameters())
    # A stage: one convolution from what comes in, four of its own width.
    stages = [(4, 16), (16, 32), (32, 32)]
    each = [(n * 9 + 1) * m + 4 * (m * 9 + 1) * m for n, m in stages]
    assert parameters == sum(each) + (32 * 6 * 6 + 1) * 256 + 257 * (6 + 1)


def test_a_new_policy_is_close_to_uniform() -> None:
    model = models.SmallCNN((4, 42, 42), 6)
    obs = torch.randint(0, 256, (8, 4, 42, 42), dtype=torch.uint8)
    with torch.no_grad():
        policy, _ = model(obs)
    assert (policy.softmax(-1) - 1 / 6).abs().max() < 0.05


def normaliser(mean: list[float], deviation: list[float], *shape: int) -> models.Normaliser:
    """One that has counted so much that its statistics are these."""
    made = models.Normaliser(shape or (len(mean),))
    made.mean.copy_(torch.tensor(mean).view_as(made.mean))
    made.variance.copy_(torch.tensor(deviation).square().view_as(made.variance))
    return made


def test_coordinates_of_all_units_are_seen_in_their_own_deviations() -> None:
    # MountainCar's position and velocity, and a pressure in pascals.
    sees = normaliser([-0.5, 0.0, 100_000.0], [0.1, 0.007, 50.0])
    seen = sees(torch.tensor([[-0.3, 0.014, 100_100.0]]))
    # The floor is 0.00001 of the mean: (0.2 / 0.100005, 0.014 / 0.007, 100 / 51).
    torch.testing.assert_close(seen, torch.tensor([[1.9999, 2.0, 1.9608]]), atol=2e-3, rtol=0)


def test_what_float32_cannot_tell_apart_is_not_blown_up() -> None:
    sees = normaliser([1000.0, 0.0], [0.0, 0.0])
    seen = sees(torch.tensor([[1000.0001, 0.0]]))  # a rounding of 1000, and a constant 0
    assert seen.abs().max() <= 0.02


def test_bytes_have_a_floor_in_units_of_their_range() -> None:
    sees = normaliser([0.2, 0.0], [0.22, 0.0])
    seen = sees(torch.tensor([[102, 51]], dtype=torch.uint8))  # 0.4 and 0.2 of 255
    torch.testing.assert_close(seen, torch.tensor([[0.2 / 0.25, 0.2 / 0.03]]))


def test_pixels_of_floats_have_a_floor_in_units_of_their_image() -> None:
    sees = normaliser([0.5, 0.5], [0.3, 0.0], 1, 1, 2)
    seen = sees(torch.tensor([0.8, 0.6]).view(1, 1, 1, 2)).flatten()
    floor = 0.1 * (0.09 / 2) ** 0.5  # 0.021
    torch.testing.assert_close(seen, torch.tensor([0.3 / (0.3 + floor), 0.1 / floor]))


def test_the_normaliser_learns_the_mean_and_deviation_of_all_batches_together() -> None:
    torch.manual_seed(0)
    normaliser = models.Normaliser((2,))
    seen = torch.randn(300, 2) * torch.tensor([3.0, 0.5]) + torch.tensor([7.0, -1.0])
    for batch in torch.split(seen, [10, 90, 200]):
        normaliser.count_in(batch)
    torch.testing.assert_close(normaliser.mean, seen.mean(0))
    torch.testing.assert_close(normaliser.variance, seen.var(0, unbiased=False))
    normal = normaliser(seen)
    torch.testing.assert_close(normal.mean(0), torch.zeros(2), atol=1e-4, rtol=0)


def test_old_batches_fade_once_the_horizon_is_reached() -> None:
    normaliser = models.Normaliser((1,), horizon=100)
    normaliser.count_in(torch.zeros(1000, 1))
    assert normaliser.count.item() == 100
    normaliser.count_in(torch.ones(100, 1))
    assert normaliser.mean.item() == pytest.approx(0.5)  # a hundred of each, as it were


@pytest.mark.parametrize("mode", [True, False], ids=["train", "eval"])
def test_being_asked_counts_nothing_in_whether_it_learns_or_acts(mode: bool) -> None:
    model = toys.network().train(mode)
    before = toys.weights(model)
    model(torch.randn(50, 2))
    assert torch.equal(toys.weights(model), before)


def test_what_is_counted_in_reaches_every_normaliser_one_row_in_seven() -> None:
    model = models.with_memory((2,), 3, units=4)
    obs = torch.arange(28.0).view(14, 2)
    models.count_in(model, obs)
    (normaliser,) = (part for part in model.modules() if isinstance(part, models.Normaliser))
    assert normaliser.count.item() == 2
    assert normaliser.mean.tolist() == [7.0, 8.0]  # of the rows (0, 1) and (14, 15)


def test_state_travels_as_arrays_and_is_a_copy() -> None:
    one, other = models.MLP((4,), 2), models.MLP((4,), 2)
    state = models.state_of(one)
    for array in state.values():
        array.flags.writeable = False  # as they arrive when the sender shared them
    models.load_state(other, state)
    obs = torch.randn(3, 4)
    with torch.no_grad():
        one.policy.bias.add_(1.0)
        assert not torch.equal(one(obs)[0], other(obs)[0])
        one.policy.bias.sub_(1.0)
        torch.testing.assert_close(one(obs)[0], other(obs)[0])


def test_the_state_of_another_model_is_refused_by_the_names_that_differ() -> None:
    with pytest.raises(ValueError, match=r"parameters of another model: .*lstm"):
        models.load_state(toys.network(), models.state_of(models.with_memory((2,), 2, 4)))


def test_a_module_that_is_given_made_is_copied() -> None:
    mine = models.MLP((4,), 2)
    assert models.build(mine, (4,), FLOATS, 2) is not mine


def shared() -> models.Recurrent:
    return models.Recurrent(nn.Linear(2, 7), 7, 3, units=5)


def apart() -> models.RecurrentMLP:
    return models.RecurrentMLP((2,), 3, units=5)


Remembering = models.Recurrent | models.RecurrentMLP
both = pytest.mark.parametrize("make", [shared, apart])


def remembering(make: Callable[[], Remembering]) -> Remembering:
    """A memory whose heads say something: at first they are close to zero."""
    torch.manual_seed(0)
    model = make()
    for head in (model.policy, model.value):
        nn.init.normal_(head.weight)
    return model


def piece(
    model: Remembering, steps: int, width: int, begin: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Observations, a memory and where episodes begin, at random."""
    torch.manual_seed(1)
    return (
        torch.randn(steps, width, 2),
        torch.randn_like(model.initial_state(width)),
        torch.rand(steps, width) < begin,
    )


@both
@pytest.mark.parametrize("begin", [0.0, 0.2, 1.0])
@torch.no_grad()
def test_a_piece_seen_at_once_is_the_same_seen_step_by_step(
    make: Callable[[], Remembering], begin: float
) -> None:
    model = remembering(make)
    obs, state, begins = piece(model, 9, 4, begin)
    policy, value, after = models.unroll(model, obs, state, begins)
    for t in range(9):
        p, v, state = model(obs[t : t + 1], state, begins[t : t + 1])
        torch.testing.assert_close(policy[t], p[0])
        torch.testing.assert_close(value[t], v[0])
    torch.testing.assert_close(after, state)


@both
@torch.no_grad()
def test_each_environment_begins_anew_alone(make: Callable[[], Remembering]) -> None:
    # The slow oracle: each column by itself, cut where its own episodes begin.
    model = remembering(make)
    obs, state, begins = piece(model, 9, 4, 0.3)
    policy, _, after = model(obs, state, begins)
    for b in range(4):
        memory = state[b : b + 1]
        for t in range(9):
            if begins[t, b]:
                memory = model.initial_state(1)
            p, _, memory = model(obs[t : t + 1, b : b + 1], memory, torch.zeros(1, 1).bool())
            torch.testing.assert_close(policy[t, b], p[0, 0])
        torch.testing.assert_close(after[b], memory[0])


@both
def test_nothing_is_remembered_over_the_beginning_of_an_episode(
    make: Callable[[], Remembering],
) -> None:
    model = remembering(make)
    obs, state, _ = piece(model, 6, 2, 0.0)
    begins = torch.zeros(6, 2).bool()
    begins[3, 0] = True
    obs.requires_grad_()
    state.requires_grad_()
    policy, value, _ = model(obs, state, begins)
    said = policy[3:].sum() + value[3:].sum()
    of_obs, of_state = torch.autograd.grad(said, (obs, state))
    assert of_obs[:3, 0].abs().max() == 0
    assert of_state[0].abs().max() == 0
    assert of_obs[:3, 1].abs().min() > 0  # the other one's episode goes on
    assert of_state[1].abs().max() > 0


@both
@torch.no_grad()
def test_what_came_before_matters_to_a_model_with_a_memory(
    make: Callable[[], Remembering],
) -> None:
    model = remembering(make)
    obs, state, begins = piece(model, 6, 2, 0.0)
    policy, value, _ = model(obs, state, begins)
    obs[0] += 1
    other_policy, other_value, _ = model(obs, state, begins)
    assert (policy[5] - other_policy[5]).abs().max() > 1e-6
    assert (value[5] - other_value[5]).abs().max() > 1e-6


def test_of_a_vector_policy_and_value_are_remembered_apart() -> None:
    # Values are large: in an LSTM that both share, their gradient drowns the policy's.
    model = remembering(apart)
    obs, state, begins = piece(model, 6, 2, 0.0)
    _, value, _ = model(obs, state, begins)
    value.sum().backward()
    moved = {name.split("_")[0] for name, p in model.named_parameters() if p.grad is not None}
    assert moved == {"value", "value.weight", "value.bias"}


@pytest.mark.parametrize(
    ("shape", "dtype", "kind", "width"),
    [
        ((4, 42, 42), BYTES, models.Recurrent, 16),
        ((3, 64, 64), BYTES, models.Recurrent, 16),
        ((5,), FLOATS, models.RecurrentMLP, 32),
    ],
)
def test_the_network_that_fits_gets_a_memory_before_its_heads(
    shape: tuple[int, ...], dtype: np.dtype[Any], kind: type[nn.Module], width: int
) -> None:
    model = models.build(None, shape, dtype, 6, units=8)
    assert type(model) is kind
    assert models.is_recurrent(model)
    obs = torch.from_numpy(np.zeros((2, 3, *shape), dtype))
    begins = torch.ones(2, 3).bool()
    policy, value, state = models.unroll(model, obs, models.initial_state(model, 3), begins)
    assert policy.shape == (2, 3, 6)
    assert value.shape == (2, 3)
    assert state.shape == (3, width)


def test_a_model_without_a_memory_has_an_empty_one() -> None:
    model = toys.network()
    assert not models.is_recurrent(model)
    assert models.initial_state(model, 3).shape == (3, 0)


@torch.no_grad()
def test_a_model_without_a_memory_sees_a_piece_as_so_many_rows() -> None:
    model = toys.network()
    obs = torch.randn(200, 3, 2)  # more rows than are asked about at once
    state, begins = torch.zeros(3, 0), torch.zeros(200, 3).bool()
    policy, value, after = models.unroll(model, obs, state, begins)
    want_policy, want_value = model(obs.flatten(0, 1))
    torch.testing.assert_close(policy.flatten(0, 1), want_policy)
    torch.testing.assert_close(value.flatten(), want_value)
    assert after is state


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
    """Says that it has a memory, and gives none back."""

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


class NoPieces(Forgetful):
    def forward(self, obs: Tensor) -> Tensor:  # type: ignore[override]
        return obs


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (NoValue, r"NoValue maps observations \[2, 4\] to a Tensor; expected \(policy \[2, 3\]"),
        (WideValue, r"\(policy \[2, 3\], value \[2, 1\]\); expected .*value \[2\]\)"),
        (TooFewActions, r"\(policy \[2, 2\], value \[2\]\); expected \(policy \[2, 3\]"),
        (OtherInput, r"OtherInput fails on observations of shape \[2, 4\] \(float32\)"),
        (lambda shape, outputs: "a model", "made a str, a torch.nn.Module is wanted"),
        (
            Forgetful,
            r"to \(policy \[1, 2, 3\], value \[1, 2\]\); expected \(.*, state \[2, 7\]\)",
        ),
        (OneStepOnly, r"to \(policy \[2, 3\], value \[2\], state \[2, 7\]\); expected"),
        (NoPieces, r"NoPieces fails on observations .* takes 2 positional arguments"),
    ],
)
def test_a_model_that_does_not_fit_is_told_what_was_expected_and_what_it_gave(
    model: Any, said: str
) -> None:
    with pytest.raises(TrainingError, match=said):
        models.build(model, (4,), FLOATS, 3)


@pytest.mark.parametrize("own", [models.MLP, models.MLP((4,), 3)], ids=["class", "made"])
def test_a_model_of_ones_own_brings_its_memory_itself(own: models.Maker) -> None:
    with pytest.raises(TrainingError, match=r"a model of your own brings its own .* lstm at 0"):
        models.build(own, (4,), FLOATS, 3, units=64)
