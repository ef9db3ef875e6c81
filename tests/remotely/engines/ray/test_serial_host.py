"""The host of an object with plain methods."""

import threading
from pathlib import Path

import pytest

import remotely
from tests.clusters import wait_until

pytestmark = pytest.mark.usefixtures("on_ray")


@remotely.remote_class(cpus=0)
class Hub:
    def __init__(self) -> None:
        self.found: Guest | None = None

    def greet(self, name: str) -> None:
        self.found = remotely.get_actor(name)

    def where(self) -> bool:
        assert self.found is not None
        return self.found.where()


@remotely.remote_class(cpus=0)
class Guest:
    def __init__(self, hub: Hub, name: str) -> None:
        self.thread = threading.get_ident()
        asked = hub.greet.submit(name)
        with pytest.raises(remotely.CallTimeout):  # long enough for the hub to find it, and to call
            asked.result(1)

    def where(self) -> bool:
        return threading.get_ident() == self.thread


def test_a_call_that_comes_before_the_object_is_made_waits_for_it() -> None:
    hub = Hub()

    guest = remotely.options(Guest, name="guest")(hub, "guest")

    assert hub.where()
    assert guest.where()


@remotely.remote_class(cpus=0)
class Closing:
    def __init__(self, marker: Path) -> None:
        self.marker, self.thread = marker, threading.get_ident()

    def close(self) -> None:
        self.marker.write_text(str(threading.get_ident() == self.thread))


def test_an_object_is_closed_on_the_thread_that_ran_its_calls(tmp_path: Path) -> None:
    marker = tmp_path / "closed"
    closing = Closing(marker)

    del closing

    wait_until(lambda: marker.exists() and marker.read_text() == "True", "close() to have run")


def test_an_object_that_is_stopped_is_closed_before_its_process_is_asked_to_leave(
    tmp_path: Path,
) -> None:
    marker = tmp_path / "closed"
    closing = Closing(marker)

    closing._remotely_remote.host.stop.remote()  # Ray may bring this first

    wait_until(lambda: marker.exists() and marker.read_text() == "True", "close() to have run")
