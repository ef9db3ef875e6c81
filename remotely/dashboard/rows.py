"""Tables for the browser: machines and actors, sorted, searched and paginated.  Pure.

The browser never holds more than one page, so 10,000 actors cost it no more than 200.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import msgspec

from remotely.dashboard import own_sums
from remotely.dashboard.own_sums import OwnSums
from remotely.protocol.measures import NO_METHOD
from remotely.reporting.cluster_status import ActorStatus, ClusterStatus, totals

PAGE = 200  # rows at most
Row = Mapping[str, Any]

ACTOR_COLUMNS = (
    "name",
    "class",
    "machine",
    "pid",
    "cpu_percent",
    "memory",
    "calls",
    "errors",
    "calls_per_s",
    "busy_percent",
    "mean_s",
    "p99_s",
    "received",
    "sent",
    "method",
    "queue",
    "since",
)
MACHINE_COLUMNS = (
    "machine",
    "address",
    "free_cpus",
    "free_gpus",
    "free_memory",
    "cpu_percent",
    "memory_used",
    "disk_used",
    "actors",
)
BESIDE_CALLS = ("__init__", "close")
_NUMBERS = re.compile(r"(\d{1,15})")
_SEARCHED = (
    "name",
    "class",
    "machine",
    "method",
    "address",
    "actor",
    "algorithm",
    "env",
    "state",
    "tags",
    "note",
)


class Page(NamedTuple):
    """A page of a table of `total` rows, of which `found` match the search."""

    total: int
    found: int
    after: int
    rows: list[Row]


def page(
    rows: Sequence[Row],
    columns: Sequence[str],
    sort: str = "",
    search: str = "",
    after: int = 0,
    limit: int = PAGE,
) -> Page:
    """Return a page of the rows that match each word of `search`, sorted by a column.

    `sort="-name"` sorts in descending order.  Raises ValueError if there is no such column.
    """
    key = sort.removeprefix("-") or columns[0]
    if key not in columns:
        raise ValueError(f"no column {key!r} to sort by; there are: {', '.join(columns)}")
    found = matching(rows, search) if search.split() else list(rows)
    known = [row for row in found if row[key] is not None]
    known.sort(key=lambda row: _order(row[key]), reverse=sort.startswith("-"))
    found = known + [row for row in found if row[key] is None]  # last, in either order
    after = max(0, after)
    return Page(len(rows), len(found), after, found[after : after + min(max(1, limit), PAGE)])


def matching(rows: Iterable[Row], search: str) -> list[Row]:
    """Return the rows that match each word of a search; none without a word."""
    words = search.lower().split()
    return [row for row in rows if words and _has(row, words)]


def _has(row: Row, words: Sequence[str]) -> bool:
    text = " ".join(str(row[name]) for name in _SEARCHED if name in row).lower()
    return all(word in text for word in words)


def _order(cell: Any) -> Any:
    """Return the sort key of a cell: numbers within names sort as numbers, and lists as text."""
    if isinstance(cell, int | float):
        return 0, cell
    parts = _NUMBERS.split(str(cell).lower())  # text and digits in turn
    return 1, [int(part) if index % 2 else part for index, part in enumerate(parts)]


class Counted(NamedTuple):
    """A number that actors count, and its sums by class since the dashboard started.

    Actors come and go, and a restarted one counts from zero, but a sum never falls.  What an actor
    counted before it was first seen is not in it: the actor may be older than the dashboard.
    """

    by_actor: dict[str, int]
    by_class: dict[str, int]


def counted(
    before: Counted | None, actors: Sequence[ActorStatus], number: Callable[[ActorStatus], int]
) -> Counted:
    """Return the sums with what was counted since `before`."""
    by_class = Counter(before.by_class if before else ())
    for actor in actors:
        now = number(actor)
        known = before.by_actor.get(actor.actor, now) if before else now
        by_class[actor.class_name] += now - known if now >= known else now
    return Counted({actor.actor: number(actor) for actor in actors}, dict(by_class))


@dataclass(frozen=True)
class Snapshot:
    """The state of a cluster at one time.

    The rows of its tables are made when one is first looked at: most pages show the overview.
    """

    at: float  # seconds of a monotonic clock
    status: ClusterStatus
    calls: Counted
    errors: Counted
    own: OwnSums

    @cached_property
    def actors(self) -> list[dict[str, Any]]:
        """The actors as plain data, with the figures of the main method of each: the one whose
        calls took the most time.

        A call that has run for longer than 99 % of these counts before it ends: `p99_runs`.
        """
        rows: list[dict[str, Any]] = msgspec.to_builtins(self.status.actors)
        for actor in rows:
            of_calls = (
                each
                for each in actor["methods"]
                if each["method"] not in BESIDE_CALLS and not each["method"].startswith(NO_METHOD)
            )
            main: dict[str, Any] = next(of_calls, {})
            actor |= {name: main.get(name) for name in ("mean_s", "p99_s")}
            actor["p99_method"] = main.get("method", "")
            actor["p99_runs"] = actor["method_s"] > (actor["p99_s"] or 0.0)
            if actor["p99_runs"]:
                actor |= {"p99_s": actor["method_s"], "p99_method": actor["method"]}
            for metric in actor["metrics"]:
                del metric["buckets"]  # the browser shows quantiles
        return rows

    def actor(self, actor: str) -> dict[str, Any] | None:
        return next((each for each in self.actors if each["actor"] == actor), None)

    def machines(self) -> list[dict[str, Any]]:
        """Return the machines, each with its number of actors."""
        counts = Counter(actor.worker for actor in self.status.actors)
        machines = msgspec.to_builtins(self.status.machines)
        return [{**machine, "actors": counts[machine["worker"]]} for machine in machines]


def snapshot(status: ClusterStatus, at: float, before: Snapshot | None) -> Snapshot:
    """Return the snapshot of a status, with what was counted since before `before`."""
    calls = counted(before.calls if before else None, status.actors, lambda actor: actor.calls)
    errors = counted(before.errors if before else None, status.actors, lambda actor: actor.errors)
    own = own_sums.add(before.own if before else None, status)
    return Snapshot(at, status, calls, errors, own)


def overview(now: Snapshot, age_s: float = 0.0, why: str = "") -> dict[str, Any]:
    """Return a summary whose size does not depend on the cluster's.

    `why` it is so old: the master did not answer.
    """
    status = now.status
    machines, actors = status.machines, status.actors
    return {
        "address": status.address,
        "age_s": round(age_s, 1),
        "stale": why,
        "machines": len(machines),
        "away": [m.machine for m in machines if m.away_s],
        "sick": [
            {"machine": m.machine, "sick": m.sick, "sick_s": m.sick_s} for m in machines if m.sick
        ],
        "draining": [
            {"machine": m.machine, "drains_s": m.drains_s} for m in machines if m.drains_s
        ],
        "actors": len(actors),
        "clients": len(status.clients),
        "running": sum(actor.running for actor in actors),
        "queued": sum(actor.queue for actor in actors),
        "calls_per_s": sum(actor.calls_per_s for actor in actors),
        "cpu_percent": sum(actor.cpu_percent for actor in actors),
        "memory": sum(actor.memory for actor in actors),
        **{f"total_{name}": number for name, number in totals(machines).items()},
        "waiting": status.waiting,
        "waits": msgspec.to_builtins(status.waits),
        "more_wait": status.waiting - sum(wait.count for wait in status.waits),
        "ends": msgspec.to_builtins(status.ends),
        "ended": status.ended,
        "last_event": status.last_event,
        "counts_cpus": status.counts_cpus,
        "classes": classes(actors),
        "all_classes": len({actor.class_name for actor in actors}),
    }


def classes(actors: Iterable[ActorStatus], shown: int = 12) -> list[dict[str, Any]]:
    """Return the classes with the most actors, and the sums over their actors."""
    by_class: dict[str, list[ActorStatus]] = {}
    for actor in actors:
        by_class.setdefault(actor.class_name, []).append(actor)
    most = sorted(by_class.items(), key=lambda each: -len(each[1]))[:shown]
    return [
        {
            "class": name,
            "actors": len(its),
            "calls_per_s": sum(actor.calls_per_s for actor in its),
            "cpu_percent": sum(actor.cpu_percent for actor in its),
            "memory": sum(actor.memory for actor in its),
        }
        for name, its in most
    ]
