"""What an actor takes over from the process that asked for it, in every way to be born."""

import multiprocessing
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from multiprocessing.managers import SyncManager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import remotely
from remotely.protocol import control
from remotely.values import maker_state
from tests.clusters import Started

OWN = "OMP_NUM_THREADS"  # set by remotely


class Unloaded(Warning):
    """A category whose module no actor has loaded: this module is sent by value."""


class Seen(NamedTuple):
    mode: str | None
    path: str | None
    threads: str | None
    folder: str
    life: int


def seen() -> Seen:
    actor = remotely.current_actor()
    assert actor
    mode, path, threads = (os.environ.get(name) for name in ("MODE", "PATH", OWN))
    return Seen(mode, path, threads, os.getcwd(), actor.life)


@remotely.remote_class
class Witness:
    def see(self) -> Seen:
        return seen()

    def made_by_me(self) -> Seen:
        return Witness().see()

    def is_shown(self, text: str, category: str) -> bool:
        """Return whether a warning of a category with this name would be shown or raised."""
        kind = type(category, (Warning,), {"__module__": Unloaded.__module__})
        with warnings.catch_warnings(record=True) as caught:
            try:
                warnings.warn(text, kind, stacklevel=1)
            except Warning:
                return True
            return bool(caught)

    def options(self) -> list[str]:
        return list(sys.warnoptions)

    def put(self, shared: Any, value: int) -> None:
        shared["value"] = value


@remotely.remote_class(max_restarts=1)
class Phoenix(Witness):
    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


def by_constructor() -> Seen:
    return Witness().see()


def in_a_group() -> Seen:
    found: list[Seen] = remotely.group(Witness, 2).see()
    assert found[0] == found[1]
    return found[0]


def with_env() -> Seen:
    return remotely.options(Witness, env={"MORE": "1"})().see()


def by_an_executor() -> Seen:
    with remotely.Executor(1) as executor:
        return executor.submit(seen).result()


def in_a_pool() -> Seen:
    with remotely.Pool(Witness, 1) as pool:
        return pool.submit(Witness.see).result()


def by_an_actor() -> Seen:
    return remotely.options(Witness, env={"MORE": "1"})().made_by_me()


WAYS = [by_constructor, in_a_group, with_env, by_an_executor, in_a_pool, by_an_actor]


@pytest.fixture
def changed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """Change the state of the script, whose cluster was started before."""
    monkeypatch.setenv("MODE", "offline")
    monkeypatch.setenv(OWN, "77")
    monkeypatch.delenv("PATH")  # one of those with which this process was started
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    monkeypatch.undo()


@pytest.mark.parametrize("born", WAYS)
def test_an_actor_has_the_environment_and_the_folder_of_its_script(
    any_cluster: None, changed: Path, born: Callable[[], Seen]
) -> None:
    assert born() == Seen("offline", None, "1", str(changed), 0)


def test_a_restarted_actor_has_the_state_with_which_it_was_asked_for(
    any_cluster: None, changed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    phoenix = Phoenix()
    monkeypatch.setenv("MODE", "online")
    monkeypatch.chdir("/")

    with pytest.raises(remotely.ActorDied):
        phoenix.die()

    assert phoenix.see() == Seen("offline", None, "1", str(changed), 1)


def test_a_detached_actor_that_its_worker_restarts_has_it_too(here: None, changed: Path) -> None:
    phoenix = remotely.options(Phoenix, name="phoenix", detached=True)()
    try:
        with pytest.raises(remotely.ActorDied):
            phoenix.die()

        assert phoenix.see() == Seen("offline", None, "1", str(changed), 1)
    finally:
        remotely.close(phoenix)


def test_env_is_stronger_than_what_the_script_has_changed(any_cluster: None, changed: Path) -> None:
    env = {"MODE": "mine", OWN: "3"}

    found = remotely.options(Witness, env=env)().see()

    assert found == Seen("mine", None, "3", str(changed), 0)


def test_an_actor_of_an_actor_has_the_env_of_its_maker(any_cluster: None) -> None:
    maker = remotely.options(Witness, env={"MODE": "of the maker"})()

    assert maker.made_by_me().mode == "of the maker"


def test_a_folder_that_is_gone_is_named_and_the_actor_lives(
    here: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    phoenix = Phoenix()
    monkeypatch.chdir("/")
    gone.rmdir()

    with pytest.raises(remotely.ActorDied):
        phoenix.die()

    assert phoenix.see().folder != str(gone)


def test_on_another_machine_changes_arrive_but_for_the_names_of_folders(
    started: Started, nothing_left: None, changed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remotely.connect(started.address, key=started.key)
    monkeypatch.setenv("HOME", "/of/this/machine")
    try:
        found = Witness().see()
    finally:
        remotely.shutdown()

    assert found.mode == "offline"
    assert found.path
    assert found.folder != str(changed)


@pytest.mark.parametrize("env", [{}, {"MORE": "1"}])
def test_an_actor_has_the_warning_filters_of_its_script(
    any_cluster: None, monkeypatch: pytest.MonkeyPatch, env: dict[str, str]
) -> None:
    monkeypatch.setattr(sys, "warnoptions", ["error::BytesWarning"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "quiet.*")
        warnings.filterwarnings("ignore", category=Unloaded)
        witness = remotely.options(Witness, env=env)()

    assert not witness.is_shown("quiet, please", "Other")
    assert not witness.is_shown("loud", "Unloaded")
    assert witness.is_shown("loud", "Other")
    assert witness.options() == ["error::BytesWarning"]


@pytest.fixture(scope="module")
def manager() -> Iterator[SyncManager]:
    with multiprocessing.get_context("spawn").Manager() as made:
        yield made


@pytest.mark.parametrize("env", [{}, {"MORE": "1"}])
def test_a_proxy_of_multiprocessing_works_in_an_actor(
    any_cluster: None, manager: SyncManager, env: dict[str, str]
) -> None:
    shared = manager.dict()

    remotely.options(Witness, env=env)().put(shared, 5)

    assert shared["value"] == 5


def test_a_proxy_of_multiprocessing_works_on_another_machine(
    started: Started, manager: SyncManager, nothing_left: None
) -> None:
    remotely.connect(started.address, key=started.key)
    shared = manager.dict()
    try:
        Witness().put(shared, 5)
    finally:
        remotely.shutdown()

    assert shared["value"] == 5


def test_the_repr_of_the_state_has_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "hidden")
    state = maker_state.take()
    prepare = control.Prepare(job="", host="", files={}, concurrency=1, state=state)

    shown = repr(prepare)

    assert state.authkey
    assert repr(state.authkey) not in shown
    assert "hidden" not in shown
    assert state.environment[b"TOKEN"] == b"hidden"
