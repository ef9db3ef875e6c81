"""What room actors need on Ray, and how a group waits for that of all its members.

Ray reserves room for several actors in a placement group, all of it or none.  A group is reserved
so, and its members are placed as the reservation is given back: while it waits it holds nothing.
Members are not placed inside of the reservation, since it keeps the room of one that has ended, and
the actor that replaces it would find none.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import ray
from ray.util.placement_group import placement_group, remove_placement_group

from remotely.engine import Options
from remotely.errors import NoResources
from remotely.protocol.resources import format_bytes

LOOK_EVERY_S = 1  # no signal is heard while Ray waits for a placement group
NODE_LABEL = "ray.io/node-id"
UNITS = 10_000  # Ray counts resources in parts of so many

Look = Callable[[float], int]  # waits so many seconds, and returns how many have no room yet


def wanted(options: Options) -> dict[str, float]:
    """Return what one actor asks for, by Ray's names."""
    asked = {"CPU": options.cores, "GPU": options.gpus, "memory": float(options.memory)}
    return {name: amount for name, amount in (asked | dict(options.resources)).items() if amount}


@contextlib.contextmanager
def reserved(
    options: Options, count: int, node: str, wait_for_room: Callable[[Look], None]
) -> Iterator[None]:
    """Hold the room of a whole group while its members ask for theirs.

    `node` is where it has to be, or empty.  `wait_for_room` raises if there is none.
    """
    bundle = wanted(options)
    if count == 1 or not bundle:
        yield
        return
    labels = [{NODE_LABEL: node}] * count if node else None
    group = placement_group([bundle] * count, bundle_label_selector=labels)
    try:
        wait_for_room(lambda timeout_s: 0 if _is_ready(group, timeout_s) else count)
        yield
    finally:
        remove_placement_group(group)


def _is_ready(group: Any, timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while not group.wait(LOOK_EVERY_S):
        if time.monotonic() >= deadline:
            return False
    return True


def check_feasible(options: Options, what: str, count: int) -> None:
    """Raise NoResources if the cluster could not even have room if it were empty."""
    asked = wanted(options)
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    places = sum(_times(asked, there, count) for there in nodes)
    if places >= count:
        return
    if places:
        raise NoResources(
            f"the Ray cluster has room for {places} {what}, not for {count}: ask for fewer, or add "
            "a machine"
        )
    largest = {name: max(there.get(name, 0) for there in nodes) for name in asked}
    raise NoResources(
        f"no machine of the Ray cluster has room for {what}, which asks for {_words(asked)}; the "
        f"most that one has is {_words(largest)}: ask for less, or add a machine"
    )


def _times(asked: dict[str, float], there: dict[str, float], most: int) -> int:
    """Return how often it fits; `most` if nothing is asked for."""
    parts = ((there.get(name, 0.0), amount) for name, amount in asked.items())
    return min((round(has * UNITS) // round(asks * UNITS) for has, asks in parts), default=most)


def _words(amounts: dict[str, float]) -> str:
    return ", ".join(_word(name, amount) for name, amount in amounts.items())


def _word(name: str, amount: float) -> str:
    if name == "memory":
        return f"{format_bytes(int(amount))} of memory"
    return f"{amount:g} {name}{'s' * (name in ('CPU', 'GPU'))}"
