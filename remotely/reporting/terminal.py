"""The output of actors on the terminal of their client.

Each line is prefixed with the name of its actor.  An actor may leave its line open: a prompt,
`print(".", end="")`, a progress bar that returns to the start of its line.  The line stays open
until another actor prints, which then starts a line of its own.

The text comes from a process that may be compromised, and a terminal obeys control sequences.  So
control characters are escaped, except for harmless ones: tab, carriage return, and the sequences
that set colours.  Pure.
"""

import re

_HARMLESS = r"\x1b\[[0-9;]*m"  # SGR: colours, bold
# Also the bidirectional control characters, which can disguise text.
_CONTROL = re.compile(rf"({_HARMLESS})|[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
CLEAR_REST = "\x1b[K"


def shown(text: str) -> str:
    """Return text with control characters escaped, except newlines, tabs and colours."""
    return _CONTROL.sub(lambda found: found[1] or _visible(found[0]), text)


def _visible(character: str) -> str:
    return character.encode("unicode_escape").decode()


class TerminalScreen:
    """One output stream of a client; `clears`: it is a terminal that can clear a line."""

    def __init__(self, clears: bool = False) -> None:
        self._clears = clears
        self._open = ""  # the actor whose line has not ended
        self._cut: set[str] = set()  # actors whose line another one has ended

    def add(self, name: str, text: str) -> str:
        """Return the text to write for a piece of an actor's output."""
        out = []
        if self._open and self._open != name:
            out.append("\n")
            self._cut.add(self._open)
            self._open = ""
        out += [self._line(name, line) for line in _lines(text)]
        return "".join(out)

    def close(self) -> str:
        """Return the newline that ends the open line, if any."""
        was_open, self._open = self._open, ""
        return "\n" if was_open else ""

    def _line(self, name: str, line: str) -> str:
        body = line.removesuffix("\n")
        ends = len(body) != len(line)
        returns = "\r" in body
        # Of parts separated by carriage returns, a terminal shows the last.
        parts = [part for part in body.split("\r") if part]
        last = shown(parts[-1]) if parts else ""
        was_cut = name in self._cut
        self._cut.discard(name)
        if not self._open and was_cut and line == "\n":
            return ""
        if not self._open:
            begin = f"[{shown(name)}] "
        elif returns and last:
            begin = f"\r[{shown(name)}] "
            last += CLEAR_REST if self._clears else ""
        else:
            begin = ""
        self._open = "" if ends else name
        return f"{begin}{last}\n" if ends else f"{begin}{last}"


def _lines(text: str) -> list[str]:
    """Split at newlines only: a carriage return stays within its line."""
    *whole, rest = text.replace("\r\n", "\n").split("\n")
    return [f"{line}\n" for line in whole] + ([rest] if rest else [])
