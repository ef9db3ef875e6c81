"""A client's session with the master: who the client is, what it asks, and how it leaves.

It has the loop on which the client hears, and the sockets' context.  `start` runs the loop on a
daemon thread; `stop` ends that, and `close` lets go of the rest.

A session outlives its connection and its master.  When the master welcomes the client again, the
client repeats all questions that have not been answered yet.  Cancel one whose answer you no longer
need, and it is not repeated.
"""

import itertools
import os
import secrets
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any

import msgspec

from remotely.errors import MasterLost, NotAllowed, NotConnected, RemotelyError, error_class
from remotely.futures import wakeup
from remotely.futures.future import CallFuture
from remotely.machine import this_machine
from remotely.machine.shield import shield
from remotely.protocol import control
from remotely.protocol.address import FORKED, no_master
from remotely.protocol.ids import bound_id
from remotely.protocol.lease import CONNECT_S, DRAIN_S, LEASE_S, TERM_S, TICK_EVERY_S
from remotely.transport import sockets
from remotely.transport.keys import MemberKey
from remotely.transport.loop import Loop
from remotely.transport.master_link import MasterLink

REPORT_QUEUED_AFTER_S = 2.5  # a cluster that is just starting has room soon
FAREWELL_S = DRAIN_S + TERM_S + 2.0  # for the client's actors to end when it leaves
MASTER_SILENT_S = 3.0  # a leaving client no longer waits for a master that is silent for so long
SHUT_DOWN = "remotely was shut down here"


class Question(CallFuture[Any]):
    """One question to the master, and the future of its answer."""

    def __init__(self, message: Any) -> None:
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
        if not self._is_known():
            wakeup.sleep_until(self._is_known, about=self)
        return self._state != "PENDING"

    def _is_known(self) -> bool:
        return self._will_be_long or self._state != "PENDING"


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

    def ask(self, kind: Callable[..., msgspec.Struct], **fields: Any) -> Question:
        """Send a message of this kind, with a ticket; return the future of the answer."""
        if self.refusal is not None:
            error, why = self.refusal
            raise error(why)
        ticket = next(self._ids)
        question = self._tickets[ticket] = Question(kind(ticket=ticket, **fields))
        question.add_done_callback(lambda _: self._tickets.pop(ticket, None))  # or cancelled
        if self.refusal is not None:  # since the look above, by a loop that has not seen this one
            error, why = self.refusal
            self.fail(ticket, error(why))
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


class MasterSession:
    """The client as the master knows it.

    id        of this session; the owner of the actors that the client makes
    job       the id of the script's session, also in an actor that is a client
    inside    the actor that this process is; empty in a script
    host      this machine
    pid       of the process that began the session; a fork cannot use it

    `hear` gets the messages that are not about the session, and each Welcome but the first: it may
    be of a new master.  `complain` prints a sentence for the user; its first argument tells which
    sentences are alike.  Both run on the loop's thread.
    """

    def __init__(
        self,
        address: str,
        key: MemberKey,
        job: str,
        inside: str,
        patience_s: float,
        hear: Callable[[object], None],
        complain: Callable[[str, str], None],
    ) -> None:
        self._nonce = secrets.token_hex(16)
        self.address = address
        self.id = bound_id(key.role, key.pair.public, self._nonce)
        self.job = job or self.id
        self.inside = inside
        self.host = this_machine.identity()
        self.patience_s = min(max(0.0, patience_s), control.LONGEST_S)
        self.questions = Questions(self.tell)
        self.arrivals: set[str] = set()  # actors that dialled in and that this client was given
        self.is_leaving = False
        self.is_closed = False
        self.pid = os.getpid()
        self.loop = loop = Loop()
        self.context = sockets.new_context()
        self._on_message = hear
        self.complain = complain
        self._welcome: Future[control.Welcome] = Future()
        self._farewell = threading.Event()
        self._thread: threading.Thread | None = None
        self.link = MasterLink(
            loop, self.context, address, key, self._hello, self._hear, self._refused
        )
        loop.every(TICK_EVERY_S, self._check_master)

    def start(self, run: Callable[[], None], name: str) -> None:
        """Have `run`, which runs the loop, run on a thread of this name.

        Returns when the master has accepted this client.  Raises MasterLost, NotAllowed, ...
        """
        with shield:  # `stop` joins a thread that has begun
            thread = threading.Thread(target=run, name=name, daemon=True)
            thread.start()
            self._thread = thread
        try:
            self._welcome.result(CONNECT_S)
        except (TimeoutError, FutureTimeout):
            raise MasterLost(no_master(self.address, "it does not answer as a master")) from None

    def stop(self) -> None:
        """End the loop; what was asked, or is from now on, has no answer."""
        self.is_closed = True
        self.loop.stop()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(MASTER_SILENT_S)
        self.questions.fail_all(NotConnected, SHUT_DOWN)

    def close(self) -> None:
        """After the end of the loop: let go of everything."""
        self.link.close()
        self.context.destroy(linger=0)
        self.loop.close()

    @property
    def pythons(self) -> list[str]:
        """The versions of Python that the workers ran when the client was welcomed."""
        return self._welcome.result().pythons

    @property
    def is_forked(self) -> bool:
        """Whether this process is a fork of the one that began the session."""
        return self.pid != os.getpid()

    def check(self) -> None:
        """Raise NotConnected if this process cannot use the session."""
        if self.pid != os.getpid():
            raise NotConnected(FORKED)
        if self.is_closed:
            raise NotConnected(f"{SHUT_DOWN}; call remotely.connect() to go on")

    def ask(self, kind: Callable[..., msgspec.Struct], **fields: Any) -> Question:
        """Send a message of this kind, with a ticket; return the future of the answer."""
        self.check()
        if self.loop.is_own_thread():
            raise RemotelyError(
                "the done-callback of a future cannot ask the master (for a new actor, an actor by "
                "its name, or the status), because it runs on the thread that receives the answer. "
                "Ask in a thread of your own"
            )
        return self.questions.ask(kind, **fields)

    def tell(self, message: msgspec.Struct) -> None:
        """Send a message that needs no answer.  Any thread may call this."""
        self.loop.call(lambda: self.link.send(message))

    def leave(self) -> None:
        """Have the master end what this client owns, and wait until it has."""
        self.is_leaving = True
        self.tell(control.Goodbye())
        deadline = time.monotonic() + FAREWELL_S
        while not self._farewell.wait(MASTER_SILENT_S):
            if self.link.silent_s() > MASTER_SILENT_S or time.monotonic() > deadline:
                break

    # --- on the loop's thread ---------------------------------------------------------------------

    def _hello(self) -> control.Hello:
        return control.Hello(
            session=self.id,
            python=this_machine.PYTHON,
            pid=os.getpid(),
            host=self.host,
            machine=this_machine.machine_name(),
            actor=self.inside,
            modules=heavy_modules(),
            nonce=self._nonce,
            arrivals=sorted(self.arrivals),
        )

    def _hear(self, message: object) -> None:
        match message:
            case control.Placed(ticket=ticket, location=location):
                self.questions.answer(ticket, location)
            case control.NotPlaced(ticket=ticket, error=error, why=why):
                self.questions.fail(ticket, (error_class(error) or RemotelyError)(why))
            case control.Queued(ticket=ticket, why=why):
                self.questions.wait(ticket, why)
                if why:
                    self.loop.after(REPORT_QUEUED_AFTER_S, lambda: self._report_queued(ticket))
            case (
                control.Located(ticket=ticket)
                | control.Status(ticket=ticket)
                | control.LogPiece(ticket=ticket)
            ):
                self.questions.answer(ticket, message)
            case control.Welcome():
                if not self._welcome.done():
                    self._welcome.set_result(message)
                else:
                    self._on_message(message)
                    for question in self.questions.unanswered():
                        self.link.send(question)
            case control.Farewell():
                self._farewell.set()
            case _:
                self._on_message(message)

    def _report_queued(self, ticket: int) -> None:
        if why := self.questions.take_wait(ticket):
            text = f"remotely: waiting for a place: {why} (giving up after {self.patience_s:g} s)"
            asked, _, _ = why.partition(". ")  # a group of 100 waits as one
            self.complain(asked, text)

    def _refused(self, error: RemotelyError) -> None:
        if not self._welcome.done():
            self._welcome.set_exception(error)
        elif isinstance(error, NotAllowed):  # our key was revoked
            self.questions.refuse(type(error), str(error))
            self._farewell.set()  # the master says none to a stranger

    def _check_master(self) -> None:
        if self.link.silent_s() > LEASE_S and self.questions:
            why = no_master(self.address, f"silent for {self.link.silent_s():.0f} s")
            self.questions.fail_all(MasterLost, why)


def heavy_modules() -> list[str]:
    """Return which of the modules that zygotes import ahead this process has loaded."""
    return [name for name in control.HEAVY if name in sys.modules]
