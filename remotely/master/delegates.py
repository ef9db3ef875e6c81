"""Actors that call others with keys of their own, and the workers that are told of them.

    worker A    this actor, which I house, has this key         Delegate, answered by Delegated
    worker B    this key knocks at an actor of mine: may it?    MayCall, answered by Caller
    master      it may not any more, as its actor has ended     Caller, to all who were told

A master that was started again does not know a key before the worker of its actor is back.  Till
then, or until it has waited long enough, the question is held.
"""

from collections.abc import Callable

import msgspec

from remotely.master.actor_table import ActorRecord
from remotely.master.admission import Admission
from remotely.protocol import control
from remotely.protocol.index import Index


class Delegates:
    """Tells workers whose key is a delegate's, and whose no longer is."""

    def __init__(self, tell: Callable[[str, msgspec.Struct], object], admission: Admission) -> None:
        self._tell = tell
        self._admission = admission
        self._askers: Index[bytes, str] = Index()  # workers, by a key that nobody knew
        self._unanswered: Index[str, bytes] = Index()  # the reverse

    def delegate(self, record: ActorRecord, key: bytes) -> None:
        """An actor that lives, of a key that is listed, makes calls with a key of its own."""
        actor = record.request.actor
        if record.location is None or not self._admission.is_listed(record.request.key):
            return
        if self._admission.delegate(actor, key):
            self._tell(record.worker, control.Delegated(actor=actor))
            self._answer_all(key)

    def take_back(self, actor: str) -> None:
        """An actor makes no calls any more: whoever let it in is told."""
        key, told = self._admission.end(actor)
        for worker in told:
            self._tell(worker, control.Caller(key=key, admitted=False))

    def ask(self, worker: str, key: bytes, may_come_back: bool) -> None:
        """Tell a worker whether this key may call; later, if its actor may come back."""
        if may_come_back and self._admission.role_of(key) is None:
            self._askers.add(key, worker)
            self._unanswered.add(worker, key)
        else:
            self._answer(worker, key)

    def give_up(self) -> None:
        """No actor comes back any more: who asked of a key is told that it may not."""
        for key in list(self._askers):
            self._answer_all(key)

    def remove_worker(self, worker: str) -> None:
        """A worker has ended, and lets nobody in."""
        self._admission.remove_worker(worker)
        for key in self._unanswered.pop(worker):
            self._askers.discard(key, worker)

    def _answer_all(self, key: bytes) -> None:
        for worker in self._askers.pop(key):
            self._unanswered.discard(worker, key)
            self._answer(worker, key)

    def _answer(self, worker: str, key: bytes) -> None:
        admitted = self._admission.role_of(key) == "client"
        self._admission.note_told(worker, key)
        self._tell(worker, control.Caller(key=key, admitted=admitted))
