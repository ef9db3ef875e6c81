"""What the terminal of a debugger and an actor say to each other.

Each request is a DEBUG message (wire.py): its name is one of `Ask`, its payload is text.  Each
reply is a RESULT with a `Heard`, sent at once.  So while code runs, the terminal asks again and
again for what the debugger has said; a prompt waits for a line as long as its reader likes.
"""

from enum import StrEnum
from typing import NamedTuple


class Ask(StrEnum):
    ATTACH = "attach"  # who asks; one terminal at a time is attached
    CATCH = "catch"  # while it is attached, a call that fails stops with its frames
    READ = "read"  # what the debugger has said since the last request
    LINE = "line"  # a line for the prompt
    COMPLETE = "complete"  # where a word begins in a line, a space, the line up to the cursor
    INTERRUPT = "interrupt"  # stop what runs
    LEAVE = "leave"  # what has stopped goes on


class Heard(NamedTuple):
    """The reply.  `refused`: why the request was; the other fields are then empty.

    text         what the debugger has said, and nobody has read
    is_attached  whether the terminal is attached; false after `quit`
    asks         whether a prompt, the last line of the text, waits for a line
    runs         whether any call runs, or has stopped
    words        the completions, once there are any
    is_stopped   whether a thread has the prompt, or runs what was asked for there; false once it
                 has continued
    """

    refused: str = ""
    text: str = ""
    is_attached: bool = False
    asks: bool = False
    runs: bool = False
    words: tuple[str, ...] | None = None
    is_stopped: bool = False
