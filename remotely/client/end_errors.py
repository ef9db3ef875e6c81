"""The errors of calls to an actor that has ended or whose connection is broken."""

from remotely.calling.actor import EndError
from remotely.errors import ActorDied, NotStartable, WorkerLost, doubt
from remotely.protocol.control import Location, Obituary
from remotely.protocol.numbers import MOST
from remotely.reporting.endings import how_it_ended

CLOSED = "closed"


def end_error(name: str, location: Location | None, obituary: Obituary) -> EndError:
    """Return what makes the error of each call after an actor has ended."""
    advice = _advice(obituary)
    if location is not None:
        name = f"{name} (pid {location.pid} on {location.machine})"

    has_told = False

    def make_error(may_have_run: bool) -> BaseException:
        nonlocal has_told
        if obituary.lost:
            return WorkerLost(
                f"the machine of {name} is gone: {obituary.why}{doubt(may_have_run)}",
                may_have_run,
            )
        why = f": {obituary.why}" if obituary.why else ""
        end = how_it_ended(obituary.exit or None)
        shows_stderr = obituary.stderr and not obituary.asked
        words = f"\nits last words:\n{obituary.stderr}" if shows_stderr else ""
        if words and has_told and "\n" in obituary.stderr.strip():  # not for each of many calls
            words = f"\n{_gist(obituary.stderr)} (the stack is in its first error, and in `stderr`)"
        has_told = True
        message = f"{name} {end}{why}{doubt(may_have_run)}{words}"
        record = obituary.flight_record
        kind = NotStartable if obituary.refused else ActorDied
        error = kind(message, obituary.exit, may_have_run, obituary.stderr, record)
        if advice:
            error.add_note(advice)  # a traceback shows it; the message states only facts
        return error

    return make_error


def _gist(stderr: str) -> str:
    """Return the line that says what happened: of a crash the first, of an exception the last."""
    lines = [line for line in stderr.splitlines() if line.strip()]
    return next((line for line in lines if line.startswith("Fatal Python error")), lines[-1])


def _advice(obituary: Obituary) -> str:
    """Return what to do about an unexpected end; "" if whoever asked for it said why."""
    if obituary.asked and obituary.why == CLOSED:
        return (
            "It was closed, or its owner has dropped its last handle, as in Outer(Inner()): a "
            "handle that was an argument keeps no actor alive."
        )
    if obituary.asked or not obituary.exit:
        return ""
    advice = "`remotely logs` shows what it printed, as long as its cluster runs."
    if obituary.restarting:
        return advice
    return f"{advice} @remotely.remote_class(max_restarts=5) has it restarted."


def last_begun(obituary: Obituary | None, life: int, route: bytes) -> int:
    """Return the id of the last call of a connection that may have begun."""
    if obituary is None or obituary.life != life:
        return MOST
    return obituary.begun.get(route, 0 if obituary.all_begun else MOST)


def connection_error(
    location: Location, was_connected: bool, unreachable: str, is_elsewhere: bool = False
) -> EndError:
    """Return what makes the error of each call after a connection broke or was never established.

    `unreachable` says why this process cannot connect although the master reaches the machine.
    """
    why = f"the connection to {location.name} on {location.machine} broke"
    if not was_connected:
        why = f"no connection to {location.name} on {location.machine}"
    if unreachable:
        why = f"{why}: {unreachable}. {_PORT_ADVICE}"
    elif is_elsewhere:
        why = f"{why}, and the master has not reached that machine since"
    return lambda may: WorkerLost(f"{why}{doubt(may)}", may)


_PORT_ADVICE = (
    "Calls go directly to each actor, at a port of its own. To open these ports in a firewall, "
    "choose their range with 'remotely start' or 'remotely join' and --ports LOW-HIGH; --announce "
    "sets the address at which others reach the machine"
)
