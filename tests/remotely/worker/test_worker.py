"""What a worker makes of the master's word; its master and its zygote are played here."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from remotely.machine import this_machine
from remotely.protocol import control
from remotely.protocol.configs import WorkerConfig
from remotely.protocol.listening import Listening
from remotely.transport.keys import fresh_keys
from remotely.worker.reaper import Child
from remotely.worker.worker import Worker

OLD, NEW = b"old".ljust(40), b"new".ljust(40)


class NoZygote:
    """Is asked for forks, and makes none."""

    def __init__(self, *_: Any) -> None:
        self.asked: list[str] = []
        self.is_closing = False

    def preload(self, modules: list[str]) -> None:
        pass

    def fork(self, actor: str, descriptors: list[int]) -> None:
        self.asked.append(actor)

    def stop(self) -> None:
        self.is_closing = True

    kill = close = stop


class Played:
    """A worker whose loop turns when a test says so."""

    def __init__(self, folder: Path) -> None:
        _, _, key = fresh_keys()
        self.worker = Worker(
            WorkerConfig(
                worker="w",
                master=f"ipc://{folder}/master",
                key=key.to_dict(),
                listening=Listening(),
                folder=f"{folder}/w",
                cpus=1,
                gpus=[],
                lifeline=False,
                nonce="",
            )
        )
        self.said: list[msgspec.Struct] = []
        self.worker._link.send = self.said.append  # type: ignore[method-assign,assignment]

    def hears(self, message: msgspec.Struct) -> None:
        self.worker._hear_master(message)
        self.worker._loop.turn(0)

    def told(self, kind: type[msgspec.Struct]) -> list[Any]:
        return [message for message in self.said if isinstance(message, kind)]

    def close(self) -> None:
        worker = self.worker
        for child in list(worker._actors.children):
            worker._actors.spawn_lost(child)
        worker._link.close()
        worker._context.destroy(linger=0)
        worker._loop.close()
        worker._fence.close()


@pytest.fixture
def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Played]:
    monkeypatch.setattr("remotely.worker.spawner.ZygoteLine", NoZygote)
    made = Played(tmp_path)
    yield made
    made.close()


def spawn_of(actor: str, life: int = 0) -> control.Spawn:
    request = control.Request(
        actor=actor,
        name=actor,
        class_name="C",
        owner="o",
        job="j",
        python=this_machine.PYTHON,
        life=life,
    )
    return control.Spawn(request=request, gpu_ids=[])


def test_keys_that_actors_asked_about_are_asked_about_again_when_the_list_has_changed(
    played: Played,
) -> None:
    """One that was admitted as a listed one is no delegate: its end would be told to nobody."""
    played.hears(control.Registered(client_keys=[OLD, NEW]))
    played.worker._actors._access.hear_actor("a", control.MayCall(key=NEW))
    played.hears(control.Caller(key=NEW, admitted=True))
    played.said.clear()
    played.hears(control.Registered(client_keys=[OLD, NEW]))
    assert not played.told(control.MayCall)
    played.hears(control.Registered(client_keys=[OLD]))
    assert [question.key for question in played.told(control.MayCall)] == [NEW]


@pytest.mark.parametrize("life", [0, 1])
def test_an_actor_that_is_asked_for_while_its_last_process_is_being_killed_is_made_after_that(
    played: Played, life: int
) -> None:
    played.hears(spawn_of("a"))
    (before,) = played.worker._actors.children
    played.hears(control.End(actor="a", grace_s=0.0, kill=True))
    played.hears(spawn_of("a", life))
    assert list(played.worker._actors.children) == [before]
    assert [birth.request.life for birth in played.worker._register().births] == [0, life]

    played.worker._actors.spawn_failed(before.request, "it was killed")
    played.worker._loop.turn(0)

    (after,) = played.worker._actors.children
    assert after is not before
    # Of one that is asked for again the master knows that it has ended.
    assert len(played.told(control.Died)) == life


def test_a_dead_actor_is_reaped_though_what_it_started_talks_on(played: Played) -> None:
    word, heard = control.encode(control.Count(calls=1)), 0

    def receive() -> tuple[bytes, None]:
        nonlocal heard
        heard += 1
        assert heard < 10_000
        return word, None

    log = SimpleNamespace(end=lambda: None)
    child = SimpleNamespace(receive=receive, log=log)
    played.worker._actors._last_words(cast(Child, child))
    assert heard >= 278  # as many as a socket holds


def test_the_last_words_of_a_dead_actor_include_its_flight_recorder(played: Played) -> None:
    words: list[tuple[bytes, str]] = [
        (control.encode(control.Count(calls=1)), ""),
        (control.encode(control.FlightRecorder()), "the memory"),
        (b"", ""),
    ]
    kept: list[str] = []
    child = SimpleNamespace(
        receive=lambda: words.pop(0),
        keep_recorder=kept.append,
        log=SimpleNamespace(end=lambda: None),
    )
    played.worker._actors._last_words(cast(Child, child))
    assert kept == ["the memory"]
