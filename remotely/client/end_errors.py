"""The errors of calls to an actor that has ended, or whose connection broke."""

from collections.abc import Callable

from remotely.errors import ActorDied, WorkerLost
from remotely.protocol.control import Location, Obituary

EndError = Callable[[bool], BaseException]  # takes may_have_run, returns what to raise


def end_error(name: str, location: Location | None, obituary: Obituary) -> EndError:
    """Return what calls raise after an actor has ended."""
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
        return ActorDied(message, obituary.exit, may_have_run, obituary.stderr, record)

    return how


def connection_error(location: Location, same_host: bool, was_connected: bool) -> EndError:
    """Return what calls raise after a connection broke, or never began, for no known reason."""
    where = f"{location.name} on {location.machine}"
    if was_connected or same_host:
        why = f"the connection to {where} broke"
    else:
        address, _, port = location.tcp.removeprefix("tcp://").rpartition(":")
        why = (
            f"no connection to {where}: nothing answers at {address} port {port}. A firewall may "
            "be in the way: calls go straight to the actor, at a port that its machine's kernel "
            "chooses (/proc/sys/net/ipv4/ip_local_port_range), and those have to be open between "
            f"the machines of a cluster. If {address} is not how this machine reaches it, name "
            "another address: remotely join ... --host ADDRESS"
        )
    return lambda may: WorkerLost(f"{why}{doubt(may)}", may)


def doubt(may_have_run: bool) -> str:
    """Return the end of a sentence: whether the call may have run."""
    return "; the call may have run" if may_have_run else "; the call did not run"
