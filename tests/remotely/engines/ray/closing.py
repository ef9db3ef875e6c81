"""A script that leaves its own Ray while two objects run a call, and another closes slowly.

It prints which of them came to their ends.  The calls would, in the time that `close` has.
"""

import json
import tempfile
import time
from pathlib import Path

import remotely
from remotely.protocol.lease import DRAIN_S, OWNER_GRACE_S

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


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        remotely.connect("ray:local", cpus=1)
        closing = Closing(folder)
        alone, at_a_time = (
            Calling(folder, "one"),
            remotely.options(Calling, concurrency=2)(folder, "several"),
        )
        calls = [remotely.submit(each.call) for each in (alone, at_a_time)]
        while len(list(folder.glob("* begun"))) < len(calls):
            time.sleep(0.01)
        remotely.shutdown()
        print(json.dumps(sorted(file.name for file in folder.glob("*ed"))))
