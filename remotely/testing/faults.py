"""Fault injection, for tests of programs that use remotely.  Costs nothing when it is off.

REMOTELY_FAULTS="actor.reply:die@20,client.call:lose@1%,worker.spawn:delay=500"

    POINT:die            the process kills itself with SIGKILL
    POINT:stop           the process stops itself, until it receives SIGCONT
    POINT:delay=MS       the process sleeps for MS milliseconds
    POINT:lose           the message is dropped and its connection cut, where POINTS has `may_lose`
    ...@N                only the N-th time; by default each time
    ...@P%               at random, P % of the times; REMOTELY_FAULTS_SEED makes it repeatable

The variable acts in each process that inherits it: all those of an embedded cluster, and those
started by a `remotely start` or `remotely join` that has it.
"""

import os
import random
import re
import signal
import time
from typing import NamedTuple

VARIABLE = "REMOTELY_FAULTS"


class Point(NamedTuple):
    name: str
    where: str
    may_lose: bool = False


POINTS = (
    Point("client.call", "a call is about to be sent", may_lose=True),
    Point("client.reply", "replies have arrived", may_lose=True),
    Point("actor.birth", "the process of an actor has started, and has received nothing yet"),
    Point("actor.call", "a call has arrived, and is about to run"),
    Point("actor.reply", "a call has run, and its reply is about to be sent"),
    Point("actor.end", "the last call has run, and the process is about to end"),
    Point("worker.spawn", "the worker was asked to start an actor"),
    Point("worker.spawned", "an actor is ready, and the worker is about to report it"),
    Point("worker.died", "an actor has ended, and the worker is about to report it"),
    Point("store.receive", "a store is about to receive a part of a value"),
    Point("published.receive", "a follower is about to receive a part of a version"),
    *(
        Point(f"published.{step}", "a step of values/versions.py is over")
        for step in "12345678abcd"
    ),
    Point("zygote.fork", "a zygote was asked to fork"),
    Point("master.message", "the master has received a message"),
)
ACTIONS = ("die", "stop", "delay", "lose")


class Fault:
    """One action at one point, and its schedule."""

    def __init__(self, action: str, delay_s: float, at: int, chance: float) -> None:
        self.action = action
        self.delay_s = delay_s
        self.at = at
        self.chance = chance
        self.count = 0

    def is_due(self, draw: random.Random) -> bool:
        self.count += 1
        if self.chance:
            return draw.random() < self.chance
        return not self.at or self.count == self.at


_WORD = re.compile(
    r"(?P<point>[\w.]+):(?P<action>\w+)(?:=(?P<ms>\d+(?:\.\d+)?))?"
    r"(?:@(?:(?P<at>\d+)|(?P<percent>\d+(?:\.\d+)?)%))?"
)


def parse(text: str) -> dict[str, list[Fault]]:
    """Return the faults of each point.  Raises ValueError for invalid ones."""
    faults: dict[str, list[Fault]] = {}
    for word in filter(None, (word.strip() for word in text.split(","))):
        match = _WORD.fullmatch(word)
        if match is None:
            raise ValueError(
                f"{VARIABLE}: {word!r} is not POINT:ACTION, POINT:delay=MS, ...@N, ...@P%"
            )
        point = next((p for p in POINTS if p.name == match["point"]), None)
        if point is None:
            known = ", ".join(p.name for p in POINTS)
            raise ValueError(f"{VARIABLE}: there is no point {match['point']!r}; there are {known}")
        action = match["action"]
        if action not in ACTIONS or (action == "lose" and not point.may_lose):
            known = ", ".join(a for a in ACTIONS if a != "lose" or point.may_lose)
            raise ValueError(f"{VARIABLE}: {point.name} cannot {action!r}; it can {known}")
        if (action == "delay") != (match["ms"] is not None):
            raise ValueError(f"{VARIABLE}: {word!r}: only delay takes milliseconds: delay=500")
        chance = float(match["percent"] or 0) / 100
        fault = Fault(action, float(match["ms"] or 0) / 1000, int(match["at"] or 0), chance)
        faults.setdefault(point.name, []).append(fault)
    return faults


def at(point: str) -> bool:
    """Run the faults of a point; return whether to lose the message.  Check `faults.ON` first."""
    lost = False
    for fault in ON.get(point, ()):
        if not fault.is_due(_draw):
            continue
        if fault.action == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        elif fault.action == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif fault.action == "delay":
            time.sleep(fault.delay_s)
        else:
            lost = True
    return lost


def _after_fork() -> None:
    """Restart the counts and the random stream in a forked process."""
    if ON:
        for faults in ON.values():
            for fault in faults:
                fault.count = 0
        _draw.seed(f"{os.environ.get(f'{VARIABLE}_SEED', '')}:{os.getpid()}")


ON = parse(os.environ.get(VARIABLE, ""))
_draw = random.Random(os.environ.get(f"{VARIABLE}_SEED"))
os.register_at_fork(after_in_child=_after_fork)
