"""A cluster that lives as long as one script.  Other processes find it by script_cluster.py.

Its daemons read standard input from a pipe that the script holds: when the script ends, however it
ends, they see end of file and end too.
"""

import secrets
import shutil
import subprocess
import time

from remotely.errors import RemotelyError
from remotely.machine import folders
from remotely.machine.gpus import OfferedResources
from remotely.ops import daemon_process, script_cluster
from remotely.ops.daemon_process import END_S, Daemon
from remotely.protocol.configs import MasterConfig
from remotely.protocol.listening import Listening
from remotely.transport import keys


class EmbeddedCluster:
    """A master and a worker for this process alone, on ipc sockets in a private folder.

    The constructor starts nothing.  If `start` is interrupted, at whatever point, `close` still
    ends all that was started.
    """

    def __init__(self) -> None:
        self.folder = folders.temporary() / f"{script_cluster.PREFIX}{secrets.token_hex(4)}"
        self.address = f"ipc://{self.folder}/master"
        self._master_key, self.key, self._worker_key, self._viewer_key = keys.fresh_keys()
        self._daemons: list[Daemon] = []

    def start(self, offer: OfferedResources) -> None:
        """Return when the master takes calls.  Call `close` later, even if this raises."""
        self.folder.mkdir(mode=0o700)
        script_cluster.write(self.folder, self.address, self.key, self._viewer_key)
        config = MasterConfig(
            address=self.address,
            key=self._master_key.to_dict(),
            lifeline=True,
            counts_cpus=offer.cpus is not None,  # an explicit number is enforced
        )
        master = daemon_process.launch("remotely.master", subprocess.PIPE, None)
        self._daemons.append(master)
        # At the same time as the master: its socket retries until the master listens.
        worker = daemon_process.launch("remotely.worker", subprocess.DEVNULL, None)
        self._daemons.append(worker)
        daemon_process.configure(master, config)
        key = self._worker_key
        daemon_process.configure(
            worker,
            daemon_process.worker_config(self.address, key, Listening(), self.folder, offer),
        )
        if (reply := daemon_process.first_line(master)) != "READY":
            raise RemotelyError(reply or "the master of an embedded cluster did not start")

    def close(self) -> None:
        """End both daemons and everything that they started."""
        try:
            for daemon in self._daemons:
                daemon_process.close_input(daemon)
            deadline = time.monotonic() + END_S
            for daemon in self._daemons:
                daemon_process.wait_or_kill(daemon, deadline - time.monotonic())
                if daemon.stdout:
                    daemon.stdout.close()
        finally:  # if interrupted again, the daemons still end: their input is closed
            self._remove_folder()

    def _remove_folder(self) -> None:
        """Remove the folder, retrying since the ending master may be removing it at that time."""
        deadline = time.monotonic() + END_S
        while True:
            shutil.rmtree(self.folder, ignore_errors=True)
            if not self.folder.exists() or time.monotonic() > deadline:
                return
            time.sleep(0.001)

    def forget(self) -> None:
        """Let go of the daemons in a forked child, so that they end with the parent."""
        for daemon in self._daemons:
            daemon_process.close_input(daemon)
            daemon.returncode = 0  # not a child of this process
