"""The workers: those that are there, and those that were lost and may come back.

A lost worker stays in the ledger for EXPECTED_S, since its machine may be rebooting: who needs a
machine of its size waits for it, and is not refused.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from remotely.master.placement import Ledger
from remotely.protocol import control
from remotely.protocol.lease import EXPECTED_S
from remotely.protocol.resources import Resources


@dataclass
class WorkerRecord:
    """A worker, and what it last told of its actors."""

    register: control.Register
    is_near: bool = False  # on the master's machine
    reports: dict[str, control.Figures] = field(default_factory=dict)


class Expected(NamedTuple):
    """A worker that was lost, and may come back."""

    machine: str
    address: str
    size: Resources
    until: float


class WorkerTable:
    """Workers by their ids, and what is free on each."""

    def __init__(self) -> None:
        self.records: dict[str, WorkerRecord] = {}
        self.ledger = Ledger()
        self._expected: dict[str, Expected] = {}

    def __contains__(self, worker: object) -> bool:
        return worker in self.records

    def join(
        self, register: control.Register, is_near: bool = False, predecessors: Iterable[str] = ()
    ) -> None:
        """A worker is there that was not: one that was lost, or the next of such.

        It takes the place of `predecessors`.
        """
        name = register.worker
        self.records[name] = WorkerRecord(register, is_near)
        known = [before for before in (name, *predecessors) if before in self._expected]
        for before in known or self._guess_before(register):
            self.expect_not(before)
        self.ledger.add_worker(name, register.resources, register.python)

    def leave(self, name: str, now: float, may_return: bool) -> None:
        """A worker is there no more.  `may_return`: it is only lost."""
        register = self.records.pop(name).register
        if may_return:
            self._expected[name] = Expected(
                register.machine, register.address, register.resources, now + EXPECTED_S
            )
            self.ledger.suspend(name)
        else:
            self.ledger.remove_worker(name)

    def give_up(self, now: float) -> bool:
        """Expect those no longer whose time is over; true if there were any."""
        overdue = [name for name, lost in self._expected.items() if lost.until <= now]
        for name in overdue:
            self.expect_not(name)
        return bool(overdue)

    def suspend(self, name: str) -> bool:
        """Place nothing on a worker that cannot be reached; false if nothing was."""
        if name not in self.records or name in self.ledger.away:
            return False
        self.ledger.suspend(name)
        return True

    def away(self) -> list[str]:
        """Return the machines that cannot be reached now."""
        return sorted(
            self.records[name].register.machine
            if name in self.records
            else self._expected[name].machine
            for name in self.ledger.away
        )

    def machines(self) -> list[str]:
        """Return the names of the machines that are there, or may come back."""
        names = [record.register.machine for record in self.records.values()]
        return sorted({*names, *(lost.machine for lost in self._expected.values())})

    def on_machine(self, machine: str) -> list[str]:
        """Return the workers of a machine, by its name or address, lost ones included."""
        known: dict[str, control.Register | Expected] = {
            worker: record.register for worker, record in self.records.items()
        }
        known.update(self._expected)
        return [name for name, of in known.items() if machine in (of.machine, of.address)]

    def beside(self, worker: str) -> list[str]:
        """Return the workers of the machine on which a worker is; none if that is lost."""
        if worker not in self.records:
            return []
        host = self.records[worker].register.host
        return [name for name, record in self.records.items() if record.register.host == host]

    def of_python(self, python: str) -> list[str]:
        return [name for name, m in self.records.items() if m.register.python == python]

    def only_size(self) -> Resources:
        """Return what the one worker of a script's own cluster has."""
        return next(iter(self.records.values())).register.resources

    def _guess_before(self, register: control.Register) -> list[str]:
        """Return the lost worker whose place this one takes, as far as can be told.

        A machine may have several.  Of those that were lost it is one of the same size; one of
        another size only if it is the only one.
        """
        where = register.machine, register.address
        lost = [n for n, e in self._expected.items() if (e.machine, e.address) == where]
        alike = [name for name in lost if self._expected[name].size == register.resources]
        return alike[:1] or (lost if len(lost) == 1 else [])

    def expect_not(self, worker: str) -> None:
        """A lost worker does not come back; one that was not lost is no matter of this."""
        if self._expected.pop(worker, None) is not None:
            self.ledger.remove_worker(worker)
