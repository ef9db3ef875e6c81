"""The messages between a machine's store and clients, its worker, and the actors of the machine.

Arenas and loans are opaque here; values/arena.py has their structs.
"""

from remotely.protocol.control.message import ControlMessage
from remotely.protocol.control.records import BulkAddress
from remotely.protocol.listening import Listening
from remotely.protocol.numbers import Amount, Name

# --- a client, over CURVE -------------------------------------------------------------------------


class Reach(ControlMessage, frozen=True):
    """Ask where the store receives large values."""


class Reached(ControlMessage, frozen=True):
    bulk: BulkAddress


class Expect(ControlMessage, frozen=True):
    """A value is about to arrive over TLS, from any peer that knows its name, a secret."""

    value: Name
    nbytes: Amount


class Ready(ControlMessage, frozen=True):
    value: Name


class Full(ControlMessage, frozen=True):
    """There is no room for the value."""

    value: Name


class Stored(ControlMessage, frozen=True):
    value: Name


class Broken(ControlMessage, frozen=True):
    """The value did not arrive, or not completely; it is still expected."""

    value: Name
    why: str


class Unrelayed(ControlMessage, frozen=True):
    """The value could not be forwarded to the next machine."""

    value: Name
    bulk: BulkAddress
    why: str


class Release(ControlMessage, frozen=True):
    """The client no longer needs these values."""

    values: list[Name]


class AreYouThere(ControlMessage, frozen=True):
    """A probe without a reply: if it cannot be delivered, the client is gone."""


class Claim(ControlMessage, frozen=True):
    """The client will release this result: keep it until then, even if its actor ends."""

    value: Name


# --- its worker -----------------------------------------------------------------------------------


class StoreBirth(ControlMessage, frozen=True):
    """All that a new store needs; the first message on its socket."""

    listening: Listening
    machine: str
    public_key: bytes
    secret_key: bytes
    client_keys: list[bytes]


class Meet(ControlMessage, frozen=True):
    """Connects an actor of this machine; its socket is attached."""


# --- an actor of its machine ----------------------------------------------------------------------


class Share(ControlMessage, frozen=True):
    """Open the actor's arena; the reply names the store's."""

    arena: bytes


class Shared(ControlMessage, frozen=True):
    arena: bytes
    bulk: BulkAddress  # where other machines fetch offered values


class Offer(ControlMessage, frozen=True):
    """Lend a result to the store, which keeps it until its caller has fetched or released it."""

    value: Name
    loan: bytes


class Offered(ControlMessage, frozen=True):
    """The offered value can be fetched now."""


class Withdraw(ControlMessage, frozen=True):
    """Withdraw an offer: its caller is gone."""

    value: Name


class Borrow(ControlMessage, frozen=True):
    """Borrow a value.  With `bulk`, the store fetches it from the store there first."""

    value: Name
    nbytes: Amount
    bulk: BulkAddress | None = None


class Lent(ControlMessage, frozen=True):
    loan: bytes


class Gone(ControlMessage, frozen=True):
    """The value is not available here."""

    why: str
