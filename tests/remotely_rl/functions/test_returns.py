"""V-trace and GAE against hand-worked numbers, a slow oracle, and each other."""

import functools
import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from remotely_rl.functions import returns

REWARD = [1.0, 0.0, 2.0]
VALUE = [0.5, 1.0, 1.5, 2.0]
GAMMA = 0.9


def column(numbers: list[float]) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)[:, None]


def discount(ended_at: int | None = None) -> Tensor:
    return column([0.0 if t == ended_at else GAMMA for t in range(3)])


def slow_v_trace(
    log_rho: Tensor,
    reward: Tensor,
    discount: Tensor,
    value: Tensor,
    rho_bar: float,
    c_bar: float,
    gae_lambda: float,
) -> Tensor:
    """Equation 1 as written: a sum for every s, a product for every term."""
    steps, width = reward.shape
    result = value[:-1].clone()
    for s, b in itertools.product(range(steps), range(width)):
        for t in range(s, steps):
            weight = 1.0
            for i in range(s, t):
                c = gae_lambda * min(c_bar, math.exp(log_rho[i, b]))
                weight *= float(discount[i, b]) * c
            rho = min(rho_bar, math.exp(log_rho[t, b]))
            delta = rho * (reward[t, b] + discount[t, b] * value[t + 1, b] - value[t, b])
            result[s, b] += weight * delta
    return result


@pytest.mark.parametrize(
    ("gae_lambda", "ended_at", "advantage", "target"),
    [
        (0.95, None, [3.3806075, 2.3165, 2.3], [3.8806075, 3.3165, 3.8]),
        (1.0, None, [3.578, 2.42, 2.3], [4.078, 3.42, 3.8]),
        (0.0, None, [1.4, 0.35, 2.3], [1.9, 1.35, 3.8]),
        (0.95, 1, [0.545, -1.0, 2.3], [1.045, 0.0, 3.8]),
    ],
)
def test_gae_matches_hand_worked_numbers(
    gae_lambda: float, ended_at: int | None, advantage: list[float], target: list[float]
) -> None:
    out = returns.gae(column(REWARD), discount(ended_at), column(VALUE), gae_lambda=gae_lambda)
    torch.testing.assert_close(out.advantage, column(advantage))
    torch.testing.assert_close(out.value, column(target))


def slow_lambda_return(
    reward: NDArray[Any],
    discount: NDArray[Any],
    value: NDArray[Any],
    valid: NDArray[Any],
    lam: float,
) -> NDArray[Any]:
    """The mean of n-step returns of every length up to the end of the episode or of the rollout,
    with weights (1 - lambda) lambda^(n-1), and all that is left for the longest."""
    steps, width = reward.shape
    result = value[:-1].copy()
    for t, b in itertools.product(range(steps), range(width)):
        if not valid[t, b]:
            continue
        n_step, gained, left, now = [], 0.0, 1.0, t
        while True:
            gained += left * reward[now, b]
            left *= discount[now, b]
            now += 1
            n_step.append(gained + left * value[now, b])
            if left == 0 or now == steps or not valid[now, b]:
                break
        weights = [(1 - lam) * lam**n for n in range(len(n_step) - 1)]
        result[t, b] = np.dot([*weights, lam ** (len(n_step) - 1)], n_step)
    return result


@pytest.mark.parametrize("lam", [0.0, 0.65, 1.0])
def test_value_targets_of_gae_are_lambda_returns(lam: float) -> None:
    """With terminations, truncations (the row after is a reset) and crashes of any length."""
    random = np.random.default_rng(4)
    reward, value = random.normal(size=(12, 6)), random.normal(size=(13, 6))
    gamma = GAMMA * (random.random((12, 6)) > 0.2)
    valid = random.random((12, 6)) > 0.25
    want = slow_lambda_return(reward, gamma, value, valid, lam)
    tensors = map(torch.from_numpy, (reward, gamma, value))
    out = returns.gae(*tensors, valid=torch.from_numpy(valid), gae_lambda=lam)
    np.testing.assert_allclose(out.value.numpy(), want, rtol=1e-12)


def test_a_lambda_return_matches_hand_worked_numbers() -> None:
    out = returns.gae(column(REWARD), discount(), column(VALUE), gae_lambda=0.65)
    third = 2 + 0.9 * 2
    second = 0 + 0.9 * (0.35 * 1.5 + 0.65 * third)
    first = 1 + 0.9 * (0.35 * 1.0 + 0.65 * second)
    assert [third, second, first] == pytest.approx([3.8, 2.6955, 2.8918675])
    torch.testing.assert_close(out.value, column([first, second, third]))


@pytest.mark.parametrize(
    ("ratio", "ended_at", "target", "advantage"),
    [
        ([1.0, 1.0, 1.0], None, [4.078, 3.42, 3.8], [3.578, 2.42, 2.3]),
        ([0.5, 2.0, 1.5], None, [2.289, 3.42, 3.8], [1.789, 2.42, 2.3]),
        ([0.5, 2.0, 1.5], 1, [0.75, 0.0, 3.8], [0.25, -1.0, 2.3]),
    ],
)
def test_v_trace_matches_hand_worked_numbers(
    ratio: list[float], ended_at: int | None, target: list[float], advantage: list[float]
) -> None:
    log_rho = column(ratio).log()
    out = returns.v_trace(log_rho, column(REWARD), discount(ended_at), column(VALUE))
    torch.testing.assert_close(out.value, column(target))
    torch.testing.assert_close(out.advantage, column(advantage))


def test_v_trace_matches_the_test_numbers_of_deepmind_and_parl() -> None:
    log_rho = column([-2.5, -1.5, -0.5, 0.5, 1.5])
    numbers = column([0.0, 1.0, 2.0, 3.0, 4.0])
    out = returns.v_trace(
        log_rho,
        numbers,
        torch.full_like(numbers, 0.9),
        torch.cat([numbers, column([1.0])]),
        rho_bar=3.7,
        rho_bar_pg=2.2,
    )
    want = column([0.200182, 2.709682, 8.513628, 11.932397, 7.33])
    torch.testing.assert_close(out.value, want, atol=1e-6, rtol=0)
    want = column([0.200182, 1.709682, 6.513628, 10.876614, 1.98])
    torch.testing.assert_close(out.advantage, want, atol=1e-6, rtol=0)


@pytest.mark.parametrize("clips", [(1.0, 1.0), (3.7, 1.0), (2.0, 1.5), (math.inf, math.inf)])
@pytest.mark.parametrize("gae_lambda", [1.0, 0.7])
def test_v_trace_equals_the_explicit_sum_of_products(
    clips: tuple[float, float], gae_lambda: float
) -> None:
    torch.manual_seed(0)
    shape = (7, 3)
    log_rho = torch.randn(shape, dtype=torch.float64)
    reward = torch.randn(shape, dtype=torch.float64)
    value = torch.randn((8, 3), dtype=torch.float64)
    gamma = GAMMA * (torch.rand(shape, dtype=torch.float64) > 0.2)
    rho_bar, c_bar = clips
    out = returns.v_trace(
        log_rho, reward, gamma, value, rho_bar=rho_bar, c_bar=c_bar, gae_lambda=gae_lambda
    )
    want = slow_v_trace(log_rho, reward, gamma, value, rho_bar, c_bar, gae_lambda)
    torch.testing.assert_close(out.value, want)


@pytest.mark.parametrize("gae_lambda", [1.0, 0.95, 0.0])
def test_on_policy_v_trace_is_gae(gae_lambda: float) -> None:
    torch.manual_seed(1)
    reward, value = torch.randn(9, 4), torch.randn(10, 4)
    gamma = GAMMA * (torch.rand(9, 4) > 0.2)
    valid = torch.rand(9, 4) > 0.2
    on_policy = torch.zeros(9, 4)
    ours = returns.v_trace(on_policy, reward, gamma, value, valid=valid, gae_lambda=gae_lambda)
    gae = returns.gae(reward, gamma, value, valid=valid, gae_lambda=gae_lambda)
    torch.testing.assert_close(ours.value, gae.value)
    torch.testing.assert_close(ours.advantage[valid], gae.advantage[valid])


def test_without_clips_v_trace_is_the_importance_sampled_return() -> None:
    # One path, V = 0: v_0 = rho_0 (r_0 + g rho_1 (r_1 + g rho_2 r_2)).
    ratio, reward = [0.5, 3.0, 2.0], [1.0, -1.0, 4.0]
    out = returns.v_trace(
        column(ratio).log(),
        column(reward),
        column([GAMMA, GAMMA, 0.0]),
        torch.zeros(4, 1, dtype=torch.float64),
        rho_bar=math.inf,
        c_bar=math.inf,
    )
    by_hand = 0.5 * (1.0 + GAMMA * 3.0 * (-1.0 + GAMMA * 2.0 * 4.0))
    assert out.value[0, 0].item() == pytest.approx(by_hand)


def test_an_action_of_probability_zero_changes_nothing() -> None:
    log_rho = column([0.0, -math.inf, 0.0])
    out = returns.v_trace(log_rho, column(REWARD), discount(), column(VALUE))
    assert out.value[1].item() == VALUE[1]
    assert out.advantage[1].item() == 0.0


def test_one_step_bootstraps_from_the_next_observation() -> None:
    # Detects off-by-one errors.
    out = returns.v_trace(column([0.0]), column([1.0]), column([0.5]), column([10.0, 4.0]))
    assert out.value.item() == 1.0 + 0.5 * 4.0
    assert out.advantage.item() == 1.0 + 0.5 * 4.0 - 10.0


ON_POLICY = column([0.0, 0.0, 0.0])


@pytest.mark.parametrize(
    "compute",
    [
        returns.gae,
        functools.partial(returns.v_trace, ON_POLICY),
        functools.partial(returns.v_trace, ON_POLICY, rho_bar_pg=None),
    ],
    ids=["GAE", "V-trace", "V-trace without rho"],
)
def test_truncated_steps_bootstrap_and_terminated_ones_do_not(compute: Any) -> None:
    # Step 0 ends its episode; row 1 is the reset, whose reward must not matter.
    reward, value = column([1.0, 77.0, 2.0]), column([0.5, 3.0, 1.5, 2.0])
    valid = torch.tensor([[True], [False], [True]])
    terminated = compute(reward, column([0.0, 0.9, 0.9]), value, valid=valid)
    truncated = compute(reward, column([0.9, 0.9, 0.9]), value, valid=valid)
    assert terminated.value[0].item() == pytest.approx(1.0)
    assert truncated.value[0].item() == pytest.approx(1.0 + 0.9 * 3.0)  # V of the last observation
    assert truncated.value[1].item() == 3.0
    assert truncated.advantage[1].item() == 0.0


def test_the_contents_of_an_invalid_row_do_not_matter() -> None:
    torch.manual_seed(2)
    log_rho, reward = torch.randn(6, 2), torch.randn(6, 2)
    value, valid = torch.randn(7, 2), torch.ones(6, 2, dtype=torch.bool)
    valid[3, 0] = False
    gamma = torch.full((6, 2), GAMMA)
    one = returns.v_trace(log_rho, reward, gamma, value, valid=valid)
    reward[3, 0], log_rho[3, 0] = 1e6, 3.0
    other = returns.v_trace(log_rho, reward, gamma, value, valid=valid)
    torch.testing.assert_close(one.value, other.value, atol=0, rtol=0)
    torch.testing.assert_close(one.advantage, other.advantage, atol=0, rtol=0)


def test_targets_have_no_gradient() -> None:
    value, log_rho = torch.ones(4, 1, requires_grad=True), torch.zeros(3, 1, requires_grad=True)
    ones = torch.ones(3, 1)
    for out in (returns.v_trace(log_rho, ones, ones, value), returns.gae(ones, ones, value)):
        assert not any(part.requires_grad for part in out)


def test_a_rho_clip_below_the_c_clip_is_refused() -> None:
    with pytest.raises(ValueError, match="at least c_bar"):
        returns.v_trace(
            column([0.0]), column([0.0]), column([0.9]), column([0.0, 0.0]), rho_bar=0.5
        )


def test_rho_bar_pg_none_leaves_rho_out_of_advantages() -> None:
    log_rho = column([0.5, 2.0, 1.5]).log()
    with_rho = returns.v_trace(log_rho, column(REWARD), discount(), column(VALUE))
    without = returns.v_trace(log_rho, column(REWARD), discount(), column(VALUE), rho_bar_pg=None)
    torch.testing.assert_close(without.value, with_rho.value)
    # r + gamma v' - V, with v' from the table above: 1 + .9 * 3.42 - .5, and so on.
    torch.testing.assert_close(without.advantage, column([3.578, 2.42, 2.3]))
    torch.testing.assert_close(with_rho.advantage, column([0.5 * 3.578, 2.42, 2.3]))


@pytest.mark.parametrize("gae_lambda", [0.0, 0.7, 1.0])
def test_a_crash_splits_a_rollout_into_independent_parts(gae_lambda: float) -> None:
    """Row 3 crashed and repeats the last observation; row 4 is the reset."""
    torch.manual_seed(1)
    reward, value, log_rho = torch.randn(8, 1), torch.randn(9, 1), 0.3 * torch.randn(8, 1)
    gamma = torch.full((8, 1), GAMMA)
    value[4] = value[3]
    valid = torch.ones(8, 1, dtype=torch.bool)
    valid[3] = valid[4] = False

    def gae(start: int, end: int, valid: Tensor | None = None) -> returns.Targets:
        rows = reward[start:end], gamma[start:end], value[start : end + 1]
        return returns.gae(*rows, valid=valid, gae_lambda=gae_lambda)

    def v_trace(start: int, end: int, valid: Tensor | None = None) -> returns.Targets:
        rows = log_rho[start:end], reward[start:end], gamma[start:end], value[start : end + 1]
        return returns.v_trace(*rows, valid=valid, gae_lambda=gae_lambda)

    for compute in (gae, v_trace):
        whole, before, after = compute(0, 8, valid), compute(0, 3), compute(5, 8)
        for of_whole, of_before, of_after in zip(whole, before, after, strict=True):
            assert torch.allclose(of_whole[:3], of_before)
            assert torch.allclose(of_whole[5:], of_after)
