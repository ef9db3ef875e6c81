"""Logbook: crash reports in a file, one line of JSON each, for replay after the run.

A line also has the time of the crash and the report in words, for the dashboard.

from remotely_rl.supervision import logbook

for report in logbook.load("runs/.../crashes.jsonl"):
    report.replay(make)
"""

import dataclasses
import json
import os
import time
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from remotely_rl.supervision.report import Cause, CrashReport

NAME = "crashes.jsonl"
MAX_REPORTS = 1_000  # so that a run of weeks does not fill the disk


class Logbook:
    """Appends the first `MAX_REPORTS` reports to a file."""

    def __init__(self, path: Path):
        self._path = path
        self._left = MAX_REPORTS

    def __call__(self, report: CrashReport) -> None:
        """Append a report.  Errors such as a full disk are ignored: the run has logged it too."""
        if self._left:
            self._left -= 1
            try:
                with self._path.open("a+b") as file:
                    begins = _ends_within_a_line(file) * b"\n"
                    line = {"at": round(time.time(), 3), "text": str(report)}
                    text = json.dumps(line | dataclasses.asdict(report), default=_plain)
                    file.write(begins + text.encode() + b"\n")
            except OSError:
                self._left = 0


def load(path: str | Path) -> list[CrashReport]:
    """Return the reports of a file, except lines cut off by a full disk or a kill.

    Raises OSError, and ValueError for content that is not a crash report.
    """
    lines = Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
    found = [fields for line in lines if (fields := _parsed(line)) is not None]
    if lines and not found:
        raise ValueError(f"{path} has no crash report")
    return [_report(fields) for fields in found]


def _parsed(line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None


def _ends_within_a_line(file: BinaryIO) -> bool:
    if not file.seek(0, os.SEEK_END):
        return False
    file.seek(-1, os.SEEK_END)
    return file.read(1) != b"\n"


def _report(fields: dict[str, Any]) -> CrashReport:
    fields = {name: value for name, value in fields.items() if name not in ("at", "text")}
    try:
        fields["cause"], fields["actions"] = Cause(fields["cause"]), tuple(fields["actions"])
        return CrashReport(**fields)
    except (KeyError, TypeError) as error:
        raise ValueError(f"this is not a crash report: {error}") from None


def _plain(value: Any) -> Any:
    """Return a numpy number or array as JSON types."""
    return value.tolist() if isinstance(value, (np.generic, np.ndarray)) else repr(value)
