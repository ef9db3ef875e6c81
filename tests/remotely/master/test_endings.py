"""No actor waits for somebody who has gone: random lives, and what must hold when they are over."""

import itertools
import random

import msgspec

from remotely.protocol import control
from tests.remotely.master.played import LEASE_S, Cluster, check

NAMES = [f"name-{number}" for number in range(3)]
CLIENTS, WORKERS = ["client-0", "client-1"], ["worker-0", "worker-1", "worker-2"]


class Story:
    """Clients that make named actors and restart them when they are told to, and machines that
    start, fail and are lost."""

    def __init__(self, seed: int) -> None:
        self.chosen, self.cluster = random.Random(seed), Cluster()
        self.made = itertools.count()
        for worker in WORKERS:
            self.cluster.joins(worker, cpus=1)

    def play(self, events: int) -> Cluster:
        kinds = [self.make] * 4 + [self.start] * 3 + [self.fail, self.die, self.lose] * 2
        kinds += [self.lose_client, self.close, self.wait, self.lose_route]
        for _ in range(events):
            self.chosen.choice(kinds)()
            self.restart()
            check(self.cluster)
        return self.cluster

    def make(self) -> None:
        who, name = self.chosen.choice(CLIENTS), self.chosen.choice(NAMES)
        if who not in self.cluster.state.sessions:
            self.cluster.hello(who)
        owner, actor = self.chosen.choice(["", who]), f"actor-{next(self.made)}"
        self.cluster.asks(who, actor, name=name, named=True, owner=owner, max_restarts=3)

    def restart(self) -> None:
        """Request the next lives, as clients do when they are told of a death."""
        for who, died in self.cluster.sent(control.Died):
            pending = self.cluster.state.restarts.pending.get(died.obituary.actor)
            if pending and pending.request.maker == who and died.obituary.restarting:
                request = msgspec.structs.replace(pending.request, life=died.obituary.life + 1)
                place = control.Place(ticket=0, request=request, patience_s=60)
                self.cluster.says(who, place)

    def start(self) -> None:
        self.cluster.spawns(at_most=1)

    def fail(self) -> None:
        if self.cluster.to_spawn:
            self.cluster.fails()

    def die(self) -> None:
        living = [actor for actors in self.cluster.living.values() for actor in actors]
        if living:
            self.cluster.kills(self.chosen.choice(living))

    def lose(self) -> None:
        worker = self.chosen.choice(WORKERS)
        if worker in self.cluster.core.workers:
            self.cluster.loses(worker, may_return=self.chosen.random() < 0.5)
            self.cluster.living[worker].clear()
        else:
            self.cluster.joins(worker, cpus=1)

    def lose_route(self) -> None:
        worker = self.chosen.choice(WORKERS)
        if worker in self.cluster.core.workers:
            self.cluster.loses_route(worker)

    def lose_client(self) -> None:
        self.cluster.loses_client(self.chosen.choice(CLIENTS))

    def close(self) -> None:
        actors = list(self.cluster.state.actors.records)
        if actors and self.cluster.state.sessions.get("client-0"):
            end = control.End(actor=self.chosen.choice(actors), grace_s=1.0)
            self.cluster.says("client-0", end)

    def wait(self) -> None:
        self.cluster.advance(self.chosen.choice([1.0, 5.0, 30.0]))


def settle(cluster: Cluster) -> None:
    """Let all clients end but one that only looks, and the machines do all that they were told."""
    for session in list(cluster.state.sessions):
        cluster.loses_client(session.hello.session)
    cluster.hello("finder")
    cluster.cut_off.clear()
    for worker in list(cluster.core.workers):
        cluster.joins(worker)
    for _ in range(20):
        cluster.spawns()
        for _, end in cluster.sent(control.End):
            cluster.kills(end.actor)
        cluster.advance(2 * LEASE_S)


def test_every_look_up_is_answered_once_nobody_can_restart_an_actor() -> None:
    """Seed 121 once left a name blocked forever."""
    for each in range(150):
        cluster = Story(each).play(events=60)
        settle(cluster)
        cluster.sent(object)
        for ticket, name in enumerate(NAMES):
            cluster.says("finder", control.Locate(ticket=ticket, name=name))
        answered = {located.ticket for _, located in cluster.sent(control.Located)}
        assert answered == set(range(len(NAMES))), each
        assert not cluster.state.restarts.pending, each
        living = set(cluster.state.actors.records)
        assert set(cluster.state.actors.names.values()) <= living, each


def test_a_restart_whose_client_ends_before_it_has_started_is_given_up(cluster: Cluster) -> None:
    for worker in ("first", "next"):
        cluster.joins(worker, cpus=1)
    cluster.hello("maker")
    cluster.has("maker", "a", name="store", named=True, owner="", max_restarts=3)
    cluster.loses("first")
    cluster.asks("maker", "a", name="store", named=True, owner="", max_restarts=3, life=1)
    cluster.says("client", control.Locate(ticket=1, name="store"))
    cluster.loses_client("maker")
    assert cluster.sent(control.Located) == []
    cluster.loses("next")
    ((_, located),) = cluster.sent(control.Located)
    assert located.location is None
    cluster.to_spawn.clear()
    cluster.joins("another")
    cluster.has("client", "b", name="store", named=True)


def test_the_maker_of_a_detached_actor_is_told_of_its_death_by_a_restarted_master(
    cluster: Cluster,
) -> None:
    """Nothing says that it watches the actor, and nobody else requests the next life."""
    for worker in ("first", "next"):
        cluster.joins(worker, cpus=1)
    cluster.hello("maker")
    cluster.has("maker", "a", name="store", named=True, owner="", max_restarts=3)
    cluster.starts_master(recovers_until=LEASE_S)
    for worker in ("first", "next"):
        cluster.joins(worker, cpus=1)
    cluster.hello("maker")
    cluster.advance(2 * LEASE_S)
    cluster.sent(object)
    cluster.loses(next(w for w in ("first", "next") if cluster.living[w]))
    ((told, died),) = cluster.sent(control.Died)
    assert told == "maker"
    assert died.obituary.restarting
