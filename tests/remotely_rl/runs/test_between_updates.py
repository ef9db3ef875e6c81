"""Between the updates of a round, a run with a replay looks at its limits, signals and files."""

import dataclasses
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from remotely_rl import Hook, algorithms
from remotely_rl.runs import metrics
from remotely_rl.runs.ending import Clock
from tests.remotely_rl import toys
from tests.remotely_rl.space_toys import FOR_BOXES

pytestmark = pytest.mark.usefixtures("local", "no_curve")

NAMES = ["dqn", "c51", "qr_dqn", "rainbow", "sac", "td3", "crossq"]


def config_of(name: str, **more: Any) -> Any:
    given: dict[str, Any] = {
        "env": toys.Aim if name in FOR_BOXES else toys.Guess,
        "actors": 1,
        "envs_per_actor": 4,
        "rollout_steps": 8,
        "random_start": 0,
        "learn_from": 32,
        "batch_size": 16,
        "replay_ratio": 8.0,
        "replay_rows": 1_000,
        "save_replay": True,
        "total_steps": 96,
        "log_interval_s": 1e6,
        "checkpoint_interval_s": 1e6,
    }
    return algorithms.named(name).Config(**given | more)


class Does(Hook):
    """Does something at its third update."""

    def __init__(self, what: Any = lambda session: None):
        self.what = what
        self.steps: list[int] = []

    def on_update(self, session: Any, metrics: Any) -> None:
        self.steps.append(session.env_steps)
        if len(self.steps) == 3:
            self.what(session)


def interrupt(session: Any) -> None:
    os.kill(os.getpid(), signal.SIGINT)


def stop(session: Any) -> None:
    session.stop("enough")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("what", [interrupt, stop])
def test_a_run_ends_between_the_updates_of_a_round(name: str, what: Any, tmp_path: Path) -> None:
    hook, train = Does(what), algorithms.named(name).train
    result = train(config_of(name), run=tmp_path / "run", hooks=[hook])
    assert len(set(hook.steps)) == 1  # one round has many more
    assert result.updates == len(hook.steps) == 3
    assert result.is_interrupted == (what is interrupt)


def test_a_limit_of_time_ends_a_run_between_the_updates_of_a_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hook = Does()
    monkeypatch.setattr(Clock, "seconds", lambda its: 60.0 * len(hook.steps))
    config = config_of("dqn", minutes=3.0)
    result = algorithms.named("dqn").train(config, run=tmp_path / "run", hooks=[hook])
    assert result.updates == 3
    assert result.ended == "3 minutes are over"


@pytest.mark.parametrize("name", NAMES)
def test_a_run_resumed_between_updates_learns_what_an_unbroken_one_does(
    name: str, tmp_path: Path
) -> None:
    train, config = algorithms.named(name).train, config_of(name)
    whole = train(config, run=tmp_path / "whole")
    train(config, run=tmp_path / "broken", hooks=[Does(stop)])
    result = train(config, resume=tmp_path / "broken")
    assert result.updates == whole.updates
    toys.assert_same_bits(tmp_path / "whole", tmp_path / "broken")


def test_rows_and_checkpoints_are_written_between_the_updates_of_a_round(tmp_path: Path) -> None:
    run, checkpoints = tmp_path / "run", []

    class Looks(Does):
        def on_row(self, session: Any, row: Any) -> None:
            checkpoints.append((run / "checkpoint.pt").exists())

    config = dataclasses.replace(config_of("dqn"), log_interval_s=0.0, checkpoint_interval_s=0.0)
    hook = Looks(stop)
    algorithms.named("dqn").train(config, run=run, hooks=[hook])
    assert len(set(hook.steps)) == 1
    assert [row["time/updates"] for row in metrics.read(run / "metrics.csv")][-3:] == [
        2,
        3,
        3,
    ]  # the last at the end
    assert checkpoints[-1]


def test_the_limit_of_steps_ends_a_run_after_the_updates_of_its_last_round(tmp_path: Path) -> None:
    result = algorithms.named("dqn").train(config_of("dqn"), run=tmp_path / "run")
    assert result.updates == (result.env_steps - 32) * 8 // 16


@pytest.mark.usefixtures("own_cluster")
@pytest.mark.parametrize("name", ["ppo", "dqn"])
def test_a_run_with_overlap_that_was_stopped_goes_on_with_its_environments(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("REMOTELY_LOCAL")
    more: dict[str, Any] = {"overlap": True, "total_steps": 400}
    if name == "ppo":
        config = algorithms.named("ppo").Config(
            env=toys.Guess, actors=1, envs_per_actor=4, rollout_steps=8, random_start=0, **more
        )
    else:
        config = config_of(name, **more)
    train = algorithms.named(name).train
    train(config, run=tmp_path / "run", hooks=[Does(stop)])
    capsys.readouterr()
    train(config, resume=tmp_path / "run")
    assert "new games begin" not in capsys.readouterr().out
