"""Whom the actors of a machine let in: an actor's own list, and what its worker knows for all.

Listed clients are known beforehand.  A delegate, the key of another actor, is asked about when it
first knocks (admission.py): actor, worker, master, and back; the door waits with its answer, and
nothing else does.  What a worker has asked once it answers its other actors by itself, until the
master takes it back.
"""

from collections.abc import Callable, Iterable

from remotely.protocol import control
from remotely.protocol.index import Index
from remotely.transport.sockets import Unknown


class AccessList:
    """The list of one actor.  All of it on the door's thread, but for `may_call`."""

    def __init__(self, client_keys: Iterable[bytes], ask: Callable[[bytes], None]) -> None:
        # A connection may live on behind a key that may not call.  libzmq does not tell of its end:
        # once a delegate has ended that came in, calls are looked at for good, at 3 us each.
        self.some_revoked = False
        self._came: set[bytes] = set()  # of the listed: behind these there may be a connection
        self._has_ended = False  # a delegate did that came: its key may have been stolen
        self._listed = frozenset(client_keys)
        self._delegates: frozenset[bytes] = frozenset()
        self._ask = ask

    def may_call(self, key: bytes) -> bool:
        return key in self._listed or key in self._delegates

    def admit(self, key: bytes) -> str | Unknown:
        """Answer a door, or have it wait for `hear`."""
        if key in self._listed:
            self._came.add(key)
        if self.may_call(key):
            return "client"
        self._ask(key)
        return Unknown.ASKED

    def relist(self, client_keys: Iterable[bytes]) -> None:
        """From now on these keys are the listed ones."""
        self._listed = frozenset(client_keys)
        self.some_revoked = self._has_ended or not self._came <= self._listed

    def hear(self, caller: control.Caller) -> None:
        """Learn whether a delegate may call."""
        if caller.admitted and caller.key in self._listed:  # since it knocked
            self._came.add(caller.key)
        elif caller.admitted:
            self._delegates |= {caller.key}
        elif caller.key in self._delegates:
            self._has_ended = self.some_revoked = True
            self._delegates -= {caller.key}


class AccessRelay:
    """A worker's part: what its actors ask, and what the master answers."""

    def __init__(
        self,
        ask: Callable[[control.MayCall], object],
        tell: Callable[[str, control.Caller], object],
    ) -> None:
        self._ask = ask
        self._tell = tell
        self._askers: Index[bytes, str] = Index()  # actors, by the key about which they asked
        self._asked: Index[str, bytes] = Index()  # the reverse
        self._admitted: set[bytes] = set()

    def hear_actor(self, actor: str, question: control.MayCall) -> None:
        key = question.key
        self._askers.add(key, actor)
        self._asked.add(actor, key)
        if key in self._admitted:
            self._tell(actor, control.Caller(key=key, admitted=True))
        else:
            self._ask(question)

    def hear_master(self, caller: control.Caller) -> None:
        """An answer, or a delegate that was taken back."""
        askers = self._askers.of(caller.key)
        if caller.admitted and askers:
            self._admitted.add(caller.key)
        elif not caller.admitted:
            self._admitted.discard(caller.key)
            for actor in askers:
                self._drop(actor, caller.key)
        for actor in askers:
            self._tell(actor, caller)

    def ask_again(self) -> None:
        """Hear what became of each key: the line to the master was broken, or it is a new one, or
        the list has changed.  Of a delegate's end we are told, of a listed key's we are not."""
        for key in self._askers:
            self._ask(control.MayCall(key=key))

    def forget(self, actor: str) -> None:
        """An actor has ended."""
        for key in self._asked.of(actor):
            self._drop(actor, key)

    def _drop(self, actor: str, key: bytes) -> None:
        self._askers.discard(key, actor)
        self._asked.discard(actor, key)
        if key not in self._askers:
            self._admitted.discard(key)
