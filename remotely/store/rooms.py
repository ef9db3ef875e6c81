"""Where the values of a store lie: in its own arena, or in that of the actor that offers them."""

from remotely.values import arena
from remotely.values.arena import Arena, Borrower, Loan, StoredValue
from remotely.values.borrowing import Lender


class ArenaRoom:
    """Room in the arena of this process."""

    def __init__(self, memory: Arena, placed: StoredValue) -> None:
        self._arena = memory
        self._placed = placed
        self.memory = memory.memory_of(placed)

    def lend(self, borrower: Borrower) -> Loan | None:
        return self._arena.lend(self._placed, borrower, private=True)

    def release(self) -> None:
        self._arena.let_go(self._placed)


class OfferedRoom:
    """What an actor has lent to this process; it outlives the actor."""

    def __init__(self, lender: Lender, loan: Loan) -> None:
        _, (self.memory,) = lender.open(loan)

    def lend(self, borrower: Borrower) -> Loan | None:
        """Lend a copy: only the actor itself could lend the original once more."""
        if (room := reserve(self.memory.nbytes)) is None:
            return None
        room.memory[:] = self.memory
        loan = room.lend(borrower)
        room.release()
        return loan

    def release(self) -> None:
        self.memory = memoryview(b"")  # the loan ends with the last view


def reserve(nbytes: int) -> ArenaRoom | None:
    """Return room in the arena of this process; None if there is none."""
    ours = arena.ours()
    placed = ours.reserve(nbytes) if ours else None
    return ArenaRoom(ours, placed) if ours and placed else None
