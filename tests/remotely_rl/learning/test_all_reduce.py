"""All-reduce between learners: groups of threads, each with its own connections."""

import dataclasses
import math
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import psutil
import pytest
import torch
from torch import Tensor, distributed, nn

from remotely_rl import a2c, dqn, networks, ppo, rainbow
from remotely_rl.algorithms.dqn import QLearner
from remotely_rl.environments.action_spaces import Discrete
from remotely_rl.environments.observations import ObservationLeaf
from remotely_rl.errors import LearnerLost, TrainingError
from remotely_rl.experience.trajectory import Trajectory, stack
from remotely_rl.learning import all_reduce
from remotely_rl.learning.all_reduce import AllReduce, RankGone
from remotely_rl.learning.learner import Learner
from remotely_rl.networks import Normalizer
from remotely_rl.runs.replaying import Steps
from remotely_rl.runs.training import MODEL_LOCK
from tests.remotely_rl import toys

CPU = torch.device("cpu")
T = TypeVar("T")
TINY = 1e-12


def together(folder: Path, size: int, act: Callable[[AllReduce], T]) -> list[T]:
    """Call `act` on each rank of a group; return the results, or raise an error of a rank."""
    done: dict[int, Any] = {}

    def run(rank: int) -> None:
        try:
            group = AllReduce(folder, rank, size, CPU)
            done[rank] = act(group)
            group.close()
        except BaseException as error:
            done[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for result in done.values():
        if isinstance(result, BaseException):
            raise result
    return [done[rank] for rank in range(size)]


@pytest.fixture
def double() -> Iterator[None]:
    """New tensors are float64."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


# --- the group ------------------------------------------------------------------------------------


def test_means_weight_all_rows_equally_and_are_the_same_on_every_rank(tmp_path: Path) -> None:
    random = torch.Generator().manual_seed(0)
    rows = [torch.randn(count, 5, generator=random) for count in (3, 1, 4)]

    def act(group: AllReduce) -> tuple[float, Tensor, Tensor]:
        own = rows[group.rank]
        total, (mean, square) = group.means(len(own), [own.mean(0), own.square().mean(0)[None]])
        return float(total), mean, square

    (total, mean, square), *others = together(tmp_path, 3, act)
    assert total == 8
    torch.testing.assert_close(mean, torch.cat(rows).mean(0))
    torch.testing.assert_close(square, torch.cat(rows).square().mean(0)[None])
    assert all(torch.equal(mean, other) for _, other, _ in others)


def test_a_rank_without_rows_does_not_count(tmp_path: Path) -> None:
    def act(group: AllReduce) -> tuple[float, float]:
        own = torch.tensor([math.nan if group.rank else 7.0])
        total, (mean,) = group.means(0 if group.rank else 2, [own])
        rows, (empty,) = group.means(0, [torch.tensor([math.nan])])
        assert (float(rows), float(empty)) == (0, 0)
        return float(total), float(mean)

    assert together(tmp_path, 2, act) == [(2.0, 7.0)] * 2


def test_moments_are_those_of_all_ranks_together(tmp_path: Path) -> None:
    numbers = [torch.tensor([1e6, 1e6 + 1, 1e6 + 5]), torch.tensor([]), torch.tensor([1e6 - 3])]
    numbers = [part.double() for part in numbers]
    joined = torch.cat(numbers)
    for moments in together(tmp_path, 3, lambda group: group.moments(numbers[group.rank])):
        assert moments.rows == 4
        assert moments.mean == pytest.approx(joined.mean().item(), rel=TINY)
        assert moments.variance == pytest.approx(joined.var(correction=0).item(), rel=TINY)


def test_exchange_sends_bytes_of_any_length_to_every_rank(tmp_path: Path) -> None:
    short = [b"", b"one", b"\0two\0"]
    long = [b"", b"x" * all_reduce.ROOM, b"\0" * (all_reduce.ROOM + 1)]

    def act(group: AllReduce) -> list[Any]:
        return [group.exchange(contents[group.rank]) for contents in (short, long, short)]

    assert together(tmp_path, 3, act) == [[short, long, short]] * 3


def test_same_everywhere_detects_a_single_bit(tmp_path: Path) -> None:
    def act(group: AllReduce) -> tuple[bool, bool]:
        same, other = torch.ones(3, 2), torch.ones(4)
        if group.rank:
            other[3] = torch.nextafter(other[3], torch.tensor(2.0))
        return group.same_everywhere([same]), group.same_everywhere([same, other])

    assert together(tmp_path, 2, act) == [(True, False)] * 2


def test_waiting_for_a_closed_rank_raises(tmp_path: Path) -> None:
    def act(group: AllReduce) -> None:
        group.means(1, [torch.ones(2)])  # all have connected
        if group.rank == 0:
            group.close()
            return
        with pytest.raises(RankGone):
            group.means(1, [torch.ones(2)])

    together(tmp_path, 3, act)


def test_a_waiting_rank_calls_look_and_may_give_up(tmp_path: Path) -> None:
    leaving = threading.Event()

    def act(group: AllReduce) -> None:
        if group.rank:
            leaving.wait()
            return
        looks: list[int] = []
        group.look = lambda: looks.append(1)
        assert group.exchange(b"", lambda: len(looks) >= 2) is None
        leaving.set()

    together(tmp_path, 2, act)


def test_the_rendezvous_calls_look(tmp_path: Path) -> None:
    def look() -> None:
        raise LearnerLost("learner 1 is lost")

    with pytest.raises(LearnerLost, match="learner 1"):
        AllReduce(tmp_path, 0, 2, CPU, look)


def test_ranks_listen_on_loopback_only(tmp_path: Path) -> None:
    def listening() -> list[str]:
        found = psutil.Process().net_connections("inet")
        return [one.laddr.ip for one in found if one.status == psutil.CONN_LISTEN]

    before = len(listening())

    def act(group: AllReduce) -> list[str]:
        group.exchange(b"")
        return listening()

    during = together(tmp_path, 2, act)[0]
    assert len(during) > before
    assert set(during) == {"127.0.0.1"}


def test_a_torch_without_the_backend_is_refused_before_a_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    all_reduce.check_available(CPU)
    monkeypatch.setattr(distributed, "is_gloo_available", lambda: False)
    with pytest.raises(TrainingError, match=r"torch.distributed with gloo.*pip install .*torch"):
        all_reduce.check_available(CPU)
    monkeypatch.setattr(distributed, "is_gloo_available", lambda: True)
    monkeypatch.setattr(distributed, "is_nccl_available", lambda: False)
    with pytest.raises(TrainingError, match=r"on cuda need torch.distributed with nccl"):
        all_reduce.check_available(torch.device("cuda"))


# --- learners -------------------------------------------------------------------------------------


class Model(nn.Module):
    """A policy and value network that computes in the dtype of its parameters."""

    def __init__(self, shape: tuple[int] = (2,), outputs: int = 2):
        super().__init__()
        self.hidden = nn.Linear(shape[0], 7)
        self.policy, self.value = nn.Linear(7, outputs), nn.Linear(7, 1)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        hidden = torch.tanh(self.hidden(obs.to(self.policy.weight.dtype)))
        return self.policy(hidden), self.value(hidden)[:, 0]


def played(seed: int, width: int, steps: int = 4, gaps: bool = False) -> Trajectory:
    """A random trajectory in float64; with gaps, some rows are invalid."""
    random: Any = np.random.default_rng(seed)
    rows = (steps, width)
    terminated = random.random(rows) < 0.2
    valid = random.random(rows) < 0.7 if gaps else np.ones(rows, np.bool_)
    return Trajectory(
        obs=random.normal(size=(steps + 1, width, 2)),
        action=random.integers(2, size=rows),
        log_prob=np.log(random.uniform(0.3, 0.7, rows)),
        reward=random.normal(size=rows) * 10,
        terminated=terminated,
        truncated=np.zeros(rows, np.bool_),
        valid=valid,
        begins=np.zeros((steps + 1, width), np.bool_),
        value=random.normal(size=(steps + 1, width)),
        state=np.zeros((width, 0), np.float32),
        version=np.zeros(width, np.int64),
    )


OF_ROUNDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "A2C": (a2c, {"normalize_advantage": True}),
    "A2C with gaps": (a2c, {"normalize_values": False}),
    "PPO": (ppo, {"epochs": 3, "minibatches": 2, "target_kl": 0.01}),
    "PPO with gaps": (ppo, {"epochs": 3, "minibatches": 1, "target_kl": 0.01}),
}


def learns(name: str, others: AllReduce | None, rounds: list[Trajectory]) -> tuple[Any, ...]:
    """Weights, learning rate, moments and metrics of a learner after these rounds."""
    algorithm, changes = OF_ROUNDS[name]
    given = {"env": toys.Guess, "device": "cpu", "reward_clip": 0.0, "metrics": "norms"}
    config = algorithm.Config(**given, **changes)
    with MODEL_LOCK:  # the ranks are threads
        torch.manual_seed(0)
        learner: Learner[Any] = Learner(config, Model(), Discrete(2))
    learner.others = others
    metrics: dict[str, float] = {}
    for number, trajectory in enumerate(rounds):
        metrics = algorithm.update(learner, trajectory, number / 10)
    metrics.pop("train/explained_variance")  # it is of the learner's own batch
    moments = learner.value_scale.moments
    return toys.weights(learner.model), learner.learning_rate.value, moments, metrics


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("name", OF_ROUNDS)
def test_several_learners_match_one_learner_with_all_their_batches(
    name: str, size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Unshuffled minibatches: those of one learner are then the others' side by side.
    monkeypatch.setattr(torch, "randperm", lambda n, generator: torch.arange(n))
    gaps = "gaps" in name
    rounds = [
        [played(10 * number + rank, 3 + rank * gaps, gaps=gaps) for number in range(3)]
        for rank in range(size)
    ]
    joined = [stack(each) for each in zip(*rounds, strict=True)]
    weights, rate, moments, metrics = learns(name, None, joined)
    found = together(tmp_path, size, lambda group: learns(name, group, rounds[group.rank]))
    for of_rank in found:
        torch.testing.assert_close(of_rank[0], weights, rtol=0, atol=TINY)
        assert of_rank[1] == pytest.approx(rate, rel=TINY)
        assert of_rank[2] == pytest.approx(moments, rel=TINY)
        assert of_rank[3] == pytest.approx(metrics, rel=1e-9)
        assert torch.equal(of_rank[0], found[0][0])


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("kind", [dqn, rainbow])
def test_several_learners_with_a_replay_match_one_with_all_their_draws(
    kind: Any, tmp_path: Path
) -> None:
    config = kind.Config(env=toys.Guess, device="cpu", value_bound=2.0)

    def drawn(seed: int) -> Steps:
        random = torch.Generator().manual_seed(seed)
        obs, later = torch.randn(2, 6, 2, generator=random)
        action = torch.randint(3, (6,), generator=random)
        reward, discount, weight = torch.rand(3, 6, generator=random)
        return Steps(obs, action, reward, discount, later, weight)

    def learnt(others: AllReduce | None, batches: list[Steps]) -> Tensor:
        with MODEL_LOCK:
            torch.manual_seed(0)
            model = config.make_model(
                Model, ObservationLeaf((2,), np.dtype("float32")), Discrete(3)
            ).double()
        learner = QLearner(config, model, Discrete(3))
        learner.others = others
        for number, steps in enumerate(batches):
            dqn.update(learner, steps, 2_000 * number, 0.1 * number)
        return toys.weights(learner.model)

    batches = [[drawn(10 * rank + number) for number in range(3)] for rank in range(2)]

    def join(*each: Steps) -> Steps:
        parts: dict[str, Any] = {
            name: torch.cat([getattr(steps, name) for steps in each])
            for name in Steps._fields
            if name != "sequences"
        }
        return Steps(**parts)

    joined = [join(*each) for each in zip(*batches, strict=True)]
    weights = learnt(None, joined)
    for of_rank in together(tmp_path, 2, lambda group: learnt(group, batches[group.rank])):
        torch.testing.assert_close(of_rank, weights, rtol=0, atol=TINY)


def test_observation_statistics_are_those_of_all_learners(tmp_path: Path) -> None:
    seen = [torch.randint(256, (count, 1, 2, 2), dtype=torch.uint8) for count in (14, 7, 0)]

    def act(group: AllReduce) -> Tensor:
        normalizer = Normalizer((1, 2, 2))
        for part in (seen[group.rank], seen[-1 - group.rank]):
            networks.update_normalizers(normalizer, part, means=group.means)
        networks.update_normalizers(normalizer, seen[-1], means=group.means)  # no rank has rows
        return toys.weights(normalizer)

    alone = Normalizer((1, 2, 2))
    for part in (torch.cat(seen), torch.cat(seen[::-1])):
        networks.update_normalizers(alone, part)
    first, *rest = together(tmp_path, 3, act)
    torch.testing.assert_close(first, toys.weights(alone), rtol=1e-6, atol=1e-7)
    assert all(torch.equal(first, other) for other in rest)


def test_learners_with_different_parameters_stop_at_the_next_comparison(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("remotely_rl.learning.learner.COMPARE_EVERY", 2)
    config = a2c.Config(env=toys.Guess, device="cpu")

    def act(group: AllReduce) -> None:
        with MODEL_LOCK:
            learner: Learner[Any] = Learner(config, toys.network(), Discrete(2))
        learner.others = group
        trajectory = played(group.rank, 3)
        for _ in range(2):
            a2c.update(learner, in_single(trajectory), 0.0)
        with torch.no_grad():
            next(learner.model.parameters()).view(-1)[0] += 1e-3 * group.rank
        a2c.update(learner, in_single(trajectory), 0.0)
        with pytest.raises(LearnerLost, match="parameters differ after update 4"):
            a2c.update(learner, in_single(trajectory), 0.0)

    together(tmp_path, 2, act)


def in_single(trajectory: Trajectory) -> Trajectory:
    return dataclasses.replace(
        trajectory,
        **{
            name: getattr(trajectory, name).astype(np.float32)
            for name in ("obs", "log_prob", "reward", "value")
        },
    )
