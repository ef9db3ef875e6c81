"""The starts of a store by its worker; here the store is a process that ends at once."""

import logging
import os
import socket
import time
from collections.abc import Callable, Iterator

import psutil
import pytest

from remotely.machine import daemons
from remotely.protocol.address import parse_address
from remotely.protocol.listening import Listening
from remotely.transport.loop import Loop
from remotely.worker import store_line
from remotely.worker.store_line import StoreLine
from tests.clusters import DEADLINE_S


class Played:
    """A worker's StoreLine, and the number of stores that were started and have ended."""

    def __init__(self) -> None:
        self.started = 0
        self.ended = 0
        self.loop = Loop()
        listening = Listening(host="127.0.0.1")
        self.line = StoreLine(self.loop, listening, "here", lambda _: None, self._note_end)

    def command(self, *_: str) -> list[str]:
        self.started += 1
        return ["true"]

    def _note_end(self) -> None:
        self.ended += 1

    def knock(self) -> None:
        """Connect as a client, and wait until a store was started."""
        before = self.started
        with socket.create_connection(parse_address(self.line.address.tcp)):
            self.turn_until(lambda: self.started > before)

    def turn_until(self, fact: Callable[[], bool]) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not fact():
            assert time.monotonic() < deadline
            self.loop.turn(0.01)

    def see_end(self, number: int) -> None:
        self.turn_until(lambda: self.ended == number)


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> Iterator[Played]:
    monkeypatch.setattr(store_line, "START_AGAIN_S", 0.02)
    made = Played()
    monkeypatch.setattr(daemons, "module_command", made.command)
    yield made
    made.line.close()
    made.loop.close()
    for child in psutil.Process().children():  # which a worker reaps with all its others
        if child.status() == psutil.STATUS_ZOMBIE:
            os.waitpid(child.pid, 0)


def test_a_store_that_has_ended_is_started_again_for_the_next_client(played: Played) -> None:
    for number in range(1, 4):
        played.knock()
        played.see_end(number)


def test_a_store_that_ends_during_the_pause_has_its_port_watched_once(
    played: Played, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_line, "START_AGAIN_S", 0.2)
    with caplog.at_level(logging.WARNING):
        for number in (1, 2):  # an actor asks for a store during the pause
            if line := played.line.meet():
                line.close()
            played.see_end(number)
        played.knock()
        played.see_end(3)
        played.knock()
    assert [r.message for r in caplog.records if "the store" not in r.message] == []
