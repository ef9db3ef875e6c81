"""Starts that fail, and the machines that are benched for it."""

import pytest

from remotely.master.actors import Phase, phase_of
from remotely.protocol import control
from remotely.protocol.lease import BENCH_MOST_S, BENCH_S, EXPECTED_S, STUCK_S, TICK_EVERY_S
from tests.remotely.master.played import Cluster, request_of, workers_in_status

WHY = "its process ended while starting: no space left"


def workers_of(cluster: Cluster) -> list[str]:
    """Return the workers that have yet to start an actor, in order."""
    return [worker for worker, _ in cluster.to_spawn]


@pytest.fixture
def two(cluster: Cluster) -> Cluster:
    """A machine on which starts will fail, and one with less room, on which they will not."""
    cluster.joins("sick", cpus=8, machine="s")
    cluster.joins("well", cpus=4, machine="w")
    return cluster


def falls_sick(cluster: Cluster) -> None:
    cluster.asks("client", "first")
    assert workers_of(cluster) == ["sick"]
    cluster.fails("first")
    cluster.spawns()
    cluster.kills("first")
    cluster.sent(object)


# --- placed elsewhere -----------------------------------------------------------------------------


def test_an_actor_that_its_machine_could_not_start_is_placed_on_another(two: Cluster) -> None:
    ticket = two.asks("client", "a")
    two.fails("a")
    assert workers_of(two) == ["well"]
    two.spawns()
    assert [placed.ticket for _, placed in two.sent(control.Placed)] == [ticket]


def test_on_a_machine_where_starts_fail_no_more_are_placed(two: Cluster) -> None:
    falls_sick(two)
    for number in range(4):
        two.asks("client", f"a{number}")
    assert workers_of(two) == ["well"] * 4


def test_a_sick_machine_is_reported_once(two: Cluster) -> None:
    for actor in "abc":
        two.asks("client", actor)
    assert workers_of(two) == ["sick"] * 3
    two.fails("a")
    ((_, first),) = two.sent(control.Notice)
    assert first.text == f"s is sick, and gets no actors until it can start them: {WHY}"
    two.fails("b")
    two.fails("c")
    assert two.sent(control.Notice) == []
    assert two.spawns() == ["a", "b", "c"]


def test_a_failed_start_counts_as_no_life(two: Cluster) -> None:
    two.has("client", "a", cpus=2, max_restarts=1)
    two.kills("a")
    two.asks("client", "a", cpus=2, max_restarts=1, life=1)
    assert workers_of(two) == ["sick"]
    two.sent(object)
    two.fails("a")
    assert workers_of(two) == ["well"]
    assert two.sent(control.Died) == []
    assert two.spawns() == ["a"]
    two.kills("a")
    ((_, died),) = two.sent(control.Died)
    assert not died.obituary.restarting


def test_a_thousand_actors_live_on_the_other_two_of_three_machines(cluster: Cluster) -> None:
    cluster.joins("sick", cpus=2000, machine="s")
    for worker in ("b", "c"):
        cluster.joins(worker, cpus=500, machine=worker)
    for number in range(1000):
        cluster.asks("client", f"a{number}")
        while cluster.to_spawn:
            if cluster.to_spawn[0][0] == "sick":
                cluster.fails()
            else:
                cluster.spawns(at_most=1)
        if number % 10 == 0:
            cluster.advance(TICK_EVERY_S)
    told = [message for _, message in cluster.outbox if isinstance(message, control.Notice)]
    assert len(told) == 1
    assert cluster.sent(control.NotPlaced) == []
    assert [len(cluster.living[worker]) for worker in ("sick", "b", "c")] == [0, 500, 500]


def test_an_actor_that_another_machine_could_not_start_either_is_not_tried_again(
    cluster: Cluster,
) -> None:
    """What ends the process may come with the request: then its worker does not blame the
    machine."""
    cluster.joins("a", machine="a")
    cluster.joins("b", machine="b")
    cluster.asks("client", "actor", env={"PATH": ""})
    ((worker, _),) = cluster.to_spawn
    died = control.Obituary(actor="actor", life=0, exit=1)
    cluster.says(worker, control.Died(obituary=died))
    ((_, refused),) = cluster.sent(control.NotPlaced)
    assert refused.error == "ActorDied"
    assert workers_in_status(cluster)[0].sick == ""


def test_a_member_of_a_group_is_placed_alone_on_another_machine(two: Cluster) -> None:
    for actor in "abc":
        two.asks("client", actor, gang="g", together=3)
    assert workers_of(two) == ["sick"] * 3
    two.fails("b")
    assert workers_of(two) == ["sick", "sick", "well"]
    assert set(two.spawns()) == {"a", "b", "c"}


def test_a_start_that_fails_after_it_was_given_up_is_not_tried_again(two: Cluster) -> None:
    ticket = two.asks("client", "a")
    two.says("client", control.End(actor="a", grace_s=0))
    two.sent(object)
    two.fails("a")
    ((_, refused),) = two.sent(control.NotPlaced)
    assert refused.ticket == ticket
    assert two.to_spawn == []
    two.asks("client", "b")
    two.loses_client("client")
    two.fails("b")
    assert two.to_spawn == []


# --- nowhere else to go ---------------------------------------------------------------------------


def test_a_machine_that_is_alone_fails_a_request_with_its_error(cluster: Cluster) -> None:
    cluster.joins("only", machine="o")
    for actor in "ab":  # each is tried
        cluster.asks("client", actor)
        cluster.fails(actor)
        ((_, refused),) = cluster.sent(control.NotPlaced)
        assert (refused.error, refused.why) == ("ActorDied", WHY)
    (only,) = workers_in_status(cluster)
    assert (only.sick, only.free_cpus) == (WHY, 2)
    cluster.has("client", "c")
    (only,) = workers_in_status(cluster)
    assert only.sick == ""


def test_if_every_machine_is_sick_a_request_fails_with_the_error_of_the_last(two: Cluster) -> None:
    two.asks("client", "a")
    two.fails("a", "no space left")
    two.sent(object)
    two.fails("a", "no process left")
    ((_, refused),) = two.sent(control.NotPlaced)
    assert "no process left" in refused.why


def test_a_request_for_a_sick_machine_fails_with_its_error(two: Cluster) -> None:
    two.asks("client", "a", machine="s")
    two.fails("a")
    ((_, refused),) = two.sent(control.NotPlaced)
    assert refused.why == WHY


def test_a_next_life_waits_for_the_only_machine(cluster: Cluster) -> None:
    cluster.joins("only", machine="o")
    cluster.has("client", "a", max_restarts=1)
    cluster.kills("a")
    cluster.asks("client", "a", max_restarts=1, life=1)
    cluster.sent(object)
    cluster.fails("a")
    ((_, queued),) = cluster.sent(control.Queued)
    assert f"o is sick: {WHY}" in queued.why
    assert cluster.to_spawn == []
    cluster.advance(BENCH_S)
    assert cluster.spawns() == ["a"]


def test_a_next_life_waits_no_longer_than_its_patience(cluster: Cluster) -> None:
    cluster.joins("only", machine="o")
    cluster.has("client", "a", max_restarts=1)
    cluster.kills("a")
    cluster.asks("client", "a", max_restarts=1, life=1)
    cluster.sent(object)
    tries = 0
    for _ in range(100):
        if cluster.to_spawn:
            cluster.fails("a")
            tries += 1
        cluster.advance(1.0)
    ((_, refused),) = cluster.sent(control.NotPlaced)
    assert f"o is sick: {WHY}" in refused.why
    assert 4 <= tries <= 10


# --- on trial -------------------------------------------------------------------------------------


def test_a_benched_machine_is_tried_with_one_actor(two: Cluster) -> None:
    falls_sick(two)
    two.advance(BENCH_S)
    for actor in "abc":
        two.asks("client", actor)
    assert workers_of(two) == ["sick", "well", "well"]
    two.spawns()
    two.asks("client", "d")
    assert workers_of(two) == ["sick"]  # it has started one, and has the most room


def test_a_machine_that_fails_its_trials_is_tried_less_and_less_often(two: Cluster) -> None:
    falls_sick(two)
    pauses, waited_s = [], 0.0
    for number in range(300):
        two.advance(1.0)
        waited_s += 1.0
        actor = f"a{number}"
        two.asks("client", actor)
        if workers_of(two) == ["sick"]:
            pauses.append(waited_s)
            waited_s = 0.0
            two.fails(actor)
        two.spawns()
        two.kills(actor)
    assert pauses == [1, 2, 4, 8, 16, 30, 30, 30, 30, 30, 30, 30, 30]
    assert BENCH_MOST_S + 2 * TICK_EVERY_S < 60  # so it is back within a minute of its recovery


def test_a_waiting_request_gets_the_trial(two: Cluster) -> None:
    for number in range(4):
        two.asks("client", f"small{number}", machine="w")
    two.spawns()
    falls_sick_with = two.asks("client", "a")
    two.sent(object)
    two.fails("a")
    ((_, queued),) = two.sent(control.Queued)
    assert queued.ticket == falls_sick_with
    two.advance(BENCH_S)
    assert workers_of(two) == ["sick"]
    two.spawns()
    assert workers_in_status(two)[0].sick == ""


def test_a_start_from_before_the_machine_was_benched_decides_nothing(two: Cluster) -> None:
    for actor in "abc":
        two.asks("client", actor)
    two.fails("a")
    two.advance(0.0)
    assert two.spawns() == ["b", "c", "a"]
    assert workers_in_status(two)[0].sick == WHY
    two.asks("client", "d")
    assert workers_of(two) == ["well"]


def test_a_trial_without_an_outcome_is_repeated(two: Cluster) -> None:
    falls_sick(two)
    two.advance(BENCH_S)
    two.asks("client", "a")
    assert workers_of(two) == ["sick"]
    two.says("client", control.End(actor="a", grace_s=0))
    closed = control.Obituary(actor="a", life=0, asked=True)
    two.says("sick", control.Died(obituary=closed))
    two.to_spawn.clear()
    two.asks("client", "b")
    assert workers_of(two) == ["well"]
    two.advance(TICK_EVERY_S)
    two.asks("client", "c")
    assert workers_of(two) == ["well", "sick"]


def test_a_group_counts_on_one_actor_of_a_machine_that_is_on_trial(two: Cluster) -> None:
    falls_sick(two)
    two.advance(BENCH_S)
    for number in range(6):
        two.asks("client", f"a{number}", gang="g", together=6)
    assert workers_of(two) == []
    for number in range(5):
        two.asks("client", f"b{number}", gang="h", together=5)
    assert sorted(workers_of(two)) == ["sick", "well", "well", "well", "well"]


def test_a_machine_that_was_lost_is_healthy_when_it_is_back(two: Cluster) -> None:
    falls_sick(two)
    two.loses("sick", may_return=True)
    two.joins("sick", cpus=8, machine="s")
    two.asks("client", "a")
    assert workers_of(two) == ["sick"]


# --- no outcome -----------------------------------------------------------------------------------


def test_starts_without_an_outcome_are_placed_elsewhere(two: Cluster) -> None:
    for actor in "abcd":
        two.asks("client", actor)
    stuck, two.to_spawn = two.to_spawn, []
    assert [worker for worker, _ in stuck] == ["sick"] * 4
    two.advance(STUCK_S - 1.0)
    assert two.to_spawn == []
    two.sent(object)
    two.advance(1.0)
    ends = [(who, end.actor, end.kill) for who, end in two.sent(control.End)]
    assert ends == [("sick", actor, True) for actor in "abcd"]
    assert workers_of(two) == ["well"] * 4
    assert set(two.spawns()) == set("abcd")


def test_a_machine_has_its_time_from_the_start_of_the_first_that_waits(two: Cluster) -> None:
    two.advance(10 * STUCK_S)  # in which nothing was started
    two.asks("client", "a")
    two.advance(STUCK_S / 2)
    two.asks("client", "b")
    assert workers_of(two) == ["sick", "sick"]
    two.advance(STUCK_S / 2 - TICK_EVERY_S)
    assert workers_of(two) == ["sick", "sick"]
    two.advance(TICK_EVERY_S)
    assert workers_of(two) == ["sick", "sick", "well", "well"]


def test_a_machine_that_makes_an_environment_for_a_start_is_not_silent(two: Cluster) -> None:
    two.asks("client", "a", packages=["torch"])
    for _ in range(3):
        two.advance(STUCK_S - 1)
        two.says("sick", control.Preparing(actor="a"))
        assert workers_of(two) == ["sick"]
    two.advance(STUCK_S)
    assert workers_of(two) == ["sick", "well"]


def test_a_machine_is_not_tried_while_a_start_that_was_given_up_may_go_on(two: Cluster) -> None:
    two.asks("client", "a")
    two.to_spawn.clear()
    two.advance(STUCK_S)
    assert two.spawns() == ["a"]
    two.advance(10 * BENCH_MOST_S)
    two.asks("client", "b")
    assert workers_of(two) == ["well"]
    killed = control.Obituary(actor="a", life=0, asked=True)
    two.says("sick", control.Died(obituary=killed))
    assert phase_of(two.state, "a") is Phase.ALIVE
    two.advance(TICK_EVERY_S)
    two.asks("client", "c")
    assert workers_of(two) == ["well", "sick"]


def test_a_worker_that_is_back_without_the_starts_that_were_given_up_is_tried(two: Cluster) -> None:
    two.asks("client", "a")
    two.to_spawn.clear()
    two.advance(STUCK_S)
    two.spawns()
    two.joins("sick", cpus=8, machine="s")
    two.advance(BENCH_S)
    two.asks("client", "b")
    assert workers_of(two) == ["sick"]


def test_a_machine_that_starts_one_actor_after_the_other_is_not_sick(cluster: Cluster) -> None:
    cluster.joins("slow", cpus=10)
    for number in range(10):
        cluster.asks("client", f"a{number}")
    for _ in range(10):
        cluster.advance(STUCK_S - 1.0)
        cluster.spawns(at_most=1)
    assert len(cluster.sent(control.Placed)) == 10


def test_an_actor_has_started_before_its_constructor_runs(cluster: Cluster) -> None:
    cluster.joins("worker")
    cluster.has("client", "a")
    cluster.advance(10 * STUCK_S)
    assert phase_of(cluster.state, "a") is Phase.ALIVE


def test_a_machine_that_is_alone_and_silent_fails_a_request(cluster: Cluster) -> None:
    cluster.joins("only")
    cluster.asks("client", "a")
    cluster.to_spawn.clear()
    cluster.advance(STUCK_S)
    ((_, refused),) = cluster.sent(control.NotPlaced)
    assert "its machine has started nothing for 60 s" in refused.why


def test_the_time_in_which_the_master_was_stopped_does_not_count(cluster: Cluster) -> None:
    cluster.advance(10 * STUCK_S)
    cluster.joins("worker")
    cluster.asks("client", "a")
    cluster.now += STUCK_S
    cluster.core.extend_leases(STUCK_S)
    cluster.advance(0.0)
    assert cluster.spawns() == ["a"]


# --- the next life of a detached actor ------------------------------------------------------------


@pytest.fixture
def detached(cluster: Cluster) -> Cluster:
    """An actor that its worker restarts, because its maker is gone."""
    cluster.joins("worker", machine="m")
    cluster.hello("maker")
    cluster.has("maker", "a", owner="", max_restarts=1, named=True)
    cluster.loses_client("maker")
    cluster.kills("a")
    cluster.sent(object)
    return cluster


def test_a_worker_that_cannot_start_a_next_life_tries_again(detached: Cluster) -> None:
    detached.says("client", control.Locate(ticket=1, name="a"))
    detached.fails("a")
    assert detached.to_spawn == []
    detached.advance(BENCH_S)
    ((_, spawn),) = detached.to_spawn
    assert (spawn.again, spawn.request.life) == (True, 1)
    detached.fails("a")
    detached.advance(BENCH_S)
    assert detached.to_spawn == []
    detached.advance(BENCH_S)
    assert detached.spawns() == ["a"]
    ((_, located),) = detached.sent(control.Located)
    assert located.location is not None
    assert workers_in_status(detached)[0].sick == ""


def test_a_next_life_that_cannot_be_started_is_given_up_in_the_end(detached: Cluster) -> None:
    detached.says("client", control.Locate(ticket=1, actor="a"))
    detached.fails("a")
    for _ in range(int(EXPECTED_S + BENCH_MOST_S) + 1):
        detached.advance(1.0)
        if detached.to_spawn:
            detached.fails("a")
    ((_, located),) = detached.sent(control.Located)
    assert located.obituary is not None
    assert "no space left" in located.obituary.why
    detached.has("client", "b", name="a", named=True)


def test_the_constructor_of_a_next_life_has_no_time_limit(detached: Cluster) -> None:
    detached.to_spawn.clear()
    detached.says("worker", control.Begun(actor="a"))
    detached.advance(10 * STUCK_S)
    assert detached.to_spawn == []
    assert workers_in_status(detached)[0].sick == ""
    died = control.Obituary(actor="a", life=1, exit=1, stderr="it raised")
    detached.says("worker", control.Died(obituary=died))  # not the machine's fault
    detached.has("client", "b", name="a", named=True)


def test_an_actor_that_is_closed_between_two_tries_has_ended(detached: Cluster) -> None:
    detached.fails("a")
    detached.says("client", control.End(actor="a", grace_s=0))
    detached.sent(object)
    detached.advance(BENCH_S)
    assert detached.to_spawn == []
    detached.has("client", "b", name="a", named=True)


def test_a_worker_that_is_silent_about_a_next_life_is_asked_again(detached: Cluster) -> None:
    detached.to_spawn.clear()
    detached.advance(STUCK_S)
    assert detached.sent(control.End) == []  # the worker would forget what it is made from
    detached.advance(BENCH_S)
    assert detached.spawns() == ["a"]


# --- the status -----------------------------------------------------------------------------------


def test_a_status_says_why_a_machine_is_sick(two: Cluster) -> None:
    falls_sick(two)
    two.advance(0.5)
    sick, well = workers_in_status(two)
    assert (sick.sick, sick.sick_s, sick.free_cpus) == (WHY, 0.5, 0)
    assert (well.sick, well.sick_s, well.free_cpus) == ("", 0, 4)


def test_a_request_that_waits_names_the_sick_machines(two: Cluster) -> None:
    falls_sick(two)
    request = request_of("a", "client", cpus=8)
    two.says("client", control.Place(ticket=5, request=request, patience_s=5))
    ((_, queued),) = two.sent(control.Queued)
    assert f"s is sick: {WHY}" in queued.why
