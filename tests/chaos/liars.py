"""Admitted peers that lie: a worker and a client with valid keys, which know every id.

Their messages are well formed and false: that actors of others are theirs, have moved or died,
printed something or make calls with some key; that they are another peer; that they have fewer or
more resources.  Meanwhile all calls of the victims are answered, their actors stay where they were,
and they see only their own output, complete and in order.

A client may end any actor, as a shell on the workers' machines may (SECURITY.md), and its requests
for resources may be granted.  So the liar requests more than exists, and ends actors that do not.
"""

import contextlib
import functools
import itertools
import os
import random
import secrets
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import zmq

import remotely
from remotely.api import connection
from remotely.client import printing
from remotely.errors import RemotelyError
from remotely.protocol import control
from remotely.protocol.ids import bound_id
from remotely.protocol.resources import Resources
from remotely.transport import key_files, keys, sockets
from remotely.transport.sockets import Reconnect
from tests.chaos.finding import Finding, Trial
from tests.chaos.fuzz import Ground, growth, leak
from tests.clusters import wait_until

BURST = 500  # lies between two checks of the victims
BEYOND = 1e9  # cores


@remotely.remote_class(cpus=0.1)
class Witness:
    """An actor that prints on request."""

    def pid(self) -> int:
        return os.getpid()

    def say(self, line: str) -> None:
        print(line, flush=True)


class Witnesses:
    """Actors of an honest client, whose lives and output are checked all the time."""

    def __init__(self) -> None:
        self.wrong: list[str] = []
        self.said = 0
        self._heard: list[tuple[str, str]] = []
        self._actors = [
            Witness(),
            remotely.options(Witness, name="named")(),
            remotely.options(Witness, name="left", detached=True)(),
            remotely.options(Witness, max_restarts=1)(),
        ]
        self._pids = [actor.pid() for actor in self._actors]

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Record what this process would print of its actors."""

        def hear(_: object, said: control.Printed) -> None:
            self._heard += ((said.name, line) for line in said.text.splitlines())

        with mock.patch.object(printing.Display, "show", hear):
            yield

    def ask(self) -> None:
        """Check that all live, and have each print a line."""
        try:
            pids = [actor.pid() for actor in self._actors]
            if pids != self._pids:
                self.wrong.append(f"other processes reply: {pids}, not {self._pids}")
            for actor in self._actors:
                actor.say(f"line {self.said}")
            self.said += 1
            for name, actor in (("named", self._actors[1]), ("left", self._actors[2])):
                found = remotely.get_actor(name)._remotely_remote.actor
                if found != actor._remotely_remote.actor:
                    self.wrong.append(f"{name} means {found}")
        except (RemotelyError, NameError) as error:
            self.wrong.append(f"a witness is gone: {error!r}")

    def judge(self) -> list[str]:
        """Return all that was wrong; close the detached actor."""
        expected = [f"line {number}" for number in range(self.said)]
        names = [actor._remotely_remote.request.name for actor in self._actors]
        with contextlib.suppress(AssertionError):
            wait_until(lambda: len(self._heard) >= self.said * len(names), "all output")
        for name in names:
            lines = [line for said_by, line in self._heard if said_by == name]
            if lines != expected:
                self.wrong.append(f"{name} printed {len(lines)} lines: {lines[:5]}")
        if others := {name for name, _ in self._heard} - set(names):
            self.wrong.append(f"output of {others}")
        with contextlib.suppress(RemotelyError):
            remotely.close(self._actors[2])
        return self.wrong


class Truth:
    """What a liar knows: all that the master sends in a status, and more."""

    def __init__(self, ground: Ground, draw: random.Random) -> None:
        engine: Any = connection.current()
        status: control.Status = engine.carrier.status()
        self.draw = draw
        self.actors = [a for worker in status.workers for a in worker.actors]
        self.sessions = [client.session for client in status.clients]
        self.workers = [worker.worker for worker in status.workers]
        self.keys = [
            b"",
            secrets.token_bytes(40),
            *(key.pair.public for key in ground.key_of.values()),
            *(status.location.public_key for status in self.actors),
        ]

    def actor(self) -> str:
        ids = [status.request.actor for status in self.actors]
        return self.draw.choice([*ids, secrets.token_hex(16), ""])

    def status(self) -> control.ActorStatus:
        """Return the status of an actor as if it were the liar's: other address, other life."""
        known = self.draw.choice(self.actors)
        location = msgspec.structs.replace(
            known.location,
            life=self.life(known.location.life),
            tcp="tcp://127.0.0.1:1",
            ipc="ipc:///tmp/nobody",
            public_key=self.draw.choice(self.keys),
        )
        request = msgspec.structs.replace(
            known.request,
            life=location.life,
            owner=self.draw.choice([*self.sessions, "", known.request.owner]),
            job=self.draw.choice([*self.sessions, known.request.job]),
            key=self.draw.choice([*self.keys, known.request.key]),
            resources=Resources(self.draw.choice([0.0, 1.0, 1e12])),
        )
        return msgspec.structs.replace(
            known,
            location=location,
            request=self.draw.choice([request, known.request]),
            gpu_ids=self.draw.choice([[], [0], [4096] * 100]),
            seal=self.draw.choice([b"", secrets.token_bytes(32)]),
            delegate=self.draw.choice(self.keys),
        )

    def life(self, of: int) -> int:
        return self.draw.choice([of, of, of + 1, 1 << 62])

    def number(self) -> int:
        return self.draw.choice([0, 1, self.draw.randrange(1000), 1 << 62])


class Liar:
    """A connection with a valid key and its true id."""

    def __init__(
        self, context: "zmq.Context[zmq.Socket[bytes]]", ground: Ground, key: keys.MemberKey
    ) -> None:
        self.key = key
        self.nonce = secrets.token_hex(8)
        self.me = bound_id(key.role, key.pair.public, self.nonce)
        self.refused = 0
        self._decoder = control.Decoder(f"master > {key.role}")
        address, public = ground.ports["master"]
        self._socket = sockets.client(context, key.pair, public, Reconnect.BACKING_OFF)
        self._socket.connect(address)

    def say(self, message: msgspec.Struct) -> None:
        self._socket.send(control.encode(message))

    def hear(self, wait_ms: int = 0) -> list[object]:
        """Return the messages of the master."""
        heard = []
        while self._socket.poll(wait_ms):
            heard.append(self._decoder.decode(self._socket.recv()))
            wait_ms = 0
        self.refused += sum(isinstance(said, control.Refused) for said in heard)
        return heard

    def settle(self) -> None:
        """Wait until the master has read all messages: it replies in order."""
        asked = time.monotonic()
        deadline = asked + 30.0
        question: msgspec.Struct = (
            control.Beat(asked=asked)
            if self.key.role == "worker"
            else control.AskStatus(ticket=(number := next(_numbers)))
        )
        self.say(question)
        while time.monotonic() < deadline:
            for said in self.hear(100):
                match said:
                    case control.Tick(asked=answered) if answered == asked:
                        return
                    case control.Status(ticket=ticket) if ticket == number:
                        return
        raise TimeoutError("the master no longer answers a liar")

    def close(self) -> None:
        self._socket.close(linger=0)


_numbers = itertools.count(1)


# --- a worker -------------------------------------------------------------------------------------


def _register(truth: Truth, liar: Liar, honest: bool = False) -> control.Register:
    """Return a true or false registration; it offers no resources, so that no request is placed."""
    draw = truth.draw
    actors = [truth.status() for _ in range(0 if honest else draw.randrange(4))]
    births = [
        control.Spawn(request=s.request, gpu_ids=s.gpu_ids, again=draw.random() < 0.5, seal=s.seal)
        for s in (truth.status() for _ in range(0 if honest else draw.randrange(3)))
    ]
    return control.Register(
        worker=liar.me if honest or draw.random() < 0.7 else draw.choice(truth.workers),
        nonce=liar.nonce if honest or draw.random() < 0.9 else secrets.token_hex(8),
        python="0.0",
        host="elsewhere",
        machine=draw.choice(["elsewhere", "one", "two"]),
        address="elsewhere",
        pid=1,
        resources=Resources(),
        actors=actors,
        births=births,
    )


def _guest(truth: Truth, liar: Liar) -> control.Register:
    """Claim to serve an object, which may be an actor of others."""
    status, draw = truth.status(), truth.draw
    actor = draw.choice([status.request.actor, liar.me])
    request = msgspec.structs.replace(
        status.request, actor=actor, classes=["Witness"], named=draw.random() < 0.5
    )
    return msgspec.structs.replace(
        _register(truth, liar),
        actors=[msgspec.structs.replace(status, request=request)],
        python=draw.choice(["", "0.0"]),
        drains_s=draw.choice([0.0, draw.random(), 1e9]),
        must_leave=draw.random() < 0.5,
    )


def _spawned(truth: Truth, liar: Liar) -> control.Spawned:
    return control.Spawned(location=truth.status().location, since=truth.number() % 10**12)


def _died(truth: Truth, liar: Liar) -> control.Died:
    status, draw = truth.status(), truth.draw
    obituary = control.Obituary(
        actor=status.request.actor,
        life=truth.life(0),
        lost=draw.random() < 0.5,
        asked=draw.random() < 0.5,
        exit=draw.choice([None, -9, 0, "a lie"]),
        why="a lie",
        restarting=draw.random() < 0.3,
    )
    return control.Died(obituary=obituary, lived=draw.choice([None, status]))


def _report(truth: Truth, liar: Liar) -> control.Report:
    figures = [
        control.Figures(actor=truth.actor(), calls=truth.number(), cpu_percent=1e9, rss=1 << 62)
        for _ in range(truth.draw.randrange(5))
    ]
    return control.Report(actors=figures)


def _output(truth: Truth, liar: Liar) -> control.OutputBatch:
    status = truth.draw.choice(truth.actors)
    printed = control.Printed(
        actor=truth.actor(),
        name=status.request.name,
        job=status.request.job,
        error=truth.draw.random() < 0.5,
        text="a lie\n",
    )
    return control.OutputBatch(items=[printed])


def _log_piece(truth: Truth, liar: Liar) -> control.LogPiece:
    known = truth.draw.random() < 0.5
    return control.LogPiece(
        ticket=truth.number(), text="a lie\n", offset=1, known=known, ended=not known
    )


def _delegate(truth: Truth, liar: Liar) -> control.Delegate:
    return control.Delegate(key=truth.draw.choice(truth.keys), actor=truth.actor())


def _may_call(truth: Truth, liar: Liar) -> control.MayCall:
    return control.MayCall(key=truth.draw.choice(truth.keys))


def _left(truth: Truth, liar: Liar) -> control.Left:
    return control.Left()


WORKERS_LIES = (
    _register,
    _guest,
    _spawned,
    _died,
    _report,
    _output,
    _log_piece,
    _delegate,
    _may_call,
)
SELDOM = {"worker": _left, "client": lambda truth, liar: control.Goodbye()}


# --- a client -------------------------------------------------------------------------------------


def _hello(truth: Truth, liar: Liar, honest: bool = False) -> control.Hello:
    draw = truth.draw
    return control.Hello(
        session=liar.me if honest or draw.random() < 0.5 else draw.choice(truth.sessions),
        nonce=liar.nonce if honest or draw.random() < 0.9 else secrets.token_hex(8),
        python="0.0",
        pid=1,
        host="elsewhere",
        machine="elsewhere",
        actor="" if honest else truth.actor(),
    )


def _place(truth: Truth, liar: Liar) -> control.Place:
    """Request actors and names of others; a new actor only if there are no resources for it."""
    draw, status = truth.draw, truth.status()
    claimed = draw.choice([status.request.actor, secrets.token_hex(16)])
    request = msgspec.structs.replace(
        status.request,
        actor=claimed,
        named=draw.random() < 0.5,
        resources=Resources(BEYOND),
        python="0.0",
    )
    patience_s = draw.choice([0.0, 0.1, control.LONGEST_S])
    return control.Place(ticket=truth.number(), request=request, patience_s=patience_s)


def _end(truth: Truth, liar: Liar) -> control.End:
    return control.End(actor=secrets.token_hex(16), grace_s=truth.draw.choice([0.0, 1e9]))


def _locate(truth: Truth, liar: Liar) -> control.Locate:
    name = truth.draw.choice(["named", "left", "nobody", ""])
    return control.Locate(ticket=truth.number(), actor=truth.actor(), name=name)


def _read_log(truth: Truth, liar: Liar) -> control.ReadLog:
    return control.ReadLog(
        ticket=truth.number(), actor=truth.actor(), offset=truth.draw.choice([-1, 0, 1 << 62])
    )


def _blocked(truth: Truth, liar: Liar) -> control.Blocked:
    return control.Blocked(wait=truth.number(), actor=truth.actor(), call="a lie")


CLIENTS_LIES = (_hello, _place, _end, _locate, _read_log, _blocked)


# --- the trials -----------------------------------------------------------------------------------


def _lie(role: str, n: int, seed: int, folder: Path) -> Finding:
    """Tell n lies in a role, and check what the victims see."""
    draw = random.Random(seed)
    begun = time.monotonic()
    with Ground(folder) as ground, zmq.Context() as context:
        key = key_files.load_member(ground.another_key(role))
        witnesses, liar = Witnesses(), Liar(context, ground, key)
        with witnesses.listening():
            truth = Truth(ground, draw)
            introduce, lies = {
                "worker": (_register, WORKERS_LIES),
                "client": (_hello, CLIENTS_LIES),
            }[role]
            before = ground.rss()
            for number in range(n):
                if number % BURST == 0:
                    liar.say(introduce(truth, liar, True))
                    liar.settle()
                    witnesses.ask()
                lie: Callable[..., msgspec.Struct] = draw.choice(lies)
                liar.say((SELDOM[role] if draw.random() < 0.002 else lie)(truth, liar))
                liar.hear()
            liar.say(introduce(truth, liar, True))
            liar.settle()
            witnesses.ask()
            grown = growth(before, ground.rss())
            wrong = witnesses.judge()
        calls = ground.calls
        liar.close()
    told = (
        f"{liar.refused:,} refused in words, the victim's {calls:,} calls answered, "
        f"{witnesses.said:,} looks at four actors and their output, memory grew by "
        f"{grown >> 10:,} KiB"
    )
    return Finding(n, time.monotonic() - begun, told, [*ground.wrong, *wrong, *leak(grown)])


TRIALS = {
    "a worker that lies": Trial(100_000, functools.partial(_lie, "worker")),
    "a client that lies": Trial(100_000, functools.partial(_lie, "client")),
}
