"""One actor as a client on Ray knows it: its host, where that is, and how it has ended."""

import secrets
from typing import Any

import ray
from ray.exceptions import (
    ActorUnavailableError,
    ObjectLostError,
    OutOfMemoryError,
    RayActorError,
    RayError,
    RayTaskError,
)

from remotely.calling.actor import CalledActor, EndError
from remotely.engine import Engine
from remotely.engines.ray.host import ROUTE_BYTES, Place, State
from remotely.errors import ActorDied, RemotelyError, WorkerLost, doubt

NAMESPACE = "remotely"
ANSWER_S = 10.0  # what a host has to say what it is; one without room yet says nothing


class HostedActor(CalledActor):
    """One actor, as all its handles in this process share it.

    class_name  known to its maker alone
    is_serial   its host is a SerialHost
    host        Ray's handle; None until it is looked up, and between two lives
    place       where it is, as far as this process knows
    may_return  its owner, another process, restarts it
    route       names this object to that life, which hears its messages in the order of numbers
    number      of the last of these messages
    learnt      how many batches of sources it was sent
    lives       when those after the first began
    """

    def __init__(
        self, engine: Engine, actor: str, name: str, owned: bool, class_name: str = ""
    ) -> None:
        super().__init__(engine, actor, name, owned)
        self.class_name = class_name
        self.is_serial = False
        self.host: Any = None
        self.place: Place | None = None
        self.may_return = False
        self.route = b""
        self.number = 0
        self.learnt = 0
        self.lives: list[float] = []

    @property
    def unanswered(self) -> int:
        return self.back_pressure.calls

    def lives_as(self, host: Any) -> None:
        """It has a process from now on, which has had no message of ours."""
        self.host = host
        self.take_new_route()

    def found(self, host: Any, state: State) -> None:
        """It is an actor of others, of which its host has told; one that we know already stays."""
        with self.lock:
            if self.host is None:
                self.life, self.is_serial = state.birth.life, state.birth.is_serial
                self.may_return = not self.owned and state.birth.options.max_restarts > 0
                self.lives_as(host)

    def take_new_route(self) -> None:
        """Number messages anew: the host waits for ever for one of the old route that was lost."""
        with self.lock:
            self.number = self.learnt = 0
            self.route = secrets.token_bytes(ROUTE_BYTES)

    def kill(self, how: str = "") -> None:
        """End its process at once, if it has one; with `how`, it has ended for good."""
        with self.lock:
            if how and self.ended is None:
                self.ended = closed(self.name, how)
            host, self.host = self.host, None
        if host is not None:
            try:
                ray.kill(host)
            except RayError:
                pass


# --- names ----------------------------------------------------------------------------------------


def new_id(name: str) -> str:
    """Return the id of an actor; that of a named one begins with its name."""
    return f"{name}/{secrets.token_hex(8)}"


def ray_name(actor: str) -> str:
    """Return what Ray knows an actor by.  No user can give a name that begins with "/"."""
    name, _, number = actor.partition("/")
    return name or f"/{number}"


def host_of(actor: str, within_s: float | None = None) -> tuple[Any, State | None]:
    """Return Ray's handle of an actor, by its id or name, and what its host says of itself.

    It has ANSWER_S for that, if not told otherwise.
    The latter is None before there is an object.  Raises ValueError if Ray knows none; RayError.
    """
    host = ray.get_actor(ray_name(actor), namespace=NAMESPACE)
    return host, ray.get(host.state.remote(), timeout=within_s or ANSWER_S)


# --- errors ---------------------------------------------------------------------------------------


def ends_actor(error: BaseException | None) -> bool:
    """Tell whether an actor is gone for good, and not only out of reach for now."""
    if isinstance(error, RayTaskError):  # which may be an ActorDiedError of another actor
        return False
    return isinstance(error, RayActorError) and not isinstance(error, ActorUnavailableError)


def is_of_argument(error: RayError) -> bool:
    """Tell whether a call did not run because Ray could not get what an argument refers to."""
    return isinstance(error, RayTaskError) and isinstance(error.cause, RayError)


def end_error(name: str, place: Place | None, error: RayError) -> EndError:
    """Return what calls raise, from Ray's error of one of them."""
    where = name if place is None else f"{name} (pid {place.pid} on {place.machine})"
    why = _reason(error)
    if isinstance(error, ActorUnavailableError):
        return lambda may: WorkerLost(f"{where} cannot be reached: {why}{doubt(may)}", may)
    if isinstance(error, ObjectLostError) or (place is not None and not _lives(place.node)):
        return lambda may: WorkerLost(f"the machine of {where} is gone: {why}{doubt(may)}", may)
    if isinstance(error, RayTaskError | OutOfMemoryError):
        return lambda may: RemotelyError(f"{where}: {error}")
    return lambda may: ActorDied(
        f"{where} has ended: {why}{doubt(may)}", exit=None, may_have_run=may
    )


def closed(name: str, how: str) -> EndError:
    """Return what calls raise after this process has ended an actor."""
    return lambda may: ActorDied(f"{name} was {how}{doubt(may)}", exit=0, may_have_run=may)


def _lives(node: str) -> bool:
    return any(each["NodeID"] == node and each["Alive"] for each in ray.nodes())


def _reason(error: RayError) -> str:
    """Return the reason in Ray's text, which is its last line, without the advice after it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    reason, _, _ = (lines or [type(error).__name__])[-1].partition(" Some common causes")
    return reason.rstrip(".")
