"""The machines of a cluster that is started by ssh: hosts.toml.

    address = "192.168.0.10"      # of this machine, where the master runs
    hosts = ["node1", "ada@node2"]

    [[host]]                      # one with settings of its own
    ssh = "node3"
    cpus = 4

The two structs below are all that such a file may have.  What is wrong with it is told with its
line.
"""

import re
import tomllib
from typing import Any

import msgspec

from remotely.machine.gpus import Gpus
from remotely.machine.gpus import parse as parse_gpus
from remotely.protocol.address import DEFAULT_PORT, split_address
from remotely.protocol.listening import ANY_PORT, Ports, parse_ports

_HOST = re.compile(r"[^\s-][^\s]*")


class Host(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A machine that joins.  What it does not say is as it is for all."""

    ssh: str  # as ssh knows it: a name of ~/.ssh/config, or user@name
    cpus: int | None = None
    gpus: int | str | None = None  # how many, or which
    address: str = ""  # at which its actors listen
    announce: list[str] = []
    ports: str = ""
    command: str = ""  # remotely, as the shell there finds it: "conda run -n rl remotely"

    def __post_init__(self) -> None:
        if not _HOST.fullmatch(self.ssh):
            raise ValueError(f"ssh: {self.ssh!r} is no host for ssh")
        _check(self.cpus, self.gpus, self.ports)


class HostFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole file."""

    address: str  # of this machine, as the hosts reach it: "HOST" or "HOST:PORT"
    listen: str = ""  # the address to bind, where that is another
    hosts: list[str] = []
    host: list[Host] = []
    cpus: int | None = None  # of this machine
    gpus: int | str | None = None
    ports: str = ""
    command: str = "remotely"

    def __post_init__(self) -> None:
        try:
            split_address(self.address)
        except ValueError as error:
            raise ValueError(f"address: {error}") from None
        for name in self.hosts:
            if not _HOST.fullmatch(name):
                raise ValueError(f"hosts: {name!r} is no host for ssh")
        names = [host.ssh for host in self.all_hosts]
        if not names:
            raise ValueError("hosts: there is none; name at least one")
        if twice := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"hosts: {min(twice)} is there twice")
        _check(self.cpus, self.gpus, self.ports)

    @property
    def all_hosts(self) -> list[Host]:
        return [*(Host(ssh=name) for name in self.hosts), *self.host]

    @property
    def port(self) -> int:
        """The port of the master."""
        return split_address(self.address)[1] or self.port_range.low or DEFAULT_PORT

    @property
    def master(self) -> str:
        """The name of this machine for the hosts."""
        return split_address(self.address)[0]

    @property
    def gpu_choice(self) -> Gpus | None:
        """The GPUs that this machine offers."""
        return None if self.gpus is None else parse_gpus(str(self.gpus))

    @property
    def port_range(self) -> Ports:
        return parse_ports(self.ports) if self.ports else ANY_PORT


def _check(cpus: int | None, gpus: int | str | None, ports: str) -> None:
    if cpus is not None and cpus < 0:
        raise ValueError(f"cpus: {cpus} is less than none")
    for field, value, parse in (("gpus", gpus, parse_gpus), ("ports", ports or None, parse_ports)):
        try:
            if value is not None:
                parse(str(value))
        except ValueError as error:
            raise ValueError(f"{field}: {error}") from None


def parse_hosts(text: str, name: str) -> HostFile:
    """Read the text of hosts.toml.  Raises ValueError with `name`, the line and the field."""
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        line = re.search(r" \(at line (\d+), column \d+\)| \(at end of document\)", str(error))
        at = line[1] if line and line[1] else str(len(text.splitlines()))
        what = str(error)[: line.start()] if line else str(error)
        raise ValueError(f"{name}, line {at}: {what}") from None
    try:
        return msgspec.convert(values, HostFile)
    except msgspec.ValidationError as error:
        raise ValueError(_told(str(error), values, text, name)) from None


# What msgspec calls a value, and what a reader of TOML does.
_WORDS = {
    "int | null": "a whole number",
    "int | str | null": "a whole number or text",
    "str": "text in quotes",
    "array": "a list",
    "int": "a whole number",
    "float": "a fraction",
    "bool": "true or false",
    "object": "a table",
}
_PATH = re.compile(r" - at `\$(.*)`$")
_KIND = re.compile(r"Expected `(.+)`, got `(.+)`")
_STEP = re.compile(r"\.?(\w+)|\[(\d+)\]|\[\.\.\.\]")


def _told(error: str, values: dict[str, Any], text: str, name: str) -> str:
    """Return msgspec's words with the line and the field that they are about."""
    found = _PATH.search(error)
    what = error[: found.start()] if found else error
    steps = [m[1] or m[2] for m in _STEP.finditer(found[1])] if found else []
    table = int(steps[1]) if steps[:1] == ["host"] and len(steps) > 1 else None
    if field := re.match(r"(\w+): ", what):
        what = what[field.end() :]
    elif field := re.search(r"unknown field `(\w+)`", what):
        known = ", ".join((HostFile if table is None else Host).__struct_fields__)
        what = f"there is no such field; there are {known}"
    elif field := re.search(r"missing required field `(\w+)`", what):
        what = "is missing"
    elif kind := _KIND.fullmatch(what):
        needed, got = (_WORDS.get(word, word) for word in kind.groups())
        what = f"needs {needed}, not {got}"
    wanted = field[1] if field else next((s for s in steps[::-1] if not s.isdecimal()), "")
    if wanted == "host" and not field:
        what = "each machine with settings of its own is a table that begins with [[host]]"
    line = _line_of(text.splitlines(), table, wanted, what)
    return f"{name}, line {line}: {wanted}: {what[0].lower()}{what[1:]}"


def _line_of(lines: list[str], table: int | None, field: str, what: str) -> int:
    """Return where a field of the file, or of its n-th [[host]], is; or where that begins."""
    name = re.escape(field)
    headers = [i for i, line in enumerate(lines) if line.strip().startswith("[[host]]")]
    begin, end = 0, headers[0] if headers else len(lines)
    if table is not None and table < len(headers):
        begin, end = headers[table], [*headers, len(lines)][table + 1]
    for i in range(begin, end):
        if re.match(rf"\s*(\[?{name}\]|{name}\s*=)", lines[i]):
            quoted = re.search(r"'([^']+)'|^(\S+) is there twice", what)
            item = (quoted[1] or quoted[2]) if quoted else ""
            later = [k for k in range(i, end) if item and item in lines[k]]
            return (later[-1] if later else i) + 1
    return begin + 1
