"""The addresses at which one machine's processes listen for those of others.

The address that is bound and the one that is announced differ in a container, behind a port
forwarding, or on a machine of several networks.  A range of ports can be opened in a firewall.
"""

from collections.abc import Iterator

import msgspec

from remotely.protocol.address import join_address


class Ports(msgspec.Struct, frozen=True):
    """A range of ports, both ends included; of none, the kernel chooses any that is free."""

    low: int = 0
    high: int = 0

    def __str__(self) -> str:
        return f"{self.low}-{self.high}"

    @property
    def count(self) -> int:
        return self.high - self.low + 1

    def starting_at(self, number: int) -> Iterator[int]:
        """Yield each port once, and in another order for each number.

        Processes that start together so rarely try the same.  0, if there is no range.
        """
        for i in range(self.count):
            yield self.low + (number + i) % self.count


ANY_PORT = Ports()


class Listening(msgspec.Struct, frozen=True, kw_only=True):
    """Where to bind, and what to announce."""

    host: str = ""  # an IP address of this machine; if empty, nothing listens for other machines
    announced: list[str] = []  # how others reach it, where that is not `host`
    ports: Ports = ANY_PORT

    @property
    def address(self) -> str:
        """How others reach this machine, for people."""
        return ", ".join(self.announced) or self.host

    def endpoints(self, port: int) -> str:
        """Return what others connect to: "tcp://host:port", or several, separated by spaces."""
        hosts = self.announced or [self.host]
        return " ".join(f"tcp://{join_address(host, port)}" for host in hosts)


def parse_ports(text: str) -> Ports:
    """Read "9000-9100".  Raises ValueError."""
    low, dash, high = text.partition("-")
    if not dash or not low.isdecimal() or not high.isdecimal():
        raise ValueError(f"{text!r} is no range of ports; write it as 9000-9100")
    if not 0 < int(low) <= int(high) < 65536:
        raise ValueError(f"{text!r} is no range of ports: it goes from a lower port to a higher")
    return Ports(int(low), int(high))
