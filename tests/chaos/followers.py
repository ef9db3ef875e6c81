"""Machines that pass on the versions of a published value, and are killed or stopped meanwhile.

Each trial publishes versions on one machine, which the others read: they form a chain
(values/version_chain.py), and so does this process, as its end.  Meanwhile the store of a machine,
anywhere in the chain, is killed or stopped for a while, or the writer is killed.  Every byte of
every version that is read is checked.  A reader whose machine is not harmed reaches the last
version within END_S, and nobody holds up the writer; when that is dead, all learn it.
"""

import contextlib
import gc
import os
import random
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import remotely
from tests.chaos.finding import Finding, Trial, harmed
from tests.chaos.versions import SET_S, value_of, wrong_in
from tests.clusters import Started, Traces, freeze, processes

MACHINES = 4
VERSIONS = 10  # of a trial
LEAST = 2_000_000  # numbers of a version, 16 MB: it is often under way when something fails
# Between two versions: a follower whose source fails gets the rest of the version from the writer,
# or a newer one.
PAUSES = (0.3, 0.0)
SET_USUALLY_S = 0.1
LEFT_S = 20.0  # within which killed or stopped processes leave nothing behind
END_S = 60.0
HERE = "this process"


class Seen(NamedTuple):
    """What a reader has come to."""

    version: int
    is_final: bool
    wrong: list[str]


def read_up_to(params: "remotely.Published[Any]", life: int, last: int) -> Seen:
    """Read each version that is there, until the last one, or until the writer is gone."""
    wrong: list[str] = []
    seen, ends_at = 0, time.monotonic() + END_S
    while True:
        latest = params.latest()
        if says := wrong_in(latest, life, LEAST):
            wrong.append(says)
        if latest.version < seen:
            wrong.append(f"version {latest.version} of life {life} came after {seen}")
        seen = latest.version
        if seen >= last or latest.is_final or time.monotonic() > ends_at:
            return Seen(seen, latest.is_final, wrong)
        with contextlib.suppress(remotely.PublisherGone):
            params.wait(newer_than=seen, timeout=1.0)


@remotely.remote_class
class Peer:
    """A process on one of the machines: the writer, or a reader."""

    def publish(self, life: int) -> "remotely.Published[Any]":
        self.life = life
        self.params = remotely.Published(value_of(life, 1, LEAST), eager=True)
        return self.params

    def go_on(self, last: int, every_s: float) -> str:
        """Publish more versions, up to the last one; return what is wrong."""
        for version in range(self.params.version + 1, last + 1):
            value, begun = value_of(self.life, version, LEAST), time.monotonic()
            self.params.set(value)
            took_s = time.monotonic() - begun
            time.sleep(every_s)
            if took_s > SET_S:
                return f"the writer of life {self.life} waited for {took_s:.1f} s"
        return ""

    def read(self, params: "remotely.Published[Any]", life: int) -> None:
        self.params, self.life = params, life

    def where(self) -> tuple[str, int]:
        return os.environ["REMOTELY_HOST"], os.getpid()

    def read_up_to(self, last: int) -> Seen:
        return read_up_to(self.params, self.life, last)


class Stage:
    """A cluster with a writer on one of its machines, and a reader on each other one.

    `version` is the last one of the writer's `life`.
    """

    def __init__(self, folder: Path, draw: random.Random) -> None:
        self.draw = draw
        self.cluster = Started(folder, MACHINES, cpus=1)
        remotely.connect(self.cluster.address, key=self.cluster.key)
        self.life = self.version = self.writer_pid = 0
        self.writer: Any = None
        self.params: Any = None
        self.readers: dict[str, Any] = {}

    def begin(self) -> None:
        """Start the next writer, on a random machine, and its readers."""
        self.life += 1
        self.version = 1
        peers: Any = remotely.group(Peer, MACHINES)  # which have room for one each
        machines, pids = zip(*peers.where(), strict=True)
        self.readers = dict(zip(machines, peers, strict=True))
        where = self.draw.choice(machines)
        self.writer, self.writer_pid = self.readers.pop(where), pids[machines.index(where)]
        self.params = self.writer.publish(self.life)
        for reader in self.readers.values():
            reader.read(self.params, self.life)

    def new_reader(self, machine: str) -> Any:
        """Return another reader, which takes the place of one."""
        reader = remotely.options(Peer, cpus=0, near=self.readers[machine])()
        reader.read(self.params, self.life)
        self.readers[machine] = reader
        return reader

    def store(self, machine: str) -> int:
        """Return the pid of a machine's store, which follows for its readers."""
        (home,) = (home for home in self.cluster.homes if home.name == machine)
        (store,) = processes(str(home), "remotely.store")
        return store.pid

    def close(self) -> None:
        del self.writer, self.readers, self.params
        gc.collect()
        remotely.shutdown()
        self.cluster.stop()


Harm = Callable[[Stage, str], None]  # the machine is that of a reader


def _kill_follower(stage: Stage, machine: str) -> None:
    os.kill(stage.store(machine), signal.SIGKILL)


def _stop_follower(stage: Stage, machine: str) -> None:
    store = stage.store(machine)
    freeze(store)
    time.sleep(stage.draw.uniform(0.1, 12.0))
    os.kill(store, signal.SIGCONT)


def _kill_writer(stage: Stage, machine: str) -> None:
    del machine
    os.kill(stage.writer_pid, signal.SIGKILL)


def _trial(stage: Stage, harm: Harm) -> list[str]:
    victim = stage.draw.choice(sorted(stage.readers))
    last = stage.version = stage.version + VERSIONS
    every_s = stage.draw.choice(PAUSES)
    after_s = stage.draw.uniform(0.0, VERSIONS * (every_s + SET_USUALLY_S))
    with harmed(after_s, partial(harm, stage, victim)):
        writing = stage.writer.go_on.submit(last, every_s)
        reading = {name: reader.read_up_to.submit(last) for name, reader in stage.readers.items()}
        found = {HERE: read_up_to(stage.params, stage.life, last)}
        found |= {name: future.result(2 * END_S) for name, future in reading.items()}
    wrong = [f"{name}: {says}" for name, seen in found.items() for says in seen.wrong]
    for name, seen in found.items():
        may_end = harm is _kill_writer or (harm is _kill_follower and name == victim)
        if seen.version < last and not (may_end and seen.is_final):
            wrong.append(f"{name} came to {seen.version}, and {last} is the last version")
    if harm is _kill_writer:
        if not isinstance(error := writing.exception(END_S), remotely.ActorDied | None):
            wrong.append(f"the writer: {error!r}")
        wrong += _all_learn_its_end(stage)
        stage.writer, stage.readers = None, {}  # they make room
        stage.begin()
        return wrong
    if says := writing.result(END_S):
        wrong.append(says)
    if harm is _kill_follower:
        seen = stage.new_reader(victim).read_up_to(last)
        if seen != Seen(last, False, []):
            wrong.append(f"on {victim}, the next reader came to {seen}")
    return wrong


def _all_learn_its_end(stage: Stage) -> list[str]:
    never = stage.version + 1
    ends = [*stage.readers.items(), (HERE, None)]
    found = {
        name: read_up_to(stage.params, stage.life, never)
        if reader is None
        else reader.read_up_to(never)
        for name, reader in ends
    }
    return [f"{name} has not learnt of the end: {s}" for name, s in found.items() if not s.is_final]


def _run(harm: Harm, n: int, seed: int, folder: Path) -> Finding:
    begun, before = time.monotonic(), Traces()
    wrong: list[str] = []
    stage = Stage(folder / "stage", random.Random(seed))
    try:
        stage.begin()
        for number in range(n):
            wrong += [f"trial {number + 1}: {word}" for word in _trial(stage, harm)]
    finally:
        stage.close()
    left = before.left_after(LEFT_S)
    wrong += [f"left behind: {name}: {value}" for name, value in left.items()]
    told = f"{n * VERSIONS} versions on {MACHINES} machines, of {stage.life} writers"
    return Finding(n, time.monotonic() - begun, told, wrong)


TRIALS = {
    "kill a follower of a value": Trial(300, partial(_run, _kill_follower)),
    "stop a follower of a value": Trial(25, partial(_run, _stop_follower)),
    "kill the writer of a followed value": Trial(300, partial(_run, _kill_writer)),
}
