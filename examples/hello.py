"""An object that lives in a process of its own.  Run it: python examples/hello.py"""

import contextlib
import os

import remotely


@remotely.remote_class
class Greeter:
    def __init__(self, greeting: str) -> None:
        self.greeting = greeting
        self.pid = os.getpid()

    def greet(self, name: str) -> str:
        return f"{self.greeting}, {name}!"


def main() -> None:
    with Greeter("Hello") as greeter:  # starts the process, ends it below
        print(greeter.greet("world"))  # runs there, waits here

        future = greeter.greet.submit("again")  # does not wait
        print(future.result(timeout=10))

        greeter.greeting = "Goodbye"  # attributes live there too
        print(greeter.greet("world"))
        print(f"The script was process {os.getpid()}, the greeter {greeter.pid}.")


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C ends it, and its actors with it
        main()
