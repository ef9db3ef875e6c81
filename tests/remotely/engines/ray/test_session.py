"""Joining a Ray cluster and leaving it, and what a process is told that may not join."""

from tests.remotely.engines.ray.conftest import Run


def test_a_cluster_admits_those_who_have_its_token(own_ray: Run) -> None:
    told = own_ray("with_token.py", RAY_AUTH_MODE="token", RAY_AUTH_TOKEN="a" * 64)

    assert told["right"][0] == told["right, as Ray comes"][0] == 1
    for kind, words in (told["wrong"], told["none"]):
        assert kind == "NotAllowed"
        assert "does not admit this process" in words


def test_a_caller_who_waits_when_its_own_ray_ends_is_told(own_ray: Run) -> None:
    assert own_ray("leaving.py") == ["NotConnected"]
