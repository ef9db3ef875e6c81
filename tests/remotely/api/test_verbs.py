"""The verbs `kill` and `status`."""

import os
import time

import pytest

import remotely
from remotely.errors import ActorDied
from tests.clusters import wait_until


@remotely.remote_class
class Stubborn:
    def pid(self) -> int:
        return os.getpid()

    def close(self) -> None:
        raise AssertionError("closed")

    def work(self, seconds: float) -> float:
        time.sleep(seconds)
        return seconds


def test_kill_ends_a_busy_actor_immediately_without_its_close(place: str) -> None:
    stubborn = Stubborn()
    busy = stubborn.work.submit(60 if place == "cluster" else 0)
    if place == "cluster":
        wait_until(lambda: remotely.status().actors[0].running, "it runs")
    remotely.kill(stubborn)
    if place == "cluster":
        error = busy.exception(40)
        assert isinstance(error, ActorDied)
        assert f"killed by pid {os.getpid()} (" in str(error)
        assert "the call may have run" in str(error)
    with pytest.raises(ActorDied, match="killed"):
        stubborn.work(0)
    remotely.kill(stubborn)
    group = remotely.group(Stubborn, 2)
    remotely.kill(group)
    with pytest.raises(ActorDied):
        group.work(0)
    with pytest.raises(TypeError, match="handle or a group"):
        remotely.kill(5)


def test_a_borrowed_actor_may_be_killed_and_is_not_restarted(
    on_cluster: None,
) -> None:
    mine = remotely.options(Stubborn, name="to-be-killed", max_restarts=5)()
    remotely.kill(remotely.get_actor("to-be-killed"))
    with pytest.raises(ActorDied):
        mine.work(0)


def test_status_lists_actors_and_clients(place: str) -> None:
    stubborn = remotely.options(Stubborn, name=f"seen-{place}")()
    found = remotely.status()
    (actor,) = [actor for actor in found.actors if actor.name == f"seen-{place}"]
    assert (actor.class_name, actor.pid) == ("Stubborn", stubborn.pid())
    assert actor.owner is not None
    assert actor.owner.pid == os.getpid()
    (me,) = [client for client in found.clients if client.pid == os.getpid()]
    assert me.actors >= 1
    cpus = {"cluster": 32, "ray": 16, "local": 0}[place]
    assert sum(machine.cpus for machine in found.machines) == cpus
    remotely.kill(stubborn)
    assert actor.name not in [actor.name for actor in remotely.status().actors]
