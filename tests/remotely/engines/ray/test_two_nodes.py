"""A machine of a Ray cluster that is gone, and what becomes of the objects on it."""

from tests.remotely.engines.ray.conftest import Run

# How Ray finds out that a machine is gone; by default it is sure after fifteen seconds.
LOOKS_OFTEN = {
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_failure_threshold": "4",
}


def test_a_machine_that_is_gone_takes_its_actors_along_but_one_that_may_be_restarted(
    own_ray: Run,
) -> None:
    told = own_ray("two_nodes.py", **LOOKS_OFTEN)

    assert {each["error"] for each in told["after"]} == {"WorkerLost"}
    assert told["after"][0]["may_have_run"]
    assert any("the machine of Sleeper-2" in each["words"] for each in told["after"])
    assert told["moved"]
