"""A daemon that outlives the command that starts it, or that this command keeps (foreground.py).

It answers its configuration with one line on its standard output: the master that it takes calls,
the worker that the master has accepted it, or the error.  So `remotely start` returns when there is
a cluster, and `remotely join` when there is a larger one.  If either fails, nothing is left of it.
"""

import shutil
import subprocess
from pathlib import Path
from types import TracebackType

import msgspec

from remotely.errors import RemotelyError, error_class
from remotely.machine import folders, pid_file, processes, this_machine
from remotely.machine.pid_file import Running
from remotely.ops import daemon_process
from remotely.ops.daemon_process import END_S, Offer
from remotely.ops.foreground import Foreground
from remotely.protocol.configs import MasterConfig
from remotely.protocol.listening import Listening
from remotely.transport.keys import MasterKey, MemberKey


class PersistentDaemon:
    """A daemon that goes on if the block of this context ends well, and is ended if not.

    It is started before its configuration is known: meanwhile it imports what it needs.  With a
    `keeper` it ends with this process, and writes its log to the standard error of that.
    `listens` is where the master of a cluster that is started here does, "IP:port".
    """

    def __init__(
        self, stem: str, port: int, keeper: Foreground | None = None, listens: str = ""
    ) -> None:
        folder = pid_file.make_folder(port)
        self._file = folder / f"{stem}.json"
        self._role = "master" if stem == "master" else "worker"
        self._log = None if keeper else folder / f"{self._role}.log"
        self._folder: Path | None = None
        self._keeper = keeper
        self._listens = listens

    def __enter__(self) -> "PersistentDaemon":
        module = f"remotely.{self._role}"
        if self._log is None:
            self._daemon = daemon_process.launch(module, subprocess.PIPE, None)
            return self
        with self._log.open("ab") as log:
            self._daemon = daemon_process.launch(module, subprocess.PIPE, log.fileno())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        daemon = self._daemon
        if kind is not None:
            daemon.terminate()
            try:
                daemon.wait(END_S)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
            if self._folder is not None:
                shutil.rmtree(self._folder, ignore_errors=True)
            pid_file.leave(self._file)
        else:
            pid_file.forget(self._file)
        assert daemon.stdout is not None
        daemon.stdout.close()
        if self._keeper and kind is None:
            self._keeper.keep(daemon, self._file)
            return
        daemon.returncode = 0  # no child of ours any more
        daemon_process.close_input(daemon)

    def begin_master(self, address: str, key: MasterKey, key_file: Path, learns: bool) -> None:
        """Make it the master.  Raises RemotelyError if it does not take calls."""
        self._write("master", address, key.pair.public)
        self._hear_of(
            MasterConfig(
                address=f"tcp://{self._listens}",
                key=key.to_dict(),
                lifeline=False,
                key_file=str(key_file),
                pid_file=str(self._file),
                learns=learns,
                attached=self._keeper is not None,
            ),
            "READY",
        )

    def begin_worker(
        self,
        role: str,
        address: str,
        master: str,
        key: MemberKey,
        listening: Listening,
        offer: Offer,
        end_without_master_s: float = 0.0,
    ) -> Running:
        """Make it a worker of that master.  Raises the error with which the master refuses it.

        `address` is the master's as the user knows it, `master` as it is connected to.
        """
        self._folder = folders.new_temporary("remotely-")
        with pid_file.predecessors(self._file.parent, key.master_public.decode()) as killed:
            config = msgspec.structs.replace(
                daemon_process.worker_config(
                    f"tcp://{master}",
                    key,
                    listening,
                    self._folder,
                    offer,
                    str(self._file),
                ),
                attached=self._keeper is not None,
                end_without_master_s=end_without_master_s,
                predecessors=[worker.nonce for worker in killed],
            )
            written = self._write(role, address, key.master_public, config.worker, config.nonce)
            self._hear_of(config, "REGISTERED")
        return written

    def _write(
        self, role: str, address: str, cluster: bytes, worker: str = "", nonce: str = ""
    ) -> Running:
        daemon = msgspec.convert(
            {
                "role": role,
                "address": address,
                "cluster": cluster.decode(),
                "pid": self._daemon.pid,
                "started": processes.birth(self._daemon.pid) or 0.0,
                "log": str(self._log or ""),
                "listens": self._listens,
                "worker": worker,
                "nonce": nonce,
                "pid_space": this_machine.pid_space(),
                "folder": str(self._folder or ""),
            },
            Running,
        )
        pid_file.write(self._file, daemon)
        return daemon

    def _hear_of(self, config: msgspec.Struct, expected: str) -> None:
        daemon_process.configure(self._daemon, config)
        if not self._keeper:
            daemon_process.close_input(self._daemon)
        word = daemon_process.first_line(self._daemon)
        if word == expected:
            return
        if not word:
            what = "ended at once" if self._daemon.poll() is not None else "does not answer"
            log = f"; its log is {self._log}" if self._log else ""
            raise RemotelyError(f"the {self._role} {what}{log}")
        kind, _, why = word.partition(" ")
        error = error_class(kind)
        raise error(why) if error else RemotelyError(word)
