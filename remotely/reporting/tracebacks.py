"""The stacks of actors, as users see them: frames of remotely are counted, not listed.  Pure.

Both kinds of stacks go through here, as text, on the machine of the actor: tracebacks, which end
with the innermost frame, and what faulthandler writes when a process crashes, which begins with it.
The innermost frame stays even if it is ours: an error in remotely itself must be found.
"""

import re
from typing import NamedTuple

ROOT = __file__.rpartition("reporting")[0]  # of this package, with a slash at its end
# "line 7, in f" in a traceback, "line 7 in f" by faulthandler.
_FRAME = re.compile(
    r'(?P<margin>[ |+-]*)  File "(?P<file>.+)", line \d+(?P<comma>,?) in (?P<name>.+)'
)
_STARTS_THREADS = re.compile(r"/lib/python3\.\d+/threading\.py$")


class _Frame(NamedTuple):
    lines: list[str]
    margin: str
    innermost_last: bool  # in a traceback
    is_ours: bool


def folded(text: str) -> str:
    """Replace the frames of remotely in each stack of a text by their number."""
    if ROOT not in text:
        return text
    out: list[str] = []
    stack: list[_Frame] = []
    for line in text.split("\n"):
        if found := _FRAME.match(line):
            name = found["file"]
            is_ours = name.startswith((ROOT, "<frozen runpy>")) or bool(
                _STARTS_THREADS.search(name)
            )
            stack.append(_Frame([line], found["margin"], bool(found["comma"]), is_ours))
        elif stack and line.startswith(stack[-1].margin + "    "):  # its source
            stack[-1].lines.append(line)
        else:
            out += _shortened(stack)
            stack = []
            out.append(line)
    return "\n".join(out + _shortened(stack))


def _shortened(stack: list[_Frame]) -> list[str]:
    if not stack:
        return []
    innermost = len(stack) - 1 if stack[0].innermost_last else 0
    out: list[str] = []
    run: list[_Frame] = []

    def end_run() -> None:
        lines = [line for frame in run for line in frame.lines]
        if len(lines) > 1:
            frames = "1 frame" if len(run) == 1 else f"{len(run)} frames"
            lines = [f"{run[0].margin}  ... {frames} of remotely"]
        out.extend(lines)
        run.clear()

    for index, frame in enumerate(stack):
        if frame.is_ours and index != innermost:
            run.append(frame)
            continue
        end_run()
        out.extend(frame.lines)
    end_run()
    return out
