"""Runs of every algorithm in environments that raise, crash or hang."""

import contextlib
import functools
import os
import re
import signal
import threading
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from remotely_rl import algorithms
from remotely_rl.errors import TrainingError
from remotely_rl.runs import training
from remotely_rl.supervision import logbook
from tests.remotely_rl import toys

pytestmark = pytest.mark.usefixtures("no_curve")

# One for each way to sample: rounds and a parameter server; in the slow tests also a stream and the
# agents of a Brain.
KINDS = ["ppo", "a3c", *(pytest.param(name, marks=pytest.mark.slow) for name in ("impala", "ga3c"))]
SURVIVES = 40  # steps


class Flaky(toys.Guess):
    """An environment that calls `fails` at its 40th step."""

    def __init__(self, fails: Any, action_space: gymnasium.Space[Any] = toys.Guess.action_space):
        self.fails = fails
        self.action_space = action_space  # type: ignore[assignment]
        self.steps = 0

    def step(self, action: int) -> Any:
        self.steps += 1
        if self.steps == SURVIVES:
            self.fails()
        return super().step(np.ravel(action)[0])


def raise_one() -> None:
    raise ValueError("the simulator gave a bad state")


def crash() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def hang() -> None:
    threading.Event().wait()


def press_ctrl_c_and_hang(trainer: int, pressed: Path) -> None:
    with contextlib.suppress(FileExistsError):  # a second Ctrl-C would end it immediately
        pressed.touch(exist_ok=False)
        os.kill(trainer, signal.SIGINT)
    hang()


def config(name: str, fails: Any, **changes: Any) -> Any:
    """Return settings of two actors with two environments each."""
    spaces = (toys.Aim.action_space,) if name == "sac" else ()
    given: dict[str, Any] = {
        "env": functools.partial(Flaky, fails, *spaces),
        "actors": 2,
        "envs_per_actor": 2,
        "rollout_steps": 8,
        "random_start": 0,
        "probe_steps": 16,  # fewer than SURVIVES
        "log_interval_s": 1e6,
        "checkpoint_interval_s": 1e6,
        **changes,
    }
    if name not in ("a3c", "n_step_q"):
        given |= {"learner_threads": 1, "device": "cpu"}
    if name == "ga3c":
        given["train_rows"] = 16
    kind = algorithms.named(name).Config
    if hasattr(kind, "replay_rows"):
        given |= {"learn_from": 64, "batch_size": 16, "replay_ratio": 4.0}
    return kind(**given)


@pytest.mark.usefixtures("local")
@pytest.mark.parametrize("name", ["ppo", "a3c", "impala", "ga3c", "sac"])
def test_occasional_exceptions_do_not_end_a_run(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = config(name, raise_one, total_steps=300)
    result = algorithms.named(name).train(asked, run=tmp_path / "run")
    assert result.ended == "300 steps are done"
    output = capsys.readouterr().out
    first = re.search(r"environment \d raised in step 1, seed \d+: ValueError: the simul.*", output)
    assert first is not None
    assert first.group().endswith("; it is replaced")
    assert (
        output.count("in raise_one") == 2
    )  # the user's part of the first traceback and of the last
    assert "more crashed in" in output
    assert "remotely_rl/acting/" not in output
    report = logbook.load(tmp_path / "run" / "crashes.jsonl")[0]
    assert str(report) in output
    assert report.is_complete


def flaky_together(num_envs: int) -> gymnasium.vector.SyncVectorEnv:
    """Make environments whose actor fails if one of them does."""
    return gymnasium.vector.SyncVectorEnv([functools.partial(Flaky, raise_one)] * num_envs)


@pytest.mark.usefixtures("local")
@pytest.mark.parametrize("name", ["ppo", "a3c", "ga3c"])
def test_replacements_of_actors_sample_without_a_random_start(name: str, tmp_path: Path) -> None:
    """The first actors do not survive theirs."""
    asked = config(name, None, env=flaky_together, random_start=3 * SURVIVES, total_steps=100)
    result = algorithms.named(name).train(asked, run=tmp_path / "run")
    assert result.ended == "100 steps are done"


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("name", KINDS)
def test_occasional_crashes_do_not_end_a_run(
    name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    asked = config(name, crash, total_steps=300)
    result = algorithms.named(name).train(asked, run=tmp_path / "run")
    assert result.ended == "300 steps are done"
    output, dumped = capfd.readouterr()
    assert re.search(r"environment \d died in step 1, seed \d+: .* SIGSEGV; it is replaced", output)
    assert "more crashed in" in output
    assert "never retrieved" not in dumped
    assert (
        1 <= dumped.count("Fatal Python error") <= 2
    )  # of the first two actors, not of their replacements


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("name", "ended"),
    [
        ("ppo", "stopped by SIGINT"),
        ("a3c", "0.05 minutes are over"),
        *(
            pytest.param(name, ended, marks=pytest.mark.slow)
            for name in ("ppo", "a3c", "impala", "ga3c")
            for ended in ("0.05 minutes are over", "stopped by SIGINT")
        ),
    ],
)
def test_hanging_environments_block_neither_limits_nor_ctrl_c(
    name: str, ended: str, tmp_path: Path
) -> None:
    press = functools.partial(press_ctrl_c_and_hang, os.getpid(), tmp_path / "pressed")
    by_clock = "minutes" in ended
    asked = config(name, hang if by_clock else press, minutes=0.05 if by_clock else 0.0)
    result = algorithms.named(name).train(asked, run=tmp_path / "run")
    assert result.ended == ended
    assert (tmp_path / "run" / "checkpoint.pt").exists()


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("name", KINDS)
def test_hanging_environments_are_replaced_after_their_timeout(
    name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    asked = config(name, hang, total_steps=250, step_timeout_s=0.3)
    result = algorithms.named(name).train(asked, run=tmp_path / "run")
    assert result.ended == "250 steps are done"
    output = capfd.readouterr().out
    said = r"environment \d hung in step 1, seed \d+: it has not returned for 0.3 s; it is replaced"
    assert re.search(said, output)
    assert "in hang" in output  # the line that hangs
    assert "remotely_rl/supervision" not in output


@pytest.mark.usefixtures("local")
def test_environments_that_always_raise_end_the_run(tmp_path: Path) -> None:
    class Hopeless(Flaky):
        def reset(self, **given: Any) -> Any:
            self.steps = SURVIVES - 3  # more than the probe's steps
            return super().reset(**given)

        def step(self, action: int) -> Any:
            obs, reward, _, truncated, info = super().step(action)
            return obs, reward, False, truncated, info

    asked = config("ppo", None, env=lambda: Hopeless(raise_one), probe_steps=2)
    said = r"crash too often.* raised in step 3, seed \d+: ValueError: the simulator gave"
    with pytest.raises(TrainingError, match=said):
        algorithms.named("ppo").train(asked, run=tmp_path / "run")


@pytest.mark.usefixtures("local")
def test_environments_that_raise_in_the_probe_are_retried_and_then_reported(
    tmp_path: Path,
) -> None:
    result = algorithms.named("a2c").train(
        config("a2c", raise_one, total_steps=20, probe_steps=100), run=tmp_path / "run"
    )
    assert result.ended == "20 steps are done"

    class Hopeless(Flaky):
        def step(self, action: int) -> Any:
            self.steps = SURVIVES - 1
            return super().step(action)

    said = (
        r"crash too often .* environment 0 raised in step 1, seed \d+: ValueError: the simulat.*"
        r"\nTraceback .*\n  File .*test_survival.py"
    )
    with pytest.raises(TrainingError, match=said):
        training.make_learner(config("a2c", None, env=lambda: Hopeless(raise_one), probe_steps=100))


def crash_once(crashed: Path) -> None:
    with contextlib.suppress(FileExistsError):
        crashed.touch(exist_ok=False)
        crash()


@pytest.mark.usefixtures("here")
def test_a_crash_in_the_probe_kills_only_its_actor(
    tmp_path: Path,
) -> None:
    crashes = functools.partial(crash_once, tmp_path / "crashed")
    asked = config(
        "a2c", None, env=functools.partial(Flaky, crashes), total_steps=20, probe_steps=100
    )
    result = algorithms.named("a2c").train(asked, run=tmp_path / "run")
    assert result.ended == "20 steps are done"
    assert (tmp_path / "crashed").exists()


@pytest.mark.usefixtures("here")
def test_a_hang_in_the_probe_is_reported_when_the_minutes_are_over(
    tmp_path: Path,
) -> None:
    asked = config("a2c", hang, minutes=0.02, probe_steps=100)
    with pytest.raises(
        TrainingError, match=r"not played 100 random steps in 0.02 minutes: does it"
    ):
        algorithms.named("a2c").train(asked, run=tmp_path / "run")
    assert not (tmp_path / "run").exists()


class OnlyTogether(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """Environments of which one cannot be reset alone."""

    def __init__(self, num_envs: int):
        self.num_envs = num_envs
        self.single_observation_space = gymnasium.spaces.Box(-1, 1, (1,))
        self.single_action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        if options:
            raise ValueError("no options")
        return np.zeros((self.num_envs, 1), np.float32), {}


@pytest.mark.usefixtures("local")
def test_an_unsupported_environment_is_rejected_before_a_folder_is_made(tmp_path: Path) -> None:
    asked = config("a2c", None, env=OnlyTogether, random_start=5)
    with pytest.raises(TrainingError, match="random_start needs environments that can be reset"):
        algorithms.named("a2c").train(asked, run=tmp_path / "run")
    assert not (tmp_path / "run").exists()
