"""How the actors of a worker end: asked, made to, seen to have ended, and taken away.

What one left behind in sessions of its own becomes a child of the worker, which is their subreaper,
as soon as nobody between them is left.  So strays are found among our own children, by the tag in
their environment, and not among all processes of the machine; and one look serves all who died at
that time.

Each line is one step of an end:

    a process ends         its pidfd says so at once; the zygote, or the kernel, says how
    it will not end        asked, then SIGTERM, then SIGKILL to its group
    it left others behind  its group is killed; then strays, with all that they started
"""

import contextlib
import os
import signal
import time
from collections.abc import Callable

from remotely.machine import processes, signal_pipe, this_machine
from remotely.protocol import control
from remotely.protocol.lease import DRAIN_S, TERM_S
from remotely.testing import faults
from remotely.transport import activity
from remotely.transport.loop import Loop
from remotely.worker.child import Child, Stage, exit_of, kill_group, signal_group

STATUS_WAIT_S = 0.3  # how long a death waits for its exit status before it is told without
LOOK_AGAIN_S = 1.0  # for strays, whom the kernel may leave out of a list while others end


class Undertaker:
    """Takes a child out of `children` when it has ended, and tells `tell` of it.

    `drain` reads what it has left in its socket.
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
        self._living: dict[int, Child] = {}  # by pid; until they are buried
        self._looks = 0  # for strays, that are still to come
        self._oom_kills = this_machine.oom_kills()
        self._signals = -1

    def listen(self) -> None:
        """Hear of children that end.  On the main thread, whose part signals are."""
        self._signals = signal_pipe.open_signal_pipe()
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._loop.watch(self._signals, self._reap)

    def watch(self, child: Child) -> None:
        """Wait for the end of its process."""
        self._living[child.pid] = child
        self._loop.watch(child.pidfd, lambda: self._see_end(child))

    def exited(self, pid: int, status: int) -> None:
        """A process has been reaped, by us or by the zygote."""
        if (child := self._living.get(pid)) is None:  # a stray, which may have left others
            self._look_for_strays()
            return
        child.status = status
        if child.pidfd < 0:  # seen to have ended before it was known how
            self.bury(child)

    def end(self, child: Child, grace_s: float, kill: bool = False, by: str = "") -> None:
        """Ask, then make.  Calling again may shorten the wait, and never prolongs it."""
        child.asked = True
        if kill:
            child.why = child.why or (f"killed by {by}" if by else "killed")
            child.kill()
            return
        child.why = child.why or "closed"
        with contextlib.suppress(OSError):
            child.socket.send(control.encode(control.Leave()))
        if child.term_at is None or time.monotonic() + grace_s < child.term_at:
            self._make_end(child, grace_s)

    def leave_time(self, child: Child, stage: Stage) -> None:
        """It ends by itself, and has come so far.  From now on it has DRAIN_S, at least; no more of
        it for saying the same again.

        How long its last calls and its `close` may take is for its client to say, if that asked for
        the end itself; so nobody is made to end who has not begun to exit.
        """
        if stage <= child.stage:
            return
        child.stage, now = stage, time.monotonic()
        if child.term_at is None:
            if stage is Stage.EXITS:
                self._make_end(child, DRAIN_S)
        elif now < child.term_at < now + DRAIN_S:
            self._make_end(child, DRAIN_S)

    def _make_end(self, child: Child, grace_s: float) -> None:
        for timer in child.timers:
            timer.cancel()
        child.term_at = time.monotonic() + grace_s
        child.timers = [
            self._loop.after(grace_s, lambda: signal_group(child.pid, signal.SIGTERM)),
            self._loop.after(grace_s + TERM_S, child.kill),
        ]

    def bury(self, child: Child) -> None:
        """Take away all that is left of an actor, and tell."""
        request = child.request
        ended = exit_of(child.status)
        if ended == "SIGKILL" and not child.why and this_machine.oom_kills() > self._oom_kills:
            self._oom_kills = this_machine.oom_kills()
            child.why = "out of memory: the kernel has ended a process of this machine"
        begun, all_begun = activity.begun(child.page)
        self.clear(child)
        if faults.ON:
            faults.at("worker.died")
        self._tell(
            child,
            control.Obituary(
                actor=request.actor,
                life=request.life,
                asked=child.asked,
                exited=child.stage is Stage.EXITS,
                exit=ended,
                why=child.why,
                stderr=child.output.last_words(by_signal=isinstance(ended, str)),
                flight_record=child.take_flight_record(),
                begun=begun,
                all_begun=all_begun,
            ),
        )

    def clear(self, child: Child) -> None:
        """Take away all that is left of an actor, without a word."""
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
        self._loop.unwatch(child.socket.fileno())
        child.socket.close()
        child.page.close()
        with contextlib.suppress(OSError):
            os.unlink(child.location.ipc.removeprefix("ipc://"))
        self._look_for_strays()

    def kill_all(self) -> None:
        """Leave nothing behind: the worker ends."""
        for child in self._children.values():
            child.kill()
        processes.kill_tagged(self._worker)
        processes.kill_descendants()

    def _see_end(self, child: Child) -> None:
        self._loop.unwatch(child.pidfd)
        os.close(child.pidfd)
        child.pidfd = -1
        if child.status is None:
            self._reap()  # it may bury it
        if child.status is None:
            self._loop.after(STATUS_WAIT_S, lambda: self._bury_once(child))
        else:
            self._bury_once(child)

    def _bury_once(self, child: Child) -> None:
        if self._living.get(child.pid) is child:
            self.bury(child)

    def _reap(self) -> None:
        """Collect those whose parent we are: started, or inherited as subreaper."""
        signal_pipe.drain(self._signals)
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                self.exited(pid, status)

    # --- strays -----------------------------------------------------------------------------------

    def _look_for_strays(self) -> None:
        """Look soon, and once more a while later; one look serves all who ask for it till then."""
        if not self._looks:
            self._loop.call(self._look)
        self._looks = 2

    def _look(self) -> None:
        self._looks -= 1
        try:
            self._kill_strays()
        except OSError:  # no descriptor is left, with which to look for them
            self._looks = 1
        if self._looks:
            self._loop.after(LOOK_AGAIN_S, self._look)

    def _kill_strays(self) -> None:
        for pid in processes.children_of(os.getpid()):
            if pid in self._living:
                continue
            worker, _, actor = processes.tag_of(pid).partition(":")
            if worker == self._worker and actor not in self._children:
                processes.kill_tree(pid)
