"""A timeline in the format of Chrome's traces, which Perfetto and chrome://tracing open.  Pure.

Each process is a group of rows: the calls that it serves, side by side if several run at a time;
the calls that it makes, each with an arrow to where it runs; and its bytes received and sent.  A
call that waits, from when it was sent until it begins, is a bar of its own.  Births and ends are
marks.

Times are in microseconds since the first thing that is shown, on the clock of the master.  Events
are in the order of their times, and the slices of a row do not overlap, unless one is within
another: Perfetto's trace processor would drop them.  No row has the number 0, which it takes for
the idle thread.
"""

import heapq
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from remotely.protocol.control import ProcessTimeline
from remotely.protocol.resources import format_bytes
from remotely.protocol.spans import ServerSpan, client_spans, server_spans
from remotely.reporting.cluster_status import count_of

MADE_ROW = 1_000_000  # below the rows of calls that are served
LEAST_SHOWN = 1024  # bytes of a call that move the curve of all bytes
Event = dict[str, Any]


class Bar(NamedTuple):
    """A call that an actor has served, on the master's clock; `sent` is 0 if that is not known.

    One that goes on has no `call`, and has run until its process told of it.
    """

    process: ProcessTimeline
    method: str
    call: ServerSpan | None
    sent: float
    began: float
    ended: float
    received: int  # bytes of arguments, and of results
    returned: int


def bars(recorded: Sequence[ProcessTimeline]) -> list[Bar]:
    """Return all calls that were served, and those that go on, in the order in which they began."""
    sent = {
        (route, each.call): each.sent + process.offset_s
        for process in recorded
        for route, data in process.made.items()
        for each in client_spans(data)
    }
    found = []
    for process in recorded:
        if process.running:
            now = process.clock + process.offset_s
            name = f"{process.running}, which goes on"
            found.append(Bar(process, name, None, 0.0, now - process.running_s, now, 0, 0))
        before: ServerSpan | None = None
        is_serial = True
        for each in sorted(server_spans(process.served), key=lambda call: call.ended):
            is_serial = is_serial and (before is None or before.ended <= each.began)
            # Bytes are counted over all calls: those of one are known if no other runs.
            received = each.received - before.received if before and is_serial else 0
            returned = each.sent - before.sent if before and is_serial else 0
            before = each
            name = process.names[each.name] if each.name < len(process.names) else "?"
            found.append(
                Bar(
                    process,
                    name,
                    each,
                    sent.get((each.route, each.call), 0.0),
                    each.began + process.offset_s,
                    each.ended + process.offset_s,
                    max(0, received),
                    max(0, returned),
                )
            )
    found.sort(key=lambda bar: bar.began)
    return found


def trace(recorded: Sequence[ProcessTimeline]) -> dict[str, Any]:
    """Return the JSON of what all processes have recorded."""
    served = bars(recorded)
    clock = _Clock(served, recorded)
    numbers: dict[tuple[str, int], int] = {}
    for each in recorded:
        numbers.setdefault((each.host, each.pid), len(numbers) + 1)
    number_of = {id(each): numbers[each.host, each.pid] for each in recorded}
    events: list[Event] = []
    named: set[int] = set()
    for each in sorted(recorded, key=lambda each: bool(each.made)):  # an actor names its process
        pid = number_of[id(each)]
        events += _of_process(each, pid, clock, pid in named)
        named.add(pid)
    callers = {route: number_of[id(each)] for each in recorded for route in each.made}
    rows: dict[int, _Rows] = {}
    for flow, bar in enumerate(served, 1):
        pid = number_of[id(bar.process)]
        row = rows.setdefault(pid, _Rows()).place(bar.began, bar.ended)
        caller = callers.get(bar.call.route) if bar.call else None
        events += _of_call(bar, flow, pid, row, caller, clock)
    events += _pending(recorded, served, number_of, clock)
    events.sort(key=lambda event: (event.get("ts", -1.0), -event.get("dur", 0.0)))
    _end_marks_with_the_next(events)
    errors = {each.machine: round(each.error_s * 1e6) for each in recorded if each.error_s}
    missing = sum(each.missing for each in recorded)
    about = {"clock error in us, by machine": errors, "calls that found no room": missing}
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": about}


def by_actor(
    recorded: Sequence[ProcessTimeline], seconds: float = 0.0, most: int = 400
) -> dict[str, Any]:
    """Return bars for a page, of a timeline of so many seconds: for each actor, some for each of
    `most` parts, each with when it begins and how wide it is, in parts of the whole; the method
    that took most of it; how many calls it stands for; and how long they took, from the first to
    the last, which is more than is shown if the first of them began before the timeline.

    Calls that are narrower than a bar, and close, are drawn as one.  `more` is how many calls began
    after the last of so many bars that there is room for.
    """
    served = bars(recorded)
    last = max((each.clock + each.offset_s for each in recorded), default=0.0)
    first = min((bar.began for bar in served if bar.call), default=last)
    first = min(first, last - seconds)
    whole = last - first or 1.0
    actors: dict[str, list[Bar]] = {}
    for bar in served:
        actors.setdefault(bar.process.actor, []).append(bar)
    rows = []
    for actor, its in actors.items():
        drawn: list[list[Bar]] = []  # those that are drawn as one
        ends: list[float] = []  # the last end of each
        was_narrow = False
        for bar in its:
            is_narrow = bar.ended - bar.began < whole / most
            if drawn and is_narrow and was_narrow and bar.began - ends[-1] < whole / most:
                drawn[-1].append(bar)
                ends[-1] = max(ends[-1], bar.ended)
            else:
                drawn.append([bar])
                ends.append(bar.ended)
            was_narrow = is_narrow
        waits = [bar.began - bar.sent for bar in its if bar.sent]
        rows.append(
            {
                "actor": actor,
                "name": its[0].process.name,
                "calls": len(its),
                "waited_s": max(0.0, sum(waits) / len(waits)) if waits else None,
                "bars": [
                    [
                        round((begin - first) / whole, 5),
                        round((end - begin) / whole, 5),
                        _longest(these),
                        len(these),
                        end - these[0].began,
                    ]
                    for these, end in zip(drawn, ends, strict=True)
                    for begin in (max(first, these[0].began),)
                ][: 4 * most],
                "more": sum(map(len, drawn[4 * most :])),
            }
        )
    rows.sort(key=lambda row: str(row["name"]))
    return {"seconds": whole, "actors": rows, "text": summary(recorded)}


def _longest(these: Iterable[Bar]) -> str:
    """Return the method that took most of the time of some calls."""
    took: dict[str, float] = {}
    for bar in these:
        took[bar.method] = took.get(bar.method, 0.0) + bar.ended - bar.began
    return max(took, key=took.__getitem__)


def summary(recorded: Sequence[ProcessTimeline]) -> str:
    """Return a sentence about a timeline."""
    ran = bars(recorded)
    nbytes = sum(bar.received + bar.returned for bar in ran)
    actors = sum(1 for each in recorded if not each.made and each.class_name)
    machines = {each.host for each in recorded}
    text = f"{count_of(len(ran), 'call')} of {count_of(actors, 'actor')}"
    text += f", {format_bytes(nbytes)} received and sent"
    if len(machines) > 1:
        error = max(each.error_s for each in recorded)
        text += f"; the clocks of {len(machines)} machines, within {error * 1000:.2g} ms"
    if missing := sum(each.missing for each in recorded):
        text += f"; {missing} more calls found no room"
    return text


class _Clock:
    def __init__(self, served: Iterable[Bar], recorded: Iterable[ProcessTimeline]) -> None:
        times = [bar.began for bar in served]
        for each in recorded:
            times.append(each.clock + each.offset_s)
            times += [at + each.offset_s for at in (each.born, each.ended) if at]
            for data in each.made.values():
                times += [call.sent + each.offset_s for call in client_spans(data)]
        self._first = min(times, default=0.0)

    def us(self, at: float) -> float:
        return round((at - self._first) * 1e6, 3)


class _Rows:
    """The rows of a process: each call is in the first one that is free.

    Calls are placed in the order in which they began.  Two heaps, since an async actor may run
    thousands at a time.
    """

    def __init__(self) -> None:
        self._taken: list[tuple[float, int]] = []  # until when, and the row
        self._free: list[int] = []

    def place(self, began: float, ended: float) -> int:
        while self._taken and self._taken[0][0] <= began:
            heapq.heappush(self._free, heapq.heappop(self._taken)[1])
        row = heapq.heappop(self._free) if self._free else len(self._taken) + 1
        heapq.heappush(self._taken, (ended, row))
        return row


def _of_process(each: ProcessTimeline, pid: int, clock: _Clock, is_named: bool) -> list[Event]:
    name = f"{each.name} ({each.class_name})" if each.class_name else each.name
    title = f"{name}, pid {each.pid} on {each.machine}"
    events: list[Event] = []
    if not is_named:
        events.append({"ph": "M", "name": "process_name", "pid": pid, "args": {"name": title}})
    if each.made:
        row = {"name": "calls that it makes"}
        events.append({"ph": "M", "name": "thread_name", "pid": pid, "tid": MADE_ROW, "args": row})
    for at, what in ((each.born, "born"), (each.ended, f"ended: {each.how}")):
        if at:
            ts = clock.us(at + each.offset_s)
            mark = {"ph": "i", "s": "p", "cat": "life", "name": what, "pid": pid, "tid": 1}
            events.append({**mark, "ts": ts})
    return events


def _end_marks_with_the_next(events: Iterable[Event]) -> None:
    """End each mark of a call that is made before the next one begins."""
    last: dict[int, Event] = {}  # by process
    for event in events:
        if event["ph"] == "X" and event["tid"] == MADE_ROW:
            before = last.get(event["pid"])
            if before is not None and before["ts"] + before["dur"] > event["ts"]:
                before["dur"] = round(event["ts"] - before["ts"], 3)
            last[event["pid"]] = event


def _of_call(
    bar: Bar, flow: int, pid: int, row: int, caller: int | None, clock: _Clock
) -> list[Event]:
    ts = clock.us(bar.began)
    dur = round(clock.us(bar.ended) - ts, 3)
    args: dict[str, Any] = {}
    if bar.call is not None:
        args["call"] = bar.call.call
    if bar.received or bar.returned:
        args |= {"bytes received": bar.received, "bytes sent": bar.returned}
    call = {"ph": "X", "cat": "call", "name": bar.method, "pid": pid, "tid": row}
    events: list[Event] = [{**call, "ts": ts, "dur": dur, "args": args}]
    if bar.call is not None and bar.received + bar.returned >= LEAST_SHOWN:
        totals = {"received": bar.call.received, "sent": bar.call.sent}
        at = clock.us(bar.ended)
        events.append({"ph": "C", "name": "bytes", "pid": pid, "ts": at, "args": totals})
    if not bar.sent or caller is None:
        return events
    sent_us = min(clock.us(bar.sent), ts)  # clocks of machines are known within an error
    args["waited us"] = round(ts - sent_us, 3)
    wait = {"cat": "wait", "name": f"{bar.method} waits", "pid": pid, "tid": row, "id": flow}
    to = f"{bar.process.name}.{bar.method}"
    made = {"cat": "made", "name": to, "pid": caller, "tid": MADE_ROW}
    arrow = {"cat": "flow", "name": "call", "id": flow}
    return [
        *events,
        {**wait, "ph": "b", "ts": sent_us},
        {**wait, "ph": "e", "ts": ts},
        {**made, "ph": "X", "ts": sent_us, "dur": 0.5},
        {**arrow, "ph": "s", "pid": caller, "tid": MADE_ROW, "ts": sent_us},
        {**arrow, "ph": "f", "bp": "e", "pid": pid, "tid": row, "ts": ts},
    ]


def _pending(
    recorded: Sequence[ProcessTimeline],
    served: Iterable[Bar],
    number_of: dict[int, int],
    clock: _Clock,
) -> list[Event]:
    """Return the calls that were sent and have neither ended nor were answered."""
    ended = {(bar.call.route, bar.call.call) for bar in served if bar.call}
    names = {each.actor: each.name for each in recorded if each.actor and each.class_name}
    events = []
    for process in recorded:
        for route, data in process.made.items():
            name = names.get(process.actors.get(route, ""), "an actor")
            for each in client_spans(data):
                if not each.answered and (route, each.call) not in ended:
                    at = clock.us(each.sent + process.offset_s)
                    made: Event = {"ph": "X", "cat": "made", "name": f"{name}: has no reply yet"}
                    made |= {"pid": number_of[id(process)], "tid": MADE_ROW, "ts": at, "dur": 0.5}
                    events.append(made)
    return events
