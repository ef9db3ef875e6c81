"""The events that a master remembers."""

from remotely.master.history import REMEMBERED, REMEMBERED_REFUSALS, SHOWN_ENDS
from remotely.protocol import control
from tests.remotely.master.played import KEY, WORKER_KEY, Cluster


def events(cluster: Cluster, after: int = 0) -> list[tuple[str, str]]:
    """Return the kind and the text of each event."""
    return [(event.kind, event.text) for event in answer(cluster, after).events]


def answer(cluster: Cluster, after: int = 0) -> control.Events:
    cluster.sent(object)
    cluster.says("client", control.AskEvents(ticket=1, after=after))
    ((_, found),) = cluster.sent(control.Events)
    return found


def test_the_history_of_a_machine_is_in_order(cluster: Cluster) -> None:
    cluster.joins("w", machine="m")
    cluster.drains("m", within_s=60)
    cluster.drains("m", undo=True)
    cluster.drains("m", within_s=30)
    cluster.leaves("w")
    cluster.joins("v", machine="n")
    cluster.leaves("v")
    cluster.joins("u", machine="o")
    cluster.loses("u", may_return=True)
    machines = [event.machine for event in answer(cluster).events]
    assert machines == ["m"] * 5 + ["n"] * 2 + ["o"] * 2
    assert events(cluster) == [
        ("joined", "m has joined with 2 CPUs and 8 GiB"),
        ("draining", "m is being drained: it leaves within 60 s, and gets no actors"),
        ("undrained", "m is not drained any more"),
        ("draining", "m is being drained: it leaves within 30 s, and gets no actors"),
        ("drained", "m was drained, and has left"),
        ("joined", "n has joined with 2 CPUs and 8 GiB"),
        ("left", "n: its worker was stopped"),
        ("joined", "o has joined with 2 CPUs and 8 GiB"),
        ("lost", "o: lost"),
    ]


def test_a_machine_that_registers_again_has_not_joined_again(cluster: Cluster) -> None:
    cluster.joins("w", machine="m")
    cluster.loses_route("w")
    cluster.joins("w", machine="m")
    assert [kind for kind, _ in events(cluster)] == ["joined"]


def test_a_sick_machine_and_its_recovery_are_events(cluster: Cluster) -> None:
    cluster.joins("sick", cpus=8, machine="s")
    cluster.joins("well", cpus=4, machine="w")
    cluster.asks("client", "a")
    cluster.fails("a")
    cluster.spawns()
    cluster.advance(2)
    cluster.asks("client", "b")
    cluster.spawns()
    found = [event for event in events(cluster) if event[0] in ("sick", "well")]
    assert found[0][1].startswith("s is sick, and gets no actors until it can start them: ")
    assert found[1] == ("well", "s starts actors again")


def test_an_actor_that_died_is_an_event_and_one_that_was_closed_is_none(cluster: Cluster) -> None:
    cluster.joins("w", machine="m")
    for actor in "ab":
        cluster.has("client", actor)
    cluster.says("client", control.End(actor="b", grace_s=0))
    cluster.says("w", control.Died(obituary=control.Obituary(actor="b", life=0, asked=True)))
    cluster.now += 5
    died = control.Obituary(actor="a", life=0, exit="SIGKILL", why="out of memory")
    cluster.says("w", control.Died(obituary=died))
    cluster.now += 2
    (found,) = answer(cluster, after=1).events
    assert (found.kind, found.text) == ("died", "a ended with SIGKILL: out of memory")
    assert (found.name, found.class_name, found.machine) == ("a", "Counter", "m")
    assert (found.number, found.ago_s) == (2, 2)


def test_an_actor_that_moves_is_an_event_and_no_unexpected_end(cluster: Cluster) -> None:
    cluster.joins("old", machine="o")
    cluster.has("client", "a", max_restarts=1)
    cluster.joins("new", machine="n")
    cluster.drains("o")
    cluster.moves_out("a")
    assert events(cluster)[-1] == ("moved", "a has ended; it is restarted")
    cluster.says("client", control.AskStatus(ticket=1, fresh=False))
    ((_, status),) = cluster.sent(control.Status)
    assert status.ends == []


def test_requests_that_are_refused_alike_are_one_event_with_the_reason(cluster: Cluster) -> None:
    cluster.joins("w", cpus=2, machine="m")
    for actor in ("a", "b"):
        cluster.asks("client", actor, resources=control.Resources(cpus=3), patience_s=0)
    cluster.has("client", "large", resources=control.Resources(cpus=2))
    cluster.asks("client", "c", resources=control.Resources(cpus=2), patience_s=0)
    cluster.asks("client", "d", resources=control.Resources(cpus=2), patience_s=0, is_spare=True)
    cluster.hello("other")
    cluster.asks("other", "large")
    reasons = [refused.why for _, refused in cluster.sent(control.NotPlaced)]
    assert events(cluster, after=1) == [
        ("refused", f"b and 1 more request refused: NoResources: {reasons[0]}"),
        ("refused", f"c refused: NoResources: {reasons[2]}"),
        ("refused", f"large refused: NotAllowed: {reasons[4]}"),
    ]
    assert {event.class_name for event in answer(cluster, after=1).events} == {"Counter"}


def test_refusals_displace_nothing_else(cluster: Cluster) -> None:
    cluster.joins("w", cpus=2, machine="m")
    for number in range(2 * REMEMBERED_REFUSALS):
        cpus = 3.0 + number
        cluster.asks("client", f"a{number}", resources=control.Resources(cpus=cpus), patience_s=0)
    kinds = [kind for kind, _ in events(cluster)]
    assert kinds == ["joined", *["refused"] * REMEMBERED_REFUSALS]


def test_a_revoked_key_is_an_event(cluster: Cluster) -> None:
    cluster.execute(cluster.core.set_keys([KEY], [WORKER_KEY]))
    assert events(cluster) == []
    cluster.execute(cluster.core.set_keys([KEY], []))
    assert events(cluster) == [("revoked", f"no longer admitted: {WORKER_KEY.decode()}")]
    keys = [b"\xff one".ljust(40), b"two".ljust(40)]
    cluster.execute(cluster.core.set_keys([KEY, *keys], []))
    cluster.execute(cluster.core.set_keys([KEY], []))
    named = ", ".join(key.decode(errors="replace") for key in sorted(keys))
    assert events(cluster)[1:] == [("revoked", f"no longer admitted: {named}")]
    assert [event.ago_s for event in answer(cluster).events] == [0.0, 0.0]


def test_only_events_after_a_number_are_sent_and_all_by_a_new_master(cluster: Cluster) -> None:
    for name in "abc":
        cluster.joins(name, machine=name)
    assert [text[0] for _, text in events(cluster, after=1)] == ["b", "c"]
    assert answer(cluster, after=3).last == 3
    assert events(cluster, after=3) == []
    cluster.starts_master()
    cluster.hello("client")
    cluster.joins("a", machine="a")
    assert [text[0] for _, text in events(cluster, after=3)] == ["a"]


def test_the_history_is_bounded_and_the_status_has_the_last_ends_and_counts_all(
    cluster: Cluster,
) -> None:
    cluster.joins("w", cpus=2, machine="m")
    for number in range(REMEMBERED + 5):
        cluster.has("client", f"a{number}")
        cluster.kills(f"a{number}")
    found = answer(cluster)
    assert len(found.events) == REMEMBERED
    assert found.events[-1].number == found.last == REMEMBERED + 6
    cluster.says("client", control.AskStatus(ticket=1, fresh=False))
    ((_, status),) = cluster.sent(control.Status)
    assert [end.name for end in status.ends] == [
        f"a{REMEMBERED + 4 - number}" for number in range(SHOWN_ENDS)
    ]
    assert (status.ended, status.last_event) == (REMEMBERED + 5, found.last)
