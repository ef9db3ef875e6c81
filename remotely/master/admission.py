"""Authorization: what the holder of each key may do, and which claims of a peer the master trusts.

    listed key   in master.key: a client, a worker or a viewer, until it is removed from the list
    delegate     a client inside one actor, for as long as that actor lives

A delegate is the key of an actor that makes calls.  The actor creates the key pair when it first
needs it, and the secret never leaves that process.  Its worker sends the public key to the master.
When a delegate first connects to another actor, that actor asks whether it may call.  So actors are
informed only of delegates that connect to them, and are informed again when those end.

    worker A    this actor of mine has this key             Delegate; the reply is Delegated
    worker B    may this key call an actor of mine?         MayCall; the reply is Caller
    master      it may no longer: its actor has ended       Caller, to all that were informed

A restarted master does not know a delegate before the worker of its actor is back.  It defers the
reply until then, or until recovery ends.

Three things bind the claims of a peer.

    id           of a session or a worker, guests included (guests.py): a digest of the role, the
                 key, and a nonce that the process made.  Nobody else can use it: not with another
                 key, in another role or, where machines share a key, without the nonce.  The master
                 need not store it.  A worker that shows the nonce of another replaces that one: it
                 could read a file that is closed to other users, so it runs where the other did
    seal         the master's signature of each placement.  The worker shows it to a restarted
                 master, which ignores an actor without a valid seal, whatever its worker says
    placement    only the worker on which an actor is placed may report on it

Refused: the client's own key for its actors (then a worker's key would be as good as a client's,
forever); a key pair that the client makes and sends (a secret that travels, for actors that mostly
make no calls); informing every actor of every delegate (a thousand actors times a thousand keys);
signed tickets that an actor could check alone (they cannot be revoked, and CURVE keys do not sign).
"""

import hashlib
import hmac
from collections.abc import Callable, Iterable

import msgspec

from remotely.errors import NotAllowed
from remotely.protocol import control
from remotely.protocol.ids import bound_id
from remotely.protocol.index import Index

LIST = b""  # in CallerHeard: the list that the worker was sent when it registered
REVOKED = "this key was revoked; ask the administrator of the cluster for another"

_encode = msgspec.msgpack.Encoder().encode


class Seals:
    """Signatures that only the holder of the master's secret can make."""

    def __init__(self, secret: bytes) -> None:
        self._key = hashlib.blake2b(secret, digest_size=32, person=b"remotely seal").digest()

    def seal(self, worker: str, request: control.Request, gpu_ids: list[int]) -> bytes:
        """Sign the placement of one life of an actor on a worker."""
        placed = _encode((worker, request, gpu_ids))
        return hashlib.blake2b(placed, digest_size=32, key=self._key).digest()

    def is_ours(
        self, worker: str, request: control.Request, gpu_ids: list[int], seal: bytes
    ) -> bool:
        """Return whether the master placed this actor on this worker."""
        return hmac.compare_digest(self.seal(worker, request, gpu_ids), seal)


class Admission:
    """The listed keys and the delegates."""

    def __init__(
        self,
        client_keys: Iterable[bytes],
        worker_keys: Iterable[bytes],
        secret: bytes,
        viewer_keys: Iterable[bytes] = (),
    ) -> None:
        self.set_keys(client_keys, worker_keys, viewer_keys)
        self.seals = Seals(secret)
        self._actors: Index[bytes, str] = Index()  # by delegate
        self.delegates: dict[str, bytes] = {}  # the reverse
        self.informed: Index[bytes, str] = Index()  # workers, by a delegate that they asked about
        self._asked: Index[str, bytes] = Index()  # the reverse

    def set_keys(
        self,
        client_keys: Iterable[bytes],
        worker_keys: Iterable[bytes],
        viewer_keys: Iterable[bytes] = (),
    ) -> None:
        """Replace the lists of keys."""
        self._clients, self._workers = frozenset(client_keys), frozenset(worker_keys)
        self._viewers = frozenset(viewer_keys)

    @property
    def keys(self) -> frozenset[bytes]:
        """All listed keys."""
        return self._clients | self._workers | self._viewers

    @property
    def client_keys(self) -> list[bytes]:
        """The listed client keys, sorted."""
        return sorted(self._clients)

    def role_of(self, key: bytes) -> str | None:
        """Return the role of a key; None if it is unknown."""
        if key in self._clients or key in self._actors:
            return "client"
        if key in self._workers:
            return "worker"
        return "viewer" if key in self._viewers else None

    def is_listed(self, client_key: bytes) -> bool:
        return client_key in self._clients

    def may_live(self, request: control.Request) -> bool:
        """Return whether the key with which an actor was created is still listed."""
        return request.key in (self._workers if request.classes else self._clients)

    # --- authentication ---------------------------------------------------------------------------

    def vet_client(self, hello: control.Hello, key: bytes) -> control.Hello:
        """Return a client's Hello with the fields that its key allows; raise NotAllowed if forged.

        A viewer is a read-only client: it is in no actor, and has neither modules nor arrivals.
        """
        if key in self._viewers:
            _check_id("viewer", key, hello.nonce, hello.session)
            return msgspec.structs.replace(hello, actor="", modules=[], arrivals=[])
        _check_id("client", key, hello.nonce, hello.session)
        if key in self._clients:  # it is in no actor, whatever it says
            return msgspec.structs.replace(hello, actor="") if hello.actor else hello
        if hello.actor not in self._actors.of(key):
            raise NotAllowed("the key of an actor is for that actor alone")
        return hello

    def vet_worker(self, register: control.Register, key: bytes) -> list[str]:
        """Return the ids of the workers that this one replaces, whose nonces it knows.

        Raises NotAllowed if it uses another's id.
        """
        _check_id("worker", key, register.nonce, register.worker)
        return [bound_id("worker", key, nonce) for nonce in register.predecessors]

    # --- delegates --------------------------------------------------------------------------------

    def delegate(self, actor: str, key: bytes) -> bool:
        """Admit the holder of a key as an actor; return False if the actor has another delegate.

        Two actors may have the same key: so a worker that claims another's key for its own actor
        cannot have it revoked by ending that actor.  Without the secret, a claim gains nothing.
        """
        if len(key) != 40 or key in self._clients | self._workers | self._viewers:
            return False
        if self.delegates.setdefault(actor, key) != key:
            return False
        self._actors.add(key, actor)
        return True

    def add_informed(self, worker: str, key: bytes) -> None:
        """Record that a worker admits this delegate, and must be informed when it ends."""
        if key in self._actors:
            self.informed.add(key, worker)
            self._asked.add(worker, key)

    def remove_worker(self, worker: str) -> None:
        """Forget a worker that has ended."""
        for key in self._asked.pop(worker):
            self.informed.discard(key, worker)

    def remove_delegate(self, actor: str) -> tuple[bytes, list[str]]:
        """Remove an actor's delegate; return it, and the workers that must be informed."""
        key = self.delegates.pop(actor, b"")
        self._actors.discard(key, actor)
        if key in self._actors:
            return b"", []
        informed = self.informed.pop(key)
        for worker in informed:
            self._asked.discard(worker, key)
        return key, informed


def _check_id(role: str, key: bytes, nonce: str, claimed: str) -> None:
    if claimed != bound_id(role, key, nonce):
        raise NotAllowed(f"this {role}'s id does not match its key")


class Delegates:
    """Informs workers which keys may call, and which no longer may: delegates, and clients whose
    key was revoked."""

    def __init__(self, send: Callable[[str, msgspec.Struct], None], admission: Admission) -> None:
        self._send = send
        self._admission = admission
        self.askers: Index[bytes, str] = Index()  # workers, by a key that was unknown
        self._unanswered: Index[str, bytes] = Index()  # the reverse
        # What a worker has not confirmed: the end of these keys, and its list.
        self._unheard: Index[str, bytes] = Index()

    def delegate(self, worker: str, request: control.Request, key: bytes) -> None:
        """Admit the delegate of an actor on this worker, if the actor's own key is listed."""
        if self._admission.is_listed(request.key) and self._admission.delegate(request.actor, key):
            self._send(worker, control.Delegated(actor=request.actor))
            self._answer_all(key)

    def revoke(self, actor: str) -> None:
        """Revoke the delegate of an actor, and inform the workers that admit it."""
        key, informed = self._admission.remove_delegate(actor)
        self.end(key, informed)

    def end(self, key: bytes, workers: Iterable[str]) -> None:
        """Tell workers that a key may not call any more."""
        for worker in workers:
            self._unheard.add(worker, key)
            self._send(worker, control.Caller(key=key, admitted=False))

    def begin(self, worker: str) -> None:
        """A worker was sent the list: tell it again what it has not confirmed, if that still holds.

        It has to confirm the list too, since it may admit keys by the word of an earlier master.
        """
        for key in self._unheard.pop(worker):
            if key != LIST and not self._may_call(key):
                self.end(key, [worker])
        self._unheard.add(worker, LIST)

    def handle_heard(self, worker: str, key: bytes) -> None:
        """A worker has confirmed the end of a key, or its list."""
        self._unheard.discard(worker, key)

    def unheard(self) -> list[str]:
        """Return the workers that have not confirmed the end of each key."""
        workers = list(self._unheard)
        return [w for w in workers if not all(map(self._may_call, self._unheard.of(w)))]

    def query(self, worker: str, key: bytes, may_return: bool, again: bool) -> None:
        """Reply to a worker whether this key may call; later, if its actor may come back."""
        if may_return and self._admission.role_of(key) is None:
            self.askers.add(key, worker)
            self._unanswered.add(worker, key)
        else:
            self._answer(worker, key, again)

    def refuse_unknown(self) -> None:
        """Reply to the deferred queries: recovery has ended."""
        for key in list(self.askers):
            self._answer_all(key)

    def remove_worker(self, worker: str) -> None:
        """Forget a worker that has ended."""
        self._admission.remove_worker(worker)
        self._unheard.pop(worker)
        for key in self._unanswered.pop(worker):
            self.askers.discard(key, worker)

    def _answer_all(self, key: bytes) -> None:
        for worker in self.askers.pop(key):
            self._unanswered.discard(worker, key)
            self._answer(worker, key, again=True)  # an earlier master may have admitted it

    def _answer(self, worker: str, key: bytes, again: bool) -> None:
        self._admission.add_informed(worker, key)
        if again and not self._may_call(key):
            self.end(key, [worker])
        else:
            self._send(worker, control.Caller(key=key, admitted=self._may_call(key)))

    def _may_call(self, key: bytes) -> bool:
        return self._admission.role_of(key) == "client"
