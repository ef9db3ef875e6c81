"""Machines that are drained: what moves, what may stay, and when they leave."""

from typing import Any

import msgspec
import pytest

from remotely.master.actors import Phase, phase_of
from remotely.master.draining import FIRST_TRY_S, MOVE_PAUSE_S
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


def returns(cluster: Cluster, actor: str, life: int = 1, **options: Any) -> None:
    """Let the maker of an actor that has moved request its next life."""
    options = {"max_restarts": 1, "patience_s": control.LONGEST_S, **options}
    cluster.asks("client", actor, life=life, **options)


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
        told = [(who, ask.ticket, ask.machine) for who, ask in two.sent(control.Drain)]
        assert told == [("old", 0, "")]


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


def test_no_more_actors_move_than_there_is_room_for(two: Cluster) -> None:
    for actor in "abc":
        two.has("client", actor, max_restarts=1)
    two.joins("new", cpus=2, machine="n")
    two.drains("o")
    assert moving(two) == ["a", "b"]
    two.advance(TICK_EVERY_S)
    assert moving(two) == ["a", "b"]
    assert two.state.workers.ledger.free("new").cpus == 2  # nothing is reserved
    two.moves_out("a")
    two.advance(TICK_EVERY_S)
    assert moving(two) == ["b"]
    returns(two, "a")
    assert workers_of(two) == ["new"]


def test_a_moved_actor_waits_for_room_that_another_has_taken_for_as_long_as_its_maker_lives(
    two: Cluster,
) -> None:
    two.hello("other")
    two.has("client", "a", max_restarts=1)
    two.joins("new", cpus=1, machine="n")
    two.drains("o")
    two.moves_out("a")
    two.has("other", "b")
    two.sent(object)
    returns(two, "a")
    ((who, queued),) = two.sent(control.Queued)
    assert who == "client"
    assert "o is being drained" in queued.why
    two.leaves("old")
    for _ in range(10):
        two.advance(1000)
    assert two.sent(control.NotPlaced) == []
    two.kills("b")
    assert workers_of(two) == ["new"]


def test_a_moved_actor_waits_for_a_machine_that_is_large_enough(two: Cluster) -> None:
    two.has("client", "a", cpus=2, max_restarts=1)
    two.joins("new", cpus=2, machine="n")
    two.drains("o")
    two.moves_out("a")
    two.drains("n")
    returns(two, "a", cpus=2)
    two.leaves("old")
    two.leaves("new")
    two.advance(1000)
    assert two.sent(control.NotPlaced) == []
    two.joins("third", cpus=2, machine="t")
    assert workers_of(two) == ["third"]


def test_a_moved_actor_waits_for_room_at_a_restarted_master_too(two: Cluster) -> None:
    two.has("client", "a", max_restarts=1)
    two.joins("new", cpus=1, machine="n")
    two.drains("o")
    two.moves_out("a")
    two.starts_master(recovers_until=two.now + 10)
    two.hello("client")
    returns(two, "a")
    two.advance(1000)
    assert two.sent(control.NotPlaced) == []
    two.joins("third", machine="t")
    assert workers_of(two) == ["third"]


def test_a_sick_machine_is_no_room_for_a_move_until_it_starts_something(two: Cluster) -> None:
    two.has("client", "a", cpus=2, max_restarts=1)
    two.joins("full", cpus=2, machine="f")
    two.joins("ill", cpus=2, machine="i")
    two.asks("client", "b", cpus=2, machine="i")
    two.fails("b")
    two.asks("client", "c", cpus=2, machine="f")
    assert two.spawns() == ["c"]
    two.drains("o")
    for _ in range(50):  # meanwhile it is on trial several times
        two.advance(TICK_EVERY_S)
        two.to_spawn.clear()
        assert moving(two) == []
    assert "ill" in two.state.workers.sick


def test_a_move_that_takes_long_is_withdrawn_so_that_calls_go_through_and_tried_for_longer(
    two: Cluster,
) -> None:
    two.has("client", "a", max_restarts=1)
    two.joins("new", machine="n")
    two.drains("o")
    for try_s in (FIRST_TRY_S, 2 * FIRST_TRY_S, 4 * FIRST_TRY_S):
        two.advance(try_s - 0.1)
        assert two.sent(control.Stay) == []
        two.advance(0.1)
        assert [who for who, _ in two.sent(control.Stay)] == ["old"]
        assert moving(two) == ["a"]  # until its worker agrees
        two.says("old", control.Stay(actor="a"))
        assert moving(two) == []
        assert [(who, m.stays) for who, m in two.sent(control.Moving)] == [("client", True)]
        two.advance(MOVE_PAUSE_S - 0.1)
        assert moving(two) == []
        two.advance(0.1)
        assert moving(two) == ["a"]


def test_who_looks_for_an_actor_that_stays_is_sent_where_it_is(two: Cluster) -> None:
    two.has("client", "a", max_restarts=1)
    two.joins("new", machine="n")
    two.drains("o")
    two.hello("other")
    two.says("other", control.Locate(ticket=1, actor="a"))
    assert two.sent(control.Located) == []
    two.says("old", control.Stay(actor="a"))
    ((who, located),) = two.sent(control.Located)
    assert (who, located.location and located.location.life) == ("other", 0)


def test_an_actor_that_was_passed_on_while_it_moves_stays(two: Cluster) -> None:
    two.hello("other")
    two.has("client", "a", max_restarts=1)
    two.says("other", control.Hold(actor="a"))
    two.joins("new", machine="n")
    two.drains("o")
    two.says("client", control.Goodbye())
    assert {who for who, _ in two.sent(control.Stay)} == {"old"}
    two.says("old", control.Stay(actor="a"))
    two.advance(TICK_EVERY_S)
    assert phase_of(two.state, "a") is Phase.ALIVE


def test_a_detached_actor_whose_maker_leaves_while_it_moves_stays(two: Cluster) -> None:
    two.has("client", "a", owner="", max_restarts=1)
    two.joins("new", machine="n")
    two.drains("o")
    two.loses_client("client")
    assert [who for who, _ in two.sent(control.Stay)] == ["old"]
    two.says("old", control.Stay(actor="a"))
    two.advance(MOVE_PAUSE_S)
    assert phase_of(two.state, "a") is Phase.ALIVE


def test_a_detached_actor_that_had_ended_when_its_move_was_withdrawn_is_started_where_it_was(
    two: Cluster,
) -> None:
    two.has("client", "a", owner="", max_restarts=1)
    two.joins("new", machine="n")
    two.drains("o")
    two.loses_client("client")
    two.moves_out("a")
    assert workers_of(two) == ["old"]


def test_an_actor_without_restarts_stays(two: Cluster) -> None:
    two.has("client", "a")
    two.joins("new", machine="n")
    two.drains("o")
    ((who, heard),) = two.sent(control.DrainHeard)
    assert (who, heard.actors, heard.movable) == ("client", 1, 0)
    assert moving(two) == []


def test_the_owners_of_actors_that_stay_are_asked_to_replace_them_while_it_lasts(
    two: Cluster,
) -> None:
    two.joins("old", cpus=4, machine="o")
    two.has("client", "a")
    two.has("client", "mover", max_restarts=1)
    two.has("client", "nobody's", owner="")
    two.joins("new", cpus=0, machine="n")
    two.drains("o")
    two.sent(object)
    for _ in range(2):  # a message may be lost, and a member may start only now
        two.advance(1)
        assert two.sent(control.ToReplace) == [("client", control.ToReplace(actors=["a"]))]
    two.drains("o", undo=True)
    two.advance(1)
    assert not two.sent(control.ToReplace)


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
    ((_, died), *_) = two.sent(control.Died)
    assert died.obituary.restarting
    assert died.obituary.moved  # so its maker makes its next life
    returns(two, "a", owner="")
    assert workers_of(two) == ["new"]


def test_a_detached_actor_without_a_maker_is_restarted_on_a_machine_that_is_drained(
    two: Cluster,
) -> None:
    two.has("client", "a", owner="", max_restarts=1)
    two.drains("o")
    two.loses_client("client")
    two.kills("a")
    assert workers_of(two) == ["old"]


def test_the_next_life_that_a_machine_was_starting_when_its_time_was_up_starts_elsewhere(
    two: Cluster,
) -> None:
    two.has("client", "a", owner="", max_restarts=1)
    two.kills("a")
    assert phase_of(two.state, "a") is Phase.RESUMING
    two.drains("o")
    two.leaves("old")
    assert two.sent(control.Died)[-1][1].obituary.restarting
    two.joins("new", machine="n")
    returns(two, "a", owner="", life=2)
    assert workers_of(two) == ["old", "new"]


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


def test_a_worker_that_missed_the_undo_of_its_drain_is_told_again(two: Cluster) -> None:
    two.drains("o")
    two.cut_off.add("old")
    two.drains("o", undo=True)
    two.sent(object)
    two.joins("old", cpus=4, machine="o", drains_s=500)
    assert [(who, drain.undo) for who, drain in two.sent(control.Drain)] == [("old", True)]
    assert workers_in_status(two)[0].drains_s == 0
    two.says("old", control.Leaving(within_s=0))
    two.joins("old", cpus=4, machine="o", drains_s=500)  # it was drained again, by another
    assert workers_in_status(two)[0].drains_s == 500


def test_the_drain_of_a_worker_that_was_sent_sigterm_cannot_be_undone(two: Cluster) -> None:
    two.says("old", control.Leaving(within_s=20))
    two.drains("o", undo=True)
    ((_, heard),) = two.sent(control.DrainHeard)
    assert heard.why.startswith("o cannot stay: its worker was sent SIGTERM, and ends.")
    assert workers_in_status(two)[0].drains_s == 20


def test_an_actor_stays_if_the_drain_was_undone_before_it_was_asked_to_end(two: Cluster) -> None:
    two.has("client", "a", max_restarts=1)
    two.joins("new", machine="n")
    two.drains("o")
    two.drains("o", undo=True)
    assert moving(two) == ["a"]  # its worker says which of them stay
    two.says("old", control.Stay(actor="a"))
    two.advance(MOVE_PAUSE_S)
    assert phase_of(two.state, "a") is Phase.ALIVE


def test_the_news_that_an_actor_stays_may_be_lost(two: Cluster) -> None:
    two.has("client", "a", max_restarts=1)
    two.joins("new", machine="n")
    two.drains("o")
    two.drains("o", undo=True)
    two.sent(object)
    two.joins("old", cpus=4, machine="o")
    assert phase_of(two.state, "a") is Phase.ALIVE
    assert [who for who, m in two.sent(control.Moving) if m.stays] == ["client"]


def test_an_actor_that_ends_its_move_before_its_maker_has_reconnected_waits_for_that(
    two: Cluster,
) -> None:
    two.has("client", "a", owner="", max_restarts=1, name="store", named=True)
    two.joins("new", machine="n")
    two.drains("o")
    two.starts_master(recovers_until=two.now + 10)
    two.joins("old", cpus=4, machine="o", drains_s=300)
    two.moves_out("a")
    assert phase_of(two.state, "a") is Phase.RESTARTING
    two.sent(object)
    two.hello("client")
    assert [died.obituary.moved for _, died in two.sent(control.Died)] == [True]
    two.joins("new", machine="n")
    returns(two, "a", owner="", name="store", named=True)
    assert workers_of(two) == ["new"]


def test_the_name_of_a_moved_actor_is_freed_if_its_maker_does_not_reconnect(two: Cluster) -> None:
    two.has("client", "a", owner="", max_restarts=1, name="store", named=True)
    two.joins("new", machine="n")
    two.drains("o")
    two.starts_master(recovers_until=two.now + 10)
    two.joins("old", cpus=4, machine="o", drains_s=300)
    two.moves_out("a")
    two.advance(11)
    assert phase_of(two.state, "a") is Phase.ENDED
    assert two.state.actors.names == {}


def test_a_restarted_master_withdraws_the_move_of_an_actor_whose_maker_is_gone(
    two: Cluster,
) -> None:
    two.has("client", "a", owner="", max_restarts=1)
    two.joins("new", machine="n")
    two.drains("o")
    status = two.living["old"]["a"]
    two.living["old"]["a"] = msgspec.structs.replace(status, moves=True)
    two.starts_master(recovers_until=two.now + 10)
    two.joins("old", cpus=4, machine="o", drains_s=300)
    assert moving(two) == ["a"]
    assert two.sent(control.Stay) == []  # its maker may reconnect
    two.advance(11)
    assert [who for who, _ in two.sent(control.Stay)] == ["old"]


def test_a_client_that_is_back_is_told_which_actors_move(two: Cluster) -> None:
    two.has("client", "a", max_restarts=1)
    two.joins("new", machine="n")
    two.drains("o")
    two.sent(object)
    two.hello("client")
    assert [message.actor for _, message in two.sent(control.Moving)] == ["a"]
    two.says("old", control.Stay(actor="a"))
    two.sent(object)
    two.hello("client")
    assert two.sent(control.Moving) == []
