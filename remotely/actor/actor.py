"""The process of one actor: receives calls, has them run, and replies to each exactly once.

Two threads.  The main thread has the socket of the calls (call_socket.py) and runs the user's code,
as a script would (dispatch.py).  The background thread deals with keys and the worker, so that
neither waits for a long call (background.py).

What ends the process is decided in this order, so that a full inbox can never keep an orphan
alive: worker gone, lease over (fence.py), stop asked, next call.
"""

import asyncio
import functools
import select
import time
import traceback
from collections import deque
from collections.abc import Iterable
from pathlib import Path

from remotely.actor import exiting
from remotely.actor.background import Background
from remotely.actor.call_socket import CallSocket
from remotely.actor.cancellations import Cancellations
from remotely.actor.delegation import Delegation
from remotely.actor.dispatch import Dispatcher
from remotely.actor.machine_store import MachineStore
from remotely.actor.payloads import Payloads
from remotely.actor.preparation import Preparation
from remotely.actor.replies import raised
from remotely.actor.servant import Servant
from remotely.actor.worker_line import Line
from remotely.api import connection
from remotely.errors import NotAllowed, WireError
from remotely.protocol import control, wire
from remotely.protocol.wire import Kind, Message
from remotely.testing import faults
from remotely.transport.activity import OneByOne
from remotely.values import references

LAST_REPLY_S = 1.0
MESSAGES_A_TURN = 100  # that an event loop takes in before it goes on with its calls
REVOKED = "the key with which this call came was revoked"


class Actor:
    """The main thread's loop, from the birth of an actor to its end.

    `served` is an object of a process that was there before, and goes on afterwards.  Without it a
    client makes the object, and the process is there for that alone.
    """

    def __init__(
        self,
        birth: control.Birth,
        line: Line,
        activity: OneByOne,
        served: object = None,
        concurrency: int = 1,
    ) -> None:
        self._tell = line.tell
        delegation = Delegation(line.tell)
        store = MachineStore(lambda: line.tell(control.Meet()))
        references.fetch_parcel = store.fetch_argument
        request = birth.request
        payloads = Payloads(request.name, store)
        preparation = Preparation(
            birth.host,
            Path(birth.folder),
            payloads,
            functools.partial(delegation.client, birth),
            kept_as=request.actor if request.max_restarts and not request.owner else "",
        )
        self._servant = Servant(payloads, preparation, activity)
        if served is not None:
            self._servant.adopt(served, concurrency)
        self._is_borrowed = served is not None
        self._background = Background(birth, line, delegation, self._servant, store)
        self._access = self._background.access
        self._wait_for_lease = self._background.wait_for_lease
        self._socket = CallSocket(self._background.context, birth, self._background.loop)
        self._cancellations = Cancellations(
            activity.page, self._socket.send_beside, self._background.loop.after
        )
        self._dispatcher = Dispatcher(
            self._servant, self._socket, self._cancellations, self._wait_for_lease
        )
        self._handle = self._dispatcher.handle
        self._is_over = self._dispatcher.is_over
        self._gone: deque[bytes] = deque()  # routes of consumers of streams
        self._is_restart = birth.again
        self._background.start(self._dispatcher.stop, self._cancellations.hear, self._tidy)

    def run(self) -> int:
        """Serve until the end, in good order."""
        try:
            if self._is_restart:
                self._servant.make_again()
            self._tell(control.Bound(tcp=self._socket.tcp))
            self._serve()
            if self._servant.is_async and not self._is_over():
                asyncio.run(self._serve_async())
        except BaseException as error:  # the user's exit: replies sent before it arrive
            self._leave(error)
            raise
        self._end()
        return 0

    # --- serving ----------------------------------------------------------------------------------

    def _serve(self) -> None:
        poll = select.poll()
        poll.register(self._socket.fd, select.POLLIN)
        poll.register(self._socket.wake_fd, select.POLLIN)
        dispatcher = self._dispatcher
        while not self._is_over() and not self._servant.is_async:
            if not self._turn() and not dispatcher.run_due():
                self._woken(fd for fd, _ in poll.poll(dispatcher.until_due_ms()))

    async def _serve_async(self) -> None:
        loop = asyncio.get_running_loop()
        over = asyncio.Event()
        dispatcher = self._dispatcher

        def turn() -> None:
            for _ in range(MESSAGES_A_TURN):
                if self._is_over() or not (self._turn() or dispatcher.run_due()):
                    break
            else:  # more may be there, and the calls that have begun are to go on
                loop.call_soon(turn)
            if self._is_over():
                over.set()
            elif (due_ms := dispatcher.until_due_ms()) is not None:
                loop.call_later(due_ms / 1000, turn)

        def woken() -> None:
            self._woken([self._socket.wake_fd])
            turn()

        loop.add_reader(self._socket.fd, turn)
        loop.add_reader(self._socket.wake_fd, woken)
        turn()
        await over.wait()
        await dispatcher.before_end()
        loop.remove_reader(self._socket.fd)
        loop.remove_reader(self._socket.wake_fd)

    def _turn(self) -> bool:
        """Take one message; return whether there was any."""
        self._wait_for_lease()
        checks_keys = self._access.some_revoked  # once: the other thread may change it meanwhile
        if (received := self._socket.receive(checks_keys)) is None:
            return False
        if self._background.is_resting:
            self._background.end_rest()
        route, key, frames = received
        try:
            messages = wire.each(wire.decode(frames, "client"))
        except WireError as error:
            self._background.throttled.add(
                "a message", f"dropped a message: {error}", time.monotonic()
            )
            return True
        if checks_keys and not self._access.may_call(key):
            for message in messages:
                self._socket.send(raised(route, message, NotAllowed(REVOKED)))
            return True
        self._socket.holds = len(messages) > 1
        try:
            for message in messages:
                if not self._is_over():
                    self._handle(route, message)
        finally:  # a call may end this process by an exception
            self._socket.end_batch()
        return True

    # --- consumers of streams ---------------------------------------------------------------------

    def _tidy(self) -> None:
        """On the background thread: forget clients, and find out which consumers are gone."""
        silent = self._servant.silent(time.monotonic())
        for route in silent:
            if not self._socket.reaches(route):
                self._gone.append(route)
        if silent:  # also since sending may have swallowed the socket's edge
            self._socket.wake()

    def _woken(self, ready: Iterable[int]) -> None:
        if self._socket.wake_fd in ready:
            self._socket.clear_wake()
            self._socket.end_batch()
        while self._gone:  # as if each had closed its streams itself
            route = self._gone.popleft()
            for name in self._servant.streams.of(route):
                self._handle(route, Message(Kind.CLOSE, 0, name, b"", ()))
            self._servant.forget(route)

    # --- the end ----------------------------------------------------------------------------------

    def _end(self) -> None:
        why = "its constructor raised" if self._servant.failed else "closed"
        self._tell(control.Ending(why=why))
        self._dispatcher.end()
        if faults.ON:
            faults.at("actor.end")
        self._leave()

    def _leave(self, error: BaseException | None = None) -> None:
        """Let go of everything; return when the last reply has left, or nobody takes it."""
        self._tell(control.Exiting(calls=self._servant.calls))
        if self._is_borrowed:
            self._servant.streams.close_all()
        else:
            self._let_go(error)
        stopped = self._background.stop(LAST_REPLY_S)
        self._socket.close(LAST_REPLY_S)
        if stopped:
            self._background.close()

    def _let_go(self, error: BaseException | None) -> None:
        """Let go of everything that the user's code has left in the process."""
        if error is not None:
            traceback.clear_frames(error.__traceback__)  # they hold the object
        files = exiting.flush_files()
        self._servant.let_go()
        exiting.run_exit_functions()
        connection.shutdown()
        exiting.flush_files()
        del files
