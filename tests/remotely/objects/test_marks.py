"""Marks on methods: only idempotent ones are retried."""

import os
import signal
from concurrent.futures import wait
from pathlib import Path
from typing import Any

import pytest

import remotely
from remotely.errors import ActorDied


@pytest.mark.parametrize("retries", [0, -1, 1.5, True, "2"])
def test_an_invalid_number_of_retries_raises_a_value_error(retries: Any) -> None:
    with pytest.raises(ValueError, match="whole number, at least 1"):
        remotely.idempotent(retries=retries)


@remotely.remote_class(max_restarts=10)
class Frail:
    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)

    @remotely.idempotent(retries=3)
    def die_once(self) -> int:
        lives = len(list(self.folder.iterdir()))
        (self.folder / str(lives)).touch()
        if not lives:
            signal.raise_signal(signal.SIGSEGV)
        return lives

    def die_always(self) -> None:
        (self.folder / str(os.getpid())).touch()
        os._exit(3)


@pytest.mark.parametrize("way", ["call", "submit", "callback", "wait", "group"])
def test_an_idempotent_call_is_retried_after_its_actor_died(
    cluster: str, tmp_path: Path, way: str
) -> None:
    frail: Any = Frail(str(tmp_path))
    if way == "call":
        assert frail.die_once() == 1
    elif way == "group":
        assert remotely.Group([frail]).die_once() == [1]
    else:
        future = frail.die_once.submit()
        if way == "callback":
            future.add_done_callback(lambda _: None)
        if way == "wait":
            assert wait([future], timeout=40).done
        assert future.result(timeout=40) == 1


@pytest.mark.promise("exit_status")
def test_an_unmarked_call_is_not_retried_and_its_actor_is_restarted(
    cluster: str, tmp_path: Path
) -> None:
    frail = Frail(str(tmp_path))
    with pytest.raises(ActorDied, match="ended with exit code 3"):
        frail.die_always()
    assert len(list(tmp_path.iterdir())) == 1
    with pytest.raises(ActorDied, match="ended with exit code 3"):
        frail.die_always()
    assert len(list(tmp_path.iterdir())) == 2
