"""How much room a cluster has, in processes and in cores."""

import time

from remotely.engine import Engine, Options
from remotely.machine import this_machine
from remotely.protocol.lease import CONNECT_S
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
    """Return how many processes with these options there is room for."""
    return sum(_places_on(machine, options) for machine in machines)


def cores(machines: list[MachineStatus]) -> int:
    return int(sum(machine.cpus for machine in machines))


def _places_on(machine: MachineStatus, options: Options) -> int:
    if machine.python != this_machine.PYTHON:
        return 0
    assert isinstance(options.memory, int)
    needs = (
        (machine.free_cpus, options.cpus),
        (machine.free_gpus, options.gpus),
        (machine.free_memory, options.memory),
    )
    fits = [int(free // need) for free, need in needs if need]
    return max(0, min(fits, default=int(machine.cpus)))
