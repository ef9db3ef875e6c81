"""Seat: the slot of a host in a VectorEnv.  When the host dies, a new host fills the slot.

A host on this machine steps through bells and shared memory, any other through messages.
"""

import contextlib
import os
import pickle
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

import remotely
from remotely.machine.shield import RLock, shield
from remotely_rl import cluster
from remotely_rl.cluster import Making
from remotely_rl.supervision import CrashReport
from remotely_rl.supervision.failures import LOST
from remotely_rl.supervision.vector import Make
from remotely_rl.vector.bells import MORE, PAUSE, STEP, Switchboard
from remotely_rl.vector.board import FAILED, PENDING, Board
from remotely_rl.vector.host import Host, Rest, Settings, StepRows
from remotely_rl.vector.states import TABLE, Episodes, SeatEvent, SeatState

MAKING_S = 5.0  # how long `close` waits for a host that is being made


class HostFailed(Exception):
    """The host's process has ended, or its call has raised."""

    @property
    def why(self) -> BaseException:
        """The original exception."""
        return self.__cause__ or self


class Spare:
    """A host without environments, made in advance, so that replacing a host starts no process.

    It is made only on a cluster that this process has started for itself: on the user's cluster it
    would take or wait for room.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = options
        self._lock = RLock()
        self._making: Making[Any] | None = None
        self._is_closed = False

    def new(self) -> Any:
        """Make and return a host without environments."""
        return remotely.options(Host, **self._options)()

    def make(self) -> None:
        """Start making the spare, unless there is one."""
        with self._lock:
            if self._making is None and not self._is_closed and cluster.is_own():
                self._making = Making(self.new, waits_for_room=False)

    def take(self) -> Any:
        """Return the spare, or a new host if there is none."""
        with self._lock:
            making, self._making = self._making, None
        if making is not None:
            with contextlib.suppress(Exception):  # it has died, or there was no room
                host = making.made.result()
                host.ping()
                return host
        return self.new()

    def close(self) -> None:
        """Close the spare."""
        with self._lock:
            self._is_closed = True
            making, self._making = self._making, None
        if making is not None:
            making.close(MAKING_S)


class Seat:
    """See the module's docstring.  It has the rows `begin` to `end`.

    Each method that causes an event (states.py) also changes the state.  Methods that must not be
    interrupted halfway by an exception from a signal handler are shielded.
    """

    def __init__(
        self,
        index: int,
        begin: int,
        makes: Sequence[Make],
        settings: Settings,
        episodes: Episodes,
        bells: Switchboard,
        on_end: Callable[["Seat", "Future[None]", BaseException], None],
    ):
        """`on_end` is called on another thread as soon as a call of `serve` raises."""
        self.index, self.begin, self.end = index, begin, begin + len(makes)
        self.rows = slice(self.begin, self.end)
        self.state = SeatState.DEAD
        self.attributes: dict[str, dict[int, Any]] = {}  # set by the user, for the next host
        self.steps = 0  # taken by the host
        self.has_dead_host = False  # to be reported and released
        self.is_reported = False  # the host's death, perhaps by another thread
        self.report: CrashReport | None = None  # of the last death
        self.is_shared = False
        self.mail = b""  # the parts received of the pickled rest of its rows
        self._error: BaseException | None = None  # of its last call, if that failed
        self._makes = list(makes)
        self._settings = settings
        self._episodes = episodes
        self._on_end = on_end
        self._host: Any = None
        self._making: Making[Any] | None = None
        self._serving: Future[None] | None = None
        self._step: Future[StepRows] | None = None
        self._bells = bells
        self._board: Board  # of a host that shares memory

    def __contains__(self, env: int) -> bool:
        return self.begin <= env < self.end

    def happens(self, event: SeatEvent) -> None:
        """Apply an event, but report no death.  Raises KeyError for one that cannot happen."""
        rule = TABLE[self.state, event]
        self.has_dead_host |= rule.reports_death
        if rule.loses_episodes:
            self._episodes.lose(self.rows)
        self.state = rule.next  # last: an interrupted event is applied again

    # --- making and losing hosts ------------------------------------------------------------------

    def make(self, spare: Spare, is_replacement: bool) -> None:
        """Start making a host on another thread; a replacement waits until there is room."""
        # The thread does not reference this seat: it would keep an abandoned VectorEnv alive.
        attributes = {name: dict(values) for name, values in self.attributes.items()}
        args = self._makes, self._settings, attributes, is_replacement, self.begin

        def made() -> Any:
            host = spare.take() if is_replacement else spare.new()
            host.make(*args)
            if is_replacement:
                spare.make()
            return host

        self._making = Making(made, waits_for_room=is_replacement)

    def join(self) -> None:
        """Wait for the host that is being made.  Raises HostFailed."""
        assert self._making is not None
        self.steps, self.is_reported, self._error = 0, False, None
        host = self._result(self._making.made)
        with shield:
            self._host = host
            self.happens(SeatEvent.ARRIVAL)

    def share(self, board: Board | None) -> None:
        """Share memory with the host if it is on this machine.  Raises HostFailed."""
        self.is_shared = False
        if board is not None:
            self._board = board
            self._connect()
        self.happens(SeatEvent.CONNECTION)

    def _connect(self) -> None:
        board, bells = self._board, self._bells
        address, rung = bells.address(self.index)
        try:
            pid = self._result(remotely.submit(self._host.share, board, address))
            bells.connect(self.index, pid)
        except HostFailed as error:
            if not isinstance(error.why, (remotely.NotShared, OSError)):
                raise
            self._error = None
            bells.disconnect(self.index)
            return
        except ProcessLookupError:  # it has died since: a call raises the cause
            self._result(remotely.submit(self._host.ping))
            raise
        finally:
            os.close(rung)
        self.is_shared = True
        self._serve()

    def release(self) -> Any:
        """Disconnect and return the host, if there is one: it has failed or is to be closed."""
        host, self._host, self._serving, self._step = self._host, None, None, None
        self.has_dead_host, self.mail = False, b""
        self._bells.disconnect(self.index)
        return host

    def kill(self) -> None:
        """Kill the host's process, from any thread; its death is handled like any other.

        One that is being made waits for room no longer.
        """
        if (making := self._making) is not None:
            making.give_up()
        if (host := self._host) is not None:
            cluster.on_a_thread(partial(remotely.kill, host))

    def pop_making(self) -> Making[Any] | None:
        """Return the host that is being made, if any, for closing it."""
        making, self._making = self._making, None
        return making

    def why(self, timeout_s: float) -> BaseException:
        """Return why the host has failed; wait up to `timeout_s` for the cause."""
        if self._error is None and self._serving is not None:
            with contextlib.suppress(TimeoutError):
                self._error = self._serving.exception(timeout_s)
        return self._error or HostFailed("its process has ended for an unknown reason")

    def is_served_by(self, call: "Future[None]") -> bool:
        """Whether this is the current host's latest call of `serve`."""
        return call is self._serving

    # --- steps ------------------------------------------------------------------------------------

    def begin_step(self, parity: int, actions: Any) -> None:
        """Send a step to the host, if it is alive.  `actions`, of its rows, are for a message."""
        self.steps += 1
        if not self.is_shared:
            self._step = self._submit("step", actions)
        else:
            # 1 and 2 of bells.py.  PENDING first: the host may answer before `ring` returns.
            self._board.mail_nbytes[self.index] = PENDING
            if not self._bells.ring(self.index, STEP[parity]):
                self.happens(SeatEvent.DEATH)
                return
        self.happens(SeatEvent.STEP)

    def poll(self) -> bool:
        """Process the answer of a host that shares memory; return false if it is pending."""
        nbytes = int(self._board.mail_nbytes[self.index])
        if nbytes == PENDING:
            return False
        if nbytes == FAILED:
            self.happens(SeatEvent.DEATH)
        elif not nbytes:
            self.happens(SeatEvent.ANSWER)
        else:
            with shield:  # or a part might be added twice, or the next one never requested
                self.mail += self._board.mail[self.index, : abs(nbytes)].tobytes()
                if nbytes > 0:
                    self.happens(SeatEvent.ANSWER)
                else:  # 7 of bells.py: the host does not write the mail before MORE
                    self._board.mail_nbytes[self.index] = PENDING
                    self._bells.ring(self.index, MORE)
        return True

    def open_mail(self) -> Rest:
        """Return the rest of its rows, once all parts are received."""
        rest: Rest = pickle.loads(self.mail)  # noqa: S301 - from an actor that this process made
        return rest

    def take_step(self) -> StepRows:
        """Return the rows of a host without shared memory.  Raises HostFailed."""
        assert self._step is not None
        rows: StepRows = self._result(self._step)
        return rows

    # --- calls ------------------------------------------------------------------------------------

    def submit(self, method: str, *args: Any) -> "Future[Any]":
        """Call a method of the host between two steps."""
        with shield:  # or the next step would wait forever
            if not self.is_shared:
                return self._submit(method, *args)
            self._bells.ring(self.index, PAUSE)
            try:
                return self._submit(method, *args)
            finally:  # even if the arguments cannot be pickled
                self._serve()

    def _submit(self, method: str, *args: Any) -> "Future[Any]":
        return remotely.submit(getattr(self._host, method), *args)

    def result(self, call: "Future[Any]") -> Any:
        """Return the result of a call, or raise the environment's exception.

        Raises HostFailed if the host has died.
        """
        if isinstance(call.exception(), LOST):
            return self._result(call)
        return call.result()

    def _result(self, call: "Future[Any]") -> Any:
        if error := call.exception():
            self._error = error
            raise HostFailed from error
        return call.result()

    def _serve(self) -> None:
        serving = self._serving = remotely.submit(self._host.serve)
        on_end = self._on_end

        def ended(call: "Future[None]") -> None:
            if error := call.exception():
                on_end(self, call, error)

        serving.add_done_callback(ended)


def end(seats: Sequence[Seat], bells: Switchboard, spare: Spare) -> None:
    """Close all hosts, including those that are being made.

    One that hangs while it is made ends with this process.
    """
    ends: list[Callable[[], None]] = [spare.close]
    for seat in seats:
        host, making = seat.release(), seat.pop_making()
        if host is not None:
            ends.append(partial(cluster.close, host))
        elif making is not None:
            ends.append(partial(making.close, MAKING_S))
    cluster.all_at_once(ends)
    bells.close()
