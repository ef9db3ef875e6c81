"""`remotely.current_actor()`, and the name of an actor in `top`."""

import multiprocessing
import os
from pathlib import Path
from typing import Any

import pytest

import remotely
from remotely.api.current_actor import CurrentActor, title


@remotely.remote_class
class Selfaware:
    def who(self) -> object:
        return remotely.current_actor()

    def who_is_my_child(self) -> object:
        with multiprocessing.get_context("fork").Pool(1) as pool:
            return pool.apply(remotely.current_actor)

    def meet(self, other: "Selfaware") -> None:
        me: Any = remotely.current_actor()
        other.greet(me.handle)

    def greet(self, other: "Selfaware") -> None:
        self.friends = [other]

    def ask_friends(self) -> list[object]:
        return [friend.who() for friend in self.friends]


@pytest.mark.promise("output")
def test_an_actor_knows_its_name_and_its_class(any_cluster: None) -> None:
    actor = remotely.options(Selfaware, name="minnie")()

    me = actor.who()

    assert isinstance(me, CurrentActor)
    assert (me.name, me.class_name, me.life) == ("minnie", "Selfaware", 0)
    assert me.pid != os.getpid()
    assert Path(f"/proc/{me.pid}/comm").read_text() == "minnie\n"
    shown = Path(f"/proc/{me.pid}/cmdline").read_text()
    assert shown.rstrip(" \0") == "remotely actor minnie (Selfaware)"
    assert b"REMOTELY" in Path(f"/proc/{me.pid}/environ").read_bytes()  # which is unchanged


def test_an_actor_can_pass_itself_to_others(any_cluster: None) -> None:
    one, two = Selfaware(), Selfaware()

    one.meet(two)

    assert two.friends == [one]
    assert two.ask_friends() == [one.who()]
    me: Any = one.who()
    with pytest.raises(remotely.RemotelyError, match="only the actor itself"):
        _ = me.handle


def test_outside_an_actor_there_is_no_current_actor(
    any_cluster: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert remotely.current_actor() is None
    assert Selfaware().who_is_my_child() is None
    assert remotely.local(Selfaware).who() is None


def test_a_long_name_is_shortened_in_the_middle() -> None:
    assert title("Learner-1") == b"Learner-1"
    assert title("TransitionBuffer-12") == b"Transit~ffer-12"
