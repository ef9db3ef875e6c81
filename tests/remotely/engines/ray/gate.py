"""An actor at which calls wait until a test lets them go on."""

import threading

import remotely


@remotely.remote_class(cpus=0, concurrency=8)
class Gate:
    def __init__(self) -> None:
        self.opened = threading.Event()

    def wait(self) -> int:
        self.opened.wait()
        return 7

    def open(self) -> None:
        self.opened.set()
