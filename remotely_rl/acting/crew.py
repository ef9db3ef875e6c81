"""Crew: a set of actors, each replaced when it fails.

An environment that raises is recreated in its actor, which reports it with its next result.  An
actor that dies or hangs is replaced as soon as there is room; the others go on meanwhile.  The
experience of its pending calls is lost; none is used twice.  Both events are crashes: a Supervisor
counts and limits them.

Nothing here blocks for long: an environment may hang, and the trainer must check its time limit and
Ctrl-C.
"""

import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, wait
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from remotely_rl import cluster
from remotely_rl.cluster import Making
from remotely_rl.supervision import Crashes, CrashReport
from remotely_rl.supervision.supervisor import Supervisor

POLL_S = 0.5  # how often a waiting trainer checks its time limit and Ctrl-C

A = TypeVar("A")


class Number(int):
    """The number of an actor among all that a crew has ever made, from 0.

    `index` is its index among the live ones: a replacement takes that of the actor before it.
    """

    index: int

    def __new__(cls, number: int, index: int) -> "Number":
        made = super().__new__(cls, number)
        made.index = index
        return made

    @property
    def is_replacement(self) -> bool:
        """Whether actors have been lost before: the first ones are numbered by their index."""
        return self > self.index

    def __reduce__(self) -> tuple[type["Number"], tuple[int, int]]:
        return Number, (int(self), self.index)


@dataclass
class CrewRecord:
    """The index of a live actor, and the number of steps it has taken."""

    index: int
    steps: int = 0


class Crew(Generic[A]):
    """See the module's docstring.  `actors` are the live ones."""

    def __init__(
        self,
        make: Callable[[Number], A],
        count: int,
        say: Callable[[str], None] = print,
        grows: bool = False,
        over: Callable[[], bool] = lambda: False,
        *,
        width: int = 1,
        crashes: Crashes | None = None,
    ):
        """`make(n)` makes the n-th actor ever, a `Number`, with `width` environments; it may wait
        for room.  `crashes` counts all crashes.

        With `grows`, another actor is requested whenever one is placed, to use machines that join
        the cluster.

        Waits for the first `count` actors, or until `over()`: making an environment may hang.
        Raises an error of `make` that a retry would not fix, and TrainingError if `make` fails
        too often.
        """
        self.crashes = crashes or Crashes(say)
        self._supervisor = Supervisor(self.crashes, width=width)
        self._width = width
        self._records: dict[A, CrewRecord] = {}
        self._make = make
        self._say = say
        self._grows = grows
        self._makings: dict[Number, Making[A]] = {}
        self._requested = 0
        self.actors: list[A] = []
        try:
            self._make_first(count, over)
        except BaseException:
            self.close()
            raise
        if grows:
            self._request()

    def succeeded(self, actor: A, steps: int, crashes: Sequence[CrashReport] = ()) -> None:
        """Count the steps of an actor's call, and the crashes that the actor survived.

        Raises TrainingError if there are too many crashes.
        """
        self._record_of(actor).steps += steps
        self.crashes.stepped(steps)
        for report in crashes:
            self._supervisor.count(self._supervisor.numbered(self.index_of(actor), report))

    def index_of(self, actor: A) -> int:
        """Return the index of a live actor; a replacement takes that of the lost actor."""
        return self._record_of(actor).index

    def replace(self, actor: A, error: BaseException) -> None:
        """Replace an actor that failed.

        Raises `error` if a replacement would not help, and TrainingError if too many actors fail.
        """
        index, steps = self._record_of(actor).index, self._record_of(actor).steps
        self._supervisor.failed(index, error, steps // self._width)
        self._remove(actor)
        if self._grows:  # another is requested already
            cluster.on_a_thread(partial(cluster.close, actor))
        else:
            self._request(index, instead_of=actor)

    def admit(self, timeout_s: float = 0.0) -> bool:
        """Add the actors made since the last call; return whether there were any.

        Raises an error of `make` that a retry would not fix, and TrainingError if too many fail.
        """
        newcomers = [actor for _, actor in self._newcomers(timeout_s)]
        for actor in newcomers:
            self.actors.append(actor)
            if self._grows:
                self._say(f"an actor joined; there are {len(self.actors)}")
                self._request()
        return bool(newcomers)

    def add(self) -> None:
        """Request another actor; `admit` adds it once it is made."""
        self._request()

    def close(self) -> None:
        """Close the actors; their pending calls are lost."""
        self.crashes.flush()
        ends = [partial(cluster.close, one) for one in self.actors]
        cluster.all_at_once([*ends, *(making.close for making in self._makings.values())])
        self.actors.clear()
        self._makings.clear()

    def _make_first(self, count: int, over: Callable[[], bool]) -> None:
        """Make the first actors in parallel: sixteen Atari games take an actor seconds."""
        for _ in range(count):
            self._request(waits_for_room=False)
        made: list[tuple[Number, A]] = []
        while len(made) < count and not over():
            made += self._newcomers(timeout_s=POLL_S)
            self.actors = [actor for _, actor in sorted(made, key=lambda one: one[0])]

    def _newcomers(self, timeout_s: float) -> list[tuple[Number, A]]:
        """Return the actors made since the last call and their numbers; retry failed ones."""
        newcomers: list[tuple[Number, A]] = []
        wait([making.made for making in self._makings.values()], timeout_s, FIRST_COMPLETED)
        for number, making in list(self._makings.items()):
            if not making.made.done():
                continue
            del self._makings[number]
            if (error := making.made.exception()) is not None:
                self._supervisor.failed(number.index, error)
                self._request(number.index)
                continue
            actor = making.made.result()
            self._records[actor] = CrewRecord(number.index)
            newcomers.append((number, actor))
        return newcomers

    def _record_of(self, actor: A) -> CrewRecord:
        return self._records[actor]

    def _free_index(self) -> int:
        """Return the lowest index that no actor has, or will have once it is made."""
        starting = {number.index for number in self._makings}
        taken = starting | {record.index for record in self._records.values()}
        return next(i for i in itertools.count() if i not in taken)

    def _remove(self, actor: A) -> None:
        self._records.pop(actor, None)
        self.actors = [other for other in self.actors if other != actor]

    def _request(
        self, index: int | None = None, instead_of: A | None = None, waits_for_room: bool = True
    ) -> None:
        number = Number(self._requested, self._free_index() if index is None else index)
        self._requested += 1
        self._makings[number] = Making(
            partial(self._make, number), instead_of=instead_of, waits_for_room=waits_for_room
        )
