"""The client's record of each actor, and its channel, which is opened at the first call."""

import errno
import os
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec
import zmq

from remotely.calling.actor import CalledActor
from remotely.client.channel import Channel, Shared, refuse_in_call, this_thread
from remotely.client.end_errors import connection_error, end_error
from remotely.client.master_session import Question
from remotely.engine import Engine
from remotely.errors import SHUT_DOWN, NoResources, NotConnected, RemotelyError
from remotely.futures import unfinished, wakeup
from remotely.futures.future import CallFuture
from remotely.machine.gate import Gate
from remotely.machine.shield import RLock
from remotely.protocol import control
from remotely.protocol.address import parse_address, unreachable
from remotely.protocol.control import Location, Obituary, StoreAddress
from remotely.transport import sockets
from remotely.transport.listening import here
from remotely.transport.port_probe import PortProbe
from remotely.transport.spans import ClientSpans
from remotely.values import in_transit

OBITUARY_WAIT_S = 1.5  # after a connection has broken
CHECK_END_EVERY_S = 0.2
DESCRIPTORS = 6  # of a channel, and of the actor's memory


def _check_descriptors() -> None:
    """Raise OSError if this process has reached its limit of open files, or will with a channel.

    libzmq's own thread also needs one, and reports nothing if it gets none.
    """
    found: list[int] = []
    try:
        for _ in range(DESCRIPTORS):
            found.append(os.eventfd(0, os.EFD_CLOEXEC))  # noqa: PERF401 - closed in any case
    finally:
        for fd in found:
            os.close(fd)


class ActorState(CalledActor):
    """One actor.  All its handles in this process share this object.

    location      the actor's last known location: see `set_location`
    store         the store of its machine, if known; None on this machine
    is_apart      it is on another machine that has no store, and may reach no other store
    opening       the lock of the thread that opens a channel, also while it waits for the master.
                  Waiters sleep on it (wakeup.py), not on the actor: a channel does not hold that
    gone          whether the master has reported its end
    giver         the id of this client, if it is an actor, which may return a handle of it
    holds         whether this process keeps it alive though another made it: an actor returned it
    given         how many handles have left this process with results, so others may hold it
    arrived       how many of these the master has said to be held
    """

    def __init__(self, engine: Engine, request: control.Request, owned: bool, giver: str) -> None:
        super().__init__(engine, request.actor, request.name, owned)
        self.request = request
        self.life = request.life
        self.location: Location | None = None
        self.store: StoreAddress | None = None
        self.is_apart = False
        self.opening = RLock()
        self.gone = False
        self.giver = giver
        self.holds = False
        self.given = self.arrived = 0

    def set_location(self, location: Location, host: str) -> None:
        """Set the actor's location, for a client on this host."""
        is_elsewhere = location.host != host
        self.store = location.store if is_elsewhere else None
        self.is_apart = is_elsewhere and location.store is None
        self.location = location

    def expect_life(self, life: int) -> None:
        """Set the current life, unless it is later already: news of earlier lives is outdated."""
        if life > self.life:
            self.life = life
            self.request = msgspec.structs.replace(self.request, life=life)

    def note_return(self) -> str:
        if not (self.giver and (self.owned or self.holds) and in_transit.is_returning()):
            return ""
        with self.lock:
            self.given += 1
            in_transit.note((ReturnedHandle(self, self.given),))
        return self.giver

    def note_arrival(self) -> None:
        """Note that a client holds one of the handles that were given."""
        with self.lock:
            self.arrived = min(self.arrived + 1, self.given)

    def wake(self) -> None:
        """Wake the threads that wait for its end, its next life, or a connection."""
        wakeup.wake(self)
        wakeup.wake(self.opening)

    def wait_for_end(self, deadline: float) -> bool:
        """Wait for its end; return whether it came.  The master, which reports it, may be gone."""
        while not self.is_gone(max(0.0, min(CHECK_END_EVERY_S, deadline - time.monotonic()))):
            if self.channel is not None and self.channel.ended:
                return True
            if time.monotonic() >= deadline:
                return False
        return True

    def is_gone(self, timeout_s: float) -> bool:
        """Wait up to `timeout_s` for the master to report its end; return whether it did."""
        wakeup.sleep_until(lambda: self.gone, timeout_s, self)
        return self.gone


class ReturnedHandle:
    """Keeps an actor alive until the receiver of its handle holds it.  An `InTransit`.

    Which of several handles has arrived is not known.  So the n-th is kept until n have.
    """

    def __init__(self, actor: ActorState, number: int) -> None:
        self._actor = actor
        self._number = number

    def has_arrived(self) -> bool:
        return self._actor.arrived >= self._number or self._actor.gone


class Channels:
    """The channels of a client.  Any thread may open one; the loop's thread handles broken ones."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._loop = shared.session.loop
        self._session = shared.session
        self._host = shared.session.host
        self._stores = shared.stores
        self._stores.on_choice = self._choose_path
        self._open: set[Channel] = set()
        self._spans: list[tuple[Channel, ClientSpans]] | None = None  # while a timeline is recorded
        self._gate = Gate(lambda: NotConnected(SHUT_DOWN))  # no channel opens after the end
        unfinished.watch(self)

    def connected(self, actor: ActorState) -> Channel:
        """Return the actor's channel, connected; open one if it has none.

        Waits while the actor is being restarted or its machine is unreachable.  Raises an error if
        the actor has ended.  To open a channel:

            locate      ask the master for the actor's location
            connect     if the actor answers, done.  If it has died, locate again.  If nothing
                        answers, locate again; the master replies once it has reached the machine
            wait        the process is there, and its code lets it answer nobody: slow is not dead,
                        so locate and connect again, as long as the master knows no end of it
            fail        nothing answers at the same location, although the master reached the
                        machine: raise the error
        """
        refused: Location | None = None
        with actor.opening:
            while True:
                if channel := self._existing(actor):
                    return channel
                self.locate(actor, unreached=refused is not None)
                if channel := self._existing(actor):  # this process has made its next life
                    return channel
                assert actor.location is not None
                is_last = actor.location == refused
                refused = actor.location
                channel, is_slow = self._connect(actor, is_last)
                if channel is not None:
                    return channel
                if is_slow:
                    refused = None
                    self._session.warn(
                        actor.name,
                        f"remotely: {actor.name} does not answer: its process is there, and is "
                        "stopped, or runs code that holds the interpreter. Calls wait for it",
                    )

    def _existing(self, actor: ActorState) -> Channel | None:
        """Return the actor's open channel, if any.  If it is broken, wait until it has ended."""
        actor.wait_until_alive()
        if (before := actor.channel) is not None and not before.is_open:
            wakeup.sleep_until(
                lambda: before.ended or before.is_open or actor.ended, about=actor.opening
            )
            actor.wait_until_alive()
        channel = actor.channel
        return channel if channel is not None and channel.is_open else None

    def _connect(self, actor: ActorState, is_last: bool) -> tuple[Channel | None, bool]:
        """Connect to the actor's location; return no channel if it has died or nothing answers.

        Return too whether its process is there and slow.  If nothing answers at the last attempt
        (`is_last`), raise the reason instead.
        """
        channel = self._open_at(actor)
        life = channel.location.life

        def is_over() -> bool:
            return actor.life > life or actor.ended is not None or channel.ended is not None

        wakeup.sleep_until(
            lambda: channel.connected or is_over() or not (channel.is_open or is_last),
            about=actor.opening,
        )
        if channel.connected:
            actor.channel = channel  # first: a death that the next line misses ends this channel
        if channel.connected and not is_over():
            return channel, False
        is_slow = channel.is_slow
        if channel.ended is not None and is_last and not is_slow:
            raise channel.ended(False)
        channel.end(connection_error(channel.location, False, ""))
        return None, is_slow

    def may_wait(self) -> bool:
        """Tell whether this thread may wait: not the loop's, which receives for all channels."""
        return not self._loop.is_own_thread()

    def check_wait(self, actor: ActorState, future: CallFuture[Any]) -> None:
        """Raise an error if the caller would wait for itself, or is in the middle of a call."""
        if this_thread().in_call:
            refuse_in_call(future.what)
        if self._loop.is_own_thread():
            raise RemotelyError(
                f"{future.what} cannot be waited for here, where the outcome of another call is "
                "unpickled: this thread receives its outcome. Submit the call and continue, or "
                "wait for it in a thread of your own"
            )
        if self._shared.wait_reporter is not None:
            self._shared.wait_reporter.refuse(actor.actor, future.what)

    def sleep_until(
        self,
        is_over: Callable[[], object],
        timeout_s: float | None,
        actor: ActorState,
        future: CallFuture[Any],
    ) -> None:
        """Sleep about a call that is in the queue of an actor."""
        reporter = self._shared.wait_reporter
        if reporter is not None and isinstance(actor, ActorState):  # else the call is done
            reporter.sleep_until(is_over, timeout_s, actor.actor, future)
        else:
            wakeup.sleep_until(is_over, timeout_s, future)

    def unanswered(self) -> dict[str, int]:
        """Return the number of pending calls of each actor that has any."""
        channels = [(channel.location.actor, channel.unanswered) for channel in list(self._open)]
        return {actor: calls for actor, calls in channels if calls}

    def unfinished(self) -> list[str]:
        """Return the names of the submitted calls that were sent.  Takes no lock."""
        return [name for channel in list(self._open) for name in channel.unfinished()]

    def locate(self, actor: ActorState, unreached: bool = False) -> None:
        """Ask the master for an actor's location.  Raises an error if the actor has ended.

        `unreached`: nothing answered at its location; the master then replies once it has reached
        the machine.
        """
        asked = self._session.ask(control.Locate, actor=actor.actor, unreached=unreached)
        located = asked.result()
        if located.location is None:
            gone = located.obituary or Obituary(actor=actor.actor, life=0, asked=True)
            raise end_error(actor.name, actor.location, gone)(False)
        actor.set_location(located.location, self._host)
        actor.expect_life(located.location.life)

    def open(self, actor: ActorState, location: Location) -> Channel:
        """Open the channel of an actor that was just placed."""
        actor.set_location(location, self._host)
        channel = actor.channel = self._open_at(actor)
        return channel

    def _open_at(self, actor: ActorState) -> Channel:
        """Open a channel to the actor's known location."""
        location = actor.location
        assert location is not None
        on_news = partial(wakeup.wake, actor.opening)
        with self._gate:
            self._gate.check()
            try:
                _check_descriptors()
                channel = Channel(self._shared, location, on_news, self._broken)
            except (zmq.ZMQError, OSError) as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE):
                    raise
                raise NoResources(
                    f"this process has reached its limit of open files, and a channel to "
                    f"{actor.name} needs a few: raise the limit (ulimit -n), or drop some handles"
                ) from None
            self._open.add(channel)
            self._begin_spans(channel)
        store = None if channel.is_near else location.store
        channel.introduce(store is not None and self._stores.is_usable(store))
        return channel

    def _choose_path(self, store: StoreAddress, is_usable: bool) -> None:
        """On the loop's thread: have actors leave large results in this store, or not."""
        for channel in list(self._open):
            if channel.location.store == store and not channel.is_near and not channel.ended:
                channel.introduce(is_usable)

    def begin_spans(self) -> None:
        """Record the calls on all channels, until `take_spans`."""
        with self._gate:
            self._spans = []
            for channel in list(self._open):
                self._begin_spans(channel)

    def _begin_spans(self, channel: Channel) -> None:
        """With the gate: record the calls on a channel, if they are to be recorded."""
        if self._spans is not None and not channel.ended:
            self._spans.append((channel, channel.begin_spans()))

    def take_spans(self) -> list[tuple[Channel, ClientSpans]]:
        """Return what was recorded, and record no further calls."""
        with self._gate:
            taken, self._spans = self._spans or [], None
        for channel, _ in taken:
            channel.end_spans()
        return taken

    def end_all(self) -> None:
        """Fail all calls, after the loop has stopped.  No channel opens from then on.

        The session destroys the context next; libzmq aborts if a thread creates a socket meanwhile.
        """
        with self._gate:
            self._gate.close()
        for channel in list(self._open):
            channel.end_without_loop(lambda may: NotConnected(SHUT_DOWN))

    def recover(self) -> None:
        """On the loop's thread, every RECOVER_EVERY_S: drop ended channels, recover the others."""
        for channel in list(self._open):
            if channel.ended:
                self._open.discard(channel)
            else:
                channel.recover()

    def use_again(self) -> None:
        """On the loop's thread: a master that welcomes this client says anew which actors move."""
        for channel in list(self._open):
            channel.use_again()

    def _broken(self, channel: Channel) -> None:
        """On the loop's thread: after OBITUARY_WAIT_S, end a broken channel without an obituary."""
        end = partial(self._give_up, channel)
        if sockets.is_remote(channel.endpoint):
            reached = None
            with suppress(RemotelyError):  # the session is closed
                ask = self._session.questions.ask
                reached = ask(control.Locate, actor=channel.location.actor, unreached=True)
            end = partial(end, PortProbe(*parse_address(channel.endpoint)), reached)
        self._loop.after(OBITUARY_WAIT_S, end)

    def _give_up(
        self, channel: Channel, probe: PortProbe | None = None, reached: Question | None = None
    ) -> None:
        """End a channel.  Blame its port if it is silent but the master has reached the machine."""
        code = probe.code() if probe else 0
        is_reached = reached is not None and reached.done()
        if reached is not None:
            reached.cancel()
        if not channel.ended:
            why = ""
            if probe and is_reached:
                host, port = parse_address(channel.endpoint)
                why = unreachable(here(host, port), host, port, code)
            error = connection_error(channel.location, channel.connected, why, bool(probe))
            channel.end(error)
