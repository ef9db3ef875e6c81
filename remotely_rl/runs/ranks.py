"""The ranks of a run with several learners: rank 0 in the run's process, the others as actors.

    with ranks.beside(session, loop, kind):
        loop(session)

Every rank has its own learner, actors and, for some algorithms, replay, and runs the algorithm's
loop.  `learning/all_reduce.py` has their joint computations, `runs/records.py` what differs in
their sessions.  Rank 0 makes the model; the others start with its parameters and their own seeds.

The ranks average their gradients, or share a store (`learning/store.py`).  With a store none waits
for another: rank 0 polls the others for what they have sampled, and if one dies, the run says so
and continues.

Each rank is a process, and waits only in the lines marked *:

    1  rank 0      makes the model; places a Rank actor for each other rank, and calls its `run`
    2  rank n      makes its learner and session from the Part in the call
    3  * all       meet through a file in a folder that only this user can access (AllReduce), or
                   open the store
    4  each        runs the loop: its actors sample, it updates; only rank 0 records
    5  * all       exchange after each round what was sampled (peers.py), so that all have equal
                   counts, and average each gradient; with a store none waits, rank 0 polls `news`
    6  rank 0      is over: it raises the flag, which the others check wherever they wait

The end, if they average gradients:

    rank 0 is over       it leaves its loop as a single learner would, and raises the flag in shared
                         memory; the others see it wherever they wait, and close their actors
    another rank dies    its connections close, so the others stop in their next all-reduce; rank 0
                         finds out which died and why, and raises LearnerLost, so that the last
                         checkpoint is kept
    rank 0 dies          the others are actors of its cluster, and end with it
"""

import contextlib
import dataclasses
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures import wait as wait_for_all
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn

import remotely
from remotely.machine import gpus, memory_file, this_machine
from remotely_rl import cluster, networks
from remotely_rl.config import Common, device_of, learners_of, shares_store
from remotely_rl.environments.action_spaces import Actions
from remotely_rl.errors import LearnerLost, TrainingError
from remotely_rl.learning import all_reduce
from remotely_rl.learning.all_reduce import AllReduce, RankGone
from remotely_rl.learning.learner import Learner, SavedScale, loaded_scale, saved_scale
from remotely_rl.learning.store import SharedAddress, Sharing
from remotely_rl.runs.derived_seeds import seed_of_learner
from remotely_rl.runs.peers import Apart, Round
from remotely_rl.runs.run_folder import RunFolder
from remotely_rl.runs.session import Session
from remotely_rl.supervision import failures
from remotely_rl.supervision.supervisor import Consequence, ProcessRole, consequence_of

C = TypeVar("C", bound=Common)
Loop = Callable[[Session[Any]], None]

DIAGNOSIS_S = 5.0  # after a connection closed, to find out which rank has died
NEWS_EVERY_S = 0.2
LEAVING_S = 5.0  # for the other ranks to close their actors


class Ended(Exception):
    """The run is over; raised in ranks other than 0, wherever they wait."""


class Flag:
    """A flag in shared memory that the run is over."""

    def __init__(self) -> None:
        self._memory = remotely.SharedArray(1, np.uint8)

    @property
    def is_raised(self) -> bool:
        return bool(self._memory.array[0])

    def raise_it(self) -> None:
        self._memory.array[0] = 1


@dataclasses.dataclass(frozen=True)
class RankPart:
    """The arguments of a rank other than 0."""

    algorithm: str
    loop: Loop
    kind: type[Learner[Any]]
    config: Common
    model: nn.Module
    actions: Actions
    scale: SavedScale  # units of values, which a model of another run brings along
    saved: dict[str, Any] | None
    run: Path  # only for messages: this rank writes nothing there
    meeting: Path
    rank: int
    size: int
    over: Flag
    shared: SharedAddress | None  # of the store, if there is one


@remotely.remote_class
class Rank:
    """The actor of a learner other than rank 0."""

    def __init__(self) -> None:
        self._apart: Apart | None = None

    def pid(self) -> int:
        """Return the id of the learner's process."""
        return os.getpid()

    def news(self) -> list[Round]:
        """Return the rounds sampled since the last call, of a learner that shares a store."""
        rounds = self._apart.rounds if self._apart is not None else ()
        return [rounds.popleft() for _ in range(len(rounds))] if rounds else []

    def run(self, part: RankPart) -> None:
        """Learn until the run is over.  Raises what else ends the loop."""
        torch.manual_seed(part.config.seed)

        def look() -> None:
            if part.over.is_raised:
                raise Ended

        def why() -> str:
            return "the run is over" if part.over.is_raised else ""

        learner = part.kind(part.config, part.model, part.actions)
        learner.value_scale = loaded_scale(part.scale, part.config)
        folder = RunFolder(part.run)
        session = Session(
            part.algorithm, part.config, folder, part.saved, learner=learner, follows=why
        )
        with contextlib.suppress(Ended), session:
            if part.shared is not None:
                sharing = Sharing.opened(part.shared)
                session.at_end(sharing.close)
                sharing.join(learner)
                self._apart = Apart(part.rank, sharing.steps)
                session.learn_apart(self._apart)
                part.loop(session)
                return
            device = device_of(part.config)
            others = AllReduce(part.meeting, part.rank, part.size, device, look)
            session.at_end(others.close)
            session.learn_with(others)
            try:
                part.loop(session)
            except RankGone:  # another rank died: rank 0 reports it, and raises the flag
                deadline = time.monotonic() + 2 * DIAGNOSIS_S
                while time.monotonic() < deadline:
                    look()
                    time.sleep(all_reduce.LOOK_S)
                raise


class Ranks:
    """Rank 0's view of the other ranks."""

    def __init__(self, parts: list[RankPart], say: Callable[[str], None]):
        self._over = parts[0].over
        self._say = say
        self._role = (
            ProcessRole.LEARNER_IN_STEP if parts[0].shared is None else ProcessRole.LEARNER_APART
        )
        self._news: dict[int, Future[list[Round]]] = {}
        self._asked_at = 0.0
        self._actors: list[Rank] = []
        self._calls: list[Future[None]] = []
        self._gone: set[int] = set()
        for part in parts:
            try:
                self._actors.append(_placed(part))
            except failures.LOST as error:
                self.close()
                raise self._lost(part.rank, error) from error
            self._calls.append(remotely.submit(self._actors[-1].run, part))

    def look(self) -> None:
        """Raise LearnerLost if one of them has ended, unless the others can continue."""
        for rank, call in enumerate(self._calls, 1):
            if not call.done() or rank in self._gone:
                continue
            error = call.exception()
            lost = self._lost(rank, error)
            # One that returns before the run is over is as wrong as one that raises.
            if error is None or consequence_of(self._role, error) is Consequence.END:
                raise lost
            self._gone.add(rank)
            self._say(f"{lost}; the others continue")

    def news(self) -> list[Round]:
        """Return what the others have sampled, as far as they have replied; see `look`."""
        self.look()
        rounds: list[Round] = []
        for rank, call in list(self._news.items()):
            if call.done():
                del self._news[rank]
                rounds += [] if call.exception() else call.result()
        if time.monotonic() >= self._asked_at + NEWS_EVERY_S:
            self._asked_at = time.monotonic()
            for rank, actor in enumerate(self._actors, 1):
                if rank not in self._news and rank not in self._gone:
                    self._news[rank] = remotely.submit(actor.news)
        return rounds

    def lost(self) -> LearnerLost:
        """After a connection closed, return the error to raise: which rank has died, and why."""
        deadline = time.monotonic() + DIAGNOSIS_S
        while time.monotonic() < deadline:
            try:
                self.look()
            except LearnerLost as lost:
                return lost
            wait_for_all(self._calls, all_reduce.LOOK_S, "FIRST_COMPLETED")
        return LearnerLost("a learner has closed its connection to the others, but still runs")

    def close(self) -> None:
        """End them gracefully, or kill them after LEAVING_S."""
        self._over.raise_it()
        for call in self._calls:
            cluster.discard(call)
        for news in self._news.values():
            cluster.discard(news)
        _, late = wait_for_all(self._calls, LEAVING_S)
        for actor, call in zip(self._actors, self._calls, strict=True):
            with contextlib.suppress(remotely.RemotelyError):
                (remotely.kill if call in late else remotely.close)(actor)

    def _lost(self, rank: int, error: BaseException | None) -> LearnerLost:
        if error is None:
            return LearnerLost(f"learner {rank} has ended before the run")
        if isinstance(error, TrainingError):
            return LearnerLost(f"learner {rank}: {error}")
        return LearnerLost(f"learner {rank} is lost: {failures.last_line(error)}")


@contextlib.contextmanager
def beside(session: Session[C], loop: Loop, kind: type[Learner[C]]) -> Iterator[None]:
    """Run the other learners of a run, if it has several, during the block."""
    config = session.learner.config
    size = learners_of(config)
    sharing = None
    if _has_store(config):
        sharing = _sharing(session, size)
        session.at_end(sharing.close)  # after the checkpoint is written
    if size == 1:
        yield
        return
    # Private to this user, whatever the umask: a process that writes there could pose as a rank.
    with tempfile.TemporaryDirectory(prefix="remotely-learners-") as folder:
        meeting = Path(folder)
        ranks = Ranks(_parts(session, loop, kind, size, meeting, sharing), session.say)
        try:
            if sharing is None:
                device = session.learner.device
                session.learn_with(AllReduce(meeting, 0, size, device, ranks.look))
            else:
                session.learn_apart(Apart(0, sharing.steps, ranks.news))
            store = "" if sharing is None else "; they share a store"
            session.say(f"{size} learners, with {config.actors} actors each{store}")
            yield
        except RankGone as gone:
            raise ranks.lost() from gone
        finally:
            ranks.close()
            session.peers.close()


def _has_store(config: Common) -> bool:
    """Whether there is a store: a single learner has one only if the config says so."""
    return shares_store(config) and (learners_of(config) > 1 or not shares_store(type(config)))


def _sharing(session: Session[C], size: int) -> Sharing:
    """Make the store, with rank 0's initial state or that of the resumed run."""
    learner = session.learner
    if session.saved is not None:
        learner.load(session.saved["learner"])
    sharing = Sharing.begun(learner, size)
    sharing.join(learner)
    return sharing


def check(config: Common) -> None:
    """Raise TrainingError if this machine cannot run the learners of a config."""
    size = learners_of(config)
    if _has_store(config) and not memory_file.SUPPORTED:
        raise TrainingError(
            f"learners that share a store need Linux, whose memory files they lock, not"
            f" {sys.platform}: use learners_share=gradients, or one learner"
        )
    if size == 1:
        return
    if os.environ.get("REMOTELY_LOCAL") == "1":
        raise TrainingError(
            f"learners={size} are processes, and REMOTELY_LOCAL=1 runs all in one: unset it, or"
            " set learners to 1"
        )
    if config.actors == 0 or getattr(config, "arrivals", False):
        what = "arrivals" if config.actors else "actors=0"
        raise TrainingError(
            f"learners={size} have a fixed number of actors each: {what} is for one learner"
        )
    device = device_of(config)
    given: str = getattr(config, "device", "cpu")
    if device.type == "cuda":
        count = torch.cuda.device_count()
        if device.index is not None:
            raise TrainingError(
                f"learners={size} take a GPU each, and device={given} names one: use cuda"
            )
        if size > count:
            raise TrainingError(
                f"learners={size} take a GPU each, and torch sees {count}: set learners to"
                f" {count} at most, or use --device cpu"
            )
    if not shares_store(config):
        all_reduce.check_available(device)


def _parts(
    session: Session[C],
    loop: Loop,
    kind: type[Learner[C]],
    size: int,
    meeting: Path,
    sharing: Sharing | None,
) -> list[RankPart]:
    learner, over = session.learner, Flag()
    saved = session.saved
    if saved is not None:  # the saved actors and replay are rank 0's
        saved = {**saved, "actors": [], "replay": {}}
    model = networks.copy_to_cpu(learner.model)
    parts = []
    for rank in range(1, size):
        seed = seed_of_learner(learner.config.seed, rank)
        config = dataclasses.replace(learner.config, seed=seed)
        config = config.of_actor(rank * config.actors)
        part = RankPart(
            session.algorithm,
            loop,
            kind,
            config,
            model,
            learner.actions,
            saved_scale(learner.value_scale),
            saved,
            session.folder.path,
            meeting,
            rank,
            size,
            over,
            None if sharing is None else sharing.address,
        )
        parts.append(part)
    return parts


def _placed(part: RankPart) -> Rank:
    """Place a rank on this machine, with its own GPU if it learns on one."""
    # Two calls at a time with a store: `news` while `run` learns.
    options: dict[str, Any] = {"concurrency": 1 if part.shared is None else 2}
    if not cluster.is_own():
        options["machine"] = this_machine.machine_name()
    if device_of(part.config).type == "cuda":
        # Rank 0 uses its first visible GPU.  CUDA_VISIBLE_DEVICES takes names.
        options["env"] = {gpus.VARIABLE: gpus.visible()[part.rank]}
    return remotely.options(Rank, **options)()
