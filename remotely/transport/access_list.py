"""Access control of actors and stores: the keys that may call one, and its worker's list.

An actor knows the key with which it was placed.  When any other first connects, the actor asks
whether it may call; only that connection waits for the reply.  The worker answers for the clients
that the master lists; about a delegate, the key of another actor, it asks the master (admission.py)
once, and then answers its other actors itself.

A right is taken away in one way, whoever had it:

    1  Caller, not admitted    the master tells each worker of a client, and those that have asked
                               of a delegate; the worker tells the actors that admit the key
    2  CallerHeard             the actor refuses it from now on.  The worker passes this on once all
                               of them have said so, or ended
    3  again                   the master tells a worker again that registers before it said so.
                               A worker that registers may have admitted keys by the word of an
                               earlier master.  It asks again about those that are not listed, and
                               confirms the list once all are refused that have lost their right:
                               so a master that has restarted knows when there is none left

So what is sent is the difference, and it goes where the key is known.  Refused: the whole list to
every actor, which with thousands of clients no socket takes.
"""

from collections.abc import Callable, Iterable

from remotely.protocol import control
from remotely.protocol.index import Index
from remotely.transport.sockets import UnknownKey

REVOKED = "the key with which this call came was revoked"


class AccessList:
    """The list of one actor or store.  Used on its background thread, except for `may_call`."""

    def __init__(self, keys: Iterable[bytes], ask: Callable[[bytes], None]) -> None:
        # A connection outlives its key's right to call, and libzmq does not report its end.  So
        # once a right was taken away, every call is checked, at 3 us each.
        self.some_revoked = False
        self._keys = frozenset(keys)
        self._ask = ask

    def may_call(self, key: bytes) -> bool:
        return key in self._keys

    def admit(self, key: bytes) -> str | UnknownKey:
        """Answer the ZAP handler, or let it wait for `update`."""
        if key in self._keys:
            return "client"
        self._ask(key)
        return UnknownKey.ASKED

    def update(self, caller: control.Caller) -> None:
        """Record whether a key may call."""
        if caller.admitted:
            self._keys |= {caller.key}
        elif caller.key in self._keys:
            self.some_revoked = True
            self._keys -= {caller.key}


class AccessRelay:
    """Answers the questions of the actors of a worker or guest, itself or by asking the master."""

    def __init__(
        self,
        tell_master: Callable[[control.MayCall | control.CallerHeard], object],
        send: Callable[[str, control.Caller], object],
    ) -> None:
        self._tell_master = tell_master
        self._send = send
        self._listed: set[bytes] = set()  # the clients; the master reports their end to everybody
        self._admitted: set[bytes] = set()  # others, about which it was asked
        self._askers: Index[bytes, str] = Index()  # actors, by the key about which they asked
        self._asked: Index[str, bytes] = Index()  # the reverse
        self._unheard: Index[bytes, str] = Index()  # actors that were told of its end, by key
        self._telling: Index[str, bytes] = Index()  # the reverse
        self._owes_confirmation = False  # of the list

    def list_keys(self, keys: Iterable[bytes]) -> None:
        """Replace the list of clients: the worker has registered, and its master may be another.

        End the rights of those that are gone from it, and ask again about all that are not listed.
        """
        before, self._listed = self._listed, set(keys)
        for key in before - self._listed:
            self.handle_reply(control.Caller(key=key, admitted=False))
        for key in self._askers:
            if key not in self._listed:
                self._tell_master(control.MayCall(key=key, again=True))
        self._owes_confirmation = True
        self._confirm_list()

    def begin(self, actor: str, maker: bytes) -> list[bytes]:
        """Return the keys that may call a new actor from its start: the one that has placed it."""
        if maker not in self._listed:
            return []
        self._note(actor, maker)
        return [maker]

    def handle_question(self, actor: str, question: control.MayCall) -> None:
        key = question.key
        self._note(actor, key)
        if key in self._listed or key in self._admitted:
            self._send(actor, control.Caller(key=key, admitted=True))
        else:
            self._tell_master(question)

    def handle_reply(self, caller: control.Caller) -> None:
        """Handle a reply of the master, or the end of a right."""
        key = caller.key
        askers = self._askers.of(key)
        if caller.admitted and askers:
            self._admitted.add(key)
        elif not caller.admitted:
            self._listed.discard(key)
            for actor in askers:
                self._drop(actor, key)
                self._unheard.add(key, actor)
                self._telling.add(actor, key)
        for actor in askers:
            self._send(actor, caller)
        if not caller.admitted and key not in self._unheard:
            self._tell_master(control.CallerHeard(key=key))

    def handle_heard(self, actor: str, key: bytes) -> None:
        """An actor refuses a key; tell the master if it was the last."""
        if actor in self._unheard.of(key):
            self._unheard.discard(key, actor)
            self._telling.discard(actor, key)
            if key not in self._unheard:
                self._tell_master(control.CallerHeard(key=key))
                self._confirm_list()

    def _confirm_list(self) -> None:
        """Tell the master, once, that no key is admitted here whose right has ended."""
        if self._owes_confirmation and not list(self._unheard):
            self._owes_confirmation = False
            self._tell_master(control.CallerHeard(key=b""))

    def forget(self, actor: str) -> None:
        """Forget an actor that has ended."""
        for key in self._asked.of(actor):
            self._drop(actor, key)
        for key in self._telling.of(actor):
            self.handle_heard(actor, key)

    def _note(self, actor: str, key: bytes) -> None:
        self._askers.add(key, actor)
        self._asked.add(actor, key)

    def _drop(self, actor: str, key: bytes) -> None:
        self._askers.discard(key, actor)
        self._asked.discard(actor, key)
        if key not in self._askers:
            self._admitted.discard(key)
