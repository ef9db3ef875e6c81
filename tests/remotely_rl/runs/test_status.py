"""The status of a run, as those see it who look at its folder."""

import contextlib
import dataclasses
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import remotely
from remotely_rl.dashboard.runs import Runs
from remotely_rl.environments import Episode
from remotely_rl.errors import TrainingError
from remotely_rl.runs import run_folder, status
from remotely_rl.runs.run_folder import RunFolder
from remotely_rl.runs.status import How, RunStatus
from tests.remotely_rl.runs.sessions import CONFIG, Learner, resumed, session

ELSEWHERE = """
import sys
from pathlib import Path
from remotely_rl.runs import status
from remotely_rl.runs.run_folder import RunFolder
claim = status.TrainingLock(RunFolder(Path(sys.argv[1])))
claim.begin(None)
print("trains", flush=True)
sys.stdin.read()
"""


def status_of(folder: RunFolder) -> RunStatus:
    return status.of(folder.path, lambda: run_folder.read(folder.path))


def test_a_killed_run_is_over_at_once_and_nobody_else_trains_it_before(tmp_path: Path) -> None:
    folder = run_folder.create(tmp_path / "run", "a2c", CONFIG)
    process = subprocess.Popen(
        [sys.executable, "-c", ELSEWHERE, str(folder.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "trains\n"
        assert status_of(folder) == RunStatus(How.TRAINS, "", "")
        with pytest.raises(TrainingError, match=f"in training already, by process {process.pid}"):
            status.TrainingLock(folder)
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert status_of(folder).how is How.KILLED
    words = [sys.executable, "-c", ELSEWHERE, str(folder.path)]
    anew = f"cd {shlex.quote(os.getcwd())} && {shlex.join(words)}"
    assert status_of(folder)[2:] == ("", anew)  # it has saved nothing
    folder.checkpoint.touch()
    assert status_of(folder)[2:] == (f"remotely-rl train a2c --resume {folder.path}", "")


def test_a_run_trains_from_the_beginning_to_the_end_of_its_session(tmp_path: Path) -> None:
    with session(tmp_path) as run:
        run.restore(Learner())
        assert status_of(run.folder).how is How.TRAINS
    assert status_of(run.folder).how is How.LIMIT
    with resumed(run.folder) as run:
        assert status_of(run.folder).how is How.TRAINS
        assert not run_folder.read(run.folder.path).ended


class Ending:
    """The ends that a session can have, by their names."""

    @staticmethod
    def hook(run: Any) -> None:
        run.stop("it is good enough")

    @staticmethod
    def stopped(run: Any) -> None:
        signal.raise_signal(signal.SIGTERM)

    @staticmethod
    def failed(run: Any) -> None:
        raise ValueError("a long story\nthe loss is NaN\n")


@pytest.mark.parametrize(
    ("how", "why"),
    [
        (How.HOOK, "it is good enough"),
        (How.STOPPED, "stopped by SIGTERM"),
        (How.FAILED, "ValueError: the loss is NaN"),
    ],
)
def test_how_a_run_has_ended_is_told_with_the_command_that_goes_on(
    tmp_path: Path, how: How, why: str
) -> None:
    run = session(tmp_path)
    with contextlib.suppress(ValueError), run:
        run.restore(Learner())
        getattr(Ending, how)(run)
        assert run.over()
    path = run.folder.path
    assert status_of(run.folder) == RunStatus(how, why, f"remotely-rl train toy --resume {path}")


def test_a_run_goes_on_to_twice_the_limit_that_it_has_reached_whatever_is_raised_there(
    tmp_path: Path,
) -> None:
    run = session(tmp_path, dataclasses.replace(CONFIG, total_steps=500, minutes=1e6))
    with contextlib.suppress(ValueError), run:
        run.restore(Learner())
        run.tally.sampled(1_100, [], {})  # a rollout is larger than the limit
        assert run.over()
        raise ValueError("in the last evaluation")
    path, found = run.folder.path, status_of(run.folder)
    assert found.how is How.FAILED
    assert found.go_on == f"remotely-rl train toy --resume {path} --total-steps 2000"


def test_a_run_at_its_target_does_not_go_on_whatever_is_raised_there(tmp_path: Path) -> None:
    run = session(tmp_path, dataclasses.replace(CONFIG, target=-1.0))
    with contextlib.suppress(ValueError), run:
        run.restore(Learner())
        run.tally.sampled(30, [Episode(1.0, 1)] * 30, {})
        assert run.over()
        raise ValueError("in the last evaluation")
    assert status_of(run.folder) == RunStatus(
        How.FAILED, "ValueError: in the last evaluation", "", ""
    )


def test_a_run_that_may_train_elsewhere_and_one_at_its_target_are_not_started_anew(
    tmp_path: Path,
) -> None:
    ran = run_folder.RunConfig("ppo", "Pong", {}, started={"command": "train", "folder": "/a b"})
    assert status.start_anew(tmp_path, ran, How.FAILED) == "cd '/a b' && train"
    assert status.start_anew(tmp_path, ran, How.UNKNOWN) == ""
    assert status.start_anew(tmp_path, ran, How.TARGET) == ""


def test_what_is_typed_at_a_prompt_is_not_repeated_by_the_command_of_its_process() -> None:
    asks = "from remotely_rl.runs import status; print(status.command())"
    typed = subprocess.run([sys.executable], input=asks, capture_output=True, text=True, check=True)
    assert typed.stdout == "None\n"
    given = [sys.executable, "-c", asks]
    of_code = subprocess.run(given, capture_output=True, text=True, check=True)
    assert of_code.stdout == f"{shlex.join(given)}\n"


def test_an_option_that_the_folder_could_not_keep_is_part_of_the_command(tmp_path: Path) -> None:
    RunFolder(tmp_path).checkpoint.touch()
    ran = run_folder.RunConfig(
        "ppo", "Mine", {}, source="mine.py:train", not_kept={"wrappers": "f"}
    )
    command = status.go_on(tmp_path, ran, {})
    assert command == (
        f"remotely-rl train mine.py:train --resume {tmp_path} --wrapper FILE.py:NAME"
    )


@pytest.mark.parametrize(("source", "more"), [(None, " --env FILE.py:NAME"), ("a.py:Mine", "")])
def test_an_environment_that_the_folder_cannot_find_again_is_part_of_the_command(
    source: str | None, more: str, tmp_path: Path
) -> None:
    RunFolder(tmp_path).checkpoint.touch()
    ran = run_folder.RunConfig("dqn", "Mine", {}, env_source=source, env_is_own=True)
    command = status.go_on(tmp_path, ran, {})
    assert command == f"remotely-rl train dqn --resume {tmp_path}{more}"


def test_a_run_of_another_machine_or_version_is_not_said_to_be_killed(tmp_path: Path) -> None:
    folder = run_folder.create(tmp_path / "run", "a2c", CONFIG)
    assert status_of(folder).how is How.UNKNOWN
    content = json.loads(folder.config.read_text())
    run_folder.replace(folder, content | {"started": {"machine": "elsewhere"}})
    assert status_of(folder).why == "it was started on elsewhere, and has not written an end"


def test_a_run_keeps_what_it_was_started_with(tmp_path: Path) -> None:
    with session(tmp_path) as run:
        pass
    started = run_folder.read(run.folder.path).started
    assert started["remotely"] == remotely.__version__
    assert {"at", "command", "machine", "python", "torch", "gymnasium"} <= started.keys()


def test_a_run_that_another_process_has_resumed_meanwhile_changes_none_of_its_files(
    tmp_path: Path,
) -> None:
    with session(tmp_path) as run:
        run.restore(Learner())
    folder = run.folder
    with resumed(folder):
        before = {path.name: path.stat().st_mtime_ns for path in folder.path.iterdir()}
        with pytest.raises(TrainingError, match="in training already"):
            resumed(folder)
        after = {path.name: path.stat().st_mtime_ns for path in folder.path.iterdir()}
    assert {**after, folder.lock.name: 0} == {**before, folder.lock.name: 0}


def test_a_process_that_a_run_has_forked_does_not_hold_its_lock(tmp_path: Path) -> None:
    folder = run_folder.create(tmp_path / "run", "a2c", CONFIG)
    claim = status.TrainingLock(folder)
    here, there = socket.socketpair()
    if not (pid := os.fork()):
        there.send(b"forked")
        there.recv(1)  # until the parent has looked
        os._exit(0)
    try:
        assert here.recv(6) == b"forked"
        claim.release()
        assert not status.is_in_training(folder.path)
    finally:
        here.send(b".")
        os.waitpid(pid, 0)
        here.close()
        there.close()


def test_a_run_that_ends_while_it_is_looked_at_is_not_said_to_be_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = run_folder.create(tmp_path / "run", "a2c", CONFIG)
    claim, look = status.TrainingLock(folder), status.is_in_training
    claim.begin(None)

    def end_and_look(path: Path) -> bool:
        claim.end("it is reached", How.TARGET, None)
        claim.release()
        return look(path)

    monkeypatch.setattr(status, "is_in_training", end_and_look)
    assert Runs(tmp_path).row("run")["state"] == How.TARGET


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    "content",
    [
        {"ended": {"how": ["limit"]}},
        {"ended": {"how": "limit"}, "config": {"env": "Pong", "total_steps": {"a": 1}}},
        {"not_kept": 5, "asked": [1]},
    ],
)
def test_a_run_with_a_strange_config_does_not_hide_the_others(
    tmp_path: Path, content: dict[str, Any]
) -> None:
    for name in ("good", "strange"):
        folder = run_folder.create(tmp_path / name, "a2c", CONFIG)
        folder.checkpoint.touch()
    run_folder.replace(folder, json.loads(folder.config.read_text()) | content)
    os.mkfifo(folder.lock)  # nobody writes to it
    runs = Runs(tmp_path)
    names = {row["name"] for row in runs.rows()}
    assert names == {"good", "strange"}
    assert runs.settings(names)["good"]["env"] == CONFIG.env


def test_the_commit_is_told_without_a_change_of_the_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert status.commit() is None

    def git(*words: str) -> None:
        name = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", *name, *words], check=True, capture_output=True)

    file = tmp_path / "file"
    file.write_text("1")
    git("init")
    git("add", "file")
    git("commit", "-m", "first")
    os.utime(file, (1, 1))  # git would write that it is as before
    index = (tmp_path / ".git" / "index").read_bytes()
    clean = status.commit()
    assert clean is not None
    assert len(clean) == 40
    assert (tmp_path / ".git" / "index").read_bytes() == index
    file.write_text("2")
    assert status.commit() == f"{clean}-dirty"
