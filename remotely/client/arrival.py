"""A client's question for an actor whose process dials in."""

from remotely.client.actor_directory import ActorDirectory
from remotely.client.actor_state import ActorState
from remotely.client.master_session import MasterSession
from remotely.errors import CallTimeout, NotConnected
from remotely.protocol import control


class ArrivalQuestion:
    """Implements `engine.Arrival`."""

    def __init__(self, session: MasterSession, actors: ActorDirectory, class_name: str) -> None:
        session.check()
        if session.address.startswith("ipc:"):
            raise NotConnected(
                "no process can dial in to a cluster that this one has started for itself: start "
                "one with 'remotely start', and connect to that"
            )
        self._session = session
        self._actors = actors
        self._class_name = class_name
        self._ticket = 0
        self._question = session.ask(self._ask)

    def result(self, timeout: float | None = None) -> ActorState:
        try:
            located: control.Located = self._question.result(timeout)
        except CallTimeout:
            what = f"no {self._class_name} has dialled in within {timeout:g} s"
            raise CallTimeout(what, still_running=False) from None
        assert located.location is not None
        actor = self._actors.borrow(located.location.actor, located.location.name)
        if actor.location is None:
            actor.location = located.location
        self._session.arrivals.add(actor.actor)
        return actor

    def give_back(self) -> None:
        self._question.cancel()
        if not self._session.is_closed:
            self._session.tell(control.NoArrival(ticket=self._ticket))

    def _ask(self, ticket: int) -> control.AskArrival:
        self._ticket = ticket
        return control.AskArrival(ticket=ticket, class_name=self._class_name)
