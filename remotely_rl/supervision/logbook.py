"""Crash reports in a file, a line of JSON each, so that they can be replayed after the run.

from remotely_rl.supervision import logbook

for report in logbook.load("runs/.../crashes.jsonl"):
    report.replay(make)
"""

import dataclasses
import json
import os
from pathlib import Path
from typing import Any, BinaryIO

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
                with self._path.open("a+b") as file:
                    begins = _ends_within_a_line(file) * b"\n"
                    text = json.dumps(dataclasses.asdict(report), default=_plain)
                    file.write(begins + text.encode() + b"\n")
            except OSError:
                self._left = 0


def load(path: str | Path) -> list[CrashReport]:
    """Return the reports of a file, without those that a full disk or a kill has cut off.

    Raises OSError, and ValueError for what is no report.
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
    try:
        fields["cause"], fields["actions"] = Cause(fields["cause"]), tuple(fields["actions"])
        return CrashReport(**fields)
    except (KeyError, TypeError) as error:
        raise ValueError(f"this is no crash report: {error}") from None


def _plain(value: Any) -> Any:
    """Return numpy's numbers and arrays as JSON has them."""
    return value.tolist() if isinstance(value, (np.generic, np.ndarray)) else repr(value)
