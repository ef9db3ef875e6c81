"""What a client asks the master, and waits for.

A question is asked again when the line to the master, or the master, is a new one.  Who wants the
answer no more cancels it, so that it is not.
"""

import itertools
from collections.abc import Callable
from typing import Any

import msgspec

from remotely.errors import RemotelyError
from remotely.futures import wakeup
from remotely.futures.future import CallFuture


class Question(CallFuture[Any]):
    """What the master was asked."""

    def __init__(self, message: msgspec.Struct) -> None:
        super().__init__("the master")
        self.message = message
        self._will_be_long = False

    def cancel(self) -> bool:
        """Nobody wants the answer any more."""
        self._settle("CANCELLED_AND_NOTIFIED", None, None)
        self.tell()
        return self.cancelled()

    def wait_for_room(self) -> None:
        """There is none yet, the master says."""
        self._will_be_long = True
        wakeup.wake(self)

    def has_room(self) -> bool:
        """Wait for the answer, or for the word that it will be long in coming."""
        wakeup.sleep_until(lambda: self._will_be_long or self.done(), about=self)
        return self.done()


class Questions:
    """All that one client has asked and has no answer to.  Asked on any thread; answered on one."""

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
        """Answer all of them, and those to come, with this error."""
        self.refusal = kind, why
        self.fail_all(kind, why)

    def wait(self, ticket: int, why: str) -> None:
        """There is no room for it, for this reason; an empty one means that there is now."""
        if not why:
            self._waits.pop(ticket, None)
            return
        self._waits[ticket] = why
        if question := self._tickets.get(ticket):
            question.wait_for_room()

    def take_wait(self, ticket: int) -> str:
        """Return, once, why a question still waits for room; nothing if it does not."""
        why = self._waits.pop(ticket, "")
        return why if ticket in self._tickets else ""
