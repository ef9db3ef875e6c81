"""A script that leaves its own Ray while one thread waits for a call and a callback blocks.

It prints what that thread is told, and ends.
"""

import json
import threading
import time

import remotely
from tests.remotely.engines.ray.gate import Gate

if __name__ == "__main__":
    remotely.connect("ray:local", cpus=1)
    gate = remotely.options(Gate, name="gate", detached=True)()
    told: list[str] = []
    blocked = threading.Event()

    def wait() -> None:
        try:
            gate.wait()
        except BaseException as error:
            told.append(type(error).__name__)

    def block(_: object) -> None:
        blocked.set()
        threading.Event().wait()

    waiting = threading.Thread(target=wait)
    waiting.start()
    while gate.look() == 0:
        time.sleep(0.01)
    gate.look.submit().add_done_callback(block)
    blocked.wait()
    remotely.shutdown()
    waiting.join()
    print(json.dumps(told))
