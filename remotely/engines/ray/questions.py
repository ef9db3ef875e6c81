"""What is asked of a host beside its messages: it answers though the object is busy."""

from typing import Any

import ray

from remotely.engines.ray.host import CONTROL

ANSWER_S = 10.0  # what a host has to say what it is; one without room yet says nothing


def ask(method: Any, *args: Any) -> Any:
    """Call what never waits for users' code; return Ray's reference to the answer."""
    return method.options(concurrency_group=CONTROL).remote(*args)


def state_of(host: Any) -> Any:
    """Return what a host says of itself; None before it has an actor.  Raises RayError."""
    return ray.get(ask(host.state), timeout=ANSWER_S)
