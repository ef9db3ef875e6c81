"""Actors kept at work: by rules, with actors that do what the test says, and in processes.

Over 500 lines: crew, rounds and stream are tried with the same actors that do as they are told.
"""

import contextlib
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

import remotely
from remotely_rl.acting import sampler
from remotely_rl.acting.actor import Parameters
from remotely_rl.acting.sampler import Rounds, Samplers, Stream
from remotely_rl.environments import Episode
from remotely_rl.errors import TrainingError

# --- actors that finish when they are told to -----------------------------------------------------


class Sample(NamedTuple):
    """What a fake sampled."""

    who: int
    number: int
    version: int
    steps: int = 1
    episodes: list[Episode] = []  # noqa: RUF012 - nobody writes into it


class Fake:
    """Does its calls in their order, each sample when the test says so."""

    def __init__(self, who: int, at_once: bool = False):
        self.who = who
        self.at_once = at_once
        self.version = -1
        self.count = 0
        self.closed = False
        self.calls: deque[tuple[Future[Any], Parameters | None]] = deque()

    def set_param(self, params: Parameters) -> None: ...
    def sample(self) -> Sample: ...  # type: ignore[empty-body]

    def told(self, *args: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.calls.append((future, args[0] if args else None))
        if self.at_once:
            self.finish()
        return future

    @property
    def pending(self) -> int:
        return sum(params is None for _, params in self.calls)

    def finish(self, steps: int = 1) -> None:
        """Does all up to the end of the next sample."""
        while self.calls:
            future, params = self.calls.popleft()
            if params is None:
                self.count += 1
                future.set_result(Sample(self.who, self.count, self.version, steps))
                return
            self.version = params.version
            future.set_result(None)

    def die(self) -> None:
        self.fail(remotely.ActorDied(f"{self.who} was killed", exit="SIGKILL"))

    def fail(self, error: Exception) -> None:
        for future, _ in self.calls:
            future.set_exception(error)
        self.calls.clear()


@contextlib.contextmanager
def faked() -> Iterator[None]:
    """Calls of fakes go to the fakes; parameters are sent as they are."""

    def submit(method: Any, *args: Any) -> Future[Any]:
        return method.__self__.told(*args)  # type: ignore[no-any-return]

    def close(actor: Fake) -> None:
        actor.closed = True

    with mock.patch.multiple(remotely, submit=submit, close=close, put=lambda value: value):
        yield
        for thread in threading.enumerate():
            if "_make_one" in thread.name:  # it may still end a fake that came too late
                thread.join(10)


@pytest.fixture
def fakes() -> Iterator[None]:
    with faked():
        yield


def params(version: int, width: int = 2) -> Parameters:
    return Parameters(version, {"weight": np.zeros(width, np.float32)})


def crew_of(
    count: int,
    make: Callable[[int], Any] = Fake,
    said: list[str] | None = None,
    grows: bool = False,
    first: Parameters | None = None,
) -> Samplers[Any]:
    say = said.append if said is not None else lambda text: None
    return Samplers(make, count, first or params(0), say, grows)


def wait_for_newcomer(crew: Samplers[Any]) -> None:
    while not crew.welcome(timeout_s=10):
        pass


# --- rounds ---------------------------------------------------------------------------------------


@pytest.mark.usefixtures("fakes")
def test_a_round_comes_in_the_order_of_the_actors_whoever_is_first() -> None:
    rounds = Rounds(crew_of(3))
    assert rounds.idle
    rounds.begin(params(4))
    assert not rounds.idle
    for actor in reversed(rounds.crew.actors):
        actor.finish()
    taken: list[Any] = list(rounds.take(0))
    assert taken == [Sample(who, 1, 4) for who in range(3)]
    assert rounds.idle


@pytest.mark.usefixtures("fakes")
def test_all_of_a_round_sample_once_and_with_the_same_parameters() -> None:
    rounds = Rounds(crew_of(3))
    for version in (1, 2, 5):
        rounds.begin(params(version))
        assert [actor.pending for actor in rounds.crew.actors] == [1, 1, 1]
        for actor in rounds.crew.actors:
            actor.finish()
        assert {sample.version for sample in rounds.take(0)} == {version}


@pytest.mark.usefixtures("fakes")
def test_who_dies_in_a_round_is_missing_from_it_and_replaced_by_the_next() -> None:
    said: list[str] = []
    rounds = Rounds(crew_of(3, said=said))
    rounds.begin(params(1))
    one, two, three = rounds.crew.actors
    one.finish()
    two.die()
    three.finish()
    assert [sample.who for sample in rounds.take(0)] == [0, 2]
    assert said == ["an actor died and is replaced: 1 was killed"]
    wait_for_newcomer(rounds.crew)
    rounds.begin(params(2))
    for actor in rounds.crew.actors:
        actor.finish()
    second: list[Any] = list(rounds.take(0))
    assert second == [Sample(0, 2, 2), Sample(2, 2, 2), Sample(3, 1, 2)]


@pytest.mark.usefixtures("fakes")
def test_a_round_that_is_not_over_can_be_asked_for_again() -> None:
    rounds = Rounds(crew_of(2))
    rounds.begin(params(1))
    one, two = rounds.crew.actors
    one.finish()
    assert rounds.take(0) == []
    assert not rounds.idle
    two.finish()
    taken: list[Any] = list(rounds.take(0))
    assert taken == [Sample(0, 1, 1), Sample(1, 1, 1)]


@pytest.mark.usefixtures("fakes")
def test_after_a_round_that_all_died_in_their_replacements_are_waited_for() -> None:
    rounds = Rounds(crew_of(2, lambda who: Fake(who, at_once=who >= 2)))
    rounds.begin(params(3))
    for actor in rounds.crew.actors:
        actor.die()
    assert rounds.take(0) == []
    assert rounds.idle
    rollouts: list[Any] = []
    while not rollouts:
        rounds.begin(params(3))
        rollouts = list(rounds.take(timeout_s=10))
    assert {sample.who for sample in rollouts} <= {2, 3}
    assert {sample.version for sample in rollouts} == {3}


@pytest.mark.usefixtures("fakes")
def test_an_actor_that_raises_in_a_round_is_replaced_and_ended() -> None:
    said: list[str] = []
    rounds = Rounds(crew_of(2, said=said))
    rounds.begin(params(1))
    one, two = rounds.crew.actors
    one.fail(ZeroDivisionError("in the environment"))
    two.finish()
    taken: list[Any] = list(rounds.take(0))
    assert taken == [Sample(1, 1, 1)]
    assert said[0].startswith("an actor raised and is replaced: ZeroDivisionError: in the envir")
    wait_for_newcomer(rounds.crew)
    assert one.closed
    assert [actor.who for actor in rounds.crew.actors] == [1, 2]


@pytest.mark.usefixtures("fakes")
def test_what_no_other_actor_could_do_better_ends_a_round() -> None:
    rounds = Rounds(crew_of(1))
    rounds.begin(params(1))
    rounds.crew.actors[0].fail(TrainingError("n_step_q needs actions that are numbered"))
    with pytest.raises(TrainingError, match="n_step_q needs"):
        rounds.take(0)


# --- the crew -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("fakes")
def test_parameters_are_sent_once_and_just_before_the_next_call() -> None:
    crew = crew_of(1)
    (actor,) = crew.actors
    assert not actor.calls
    crew.publish(params(1))
    crew.publish(params(2))
    crew.ask(actor)
    crew.ask(actor)
    sent = [given.version if given else "sample" for _, given in actor.calls]
    assert sent == [2, "sample", "sample"]


@pytest.mark.usefixtures("fakes")
def test_actors_that_need_no_parameters_are_sent_none() -> None:
    crew: Samplers[Any] = Samplers(Fake, 1, None, say=lambda text: None)
    crew.ask(crew.actors[0])
    assert len(crew.actors[0].calls) == 1


@pytest.mark.usefixtures("fakes")
def test_where_there_is_no_room_a_replacement_waits_for_it_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    room = threading.Event()
    tried = threading.Semaphore(0)

    def make(who: int) -> Fake:
        if who > 1 and not room.is_set():
            tried.release()
            raise remotely.NoResources("full")
        return Fake(who)

    crew = crew_of(2, make)
    monkeypatch.setattr(sampler, "time", SimpleNamespace(sleep=lambda s: room.wait(10)))
    crew.replace(crew.actors[0], remotely.ActorDied("killed", exit=1))
    tried.acquire()
    assert not crew.welcome()
    assert [actor.who for actor in crew.actors] == [1]
    room.set()
    wait_for_newcomer(crew)
    assert [actor.who for actor in crew.actors] == [1, 2]


@pytest.mark.usefixtures("fakes")
def test_an_actor_that_cannot_be_made_is_tried_again_but_not_for_ever() -> None:
    def make(who: int) -> Fake:
        if who in (0, 3):
            raise ValueError("the simulator did not start")
        return Fake(who)

    crew = crew_of(2, make)
    assert [actor.who for actor in crew.actors] == [1, 2]
    crew.hire()
    wait_for_newcomer(crew)
    assert [actor.who for actor in crew.actors] == [1, 2, 4]

    def make_none(who: int) -> Fake:
        raise ValueError("no such game")

    with pytest.raises(TrainingError, match=r"12 of the last 12 calls .* no such game"):
        crew_of(2, make_none)


@pytest.mark.usefixtures("fakes")
@pytest.mark.parametrize("error", [TrainingError("no such field"), remotely.NoResources("full")])
def test_what_no_other_could_do_better_is_raised_at_once_when_actors_are_made(
    error: Exception,
) -> None:
    made: list[int] = []

    def make(who: int) -> Fake:
        made.append(who)
        raise error

    with pytest.raises(type(error), match=str(error)):
        crew_of(1, make)
    assert made == [0]


@pytest.mark.usefixtures("fakes")
def test_actors_whose_environments_hang_as_they_are_made_do_not_hold_up_the_end() -> None:
    may_come = threading.Event()
    turns = iter([False, False, True])

    def make(who: int) -> Fake:
        may_come.wait(10)
        return Fake(who)

    crew: Samplers[Any] = Samplers(make, 1, None, over=lambda: next(turns, True))
    assert crew.actors == []
    crew.close()
    may_come.set()  # by now nobody waits for it


@pytest.mark.usefixtures("fakes")
def test_a_crew_that_grows_asks_for_another_whenever_one_is_placed() -> None:
    said: list[str] = []
    full, done = threading.Event(), threading.Event()

    def make(who: int) -> Fake:
        if who >= 3:
            (full if who == 3 else done).wait(10)
        return Fake(who)

    crew = crew_of(1, make, said, grows=True)
    while len(crew.actors) < 3:
        wait_for_newcomer(crew)
    assert said == ["an actor joined; there are 2", "an actor joined; there are 3"]
    # One that dies is not asked for twice: the one that is being made takes its room.
    crew.replace(crew.actors[0], remotely.ActorDied("killed", exit=1))
    full.set()
    wait_for_newcomer(crew)
    assert [actor.who for actor in crew.actors] == [1, 2, 3]
    crew.close()
    done.set()


@pytest.mark.usefixtures("fakes")
def test_closing_ends_all_actors() -> None:
    crew = crew_of(2)
    actors = list(crew.actors)
    crew.close()
    assert all(actor.closed for actor in actors)
    assert crew.actors == []


# --- streams --------------------------------------------------------------------------------------


@pytest.mark.usefixtures("fakes")
def test_each_actor_has_so_many_calls_ahead_of_it_and_is_asked_again_for_each_that_is_taken() -> (
    None
):
    stream = Stream(crew_of(3), ahead=2)
    assert [actor.pending for actor in stream.crew.actors] == [2, 2, 2]
    stream.crew.actors[1].finish()
    assert stream.take(0) == Sample(1, 1, 0)
    assert stream.take(0) is None
    assert [actor.pending for actor in stream.crew.actors] == [2, 2, 2]


@pytest.mark.usefixtures("fakes")
def test_running_free_whatever_comes_first_is_taken_first() -> None:
    stream = Stream(crew_of(3), ahead=1)
    for who in (2, 0, 2, 1):
        stream.crew.actors[who].finish()
        taken = stream.take(0)
        assert taken is not None
        assert taken.who == who


@pytest.mark.usefixtures("fakes")
def test_within_a_bound_of_staleness_rollouts_are_taken_in_the_order_of_asking() -> None:
    stream = Stream(crew_of(3), ahead=1, batch=3, max_staleness=1)
    one, two, three = stream.crew.actors
    three.finish()
    two.finish()
    assert stream.take(0) is None  # the first is still at it
    one.finish()
    taken = [stream.take(0) for _ in range(3)]
    assert [sample.who for sample in taken if sample] == [0, 1, 2]


@pytest.mark.usefixtures("fakes")
def test_without_any_staleness_a_stream_is_rounds() -> None:
    stream = Stream(crew_of(2), ahead=2, batch=2, max_staleness=0)
    one, two = stream.crew.actors
    for version in range(3):
        assert (one.pending, two.pending) == (1, 1)
        two.finish()
        one.finish()
        taken = [stream.take(0), stream.take(0)]
        assert taken == [Sample(0, version + 1, version), Sample(1, version + 1, version)]
        assert (one.pending, two.pending) == (0, 0)  # all wait for the update
        stream.publish(params(version + 1))


@hypothesis.settings(deadline=None, max_examples=60)
@hypothesis.given(
    actors=st.integers(1, 4),
    ahead=st.integers(1, 3),
    batch=st.integers(1, 5),
    bound=st.integers(0, 3),
    speeds=st.lists(st.integers(1, 9), min_size=4, max_size=4),
    empty=st.integers(0, 2),
    random=st.randoms(use_true_random=False),
)
def test_no_rollout_is_learnt_from_that_is_further_behind_than_allowed(
    actors: int, ahead: int, batch: int, bound: int, speeds: list[int], empty: int, random: Any
) -> None:
    with faked():
        stream = Stream(crew_of(actors), ahead, batch, bound)
        version, gathered, most = 0, [], 0
        while version < 8:
            busy = [actor for actor in stream.crew.actors if actor.pending]
            assert busy, "all wait for each other"
            weights = [speeds[actor.who] for actor in busy]
            (actor,) = random.choices(busy, weights)
            actor.finish(steps=int(random.randrange(5) >= empty))  # some hold no experience
            while sample := stream.take(0):
                gathered.append(sample)
                if len(gathered) == batch:
                    behind = [version - sample.version for sample in gathered]
                    assert min(behind) >= 0
                    most = max(most, *behind)
                    assert most <= bound
                    version, gathered = version + 1, []
                    stream.publish(params(version))
            assert sum(actor.pending for actor in stream.crew.actors) <= actors * ahead


@pytest.mark.usefixtures("fakes")
def test_a_bound_of_staleness_is_used_and_not_only_kept() -> None:
    stream = Stream(crew_of(2), ahead=2, batch=2, max_staleness=1)
    behind = []
    for version in range(6):
        for actor in stream.crew.actors:
            actor.finish()
        taken = [stream.take(0), stream.take(0)]
        behind += [version - sample.version for sample in taken if sample]
        stream.publish(params(version + 1))
    assert len(behind) == 12
    assert behind[-4:] == [1, 1, 1, 1]  # each samples on while the other batch is learnt from


@pytest.mark.usefixtures("fakes")
def test_rollouts_that_hold_neither_steps_nor_games_are_passed_over() -> None:
    stream = Stream(crew_of(1), ahead=1)
    stream.crew.actors[0].finish(steps=0)
    assert stream.take(0) is None
    stream.crew.actors[0].finish()
    assert stream.take(0) == Sample(0, 2, 0)


@pytest.mark.usefixtures("fakes")
@pytest.mark.parametrize("bound", [None, 2])
def test_the_calls_of_one_that_died_are_dropped_and_the_stream_goes_on(bound: int | None) -> None:
    stream = Stream(crew_of(2), ahead=2, batch=2, max_staleness=bound)
    one, two = stream.crew.actors
    one.die()
    two.finish()
    taken: list[Sample] = []
    while len(taken) < 4:
        if sample := stream.take(timeout_s=0.1):
            taken.append(sample)
        for actor in stream.crew.actors:
            if actor.pending:
                actor.finish()
        if len(taken) % 2 == 0:
            stream.publish(params(1))
    assert one not in stream.crew.actors
    assert 0 not in {sample.who for sample in taken}


@pytest.mark.usefixtures("fakes")
def test_who_is_let_go_finishes_what_it_is_at() -> None:
    stream = Stream(crew_of(3), ahead=2)
    one, two, three = stream.crew.actors
    stream.resize(1)
    for actor in (three, two):
        for _ in range(2):
            actor.finish()
            assert stream.take(0) is not None
        assert actor.closed
    assert stream.crew.actors == [one]
    one.finish()
    assert stream.take(0) is not None
    assert one.pending == 2


@pytest.mark.usefixtures("fakes")
def test_more_are_hired_and_given_work() -> None:
    stream = Stream(crew_of(1), ahead=1)
    stream.resize(3)
    while len(stream.crew.actors) < 3:
        stream.take(timeout_s=0.1)
    assert [actor.pending for actor in stream.crew.actors] == [1, 1, 1]


@pytest.mark.usefixtures("fakes")
@pytest.mark.parametrize("counts", [(4, 3), (4, 1), (2, 2), (4, 2, 3), (3, 1, 4)], ids=str)
def test_in_the_end_there_are_as_many_as_were_asked_for_last(counts: tuple[int, ...]) -> None:
    may_come = threading.Event()

    def make(who: int) -> Fake:
        if who >= 2:
            may_come.wait(10)
        return Fake(who)

    stream = Stream(crew_of(2, make), ahead=1)
    for count in counts:  # before the first of them has come
        stream.resize(count)
    may_come.set()
    for _ in range(10):  # turns after the last has come
        while stream.crew.coming:
            stream.crew.actors[0].finish()
            stream.take(timeout_s=0.1)
        for actor in stream.crew.actors:
            if actor.pending:
                actor.finish()
        stream.take(timeout_s=0.0)
    assert len(stream.crew.actors) == counts[-1]
    assert all(actor.pending <= 1 for actor in stream.crew.actors)


# --- actors in processes --------------------------------------------------------------------------


class Rollout(NamedTuple):
    """What a Toy returns."""

    version: int
    pid: int
    episodes: list[Episode]
    steps: int = 1


@remotely.remote_class
class Toy:
    """Samples nothing, but says who it is, what it was sent and how often it was called."""

    def __init__(self, number: int, dies: bool = False):
        self.number = number
        self.dies = dies
        self.version = -1
        self.calls = 0

    def set_param(self, params: Parameters) -> None:
        if params.state["weight"].shape != (2,):
            raise ValueError("parameters of another model")
        self.version = params.version

    def sample(self) -> Rollout:
        if self.dies:
            os.kill(os.getpid(), signal.SIGKILL)
        self.calls += 1
        return Rollout(self.version, os.getpid(), [Episode(self.number, self.calls)])


def take(stream: Stream[Any]) -> Rollout:
    while True:
        if rollout := stream.take(timeout_s=10):
            return rollout  # type: ignore[no-any-return]


def who(rollout: Rollout) -> int:
    return int(rollout.episodes[0].score)


@pytest.mark.usefixtures("here")
def test_every_actor_is_heard_and_one_that_is_killed_is_replaced_with_the_newest_parameters() -> (
    None
):
    said: list[str] = []
    stream = Stream(crew_of(3, Toy, said), ahead=2)
    heard: list[Rollout] = []
    while {who(rollout) for rollout in heard} != {0, 1, 2}:
        heard.append(take(stream))
    for number in range(3):
        calls = [r.episodes[0].length for r in heard if who(r) == number]
        assert calls == list(range(1, len(calls) + 1))

    stream.publish(params(4))
    victim = take(stream)
    os.kill(victim.pid, signal.SIGKILL)
    while who(newcomers := take(stream)) < 3:
        pass
    assert newcomers.version == 4
    assert len(said) == 1
    assert "SIGKILL" in said[0]
    assert who(victim) not in {who(take(stream)) for _ in range(9)}
    stream.close()


@pytest.mark.usefixtures("local")
def test_new_parameters_hold_from_the_next_call_on() -> None:
    stream = Stream(crew_of(1, Toy), ahead=1)
    first = take(stream)  # the call after it is on its way already
    stream.publish(params(1))
    versions = [first.version, *(take(stream).version for _ in range(3))]
    stream.close()
    assert versions == [0, 0, 1, 1]


@pytest.mark.usefixtures("local")
def test_parameters_that_do_not_fit_are_an_error_and_not_old_parameters_for_ever() -> None:
    stream = Stream(crew_of(1, Toy), ahead=1)
    stream.publish(params(1, width=3))
    take(stream)  # sampled before they were sent

    def publish_and_take() -> None:
        stream.publish(params(2, width=3))
        take(stream)

    with pytest.raises(ValueError, match="of another model"):
        publish_and_take()
    stream.close()


def test_a_cluster_that_is_there_is_used_and_none_is_started_beside_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[int] = []
    monkeypatch.setattr(remotely, "connect", lambda cpus: started.append(cpus))
    monkeypatch.setattr(remotely, "is_connected", lambda: True)
    sampler.connect(4)
    monkeypatch.setattr(remotely, "is_connected", lambda: False)
    monkeypatch.setenv("REMOTELY_ADDRESS", "127.0.0.1:8010")
    sampler.connect(4)
    assert started == []
    monkeypatch.delenv("REMOTELY_ADDRESS")
    sampler.connect(400)
    assert started == [400]
