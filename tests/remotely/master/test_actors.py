"""The table of an actor's life: each event is caused in each state, by messages alone."""

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
import pytest

from remotely.master import actors, reregistration
from remotely.master.actors import TABLE, Event, Phase, phase_of
from remotely.master.state import ActorRecord, State
from remotely.protocol import control
from remotely.protocol.lease import RESTARTS_WITHIN_S
from tests.remotely.master.played import Cluster, request_of, status_of

WISHES = {"max_restarts": 5, "machine": "m"}


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
        if phase in (Phase.ALIVE, Phase.ENDING, Phase.RESUMING, Phase.RESTARTING):
            cluster.spawns()
        if phase in (Phase.RESUMING, Phase.RESTARTING):
            cluster.buries("a")
            self.life = 1
        if phase is Phase.RESTARTING:
            cluster.has("client", "in the way")
        if phase in (Phase.CANCELLED, Phase.ENDING):
            self.close()
        assert phase_of(cluster.state, "a") is phase

    @property
    def request(self) -> control.Request:
        record = self.cluster.state.actors.records.get("a")
        asked = request_of("a", "client", owner=self.owner, life=self.life, **WISHES)
        return record.request if record else asked

    def ask(self, later: int = 0) -> None:
        life = self.request.life + later
        self.cluster.asks("client", "a", owner=self.owner, life=life, **WISHES)

    def close(self) -> None:
        self.cluster.says("client", control.End(actor="a", grace_s=1))

    def is_born(self) -> None:
        location = status_of(self.request).location
        self.cluster.says("w", control.Spawned(location=location))

    def dies(self, asked: bool = False) -> None:
        self.cluster.living["w"].pop("a", None)
        obituary = control.Obituary(actor="a", life=self.request.life, asked=asked)
        self.cluster.says("w", control.Died(obituary=obituary))

    def is_brought(self, by: str, is_born: bool, later: int = 0) -> None:
        """A worker registers that has it, born or about to be."""
        request = request_of(
            "a", "client", owner=self.owner, life=self.request.life + later, **WISHES
        )
        seal = self.cluster.admission.seals.seal(by, request, [])
        births, living = self.cluster.births, self.cluster.living
        births[by] = [] if is_born else [control.Spawn(request=request, gpu_ids=[], seal=seal)]
        living[by] = {"a": status_of(request, seal=seal)} if is_born else {}
        self.cluster.joins(by, cpus=1, machine="m" if by == "w" else "n")

    def is_back(self, with_it: bool) -> None:
        """Its own worker registers again."""
        is_born = "a" in self.cluster.living["w"]
        if with_it:
            self.is_brought("w", is_born)
        else:
            self.cluster.living["w"].pop("a", None)
            self.cluster.joins("w", cpus=1, machine="m")


class Cause(NamedTuple):
    event: Event
    do: Callable[[Stage], object]
    owner: str = "client"


CAUSES = (
    Cause(Event.REQUESTED, Stage.ask),
    Cause(Event.PLACED, lambda stage: stage.cluster.joins("more", cpus=1, machine="m")),
    Cause(Event.REFUSED, lambda stage: stage.cluster.passes(61)),
    Cause(Event.ADOPTED, lambda stage: stage.is_brought("other", is_born=False)),
    Cause(Event.STARTED, Stage.is_born),
    Cause(Event.CLOSED, Stage.close),
    Cause(Event.DIED, lambda stage: stage.dies(asked=True)),
    Cause(Event.MAKER_RESTARTS, Stage.dies),
    Cause(Event.WORKER_RESTARTS, Stage.dies, owner=""),
    Cause(Event.REPLACED, lambda stage: stage.ask(later=1)),
    Cause(Event.REPLACED, lambda stage: stage.is_brought("other", is_born=False, later=1)),
    Cause(Event.MOVED, lambda stage: stage.is_brought("other", is_born=True)),
    Cause(Event.UNREACHABLE, lambda stage: stage.cluster.loses_route("w")),
    Cause(Event.PRESENT, lambda stage: stage.is_back(with_it=True)),
    Cause(Event.ABSENT, lambda stage: stage.is_back(with_it=False)),
)
Pair = tuple[Phase, Event]


def play(monkeypatch: pytest.MonkeyPatch, phase: Phase, cause: Cause) -> list[tuple[Pair, Phase]]:
    """Cause an event; return what happened to the actor, and in which state that left it.

    An event that a step of another has caused counts for itself: the other one is left out.
    """
    owner = {Phase.RESUMING: "", Phase.RESTARTING: "client"}.get(phase, cause.owner)
    stage = Stage(phase, owner)
    seen: list[tuple[Pair, Phase]] = []
    apply_event = actors.apply_event

    def recorded(
        state: State, event: Event, record: ActorRecord, said: object = None
    ) -> None:
        if record.request.actor != "a":
            apply_event(state, event, record, said)
            return
        before, count = phase_of(state, "a"), len(seen)
        apply_event(state, event, record, said)
        if len(seen) == count:
            seen.append(((before, event), phase_of(state, "a")))

    with monkeypatch.context() as patched:
        for module in (actors, reregistration):
            patched.setattr(module, "apply_event", recorded)
        cause.do(stage)
    return seen


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: cause.event.name)
@pytest.mark.parametrize("phase", Phase, ids=lambda phase: phase.name)
def test_each_event_in_each_state_leads_where_the_table_says(
    monkeypatch: pytest.MonkeyPatch, phase: Phase, cause: Cause
) -> None:
    seen = play(monkeypatch, phase, cause)
    for pair, after in seen:
        assert after is TABLE[pair].moves[pair[0]], pair


def test_the_table_has_what_can_happen_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {
        pair for phase in Phase for cause in CAUSES for pair, _ in play(monkeypatch, phase, cause)
    }
    assert found | {(Phase.STARTING, Event.UNREACHABLE)} == set(TABLE)


# --- the next life --------------------------------------------------------------------------------


def test_watchers_hear_of_a_restart_and_are_answered_when_it_is_placed(cluster: Cluster) -> None:
    cluster.joins("worker")
    cluster.hello("borrower")
    cluster.has("client", "a", max_restarts=1)
    cluster.says("borrower", control.Locate(ticket=1, actor="a"))
    cluster.told(control.Located)

    cluster.buries("a")

    told = cluster.told(control.Died)
    assert {who for who, _ in told} == {"client", "borrower"}
    assert all(died.obituary.restarting for _, died in told)
    cluster.says("borrower", control.Locate(ticket=2, actor="a"))
    cluster.says("borrower", control.Locate(ticket=3, name="a"))
    cluster.asks("client", "a", max_restarts=1, life=1)
    assert cluster.told(control.Located) == []
    cluster.spawns()
    told_where = cluster.told(control.Located)
    assert [where.ticket for _, where in told_where] == [2, 3]
    assert all(where.location and where.location.life == 1 for _, where in told_where)

    cluster.buries("a")
    assert not any(died.obituary.restarting for _, died in cluster.told(control.Died))


def test_an_actor_that_was_to_end_has_no_next_life_however_it_died(cluster: Cluster) -> None:
    cluster.joins("worker")
    cluster.has("client", "a", max_restarts=5)
    cluster.says("client", control.End(actor="a", grace_s=60))
    cluster.buries("a")  # by itself, before its worker had heard that it was to end
    (_, died), *_ = cluster.told(control.Died)
    assert (died.obituary.restarting, died.obituary.asked) == (False, True)


@pytest.mark.parametrize("end", ["refused", "taken back", "maker goes", "maker is lost"])
def test_a_lookup_of_a_life_that_does_not_come_gets_the_obituary(
    cluster: Cluster, end: str
) -> None:
    cluster.joins("worker")
    cluster.hello("borrower")
    cluster.has("client", "a", max_restarts=1, named=True)
    cluster.buries("a")
    cluster.says("borrower", control.Locate(ticket=1, actor="a"))
    assert cluster.told(control.Located) == []
    match end:
        case "refused":
            cluster.asks("client", "a", max_restarts=1, life=1, named=True, cpus=64)
        case "taken back":
            cluster.says("client", control.End(actor="a", grace_s=0))
        case "maker goes":
            cluster.says("client", control.Goodbye())
        case "maker is lost":
            cluster.loses_client("client")
    ((_, located),) = cluster.told(control.Located)
    assert located.location is None
    assert located.obituary is not None
    assert not located.obituary.restarting
    cluster.has("borrower", "b", name="a", named=True)  # the name is free


def test_the_name_of_an_actor_between_two_lives_is_not_free(cluster: Cluster) -> None:
    cluster.joins("worker")
    cluster.has("client", "a", max_restarts=1, named=True)
    cluster.buries("a")
    cluster.asks("client", "b", name="a", named=True)
    ((_, refusal),) = cluster.told(control.NotPlaced)
    assert refusal.error == "NameTaken"
    cluster.has("client", "a", max_restarts=1, named=True, life=1)


def test_lives_are_counted_within_ten_minutes(cluster: Cluster) -> None:
    cluster.joins("worker")
    for life in range(5):
        cluster.has("client", "a", max_restarts=2, life=life)
        cluster.buries("a")
        told = [died.obituary.restarting for _, died in cluster.told(control.Died)]
        assert told == [life != 4]
        if life == 1:
            cluster.passes(RESTARTS_WITHIN_S)


def test_a_detached_actor_begins_its_next_life_where_it_died(cluster: Cluster) -> None:
    cluster.joins("worker", gpus=2)
    cluster.has("client", "a", max_restarts=1, owner="", gpus=2, cpus=2)
    cluster.loses_client("client")
    cluster.hello("finder")
    cluster.says("finder", control.Locate(ticket=1, actor="a"))
    cluster.told(control.Located)

    cluster.buries("a")

    assert [died.obituary.restarting for _, died in cluster.told(control.Died)] == [True]
    ((worker, spawn),) = cluster.to_spawn
    assert (worker, spawn.again, spawn.request.life, spawn.gpu_ids) == ("worker", True, 1, [0, 1])
    assert cluster.state.workers.ledger.free("worker").cpus == 0
    cluster.says("finder", control.Locate(ticket=2, actor="a"))
    cluster.spawns()
    ((_, located),) = cluster.told(control.Located)
    assert located.location == cluster.living["worker"]["a"].location

    cluster.buries("a")
    assert [died.obituary.restarting for _, died in cluster.told(control.Died)] == [False]
    assert cluster.state.workers.ledger.free("worker").cpus == 2


@pytest.mark.parametrize("maker", ["there", "gone"])
def test_a_detached_actor_survives_its_machine_if_its_maker_is_there(
    cluster: Cluster, maker: str
) -> None:
    cluster.joins("worker")
    cluster.hello("finder")
    cluster.has("client", "a", max_restarts=1, owner="")
    cluster.says("finder", control.Locate(ticket=1, actor="a"))
    if maker == "gone":
        cluster.loses_client("client")
    cluster.told(control.Died)
    cluster.loses("worker")
    told = cluster.told(control.Died)
    assert {died.obituary.restarting for _, died in told} == {maker == "there"}
    assert {died.obituary.lost for _, died in told} == {True}


@pytest.mark.parametrize("owner", ["client", ""])
def test_an_actor_that_died_while_there_was_no_master_is_restarted(
    cluster: Cluster, owner: str
) -> None:
    cluster.joins("worker")
    cluster.has("client", "a", max_restarts=1, owner=owner)
    lived = cluster.living["worker"].pop("a")
    cluster.starts_master()
    cluster.learns()
    cluster.hello("finder")
    cluster.says("finder", control.Locate(ticket=1, actor="a"))
    cluster.joins("worker")
    obituary = control.Obituary(actor="a", life=0)
    cluster.says("worker", control.Died(obituary=obituary, lived=lived))
    if owner:
        cluster.hello("client")
        assert cluster.told(control.Died)[-1][1].obituary.restarting
        cluster.asks("client", "a", max_restarts=1, life=1)
    cluster.spawns()
    ((_, located),) = cluster.told(control.Located)
    assert located.location is not None
    assert located.location.life == 1


def test_a_maker_that_reconnects_is_told_again_what_to_restart(cluster: Cluster) -> None:
    cluster.joins("worker")
    cluster.has("client", "a", max_restarts=1)
    cluster.buries("a")
    cluster.told(control.Died)
    cluster.hello("client")
    ((who, died),) = cluster.told(control.Died)
    assert (who, died.obituary.restarting) == ("client", True)
    cluster.has("client", "a", max_restarts=1, life=1)
    cluster.hello("client")
    assert cluster.told(control.Died) == []


# --- what clients and scripts are told ------------------------------------------------------------


def test_a_client_is_told_why_its_actor_ended_at_birth(cluster: Cluster) -> None:
    cluster.joins("worker", cpus=1)
    ticket = cluster.asks("client", "a")
    cluster.to_spawn.clear()
    how = control.Obituary(actor="a", life=0, exit=3, stderr="no such library")
    cluster.says("worker", control.Died(obituary=how))
    ((_, refused),) = cluster.told(control.NotPlaced)
    assert (refused.ticket, refused.error) == (ticket, "ActorDied")
    assert refused.why == "its process ended while starting (3):  no such library"
    cluster.has("client", "b")  # the room is free


def test_an_actor_is_found_by_name_or_id_and_its_obituary_after_its_end(cluster: Cluster) -> None:
    cluster.joins("worker")
    cluster.has("client", "a", name="store", named=True)
    finds: list[dict[str, Any]] = [{"name": "store"}, {"actor": "a"}]
    for find in finds:
        cluster.says("client", control.Locate(ticket=1, **find))
        ((_, found),) = cluster.told(control.Located)
        assert (found.location, found.obituary) == (cluster.living["worker"]["a"].location, None)
    cluster.buries("a")
    for actor, has_ended in (("a", True), ("nobody", False)):
        cluster.says("client", control.Locate(ticket=1, actor=actor))
        ((_, found),) = cluster.told(control.Located)
        assert (found.location, bool(found.obituary)) == (None, has_ended)


def test_an_automatic_name_means_the_first_actor_that_has_it(cluster: Cluster) -> None:
    cluster.joins("worker")
    for actor in ("first", "second"):
        cluster.has("client", actor, name="Counter-1")
    cluster.says("client", control.Locate(ticket=1, name="Counter-1"))
    ((_, found),) = cluster.told(control.Located)
    assert found.location == cluster.living["worker"]["first"].location


def test_an_actor_that_is_asked_for_again_is_made_once(cluster: Cluster) -> None:
    place = control.Place(ticket=7, request=request_of("a", "client"), patience_s=60)
    for _ in range(2):
        cluster.says("client", place)
    assert len(cluster.state.waiting) == 1
    cluster.joins("worker")
    cluster.says("client", place)
    assert cluster.spawns() == ["a"]
    cluster.says("client", place)
    assert cluster.spawns() == []
    assert [(who, placed.ticket) for who, placed in cluster.told(control.Placed)] == [
        ("client", 7)
    ] * 2


def test_a_client_that_says_goodbye_goes_when_its_actors_have_ended(cluster: Cluster) -> None:
    cluster.joins("worker")
    cluster.has("client", "owned")
    cluster.has("client", "detached", owner="")
    cluster.says("client", control.Goodbye())
    assert [end.actor for _, end in cluster.told(control.End)] == ["owned"]
    assert cluster.gone == []
    cluster.buries("owned")
    assert cluster.told(control.Farewell)
    assert cluster.gone == ["client"]
    assert cluster.told(control.End) == []


def test_the_end_of_an_actor_is_the_end_of_those_that_it_made(cluster: Cluster) -> None:
    cluster.joins("worker")
    cluster.has("client", "parent")
    cluster.hello("inside", actor="parent")
    cluster.has("inside", "child")
    cluster.buries("parent")
    assert [end.actor for _, end in cluster.told(control.End)] == ["child"]


def test_the_end_of_an_earlier_life_is_not_that_of_this_one(cluster: Cluster) -> None:
    cluster.joins("worker")
    cluster.has("client", "a", life=1)
    cluster.says("worker", control.Died(obituary=control.Obituary(actor="a", life=0)))
    assert phase_of(cluster.state, "a") is Phase.ALIVE


def test_what_an_actor_prints_reaches_the_script_at_its_root_alone(cluster: Cluster) -> None:
    cluster.joins("worker")
    cluster.has("client", "a")
    cluster.told(object)
    said = control.Printed(actor="a", name="a", job="", error=False, text="hello\n")
    cluster.says("worker", said)
    assert [(who, line.text) for who, line in cluster.told(control.Printed)] == [
        ("client", "hello\n")
    ]


def test_a_log_comes_from_the_worker_that_has_it_or_from_none(cluster: Cluster) -> None:
    for worker in ("one", "two"):
        cluster.joins(worker)
    for ticket, known in ((7, True), (8, False)):
        cluster.says("client", control.ReadLog(ticket=ticket, actor="ended long ago"))
        asked = dict(cluster.told(control.ReadLog))
        assert set(asked) == {"one", "two"}
        number = asked["one"].ticket
        nothing = control.LogPiece(ticket=number, text="", offset=0, known=False, ended=True)
        cluster.says("one", nothing)
        if known:
            cluster.says("two", msgspec.structs.replace(nothing, known=True))
        else:
            cluster.says("two", control.Left())
        ((who, piece),) = cluster.told(control.LogPiece)
        assert (who, piece.ticket, piece.known) == ("client", ticket, known)
    assert cluster.core.workers == ["one"]
    cluster.loses("one")
    cluster.says("client", control.ReadLog(ticket=9, actor="nobody"))
    assert [piece.known for _, piece in cluster.told(control.LogPiece)] == [False]


def test_a_client_is_welcomed_with_the_pythons_of_the_cluster(cluster: Cluster) -> None:
    cluster.joins("new", python="3.12")
    cluster.joins("old", python="2.7")
    cluster.hello("late")
    assert [welcome.pythons for _, welcome in cluster.told(control.Welcome)][-1] == ["2.7", "3.12"]


def test_a_deadlock_is_told_to_the_script_once_and_so_is_its_end(cluster: Cluster) -> None:
    cluster.joins("worker")
    for actor in "ab":
        cluster.has("client", actor)
        cluster.hello(f"in {actor}", actor=actor)
    for _ in range(3):
        for waits, target in ("ab", "ba"):
            cluster.now += 1
            blocked = control.Blocked(wait=1, actor=target, call=f"{target}.go()", method="run")
            cluster.says(f"in {waits}", blocked)
    ((who, notice),) = cluster.told(control.Notice)
    assert who == "client"
    assert "b waits in run for a.go() and a waits in run for b.go(): a deadlock" in notice.text
    cluster.says("in a", control.Unblocked())
    ((who, notice),) = cluster.told(control.Notice)
    assert "the deadlock is resolved: this wait has ended: a waits" in notice.text
