"""Tests of evaluation: which games count, how the agent acts, and the numbers."""

import dataclasses
import itertools
import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result
from torch import nn

import remotely_rl
from remotely_rl import a2c, networks, user_code
from remotely_rl.acting.evaluation import (
    STUDENT_T,
    Evaluation,
    half_interval,
    measure,
    quotas,
    with_progress,
)
from remotely_rl.acting.policy import Policy, Trained, one_thread
from remotely_rl.agents import load
from remotely_rl.agents.evaluation import evaluate
from remotely_rl.cli import main
from remotely_rl.config import Common
from remotely_rl.environments import action_spaces
from remotely_rl.errors import TrainingError
from remotely_rl.runs import run_folder, training
from tests.remotely_rl import toys

pytestmark = pytest.mark.usefixtures("local")

TINY = {
    "actors": 1,
    "envs_per_actor": 2,
    "rollout_steps": 4,
    "random_start": 0,
    "total_steps": 8,
    "learner_threads": 1,
}


def train(run: Path, env: Any = "CartPole-v1", model: Any = None, **more: Any) -> Path:
    a2c.train(a2c.Config(env=env, **{**TINY, **more}), model, run=run)
    return run


@pytest.fixture(scope="module")
def trained_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REMOTELY_LOCAL", "1")
        return train(tmp_path_factory.mktemp("once") / "run")


@pytest.fixture
def run(trained_once: Path, tmp_path: Path) -> Path:
    """A copy of a run folder, for a test to modify."""
    return shutil.copytree(trained_once, tmp_path / "run")


def invoke(*command: str) -> Result:
    return CliRunner().invoke(main, command)


def untrained(env: Any, **more: Any) -> Trained:
    config = a2c.Config(env=env, **more)
    return Trained(config, training.make_learner(config).model.eval())


# --- which games count ----------------------------------------------------------------------------


def test_every_environment_plays_its_quota_of_games() -> None:
    agent = untrained(toys.Counting)
    lengths = itertools.cycle([2, 30])  # fifteen short games end during a long one
    config = a2c.Config(env=lambda: toys.Counting(next(lengths)))
    done = measure(agent._replace(config=config), episodes=5, greedy=False, envs=2)
    assert done.lengths == [2, 2, 2, 30, 30]
    assert quotas(30, 16) == [2] * 14 + [1] * 2
    assert quotas(4, 4) == [1] * 4


def test_no_more_environments_are_made_than_there_are_games() -> None:
    made = []

    def make() -> toys.Counting:
        made.append(toys.Counting())
        return made[-1]

    measure(untrained(toys.Counting)._replace(config=a2c.Config(env=make)), 3, greedy=True)
    assert len(made) == 3


def test_scores_are_not_clipped(tmp_path: Path) -> None:
    run = train(tmp_path / "run", toys.Counting, reward_clip=1.0)
    done = evaluate(run, 4, env=toys.Counting)
    assert done.scores == [60.0] * 4
    assert done.lengths == [3] * 4


@pytest.mark.parametrize("source", [toys.Guess, toys.guess_in_pairs])
def test_games_are_separated_in_every_kind_of_environment(source: Any) -> None:
    assert measure(untrained(source), 9, greedy=True, envs=2).lengths == [1] * 9


def test_an_environment_that_crashes_in_every_episode_ends_the_evaluation() -> None:
    fragile = untrained(toys.Counting)._replace(config=a2c.Config(env=toys.Fragile))
    said = r"crashed 10 times without a whole episode; .* broke"
    with pytest.raises(TrainingError, match=said):
        measure(fragile, episodes=2, greedy=True)


def test_crashed_episodes_do_not_count_and_too_many_crashes_raise() -> None:
    class Breaks(toys.Guess):
        chance = 0.02

        def step(self, action: int) -> Any:
            if self.np_random.random() < self.chance:
                raise RuntimeError("the simulator broke")
            return super().step(action)

    agent = untrained(Breaks)
    assert measure(agent, 100, greedy=True, envs=4).lengths == [1] * 100
    Breaks.chance = 1.0
    said = r"crash too often: .* the simulator broke\. Fix the environment$"  # no setting of a run
    with pytest.raises(TrainingError, match=said):
        measure(agent, 9, greedy=True, envs=2)


def test_a_lost_life_does_not_end_a_game_even_if_it_did_in_training() -> None:
    agent = untrained("ALE/Breakout-v5", life_loss_is_terminal=True)
    envs = agent.environments(1)
    with one_thread():
        for _, step in agent.play(envs, envs.reset(3), greedy=False, seed=3):
            if step.terminated.any():
                break
    assert len(envs.pop_episodes()) == 1
    _, _, _, _, info = envs.vector.step(np.zeros(1, np.int64))
    assert info["lives"].tolist() == [5]  # a new game
    envs.close()


# --- how the agent acts ---------------------------------------------------------------------------


def test_the_seed_determines_the_games(run: Path) -> None:
    threads = torch.get_num_threads()
    first = evaluate(run, 6, seed=1)
    assert evaluate(run, 6, seed=1) == first
    assert evaluate(run, 6, seed=2) != first
    assert torch.get_num_threads() == threads


def test_greedy_takes_the_most_likely_action_and_sampled_follows_the_policy() -> None:
    model = toys.network()
    with torch.no_grad():
        model.policy.weight.zero_()
        model.policy.bias.copy_(torch.tensor([0.0, math.log(3)]))  # 1 with a probability of 3 / 4
    obs, begins = np.zeros((4000, 2), np.float32), np.zeros(4000, np.bool_)
    two = action_spaces.Discrete(2)
    assert Policy(Common(), model, two, 4000, greedy=True, seed=0).act(obs, begins).mean() == 1
    drawn = Policy(Common(), model, two, 4000, greedy=False, seed=0).act(obs, begins).mean()
    assert drawn == pytest.approx(0.75, abs=0.03)


def test_the_recurrent_state_is_reset_where_an_episode_begins() -> None:
    policy = Policy(Common(), toys.CountsSteps(), action_spaces.Discrete(4), 2, greedy=True, seed=0)
    obs = np.zeros((2, 1), np.float32)
    begins = [[True, True], [False, False], [True, False], [False, False]]
    acted = [policy.act(obs, np.array(row)).tolist() for row in begins]
    assert acted == [[0, 0], [1, 1], [0, 2], [1, 3]]


# --- loading --------------------------------------------------------------------------------------


def test_the_last_or_the_best_checkpoint_is_loaded(run: Path) -> None:
    last = toys.weights(load.load(run).model)
    content = torch.load(run / "checkpoint.pt", weights_only=True)
    content["learner"]["model"]["policy.bias"] += 1
    torch.save(content, run / "best.pt")
    assert torch.equal(toys.weights(load.load(run, "last").model), last)
    assert not torch.equal(toys.weights(load.load(run, "best").model), last)


def test_a_printed_agent_names_its_algorithm_environment_and_steps(run: Path) -> None:
    steps = torch.load(run / "checkpoint.pt", weights_only=True)["counters"]["env_steps"]
    assert repr(remotely_rl.load(run)) == f"<Agent: a2c on CartPole-v1, {steps:,} steps>"


def test_evaluation_does_not_unpickle_the_actors_state(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = torch.load(run / "checkpoint.pt", weights_only=True)
    assert content["actors"][0].numel() > 0
    monkeypatch.setattr("cloudpickle.loads", None)
    monkeypatch.setattr("pickle.loads", None)
    evaluate(run, 1)


def test_the_users_own_model_must_be_passed(tmp_path: Path) -> None:
    def wide(shape: tuple[int, ...], outputs: int) -> nn.Module:
        return networks.RecurrentMLP(shape, outputs, 8)

    run = train(tmp_path / "run", model=wide)
    assert len(evaluate(run, 2, model=wide).scores) == 2
    with pytest.raises(
        TrainingError, match=r"^was it trained with .* model=, or --model FILE\.py:NAME"
    ):
        evaluate(run, 2)


def test_another_environment_with_the_same_spaces_can_be_played(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = dataclasses.replace(gymnasium.spec("CartPole-v1"), max_episode_steps=5)
    monkeypatch.setitem(gymnasium.registry, "CartPole-v1-short", short)
    done = invoke("evaluate", str(run), "--env", "CartPole-v1-short", "--episodes", "2", "--greedy")
    assert done.exit_code == 0, done.output
    assert "2 episodes, from 5 to 5, 5 steps each" in done.output


# --- games without an end -------------------------------------------------------------------------


class Endless(toys.Counting):
    """Never ends; the reward of each step is 10."""

    def step(self, action: int) -> Any:
        obs, _, _, _, info = super().step(action)
        return obs, 10.0, False, False, info


def test_an_evaluation_stops_after_steps_with_the_games_that_have_ended() -> None:
    agent = untrained(toys.Counting)
    lengths = itertools.cycle([2, 30])
    config = a2c.Config(env=lambda: toys.Counting(next(lengths)))
    done = measure(agent._replace(config=config), episodes=5, greedy=False, envs=2, steps=9)
    assert done.lengths == [2, 2, 2]
    said = r"no episode has ended in 9 steps of 2 environments; the mean reward of a step was 10$"
    with pytest.raises(TrainingError, match=said):
        measure(agent._replace(config=a2c.Config(env=Endless)), 5, greedy=True, envs=2, steps=9)


def test_progress_is_printed_every_ten_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    now = itertools.count(0, 4)  # seconds
    turns = with_progress(iter("abcdefg"), lambda turn: f"{turn} turns", lambda: next(now))
    assert "".join(turns) == "abcdefg"
    assert capsys.readouterr().err.splitlines() == ["3 turns", "6 turns"]


# --- numbers --------------------------------------------------------------------------------------


def test_the_interval_is_that_of_students_t() -> None:
    # Standard deviation 1, two degrees of freedom: 4.303 / sqrt(3).
    assert half_interval([1.0, 2.0, 3.0]) == pytest.approx(2.4843, abs=1e-3)
    assert math.isnan(half_interval([1.0]))
    assert half_interval([5.0, 5.0]) == 0


def test_95_percent_of_the_intervals_contain_the_true_mean() -> None:
    rng = np.random.default_rng(1)
    games = rng.normal(3.0, 2.0, (4000, 8))
    hits = [abs(np.mean(row) - 3.0) <= half_interval(list(row)) for row in games]
    assert np.mean(hits) == pytest.approx(0.95, abs=0.012)


def test_the_table_of_students_t_is_monotonic() -> None:
    values = [t for _, t in sorted(STUDENT_T.items())]
    assert values == sorted(values, reverse=True)
    assert min(values) > 1.96


@pytest.mark.parametrize(
    ("scores", "said"),
    [
        ([19.0, 20.0] * 15, "sampled  19.5 ± 0.2 (95 %), 30 episodes, from 19 to 20"),
        ([21.0] * 3, "sampled  21.0 ± 0.0 (95 %), 3 episodes, from 21 to 21"),
        ([0.95] * 4, "sampled  0.95 ± 0.00 (95 %), 4 episodes, from 0.95 to 0.95"),
        ([0.0, 1.0] * 400, "sampled  0.50 ± 0.03 (95 %), 800 episodes, from 0 to 1"),
        ([0.7100000158, 0.0], "sampled  0.4 ± 4.5 (95 %), 2 episodes, from 0 to 0.71"),
        ([0.0, 4e6], "sampled  2,000,000.0 ± 25,420,000.0 (95 %), 2 episodes, from 0 to 4,000,000"),
    ],
)
def test_an_evaluation_is_one_line(scores: list[float], said: str) -> None:
    evaluated = Evaluation(False, scores, [1742] * len(scores))
    assert str(evaluated) == f"{said}, 1,742 steps each"
    alone = Evaluation(True, [-21.0], [1742])  # no interval
    assert str(alone) == "greedy   -21.0, 1 episode, 1,742 steps"


# --- the command ----------------------------------------------------------------------------------


def test_evaluate_prints_both_modes_or_the_chosen_one(run: Path) -> None:
    done = invoke("evaluate", str(run), "--episodes", "3")
    assert done.exit_code == 0, done.output
    assert [line.split()[0] for line in done.output.splitlines()] == ["sampled", "greedy"]
    done = invoke("evaluate", str(run), "--episodes", "3", "--greedy")
    assert [line.split()[0] for line in done.output.splitlines()] == ["greedy"]
    assert "3 episodes, from" in done.output


def test_evaluate_prints_json(run: Path) -> None:
    done = invoke("evaluate", str(run), "--episodes", "1", "--json")
    numbers = json.loads(done.output)
    assert numbers.keys() == {"sampled", "greedy"}
    assert numbers["greedy"]["scores"] == [numbers["greedy"]["mean"]]
    assert numbers["greedy"]["interval_95"] is None


def test_evaluate_takes_environment_and_model_from_files(tmp_path: Path) -> None:
    file = tmp_path / "my_own_game.py"
    file.write_text(
        "from remotely_rl import networks\n"
        "from tests.remotely_rl import toys\n"
        "class Game(toys.Counting): pass\n"
        "class Net(networks.MLP): pass\n"
    )
    run = train(tmp_path / "run", toys.Counting)
    command = ["evaluate", str(run), "--episodes", "2", "--greedy"]
    done = invoke(*command, "--env", f"{file}:Game", "--model", f"{file}:Net")
    assert done.exit_code == 0, done.output
    assert "60.0 ± 0.0" in done.output


def test_an_environment_defined_in_a_script_must_be_passed_again(tmp_path: Path) -> None:
    class Own(toys.Counting):
        pass

    done = invoke("evaluate", str(train(tmp_path / "run", Own)))
    assert done.exit_code == 2
    assert "<locals>.Own, which Gymnasium does not know" in done.output
    assert "--env FILE.py:NAME" in done.output


def test_a_run_folder_names_the_file_of_its_environments(tmp_path: Path) -> None:
    file = tmp_path / "another_own_game.py"
    file.write_text("from tests.remotely_rl import toys\nclass Game(toys.Counting): pass\n")
    run = train(tmp_path / "run", user_code.named_in("--env", f"{file}:Game"))
    command = ["evaluate", str(run), "--episodes", "2", "--greedy"]
    assert invoke(*command).exit_code == 0

    moved = file.rename(run / file.name)
    done = invoke(*command)
    assert done.exit_code == 2
    assert f":Game, and there is no file {file}; pass it with env= or --env FILE" in done.output

    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps({**config, "env_source": f"{moved}:Game"}))
    done = invoke(*command)
    assert done.exit_code == 2
    assert "code in the folder of a run is not executed: pass it" in done.output


def test_a_run_folder_names_the_file_of_its_model(tmp_path: Path) -> None:
    file = tmp_path / "my_own_net.py"
    file.write_text(
        "from torch import nn\n"
        "from remotely_rl import networks\n"
        "class Net(networks.MLP):\n"
        "    def __init__(self, shape, outputs):\n"
        "        super().__init__(shape, outputs)\n"
        "        self.extra = nn.Linear(1, 1)\n"
    )
    net = user_code.named_in("--model", f"{file}:Net")
    run = train(tmp_path / "run", model=net)
    begun = a2c.Config(env="CartPole-v1", **TINY)  # type: ignore[arg-type]
    a2c.train(begun, run=tmp_path / "second", initial=run)
    a2c.train(dataclasses.replace(begun, total_steps=16), resume=tmp_path / "second")

    assert isinstance(load.load(run).model, net)
    assert isinstance(load.load(tmp_path / "second").model, net)
    file.unlink()
    with pytest.raises(
        TrainingError, match=r"with the model .*pass it with model= or --model FILE"
    ):
        load.load(run)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--episodes", "0"], "episodes must be at least 1, not 0"),
        (["--envs", "0"], "envs must be at least 1, not 0"),
        (["--seed", "-1"], "seed must be at least 0, not -1"),
        (["--checkpoint", "first"], "'first' is not one of 'best', 'last'"),
        (["--checkpoint", "best"], "has no best.pt: too few episodes have ended"),
        (["--env", "nowhere.py:Env"], "Error: there is no file nowhere.py"),
        (
            ["--env", "Acrobot-v1"],
            "are the observations and actions of Acrobot-v1 those of CartPol",
        ),
        (["--env", "cartpole"], "did you mean 'CartPole-v1'"),
        (["--steps", "0"], "steps must be at least 1, not 0"),
    ],
)
def test_mistakes_on_the_command_line_are_reported(
    run: Path, options: list[str], said: str
) -> None:
    done = invoke("evaluate", str(run), *options)
    assert done.exit_code == 2
    assert said in done.output
    assert "Traceback" not in done.output


def remove(name: str) -> Callable[[Path], object]:
    return lambda run: (run / name).unlink()


def write(name: str, text: str) -> Callable[[Path], object]:
    return lambda run: (run / name).write_text(text)


def config(algorithm: str, **fields: Any) -> Callable[[Path], object]:
    content = {"algorithm": algorithm, "config": {"env": "CartPole-v1"} | fields}
    return write("config.json", json.dumps(content))


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (shutil.rmtree, "there is no run folder"),
        (remove("config.json"), "is not a run folder: it has no config.json"),
        (write("config.json", "{"), "config.json cannot be read"),
        (write("config.json", "[1]"), "does not name the algorithm and the environment"),
        (write("config.json", '{"algorithm": "a2c", "config": {"env": 7}}'), "does not name"),
        (config("a2d"), "was trained by a2d, which is not in remotely_rl or in a known file"),
        (config("a2c", gama=1), "'gama', did you mean 'gamma'"),
        (config("a2c", gamma="high"), "gamma must be a number, not 'high'"),
        (config("a2c", env="CartPole-v9"), "was trained on CartPole-v9, which Gymnasium"),
        (
            config("a2c", env="Acrobot-v1"),
            "Acrobot-v1 has other spaces than the environment of training",
        ),
        (remove("checkpoint.pt"), "has no checkpoint.pt: the run has not saved one yet"),
        (write("checkpoint.pt", "?"), "cannot be read as a checkpoint"),
        (
            lambda run: torch.save({"format": run_folder.FORMAT}, run / "checkpoint.pt"),
            "holds no model",
        ),
    ],
)
def test_an_incomplete_folder_raises_an_error_that_says_why(
    run: Path, harm: Callable[[Path], object], said: str
) -> None:
    harm(run)
    with pytest.raises(TrainingError) as refused:
        evaluate(run)
    assert said in str(refused.value)
