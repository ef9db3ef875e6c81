"""The messages between a machine's store and clients, its worker, and the actors of the machine.

Arenas and loans are opaque here; values/arena.py has their structs.
"""

from remotely.protocol.control.message import ControlMessage, sent
from remotely.protocol.control.records import BulkAddress
from remotely.protocol.listening import Listening
from remotely.protocol.numbers import Amount, Name

# --- a client, over CURVE -------------------------------------------------------------------------


@sent("client > store")
class Reach(ControlMessage, frozen=True):
    """Ask where the store receives large values."""


@sent("store > client")
class Reached(ControlMessage, frozen=True):
    bulk: BulkAddress


@sent("client > store")
class Expect(ControlMessage, frozen=True):
    """A value is about to arrive over TLS, from any peer that knows its name, a secret."""

    value: Name
    nbytes: Amount


@sent("store > client")
class Ready(ControlMessage, frozen=True):
    value: Name


@sent("store > client")
class Full(ControlMessage, frozen=True):
    """There is no room for the value."""

    value: Name


@sent("store > client")
class Stored(ControlMessage, frozen=True):
    value: Name


@sent("store > client")
class Broken(ControlMessage, frozen=True):
    """The value did not arrive, or not completely; it is still expected."""

    value: Name
    why: str


@sent("store > client")
class Unrelayed(ControlMessage, frozen=True):
    """The value could not be forwarded to the next machine."""

    value: Name
    bulk: BulkAddress
    why: str


@sent("client > store")
class Release(ControlMessage, frozen=True):
    """The client no longer needs these values."""

    values: list[Name]


@sent("store > client")
class AreYouThere(ControlMessage, frozen=True):
    """A probe without a reply: if it cannot be delivered, the client is gone."""


@sent("client > store")
class Claim(ControlMessage, frozen=True):
    """The client will release this result: keep it until then, even if its actor ends."""

    value: Name


# --- its worker -----------------------------------------------------------------------------------


@sent("worker > store")
class StoreBirth(ControlMessage, frozen=True):
    """All that a new store needs; the first message on its socket."""

    listening: Listening
    machine: str
    public_key: bytes
    secret_key: bytes


@sent("worker > actor", "actor > worker", "worker > store")
class Meet(ControlMessage, frozen=True):
    """Connects an actor of this machine; its socket is attached."""


# --- an actor of its machine ----------------------------------------------------------------------


@sent("actor > store")
class Share(ControlMessage, frozen=True):
    """Open the actor's arena; the reply names the store's."""

    arena: bytes


@sent("store > actor")
class Shared(ControlMessage, frozen=True):
    arena: bytes
    bulk: BulkAddress  # where other machines fetch offered values


@sent("actor > store")
class Offer(ControlMessage, frozen=True):
    """Lend a result to the store, which keeps it until its caller has fetched or released it."""

    value: Name
    loan: bytes


@sent("store > actor")
class Offered(ControlMessage, frozen=True):
    """The offered value can be fetched now."""


@sent("actor > store")
class Withdraw(ControlMessage, frozen=True):
    """Withdraw an offer: its caller is gone."""

    value: Name


@sent("actor > store")
class Borrow(ControlMessage, frozen=True):
    """Borrow a value.  With `bulk`, the store fetches it from the store there first."""

    value: Name
    nbytes: Amount
    bulk: BulkAddress | None = None


@sent("store > actor")
class Lent(ControlMessage, frozen=True):
    loan: bytes


@sent("actor > store")
class Follow(ControlMessage, frozen=True):
    """Follow a published value of another machine, for all actors of this one."""

    origin: bytes


@sent("store > actor")
class FollowedAt(ControlMessage, frozen=True):
    """A version of it is here; this is where to open the memory (values/shared_memory.py)."""

    memory: bytes


@sent("store > actor")
class Gone(ControlMessage, frozen=True):
    """The value is not available here."""

    why: str
