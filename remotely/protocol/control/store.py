"""The messages between the store of a machine and clients, its worker, and the actors beside it.

What arena and loans are is opaque here; values/arena.py has their structs.
"""

from remotely.protocol.control.message import ControlMessage
from remotely.protocol.control.records import BulkAddress
from remotely.protocol.listening import Listening
from remotely.protocol.numbers import Amount, Name

# --- a client, over CURVE -------------------------------------------------------------------------


class Reach(ControlMessage, frozen=True):
    """Where do you take large values?"""


class Reached(ControlMessage, frozen=True):
    bulk: BulkAddress


class Expect(ControlMessage, frozen=True):
    """A value is about to arrive.  Whoever names it over TLS may bring it: the name is a secret."""

    value: Name
    nbytes: Amount


class Ready(ControlMessage, frozen=True):
    value: Name


class Full(ControlMessage, frozen=True):
    """There is no room for it."""

    value: Name


class Stored(ControlMessage, frozen=True):
    value: Name


class Broken(ControlMessage, frozen=True):
    """It did not arrive, or not all of it; it is still expected."""

    value: Name
    why: str


class Unrelayed(ControlMessage, frozen=True):
    """It could not be passed on to the next machine."""

    value: Name
    bulk: BulkAddress
    why: str


class Release(ControlMessage, frozen=True):
    """I need these values no more."""

    values: list[Name]


class AreYouThere(ControlMessage, frozen=True):
    """Needs no answer: what cannot be delivered says that a client is gone."""


class Claim(ControlMessage, frozen=True):
    """I know of this result, and will release it: keep it until then, though its actor ends."""

    value: Name


# --- its worker -----------------------------------------------------------------------------------


class StoreBirth(ControlMessage, frozen=True):
    """All that a new store needs; the first message on its own socket."""

    listening: Listening
    machine: str
    public_key: bytes
    secret_key: bytes
    client_keys: list[bytes]


class Meet(ControlMessage, frozen=True):
    """An actor of this machine wants to talk; its socket comes along."""


# --- an actor of its machine ----------------------------------------------------------------------


class Share(ControlMessage, frozen=True):
    """Open my arena; the answer is where yours is."""

    arena: bytes


class Shared(ControlMessage, frozen=True):
    arena: bytes
    bulk: BulkAddress  # where other machines fetch what you offer


class Offer(ControlMessage, frozen=True):
    """I lend you a result: keep it until its caller has fetched or released it."""

    value: Name
    loan: bytes


class Offered(ControlMessage, frozen=True):
    """It can be fetched from now on."""


class Withdraw(ControlMessage, frozen=True):
    """Its caller is gone."""

    value: Name


class Borrow(ControlMessage, frozen=True):
    """Lend me a value.  With an address: fetch it from the store there first."""

    value: Name
    nbytes: Amount
    bulk: BulkAddress | None = None


class Lent(ControlMessage, frozen=True):
    loan: bytes


class Gone(ControlMessage, frozen=True):
    """The value cannot be had here."""

    why: str
