"""Adds the source lines that a remote traceback lacks.

An actor has no file for code that was sent by value: cells of a notebook, and the script itself on
another machine.  Here linecache knows them.

The text comes from a process that may be compromised, and may name any file.  So no file is opened
that could block or fill the memory: a device, a pipe, a file of /proc, a huge file.
"""

import linecache
import os
import re
import stat
from contextlib import suppress

MAX_FILE_BYTES = 16 << 20

_FRAME = re.compile(r'(?P<margin>[ |+-]*)File "(?P<file>.+)", line (?P<number>\d{1,9}), in ')


def with_source_lines(text: str) -> str:
    """Return a traceback with a line of source below each frame for which there is one here."""
    lines = text.split("\n")
    out = []
    for line, below in zip(lines, [*lines[1:], ""], strict=True):
        out.append(line)
        if (frame := _FRAME.match(line)) and not below.startswith(frame["margin"] + "  "):
            with suppress(Exception):  # the name of a file may be anything
                source = _line(frame["file"], int(frame["number"]))
                out += [f"{frame['margin']}  {source}"] if source else []
    return "\n".join(out)


def _line(file: str, number: int) -> str:
    if file not in linecache.cache:  # cells are, and what tracebacks have shown
        found = os.stat(file)
        if not stat.S_ISREG(found.st_mode) or not 0 < found.st_size <= MAX_FILE_BYTES:
            return ""
    return linecache.getline(file, number).strip()
