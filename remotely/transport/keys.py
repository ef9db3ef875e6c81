"""CURVE keys, and the roles that they grant.

    file         for                              lets its holder
    master.key   the master's machine alone       be the master: it lists the admitted keys
    client.key   everyone who makes calls         run code on the workers
    worker.key   each machine that joins          receive code and answer calls
    viewer.key   a dashboard                      see the status and the logs, and change nothing

A key of one role grants nothing of another.  Each key is a role, a key pair, and the master's
public key (so that nobody can impersonate the master) or the public keys that the master admits.
key_files.py reads and writes them.
"""

from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec
import zmq
from zmq.utils import z85

Role = Literal["client", "worker", "viewer"]
ROLES: tuple[Role, ...] = ("client", "worker", "viewer")


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A public key and its secret, as Z85 text of 40 bytes each.  `repr` hides the secret."""

    public: bytes
    secret: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class MasterKey:
    """The master's key pair, and the public keys that it admits."""

    pair: KeyPair
    client_keys: tuple[bytes, ...] = ()
    worker_keys: tuple[bytes, ...] = ()
    viewer_keys: tuple[bytes, ...] = ()

    @property
    def operator(self) -> "MemberKey":
        """The key with which the holder of master.key looks at its own cluster."""
        return MemberKey("viewer", self.pair, self.pair.public)

    @property
    def viewers(self) -> tuple[bytes, ...]:
        """The public keys of those who may look: the viewers, and the holder of this file."""
        return (*self.viewer_keys, self.pair.public)

    def keys_of(self, role: Role) -> tuple[bytes, ...]:
        """Return the admitted public keys of a role."""
        return {
            "client": self.client_keys,
            "worker": self.worker_keys,
            "viewer": self.viewer_keys,
        }[role]

    def listing(self, role: Role, keys: tuple[bytes, ...]) -> "MasterKey":
        """Return a copy that admits these keys in a role."""
        lists = {each: self.keys_of(each) for each in ROLES} | {role: keys}
        return MasterKey(self.pair, lists["client"], lists["worker"], lists["viewer"])

    def role_of(self, public: bytes) -> Role | None:
        """Return the role of an admitted key; else None."""
        return next((role for role in ROLES if public in self.keys_of(role)), None)

    def to_dict(self) -> dict[str, Any]:
        """Return a dict for JSON, including the secret: for a key file or a pipe."""
        return {
            "role": "master",
            "public": self.pair.public.decode(),
            "secret": self.pair.secret.decode(),
            "clients": [key.decode() for key in self.client_keys],
            "workers": [key.decode() for key in self.worker_keys],
            "viewers": [key.decode() for key in self.viewer_keys],
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "MasterKey":
        file = msgspec.convert(values, _MasterFile)
        clients, workers, viewers = (
            tuple(map(_key, keys)) for keys in (file.clients, file.workers, file.viewers)
        )
        return cls(_pair(file.public, file.secret), clients, workers, viewers)


@dataclass(frozen=True, slots=True)
class MemberKey:
    """The key pair of a client, worker or viewer, and the one master that it trusts."""

    role: Role
    pair: KeyPair
    master_public: bytes
    file: str = field(default="", compare=False)  # from which it was read

    def to_dict(self) -> dict[str, Any]:
        """Return a dict for JSON, including the secret: for a key file or a pipe."""
        return {
            "role": self.role,
            "public": self.pair.public.decode(),
            "secret": self.pair.secret.decode(),
            "master": self.master_public.decode(),
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "MemberKey":
        file = msgspec.convert(values, _MemberFile)
        return cls(file.role, _pair(file.public, file.secret), _key(file.master))


def fresh_pair() -> KeyPair:
    return KeyPair(*zmq.curve_keypair())


def fresh_keys() -> tuple[MasterKey, MemberKey, MemberKey, MemberKey]:
    """Return the keys of a new cluster: of its master, a client, a worker and a viewer."""
    master, client, worker, viewer = (fresh_pair() for _ in range(4))
    return (
        MasterKey(master, (client.public,), (worker.public,), (viewer.public,)),
        MemberKey("client", client, master.public),
        MemberKey("worker", worker, master.public),
        MemberKey("viewer", viewer, master.public),
    )


class _MasterFile(msgspec.Struct, forbid_unknown_fields=True):
    role: Literal["master"]
    public: str
    secret: str
    clients: list[str]
    workers: list[str]
    viewers: list[str] = []  # older files have none


class _MemberFile(msgspec.Struct, forbid_unknown_fields=True):
    role: Role
    public: str
    secret: str
    master: str


def _key(text: str) -> bytes:
    key = text.encode("ascii")
    if len(key) != 40 or z85.encode(z85.decode(key)) != key:
        raise ValueError("not a key")
    return key


def _pair(public: str, secret: str) -> KeyPair:
    pair = KeyPair(_key(public), _key(secret))
    if zmq.curve_public(pair.secret) != pair.public:
        raise ValueError("the public key is not that of the secret")
    return pair
