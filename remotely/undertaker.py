"""How the actors of a worker end: asked, made to, seen to have ended, and taken away.

a process ends         its pidfd says so at once; the zygote, or the kernel, says how
it will not end        asked, then SIGTERM, then SIGKILL to its group
it left others behind  its group is killed, and strays (we are their subreaper) by their tag
"""

import contextlib
import os
import signal
import time
from collections.abc import Callable

from remotely import control, faults, host
from remotely.child import Child, exit_of, kill_group, signal_group
from remotely.lease import TERM_S
from remotely.loop import Loop

AGAIN_S = 1.0  # after which that is tried again for which the machine had no room
STATUS_WAIT_S = 0.3  # how long a death waits for its exit status before it is told without
MEMORY_CHECK_S = 0.2  # an actor may take a gigabyte in that time


class Undertaker:
    """Takes a child out of `children` when it has ended, and tells `tell` of it."""

    def __init__(
        self,
        loop: Loop,
        worker: str,
        children: dict[str, Child],
        tell: Callable[[control.Obituary], None],
    ) -> None:
        self._loop = loop
        self._worker = worker
        self._children = children
        self._tell = tell
        self._statuses: dict[int, int] = {}
        self._oom_kills = host.oom_kills()
        self._wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(self._wake[1], warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        loop.watch(self._wake[0], self._reap)
        loop.every(MEMORY_CHECK_S, self._check_memory)

    def watch(self, child: Child) -> None:
        """Wait for the end of its process."""
        self._loop.watch(child.pidfd, lambda: self._see_end(child))

    def exited(self, pid: int, status: int) -> None:
        """Another has reaped a process."""
        self._statuses[pid] = status

    def end(self, child: Child, grace_s: float) -> None:
        """Ask, then make.  Calling again shortens the wait."""
        child.asked = True
        child.why = child.why or "closed"
        with contextlib.suppress(OSError):
            child.socket.send(control.write(control.Leave()))
        for timer in child.timers:
            timer.cancel()
        child.timers = [
            self._loop.after(grace_s, lambda: signal_group(child.pid, signal.SIGTERM)),
            self._loop.after(grace_s + min(TERM_S, grace_s), lambda: kill_group(child.pid)),
        ]

    def bury(self, child: Child) -> None:
        """Take away all that is left of an actor, and tell."""
        request = child.request
        status = self._statuses.pop(child.pid, None)
        if exit_of(status) == "SIGKILL" and not child.why and host.oom_kills() > self._oom_kills:
            self._oom_kills = host.oom_kills()
            child.why = "out of memory: the kernel has ended a process of this machine"
        self._children.pop(request.actor, None)
        if child.pid:
            kill_group(child.pid)
        for timer in child.timers:
            timer.cancel()
        for fd, is_error in child.pipes.items():
            child.output.drain(fd, is_error)
            self._loop.unwatch(fd)
            os.close(fd)
        self._loop.unwatch(child.socket.fileno())
        child.socket.close()
        with contextlib.suppress(OSError):
            os.unlink(child.location.ipc.removeprefix("ipc://"))
        if child.pid:
            self._kill_left_of(request.actor)
        if faults.ON:
            faults.at("worker.died")
        self._tell(
            control.Obituary(
                actor=request.actor,
                life=request.life,
                asked=child.asked,
                exit=exit_of(status),
                why=child.why,
                stderr=child.output.tail.decode(errors="replace"),
            )
        )

    def kill_all(self) -> None:
        """Leave nothing behind: the worker ends."""
        for child in self._children.values():
            child.kill()
        host.kill_tagged(self._worker)
        host.kill_descendants()

    def _see_end(self, child: Child) -> None:
        self._loop.unwatch(child.pidfd)
        os.close(child.pidfd)
        child.pidfd = -1
        self._reap()
        deadline = time.monotonic() + STATUS_WAIT_S

        def look() -> None:
            if child.pid in self._statuses or time.monotonic() > deadline:
                self.bury(child)
            else:
                self._loop.after(0.005, look)

        look()

    def _kill_left_of(self, actor: str) -> None:
        try:
            host.kill_tagged(f"{self._worker}:{actor}")
        except OSError:  # no descriptor is left, with which to look for them
            self._loop.after(AGAIN_S, lambda: self._kill_left_of(actor))

    def _reap(self) -> None:
        """Collect those whose parent we are: started, or inherited as subreaper."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake[0], 4096)
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                self._statuses[pid] = status

    def _check_memory(self) -> None:
        for child in self._children.values():
            limit = child.request.memory
            if not limit or not child.pid or child.why:
                continue
            with contextlib.suppress(OSError):
                used = host.rss(child.pid)
                if used > limit:
                    child.why = (
                        f"out of memory: it used {used / 2**20:.0f} MiB, "
                        f"its limit is {limit / 2**20:.0f} MiB"
                    )
                    child.kill()
