"""`get_if_exists`: an actor is found or made by its name, once for concurrent requests."""

import os
from collections.abc import Callable
from typing import Any

import pytest

import remotely


@remotely.remote_class(cpus=0)
class Store:
    def __init__(self, content: str = "") -> None:
        self.content = content

    def pid(self) -> int:
        return os.getpid()

    def read(self) -> str:
        return self.content


@remotely.remote_class(cpus=0)
class Client:
    def get_or_make(self, name: str, content: str) -> tuple[int, str]:
        self.store = remotely.options(Store, name=name, get_if_exists=True, detached=True)(content)
        return self.store.pid(), self.store.read()


@remotely.remote_class(cpus=0)
class OtherStore(Store):
    pass


@remotely.remote_class(cpus=0, wait=False)
class Eager:
    def twice(self, number: int) -> int:
        return 2 * number


def test_concurrent_requests_for_a_name_get_one_actor(any_cluster: None) -> None:
    clients = remotely.group(Client, 4)
    for turn in range(5):
        name = f"store-{turn}"
        calls = [c.get_or_make.submit(name, f"of {i}") for i, c in enumerate(clients)]
        found = {call.result() for call in calls}
        assert len(found) == 1
        store: Store = remotely.get_actor(name)
        assert {(store.pid(), store.read())} == found
        remotely.close(store)


def test_the_maker_owns_the_actor_and_others_borrow_it(here: None) -> None:
    make = remotely.options(Store, name="mine", get_if_exists=True)
    mine = make("first")
    again = make("second")
    assert again == mine
    assert again.read() == "first"
    assert Client().get_or_make("mine", "third") == (mine.pid(), "first")
    assert mine.read() == "first"  # the borrower has ended
    remotely.close(mine)
    assert make("fourth").read() == "fourth"


def test_an_actor_that_is_found_is_of_the_class_that_is_wanted(any_cluster: None) -> None:
    plain: Store = remotely.options(Store, name="plain")()
    other: OtherStore = remotely.options(OtherStore, name="other")()
    find: list[Callable[[type, str], object]] = [
        lambda cls, name: remotely.options(cls, name=name, get_if_exists=True)(),
        lambda cls, name: remotely.get_actor(name, cls),
    ]
    for found in find:
        with pytest.raises(TypeError, match="'plain' is of the class Store, not OtherStore"):
            found(OtherStore, "plain")
        assert found(Store, "plain") == plain
        assert found(Store, "other") == other
        assert isinstance(found(Store, "other"), OtherStore)


def test_a_call_waits_as_its_class_says_however_its_actor_was_found(any_cluster: None) -> None:
    eager: Any = remotely.options(Eager, name="eager")()
    typed: Any = remotely.get_actor("eager", Eager)
    for each in (eager, typed, remotely.get_actor("eager")):
        assert each.twice(2).result() == 4


def test_an_ending_actor_is_not_returned(any_cluster: None) -> None:
    make = remotely.options(Store, name="again", get_if_exists=True)
    for turn in range(3):
        assert int(make(f"{turn}").read()) <= turn  # its handle is dropped after that


def test_a_name_is_free_again_after_the_last_handle(any_cluster: None) -> None:
    for turn in range(3):
        store = remotely.options(Store, name="again")(f"{turn}")
        assert store.read() == f"{turn}"
        del store


def test_a_taken_name_in_a_constructor_is_an_error(here: None) -> None:
    @remotely.remote_class(cpus=0)
    class Maker:
        def __init__(self) -> None:
            remotely.options(Store, name="taken")()

    held = remotely.options(Store, name="taken")()
    with pytest.raises(remotely.NameTaken, match="taken"):
        remotely.options(Maker, name="maker", get_if_exists=True)()
    assert held.read() == ""


def test_get_if_exists_works_in_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REMOTELY_LOCAL", "1")
    remotely.shutdown()
    make = remotely.options(Store, name="mine", get_if_exists=True)
    mine = make("first")
    assert make("second") == mine
    assert make("second").read() == "first"
    remotely.shutdown()


def test_get_if_exists_needs_a_name_and_one_instance() -> None:
    several = remotely.options(Store, name="several")
    for make in (remotely.group, remotely.Pool):
        with pytest.raises(ValueError, match="name='several' is for one actor, not for 2"):
            make(several, 2)
        with pytest.raises(ValueError, match="get_if_exists=True is for one actor"):
            make(remotely.options(several, get_if_exists=True), 1)
    with pytest.raises(ValueError, match="needs a name"):
        remotely.options(Store, get_if_exists=True)
    with pytest.raises(ValueError, match="True or False"):
        remotely.options(Store, name="a", get_if_exists=1)
    with pytest.raises(TypeError, match="option of one instance"):
        remotely.remote_class(get_if_exists=True)  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="for one actor"):
        remotely.group(remotely.options(Store, name="a", get_if_exists=True), 2)


def test_the_actors_of_the_cluster_are_listed_with_types(here: None) -> None:
    store, client = remotely.options(Store, name="listed")(), Client()
    found = {actor.name: actor for actor in remotely.actors()}
    assert found["listed"].class_name == "Store"
    assert found["listed"].pid == store.pid()
    assert client in [remotely.get_actor(name) for name in found]
