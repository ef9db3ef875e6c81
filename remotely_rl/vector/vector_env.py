"""VectorEnv: a Gymnasium vector environment that survives what its environments do.

    from remotely_rl import VectorEnv

    envs = VectorEnv("CartPole-v1", num_envs=8)      # in place of gymnasium.make_vec
    envs = VectorEnv([make_one, make_another])       # in place of AsyncVectorEnv

Environments live in actors (host.py), several in each, here or on the cluster that this process is
connected to.  An environment that raises is remade within its actor; an actor that dies or hangs is
replaced.  Rows then are as supervision/vector.py says: (last observation, reward 0, truncated),
with a CrashReport in info["crash_report"].  All environments of an actor that dies have such a row.
"""

import contextlib
import itertools
import math
import os
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate
from numpy.typing import NDArray

from remotely.machine import this_machine
from remotely_rl.acting import cluster
from remotely_rl.errors import TrainingError
from remotely_rl.supervision import Crashes, CrashReport
from remotely_rl.supervision.failures import LOST, is_failure, report_of
from remotely_rl.supervision.rate import MAX_RATE
from remotely_rl.supervision.rows import ARRAYS, Rows
from remotely_rl.supervision.vector import CRASH, checked_mask
from remotely_rl.supervision.watchdog import DEFAULT_S
from remotely_rl.vector import infos as joining
from remotely_rl.vector import seat as seats_module
from remotely_rl.vector.bells import Switchboard
from remotely_rl.vector.board import Board
from remotely_rl.vector.host import Message, Rest, Settings
from remotely_rl.vector.seat import HostFailed, Seat, Spare

CAUSE_S = 5.0  # how long to wait for why a host died

Info = dict[str, Any]
Make = Callable[[], gymnasium.Env[Any, Any]]


def _say(text: str) -> None:
    print(f"remotely_rl: {text}", file=sys.stderr, flush=True)


def ignore(report: CrashReport) -> None:
    """Get a report, and do nothing."""


class VectorEnv(gymnasium.vector.VectorEnv[Any, Any, NDArray[Any]]):
    """See the module's docstring.  It is over 250 lines because it is all of Gymnasium's interface
    and, between each call and its answer, any host may die."""

    def __init__(
        self,
        env: str | Make | Sequence[Make],
        num_envs: int | None = None,
        *,
        envs_per_actor: int | None = None,
        copy: bool = True,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        step_timeout_s: float = DEFAULT_S,
        max_crash_rate: float = MAX_RATE,
        episode_seeds: bool = False,
        check_finite: bool = True,
        say: Callable[[str], None] = _say,
        on_crash: Callable[[CrashReport], None] = ignore,
        **kwargs: Any,
    ):
        """Make the environments.

        env             a Gymnasium id, with `kwargs` for `gymnasium.make`; a callable that makes
                        an environment; or one for each
        envs_per_actor  how many share a process; by default there is a process for each core of
                        this machine.  More than one makes steps of cheap environments faster;
                        if the process dies, all of them lose their episodes
        copy            False: what a step returns is written into again by the step after the next
        step_timeout_s  an environment that takes longer for a step or a reset hangs, and its actor
                        is replaced; 0: no limit
        max_crash_rate  more crashes per step than this raise TrainingError; 1: never
        episode_seeds   give each episode a seed of its own, so that every crash can be replayed;
                        otherwise environments are seeded as Gymnasium's are
        check_finite    NaN or infinity in an observation or a reward is a crash
        say             is told of crashes: the first of each cause at once, then once a minute
        on_crash        gets every report at once, perhaps on another thread

        Raises what making an environment raises.
        """
        makes = _makes(env, num_envs, kwargs)
        count = self.num_envs = len(makes)
        width = envs_per_actor or math.ceil(count / this_machine.cores())
        begins = [*range(0, count, width), count]
        self.copy = copy
        self.autoreset_mode = AutoresetMode(autoreset_mode)
        self.crashes = Crashes(say, max_crash_rate)
        self._on_crash = on_crash
        self._lock = threading.RLock()  # of the crashes, and of what is made
        self._failure: BaseException | None = None  # that the next step raises
        self._is_closing = False
        self._deaths: dict[int, CrashReport] = {}  # the last of each seat
        settings = Settings(self.autoreset_mode, episode_seeds, check_finite, step_timeout_s)
        me = weakref.ref(self)

        def on_end(seat: Seat, error: BaseException) -> None:
            if (envs := me()) is not None:
                envs._tell(seat, error)

        self._seats = [
            Seat(i, begin, makes[begin:end], settings, on_end)
            for i, (begin, end) in enumerate(itertools.pairwise(begins))
        ]
        cluster.connect(len(self._seats))
        self._bells = Switchboard(len(self._seats))
        self._spare = Spare()
        self._end = weakref.finalize(self, seats_module.end, self._seats, self._bells, self._spare)
        try:
            self._take_seats(begins)
        except BaseException:
            self._end()
            raise
        self.spec = gymnasium.spec(env) if isinstance(env, str) else None

    def _take_seats(self, begins: list[int]) -> None:
        """Make the hosts, and what their rows are written into."""
        for seat in self._seats:
            seat.make(self._spare, is_replacement=False)
        try:
            for seat in self._seats:
                seat.join()
            descriptions = [seat.result(seat.submit("describe")) for seat in self._seats]
        except HostFailed as failed:  # what never was there is not flaky
            raise failed.why from None
        first = descriptions[0]
        for seat, one in zip(self._seats, descriptions, strict=True):
            if one[:2] != first[:2]:
                raise TrainingError(
                    f"environment {seat.begin} has other spaces than the first: {one[:2]} instead"
                    f" of {first[:2]}"
                )
        count = self.num_envs
        self.single_observation_space = first.observation_space
        self.single_action_space = first.action_space
        self.observation_space = batch_space(first.observation_space, count)
        self.action_space = batch_space(first.action_space, count)
        self.metadata, self.render_mode = first.metadata, first.render_mode
        self._board: Board | None = None
        try:
            if descriptions[0].pid != os.getpid():  # else it is a plain object, in this process
                self._board = Board(first.observation_space, first.action_space, begins)
        except TypeError:  # of parts that are no arrays, which travel in messages
            pass
        if (board := self._board) is not None:
            self._rows = board.rows(0), board.rows(1)
            self._outcomes = board.rewards, board.terminated, board.truncated
        else:
            space = first.observation_space
            self._rows = Rows(space, count), Rows(space, count)
            self._outcomes = np.zeros(count), np.zeros(count, np.bool_), np.zeros(count, np.bool_)
        self._parity = 0
        self._ended = np.zeros(count, np.bool_)  # in the last step, so the next one resets them
        self._owed = np.zeros(count, np.bool_)  # died with their host, and no row has told so yet
        self._begun: list[Seat] = []
        for seat in self._seats:
            seat.share(board, self._bells)
        self._spare.make()

    # --- steps ------------------------------------------------------------------------------------

    def step(
        self, actions: Any
    ) -> tuple[Any, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], Info]:
        """Take a step in each environment.

        Raises TrainingError if there are too many crashes, and ValueError for a wrong number of
        actions.
        """
        self.step_async(actions)
        return self.step_wait()

    def step_async(self, actions: Any) -> None:
        """Begin a step; `step_wait` returns its rows."""
        if isinstance(self.single_action_space, ARRAYS) and len(actions) != self.num_envs:
            raise ValueError(f"{len(actions)} actions for {self.num_envs} environments")
        self._actions = actions
        if self._board is not None:
            self._board.write_actions(actions)
        self._parity ^= 1
        self._begun = [seat for seat in self._seats if self._begin(seat)]

    def step_wait(
        self,
    ) -> tuple[Any, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], Info]:
        """Return the rows of the step that `step_async` began."""
        infos: Info = {}
        done = self._gather(self._begun, infos)
        if len(done) < len(self._seats):
            for seat in self._seats:
                if seat not in done:
                    self._recover(seat, infos)
        if self._owed.any():
            self._pay(infos)
        with self._lock:
            self.crashes.stepped(self.num_envs)
            if self._failure is not None:
                raise self._failure
        rewards, terminated, truncated = (array.copy() for array in self._outcomes)
        if self.autoreset_mode is not AutoresetMode.SAME_STEP:
            np.logical_or(terminated, truncated, out=self._ended)
        return self._rows[self._parity].value(self.copy), rewards, terminated, truncated, infos

    def _begin(self, seat: Seat) -> bool:
        """Let a host take a step; return whether it is there."""
        if not seat.has_host:
            return False
        actions = None
        if not seat.is_shared:
            each = list(iterate(self.action_space, self._actions))[seat.rows]
            actions = concatenate(
                self.single_action_space,
                each,
                create_empty_array(self.single_action_space, len(each)),
            )
        return seat.begin_step(self._parity, actions)

    def _gather(self, seats: Sequence[Seat], infos: Info) -> list[Seat]:
        """Wait for the rows of hosts that were told to step; return those that have come."""
        done = []
        waiting = {seat.index: b"" for seat in seats if seat.is_shared}  # what came of the mail
        while waiting:
            for index, has_answered in self._bells.wait():
                if index not in waiting:  # it died a moment after its answer
                    self._bells.disconnect(index)
                    continue
                seat, rest = self._seats[index], None
                if has_answered:
                    with contextlib.suppress(HostFailed):
                        rest, waiting[index] = seat.read_mail(waiting[index])
                        if rest is None:
                            continue
                else:
                    self._bells.disconnect(index)
                del waiting[index]
                if rest is not None:
                    self._add(seat, rest, infos)
                    done.append(seat)
        for seat in seats:
            if not seat.is_shared:
                with contextlib.suppress(HostFailed):
                    rows = seat.take_step()
                    self._write(seat, rows)
                    self._add(seat, rows.rest, infos)
                    done.append(seat)
        return done

    def _write(self, seat: Seat, message: Message) -> None:
        """Write the rows that came in a message."""
        rows, at = self._rows[self._parity], seat.rows
        for array, part in zip(rows.arrays, message.observations, strict=True):
            array[at] = part
        for objects, items in zip(rows.objects, message.objects, strict=True):
            objects[at] = items
        for array, part in zip(self._outcomes, message.outcomes, strict=True):
            array[at] = part

    def _add(self, seat: Seat, rest: Rest, infos: Info) -> None:
        """Count the crashes that a host has survived; add its infos to those of all."""
        if rest.crashes:
            named = {id(report): self._named(seat, report) for report in rest.crashes}
            for part in (rest.infos, rest.infos.get("final_info", {})):
                if CRASH in part:
                    part[CRASH][:] = [named.get(id(report), report) for report in part[CRASH]]
            for report in named.values():
                self._count(report)
        if rest.infos:
            if len(self._seats) == 1 and not infos:
                infos.update(rest.infos)
            else:
                joining.merge(infos, rest.infos, seat.begin, self.num_envs)

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
        with self._lock:
            self._on_crash(report)
            try:
                self.crashes.add(report)
            except TrainingError as error:  # raised by the step, on the thread of its user
                self._failure = error

    def _named(self, seat: Seat, report: CrashReport) -> CrashReport:
        """Return a host's report with the index that the environment has here."""
        env = None if report.env is None else seat.begin + report.env
        return replace(report, env=env, actor=seat.index)

    def _lose(self, seat: Seat) -> None:
        """A host has died, or its call has raised: let go of it."""
        error = seat.why(CAUSE_S) or HostFailed("its process has ended, and nobody knows why")
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
                seat.join()
                seat.share(self._board, self._bells)
                return
            except HostFailed:
                self._lose(seat)

    def _recover(self, seat: Seat, infos: Info) -> None:
        """A host has not taken the step: end the episodes that it had, begin those that are due."""
        if seat.has_host:
            self._lose(seat)
        owed = ~self._ended[seat.rows]
        is_due = self.autoreset_mode is AutoresetMode.SAME_STEP or (
            self.autoreset_mode is AutoresetMode.NEXT_STEP and not owed.all()
        )
        while is_due:  # a new host begins an episode of each in its first step
            self._renew(seat)
            if self._begin(seat) and self._gather([seat], infos):
                break
            self._lose(seat)
        self._owed[seat.rows] |= owed

    def _pay(self, infos: Info) -> None:
        """Write the rows of the episodes that died with their hosts."""
        rows, last = self._rows[self._parity], self._rows[1 - self._parity]
        rewards, terminated, truncated = self._outcomes
        count, in_same_step = self.num_envs, self.autoreset_mode is AutoresetMode.SAME_STEP
        for seat in self._seats:
            owed = np.flatnonzero(self._owed[seat.rows]).tolist()
            if not owed:
                continue
            report = self._deaths[seat.index]
            for i in (seat.begin + one for one in owed):
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
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: Info | None = None,
    ) -> tuple[Any, Info]:
        """Begin an episode in each environment, or in those of options["reset_mask"]."""
        count = self.num_envs
        mask = (options or {}).get("reset_mask")
        chosen = np.ones(count, np.bool_) if mask is None else checked_mask(mask, count)
        if seed is None or isinstance(seed, (int, np.integer)):
            seeds = [None if seed is None else int(seed) + i for i in range(count)]
        elif len(seed) == count:
            seeds = list(seed)
        else:
            raise ValueError(f"{len(seed)} seeds for {count} environments")
        infos: Info = {}
        left = [seat for seat in self._seats if chosen[seat.rows].any()]
        while left:
            calls = []
            for seat in left:
                given = dict(options) if options else None
                if given is not None and mask is not None:
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
                self._add(seat, reply, infos)
            left = failed
        self._owed &= ~chosen
        self._ended &= ~chosen
        for array in self._outcomes[1:]:
            array[chosen] = False
        return self._rows[self._parity].value(self.copy), infos

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of each environment, or read an attribute.

        Raises what an environment raises, and ActorDied if its process ends.
        """
        return tuple(self.call_at(range(self.num_envs), name, *args, **kwargs))

    def call_at(self, which: Sequence[int], name: str, *args: Any, **kwargs: Any) -> list[Any]:
        """The same for some environments."""
        return self._ask(which, "call", name, args, kwargs)

    def are_wrapped(self, which: Sequence[int], wrapper: type) -> list[bool]:
        """Return which of these environments have a wrapper of a class."""
        return self._ask(which, "are_wrapped", wrapper)

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Read an attribute of each environment."""
        return self.call(name)

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute of each environment, and of those that will replace them."""
        if not isinstance(values, (list, tuple)):
            values = [values] * self.num_envs
        if len(values) != self.num_envs:
            raise ValueError(f"{len(values)} values for {self.num_envs} environments")
        self.set_attr_at(range(self.num_envs), name, values)

    def set_attr_at(self, which: Sequence[int], name: str, values: Sequence[Any]) -> None:
        """The same for some environments."""
        for seat in self._seats:
            pairs = [(i, one) for i, one in zip(which, values, strict=True) if i in seat]
            if pairs:
                attribute = name, {i - seat.begin: value for i, value in pairs}
                self._call(seat, "set_attr", *attribute)
                seat.attributes.append(attribute)

    def render(self) -> tuple[Any, ...] | None:
        """Return a frame of each environment."""
        frames = [self._call(seat, "render") for seat in self._seats]
        return tuple(frame for part in frames for frame in part)

    def close_extras(self, **kwargs: Any) -> None:
        """End the actors."""
        with self._lock:
            self._is_closing = True
            self.crashes.tell()
        self._end()

    def _ask(self, which: Sequence[int], method: str, *args: Any) -> list[Any]:
        """Ask something of some environments, of all hosts at once."""
        asked = []
        for seat in self._seats:
            of_seat = [i - seat.begin for i in which if i in seat]
            if of_seat:
                self._ensure(seat)
                asked.append((seat, of_seat, seat.submit(method, of_seat, *args)))
        found = {}
        for seat, of_seat, call in asked:
            answers = self._answer(seat, call)
            found.update(zip((seat.begin + i for i in of_seat), answers, strict=True))
        return [found[i] for i in which]

    def _call(self, seat: Seat, method: str, *args: Any) -> Any:
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


def _makes(
    env: str | Make | Sequence[Make], num_envs: int | None, kwargs: dict[str, Any]
) -> list[Make]:
    """Return what makes each environment.  Raises ValueError or TypeError for what cannot be."""
    if not isinstance(env, (str, Sequence)) and not callable(env):
        raise TypeError(f"env is {env!r}: it is to be an id, a callable, or a list of callables")
    if isinstance(env, str):
        gymnasium.spec(env)  # raises for an unknown id, here rather than in an actor
        make: Make = partial(gymnasium.make, env, **kwargs)
        return [make] * _whole(num_envs)
    if kwargs:
        raise TypeError(f"{', '.join(kwargs)}: only an environment made from its id takes these")
    if callable(env):
        return [env] * _whole(num_envs)
    if not env or num_envs not in (None, len(env)):
        raise ValueError(f"num_envs is {num_envs}, and there are {len(env)} callables")
    return list(env)


def _whole(num_envs: int | None) -> int:
    if num_envs is None:
        return 1
    if num_envs < 1:
        raise ValueError(f"num_envs is {num_envs}; there must be one at least")
    return num_envs
