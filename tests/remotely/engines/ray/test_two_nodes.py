"""The loss of a machine of a Ray cluster, and of the objects on it."""

from tests.remotely.engines.ray.conftest import Run

# Ray declares a machine lost after 2 s instead of 15 s.
FAST_CHECKS = {
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_failure_threshold": "4",
}


def test_the_actors_of_a_lost_machine_are_lost_or_restarted(own_ray: Run) -> None:
    outcomes = own_ray("two_nodes.py", **FAST_CHECKS)

    assert {each["error"] for each in outcomes["after"]} == {"WorkerLost"}
    assert outcomes["after"][0]["may_have_run"]
    assert any("the machine of Sleeper-2" in each["message"] for each in outcomes["after"])
    assert outcomes["moved"]
