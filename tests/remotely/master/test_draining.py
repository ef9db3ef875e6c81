"""Machines that are drained: what moves, what may stay, and when they leave."""

import pytest

from remotely.master.actors import Phase, phase_of
from remotely.protocol import control
from remotely.protocol.lease import TICK_EVERY_S
from tests.remotely.master.played import Cluster, workers_in_status


@pytest.fixture
def two(cluster: Cluster) -> Cluster:
    """A machine that will be drained, and one with less room, where actors move to."""
    cluster.joins("old", cpus=4, machine="o")
    return cluster


def workers_of(cluster: Cluster) -> list[str]:
    return [worker for worker, _ in cluster.to_spawn]


def moving(cluster: Cluster) -> list[str]:
    return [actor for actor in cluster.state.actors.records if is_moving(cluster, actor)]


def is_moving(cluster: Cluster, actor: str) -> bool:
    return phase_of(cluster.state, actor) is Phase.MOVING


# --- placement ------------------------------------------------------------------------------------


def test_nothing_new_is_placed_on_a_machine_that_is_drained(two: Cluster) -> None:
    two.joins("new", cpus=2, machine="n")
    two.drains("o")
    for actor in "abc":
        two.asks("client", actor)
    assert workers_of(two) == ["new", "new"]
    ((_, queued),) = two.sent(control.Queued)
    assert "o is being drained, and gets no actors" in queued.why


def test_a_machine_whose_drain_is_undone_is_used_as_before(two: Cluster) -> None:
    two.drains("o")
    two.asks("client", "a")
    assert workers_of(two) == []
    two.sent(object)
    two.drains("o", undo=True)
    assert [m.undo for who, m in two.sent(control.Drain) if who == "old"] == [True]
    assert workers_of(two) == ["old"]
    assert workers_in_status(two)[0].drains_s == 0


def test_a_machine_is_named_by_name_address_or_worker(two: Cluster) -> None:
    for name in ("o", "o.example", "old"):
        two.sent(object)
        two.drains(name)
        assert [who for who, _ in two.sent(control.Drain)] == ["old"]


def test_an_unknown_machine_is_refused_with_the_names_of_all(two: Cluster) -> None:
    ticket = two.drains("x")
    ((_, heard),) = two.sent(control.DrainHeard)
    assert heard.ticket == ticket
    assert heard.why == "no machine of this cluster is named 'x': there is o"


def test_the_time_that_is_left_is_in_the_status(two: Cluster) -> None:
    two.drains("o", within_s=600)
    two.advance(10)
    (old,) = workers_in_status(two)
    assert (old.drains_s, old.free_cpus) == (590, 0)


def test_the_scripts_with_actors_there_are_told_once(two: Cluster) -> None:
    two.has("client", "a")
    two.drains("o", within_s=60)
    two.drains("o", within_s=30)
    assert [notice.text for _, notice in two.sent(control.Notice)] == [
        "o is being drained: it leaves within 60 s, and gets no actors"
    ]
    assert workers_in_status(two)[0].drains_s == 30


# --- moves ----------------------------------------------------------------------------------------


def test_an_actor_that_can_be_made_again_moves_and_its_clients_are_told_first(
    two: Cluster,
) -> None:
    two.has("client", "a", max_restarts=1)
    two.hello("other")
    two.says("other", control.Locate(ticket=1, actor="a"))
    two.joins("new", machine="n")
    two.drains("o")
    told = [who for who, message in two.outbox if isinstance(message, control.Moving)]
    assert sorted(told) == ["client", "other"]
    assert [(who, end.moves) for who, end in two.sent(control.End)] == [("old", True)]
    two.moves_out("a")
    ((_, died), _) = two.sent(control.Died)
    assert (died.obituary.restarting, died.obituary.asked) == (True, False)
    two.asks("client", "a", max_restarts=1, life=1)
    assert workers_of(two) == ["new"]


def test_a_move_is_no_restart_that_counts(two: Cluster) -> None:
    two.has("client", "a", max_restarts=1)
    two.joins("new", machine="n")
    two.drains("o")
    two.moves_out("a")
    two.asks("client", "a", max_restarts=1, life=1)
    assert two.spawns() == ["a"]
    two.kills("a")
    assert two.sent(control.Died)[-1][1].obituary.restarting


def test_an_actor_moves_only_when_another_machine_has_room(two: Cluster) -> None:
    two.has("client", "a", max_restarts=1)
    two.drains("o")
    two.advance(TICK_EVERY_S)
    assert moving(two) == []
    two.joins("new", machine="n")
    two.advance(TICK_EVERY_S)
    assert moving(two) == ["a"]


def test_room_is_kept_for_each_actor_that_moves(two: Cluster) -> None:
    for actor in "abc":
        two.has("client", actor, max_restarts=1)
    two.joins("new", cpus=2, machine="n")
    two.drains("o")
    assert moving(two) == ["a", "b"]
    two.asks("client", "d")
    assert workers_of(two) == []
    two.moves_out("a")
    two.asks("client", "a", max_restarts=1, life=1)
    assert workers_of(two) == ["new"]


def test_room_that_was_kept_on_a_lost_machine_is_not_released_on_its_successor(
    two: Cluster,
) -> None:
    two.has("client", "a", max_restarts=1)
    two.joins("new", cpus=1, machine="n")
    two.drains("o")
    two.loses("new")
    two.joins("new", cpus=1, machine="n")
    two.moves_out("a")
    assert two.state.workers.ledger.free("new").cpus == 1


def test_an_actor_without_restarts_stays(two: Cluster) -> None:
    two.has("client", "a")
    two.joins("new", machine="n")
    two.drains("o")
    ((_, heard),) = two.sent(control.DrainHeard)
    assert (heard.actors, heard.movable) == (1, 0)
    assert moving(two) == []


def test_a_detached_actor_moves_while_its_maker_is_there(two: Cluster) -> None:
    two.has("client", "a", owner="", max_restarts=1)
    two.joins("new", machine="n")
    two.drains("o")
    two.moves_out("a")
    assert two.sent(control.Died)[-1][1].obituary.restarting
    two.asks("client", "a", owner="", max_restarts=1, life=1)
    assert workers_of(two) == ["new"]


def test_a_detached_actor_stays_if_nobody_is_there_to_make_it(two: Cluster) -> None:
    two.has("client", "a", owner="", max_restarts=1)
    two.loses_client("client")
    two.hello("client2")
    two.joins("new", machine="n")
    two.execute(two.core.handle_client("client2", control.Drain(within_s=9, machine="o"), two.now))
    assert moving(two) == []


def test_an_actor_that_crashes_while_it_moves_is_restarted_as_always(two: Cluster) -> None:
    two.has("client", "a", owner="", max_restarts=1)
    two.joins("new", machine="n")
    two.drains("o")
    two.kills("a")
    assert workers_of(two) == ["old"]  # by its worker, from its file
    assert two.state.workers.ledger.free("new").cpus == 2


def test_an_actor_that_is_closed_while_it_moves_ends(two: Cluster) -> None:
    two.has("client", "a", max_restarts=1)
    two.joins("new", machine="n")
    two.drains("o")
    two.says("client", control.End(actor="a", grace_s=1))
    two.moves_out("a")
    assert not two.sent(control.Died)[-1][1].obituary.restarting
    assert two.state.workers.ledger.free("new").cpus == 2


def test_a_client_that_looks_for_an_actor_which_moves_is_sent_its_next_life(two: Cluster) -> None:
    two.has("client", "a", max_restarts=1)
    two.joins("new", machine="n")
    two.drains("o")
    two.hello("other")
    two.says("other", control.Locate(ticket=1, actor="a"))
    assert two.sent(control.Located) == []
    two.moves_out("a")
    two.asks("client", "a", max_restarts=1, life=1)
    two.spawns()
    ((_, located),) = two.sent(control.Located)
    assert located.location is not None
    assert located.location.life == 1


# --- the end --------------------------------------------------------------------------------------


def test_what_is_left_when_the_machine_leaves_is_lost_and_says_why(two: Cluster) -> None:
    two.has("client", "a")
    two.drains("o")
    two.leaves("old")
    ((_, died),) = two.sent(control.Died)
    assert (died.obituary.lost, died.obituary.why) == (True, "it was drained")
    assert workers_in_status(two) == []


def test_what_can_be_made_again_is_when_the_time_is_up(two: Cluster) -> None:
    two.has("client", "a", max_restarts=1)
    two.drains("o")
    two.leaves("old")
    assert two.sent(control.Died)[-1][1].obituary.restarting
    two.joins("new", machine="n")
    two.asks("client", "a", max_restarts=1, life=1)
    assert two.spawns() == ["a"]
    two.kills("a")
    assert two.sent(control.Died)[-1][1].obituary.restarting


def test_an_actor_that_was_about_to_start_on_a_machine_that_leaves_starts_elsewhere(
    two: Cluster,
) -> None:
    two.asks("client", "a")
    assert workers_of(two) == ["old"]
    two.joins("new", cpus=1, machine="n")
    two.says("old", control.Leaving(within_s=20))
    two.leaves("old")
    assert workers_of(two) == ["old", "new"]


def test_a_worker_that_was_sent_sigterm_is_drained(two: Cluster) -> None:
    two.has("client", "a", max_restarts=1)
    two.joins("new", machine="n")
    two.says("old", control.Leaving(within_s=20))
    assert moving(two) == ["a"]
    assert two.sent(control.Drain) == []  # it knows


def test_a_restarted_master_learns_what_is_drained(two: Cluster) -> None:
    two.has("client", "a", max_restarts=1)
    two.drains("o")
    two.starts_master(recovers_until=two.now + 10)
    two.joins("old", cpus=4, machine="o", drains_s=300)
    two.hello("client")
    assert workers_in_status(two)[0].drains_s == 300
    two.joins("new", machine="n")
    two.advance(TICK_EVERY_S)
    assert moving(two) == ["a"]


def test_an_actor_that_moved_while_the_master_was_away_goes_on(two: Cluster) -> None:
    two.has("client", "a", max_restarts=1)
    two.joins("new", machine="n")
    two.drains("o")
    two.starts_master(recovers_until=two.now + 10)
    two.hello("client")
    status = two.living["old"].pop("a")
    two.joins("old", cpus=4, machine="o", drains_s=300)
    obituary = control.Obituary(actor="a", life=0, moved=True, exited=True)
    two.says("old", control.Died(obituary=obituary, lived=status))
    assert two.sent(control.Died)[-1][1].obituary.restarting


def test_a_worker_that_was_away_is_told_again(two: Cluster) -> None:
    two.cut_off.add("old")
    two.drains("o")
    two.sent(object)
    two.joins("old", cpus=4, machine="o")
    assert [who for who, _ in two.sent(control.Drain)] == ["old"]
