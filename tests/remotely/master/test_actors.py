"""The life cycle of an actor: each event in each phase, caused by messages alone."""

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
import pytest

from remotely.master import actors, reregistration
from remotely.master.actors import TABLE, LifeEvent, Phase, phase_of
from remotely.master.state import ActorRecord, State
from remotely.protocol import control
from remotely.protocol.lease import RESTARTS_WITHIN_S
from tests.remotely.master.played import Cluster, request_of, status_of

OPTIONS = {"max_restarts": 5, "machine": "m"}


class Stage:
    """A cluster with one actor, "a", and a worker "w" that has room for one."""

    def __init__(self, phase: Phase, owner: str) -> None:
        self.cluster = cluster = Cluster()
        self.life, self.owner = 0, owner
        cluster.hello("client")
        cluster.joins("w", cpus=1, machine="m")
        if phase in (Phase.ENDED, Phase.WAITING):
            cluster.has("client", "in the way")
        if phase is not Phase.ENDED:
            self.ask()
        if phase in (Phase.ALIVE, Phase.MOVING, Phase.ENDING, Phase.RESUMING, Phase.RESTARTING):
            cluster.spawns()
        if phase in (Phase.RESUMING, Phase.RESTARTING):
            cluster.kills("a")
            self.life = 1
        if phase is Phase.RESTARTING:
            cluster.has("client", "in the way")
        if phase in (Phase.CANCELLED, Phase.ENDING):
            self.close()
        if phase is Phase.MOVING:
            self.is_drained()
        assert phase_of(cluster.state, "a") is phase

    @property
    def request(self) -> control.Request:
        record = self.cluster.state.actors.records.get("a")
        asked = request_of("a", "client", owner=self.owner, life=self.life, **OPTIONS)
        return record.request if record else asked

    def ask(self, later: int = 0) -> None:
        life = self.request.life + later
        self.cluster.asks("client", "a", owner=self.owner, life=life, **OPTIONS)

    def close(self) -> None:
        self.cluster.says("client", control.End(actor="a", grace_s=1))

    def is_drained(self) -> None:
        """Its worker is drained, beside one with room."""
        self.cluster.joins("next", cpus=1, machine="m")
        self.cluster.drains("w")

    def is_drained_out(self) -> None:
        """Its worker has left."""
        self.is_drained()
        self.cluster.leaves("w")

    def dies_without_a_maker(self) -> None:
        self.cluster.loses_client("client")
        self.dies()

    def starts(self) -> None:
        location = status_of(self.request).location
        self.cluster.says("w", control.Spawned(location=location))

    def dies(self, asked: bool = False) -> None:
        self.cluster.living["w"].pop("a", None)
        obituary = control.Obituary(actor="a", life=self.request.life, asked=asked)
        self.cluster.says("w", control.Died(obituary=obituary))

    def is_reported(self, by: str, has_started: bool, later: int = 0) -> None:
        """A worker registers with the actor, which has started or is starting."""
        request = request_of(
            "a", "client", owner=self.owner, life=self.request.life + later, **OPTIONS
        )
        seal = self.cluster.admission.seals.seal(by, request, [])
        births, living = self.cluster.births, self.cluster.living
        births[by] = [] if has_started else [control.Spawn(request=request, gpu_ids=[], seal=seal)]
        living[by] = {"a": status_of(request, seal=seal)} if has_started else {}
        self.cluster.joins(by, cpus=1, machine="m" if by == "w" else "n")

    def is_back(self, with_it: bool) -> None:
        """Its own worker registers again."""
        has_started = "a" in self.cluster.living["w"]
        if with_it:
            self.is_reported("w", has_started)
        else:
            self.cluster.living["w"].pop("a", None)
            self.cluster.joins("w", cpus=1, machine="m")


class Cause(NamedTuple):
    event: LifeEvent
    do: Callable[[Stage], object]
    owner: str = "client"


CAUSES = (
    Cause(LifeEvent.REQUESTED, Stage.ask),
    Cause(LifeEvent.PLACED, lambda stage: stage.cluster.joins("more", cpus=1, machine="m")),
    Cause(LifeEvent.REFUSED, lambda stage: stage.cluster.advance(61)),
    Cause(LifeEvent.ADOPTED, lambda stage: stage.is_reported("other", has_started=False)),
    Cause(LifeEvent.STARTED, Stage.starts),
    Cause(LifeEvent.CLOSED, Stage.close),
    Cause(LifeEvent.DIED, lambda stage: stage.dies(asked=True)),
    Cause(LifeEvent.MOVES, Stage.is_drained),
    Cause(LifeEvent.STAYS, lambda stage: stage.cluster.says("w", control.Stay(actor="a"))),
    Cause(LifeEvent.MAKER_RESTARTS, Stage.dies),
    Cause(LifeEvent.MAKER_RESTARTS, Stage.is_drained_out),
    Cause(LifeEvent.WORKER_RESTARTS, Stage.dies, owner=""),
    Cause(LifeEvent.WORKER_RESTARTS, Stage.dies_without_a_maker, owner=""),
    Cause(LifeEvent.REPLACED, lambda stage: stage.ask(later=1)),
    Cause(LifeEvent.REPLACED, lambda stage: stage.is_reported("other", has_started=False, later=1)),
    Cause(LifeEvent.MOVED, lambda stage: stage.is_reported("other", has_started=True)),
    Cause(LifeEvent.UNREACHABLE, lambda stage: stage.cluster.loses_route("w")),
    Cause(LifeEvent.PRESENT, lambda stage: stage.is_back(with_it=True)),
    Cause(LifeEvent.ABSENT, lambda stage: stage.is_back(with_it=False)),
)
Pair = tuple[Phase, LifeEvent]


def play(monkeypatch: pytest.MonkeyPatch, phase: Phase, cause: Cause) -> list[tuple[Pair, Phase]]:
    """Cause an event; return the transitions of the actor.

    If a step of an event causes another event, only the latter is returned.
    """
    owner = {Phase.RESUMING: "", Phase.RESTARTING: "client"}.get(phase, cause.owner)
    stage = Stage(phase, owner)
    seen: list[tuple[Pair, Phase]] = []
    apply_event = actors.apply_event

    def recorded(state: State, event: LifeEvent, record: ActorRecord, data: object = None) -> None:
        if record.request.actor != "a":
            apply_event(state, event, record, data)
            return
        before, count = phase_of(state, "a"), len(seen)
        apply_event(state, event, record, data)
        if len(seen) == count:
            seen.append(((before, event), phase_of(state, "a")))

    with monkeypatch.context() as patched:
        for module in (actors, reregistration):
            patched.setattr(module, "apply_event", recorded)
        cause.do(stage)
    return seen


def test_the_table_has_exactly_the_transitions_that_occur(monkeypatch: pytest.MonkeyPatch) -> None:
    found: set[Pair] = set()
    for phase, cause in itertools.product(Phase, CAUSES):
        for pair, after in play(monkeypatch, phase, cause):
            assert after is TABLE[pair].moves[pair[0]], pair
            found.add(pair)
    # Both request the actor again, which is the transition that is seen.
    again = {(Phase.STARTING, LifeEvent.UNREACHABLE), (Phase.STARTING, LifeEvent.UNSTARTED)}
    assert found | again == set(TABLE)


# --- restarts -------------------------------------------------------------------------------------


def test_watchers_are_notified_of_a_restart_and_locate_the_next_life(cluster: Cluster) -> None:
    cluster.joins("worker")
    cluster.hello("borrower")
    cluster.has("client", "a", max_restarts=1)
    cluster.says("borrower", control.Locate(ticket=1, actor="a"))
    cluster.sent(control.Located)

    cluster.kills("a")

    told = cluster.sent(control.Died)
    assert {who for who, _ in told} == {"client", "borrower"}
    assert all(died.obituary.restarting for _, died in told)
    cluster.says("borrower", control.Locate(ticket=2, actor="a"))
    cluster.says("borrower", control.Locate(ticket=3, name="a"))
    cluster.asks("client", "a", max_restarts=1, life=1)
    assert cluster.sent(control.Located) == []
    cluster.spawns()
    told_where = cluster.sent(control.Located)
    assert [where.ticket for _, where in told_where] == [2, 3]
    assert all(where.location and where.location.life == 1 for _, where in told_where)

    cluster.kills("a")
    assert not any(died.obituary.restarting for _, died in cluster.sent(control.Died))


def test_an_actor_that_was_asked_to_end_is_not_restarted(cluster: Cluster) -> None:
    cluster.joins("worker")
    cluster.has("client", "a", max_restarts=5)
    cluster.says("client", control.End(actor="a", grace_s=60))
    cluster.kills("a")  # before its worker knew that it had to end
    (_, died), *_ = cluster.sent(control.Died)
    assert (died.obituary.restarting, died.obituary.asked) == (False, True)


@pytest.mark.parametrize("end", ["refused", "withdrawn", "goodbye", "maker is lost"])
def test_a_lookup_gets_the_obituary_if_the_restart_is_given_up(cluster: Cluster, end: str) -> None:
    cluster.joins("worker")
    cluster.hello("borrower")
    cluster.has("client", "a", max_restarts=1, named=True)
    cluster.kills("a")
    cluster.says("borrower", control.Locate(ticket=1, actor="a"))
    assert cluster.sent(control.Located) == []
    match end:
        case "refused":
            cluster.asks("client", "a", max_restarts=1, life=1, named=True, cpus=64)
        case "withdrawn":
            cluster.says("client", control.End(actor="a", grace_s=0))
        case "goodbye":
            cluster.says("client", control.Goodbye())
        case "maker is lost":
            cluster.loses_client("client")
    ((_, located),) = cluster.sent(control.Located)
    assert located.location is None
    assert located.obituary is not None
    assert not located.obituary.restarting
    cluster.has("borrower", "b", name="a", named=True)  # the name is free


def test_a_restarting_actor_keeps_its_name(cluster: Cluster) -> None:
    cluster.joins("worker")
    cluster.has("client", "a", max_restarts=1, named=True)
    cluster.kills("a")
    cluster.asks("client", "b", name="a", named=True)
    ((_, refusal),) = cluster.sent(control.NotPlaced)
    assert refusal.error == "NameTaken"
    assert refusal.why.startswith("an actor named 'a' is on this cluster already")
    cluster.has("client", "a", max_restarts=1, named=True, life=1)


def test_restarts_are_counted_within_ten_minutes(cluster: Cluster) -> None:
    cluster.joins("worker")
    for life in range(5):
        cluster.has("client", "a", max_restarts=2, life=life)
        cluster.kills("a")
        told = [died.obituary.restarting for _, died in cluster.sent(control.Died)]
        assert told == [life != 4]
        if life == 1:
            cluster.advance(RESTARTS_WITHIN_S)


def test_a_detached_actor_is_restarted_in_place(cluster: Cluster) -> None:
    cluster.joins("worker", gpus=2)
    cluster.has("client", "a", max_restarts=1, owner="", gpus=2, cpus=2)
    cluster.loses_client("client")
    cluster.hello("finder")
    cluster.says("finder", control.Locate(ticket=1, actor="a"))
    cluster.sent(control.Located)

    cluster.kills("a")

    assert [died.obituary.restarting for _, died in cluster.sent(control.Died)] == [True]
    ((worker, spawn),) = cluster.to_spawn
    assert (worker, spawn.again, spawn.request.life, spawn.gpu_ids) == ("worker", True, 1, [0, 1])
    assert cluster.state.workers.ledger.free("worker").cpus == 0
    cluster.says("finder", control.Locate(ticket=2, actor="a"))
    cluster.spawns()
    ((_, located),) = cluster.sent(control.Located)
    assert located.location == cluster.living["worker"]["a"].location

    cluster.kills("a")
    assert [died.obituary.restarting for _, died in cluster.sent(control.Died)] == [False]
    assert cluster.state.workers.ledger.free("worker").cpus == 2


def test_the_restart_file_of_a_detached_actor_goes_with_its_last_life(cluster: Cluster) -> None:
    cluster.joins("worker")
    cluster.has("client", "a", max_restarts=1, owner="")
    for life in (0, 1):
        cluster.sent(object)
        cluster.kills("a")
        ends = [(who, end.actor) for who, end in cluster.sent(control.End)]
        assert ends == [("worker", "a")] * life
        cluster.spawns()


@pytest.mark.parametrize("maker", ["there", "gone"])
def test_a_detached_actor_survives_its_machine_if_its_maker_is_connected(
    cluster: Cluster, maker: str
) -> None:
    cluster.joins("worker")
    cluster.hello("finder")
    cluster.has("client", "a", max_restarts=1, owner="")
    cluster.says("finder", control.Locate(ticket=1, actor="a"))
    if maker == "gone":
        cluster.loses_client("client")
    cluster.sent(control.Died)
    cluster.loses("worker")
    told = cluster.sent(control.Died)
    assert {died.obituary.restarting for _, died in told} == {maker == "there"}
    assert {died.obituary.lost for _, died in told} == {True}


@pytest.mark.parametrize("owner", ["client", ""])
def test_an_actor_that_died_without_a_master_is_restarted(cluster: Cluster, owner: str) -> None:
    cluster.joins("worker")
    cluster.has("client", "a", max_restarts=1, owner=owner)
    lived = cluster.living["worker"].pop("a")
    cluster.starts_master()
    cluster.recovers()
    cluster.hello("finder")
    cluster.says("finder", control.Locate(ticket=1, actor="a"))
    cluster.joins("worker")
    obituary = control.Obituary(actor="a", life=0)
    cluster.says("worker", control.Died(obituary=obituary, lived=lived))
    if owner:
        cluster.hello("client")
        assert cluster.sent(control.Died)[-1][1].obituary.restarting
        cluster.asks("client", "a", max_restarts=1, life=1)
    cluster.spawns()
    ((_, located),) = cluster.sent(control.Located)
    assert located.location is not None
    assert located.location.life == 1


def test_a_reconnected_maker_is_told_again_what_to_restart(cluster: Cluster) -> None:
    cluster.joins("worker")
    cluster.has("client", "a", max_restarts=1)
    cluster.kills("a")
    cluster.sent(control.Died)
    cluster.hello("client")
    ((who, died),) = cluster.sent(control.Died)
    assert (who, died.obituary.restarting) == ("client", True)
    cluster.has("client", "a", max_restarts=1, life=1)
    cluster.hello("client")
    assert cluster.sent(control.Died) == []


# --- messages to clients and scripts --------------------------------------------------------------


def test_a_client_is_told_why_its_actor_failed_to_start(cluster: Cluster) -> None:
    cluster.joins("worker", cpus=1)
    ticket = cluster.asks("client", "a")
    cluster.to_spawn.clear()
    how = control.Obituary(actor="a", life=0, exit=3, stderr="no such library")
    cluster.says("worker", control.Died(obituary=how))
    ((_, refused),) = cluster.sent(control.NotPlaced)
    assert (refused.ticket, refused.error) == (ticket, "ActorDied")
    assert refused.why == "its process ended while starting (3):  no such library"
    cluster.has("client", "b")  # the room is free


def test_a_lookup_by_name_or_id_finds_an_actor_or_its_obituary(cluster: Cluster) -> None:
    cluster.joins("worker")
    cluster.has("client", "a", name="store", named=True)
    finds: list[dict[str, Any]] = [{"name": "store"}, {"actor": "a"}]
    for find in finds:
        cluster.says("client", control.Locate(ticket=1, **find))
        ((_, found),) = cluster.sent(control.Located)
        assert (found.location, found.obituary) == (cluster.living["worker"]["a"].location, None)
    cluster.kills("a")
    for actor, has_ended in (("a", True), ("nobody", False)):
        cluster.says("client", control.Locate(ticket=1, actor=actor))
        ((_, found),) = cluster.sent(control.Located)
        assert (found.location, bool(found.obituary)) == (None, has_ended)


def test_an_automatic_name_refers_to_the_first_actor_with_it(cluster: Cluster) -> None:
    cluster.joins("worker")
    for actor in ("first", "second"):
        cluster.has("client", actor, name="Counter-1")
    cluster.says("client", control.Locate(ticket=1, name="Counter-1"))
    ((_, found),) = cluster.sent(control.Located)
    assert found.location == cluster.living["worker"]["first"].location


def test_a_repeated_request_makes_one_actor(cluster: Cluster) -> None:
    place = control.Place(ticket=7, request=request_of("a", "client"), patience_s=60)
    for _ in range(2):
        cluster.says("client", place)
    assert len(cluster.state.waiting) == 1
    cluster.joins("worker")
    cluster.says("client", place)
    assert cluster.spawns() == ["a"]
    cluster.says("client", place)
    assert cluster.spawns() == []
    assert [(who, placed.ticket) for who, placed in cluster.sent(control.Placed)] == [
        ("client", 7)
    ] * 2


def test_a_goodbye_is_answered_when_all_actors_of_the_client_have_ended(cluster: Cluster) -> None:
    cluster.joins("worker")
    cluster.has("client", "owned")
    cluster.has("client", "detached", owner="")
    cluster.says("client", control.Goodbye())
    assert [end.actor for _, end in cluster.sent(control.End)] == ["owned"]
    assert cluster.forgotten == []
    cluster.kills("owned")
    assert cluster.sent(control.Farewell)
    assert cluster.forgotten == ["client"]
    assert cluster.sent(control.End) == []


def test_the_end_of_an_actor_ends_the_actors_that_it_made(cluster: Cluster) -> None:
    cluster.joins("worker")
    cluster.has("client", "parent")
    cluster.hello("inside", actor="parent")
    cluster.has("inside", "child")
    cluster.kills("parent")
    assert [end.actor for _, end in cluster.sent(control.End)] == ["child"]


def test_the_death_of_an_earlier_life_is_ignored(cluster: Cluster) -> None:
    cluster.joins("worker")
    cluster.has("client", "a", life=1)
    cluster.says("worker", control.Died(obituary=control.Obituary(actor="a", life=0)))
    assert phase_of(cluster.state, "a") is Phase.ALIVE


def test_printed_lines_reach_only_the_script_at_the_root(cluster: Cluster) -> None:
    cluster.joins("worker")
    cluster.has("client", "a")
    cluster.sent(object)
    line = shown = control.Printed(actor="a", name="a", job="", error=False, text="hello\n")
    cluster.says("worker", control.OutputBatch(items=[line]))
    assert cluster.sent(control.OutputBatch) == [("client", control.OutputBatch(items=[shown]))]


def test_a_log_comes_from_the_one_worker_that_has_it(cluster: Cluster) -> None:
    for worker in ("one", "two"):
        cluster.joins(worker)
    for ticket, known in ((7, True), (8, False)):
        cluster.says("client", control.ReadLog(ticket=ticket, actor="ended long ago"))
        asked = dict(cluster.sent(control.ReadLog))
        assert set(asked) == {"one", "two"}
        number = asked["one"].ticket
        nothing = control.LogPiece(ticket=number, text="", offset=0, known=False, ended=True)
        cluster.says("one", nothing)
        if known:
            cluster.says("two", msgspec.structs.replace(nothing, known=True))
        else:
            cluster.says("two", control.Left())
        ((who, piece),) = cluster.sent(control.LogPiece)
        assert (who, piece.ticket, piece.known) == ("client", ticket, known)
    assert cluster.core.workers == ["one"]
    cluster.loses("one")
    cluster.says("client", control.ReadLog(ticket=9, actor="nobody"))
    assert [piece.known for _, piece in cluster.sent(control.LogPiece)] == [False]


def test_the_welcome_lists_the_pythons_of_the_cluster(cluster: Cluster) -> None:
    cluster.joins("new", python="3.12")
    cluster.joins("old", python="2.7")
    cluster.hello("late")
    assert [welcome.pythons for _, welcome in cluster.sent(control.Welcome)][-1] == ["2.7", "3.12"]


def test_a_deadlock_and_its_end_are_each_reported_once(cluster: Cluster) -> None:
    cluster.joins("worker")
    for actor in "ab":
        cluster.has("client", actor)
        cluster.hello(f"in {actor}", actor=actor)
    logged = []
    for _ in range(3):
        for waits, target in ("ab", "ba"):
            cluster.now += 1
            method = "run" if waits == "a" else ""
            blocked = control.Blocked(wait=1, actor=target, call=f"{target}.go()", method=method)
            instructions = cluster.core.handle_client(f"in {waits}", blocked, cluster.now)
            logged += cluster.execute(instructions)
    ((who, notice),) = cluster.sent(control.Notice)
    assert who == "client"
    assert "b waits for a.go() and a waits in run for b.go(): a deadlock" in notice.text
    assert logged == [notice.text]
    cluster.says("in a", control.Unblocked())
    ((who, notice),) = cluster.sent(control.Notice)
    assert "the deadlock is resolved: this wait has ended: a waits" in notice.text


def test_a_wait_for_another_call_ends_a_deadlock(cluster: Cluster) -> None:
    cluster.joins("worker")
    for actor in "ab":
        cluster.has("client", actor, owner="")
        cluster.hello(f"in {actor}", actor=actor)
    cluster.loses_client("client")  # so an actor is told
    for _ in range(3):
        for waits, target in ("ab", "ba"):
            cluster.now += 1
            blocked = control.Blocked(wait=1, actor=target, call=f"{target}.go()")
            cluster.says(f"in {waits}", blocked)
    assert [who for who, _ in cluster.sent(control.Notice)] == ["in a"]
    cluster.says("in b", control.Blocked(wait=2, actor="a", call="a.stop()"))
    ((who, notice),) = cluster.sent(control.Notice)
    assert who == "in b"
    assert "this wait has ended: b waits for a.go()" in notice.text
