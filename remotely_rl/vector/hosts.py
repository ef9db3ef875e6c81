"""Hosts: all hosts of a VectorEnv; any of them may die between a call and its answer.

Each host has a seat.  A step is sent to all hosts; then each seat is handled according to its state
(states.py), until all rows have been received, or can be written as crash rows for dead hosts.
A new host's first step begins an episode in each of its rows.  If a crash row hides the first
observation of such an episode from the user, the next step begins the episode again.

A signal handler may raise wherever this waits.  The next call then finishes the step first.
"""

import contextlib
import itertools
import os
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from enum import Enum
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium.error import ClosedEnvironmentError
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import (
    batch_differing_spaces,
    batch_space,
    concatenate,
    create_empty_array,
    iterate,
)
from numpy.typing import NDArray

from remotely.machine.shield import RLock, shield
from remotely_rl import cluster
from remotely_rl.errors import TrainingError
from remotely_rl.supervision import Crashes, CrashReport
from remotely_rl.supervision import infos as infos_module
from remotely_rl.supervision.failures import LOST
from remotely_rl.supervision.infos import Info
from remotely_rl.supervision.rows import EnvRows, covering
from remotely_rl.supervision.supervisor import Supervisor
from remotely_rl.supervision.vector import CRASH, Make, check_none_ended, check_spaces
from remotely_rl.vector import seat as seats_module
from remotely_rl.vector.bells import Switchboard
from remotely_rl.vector.board import Board
from remotely_rl.vector.host import Description, ObservationMode, Rest, Settings, StepRows
from remotely_rl.vector.seat import HostFailed, Seat, Spare
from remotely_rl.vector.states import Episodes, SeatEvent, SeatState

# Extra room in a cluster that this process starts: for the spare host, and for later VectorEnvs.
EMBEDDED_CPUS = 256
CAUSE_S = 10.0  # how long to wait for the cause of a host's death


class StepPhase(Enum):
    """Progress of a step.  Every call but `finish` settles the previous step first."""

    STEPPING = 1
    OVER = 2  # all rows are available
    SETTLED = 3  # each seat is IDLE or DEAD, or is being renewed between steps


Outcomes = tuple[NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_]]


class Hosts:
    """See the module's docstring."""

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
        self._supervisor = Supervisor(crashes, first=settings.first_host, width=width)
        self._episodes = Episodes(self.count, settings.autoreset_mode, settings.waits)
        # Whether a step is refused while an episode is over.
        self._observation_mode = settings.observation_mode
        self._is_disabled = settings.autoreset_mode is AutoresetMode.DISABLED and not settings.waits
        if self._is_disabled:  # checked here: the first step of a new host must begin episodes
            settings = settings._replace(autoreset_mode=AutoresetMode.NEXT_STEP)
        self._lock = RLock()  # guards the crashes, and the making of hosts
        self._failure: BaseException | None = None  # raised by every step from now on
        self._callback_error: Exception | None = None  # raised by the next step only
        self._is_closing = False
        begins = [*range(0, self.count, width), self.count]
        me = weakref.ref(self)

        def on_end(seat: Seat, call: "Future[None]", error: BaseException) -> None:
            if (hosts := me()) is None:
                return
            with hosts._lock:
                if seat.is_served_by(call):
                    hosts._report_death(seat, error)

        self._bells = Switchboard(len(begins) - 1)
        self._seats = [
            Seat(i, begin, makes[begin:end], settings, self._episodes, self._bells, on_end)
            for i, (begin, end) in enumerate(itertools.pairwise(begins))
        ]
        cluster.connect(EMBEDDED_CPUS + len(self._seats))
        self._spare = Spare(settings.options)
        self._end = weakref.finalize(self, seats_module.end, self._seats, self._bells, self._spare)
        try:
            self._make_hosts(begins)
        except BaseException as error:
            self._end()
            if isinstance(error, HostFailed):  # no retry: the environments have never worked
                raise error.why from None
            raise

    def _make_hosts(self, begins: list[int]) -> None:
        """Make the hosts, and the arrays for their rows."""
        for seat in self._seats:
            seat.make(self._spare, is_replacement=False)
        for seat in self._seats:
            seat.join()
        descriptions = [seat.result(seat.submit("describe")) for seat in self._seats]
        first = self.description = descriptions[0]
        count = self.count
        each = [(own, one.action_space) for one in descriptions for own in one.observation_spaces]
        check_spaces(each, self._observation_mode == "same", 0)
        observed = [own for own, _ in each]
        self.observation_spaces = _batched(observed, self._observation_mode)
        space = covering(observed)
        self._action_space = batch_space(first.action_space, count)
        self._board: Board | None = None
        if first.pid != os.getpid():  # otherwise hosts are plain objects in this process
            with contextlib.suppress(TypeError):  # spaces that are not arrays: use messages
                self._board = Board(space, first.action_space, begins)
        if (board := self._board) is not None:
            self._rows = board.rows(0), board.rows(1)
            self.outcomes: Outcomes = board.rewards, board.terminated, board.truncated
        else:
            self._rows = EnvRows(space, count), EnvRows(space, count)
            self.outcomes = np.zeros(count), np.zeros(count, np.bool_), np.zeros(count, np.bool_)
        self._parity = 0
        self._phase = StepPhase.SETTLED
        for seat in self._seats:
            seat.share(board)
        self._spare.make()

    @property
    def memory(self) -> NDArray[np.uint8] | None:
        """The memory of the board, if there is one."""
        return None if self._board is None else self._board.memory.array

    @property
    def rows(self) -> EnvRows:
        """The observations of the last step or reset."""
        return self._rows[self._parity]

    # --- steps ------------------------------------------------------------------------------------

    def begin(self, actions: Any) -> None:
        """Send a step to the hosts.  Raises ValueError if an episode is over and must be reset."""
        self._settle()
        if self._is_disabled:
            check_none_ended(self._episodes.ended)
        self._actions = actions
        self._each: list[Any] | None = None  # one action per environment, if a message needs them
        self._own = [None if seat.is_shared else self._actions_of(seat) for seat in self._seats]
        if self._board is not None:
            self._board.write_actions(actions)
        with shield:
            self._parity ^= 1
            self._parts: list[tuple[int, Info]] = []  # first row and infos of each host
            self._phase = StepPhase.STEPPING
            self._send_step()

    def finish(self) -> Info:
        """Wait for the end of the step; return the infos.  Raises what ends the run."""
        self.check_is_open()
        while True:
            self._send_step()  # to hosts that an interrupt left out, and to new ones
            failed = self._gather()
            for seat in failed:
                if seat.has_dead_host:
                    self._release_dead(seat)
            due = [seat for seat in failed if self._is_due(seat)]
            if not due:
                break
            for seat in due:
                self._renew(seat)
        infos = self._joined()
        if self._episodes.lost.any():
            self._write_crash_rows(infos)
        self._phase = StepPhase.OVER
        with self._lock:
            self.crashes.stepped(self.count)
            if self._failure is not None:
                raise self._failure
            if (error := self._callback_error) is not None:
                self._callback_error = None
                raise error
        return infos

    def _settle(self) -> None:
        """Finish an interrupted step, and make each seat IDLE or DEAD."""
        self.check_is_open()
        if self.is_stepping:
            self.finish()
        if self._phase is StepPhase.OVER:
            self._episodes.end_step(*self.outcomes[1:])
            for seat in self._seats:
                if seat.state is not SeatState.IDLE:  # IDLE: this method was interrupted before
                    seat.happens(SeatEvent.END)
            self._phase = StepPhase.SETTLED

    @property
    def is_stepping(self) -> bool:
        """Whether a step has begun whose rows are not all available."""
        return self._phase is StepPhase.STEPPING

    def check_is_open(self) -> None:
        """Raise ClosedEnvironmentError after `close`."""
        if self._is_closing:
            raise ClosedEnvironmentError("this VectorEnv has been closed: make another")

    def _send_step(self) -> None:
        """Send the step to the hosts that have not received it."""
        if not (idle := [seat for seat in self._seats if seat.state is SeatState.IDLE]):
            return
        with shield:  # or a host might take two steps, or never answer
            for seat in idle:
                own = self._own[seat.index]
                if own is None and not seat.is_shared:  # unlike the host that it replaced
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
        """Wait for the answers of all stepping hosts; return the seats that are not DONE."""
        failed = []
        for seat in self._seats:
            while seat.state is SeatState.STEPPING:
                if not seat.is_shared:
                    self._receive(seat)
                elif not seat.poll():  # 6 of bells.py: sleep only if it is PENDING
                    self._wait_for_bells()
            if seat.mail and seat.state is SeatState.DONE:
                self._add(seat, seat.open_mail())
                seat.mail = b""
            if seat.state is not SeatState.DONE:
                failed.append(seat)
        return failed

    def _wait_for_bells(self) -> None:
        """Wait until a host has answered or died; process the deaths."""
        for index in self._bells.wait():
            seat = self._seats[index]
            if seat.state is SeatState.STEPPING:
                seat.poll()  # it may have answered before it died
            seat.happens(SeatEvent.DEATH)
            self._bells.disconnect(index)

    def _receive(self, seat: Seat) -> None:
        """Wait for the rows of a host without shared memory."""
        try:
            rows = seat.take_step()
        except HostFailed:
            seat.happens(SeatEvent.DEATH)
            return
        self._write(seat, rows)
        if self._episodes.wait:  # rows of ended episodes stay; a new host does not have them
            for i in (np.flatnonzero(self._episodes.ended[seat.rows]) + seat.begin).tolist():
                self.rows.copy_row(i, self._rows[1 - self._parity])
        self._add(seat, rows.rest)
        seat.happens(SeatEvent.ANSWER)

    def _write(self, seat: Seat, message: StepRows, which: Any = slice(None)) -> None:
        """Write the rows of a message, or those that `which` selects."""
        arrays = *self.rows.arrays, *self.outcomes
        for array, part in zip(arrays, (*message.observations, *message.outcomes), strict=True):
            array[seat.rows][which] = part[which]
        for objects, items in zip(self.rows.objects, message.objects, strict=True):
            for i in np.arange(len(items))[which].tolist():
                objects[seat.begin + i] = items[i]

    def _add(self, seat: Seat, rest: Rest) -> None:
        """Count the crashes in a host's rest, and collect its infos."""
        if rest.crashes:
            named = {
                id(report): self._supervisor.numbered(seat.index, report) for report in rest.crashes
            }
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
        return infos_module.merge(self._parts, self.count)

    def _write_crash_rows(self, infos: Info) -> None:
        """Write the rows of the episodes that were lost with their hosts."""
        rows, last = self._rows[self._parity], self._rows[1 - self._parity]
        rewards, terminated, truncated = self.outcomes
        count, in_same_step = self.count, self._episodes.in_same_step
        for seat in self._seats:
            lost = np.flatnonzero(self._episodes.lost[seat.rows]).tolist()
            if not lost:
                continue
            rows_lost = [seat.begin + one for one in lost]
            if not in_same_step:  # otherwise the infos belong to the episodes that begin here
                for key, mask in infos.items():
                    if key.startswith("_"):
                        mask[rows_lost] = False
            for i in rows_lost:
                infos_module.add(infos, CRASH, seat.report, i, count)
                rewards[i], terminated[i], truncated[i] = 0.0, False, True
                if in_same_step:
                    infos_module.add(infos, "final_obs", last.row(i), i, count)
                    infos.setdefault("_final_info", np.zeros(count, np.bool_))[i] = True
                    final = infos.setdefault("final_info", {})
                    infos_module.add(final, CRASH, seat.report, i, count)
                else:
                    rows.copy_row(i, last)
            if (
                seat.state is SeatState.DONE and not in_same_step
            ):  # the crash row hides its new episode
                with contextlib.suppress(HostFailed):
                    seat.result(seat.submit("end_episodes", lost))

    # --- dead hosts -------------------------------------------------------------------------------

    def _report_death(self, seat: Seat, error: BaseException) -> None:
        """Report the death of a host once, and start making another.  On any thread."""
        with self._lock:
            if seat.is_reported or self._is_closing:
                return
            report = seat.report = self._supervisor.report_of(seat.index, error, seat.steps)
            if self._supervisor.replaces(error):
                self._count(report)
            elif self._failure is None:
                self._failure = error
            if self._failure is None and not self._is_closing:
                seat.make(self._spare, is_replacement=True)
            # Last: after an interrupt, a death may be reported twice, but is never missed.
            seat.is_reported = True

    def _count(self, report: CrashReport) -> None:
        """Count and log a crash; keep an error of that for the user's step, on its thread."""
        with self._lock:
            try:
                self._supervisor.count(report)
            except TrainingError as error:
                self._failure = error
            except Exception as error:  # from `on_crash` or `say`: the environments go on
                self._callback_error = error

    def _lose(self, seat: Seat) -> None:
        """Handle a host that has died, or whose call has raised."""
        seat.happens(SeatEvent.DEATH)
        self._release_dead(seat)

    def _release_dead(self, seat: Seat) -> None:
        """Report why a host has failed, once that is known, and free its seat."""
        error = seat.why(CAUSE_S)
        with self._lock:  # or another thread would take its end for that of the next host
            self._report_death(seat, error)
            host = seat.release()
        if host is not None and not isinstance(error, LOST):
            cluster.on_a_thread(partial(cluster.close, host))

    def _is_due(self, seat: Seat) -> bool:
        """Whether the step waits for a new host."""
        return seat.state is SeatState.RENEWING or self._episodes.are_due(seat.rows)

    def _renew(self, seat: Seat) -> None:
        """Wait until the seat has a connected host.  Raises what ends the run."""
        while seat.state is not SeatState.IDLE:
            self.check_is_open()
            with self._lock:
                if self._failure is not None:
                    raise self._failure
            if seat.has_dead_host:
                self._release_dead(seat)
            try:
                if seat.state is SeatState.DEAD:
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
        pending = [seat for seat in self._seats if chosen[seat.rows].any()]
        while pending:
            calls = []
            for seat in pending:
                given = dict(options) if options else None
                if given is not None and "reset_mask" in given:
                    given["reset_mask"] = chosen[seat.rows]
                self._renew(seat)
                calls.append(seat.submit("reset", seeds[seat.rows], given, self._parity))
            called, pending = pending, []
            for seat, call in zip(called, calls, strict=True):
                try:
                    reply = seat.result(call)
                except HostFailed:
                    self._lose(seat)
                    pending.append(seat)
                    continue
                if isinstance(reply, StepRows):
                    self._write(seat, reply, chosen[seat.rows])
                    reply = reply.rest
                self._add(seat, reply)
        self._episodes.reset(chosen)
        for array in self.outcomes[1:]:
            array[chosen] = False
        return self._joined()

    def ask(self, which: Sequence[int], method: str, *args: Any) -> Callable[[], list[Any]]:
        """Call a method of Host for some environments, on all hosts at once.

        Return what waits for the results, and returns them.
        """
        self._settle()
        calls = []
        for seat in self._seats:
            of_seat = [i - seat.begin for i in which if i in seat]
            if of_seat:
                self._renew(seat)
                call = seat.submit(method, of_seat, *args)
                cluster.discard(call)  # it stays unretrieved if an earlier one raises
                calls.append((seat, of_seat, call))

        def collect() -> list[Any]:
            results: dict[int, Any] = {}
            for seat, of_seat, call in calls:
                found = self._result(seat, call)
                results.update(zip((seat.begin + i for i in of_seat), found, strict=True))
            return [results[i] for i in which]

        return collect

    def set_attributes(self, which: Sequence[int], name: str, values: Sequence[Any]) -> None:
        """Set an attribute of some environments, and of their replacements."""
        for seat in self._seats:
            pairs = [(i, one) for i, one in zip(which, values, strict=True) if i in seat]
            if pairs:
                own = {i - seat.begin: value for i, value in pairs}
                self._call(seat, "set_attr", name, own)
                seat.attributes.setdefault(name, {}).update(own)

    def pause(self) -> tuple[list[bytes], NDArray[np.bool_]]:
        """Return the state of each host, for `resume`, and which episodes have ended.

        The state is empty if pickling the host's environments fails.
        """
        return self._call_all("pause", [()] * len(self._seats)), self._episodes.ended.copy()

    def resume(self, paused: tuple[list[bytes], NDArray[np.bool_]]) -> bool:
        """Continue exactly from what `pause` returned; return whether all hosts could."""
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
            cluster.discard(call)  # it stays unretrieved if an earlier one raises
        return [self._result(seat, call) for seat, call in zip(self._seats, calls, strict=True)]

    def render(self) -> tuple[Any, ...]:
        """Return a frame of each environment."""
        frames = [self._call(seat, "render") for seat in self._seats]
        return tuple(frame for part in frames for frame in part or ())

    def abandon(self) -> None:
        """Kill the hosts; a thread that waits for them raises ClosedEnvironmentError."""
        with self._lock:
            self._is_closing = True
            for seat in self._seats:
                seat.kill()

    def close(self) -> None:
        """Close the hosts."""
        with self._lock:
            self._is_closing = True
            self.crashes.flush()
        self._end()

    def _call(self, seat: Seat, method: str, *args: Any) -> Any:
        self._settle()
        self._renew(seat)
        return self._result(seat, seat.submit(method, *args))

    def _result(self, seat: Seat, call: Any) -> Any:
        try:
            return seat.result(call)
        except HostFailed as failed:
            self._lose(seat)
            raise failed.why from None


def _batched(
    each: list[gymnasium.Space[Any]], mode: ObservationMode
) -> tuple[gymnasium.Space[Any], gymnasium.Space[Any]]:
    """Return the observation spaces of all environments, and of one."""
    if isinstance(mode, tuple):
        return mode
    if mode == "different":
        return batch_differing_spaces(each), each[0]
    return batch_space(each[0], len(each)), each[0]
