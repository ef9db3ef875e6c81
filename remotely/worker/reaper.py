"""An actor process as its worker sees it, and the steps of its end.

    1  asked        Leave: the actor finishes its calls (`end`); a kill goes straight to 4.  One
                    that moves is asked when it has been idle for QUIET_S (`end_when_idle`)
    2  ending       it sends Ending, then Exiting, and has DRAIN_S for each (`extend_deadline`)
    3  terminated   at the deadline, SIGTERM to its process group
    4  killed       SIGKILL to its group, TERM_S later
    5  ended        its pidfd becomes readable; the exit status follows from the zygote or from
                    waitpid, within EXIT_STATUS_S (`_on_process_end`, `exited`)
    6  reaped       read from its shared page which calls had begun, remove its row, kill its group,
                    read its pipes and line to the end, close the page, inform the master (`reap`)
    7  strays       processes that it left in sessions of their own become children of the worker,
                    their subreaper, as soon as all processes between them have ended

So the worker finds strays among its own children, by the tag in their environment, and need not
search all processes of the machine.  One check serves all actors that died at about the same time.
"""

import contextlib
import mmap
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, auto

from remotely.machine import memory_file, processes, signal_pipe, this_machine
from remotely.machine.owned_fd import OwnedFd
from remotely.machine.watched_process import WatchedProcess
from remotely.protocol import control
from remotely.protocol.lease import DRAIN_S, QUIET_S, TERM_S
from remotely.protocol.numbers import MOST_FLIGHT_RECORD
from remotely.testing import faults
from remotely.transport import activity
from remotely.transport.line import Line
from remotely.transport.loop import Loop, Timer
from remotely.worker.gauge import Gauge
from remotely.worker.output import LogRelay, Output

# How long to wait for the exit status of a dead process before reporting its death without it.
# The zygote may be stopped or busy; if it has ended, the worker has inherited its children.
# Clients wait for the obituary a little longer (OBITUARY_WAIT_S).
EXIT_STATUS_S = 1.0
WHY_MOVED = "its machine is being drained"
LOOK_IDLE_S = 0.1  # how often an actor that moves is looked at
CHECK_AGAIN_S = 1.0  # the kernel may omit a stray from a list of children while others end


Begun = tuple[dict[bytes, int], bool]  # as in `activity.begun`


class Stage(IntEnum):
    """The progress of an actor that ends gracefully."""

    LIVES = auto()
    ENDS = auto()  # it begins no further call
    EXITS = auto()  # it has sent the last reply


@dataclass
class Child:
    """One actor's process, as its worker sees it."""

    request: control.Request
    gpu_ids: list[int]
    seal: bytes  # of its placement
    location: control.Location
    line: Line
    output: Output
    log: LogRelay
    page: mmap.mmap  # what it runs: activity.py
    pipes: dict[int, bool]
    since: float
    pid: int = 0
    watched: WatchedProcess | None = None  # until it has ended
    is_bound: bool = False  # it has said where it listens
    announced: bool = False  # the master knows that, and its pid
    has_begun: bool = False  # a next life, which runs its constructor before it is announced
    is_refused: bool = False  # what it asks for can be started on no machine
    is_unbound: bool = False  # no port was free for it
    calls: int = 0
    asked: bool = False
    moves: bool = False  # its next life is to be placed on another machine, once it is idle
    is_moved: bool = False  # it was, and has been asked to end
    tries: int = 0  # how often it was to be
    delegate: bytes = b""
    why: str = ""
    timers: list[Timer] = field(default_factory=list)
    term_at: float | None = None  # when SIGTERM is due
    stage: Stage = Stage.LIVES
    is_killed: bool = False
    again: bool = False  # recreated from the file of its last life (restart_file.py)
    status: int | None = None  # as waitpid returns it; None until it is known
    recorder: OwnedFd | None = None  # its flight recorder
    # Set while it waits until its environment has been made: ends it soon, without a process.
    abandon: Callable[[], None] | None = None

    def __post_init__(self) -> None:
        self.gauge = Gauge(self.page)

    def keep_recorder(self, fds: Sequence[OwnedFd]) -> None:
        """Keep the first memory file that it sends, to be read when it has died."""
        for fd in fds:
            if self.recorder is None and memory_file.is_memory_file(fd.fd):
                self.recorder = fd

    def take_flight_record(self) -> bytes:
        """Release the flight recorder; return its contents unless the actor ended gracefully."""
        recorder, self.recorder = self.recorder, None
        is_closed = self.asked and not self.is_killed
        if recorder is None or is_closed:
            return b""
        return os.pread(recorder.fd, MOST_FLIGHT_RECORD, 0)

    def note_unbound(self, told: control.NotBound) -> None:
        """Note that its process cannot become the actor, and why."""
        self.is_unbound, self.is_refused = True, told.is_refused
        self.why = self.why or told.why

    def kill(self) -> None:
        """Kill its process group, at once or as soon as the process has started."""
        self.is_killed = True
        kill_group(self.pid)
        if self.watched is not None:
            self.watched.kill()  # it may not lead its group yet
        if self.abandon is not None:
            self.abandon()

    @property
    def is_unstarted(self) -> bool:
        """Whether it has ended before it could be told what to construct, through no fault of its
        own: nobody ended it, and it has no environment of its own that may have ended it."""
        if self.is_bound or self.has_begun or self.asked or self.is_killed or self.is_refused:
            return False
        has_own = self.request.env or self.request.has_own_interpreter
        return self.is_unbound or not (self.pid and has_own)

    def as_spawn(self) -> control.Spawn:
        """Return the request from which it was started."""
        return control.Spawn(
            request=self.request, gpu_ids=self.gpu_ids, again=self.again, seal=self.seal
        )

    def figures(self, memory: int) -> control.Figures:
        """Return its CPU usage, its calls and what they took, and this memory."""
        return self.gauge.figures(self.request.actor, self.pid, self.calls, memory)

    def as_status(self) -> control.ActorStatus:
        """Return everything that a master needs to know about it."""
        return control.ActorStatus(
            location=self.location,
            request=self.request,
            gpu_ids=self.gpu_ids,
            since=self.since,
            seal=self.seal,
            delegate=self.delegate,
            moves=self.moves,
        )


def exit_of(status: int | None) -> int | str | None:
    if status is None:
        return None
    code = os.waitstatus_to_exitcode(status)
    return signal.Signals(-code).name if code < 0 else code


def signal_group(pid: int, number: signal.Signals) -> None:
    if pid:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, number)


def kill_group(pid: int) -> None:
    signal_group(pid, signal.SIGKILL)


class Reaper:
    """Ends and reaps children: removes each from `children` and passes its obituary to `tell`.

    `drain` reads what a dead child has left in its line.
    """

    def __init__(
        self,
        loop: Loop,
        worker: str,
        children: dict[str, Child],
        drain: Callable[[Child], None],
        tell: Callable[[Child, control.Obituary], None],
    ) -> None:
        self._loop = loop
        self._worker = worker
        self._children = children
        self._drain = drain
        self._tell = tell
        self._living: dict[int, Child] = {}  # by pid, until they are reaped
        self._checks_left = 0  # for strays
        self._oom_kills = this_machine.oom_kills()
        self._signals = -1

    def listen(self) -> None:
        """Start to handle SIGCHLD.  Main thread only."""
        self._signals = signal_pipe.open_signal_pipe()
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._loop.watch(self._signals, self._collect)

    def watch(self, child: Child) -> None:
        """Wait for the end of a child's process."""
        self._living[child.pid] = child
        assert child.watched is not None
        self._loop.watch(child.watched.fileno(), lambda: self._on_process_end(child))

    def exited(self, pid: int, status: int) -> None:
        """A process has been reaped, by this worker or by the zygote."""
        if (child := self._living.get(pid)) is None:  # a stray, which may have left strays itself
            self._check_for_strays()
            return
        child.status = status
        if child.watched is None:  # 5: its end was seen before its status arrived
            self.reap(child)  # -> 6

    def end(self, child: Child, grace_s: float, kill: bool = False, by: str = "") -> None:
        """Ask a child to end, and kill it after `grace_s`.

        A second call may shorten the wait; it never extends it.
        """
        child.asked = True
        how = "killed" if kill else "closed"
        child.why = child.why or (f"killed by {by}" if kill and by else how)
        if kill or child.abandon is not None:
            child.kill()  # -> 4
            return
        child.line.send(control.Leave())  # -> 1
        if child.term_at is None or time.monotonic() + grace_s < child.term_at:
            self._schedule_kill(child, grace_s)

    def end_when_idle(self, child: Child) -> None:
        """End a child that moves, once it has run nothing for QUIET_S.

        Its clients were told to send it nothing more, so what they have sent arrives meanwhile.
        """
        if not child.moves:
            child.moves = True
            child.tries += 1
            begun = activity.begun(child.page)
            self._end_if_idle(child, begun, time.monotonic(), child.tries)

    def withdraw_move(self, child: Child) -> bool:
        """Keep a child that moves; return False if it has been asked to end already."""
        if child.is_moved or child.asked:
            return False
        child.moves = False
        return True

    def _end_if_idle(self, child: Child, begun: Begun, since: float, number: int) -> None:
        if not child.moves or number != child.tries or child.asked or child.page.closed:
            return
        now, begun_now = time.monotonic(), activity.begun(child.page)
        seen = activity.look(child.page)
        if seen.running or seen.streams or begun_now != begun:
            since = now
        if now < since + QUIET_S:
            look = lambda: self._end_if_idle(child, begun_now, since, number)
            self._loop.after(LOOK_IDLE_S, look)
            return
        child.is_moved, child.why = True, child.why or WHY_MOVED
        child.line.send(control.Leave())  # -> 1

    def extend_deadline(self, child: Child, stage: Stage) -> None:
        """The child has reached this stage of its end: give it at least DRAIN_S more.

        Repeating a stage gains no time.  If the worker did not ask for the end (1), the client
        decides how long the last calls and `close` may take: the worker sets no deadline before
        EXITS.
        """
        if stage <= child.stage:
            return
        child.stage, now = stage, time.monotonic()  # -> 2
        if child.term_at is None:
            if stage is Stage.EXITS:
                self._schedule_kill(child, DRAIN_S)
        elif now < child.term_at < now + DRAIN_S:
            self._schedule_kill(child, DRAIN_S)

    def _schedule_kill(self, child: Child, grace_s: float) -> None:
        for timer in child.timers:
            timer.cancel()
        child.term_at = time.monotonic() + grace_s
        child.timers = [
            self._loop.after(grace_s, lambda: signal_group(child.pid, signal.SIGTERM)),  # -> 3
            self._loop.after(grace_s + TERM_S, child.kill),  # -> 4
        ]

    def reap(self, child: Child) -> None:
        """6: remove everything that is left of an actor, and report its end."""
        request = child.request
        ended = exit_of(child.status)
        if ended == "SIGKILL" and not child.why and this_machine.oom_kills() > self._oom_kills:
            self._oom_kills = this_machine.oom_kills()
            child.why = "out of memory: the kernel has killed a process on this machine"
        begun, all_begun = activity.begun(child.page)  # before `clear` closes the page
        self.clear(child)
        if faults.ON:
            faults.at("worker.died")
        self._tell(
            child,
            control.Obituary(
                actor=request.actor,
                life=request.life,
                asked=child.asked,
                moved=child.is_moved and not child.asked and child.stage is Stage.EXITS,
                exited=child.stage is Stage.EXITS,
                unstarted=child.is_unstarted,
                refused=child.is_refused,
                exit=ended,
                why=child.why,
                stderr=child.output.last_words(by_signal=isinstance(ended, str)),
                flight_record=child.take_flight_record(),
                begun=begun,
                all_begun=all_begun,
            ),
        )

    def clear(self, child: Child) -> None:
        """Remove everything that is left of an actor, without a report."""
        if self._children.get(child.request.actor) is child:
            del self._children[child.request.actor]
        self._living.pop(child.pid, None)
        kill_group(child.pid)
        for timer in child.timers:
            timer.cancel()
        for fd, is_error in child.pipes.items():
            child.output.drain(fd, is_error)
            self._loop.unwatch(fd)
            os.close(fd)
        self._drain(child)
        child.line.close()
        child.page.close()
        with contextlib.suppress(OSError):
            os.unlink(child.location.ipc.removeprefix("ipc://"))
        self._check_for_strays()

    def kill_all(self) -> None:
        """Kill every process that this worker has started."""
        for child in self._children.values():
            child.kill()
        processes.kill_tagged(self._worker)
        processes.kill_descendants()

    def _on_process_end(self, child: Child) -> None:
        assert child.watched is not None
        self._loop.unwatch(child.watched.fileno())  # -> 5
        child.watched = None
        if child.status is None:
            self._collect()  # its status may be here already
        if child.status is None:  # the zygote is its parent, and will report it
            self._loop.after(EXIT_STATUS_S, lambda: self._reap_once(child))
        else:
            self._reap_once(child)  # -> 6

    def _reap_once(self, child: Child) -> None:
        if self._living.get(child.pid) is child:
            self.reap(child)

    def _collect(self) -> None:
        """Wait for ended children of this process: started here, or inherited as subreaper."""
        signal_pipe.drain(self._signals)
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                self.exited(pid, status)

    # --- strays -----------------------------------------------------------------------------------

    def _check_for_strays(self) -> None:
        """7: check soon, and once more CHECK_AGAIN_S later; requests until then share a check."""
        if not self._checks_left:
            self._loop.call(self._check)
        self._checks_left = 2

    def _check(self) -> None:
        self._checks_left -= 1
        try:
            self._kill_strays()
        except OSError:  # this process has no descriptor left: try again
            self._checks_left = 1
        if self._checks_left:
            self._loop.after(CHECK_AGAIN_S, self._check)

    def _kill_strays(self) -> None:
        for pid in processes.children_of(os.getpid()):
            if pid in self._living:
                continue
            tag = processes.tag_of(pid)
            worker, _, actor = tag.partition(":")
            is_stray = processes.is_of_actor(tag) and actor not in self._children
            if worker == self._worker and is_stray:
                processes.kill_tree(pid)
