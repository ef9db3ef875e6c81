"""The errors that remotely raises: what each means, whose fault it is, and what to do.

All inherit from `RemotelyError`.  The type says where to look: `ActorRaised` your code,
`NotPicklable` your value, `NoResources` your request, `ActorDied` and `WorkerLost` the process and
its machine.  If a call may have run although no reply arrived, `may_have_run` of the error is true,
whatever the error is.  Nothing is ever retried silently.
"""

import copy
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from pickle import PicklingError


class RemotelyError(Exception):
    """The base class of all errors of this package.

    Whose fault: the message says; raised directly, it reports a call at the wrong time or place.
    What to do: catch it last, after the errors that you can handle.

    If `may_have_run` is true, the call may have run, partly or completely, and no reply arrived.
    """

    may_have_run = False


class WireError(RemotelyError):
    """A peer violated the protocol, so none of its messages can be trusted.

    Whose fault: this package's, or that of a foreign program that connects to its ports.
    What to do: report it as a bug.
    """


class NotAllowed(RemotelyError):
    """The other side rejects this key, or a key file is missing, damaged or readable by others.

    Whose fault: the key's: it is the wrong one, it was revoked, or its file is not private.
    What to do: copy the right key from the master's machine; the message says which, and where to.
    """


class VersionMismatch(RemotelyError):
    """The other side runs a different version of Python, remotely or Ray.

    Whose fault: the installation's.
    What to do: install the version that the message names, on one of the two sides.
    """


class NotPicklable(RemotelyError, TypeError, PicklingError):
    """An argument, result or class cannot be pickled.

    Whose fault: your value's: it contains a lock, a socket, an open file or a generator.
    What to do: remove the attribute that the message names, or create it in the actor.
    """


class NotShared(RemotelyError):
    """The memory of a SharedArray or a Published is not accessible in this process.

    Whose fault: the placement's: it is on another machine, or its sender was killed meanwhile.
    What to do: place its users on one machine (`near=`), or send the value in calls.
    """


class PublisherGone(RemotelyError):
    """There will be no newer version of a Published: the process that sets it has ended or let go.

    Whose fault: your code's (it dropped the Published), or that of what ended the process.
    What to do: go on with the last version, which can still be read, or end.
    """


class TooLarge(RemotelyError, ValueError):
    """A value exceeds the size limit of a message.

    Whose fault: your value's.
    What to do: send it in parts, or through a file.
    """


class NoResources(RemotelyError):
    """The cluster has no room for the actor, or lacks the machine that it asks for.

    Whose fault: your request's, or that of the actors that use the rest; the message names them.
    What to do: ask for less, close some actors, add machines, or wait longer (`patience_s`).
    """


class NameTaken(RemotelyError):
    """Another actor on the cluster has this name.

    Whose fault: your request's.
    What to do: choose another name, use that actor (`get_if_exists=True`), or close it.
    """


def name_taken(name: str, where: str) -> str:
    """Return the message of a NameTaken."""
    return (
        f"an actor named {name!r} is {where} already: remotely.get_actor({name!r}) gives a handle "
        f"of it, remotely.kill(remotely.get_actor({name!r})) ends it; or choose another name"
    )


def doubt(may_have_run: bool) -> str:
    """Return the end of a message: whether the call may have run."""
    return "; the call may have run" if may_have_run else "; the call did not run"


# Also in a process that has connected again since: handles belong to their connection.
SHUT_DOWN = (
    "remotely was shut down here, and its handles with it: call remotely.connect(), and make the "
    "actor anew or get it by its name"
)

_MAY_HAVE_RUN = "An attempt of this call was sent, and may have run."


def in_doubt(error: BaseException) -> BaseException:
    """Return an error that says that the call may have run; not the same one, which may be shared
    with calls that have not."""
    return _with_doubt(error, True)


def not_run(error: BaseException) -> BaseException:
    """Return the error of another call as that of a call which has not run."""
    return _with_doubt(error, False)


def _with_doubt(error: BaseException, may_have_run: bool) -> BaseException:
    with suppress(Exception):  # raised by one of the user's classes, such as by its constructor
        if bool(getattr(error, "may_have_run", False)) is may_have_run:
            return error
    notes = [each for each in getattr(error, "__notes__", ()) if each != _MAY_HAVE_RUN]
    if may_have_run:
        notes.append(_MAY_HAVE_RUN)
    try:
        mine = copy.copy(error)
        mine.__notes__ = notes
        mine.__cause__ = error.__cause__
        if mine.args and isinstance(mine.args[0], str):
            text = mine.args[0].replace(doubt(not may_have_run), doubt(may_have_run))
            mine.args = (text, *mine.args[1:])
        mine.may_have_run = may_have_run  # type: ignore[attr-defined]
        return mine.with_traceback(None)
    except Exception:
        if may_have_run:
            error.add_note(_MAY_HAVE_RUN)
        return error


class MasterLost(RemotelyError):
    """No master answers.  Calls to running actors continue, but no new actors can be placed.

    Whose fault: the master's, or that of the network between you and it.
    What to do: restart the master, or check the address and port in the message, and try again.
    """


class NotConnected(RemotelyError):
    """This process is not connected, or a handle belongs to another cluster.

    Whose fault: the script's: it has shut remotely down, or forked after connecting.
    What to do: call `remotely.connect()`; start child processes with `spawn`, or use actors.
    """


class CallTimeout(RemotelyError, FutureTimeout):
    """The result did not arrive in time.  `still_running`: whether the call continues in the actor.

    Whose fault: nobody's; the method takes longer than the timeout.
    What to do: wait again (`result()`), use a longer timeout, or end the actor.
    """

    def __init__(self, message: str, still_running: bool = True) -> None:
        super().__init__(message)
        self.still_running = self.may_have_run = still_running

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.args[0], self.still_running), vars(self)


class Deadlock(RemotelyError):
    """An actor would wait for itself: it is busy with the call that is about to wait.

    Whose fault: the method's.
    What to do: call the method on `self`, do not wait (`submit`), or allow concurrent calls
    (`concurrency=2`, async methods).

    If the call was submitted, it runs once its actor is free.
    """


class ActorRaised(RemotelyError):
    """The method raised an error that cannot be pickled; the message is its traceback.

    Whose fault: the method's.
    What to do: fix what the traceback shows; an error that can be pickled arrives with its type.

    The actor keeps running.
    """


class ActorDied(RemotelyError):
    """The actor's process ended before it replied.

    Whose fault: your code's (a crash, `sys.exit`, `memory=` exceeded), unless someone killed it.
    What to do: read `exit`, `stderr`, the message and `remotely logs`; check the effects of a call
    that may have run before you repeat it; `max_restarts=` restarts an actor that dies.

    `exit` is an exit code, the name of a signal ("SIGKILL"), or None if unknown.  `stderr` is the
    end of its stderr.
    `flight_record` is what the actor had written to its `remotely.flight_recorder` when it died;
    empty if it had none.
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
        return type(self), (self.args[0], *fields), vars(self)


class NotStartable(ActorDied):
    """The actor cannot be started, on this machine or another.

    Whose fault: that of its options: `python` names no interpreter, `packages` cannot be installed,
    `env` is no environment.
    What to do: the message has the reason, and the command to run if there is one.
    """


class WorkerLost(RemotelyError):
    """The actor's machine is gone or unreachable.

    Whose fault: the machine's, or the network's.
    What to do: check `may_have_run` as for `ActorDied`; mark a method that may be repeated
    `@idempotent`.
    """

    def __init__(self, message: str, may_have_run: bool = True) -> None:
        super().__init__(message)
        self.may_have_run = may_have_run

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.args[0], self.may_have_run), vars(self)


class RemoteTraceback(Exception):
    """The traceback in the other process, as text: the `__cause__` of what a method raised."""

    def __str__(self) -> str:
        return f"\n\n{self.args[0]}"


def error_class(name: str) -> type[RemotelyError] | None:
    """Return the error class that a message names; None if this version has no such class."""
    found = globals().get(name)
    return found if isinstance(found, type) and issubclass(found, RemotelyError) else None
