"""Hosts: those of a VectorEnv, and what it takes that between any call and its answer one may die.

A step is begun in all hosts, and then waited for (`_gather`).  A host that has died, in the step or
since the last one, has not answered; what follows depends on its environments:

    an episode was under way   its row in this step is the one of a crash (`_pay`)
    an episode is to begin     another host has to be there first, and begins it (`_recover`)

The first step of a new host begins an episode of each of its environments.  Where nobody has seen
these, because the row is that of a crash, they are begun again in the next step.

It is over 250 lines because all of this is one state: who is there, and whose rows have been told.
"""

import contextlib
import itertools
import os
import threading
import weakref
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import numpy as np
from gymnasium.error import ClosedEnvironmentError
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate
from numpy.typing import NDArray

from remotely.machine.shield import RLock
from remotely_rl.acting import cluster
from remotely_rl.errors import TrainingError
from remotely_rl.supervision import Crashes, CrashReport
from remotely_rl.supervision import infos as joining
from remotely_rl.supervision.failures import LOST, is_failure, report_of
from remotely_rl.supervision.infos import Info
from remotely_rl.supervision.rows import Rows
from remotely_rl.supervision.vector import CRASH, Make, check_none_ended
from remotely_rl.vector import seat as seats_module
from remotely_rl.vector.bells import Switchboard
from remotely_rl.vector.board import Board
from remotely_rl.vector.host import Description, Message, Rest, Settings
from remotely_rl.vector.seat import HostFailed, Seat, Spare

# Of a cluster that the first VectorEnv starts for itself: for the spare, and for the next ones.
EMBEDDED_CPUS = 256
CAUSE_S = 5.0  # how long to wait for why a host died

Parts = list[tuple[int, Info]]  # the infos of hosts, and their first rows
Outcomes = tuple[NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_]]


class Hosts:
    """See the module's docstring.  `description` is that of the environments."""

    description: Description

    def __init__(
        self,
        makes: Sequence[Make],
        width: int,
        settings: Settings,
        crashes: Crashes,
    ):
        """Make the environments, `width` in a host.  Raises what making one raises."""
        self.count = len(makes)
        self.crashes = crashes
        self._mode, self._waits = settings.autoreset_mode, settings.waits
        self._lock = RLock()  # of the crashes, and of what is made
        self._failure: BaseException | None = None  # that the next step raises
        self._complaint: Exception | None = None  # that it raises once
        self._is_closing = False
        self._deaths: dict[int, CrashReport] = {}  # the last of each seat
        begins = [*range(0, self.count, width), self.count]
        me = weakref.ref(self)

        def on_end(seat: Seat, call: "Future[None]", error: BaseException) -> None:
            if (hosts := me()) is None:
                return
            with hosts._lock:
                if seat.is_served_by(call):
                    hosts._tell(seat, error)

        self._seats = [
            Seat(i, begin, makes[begin:end], settings, on_end)
            for i, (begin, end) in enumerate(itertools.pairwise(begins))
        ]
        cluster.connect(EMBEDDED_CPUS + len(self._seats))
        self._bells = Switchboard(len(self._seats))
        self._spare = Spare(settings.cpus)
        self._end = weakref.finalize(self, seats_module.end, self._seats, self._bells, self._spare)
        try:
            self._take_seats(begins)
        except BaseException as error:
            self._end()
            if isinstance(error, HostFailed):  # what never was there is not flaky
                raise error.why from None
            raise

    def _take_seats(self, begins: list[int]) -> None:
        """Make the hosts, and what their rows are written into."""
        for seat in self._seats:
            seat.make(self._spare, is_replacement=False)
        for seat in self._seats:
            seat.join()
        descriptions = [seat.result(seat.submit("describe")) for seat in self._seats]
        first = self.description = descriptions[0]
        for seat, one in zip(self._seats, descriptions, strict=True):
            if one[:2] != first[:2]:
                raise TrainingError(
                    f"environment {seat.begin} has other spaces than the first: {one[:2]} instead"
                    f" of {first[:2]}"
                )
        count, space = self.count, first.observation_space
        self._action_space = batch_space(first.action_space, count)
        self._board: Board | None = None
        if first.pid != os.getpid():  # else it is a plain object, in this process
            with contextlib.suppress(TypeError):  # of parts that are no arrays: by messages
                self._board = Board(space, first.action_space, begins)
        if (board := self._board) is not None:
            self._rows = board.rows(0), board.rows(1)
            self.outcomes: Outcomes = board.rewards, board.terminated, board.truncated
        else:
            self._rows = Rows(space, count), Rows(space, count)
            self.outcomes = np.zeros(count), np.zeros(count, np.bool_), np.zeros(count, np.bool_)
        self._parity = 0
        self._ended = np.zeros(count, np.bool_)  # in the last step, so the next one resets them
        self._owed = np.zeros(count, np.bool_)  # died with their host, and no row has told so yet
        self._is_stepping = False
        self._left: list[Seat] = []  # that have not begun the step
        self._begun: list[Seat] = []
        self._renewing: set[int] = set()  # seats that get a new host in this step
        self._waiting: dict[int, bytes] = {}  # for which hosts, and what of their mail has come
        self._done: list[Seat] = []
        for seat in self._seats:
            seat.share(board, self._bells)
        self._spare.make()

    @property
    def rows(self) -> Rows:
        """The observations of the last step, or reset."""
        return self._rows[self._parity]

    # --- steps ------------------------------------------------------------------------------------

    def begin(self, actions: Any) -> None:
        """Begin a step.  Raises ValueError for an episode that is over if nothing resets it."""
        self._settle()
        if self._mode is AutoresetMode.DISABLED and not self._waits:
            check_none_ended(self._ended)
        self._actions = actions
        self._each: list[Any] | None = None  # the actions one by one, if a host needs them so
        if self._board is not None:
            self._board.write_actions(actions)
        self._parity ^= 1
        self._done, self._begun, self._waiting = [], [], {}
        self._renewing.clear()
        self._left = list(self._seats)
        self._is_stepping = True
        self._begin_those_left()

    def _begin_those_left(self) -> None:
        """Let the hosts take the step that have not begun it yet: an interrupt may come between."""
        while self._left:
            self._begin(self._left[0])
            self._left.pop(0)

    def finish(self) -> Info:
        """Wait for the end of the step; return the infos.  Raises what ends the run."""
        self.check_is_open()
        parts: Parts = []
        self._gather(self._begun, parts)
        if len(self._done) < len(self._seats):
            for seat in self._seats:
                if seat not in self._done:
                    self._recover(seat, parts)
        infos = self._joined(parts)
        if self._owed.any():
            self._pay(infos)
        if self._mode is not AutoresetMode.SAME_STEP:
            over = np.logical_or(*self.outcomes[1:])
            self._ended[:] = over | self._ended if self._waits else over
        self._is_stepping = False
        with self._lock:
            self.crashes.stepped(self.count)
            if self._failure is not None:
                raise self._failure
            if (complaint := self._complaint) is not None:
                self._complaint = None
                raise complaint
        return infos

    def _settle(self) -> None:
        """Wait for the end of a step that was interrupted, by Ctrl-C for example."""
        self.check_is_open()
        if self._is_stepping:
            self._begin_those_left()
            self.finish()

    def check_is_open(self) -> None:
        """Raise ClosedEnvironmentError after `close`."""
        if self._is_closing:
            raise ClosedEnvironmentError("this VectorEnv has been closed: make another")

    def _begin(self, seat: Seat) -> bool:
        """Let a host take a step; return whether it is there."""
        if not seat.has_host:
            return False
        actions = None
        if not seat.is_shared:
            if self._each is None:
                self._each = list(iterate(self._action_space, self._actions))
            own = self._each[seat.rows]
            out: Any = create_empty_array(self.description.action_space, len(own))
            actions = concatenate(self.description.action_space, own, out)
        has_begun = seat.begin_step(self._parity, actions)
        if has_begun:
            self._begun.append(seat)
            if seat.is_shared:
                self._waiting[seat.index] = b""
        return has_begun

    def _gather(self, seats: Sequence[Seat], parts: Parts) -> None:
        """Wait for the rows of hosts that were told to step; those that have come are done."""
        waiting = self._waiting
        while waiting:
            for index, has_answered in self._bells.wait():
                if not has_answered:
                    self._bells.disconnect(index)
                if index not in waiting:  # it died a moment after its answer
                    continue
                seat, rest = self._seats[index], None
                if has_answered:
                    with contextlib.suppress(HostFailed):
                        rest, waiting[index] = seat.read_mail(waiting[index])
                        if rest is None:
                            continue
                del waiting[index]
                if rest is not None:
                    self._done.append(seat)
                    self._add(seat, rest, parts)
        for seat in seats:
            if not seat.is_shared and seat not in self._done:
                with contextlib.suppress(HostFailed):
                    rows = seat.take_step()
                    self._write(seat, rows)
                    self._done.append(seat)
                    self._add(seat, rows.rest, parts)

    def _write(self, seat: Seat, message: Message) -> None:
        """Write the rows that came in a message."""
        rows, at = self.rows, seat.rows
        for array, part in zip(rows.arrays, message.observations, strict=True):
            array[at] = part
        for objects, items in zip(rows.objects, message.objects, strict=True):
            objects[at] = items
        for array, part in zip(self.outcomes, message.outcomes, strict=True):
            array[at] = part

    def _add(self, seat: Seat, rest: Rest, parts: Parts) -> None:
        """Count the crashes that a host has survived; add its infos to those of all."""
        if rest.crashes:
            named = {id(report): self._named(seat, report) for report in rest.crashes}
            for part in (rest.infos, rest.infos.get("final_info", {})):
                if CRASH in part:
                    part[CRASH][:] = [named.get(id(report), report) for report in part[CRASH]]
            for report in named.values():
                self._count(report)
        if rest.infos:
            parts.append((seat.begin, rest.infos))

    def _joined(self, parts: Parts) -> Info:
        """Return the infos of all rows."""
        if len(self._seats) == 1:
            return parts[0][1] if parts else {}
        return joining.merge(parts, self.count)

    # --- hosts that die ---------------------------------------------------------------------------

    def _tell(self, seat: Seat, error: BaseException) -> None:
        """Tell that a host has died, once, and begin to make another.  On any thread."""
        with self._lock:
            if seat.is_told:
                return
            seat.is_told = True
            report = self._deaths[seat.index] = self._named(seat, report_of(error, seat.steps))
            if is_failure(error):
                self._count(report)
            elif self._failure is None:
                self._failure = error
            if self._failure is None and not self._is_closing:
                seat.make(self._spare, is_replacement=True)

    def _count(self, report: CrashReport) -> None:
        """Count and tell a crash.  What that raises, the user's step raises, on its own thread."""
        with self._lock:
            try:
                self.crashes.add(report)
            except TrainingError as error:
                self._failure = error
            except Exception as error:  # of `on_crash` or `say`: the environments go on
                self._complaint = error

    def _named(self, seat: Seat, report: CrashReport) -> CrashReport:
        """Return a host's report with the index that the environment has here."""
        env = None if report.env is None else seat.begin + report.env
        return replace(report, env=env, actor=seat.index)

    def _lose(self, seat: Seat) -> None:
        """A host has died, or its call has raised: let go of it."""
        error = seat.why(CAUSE_S) or HostFailed("its process has ended, and nobody knows why")
        with self._lock:  # or its end, seen by another thread, would be that of the next host
            self._tell(seat, error)
            host = seat.leave()
        if host is not None and not isinstance(error, LOST):
            threading.Thread(target=cluster.close, args=(host,), daemon=True).start()

    def _renew(self, seat: Seat) -> None:
        """Wait for a new host.  Raises what ends the run."""
        while True:
            with self._lock:
                if self._failure is not None:
                    raise self._failure
            try:
                if not seat.has_host:  # else an interrupt came between the two
                    seat.join()
                seat.share(self._board, self._bells)
                return
            except HostFailed:
                self._lose(seat)

    def _recover(self, seat: Seat, parts: Parts) -> None:
        """A host has not taken the step: end the episodes that it had, begin those that are due."""
        if seat.has_host and seat.index not in self._renewing:
            self._lose(seat)
        owed = ~self._ended[seat.rows]
        self._owed[seat.rows] |= owed
        is_due = self._mode is AutoresetMode.SAME_STEP or (
            self._mode is AutoresetMode.NEXT_STEP and not owed.all()
        )
        while is_due:  # a new host begins an episode of each in its first step
            self._renewing.add(seat.index)
            self._renew(seat)
            if self._begin(seat):
                self._gather([seat], parts)
                if seat in self._done:
                    break
            self._renewing.discard(seat.index)
            self._lose(seat)

    def _pay(self, infos: Info) -> None:
        """Write the rows of the episodes that died with their hosts."""
        rows, last = self._rows[self._parity], self._rows[1 - self._parity]
        rewards, terminated, truncated = self.outcomes
        count, in_same_step = self.count, self._mode is AutoresetMode.SAME_STEP
        for seat in self._seats:
            owed = np.flatnonzero(self._owed[seat.rows]).tolist()
            if not owed:
                continue
            report = self._deaths[seat.index]
            at = [seat.begin + one for one in owed]
            if not in_same_step:  # else they are of the episodes that begin in these rows
                for key, mask in infos.items():
                    if key.startswith("_"):
                        mask[at] = False
            for i in at:
                joining.add(infos, CRASH, report, i, count)
                rewards[i], terminated[i], truncated[i] = 0.0, False, True
                if in_same_step:
                    joining.add(infos, "final_obs", last.row(i), i, count)
                    infos.setdefault("_final_info", np.zeros(count, np.bool_))[i] = True
                    joining.add(infos.setdefault("final_info", {}), CRASH, report, i, count)
                else:
                    rows.copy_row(i, last)
            if seat.has_host and not in_same_step:  # it has begun episodes that nobody has seen
                with contextlib.suppress(HostFailed):
                    seat.result(seat.submit("end_episodes", owed))
        self._owed[:] = False

    # --- between steps ----------------------------------------------------------------------------

    def reset(
        self, chosen: NDArray[np.bool_], seeds: Sequence[int | None], options: Info | None
    ) -> Info:
        """Begin an episode in the chosen environments; return the infos."""
        self._settle()
        parts: Parts = []
        left = [seat for seat in self._seats if chosen[seat.rows].any()]
        while left:
            calls = []
            for seat in left:
                given = dict(options) if options else None
                if given is not None and "reset_mask" in given:
                    given["reset_mask"] = chosen[seat.rows]
                if not seat.has_host:
                    self._renew(seat)
                    # Whom it will reset without being told to: the row of that is a truncated one.
                    self._owed[seat.rows] |= ~chosen[seat.rows] & ~self._ended[seat.rows]
                calls.append(seat.submit("reset", seeds[seat.rows], given, self._parity))
            failed = []
            for seat, call in zip(left, calls, strict=True):
                try:
                    reply = seat.result(call)
                except HostFailed:
                    self._lose(seat)
                    failed.append(seat)
                    continue
                if isinstance(reply, Message):
                    self._write(seat, reply)
                    reply = reply.rest
                self._add(seat, reply, parts)
            left = failed
        self._owed &= ~chosen
        self._ended &= ~chosen
        for array in self.outcomes[1:]:
            array[chosen] = False
        return self._joined(parts)

    def ask(self, which: Sequence[int], method: str, *args: Any) -> list[Any]:
        """Ask something of some environments, of all hosts at once; return their answers."""
        self._settle()
        asked = []
        for seat in self._seats:
            of_seat = [i - seat.begin for i in which if i in seat]
            if of_seat:
                self._ensure(seat)
                asked.append((seat, of_seat, seat.submit(method, of_seat, *args)))
        found: dict[int, Any] = {}
        for seat, of_seat, call in asked:
            answers = self._answer(seat, call)
            found.update(zip((seat.begin + i for i in of_seat), answers, strict=True))
        return [found[i] for i in which]

    def set_attributes(self, which: Sequence[int], name: str, values: Sequence[Any]) -> None:
        """Set an attribute of some environments, and of those that will replace them."""
        for seat in self._seats:
            pairs = [(i, one) for i, one in zip(which, values, strict=True) if i in seat]
            if pairs:
                own = {i - seat.begin: value for i, value in pairs}
                self._call(seat, "set_attr", name, own)
                seat.attributes.setdefault(name, {}).update(own)

    def pause(self) -> tuple[list[bytes], NDArray[np.bool_]]:
        """Return the state of each host, from which `resume` goes on bit by bit, and who has ended.

        That of a host is empty if its environments cannot be saved.
        """
        return self._call_all("pause", [()] * len(self._seats)), self._ended.copy()

    def resume(self, paused: tuple[list[bytes], NDArray[np.bool_]]) -> bool:
        """Go on from what `pause` returned; return whether all hosts could."""
        states, ended = paused
        if len(states) != len(self._seats) or not all(states):
            return False
        resumed = self._call_all("resume", [(one, self._parity) for one in states])
        self._ended[:] = ended
        return all(resumed)

    def _call_all(self, method: str, args: Sequence[tuple[Any, ...]]) -> list[Any]:
        self._settle()
        for seat in self._seats:
            self._ensure(seat)
        calls = [seat.submit(method, *of) for seat, of in zip(self._seats, args, strict=True)]
        return [self._answer(seat, call) for seat, call in zip(self._seats, calls, strict=True)]

    def render(self) -> tuple[Any, ...]:
        """Return a frame of each environment."""
        frames = [self._call(seat, "render") for seat in self._seats]
        return tuple(frame for part in frames for frame in part or ())

    def close(self) -> None:
        """End the actors."""
        with self._lock:
            self._is_closing = True
            self.crashes.tell()
        self._end()

    def _call(self, seat: Seat, method: str, *args: Any) -> Any:
        self._settle()
        self._ensure(seat)
        return self._answer(seat, seat.submit(method, *args))

    def _answer(self, seat: Seat, call: Any) -> Any:
        try:
            return seat.result(call)
        except HostFailed as failed:
            self._lose(seat)
            raise failed.why from None

    def _ensure(self, seat: Seat) -> None:
        """Wait for a host where one has died.  The next step tells that of its environments."""
        if not seat.has_host:
            self._renew(seat)
            self._owed[seat.rows] |= ~self._ended[seat.rows]
