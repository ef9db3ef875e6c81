"""Hosts: those of a VectorEnv, and what it takes that between any call and its answer one may die.

Each host has a seat.  A step is begun in all of them, and then each is given what its state calls
for (states.py) until all rows are there, or the rows of crashes can be written for hosts that died.
A new host's first step begins an episode in each of its rows.  Where nobody has seen these, because
the row is that of a crash, they are begun again in the next step.

A handler of a signal may raise wherever this waits: the step then goes on before whatever is next.
"""

import contextlib
import itertools
import os
import threading
import weakref
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from enum import Enum
from typing import Any

import numpy as np
from gymnasium.error import ClosedEnvironmentError
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate
from numpy.typing import NDArray

from remotely.machine.shield import RLock, shield
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
from remotely_rl.vector.states import Episodes, Event, State

# Of a cluster that the first VectorEnv starts for itself: for the spare, and for the next ones.
EMBEDDED_CPUS = 256
CAUSE_S = 10.0  # how long to wait for why a host died


class Phase(Enum):
    """How far a step is.  Every use but `finish` settles the one before it first."""

    STEPPING = 1
    OVER = 2  # its rows are there
    SETTLED = 3  # and each seat is IDLE or DEAD, or is renewed between steps


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
        self._episodes = Episodes(self.count, settings.autoreset_mode, settings.waits)
        # Whether a step is refused while an episode is over.
        self._is_disabled = settings.autoreset_mode is AutoresetMode.DISABLED and not settings.waits
        if self._is_disabled:  # the check is here: a new host has to begin what no `reset` has
            settings = settings._replace(autoreset_mode=AutoresetMode.NEXT_STEP)
        self._lock = RLock()  # of the crashes, and of what is made
        self._failure: BaseException | None = None  # that the next step raises
        self._complaint: Exception | None = None  # that it raises once
        self._is_closing = False
        begins = [*range(0, self.count, width), self.count]
        me = weakref.ref(self)

        def on_end(seat: Seat, call: "Future[None]", error: BaseException) -> None:
            if (hosts := me()) is None:
                return
            with hosts._lock:
                if seat.is_served_by(call):
                    hosts._tell(seat, error)

        self._bells = Switchboard(len(begins) - 1)
        self._seats = [
            Seat(i, begin, makes[begin:end], settings, self._episodes, self._bells, on_end)
            for i, (begin, end) in enumerate(itertools.pairwise(begins))
        ]
        cluster.connect(EMBEDDED_CPUS + len(self._seats))
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
        self._phase = Phase.SETTLED
        for seat in self._seats:
            seat.share(board)
        self._spare.make()

    @property
    def memory(self) -> NDArray[np.uint8] | None:
        """The memory of the board, if there is one."""
        return None if self._board is None else self._board.memory.array

    @property
    def rows(self) -> Rows:
        """The observations of the last step, or reset."""
        return self._rows[self._parity]

    # --- steps ------------------------------------------------------------------------------------

    def begin(self, actions: Any) -> None:
        """Begin a step.  Raises ValueError for an episode that is over if nothing resets it."""
        self._settle()
        if self._is_disabled:
            check_none_ended(self._episodes.ended)
        self._actions = actions
        self._each: list[Any] | None = None  # the actions one by one, if a host needs them so
        self._own = [None if seat.is_shared else self._actions_of(seat) for seat in self._seats]
        if self._board is not None:
            self._board.write_actions(actions)
        with shield:
            self._parity ^= 1
            self._parts: list[tuple[int, Info]] = []  # the infos of hosts, and their first rows
            self._phase = Phase.STEPPING
            self._begin_in_idle()

    def finish(self) -> Info:
        """Wait for the end of the step; return the infos.  Raises what ends the run."""
        self.check_is_open()
        while True:
            self._begin_in_idle()  # those that an interrupt has left out, or that are new
            failed = self._gather()
            for seat in failed:
                if seat.is_untold:
                    self._let_go(seat)
            due = [seat for seat in failed if self._is_due(seat)]
            if not due:
                break
            for seat in due:
                self._renew(seat)
        infos = self._joined()
        if self._episodes.lost.any():
            self._pay(infos)
        self._phase = Phase.OVER
        with self._lock:
            self.crashes.stepped(self.count)
            if self._failure is not None:
                raise self._failure
            if (complaint := self._complaint) is not None:
                self._complaint = None
                raise complaint
        return infos

    def _settle(self) -> None:
        """Wait for the end of a step that was interrupted, and let each seat be IDLE or DEAD."""
        self.check_is_open()
        if self.is_stepping:
            self.finish()
        if self._phase is Phase.OVER:
            self._episodes.end_step(*self.outcomes[1:])
            for seat in self._seats:
                if seat.state is not State.IDLE:  # after an interrupt of this
                    seat.happens(Event.END)
            self._phase = Phase.SETTLED

    @property
    def is_stepping(self) -> bool:
        """Whether a step has begun of which not all rows are there."""
        return self._phase is Phase.STEPPING

    def check_is_open(self) -> None:
        """Raise ClosedEnvironmentError after `close`."""
        if self._is_closing:
            raise ClosedEnvironmentError("this VectorEnv has been closed: make another")

    def _begin_in_idle(self) -> None:
        """Tell the hosts of the step that have not been told of it."""
        if not (idle := [seat for seat in self._seats if seat.state is State.IDLE]):
            return
        with shield:  # or one might take two steps, or be waited for in vain
            for seat in idle:
                own = self._own[seat.index]
                if own is None and not seat.is_shared:  # unlike the host before
                    own = self._actions_of(seat)
                seat.begin_step(self._parity, own)

    def _actions_of(self, seat: Seat) -> Any:
        """Return the actions of a host that does not share memory."""
        if self._each is None:
            self._each = list(iterate(self._action_space, self._actions))
        own = self._each[seat.rows]
        out: Any = create_empty_array(self.description.action_space, len(own))
        return concatenate(self.description.action_space, own, out)

    def _gather(self) -> list[Seat]:
        """Wait for the answers of all hosts that step; return the seats that are not done."""
        failed = []
        for seat in self._seats:
            while seat.state is State.STEPPING:
                if not seat.is_shared:
                    self._receive(seat)
                elif not seat.hear():  # 6 of bells.py: look first, and sleep only if it is PENDING
                    self._listen()
            if seat.mail and seat.state is State.DONE:
                self._add(seat, seat.open_mail())
                seat.mail = b""
            if seat.state is not State.DONE:
                failed.append(seat)
        return failed

    def _listen(self) -> None:
        """Wait until some hosts have answered or died; note which have died."""
        for index in self._bells.wait():
            seat = self._seats[index]
            if seat.state is State.STEPPING:
                seat.hear()  # what it may have answered before
            seat.happens(Event.DEATH)
            self._bells.disconnect(index)

    def _receive(self, seat: Seat) -> None:
        """Wait for the rows of a host that sends them as a message."""
        try:
            rows = seat.take_step()
        except HostFailed:
            seat.happens(Event.DEATH)
            return
        self._write(seat, rows)
        if self._episodes.wait:  # a new host has not seen the rows that stay as they are
            for i in (np.flatnonzero(self._episodes.ended[seat.rows]) + seat.begin).tolist():
                self.rows.copy_row(i, self._rows[1 - self._parity])
        self._add(seat, rows.rest)
        seat.happens(Event.ANSWER)

    def _write(self, seat: Seat, message: Message, which: Any = slice(None)) -> None:
        """Write the rows that came in a message, or some of them."""
        arrays = *self.rows.arrays, *self.outcomes
        for array, part in zip(arrays, (*message.observations, *message.outcomes), strict=True):
            array[seat.rows][which] = part[which]
        for objects, items in zip(self.rows.objects, message.objects, strict=True):
            for i in np.arange(len(items))[which].tolist():
                objects[seat.begin + i] = items[i]

    def _add(self, seat: Seat, rest: Rest) -> None:
        """Count the crashes that a host has survived; add its infos to those of all."""
        if rest.crashes:
            named = {id(report): self._named(seat, report) for report in rest.crashes}
            for part in (rest.infos, rest.infos.get("final_info", {})):
                if CRASH in part:
                    part[CRASH][:] = [named.get(id(report), report) for report in part[CRASH]]
            for report in named.values():
                self._count(report)
        if rest.infos:
            self._parts.append((seat.begin, rest.infos))

    def _joined(self) -> Info:
        """Return the infos of all rows."""
        if len(self._seats) == 1:
            return self._parts[0][1] if self._parts else {}
        return joining.merge(self._parts, self.count)

    def _pay(self, infos: Info) -> None:
        """Write the rows of the episodes that died with their hosts."""
        rows, last = self._rows[self._parity], self._rows[1 - self._parity]
        rewards, terminated, truncated = self.outcomes
        count, in_same_step = self.count, self._episodes.in_same_step
        for seat in self._seats:
            lost = np.flatnonzero(self._episodes.lost[seat.rows]).tolist()
            if not lost:
                continue
            at = [seat.begin + one for one in lost]
            if not in_same_step:  # else they are of the episodes that begin in these rows
                for key, mask in infos.items():
                    if key.startswith("_"):
                        mask[at] = False
            for i in at:
                joining.add(infos, CRASH, seat.report, i, count)
                rewards[i], terminated[i], truncated[i] = 0.0, False, True
                if in_same_step:
                    joining.add(infos, "final_obs", last.row(i), i, count)
                    infos.setdefault("_final_info", np.zeros(count, np.bool_))[i] = True
                    joining.add(infos.setdefault("final_info", {}), CRASH, seat.report, i, count)
                else:
                    rows.copy_row(i, last)
            if seat.state is State.DONE and not in_same_step:  # it has begun what nobody has seen
                with contextlib.suppress(HostFailed):
                    seat.result(seat.submit("end_episodes", lost))

    # --- hosts that die ---------------------------------------------------------------------------

    def _tell(self, seat: Seat, error: BaseException) -> None:
        """Tell that a host has died, once, and begin to make another.  On any thread."""
        with self._lock:
            if seat.was_told or self._is_closing:
                return
            report = seat.report = self._named(seat, report_of(error, seat.steps))
            if is_failure(error):
                self._count(report)
            elif self._failure is None:
                self._failure = error
            if self._failure is None and not self._is_closing:
                seat.make(self._spare, is_replacement=True)
            # Last: a death is rather told twice, after an interrupt, than never.
            seat.was_told = True

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
        """A host has died, or its call has raised."""
        seat.happens(Event.DEATH)
        self._let_go(seat)

    def _let_go(self, seat: Seat) -> None:
        """Tell why a host has failed, as soon as that is known, and give up its place."""
        error = seat.why(CAUSE_S)
        with self._lock:  # or its end, seen by another thread, would be that of the next host
            self._tell(seat, error)
            host = seat.leave()
        if host is not None and not isinstance(error, LOST):
            threading.Thread(target=cluster.close, args=(host,), daemon=True).start()

    def _is_due(self, seat: Seat) -> bool:
        """Whether the step waits for another host."""
        return seat.state is State.RENEWING or self._episodes.are_due(seat.rows)

    def _renew(self, seat: Seat) -> None:
        """Wait for another host, unless there is one.  Raises what ends the run."""
        while seat.state is not State.IDLE:
            self.check_is_open()
            with self._lock:
                if self._failure is not None:
                    raise self._failure
            if seat.is_untold:
                self._let_go(seat)
            try:
                if seat.state is State.DEAD:
                    seat.join()
                seat.share(self._board)
            except HostFailed:
                self._lose(seat)

    # --- between steps ----------------------------------------------------------------------------

    def reset(
        self, chosen: NDArray[np.bool_], seeds: Sequence[int | None], options: Info | None
    ) -> Info:
        """Begin an episode in the chosen environments; return the infos."""
        self._settle()
        self._parts = []
        left = [seat for seat in self._seats if chosen[seat.rows].any()]
        while left:
            calls = []
            for seat in left:
                given = dict(options) if options else None
                if given is not None and "reset_mask" in given:
                    given["reset_mask"] = chosen[seat.rows]
                self._renew(seat)
                calls.append(seat.submit("reset", seeds[seat.rows], given, self._parity))
            asked, left = left, []
            for seat, call in zip(asked, calls, strict=True):
                try:
                    reply = seat.result(call)
                except HostFailed:
                    self._lose(seat)
                    left.append(seat)
                    continue
                if isinstance(reply, Message):
                    self._write(seat, reply, chosen[seat.rows])
                    reply = reply.rest
                self._add(seat, reply)
        self._episodes.reset(chosen)
        for array in self.outcomes[1:]:
            array[chosen] = False
        return self._joined()

    def ask(self, which: Sequence[int], method: str, *args: Any) -> list[Any]:
        """Ask something of some environments, of all hosts at once; return their answers."""
        self._settle()
        asked = []
        for seat in self._seats:
            of_seat = [i - seat.begin for i in which if i in seat]
            if of_seat:
                self._renew(seat)
                call = seat.submit(method, of_seat, *args)
                cluster.discard(call)  # of which nobody will hear if one before it raises
                asked.append((seat, of_seat, call))
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
        return self._call_all("pause", [()] * len(self._seats)), self._episodes.ended.copy()

    def resume(self, paused: tuple[list[bytes], NDArray[np.bool_]]) -> bool:
        """Go on from what `pause` returned; return whether all hosts could."""
        states, ended = paused
        if len(states) != len(self._seats) or not all(states):
            return False
        resumed = self._call_all("resume", [(one, self._parity) for one in states])
        self._episodes.ended[:] = ended
        return all(resumed)

    def _call_all(self, method: str, args: Sequence[tuple[Any, ...]]) -> list[Any]:
        self._settle()
        for seat in self._seats:
            self._renew(seat)
        calls = [seat.submit(method, *of) for seat, of in zip(self._seats, args, strict=True)]
        for call in calls:
            cluster.discard(call)  # of which nobody will hear if one before it raises
        return [self._answer(seat, call) for seat, call in zip(self._seats, calls, strict=True)]

    def render(self) -> tuple[Any, ...]:
        """Return a frame of each environment."""
        frames = [self._call(seat, "render") for seat in self._seats]
        return tuple(frame for part in frames for frame in part or ())

    def abandon(self) -> None:
        """End the hosts, while another thread waits for them: it is told that this is closed."""
        with self._lock:
            self._is_closing = True
            self._spare.is_closed = True
            for seat in self._seats:
                seat.kill()

    def close(self) -> None:
        """End the actors."""
        with self._lock:
            self._is_closing = True
            self.crashes.tell()
        self._end()

    def _call(self, seat: Seat, method: str, *args: Any) -> Any:
        self._settle()
        self._renew(seat)
        return self._answer(seat, seat.submit(method, *args))

    def _answer(self, seat: Seat, call: Any) -> Any:
        try:
            return seat.result(call)
        except HostFailed as failed:
            self._lose(seat)
            raise failed.why from None
