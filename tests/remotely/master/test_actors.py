"""The table of an actor's life: each event is caused in each state, by messages alone."""

from collections.abc import Callable
from typing import NamedTuple

import pytest

from remotely.master import actors, guests, reregistration
from remotely.master.actors import TABLE, Event, Phase, phase_of
from remotely.master.state import ActorRecord, State
from remotely.protocol import control
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
    Cause(Event.ASKED, Stage.ask),
    Cause(Event.ROOM, lambda stage: stage.cluster.joins("more", cpus=1, machine="m")),
    Cause(Event.REFUSED, lambda stage: stage.cluster.passes(61)),
    Cause(Event.BROUGHT, lambda stage: stage.is_brought("other", is_born=False)),
    Cause(Event.BORN, Stage.is_born),
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
    really_happen = actors.happen

    def seen_to_happen(
        state: State, event: Event, record: ActorRecord, said: object = None
    ) -> None:
        if record.request.actor != "a":
            really_happen(state, event, record, said)
            return
        before, count = phase_of(state, "a"), len(seen)
        really_happen(state, event, record, said)
        if len(seen) == count:
            seen.append(((before, event), phase_of(state, "a")))

    with monkeypatch.context() as patched:
        for module in (actors, reregistration, guests):
            patched.setattr(module, "happen", seen_to_happen)
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


def test_the_table_has_all_that_can_happen_and_nothing_that_cannot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = {
        pair for phase in Phase for cause in CAUSES for pair, _ in play(monkeypatch, phase, cause)
    }
    assert found | {(Phase.STARTING, Event.UNREACHABLE)} == set(TABLE)
