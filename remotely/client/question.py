"""What a client asks the master, and waits for.

A question is repeated when the client is connected to the master again, or to a new master.
Cancel it if you no longer need the answer, and it is not repeated.
"""

import itertools
from collections.abc import Callable
from typing import Any

import msgspec

from remotely.errors import RemotelyError
from remotely.futures import wakeup
from remotely.futures.future import CallFuture


class Question(CallFuture[Any]):
    """One question to the master, and the future of its answer."""

    def __init__(self, message: msgspec.Struct) -> None:
        super().__init__("the master")
        self.message = message
        self._will_be_long = False

    def cancel(self) -> bool:
        """Do not wait for the answer any more."""
        self._settle("CANCELLED_AND_NOTIFIED", None, None)
        self.tell()
        return self.cancelled()

    def wait_for_room(self) -> None:
        """The master says that there is no room yet."""
        self._will_be_long = True
        wakeup.wake(self)

    def has_room(self) -> bool:
        """Wait for the answer, or for the news that it will take long."""
        wakeup.sleep_until(lambda: self._will_be_long or self.done(), about=self)
        return self.done()


class Questions:
    """The unanswered questions of one client.  Any thread may ask; the loop's thread answers."""

    def __init__(self, tell: Callable[[msgspec.Struct], None]) -> None:
        self.refusal: tuple[type[RemotelyError], str] | None = None  # to all that we may ask
        self._tell = tell
        self._tickets: dict[int, Question] = {}
        self._waits: dict[int, str] = {}  # of those, which wait for room, and why
        self._ids = itertools.count(1)

    def __bool__(self) -> bool:
        return bool(self._tickets)

    def ask(self, message: Callable[[int], msgspec.Struct]) -> Question:
        """Send what `message` makes of a ticket; return the future of the answer."""
        if self.refusal is not None:
            kind, why = self.refusal
            raise kind(why)
        ticket = next(self._ids)
        question = self._tickets[ticket] = Question(message(ticket))
        question.add_done_callback(lambda _: self._tickets.pop(ticket, None))  # or cancelled
        self._tell(question.message)
        return question

    def unanswered(self) -> list[msgspec.Struct]:
        return [question.message for question in list(self._tickets.values())]

    def answer(self, ticket: int, value: object) -> None:
        question = self._tickets.pop(ticket, None)
        if question:
            question.settle(value, None)
            question.tell()

    def fail(self, ticket: int, error: RemotelyError) -> None:
        question = self._tickets.pop(ticket, None)
        if question:
            question.settle(None, error)
            question.tell()

    def fail_all(self, kind: type[RemotelyError], why: str) -> None:
        for ticket in list(self._tickets):
            self.fail(ticket, kind(why))

    def refuse(self, kind: type[RemotelyError], why: str) -> None:
        """Fail all questions with this error, now and from now on."""
        self.refusal = kind, why
        self.fail_all(kind, why)

    def wait(self, ticket: int, why: str) -> None:
        """There is no room for it, and `why` is the reason; it is empty once there is room."""
        if not why:
            self._waits.pop(ticket, None)
            return
        self._waits[ticket] = why
        if question := self._tickets.get(ticket):
            question.wait_for_room()

    def take_wait(self, ticket: int) -> str:
        """Return, only once, why a question still waits for room; empty if it does not."""
        why = self._waits.pop(ticket, "")
        return why if ticket in self._tickets else ""
