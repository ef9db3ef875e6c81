"""The errors of calls to an actor that has ended, or whose connection broke."""

from remotely.calling.actor import EndError
from remotely.errors import ActorDied, WorkerLost, doubt
from remotely.protocol.control import Location, Obituary
from remotely.protocol.numbers import MOST


def end_error(name: str, location: Location | None, obituary: Obituary) -> EndError:
    """Return what calls raise after an actor has ended."""
    todo = _todo_of_death(obituary)
    if location is not None:
        name = f"{name} (pid {location.pid} on {location.machine})"

    def how(may_have_run: bool) -> BaseException:
        if obituary.lost:
            return WorkerLost(
                f"the machine of {name} is gone: {obituary.why}{doubt(may_have_run)}",
                may_have_run,
            )
        why = f": {obituary.why}" if obituary.why else ""
        end = f"ended with {obituary.exit}" if obituary.exit else "has ended"
        told = obituary.stderr and not obituary.asked
        words = f"\nits last words:\n{obituary.stderr}" if told else ""
        message = f"{name} {end}{why}{doubt(may_have_run)}{words}"
        record = obituary.flight_record
        error = ActorDied(message, obituary.exit, may_have_run, obituary.stderr, record)
        if todo:
            error.add_note(todo)  # a traceback shows it; the message keeps to the facts
        return error

    return how


def _todo_of_death(obituary: Obituary) -> str:
    """Return what to do about an end that nobody asked for; "" if somebody did."""
    if obituary.asked or not obituary.exit:
        return ""
    todo = "On a started cluster, `remotely logs` shows what it printed."
    if obituary.restarting:
        return todo
    return f"{todo} @remotely.remote_class(max_restarts=5) has it restarted."


def last_begun(obituary: Obituary | None, life: int, route: bytes) -> int:
    """Return the id of the last call of a connection that may have begun; later ones have not."""
    if obituary is None or obituary.life != life:
        return MOST
    return obituary.begun.get(route, 0 if obituary.all_begun else MOST)


def connection_error(
    location: Location, was_connected: bool, unreachable: str, is_elsewhere: bool = False
) -> EndError:
    """Return what calls raise after a connection broke, or never began.

    `unreachable` is why none comes about now, although the master reaches the machine; else empty.
    """
    why = f"the connection to {location.name} on {location.machine} broke"
    if not was_connected:
        why = f"no connection to {location.name} on {location.machine}"
    if unreachable:
        why = f"{why}: {unreachable}. {_TO_DO}"
    elif is_elsewhere:
        why = f"{why}, and the master has not reached that machine since"
    return lambda may: WorkerLost(f"{why}{doubt(may)}", may)


_TO_DO = (
    "Calls go straight to an actor, at a port of its own: choose the ports of a machine, to open "
    "them, with 'remotely start' or 'remotely join' and --ports LOW-HIGH, and the address at which "
    "others reach it with --announce"
)
