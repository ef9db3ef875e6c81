"""Everything that can go wrong, and whose fault it was.

One root, `RemotelyError`.  The type says who is to act: `ActorRaised` is your
code, `NotPicklable` your value, `NoResources` your request, `ActorDied` and
`WorkerLost` the world.  Where a call may have run although its reply never
came, the error says so in `may_have_run`; nothing is ever retried in silence.
"""

from concurrent.futures import TimeoutError as FutureTimeout


class RemotelyError(Exception):
    """The root of all errors that this package raises by itself.

    Whose fault: the message says it; as itself it is raised for what was asked in the wrong order.
    What to do: catch it last, behind the errors that you can do something about.
    """


class WireError(RemotelyError):
    """A peer broke the protocol: nothing that it says can be trusted.

    Whose fault: this package's, or a stranger's who talks to its ports.
    What to do: report it as a bug.
    """


class NotAllowed(RemotelyError):
    """The other side does not admit this key, or a key file is missing, damaged or loose.

    Whose fault: the key's: the wrong one, a revoked one, or one that others can read.
    What to do: copy the right key from the master's machine; the message says which, and where to.
    """


class VersionMismatch(RemotelyError):
    """The other side runs another Python, remotely or Ray.

    Whose fault: the installation's.
    What to do: install the version that the message names, on one of the two sides.
    """


class NotPicklable(RemotelyError, TypeError):
    """An argument, result or class cannot be sent.

    Whose fault: your value's: a lock, a socket, an open file, a generator within it.
    What to do: leave out the attribute that the message names, or make it in the actor.
    """


class NotShared(RemotelyError):
    """The memory of a SharedArray cannot be had here.

    Whose fault: the placement's: it is of another machine, or its sender was killed on the way.
    What to do: place its users on one machine (`near=`), or send the array as a value.
    """


class TooLarge(RemotelyError, ValueError):
    """A value is larger than a message may be.

    Whose fault: your value's.
    What to do: send it in parts, or through a file.
    """


class NoResources(RemotelyError):
    """There is no room for the actor, or no such machine.

    Whose fault: your request's, or that of the actors that have the rest: the message names them.
    What to do: ask for less, close some actors, join more machines, or wait longer (`patience_s`).
    """


class NameTaken(RemotelyError):
    """Another actor of the cluster has this name.

    Whose fault: your request's.
    What to do: choose another name, take that actor (`get_if_exists=True`), or close it.
    """


def name_taken(name: str, where: str) -> str:
    """Return the sentence of a NameTaken."""
    return (
        f"an actor named {name!r} is {where} already: remotely.get_actor({name!r}) gives a handle "
        f"of it, remotely.kill(remotely.get_actor({name!r})) ends it; or choose another name"
    )


def doubt(may_have_run: bool) -> str:
    """Return the end of a sentence: whether the call may have run."""
    return "; the call may have run" if may_have_run else "; the call did not run"


class MasterLost(RemotelyError):
    """Nothing answers as master.  Calls on living actors go on; placing new ones does not.

    Whose fault: the master's, or the network's on the way to it.
    What to do: start it again, or look at the address and port that the message names; then repeat.
    """


class NotConnected(RemotelyError):
    """This process has no cluster, or a handle belongs to another one.

    Whose fault: the script's: it was shut down, or forked away from the process that is connected.
    What to do: call `remotely.connect()`; start child processes by `spawn`, or use actors.
    """


class CallTimeout(RemotelyError, FutureTimeout):
    """The result did not come in time.  `still_running`: whether the call goes on over there.

    Whose fault: nobody's; the method takes longer than was allowed.
    What to do: wait again (`result()`), allow more, or end the actor.
    """

    def __init__(self, message: str, still_running: bool = True) -> None:
        super().__init__(message)
        self.still_running = still_running

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.args[0], self.still_running)


class Deadlock(RemotelyError):
    """An actor is about to wait for itself: it is busy with the call that would wait.

    Whose fault: the method's.
    What to do: call the method on `self`, do not wait (`submit`), or serve others meanwhile
    (`concurrency=2`, async methods).

    A submitted call for which this was raised runs once its actor is free.
    """


class ActorRaised(RemotelyError):
    """The method raised an error that could not travel; its traceback is the message.

    Whose fault: the method's.
    What to do: mend what the traceback shows; raise an error that pickles to have it as itself.

    The actor lives on.
    """


class ActorDied(RemotelyError):
    """The actor's process ended before it answered.

    Whose fault: your code's (a crash, `sys.exit`, `memory=` exceeded), or whoever killed it.
    What to do: read `exit`, `stderr`, the message and `remotely logs`; look before you repeat what
    may have run; `max_restarts=` has a dead actor restarted.

    `exit` is an exit code or the name of a signal ("SIGKILL"), or None where nobody
    saw.  If `may_have_run` is true the call may have run, in part or in whole: look
    before you call again.  `flight_record` is what the actor had written to its
    `remotely.flight_recorder` when it died; empty if it had none.
    """

    def __init__(
        self,
        message: str,
        exit: int | str | None = None,
        may_have_run: bool = True,
        stderr: str = "",
        flight_record: bytes = b"",
    ) -> None:
        super().__init__(message)
        self.exit = exit
        self.may_have_run = may_have_run
        self.stderr = stderr
        self.flight_record = flight_record

    def __reduce__(self) -> tuple[object, ...]:
        fields = self.exit, self.may_have_run, self.stderr, self.flight_record
        return type(self), (self.args[0], *fields)


class WorkerLost(RemotelyError):
    """The actor's machine is gone, or no longer reachable.

    Whose fault: the machine's, or the network's.
    What to do: see `may_have_run` as in `ActorDied`; mark what may be repeated `@idempotent`.
    """

    def __init__(self, message: str, may_have_run: bool = True) -> None:
        super().__init__(message)
        self.may_have_run = may_have_run

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.args[0], self.may_have_run)


class RemoteTraceback(Exception):
    """The traceback of the other process, as text; the `__cause__` of what a method raised."""

    def __str__(self) -> str:
        return f"\n\n{self.args[0]}"


def error_class(name: str) -> type[RemotelyError] | None:
    """Return the class of errors that a message names; None if this version knows no such class."""
    found = globals().get(name)
    return found if isinstance(found, type) and issubclass(found, RemotelyError) else None
