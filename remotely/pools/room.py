"""How much room a cluster has, in processes and in cores."""

import time

from remotely.engine import Engine, Options
from remotely.machine import this_machine
from remotely.protocol.lease import CONNECT_S
from remotely.protocol.resources import in_thousandths
from remotely.reporting.cluster_status import MachineStatus

LOOK_EVERY_S = 0.02


def machines_of(engine: Engine) -> list[MachineStatus]:
    """Return the machines; that of a cluster which has just been started is waited for."""
    deadline = time.monotonic() + CONNECT_S
    while not (machines := engine.report(fresh=False).machines) and engine.cluster:
        if time.monotonic() > deadline:
            break
        time.sleep(LOOK_EVERY_S)
    return machines


def places(machines: list[MachineStatus], options: Options) -> int:
    """Return how many processes with these options there is room for.

    It is a guess for parts of GPUs: how the free parts are spread over the GPUs is not known here.
    """
    return sum(_places_on(machine, options) for machine in machines)


def cores(machines: list[MachineStatus]) -> int:
    return int(sum(machine.cpus for machine in machines))


def _places_on(machine: MachineStatus, options: Options) -> int:
    if machine.python != this_machine.PYTHON:
        return 0
    assert isinstance(options.memory, int)
    needs = [
        (machine.free_cpus, options.cores),
        (machine.free_memory, options.memory),
        *((machine.free_resources.get(n, 0.0), each) for n, each in options.resources.items()),
    ]
    fits = [_times(free, need) for free, need in needs if need]
    if options.gpus:
        fits.append(_times_of_gpus(machine.free_gpus, options.gpus))
    return max(0, min(fits, default=int(machine.cpus)))


def _times(free: float, need: float) -> int:
    return in_thousandths(free) // in_thousandths(need)


def _times_of_gpus(free: float, need: float) -> int:
    if need >= 1:
        return _times(free, need)
    whole, part = divmod(free, 1)  # what is needed lies on one GPU
    return int(whole) * _times(1, need) + _times(part, need)
