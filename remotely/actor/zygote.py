"""The zygote: a process that has imported the heavy modules, and forks actors in milliseconds.

Forking is safe here because this process has one thread, no ZeroMQ context and no CUDA.  It talks
to its worker only, over one socket (`ToZygote`, `FromZygote` in control.py), which also passes
file descriptors.  Who cleans up after whom:

    worker dies    the zygote reads end of file, kills its actors, and removes the worker's folder
    zygote dies    the worker, its subreaper, inherits the actors, and starts another zygote
    actor dies     the zygote reaps it and reports its status; the worker has seen it by the pidfd

A birth:

    1  asked       Fork arrives, with the three descriptors that the actor is to have
    1' refused     fewer arrived, or there is no room for a process: NotForked
    2  forked      the child gives up what is the zygote's (signals, the socket), and becomes the
                   actor (startup.py); it never returns to this loop
    3  told        the parent closes its copies, opens a pidfd while the child cannot be reaped,
                   and passes it on with Forked: so no other process is taken for the actor
    4  ended       SIGCHLD; the child is reaped: Exited.  Never before 3: there is one thread

An actor that needs environment variables before anything is imported is not forked.  It is started
as a new interpreter (`python -m remotely.actor.startup`), and pays for its imports.
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
from remotely.protocol.control import (
    HEAVY,
    MAX_MESSAGE,
    Decoder,
    Exited,
    Fork,
    Forked,
    NotForked,
    Preload,
    ToZygote,
    encode,
)
from remotely.testing import faults

DESCRIPTORS_OF_AN_ACTOR = 3  # its control socket, stdout, stderr


def main() -> None:
    """Serve a worker.  Arguments: the number of the socket to it, its folder, its id."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # An OpenBLAS that starts threads at import would make this process unfit to fork.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    import remotely.actor.startup  # noqa: F401, PLC0415 - what every actor needs, once

    fd, folder, worker = sys.argv[1:]
    Zygote(socket.socket(fileno=int(fd)), folder, worker).serve()


class Zygote:
    def __init__(self, worker: socket.socket, folder: str, worker_id: str) -> None:
        self._worker = worker
        self._worker_id = worker_id
        self._folder = folder
        self._decoder = Decoder(ToZygote)
        self.children: set[int] = set()

    def serve(self) -> None:
        """Fork and report until the worker is gone, and then leave nothing behind.

        Any other error ends this process only: the worker inherits its actors.
        """
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._serve()
        self._end()

    def _serve(self) -> None:
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
                return

    def read(self) -> bool:
        """Do what the worker asks for; return false if it is gone."""
        data, descriptors, _, _ = socket.recv_fds(
            self._worker, MAX_MESSAGE, DESCRIPTORS_OF_AN_ACTOR
        )
        if not data:
            return False
        match self._decoder.decode(data):
            case Preload(modules=modules):
                preload(modules)
            case Fork(actor=actor):
                self._fork(actor, descriptors)
        return True

    def _fork(self, actor: str, descriptors: list[int]) -> None:
        if faults.ON:
            faults.at("zygote.fork")
        if len(descriptors) < DESCRIPTORS_OF_AN_ACTOR:  # we have no room for them
            for fd in descriptors:
                os.close(fd)
            self._worker.send(encode(NotForked(actor=actor, why=os.strerror(errno.EMFILE))))  # 1'
            return
        gc.freeze()  # keeps these pages shared: a collection in the child would copy them
        try:
            pid, pidfd = self._child(descriptors)
        except OSError as error:
            self._worker.send(encode(NotForked(actor=actor, why=str(error.strerror))))  # 1'
            return
        try:
            socket.send_fds(self._worker, [encode(Forked(actor=actor, pid=pid))], [pidfd])  # 3
        finally:
            os.close(pidfd)

    def _child(self, descriptors: list[int]) -> tuple[int, int]:
        """Fork; return the child's pid and pidfd."""
        try:
            if (pid := os.fork()) == 0:
                self._become_actor(descriptors)  # 2
        finally:
            for fd in descriptors:
                os.close(fd)
        self.children.add(pid)
        try:
            return pid, os.pidfd_open(pid)  # not reaped yet: no other process has this pid
        except OSError:
            os.kill(pid, signal.SIGKILL)
            raise

    def _become_actor(self, descriptors: list[int]) -> NoReturn:
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self._worker.close()
            from remotely.actor import startup  # noqa: PLC0415 - main() has it loaded

            code = startup.main(*descriptors)
        except SystemExit as error:
            code = exiting.exit_code(error)
        except BaseException:  # the last place where it can be reported
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
            self._worker.send(encode(Exited(pid=pid, status=status)))  # 4

    def _end(self) -> None:
        for pid in self.children:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
        processes.kill_tagged(self._worker_id)
        shutil.rmtree(self._folder, ignore_errors=True)


def preload(modules: list[str]) -> None:
    """Import the heavy modules that this machine has; report those that fail, and go on."""
    for name in modules:
        if name in HEAVY and name not in sys.modules:
            try:
                importlib.import_module(name)
            except Exception as error:
                print(f"remotely: {name} cannot be imported here: {error}", file=sys.stderr)
    from remotely.actor import startup  # noqa: PLC0415 - main() has it loaded

    try:
        startup.warm()
    except Exception as error:
        print(f"remotely: an actor will set up its libraries by itself: {error}", file=sys.stderr)
    gc.collect()


if __name__ == "__main__":
    main()
