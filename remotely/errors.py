"""Everything that can go wrong, and whose fault it was.

One root, `RemotelyError`.  The type says who is to act: `ActorRaised` is your
code, `NotPicklable` your value, `NoResources` your request, `ActorDied` and
`WorkerLost` the world.  Where a call may have run although its reply never
came, the error says so in `may_have_run`; nothing is ever retried in silence.
"""

from concurrent.futures import TimeoutError as FutureTimeout


class RemotelyError(Exception):
    """The root of all errors that this package raises by itself."""


class WireError(RemotelyError):
    """A peer broke the protocol.  Nothing that it says can be trusted: report it as a bug."""


class NotAllowed(RemotelyError):
    """The other side does not admit this key, or a key file is missing or loose.  Mend the key."""


class VersionMismatch(RemotelyError):
    """The other side runs another Python, remotely or Ray.  Install the same version."""


class NotPicklable(RemotelyError, TypeError):
    """An argument, result or class cannot be sent.  The message names what to leave out."""


class NotShared(RemotelyError):
    """The memory of a SharedArray cannot be had here: it is of another machine, or it is gone."""


class TooLarge(RemotelyError, ValueError):
    """A value is larger than a message may be.  Send it in parts."""


class NoResources(RemotelyError):
    """There is no room for the actor.  Ask for less, close some actors, or join more machines."""


class NameTaken(RemotelyError):
    """Another actor of the cluster has this name.  Choose another, or close that one."""


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
    """Nothing answers as master.  Calls on living actors go on; placing new ones does not."""


class NotConnected(RemotelyError):
    """This process has no cluster: it was shut down, or forked away from the one that had it."""


class CallTimeout(RemotelyError, FutureTimeout):
    """The result did not come in time.  `still_running`: whether the call goes on over there."""

    def __init__(self, message: str, still_running: bool = True) -> None:
        super().__init__(message)
        self.still_running = still_running

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.args[0], self.still_running)


class Deadlock(RemotelyError):
    """An actor is about to wait for itself: it is busy with the call that would wait.

    Call the method on `self`, do not wait (`submit`), or serve others meanwhile (`concurrency=2`,
    async methods).  A submitted call for which this was raised runs once its actor is free.
    """


class ActorRaised(RemotelyError):
    """The method raised an error that could not travel; its traceback is the message.

    The actor lives on.  An error that pickles arrives as itself instead.
    """


class ActorDied(RemotelyError):
    """The actor's process ended before it answered.

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
    """The actor's machine is gone, or no longer reachable.  See `may_have_run` in `ActorDied`."""

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
