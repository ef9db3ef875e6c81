"""DQN and its variants: hand-worked targets, refused settings, learning and resuming."""

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import remotely
from remotely_rl import dqn, networks
from remotely_rl.agents import load
from remotely_rl.algorithms.dqn import QActor, QLearner
from remotely_rl.environments.action_spaces import Discrete, MultiDiscrete
from remotely_rl.environments.observations import ObservationLeaf
from remotely_rl.errors import TrainingError
from remotely_rl.runs import replaying
from remotely_rl.runs.replaying import Steps
from tests.remotely_rl import toys

pytestmark = pytest.mark.usefixtures("no_curve")

CONFIG = dqn.Config(
    env=toys.Guess,
    actors=2,
    envs_per_actor=4,
    rollout_steps=4,
    learn_from=200,
    replay_rows=2000,
    batch_size=32,
    replay_ratio=4,
    explore_steps=1000,
    target_update_interval=100,
    device="cpu",
    learning_rate=0.01,
    learning_rate_end=0.01,
    n_step=1,
    log_interval_s=1e6,
    checkpoint_interval_s=1e6,
    target=0.95,
    total_steps=20_000,
)
SPEC = ObservationLeaf((2,), np.dtype("float32"))
FAMILY: dict[str, dict[str, Any]] = {
    "plain": {"double": False, "dueling": False},
    "prioritized": {"prioritized_alpha": 0.5},
    "C51": {"atoms": 51, "value_bound": 2.0},
    "QR-DQN": {"quantiles": 20},
    "Rainbow": {"atoms": 51, "value_bound": 2.0, "noisy": True, "prioritized_alpha": 0.5},
    "Ape-X's epsilons": {"epsilon": 0.4, "epsilon_spread": 7.0},
    "overlap": {"overlap": True},
    "BBF's bets": {
        "n_step_start": 3,
        "gamma_start": 0.9,
        "anneal_updates": 100,
        "weight_decay": 0.01,
        "n_step": 2,
    },
}


def learner(seed: int = 0, **changes: Any) -> QLearner:
    config = dataclasses.replace(CONFIG, **changes)
    torch.manual_seed(seed)
    return QLearner(config, config.make_model(None, SPEC, Discrete(3)), Discrete(3))


def make_constant(network: networks.QNetwork, *values: float) -> None:
    """Make a network without dueling heads return these values for every observation."""
    model = network.model
    assert isinstance(model, networks.MLP)
    with torch.no_grad():
        model.policy.weight.zero_()
        model.policy.bias.copy_(torch.tensor(values))


def steps(reward: float = 1.0, discount: float = 0.5, weight: float = 1.0) -> Steps:
    def numbers(x: float) -> torch.Tensor:
        return torch.tensor([x, x])

    obs = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    action = torch.tensor([0, 2])
    return Steps(obs, action, numbers(reward), numbers(discount), obs, numbers(weight))


def targets(ours: QLearner, batch: Steps) -> torch.Tensor:
    return dqn.compute_targets(ours, batch, dqn.compute_heads(ours, batch))


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(("double", "value"), [(True, 0.5), (False, 5.0)])
def test_double_q_learning_bootstraps_from_the_online_networks_best_action(
    double: bool, value: float
) -> None:
    ours = learner(double=double, dueling=False)
    make_constant(ours.model, 1.0, 3.0, 2.0)
    make_constant(ours.target, 5.0, 0.5, 4.0)

    target = targets(ours, steps(reward=2.0, discount=0.5))

    assert target.tolist() == pytest.approx([2.0 + 0.5 * value] * 2)


def test_the_target_of_a_terminated_step_is_its_reward() -> None:
    atoms = learner(atoms=51, value_bound=10.0)
    for row in targets(atoms, steps(reward=5.23, discount=0.0)):
        assert row[[38, 39]].tolist() == pytest.approx([0.925, 0.075], abs=1e-4)

    target = targets(learner(quantiles=3), steps(reward=5.0, discount=0.0))
    assert target.tolist() == [[5.0] * 3] * 2


def test_priorities_are_absolute_errors_and_only_the_gradient_is_clipped() -> None:
    heads = torch.tensor([0.5, 4.0], requires_grad=True)

    loss, priority = dqn.compute_errors(learner().model, heads, torch.tensor([0.0, 1.0]))
    loss.sum().backward()  # type: ignore[no-untyped-call]

    assert loss.tolist() == pytest.approx([0.125, 2.5])
    assert priority.tolist() == pytest.approx([0.5, 3.0])
    assert heads.grad is not None
    assert heads.grad.tolist() == pytest.approx([0.5, 1.0])


def test_quantile_targets_are_the_reward_plus_discounted_quantiles() -> None:
    ours = learner(quantiles=2, dueling=False, double=False)
    make_constant(ours.target, 0.0, 1.0, 4.0, 6.0, -3.0, 9.0)  # means of 0.5, 5 and 3

    target = targets(ours, steps(reward=2.0, discount=0.5))

    assert target.tolist() == [[4.0, 5.0]] * 2


def test_quantiles_have_a_huber_loss_and_wasserstein_priorities() -> None:
    model = learner(quantiles=2).model
    heads, target = torch.tensor([[0.0, 4.0]]), torch.tensor([[2.0, 2.0]])

    loss, priority = dqn.compute_errors(model, heads, target)

    assert loss.tolist() == pytest.approx([0.25 * 1.5 + 0.25 * 1.5])
    assert priority.tolist() == [2.0]


def test_an_update_moves_the_values_of_the_actions_taken_towards_their_targets() -> None:
    ours = learner(dueling=False)
    before = ours.model(steps().obs)[0].detach()

    made = dqn.update(
        ours, steps(reward=before.max().item() + 5, discount=0.0), env_steps=0, progress=0
    )

    after = ours.model(steps().obs)[0].detach()
    assert float(after[0, 0]) > float(before[0, 0])
    assert float(after[1, 2]) > float(before[1, 2])
    assert made.priority.shape == (2,)
    assert bool((made.priority > 4).all())
    assert ours.version == 1
    taken = [float(before[0, 0]), float(before[1, 2])]
    assert made.metrics["train/q_mean"] == pytest.approx(np.mean(taken))
    assert made.metrics["train/td_error"] == pytest.approx(made.priority.mean())


@pytest.mark.parametrize("quantiles", [1, 5])
def test_learning_does_not_depend_on_the_scale_of_rewards(quantiles: int) -> None:
    weights = []
    for unit in (1.0, 1e-6, 1e6):
        ours = learner(quantiles=quantiles)
        ours.value_scale.update(torch.tensor([2.0 * unit, -unit]))
        dqn.update(ours, steps(reward=2.0 * unit), env_steps=0, progress=0)
        weights.append(toys.weights(ours.model))
    for other in weights[1:]:
        torch.testing.assert_close(other, weights[0], rtol=1e-4, atol=1e-5)


def test_a_transition_of_weight_zero_changes_nothing() -> None:
    ours = learner()
    before = toys.weights(ours.model)

    dqn.update(ours, steps(weight=0.0), env_steps=0, progress=0)

    torch.testing.assert_close(toys.weights(ours.model), before)


def test_the_target_network_is_updated_once_per_interval() -> None:
    ours = learner(target_update_interval=100)
    dqn.update(ours, steps(), env_steps=99, progress=0)
    before = toys.weights(ours.model)
    assert not torch.equal(toys.weights(ours.target), before)

    dqn.update(ours, steps(weight=0.0), env_steps=100, progress=0)

    assert torch.equal(toys.weights(ours.target), before)


def test_n_step_and_gamma_are_annealed_from_the_start() -> None:
    config = dataclasses.replace(
        CONFIG,
        n_step=3,
        n_step_start=10,
        gamma=0.997,
        gamma_start=0.97,
        anneal_updates=500,
    )

    assert [config.n_step_at(n) for n in (0, 250, 500, 999)] == [10, 5, 3, 3]
    horizons = [1 / (1 - config.gamma_at(n)) for n in (0, 250, 500)]
    assert horizons == pytest.approx([1 / 0.03, (1 / 0.03 / 0.003) ** 0.5, 1 / 0.003])
    plain = dataclasses.replace(CONFIG, gamma=1.0)
    assert (plain.n_step_at(7), plain.gamma_at(7)) == (1, 1.0)


@pytest.mark.usefixtures("local")
def test_a_run_draws_with_the_annealed_n_step_and_gamma(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[tuple[int, float]] = []
    draw = replaying.RunReplay.draw

    def spy(replay: replaying.RunReplay, progress: float, *, n_step: int, gamma: float) -> Any:
        drawn.append((n_step, gamma))
        return draw(replay, progress, n_step=n_step, gamma=gamma)

    monkeypatch.setattr(replaying.RunReplay, "draw", spy)
    config = dataclasses.replace(
        CONFIG,
        n_step=2,
        n_step_start=5,
        gamma_start=0.5,
        anneal_updates=10,
        target=None,
        total_steps=400,
    )
    dqn.train(config, run=tmp_path / "run")

    assert len(drawn) > 15
    assert drawn == [(config.n_step_at(n), config.gamma_at(n)) for n in range(len(drawn))]


def actor(env_steps: int, **changes: Any) -> QActor:
    config = dataclasses.replace(CONFIG, **changes)
    torch.manual_seed(0)
    made = remotely.local(QActor, config, config.make_model(None, SPEC, Discrete(2)), 5)
    made.env_steps = env_steps
    return made


def chosen(player: QActor) -> Any:
    """The actions for the current observations."""
    return player.act(player.players[0], player.players[0].obs, last=False).action


def test_actors_play_randomly_until_learning_starts_and_greedily_at_the_end() -> None:
    early, late = actor(0, epsilon=0.0), actor(10_000, epsilon=0.0)
    drawn = [chosen(early) for _ in range(100)]
    assert np.mean(drawn) == pytest.approx(0.5, abs=0.1)
    best = late.model(torch.from_numpy(late.players[0].obs))[0].argmax(-1).numpy()
    for _ in range(10):
        assert np.array_equal(chosen(late), best)


def test_noisy_layers_are_resampled_at_each_step_and_epsilon_is_zero() -> None:
    config = dataclasses.replace(CONFIG, noisy=True, epsilon=0.5)
    assert config.epsilons_at(10_000).tolist() == [0.0] * 4

    player = actor(10_000, noisy=True)
    chosen(player)
    first = player.model(torch.zeros(1, 2))[0]
    chosen(player)
    assert not torch.equal(first, player.model(torch.zeros(1, 2))[0])


def test_only_episodes_of_the_environment_with_the_lowest_epsilon_are_reported() -> None:
    player = actor(10_000, epsilon=0.4, epsilon_spread=7.0, rollout_steps=4)

    assert len(player.sample().episodes) == 2  # of eight: an episode ends every other step


@pytest.mark.usefixtures("local")
@pytest.mark.parametrize("changes", FAMILY.values(), ids=FAMILY)
def test_every_variant_learns_a_one_step_game(changes: dict[str, Any], tmp_path: Path) -> None:
    config = dataclasses.replace(CONFIG, **changes)

    assert "is reached" in dqn.train(config, run=tmp_path / "run").ended


@pytest.mark.usefixtures("here")
def test_actors_in_processes_learn_it_too(tmp_path: Path) -> None:
    assert "is reached" in dqn.train(CONFIG, run=tmp_path / "run").ended


@pytest.mark.usefixtures("local")
def test_the_action_values_of_a_known_chain_are_learnt(tmp_path: Path) -> None:
    # Three steps of (clipped) reward 1 for any action, then the end.
    config = dataclasses.replace(
        CONFIG,
        env=toys.Counting,
        reward_clip=1.0,
        gamma=0.5,
        n_step=2,
        epsilon=1.0,
        target=None,
        total_steps=4_000,
        learning_rate_end=1e-4,
        anneal_steps=3_500,
    )

    dqn.train(config, run=tmp_path / "run")

    model = load.load(tmp_path / "run", env=toys.Counting).model
    with torch.no_grad():
        q, _ = model(torch.tensor([[0.0], [1.0], [2.0]]))
    expected = torch.tensor([1.75, 1.5, 1.0])
    torch.testing.assert_close(q, expected[:, None].expand(3, 2), atol=0.01, rtol=0)


@pytest.mark.usefixtures("local")
def test_a_resumed_run_repeats_an_uninterrupted_one_bit_for_bit(tmp_path: Path) -> None:
    config = dataclasses.replace(
        CONFIG, target=None, n_step=3, anneal_steps=1000, prioritized_alpha=0.5, noisy=True
    )
    toys.assert_resumed_to_the_bit(dqn.train, config, (400, 800), tmp_path)


@pytest.mark.usefixtures("local")
@pytest.mark.parametrize("is_saved", [False, True])
def test_a_run_resumed_without_its_replay_refills_it_before_it_learns(
    is_saved: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = dataclasses.replace(CONFIG, target=None, save_replay=is_saved, total_steps=500)
    first = dqn.train(config, run=tmp_path / "run")
    assert (tmp_path / "run" / "replay").exists() == is_saved
    if is_saved:
        shutil.rmtree(tmp_path / "run" / "replay")

    more = dataclasses.replace(config, total_steps=first.env_steps + 100)  # less than learn_from
    again = dqn.train(more, resume=tmp_path / "run")

    why = "is gone" if is_saved else "was not saved"
    said = f"the replay {why}: the loaded policy first plays 200 steps"
    assert said in capsys.readouterr().out
    assert again.env_steps > first.env_steps
    assert again.updates == first.updates


@pytest.mark.usefixtures("local")
def test_a_replay_that_does_not_fit_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    run, config = tmp_path / "run", dataclasses.replace(CONFIG, target=None, total_steps=300)
    dqn.train(config, run=run)
    before = contents(run)
    longer = dataclasses.replace(config, total_steps=350)
    errors: dict[str, dict[str, Any]] = {
        "environments is 8, but this one's is 12: resume with the actors, envs_": {"actors": 3},
        "environments is 8, but this one's is 16": {"envs_per_actor": 8},
        f"rows is 2000, but this one's is 3000: .* or delete {run}/replay": {"replay_rows": 3000},
        "alpha is 0.0, but this one's is 0.5": {"prioritized_alpha": 0.5},
    }
    for message, change in errors.items():
        with pytest.raises(TrainingError, match=message):
            dqn.train(dataclasses.replace(longer, **change), resume=run)

    assert contents(run) == before
    assert dqn.train(dataclasses.replace(longer, n_step=3), resume=run).new_steps


@pytest.mark.usefixtures("local")
def test_a_new_replay_ratio_at_resume_applies_to_new_steps(tmp_path: Path) -> None:
    config = dataclasses.replace(CONFIG, target=None, total_steps=500)
    first = dqn.train(config, run=tmp_path / "run")

    more = dataclasses.replace(config, total_steps=700, replay_ratio=4 * config.replay_ratio)
    again = dqn.train(more, resume=tmp_path / "run")

    owed = (again.env_steps - first.env_steps) * more.replay_ratio / config.batch_size
    assert again.updates - first.updates == pytest.approx(owed, abs=1)


@pytest.mark.usefixtures("local")
def test_a_round_of_resets_only_is_skipped(tmp_path: Path) -> None:
    config = dataclasses.replace(
        CONFIG, env=toys.Counting, target=None, total_steps=200, rollout_steps=1, random_start=0
    )

    done = dqn.train(config, run=tmp_path / "run")  # episodes of all environments end together

    assert done.env_steps >= 200


@pytest.mark.usefixtures("local")
def test_the_number_of_updates_follows_the_replay_ratio(tmp_path: Path) -> None:
    config = dataclasses.replace(CONFIG, target=None, total_steps=2_000)

    for overlap in (False, True):
        done = dqn.train(
            dataclasses.replace(config, overlap=overlap), run=tmp_path / f"run-{overlap}"
        )
        owed = (done.env_steps - config.learn_from) * config.replay_ratio / config.batch_size
        assert done.updates == pytest.approx(owed, abs=1)


@pytest.mark.usefixtures("local")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"env": toys.Aim}, r"Discrete\(n\) action space.*use sac, td3 or ppo"),
        ({"learn_from": 3000}, r"learn_from \(3,000\) is more than replay_rows \(2,000\)"),
        ({"batch_size": 300}, r"batch_size \(300\) is more than learn_from \(200\)"),
        (
            {"envs_per_actor": 150, "n_step": 5},
            r"leaves 6 steps to each of 300 environments, which need at least 9",
        ),
        ({"atoms": 51, "value_bound": 0.0}, "value_bound must be more than 0"),
        ({"atoms": 51, "quantiles": 9}, r"atoms \(51\) and quantiles \(9\) are two forms"),
        ({"replay_ratio": 0.0}, "replay_ratio must be more than 0"),
        ({"rate_rule": "squrt"}, "rate_rule must be none, .*'squrt', did you mean 'sqrt'"),
    ],
)
def test_invalid_settings_environments_and_models_are_refused(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(TrainingError, match=message):
        dqn.train(dataclasses.replace(CONFIG, **changes), run=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_several_choices_at_once_are_refused() -> None:
    with pytest.raises(TrainingError, match="for several choices at once use ppo"):
        CONFIG.make_model(None, SPEC, MultiDiscrete((2, 3), (0, 0)))


@pytest.mark.usefixtures("local")
@pytest.mark.parametrize(
    ("bound", "count"),
    # Rewards of 10, 20 and 30, whose discounted sum is 59.2.
    [(10.0, 1), (40.0, 1), (60.0, 0)],
)
def test_a_discounted_return_beyond_value_bound_is_warned_about_once(
    bound: float, count: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = dataclasses.replace(
        CONFIG, env=toys.Counting, atoms=51, value_bound=bound, target=None, total_steps=600
    )
    dqn.train(config, run=tmp_path / "run")

    said = capsys.readouterr().out
    warning = f"a discounted return of 59.2 is beyond value_bound ({bound:g})"
    assert said.count(warning) == said.count("value_bound (") == count


@pytest.mark.parametrize(("rule", "factor"), [("none", 1.0), ("sqrt", 2.0), ("linear", 4.0)])
def test_rate_rule_scales_the_learning_rate_with_the_batch_size(rule: str, factor: float) -> None:
    ours = learner(
        batch_size=512, rate_rule=rule, learning_rate=6e-4, learning_rate_end=2e-4
    ).learning_rate

    assert (ours.value, ours.end) == pytest.approx((6e-4 * factor, 2e-4 * factor))
