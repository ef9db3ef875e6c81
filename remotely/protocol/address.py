"""Addresses ("host:8010", "[::1]:8010"), and the errors if there is no connection to one."""

import errno

DEFAULT_PORT = 8010

SHARED = (
    "Several processes share a cluster that 'remotely start' has started: name it by "
    "REMOTELY_ADDRESS, or remotely.connect(address) in each"
)
FORKED = (
    "this process was forked from one that is connected, and cannot share its connection: call "
    f"remotely.connect() here first, which without an address starts another cluster. {SHARED}"
)
# Alternatives to starting a master.
OWN_CLUSTER = ", or leave out the address and unset REMOTELY_ADDRESS for a cluster of your own"
RUNS_ALREADY = "; if it runs, its --host may admit its own machine only"

# Why a connection to a port of another machine fails, by the kernel's errno.
REFUSED = "nothing listens at port {port} of {host}, or a firewall rejects packets from {here}"
DROPPED = (
    "port {port} of {host} does not answer {here}: that machine is off or has another address, or "
    "a firewall drops packets from {here}; open that port to it"
)
NO_ROUTE = (
    "{here} has no route to port {port} of {host}: they share no network, or a router or a "
    "firewall in between rejects the packets"
)
ANSWERS = (
    "port {port} of {host} answers {here} now: it may be another machine or program, or the "
    "network between them is unreliable"
)
_MEANINGS = {
    0: ANSWERS,
    errno.ECONNREFUSED: REFUSED,
    errno.ETIMEDOUT: DROPPED,
    errno.EINPROGRESS: DROPPED,  # the connection attempt is still pending
    errno.EHOSTUNREACH: NO_ROUTE,
    errno.ENETUNREACH: NO_ROUTE,
    errno.EACCES: NO_ROUTE,  # this machine's own firewall
    errno.EPERM: NO_ROUTE,
}


def parse_address(address: str) -> tuple[str, int]:
    """Return the host, without brackets, and the port of what `split_address` reads."""
    host, port = split_address(address)
    return host, DEFAULT_PORT if port is None else port


def split_address(address: str) -> tuple[str, int | None]:
    """Read "host:port", "host", "[v6]:port", "[v6]" or "v6", with or without "tcp://".

    Raises ValueError.
    """
    text = address.removeprefix("tcp://")
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        is_good, colon, port = bool(bracket) and is_ipv6(host), rest[:1], rest[1:]
    elif text.count(":") > 1:
        host, colon, port, is_good = text, "", "", is_ipv6(text)
    else:
        host, colon, port = text.partition(":")
        is_good = bool(host)
    has_number = colon == ":" and port.isdecimal()
    if is_good and has_number and not 0 < int(port) < 65536:
        raise ValueError(f"{address!r} has an invalid port: ports go from 1 to 65535")
    if not is_good or not (has_number or not colon):
        raise ValueError(f"{address!r} is not an address; write it as host:{DEFAULT_PORT}")
    return host, int(port) if has_number else None


def join_address(host: str, port: int | str) -> str:
    """Return "host:port", an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_ipv6(text: str) -> bool:
    """Return whether this is a numeric IPv6 address."""
    import ipaddress  # noqa: PLC0415 - rarely needed

    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True


def unreachable(here: str, host: str, port: int, code: int | None, what: str = "") -> str:
    """Return why there is no connection: `code` is the kernel's errno, `what` its message."""
    unknown = what or "there is no connection from {here} to port {port} of {host}"
    meaning = unknown if code is None else _MEANINGS.get(code, unknown)
    return meaning.format(here=here, host=host, port=port)


def unknown_host(name: str, error: Exception) -> str:
    """Return the error for a machine name that cannot be resolved."""
    why = getattr(error, "strerror", None) or str(error)
    return (
        f"cannot resolve the machine name {name!r} ({why}): check its spelling, or use its IP "
        "address"
    )


def no_master(address: str, what: str, or_else: str = OWN_CLUSTER) -> str:
    """Return the error for an address at which there is no master."""
    place = address.removeprefix("tcp://")
    host, _, port = place.rpartition(":")
    return (
        f"no master at {place}: {what}. Start one there with 'remotely start --host "
        f"{host.strip('[]') or '127.0.0.1'} --port {port or DEFAULT_PORT}'{or_else}"
    )


def describe(address: str) -> str:
    """Return an address as error messages show it: "host port 1234"."""
    host, port = parse_address(address)
    return f"{host} port {port}"
