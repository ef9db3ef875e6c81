"""The DQN family with an LSTM: equal to a slow loop over time; learning, resuming, sampling."""

import copy
import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import remotely
from remotely_rl import dqn, networks
from remotely_rl.algorithms.dqn import QActor, QLearner
from remotely_rl.environments.action_spaces import Discrete
from remotely_rl.environments.observations import ObservationLeaf
from remotely_rl.errors import TrainingError
from remotely_rl.experience.replay import Replay, Sequences
from remotely_rl.experience.trajectory import Trajectory
from remotely_rl.functions import categorical, q_learning, quantiles
from remotely_rl.runs import replaying
from tests.remotely_rl import toys

pytestmark = pytest.mark.usefixtures("no_curve")

CONFIG = dqn.Config(
    env=toys.Remember,
    lstm=8,
    actors=2,
    envs_per_actor=4,
    rollout_steps=4,
    sequence_length=4,
    burn_in=2,
    learn_from=100,
    replay_rows=2000,
    batch_size=32,
    replay_ratio=4,
    explore_steps=300,
    target_update_interval=100,
    device="cpu",
    learning_rate=0.01,
    learning_rate_end=0.01,
    n_step=2,
    log_interval_s=1e6,
    checkpoint_interval_s=1e6,
    target=0.95,
    total_steps=5_000,
)
SPEC = ObservationLeaf((3,), np.dtype("float32"))
FORMS: dict[str, dict[str, Any]] = {
    "values": {},
    "without double and dueling": {"double": False, "dueling": False},
    "C51": {"atoms": 7, "value_bound": 3.0},
    "QR-DQN": {"quantiles": 5},
}
NAN = float("nan")
GAMMA = 0.9


def learner(**changes: Any) -> QLearner:
    """Return a learner whose networks differ."""
    config = dataclasses.replace(CONFIG, **changes)
    torch.manual_seed(0)
    made = QLearner(config, config.make_model(None, SPEC, Discrete(3)), Discrete(3))
    other = config.make_model(None, SPEC, Discrete(3))
    made.target.load_state_dict(other.state_dict())
    for network in (made.model, made.target):
        for part in network.modules():
            if isinstance(part, networks.Normalizer):
                part.mean.copy_(torch.tensor([0.1, -0.2, 0.3]))
                part.variance.copy_(torch.tensor([1.5, 0.5, 2.0]))
    return made


def trajectories(count: int, steps: int, width: int, state: int) -> list[Trajectory]:
    """Return what an actor might: episodes that end in every way, and NaN where nothing is read."""
    random = np.random.default_rng(3)
    rows, total = [], count * steps
    over, begins = np.zeros(width, np.bool_), np.ones(width, np.bool_)
    for _ in range(total + 1):
        ends = random.random((2, width)) < 0.12
        crashes = random.random(width) < 0.05
        valid = ~over & ~crashes
        rows.append((valid, ends[0] & valid, ends[1] & valid, begins))
        # A row that is no experience is followed by the beginning of an episode.
        over, begins = (ends[0] | ends[1]) & valid, ~valid
    valid, terminated, truncated, begins = (np.stack(part) for part in zip(*rows, strict=True))
    obs = random.normal(size=(total + 1, width, 3)).astype(np.float32)
    reads = valid.copy()
    reads[1:] |= valid[:-1] & ~terminated[:-1]
    obs[~reads] = NAN
    reward = np.where(valid, random.normal(size=valid.shape), NAN).astype(np.float32)
    action = np.where(valid, random.integers(0, 3, valid.shape), 1_000_000)
    return [
        Trajectory(
            obs=obs[at : at + steps + 1],
            action=action[at : at + steps],
            log_prob=np.zeros((steps, width), np.float32),
            reward=reward[at : at + steps],
            terminated=terminated[at : at + steps] ^ ~valid[at : at + steps],
            truncated=truncated[at : at + steps],
            valid=valid[at : at + steps],
            begins=begins[at : at + steps + 1],
            value=np.zeros((steps + 1, width), np.float32),
            state=random.normal(size=(width, state)).astype(np.float32),
            version=np.zeros(width, np.int64),
        )
        for at in range(0, total, steps)
    ]


class Slow:
    """A Q-network computed in float64 for one observation at a time."""

    def __init__(self, network: networks.QNetwork):
        network = copy.deepcopy(network).double()
        model = network.model
        assert isinstance(model, networks.RecurrentMLP)
        self.network, self.model = network, model

    def step(self, obs: Any, state: Tensor, begins: bool) -> tuple[Tensor, Tensor]:
        """Return the heads [A, width] or [A], and the next state [S]."""
        model = self.model
        of_policy, of_value = (torch.zeros_like(state) if begins else state).chunk(2)
        inputs = model.normalizer(torch.from_numpy(obs)[None]).double()
        policy, of_policy = self.lstm(model.policy_lstm, model.policy_body(inputs)[0], of_policy)
        value, of_value = self.lstm(model.value_lstm, model.value_body(inputs)[0], of_value)
        out, v = model.policy(policy), model.value(value)
        if self.network.width > 1:
            out = out.view(-1, self.network.width)
            if self.network.is_dueling:
                out = out[:1] + out[1:] - out[1:].mean(0, keepdim=True)
        elif self.network.is_dueling:
            out = v + out - out.mean()
        return out, torch.cat([of_policy, of_value])

    def lstm(self, lstm: torch.nn.LSTM, inputs: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        hidden, cell = state.chunk(2)
        weight, recurrent, bias, more = lstm.all_weights[0]
        gates = weight @ inputs + bias + recurrent @ hidden + more
        i, f, g, o = gates.chunk(4)
        cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
        hidden = o.sigmoid() * cell.tanh()
        return hidden, torch.cat([hidden, cell])


def slow_loss(
    online: Slow,
    target: Slow,
    config: dqn.Config,
    fed: list[Trajectory],
    handles: list[int],
    weights: list[float],
    width: int,
) -> tuple[Tensor, list[list[float]]]:
    """Return the loss, and the error of each row to learn from, by sequence."""

    def joined(name: str) -> Any:
        parts = [getattr(one, name)[: one.steps] for one in fed]
        return np.concatenate([*parts, getattr(fed[-1], name)[fed[-1].steps :]])

    obs, begins, valid = joined("obs"), joined("begins"), joined("valid")
    terminated, truncated = joined("terminated"), joined("truncated")
    reward, action = joined("reward"), joined("action")
    losses, errors = [], list[list[float]]()
    for handle, weight in zip(handles, weights, strict=True):
        first, column = divmod(handle, width)
        state = torch.from_numpy(fed[first // config.rollout_steps].state[column]).double()
        last = first + config.burn_in + config.sequence_length
        heads = {}
        for name, slow in (("online", online), ("target", target)):
            memory = state
            for t in range(first, last + config.n_step):
                if t == first + config.burn_in:
                    memory = memory.detach()
                seen = np.nan_to_num(obs[t, column])
                heads[name, t], memory = slow.step(seen, memory, bool(begins[t, column]))
        errors.append([])
        for t in range(first + config.burn_in, last):
            if not valid[t, column]:
                continue
            total, discount, at = 0.0, 1.0, t
            while at < t + config.n_step and valid[at, column]:
                total += discount * float(reward[at, column])
                discount *= GAMMA
                at += 1
                if terminated[at - 1, column]:
                    discount = 0.0
                if terminated[at - 1, column] or truncated[at - 1, column]:
                    break
            bootstraps = {name: heads[name, at].detach() for name in ("online", "target")}
            chooser = online.network.means(bootstraps["online" if config.double else "target"])
            value = bootstraps["target"][chooser.argmax()]
            q = heads["online", t][action[t, column]]
            loss, error = loss_of(online.network, q, value, total, discount)
            losses.append(weight * loss)
            errors[-1].append(error)
    return torch.stack(losses).mean(), errors


def loss_of(
    network: networks.QNetwork, q: Tensor, value: Tensor, reward: float, discount: float
) -> tuple[Tensor, float]:
    if network.is_categorical:
        one = torch.ones(1, dtype=torch.float64)
        target = categorical.project(
            value.softmax(-1)[None], reward * one, discount * one, network.atoms
        )[0]
        error = categorical.kl_divergence(q.detach()[None], target[None])[0]
        return categorical.cross_entropy(q, target), float(error)
    target = reward + discount * value
    if network.is_distributional:
        error = quantiles.wasserstein(q.detach()[None], target[None])[0]
        return quantiles.quantile_huber(q[None], target[None])[0], float(error)
    return F.huber_loss(q, target), abs(float(target - q.detach()))


@pytest.mark.parametrize("changes", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("burn_in", [0, 3])
def test_an_update_equals_a_loop_over_time(burn_in: int, changes: dict[str, Any]) -> None:
    ours = learner(burn_in=burn_in, sequence_length=5, n_step=3, lstm=4, **changes)
    form = replaying.sequences_of(ours.config, ours.model)
    assert form == Sequences(5, burn_in, 4, 16)
    fed = trajectories(12, steps=4, width=3, state=16)
    replay = Replay(3 * 60, 3, fed[0], 3, GAMMA, alpha=0.6, sequences=form)
    for trajectory in fed:
        replay.append(trajectory)
    spread = replay.draw(50)
    replay.update(spread.rows, np.linspace(1, 9, 50))
    draw = replay.draw(8, beta=0.5)
    steps = replaying.to_device(ours, draw)
    assert draw.sequences is not None

    heads = dqn.compute_heads(ours, steps)
    target = dqn.compute_targets(ours, steps, heads)
    taken = q_learning.taken(heads.online, steps.action)
    loss, priority = dqn.compute_errors(ours.model, taken, target)
    total = (steps.weight * loss).mean()
    total.backward()  # type: ignore[no-untyped-call]

    weights = dict(zip(draw.sequences.column.tolist(), draw.weight.tolist(), strict=True))
    assert len(set(weights.values())) > 1
    slow, sequences = Slow(ours.model), range(len(draw.rows))
    expected, errors = slow_loss(
        slow,
        Slow(ours.target),
        ours.config,
        fed,
        draw.rows.tolist(),
        [weights[n] for n in sequences],
        3,
    )
    expected.backward()  # type: ignore[no-untyped-call]
    assert total.item() == pytest.approx(expected.item(), rel=1e-5)
    for our, its in zip(ours.model.parameters(), slow.network.parameters(), strict=True):
        if our.grad is None:  # the value's, if it is not in the heads
            assert its.grad is None or not its.grad.any()
            continue
        torch.testing.assert_close(our.grad.double(), its.grad, rtol=1e-3, atol=1e-5)
    wanted = [0.9 * max(each) + 0.1 * np.mean(each) for each in errors]
    assert draw.priorities(priority.numpy()) == pytest.approx(wanted, rel=1e-4)


@pytest.mark.usefixtures("local")
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"atoms": 21, "value_bound": 2.0, "noisy": True, "prioritized_alpha": 0.5},
        {"quantiles": 10, "overlap": True, "actors": 4, "sampling": "alternating"},
    ],
    ids=str,
)
def test_what_was_shown_a_step_ago_is_remembered(changes: dict[str, Any], tmp_path: Path) -> None:
    config = dataclasses.replace(CONFIG, **changes)
    assert "is reached" in dqn.train(config, run=tmp_path / "run").ended


@pytest.mark.usefixtures("local")
def test_a_network_without_a_memory_does_not_learn_it(tmp_path: Path) -> None:
    config = dataclasses.replace(CONFIG, lstm=0, total_steps=1_000)
    assert "is reached" not in dqn.train(config, run=tmp_path / "run").ended


@pytest.mark.usefixtures("local")
def test_a_model_of_your_own_with_a_memory_learns_it_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = dataclasses.replace(CONFIG, lstm=0)
    done = dqn.train(config, toys.with_a_memory, run=tmp_path / "run")
    assert "is reached" in done.ended
    assert "sequence_length=4 has no effect" not in capsys.readouterr().out
    said = " ".join(config.remarks())
    assert "sequence_length=4 has no effect: the network has no memory: lstm is 0" in said


@pytest.mark.usefixtures("local")
@pytest.mark.parametrize("changes", [{}, {"prioritized_alpha": 0.5, "noisy": True}], ids=str)
def test_a_resumed_run_repeats_an_uninterrupted_one_bit_for_bit(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    config = dataclasses.replace(CONFIG, target=None, anneal_steps=1000, **changes)
    toys.assert_resumed_to_the_bit(dqn.train, config, (200, 300), tmp_path)


@pytest.mark.usefixtures("local")
def test_actors_play_with_the_state_that_they_send(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = CONFIG.make_model(None, ObservationLeaf((2,), np.dtype("float32")), Discrete(2))
    for noisy in (False, True):
        if noisy:
            networks.make_noisy(model)
        config = dataclasses.replace(CONFIG, noisy=noisy)
        actor = remotely.local(QActor, config, model, 5)
        actor.sample()  # at random, and the memory sees it
        before = actor.players[0].memory.clone()
        seen = actor.sample().trajectory
        assert np.array_equal(seen.state, before.numpy())
        if noisy:
            continue
        obs, begins = torch.from_numpy(seen.obs), torch.from_numpy(seen.begins)
        with torch.no_grad():
            state = model(obs[:-1], before, begins[:-1])[2]
        torch.testing.assert_close(actor.players[0].memory, state)


@pytest.mark.usefixtures("local")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_size": 30}, r"batch_size \(30\) must be a multiple of sequence_length \(4\)"),
        ({"replay_rows": 200, "burn_in": 20}, r"need at least 30: burn_in, sequence_length, n_st"),
    ],
)
def test_sequences_that_do_not_fit_are_refused(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(TrainingError, match=message):
        dqn.train(dataclasses.replace(CONFIG, **changes), run=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("local")
def test_a_replay_with_another_stride_is_refused_at_resume(tmp_path: Path) -> None:
    config = dataclasses.replace(CONFIG, target=None, total_steps=200)
    dqn.train(config, run=tmp_path / "run")
    longer = dataclasses.replace(config, total_steps=250)
    with pytest.raises(TrainingError, match="steps between sequences is 4, but this one's is 8"):
        dqn.train(dataclasses.replace(longer, rollout_steps=8), resume=tmp_path / "run")
    more = dataclasses.replace(longer, sequence_length=8, burn_in=1)
    assert dqn.train(more, resume=tmp_path / "run").new_steps
