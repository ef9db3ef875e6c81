"""Where a master is: "host:8010", and what to say when nobody answers there."""

DEFAULT_PORT = 8010

SHARED = (
    "Several processes share a cluster that 'remotely start' has started: name it by "
    "REMOTELY_ADDRESS, or remotely.connect(address) in each"
)
FORKED = (
    "this process was forked from one that is connected, and cannot share its connection: call "
    f"remotely.connect() here first, which without an address starts another cluster. {SHARED}"
)


def parse_address(address: str) -> tuple[str, int]:
    """Read "host:port", "host" or "tcp://host:port".  Raises ValueError."""
    host, colon, port = address.removeprefix("tcp://").rpartition(":")
    if not colon:
        return port, DEFAULT_PORT
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(f"{address!r} is no address; write it as host:{DEFAULT_PORT}")
    return host, int(port)


def unknown_host(name: str, error: Exception) -> str:
    """Return what to tell somebody whose machine's name has no address."""
    why = getattr(error, "strerror", None) or str(error)
    return (
        f"there is no machine {name!r} that this one knows of ({why}): check how it is spelt, or "
        "write its IP address"
    )


def nobody(address: str, what: str) -> str:
    """Return what to tell somebody who found no master at an address."""
    place = address.removeprefix("tcp://")
    host_name, _, port = place.rpartition(":")
    return (
        f"no master at {place}: {what}. Start one there with "
        f"'remotely start --host {host_name or '127.0.0.1'} --port {port or DEFAULT_PORT}', "
        "or call remotely.connect() without an address for a cluster of your own"
    )
