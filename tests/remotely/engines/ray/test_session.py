"""Joining a Ray cluster and leaving it, and what a process is told that may not join."""

import pytest

import remotely
from tests.remotely.engines.ray.conftest import Run


def test_a_cluster_admits_processes_with_its_token_and_version(own_ray: Run) -> None:
    told = own_ray("with_token.py", RAY_AUTH_MODE="token", RAY_AUTH_TOKEN="a" * 64)

    assert told["right"][0] == told["right, as Ray comes"][0] == 1
    for kind, words in (told["wrong"], told["none"]):
        assert kind == "NotAllowed"
        assert "does not admit this process" in words
    kind, words = told["of another Ray"]
    assert kind == "VersionMismatch"
    assert "2.0.77" in words


@pytest.mark.usefixtures("own_ray")
def test_auto_is_refused_without_a_token_if_this_machine_has_joined_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import ray
    from ray._private import services

    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(services, "find_gcs_addresses", lambda: {"192.0.2.77:6379"})

    with pytest.raises(remotely.NotAllowed, match=r"'192\.0\.2\.77:6379' is another machine"):
        remotely.connect("ray:auto")


@pytest.mark.usefixtures("own_ray")
def test_where_no_ray_runs_the_error_says_how_to_start_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import ray
    from ray._private import services

    def find(_: object) -> None:
        raise ConnectionError("Could not find any running Ray instance.")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(services, "canonicalize_bootstrap_address", find)

    with pytest.raises(remotely.MasterLost, match=r"running Ray instance\. Start one there"):
        remotely.connect("ray:auto")


def test_leaving_a_ray_of_one_s_own_ends_waits_and_lets_objects_close(own_ray: Run) -> None:
    told, came_to_their_ends = own_ray("leaving.py")

    assert told == ["NotConnected"]
    assert came_to_their_ends == ["closed"]  # for longer than a call has whose caller leaves
