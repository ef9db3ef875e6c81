"""The making of actors whose processes are slow to answer."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import zmq

import remotely
from remotely.client import channel as channel_module
from remotely.client import channels as channels_module
from remotely.client.channels import ActorState, Channels
from remotely.transport import sockets
from tests.clusters import freeze

HANDSHAKE_S = 0.3


@remotely.remote_class
class Keeper:
    def __init__(self, value: bytes) -> None:
        self.value = value

    def size(self) -> int:
        return len(self.value)


@pytest.mark.parametrize(
    ("size", "files"),
    [(9, False), (9, True), (2_000_000, False)],
    ids=["", "with files", "with a large value"],
)
def test_an_actor_whose_process_is_too_busy_for_a_handshake_is_made_once_it_answers(
    nothing_left: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, size: int, files: bool
) -> None:
    """Until then it has got nothing, so it is sent all of it again."""
    if files:
        (tmp_path / "data.txt").write_text("text")
    remotely.connect(ship=[str(tmp_path / "data.txt")] if files else [])
    opens, connects, frozen = Channels.open, Channels.connected, dict[str, int]()

    def open_frozen(self: Channels, actor: ActorState, location: Any) -> Any:
        freeze(location.pid)
        frozen[actor.actor] = location.pid
        return opens(self, actor, location)

    def connect_thawed(self: Channels, actor: ActorState) -> Any:
        os.kill(frozen[actor.actor], signal.SIGCONT)
        return connects(self, actor)

    with monkeypatch.context() as patch:
        patch.setattr(Channels, "open", open_frozen)
        patch.setattr(Channels, "connected", connect_thawed)
        patch.setattr(channel_module, "HANDSHAKE_S", HANDSHAKE_S)
        patch.setattr(channels_module, "OBITUARY_WAIT_S", 0.1)
        options = [each for each in sockets.OPTIONS if each[0] != zmq.HANDSHAKE_IVL]
        options.append((zmq.HANDSHAKE_IVL, int(1000 * HANDSHAKE_S), "for this test"))
        patch.setattr(sockets, "OPTIONS", options)
        keepers = remotely.group(Keeper, 2, bytes(size))
    assert keepers.size() == [size, size]
    assert len(frozen) == 2
    assert len(remotely.actors()) == 2
