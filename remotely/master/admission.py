"""The keys: what the holder of each may do, and how far the master believes its word.

    a key that master.key lists    is a client's, a worker's or a viewer's, until it is taken off
    a delegate                     is a client's, inside of one actor, for as long as that lives

A delegate is the key of an actor that makes calls of its own.  The actor makes the pair when it
first needs it, and its secret never leaves that process; its worker tells the master the public
half; the other actors' doors ask, when such a key first knocks, whether it may call.  So nobody is
told of keys that never knock there, and whoever was told is told of the end.

    worker A    this actor, which I house, has this key         Delegate, answered by Delegated
    worker B    this key knocks at an actor of mine: may it?    MayCall, answered by Caller
    master      it may not any more, as its actor has ended     Caller, to all who were told

A master that was started again does not know a key before the worker of its actor is back.  Till
then, or until it has waited long enough, the question is held.

Three things bind what peers say of themselves.

    an id        of a session or a worker, guests included (guests.py), is a digest of its
                 role, its key and a nonce that its process made: nobody else can use it, not with
                 another key, in another role or, where machines share a key, without the nonce.
                 The master need not remember it.  A worker that shows the nonce of another takes
                 its place: it could read a file that is closed to other users, so it runs where
                 the other did
    a seal       the master puts one on each placement.  A worker shows it when the master was
                 started again: an actor without one is not believed in, whatever its worker says
    a placement  says which worker houses an actor; that worker speaks for it, and no other

Refused: the client's own key for its actors (a worker's key was then as good as a client's, for
ever); a pair that the client makes and sends (a secret that travels, for actors that mostly make no
calls); telling every actor of every delegate (a thousand actors times a thousand keys); signed
tickets that an actor could check by itself (none can be revoked, and CURVE keys do not sign).
"""

import hashlib
import hmac
from collections.abc import Callable, Iterable

import msgspec

from remotely.errors import NotAllowed
from remotely.protocol import control
from remotely.protocol.ids import bound_id
from remotely.protocol.index import Index

_encode = msgspec.msgpack.Encoder().encode


class Seals:
    """Marks that only who holds the master's secret can make."""

    def __init__(self, secret: bytes) -> None:
        self._key = hashlib.blake2b(secret, digest_size=32, person=b"remotely seal").digest()

    def seal(self, worker: str, request: control.Request, gpu_ids: list[int]) -> bytes:
        """Return the mark of a placement: this life of this actor, there."""
        placed = _encode((worker, request, gpu_ids))
        return hashlib.blake2b(placed, digest_size=32, key=self._key).digest()

    def is_ours(
        self, worker: str, request: control.Request, gpu_ids: list[int], seal: bytes
    ) -> bool:
        """Tell whether what a worker says to house was placed there by the master."""
        return hmac.compare_digest(self.seal(worker, request, gpu_ids), seal)


class Admission:
    """The keys that are listed, and the delegates."""

    def __init__(
        self,
        client_keys: Iterable[bytes],
        worker_keys: Iterable[bytes],
        secret: bytes,
        viewer_keys: Iterable[bytes] = (),
    ) -> None:
        self.relist(client_keys, worker_keys, viewer_keys)
        self.seals = Seals(secret)
        self._actors: Index[bytes, str] = Index()  # by their delegate
        self.delegates: dict[str, bytes] = {}  # the reverse
        self.told: Index[bytes, str] = Index()  # workers, by a delegate that they asked about
        self._asked: Index[str, bytes] = Index()  # the reverse

    def relist(
        self,
        client_keys: Iterable[bytes],
        worker_keys: Iterable[bytes],
        viewer_keys: Iterable[bytes] = (),
    ) -> None:
        """From now on these keys are listed."""
        self._clients, self._workers = frozenset(client_keys), frozenset(worker_keys)
        self._viewers = frozenset(viewer_keys)

    @property
    def client_keys(self) -> list[bytes]:
        """Return those that are listed, in an order that is always the same."""
        return sorted(self._clients)

    def role_of(self, key: bytes) -> str | None:
        """Return as what the holder of a key is admitted; None for a stranger's."""
        if key in self._clients or key in self._actors:
            return "client"
        if key in self._workers:
            return "worker"
        return "viewer" if key in self._viewers else None

    def is_listed(self, client_key: bytes) -> bool:
        return client_key in self._clients

    def may_live(self, request: control.Request) -> bool:
        """Tell whether the key by which an actor came to be is still listed."""
        return request.key in (self._workers if request.classes else self._clients)

    # --- who says who it is -----------------------------------------------------------------------

    def vet_client(self, hello: control.Hello, key: bytes) -> control.Hello:
        """Return a client's introduction as its key allows it; raise NotAllowed if it lies.

        A viewer is a client that may only look: it lives in no actor, has no modules to be loaded
        for it, and holds no object that has dialled in.
        """
        if key in self._viewers:
            _check_id("viewer", key, hello.nonce, hello.session)
            return msgspec.structs.replace(hello, actor="", modules=[], arrivals=[])
        _check_id("client", key, hello.nonce, hello.session)
        if key in self._clients:  # it lives in no actor, whatever it says
            return msgspec.structs.replace(hello, actor="") if hello.actor else hello
        if hello.actor not in self._actors.of(key):
            raise NotAllowed("the key of an actor is for that actor alone")
        return hello

    def vet_worker(self, register: control.Register, key: bytes) -> list[str]:
        """Return the ids of those whose place a worker takes: it knows what makes their ids.

        Raises NotAllowed if it takes another's id.
        """
        _check_id("worker", key, register.nonce, register.worker)
        return [bound_id("worker", key, nonce) for nonce in register.predecessors]

    # --- delegates --------------------------------------------------------------------------------

    def delegate(self, actor: str, key: bytes) -> bool:
        """Admit the holder of a key as an actor; false for an actor that has another delegate.

        Two may name the same key, since a worker might name another's to have it revoked with an
        actor of its own.  Without the secret it gains nothing by that.
        """
        if len(key) != 40 or key in self._clients | self._workers | self._viewers:
            return False
        if self.delegates.setdefault(actor, key) != key:
            return False
        self._actors.add(key, actor)
        return True

    def note_told(self, worker: str, key: bytes) -> None:
        """A worker lets this delegate in, and so has to hear of its end."""
        if key in self._actors:
            self.told.add(key, worker)
            self._asked.add(worker, key)

    def remove_worker(self, worker: str) -> None:
        """A worker has ended, and lets nobody in."""
        for key in self._asked.pop(worker):
            self.told.discard(key, worker)

    def end(self, actor: str) -> tuple[bytes, list[str]]:
        """Take an actor's delegate back; return it, and the workers that have to hear of it."""
        key = self.delegates.pop(actor, b"")
        self._actors.discard(key, actor)
        if key in self._actors:
            return b"", []
        told = self.told.pop(key)
        for worker in told:
            self._asked.discard(worker, key)
        return key, told


def _check_id(role: str, key: bytes, nonce: str, said: str) -> None:
    if said != bound_id(role, key, nonce):
        raise NotAllowed(f"this {role}'s id is not that of its key")


class Delegates:
    """Tells workers which keys are those of delegates, and which no longer are."""

    def __init__(self, tell: Callable[[str, msgspec.Struct], None], admission: Admission) -> None:
        self._tell = tell
        self._admission = admission
        self.askers: Index[bytes, str] = Index()  # workers, by a key that nobody knew
        self._unanswered: Index[str, bytes] = Index()  # the reverse

    def delegate(self, worker: str, request: control.Request, key: bytes) -> None:
        """An actor that lives there makes calls with a key of its own, if its own is listed."""
        if self._admission.is_listed(request.key) and self._admission.delegate(request.actor, key):
            self._tell(worker, control.Delegated(actor=request.actor))
            self._answer_all(key)

    def take_back(self, actor: str) -> None:
        """An actor makes no calls any more: whoever let it in is told."""
        key, told = self._admission.end(actor)
        for worker in told:
            self._tell(worker, control.Caller(key=key, admitted=False))

    def ask(self, worker: str, key: bytes, may_come_back: bool) -> None:
        """Tell a worker whether this key may call; later, if its actor may come back."""
        if may_come_back and self._admission.role_of(key) is None:
            self.askers.add(key, worker)
            self._unanswered.add(worker, key)
        else:
            self._answer(worker, key)

    def give_up(self) -> None:
        """No actor comes back any more: who asked of a key is told that it may not."""
        for key in list(self.askers):
            self._answer_all(key)

    def remove_worker(self, worker: str) -> None:
        """A worker has ended, and lets nobody in."""
        self._admission.remove_worker(worker)
        for key in self._unanswered.pop(worker):
            self.askers.discard(key, worker)

    def _answer_all(self, key: bytes) -> None:
        for worker in self.askers.pop(key):
            self._unanswered.discard(worker, key)
            self._answer(worker, key)

    def _answer(self, worker: str, key: bytes) -> None:
        admitted = self._admission.role_of(key) == "client"
        self._admission.note_told(worker, key)
        self._tell(worker, control.Caller(key=key, admitted=admitted))
