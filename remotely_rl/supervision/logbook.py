"""Crash reports in a file, a line of JSON each, so that they can be replayed after the run.

from remotely_rl.supervision import logbook

for report in logbook.load("runs/.../crashes.jsonl"):
    report.replay(make)
"""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np

from remotely_rl.supervision.report import Cause, CrashReport

NAME = "crashes.jsonl"
MOST = 1_000  # reports in a file: a run of weeks does not fill a disk with them


class Logbook:
    """Adds the first `MOST` reports to a file."""

    def __init__(self, path: Path):
        self._path = path
        self._left = MOST

    def __call__(self, report: CrashReport) -> None:
        """Add a report.  A disk that is full ends no run: the report has been told as well."""
        if self._left:
            self._left -= 1
            try:
                with self._path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(dataclasses.asdict(report), default=_plain) + "\n")
            except OSError:
                self._left = 0


def load(path: str | Path) -> list[CrashReport]:
    """Return the reports of a file.  Raises OSError, and ValueError for what is no report."""
    with Path(path).open(encoding="utf-8") as file:
        return [_report(json.loads(line)) for line in file]


def _report(fields: dict[str, Any]) -> CrashReport:
    try:
        fields["cause"], fields["actions"] = Cause(fields["cause"]), tuple(fields["actions"])
        return CrashReport(**fields)
    except (KeyError, TypeError) as error:
        raise ValueError(f"this is no crash report: {error}") from None


def _plain(value: Any) -> Any:
    """Return numpy's numbers and arrays as JSON has them."""
    return value.tolist() if isinstance(value, (np.generic, np.ndarray)) else repr(value)
