"""A script that leaves its own Ray while one object runs a call, and another closes slowly.

It prints which of the two came to its end.
"""

import json
import tempfile
import threading
import time
from pathlib import Path

import remotely
from remotely.protocol.lease import OWNER_GRACE_S


@remotely.remote_class(cpus=0)
class Closing:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def close(self) -> None:
        time.sleep(1.5 * OWNER_GRACE_S)
        (self.folder / "closed").touch()


@remotely.remote_class(cpus=0, concurrency=2)
class Calling:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def call(self) -> None:
        (self.folder / "begun").touch()
        threading.Event().wait()
        (self.folder / "called").touch()

    def has_begun(self) -> bool:
        return (self.folder / "begun").exists()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        remotely.connect("ray:local", cpus=1)
        closing, calling = Closing(folder), Calling(folder)
        calling.call.submit()
        while not calling.has_begun():
            pass
        remotely.shutdown()
        told = {word: (folder / word).exists() for word in ("closed", "called")}
    print(json.dumps(told))
