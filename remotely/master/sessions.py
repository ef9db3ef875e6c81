"""The clients that are there: scripts, and actors that make calls of their own."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import msgspec

from remotely.protocol import control
from remotely.protocol.index import Index


@dataclass
class Session:
    """A client, for as long as its lease lasts, over any number of connections."""

    hello: control.Hello
    key: bytes  # the listed one at its root: its own, or that behind the actor in which it lives
    job: str
    modules: set[str] = field(default_factory=set)
    leaving: bool = False
    unanswered: dict[str, int] = field(default_factory=dict)  # calls, by actor; as last told

    def stamp(self, place: control.Place, counts_cpus: bool) -> control.Place:
        """Return a request with those fields that are not for the client to fill in."""
        said, who = place.request, self.hello.session
        request = msgspec.structs.replace(
            said,
            owner=who if said.owner else "",
            maker=who if said.maker else "",
            job=self.job,
            key=self.key,
        )
        if not (said.names_cpus or counts_cpus):
            resources = msgspec.structs.replace(said.resources, cpus=0.0)
            request = msgspec.structs.replace(request, resources=resources)
        return msgspec.structs.replace(place, request=request)


class Sessions:
    """Sessions by their ids, by the actor in which they live, and by the modules that they use."""

    def __init__(self) -> None:
        self._sessions: dict[str, Session] = {}
        self.inside: Index[str, str] = Index()  # sessions, by the actor in which they live
        self.using: Index[tuple[str, str], str] = Index()  # sessions, by Python and module

    def __contains__(self, who: object) -> bool:
        return who in self._sessions

    def __getitem__(self, who: str) -> Session:
        return self._sessions[who]

    def __iter__(self) -> Iterator[Session]:
        return iter(self._sessions.values())

    def get(self, who: str) -> Session | None:
        return self._sessions.get(who)

    def begin(self, session: Session) -> None:
        hello = session.hello
        self._sessions[hello.session] = session
        if hello.actor:
            self.inside.add(hello.actor, hello.session)

    def end(self, who: str) -> Session | None:
        """Take a session off; return it, if it was there."""
        if (session := self._sessions.pop(who, None)) is None:
            return None
        self.inside.discard(session.hello.actor, who)
        for module in session.modules:
            self.using.discard((session.hello.python, module), who)
        return session

    def use(self, who: str, modules: Iterable[str]) -> list[str]:
        """A client uses these modules; return those that nobody used before."""
        session = self._sessions[who]
        python = session.hello.python
        unused = [module for module in modules if (python, module) not in self.using]
        session.modules.update(modules)
        for module in modules:
            self.using.add((python, module), who)
        return unused

    def modules_of(self, python: str) -> list[str]:
        """Return what the clients with a Python use."""
        return sorted(module for version, module in self.using if version == python)
