"""A simple class for tests of actors; its count shows which calls ran."""

import os

import remotely


@remotely.remote_class
class Counter:
    def __init__(self) -> None:
        self.count = 0

    def add(self) -> int:
        self.count += 1
        return self.count

    def pid(self) -> int:
        return os.getpid()
