"""Joining and leaving a Ray cluster, and the errors of a process that cannot join."""

import pytest

import remotely
from tests.remotely.engines.ray.conftest import Run


def test_a_cluster_admits_processes_with_its_token_and_version(own_ray: Run) -> None:
    outcomes = own_ray("with_token.py", RAY_AUTH_MODE="token", RAY_AUTH_TOKEN="a" * 64)

    assert outcomes["right"][0] == outcomes["right, default mode"][0] == 1
    for kind, message in (outcomes["wrong"], outcomes["none"]):
        assert kind == "NotAllowed"
        assert "does not admit this process" in message
    kind, message = outcomes["of another Ray"]
    assert kind == "VersionMismatch"
    assert "2.0.77" in message


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
def test_without_a_ray_cluster_the_error_says_how_to_start_one(
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


def test_shutdown_fails_waiting_calls_and_waits_only_for_close(own_ray: Run) -> None:
    errors, finished = own_ray("leaving.py")

    assert errors == ["NotConnected"]
    assert finished == ["closed"]  # which has more time than the calls
