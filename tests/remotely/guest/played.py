"""A cluster for processes that dial in: its master is real, and its one worker is played."""

import secrets
import signal
import subprocess
import threading
from pathlib import Path
from typing import Any

import msgspec

from remotely.ops import daemon_process
from remotely.protocol import control
from remotely.protocol.configs import MasterConfig
from remotely.protocol.ids import bound_id
from remotely.protocol.listening import Listening
from remotely.protocol.resources import Resources
from remotely.transport import key_files, sockets
from remotely.transport.loop import Loop
from remotely.transport.master_link import MasterLink
from remotely.worker.guests import Guests
from remotely.worker.nursery import Home
from tests.clusters import DEADLINE_S, free_port


class PlayedWorker:
    """Has nothing but a port for guests.  It relays as workers do, and says what a test has it say.

    says     to each guest, once it is hosted
    hosted   where each takes calls, by actor
    `lies`   what it says of itself when it registers, in place of what is true
    """

    def __init__(self, address: str, key_file: Path, **lies: Any) -> None:
        self._lies = lies
        self.says: list[msgspec.Struct] = []
        self.hosted: dict[str, control.Location] = {}
        self.is_registered = threading.Event()
        self._has_parted = False
        self._loop = Loop()
        self._context = sockets.new_context()
        self._nonce = secrets.token_hex(16)
        key = key_files.load_member(key_file, "worker")
        self._name = bound_id("worker", key.pair.public, self._nonce)
        home = Home("", Path(), "", b"", Listening(host="127.0.0.1"), [], "", "", False)
        self._guests = Guests(self._loop, self._context, home, self._report)
        self._link = MasterLink(
            self._loop, self._context, f"tcp://{address}", key, self._register,
            self._hear_master, lambda error: None,
        )  # fmt: skip
        self._thread = threading.Thread(target=self._loop.run)
        self._thread.start()

    def _register(self) -> control.Register:
        register = control.Register(
            worker=self._name, nonce=self._nonce, python="", host="elsewhere", machine="played",
            address="", pid=1, resources=Resources(), actors=self._guests.statuses(),
            guests=self._guests.address, guests_key=self._guests.public_key,
        )  # fmt: skip
        return msgspec.structs.replace(register, **self._lies)

    def _hear_master(self, message: object) -> None:
        match message:
            case control.Registered(worker_keys=keys):
                self._guests.list_keys(keys)
                self.is_registered.set()
            case control.Hosted(actor=actor):
                self._guests.hear_hosted(message)
                for said in self.says:
                    self._guests.tell(actor, said)
                self.hosted[actor] = self._guests.statuses()[-1].location

    def _report(self, message: msgspec.Struct) -> None:
        self._link.send(message)

    def send_away(self) -> None:
        """Tell all guests that the cluster ends."""
        self._loop.call(lambda: self._part_with_guests(for_good=True))

    def _part_with_guests(self, for_good: bool) -> None:
        if not self._has_parted:
            self._has_parted = True
            self._guests.close(for_good)

    def close(self) -> None:
        # A worker's process would end here, and with it the ports of guests that have not left yet.
        self._loop.call(lambda: self._part_with_guests(for_good=False))
        self._loop.call(self._loop.stop)
        self._thread.join()
        self._link.close()
        self._context.destroy(linger=500)
        self._loop.close()


class Played:
    """Both of them, and the keys."""

    def __init__(self, folder: Path, **lies: Any) -> None:
        self.keys = folder / "keys"
        key_files.make_keys(self.keys)
        self.address = f"127.0.0.1:{free_port()}"
        self._master = daemon_process.launch("remotely.master", subprocess.PIPE, None)
        config = MasterConfig(
            address=f"tcp://{self.address}", lifeline=False, attached=True,
            key=key_files.load_master(self.keys / "master.key").to_dict(),
            key_file=str(self.keys / "master.key"),
        )  # fmt: skip
        daemon_process.configure(self._master, config)
        assert daemon_process.first_line(self._master) == "READY"
        self.worker = PlayedWorker(self.address, self.keys / "worker.key", **lies)
        assert self.worker.is_registered.wait(DEADLINE_S)

    def revoke_client(self) -> None:
        client = key_files.load_member(self.keys / "client.key")
        key_files.revoke_key(self.keys, client.pair.public)
        self._master.send_signal(signal.SIGHUP)

    def close(self) -> None:
        self.worker.close()
        with self._master:
            daemon_process.close_input(self._master)
