"""An object in its own process.  Run it: python examples/hello.py"""

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
    with Greeter("Hello") as greeter:  # starts the process; the end of the block stops it
        print(greeter.greet("world"))  # runs in that process; waits for the result

        future = greeter.greet.submit("again")  # does not wait
        print(future.result(timeout=10))

        greeter.greeting = "Goodbye"  # sets the attribute in that process
        print(greeter.greet("world"))
        print(f"The script is process {os.getpid()}, the greeter is process {greeter.pid}.")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:  # Ctrl-C ends the script and its actors
        raise SystemExit(130) from None
