"""The lines of source that a traceback from elsewhere lacks.

An actor has no file for what went to it by value: cells of a notebook, and the script itself on
another machine.  Here they are known, to linecache.
"""

import linecache
import re
from contextlib import suppress

_FRAME = re.compile(r'(?P<margin>[ |+-]*)File "(?P<file>.+)", line (?P<number>\d{1,9}), in ')


def with_source_lines(text: str) -> str:
    """Return a traceback with a line of source below each frame for which there is one here."""
    lines = text.split("\n")
    out = []
    for line, below in zip(lines, [*lines[1:], ""], strict=True):
        out.append(line)
        if (frame := _FRAME.match(line)) and not below.startswith(frame["margin"] + "  "):
            with suppress(Exception):  # the name of a file may be anything
                source = linecache.getline(frame["file"], int(frame["number"])).strip()
                out += [f"{frame['margin']}  {source}"] if source else []
    return "\n".join(out)
