"""The key with which an actor makes calls of its own, created at the first of them."""

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from remotely.api import connection
from remotely.errors import MasterLost
from remotely.protocol import control
from remotely.protocol.lease import CONNECT_S
from remotely.transport.keys import KeyPair, MemberKey, fresh_pair

if TYPE_CHECKING:  # slow to import, and an actor that calls nobody needs none
    from remotely.client.client import Client


class Delegation:
    """The key pair of one actor.  Its secret is in the memory of this process only."""

    def __init__(self, tell: Callable[[control.Delegate], None]) -> None:
        self._tell = tell
        self._pair: KeyPair | None = None
        self._lock = threading.Lock()
        self._is_known = threading.Event()

    def pair(self) -> KeyPair:
        """Return the pair, once the master admits it.  Raises MasterLost if it does not answer."""
        with self._lock:
            if self._pair is None:
                self._pair = fresh_pair()
            if not self._is_known.is_set():
                self._tell(control.Delegate(key=self._pair.public))
        if not self._is_known.wait(CONNECT_S):
            raise MasterLost(
                f"the master has not admitted this actor as a caller within {CONNECT_S:g} s; its "
                "machine may have lost the connection, and the next call tries again"
            )
        return self._pair

    def confirm(self) -> None:
        """The master admits it."""
        self._is_known.set()

    def client(self, birth: control.Birth, prepare: control.Prepare) -> "Client":
        """Return the client that this actor becomes.  Raises MasterLost."""
        from remotely.client.client import Client  # noqa: PLC0415 - see above
        from remotely.values.shipping import Shipment  # noqa: PLC0415 - the same

        key = MemberKey("client", self.pair(), birth.master_public)
        shipment = Shipment.from_tree(connection.shipped_root(), prepare.files)
        actor = birth.request.actor
        return Client(birth.master, key, shipment, job=prepare.job, inside=actor)
