"""The one way to a retry: only where it was asked for."""

import os
import signal
from concurrent.futures import wait
from pathlib import Path
from typing import Any

import pytest

import remotely
from remotely.errors import ActorDied
from remotely.objects.marks import retries_of


@pytest.mark.parametrize("retries", [0, -1, 1.5, True, "2"])
def test_a_number_of_retries_that_is_none_is_refused(retries: Any) -> None:
    with pytest.raises(ValueError, match="whole number, at least 1"):
        remotely.idempotent(retries=retries)


def test_a_method_without_the_mark_is_never_tried_again() -> None:
    assert retries_of(Frail.die_once) == 3
    assert retries_of(Frail.die_always) == 0


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
def test_an_idempotent_call_outlives_its_actor(cluster: str, tmp_path: Path, way: str) -> None:
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
def test_a_call_without_the_mark_raises_and_its_actor_is_restarted(
    cluster: str, tmp_path: Path
) -> None:
    frail = Frail(str(tmp_path))
    with pytest.raises(ActorDied, match="ended with 3"):
        frail.die_always()
    assert len(list(tmp_path.iterdir())) == 1
    with pytest.raises(ActorDied, match="ended with 3"):
        frail.die_always()
    assert len(list(tmp_path.iterdir())) == 2
