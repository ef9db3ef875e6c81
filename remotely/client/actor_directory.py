"""The actors that a process knows: those that it made, and those of handles that it got."""

import secrets
import weakref

from remotely.calling.actor import Names
from remotely.client.actor_state import ActorState
from remotely.client.master_session import MasterSession, heavy_modules
from remotely.engine import Engine, Options
from remotely.machine import this_machine
from remotely.protocol import control
from remotely.protocol.resources import Resources, parse_others


class ActorDirectory:
    """Finds actors by their ids.  An entry goes with the last handle of its actor."""

    def __init__(self, engine: Engine, session: MasterSession) -> None:
        self._engine = engine
        self._session = session
        self._actors: weakref.WeakValueDictionary[str, ActorState] = weakref.WeakValueDictionary()
        self._names = Names(f"{session.id[:4]}." if session.inside else "")

    def get(self, actor: str) -> ActorState | None:
        return self._actors.get(actor)

    def borrow(self, actor: str, name: str) -> ActorState:
        """Return an actor of which a handle arrived here, or which was found by its name."""
        found = self._actors.get(actor)
        if found is None:
            request = control.Request(
                actor=actor, name=name, class_name="", owner="", job="", python=this_machine.PYTHON
            )
            found = self._add(request, owned=False)
        return found

    def new(self, cls: type, options: Options, together: int, gang: str = "") -> ActorState:
        """Return an actor that has a name and no place yet, one of `together` of a group."""
        session = self._session
        assert isinstance(options.memory, int)
        request = control.Request(
            actor=secrets.token_hex(16),
            name=self._names.of(cls, options),
            named=bool(options.name),
            gang=gang,
            together=together,
            machine=options.machine,
            near=options.near or "",
            class_name=cls.__name__,
            owner="" if options.detached else session.id,
            job=session.job,
            resources=Resources(
                options.cores, options.gpus, options.memory, parse_others(options.resources)
            ),
            names_cpus=options.cpus is not None,
            max_restarts=options.max_restarts,
            maker=session.id,
            python=this_machine.PYTHON,
            env=options.env,
            modules=heavy_modules(),
        )
        return self._add(request, owned=not options.detached)

    def _add(self, request: control.Request, owned: bool) -> ActorState:
        actor = self._actors[request.actor] = ActorState(self._engine, request, owned)
        return actor
