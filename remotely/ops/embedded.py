"""A cluster that lives as long as one script.

Its daemons keep their standard input open: its end is the end of the script, however the script
ended.
"""

import secrets
import shutil
import subprocess
import time

from remotely.errors import RemotelyError
from remotely.machine import folders
from remotely.machine.gpus import Offer
from remotely.ops import daemon_process
from remotely.ops.daemon_process import END_S, Daemon
from remotely.protocol.configs import MasterConfig
from remotely.protocol.listening import Listening
from remotely.transport import keys


class EmbeddedCluster:
    """A master and a worker of this process alone, on ipc sockets in a private folder.

    The constructor starts nothing.  `start` may be interrupted at any moment; `close` still knows
    what there is to end.
    """

    def __init__(self) -> None:
        self.folder = folders.temporary() / f"remotely-{secrets.token_hex(4)}"
        self.address = f"ipc://{self.folder}/master"
        self._master_key, self.key, self._worker_key = keys.fresh_keys()
        self._daemons: list[Daemon] = []

    def start(self, offer: Offer) -> None:
        """Return when the master takes calls.  Call `close` later, even if this raises."""
        self.folder.mkdir(mode=0o700)
        config = MasterConfig(
            address=self.address,
            key=self._master_key.to_dict(),
            lifeline=True,
            counts_cpus=offer.cpus is not None,  # whoever names a number has it kept
        )
        master = daemon_process.launch("remotely.master", subprocess.PIPE, None)
        self._daemons.append(master)
        # At the same time as the master: its socket retries until the master is there.
        worker = daemon_process.launch("remotely.worker", subprocess.DEVNULL, None)
        self._daemons.append(worker)
        daemon_process.configure(master, config)
        key = self._worker_key
        daemon_process.configure(
            worker,
            daemon_process.worker_config(self.address, key, Listening(), self.folder, offer),
        )
        if (word := daemon_process.first_line(master)) != "READY":
            raise RemotelyError(word or "the master of an embedded cluster did not start")

    def close(self) -> None:
        """End both daemons, and with them everything that they started."""
        try:
            for daemon in self._daemons:
                daemon_process.close_input(daemon)
            deadline = time.monotonic() + END_S
            for daemon in self._daemons:
                try:
                    daemon.wait(max(0.1, deadline - time.monotonic()))
                except subprocess.TimeoutExpired:
                    daemon.kill()
                    daemon.wait()
                if daemon.stdout:
                    daemon.stdout.close()
        finally:  # if interrupted again, the daemons end by themselves
            self._remove_folder()

    def _remove_folder(self) -> None:
        """Remove the folder though the master, which does so as it ends, may be at it too."""
        deadline = time.monotonic() + END_S
        while True:
            shutil.rmtree(self.folder, ignore_errors=True)
            if not self.folder.exists() or time.monotonic() > deadline:
                return
            time.sleep(0.001)

    def forget(self) -> None:
        """In a forked child: do not keep the daemons alive when the parent is gone."""
        for daemon in self._daemons:
            daemon_process.close_input(daemon)
            daemon.returncode = 0  # not a child of this process
