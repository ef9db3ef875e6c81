"""The zygote: a process that has imported the heavy modules, and forks actors in milliseconds.

Forking is safe here because this process has one thread, no ZeroMQ context and no CUDA.  It talks
only to its worker, over a line that also passes descriptors.  If one of the processes dies:

    worker    the zygote reads end of file, kills its actors, and removes the worker's folder
    zygote    the worker, its subreaper, inherits the actors, and starts another for the next
    actor     the zygote reaps it and reports its status; the worker has seen its pidfd end

The start of an actor:

    1  requested   Fork arrives with the three descriptors for the actor
    1' refused     fewer descriptors arrived, or the fork failed: NotForked
    2  forked      the child releases what belongs to the zygote (signals, the socket) and becomes
                   the actor (startup.py); it never returns to this loop
    3  reported    the parent closes its copies, opens a pidfd before the child can be reaped, and
                   sends it with Forked: so the pid cannot mean another process
    4  ended       SIGCHLD; the child is reaped: Exited.  Never before 3: there is one thread

A worker has a zygote for each environment of its actors (worker/zygote_line.py).  An actor with
environment variables of its own is not forked, because these must be set before any import.  It is
started as a new interpreter (`python -m remotely.actor.startup`), which has to import everything
again.
"""

import contextlib
import errno
import gc
import importlib
import os
import select
import shutil
import signal
import socket
import sys
from typing import NoReturn

from remotely.actor import exiting
from remotely.machine import processes, signal_pipe
from remotely.machine.owned_fd import OwnedFd
from remotely.protocol.control import (
    HEAVY,
    Decoder,
    Exited,
    Fork,
    Forked,
    NotForked,
    Preload,
)
from remotely.testing import faults
from remotely.transport.line import Line

FDS_PER_ACTOR = 3  # control socket, stdout, stderr


def main() -> None:
    """Serve a worker.

    Arguments: the fd of the socket to it, its folder, its id; in an environment, "elsewhere".
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # An OpenBLAS that starts threads at import would make this process unfit to fork.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    import remotely.actor.startup  # noqa: PLC0415 - every actor needs it
    import remotely.client.carrier  # noqa: F401, PLC0415 - those that call others need it
    from remotely.transport import master_link  # noqa: PLC0415 - likewise
    from remotely.values import arena, sources  # noqa: PLC0415 - every actor needs it

    # What actors inherit: the first call of one to another would take ten times as long.
    arena.default_bytes()
    master_link.from_master("client")
    sources.library.look()
    fd, folder, worker, *elsewhere = sys.argv[1:]
    if elsewhere:
        _turn_output_off()
    Zygote(socket.socket(fileno=int(fd)), folder, worker, not elsewhere).serve()


class Zygote:
    def __init__(
        self, worker: socket.socket, folder: str, worker_id: str, is_own: bool = True
    ) -> None:
        self._worker = Line(worker, Decoder("worker > zygote"))
        self._is_own = is_own  # else it is that of an environment, beside the worker's own
        self._worker_id = worker_id
        self._folder = folder
        self.children: set[int] = set()

    def serve(self) -> None:
        """Fork and report until the worker is gone, then kill its actors and remove its folder.

        An error ends this process only: the worker inherits the actors.
        """
        signals = signal_pipe.open_signal_pipe()
        signal.signal(signal.SIGCHLD, lambda *_: None)
        poll = select.poll()
        poll.register(self._worker, select.POLLIN)
        poll.register(signals, select.POLLIN)
        while True:
            ready = {fd for fd, _ in poll.poll()}
            if signals in ready:
                signal_pipe.drain(signals)
                self._reap()
            if self._worker.fileno() in ready and not self.read():
                break
        self._end()

    def read(self) -> bool:
        """Handle one message of the worker; return false if it is gone."""
        if (received := self._worker.receive()) is None:
            return False
        match received:
            case Preload(modules=modules), _:
                preload(modules)
            case Fork(number=number), fds:
                self._fork(number, fds)
        return True

    def _fork(self, number: int, fds: list[OwnedFd]) -> None:
        if faults.ON:
            faults.at("zygote.fork")
        if not self._is_own and not _may_fork():
            sys.exit()  # actors enter the environment by themselves then
        if len(fds) < FDS_PER_ACTOR:  # this process has no descriptors left
            self._worker.send(NotForked(number=number, why=os.strerror(errno.EMFILE)))  # 1'
            return
        gc.freeze()  # keeps these pages shared: a collection in the child would copy them
        try:
            pid, pidfd = self._child(fds)
        except OSError as error:
            self._worker.send(NotForked(number=number, why=str(error.strerror)))  # 1'
        else:
            self._worker.send(Forked(number=number, pid=pid), [pidfd.fd])  # 3

    def _child(self, fds: list[OwnedFd]) -> tuple[int, OwnedFd]:
        if (pid := os.fork()) == 0:
            self._become_actor([fd.take() for fd in fds])  # 2
        fds.clear()
        self.children.add(pid)
        try:
            # It is not reaped yet, so the pid is not reused.
            return pid, OwnedFd(os.pidfd_open(pid))
        except OSError:
            os.kill(pid, signal.SIGKILL)
            raise

    def _become_actor(self, fds: list[int]) -> NoReturn:
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self._worker.close()
            from remotely.actor import startup  # noqa: PLC0415 - main() has it loaded

            code = startup.main(*fds)
        except SystemExit as error:
            code = exiting.exit_code(error)
        except BaseException:  # nothing above this frame reports it
            sys.excepthook(*sys.exc_info())
        finally:
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(Exception):
                    stream.flush()
            os._exit(code)

    def _reap(self) -> None:
        while self.children:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self.children.discard(pid)
            self._worker.send(Exited(pid=pid, status=status))  # 4

    def _end(self) -> None:
        for pid in self.children:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
        if self._is_own:
            processes.kill_tagged(self._worker_id)
            shutil.rmtree(self._folder, ignore_errors=True)


def _may_fork() -> bool:
    """Return whether this interpreter is fit to: it has one thread, and can say who was forked."""
    return len(os.listdir("/proc/self/task")) == 1 and hasattr(os, "pidfd_open")


def _turn_output_off() -> None:
    """Until now it was that of the first actor, for what an interpreter says when it starts."""
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (1, 2):
        os.dup2(null, fd)
    os.close(null)


def preload(modules: list[str]) -> None:
    """Import the heavy modules among `modules`; report those that fail, and continue."""
    for name in modules:
        if name in HEAVY and name not in sys.modules:
            try:
                importlib.import_module(name)
            except Exception as error:
                if isinstance(error, ModuleNotFoundError) and error.name == name:
                    continue  # not every environment has what the script has
                print(f"remotely: {name} cannot be imported here: {error}", file=sys.stderr)
    from remotely.actor import startup  # noqa: PLC0415 - main() has it loaded

    try:
        startup.warm()
    except Exception as error:
        print(f"remotely: each actor will set up its own libraries: {error}", file=sys.stderr)
    gc.collect()


if __name__ == "__main__":
    main()
