"""A script that leaves its own Ray while a thread waits, a callback blocks, and objects are busy.

Two objects run a call, and another closes slowly.  It prints the error that the thread gets, and
which of the objects finished.  The calls would finish in the time that `close` has.
"""

import json
import tempfile
import threading
import time
from pathlib import Path

import remotely
from remotely.protocol.lease import DRAIN_S, OWNER_GRACE_S
from tests.remotely.engines.ray.gate import Gate

CALL_S = (OWNER_GRACE_S + DRAIN_S) / 2
CLOSE_S = 1.5 * OWNER_GRACE_S


@remotely.remote_class(cpus=0)
class Closing:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def close(self) -> None:
        time.sleep(CLOSE_S)
        (self.folder / "closed").touch()


@remotely.remote_class(cpus=0)
class Calling:
    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name = folder, name

    def call(self) -> None:
        (self.folder / f"{self.name} begun").touch()
        time.sleep(CALL_S)
        (self.folder / f"{self.name} called").touch()


def leave(folder: Path) -> tuple[list[str], list[str]]:
    gate = remotely.options(Gate, name="gate", detached=True)()
    closing = Closing(folder)
    serial = Calling(folder, "serial")
    concurrent = remotely.options(Calling, concurrency=2)(folder, "concurrent")
    errors: list[str] = []
    blocked = threading.Event()

    def wait() -> None:
        try:
            gate.wait()
        except BaseException as error:
            errors.append(type(error).__name__)

    def block(_: object) -> None:
        blocked.set()
        threading.Event().wait()

    waiting = threading.Thread(target=wait)
    waiting.start()
    while gate.waiters() == 0:
        time.sleep(0.01)
    gate.waiters.submit().add_done_callback(block)
    blocked.wait()
    calls = [remotely.submit(each.call) for each in (serial, concurrent)]
    while len(list(folder.glob("* begun"))) < len(calls):
        time.sleep(0.01)
    remotely.shutdown()
    waiting.join()
    del closing
    return errors, sorted(file.name for file in folder.glob("*ed"))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        remotely.connect("ray:local", cpus=1)
        print(json.dumps(leave(Path(name))))
