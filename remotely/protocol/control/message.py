"""What every message of the control protocol is."""

import msgspec


class ControlMessage(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """A message.  Its tag, the name of the class, tells the members of a union apart."""
