"""The command line: every field an option, every mistake a sentence."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from remotely_rl import impala, metrics
from remotely_rl.cli import main


def invoke(*command: str) -> Result:
    return CliRunner().invoke(main, command)


def train(*options: str) -> Result:
    tiny = ["--env", "CartPole-v1", "--envs-per-actor", "2", "--trajectory-steps", "5"]
    return invoke("train", "impala", *tiny, *options)


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[impala.Config]:
    """Instead of training, keeps the config that it would train with."""
    configs: list[impala.Config] = []
    monkeypatch.setattr(impala, "train", lambda config, run, resume: configs.append(config))
    return configs


def test_every_field_of_the_config_is_an_option_with_its_prose_as_help() -> None:
    text = " ".join(invoke("train", "impala", "--help").output.split())
    for field in dataclasses.fields(impala.Config):
        assert f"--{field.name.replace('_', '-')}" in text
    assert "Discount of a reward one step later. [0.98]" in text
    for option in ("--run", "--resume", "--address"):
        assert option in text


def test_options_become_fields_and_the_rest_stays_as_it_is(trained: list[impala.Config]) -> None:
    done = invoke(
        "train", "impala", "--env", "CartPole-v1", "--gamma", "0.9", "--target", "400",
        "--no-standardise", "--actors", "3",
    )  # fmt: skip
    assert done.exit_code == 0
    want = impala.Config(env="CartPole-v1", gamma=0.9, target=400.0, standardise=False, actors=3)
    assert trained == [want]


def test_a_resumed_run_keeps_its_own_config_but_for_what_is_given(
    trained: list[impala.Config], tmp_path: Path
) -> None:
    config = {"env": "CartPole-v1", "gamma": 0.9, "minutes": 1}
    (tmp_path / "config.json").write_text(json.dumps({"algorithm": "impala", "config": config}))
    done = invoke("train", "impala", "--resume", str(tmp_path), "--minutes", "5")
    assert done.exit_code == 0
    assert trained == [impala.Config(env="CartPole-v1", gamma=0.9, minutes=5.0)]


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["train", "impalla"], "no algorithm is called 'impalla', did you mean 'impala'?"),
        (["train", "sarsa"], "no algorithm is called 'sarsa'; there is impala"),
        (["train", "impala", "--gama", "1"], "--gamma"),
        (["train", "impala", "--actors", "many"], "'many' is not a valid integer"),
        (["train", "impala", "--actors", "0"], "actors must be at least 1, not 0"),
        (["train", "impala", "--env", "pong"], "did you mean 'ALE/Pong-v5'?"),
        (["train", "impala", "--env", "Pendulum-v1"], "only Discrete actions"),
        (["train", "impala", "--env", "CartPole-v1", "--run", "."], "exists already"),
        (["train", "impala", "--resume", "nowhere"], "there is no run folder nowhere"),
        (["train", "impala", "--address", "127.0.0.1:1"], "127.0.0.1:1"),
    ],
)
def test_a_mistake_is_answered_in_a_sentence_and_with_status_2(
    command: list[str], said: str
) -> None:
    done = invoke(*command)
    assert done.exit_code == 2
    assert said in done.output
    assert "Traceback" not in done.output


def test_an_option_that_a_config_file_has_and_we_do_not_know_is_named(tmp_path: Path) -> None:
    config = {"env": "CartPole-v1", "gama": 0.9}
    (tmp_path / "config.json").write_text(json.dumps({"algorithm": "impala", "config": config}))
    done = invoke("train", "impala", "--resume", str(tmp_path))
    assert done.exit_code == 2
    assert "'gama', did you mean 'gamma'?" in done.output


@pytest.mark.usefixtures("local")
def test_a_run_trains_leaves_all_that_it_promises_and_goes_on(tmp_path: Path) -> None:
    run = tmp_path / "run"
    done = train("--steps", "300", "--run", str(run))
    assert done.exit_code == 0, done.output
    assert f"300 steps are done; the run is in {run}" in done.output
    left = {path.name for path in run.iterdir()}
    assert left >= {"config.json", "metrics.csv", "checkpoint.pt", "curve.png", "tensorboard"}

    first = metrics.read(run / "metrics.csv")[-1]
    done = invoke("train", "impala", "--resume", str(run), "--steps", "600")
    assert done.exit_code == 0, done.output
    rows = metrics.read(run / "metrics.csv")
    assert first in rows  # what the first half wrote is still there
    for counted in ("seconds", "env_steps", "updates", "episodes"):
        assert rows[-1][counted] > first[counted] > 0

    done = invoke("train", "impala", "--resume", str(run), "--env", "Acrobot-v1")
    assert done.exit_code == 2
    assert "is a run on CartPole-v1, not on Acrobot-v1" in done.output


@pytest.mark.usefixtures("nothing_left")
def test_ctrl_c_ends_a_run_in_good_order(tmp_path: Path) -> None:
    run = tmp_path / "run"
    options = ["--env", "CartPole-v1", "--interval-s", "0.2", "--run", str(run)]
    command = [sys.executable, "-m", "remotely_rl.cli", "train", "impala", *options]
    training = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    assert training.stdout is not None
    said: list[str] = []
    while "games)" not in "".join(said):  # a line of progress
        said.append(training.stdout.readline())
        assert said[-1], "ended too early: " + "".join(said)
    os.killpg(training.pid, signal.SIGINT)  # as a terminal does: learner and actors alike
    rest, _ = training.communicate(timeout=60)
    assert training.returncode == 0, rest
    assert rest.splitlines()[-1] == f"stopped by SIGINT; the run is in {run}"
    assert "Traceback" not in rest
    assert {"checkpoint.pt", "curve.png"} <= {path.name for path in run.iterdir()}
