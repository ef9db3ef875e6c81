"""The addresses at which a machine's processes listen for other machines.

The bound address differs from the announced one in a container, behind port forwarding, or on a
machine with several networks.  A range of ports can be opened in a firewall.
"""

from collections.abc import Iterator

import msgspec

from remotely.protocol.address import join_address


class Ports(msgspec.Struct, frozen=True):
    """A range of ports, both ends included; 0-0 lets the kernel choose a free port."""

    low: int = 0
    high: int = 0

    def __str__(self) -> str:
        return f"{self.low}-{self.high}"

    @property
    def count(self) -> int:
        return self.high - self.low + 1

    def starting_at(self, number: int) -> Iterator[int]:
        """Yield each port once, in an order that depends on `number`; 0 if there is no range.

        So processes that start together rarely try the same port.
        """
        for i in range(self.count):
            yield self.low + (number + i) % self.count


ANY_PORT = Ports()


class Listening(msgspec.Struct, frozen=True, kw_only=True):
    """The address to bind, and the addresses to announce."""

    host: str = ""  # an IP address of this machine; if empty, nothing listens for other machines
    announced: list[str] = []  # the addresses that others use, if not `host`
    ports: Ports = ANY_PORT

    @property
    def address(self) -> str:
        """The address of this machine, for display."""
        return ", ".join(self.announced) or self.host

    def endpoints(self, port: int) -> str:
        """Return the addresses to connect to, as "tcp://host:port", separated by spaces."""
        hosts = self.announced or [self.host]
        return " ".join(f"tcp://{join_address(host, port)}" for host in hosts)


def parse_ports(text: str) -> Ports:
    """Parse "9000-9100".  Raises ValueError."""
    low, dash, high = text.partition("-")
    if not dash or not low.isdecimal() or not high.isdecimal():
        raise ValueError(f"{text!r} is not a range of ports; write it as 9000-9100")
    if not 0 < int(low) <= int(high) < 65536:
        raise ValueError(f"{text!r} is not a range of ports: it goes from a lower port to a higher")
    return Ports(int(low), int(high))
