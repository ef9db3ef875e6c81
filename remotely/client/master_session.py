"""A client's session with the master: its identity, its questions, and its departure.

The session owns the client's loop and the sockets' context.  `start` runs the loop on a daemon
thread; `stop` ends the loop, and `close` releases the rest.

A session outlives its connection and its master.  When a master welcomes the client again, the
client repeats all unanswered questions, except those that were cancelled.
"""

import itertools
import os
import secrets
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any

import msgspec

from remotely.errors import (
    SHUT_DOWN,
    MasterLost,
    NotAllowed,
    NotConnected,
    RemotelyError,
    error_class,
)
from remotely.futures import wakeup
from remotely.futures.future import CallFuture
from remotely.machine import this_machine, threads
from remotely.machine.gate import Gate
from remotely.machine.watched_process import WatchedProcess
from remotely.protocol import control
from remotely.protocol.address import FORKED, no_master
from remotely.protocol.ids import bound_id
from remotely.protocol.lease import CONNECT_S, DRAIN_S, LEASE_S, TERM_S, TICK_EVERY_S
from remotely.transport import sockets
from remotely.transport.keys import MemberKey
from remotely.transport.loop import Loop
from remotely.transport.master_link import HANDLED_BY_LINK, MasterLink

REPORT_QUEUED_AFTER_S = 2.5  # a cluster that is just starting has room soon
FAREWELL_S = DRAIN_S + TERM_S + 2.0  # for the client's actors to end when it leaves
MASTER_SILENT_S = 3.0  # after which a leaving client does not wait for the master

Handlers = Mapping[type[Any], Callable[[Any], object]]  # of messages, by their types


class Question(CallFuture[Any]):
    """One question to the master; the future of its answer."""

    def __init__(self, message: Any) -> None:
        super().__init__("the master")
        self.message = message
        self._is_queued = False

    def cancel(self) -> bool:
        """Drop the question: its answer is not needed."""
        self.settle_cancelled()
        self.run_callbacks()
        return self.cancelled()

    def note_queued(self) -> None:
        """Note that the master has no room yet."""
        self._is_queued = True
        wakeup.wake(self)

    def has_room(self) -> bool:
        """Wait for the answer; return false if the master says that there is no room yet."""
        if not self._is_known():
            wakeup.sleep_until(self._is_known, about=self)
        return self._state != "PENDING"

    def _is_known(self) -> bool:
        return self._is_queued or self._state != "PENDING"


class Questions:
    """The unanswered questions of one client.  Any thread may ask; the loop's thread answers.

    None is asked once the client has left, or its key was revoked.
    """

    def __init__(self, send: Callable[[msgspec.Struct], None]) -> None:
        self._gate = Gate()
        self._send = send
        self._tickets: dict[int, Question] = {}
        self._waits: dict[int, str] = {}  # by ticket, why a question waits for room
        self._ids = itertools.count(1)

    def __bool__(self) -> bool:
        return bool(self._tickets)

    def ask(self, kind: Callable[..., msgspec.Struct], **fields: Any) -> Question:
        """Send a message of this kind, with a ticket; return the future of the answer."""
        ticket = next(self._ids)
        question = Question(kind(ticket=ticket, **fields))
        question.then(lambda _: self._tickets.pop(ticket, None))  # if cancelled
        with self._gate:
            self._gate.check()
            self._tickets[ticket] = question
        self._send(question.message)
        return question

    def unanswered(self) -> list[msgspec.Struct]:
        return [question.message for question in list(self._tickets.values())]

    def answer(self, ticket: int, value: object) -> None:
        question = self._tickets.pop(ticket, None)
        if question:
            question.settle(value, None)
            question.run_callbacks()

    def fail(self, ticket: int, error: RemotelyError) -> None:
        question = self._tickets.pop(ticket, None)
        if question:
            question.settle(None, error)
            question.run_callbacks()

    def fail_all(self, kind: type[RemotelyError], why: str) -> None:
        for ticket in list(self._tickets):
            self.fail(ticket, kind(why))

    def refuse(self, kind: type[RemotelyError], why: str) -> None:
        """Fail all present and future questions with this error."""
        with self._gate:
            self._gate.close(lambda: kind(why))
        self.fail_all(kind, why)

    def note_queued(self, ticket: int, why: str) -> None:
        """Note why there is no room for a question; an empty `why` means that there is room now."""
        if not why:
            self._waits.pop(ticket, None)
            return
        self._waits[ticket] = why
        if question := self._tickets.get(ticket):
            question.note_queued()

    def take_queue_reason(self, ticket: int) -> str:
        """Return once why a question still waits for room; "" if it does not."""
        why = self._waits.pop(ticket, "")
        return why if ticket in self._tickets else ""


Answer = (
    control.Located
    | control.Status
    | control.LogPiece
    | control.DrainHeard
    | control.Events
    | control.KeyState
)


class MasterSession:
    """The client's session with the master.

    id        the id of the session, which owns the actors that the client makes
    job       the id of the script's session, also in an actor that is a client
    inside    the id of the actor that this process runs; empty in a script
    host      the id of this machine
    pid       the process that began the session; a fork cannot use it

    `warn(key, sentence)` prints a sentence for the user, those with one key only once in a while.
    `on_return` is called when a master, which may be a new one, welcomes the client again, before
    the questions are repeated.  `handlers` has the messages that are not about the session.
    `on_connection` is as in `MasterLink`.  All run on the loop's thread.
    """

    def __init__(
        self,
        address: str,
        key: MemberKey,
        job: str,
        inside: str,
        patience_s: float,
        warn: Callable[[str, str], None],
        on_return: Callable[[], object],
        handlers: Handlers,
        on_connection: Callable[[bool], object] | None = None,
    ) -> None:
        self._nonce = secrets.token_hex(16)
        self.address = address
        self.id = bound_id(key.role, key.pair.public, self._nonce)
        self.job = job or self.id
        self.inside = inside
        self.host = this_machine.identity()
        self.patience_s = min(max(0.0, patience_s), control.LONGEST_S)
        self.questions = Questions(self.send)
        self.arrivals: set[str] = set()  # actors that dialled in and were given to this client
        self.is_leaving = False
        self._timelines: dict[str, list[control.ProcessTimeline]] = {}  # that arrive
        self.gate = Gate(lambda: NotConnected(SHUT_DOWN))
        self.pid = os.getpid()
        self.loop = loop = Loop()
        self.context = sockets.new_context()
        self.warn = warn
        self._on_return = on_return
        self._handlers: Handlers = {
            control.Welcome: self._on_welcome,
            control.Placed: lambda placed: self.questions.answer(placed.ticket, placed.location),
            control.NotPlaced: self._on_refused_place,
            control.Queued: self._on_queued,
            control.Located: self._on_answer,
            control.Status: self._on_answer,
            control.LogPiece: self._on_answer,
            control.DrainHeard: self._on_answer,
            control.Events: self._on_answer,
            control.KeyState: self._on_answer,
            control.ProcessTimeline: self._on_process_timeline,
            control.TimelineEnd: self._on_timeline_end,
            control.Farewell: lambda _: self._farewell.set(),
            **handlers,
        }
        heard = {*self._handlers, *HANDLED_BY_LINK}
        assert heard >= {*control.WAYS[f"master > {key.role}"]}, "each message has its handler"
        self._welcome: Future[control.Welcome] = Future()
        self._farewell = threading.Event()
        self._thread: threading.Thread | None = None
        self.link = MasterLink(
            loop,
            self.context,
            address,
            key,
            self._hello,
            self._hear,
            self._refused,
            on_connection=on_connection,
        )
        loop.every(TICK_EVERY_S, self._check_master)

    def start(self, run: Callable[[], None], name: str) -> None:
        """Call `run`, which runs the loop, on a thread of this name.

        Returns when the master has accepted this client.  Raises MasterLost, NotAllowed, ...
        """
        self._thread = threads.new(name, run)
        self._thread.start()
        try:
            self._welcome.result(CONNECT_S)
        except (TimeoutError, FutureTimeout):
            raise MasterLost(no_master(self.address, "it does not answer as a master")) from None

    def stop(self) -> None:
        """End the loop, and fail all questions, also later ones."""
        self.gate.close()
        self.loop.stop()
        thread = self._thread
        if thread is not None and thread.is_alive() and thread is not threading.current_thread():
            thread.join(MASTER_SILENT_S)
        self.questions.refuse(NotConnected, SHUT_DOWN)

    def close(self) -> None:
        """After the end of the loop: release everything."""
        self.link.close()
        self.context.destroy(linger=0)
        self.loop.close()

    @property
    def pythons(self) -> list[str]:
        """The versions of Python that the workers ran when the client was welcomed."""
        return self._welcome.result().pythons

    @property
    def is_near_master(self) -> bool:
        """Whether the master runs on this machine, and so sees the end of this process at once."""
        return self._welcome.result().host == self.host

    @property
    def is_forked(self) -> bool:
        """Whether this process is a fork of the one that began the session."""
        return self.pid != os.getpid()

    def check(self) -> None:
        """Raise NotConnected if this process cannot use the session."""
        if self.pid != os.getpid():
            raise NotConnected(FORKED)
        self.gate.check()

    def ask(self, kind: Callable[..., msgspec.Struct], **fields: Any) -> Question:
        """Send a message of this kind, with a ticket; return the future of the answer."""
        self.check()
        if self.loop.is_own_thread():
            raise RemotelyError(
                "a value that is unpickled cannot ask the master (for a new actor, an actor by its "
                "name, or the status), because it is unpickled on the thread that receives the "
                "answer. Ask in a thread of your own"
            )
        return self.questions.ask(kind, **fields)

    def ask_timeline(self, seconds: float) -> Question:
        """Have all processes record for so long; return the future of what they send."""
        return self.ask(control.AskTimeline, seconds=seconds)

    def send(self, message: msgspec.Struct) -> None:
        """Send a message that needs no answer.  Thread-safe."""
        self.loop.call(lambda: self.link.send(message))

    def end_with(self, pid: int, why: str, on_end: Callable[[], object] = lambda: None) -> None:
        """Fail all questions with MasterLost, also later ones, once that process has ended: the
        cluster is its own.  Then `on_end` is called."""
        self.loop.call(lambda: self._end_with(pid, why, on_end))

    def leave(self, within_s: float = FAREWELL_S) -> None:
        """Ask the master to end what this client owns, and wait until it has."""
        self.is_leaving = True
        self.send(control.Goodbye())
        deadline = time.monotonic() + within_s
        while not self._farewell.wait(min(MASTER_SILENT_S, within_s)):
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
            script=this_machine.script_name(),
            modules=heavy_modules(),
            nonce=self._nonce,
            arrivals=sorted(self.arrivals),
        )

    def _hear(self, message: object) -> None:
        self._handlers[type(message)](message)

    def _on_welcome(self, welcome: control.Welcome) -> None:
        if not self._welcome.done():
            self._welcome.set_result(welcome)
            return
        self._on_return()
        for question in self.questions.unanswered():
            self.link.send(question)

    def _on_answer(self, answer: Answer) -> None:
        self.questions.answer(answer.ticket, answer)

    def _on_process_timeline(self, found: control.ProcessTimeline) -> None:
        self._timelines.setdefault(found.timeline, []).append(found)

    def _on_timeline_end(self, end: control.TimelineEnd) -> None:
        if end.why:
            self.questions.fail(end.ticket, RemotelyError(end.why))
            return
        found = self._timelines.pop(end.timeline, [])
        self._timelines.clear()  # of a master that was restarted: only one is recorded at a time
        self.questions.answer(end.ticket, found)

    def _on_refused_place(self, refused: control.NotPlaced) -> None:
        error = error_class(refused.error) or RemotelyError
        self.questions.fail(refused.ticket, error(refused.why))

    def _on_queued(self, queued: control.Queued) -> None:
        self.questions.note_queued(queued.ticket, queued.why)
        if queued.again:
            self._report_queued(queued.ticket, again=True)
        elif queued.why:
            self.loop.after(REPORT_QUEUED_AFTER_S, lambda: self._report_queued(queued.ticket))

    def _report_queued(self, ticket: int, again: bool = False) -> None:
        if why := self.questions.take_queue_reason(ticket):
            text = f"remotely: waiting for a place: {why} (giving up after {self.patience_s:g} s)"
            key, _, _ = why.partition(". ")  # one warning for a group of 100
            self.warn(f"{key} again" if again else key, text)

    def _refused(self, error: RemotelyError) -> None:
        if not self._welcome.done():
            self._welcome.set_exception(error)
        elif isinstance(error, NotAllowed):  # this client's key was revoked
            self.questions.refuse(type(error), str(error))
            self._farewell.set()  # the master will send none

    def _end_with(self, pid: int, why: str, on_end: Callable[[], object]) -> None:
        def end() -> None:
            if process is not None:
                self.loop.unwatch(process.fileno())
            self.questions.refuse(MasterLost, why)
            self._farewell.set()  # the master will send none
            on_end()

        process = None
        try:
            process = WatchedProcess(pid)
            self.loop.watch(process.fileno(), end)
        except ProcessLookupError:
            end()
        except OSError:  # no descriptor is left: the silence of the master says it later
            pass

    def _check_master(self) -> None:
        if self.link.silent_s() > LEASE_S and self.questions:
            why = no_master(self.address, f"silent for {self.link.silent_s():.0f} s")
            self.questions.fail_all(MasterLost, why)


def heavy_modules() -> list[str]:
    """Return the modules that zygotes can preload and this process has loaded."""
    return [name for name in control.HEAVY if name in sys.modules]
