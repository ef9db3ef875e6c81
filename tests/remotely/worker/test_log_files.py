"""The logs of actors are kept while somebody may ask for them, and not for ever."""

from pathlib import Path

import pytest

from remotely.machine import this_machine
from remotely.protocol import control
from remotely.worker import log_files
from remotely.worker.log_files import LogFiles


def request(number: int, name: str = "") -> control.Request:
    return control.Request(
        actor=f"{number}" * 32,
        name=name or f"C-{number}",
        class_name="C",
        owner="o",
        job="j",
        python=this_machine.PYTHON,
    )


def test_of_actors_that_ended_the_last_logs_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_files, "KEEP_ENDED", 2)
    logs = LogFiles(tmp_path)
    files = [logs.begin(request(number)) for number in range(4)]
    for file in files:
        file.write_text("said")
    files[1].with_suffix(".log.1").write_text("said before")

    for number in (1, 3, 2):
        logs.end(request(number).actor)
    logs.end("never born")

    assert {file.name for file in tmp_path.iterdir()} == {files[i].name for i in (0, 2, 3)}
    assert logs.find("C-1") == ("C-1", None)
    assert logs.find("C-3") == (request(3).actor, files[3])


def test_an_actor_that_lives_again_keeps_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = LogFiles(tmp_path)
    logs.begin(request(1, "same"))
    monkeypatch.setattr(log_files, "KEEP_ENDED", 1)
    logs.end(request(1).actor)
    file = logs.begin(request(1, "same"))
    logs.begin(request(2, "same"))
    for number in (2, 3):
        logs.begin(request(number))
        logs.end(request(number).actor)
    assert logs.find(request(1).actor) == (request(1).actor, file)
