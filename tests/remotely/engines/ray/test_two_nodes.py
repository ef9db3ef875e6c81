"""A machine of a Ray cluster that is gone, and what becomes of the objects on it."""

from tests.remotely.engines.ray.conftest import Run


def test_a_machine_that_is_gone_takes_its_actors_along_but_one_that_may_be_restarted(
    own_ray: Run,
) -> None:
    told = own_ray("two_nodes.py")

    assert {each["error"] for each in told["after"]} == {"WorkerLost"}
    running, last = told["after"][0], told["after"][-1]
    assert running["may_have_run"]
    assert "the machine of Sleeper-2" in last["words"]
    assert told["moved"]
