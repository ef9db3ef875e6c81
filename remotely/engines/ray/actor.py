"""An actor as a client on Ray knows it: its host, the host's place, and how it has ended."""

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
    RuntimeEnvSetupError,
)

from remotely.calling.actor import CalledActor, EndError
from remotely.engine import Engine
from remotely.engines.ray.host import HostPlace, HostState
from remotely.errors import ActorDied, NotStartable, RemotelyError, WorkerLost, doubt
from remotely.protocol.restart_limit import RestartLimit

NAMESPACE = "remotely"
HOST_ANSWER_S = 10.0  # timeout for the state of a host; one that waits for resources does not reply


class HostedActor(CalledActor):
    """One actor, shared by all of its handles in this process.

    class_name      known only to its creator
    is_serial       whether its host is a SerialHost
    channel         a `HostChannel`; None until it is looked up, and between two lives
    owner_restarts  whether its owner, another process, restarts it
    is_made         whether its first life has been made, by this process
    restarts        how many there were lately
    leaving         Ray's reference that fails when it has ended, once it was asked to
    """

    def __init__(
        self, engine: Engine, actor: str, name: str, owned: bool, class_name: str = ""
    ) -> None:
        super().__init__(engine, actor, name, owned)
        self.class_name = class_name
        self.is_serial = False
        self.owner_restarts = False
        self.is_made = False
        self.restarts = RestartLimit()
        self.leaving: Any = None

    def take_channel(self) -> Any:
        """Return its channel, which ends; it has none now."""
        with self.lock:
            channel, self.channel = self.channel, None
        if channel is not None:
            channel.end()
        return channel

    def kill(self, how: str = "") -> None:
        """Kill its process, if it has one; with `how`, the actor has ended permanently."""
        with self.lock:
            if how and self.ended is None:
                self.end_with(closed(self.name, how))
            channel = self.take_channel()
        if channel is not None:
            try:
                ray.kill(channel.host)
            except RayError:
                pass


# --- names ----------------------------------------------------------------------------------------


def new_id(name: str) -> str:
    """Return an id for a new actor; if it is named, the id begins with its name."""
    return f"{name}/{secrets.token_hex(8)}"


def ray_name(actor: str) -> str:
    """Return the name of an actor in Ray.  A user's name cannot begin with "/"."""
    name, _, number = actor.partition("/")
    return name or f"/{number}"


def host_of(actor: str, within_s: float | None = None) -> tuple[Any, HostState | None]:
    """Return Ray's handle of an actor, by its id or name, and the state of its host.

    The state is None before there is an object.  Raises ValueError if Ray has no such actor, and
    RayError if its host does not reply `within_s` (HOST_ANSWER_S by default).
    """
    host = ray.get_actor(ray_name(actor), namespace=NAMESPACE)
    return host, ray.get(host.state.remote(), timeout=within_s or HOST_ANSWER_S)


# --- errors ---------------------------------------------------------------------------------------


def ends_actor(error: BaseException | None) -> bool:
    """Return whether an actor has ended, rather than being unreachable at the moment."""
    if isinstance(error, RayTaskError):  # it may also be an ActorDiedError, of another actor
        return False
    return isinstance(error, RayActorError) and not isinstance(error, ActorUnavailableError)


def is_of_argument(error: RayError) -> bool:
    """Return whether a call did not run because Ray could not fetch a value of its arguments."""
    return isinstance(error, RayTaskError) and isinstance(error.cause, RayError)


def end_error(name: str, place: HostPlace | None, error: RayError) -> EndError:
    """Translate Ray's error of a call into the error that calls raise."""
    where = name if place is None else f"{name} (pid {place.pid} on {place.machine})"
    why = _reason(error)
    if isinstance(error, ActorUnavailableError):
        return lambda may: WorkerLost(f"{where} cannot be reached: {why}{doubt(may)}", may)
    if isinstance(error, ObjectLostError) or (place is not None and not _is_alive(place.node)):
        return lambda may: WorkerLost(f"the machine of {where} is gone: {why}{doubt(may)}", may)
    if isinstance(error, RuntimeEnvSetupError):
        return lambda may: NotStartable(f"{where} cannot be started: {why}", None, may)
    if isinstance(error, RayTaskError | OutOfMemoryError):
        return lambda may: RemotelyError(f"{where}: {error}")
    return lambda may: ActorDied(
        f"{where} has ended: {why}{doubt(may)}", exit=None, may_have_run=may
    )


def closed(name: str, how: str) -> EndError:
    """Return the error that calls raise after this process has ended an actor."""
    return lambda may: ActorDied(f"{name} was {how}{doubt(may)}", exit=0, may_have_run=may)


def _is_alive(node: str) -> bool:
    return any(each["NodeID"] == node and each["Alive"] for each in ray.nodes())


def _reason(error: RayError) -> str:
    """Return the reason from Ray's message: its last line, without the advice in it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    reason, _, _ = (lines or [type(error).__name__])[-1].partition(" Some common causes")
    return reason.rstrip(".")
