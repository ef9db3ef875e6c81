"""Policies: the same as torch's distributions and as numbers computed by hand."""

import math
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector.utils import batch_space, iterate
from numpy.typing import NDArray
from torch import Tensor
from torch.distributions import Categorical, Independent, Normal

from remotely_rl.environments import action_spaces, observations
from remotely_rl.environments.action_spaces import Actions, Continuous, Discrete, MultiDiscrete
from remotely_rl.environments.masks import is_choice
from remotely_rl.errors import TrainingError
from remotely_rl.functions import distributions

DISCRETE = Discrete(4)
MULTI = MultiDiscrete((2, 3), (0, 0))
VECTOR = Continuous((-1.0, -1.0), (1.0, 1.0), (2,))
BOTH = spaces.Dict(
    {
        "arm": spaces.Tuple([spaces.Box(-1, 1, (2,)), spaces.Discrete(4)]),
        "legs": spaces.MultiDiscrete([2, 3], start=[1, 5]),
    }
)
NESTED = action_spaces.of(BOTH)
ALL = [DISCRETE, MULTI, VECTOR, NESTED]
NAMES = ["Discrete", "MultiDiscrete", "Continuous", "Dict"]

# A coin that shows 1 with probability 3/4.
LOADED = torch.tensor([0.0, math.log(3.0)])
ITS_ENTROPY = 0.25 * math.log(4) + 0.75 * math.log(4 / 3)


def policy(of: Actions, *shape: int) -> Tensor:
    torch.manual_seed(0)
    return torch.randn(*shape, of.outputs).clamp(-2, 2)


def draws(of: Actions, policy: Tensor, count: int, seed: int = 0) -> Tensor:
    """Return `count` actions of one policy."""
    generator = torch.Generator().manual_seed(seed)
    return of.sample(policy.expand(count, -1), generator)


def categorical(policy: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
    torchs: Any = Categorical(logits=policy)
    return torchs.log_prob(action), torchs.entropy()


def two_categoricals(policy: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
    one = categorical(policy[..., :2], action[..., 0])
    two = categorical(policy[..., 2:], action[..., 1])
    return one[0] + two[0], one[1] + two[1]


def gaussian(policy: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
    mean, log_deviation = policy.chunk(2, -1)
    torchs: Any = Independent(Normal(mean, (log_deviation - 1).exp()), 1)
    return torchs.log_prob(action), torchs.entropy()


def all_of_them(policy: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
    vector = gaussian(policy[..., :4], action[..., :2])
    number = categorical(policy[..., 4:8], action[..., 2])
    numbers = two_categoricals(policy[..., 8:], action[..., 3:])
    return vector[0] + number[0] + numbers[0], vector[1] + number[1] + numbers[1]


@pytest.mark.parametrize(
    ("of", "torchs"),
    [
        (DISCRETE, categorical),
        (MULTI, two_categoricals),
        (VECTOR, gaussian),
        (NESTED, all_of_them),
    ],
    ids=NAMES,
)
def test_probabilities_and_entropies_are_those_of_torch_in_any_batch(
    of: Actions, torchs: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
) -> None:
    numbers = policy(of, 7, 5)
    action = of.sample(numbers, torch.Generator().manual_seed(1))
    assert action.shape == (7, 5, *of.shape)
    assert of.sample(policy(of, 0)).shape == (0, *of.shape)
    log_prob, entropy = torchs(numbers, action)
    torch.testing.assert_close(of.log_prob(numbers, action), log_prob)
    torch.testing.assert_close(of.entropy(numbers), entropy)


def test_a_biased_coin_matches_hand_computed_values() -> None:
    coin = Discrete(2)
    assert coin.log_prob(LOADED, torch.tensor(1)).exp().item() == pytest.approx(0.75)
    assert coin.entropy(LOADED).item() == pytest.approx(ITS_ENTROPY)
    assert coin.mode(LOADED).item() == 1


def test_probabilities_of_independent_choices_multiply() -> None:
    coins = MultiDiscrete((2, 2), (0, 0))
    both = torch.cat([LOADED, torch.zeros(2)])
    assert coins.log_prob(both, torch.tensor([1, 0])).exp().item() == pytest.approx(0.75 * 0.5)
    assert coins.entropy(both).item() == pytest.approx(ITS_ENTROPY + math.log(2))
    assert coins.mode(torch.cat([LOADED, -LOADED])).tolist() == [1, 0]


def test_a_gaussian_matches_hand_computed_values() -> None:
    one = Continuous((-1.0,), (1.0,), (1,))
    at_zero = torch.tensor([0.0, 1.0])  # mean 0, deviation 1
    half_log_2_pi = 0.5 * math.log(2 * math.pi)
    density = one.log_prob(at_zero, torch.tensor([1.0])).item()
    assert density == pytest.approx(-0.5 - half_log_2_pi)
    assert one.entropy(at_zero).item() == pytest.approx(0.5 + half_log_2_pi)
    twice_as_wide = torch.tensor([3.0, 1 + math.log(2.0)])
    density = one.log_prob(twice_as_wide, torch.tensor([1.0])).item()
    assert density == pytest.approx(-0.5 - math.log(2) - half_log_2_pi)
    assert one.mode(twice_as_wide).tolist() == [3.0]


def test_the_gradient_of_a_log_probability_is_one_hot_less_probability() -> None:
    numbers = LOADED.clone().requires_grad_()
    (grad,) = torch.autograd.grad(Discrete(2).log_prob(numbers, torch.tensor(0)), numbers)
    assert grad.tolist() == pytest.approx([0.75, -0.75])


def test_the_log_std_is_bounded_without_gradient_beyond() -> None:
    one = Continuous((-1.0,), (1.0,), (1,))
    wide = torch.tensor([0.0, 9.0], requires_grad=True)
    entropy = one.entropy(wide)
    assert entropy.item() == pytest.approx(distributions.MAX_LOG_STD + 1.4189385)
    entropy.backward()  # type: ignore[no-untyped-call]
    assert wide.grad is not None
    assert wide.grad.tolist() == [0.0, 0.0]
    narrow = one.entropy(torch.tensor([0.0, -99.0]))
    assert narrow.item() == pytest.approx(distributions.MIN_LOG_STD + 1.4189385)


def test_a_gaussian_is_computed_in_float32() -> None:
    numbers = policy(VECTOR, 3)
    rough = numbers.bfloat16()
    action = VECTOR.sample(rough, torch.Generator().manual_seed(0))
    assert action.dtype == VECTOR.log_prob(rough, action).dtype == torch.float32
    torch.testing.assert_close(VECTOR.entropy(rough), VECTOR.entropy(rough.float()))


def test_actions_are_drawn_with_their_probabilities() -> None:
    numbers = policy(DISCRETE, 1)[0]
    often = draws(DISCRETE, numbers, 40_000).bincount(minlength=4) / 40_000
    # At most five standard errors: 5 * sqrt(1/4 / 40,000).
    torch.testing.assert_close(often, numbers.softmax(-1), atol=0.0125, rtol=0)


def test_choices_are_drawn_independently() -> None:
    numbers = torch.cat([LOADED, torch.tensor([0.0, 0.0, math.log(2.0)])])
    action = draws(MULTI, numbers, 40_000)
    pairs = (action[:, 0] * 3 + action[:, 1]).bincount(minlength=6) / 40_000
    want = torch.outer(torch.tensor([0.25, 0.75]), torch.tensor([0.25, 0.25, 0.5])).flatten()
    torch.testing.assert_close(pairs, want, atol=0.0125, rtol=0)


def test_vectors_are_drawn_with_the_policys_mean_and_deviation() -> None:
    numbers = torch.tensor([1.0, -2.0, 1.0, 1 + math.log(0.1)])
    action = draws(VECTOR, numbers, 40_000)
    torch.testing.assert_close(action.mean(0), torch.tensor([1.0, -2.0]), atol=0.025, rtol=0)
    torch.testing.assert_close(action.std(0), torch.tensor([1.0, 0.1]), atol=0, rtol=0.02)


def test_an_action_with_probability_0_is_never_drawn() -> None:
    numbers = torch.tensor([-math.inf, 0.0, -math.inf, -9.0])
    assert set(draws(DISCRETE, numbers, 5000).tolist()) == {1, 3}


@pytest.mark.parametrize("of", ALL, ids=NAMES)
def test_draws_are_reproducible_by_seed(of: Actions) -> None:
    numbers = policy(of, 1)[0]
    one, same, other = (draws(of, numbers, 50, seed) for seed in (3, 3, 4))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


@pytest.mark.parametrize("of", ALL, ids=NAMES)
def test_the_mode_is_the_most_likely_action(of: Actions) -> None:
    numbers = policy(of, 1)[0]
    best = of.log_prob(numbers, of.mode(numbers))
    assert (of.log_prob(numbers.expand(500, -1), draws(of, numbers, 500)) <= best).all()


@pytest.mark.parametrize(
    ("space", "outputs", "shape", "dtype"),
    [
        (spaces.Discrete(6), 6, (), np.int64),
        (spaces.MultiDiscrete([2, 3]), 5, (2,), np.int64),
        (spaces.MultiBinary(3), 6, (3,), np.int64),
        (spaces.Box(-1, 1, (4,), np.float32), 8, (4,), np.float32),
        (spaces.Box(-1, 1, (2, 3), np.float64), 12, (6,), np.float32),
    ],
    ids=str,
)
def test_a_space_defines_the_outputs_and_the_shape_of_an_action(
    space: gymnasium.Space[object], outputs: int, shape: tuple[int, ...], dtype: type[np.generic]
) -> None:
    of = action_spaces.of(space)
    assert (of.outputs, of.shape, of.dtype) == (outputs, shape, dtype)
    action = draws(of, policy(of, 1)[0], 9).numpy()
    assert action.dtype == dtype
    assert all(row.shape == space.shape for row in of.to_environment(action))


@pytest.mark.parametrize(
    "space",
    [
        spaces.Discrete(3, start=5),
        spaces.MultiDiscrete([2, 3], start=[1, -4]),
        spaces.MultiBinary(2),
    ],
    ids=str,
)
def test_drawn_actions_lie_in_the_environments_space(
    space: gymnasium.Space[object],
) -> None:
    of = action_spaces.of(space)
    wild = 5 * policy(of, 1)[0]
    for row in of.to_environment(draws(of, wild, 200).numpy()):
        assert space.contains(row.astype(space.dtype)), row


def bounds(dtype: np.dtype[Any], count: int, random: np.random.Generator) -> NDArray[Any]:
    """Return pairs of bounds [count, 2]: round, of any size, infinite and extreme."""
    if dtype.kind == "b":
        return np.sort(random.integers(0, 2, (count, 2)).astype(np.bool_), 1)
    of_dtype: Any = np.finfo(dtype) if dtype.kind == "f" else np.iinfo(dtype)
    ends = np.array([of_dtype.min, of_dtype.max], dtype)
    if dtype.kind == "f":
        size = 10 ** random.uniform(-4, min(300, float(np.log10(ends[1]))), (count, 1))
        pairs = (random.uniform(-1, 1, (count, 2)) * size).astype(dtype)
        pairs[::4] = random.integers(-100, 100, pairs[::4].shape) / 10
        pairs[::40, 0], pairs[1::40, 1], pairs[2::40] = -np.inf, np.inf, (-np.inf, np.inf)
    else:
        pairs = random.integers(ends[0], ends[1], (count, 2), dtype, endpoint=True)
        pairs[::2] %= 7
    pairs[3::40] = ends
    return np.sort(pairs, 1)


@pytest.mark.parametrize(
    "name", ["float16", "float32", "float64", "longdouble", "int8", "uint8", "int64", "uint64", "?"]
)
def test_no_action_lies_outside_a_box_whatever_its_bounds_and_dtype(
    name: str,
) -> None:
    random, dtype = np.random.default_rng(1), np.dtype(name)
    for low, high in (bounds(dtype, 120, random).T for _ in range(10)):
        space = spaces.Box(low, high, dtype=dtype.type)
        of = action_spaces.of(space)
        wild = 3 * torch.from_numpy(random.standard_normal((20, of.outputs), np.float32))
        made = torch.cat(
            [
                of.sample(wild),
                of.mode(wild),
                distributions.squashed_sample(wild)[0],
                distributions.squashed_mode(9 * wild),
                torch.from_numpy(random.uniform(-1, 1, (20, 120)).astype(np.float32)),
                torch.tensor([-9e9, -1.0, 1.0, 9e9])[:, None].expand(-1, 120),
            ]
        )
        arrived = of.to_environment(made.numpy())
        assert arrived.dtype == dtype
        assert (arrived >= low).all()
        assert (arrived <= high).all()
        assert space.contains(arrived[0])


def test_discrete_actions_are_offset_by_start() -> None:
    five = action_spaces.of(spaces.Discrete(2, start=5))
    assert five.to_environment(np.array([0, 1])).tolist() == [5, 6]
    several = action_spaces.of(spaces.MultiDiscrete([2, 3], start=[1, 5]))
    assert several.to_environment(np.array([[0, 0], [1, 2]])).tolist() == [[1, 5], [2, 7]]


def test_actions_are_clipped_and_scaled_to_the_bounds_of_a_box() -> None:
    box = action_spaces.of(
        spaces.Box(np.array([0.0, -2.0]), np.array([10.0, 2.0]), dtype=np.float64)
    )
    acted = np.array([[-1.0, 1.0], [0.0, 0.0], [0.5, -0.5], [7.0, -7.0]], np.float32)
    assert box.to_environment(acted).tolist() == [[0, 2], [5, 0], [7.5, -1], [10, -2]]


def test_each_integer_of_a_box_has_an_equal_part_of_the_range() -> None:
    box = action_spaces.of(spaces.Box(2, 5, (1,), np.int16))
    acted = np.array([[-9], [-1], [-0.51], [-0.49], [-0.01], [0], [0.51], [1], [9]], np.float32)
    assert box.to_environment(acted)[:, 0].tolist() == [2, 2, 2, 3, 3, 4, 5, 5, 5]


def test_unbounded_coordinates_are_unchanged_and_single_bounds_clip() -> None:
    low = np.array([-np.inf, 0.0, -1.0], np.float32)
    high = np.array([np.inf, np.inf, 1.0], np.float32)
    box = action_spaces.of(spaces.Box(low, high))
    acted = np.array([[9.0, 9.0, 9.0], [-9.0, -9.0, -9.0]], np.float32)
    assert box.to_environment(acted).tolist() == [[9, 9, 1], [-9, 0, -1]]


def test_actions_have_the_shape_of_the_box() -> None:
    box = action_spaces.of(spaces.Box(-1, 1, (2, 3), np.float32))
    row = np.array([[-1.0, -0.5, 0.0, 0.25, 0.5, 1.0]], np.float32)
    assert box.to_environment(row).tolist() == [[[-1.0, -0.5, 0.0], [0.25, 0.5, 1.0]]]


@pytest.mark.parametrize(
    "space",
    [
        spaces.MultiDiscrete(np.full((2, 2), 3)),
        spaces.MultiBinary((2, 2)),
        spaces.Box(0, np.inf, (2,), np.int32),
        spaces.Text(5),
    ],
    ids=str,
)
def test_an_unsupported_space_is_rejected_with_the_supported_ones(
    space: gymnasium.Space[object],
) -> None:
    said = r"is .*; supported are Discrete, MultiDiscrete and MultiBinary of one axis, a Box of f"
    with pytest.raises(TrainingError, match=f"(?s)this environment's action space {said}"):
        action_spaces.of(space)
    nested = spaces.Dict({"arm": spaces.Tuple([spaces.Discrete(2), space])})
    with pytest.raises(TrainingError, match=rf"(?s)action\['arm'\]\[1\] {said}"):
        action_spaces.of(nested)


@pytest.mark.parametrize(
    "space", [spaces.Tuple([]), spaces.Box(0, 1, (2, 0)), spaces.MultiDiscrete([])], ids=str
)
def test_an_empty_space_is_rejected(space: gymnasium.Space[object]) -> None:
    said = r" is .*, which is empty: leave it out"
    with pytest.raises(TrainingError, match=f"this environment's action space{said}"):
        action_spaces.of(space)
    with pytest.raises(TrainingError, match=rf"action\['arm'\]{said}"):
        action_spaces.of(spaces.Dict({"arm": space}))
    with pytest.raises(TrainingError, match=rf"observation\[1\]{said}"):
        observations.spec_of(spaces.Tuple([spaces.Discrete(2), space]))


def test_a_nested_action_is_nested_like_its_space() -> None:
    assert (NESTED.outputs, NESTED.choices, NESTED.shape) == (13, (4, 2, 3), (5,))
    action = NESTED.to_environment(np.array([[0.5, -9, 3, 0, 2], [0, 0, 1, 1, 0]], np.float32))
    assert list(action) == ["arm", "legs"]
    assert action["arm"][0].tolist() == [[0.5, -1], [0, 0]]
    assert action["arm"][1].tolist() == [3, 1]
    assert action["legs"].tolist() == [[1, 7], [2, 5]]
    for row in iterate(batch_space(BOTH, 2), action):
        assert BOTH.contains(row)


def test_outputs_are_described_by_part() -> None:
    assert action_spaces.described(NESTED) == (
        "4 for action['arm'][0], 4 for action['arm'][1], 5 for action['legs']"
    )
    assert action_spaces.described(DISCRETE) == ""


@pytest.mark.parametrize("of", [DISCRETE, MULTI, NESTED], ids=["Discrete", "MultiDiscrete", "Dict"])
def test_an_illegal_action_is_never_drawn_and_contributes_no_entropy_or_gradient(
    of: Actions,
) -> None:
    legal = policy(of, 200)
    is_logit = is_choice(of)
    numbers = legal.clone().requires_grad_()
    illegal = torch.zeros(of.outputs, dtype=torch.bool)
    illegal[np.flatnonzero(is_logit)[1]] = True  # the second action of the first choice
    masked = torch.where(illegal, distributions.ILLEGAL, numbers)

    action = of.sample(masked, torch.Generator().manual_seed(1))
    first_choice = action if action.dim() == 1 else action[:, 2 if of is NESTED else 0]
    assert 1 not in first_choice.long()
    assert torch.isfinite(of.log_prob(masked, action)).all()

    (of.entropy(masked) + of.log_prob(masked, action)).sum().backward()  # type: ignore[no-untyped-call]
    assert numbers.grad is not None
    assert torch.isfinite(numbers.grad).all()
    assert (numbers.grad[:, illegal] == 0).all()


def test_the_entropy_is_that_of_the_legal_actions_alone() -> None:
    masked = torch.tensor([0.0, distributions.ILLEGAL, math.log(3.0)])
    assert Discrete(3).entropy(masked).item() == pytest.approx(ITS_ENTROPY)


def test_the_initial_deviation_applies_to_every_box_of_a_space() -> None:
    box = spaces.Box(-1.0, 1.0, (2,), np.float32)
    nested = action_spaces.of(spaces.Tuple((spaces.Discrete(3), box)))
    start = action_spaces.policy_start(nested, -2.5)
    assert start[:3].tolist() == [0.0, 0.0, 0.0]
    mean, log_std = distributions.gaussian_parameters(start[3:])
    assert mean.tolist() == [0.0, 0.0]
    assert log_std.tolist() == [-2.5, -2.5]
