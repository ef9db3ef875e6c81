"""What Ray's errors mean: whether an actor has ended, or its machine is gone."""

import ray
from ray.exceptions import (
    ActorUnavailableError,
    ObjectLostError,
    OutOfMemoryError,
    RayActorError,
    RayError,
    RayTaskError,
)

from remotely.calling.actor import EndError
from remotely.engines.ray.host import Place
from remotely.errors import ActorDied, RemotelyError, WorkerLost, doubt


def ends_actor(error: RayError) -> bool:
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
