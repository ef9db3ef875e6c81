"""pdb without a terminal of its own: it reads and writes through a `Debugger` (debugger.py).

It is the pdb of the running Python, with its commands and its `.pdbrc`.  What differs:

    quit       ends the call with bdb.BdbQuit, as in pdb, and leaves the debugger; the actor lives
    EOF        leaves the debugger, and the call goes on
    Ctrl-C     stops where the call is; at the next line of the user's while our code runs, and then
               a second one raises KeyboardInterrupt
    a stack    begins with the method: frames of remotely are not shown, and nothing stops in them
    a step     beyond the end of the call is its end
"""

import bdb
import contextlib
import ctypes
import dis
import pdb  # noqa: T100 - what this is for
import sys
import traceback
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

from remotely.actor.debugger import is_servant, place_of

if TYPE_CHECKING:
    from remotely.actor.debugger import Debugger

_SUSPENDS = 0x20 | 0x80 | 0x200  # CO_GENERATOR, CO_COROUTINE, CO_ASYNC_GENERATOR


class RemotePdb(pdb.Pdb):
    """The debugger of one thread."""

    def __init__(self, debugger: "Debugger") -> None:
        stdin: Any = debugger.stdin
        stdout: Any = debugger.stdout
        super().__init__(stdin=stdin, stdout=stdout, nosigint=True, skip=["remotely", "remotely.*"])
        self._debugger = debugger
        self._session = 0  # of the last prompt
        self.is_stopping = False  # Ctrl-C has asked for that
        self.allow_kbdint = False  # as pdb keeps it: whether a command may be interrupted

    @property
    def is_at_prompt(self) -> bool:
        """Whether it reads or runs commands."""
        return self.allow_kbdint

    def stop_at(self, frame: FrameType) -> None:
        """Prompt where a signal has found this thread: it may be in a wait without a next line."""
        self.reset()
        each: FrameType | None = frame
        while each is not None:  # as `set_trace` does; its tracing begins with the next line
            each.f_trace = self.trace_dispatch
            self.botframe = each
            each = each.f_back
        self.interaction(frame, None)
        if self._session:
            # What was assigned at the prompt: a trace function's is written back by Python, and
            # from 3.13 on this does nothing.  Without a prompt, it would restore old values: those
            # of the last `locals()`.
            ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))
        if self.quitting:
            raise bdb.BdbQuit
        has_continued = self.stopframe is self.botframe and self.stoplineno == -1
        if self.breaks or not has_continued:
            sys.settrace(self.trace_dispatch)

    def look_at(self, error: BaseException) -> None:
        """Show the frames of an error."""
        self.reset()
        self.message("".join(traceback.format_exception_only(error)).rstrip())
        self.interaction(None, error if sys.version_info >= (3, 13) else error.__traceback__)

    def completions(self, begin: int, line: str) -> list[str]:
        """Return how the word that begins there may go on."""
        word, end = line[begin:], len(line)
        if begin == 0:  # a command, or an expression to evaluate
            words = {*self.completenames(word, line, begin, end)}
            return sorted(words | {*self._complete_expression(word, line, begin, end)})
        command, _, _ = self.parseline(line)
        complete = getattr(self, f"complete_{command}", self._complete_expression)
        return list(complete(word, line, begin, end))

    # --- overridden methods of pdb and bdb --------------------------------------------------------

    def interaction(self, frame: FrameType | None, what: Any) -> None:
        self.is_stopping = False
        here = frame if frame is not None else _innermost(what)
        self._session = self._debugger.enter(place_of(here))
        if self._session:
            super().interaction(frame, what)
        else:
            self._go_on()

    def set_continue(self) -> None:
        super().set_continue()
        self._debugger.pass_turn()

    def dispatch_return(self, frame: FrameType, arg: Any) -> Any:
        traced = super().dispatch_return(frame, arg)
        if is_servant(frame.f_back) and not is_servant(frame) and _has_ended(frame):
            self.set_continue()
        return traced

    def get_stack(
        self, f: FrameType | None, t: TracebackType | None
    ) -> tuple[list[tuple[FrameType, int]], int]:
        stack, index = super().get_stack(f, t)
        ours = [number for number, (frame, _) in enumerate(stack) if is_servant(frame)]
        begin = ours[-1] + 1 if ours and ours[-1] < index else 0
        return stack[begin:], index - begin

    def do_quit(self, arg: str) -> bool:
        self._user_requested_quit = True
        self.set_quit()
        self._debugger.leave(self._session)
        return True

    do_q = do_exit = do_quit

    def do_EOF(self, arg: str) -> bool:  # noqa: N802 - the name of the command
        self._debugger.leave(self._session)
        self._go_on()
        return True

    def do_run(self, arg: str) -> None:
        self.error("A call cannot be run again from here.")

    do_restart = do_run

    def do_interact(self, arg: str) -> None:
        before = sys.stdin
        sys.stdin = self.stdin
        try:
            with contextlib.redirect_stdout(self.stdout), contextlib.redirect_stderr(self.stdout):
                super().do_interact(arg)
        finally:
            sys.stdin = before

    def _go_on(self) -> None:
        self.clear_all_breaks()
        self.set_continue()


def _innermost(what: Any) -> FrameType:
    """Return the innermost frame of an error, or of its traceback."""
    trace: Any = what.__traceback__ if isinstance(what, BaseException) else what
    while trace.tb_next is not None:
        trace = trace.tb_next
    frame: FrameType = trace.tb_frame
    return frame


def _has_ended(frame: FrameType) -> bool:
    """Return whether a frame that returns does not only yield or await."""
    code = frame.f_code
    if not code.co_flags & _SUSPENDS:
        return True
    return dis.opname[code.co_code[frame.f_lasti]].startswith("RETURN")
