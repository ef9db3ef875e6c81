"""One actor as a client on Ray knows it."""

import secrets
from collections.abc import Mapping
from typing import Any

import ray

from remotely.calling.actor import CalledActor
from remotely.engine import Engine
from remotely.engines.ray.frames import ROUTE_BYTES
from remotely.engines.ray.host import Place

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

    def found(self, host: Any, state: Mapping[str, Any]) -> None:
        """It is an actor of others, of which its host has told; one that we know already stays."""
        with self.lock:
            if self.host is None:
                self.life, self.is_serial = state["life"], state["is_serial"]
                self.may_return = not self.owned and state["max_restarts"] > 0
                self.lives_as(host)

    def take_new_route(self) -> None:
        """Number messages anew: the host waits for ever for one of the old route that was lost."""
        with self.lock:
            self.number = self.learnt = 0
            self.route = secrets.token_bytes(ROUTE_BYTES)


def new_id(name: str) -> str:
    """Return the id of an actor; that of a named one begins with its name."""
    return f"{name}/{secrets.token_hex(8)}"


def ray_name(actor: str) -> str:
    """Return what Ray knows an actor by.  No user can give a name that begins with "/"."""
    name, _, number = actor.partition("/")
    return name or f"/{number}"


def state_of(host: Any, within_s: float = ANSWER_S) -> Any:
    """Return what a host says of itself; None before it has begun.  Raises RayError."""
    return ray.get(host.state.remote(), timeout=within_s)
