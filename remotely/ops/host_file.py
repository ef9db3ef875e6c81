"""The host file of `remotely up`: the machines of a cluster that is started over ssh.

    address = "192.168.0.10"      # of this machine, where the master runs
    hosts = ["node1", "ada@node2"]

    [[host]]                      # a machine with its own settings
    ssh = "node3"
    cpus = 4

The two structs below are its schema.  Errors name the line.
"""

import re
import tomllib

import msgspec

from remotely.machine.gpus import Gpus
from remotely.machine.gpus import parse as parse_gpus
from remotely.protocol.address import DEFAULT_PORT, split_address
from remotely.protocol.listening import ANY_PORT, Ports, parse_ports

_HOST = re.compile(r"[^\s-][^\s]*")


class JoiningHost(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A machine that joins.  Without `ports` or `command`, those of the whole file apply."""

    ssh: str  # the destination for ssh: a name of ~/.ssh/config, or user@name
    cpus: int | None = None
    gpus: int | str | None = None  # how many, or which
    address: str | None = None  # where its actors listen
    announce: list[str] = []
    ports: str | None = None
    command: str | None = None  # how the shell there runs remotely: "conda run -n rl remotely"

    def __post_init__(self) -> None:
        if not _HOST.fullmatch(self.ssh):
            raise ValueError(f"ssh: {self.ssh!r} is not a valid host for ssh")
        _check(self)


class HostFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole file."""

    address: str  # of this machine, as the hosts reach it: "HOST" or "HOST:PORT"
    listen: str | None = None  # the address to bind, if different
    hosts: list[str] = []
    host: list[JoiningHost] = []
    cpus: int | None = None  # of this machine
    gpus: int | str | None = None
    ports: str | None = None
    command: str = "remotely"

    def __post_init__(self) -> None:
        try:
            split_address(self.address)
        except ValueError as error:
            raise ValueError(f"address: {error}") from None
        for name in self.hosts:
            if not _HOST.fullmatch(name):
                raise ValueError(f"hosts: {name!r} is not a valid host for ssh")
        names = [host.ssh for host in self.all_hosts]
        if not names:
            raise ValueError("hosts: none is given; name at least one")
        if duplicates := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"hosts: {min(duplicates)} is given twice")
        _check(self)

    @property
    def all_hosts(self) -> list[JoiningHost]:
        return [*(JoiningHost(ssh=name) for name in self.hosts), *self.host]

    @property
    def port(self) -> int:
        """The port of the master."""
        return split_address(self.address)[1] or self.port_range.low or DEFAULT_PORT

    @property
    def master(self) -> str:
        """The name of this machine as the hosts reach it."""
        return split_address(self.address)[0]

    @property
    def gpu_choice(self) -> Gpus | None:
        """The GPUs that this machine offers."""
        return None if self.gpus is None else parse_gpus(str(self.gpus))

    @property
    def port_range(self) -> Ports:
        return ANY_PORT if self.ports is None else parse_ports(self.ports)


def _check(part: JoiningHost | HostFile) -> None:
    for field in part.__struct_fields__:
        value = getattr(part, field)
        if "" in (value if isinstance(value, list) else (value,)):
            raise ValueError(f"{field}: '' names nothing: leave it out")
    if part.cpus is not None and part.cpus < 0:
        raise ValueError(f"cpus: {part.cpus} is negative")
    for field, value, parse in (
        ("gpus", part.gpus, parse_gpus),
        ("ports", part.ports, parse_ports),
    ):
        try:
            if value is not None:
                parse(str(value))
        except ValueError as error:
            raise ValueError(f"{field}: {error}") from None


def parse_hosts(text: str, name: str) -> HostFile:
    """Parse a host file.  Raises ValueError, which says the file's `name`, line and field."""
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
        raise ValueError(_explained(str(error), text, name)) from None


# The types as msgspec names them, in the words of a TOML user.
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


def _explained(error: str, text: str, name: str) -> str:
    """Return an error of msgspec in a user's words, with the line and the field."""
    found = _PATH.search(error)
    what = error[: found.start()] if found else error
    steps = [m[1] or m[2] for m in _STEP.finditer(found[1])] if found else []
    table = int(steps[1]) if steps[:1] == ["host"] and len(steps) > 1 else None
    if field := re.match(r"(\w+): ", what):
        what = what[field.end() :]
    elif field := re.search(r"unknown field `(\w+)`", what):
        known = ", ".join((HostFile if table is None else JoiningHost).__struct_fields__)
        what = f"there is no such field; the fields are {known}"
    elif field := re.search(r"missing required field `(\w+)`", what):
        what = "is missing"
    elif kind := _KIND.fullmatch(what):
        needed, got = (_WORDS.get(word, word) for word in kind.groups())
        what = f"needs {needed}, not {got}"
    wanted = field[1] if field else next((s for s in steps[::-1] if not s.isdecimal()), "")
    if wanted == "host" and not field:
        what = "write each machine with its own settings as a table that begins with [[host]]"
    line = _line_of(text.splitlines(), table, wanted, what)
    return f"{name}, line {line}: {wanted}: {what[0].lower()}{what[1:]}"


def _line_of(lines: list[str], table: int | None, field: str, what: str) -> int:
    """Return the line of a field of the file, or of its `table`-th [[host]]; else its first."""
    name = re.escape(field)
    headers = [i for i, line in enumerate(lines) if line.strip().startswith("[[host]]")]
    begin, end = 0, headers[0] if headers else len(lines)
    if table is not None and table < len(headers):
        begin, end = headers[table], [*headers, len(lines)][table + 1]
    for i in range(begin, end):
        if re.match(rf"\s*(\[?{name}\]|{name}\s*=)", lines[i]):
            quoted = re.search(r"'([^']+)'|^(\S+) is given twice", what)
            item = (quoted[1] or quoted[2]) if quoted else ""
            later = [k for k in range(i, end) if item and item in lines[k]]
            return (later[-1] if later else i) + 1
    return begin + 1
