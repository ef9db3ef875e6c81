"""The engine over a carrier that carries nothing: what it decides whichever carrier it has."""

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from remotely.calling.actor import CalledActor
from remotely.calling.carrier import PICKLED
from remotely.calling.engine import CallEngine, begin_restart
from remotely.engine import Engine, Options, Promises
from remotely.errors import ActorDied, NameTaken, NotConnected, RemotelyError
from remotely.futures import wakeup
from remotely.futures.future import CallFuture
from remotely.protocol.wire import Kind
from remotely.values.codec import Encoded
from remotely.values.owned import Owned
from tests.clusters import wait_until

NO_LATER_THAN_S = 20.0


class Channel:
    """Answers each call with the life that it leads to."""

    is_introduced = True
    lends = False
    sources_sent = 1_000_000
    pending = ()

    def __init__(self, life: int) -> None:
        self.life = life
        self.is_open = True
        self.sent: list[str] = []

    def wait_until_introduced(self) -> None: ...

    def receive_in_background(self) -> None: ...

    def send(
        self,
        kind: Kind,
        name: str,
        value: Encoded,
        future: CallFuture[Any],
        background: bool,
        large: Any = None,
        may_requeue: bool = False,
    ) -> bool:
        if self.is_open:
            self.sent.append(name or kind.name)
            future.set_result(self.life)
        return self.is_open


class Message:
    """A call that waits for nothing."""

    may_be_large = is_large = False

    def __init__(self, kind: Kind, name: str, value: Owned) -> None:
        self.kind, self.name, self.value = kind, name, value
        self.encoded, self.nbytes = value, value.nbytes

    def needs(self, actor: object) -> tuple[()]:
        return ()

    def outgoing_to(self, actor: object) -> "Message":
        return self

    def close(self) -> None: ...


class Carrier:
    """Makes actors at once; `place_error` and others make it fail."""

    cluster = inside = ""
    promises = Promises()
    encoder = PICKLED
    lends = is_immediate = False
    patience_s = 0.0

    def __init__(self) -> None:
        self.known: weakref.WeakValueDictionary[str, CalledActor] = weakref.WeakValueDictionary()
        self.told: list[Any] = []
        self.placed: list[tuple[list[str], Sequence[bytes]]] = []
        self.errors: list[BaseException] = []  # of the next attempts to place
        self.during_place: Callable[[], None] = lambda: None
        self.to_find: CalledActor | None = None
        self.interrupts_the_end = False

    def new(
        self, engine: Engine, cls: type, names: Sequence[str], options: Options
    ) -> list[CalledActor]:
        return [CalledActor(engine, name, name, owned=True) for name in names]

    def place(self, actors: Any, encoded: Any, options: Options, *_: object) -> None:
        payloads = [bytes(each.payload) for each in encoded]
        self.placed.append(([actor.name for actor in actors], payloads))
        self.during_place()
        if self.errors:
            raise self.errors.pop(0)
        for actor in actors:
            actor.channel = Channel(actor.life)

    def abandon(self, actors: Sequence[CalledActor], kill: bool) -> None:
        self.told += [("abandon", actor.name, kill) for actor in actors]

    def await_name(self, options: Options, deadline: float, again: bool) -> bool:
        return options.get_if_exists

    def find(self, engine: Engine, name: str) -> CalledActor | None:
        found, self.to_find = self.to_find, None
        return found

    def connect(self, actor: CalledActor) -> Any:
        actor.wait_until_alive()
        wakeup.sleep_until(lambda: actor.channel.is_open, NO_LATER_THAN_S)
        return actor.channel

    def message(self, actors: object, kind: Kind, name: str, value: Owned, *_: object) -> Message:
        return Message(kind, name, value)

    def begin_send(self, what: str) -> None: ...

    def check(self) -> None: ...

    def check_wait(self, *_: object) -> None: ...

    def sleep_until(
        self, is_over: Any, timeout_s: float | None, actor: object, future: object
    ) -> None:
        wakeup.sleep_until(is_over, timeout_s, future)

    def note_unretrieved(self, what: str, error: BaseException) -> None: ...

    def may_wait(self) -> bool:
        return True

    def begin_end(self, actors: Sequence[CalledActor], grace_s: float) -> None:
        self.told.append("begin_end")

    def await_end(self, actors: Sequence[CalledActor], deadline: float) -> None:
        if self.interrupts_the_end:
            raise KeyboardInterrupt

    def finish_end(self, actors: Sequence[CalledActor]) -> None:
        self.told.append("finish_end")

    def release(self, actor: CalledActor) -> None: ...

    def leave(self) -> bool:
        if self.interrupts_the_end:
            raise KeyboardInterrupt
        return "close" not in self.told

    def left(self) -> RemotelyError:
        return NotConnected("it has left")

    def close(self) -> None:
        self.told.append("close")


@pytest.fixture
def carrier() -> Carrier:
    return Carrier()


@pytest.fixture
def engine(carrier: Carrier) -> CallEngine:
    whole: Any = carrier
    return CallEngine(whole)


def make(engine: CallEngine, count: int = 1, **options: Any) -> list[Any]:
    return list(engine.place(int, [((), {})] * count, Options(**options)))


@pytest.mark.parametrize("error", [RemotelyError("no room"), KeyboardInterrupt()])
def test_if_one_of_a_group_cannot_be_made_all_of_them_are_killed(
    engine: CallEngine, carrier: Carrier, error: BaseException
) -> None:
    carrier.errors = [error]
    with pytest.raises(type(error)):
        make(engine, 3)
    assert carrier.told == [("abandon", f"int-{number}", True) for number in (1, 2, 3)]


def test_an_actor_that_another_client_was_faster_to_make_is_found(
    engine: CallEngine, carrier: Carrier
) -> None:
    theirs = CalledActor(engine, "theirs", "store", owned=False)
    carrier.errors = [NameTaken("taken")]
    carrier.during_place = lambda: setattr(carrier, "to_find", theirs)
    assert make(engine, name="store", get_if_exists=True) == [theirs]


def test_a_name_that_is_taken_is_an_error_and_so_is_that_of_a_constructor(
    engine: CallEngine, carrier: Carrier
) -> None:
    carrier.errors = [NameTaken("taken")]
    with pytest.raises(NameTaken):
        make(engine, name="store")
    of_constructor = NameTaken("taken")
    of_constructor.__cause__ = RuntimeError("in the actor")
    carrier.errors = [of_constructor]
    with pytest.raises(NameTaken):
        make(engine, name="store", get_if_exists=True)
    assert len(carrier.placed) == 2


def test_each_life_is_made_from_the_same_bytes(engine: CallEngine, carrier: Carrier) -> None:
    given = [1]
    (actor,) = engine.place(list, [((given,), {})], Options(max_restarts=1))
    assert isinstance(actor, CalledActor)
    given.append(2)
    restart(carrier, actor)
    (_, first), (_, second) = carrier.placed
    assert first == second
    assert engine.call([actor], "pop", (), {}, False)[0].result() == 1  # its life


def restart(carrier: Carrier, actor: CalledActor) -> None:
    actor.life, actor.restarting = actor.life + 1, True
    whole: Any = carrier
    begin_restart(whole, actor)
    wait_until(lambda: not actor.restarting, "the end of the restart")


def test_a_restart_that_fails_ends_the_actor_and_its_queued_calls(
    engine: CallEngine, carrier: Carrier
) -> None:
    (actor,) = make(engine, max_restarts=1)
    actor.channel.is_open = False
    carrier.errors = [RemotelyError("no room")]
    futures: list[CallFuture[Any]] = []
    carrier.during_place = lambda: futures.extend(engine.call([actor], "bit_count", (), {}, True))
    restart(carrier, actor)
    error = futures[0].exception(NO_LATER_THAN_S)
    assert isinstance(error, ActorDied)
    assert "could not be restarted: no room" in str(error)
    assert not error.may_have_run
    assert carrier.told == [("abandon", "int-1", False)]


def test_a_life_whose_last_handle_is_dropped_meanwhile_is_removed(
    engine: CallEngine, carrier: Carrier
) -> None:
    (actor,) = make(engine, max_restarts=1)
    carrier.during_place = lambda: engine.release(actor)
    restart(carrier, actor)
    assert carrier.told == [("abandon", "int-1", False)]


def test_calls_made_while_no_channel_is_open_are_sent_to_the_next_life_in_order(
    engine: CallEngine, carrier: Carrier
) -> None:
    (actor,) = make(engine, max_restarts=1)
    actor.channel.is_open = False
    names = ["first", "second", "third"]
    futures = [engine.call([actor], name, (), {}, True)[0] for name in names]
    assert not any(future.done() for future in futures)
    restart(carrier, actor)
    assert [future.result(NO_LATER_THAN_S) for future in futures] == [1, 1, 1]
    assert actor.channel.sent == names


def test_after_an_interrupted_end_the_calls_of_the_actors_fail(
    engine: CallEngine, carrier: Carrier
) -> None:
    actors = make(engine, 2)
    carrier.interrupts_the_end = True
    with pytest.raises(KeyboardInterrupt):
        engine.end(actors, 1.0)
    assert [actor.channel.sent for actor in actors] == [["END"], ["END"]]
    assert carrier.told == ["begin_end", "finish_end"]


def test_an_interrupted_shutdown_closes_all_the_same(engine: CallEngine, carrier: Carrier) -> None:
    (actor,) = make(engine, max_restarts=1)
    actor.channel.is_open = False
    (waiting,) = engine.call([actor], "bit_count", (), {}, True)
    carrier.interrupts_the_end = True
    with pytest.raises(KeyboardInterrupt):
        engine.shutdown()
    assert carrier.told == ["close"]
    assert isinstance(waiting.exception(NO_LATER_THAN_S), NotConnected)
