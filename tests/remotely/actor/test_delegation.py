"""An actor makes calls with a key of its own, which is valid while it lives and exposed nowhere.

A thief of a worker.key can take such a key from the memory of an actor: see `thief`.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import remotely
from remotely.actor.actor import Delegation
from remotely.api import connection
from remotely.calling.engine import CallEngine
from remotely.client.carrier import ClusterCarrier
from remotely.errors import MasterLost, NotAllowed, RemotelyError
from remotely.transport import key_files
from remotely.transport.keys import KeyPair, MemberKey
from remotely.values.shipping import Shipment
from tests.clusters import Started, processes, wait_until


@remotely.remote_class(cpus=0.1)
class Node:
    """Calls other nodes, and reveals its key."""

    def echo(self, value: Any) -> Any:
        return value

    def ask(self, other: "Node", value: Any) -> Any:
        return other.echo(value)

    def ask_all(self, others: "list[Node]") -> list[Any]:
        return [other.echo(number) for number, other in enumerate(others)]

    def pair(self) -> tuple[bytes, bytes]:
        pair = connection.current().carrier._session.link._key.pair
        return pair.public, pair.secret

    def repr_of_key(self) -> str:
        return repr(connection.current().carrier._session.link._key)

    def pid(self) -> int:
        return os.getpid()


def actor_of(node: Node) -> str:
    return str(node._remotely_remote.actor)


@pytest.fixture
def joined(started: Started, nothing_left: None) -> Started:
    remotely.connect(started.address, key=started.key)
    return started


@pytest.fixture
def thief(joined: Started) -> Iterator[tuple[Node, ClusterCarrier, MemberKey]]:
    """Yield an actor, a client that uses its stolen key, and the key."""
    robbed = Node()
    master = key_files.load_member(joined.key).master_public
    key = MemberKey("client", KeyPair(*robbed.pair()), master)
    client = ClusterCarrier(f"tcp://{joined.address}", key, Shipment(()), inside=actor_of(robbed))
    yield robbed, client, key
    client.shutdown()


def test_each_life_of_an_actor_has_a_key_of_its_own(joined: Started) -> None:
    one, other = Node(), remotely.options(Node, max_restarts=1)()
    listed = key_files.load_member(joined.key).pair.public
    before = other.pair()[0]
    assert len({listed, one.pair()[0], before}) == 3
    os.kill(other.pid(), signal.SIGKILL)

    def key_of_next_life() -> bytes:
        try:
            return other.pair()[0]
        except RemotelyError:
            return before

    wait_until(lambda: key_of_next_life() != before, "another key")


def test_the_key_of_an_actor_that_has_ended_is_refused(
    thief: tuple[Node, ClusterCarrier, MemberKey], joined: Started
) -> None:
    robbed, client, key = thief
    victim = Node()
    engine = CallEngine(client)
    borrowed = engine.borrow(actor_of(victim), "victim")

    def echo() -> Any:
        (future,) = engine.call([borrowed], "echo", (1,), {}, False)
        return future.result(40)

    assert echo() == 1  # allowed while the actor lives
    assert client.status().workers
    os.kill(robbed.pid(), signal.SIGKILL)

    def refusal() -> str:
        try:
            echo()
        except RemotelyError as error:
            return type(error).__name__
        return ""

    wait_until(refusal, "the end of its calls")
    assert refusal() == "NotAllowed"

    def is_refused() -> bool:
        try:
            client.status()
        except NotAllowed:
            return True
        return False

    wait_until(is_refused, "the master's refusal")
    with pytest.raises(NotAllowed):
        ClusterCarrier(f"tcp://{joined.address}", key, Shipment(()), inside=actor_of(victim))
    assert victim.echo(2) == 2


def test_an_actors_key_is_for_that_actor_alone(
    thief: tuple[Node, ClusterCarrier, MemberKey], joined: Started
) -> None:
    _, _, key = thief
    for inside in (actor_of(Node()), ""):
        with pytest.raises(NotAllowed, match="for that actor alone"):
            ClusterCarrier(f"tcp://{joined.address}", key, Shipment(()), inside=inside)


def test_actors_that_all_call_each_other_at_once_are_all_admitted(joined: Started) -> None:
    callers, called = ([Node() for _ in range(6)] for _ in range(2))
    answers = [caller.ask_all.submit(called) for caller in callers]
    assert [answer.result(60) for answer in answers] == [list(range(6))] * 6


def test_the_secret_of_a_clients_key_is_in_no_other_process(joined: Started) -> None:
    node, other = Node(), Node()
    assert node.ask(other, "as a client itself") == "as a client itself"
    secret = key_files.load_member(joined.key).pair.secret
    for pid in (node.pid(), other.pid(), *worker_pids(joined)):
        assert not in_memory(pid, secret)
    assert in_memory(os.getpid(), secret)


def worker_pids(started: Started) -> list[int]:
    return [process.pid for home in started.homes for process in processes(str(home))]


def in_memory(pid: int, secret: bytes) -> bool:
    """Return whether the writable memory of a process contains these bytes."""
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", 0) as memory:
        for line in maps:
            span, rights, *_ = line.split()
            if not rights.startswith("rw"):
                continue
            begin, end = (int(address, 16) for address in span.split("-"))
            try:
                memory.seek(begin)
                if secret in memory.read(end - begin):
                    return True
            except OSError:  # memory that has no pages yet, or is a device's
                continue
    return False


def test_the_secret_of_an_actors_key_is_in_no_file_argument_variable_log_or_repr(
    joined: Started,
) -> None:
    node, other = Node(), Node()
    node.ask(other, 1)
    _, secret = node.pair()
    assert secret.decode() not in node.repr_of_key()
    homes = [joined.home, *joined.homes]
    for home in homes:
        for process in processes(str(home)):
            told = [*process.cmdline(), *process.environ().values()]
            assert not any(secret.decode() in text for text in told)
    folders = [*homes, *Path(os.environ["TMPDIR"]).glob("remotely-*")]
    files = [file for folder in folders for file in folder.rglob("*") if file.is_file()]
    assert files
    assert not [file for file in files if secret in file.read_bytes()]
    pids = worker_pids(joined)
    assert pids
    assert not any(in_memory(pid, secret) for pid in pids if pid != node.pid())


DETACHED = """
import sys
import remotely
from tests.remotely.actor.test_delegation import Node
remotely.connect(sys.argv[1], key=sys.argv[2])
left = remotely.options(Node, name="left", detached=True)()
print(left.pair()[0].decode(), flush=True)
"""


def test_detached_actors_of_a_revoked_key_end(joined: Started, tmp_path: Path) -> None:
    ada = tmp_path / "ada.key"
    joined.run(joined.home, "keys", "add", "client", str(ada))
    subprocess.run(
        [sys.executable, "-c", DETACHED, joined.address, str(ada)],
        check=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": "."},
        stdout=subprocess.DEVNULL,
    )
    mine = remotely.options(Node, detached=True)()
    left = remotely.get_actor("left")
    assert left.echo(1) == 1
    joined.run(joined.home, "keys", "revoke", str(ada))

    def has_ended() -> bool:
        try:
            remotely.get_actor("left")
        except (NameError, RemotelyError):
            return True
        return False

    wait_until(has_ended, "the end of ada's actor")
    assert mine.ask(Node(), 3) == 3
    remotely.close(mine)


def test_the_first_call_of_an_actor_whose_master_is_away_raises_and_a_later_one_uses_the_same_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("remotely.actor.actor.CONNECT_S", 0.01)
    sent: list[bytes] = []
    delegation = Delegation(lambda message: sent.append(message.key))
    with pytest.raises(MasterLost, match="tries again"):
        delegation.pair()
    delegation.confirm()
    assert [delegation.pair().public] == sent
