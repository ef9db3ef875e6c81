"""The debugger of an actor: what has stopped, which terminal is attached, and what they say.

A call stops on its own thread, at `breakpoint()` or, where that is wanted, with the error that it
is about to reply.  The prompt is pdb's (remote_pdb.py).  A terminal (cli/debug.py) attaches over
the call socket, with DEBUG messages.  As the main thread may have stopped, the background thread
receives them, ahead of the calls that wait (`Lookout`).

    1  stopped    the log and the activity page say so.  The thread waits for a terminal, and until
                  no other thread has the prompt: `_await_turn`
    1' given up   none has attached in time, or the actor is asked to end: the call goes on
    2  prompt     the thread has the turn.  It reads lines, and says what the terminal reads
    3  running    the user has stepped, and the thread keeps the turn; or has continued, and any
                  thread may have it
    4  left       the terminal has left, is gone, or was cut off: what has stopped goes on at once,
                  and what stops later is at 1

A terminal may also attach while the main thread runs a call that has not stopped: it is announced
by way of the master and the worker (`Attend`), as a cancellation is.  Its Ctrl-C is then SIGURG to
the main thread, whose handler has the prompt where it finds the call: also in a wait.

Nothing here runs, and pdb is not imported, before the first call stops.  So it costs a call
nothing, and an actor two objects and the handler of a signal.
"""

import contextlib
import ctypes
import math
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from mmap import mmap
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

from remotely.actor import exiting
from remotely.actor.call_socket import MOST_AHEAD, CallSocket
from remotely.actor.servant import RoutedReply, raised
from remotely.errors import NotAllowed, WireError
from remotely.protocol import wire
from remotely.protocol.debugging import Ask, Heard
from remotely.protocol.wire import Kind, Message
from remotely.transport import activity
from remotely.transport.access_list import REVOKED
from remotely.values import codec, raised_error

if TYPE_CHECKING:
    from remotely.actor.remote_pdb import RemotePdb
    from remotely.reporting.throttled_log import ThrottledLog
    from remotely.transport.access_list import AccessList
    from remotely.transport.loop import Loop

BREAKPOINT_S = 600.0  # how long a call waits at a breakpoint, and
ERROR_S = 60.0  # with an error, until a terminal attaches
SETTING = "REMOTELY_DEBUG_WAIT"  # replaces both
MOST_SAID = 1 << 20  # characters that nobody has read
DEBUG_LOOK_S = 0.05
ATTEND_S = 10.0  # how long the lookout waits for a terminal that is about to attach
MOST_WORDS = 1000  # among which a completion is found
CROWDED = f"{MOST_AHEAD >> 20} MiB of calls wait for it"
NONE_RUNS = (
    "\nNo code of a call runs on the main thread now, where Ctrl-C would stop it: calls await "
    "something, or run on threads of their own.\n"
)
TERMINAL_SILENT_S = 2.0  # after which a terminal is probed: it asks every second
MOST_PROBE_S = 30.0
OURS = "remotely."  # modules whose frames are not shown, and where nothing stops
_HERE = "remotely.actor."  # below which a stack is ours alone
_DEBUGGERS = frozenset({"bdb", "pdb", __name__, f"{_HERE}remote_pdb"})
_LOOP = frozenset(
    f"asyncio.{name}" for name in ("runners", "base_events", "events", "selector_events")
) | {"selectors"}
_NO_ERRORS = (StopIteration, StopAsyncIteration, GeneratorExit)


class _Stop(NamedTuple):
    where: str
    since: float


class _Input:
    """The standard input of pdb."""

    encoding = "utf-8"

    def __init__(self, readline: Callable[[], str]) -> None:
        self.readline = readline


class _Output:
    """Its standard output."""

    encoding = "utf-8"

    def __init__(self, write: Callable[[str], int]) -> None:
        self.write = write

    def flush(self) -> None: ...


class Debugger:
    """See the module's docstring.  Any thread may call its methods.

    `begin` is called when there is something to look out for.
    """

    def __init__(self, name: str, page: mmap, catches: bool, begin: Callable[[], object]) -> None:
        self.is_open = False  # whether a terminal can reach this actor
        self.refuses = ""  # why none may attach
        self.stdin, self.stdout = _Input(self._read_line), _Output(self._say)
        self._name = name
        self._page = page
        self._begin = begin
        self._pid = os.getpid()
        self._catches = catches  # each error, not only while a terminal asks for that
        self._news = threading.Condition()
        self._is_over = False
        self._is_crowded = False  # more calls wait than there is room for
        self._stops: list[_Stop] = []  # calls that wait for their turn
        # The terminal that is attached, or was last; and its number, 0 if none is.
        self._route = b""
        self._session = self._sessions = 0
        self._heard_at = 0.0
        self._wants_errors = False
        self._turn: int | None = None  # the thread that has the prompt
        self._at: _Stop | None = None  # where it is
        self._asks = False
        self._lines: deque[str] = deque()
        self._said: list[str] = []
        self._unread = 0
        self._to_complete: tuple[int, str] | None = None
        self._words: tuple[str, ...] | None = None
        self._pdbs: dict[int, RemotePdb] = {}  # by thread

    # --- what stops -------------------------------------------------------------------------------

    def install(self) -> None:
        """Stop calls of this process at `breakpoint()`, and where they fail."""
        if not os.environ.get("PYTHONBREAKPOINT"):
            sys.breakpointhook = self.at_breakpoint
        raised_error.examine = self.examine
        # Not SIGINT, which actors ignore and their users may handle.  By default, as in processes
        # that a call starts, SIGURG is ignored.
        signal.signal(signal.SIGURG, self._on_interrupt)
        os.register_at_fork(after_in_child=self._forget_all)

    def _forget_all(self) -> None:
        """In a forked child: no terminal reaches it.

        It has inherited the breakpoints and the trace function of a call that forks while it is
        stepped through; and the lock, which a thread that it lacks may have held.
        """
        self._news = threading.Condition()
        self._session = 0
        self._turn = self._at = None
        self._stops = []
        self._catches = self._wants_errors = False

    def at_breakpoint(self, *args: Any, header: str = "", **kwargs: Any) -> None:
        if os.environ.get("PYTHONBREAKPOINT"):  # the maker of the actor has set it meanwhile
            sys.__breakpointhook__(*args, **kwargs)  # noqa: T100 - what it means in any process
            return
        frame = sys._getframe(1)
        if self._await_turn(place_of(frame), BREAKPOINT_S):
            debugger = self._pdb()
            if header:
                debugger.message(header)
            debugger.set_trace(frame)

    def examine(self, error: BaseException) -> None:
        """Before a call replies with this error: let a terminal look at its frames."""
        if not (self._catches or self._wants_errors) or isinstance(error, _NO_ERRORS):
            return
        if type(error).__name__ in ("BdbQuit", "CancelledError"):
            return
        frames = [frame for frame in _frames_of(error) if not _is_ours(frame)]
        if not frames:  # such as a method that does not exist
            return
        where = f"{place_of(frames[-1])}, with {type(error).__name__}"
        if self._await_turn(where, ERROR_S):
            try:
                self._pdb().look_at(error)
            finally:
                self.pass_turn()

    def _await_turn(self, where: str, default_s: float) -> bool:
        """Wait until a terminal is attached, and no other thread has the prompt (1)."""
        if why := self._why_not():
            print(f"remotely: {self._name} does not stop at {where}: {why}", file=sys.stderr)
            return False
        me, stop, wait_s = threading.get_ident(), _Stop(where, time.monotonic()), _wait_s(default_s)
        with self._news:
            self._stops.append(stop)
            self._show()
            is_attached = bool(self._session)
        # Not with the lock: whoever reads that may have stopped, and the background thread waits.
        if not is_attached:
            self._announce(where, wait_s)
        self._begin()
        with self._news:
            try:
                while not (has_turn := bool(self._session) and self._turn in (None, me)):
                    left_s = stop.since + wait_s - time.monotonic()
                    if self._is_over or self._is_crowded or (not self._session and left_s <= 0):
                        break
                    self._news.wait(None if self._session else min(left_s, 3600.0))
            finally:
                self._stops.remove(stop)
                self._show()
            if has_turn:
                self._turn = me  # -> 2
        if not has_turn and not self._is_over:  # 1'
            print(f"remotely: {self._name} goes on: nobody has attached", file=sys.stderr)
        return has_turn

    def _why_not(self) -> str:
        if os.getpid() != self._pid:
            return "a process that an actor has started has no debugger of its own"
        if self._is_over:
            return "it is asked to end"
        if self._is_crowded:
            return CROWDED
        return "" if self.is_open else "its constructor runs again, and nobody can attach yet"

    def _announce(self, where: str, wait_s: float) -> None:
        from remotely.reporting.cluster_status import duration  # noqa: PLC0415 - rarely needed

        limit = "" if wait_s == math.inf else f", and waits up to {duration(wait_s)} for a debugger"
        print(
            f"remotely: {self._name} has stopped at {where}{limit}: remotely debug {self._name}",
            file=sys.stderr,
        )

    def _pdb(self) -> "RemotePdb":
        """Return the debugger of this thread."""
        me = threading.get_ident()
        if me not in self._pdbs:
            from remotely.actor.remote_pdb import RemotePdb  # noqa: PLC0415 - rarely needed

            self._pdbs[me] = RemotePdb(self)
        return self._pdbs[me]

    # --- the prompt, on the thread that has stopped -----------------------------------------------

    def enter(self, where: str) -> int:
        """Take the turn for a prompt; return the number of the terminal, 0 if none is attached."""
        me = threading.get_ident()
        with self._news:
            while self._session and self._turn not in (None, me):
                self._news.wait()
            if self._session:
                self._turn, self._at = me, _Stop(where, time.monotonic())
                self._show()
            return self._session

    def pass_turn(self) -> None:
        """This thread runs on, and another may have the prompt."""
        with self._news:
            if self._turn == threading.get_ident():
                self._turn = self._at = None
                self._show()
                self._news.notify_all()

    def leave(self, session: int) -> None:
        """The user leaves, by a command of this terminal."""
        with self._news:
            if session == self._session:
                self._detach()

    def _say(self, text: str) -> int:
        with self._news:
            if self._unread < MOST_SAID:
                room = MOST_SAID - self._unread
                self._said.append(text if len(text) <= room else f"{text[:room]} (cut)\n")
                self._unread += len(text)
        return len(text)

    def _read_line(self) -> str:
        """Return the next line; "" at its end, and if the terminal is gone."""
        session = self._session
        while True:
            with self._news:
                while session and session == self._session and not self._lines:
                    if self._to_complete is not None:
                        break
                    self._asks = True
                    self._news.wait()
                if not session or session != self._session:
                    return ""
                if self._lines:
                    self._asks = False
                    return self._lines.popleft()
                wanted, self._to_complete = self._to_complete, None
            words: list[str] = []
            if wanted is not None:  # not with the lock: it looks at the user's objects
                with contextlib.suppress(Exception):
                    words = self._pdb().completions(*wanted)
            self._words = tuple(words[:MOST_WORDS])

    # --- the terminal -----------------------------------------------------------------------------

    def answer(self, route: bytes, message: Message, others: int = 0) -> RoutedReply:
        """Answer a DEBUG; `others` of the running calls are this one."""
        heard = self._heard(route, message, others)
        pieces = codec.encode(heard).pieces
        return RoutedReply(route, wire.encode(Kind.RESULT, message.call_id, "", pieces))

    def answer_as_call(self, route: bytes, message: Message) -> RoutedReply:
        """Answer a DEBUG that the servant runs, as if it were a call."""
        return self.answer(route, message, 1)

    def _heard(self, route: bytes, message: Message, others: int) -> Heard:
        text = bytes(message.payload).decode(errors="replace")
        if message.name == Ask.ATTACH:
            if why := self._attach(route, text):
                return Heard(refused=why)
            self._begin()
        with self._news:
            if route != self._route:
                return Heard()
            runs = activity.look(self._page).running > others
            if self._session:
                self._heard_at = time.monotonic()
                self._obey(message.name, text, runs)
            said, words = "".join(self._said), self._words
            self._said.clear()
            self._words, self._unread = None, 0
            is_stopped = self._turn is not None
            return Heard("", said, bool(self._session), self._asks, runs, words, is_stopped)

    def _attach(self, route: bytes, who: str) -> str:
        """Attach a terminal; return why not."""
        if self.refuses:
            return self.refuses
        if self._is_over:  # else what stops from now on would keep it from its end
            return f"{self._name} is asked to end"
        with self._news:
            if self._session and route != self._route:
                return f"another debugger is attached to {self._name}"
            if not self._session:
                # On the background thread, which must not wait.
                exiting.try_print(f"remotely: a debugger is attached to {self._name}: {who}\n")
                self._sessions += 1
                self._route, self._session = route, self._sessions
                self._heard_at = time.monotonic()
                self._said.clear()
                self._unread = 0
                self._show()
                self._news.notify_all()
            return ""

    def _obey(self, request: str, text: str, runs: bool) -> None:
        match request:
            case Ask.CATCH:
                self._wants_errors = True
            case Ask.LINE:
                self._lines.append(text)
                self._asks = False
                self._news.notify_all()
            case Ask.COMPLETE:
                begin, _, line = text.partition(" ")
                if begin.isdecimal():
                    self._to_complete = int(begin), line
                    self._news.notify_all()
            case Ask.INTERRUPT:
                self._interrupt(runs)
            case Ask.LEAVE:
                self._detach()

    def _detach(self) -> None:
        """With the lock: what has stopped goes on (4)."""
        self._session = 0
        self._turn = self._at = self._to_complete = None
        self._wants_errors = self._asks = False
        self._lines.clear()
        self._show()
        self._news.notify_all()

    def forget(self, route: bytes) -> None:
        """A client is gone, or may not call any more."""
        with self._news:
            if route == self._route and self._session:
                self._detach()
                exiting.try_print(f"remotely: the debugger of {self._name} is gone\n")

    def end(self) -> None:
        """The actor is asked to end: nothing waits for a terminal any more."""
        self._is_over = True
        with self._news:
            if self._session:
                self._said.append("\nThe actor is asked to end.\n")
            self._detach()

    def note_crowd(self, is_crowded: bool) -> None:
        """More calls wait than there is room for: what has stopped goes on, until they have run."""
        was, self._is_crowded = self._is_crowded, is_crowded
        if is_crowded and not was:
            exiting.try_print(f"remotely: {self._name} goes on: {CROWDED}\n")
            with self._news:
                if self._session:
                    self._said.append(f"\n{self._name} goes on: {CROWDED}.\n")
                self._detach()

    @property
    def is_active(self) -> bool:
        return bool(self._session or self._stops or self._is_crowded)

    def silent_terminal(self, now: float) -> tuple[bytes, float]:
        """Return the attached terminal, and for how long it has said nothing."""
        with self._news:
            return (self._route, now - self._heard_at) if self._session else (b"", 0.0)

    def _show(self) -> None:
        """With the lock: write what people may want to know to the activity page."""
        shown = self._at or (self._stops[0] if self._stops else None) or _Stop("", 0.0)
        activity.note_stopped(self._page, *shown, is_debugged=bool(self._session))

    # --- Ctrl-C -----------------------------------------------------------------------------------

    def _interrupt(self, runs: bool) -> None:
        """With the lock: interrupt the thread that has the turn, or else the main thread."""
        self._lines.clear()  # one that is not read yet is what the user interrupts
        main = threading.main_thread().ident or 0
        if self._turn in (None, main):
            if threading.get_ident() == main:  # it received this, so it runs no call
                if runs:
                    self._say(NONE_RUNS)
            elif (
                signal.getsignal(signal.SIGURG) == self._on_interrupt
            ):  # else the user's code has it
                signal.pthread_kill(main, signal.SIGURG)  # also interrupts a wait in the kernel
        elif (debugger := self._pdbs.get(self._turn or 0)) is not None:
            # No signal reaches this thread: a command is interrupted, a step at what it calls.
            if debugger.is_at_prompt:
                raise_in = ctypes.pythonapi.PyThreadState_SetAsyncExc
                raise_in(ctypes.c_ulong(self._turn or 0), ctypes.py_object(KeyboardInterrupt))
            else:
                debugger.set_step()

    def _on_interrupt(self, number: int, frame: FrameType | None) -> None:
        if not self._session or self._asks:
            return
        debugger = self._pdb()
        if debugger.is_at_prompt:
            raise KeyboardInterrupt  # of the command that runs at the prompt
        looked_at = _below_debugger(frame)
        ours = [_is_ours(each) for each in users_frames(looked_at)]
        if frame is None or all(ours):
            if activity.look(self._page).running:
                self._say(NONE_RUNS)
            return
        if looked_at is not frame:  # as with a breakpoint in a file: it stops when pdb has looked
            debugger.set_trace(looked_at)
            return
        if debugger.is_stopping:
            raise KeyboardInterrupt
        if ours == sorted(ours):  # no code of ours, with its locks, was called by the user's
            debugger.stop_at(frame)
            return
        debugger.is_stopping = True
        self._say("\nIt stops at its next line. Ctrl-C again raises KeyboardInterrupt there.\n")
        debugger.set_trace(frame)


def _wait_s(default_s: float) -> float:
    text = os.environ.get(SETTING, "")
    if not text:
        return default_s
    try:
        wait_s = float(text)
    except ValueError:
        wait_s = math.nan
    if not wait_s >= 0:
        print(f"remotely: {SETTING} is {text!r}, not a number of seconds", file=sys.stderr)
        return default_s
    return wait_s


def place_of(frame: FrameType) -> str:
    """Return "train.py:12 in Counter.add"."""
    code = frame.f_code
    return f"{os.path.basename(code.co_filename)}:{frame.f_lineno} in {code.co_qualname}"


def _is_ours(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).startswith(OURS)


def _below_debugger(frame: FrameType | None) -> FrameType | None:
    """Return the innermost frame from which pdb, or a wait for it, was not called."""
    found = frame
    while frame is not None:
        if frame.f_globals.get("__name__") in _DEBUGGERS:
            found = frame.f_back
        frame = frame.f_back
    return found


def is_servant(frame: FrameType | None) -> bool:
    """Return whether a frame is of the code that runs calls."""
    return frame is None or str(frame.f_globals.get("__name__", "")).startswith(_HERE)


def users_frames(frame: FrameType | None) -> list[FrameType]:
    """Return the frames of the call that a stack runs, innermost first; none if it runs none.

    An actor's event loop runs none while it waits; BdbQuit there would end the actor.
    """
    frames: list[FrameType] = []
    while frame is not None and not is_servant(frame):
        frames.append(frame)
        frame = frame.f_back
    while frames and frames[-1].f_globals.get("__name__") in _LOOP:
        frames.pop()
    return frames if frame is not None else []


def _frames_of(error: BaseException) -> list[FrameType]:
    frames, trace = [], error.__traceback__
    while trace is not None:
        frames.append(trace.tb_frame)
        trace = trace.tb_next
    return frames


class Lookout:
    """Receives DEBUG messages beside the main thread, while something has stopped or is attached.

    It is on the background thread, except for `begin`.  What it finds else stays for the main
    thread, in order (call_socket.py).
    """

    def __init__(
        self,
        loop: "Loop",
        access: "AccessList",
        throttled: "ThrottledLog",
        may_answer: Callable[[], bool],
    ) -> None:
        self._loop = loop
        self._access = access
        self._throttled = throttled
        self._may_answer = may_answer  # the lease holds
        self._attends_until = 0.0
        self._is_looking = False
        self._probe_at = 0.0
        self._known = b"", b""  # the attached terminal, and its key

    def watch(self, socket: CallSocket, debugger: Debugger) -> None:
        self._socket = socket
        self._debugger = debugger

    def begin(self) -> None:
        self._loop.call(self._begin)

    def attend(self) -> None:
        """A terminal is about to attach."""
        self._attends_until = time.monotonic() + ATTEND_S
        self._begin()

    def _begin(self) -> None:
        if not self._is_looking:
            self._is_looking = True
            self._loop.watch(self._socket.fd, self._look)
            self._tick()

    def _tick(self) -> None:
        """Look again and again: the main thread may have consumed the descriptor's edge."""
        self._look()
        self._debugger.note_crowd(self._socket.is_crowded)
        self._probe()
        if self._debugger.is_active or time.monotonic() < self._attends_until:
            self._loop.after(DEBUG_LOOK_S, self._tick)
        else:
            self._is_looking = False
            self._loop.unwatch(self._socket.fd)

    def _look(self) -> None:
        while self._may_answer() and (received := self._socket.receive_debug()) is not None:
            route, key, frames = received
            try:
                message = wire.decode(frames, "client")
            except WireError as error:  # as on the main thread; it must not end the lookout
                self._throttled.add("a message", f"dropped a message: {error}", time.monotonic())
                continue
            if self._access.may_call(key):
                self._socket.send_beside(self._debugger.answer(route, message))
                if route == self._debugger.silent_terminal(0.0)[0]:
                    self._known = route, key
            else:
                self._debugger.forget(route)
                self._socket.send_beside(raised(route, message, NotAllowed(REVOKED)))

    def _probe(self) -> None:
        now = time.monotonic()
        route, silent_s = self._debugger.silent_terminal(now)
        known, key = self._known
        if route and route == known and not self._access.may_call(key):
            self._debugger.forget(route)  # it may say nothing more, and keep what it has stopped
            return
        if not route or silent_s < TERMINAL_SILENT_S or now < self._probe_at:
            return
        self._probe_at = now + min(silent_s, MOST_PROBE_S)  # a suspended one reads nothing
        if silent_s > BREAKPOINT_S or not self._socket.reaches(route):
            self._debugger.forget(route)
        self._socket.wake()  # sending may have consumed the socket's edge-triggered event
