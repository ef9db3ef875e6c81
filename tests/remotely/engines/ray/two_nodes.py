"""A script with a Ray of two nodes that removes the node on which its objects live.

It prints the outcomes of their calls, as a line of JSON.
"""

import contextlib
import json
import threading
from collections.abc import Callable

import ray
from ray.cluster_utils import Cluster

import remotely
from remotely.engines.ray.actor import NAMESPACE

SMALL = {"include_dashboard": False, "object_store_memory": 100 << 20}


@remotely.remote_class(cpus=1)
class Sleeper:
    def sleep(self) -> None:
        threading.Event().wait()

    def where(self) -> str:
        return str(ray.get_runtime_context().get_node_id())


def outcome(call: Callable[[], object]) -> dict[str, object]:
    try:
        return {"value": call()}
    except remotely.RemotelyError as error:
        doubt = getattr(error, "may_have_run", None)
        return {"error": type(error).__name__, "may_have_run": doubt, "message": str(error)}


def lose_a_node(cluster: Cluster) -> dict[str, object]:
    """Return the outcomes of calls during and after the loss of a node."""
    doomed = cluster.add_node(num_cpus=3, **SMALL)
    sleeper, idle = remotely.group(Sleeper, 2)
    movable = remotely.options(Sleeper, max_restarts=1)()
    assert {each.where() for each in (idle, movable)} == {doomed.node_id}
    running = sleeper.sleep.submit()
    cluster.add_node(num_cpus=1, **SMALL)
    cluster.remove_node(doomed, allow_graceful=False)
    after = [outcome(running.result), outcome(idle.where)]
    while "is gone" not in str(after[-1].get("message")):  # until Ray has declared it lost
        after.append(outcome(idle.where))
    while "value" not in (moved := outcome(movable.where)):
        after.append(moved)
    return {"after": after, "moved": moved["value"] != doomed.node_id}


if __name__ == "__main__":
    cluster = Cluster(True, head_node_args={"num_cpus": 0, **SMALL})
    with contextlib.ExitStack() as stack:
        stack.callback(cluster.shutdown)
        ray.init(address=cluster.address, namespace=NAMESPACE, logging_level="ERROR")
        stack.callback(ray.shutdown)
        remotely.connect("ray:auto")
        stack.callback(remotely.shutdown)
        outcomes = lose_a_node(cluster)
    print(json.dumps(outcomes))
