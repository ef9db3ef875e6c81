"""Read-only access to a cluster: its status, and the output of its actors.

A viewer's key has the role `viewer`, of which the master accepts only messages that change nothing.
Actors do not admit viewers.
"""

import os
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

from remotely.client.master_session import MasterSession
from remotely.machine import folders
from remotely.protocol import control
from remotely.protocol.address import OWN_CLUSTER, parse_address
from remotely.transport import key_files
from remotely.transport.keys import MemberKey
from remotely.transport.listening import reach


class Viewer:
    """A connection to a master.  Like a client's, it outlives the master.

    `on_lost` is called on a thread of its own: at once when the master cannot be reached any more,
    with the reason, and with "" when it can be reached again.
    """

    def __init__(self, address: str, key: MemberKey) -> None:
        self.address = address
        self.on_lost: Callable[[str], object] = lambda why: None
        self._ended = ""  # the script whose cluster it is
        lost = f"the connection to the master at {address.removeprefix('tcp://')} broke"
        self._session = session = MasterSession(
            address,
            key,
            job="",
            inside="",
            patience_s=0.0,
            warn=lambda source, sentence: None,
            on_return=lambda: None,
            handlers={},
            on_connection=lambda is_there: self.on_lost(self._ended or ("" if is_there else lost)),
        )
        try:
            session.start(session.loop.run, "viewer")
        except BaseException:
            self._close()
            raise

    def ask_status(self) -> "Future[control.Status]":
        """Return the future of the status, with current activity and usage."""
        return self._session.ask(control.AskStatus)

    def ask_events(self, after: int) -> "Future[control.Events]":
        """Return the future of the events after the one with this number."""
        return self._session.ask(control.AskEvents, after=after)

    def read_log(self, actor: str, offset: int) -> "Future[control.LogPiece]":
        """Return the future of an actor's output from `offset` on; -1 is its last kilobytes."""
        return self._session.ask(control.ReadLog, actor=actor, offset=offset)

    def ask_timeline(self, seconds: float) -> "Future[list[control.ProcessTimeline]]":
        """Return the future of what all processes record in the next seconds."""
        return self._session.ask_timeline(seconds)

    def ask_key(self, key: bytes) -> "Future[control.KeyState]":
        """Return the future of what the master knows of a key, and have it read its list again."""
        return self._session.ask(control.AskKey, key=key)

    def end_with(self, pid: int, why: str, on_end: Callable[[], object]) -> None:
        """As of the session."""

        def end() -> None:
            self._ended = why
            self.on_lost(why)
            on_end()

        self._session.end_with(pid, why, end)

    def close(self) -> None:
        if self._session.gate.is_open:
            self._session.leave()
            self._close()

    def _close(self) -> None:
        self._session.stop()
        self._session.close()


def viewer_of(address: str, key: Path | None = None) -> Viewer:
    """Return a viewer of the cluster at `address`.

    The default key is viewer.key, in the folder of REMOTELY_KEY or in ~/.remotely/keys.
    """
    host, port = parse_address(address)
    if key is None:
        client_key = os.environ.get("REMOTELY_KEY")
        folder = Path(client_key).parent if client_key else folders.key_folder()
        key = folder / "viewer.key"
    where = reach(host, port, OWN_CLUSTER)
    return Viewer(f"tcp://{where}", key_files.load_member(key, "viewer"))
