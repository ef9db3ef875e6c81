"""Access control of actors: each actor's list of clients, and the worker's cache of delegates.

Listed clients are known beforehand.  When a delegate, the key of another actor, first connects, the
actor asks whether it may call (admission.py): through its worker to the master, and back.  Only
that connection waits for the reply.  A worker asks the master once, and then answers its other
actors itself until the master revokes the key.
"""

from collections.abc import Callable, Iterable

from remotely.protocol import control
from remotely.protocol.index import Index
from remotely.transport.sockets import UnknownKey


class AccessList:
    """The list of one actor.  Used on its background thread, except for `may_call`."""

    def __init__(self, client_keys: Iterable[bytes], ask: Callable[[bytes], None]) -> None:
        # A connection outlives its key's right to call, and libzmq does not report its end.  So
        # once a key that has connected is revoked, every call is checked, at 3 us each.
        self.some_revoked = False
        self._connected: set[bytes] = set()  # listed keys that may have a connection
        self._delegate_ended = (
            False  # a delegate with a connection ended: its key may have been stolen
        )
        self._listed = frozenset(client_keys)
        self._delegates: frozenset[bytes] = frozenset()
        self._ask = ask

    def may_call(self, key: bytes) -> bool:
        return key in self._listed or key in self._delegates

    def admit(self, key: bytes) -> str | UnknownKey:
        """Answer the ZAP handler, or let it wait for `update`."""
        if key in self._listed:
            self._connected.add(key)
        if self.may_call(key):
            return "client"
        self._ask(key)
        return UnknownKey.ASKED

    def set_keys(self, client_keys: Iterable[bytes]) -> None:
        """Replace the list of clients."""
        self._listed = frozenset(client_keys)
        self.some_revoked = self._delegate_ended or not self._connected <= self._listed

    def update(self, caller: control.Caller) -> None:
        """Record whether a delegate may call."""
        if caller.admitted and caller.key in self._listed:  # since it connected
            self._connected.add(caller.key)
        elif caller.admitted:
            self._delegates |= {caller.key}
        elif caller.key in self._delegates:
            self._delegate_ended = self.some_revoked = True
            self._delegates -= {caller.key}


class AccessRelay:
    """Forwards the MayCall messages of the actors of a worker or guest, and the replies."""

    def __init__(
        self,
        ask: Callable[[control.MayCall], object],
        send: Callable[[str, control.Caller], object],
    ) -> None:
        self._ask = ask
        self._send = send
        self._askers: Index[bytes, str] = Index()  # actors, by the key about which they asked
        self._asked: Index[str, bytes] = Index()  # the reverse
        self._admitted: set[bytes] = set()

    def handle_question(self, actor: str, question: control.MayCall) -> None:
        key = question.key
        self._askers.add(key, actor)
        self._asked.add(actor, key)
        if key in self._admitted:
            self._send(actor, control.Caller(key=key, admitted=True))
        else:
            self._ask(question)

    def handle_reply(self, caller: control.Caller) -> None:
        """Handle a reply, or the revocation of a delegate."""
        askers = self._askers.of(caller.key)
        if caller.admitted and askers:
            self._admitted.add(caller.key)
        elif not caller.admitted:
            self._admitted.discard(caller.key)
            for actor in askers:
                self._drop(actor, caller.key)
        for actor in askers:
            self._send(actor, caller)

    def ask_again(self) -> None:
        """Ask about every key again: the connection to the master was lost, the master has
        restarted, or its list has changed.  It reports the end of delegates, not of listed keys."""
        for key in self._askers:
            self._ask(control.MayCall(key=key))

    def forget(self, actor: str) -> None:
        """Forget an actor that has ended."""
        for key in self._asked.of(actor):
            self._drop(actor, key)

    def _drop(self, actor: str, key: bytes) -> None:
        self._askers.discard(key, actor)
        self._asked.discard(actor, key)
        if key not in self._askers:
            self._admitted.discard(key)
