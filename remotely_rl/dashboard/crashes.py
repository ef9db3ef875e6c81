"""The crashes of a run's environments, from its crashes.jsonl (`supervision/logbook.py`).

Not by `logbook.load`, which needs Gymnasium, and the whole file: a report may hold a thousand
actions.  Here lines are counted, and the reports at the end of the file are read.
"""

import json
import os
from typing import Any, BinaryIO

from remotely_rl.dashboard import series

NAME = "crashes.jsonl"
TAIL = 1 << 18  # bytes at the end whose reports are read
LAST = 10  # reports that are shown
MAX_REPORTS = 1_000  # as logbook.MAX_REPORTS: later crashes are not in the file
RECENT_S = 600.0
MAX_TEXT = 4_000  # characters of a traceback


def summary(file: BinaryIO, steps: float | None, now: float) -> dict[str, Any]:
    """Return the number of crashes, their rate, and the last ones, newest first.

    `steps` are those of the run; `now` is in seconds since 1970.
    """
    count, _ = series.count_lines(file, 0)
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - TAIL))
    found = [report for line in file.read().split(b"\n") if (report := _parsed(line)) is not None]
    times = [at for report in found if isinstance(at := report.get("at"), int | float)]
    if size <= TAIL:
        count = len(found)  # without lines that a crash has cut off
    last = list(enumerate(found, count - len(found)))[: -LAST - 1 : -1]
    return {
        "count": count,
        "is_all": count < MAX_REPORTS,
        "steps_per_crash": round(steps / count) if steps and count else None,
        "recent": sum(now - at < RECENT_S for at in times),
        "recent_s": RECENT_S,
        "last": [_shown(number, report) for number, report in last],
    }


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        report = json.loads(line)
    except ValueError:  # cut off, at the beginning of the tail or by a crash
        return None
    return report if isinstance(report, dict) else None


def _shown(number: int, report: dict[str, Any]) -> dict[str, Any]:
    """Return a report for the page; `number` is its index in `logbook.load`."""
    text = report.get("text") or f"{report.get('cause')}: {report.get('what')}"
    seed, step, actions = (report.get(name) for name in ("seed", "step", "actions"))
    is_complete = seed is not None and not report.get("episode")
    return {
        "number": number,
        "at": report.get("at"),
        "text": str(text)[:MAX_TEXT],
        "details": str(report.get("details", ""))[-MAX_TEXT:],
        "seed": seed,
        "can_replay": is_complete and isinstance(actions, list) and len(actions) == step,
    }
