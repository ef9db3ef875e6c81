"""Evaluations during training: when they start, their policy, and failures."""

import dataclasses
import math
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import remotely
from remotely_rl import Hook, a2c
from remotely_rl.acting.evaluation import Evaluation
from remotely_rl.config import Common
from remotely_rl.runs import evaluating, metrics, run_folder
from remotely_rl.runs.evaluating import Evaluations, MeasuredPolicy, columns_of
from tests.clusters import wait_until
from tests.remotely_rl import toys
from tests.remotely_rl.runs.sessions import TRAINED

CONFIG = a2c.Config(env=toys.FromFive, evaluate_every=100, evaluate_episodes=3, reward_clip=0)
EVALUATED = dataclasses.replace(TRAINED, evaluate_every=40, evaluate_episodes=2)
COLUMN = "evaluation/return_mean"


class Chosen(toys.Counting):
    """Episodes of one step: the reward is the action, and action 1 is a success."""

    def __init__(self) -> None:
        super().__init__(length=1)

    def step(self, action: int) -> Any:
        obs, _, terminated, truncated, info = super().step(action)
        return obs, float(action), terminated, truncated, info | {"success": action == 1}


class Endless(toys.Guess):
    def step(self, action: int) -> Any:
        obs, reward, _, _, info = super().step(action)
        return obs, reward, False, False, info


class Breaks(toys.Counting):
    """Raises in each step."""

    def step(self, action: int) -> Any:
        raise RuntimeError("no contact")


def always(action: int) -> nn.Module:
    model = toys.network(1)
    with torch.no_grad():
        model.policy.weight.zero_()
        model.policy.bias.copy_(torch.tensor([50.0, -50.0] if action == 0 else [-50.0, 50.0]))
    return model


def checkpoint(model: nn.Module) -> dict[str, Any]:
    return {"learner": {"model": model.state_dict()}, "counters": {"updates": 7}}


def evaluations(said: list[str] | None = None, saved: Any = None, **changes: Any) -> Evaluations:
    config: Common = dataclasses.replace(CONFIG, **{"env": Chosen, **changes})
    say = print if said is None else said.append
    return Evaluations(config, say, lambda env_steps: env_steps, saved or {})


def ended(made: Evaluations) -> MeasuredPolicy:
    found: list[MeasuredPolicy] = []

    def is_there() -> bool:
        if (measured := made.look(0.1)) is not None:
            found.append(measured)
        return bool(found) or not made.is_under_way

    wait_until(is_there, "the evaluation has ended")
    return found[0]


# --- one after the other --------------------------------------------------------------------------


@pytest.mark.usefixtures("local")
def test_evaluations_are_due_at_multiples_unless_one_is_running() -> None:
    made, model = evaluations(), always(0)
    assert [made.is_due(steps) for steps in (0, 99, 100, 250)] == [False, False, True, True]
    made.begin(130, checkpoint(model), model)
    assert not made.is_due(460)  # two more are due by then
    ended(made)
    assert made.is_due(460)
    made.begin(460, checkpoint(model), model)
    ended(made)
    assert not made.is_due(499)
    assert made.is_due(500)
    made.close()


@pytest.mark.usefixtures("local")
def test_an_evaluation_uses_the_policy_at_its_start_and_the_best_has_its_checkpoint() -> None:
    made, model = evaluations(), always(1)
    made.begin(100, checkpoint(model), model)
    model.load_state_dict(always(0).state_dict())  # training continues
    evaluation, best = ended(made)
    assert (evaluation.env_steps, evaluation.scores, evaluation.lengths) == (
        100,
        [1.0] * 3,
        [1] * 3,
    )
    assert evaluation.metrics == {"success": 1.0}
    assert best is not None
    assert best["counters"] == {"updates": 7}
    assert best["evaluations"] == {"env_steps": 100, "best": 1.0}
    for name, tensor in always(1).state_dict().items():
        assert torch.equal(best["learner"]["model"][name], tensor)

    made.begin(200, checkpoint(model), model)
    evaluation, best = ended(made)
    assert (evaluation.mean, evaluation.metrics, best) == (0.0, {"success": 0.0}, None)
    assert made.state() == {"env_steps": 200, "best": 1.0}
    made.close()


@pytest.mark.usefixtures("local")
def test_a_running_evaluation_restarts_in_a_resumed_run() -> None:
    made, model = evaluations(), always(0)
    made.begin(130, checkpoint(model), model)
    resumed = evaluations(saved=made.state())
    assert resumed.is_due(150)
    ended(made)
    resumed = evaluations(saved=made.state())
    assert not resumed.is_due(150)
    assert resumed.best == 0.0
    made.close()


@pytest.mark.usefixtures("local")
def test_sampled_evaluations_depend_on_the_seed_and_greedy_ones_do_not() -> None:
    scores = []
    model = toys.network(1)
    for seed, greedy in ((1, True), (1, False), (1, False), (2, False)):
        made = evaluations(evaluate_greedy=greedy, evaluate_episodes=40)
        made.begin(seed, checkpoint(model), model)
        scores.append(ended(made).evaluation.scores)
        made.close()
    assert len(set(scores[0])) == 1
    assert scores[1] == scores[2] != scores[3]


@pytest.mark.usefixtures("local")
@pytest.mark.parametrize("env", [Breaks, Chosen])
def test_training_continues_if_evaluations_fail(env: Any) -> None:
    said: list[str] = []
    made, model = evaluations(said, env=env), always(0)
    other = toys.network(2) if env is Chosen else model  # the parameters of another model
    made.begin(100, checkpoint(other), model)
    wait_until(lambda: made.look(0.1) is None and not made.is_under_way, "it has given up")
    assert said[-1].startswith("training continues without evaluations: ")
    assert not made.is_due(1_000)
    made.close()


def test_a_row_of_an_evaluation_has_mean_std_and_environment_metrics() -> None:
    evaluation = Evaluation(True, [1.0, 3.0], [10, 20], {"success": 0.5}, env_steps=70)
    tally = metrics.Tally()
    tally.evaluated(columns_of(evaluation), evaluation.metrics)
    row = tally.close(1.0)
    assert {name: number for name, number in row.items() if name.startswith("evaluation/")} == {
        "evaluation/env_steps": 70,
        "evaluation/episodes": 2,
        "evaluation/return_mean": 2.0,
        "evaluation/return_std": pytest.approx(math.sqrt(2)),
        "evaluation/length_mean": 15.0,
        "evaluation/success": 0.5,
    }


# --- in a run -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("local", "no_curve")
def test_evaluations_do_not_change_what_a_run_learns(tmp_path: Path) -> None:
    for name, config in (("without", TRAINED), ("with", EVALUATED)):
        a2c.train(config, run=tmp_path / name)
    toys.assert_same_bits(tmp_path / "without", tmp_path / "with")


@pytest.mark.usefixtures("local", "no_curve")
def test_the_end_of_a_run_waits_for_the_last_evaluation_and_best_pt_has_the_best_policy(
    tmp_path: Path,
) -> None:
    seen: list[Evaluation] = []

    class Sees(Hook):
        def on_evaluation(self, session: Any, evaluation: Evaluation) -> None:
            seen.append(evaluation)

    config = dataclasses.replace(
        EVALUATED, evaluate_every=100, evaluate_episodes=30, evaluate_greedy=False, total_steps=400
    )
    result = a2c.train(config, run=tmp_path / "run", hooks=[Sees()])
    rows = [row for row in metrics.read(tmp_path / "run/metrics.csv") if row[COLUMN] >= 0]
    assert [row["evaluation/env_steps"] for row in rows] == [one.env_steps for one in seen]
    assert [row[COLUMN] for row in rows] == pytest.approx([one.mean for one in seen], rel=1e-4)
    assert 400 <= rows[-1]["evaluation/env_steps"] == result.env_steps
    best = max(seen, key=lambda one: one.mean)  # the first of equal ones
    kept = run_folder.load_checkpoint(tmp_path / "run" / "best.pt")
    assert kept["counters"]["env_steps"] == best.env_steps
    assert kept["evaluations"]["best"] == best.mean

    longer = dataclasses.replace(config, total_steps=500)
    result = a2c.train(longer, resume=tmp_path / "run", hooks=[Sees()])
    assert seen[-1].env_steps == result.env_steps
    assert run_folder.load_checkpoint(tmp_path / "run" / "best.pt")["evaluations"]["best"] == max(
        one.mean for one in seen
    )


@pytest.mark.usefixtures("local", "no_curve")
def test_no_evaluation_starts_after_a_hook_has_stopped_the_run(tmp_path: Path) -> None:
    since: list[Evaluation] = []

    class Stops(Hook):
        def on_evaluation(self, session: Any, evaluation: Evaluation) -> None:
            if since or session.env_steps > (evaluation.env_steps or 0):  # the next one is due
                since.append(evaluation)
                session.stop("enough")

    config = dataclasses.replace(EVALUATED, evaluate_every=1, total_steps=10**9)
    assert a2c.train(config, run=tmp_path / "run", hooks=[Stops()]).ended == "enough"
    assert len(since) == 1


@pytest.mark.usefixtures("here", "no_curve")
def test_neither_training_nor_ctrl_c_waits_for_a_hanging_evaluation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(evaluating, "END_S", 0.0)
    config = dataclasses.replace(EVALUATED, env=Endless)
    assert a2c.train(config, run=tmp_path / "run").ended == "100 steps are done"
    assert "the last evaluation has not ended in 0 s: it is skipped" in capsys.readouterr().out

    class Interrupts(Hook):
        def on_update(self, session: Any, metrics: Any) -> None:
            if session.env_steps > 500:
                os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(evaluating, "END_S", 1e6)
    config = dataclasses.replace(config, total_steps=10**9)
    result = a2c.train(config, resume=tmp_path / "run", hooks=[Interrupts()])
    assert result.ended == "stopped by SIGINT"
    assert "evaluation" not in capsys.readouterr().out


@pytest.mark.usefixtures("here", "no_curve")
def test_an_evaluator_that_is_killed_is_replaced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Kills(Hook):
        killed_at = 0  # steps

        def on_update(self, session: Any, metrics: Any) -> None:
            pids = [one.pid for one in remotely.actors() if one.class_name == "Evaluator"]
            if pids and not self.killed_at:
                self.killed_at = session.env_steps
                os.kill(pids[0], signal.SIGKILL)

        def on_evaluation(self, session: Any, evaluation: Evaluation) -> None:
            if evaluation.env_steps and evaluation.env_steps > self.killed_at > 0:
                session.stop("evaluated again")

    config = dataclasses.replace(EVALUATED, total_steps=10**9)
    assert a2c.train(config, run=tmp_path / "run", hooks=[Kills()]).ended == "evaluated again"
    (said,) = [line for line in capsys.readouterr().out.splitlines() if "it is replaced" in line]
    assert said.startswith("evaluation: ")
    assert "ended with SIGKILL" in said
